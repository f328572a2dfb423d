//! The client's state machine: what is outstanding, time-outs, fail-over.
//!
//! Every message that is given to it ends exactly once: accepted (and, for a call, its result), or
//! failed. What may be sent again after the end of a connection:
//!
//! | how far it was | without `resend` | with `resend` |
//! |---|---|---|
//! | not wholly given to the kernel | sent again | sent again |
//! | refused as `draining` | sent again | sent again |
//! | sent, not answered | fails, nobody knows | sent again, same msgid |
//! | accepted, result awaited | fails | sent again, same msgid |

mod msgid;
mod route;
#[cfg(test)]
mod sim;

pub(super) use msgid::Msgids;

use super::error::{CallError, SendError};
use crate::addr::Addr;
use crate::dial::{DialError, DialId, Net, Node, Origin};
use crate::emqp::{Command, Envelope, JobStatus, RejectReason};
use crate::frames::Message;
use crate::ids::{ConnId, Now};
use crate::link::PeerInfo;
use crate::log_limit::shown_id;
use hashbrown::HashMap;
use route::Route;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Output that may wait for the kernel before messages wait here.
const OUTPUT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bytes of a reason that are shown.
const WORD_BYTES_MAX: usize = 64;

/// How a message was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Accepted {
    /// The broker has said that it has it.
    Confirmed,
    /// It was given to the kernel for a server that does not say whether it takes messages: the
    /// broker of 0.3.13, or a publisher.
    Unconfirmed,
}

/// A result as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RawResult {
    pub(super) status: Option<JobStatus>,
    pub(super) json: Vec<u8>,
}

/// Where the end of a message is told.
pub(super) trait Deliver: Send + 'static {
    /// Taken. For one without result that is the end.
    fn accepted(&mut self, how: Accepted);
    /// The result: the end of a call.
    fn result(self, result: RawResult);
    /// The end.
    fn failed(self, error: CallError);
}

/// To whom a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum To {
    Broker = 0,
    Publisher = 1,
}

/// A message to be sent.
#[derive(Debug)]
pub(super) struct Submission<D> {
    /// The number of its msgid, never used before.
    pub(super) number: u64,
    pub(super) to: To,
    pub(super) wire: Vec<u8>,
    pub(super) resend: bool,
    /// Time for the acceptance, from now.
    pub(super) accept_ns: u64,
    /// Time for the result, from now, if it is awaited.
    pub(super) result_ns: Option<u64>,
    pub(super) deliver: D,
}

/// What other threads ask of the state machine.
#[derive(Debug)]
pub(super) enum Order<D> {
    Send(Submission<D>),
    /// Takes nothing more; ends when everything has ended, or after this time.
    Close {
        within_ns: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Sent { conn: ConnId, at_ns: u64 },
    Accepted(ConnId),
}

#[derive(Debug)]
struct Entry<D> {
    to: To,
    wire: Vec<u8>,
    resend: bool,
    state: State,
    /// Some connection ended when nobody knew whether this had been taken.
    maybe_taken: bool,
    /// It was accepted at least once.
    accepted: bool,
    draining: bool,
    deadline_ns: u64,
    result_by_ns: Option<u64>,
    deliver: D,
}

impl<D> Entry<D> {
    /// `error`, which says that no broker has it, unless one may have taken it before.
    fn unless_taken(&self, error: CallError) -> CallError {
        if self.accepted {
            CallError::ConnectionLost
        } else if self.maybe_taken {
            SendError::ConnectionLost.into()
        } else {
            error
        }
    }
}

/// Numbers of what came and could not be told to anybody.
#[derive(Debug, Default)]
pub(super) struct Strays {
    /// Answers to messages that have ended, results nobody waits for.
    pub(super) answers: AtomicU64,
    /// Messages that are no answers of eMQP, or above the size limits.
    pub(super) messages: AtomicU64,
}

/// The state machine. See the module.
#[derive(Debug)]
pub(super) struct Core<D> {
    msgids: Msgids,
    routes: [Route; 2],
    entries: HashMap<u64, Entry<D>, ahash::RandomState>,
    deadlines: BTreeSet<(u64, u64)>,
    closing_ns: Option<u64>,
    strays: Arc<Strays>,
}

impl<D: Deliver> Core<D> {
    /// A client of these brokers and publishers, in order of preference.
    pub(super) fn new(
        brokers: Vec<Addr>,
        publishers: Vec<Addr>,
        msgids: Msgids,
        hash: [u64; 4],
        strays: Arc<Strays>,
    ) -> Core<D> {
        let hash = ahash::RandomState::with_seeds(hash[0], hash[1], hash[2], hash[3]);
        Core {
            msgids,
            routes: [Route::new(brokers), Route::new(publishers)],
            entries: HashMap::with_hasher(hash),
            deadlines: BTreeSet::new(),
            closing_ns: None,
            strays,
        }
    }

