//! What a caller holds for a message that is outstanding, and the other end of it.

use super::core::{Accepted, Deliver, RawResult};
use super::error::{CallError, JobError, SendError};
use super::failures::Failures;
use super::room::Permit;
use crate::emqp::{JobStatus, MSGID_TEXT_BYTES, MsgidText};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

#[derive(Debug, Default)]
struct Progress {
    accepted: Option<Accepted>,
    end: Option<Result<RawResult, CallError>>,
    waker: Option<Waker>,
    /// A thread waits.
    waiting: bool,
    /// The caller's end is gone: a failure goes to the list of failures.
    unclaimed: bool,
}

#[derive(Debug)]
struct Slot {
    msgid: MsgidText,
    /// A result is awaited: an acceptance is not the end.
    call: bool,
    progress: Mutex<Progress>,
    woken: Condvar,
    failures: Arc<Failures>,
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        // Nothing in here panics half way.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whoever waits, once the guard is gone.
    fn wake(&self, mut progress: MutexGuard<'_, Progress>) {
        let (waker, waiting) = (progress.waker.take(), progress.waiting);
        drop(progress);
        if waiting {
            self.woken.notify_all();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn is_over(&self, progress: &Progress) -> bool {
        progress.end.is_some() || (progress.accepted.is_some() && !self.call)
    }

    fn wait(&self) -> MutexGuard<'_, Progress> {
        let mut progress = self.lock();
        progress.waiting = true;
        while !self.is_over(&progress) {
            let woken = self.woken.wait(progress);
            progress = woken.unwrap_or_else(PoisonError::into_inner);
        }
        progress
    }

    fn poll(&self, context: &Context<'_>) -> Option<MutexGuard<'_, Progress>> {
        let mut progress = self.lock();
        if self.is_over(&progress) {
            return Some(progress);
        }
        match &mut progress.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        None
    }
}

/// The state machine's end.
#[derive(Debug)]
pub(super) struct Answer {
    slot: Arc<Slot>,
    permit: Permit,
    over: bool,
}

impl Answer {
    pub(super) fn new(
        msgid: MsgidText,
        call: bool,
        permit: Permit,
        failures: Arc<Failures>,
    ) -> (Answer, Handle) {
        let slot = Arc::new(Slot {
            msgid,
            call,
            progress: Mutex::default(),
            woken: Condvar::new(),
            failures,
        });
        let handle = Handle(Arc::clone(&slot));
        let answer = Answer {
            slot,
            permit,
            over: false,
        };
        (answer, handle)
    }

    fn fail(&mut self, error: CallError) {
        self.over = true;
        let mut progress = self.slot.lock();
        if progress.unclaimed {
            drop(progress);
            return self.slot.failures.note(self.slot.msgid, error);
        }
        progress.end = Some(Err(error));
        self.slot.wake(progress);
    }
}

impl Deliver for Answer {
    fn accepted(&mut self, how: Accepted) {
        self.permit.release_bytes();
        let mut progress = self.slot.lock();
        progress.accepted = Some(how);
        if !self.slot.call {
            self.over = true;
            self.slot.wake(progress);
        }
    }

    fn result(mut self, result: RawResult) {
        self.over = true;
        let mut progress = self.slot.lock();
        progress.end = Some(Ok(result));
        self.slot.wake(progress);
    }

    fn failed(mut self, error: CallError) {
        self.fail(error);
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.over {
            // The client's thread has ended without a word.
            self.fail(SendError::Closed.into());
        }
    }
}

/// The caller's end.
#[derive(Debug)]
pub(super) struct Handle(Arc<Slot>);

impl Handle {
    fn msgid(&self) -> &str {
        std::str::from_utf8(&self.0.msgid[..MSGID_TEXT_BYTES]).unwrap_or_default()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut progress = self.0.lock();
        progress.unclaimed = true;
        progress.waker = None;
        if let Some(Err(error)) = progress.end.take() {
            drop(progress);
            self.0.failures.note(self.0.msgid, error);
        }
    }
}

/// A message on its way; a future of its acceptance.
///
/// Dropped, the message is on its way all the same; if it is then not accepted,
/// [`Client::take_failures`](super::Client::take_failures) says so.
#[derive(Debug)]
#[must_use = "dropped, only `take_failures` tells that a message was not accepted"]
pub struct Ticket(pub(super) Handle);

impl Ticket {
    /// The msgid, 36 bytes of text.
    pub fn msgid(&self) -> &str {
        self.0.msgid()
    }

    /// True when [`Ticket::wait`] would not wait.
    pub fn is_over(&self) -> bool {
        self.0.0.is_over(&self.0.0.lock())
    }

    /// Waits for the acceptance, at most for the time-out of the client.
    ///
    /// # Errors
    /// Why the message was not accepted, or that nobody knows.
    pub fn wait(self) -> Result<Accepted, SendError> {
        let progress = self.0.0.wait();
        accepted(progress)
    }
}

fn accepted(mut progress: MutexGuard<'_, Progress>) -> Result<Accepted, SendError> {
    match progress.end.take() {
        Some(Err(CallError::Send(error))) => Err(error),
        // Without a result there are no other ends.
        Some(Err(_) | Ok(_)) => Err(SendError::Closed),
        None => Ok(progress.accepted.unwrap_or(Accepted::Unconfirmed)),
    }
}

impl Future for Ticket {
    type Output = Result<Accepted, SendError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.0.0.poll(context) {
            Some(progress) => Poll::Ready(accepted(progress)),
            None => Poll::Pending,
        }
    }
}

/// A call on its way; a future of its result.
#[derive(Debug)]
#[must_use = "dropped, the job runs and nobody gets its result"]
pub struct Pending<R> {
    handle: Handle,
    result: PhantomData<fn() -> R>,
}

impl<R: DeserializeOwned> Pending<R> {
    pub(super) fn new(handle: Handle) -> Pending<R> {
        Pending {
            handle,
            result: PhantomData,
        }
    }

