//! What happens when a timer fires, and how the broker's own absence is told from silence.

use super::Broker;
use super::log::LogKind;
use super::results::IDLE_LOSS_NS;
use super::slab::NONE;
use super::store::flags;
use super::tasks::{EndReason, Task};
use super::timers::{Timer, TimerKind};
use super::workers::blocked;
use crate::ids::{NS_PER_MS, NS_PER_SEC, Now};
use crate::limits::STALL_MS;
use crate::link::Outbox;
use crate::metrics::Counter;

/// Pause between two looks at the jobs in flight.
const JOB_TICK_NS: u64 = 250 * NS_PER_MS;
/// Records looked at in one tick: at least this many, or all of them in 20 ticks.
const JOB_TICK_RECORDS: u32 = 4_096;
const JOB_TICKS: u32 = 20;
/// A job that owes a REPLY is given up this long after its time-out.
const TIMEOUT_SLACK_NS: u64 = 10 * NS_PER_SEC;
/// A scheduler that has not taken half of what waits for it after this long is removed: what is
/// kept for it stands in the way of others.
const SLOW_MAX_NS: u64 = 30 * NS_PER_SEC;
/// How long a removal waits when its connection has not given back what was not sent.
const RECHECK_NS: u64 = 10 * NS_PER_MS;

impl Broker {
    /// To be called once per turn, before its input. Time in which the broker did not run, or
    /// could not read its peers, is taken out of their silence.
    pub fn begin_turn(&mut self, now: Now) {
        self.clock = now;
        let last_ns = std::mem::replace(&mut self.last_turn_ns, now.mono_ns);
        let since_ns = self
            .timers
            .earliest_ns()
            .map_or(now.mono_ns, |due| due.max(last_ns));
        let gap_ns = now.mono_ns.saturating_sub(since_ns);
        if gap_ns > STALL_MS * NS_PER_MS {
            self.stalled_ns += gap_ns;
            self.counters.inc(Counter::Stalls);
            if let Some(repeats) = self.logs.admit(LogKind::Stall, now.mono_ns) {
                let gap_ms = gap_ns / NS_PER_MS;
                tracing::warn!(gap_ms, repeats, "the broker did not run for a while");
            }
        } else if self.has_pending_output() {
            self.stalled_ns += now.mono_ns.saturating_sub(last_ns);
        }
    }

    /// Time as it counts for silence.
    #[inline]
    pub(super) fn effective_ns(&self, now: Now) -> u64 {
        now.mono_ns.saturating_sub(self.stalled_ns)
    }

    /// Bytes came from a connection without making a whole message (a ZMTP PING, part of a large
    /// message): they count as a sign of life.
    pub fn handle_activity<O: Outbox>(&mut self, conn: crate::ids::ConnId, now: Now, out: &mut O) {
        let Some(peer) = self.seen(conn, now) else {
            return;
        };
        self.shows_life(peer, now, out);
        self.run_tasks(now, out);
    }

    /// Whatever a peer has sent, it is not silent any more.
    pub(super) fn shows_life<O: Outbox>(&mut self, peer: u32, now: Now, out: &mut O) {
        use super::peers::Role;
        match self.peers.slab[peer].role {
            Role::Worker(worker) if self.workers.slab[worker].blocked & blocked::SILENT != 0 => {
                let entry = &mut self.workers.slab[worker];
                entry.blocked &= !blocked::SILENT;
                let tag = entry.tag;
                self.tasks.push_back(Task::Feed { worker, tag });
            }
            Role::Scheduler(scheduler) if self.schedulers.slab[scheduler].silent => {
                self.schedulers.slab[scheduler].silent = false;
                self.deliver_held(now, out);
            }
            _ => {}
        }
    }

    /// Monotonic nanoseconds at which [`Broker::handle_timeout`] is to be called. `None` while
    /// timers wait for room for output: then [`Broker::poll_output`] goes on with them.
    pub fn poll_timeout(&self) -> Option<u64> {
        if self.timers_pending {
            None
        } else {
            self.timers.earliest_ns()
        }
    }

    /// Fires all timers that are due, as far as there is room for what they send.
    pub fn handle_timeout<O: Outbox>(&mut self, now: Now, out: &mut O) {
        self.clock = now;
        self.timers_pending = false;
        while self
            .timers
            .earliest_ns()
            .is_some_and(|due_ns| due_ns <= now.mono_ns)
        {
            if !out.has_room() || !self.tasks.is_empty() {
                self.run_tasks(now, out);
                if !out.has_room() || !self.tasks.is_empty() {
                    self.timers_pending = true;
                    return;
                }
            }
            if let Some(timer) = self.timers.pop_due(now.mono_ns) {
                self.fire(timer, now, out);
            }
        }
        self.run_tasks(now, out);
        self.drain_check(now, out);
    }

