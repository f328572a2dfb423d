//! Schedulers: registration, SCHEDULE and UNSCHEDULE.

use super::Broker;
use super::log::LogKind;
use super::peers::Role;
use super::slab::{NONE, Slab};
use super::store::Body;
use super::tasks::Task;
use super::timers::TimerKind;
use crate::emqp::{BadInform, BadSchedule, Capabilities, Command, Envelope, RejectReason};
use crate::frames::Message;
use crate::ids::{ConnId, NS_PER_MS, Now};
use crate::link::{OutClass, Outbox};
use crate::metrics::Counter;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};

/// Schedules kept for schedulers that cannot be given them now; more are refused.
const HELD_MAX: usize = 1_024;
/// Bytes of them; more are refused.
const HELD_BYTES_MAX: usize = 16 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct Scheduler {
    pub(super) peer: u32,
    pub(super) tag: u32,
    /// Order of registration: the largest is the newest.
    pub(super) stamp: u64,
    pub(super) in_grace: bool,
    pub(super) silent: bool,
    /// Since then too much output is waiting for it.
    pub(super) slow_since_ns: Option<u64>,
    /// Takes results of its jobs.
    pub(super) results: bool,
    /// Its heartbeat interval, as its INFORM named it.
    pub(super) heartbeat_secs: Option<u32>,
    pub(super) grace_until_ns: u64,
    pub(super) beat_armed: bool,
    pub(super) silence_armed: bool,
}

impl Scheduler {
    fn live(&self) -> bool {
        !(self.in_grace || self.silent || self.slow_since_ns.is_some())
    }

    /// `output` if the scheduler is live and takes what it is given. If it does not, it counts as
    /// slow until it has taken half of what waits for it.
    fn may_be_given<O: Outbox>(
        &mut self,
        output: Option<ConnId>,
        limit_bytes: usize,
        now: Now,
        out: &mut O,
    ) -> Option<ConnId> {
        let conn = output.filter(|_| self.live())?;
        if out.pending_bytes(conn) <= limit_bytes {
            return Some(conn);
        }
        self.slow_since_ns = Some(now.mono_ns);
        out.notify_writable(conn, limit_bytes / 2);
        None
    }
}

/// A SCHEDULE or UNSCHEDULE that waits for a scheduler.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) body: Body,
    /// Who is told if nobody takes it; `NONE` for one that came back from a lost connection.
    pub(super) client: u32,
    /// UNSCHEDULE: the schedulers that have not got it.
    waiting: Option<SmallVec<[u32; 2]>>,
    /// Some scheduler has got it.
    sent: bool,
}

impl Held {
    pub(super) fn is_schedule(&self) -> bool {
        self.waiting.is_none()
    }
}

#[derive(Debug)]
pub(super) struct Schedulers {
    pub(super) slab: Slab<Scheduler>,
    /// By stamp.
    pub(super) order: BTreeMap<u64, u32>,
    /// In the order in which they came.
    pub(super) held: VecDeque<Held>,
    /// SCHEDULEs among them: as long as there are any, no scheduler is live.
    held_schedules: usize,
    held_bytes: usize,
    /// Some of them came back from a connection that is being closed.
    returned: bool,
}

impl Schedulers {
    pub(super) fn new() -> Self {
        Schedulers {
            slab: Slab::new(),
            order: BTreeMap::new(),
            held: VecDeque::new(),
            held_schedules: 0,
            held_bytes: 0,
            returned: false,
        }
    }

    /// Schedules among what is held, and the bytes of all of it.
    pub(super) fn held_totals(&self) -> (usize, usize) {
        (self.held_schedules, self.held_bytes)
    }

    fn may_hold(&self) -> bool {
        self.held.len() < HELD_MAX && self.held_bytes < HELD_BYTES_MAX
    }

    fn note_held(&mut self, held: &Held) {
        self.held_schedules += usize::from(held.is_schedule());
        self.held_bytes += held.body.wire().len();
    }
}

