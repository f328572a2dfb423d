//! Figures, and what happens as time goes by.

use super::{IDLE_MS, MS, Model, State};
use eventmq::metrics::Counter;

/// A job that owes a REPLY is given up this long after its time-out.
const TIMEOUT_SLACK_MS: u64 = 10_000;

impl Model {
    pub(crate) fn count(&mut self, counter: Counter) {
        *self.counts.entry(counter).or_default() += 1;
    }

    pub(crate) fn counted(&self, counter: Counter) -> u64 {
        self.counts.get(&counter).copied().unwrap_or_default()
    }

    pub(super) fn count_end(&mut self, status: &str) {
        self.count(match status {
            "error" => Counter::JobsFailed,
            "timeout" => Counter::JobsTimedOut,
            _ => Counter::JobsDone,
        });
    }

    /// Deadlines other than silence and time-outs.
    pub(crate) fn tick(&mut self) {
        self.memory_tick();
        for id in self.workers.keys().cloned().collect::<Vec<_>>() {
            let worker = &self.workers[&id];
            let grace_over = worker.grace_until.is_some_and(|until| until <= self.now);
            let idle_over = |at: u64| at + IDLE_MS * MS <= self.now;
            if worker.leave_until.is_some_and(|until| until <= self.now) {
                self.remove(&id, Counter::JobsUnknown);
            } else if grace_over && self.conns[&id] == 0 {
                self.remove(&id, Counter::JobsLost);
            } else if worker.idle_since.is_some_and(idle_over) {
                for job in self.workers[&id].jobs.clone() {
                    self.lose(&id, job, Counter::JobsLost);
                }
                self.workers.get_mut(&id).unwrap().idle_since = None;
            }
        }
        self.schedulers_tick();
        self.drain_tick();
    }

    /// Jobs whose time-out is over, with their workers and since when.
    pub(crate) fn overdue(&self) -> Vec<(String, usize, u64)> {
        let mut found = Vec::new();
        for (id, worker) in self.workers.iter().filter(|(_, w)| !w.completions) {
            for job in &worker.jobs {
                let entry = &self.jobs[*job];
                let timeout_ms = match entry.timeout_secs {
                    0 => self.rules.timeout_ms,
                    secs => secs * 1_000,
                };
                // Those of a worker with `completions` have none; it may have registered anew without.
                let due = entry.handed + (timeout_ms + TIMEOUT_SLACK_MS) * MS;
                let since = due.max(worker.registered);
                if entry.replies && self.now > due && entry.state != State::Ended {
                    found.push((id.clone(), *job, since));
                }
            }
        }
        found
    }

    /// The broker has looked at the time-outs.
    pub(crate) fn lose_overdue(&mut self) {
        for (id, job, _) in self.overdue() {
            self.lose(&id, job, Counter::JobsLost);
        }
    }
}
