//! Bounded lock-free hand-over between agents on different threads.
//!
//! Owns: [`Batch`] (a whole turn's messages in one allocation), the typed ends
//! [`BatchSender`] / [`BatchReceiver`] over crossbeam's `ArrayQueue`, and the [`Doorbell`] that
//! wakes a sleeping side. May import: layers 0-2. Knows neither sockets nor jobs.
//!
//! Invariants: batches arrive in the order they were sent and their events in the order they were
//! put in; the number of batches of a ring is fixed, every one of them is either open at the
//! sender, in the ring, at the receiver, or on its way back; nobody ever waits for a ring.

mod batch;
mod doorbell;
mod ends;

pub use batch::{Batch, Place};
pub use doorbell::{Doorbell, Wake};
pub use ends::{BatchReceiver, BatchSender, RingConfig, ring};

#[cfg(test)]
mod tests;
