//! The shadow model: the rules of docs/semantics.md with plain lists and linear searches.
//!
//! It predicts every hand-out in order, every result, and each worker's slots.

mod clients;
mod drain;
mod memory;
mod rules;
mod schedulers;
mod ticks;

pub(crate) use clients::{Request, Shown};
pub(crate) use drain::Phase;
pub(crate) use memory::Memory;
pub(crate) use rules::Rules;
pub(crate) use schedulers::Schedulers;

use eventmq::metrics::Counter;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const DEFAULT: &str = "default";
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SETTLE_MS: u64 = 30_000;
pub(crate) const IDLE_MS: u64 = 2_000;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum State {
    Waiting,
    /// At this worker.
    InFlight(String),
    /// Ended, but its slot is still to be named.
    Replied(String),
    Ended,
}

#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) msgid: String,
    pub(crate) queue: String,
    pub(crate) open: bool,
    pub(crate) client: Option<String>,
    pub(crate) replies: bool,
    /// From its header; 0 = the default.
    pub(crate) timeout_secs: u64,
    pub(crate) handed: u64,
    /// The queue it counts for while in flight.
    pub(crate) counted: String,
    pub(crate) state: State,
    pub(crate) epoch: u64,
    /// Length of its message's body: tells jobs with the same msgid apart.
    pub(crate) body: usize,
    /// The broker has kept its bytes.
    pub(crate) kept: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Judgement {
    epoch: u64,
    same: bool,
    running: Option<BTreeSet<String>>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Worker {
    pub(crate) queues: Vec<(i64, String, u64)>,
    pub(crate) free: u64,
    pub(crate) limit: u64,
    pub(crate) seen: u64,
    pub(crate) debts: u64,
    pub(crate) cancels: u64,
    pub(crate) completions: bool,
    pub(crate) instance: Option<String>,
    pub(crate) silent: bool,
    pub(crate) grace_until: Option<u64>,
    pub(crate) hold: bool,
    pub(crate) slow: bool,
    pub(crate) leave_until: Option<u64>,
    pub(crate) registered: u64,
    pub(crate) informed_epoch: u64,
    pub(crate) idle_since: Option<u64>,
    /// Jobs in flight or replied, in hand-out order.
    pub(crate) jobs: Vec<usize>,
    pub(crate) judgement: Option<Judgement>,
}

impl Worker {
    fn available(&self) -> bool {
        let blocked = self.silent
            || self.hold
            || self.slow
            || self.grace_until.is_some()
            || self.leave_until.is_some();
        !blocked && self.free > 0
    }
}

/// What one INFORM says.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inform {
    pub(crate) queues: Vec<(i64, String)>,
    pub(crate) completions: bool,
    pub(crate) slots: Option<u64>,
    pub(crate) instance: Option<String>,
    pub(crate) running: Option<BTreeSet<String>>,
}

#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) now: u64,
    pub(crate) rules: Rules,
    pub(crate) phase: Phase,
    drain_until: u64,
    accept_until: u64,
    /// Peers that must have got a KBYE.
    pub(crate) farewells: Vec<String>,
    pub(crate) memory: Memory,
    pub(crate) schedulers: Schedulers,
    /// What the broker must have counted.
    pub(crate) counts: BTreeMap<Counter, u64>,
    /// Queues that have ever been made.
    queues_made: BTreeSet<String>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) workers: BTreeMap<String, Worker>,
    served_until: BTreeMap<String, u64>,
    returned_to: Vec<String>,
    stamp: u64,
    /// Connections not closed, and the number of the newest, by worker id.
    pub(crate) conns: BTreeMap<String, u64>,
    pub(crate) epochs: BTreeMap<String, u64>,
    /// Lost jobs: msgid and the worker that had it.
    late: BTreeSet<(String, String)>,
    /// Workers whose output does not drain.
    pub(crate) slow_readers: BTreeSet<String>,
    /// Peers of the frontend with a connection, and those of them that speak the extensions.
    pub(crate) clients: BTreeSet<String>,
    pub(crate) speaks: BTreeSet<String>,
    /// Acceptances and REJECTs that must come: (client, text).
    pub(crate) answers: Vec<(String, String)>,
    /// Workers told to register again.
    pub(crate) disconnects: Vec<String>,
    /// What must have been put out: (worker, job), in order.
    pub(crate) hand_outs: Vec<(String, usize)>,
    /// (client, text), in any order.
    pub(crate) results: Vec<(String, String)>,
}

impl Model {
    pub(crate) fn new(now: u64, rules: Rules) -> Model {
        Model {
            now,
            rules,
            ..Model::default()
        }
    }

    fn waiting_in(&self, queue: &str) -> usize {
        self.jobs
            .iter()
            .filter(|job| job.state == State::Waiting && job.queue == queue)
            .count()
    }

