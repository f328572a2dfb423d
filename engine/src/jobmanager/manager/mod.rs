//! The job manager towards its brokers: a state machine without I/O.
//!
//! Fed by `handle_*` with what connections and the executor say, drained by [`Manager::poll_action`]
//! after every call; [`Manager::poll_timeout`] says when [`Manager::handle_timeout`] is due. `now`
//! is always an argument, randomness comes in by [`ManagerConfig::seeds`].
//!
//! A *slot* is the right to run one job. It is free, offered to one broker (a READY that was not
//! answered with a REQUEST yet), or in use by a job. What a broker was offered can only be taken
//! back by another INFORM, and is certain to be taken back with its ACK: a REQUEST that came before
//! it was sent before the INFORM was read. Until then such offers are *in doubt* and count as used,
//! and no READY is sent: so both sides always agree on the number of free slots.
//!
//! Invariant ([`Manager::check_invariants`]): jobs, offers and doubts together never exceed the
//! capacity the executor last named, except for jobs taken before it shrank; every REQUEST taken
//! ends in exactly one READY (and REPLY, if asked for) unless its broker is gone.

mod jobs;
mod link;
mod shares;
#[cfg(test)]
mod sim;

use super::executor::Job;
use super::outcome::Ending;
use super::pool::JobId;
use crate::emqp::{Command, Envelope, MsgidText, advance_msgid, first_msgid};
use crate::frames::Message;
use crate::ids::{NS_PER_MS, Now};
use crate::metrics::{Counter, Counters};
use jobs::Running;
use link::{Link, State};
use std::collections::{BTreeMap, VecDeque};

/// How several brokers are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BrokerMode {
    /// One at a time, the next one in the list when it is gone.
    Failover,
    /// All at once; each slot is offered to one of them at a time.
    All,
}