impl Broker {
    #[inline]
    pub(super) fn on_frontend<O: Outbox>(
        &mut self,
        conn: ConnId,
        peer: u32,
        envelope: &Envelope<'_>,
        now: Now,
        out: &mut O,
    ) {
        self.shows_life(peer, now, out);
        match envelope.command {
            Command::Request => self.on_request(peer, envelope, now, out),
            Command::Schedule | Command::Unschedule => self.on_schedule(peer, envelope, now, out),
            Command::Inform => self.on_scheduler_inform(peer, envelope, now, out),
            Command::Heartbeat | Command::Kbye => {
                let leaves = envelope.command == Command::Kbye;
                if leaves && let Some(entry) = self.conns.get_mut(conn) {
                    entry.said_kbye = true;
                }
                match self.peers.slab[peer].role {
                    Role::Scheduler(scheduler) if leaves => {
                        self.unregister_scheduler(scheduler, now, out);
                    }
                    Role::Scheduler(_) => {}
                    _ => self.counters.inc(Counter::IgnoredUnregistered),
                }
            }
            _ => self.wrong_role(peer, now),
        }
    }

    fn on_scheduler_inform<O: Outbox>(
        &mut self,
        peer: u32,
        envelope: &Envelope<'_>,
        now: Now,
        out: &mut O,
    ) {
        let capabilities = match envelope.body(1) {
            None => Err(BadInform::Frames),
            Some(b"scheduler") => Capabilities::parse(envelope.body(2).unwrap_or_default()),
            Some(_) => Err(BadInform::Type),
        };
        let capabilities = match capabilities {
            Ok(capabilities) => capabilities,
            Err(bad) => return self.bad_inform(peer, bad, now),
        };
        self.counters.inc(Counter::SchedulersRegistered);
        self.stamp += 1;
        let stamp = self.stamp;
        let scheduler = match self.peers.slab[peer].role {
            Role::Scheduler(scheduler) => {
                let entry = &mut self.schedulers.slab[scheduler];
                self.schedulers.order.remove(&entry.stamp);
                entry.stamp = stamp;
                entry.silent = false;
                scheduler
            }
            _ => {
                let tag = self.next_tag();
                let scheduler = self.schedulers.slab.insert(Scheduler {
                    peer,
                    tag,
                    stamp,
                    in_grace: self.peers.slab[peer].output.is_none(),
                    silent: false,
                    slow_since_ns: None,
                    results: false,
                    heartbeat_secs: None,
                    grace_until_ns: now.mono_ns,
                    beat_armed: false,
                    silence_armed: false,
                });
                self.peers.slab[peer].role = Role::Scheduler(scheduler);
                scheduler
            }
        };
        let entry = &mut self.schedulers.slab[scheduler];
        entry.results = capabilities.results;
        entry.heartbeat_secs = capabilities.heartbeat_secs;
        self.schedulers.order.insert(stamp, scheduler);
        if let Some(conn) = self.peers.slab[peer].output {
            out.set_never_paused(conn, true);
        }
        self.acknowledge(peer, envelope.msgid, now, out);
        self.watch_scheduler(scheduler, now);
        self.deliver_held(now, out);
    }

    pub(super) fn watch_scheduler(&mut self, scheduler: u32, now: Now) {
        if self.config.disable_heartbeats {
            return;
        }
        let silence_ns = self.silence_ns(self.schedulers.slab[scheduler].heartbeat_secs);
        let entry = &mut self.schedulers.slab[scheduler];
        if !std::mem::replace(&mut entry.beat_armed, true) {
            let due_ns = now.mono_ns + self.config.heartbeat_interval_ms * NS_PER_MS;
            self.timers
                .arm(due_ns, TimerKind::SchedulerBeat, scheduler, entry.tag);
        }
        if !std::mem::replace(&mut entry.silence_armed, true) {
            let due_ns = now.mono_ns + silence_ns;
            self.timers
                .arm(due_ns, TimerKind::SchedulerSilence, scheduler, entry.tag);
        }
    }