    fn fire<O: Outbox>(&mut self, timer: Timer, now: Now, out: &mut O) {
        let Timer {
            kind, index, tag, ..
        } = timer;
        let worker = || {
            self.workers
                .slab
                .get(index)
                .is_some_and(|entry| entry.tag == tag)
        };
        let scheduler = || {
            self.schedulers
                .slab
                .get(index)
                .is_some_and(|entry| entry.tag == tag)
        };
        match kind {
            TimerKind::WorkerBeat if worker() => self.worker_beat(index, now, out),
            TimerKind::WorkerSilence if worker() => self.worker_silence(index, now),
            TimerKind::WorkerGrace if worker() => self.worker_grace(index, now),
            TimerKind::WorkerLeave if worker() => self.worker_leave_over(index, now),
            TimerKind::WorkerIdle if worker() => self.worker_idle(index, now),
            TimerKind::SchedulerBeat if scheduler() => self.scheduler_beat(index, now, out),
            TimerKind::SchedulerSilence if scheduler() => self.scheduler_silence(index, now, out),
            TimerKind::SchedulerGrace if scheduler() => self.scheduler_grace(index, now, out),
            TimerKind::Queue => self.queue_timer(index, tag, now),
            TimerKind::Memory => self.memory_timer(tag, now, out),
            TimerKind::Jobs => self.job_tick(now, out),
            TimerKind::Drain => self.drain_timer(now),
            TimerKind::Interval => self.interval_timer(now),
            _ => {}
        }
    }

    fn worker_beat<O: Outbox>(&mut self, worker: u32, now: Now, out: &mut O) {
        let entry = &mut self.workers.slab[worker];
        if self.config.disable_heartbeats || entry.blocked & blocked::LEAVING != 0 {
            entry.beat_armed = false;
            return;
        }
        let (conn, tag) = (entry.conn, entry.tag);
        if entry.blocked & blocked::GRACE == 0 {
            self.send_heartbeat(conn, now, out);
        }
        let due_ns = now.mono_ns + self.config.heartbeat_interval_ms * NS_PER_MS;
        self.timers.arm(due_ns, TimerKind::WorkerBeat, worker, tag);
    }

    fn worker_silence(&mut self, worker: u32, now: Now) {
        let effective_ns = self.effective_ns(now);
        let silence_ns = self.silence_ns(self.workers.slab[worker].heartbeat_secs);
        let entry = &mut self.workers.slab[worker];
        if self.config.disable_heartbeats || entry.blocked & blocked::LEAVING != 0 {
            entry.silence_armed = false;
            return;
        }
        let last_seen_ns = self.peers.slab[entry.peer].last_seen_ns;
        let silent_for_ns = effective_ns.saturating_sub(last_seen_ns);
        // One in grace is watched by its grace.
        let in_grace = entry.blocked & blocked::GRACE != 0;
        let next_ns = if in_grace {
            effective_ns + silence_ns
        } else if silent_for_ns >= 2 * silence_ns {
            self.counters.inc(Counter::WorkersRemovedSilent);
            self.log_worker(worker, "silent", now);
            return self.unregister_worker(worker, EndReason::Lost, now);
        } else if silent_for_ns >= silence_ns {
            entry.blocked |= blocked::SILENT;
            last_seen_ns + 2 * silence_ns
        } else {
            last_seen_ns + silence_ns
        };
        let tag = self.workers.slab[worker].tag;
        self.timers.arm(
            next_ns + self.stalled_ns,
            TimerKind::WorkerSilence,
            worker,
            tag,
        );
    }

    fn worker_grace(&mut self, worker: u32, now: Now) {
        let entry = &self.workers.slab[worker];
        if entry.blocked & blocked::GRACE == 0 || entry.blocked & blocked::LEAVING != 0 {
            return;
        }
        if self.peers.slab[entry.peer].conns > 0 {
            // What was not sent is still to come back.
            let due_ns = now.mono_ns + RECHECK_NS;
            return self
                .timers
                .arm(due_ns, TimerKind::WorkerGrace, worker, entry.tag);
        }
        if entry.grace_until_ns <= now.mono_ns {
            self.worker_lost(worker, now);
        }
    }

