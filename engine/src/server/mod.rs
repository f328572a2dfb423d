//! The broker as a whole: listeners, agents, threads, and the state machine between them.
//!
//! Owns: building, starting, reloading, draining and stopping a broker in process; `emq-router`,
//! tests and benches use it. May import everything below. The dispatch agent is the only place
//! where a decision is made; it runs either on a thread of its own, joined to the I/O agents by
//! rings (`dedicated`), or as the I/O agent's sink (`inline`). Both run the same code.

mod admin;
mod config;
mod control;
mod dedicated;
mod dispatch;
mod events;
mod handle;
mod inline;
mod placement;
mod ringed;
mod spread;
mod turns;

pub use config::{ServerConfig, StartError};
pub use control::AgentReport;
pub use handle::{ExitReport, Server};

#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;
