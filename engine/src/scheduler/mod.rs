//! The scheduler: which jobs run when.
//!
//! Owns: [cron expressions](cron) and their [time zones](zone), and the [identity] of a schedule.
//! May import layers 0-5, never `broker` or `server`. Invariant: nothing here reads a clock; a
//! moment is always an argument.

pub mod cron;
pub mod identity;
mod pyjson;
pub mod zone;
