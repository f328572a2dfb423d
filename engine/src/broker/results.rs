//! READY and REPLY: ends of jobs, slots given back, results to clients.

use super::Broker;
use super::latency::Part;
use super::slab::NONE;
use super::store::{Body, flags};
use super::tasks::EndReason;
use super::timers::TimerKind;
use super::workers::blocked;
use crate::emqp::{Command, Envelope, JobStatus, MessageBuilder};
use crate::frames::Message;
use crate::ids::{NS_PER_MS, NS_PER_SEC, Now};
use crate::limits::MSGID_BYTES_MAX;
use crate::link::{OutClass, Outbox};
use crate::metrics::Counter;
use std::collections::{HashMap, VecDeque};

/// A worker's READYs count as further slots for this long after its INFORM, even while it owes
/// REPLYs; later ones count as replacements of processes that died.
const SLOTS_SETTLE_NS: u64 = 30 * NS_PER_SEC;
/// Jobs are given up when all slots of their worker have been free for this long.
pub(super) const IDLE_LOSS_NS: u64 = 2 * NS_PER_SEC;
/// Lost jobs whose msgids are remembered.
const LATE_MAX: usize = 100_000;

/// Msgids of jobs that were given up, to recognise their late REPLYs.
#[derive(Debug)]
pub(super) struct LateReplies {
    /// How many jobs, by hash of the msgid, and by hash of msgid and worker id.
    known: HashMap<u64, u32, ahash::RandomState>,
    /// When each is forgotten, with its two keys.
    order: VecDeque<(u64, [u64; 2])>,
}

impl LateReplies {
    pub(super) fn new(hasher: ahash::RandomState) -> Self {
        LateReplies {
            known: HashMap::with_hasher(hasher),
            order: VecDeque::new(),
        }
    }

    /// Hash of a worker id or a msgid.
    pub(super) fn hash(&self, bytes: &[u8]) -> u64 {
        self.known.hasher().hash_one(bytes)
    }

    fn keys(&self, msgid: &[u8], worker: u64) -> [u64; 2] {
        let msgid = self.hash(msgid);
        [msgid, self.known.hasher().hash_one((msgid, worker))]
    }

    fn expire(&mut self, now_ns: u64) {
        while let Some((until_ns, keys)) = self.order.front().copied() {
            if until_ns > now_ns && self.order.len() <= LATE_MAX {
                break;
            }
            self.order.pop_front();
            for key in keys {
                if let Some(count) = self.known.get_mut(&key) {
                    *count -= 1;
                    if *count == 0 {
                        self.known.remove(&key);
                    }
                }
            }
        }
    }

    fn add(&mut self, msgid: &[u8], worker: u64, until_ns: u64, now_ns: u64) {
        let keys = self.keys(msgid, worker);
        for key in keys {
            *self.known.entry(key).or_insert(0) += 1;
        }
        self.order.push_back((until_ns, keys));
        self.expire(now_ns);
    }

    /// Whether a job with this msgid was given up, and whether this worker had such a one.
    fn find(&mut self, msgid: &[u8], worker: u64, now_ns: u64) -> (bool, bool) {
        self.expire(now_ns);
        let [by_msgid, by_worker] = self.keys(msgid, worker);
        (
            self.known.contains_key(&by_msgid),
            self.known.contains_key(&by_worker),
        )
    }
}

impl Broker {
    #[inline]
    pub(super) fn on_reply<O: Outbox>(
        &mut self,
        worker: u32,
        envelope: &Envelope<'_>,
        now: Now,
        out: &mut O,
    ) {
        let (Some(_), Some(msgid)) = (envelope.body(0), envelope.body(1)) else {
            return self.counters.inc(Counter::IgnoredReply);
        };
        if msgid.is_empty() || msgid.len() > MSGID_BYTES_MAX {
            return self.counters.inc(Counter::IgnoredReply);
        }
        let Some(job) = self.jobs.oldest_open(worker, msgid) else {
            return self.count_unmatched_reply(worker, msgid, now);
        };
        let client = self.jobs.job(job).meta.client;
        if client == NONE {
            self.counters.inc(Counter::ResultsNotAsked);
        } else {
            self.deliver(client, envelope.message(), out);
        }
        let status = match envelope.body(2) {
            None => JobStatus::Ok,
            Some(word) => JobStatus::parse(word).unwrap_or(JobStatus::Ok),
        };
        self.count_end(status);
        if self.workers.slab[worker].completions {
            self.end_but_keep_record(job, now);
        } else {
            self.end_job(job, now);
            self.workers.slab[worker].debts += 1;
        }
        self.leave_if_done(worker, now);
        self.drain_progress(client, out);
    }

