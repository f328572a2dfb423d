//! The client library: jobs, schedules and publications for a broker, from any number of threads
//! or tasks.
//!
//! ```no_run
//! use eventmq::client::{Client, Request};
//!
//! let client = Client::connect("tcp://127.0.0.1:47291")?;
//!
//! // Returns once the broker has the job.
//! client.defer_job(Request::new("tasks.send_mail").arg("to@example.org").queue("mail"))?;
//!
//! // Returns the result.
//! let sum: i64 = client.call(Request::new("tasks.add").arg(1).arg(2).returns())?;
//! assert_eq!(sum, 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | method | returns |
//! |---|---|
//! | [`Client::defer_job`], [`Client::schedule`], [`Client::unschedule`], [`Client::publish`], [`Client::send_request`] | when the message is accepted |
//! | [`Client::call`], [`Client::call_within`] | the result |
//! | [`Client::post`] | as soon as there is room; failures go to [`Client::take_failures`] |
//! | [`Client::start`], [`Client::start_call`] | at once: a [`Ticket`] or [`Pending`] to wait for, or to await as a future on any executor |
//!
//! **What is accepted, what is not.** A broker of this project answers every REQUEST, SCHEDULE and
//! UNSCHEDULE: [`Accepted::Confirmed`], or [`SendError::Rejected`] with the reason. EventMQ 0.3.13
//! and publishers do not: there, [`Accepted::Unconfirmed`] says that the message was given to the
//! kernel whole. Every other end is an error; [`SendError::may_have_been_taken`] tells whether the
//! job may run all the same. A message is sent again after the end of a connection only if it
//! cannot have been taken, or if the caller has allowed it ([`Request::resend`]).
//!
//! **Fail-over.** One broker is used at a time, the first of the list that can be reached. When its
//! connection ends, the next in the list is tried, and so on, with pauses that grow from 0.1 s to
//! 2 s, cut by a random part. A broker that answers nothing for `accept_timeout` is left as well.
//!
//! Owns: the connections to brokers and publishers on a thread of its own, and what is outstanding.
//! May import layers 0 to 5, never `broker` or `server`. Invariant of the state machine (`core`,
//! without I/O): what is given to it ends exactly once.

mod config;
mod core;
mod error;
mod failures;
mod outgoing;
mod room;
mod ticket;

pub use self::core::Accepted;
pub use crate::job::{BadRequest, Job, Request};
pub use config::{BROKER_ADDR_ENV, ClientConfig};
pub use error::{CallError, JobError, SendError, StartError};
pub use failures::{Failure, TakenFailures};
pub use outgoing::{Outgoing, Publication, RawRequest, Schedule, Unschedule};
pub use ticket::{Pending, Ticket};

use self::core::{Core, Msgids, Order, Strays, Submission};
use crate::runtime::node::{NodeHandle, NodeRunner};
use crate::runtime::threads::random;
use failures::Failures;
use room::Room;
use serde::de::DeserializeOwned;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use ticket::{Answer, Handle};