/// What the state machine has to know. Times in milliseconds.
#[derive(Debug, Clone)]
pub(crate) struct ManagerConfig {
    /// The brokers, as the log names them.
    pub(crate) brokers: Vec<String>,
    pub(crate) mode: BrokerMode,
    /// Jobs at a time.
    pub(crate) slots: usize,
    /// The queues frame of INFORM.
    pub(crate) queues: String,
    /// First part of the routing id; empty = none.
    pub(crate) name: String,
    pub(crate) heartbeat_interval_ms: u64,
    pub(crate) heartbeat_timeout_ms: u64,
    /// So many timeouts without a byte and the broker counts as gone.
    pub(crate) heartbeat_liveness: u64,
    pub(crate) disable_heartbeats: bool,
    /// Time for an ACK.
    pub(crate) reconnect_timeout_ms: u64,
    /// Time for a job without a header.
    pub(crate) global_timeout_ms: u64,
    /// Time for running jobs after the request to end.
    pub(crate) kill_grace_period_ms: u64,
    /// How long the result of a job is kept for a broker that is gone.
    pub(crate) late_reply_window_ms: u64,
    /// Random: msgids, routing ids, the token of this process, jitter.
    pub(crate) seeds: [u64; 4],
}

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Action {
    /// Keep a connection to a broker under this routing id, instead of an earlier one, which is
    /// closed behind what was sent and of which nothing more is to be told.
    Connect {
        /// Its place in the list.
        broker: usize,
        /// The routing id.
        routing_id: Vec<u8>,
    },
    /// Close the present connection at once, of which nothing more is to be told, and make another
    /// one under the same routing id.
    Redial {
        /// Its place in the list.
        broker: usize,
    },
    /// Send this message in wire form.
    Send {
        /// Its place in the list.
        broker: usize,
        /// The message.
        wire: Vec<u8>,
    },
    /// Close the connection behind what was sent, and make no other. Nothing more is to be told.
    Close {
        /// Its place in the list.
        broker: usize,
    },
    /// Run a job.
    Run(Job),
    /// No more jobs will come.
    CloseExecutor,
    /// Kill what runs.
    KillExecutor,
    /// All is done; it comes once, last.
    Finished,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Manager {
    config: ManagerConfig,
    links: Vec<Link>,
    /// The broker in use, with [`BrokerMode::Failover`].
    active: usize,
    /// When another one is chosen if it does not come back.
    elect_ns: Option<u64>,
    jobs: BTreeMap<JobId, Running>,
    next_job: JobId,
    /// Jobs the executor can run at a time.
    capacity: usize,
    /// Slots that brokers are told of: more than the capacity while processes come up, not more
    /// once some could not be started.
    ceiling: usize,
    actions: VecDeque<Action>,
    counters: Counters,
    msgid: MsgidText,
    token: String,
    jitter: u64,
    /// When running jobs are killed, once the end was asked for.
    kill_ns: Option<u64>,
    closing: bool,
    executor_closing: bool,
    executor_closed: bool,
    finished: bool,
    /// Next look at the shares, with several brokers at once.
    shares_ns: u64,
    /// Where the distribution of slots begins.
    turn: usize,
    /// The brokers that took part when shares were last made equal.
    part: Vec<bool>,
}

impl Manager {
    /// Begins to connect.
    pub(crate) fn new(config: ManagerConfig, now: Now) -> Manager {
        let [a, b, c, d] = config.seeds;
        let mut manager = Manager {
            links: config.brokers.iter().map(|_| Link::new()).collect(),
            active: 0,
            jobs: BTreeMap::new(),
            next_job: 0,
            capacity: 0,
            ceiling: config.slots,
            actions: VecDeque::new(),
            counters: Counters::default(),
            msgid: first_msgid([a, b]),
            token: format!("{c:016x}"),
            jitter: d,
            kill_ns: None,
            closing: false,
            executor_closing: false,
            executor_closed: false,
            finished: false,
            shares_ns: now.mono_ns,
            turn: 0,
            elect_ns: None,
            part: Vec::new(),
            config,
        };
        (0..manager.links.len()).for_each(|broker| manager.connect(broker));
        if manager.config.mode == BrokerMode::Failover {
            // The first one has the first chance.
            manager.elect_ns = Some(now.mono_ns + link::FAILOVER_MS * NS_PER_MS);
        }
        manager
    }

    /// The next thing to do.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// What was counted.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The handshake is done. `ours`: the broker has the property `X-EventMQ`.
    pub(crate) fn handle_connected(&mut self, broker: usize, ours: bool, now: Now) {
        if matches!(self.links[broker].state, State::Down) && !self.closing {
            self.connected(broker, ours, now);
            self.settle(now);
        }
    }

    /// The connection is lost; the shell makes another one by itself.
    pub(crate) fn handle_lost(&mut self, broker: usize, now: Now) {
        self.lost(broker, now);
        self.settle(now);
    }

    /// A message that a lost connection has not wholly taken, newest first: the broker has not got
    /// it. Ends of jobs among them are told again.
    pub(crate) fn handle_unsent(&mut self, broker: usize, message: &Message<'_>, now: Now) {
        if let Ok(envelope) = Envelope::parse(message) {
            self.on_unsent(broker, &envelope, now);
        }
    }

    /// Bytes have come from the broker.
    pub(crate) fn handle_alive(&mut self, broker: usize, now: Now) {
        self.links[broker].heard_ns = now.mono_ns;
    }

    /// A message from the broker.
    pub(crate) fn handle_message(&mut self, broker: usize, message: &Message<'_>, now: Now) {
        let link = &mut self.links[broker];
        if !link.is_connected() {
            return;
        }
        link.heard_ns = now.mono_ns;
        let envelope = match Envelope::parse(message) {
            Ok(envelope) => envelope,
            Err(bad) => return self.counters.inc(bad.counter()),
        };
        match envelope.command {
            Command::Request => self.on_request(broker, &envelope, now),
            Command::Ack => self.on_ack(broker, &envelope, now),
            Command::Heartbeat => {}
            Command::Kbye => self.on_kbye(broker, now),
            Command::Disconnect => self.on_disconnect(broker, now),
            _ => self.counters.inc(Counter::IgnoredRole),
        }
        self.settle(now);
    }

    /// So many jobs can be run at a time.
    pub(crate) fn handle_capacity(&mut self, capacity: usize, now: Now) {
        if capacity < std::mem::replace(&mut self.capacity, capacity) {
            self.ceiling = capacity;
            self.take_back_offers(now);
        } else if self.ceiling < self.config.slots {
            self.ceiling = self.config.slots;
            self.part.clear();
            self.redistribute(now);
        }
        self.settle(now);
    }

    /// A job has ended.
    pub(crate) fn handle_ended(&mut self, job: JobId, ending: Ending, now: Now) {
        self.on_ended(job, ending, now);
        self.settle(now);
    }

    /// The executor has nothing left.
    pub(crate) fn handle_executor_closed(&mut self, now: Now) {
        self.executor_closed = true;
        self.settle(now);
    }

    /// Other queues and times. Brokers are told at once.
    pub(crate) fn reload(&mut self, config: ManagerConfig, now: Now) {
        let inform = self.config.queues != config.queues
            || self.config.heartbeat_interval_ms != config.heartbeat_interval_ms;
        // What needs a restart stays.
        self.config = ManagerConfig {
            brokers: self.config.brokers.clone(),
            mode: self.config.mode,
            slots: self.config.slots,
            name: self.config.name.clone(),
            seeds: self.config.seeds,
            ..config
        };
        for broker in 0..self.links.len() {
            if inform && self.links[broker].takes_part() {
                self.register_anew(broker, now);
            }
        }
        self.settle(now);
    }

    /// The end in good order: brokers are told, running jobs end, their results are sent.
    pub(crate) fn shutdown(&mut self, now: Now) {
        if self.closing {
            return;
        }
        self.closing = true;
        self.elect_ns = None;
        self.kill_ns = Some(now.mono_ns + self.config.kill_grace_period_ms * NS_PER_MS);
        for broker in 0..self.links.len() {
            self.say_kbye(broker);
        }
        self.settle(now);
    }

    /// The end at once: running jobs are killed.
    pub(crate) fn shutdown_now(&mut self, now: Now) {
        self.shutdown(now);
        self.kill_ns = Some(now.mono_ns);
        self.handle_timeout(now);
    }

    /// When [`Manager::handle_timeout`] is due, in monotonic nanoseconds.
    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        let links = self.links.iter().filter_map(|link| self.link_due(link));
        let shares = self.shares_are_watched().then_some(self.shares_ns);
        links
            .chain(self.kill_ns)
            .chain(self.elect_ns)
            .chain(shares)
            .min()
    }

    /// Time has passed.
    pub(crate) fn handle_timeout(&mut self, now: Now) {
        for broker in 0..self.links.len() {
            self.look_at_link(broker, now);
        }
        if self.kill_ns.is_some_and(|due| due <= now.mono_ns) {
            self.kill_ns = None;
            self.act(Action::KillExecutor);
        }
        if self.elect_ns.is_some_and(|due| due <= now.mono_ns) {
            self.elect(now);
        }
        if self.shares_are_watched() && self.shares_ns <= now.mono_ns {
            self.look_at_shares(now);
        }
        self.settle(now);
    }

    /// Offers what is free, ends what is over.
    fn settle(&mut self, now: Now) {
        if self.closing {
            self.close_what_is_done();
        } else {
            self.offer_free_slots(now);
        }
        if cfg!(debug_assertions) {
            self.check_invariants();
        }
    }

    fn close_what_is_done(&mut self) {
        if self.jobs.is_empty() && !self.executor_closing {
            self.executor_closing = true;
            self.act(Action::CloseExecutor);
        }
        for broker in 0..self.links.len() {
            let link = &self.links[broker];
            let busy = link.running > 0;
            match link.state {
                State::Off => {}
                State::Pausing { .. } => self.links[broker].state = State::Off,
                _ if link.is_connected() && busy => {}
                _ => {
                    self.links[broker].state = State::Off;
                    self.act(Action::Close { broker });
                }
            }
            if !self.links[broker].is_connected() {
                self.drop_finished(broker, u64::MAX);
            }
        }
        let closed = self
            .links
            .iter()
            .all(|link| matches!(link.state, State::Off));
        if closed && self.executor_closed && self.jobs.is_empty() && !self.finished {
            self.finished = true;
            self.kill_ns = None;
            self.act(Action::Finished);
        }
    }

    /// What the log calls a broker.
    fn named(&self, broker: usize) -> &str {
        &self.config.brokers[broker]
    }

    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn next_msgid(&mut self) -> MsgidText {
        advance_msgid(&mut self.msgid);
        self.msgid
    }

    /// A number below `n`, for jitter.
    fn random_below(&mut self, n: u64) -> u64 {
        // xorshift: quality does not matter here.
        self.jitter ^= self.jitter << 13;
        self.jitter ^= self.jitter >> 7;
        self.jitter ^= self.jitter << 17;
        self.jitter % n.max(1)
    }

    /// Slots in use, offered or in doubt.
    fn used(&self) -> usize {
        let links = self.links.iter();
        self.jobs.len() + links.map(|link| link.offered + link.doubt).sum::<usize>()
    }

    /// The rules the state machine relies on.
    ///
    /// # Panics
    /// If one does not hold.
    fn check_invariants(&self) {
        for (broker, link) in self.links.iter().enumerate() {
            let running = self.jobs.values().filter(|job| job.broker == broker);
            assert_eq!(link.running, running.count(), "{link:?}");
            assert!(
                link.is_connected() || link.offered + link.doubt == 0,
                "offers to nobody: {link:?}"
            );
            assert!(
                matches!(link.state, State::Informing { .. }) || link.doubt == 0,
                "doubts without an INFORM: {link:?}"
            );
            if link.ours && matches!(link.state, State::Registered) {
                assert!(
                    link.finished.is_empty(),
                    "held back without reason: {link:?}"
                );
                assert!(
                    link.offered == 0 || link.offered + link.running <= link.told,
                    "more than was told: {link:?}"
                );
            }
        }
        if self.config.mode == BrokerMode::All && !self.closing {
            let part = self.links.iter().filter(|link| link.takes_part());
            let shares: usize = part.map(|link| link.share).sum();
            let most = self.ceiling.max(self.foreign_shares());
            assert!(shares <= most, "more shares than slots: {self:#?}");
        }
        assert!(!self.finished || self.jobs.is_empty());
    }
}