    /// A REPLY for a job that is not in flight at this worker.
    #[cold]
    pub(super) fn count_unmatched_reply(&mut self, worker: u32, msgid: &[u8], now: Now) {
        let own = self
            .workers
            .slab
            .get(worker)
            .map_or(0, |entry| entry.id_hash);
        let (late, had_it) = self.late.find(msgid, own, now.mono_ns);
        self.counters.inc(if late {
            Counter::RepliesLate
        } else {
            Counter::RepliesUnknown
        });
        if let Some(entry) = self.workers.slab.get_mut(worker)
            && !entry.completions
            && !had_it
        {
            // It got the job under another id and counted its slot when it came back.
            entry.cancels += 1;
        }
    }

    /// Sends a worker's result on, byte for byte.
    #[inline]
    fn deliver<O: Outbox>(&mut self, client: u32, message: &Message<'_>, out: &mut O) {
        if !self.takes_results(client) {
            return self.counters.inc(Counter::ResultsNotAsked);
        }
        match self.peers.slab[client].output {
            Some(conn) => {
                out.forward(conn, OutClass::Result, message);
                self.counters.inc(Counter::ResultsForwarded);
            }
            None => self.counters.inc(Counter::ResultsClientGone),
        }
    }

    /// Sends a result made by the broker itself.
    pub(super) fn deliver_made<O: Outbox>(
        &mut self,
        client: u32,
        msgid: &[u8],
        error: MadeError,
        out: &mut O,
    ) {
        if !self.takes_results(client) {
            return self.counters.inc(Counter::ResultsNotAsked);
        }
        let Some(conn) = self.peers.slab[client].output else {
            return self.counters.inc(Counter::ResultsClientGone);
        };
        let id = self.accept.next_id();
        MessageBuilder::begin(&mut self.scratch, Command::Reply)
            .frame(&id)
            .frame(error.json().as_bytes())
            .frame(msgid)
            .last(error.status().word());
        out.send(conn, OutClass::Result, &[&self.scratch]);
        self.counters.inc(Counter::ResultsForwarded);
    }

    fn count_end(&mut self, status: JobStatus) {
        self.counters.inc(match status {
            JobStatus::Ok | JobStatus::Refused => Counter::JobsDone,
            JobStatus::Error | JobStatus::Cancelled | JobStatus::Dead => Counter::JobsFailed,
            JobStatus::Timeout => Counter::JobsTimedOut,
            JobStatus::Lost => Counter::JobsLost,
        });
    }

    /// Latency and queue figures of a job that has ended, and the client's claim.
    fn account_end(&mut self, queue: u32, accepted_ns: u64, handed_ns: u64, client: u32, now: Now) {
        let entry = &mut self.queues.slab[queue];
        entry.in_flight -= 1;
        entry.accepted_sum_ns -= u128::from(accepted_ns);
        let latency = entry.latency;
        self.latency
            .record(latency, Part::Service, now.mono_ns - handed_ns);
        self.latency
            .record(latency, Part::Total, now.mono_ns - accepted_ns);
        if client != NONE {
            self.owed_in_flight -= 1;
            self.peers.release(client);
        }
    }

    /// The job has ended and its slot is no longer in use.
    #[inline]
    fn end_job(&mut self, job: u32, now: Now) {
        let (worker, queue) = (self.jobs.job(job).worker, self.jobs.job(job).queue);
        let of_worker = &mut self.workers.slab[worker];
        of_worker.in_flight -= 1;
        let replied = self.jobs.job(job).has(flags::REPLIED);
        // The queue of a job that only waits for its READY may have been forgotten.
        let of_queue = if replied {
            None
        } else {
            Some(&mut self.queues.slab[queue].flight)
        };
        let ended = self.jobs.remove(job, &mut of_worker.jobs, of_queue);
        if let Some(body) = ended.body {
            self.jobs.drop_body(body, &mut self.blocks);
        }
        if !replied {
            let meta = ended.meta;
            self.account_end(
                ended.queue,
                meta.accepted_ns,
                ended.handed_ns,
                meta.client,
                now,
            );
        }
    }

    /// The job has ended; its READY, which gives the slot back, is still to come.
    fn end_but_keep_record(&mut self, job: u32, now: Now) {
        let record = self.jobs.job(job);
        let (meta, handed_ns, queue) = (record.meta, record.handed_ns, record.queue);
        let of_worker = &mut self.workers.slab[record.worker].jobs;
        let of_queue = &mut self.queues.slab[queue].flight;
        self.jobs.mark_replied(job, of_worker, of_queue);
        self.account_end(queue, meta.accepted_ns, handed_ns, meta.client, now);
    }