/// A client. Clones are the same client; the last one that is dropped closes it (see
/// [`Client::close`]).
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    node: NodeHandle<Order<Answer>>,
    msgids: Msgids,
    next: AtomicU64,
    room: Arc<Room>,
    failures: Arc<Failures>,
    strays: Arc<Strays>,
    accept_timeout: Duration,
    result_timeout: Duration,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Client {
    /// A client of one broker, or of several, separated by commas, in order of preference. Returns
    /// at once: connecting goes on in the background, and messages wait for it.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn connect(brokers: &str) -> Result<Client, StartError> {
        Client::start_with(ClientConfig::new(brokers)?)
    }

    /// A client of the brokers that the environment names: [`BROKER_ADDR_ENV`].
    ///
    /// # Errors
    /// [`StartError`].
    pub fn from_env() -> Result<Client, StartError> {
        Client::start_with(ClientConfig::from_env()?)
    }

    /// A client with other settings.
    ///
    /// # Errors
    /// [`StartError::System`].
    pub fn start_with(config: ClientConfig) -> Result<Client, StartError> {
        let msgids = Msgids::new([random(), random()]);
        let hash = [random(), random(), random(), random()];
        let strays = Arc::<Strays>::default();
        let (brokers, publishers) = (config.brokers, config.publishers);
        let core = Core::new(brokers, publishers, msgids, hash, Arc::clone(&strays));
        let (runner, node) = NodeRunner::new(core)?;
        let thread = std::thread::Builder::new()
            .name("emq-client".to_owned())
            .spawn(move || {
                // What is outstanding fails with the state machine, whatever happens.
                if let Err(error) = runner.run() {
                    tracing::error!("the client has ended: {error}");
                }
            })?;
        Ok(Client {
            inner: Arc::new(Inner {
                node,
                msgids,
                next: AtomicU64::new(random() >> 16),
                room: Room::new(config.outstanding_max, config.outstanding_bytes_max),
                failures: Arc::default(),
                strays,
                accept_timeout: config.accept_timeout,
                result_timeout: config.result_timeout,
                thread: Mutex::new(Some(thread)),
            }),
        })
    }

    /// Asks for a job and waits until the broker has it.
    ///
    /// # Errors
    /// [`SendError`]: refused with a reason, not connected, or nobody knows.
    pub fn defer_job<R>(&self, request: Request<R>) -> Result<Accepted, SendError> {
        self.send(request)
    }

    /// Asks for a job that will be run again and again, and waits until a scheduler has it.
    ///
    /// # Errors
    /// [`SendError`]; without a scheduler it is refused as `no-scheduler`.
    pub fn schedule(&self, schedule: Schedule) -> Result<Accepted, SendError> {
        self.send(schedule)
    }

    /// Ends the schedule of the job with this path, callable and arguments.
    ///
    /// # Errors
    /// As [`Client::schedule`].
    pub fn unschedule<R>(&self, request: &Request<R>) -> Result<Accepted, SendError> {
        self.send(Unschedule::new(request))
    }

    /// Publishes a message, and waits until it was given to the kernel: nobody can say who gets it.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn publish(&self, publication: Publication) -> Result<Accepted, SendError> {
        self.send(publication)
    }

    /// Sends a REQUEST whose message is anything, and waits until the broker has it.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send_request(&self, raw: RawRequest) -> Result<Accepted, SendError> {
        self.send(raw)
    }

    /// Sends any message and waits for its acceptance.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send(&self, message: impl Into<Outgoing>) -> Result<Accepted, SendError> {
        let patience = self.inner.accept_timeout;
        let handle = self.give(message.into(), None, patience)?;
        Ticket(handle).wait()
    }

    /// Sends any message and does not wait for its acceptance; waits only while too much is
    /// outstanding, at most for `accept_timeout`. Returns its msgid. If it is not accepted,
    /// [`Client::take_failures`] says so.
    ///
    /// # Errors
    /// What shows at once: [`SendError::Invalid`], [`SendError::Full`], [`SendError::Closed`].
    pub fn post(&self, message: impl Into<Outgoing>) -> Result<String, SendError> {
        let patience = self.inner.accept_timeout;
        let handle = self.give(message.into(), None, patience)?;
        Ok(Ticket(handle).msgid().to_owned())
    }

    /// Sends any message and gives a [`Ticket`] to wait for its acceptance, or to await it. Never
    /// waits for anybody else.
    ///
    /// # Errors
    /// What shows at once: [`SendError::Invalid`], [`SendError::Full`], [`SendError::Closed`].
    pub fn start(&self, message: impl Into<Outgoing>) -> Result<Ticket, SendError> {
        let handle = self.give(message.into(), None, Duration::ZERO)?;
        Ok(Ticket(handle))
    }

    /// Asks for a job and waits for its result.
    ///
    /// # Errors
    /// [`CallError`]: not accepted, failed, no result in time, or one of another type.
    pub fn call<R: DeserializeOwned>(&self, request: Request<R>) -> Result<R, CallError> {
        self.call_within(request, self.inner.result_timeout)
    }

    /// As [`Client::call`] with a time-out of its own, acceptance included.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn call_within<R: DeserializeOwned>(
        &self,
        request: Request<R>,
        timeout: Duration,
    ) -> Result<R, CallError> {
        let patience = self.inner.accept_timeout.min(timeout);
        let outgoing = request.reply_requested(true).into();
        let handle = self.give(outgoing, Some(timeout), patience)?;
        Pending::new(handle).wait()
    }

    /// Asks for a job and gives a [`Pending`] to wait for its result, or to await it. Never waits
    /// for anybody else.
    ///
    /// # Errors
    /// What shows at once: [`SendError::Invalid`], [`SendError::Full`], [`SendError::Closed`].
    pub fn start_call<R: DeserializeOwned>(
        &self,
        request: Request<R>,
    ) -> Result<Pending<R>, SendError> {
        let outgoing = request.reply_requested(true).into();
        let timeout = Some(self.inner.result_timeout);
        let handle = self.give(outgoing, timeout, Duration::ZERO)?;
        Ok(Pending::new(handle))
    }

    fn give(
        &self,
        outgoing: Outgoing,
        result: Option<Duration>,
        patience: Duration,
    ) -> Result<Handle, SendError> {
        let inner = &self.inner;
        let number = inner.next.fetch_add(1, Ordering::Relaxed) & (u64::MAX >> 16);
        let msgid = inner.msgids.text(number);
        let wire = outgoing.wire(&msgid)?;
        let permit = inner.room.take(wire.len(), patience);
        let permit = permit.ok_or(SendError::Full)?;
        let failures = Arc::clone(&inner.failures);
        let (deliver, handle) = Answer::new(msgid, result.is_some(), permit, failures);
        let accept = result.map_or(inner.accept_timeout, |t| t.min(inner.accept_timeout));
        let order = Order::Send(Submission {
            number,
            to: outgoing.to(),
            wire,
            resend: outgoing.resend,
            accept_ns: nanoseconds(accept),
            result_ns: result.map(nanoseconds),
            deliver,
        });
        // Taken back, the order fails with `Closed` as it is dropped: the handle tells.
        drop(inner.node.give(order));
        Ok(handle)
    }

    /// What failed of the messages nobody waited for, since this was last called.
    #[must_use]
    pub fn take_failures(&self) -> TakenFailures {
        self.inner.failures.take()
    }

    /// Answers that came and belonged to no outstanding message (late acceptances, results nobody
    /// waits for), and messages that were no answers.
    pub fn stray_answers(&self) -> u64 {
        let strays = &self.inner.strays;
        strays.answers.load(Ordering::Relaxed) + strays.messages.load(Ordering::Relaxed)
    }

    /// Takes no more messages, waits until everything outstanding has ended (at most for
    /// `timeout`; the rest fails with [`SendError::Closed`]), and closes the connections in order.
    /// Returns what failed of the messages nobody waited for.
    ///
    /// A client that is dropped does the same, waiting for `accept_timeout` at most, and logs how
    /// many failed.
    #[must_use]
    pub fn close(&self, timeout: Duration) -> TakenFailures {
        self.inner.close(timeout);
        self.take_failures()
    }
}

impl Inner {
    fn close(&self, timeout: Duration) {
        let within_ns = nanoseconds(timeout);
        drop(self.node.give(Order::Close { within_ns }));
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        // Dropped by a waker that ran on the client's own thread, nobody can wait for it.
        if let Some(thread) = thread.take()
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the client's thread has panicked");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close(self.accept_timeout);
        let failures = self.failures.take();
        if !failures.is_empty() {
            let count = failures.list.len() as u64 + failures.left_out;
            tracing::warn!(
                count,
                "messages of a client that has ended were not accepted"
            );
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
