//! Failures of messages whose callers do not wait: nothing is dropped in silence.

use super::error::CallError;
use crate::emqp::MsgidText;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Failures that are kept until somebody takes them.
const FAILURES_MAX: usize = 10_000;

/// A message that was not accepted, or whose end nobody knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its msgid.
    pub msgid: String,
    /// Why.
    pub error: CallError,
}

/// What was taken by [`Client::take_failures`](super::Client::take_failures).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TakenFailures {
    /// The oldest ones.
    pub list: Vec<Failure>,
    /// How many came when the list was full.
    pub left_out: u64,
}

impl TakenFailures {
    /// True if nothing failed.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty() && self.left_out == 0
    }
}

/// The list of one client.
#[derive(Debug, Default)]
pub(super) struct Failures {
    kept: Mutex<TakenFailures>,
}

impl Failures {
    fn lock(&self) -> MutexGuard<'_, TakenFailures> {
        // Never left half changed.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(&self, msgid: MsgidText, error: CallError) {
        let mut kept = self.lock();
        if kept.list.is_empty() {
            tracing::warn!("messages fail that nobody waits for; the first: {error}");
        }
        if kept.list.len() >= FAILURES_MAX {
            kept.left_out += 1;
            return;
        }
        let msgid = String::from_utf8_lossy(&msgid).into_owned();
        kept.list.push(Failure { msgid, error });
    }

    pub(super) fn take(&self) -> TakenFailures {
        std::mem::take(&mut *self.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::SendError;

    #[test]
    fn the_list_is_bounded_and_says_how_much_is_missing() {
        let failures = Failures::default();
        for _ in 0..FAILURES_MAX + 3 {
            failures.note([b'x'; 36], SendError::TimedOut.into());
        }
        let taken = failures.take();
        assert_eq!((taken.list.len(), taken.left_out), (FAILURES_MAX, 3));
        assert!(!taken.is_empty() && failures.take().is_empty());
    }
}