    /// The msgid, 36 bytes of text.
    pub fn msgid(&self) -> &str {
        self.handle.msgid()
    }

    /// How it was accepted, if it was.
    pub fn accepted(&self) -> Option<Accepted> {
        self.handle.0.lock().accepted
    }

    /// Waits for the result, at most for the time-out of the call.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn wait(self) -> Result<R, CallError> {
        let end = self.handle.0.wait().end.take();
        read_end(end)
    }
}

impl<R: DeserializeOwned> Future for Pending<R> {
    type Output = Result<R, CallError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(mut progress) = self.handle.0.poll(context) else {
            return Poll::Pending;
        };
        let end = progress.end.take();
        drop(progress);
        Poll::Ready(read_end(end))
    }
}

fn read_end<R: DeserializeOwned>(
    end: Option<Result<RawResult, CallError>>,
) -> Result<R, CallError> {
    match end {
        Some(Ok(result)) => read_result(&result),
        Some(Err(error)) => Err(error),
        // Polled again after its end.
        None => Err(SendError::Closed.into()),
    }
}

#[derive(Deserialize)]
struct Ended {
    #[serde(default)]
    error: Option<Failed>,
}

#[derive(Deserialize)]
struct Failed {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    traceback: Option<String>,
}

#[derive(Deserialize)]
struct Succeeded<R> {
    value: R,
}