    /// A worker that said KBYE has had its time.
    fn worker_leave_over(&mut self, worker: u32, now: Now) {
        // It may have registered again, and said another KBYE, since this was armed.
        let entry = &mut self.workers.slab[worker];
        entry.leave_armed = false;
        if entry.blocked & blocked::LEAVING == 0 {
            return;
        }
        if entry.leave_until_ns <= now.mono_ns {
            return self.unregister_worker(worker, EndReason::Unknown, now);
        }
        entry.leave_armed = true;
        let (due_ns, tag) = (entry.leave_until_ns, entry.tag);
        self.timers.arm(due_ns, TimerKind::WorkerLeave, worker, tag);
    }

    /// All slots of a worker have been free for a while: what it still owes was lost with the
    /// processes that ran it.
    fn worker_idle(&mut self, worker: u32, now: Now) {
        let entry = &mut self.workers.slab[worker];
        entry.idle_armed = false;
        let Some(since_ns) = entry.idle_since_ns else {
            return;
        };
        if entry.in_flight == 0 || entry.free < entry.slots_seen {
            entry.idle_since_ns = None;
            return;
        }
        if now.mono_ns < since_ns + IDLE_LOSS_NS {
            entry.idle_armed = true;
            let due_ns = since_ns + IDLE_LOSS_NS;
            return self
                .timers
                .arm(due_ns, TimerKind::WorkerIdle, worker, entry.tag);
        }
        entry.idle_since_ns = None;
        let mut jobs = Vec::new();
        for mut job in entry.jobs.firsts_open() {
            while job != NONE {
                jobs.push((job, self.jobs.job(job).meta.seq));
                job = self.jobs.job(job).next_of_worker();
            }
        }
        jobs.reverse();
        self.tasks.push_back(Task::Lose { jobs });
    }

    fn scheduler_beat<O: Outbox>(&mut self, scheduler: u32, now: Now, out: &mut O) {
        let entry = &mut self.schedulers.slab[scheduler];
        if self.config.disable_heartbeats {
            entry.beat_armed = false;
            return;
        }
        let (peer, tag) = (entry.peer, entry.tag);
        if let Some(conn) = self.peers.slab[peer].output {
            self.send_heartbeat(conn, now, out);
        }
        let due_ns = now.mono_ns + self.config.heartbeat_interval_ms * NS_PER_MS;
        self.timers
            .arm(due_ns, TimerKind::SchedulerBeat, scheduler, tag);
    }

    fn scheduler_silence<O: Outbox>(&mut self, scheduler: u32, now: Now, out: &mut O) {
        let effective_ns = self.effective_ns(now);
        let silence_ns = self.silence_ns(self.schedulers.slab[scheduler].heartbeat_secs);
        let entry = &mut self.schedulers.slab[scheduler];
        if self.config.disable_heartbeats {
            entry.silence_armed = false;
            return;
        }
        let last_seen_ns = self.peers.slab[entry.peer].last_seen_ns;
        let silent_for_ns = effective_ns.saturating_sub(last_seen_ns);
        let tag = entry.tag;
        let next_ns = if entry.in_grace {
            effective_ns + silence_ns
        } else if silent_for_ns >= 2 * silence_ns {
            self.log_scheduler(scheduler, "silent", now);
            return self.unregister_scheduler(scheduler, now, out);
        } else if entry
            .slow_since_ns
            .is_some_and(|at| at + SLOW_MAX_NS <= now.mono_ns)
        {
            self.log_scheduler(scheduler, "it does not read", now);
            return self.unregister_scheduler(scheduler, now, out);
        } else if silent_for_ns >= silence_ns {
            entry.silent = true;
            last_seen_ns + 2 * silence_ns
        } else {
            last_seen_ns + silence_ns
        };
        self.timers.arm(
            next_ns + self.stalled_ns,
            TimerKind::SchedulerSilence,
            scheduler,
            tag,
        );
    }

    fn scheduler_grace<O: Outbox>(&mut self, scheduler: u32, now: Now, out: &mut O) {
        let entry = &self.schedulers.slab[scheduler];
        if !entry.in_grace {
            return;
        }
        if self.peers.slab[entry.peer].conns > 0 {
            let due_ns = now.mono_ns + RECHECK_NS;
            return self
                .timers
                .arm(due_ns, TimerKind::SchedulerGrace, scheduler, entry.tag);
        }
        if entry.grace_until_ns <= now.mono_ns {
            self.log_scheduler(scheduler, "its connection was lost", now);
            self.unregister_scheduler(scheduler, now, out);
        }
    }