    /// Oldest job a worker of `queue` may take from it.
    fn head(&self, queue: &str) -> Option<usize> {
        self.jobs.iter().position(|job| {
            job.state == State::Waiting && (job.queue == queue || (queue == DEFAULT && job.open))
        })
    }

    fn served(&self, queue: &str) -> bool {
        queue == DEFAULT
            || self.has_worker(queue)
            || self
                .served_until
                .get(queue)
                .is_some_and(|until| self.now < *until)
    }

    fn has_worker(&self, queue: &str) -> bool {
        self.workers
            .values()
            .any(|w| w.queues.iter().any(|q| q.1 == queue))
    }

    fn choose(&self, queue: &str) -> Option<String> {
        if !self.hands_out() {
            return None;
        }
        let candidates = self.workers.iter().filter(|(_, worker)| worker.available());
        let of_queue = candidates.filter_map(|(id, worker)| {
            let (weight, _, stamp) = worker.queues.iter().find(|q| q.1 == queue)?;
            Some(((-weight, *stamp), id))
        });
        of_queue.min().map(|(_, id)| id.clone())
    }

    fn give(&mut self, id: &str, queue: &str, job: usize) {
        self.stamp += 1;
        let epoch = self.epochs[id];
        let worker = self.workers.get_mut(id).unwrap();
        worker.free -= 1;
        worker.idle_since = None;
        worker.jobs.push(job);
        worker.queues.iter_mut().find(|q| q.1 == queue).unwrap().2 = self.stamp;
        self.jobs[job].state = State::InFlight(id.to_owned());
        self.jobs[job].handed = self.now;
        self.jobs[job].counted = queue.to_owned();
        self.jobs[job].epoch = epoch;
        self.jobs[job].kept = self.workers[id].completions;
        if self.slow_readers.contains(id) {
            self.workers.get_mut(id).unwrap().slow = true;
        }
        self.hand_outs.push((id.to_owned(), job));
        self.count(Counter::JobsHandedOut);
    }

    fn feed_one(&mut self, id: &str) -> bool {
        if !self.hands_out() {
            return false;
        }
        let queues = self.workers[id].queues.iter();
        // One job may be the oldest of two of them: then the one that the worker named first.
        let heads = queues.enumerate().filter_map(|(place, (weight, name, _))| {
            Some((-weight, self.head(name)?, place, name))
        });
        let Some((_, job, _, queue)) = heads.min() else {
            return false;
        };
        let queue = queue.clone();
        self.give(id, &queue, job);
        true
    }

    fn feed(&mut self, id: &str) {
        while self.workers.get(id).is_some_and(Worker::available) && self.feed_one(id) {}
    }

    pub(crate) fn pump_returned(&mut self) {
        for queue in std::mem::take(&mut self.returned_to) {
            while self.waiting_in(&queue) > 0 {
                let open =
                    |job: &Job| job.state == State::Waiting && job.queue == queue && job.open;
                let mut chosen = self.choose(&queue);
                if chosen.is_none() && self.jobs.iter().any(open) {
                    chosen = self.choose(DEFAULT);
                }
                let Some(id) = chosen else { break };
                self.feed_one(&id);
            }
        }
    }

    fn end(&mut self, id: &str, job: usize) {
        self.jobs[job].state = State::Ended;
        self.workers
            .get_mut(id)
            .unwrap()
            .jobs
            .retain(|other| *other != job);
    }

    /// The job ends with its worker, for a reason that is counted as `why`.
    fn lose(&mut self, id: &str, job: usize, why: Counter) {
        if matches!(self.jobs[job].state, State::InFlight(_)) {
            self.late
                .insert((self.jobs[job].msgid.clone(), id.to_owned()));
            self.count(why);
            let word = match why {
                Counter::JobsLost => Some("lost"),
                Counter::JobsAbandoned => Some("stopped"),
                _ => None,
            };
            if let Some(word) = word.filter(|_| self.jobs[job].client.is_some()) {
                let text = format!("{word} {}", self.jobs[job].msgid);
                self.result(job, &text);
            }
        }
        self.end(id, job);
    }

    fn leave_queues(&mut self, id: &str) {
        let queues = std::mem::take(&mut self.workers.get_mut(id).unwrap().queues);
        for (_, queue, _) in queues {
            if !self.has_worker(&queue) {
                self.served_until
                    .insert(queue, self.now + self.rules.queue_grace_ms * MS);
            }
        }
    }

    pub(crate) fn remove(&mut self, id: &str, why: Counter) {
        self.leave_queues(id);
        for job in self.workers[id].jobs.clone() {
            self.lose(id, job, why);
        }
        self.workers.remove(id);
    }