    /// Forgets the records that only wait for a READY: since its INFORM the worker counts its
    /// slots anew.
    pub(super) fn drop_replied(&mut self, worker: u32, now: Now) {
        loop {
            let firsts = self.workers.slab[worker].jobs.firsts_replied();
            let Some(job) = firsts.into_iter().find(|job| *job != NONE) else {
                return;
            };
            self.end_job(job, now);
        }
    }

    #[inline]
    pub(super) fn on_ready<O: Outbox>(
        &mut self,
        worker: u32,
        envelope: &Envelope<'_>,
        now: Now,
        out: &mut O,
    ) {
        let entry = &mut self.workers.slab[worker];
        if entry.completions {
            if let Some(msgid) = envelope.body(0).filter(|msgid| !msgid.is_empty()) {
                self.end_named(worker, msgid, envelope.body(1), now, out);
            }
        } else if entry.cancels > 0 {
            entry.cancels -= 1;
            return;
        } else if entry.debts > 0 {
            entry.debts -= 1;
        } else {
            self.end_estimated(worker, now);
        }
        let entry = &mut self.workers.slab[worker];
        if entry.blocked & blocked::LEAVING != 0 {
            return self.leave_if_done(worker, now);
        }
        if entry.free.saturating_add(entry.in_flight) >= entry.slots_max {
            self.counters.inc(Counter::SlotsOverLimit);
        } else {
            entry.free += 1;
            if entry.blocked == 0 && !self.feed_one(worker, now, out) {
                self.restore_candidate(worker);
            }
        }
        self.watch_idle(worker, now);
    }

    /// A READY of a worker without `completions` that owes none: the end of its oldest job that
    /// owes no REPLY, or a new slot.
    fn end_estimated(&mut self, worker: u32, now: Now) {
        let job = self.workers.slab[worker].jobs.first_plain();
        if job != NONE {
            self.counters.inc(Counter::JobsDone);
            return self.end_job(job, now);
        }
        let entry = &mut self.workers.slab[worker];
        let settling = now.mono_ns - entry.registered_ns < SLOTS_SETTLE_NS;
        if entry.in_flight == 0 {
            // All its slots are known to be free.
            entry.slots_seen = entry.slots_seen.max(entry.free + 1);
        } else if settling {
            entry.slots_seen = entry.slots_seen.max(entry.free + entry.in_flight + 1);
        }
    }

    /// Notes since when all slots have been free although jobs are in flight. A hand-out forgets
    /// it.
    #[inline]
    fn watch_idle(&mut self, worker: u32, now: Now) {
        let entry = &mut self.workers.slab[worker];
        if entry.completions || entry.in_flight == 0 || entry.free < entry.slots_seen {
            entry.idle_since_ns = None;
            return;
        }
        if entry.idle_since_ns.is_none() {
            entry.idle_since_ns = Some(now.mono_ns);
            if !std::mem::replace(&mut entry.idle_armed, true) {
                let due_ns = now.mono_ns + IDLE_LOSS_NS;
                self.timers
                    .arm(due_ns, TimerKind::WorkerIdle, worker, entry.tag);
            }
        }
    }

    /// A READY that names its job, from a worker with `completions`.
    fn end_named<O: Outbox>(
        &mut self,
        worker: u32,
        msgid: &[u8],
        word: Option<&[u8]>,
        now: Now,
        out: &mut O,
    ) {
        let Some(job) = self.jobs.oldest(worker, msgid) else {
            return;
        };
        if self.jobs.job(job).has(flags::REPLIED) {
            return self.end_job(job, now);
        }
        let status = word.and_then(JobStatus::parse).unwrap_or(JobStatus::Ok);
        if status == JobStatus::Refused {
            // A job from before the worker registered with `completions` has no bytes to return.
            if !self.jobs.keeps_body(job) {
                return self.lose_job(job, EndReason::Lost, now, out);
            }
            self.return_job(job, None);
            return self.pump_returned();
        }
        let client = self.jobs.job(job).meta.client;
        if client != NONE {
            // It asked for a result and none came.
            self.deliver_made(client, msgid, MadeError::without_result(status), out);
        }
        self.count_end(status);
        self.end_job(job, now);
        self.drain_progress(client, out);
    }