    fn submit(&mut self, submission: Submission<D>, now: Now, net: &mut dyn Net) {
        if self.closing_ns.is_some() {
            return submission.deliver.failed(SendError::Closed.into());
        }
        let number = submission.number;
        let deadline_ns = now.mono_ns.saturating_add(submission.accept_ns);
        let entry = Entry {
            to: submission.to,
            wire: submission.wire,
            resend: submission.resend,
            state: State::Waiting,
            maybe_taken: false,
            accepted: false,
            draining: false,
            deadline_ns,
            result_by_ns: submission
                .result_ns
                .map(|within| now.mono_ns.saturating_add(within)),
            deliver: submission.deliver,
        };
        let route = &mut self.routes[entry.to as usize];
        route.begin(net);
        route.queue.insert(number);
        self.deadlines.insert((deadline_ns, number));
        let to = entry.to;
        let old = self.entries.insert(number, entry);
        debug_assert!(old.is_none(), "number {number} used twice");
        self.pump(to, now, net);
    }

    /// Sends what waits, as far as there is a connection with room.
    fn pump(&mut self, to: To, now: Now, net: &mut dyn Net) {
        loop {
            let route = &mut self.routes[to as usize];
            let Some(link) = route.link.as_mut().filter(|link| !link.blocked) else {
                return;
            };
            let Some(number) = route.queue.first().copied() else {
                return;
            };
            let conn = link.conn;
            let settles = !link.extensions || to == To::Publisher;
            if net.pending_bytes(conn) > OUTPUT_BYTES_MAX {
                link.blocked = true;
                let below = if settles { 0 } else { OUTPUT_BYTES_MAX / 2 };
                return net.notify_writable(conn, below);
            }
            route.queue.remove(&number);
            let Some(entry) = self.entries.get_mut(&number) else {
                continue;
            };
            if entry.result_by_ns.is_some() && settles {
                let error = entry.unless_taken(CallError::NoResults);
                self.fail(number, error);
                continue;
            }
            net.send(conn, &[&entry.wire]);
            entry.state = State::Sent {
                conn,
                at_ns: now.mono_ns,
            };
            if settles {
                route.unsettled.push_back(number);
                net.notify_writable(conn, 0);
            }
        }
    }

    fn stray_answer(&self) {
        self.strays.answers.fetch_add(1, Ordering::Relaxed);
    }

    fn stray_message(&self) {
        self.strays.messages.fetch_add(1, Ordering::Relaxed);
    }

    fn remove(&mut self, number: u64) -> Option<Entry<D>> {
        let entry = self.entries.remove(&number)?;
        self.deadlines.remove(&(entry.deadline_ns, number));
        self.routes[entry.to as usize].queue.remove(&number);
        Some(entry)
    }

    fn fail(&mut self, number: u64, error: CallError) {
        if let Some(entry) = self.remove(number) {
            entry.deliver.failed(error);
        }
    }

    /// Puts a message back in its place among those that wait.
    fn wait_again(&mut self, number: u64) {
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.state = State::Waiting;
            self.routes[entry.to as usize].queue.insert(number);
        }
    }

    /// The outstanding message that an answer on `conn` is about.
    fn answered(&mut self, conn: ConnId, msgid: Option<&[u8]>) -> Option<u64> {
        let number = msgid.and_then(|msgid| self.msgids.number(msgid));
        let known = number.filter(|number| {
            self.entries
                .get(number)
                .is_some_and(|entry| match entry.state {
                    State::Waiting => false,
                    State::Sent { conn: its, .. } | State::Accepted(its) => its == conn,
                })
        });
        if known.is_none() {
            self.stray_answer();
        }
        known
    }

    fn accept(&mut self, number: u64, how: Accepted) {
        let Some(entry) = self.entries.get_mut(&number) else {
            return;
        };
        let State::Sent { conn, .. } = entry.state else {
            return;
        };
        if !std::mem::replace(&mut entry.accepted, true) {
            entry.deliver.accepted(how);
        }
        let Some(result_by_ns) = entry.result_by_ns else {
            self.remove(number);
            return;
        };
        entry.state = State::Accepted(conn);
        if !entry.resend {
            entry.wire = Vec::new();
        }
        self.deadlines.remove(&(entry.deadline_ns, number));
        entry.deadline_ns = result_by_ns;
        self.deadlines.insert((result_by_ns, number));
    }