    /// A message from a registered worker, before it is looked at.
    pub(crate) fn heard(&mut self, id: &str, newest_conn: bool) {
        if let Some(worker) = self.workers.get_mut(id)
            && (worker.silent || worker.hold)
        {
            worker.silent = false;
            worker.hold &= !newest_conn;
        }
    }

    /// Bytes came that make no message.
    pub(crate) fn alive(&mut self, id: &str) {
        if let Some(worker) = self.workers.get_mut(id)
            && std::mem::take(&mut worker.silent)
        {
            self.feed(id);
        }
    }

    pub(crate) fn inform(&mut self, id: &str, inform: &Inform, connected: bool) {
        let again = self.workers.contains_key(id);
        let epoch = self.epochs[id];
        if again {
            for job in self.workers[id].jobs.clone() {
                if matches!(self.jobs[job].state, State::Replied(_)) {
                    self.end(id, job);
                }
            }
        }
        let old = if again {
            self.leave_queues(id);
            self.workers.remove(id).unwrap()
        } else {
            Worker {
                grace_until: (!connected).then_some(self.now),
                ..Worker::default()
            }
        };
        let same = old.instance.is_some() && old.instance == inform.instance;
        let judgement = Judgement {
            epoch,
            same,
            running: inform.running.clone(),
        };
        let mut worker = Worker {
            limit: inform.slots.unwrap_or(u64::MAX).min(self.rules.slots_max),
            completions: inform.completions,
            instance: inform.instance.clone(),
            slow: old.slow,
            grace_until: old.grace_until,
            registered: self.now,
            informed_epoch: epoch,
            jobs: old.jobs,
            judgement: again.then_some(judgement),
            ..Worker::default()
        };
        for (weight, queue) in &inform.queues {
            self.stamp += 1;
            worker.queues.push((*weight, queue.clone(), self.stamp));
            self.queues_made.insert(queue.clone());
        }
        self.workers.insert(id.to_owned(), worker);
        self.judge(id);
    }

    pub(crate) fn judge(&mut self, id: &str) {
        if self.conns[id] > 1 {
            return;
        }
        let Some(judgement) = self.workers.get_mut(id).and_then(|w| w.judgement.take()) else {
            return;
        };
        for job in self.workers[id].jobs.clone() {
            let entry = &self.jobs[job];
            let named = judgement
                .running
                .as_ref()
                .is_none_or(|r| r.contains(&entry.msgid));
            if entry.epoch < judgement.epoch && !(judgement.same && named) {
                self.lose(id, job, Counter::JobsLost);
            }
        }
    }

    pub(crate) fn ready(&mut self, id: &str, named: Option<(&str, &str)>) {
        let now = self.now;
        let worker = self.workers.get_mut(id).unwrap();
        if worker.completions {
            if let Some((msgid, status)) = named {
                self.end_named(id, msgid, status);
            }
        } else if worker.cancels > 0 {
            worker.cancels -= 1;
            return;
        } else if worker.debts > 0 {
            worker.debts -= 1;
        } else {
            let jobs = worker.jobs.clone();
            if let Some(job) = jobs.into_iter().find(|job| !self.jobs[*job].replies) {
                self.count(Counter::JobsDone);
                self.end(id, job);
            } else {
                let in_flight = worker.jobs.len() as u64;
                if in_flight == 0 || now - worker.registered < SETTLE_MS * MS {
                    worker.seen = worker.seen.max(worker.free + in_flight + 1);
                }
            }
        }
        let worker = self.workers.get_mut(id).unwrap();
        if worker.leave_until.is_some() {
            return self.left(id);
        }
        if worker.free + (worker.jobs.len() as u64) < worker.limit {
            worker.free += 1;
            if worker.available() {
                self.feed_one(id);
            }
        } else {
            self.count(Counter::SlotsOverLimit);
        }
        let worker = self.workers.get_mut(id).unwrap();
        if worker.completions || worker.jobs.is_empty() || worker.free < worker.seen {
            worker.idle_since = None;
        } else if worker.idle_since.is_none() {
            worker.idle_since = Some(now);
        }
    }

    fn end_named(&mut self, id: &str, msgid: &str, status: &str) {
        let mut jobs = self.workers[id].jobs.iter().copied();
        let Some(job) = jobs.find(|job| self.jobs[*job].msgid == msgid) else {
            return;
        };
        if matches!(self.jobs[job].state, State::Replied(_)) {
            return self.end(id, job);
        }
        if status == "refused" {
            if !self.jobs[job].kept {
                return self.lose(id, job, Counter::JobsLost);
            }
            self.take_back(id, job);
            // Handed out behind this message's own hand-outs.
            return;
        }
        if self.jobs[job].client.is_some() {
            let text = format!("made {status} {msgid}");
            self.result(job, &text);
        }
        self.count_end(status);
        self.end(id, job);
    }

