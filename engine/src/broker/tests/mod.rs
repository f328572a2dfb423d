//! Behaviour of the state machine, by what its peers see.

mod rig;

mod choosing;
mod costs;
mod drain;
mod jobs;
mod limits;
mod peers;
mod scenarios;
mod schedulers;