    fn on_reply(&mut self, conn: ConnId, envelope: &Envelope<'_>) {
        if envelope.body_len() < 2 {
            if let Some(number) = self.answered(conn, envelope.body(0)) {
                self.accept(number, Accepted::Confirmed);
            }
            return;
        }
        let Some(number) = self.answered(conn, envelope.body(1)) else {
            return;
        };
        // Acceptances are dropped for clients that do not read; a result says as much.
        self.accept(number, Accepted::Confirmed);
        match self.remove(number) {
            Some(entry) => entry.deliver.result(RawResult {
                status: envelope.body(2).and_then(JobStatus::parse),
                json: envelope.body(0).unwrap_or_default().to_vec(),
            }),
            None => self.stray_answer(),
        }
    }

    fn on_reject(&mut self, conn: ConnId, envelope: &Envelope<'_>, now: Now, net: &mut dyn Net) {
        let Some(number) = self.answered(conn, envelope.body(0)) else {
            return;
        };
        let word = envelope.body(1).unwrap_or_default();
        let reason = RejectReason::parse(word);
        let Some(entry) = self.entries.get_mut(&number) else {
            return;
        };
        if reason == Some(RejectReason::Draining) && self.closing_ns.is_none() {
            // It was not taken, and this broker takes nothing more.
            let to = entry.to;
            entry.draining = true;
            self.wait_again(number);
            self.routes[to as usize].turn_away(conn, net);
            return self.pump(to, now, net);
        }
        let word = shown_id(&word[..word.len().min(WORD_BYTES_MAX)]);
        let error = entry.unless_taken(SendError::Rejected { reason, word }.into());
        self.fail(number, error);
    }

    /// What to say of a message whose time is over.
    fn overdue(&self, entry: &Entry<D>) -> CallError {
        match entry.state {
            State::Accepted(_) => CallError::TimedOut,
            _ if entry.accepted => CallError::TimedOut,
            State::Sent { .. } => SendError::TimedOut.into(),
            State::Waiting if entry.maybe_taken => SendError::TimedOut.into(),
            State::Waiting if entry.draining => SendError::Rejected {
                reason: Some(RejectReason::Draining),
                word: "draining".to_owned(),
            }
            .into(),
            State::Waiting => {
                SendError::NotConnected(self.routes[entry.to as usize].trouble()).into()
            }
        }
    }

    /// The end of a message that was with a connection which is over.
    fn connection_over(&mut self, number: u64) {
        let Some(entry) = self.entries.get_mut(&number) else {
            return;
        };
        if entry.resend {
            entry.maybe_taken = true;
            return self.wait_again(number);
        }
        let error = if entry.accepted {
            CallError::ConnectionLost
        } else {
            SendError::ConnectionLost.into()
        };
        self.fail(number, error);
    }

    fn close_overdue(&mut self) {
        let mut numbers: Vec<u64> = self.entries.keys().copied().collect();
        numbers.sort_unstable();
        for number in numbers {
            self.fail(number, SendError::Closed.into());
        }
    }

    fn route_of(&self, conn: ConnId) -> Option<To> {
        [To::Broker, To::Publisher]
            .into_iter()
            .find(|to| self.routes[*to as usize].has_conn(conn))
    }
}

impl<D: Deliver> Node for Core<D> {
    type Command = Order<D>;

    fn started(&mut self, _: Now, net: &mut dyn Net) {
        // Publishers are dialled when something is published.
        self.routes[To::Broker as usize].begin(net);
    }

    fn opened(
        &mut self,
        conn: ConnId,
        origin: Origin,
        info: &PeerInfo,
        now: Now,
        net: &mut dyn Net,
    ) {
        let Origin::Dialled(dial) = origin else {
            return net.close(conn);
        };
        for to in [To::Broker, To::Publisher] {
            let route = &mut self.routes[to as usize];
            if route.owns(dial) {
                route.opened(dial, conn, info, now.mono_ns, net);
                self.pump(to, now, net);
            }
        }
    }

    fn message(&mut self, conn: ConnId, message: &Message<'_>, now: Now, net: &mut dyn Net) {
        self.activity(conn, now, net);
        match Envelope::parse(message) {
            Ok(envelope) => match envelope.command {
                Command::Reply => self.on_reply(conn, &envelope),
                Command::Reject => self.on_reject(conn, &envelope, now, net),
                Command::Heartbeat | Command::Kbye => {}
                _ => self.stray_message(),
            },
            Err(_) => self.stray_message(),
        }
    }