    fn take_back(&mut self, id: &str, job: usize) {
        self.count(Counter::JobsReturned);
        self.workers
            .get_mut(id)
            .unwrap()
            .jobs
            .retain(|other| *other != job);
        self.jobs[job].state = State::Waiting;
        let queue = self.jobs[job].queue.clone();
        self.queues_made.insert(queue.clone());
        if !self.returned_to.contains(&queue) {
            self.returned_to.push(queue);
        }
    }

    /// A REPLY of a registered worker.
    pub(crate) fn reply(&mut self, id: &str, msgid: &str, status: &str) {
        let at = |job: &&usize| {
            let job = &self.jobs[**job];
            job.msgid == msgid && matches!(job.state, State::InFlight(_))
        };
        match self.workers[id].jobs.iter().find(at).copied() {
            Some(job) => {
                let text = format!("result {msgid}");
                self.result(job, &text);
                self.count_end(status);
                if self.workers[id].completions {
                    self.jobs[job].state = State::Replied(id.to_owned());
                } else {
                    self.end(id, job);
                    self.workers.get_mut(id).unwrap().debts += 1;
                }
                self.left(id);
            }
            None => {
                self.count_unmatched(msgid);
                let own = self.late.contains(&(msgid.to_owned(), id.to_owned()));
                let worker = self.workers.get_mut(id).unwrap();
                if !worker.completions && !own {
                    worker.cancels += 1;
                }
            }
        }
    }

    /// A REPLY for a job that is not in flight where it came from.
    pub(crate) fn count_unmatched(&mut self, msgid: &str) {
        let late = self.late.iter().any(|(late, _)| late == msgid);
        self.count(if late {
            Counter::RepliesLate
        } else {
            Counter::RepliesUnknown
        });
    }

    fn left(&mut self, id: &str) {
        let worker = &self.workers[id];
        if worker.leave_until.is_some() && worker.jobs.is_empty() {
            self.remove(id, Counter::JobsUnknown);
        }
    }

    pub(crate) fn kbye(&mut self, id: &str) {
        if self.workers[id].leave_until.is_some() {
            return;
        }
        self.leave_queues(id);
        let worker = self.workers.get_mut(id).unwrap();
        worker.leave_until = Some(self.now + self.rules.kill_grace_ms * MS);
        worker.idle_since = None;
        worker.free = 0;
        self.left(id);
    }

    pub(crate) fn opened(&mut self, id: &str) {
        *self.conns.entry(id.to_owned()).or_default() += 1;
        *self.epochs.entry(id.to_owned()).or_default() += 1;
        if let Some(worker) = self.workers.get_mut(id) {
            worker.grace_until = None;
            worker.silent = false;
            worker.slow = false;
            worker.hold |= worker.instance.is_some();
            self.feed(id);
        }
    }

    pub(crate) fn lost(&mut self, id: &str, newest: bool) {
        if let Some(worker) = self.workers.get_mut(id).filter(|_| newest) {
            worker.grace_until = Some(self.now + self.rules.grace_ms * MS);
            worker.slow = false;
            worker.hold = false;
        }
    }

    pub(crate) fn unsent(&mut self, id: &str, msgid: &str, body: usize, epoch: u64) {
        let Some(worker) = self.workers.get(id) else {
            return;
        };
        let informed_epoch = worker.informed_epoch;
        let matches = |job: &&usize| {
            let job = &self.jobs[**job];
            let same = job.msgid == msgid && job.epoch == epoch && job.body == body;
            same && matches!(job.state, State::InFlight(_))
        };
        let Some(job) = worker.jobs.iter().rev().find(matches).copied() else {
            return;
        };
        self.take_back(id, job);
        let worker = self.workers.get_mut(id).unwrap();
        if worker.leave_until.is_none() && epoch >= informed_epoch {
            worker.free += 1;
        }
    }

    pub(crate) fn closed(&mut self, id: &str) {
        *self.conns.get_mut(id).unwrap() -= 1;
        self.pump_returned();
        if self.workers.contains_key(id) {
            if self.workers[id].grace_until.is_none() {
                self.judge(id);
            } else if self.conns[id] == 0 {
                if self.workers[id].leave_until.is_some() {
                    self.remove(id, Counter::JobsUnknown);
                } else if self.workers[id].grace_until <= Some(self.now) {
                    self.remove(id, Counter::JobsLost);
                }
            }
            self.feed(id);
        }
    }

    /// Its output has drained.
    pub(crate) fn writable(&mut self, id: &str) {
        if let Some(worker) = self.workers.get_mut(id) {
            worker.slow = false;
            self.feed(id);
        }
    }

    pub(crate) fn fed(&mut self, id: &str) {
        self.feed(id);
    }

    pub(crate) fn waiting(&self) -> usize {
        self.jobs
            .iter()
            .filter(|job| job.state == State::Waiting)
            .count()
    }
}
