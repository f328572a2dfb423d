//! Which worker gets a job, and which job a worker gets (semantics.md, weighted LRU slots).
//!
//! Invariant, after every public entry and apart from pending tasks: a worker that may be given
//! work and has a free slot is a candidate of all its queues, and no job it could take is waiting.

use super::Broker;
use super::jobs::NewJob;
use super::latency::Part;
use super::queues::{DEFAULT_QUEUE, Queues};
use super::slab::NONE;
use super::steps::step;
use super::store::{JobMeta, NO_HEAD, flags};
use super::tasks::Task;
use super::workers::blocked;
use crate::frames::Message;
use crate::ids::Now;
use crate::link::{OutClass, Outbox};
use crate::metrics::Counter;

impl Broker {
    /// The worker of `queue` that is next in turn: the highest weight, then the one that was
    /// handed a job of this queue longest ago. Also its place among the queue's members.
    #[inline]
    pub(super) fn choose_worker(&mut self, queue: u32) -> Option<(u32, u32)> {
        let queue = &mut self.queues.slab[queue];
        if queue.parked > 0 {
            queue.unpark_available(&self.profiles.slab);
        }
        loop {
            let (key, slot) = queue.candidates.peek()?;
            let member = queue.members[slot as usize];
            let worker = &mut self.workers.slab[member.worker];
            if !worker.available() {
                queue.candidates.remove(slot);
                let profile = &mut self.profiles.slab[worker.profile];
                if profile.parks {
                    profile.set_available(worker.seat, false);
                    let group = profile.groups[member.index as usize];
                    queue.park(group, worker.seat, slot);
                } else {
                    worker.missing.push(member.index);
                }
            } else if key.1 != member.stamp {
                let key = (member.rank, member.stamp);
                queue.candidates.correct_top(slot, key);
            } else {
                return Some((member.worker, slot));
            }
        }
    }

    /// The oldest job a worker of `queue` may take from it: for the default queue, jobs of
    /// unserved queues count.
    #[inline]
    pub(super) fn head_for_workers(&self, queue: u32) -> u64 {
        let head = self.queues.slab[queue].head_seq();
        if queue == DEFAULT_QUEUE {
            head.min(self.open_jobs.peek().map_or(NO_HEAD, |top| top.0))
        } else {
            head
        }
    }

    /// The place in its list of the queue from which a worker with this profile takes its next
    /// job: the highest weight, then the oldest job. The one function that decides it.
    #[inline]
    fn choose_queue(&mut self, profile: u32) -> Option<u32> {
        loop {
            let (key, place) = self.profiles.slab[profile].waiting.peek()?;
            let (rank, queue) = self.profiles.slab[profile].key[place as usize];
            let head = self.head_for_workers(queue);
            let waiting = &mut self.profiles.slab[profile].waiting;
            if head == NO_HEAD {
                waiting.pop();
            } else if head != key.1 {
                waiting.set(place, (rank, head));
            } else {
                return Some(place);
            }
        }
    }

    /// The oldest job of `queue` is now `head`, older than before: profiles must know.
    fn head_lowered(&mut self, queue: u32, head: u64) {
        let profiles = &mut self.profiles.slab;
        for group in &self.queues.slab[queue].groups {
            step();
            let (profile, place) = (&mut profiles[group.profile], group.place);
            let key = (profile.key[place as usize].0, head);
            if profile.waiting.key(place).is_none_or(|known| known > key) {
                profile.waiting.set(place, key);
            }
        }
    }

    /// To be called when a store of `queue` has got a new oldest job.
    pub(super) fn head_changed(&mut self, queue: u32, open: bool) {
        self.head_lowered(queue, self.queues.slab[queue].head_seq());
        if open {
            self.open_jobs
                .set(queue, self.queues.slab[queue].open.head_seq());
            self.head_lowered(DEFAULT_QUEUE, self.head_for_workers(DEFAULT_QUEUE));
        }
    }