/// Reads `{"value": ..., "error": ...}`.
fn read_result<R: DeserializeOwned>(result: &RawResult) -> Result<R, CallError> {
    let unreadable = |error: serde_json::Error| CallError::Result(error.to_string());
    let failed = !matches!(result.status, None | Some(JobStatus::Ok));
    let ended = serde_json::from_slice::<Ended>(&result.json);
    match ended {
        Ok(Ended { error: Some(error) }) => Err(JobError {
            status: result.status,
            kind: error.kind,
            message: error.message,
            traceback: error.traceback,
        }
        .into()),
        _ if failed => Err(JobError {
            status: result.status,
            kind: "Error".to_owned(),
            message: "the worker does not say why".to_owned(),
            traceback: None,
        }
        .into()),
        Ok(Ended { error: None }) => serde_json::from_slice::<Succeeded<R>>(&result.json)
            .map(|succeeded| succeeded.value)
            .map_err(unreadable),
        Err(error) => Err(unreadable(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::room::Room;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
    use std::time::Duration;

    fn raw(status: Option<JobStatus>, json: &str) -> RawResult {
        RawResult {
            status,
            json: json.as_bytes().to_vec(),
        }
    }

    fn new(call: bool) -> (Answer, Handle, Arc<Failures>) {
        let failures = Arc::new(Failures::default());
        let permit = Room::new(1, 1).take(1, Duration::ZERO).unwrap();
        let (answer, handle) = Answer::new(
            *b"01234567-0123-4567-89ab-0123456789ab",
            call,
            permit,
            Arc::clone(&failures),
        );
        (answer, handle, failures)
    }

    #[test]
    fn results_are_read_as_what_was_asked_for() {
        let ok = |json| read_result::<Vec<u8>>(&raw(Some(JobStatus::Ok), json));
        assert_eq!(ok(r#"{"value": [1, 2]}"#), Ok(vec![1, 2]));
        assert_eq!(ok(r#"{"value": [1], "error": null}"#), Ok(vec![1]));
        // The original's job manager says no status.
        assert_eq!(read_result::<()>(&raw(None, r#"{"value": null}"#)), Ok(()));
        for unreadable in [
            "",
            "{}",
            "[1]",
            r#"{"value": "TimeoutError"}"#,
            r#"{"value": NaN}"#,
        ] {
            assert!(
                matches!(ok(unreadable), Err(CallError::Result(_))),
                "{unreadable}"
            );
        }
    }

    #[test]
    fn failures_keep_what_the_worker_said() {
        let text = r#"{"value": null, "error": {"type": "JobLost", "message": "gone"}}"#;
        let lost = read_result::<u8>(&raw(Some(JobStatus::Lost), text)).unwrap_err();
        assert_eq!(lost.to_string(), "the job failed: lost: JobLost: gone");
        let text = r#"{"error": {"type": "E", "message": "m", "traceback": "t"}}"#;
        let Err(CallError::Job(error)) = read_result::<u8>(&raw(None, text)) else {
            panic!("a failure");
        };
        assert_eq!(error.traceback.as_deref(), Some("t"));
        for json in [r#"{"value": 1}"#, "not JSON"] {
            let timeout = read_result::<u8>(&raw(Some(JobStatus::Timeout), json)).unwrap_err();
            assert!(timeout.to_string().contains("timed out"), "{timeout}");
        }
    }

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn futures_are_woken_at_their_end() {
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut context = Context::from_waker(&waker);
        let (mut answer, handle, _) = new(true);
        let mut pending = Pending::<u8>::new(handle);
        assert!(Pin::new(&mut pending).poll(&mut context).is_pending());
        answer.accepted(Accepted::Confirmed);
        assert_eq!(pending.accepted(), Some(Accepted::Confirmed));
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
        assert!(Pin::new(&mut pending).poll(&mut context).is_pending());
        answer.result(raw(None, r#"{"value": 7}"#));
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert_eq!(
            Pin::new(&mut pending).poll(&mut context),
            Poll::Ready(Ok(7))
        );

        let (mut answer, handle, _) = new(false);
        let mut ticket = Ticket(handle);
        assert!(Pin::new(&mut ticket).poll(&mut context).is_pending());
        answer.accepted(Accepted::Unconfirmed);
        assert!(ticket.is_over());
        assert_eq!(ticket.wait(), Ok(Accepted::Unconfirmed));
        assert_eq!(count.0.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn failures_nobody_looks_at_are_listed() {
        let error = || CallError::from(SendError::TimedOut);
        // The ticket goes first.
        let (answer, handle, failures) = new(false);
        drop(Ticket(handle));
        assert!(failures.take().is_empty());
        answer.failed(error());
        let taken = failures.take();
        assert_eq!(taken.list.len(), 1);
        assert_eq!(taken.list[0].msgid, "01234567-0123-4567-89ab-0123456789ab");
        assert_eq!(taken.list[0].error, error());
        // The answer goes first.
        let (answer, handle, failures) = new(false);
        answer.failed(error());
        assert!(failures.take().is_empty());
        drop(Ticket(handle));
        assert_eq!(failures.take().list.len(), 1);
        // Somebody looks.
        let (answer, handle, failures) = new(false);
        answer.failed(error());
        assert_eq!(Ticket(handle).wait(), Err(SendError::TimedOut));
        assert!(failures.take().is_empty());
        // A thread that ends without a word.
        let (answer, handle, _) = new(true);
        drop(answer);
        let closed = Pending::<u8>::new(handle).wait();
        assert_eq!(closed, Err(SendError::Closed.into()));
    }
}