    fn on_schedule<O: Outbox>(
        &mut self,
        peer: u32,
        envelope: &Envelope<'_>,
        now: Now,
        out: &mut O,
    ) {
        let reason = match crate::emqp::check_schedule(envelope) {
            Err(BadSchedule::Malformed) => Some(RejectReason::Malformed),
            Err(BadSchedule::TooLarge) => Some(RejectReason::TooLarge),
            Ok(()) if self.refuses_requests(peer) => Some(RejectReason::Draining),
            Ok(()) if self.schedulers.order.is_empty() => Some(RejectReason::NoScheduler),
            // Told now rather than when some schedulers have got it and others cannot.
            Ok(()) if envelope.command == Command::Unschedule && !self.schedulers.may_hold() => {
                Some(RejectReason::NoScheduler)
            }
            Ok(()) => None,
        };
        if let Some(reason) = reason {
            return self.reject(peer, envelope.msgid, reason, now, out);
        }
        if envelope.command == Command::Unschedule {
            self.hold_ref(peer, envelope.message());
            let body = Body::of(envelope.message());
            let waiting = SmallVec::new();
            let task = Task::Unschedule {
                body,
                client: peer,
                after: 0,
                waiting,
                sent: false,
            };
            self.tasks.push_back(task);
            return;
        }
        // Held ones come first: the order in which a client sent them is kept.
        let target = self
            .newest_live_scheduler(now, out)
            .filter(|_| self.schedulers.held_schedules == 0);
        if let Some(conn) = target {
            out.forward(conn, OutClass::Work, envelope.message());
            self.counters.inc(Counter::SchedulesForwarded);
            self.accept_schedule(peer, envelope.msgid, out);
        } else if !self.schedulers.may_hold() {
            self.reject(peer, envelope.msgid, RejectReason::NoScheduler, now, out);
        } else {
            self.hold_ref(peer, envelope.message());
            let body = Body::of(envelope.message());
            let held = Held {
                body,
                client: peer,
                waiting: None,
                sent: false,
            };
            self.schedulers.note_held(&held);
            self.schedulers.held.push_back(held);
        }
    }

    fn hold_ref(&mut self, client: u32, message: &Message<'_>) {
        self.blocks.hold(message.wire().len());
        if client != NONE {
            self.peers.slab[client].refs += 1;
        }
    }

    /// The connection of the newest scheduler that may be given a schedule.
    fn newest_live_scheduler<O: Outbox>(&mut self, now: Now, out: &mut O) -> Option<ConnId> {
        let Broker {
            schedulers,
            peers,
            config,
            ..
        } = self;
        schedulers.order.values().rev().find_map(|scheduler| {
            let entry = &mut schedulers.slab[*scheduler];
            let output = peers.slab[entry.peer].output;
            entry.may_be_given(output, config.worker_buffer_bytes, now, out)
        })
    }

    /// One UNSCHEDULE to all schedulers. True when done.
    pub(super) fn run_unschedule<O: Outbox>(
        &mut self,
        task: &mut Task,
        now: Now,
        out: &mut O,
    ) -> bool {
        let Task::Unschedule {
            body,
            client,
            after,
            waiting,
            sent,
        } = task
        else {
            return true;
        };
        loop {
            let next = self.schedulers.order.range(*after + 1..).next();
            let Some((stamp, scheduler)) = next.map(|(stamp, ix)| (*stamp, *ix)) else {
                break;
            };
            if !out.has_room() {
                return false;
            }
            *after = stamp;
            let limit = self.config.worker_buffer_bytes;
            let entry = &mut self.schedulers.slab[scheduler];
            let output = self.peers.slab[entry.peer].output;
            match entry.may_be_given(output, limit, now, out) {
                // What is held comes first; for one that is live only SCHEDULEs can be.
                Some(conn) if self.schedulers.held_schedules == 0 => {
                    out.forward(conn, OutClass::Work, &Message::new(body.wire(), &[]));
                    self.counters.inc(Counter::SchedulesForwarded);
                    *sent = true;
                }
                _ => waiting.push(scheduler),
            }
        }
        let body = std::mem::replace(body, Body::Bytes(Vec::new()));
        let held = Held {
            body,
            client: *client,
            waiting: Some(waiting.clone()),
            sent: *sent,
        };
        if waiting.is_empty() {
            self.answer_held(&held, now, out);
            self.drop_held(&held);
        } else {
            self.schedulers.note_held(&held);
            self.schedulers.held.push_back(held);
        }
        true
    }

