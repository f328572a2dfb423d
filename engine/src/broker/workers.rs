//! Workers: registration, slots, silence, leaving, loss.

use super::Broker;
use super::jobs::WorkerJobs;
use super::log::LogKind;
use super::peers::Role;
use super::register::Judgement;
use super::slab::NONE;
use super::tasks::{EndReason, Task};
use super::timers::TimerKind;
use crate::emqp::{Command, Envelope};
use crate::ids::{ConnId, NS_PER_MS, Now};
use crate::limits::MSGID_BYTES_MAX;
use crate::link::{OutClass, Outbox};
use crate::metrics::Counter;

/// Why a registered worker is not given work: bits of [`Worker::blocked`].
pub(super) mod blocked {
    /// Not heard for `heartbeat_timeout`.
    pub(in super::super) const SILENT: u8 = 1;
    /// Its connection was lost; it may come back.
    pub(in super::super) const GRACE: u8 = 2;
    /// Too much output is waiting for it.
    pub(in super::super) const SLOW: u8 = 4;
    /// It has a new connection and will say on it what it still runs.
    pub(in super::super) const HOLD: u8 = 8;
    /// It said KBYE and may finish its jobs.
    pub(in super::super) const LEAVING: u8 = 16;
    /// Removed; its jobs are being ended.
    pub(in super::super) const ENDING: u8 = 32;
}

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) peer: u32,
    /// Hash of its routing id, for late REPLYs.
    pub(super) id_hash: u64,
    /// Tells timers apart that were armed for an earlier worker at this index.
    pub(super) tag: u32,
    pub(super) profile: u32,
    /// Its number among the workers with that profile.
    pub(super) seat: u32,
    /// Where its output goes, unless it is in grace.
    pub(super) conn: ConnId,
    pub(super) blocked: u8,
    pub(super) completions: bool,
    pub(super) free: u32,
    /// Records in `jobs`.
    pub(super) in_flight: u32,
    /// Largest sum of the two.
    pub(super) slots_max: u32,
    /// Slots it has shown to have at one time: READYs that were neither the end of a job nor the
    /// replacement of a process that died.
    pub(super) slots_seen: u32,
    /// READYs that are due for jobs already closed by their REPLY.
    pub(super) debts: u32,
    /// READYs to come that give no slot: they were counted when it reconnected.
    pub(super) cancels: u32,
    /// Number of its connection.
    pub(super) epoch: u32,
    /// Number of the connection it was on at its last INFORM.
    pub(super) informed_epoch: u32,
    pub(super) jobs: WorkerJobs,
    /// Queue and place in it, in profile order. Empty while it is in no queue.
    pub(super) members: Vec<(u32, u32)>,
    /// Places in `members` where it is no candidate although it is a member.
    pub(super) missing: Vec<u32>,
    /// Upper bound of the output waiting for it.
    pub(super) out_bytes: usize,
    /// Jobs handed to it.
    pub(super) processed: u64,
    pub(super) instance: Option<Vec<u8>>,
    /// Its heartbeat interval, as its INFORM named it.
    pub(super) heartbeat_secs: Option<u32>,
    pub(super) registered_ns: u64,
    pub(super) grace_until_ns: u64,
    /// How long it may take to leave after its KBYE.
    pub(super) leave_until_ns: u64,
    pub(super) leave_armed: bool,
    /// Since when all its slots have been free although jobs are in flight.
    pub(super) idle_since_ns: Option<u64>,
    pub(super) idle_armed: bool,
    pub(super) beat_armed: bool,
    pub(super) silence_armed: bool,
    /// A judgement that waits for the end of an older connection.
    pub(super) judgement: Option<Box<Judgement>>,
}

impl Worker {
    /// May be given a job now.
    #[inline]
    pub(super) fn available(&self) -> bool {
        self.blocked == 0 && self.free > 0
    }

    pub(super) fn state(&self) -> &'static str {
        if self.blocked & blocked::LEAVING != 0 {
            "leaving"
        } else if self.blocked & (blocked::GRACE | blocked::HOLD) != 0 {
            "grace"
        } else if self.blocked & blocked::SILENT != 0 {
            "silent"
        } else if self.blocked & blocked::SLOW != 0 {
            "slow"
        } else {
            "live"
        }
    }
}

