//! The end: no new jobs, results for what was owed, KBYE.

use super::{MS, Model, State};
use eventmq::metrics::Counter;

/// What clients had sent before the end is accepted for this long.
const ACCEPT_MS: u64 = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Phase {
    #[default]
    Running,
    Accepting,
    Waiting,
    Finished,
}

impl Model {
    pub(super) fn hands_out(&self) -> bool {
        self.phase < Phase::Waiting
    }

    pub(super) fn refuses(&self) -> bool {
        self.phase >= Phase::Waiting
    }

    pub(crate) fn begin_drain(&mut self) {
        self.phase = Phase::Accepting;
        self.drain_until = self.now + self.rules.drain_ms * MS;
        self.accept_until = self.drain_until.min(self.now + ACCEPT_MS * MS);
    }

    pub(super) fn drain_tick(&mut self) {
        if self.phase == Phase::Accepting && self.accept_until <= self.now {
            self.phase = Phase::Waiting;
            self.abandon_waiting();
        }
    }

    /// The broker goes on to the end when no result is owed any more, or its time is over.
    pub(crate) fn drain_check(&mut self) {
        let owed = self
            .jobs
            .iter()
            .any(|job| matches!(job.state, State::InFlight(_)) && job.client.is_some());
        let over = self.drain_until <= self.now;
        if self.phase == Phase::Waiting && (!owed || over) {
            self.goodbye();
        }
    }

    fn abandon_waiting(&mut self) {
        for job in 0..self.jobs.len() {
            if self.jobs[job].state == State::Waiting {
                self.count(Counter::JobsAbandoned);
                if self.jobs[job].client.is_some() {
                    let text = format!("stopped {}", self.jobs[job].msgid);
                    self.result(job, &text);
                }
                self.jobs[job].state = State::Ended;
            }
        }
    }

    pub(crate) fn goodbye(&mut self) {
        self.phase = Phase::Finished;
        self.abandon_waiting();
        for id in self.schedulers.ids() {
            self.farewells.extend(self.clients.get(&id).cloned());
            self.unregister_scheduler(&id);
        }
        for id in self.workers.keys().cloned().collect::<Vec<_>>() {
            if self.workers[&id].grace_until.is_none() {
                self.farewells.push(id.clone());
            }
            self.remove(&id, Counter::JobsAbandoned);
        }
    }
}