    fn drop_held(&mut self, held: &Held) {
        self.blocks.release(held.body.wire().len());
        if held.client != NONE {
            self.peers.release(held.client);
        }
    }

    /// Sends what is held to the schedulers it waits for, as far as they are live; refuses what
    /// nobody is left for.
    pub(super) fn deliver_held<O: Outbox>(&mut self, now: Now, out: &mut O) {
        if self.schedulers.held.is_empty() {
            return;
        }
        self.schedulers.held_schedules = 0;
        self.schedulers.held_bytes = 0;
        let limit = self.config.worker_buffer_bytes;
        let mut kept = VecDeque::new();
        for mut held in std::mem::take(&mut self.schedulers.held) {
            let done = match held.waiting.take() {
                None => match self.newest_live_scheduler(now, out) {
                    Some(conn) => {
                        out.forward(conn, OutClass::Work, &Message::new(held.body.wire(), &[]));
                        self.counters.inc(Counter::SchedulesForwarded);
                        held.sent = true;
                        true
                    }
                    None => self.schedulers.order.is_empty(),
                },
                Some(mut waiting) => {
                    waiting.retain(|scheduler| {
                        let Some(entry) = self.schedulers.slab.get_mut(*scheduler) else {
                            return false;
                        };
                        let output = self.peers.slab[entry.peer].output;
                        match entry.may_be_given(output, limit, now, out) {
                            Some(conn) => {
                                let message = Message::new(held.body.wire(), &[]);
                                out.forward(conn, OutClass::Work, &message);
                                self.counters.inc(Counter::SchedulesForwarded);
                                held.sent = true;
                                false
                            }
                            None => true,
                        }
                    });
                    let done = waiting.is_empty();
                    held.waiting = Some(waiting);
                    done
                }
            };
            if !done {
                self.schedulers.note_held(&held);
                kept.push_back(held);
                continue;
            }
            self.answer_held(&held, now, out);
            self.drop_held(&held);
        }
        self.schedulers.held = kept;
    }

    /// Tells the client of one that waits no longer whether a scheduler has got it. One that had
    /// come back is only counted.
    fn answer_held<O: Outbox>(&mut self, held: &Held, now: Now, out: &mut O) {
        if held.client == NONE {
            if !held.sent {
                self.counters.inc(Counter::SchedulesDropped);
            }
            return;
        }
        let mut spans = Vec::new();
        crate::frames::split_wire(held.body.wire(), &mut spans);
        let message = Message::new(held.body.wire(), &spans);
        let Ok(envelope) = Envelope::parse(&message) else {
            return;
        };
        if held.sent {
            self.accept_schedule(held.client, envelope.msgid, out);
        } else {
            let reason = RejectReason::NoScheduler;
            self.reject(held.client, envelope.msgid, reason, now, out);
        }
    }

    /// Tells a client that announced the extensions that its SCHEDULE or UNSCHEDULE is on its way
    /// to a scheduler. Clients of 0.3.13 know no such answer.
    fn accept_schedule<O: Outbox>(&mut self, client: u32, msgid: &[u8], out: &mut O) {
        let entry = &self.peers.slab[client];
        if let Some(conn) = entry.output.filter(|_| entry.extensions) {
            let head = self.accept.next_accept(msgid.len());
            out.send(conn, OutClass::Notice, &[head, msgid]);
        }
    }