impl Broker {
    #[inline]
    pub(super) fn on_backend<O: Outbox>(
        &mut self,
        conn: ConnId,
        peer: u32,
        envelope: &Envelope<'_>,
        now: Now,
        out: &mut O,
    ) {
        match envelope.command {
            Command::Ready | Command::Reply | Command::Heartbeat | Command::Kbye => {}
            Command::Inform => {
                self.shows_life(peer, now, out);
                return self.on_worker_inform(conn, peer, envelope, now, out);
            }
            _ => {
                self.shows_life(peer, now, out);
                return self.wrong_role(peer, now);
            }
        }
        let Role::Worker(worker) = self.peers.slab[peer].role else {
            return self.on_unregistered(conn, peer, envelope, now, out);
        };
        let entry = &mut self.workers.slab[worker];
        if entry.blocked & (blocked::SILENT | blocked::HOLD) != 0 {
            entry.blocked &= !blocked::SILENT;
            if entry.conn == conn {
                entry.blocked &= !blocked::HOLD;
            }
            self.tasks.push_back(Task::Feed {
                worker,
                tag: self.workers.slab[worker].tag,
            });
        }
        match envelope.command {
            Command::Ready => self.on_ready(worker, envelope, now, out),
            Command::Reply => self.on_reply(worker, envelope, now, out),
            Command::Kbye => {
                if let Some(entry) = self.conns.get_mut(conn) {
                    entry.said_kbye = true;
                }
                self.worker_leaves(worker, now);
            }
            _ => {}
        }
    }

    #[cold]
    fn on_unregistered<O: Outbox>(
        &mut self,
        conn: ConnId,
        peer: u32,
        envelope: &Envelope<'_>,
        now: Now,
        out: &mut O,
    ) {
        // What it is counted as says more of a REPLY than that its sender is not registered: a worker
        // that was removed tells of the jobs it had.
        let ended = envelope.body(1).filter(|msgid| {
            let whole = !msgid.is_empty() && msgid.len() <= MSGID_BYTES_MAX;
            envelope.command == Command::Reply && whole
        });
        match ended {
            Some(msgid) => self.count_unmatched_reply(NONE, msgid, now),
            None => self.counters.inc(Counter::IgnoredUnregistered),
        }
        let Some(entry) = self.conns.get_mut(conn) else {
            return;
        };
        if envelope.command == Command::Kbye {
            entry.said_kbye = true;
            return;
        }
        let tell = self.config.disconnect_unknown && !entry.said_kbye && !entry.disconnect_sent;
        if tell {
            entry.disconnect_sent = true;
        }
        if tell && let Some(output) = self.peers.slab[peer].output {
            let id = self.accept.next_id();
            crate::emqp::MessageBuilder::begin(&mut self.scratch, Command::Disconnect).last(&id);
            out.send(output, OutClass::Control, &[&self.scratch]);
            self.counters.inc(Counter::DisconnectsSent);
        }
    }

    /// Takes the worker out of all its queues.
    pub(super) fn leave_queues(&mut self, worker: u32, now: Now) {
        let entry = &mut self.workers.slab[worker];
        if entry.profile == NONE {
            return;
        }
        let profile = std::mem::replace(&mut entry.profile, NONE);
        let members = std::mem::take(&mut entry.members);
        entry.missing.clear();
        let seat = entry.seat;
        for (place, (queue, slot)) in members.into_iter().enumerate() {
            if self.profiles.slab[profile].parks {
                let group = self.profiles.slab[profile].groups[place];
                self.queues.slab[queue].unpark(group, seat);
            }
            self.queues.slab[queue].leave(slot);
            self.queue_left(queue, now);
        }
        self.profiles.slab[profile].give_seat(seat);
        self.profiles.release(profile, &mut self.queues);
    }

    fn worker_leaves(&mut self, worker: u32, now: Now) {
        let entry = &mut self.workers.slab[worker];
        if entry.blocked & blocked::LEAVING != 0 {
            return;
        }
        self.counters.inc(Counter::WorkersRemovedLeft);
        let entry = &mut self.workers.slab[worker];
        let due_ns = now.mono_ns + self.config.kill_grace_period_ms * NS_PER_MS;
        entry.blocked |= blocked::LEAVING;
        entry.leave_until_ns = due_ns;
        entry.idle_since_ns = None;
        entry.free = 0;
        // One that has nothing to finish leaves at once; there is one timer however often it says
        // that it leaves.
        if entry.in_flight > 0 && !std::mem::replace(&mut entry.leave_armed, true) {
            let tag = entry.tag;
            self.timers.arm(due_ns, TimerKind::WorkerLeave, worker, tag);
        }
        self.leave_queues(worker, now);
        self.leave_if_done(worker, now);
    }