    fn activity(&mut self, conn: ConnId, now: Now, _: &mut dyn Net) {
        for route in &mut self.routes {
            if let Some(link) = route.link_of(conn) {
                link.heard_ns = now.mono_ns;
            }
        }
    }

    fn too_large(&mut self, _: ConnId, _: &Message<'_>, _: Now, _: &mut dyn Net) {
        self.stray_message();
    }

    fn writable(&mut self, conn: ConnId, now: Now, net: &mut dyn Net) {
        let Some(to) = self.route_of(conn) else {
            return;
        };
        let route = &mut self.routes[to as usize];
        let Some(link) = route.link_of(conn) else {
            return;
        };
        link.blocked = false;
        if net.pending_bytes(conn) == 0 {
            for number in std::mem::take(&mut route.unsettled) {
                self.accept(number, Accepted::Unconfirmed);
            }
        } else if !route.unsettled.is_empty() {
            net.notify_writable(conn, 0);
        }
        self.pump(to, now, net);
    }

    fn lost(&mut self, conn: ConnId, why: &DialError, _: Now, net: &mut dyn Net) {
        for route in &mut self.routes {
            route.lost(conn, why, net);
        }
    }

    fn unsent(&mut self, conn: ConnId, message: &Message<'_>, _: Now, _: &mut dyn Net) {
        let number = message.get(3).and_then(|msgid| self.msgids.number(msgid));
        let ours = number.filter(|number| {
            self.entries.get(number).is_some_and(
                |entry| matches!(entry.state, State::Sent { conn: its, .. } if its == conn),
            )
        });
        if let Some(number) = ours {
            self.wait_again(number);
        }
    }

    fn closed(&mut self, conn: ConnId, now: Now, net: &mut dyn Net) {
        let over = self.entries.iter().filter_map(|(number, entry)| {
            let on_it = match entry.state {
                State::Waiting => false,
                State::Sent { conn: its, .. } | State::Accepted(its) => its == conn,
            };
            on_it.then_some(*number)
        });
        let mut over: Vec<u64> = over.collect();
        over.sort_unstable();
        for number in over {
            self.connection_over(number);
        }
        self.pump(To::Broker, now, net);
        self.pump(To::Publisher, now, net);
    }

    fn dial_failed(&mut self, dial: DialId, why: &DialError, _: u64, _: Now, net: &mut dyn Net) {
        for route in &mut self.routes {
            if route.owns(dial) {
                route.failed(dial, why, net);
            }
        }
    }

    fn command(&mut self, order: Order<D>, now: Now, net: &mut dyn Net) {
        match order {
            Order::Send(submission) => self.submit(submission, now, net),
            Order::Close { within_ns } => {
                let at_ns = now.mono_ns.saturating_add(within_ns);
                self.closing_ns = Some(self.closing_ns.map_or(at_ns, |known| known.min(at_ns)));
            }
        }
    }

    fn poll_timeout(&self) -> Option<u64> {
        let first = self.deadlines.first().map(|(at_ns, _)| *at_ns);
        match (first, self.closing_ns) {
            (Some(first), Some(closing)) => Some(first.min(closing)),
            (first, closing) => first.or(closing),
        }
    }

    fn timeout(&mut self, now: Now, net: &mut dyn Net) {
        while let Some((at_ns, number)) = self.deadlines.first().copied() {
            if at_ns > now.mono_ns {
                break;
            }
            let Some(entry) = self.entries.get(&number) else {
                self.deadlines.remove(&(at_ns, number));
                continue;
            };
            let error = self.overdue(entry);
            let (to, state) = (entry.to, entry.state);
            self.fail(number, error);
            let route = &mut self.routes[to as usize];
            match state {
                // Nothing came since it was sent: this connection leads nowhere.
                State::Sent { conn, at_ns } => {
                    let heard_ns = route.link_of(conn).map(|link| link.heard_ns);
                    if heard_ns.is_some_and(|heard_ns| heard_ns <= at_ns) {
                        route.abandon(conn, net);
                    }
                }
                State::Waiting => route.waited_in_vain(net),
                State::Accepted(_) => {}
            }
        }
        if self.closing_ns.is_some_and(|at_ns| at_ns <= now.mono_ns) {
            self.close_overdue();
        }
    }

    fn is_done(&self) -> bool {
        self.closing_ns.is_some() && self.entries.is_empty()
    }
}
