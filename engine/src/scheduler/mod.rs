//! The scheduler: which jobs run when.
//!
//! | module | what |
//! |---|---|
//! | [`cron`], [`zone`] | cron expressions, and the clocks they are read on |
//! | [`identity`], [`schedule`], [`record`] | a SCHEDULE: which one it is, what it says, how it is stored |
//! | [`timetable`] | what is due when |
//! | [`ledger`] | what the store is told, and which runs wait for it |
//! | [`session`] | the connection with the broker |
//! | [`node`] | all of it as one state machine |
//!
//! May import layers 0-5, never `broker` or `server`. Invariants: nothing but `store` and `daemon`
//! reads a clock or touches a file or socket; a moment is always an argument; one fire is sent at
//! most once as long as the store answers.

mod admin;
pub mod cron;
pub mod identity;
pub mod ledger;
pub mod node;
mod pyjson;
pub mod record;
pub mod schedule;
pub mod server;
pub mod session;
pub mod store;
pub mod timetable;
pub mod zone;