    /// Hands the worker its next job, if one is waiting that it may take.
    #[inline]
    pub(super) fn feed_one<O: Outbox>(&mut self, worker: u32, now: Now, out: &mut O) -> bool {
        if !self.hands_out {
            return false;
        }
        let Some(place) = self.choose_queue(self.workers.slab[worker].profile) else {
            return false;
        };
        let (queue, slot) = self.workers.slab[worker].members[place as usize];
        let (source, open) = self.source_of(queue);
        let store = self.queues.slab[source].store(open);
        let (mut meta, lease) = store.lease().expect("the chosen queue has a job");
        if source != queue {
            meta.flags |= flags::FALLBACK;
            self.move_unfinished(source, queue, meta.accepted_ns);
        }
        self.give(worker, queue, slot, meta, &lease.message(), now, out);
        self.queues.slab[source]
            .store(open)
            .consume(&mut self.blocks, lease);
        self.jobs_waiting -= 1;
        self.after_take(source, open, now);
        true
    }

    /// The queue and store from which a worker of `queue` takes the oldest job.
    fn source_of(&self, queue: u32) -> (u32, bool) {
        let own = &self.queues.slab[queue];
        if queue == DEFAULT_QUEUE {
            return match self.open_jobs.peek() {
                Some((head, other)) if head < own.head_seq() => (other, true),
                _ => (queue, false),
            };
        }
        (queue, own.open.head_seq() < own.bound.head_seq())
    }

    /// Puts the tables right after the oldest job of a store was taken.
    #[inline]
    pub(super) fn after_take(&mut self, queue: u32, open: bool, now: Now) {
        let entry = &mut self.queues.slab[queue];
        if open {
            match entry.open.head_seq() {
                NO_HEAD => {
                    self.open_jobs.remove(queue);
                }
                head => self.open_jobs.set(queue, head),
            }
        }
        if entry.waiting() == 0 {
            entry.emptied_ns = now.mono_ns;
        }
    }

    /// An unfinished job counts for another queue from now on.
    pub(super) fn move_unfinished(&mut self, from: u32, to: u32, accepted_ns: u64) {
        self.queues.slab[from].accepted_sum_ns -= u128::from(accepted_ns);
        self.queues.slab[to].accepted_sum_ns += u128::from(accepted_ns);
    }

    /// Hands a job to a worker. `queue` is the one it counts for, `slot` the worker's place in
    /// it.
    #[expect(clippy::too_many_arguments)]
    #[inline]
    pub(super) fn give<O: Outbox>(
        &mut self,
        worker_ix: u32,
        queue: u32,
        slot: u32,
        meta: JobMeta,
        message: &Message<'_>,
        now: Now,
        out: &mut O,
    ) {
        self.stamp += 1;
        let entry = &mut self.queues.slab[queue];
        let member = &mut entry.members[slot as usize];
        member.stamp = self.stamp;
        let key = (member.rank, member.stamp);
        entry.candidates.used(slot, key);
        entry.in_flight += 1;
        entry.processed += 1;
        if entry.latency == NONE {
            entry.latency = self.latency.entry_of(&entry.name);
        }
        let latency = entry.latency;
        let worker = &mut self.workers.slab[worker_ix];
        debug_assert!(
            worker.available(),
            "a job for a worker that may not be given one"
        );
        worker.free -= 1;
        worker.in_flight += 1;
        worker.processed += 1;
        worker.idle_since_ns = None;
        let new = NewJob {
            meta,
            msgid: meta.msgid(message.wire()),
            handed_ns: now.mono_ns,
            worker: worker_ix,
            queue,
            epoch: worker.epoch,
            wire_len: message.wire().len() as u32,
        };
        let ix = self.jobs.insert(&new, &mut worker.jobs, &mut entry.flight);
        if worker.completions {
            // Such a worker may refuse it: then the job goes back to its place.
            self.jobs.keep_body(ix, message, &mut self.blocks);
        }
        if meta.client != NONE {
            self.owed_in_flight += 1;
        }
        out.forward(worker.conn, OutClass::Work, message);
        self.counters.inc(Counter::JobsHandedOut);
        self.latency
            .record(latency, Part::Wait, now.mono_ns - meta.accepted_ns);
        worker.out_bytes += message.wire().len();
        if worker.out_bytes > self.config.worker_buffer_bytes {
            self.check_output(worker_ix, out);
        }
        self.arm_job_timer(now);
    }