    /// Puts a job in flight back to its old place; no delivery is counted. `bytes` are those of
    /// the message, if the record did not keep them.
    pub(super) fn return_job(&mut self, job: u32, bytes: Option<Body>) {
        let (worker, queue) = (self.jobs.job(job).worker, self.jobs.job(job).queue);
        let of_worker = &mut self.workers.slab[worker];
        let of_queue = &mut self.queues.slab[queue];
        of_worker.in_flight -= 1;
        of_worker.processed -= 1;
        of_queue.in_flight -= 1;
        of_queue.processed -= 1;
        let ended = self
            .jobs
            .remove(job, &mut of_worker.jobs, Some(&mut of_queue.flight));
        if let Some(kept) = &ended.body {
            self.blocks.release(kept.wire().len());
        }
        let body = ended
            .body
            .or(bytes)
            .expect("a job that comes back has its bytes");
        let mut meta = ended.meta;
        if meta.client != NONE {
            self.owed_in_flight -= 1;
        }
        self.counters.inc(Counter::JobsReturned);
        let home = if meta.flags & flags::FALLBACK != 0 {
            self.home_of(&body, queue)
        } else {
            queue
        };
        meta.flags &= !flags::FALLBACK;
        self.move_unfinished(queue, home, meta.accepted_ns);
        let open = meta.flags & flags::OPEN != 0;
        let store = self.queues.slab[home].store(open);
        let older = meta.seq < store.head_seq();
        store.put_back(&mut self.blocks, meta, body);
        self.jobs_waiting += 1;
        if older {
            self.head_changed(home, open);
        }
        self.pump_later(home);
    }

    /// The queue a job of an unserved queue waits in. It may have been forgotten since.
    fn home_of(&mut self, body: &Body, fallback: u32) -> u32 {
        let Some(name) = super::store::queue_name_of(body.wire()) else {
            return fallback;
        };
        match self.queues.find(name) {
            Some(queue) => queue,
            None => {
                let name = name.to_vec();
                self.create_queue(&name, self.clock)
            }
        }
    }

    /// Ends a job whose worker is gone or has given it up.
    pub(super) fn lose_job<O: Outbox>(
        &mut self,
        job: u32,
        reason: EndReason,
        now: Now,
        out: &mut O,
    ) {
        let record = self.jobs.job(job);
        if record.has(flags::REPLIED) {
            return self.end_job(job, now);
        }
        let client = record.meta.client;
        let worker = self.workers.slab[record.worker].id_hash;
        let until_ns = now.mono_ns + self.config.late_reply_window_ms * NS_PER_MS;
        self.late.add(record.msgid(), worker, until_ns, now.mono_ns);
        self.counters.inc(match reason {
            EndReason::Lost => Counter::JobsLost,
            EndReason::Unknown => Counter::JobsUnknown,
            EndReason::Abandoned => Counter::JobsAbandoned,
        });
        if client != NONE && reason != EndReason::Unknown {
            let mut msgid = std::mem::take(&mut self.msgid_text);
            msgid.clear();
            msgid.extend_from_slice(self.jobs.job(job).msgid());
            let error = match reason {
                EndReason::Abandoned => MadeError::Stopped,
                _ => MadeError::Lost,
            };
            self.deliver_made(client, &msgid, error, out);
            self.msgid_text = msgid;
        }
        self.end_job(job, now);
        self.drain_progress(client, out);
    }
}

/// Errors for which the broker makes a result itself (protocol.md section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MadeError {
    /// The worker was lost.
    Lost,
    /// The broker stopped before the job was handed out or had ended.
    Stopped,
    /// The worker said how the job ended, but sent no result.
    NoResult(JobStatus),
}

impl MadeError {
    fn without_result(status: JobStatus) -> MadeError {
        match status {
            JobStatus::Lost => MadeError::Lost,
            other => MadeError::NoResult(other),
        }
    }

    fn status(self) -> JobStatus {
        match self {
            MadeError::Lost | MadeError::Stopped => JobStatus::Lost,
            MadeError::NoResult(status) => status,
        }
    }

    fn json(self) -> &'static str {
        match self {
            MadeError::Lost => {
                r#"{"value": null, "error": {"type": "JobLost", "message": "the worker that had the job was lost"}}"#
            }
            MadeError::Stopped => {
                r#"{"value": null, "error": {"type": "BrokerStopped", "message": "the broker stopped before the job ended"}}"#
            }
            MadeError::NoResult(JobStatus::Timeout) => {
                r#"{"value": null, "error": {"type": "JobTimeout", "message": "the job ran into its time-out"}}"#
            }
            MadeError::NoResult(JobStatus::Cancelled) => {
                r#"{"value": null, "error": {"type": "JobCancelled", "message": "the job was cancelled"}}"#
            }
            MadeError::NoResult(JobStatus::Dead) => {
                r#"{"value": null, "error": {"type": "JobDead", "message": "the job was given up"}}"#
            }
            MadeError::NoResult(_) => {
                r#"{"value": null, "error": {"type": "NoResult", "message": "the worker ended the job without a result"}}"#
            }
        }
    }
}