    /// A leaving worker without jobs is removed.
    pub(super) fn leave_if_done(&mut self, worker: u32, now: Now) {
        let entry = &self.workers.slab[worker];
        if entry.blocked & blocked::LEAVING != 0 && entry.in_flight == 0 {
            self.unregister_worker(worker, EndReason::Unknown, now);
        }
    }

    /// Removes a worker; its jobs end one by one as there is room for what they cause.
    pub(super) fn unregister_worker(&mut self, worker: u32, reason: EndReason, now: Now) {
        self.leave_queues(worker, now);
        let tag = self.next_tag();
        let entry = &mut self.workers.slab[worker];
        if entry.blocked & blocked::ENDING != 0 {
            return;
        }
        entry.blocked |= blocked::ENDING;
        entry.free = 0;
        entry.judgement = None;
        entry.tag = tag;
        let (peer, jobs) = (entry.peer, entry.in_flight as usize);
        self.peers.slab[peer].role = Role::None;
        if jobs > 0 && reason == EndReason::Lost {
            self.log_lost(worker, jobs, now);
        }
        self.tasks.push_back(Task::EndWorker { worker, reason });
        self.peers.drop_unused(peer);
    }

    pub(super) fn worker_reconnected(&mut self, worker: u32, conn: ConnId, epoch: u32) {
        let entry = &mut self.workers.slab[worker];
        entry.conn = conn;
        entry.epoch = epoch;
        entry.out_bytes = 0;
        entry.blocked &= !(blocked::GRACE | blocked::SILENT | blocked::SLOW);
        if entry.instance.is_some() {
            // It will register again and tell what it runs: a job handed out before that would
            // be missing in what it tells.
            entry.blocked |= blocked::HOLD;
        }
        let tag = entry.tag;
        self.tasks.push_back(Task::Feed { worker, tag });
    }

    /// One of its connections is closed and has given back what was not sent.
    pub(super) fn worker_closed(&mut self, worker: u32, now: Now) {
        let entry = &self.workers.slab[worker];
        if entry.blocked & blocked::GRACE == 0 {
            return self.judge(worker, now);
        }
        // An older connection may still give something back.
        let all_closed = self.peers.slab[entry.peer].conns == 0;
        if all_closed && entry.blocked & blocked::LEAVING != 0 {
            self.unregister_worker(worker, EndReason::Unknown, now);
        } else if all_closed && entry.grace_until_ns <= now.mono_ns {
            self.worker_lost(worker, now);
        } else {
            self.timers.arm(
                entry.grace_until_ns,
                TimerKind::WorkerGrace,
                worker,
                entry.tag,
            );
        }
    }

    /// The reconnect grace is over.
    pub(super) fn worker_lost(&mut self, worker: u32, now: Now) {
        self.counters.inc(Counter::WorkersRemovedLost);
        self.log_worker(worker, "its connection was lost", now);
        self.unregister_worker(worker, EndReason::Lost, now);
    }

    pub(super) fn log_worker(&mut self, worker: u32, why: &str, now: Now) {
        if let Some(repeats) = self.logs.admit(LogKind::WorkerLost, now.mono_ns) {
            let peer = self.workers.slab[worker].peer;
            let id = crate::log_limit::shown_id(&self.peers.slab[peer].id);
            tracing::warn!(worker = %id, repeats, "worker removed: {why}");
        }
    }

    /// The output of a connection has drained to what was asked for.
    pub fn handle_writable<O: Outbox>(&mut self, conn: ConnId, now: Now, out: &mut O) {
        let Some(entry) = self.conns.get(conn) else {
            return;
        };
        if entry.peer == NONE || self.peers.slab[entry.peer].output != Some(conn) {
            return;
        }
        match self.peers.slab[entry.peer].role {
            Role::Worker(worker) => {
                let entry = &mut self.workers.slab[worker];
                if entry.blocked & blocked::SLOW != 0 {
                    entry.blocked &= !blocked::SLOW;
                    entry.out_bytes = out.pending_bytes(conn);
                    let tag = entry.tag;
                    self.tasks.push_back(Task::Feed { worker, tag });
                }
            }
            Role::Scheduler(scheduler) => self.scheduler_writable(scheduler, now, out),
            Role::None => {}
        }
        self.run_tasks(now, out);
    }
}