    /// The worker has been sent as much as it may have waiting since its output was last looked
    /// at: looks again, and gives it nothing more until it has drained to half.
    #[cold]
    fn check_output<O: Outbox>(&mut self, worker: u32, out: &mut O) {
        let worker = &mut self.workers.slab[worker];
        worker.out_bytes = out.pending_bytes(worker.conn);
        if worker.out_bytes > self.config.worker_buffer_bytes {
            worker.blocked |= blocked::SLOW;
            out.notify_writable(worker.conn, self.config.worker_buffer_bytes / 2);
        }
    }

    /// Makes a worker with a free slot a candidate again in the queues that had taken it out.
    #[inline]
    pub(super) fn restore_candidate(&mut self, worker: u32) {
        let worker = &mut self.workers.slab[worker];
        let profile = &mut self.profiles.slab[worker.profile];
        if profile.parks {
            profile.set_available(worker.seat, true);
            return;
        }
        while let Some(place) = worker.missing.pop() {
            let (queue, slot) = worker.members[place as usize];
            let queue = &mut self.queues.slab[queue];
            let member = queue.members[slot as usize];
            queue.candidates.insert(slot, (member.rank, member.stamp));
        }
    }

    /// Hands a worker what it may take, as far as there is room for output. True when done.
    pub(super) fn feed<O: Outbox>(&mut self, worker: u32, now: Now, out: &mut O) -> bool {
        while self.workers.slab[worker].available() {
            if !out.has_room() {
                return false;
            }
            if !self.feed_one(worker, now, out) {
                self.restore_candidate(worker);
                break;
            }
        }
        true
    }

    /// Hands out the waiting jobs of a queue to free workers. True when done.
    pub(super) fn pump<O: Outbox>(&mut self, queue: u32, now: Now, out: &mut O) -> bool {
        // For the default queue the jobs of unserved queues count.
        while self.hands_out
            && (self.queues.slab[queue].waiting() > 0 || self.head_for_workers(queue) != NO_HEAD)
        {
            if !out.has_room() {
                return false;
            }
            let mut chosen = self.choose_worker(queue);
            if chosen.is_none() && self.queues.slab[queue].open.len() > 0 {
                chosen = self.choose_worker(DEFAULT_QUEUE);
            }
            let Some((worker, _)) = chosen else { break };
            if !self.feed_one(worker, now, out) {
                break;
            }
        }
        true
    }

    /// Notes that jobs of `queue` came back; they are handed out by [`Broker::pump_returned`].
    pub(super) fn pump_later(&mut self, queue: u32) {
        if !std::mem::replace(&mut self.queues.slab[queue].pump_due, true) {
            self.returned_to.push(queue);
        }
    }

    /// Makes tasks of the queues noted.
    pub(super) fn pump_returned(&mut self) {
        if self.returned_to.is_empty() {
            return;
        }
        for queue in std::mem::take(&mut self.returned_to) {
            self.tasks.push_back(Task::Pump { queue });
        }
        // What came meanwhile for other unserved queues waited behind what was returned to one.
        self.tasks.push_back(Task::Pump {
            queue: DEFAULT_QUEUE,
        });
    }
}

/// The oldest job that counts for a worker of `queue`, before the profile exists.
pub(super) fn head_at_registration(queues: &Queues, queue: u32, open_head: u64) -> u64 {
    let head = queues.slab[queue].head_seq();
    if queue == DEFAULT_QUEUE {
        head.min(open_head)
    } else {
        head
    }
}
