//! What surrounds the agents: clock, orders, threads, log writer, signals, pinning,
//! limits of the process.
//!
//! May import layers 0-4, never `broker`. The hot path calls only [`clock`]; nothing here is
//! called while a message is being handled. Invariants: a blocked log never blocks a caller of
//! the log; a panic in any thread ends the process.

pub mod affinity;
pub mod clock;
pub mod finish;
pub mod idle;
pub mod log;
pub mod memory;
pub mod node;
pub mod notify;
pub mod open_files;
pub mod orders;
pub mod panic;
pub mod signals;
pub mod threads;