    /// A schedule that was not written before its connection was lost. They come newest first.
    /// `scheduler` is `None` if it is no longer registered: then another one may take a SCHEDULE.
    pub(super) fn hold_unsent(
        &mut self,
        scheduler: Option<u32>,
        command: Command,
        message: &Message<'_>,
    ) {
        let unschedule = command == Command::Unschedule;
        let nobody = scheduler.is_none() && (unschedule || self.schedulers.order.is_empty());
        if nobody || !self.schedulers.may_hold() {
            self.counters.inc(Counter::SchedulesDropped);
            return;
        }
        self.hold_ref(NONE, message);
        let waiting = unschedule.then(|| scheduler.into_iter().collect());
        let held = Held {
            body: Body::of(message),
            client: NONE,
            waiting,
            sent: false,
        };
        self.schedulers.note_held(&held);
        self.schedulers.held.push_front(held);
        self.schedulers.returned = true;
    }

    /// A connection is closed that may have given schedules back: who is live may take them.
    pub(super) fn deliver_returned<O: Outbox>(&mut self, now: Now, out: &mut O) {
        if std::mem::take(&mut self.schedulers.returned) {
            self.deliver_held(now, out);
        }
    }

    pub(super) fn scheduler_lost(&mut self, scheduler: u32, now: Now) {
        let entry = &mut self.schedulers.slab[scheduler];
        entry.in_grace = true;
        entry.slow_since_ns = None;
        entry.grace_until_ns = now.mono_ns + self.config.reconnect_grace_ms * NS_PER_MS;
    }

    pub(super) fn scheduler_closed<O: Outbox>(&mut self, scheduler: u32, now: Now, out: &mut O) {
        let entry = &self.schedulers.slab[scheduler];
        if !entry.in_grace {
            return;
        }
        let all_closed = self.peers.slab[entry.peer].conns == 0;
        if all_closed && entry.grace_until_ns <= now.mono_ns {
            self.log_scheduler(scheduler, "its connection was lost", now);
            self.unregister_scheduler(scheduler, now, out);
        } else {
            let due_ns = entry.grace_until_ns;
            self.timers
                .arm(due_ns, TimerKind::SchedulerGrace, scheduler, entry.tag);
            // Another one may take what came back.
            self.deliver_held(now, out);
        }
    }

    pub(super) fn scheduler_reconnected<O: Outbox>(
        &mut self,
        scheduler: u32,
        conn: ConnId,
        now: Now,
        out: &mut O,
    ) {
        let entry = &mut self.schedulers.slab[scheduler];
        entry.in_grace = false;
        entry.silent = false;
        entry.slow_since_ns = None;
        out.set_never_paused(conn, true);
        self.deliver_held(now, out);
    }

    pub(super) fn scheduler_writable<O: Outbox>(&mut self, scheduler: u32, now: Now, out: &mut O) {
        self.schedulers.slab[scheduler].slow_since_ns = None;
        self.deliver_held(now, out);
    }

    pub(super) fn log_scheduler(&mut self, scheduler: u32, why: &str, now: Now) {
        if let Some(repeats) = self.logs.admit(LogKind::SchedulerLost, now.mono_ns) {
            let peer = self.schedulers.slab[scheduler].peer;
            let id = crate::log_limit::shown_id(&self.peers.slab[peer].id);
            tracing::warn!(scheduler = %id, repeats, "scheduler removed: {why}");
        }
    }

    pub(super) fn unregister_scheduler<O: Outbox>(
        &mut self,
        scheduler: u32,
        now: Now,
        out: &mut O,
    ) {
        self.counters.inc(Counter::SchedulersRemoved);
        let entry = self
            .schedulers
            .slab
            .remove(scheduler)
            .expect("a registered scheduler");
        self.schedulers.order.remove(&entry.stamp);
        // The index may be given out again: nothing may wait for it.
        for held in &mut self.schedulers.held {
            if let Some(waiting) = &mut held.waiting {
                waiting.retain(|other| *other != scheduler);
            }
        }
        self.peers.slab[entry.peer].role = Role::None;
        if let Some(conn) = self.peers.slab[entry.peer].output {
            out.set_never_paused(conn, false);
        }
        // It may be the client of something held for itself, and that the last thing that keeps it.
        self.peers.slab[entry.peer].refs += 1;
        self.deliver_held(now, out);
        self.peers.release(entry.peer);
    }
}
