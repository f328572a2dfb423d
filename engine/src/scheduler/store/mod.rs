//! Where schedules outlive the process.
//!
//! A [`Store`] may block: it lives on a thread of its own ([`spawn`]), which answers one request
//! after the other.

mod embedded;
mod redis;

pub use self::redis::{RedisConfig, RedisStore};
pub use embedded::{Embedded, OpenError};

use super::identity::Identity;
use super::ledger::{Answer, Batch, Lease, Loaded, Request};
use super::node::{SchedulerCommand, StorePort};
use crate::runtime::node::NodeHandle;
use crate::runtime::threads::agent_thread;
use crossbeam::channel::{Receiver, Sender, bounded};
use std::io;
use std::thread::JoinHandle;

/// Something that keeps schedules. Every call may block and may fail.
pub trait Store: Send + 'static {
    /// Everything it holds.
    ///
    /// # Errors
    /// One line; the next call tries again.
    fn load(&mut self) -> Result<Loaded, String>;

    /// Writes all of a batch or nothing. The fires that another scheduler has taken before.
    ///
    /// # Errors
    /// One line; the next call tries again.
    fn write(&mut self, batch: &Batch) -> Result<Vec<(Identity, u64)>, String>;

    /// Takes or renews the lease of who fires, where schedulers share the store.
    ///
    /// # Errors
    /// One line; the next call tries again.
    fn lease(&mut self) -> Result<Lease, String> {
        Ok(Lease {
            ours: true,
            version: 0,
            others: false,
        })
    }

    /// Gives the lease up: the scheduler has ended.
    fn release(&mut self) {}
}

/// The requests' end of the queue to the store's thread.
#[derive(Debug)]
pub struct StoreQueue {
    requests: Sender<Request>,
}

/// The other end, until the thread starts.
#[derive(Debug)]
pub struct StoreWork {
    requests: Receiver<Request>,
}

/// A queue to a store's thread. At most one request is under way, so one place is enough.
pub fn queue() -> (StoreQueue, StoreWork) {
    let (sender, receiver) = bounded(1);
    (
        StoreQueue { requests: sender },
        StoreWork { requests: receiver },
    )
}

impl StorePort for StoreQueue {
    fn ask(&mut self, request: Request) {
        // The thread outlives the scheduler; the place is free because no answer is owed.
        if self.requests.try_send(request).is_err() {
            tracing::error!("the store's thread does not take requests");
        }
    }
}

/// Starts the store's thread. It ends when the scheduler is gone.
///
/// # Errors
/// When the system refuses the thread.
pub fn spawn<S: Store>(
    mut store: S,
    work: StoreWork,
    node: NodeHandle<SchedulerCommand>,
) -> io::Result<JoinHandle<()>> {
    agent_thread("emq-store", move || {
        while let Ok(request) = work.requests.recv() {
            let answer = match request {
                Request::Load => store.load().map(Answer::Loaded),
                Request::Write(batch) => store.write(&batch).map(Answer::Written),
                Request::Lease => store.lease().map(Answer::Leased),
            };
            let answer = answer.unwrap_or_else(Answer::Failed);
            if node.give(SchedulerCommand::Store(answer)).is_err() {
                break;
            }
        }
        store.release();
    })
}