    /// A new queue.
    pub(super) fn create_queue(&mut self, name: &[u8], now: Now) -> u32 {
        let queue = self.queues.create(name);
        self.queues.slab[queue].emptied_ns = now.mono_ns;
        self.arm_queue_timer(queue, now);
        queue
    }

    /// A worker has left the queue.
    pub(super) fn queue_left(&mut self, queue: u32, now: Now) {
        let entry = &mut self.queues.slab[queue];
        if entry.workers == 0 {
            entry.served_until_ns = now.mono_ns + self.config.queue_grace_ms * NS_PER_MS;
            self.arm_queue_timer(queue, now);
        }
    }

    fn arm_queue_timer(&mut self, queue: u32, now: Now) {
        let entry = &mut self.queues.slab[queue];
        if !std::mem::replace(&mut entry.timer_armed, true) {
            let due_ns = now.mono_ns + (self.config.queue_grace_ms * NS_PER_MS).max(RECHECK_NS);
            self.timers.arm(due_ns, TimerKind::Queue, queue, entry.tag);
        }
    }

    /// Forgets a queue that has been neither served nor used for `queue_grace`.
    fn queue_timer(&mut self, queue: u32, tag: u32, now: Now) {
        let grace_ns = self.config.queue_grace_ms * NS_PER_MS;
        let Some(entry) = self
            .queues
            .slab
            .get_mut(queue)
            .filter(|entry| entry.tag == tag)
        else {
            return;
        };
        entry.timer_armed = false;
        if entry.workers > 0 || queue == super::queues::DEFAULT_QUEUE {
            return;
        }
        let unused = entry.waiting() == 0 && entry.in_flight == 0 && entry.groups.is_empty();
        let until_ns = entry.served_until_ns.max(entry.emptied_ns + grace_ns);
        if unused && now.mono_ns >= until_ns {
            return self.queues.forget(queue);
        }
        let later_ns = now.mono_ns + grace_ns.max(RECHECK_NS);
        let due_ns = if unused {
            until_ns.min(later_ns)
        } else {
            later_ns
        };
        entry.timer_armed = true;
        self.timers.arm(due_ns, TimerKind::Queue, queue, tag);
    }

    /// Sees to it that jobs in flight are looked at.
    #[inline]
    pub(super) fn arm_job_timer(&mut self, now: Now) {
        if !self.job_timer_armed {
            self.job_timer_armed = true;
            self.timers
                .arm(now.mono_ns + JOB_TICK_NS, TimerKind::Jobs, 0, 0);
        }
    }

    /// Looks at a part of the jobs in flight and gives up those far beyond their time-out.
    fn job_tick<O: Outbox>(&mut self, now: Now, out: &mut O) {
        self.job_timer_armed = false;
        if self.jobs.len() == 0 {
            return;
        }
        let end = self.jobs.end();
        for _ in 0..JOB_TICK_RECORDS.max(end / JOB_TICKS).min(end) {
            if self.job_cursor >= end {
                self.job_cursor = 0;
            }
            let ix = self.job_cursor;
            if self.is_overdue(ix, now) {
                if !out.has_room() {
                    break;
                }
                self.lose_job(ix, EndReason::Lost, now, out);
            }
            self.job_cursor += 1;
        }
        self.arm_job_timer(now);
    }

    fn is_overdue(&self, ix: u32, now: Now) -> bool {
        let Some(job) = self.jobs.get(ix) else {
            return false;
        };
        if !job.has(flags::REPLIES) || self.workers.slab[job.worker].completions {
            return false;
        }
        let timeout_ns = match job.meta.timeout_secs {
            0 => self.config.global_timeout_ms.saturating_mul(NS_PER_MS),
            secs => u64::from(secs) * NS_PER_SEC,
        };
        let due_ns = job
            .handed_ns
            .saturating_add(timeout_ns)
            .saturating_add(TIMEOUT_SLACK_NS);
        now.mono_ns > due_ns
    }

    fn interval_timer(&mut self, now: Now) {
        self.latency.end_interval();
        self.interval_armed = false;
        self.arm_interval(now);
    }

    pub(super) fn arm_interval(&mut self, now: Now) {
        let interval_ns = self.config.latency_interval_ms * NS_PER_MS;
        if interval_ns > 0 && !std::mem::replace(&mut self.interval_armed, true) {
            self.timers
                .arm(now.mono_ns + interval_ns, TimerKind::Interval, 0, 0);
        }
    }
}
