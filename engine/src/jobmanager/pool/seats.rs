//! Seats: who sits there, who comes next, and who gets the waiting jobs.

use super::super::outcome::Ending;
use super::{Action, FAILURES_MAX, PAUSE_MS, Pool, State, Task, Warning, Worker, WorkerId};
use crate::ids::NS_PER_MS;

impl Pool {
    /// Starts a process for a seat: its current one if it has none, else the successor.
    pub(super) fn start(&mut self, seat: usize, now_ns: u64) {
        let id = self.next_id;
        self.next_id += 1;
        self.workers.insert(
            id,
            Worker {
                seat,
                state: State::Starting,
                generation: self.generation,
                jobs: 0,
                done: 0,
                since_ns: now_ns,
                start_ns: 0,
                busy_ns: 0,
                due_ns: None,
                complaint: None,
            },
        );
        let place = &mut self.seats[seat];
        if place.current.is_none() {
            place.current = Some(id);
        } else {
            place.successor = Some(id);
        }
        self.arm(id, Some(now_ns + self.config.start_timeout_ms * NS_PER_MS));
        self.act(Action::Spawn(id));
    }

    /// The process does not sit there any more.
    pub(super) fn vacate(&mut self, seat: usize, id: WorkerId) {
        let place = &mut self.seats[seat];
        if place.successor == Some(id) {
            place.successor = None;
        }
        if place.current == Some(id) {
            place.current = place.successor.take();
            self.idle.remove(&seat);
            if let Some(next) = place.current
                && matches!(self.workers[&next].state, State::Idle)
            {
                self.idle.insert(seat);
            }
        }
    }

    /// Brings a seat into order: whoever is to leave and has no job leaves, a missing process is
    /// started.
    pub(super) fn settle(&mut self, seat: usize, now_ns: u64) {
        if let Some(id) = self.seats[seat].current
            && let Some(worker) = self.workers.get(&id)
            && matches!(worker.state, State::Idle)
        {
            let used_up = worker.jobs >= self.config.max_job_count;
            let successor = self.seats[seat]
                .successor
                .and_then(|id| self.workers.get(&id));
            let replaced = successor.is_some_and(|next| {
                matches!(next.state, State::Idle) && next.generation != worker.generation
            });
            if self.closed || used_up || replaced {
                self.retire(id, now_ns);
            }
        }
        if self.closed {
            // Who came up in vain.
            let place = &self.seats[seat];
            for id in [place.current, place.successor].into_iter().flatten() {
                if matches!(self.workers[&id].state, State::Idle) {
                    self.retire(id, now_ns);
                }
            }
            return;
        }
        let place = &self.seats[seat];
        let vacant = place.current.is_none() && place.start_ns.is_none();
        if vacant || self.wants_successor(seat) {
            self.start(seat, now_ns);
        }
    }

    fn retire(&mut self, id: WorkerId, now_ns: u64) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        worker.state = State::Retiring;
        let seat = worker.seat;
        self.arm(id, Some(now_ns + self.config.retire_timeout_ms * NS_PER_MS));
        self.act(Action::Close(id));
        self.vacate(seat, id);
    }

    /// True if the current process is about to run its last job: there is just time to start
    /// another one.
    fn wants_successor(&self, seat: usize) -> bool {
        let place = &self.seats[seat];
        if place.successor.is_some() || place.start_ns.is_some() {
            return false;
        }
        let Some(worker) = place.current.and_then(|id| self.workers.get(&id)) else {
            return false;
        };
        if matches!(worker.state, State::Starting) || worker.jobs == 0 {
            return false;
        }
        let left = self.config.max_job_count.saturating_sub(worker.jobs);
        if left == 0 || worker.done == 0 {
            return left == 0;
        }
        // At the pace so far, with half as much again for the start of the next one.
        let pace_ns = worker.busy_ns / worker.done;
        left.saturating_mul(pace_ns) < worker.start_ns + worker.start_ns / 2
    }

    /// Starts the successor of one process of an earlier generation, if none is being replaced.
    pub(super) fn replace_outdated(&mut self, now_ns: u64) {
        if self.closed {
            return;
        }
        let mut next = None;
        for (seat, place) in self.seats.iter().enumerate() {
            let current = place.current.and_then(|id| self.workers.get(&id));
            if current.is_none_or(|worker| worker.generation == self.generation) {
                continue;
            }
            let successor = place.successor.and_then(|id| self.workers.get(&id));
            match successor {
                // One at a time.
                Some(worker) if matches!(worker.state, State::Starting) => return,
                None if place.start_ns.is_some() => return,
                None if next.is_none() => next = Some(seat),
                _ => {}
            }
        }
        if let Some(seat) = next {
            self.start(seat, now_ns);
        }
    }

    /// A start failed; the next one follows after a pause.
    pub(super) fn failed(&mut self, seat: usize, how: &str, now_ns: u64) {
        self.failures = self.failures.saturating_add(1);
        let (first_ms, most_ms) = PAUSE_MS;
        let pause_ms = first_ms
            .saturating_mul(1 << self.failures.min(20))
            .min(most_ms);
        let text = format!("a worker process did not start: {how}");
        self.act(Action::Warn(Warning::NotStarted, text));
        if !self.closed {
            self.seats[seat].start_ns = Some(now_ns + pause_ms * NS_PER_MS);
        }
    }

    /// Tells how many jobs can run at a time, if that has changed. What waits for a process that
    /// nobody can start goes back.
    pub(super) fn update_capacity(&mut self) {
        let failing = self.failures >= FAILURES_MAX;
        let usable = |pool: &Pool, id: Option<WorkerId>| {
            id.and_then(|id| pool.workers.get(&id))
                .is_some_and(|worker| !matches!(worker.state, State::Starting))
        };
        let capacity = if self.closed {
            0
        } else {
            let seats = self.seats.iter();
            seats
                .filter(|seat| usable(self, seat.current) || (seat.proven && !failing))
                .count()
        };
        if capacity != self.capacity {
            self.capacity = capacity;
            self.act(Action::Capacity(capacity));
        }
        if failing {
            let free = self.idle.len();
            while self.waiting.len() > free {
                let Some(Task { id, .. }) = self.waiting.pop_back() else {
                    break;
                };
                self.act(Action::Ended(id, Ending::NotStarted));
            }
        }
    }

    /// Gives waiting jobs to processes without one.
    pub(super) fn feed(&mut self, now_ns: u64) {
        while !self.waiting.is_empty() {
            let Some(seat) = self.idle.pop_first() else {
                return;
            };
            let Some(id) = self.seats[seat].current else {
                continue;
            };
            let Some(worker) = self.workers.get_mut(&id) else {
                continue;
            };
            let Some(task) = self.waiting.pop_front() else {
                return;
            };
            worker.jobs += 1;
            worker.state = State::Busy {
                job: task.id,
                timeout_ms: task.timeout_ms,
                begun_ns: now_ns,
            };
            let due_ns = now_ns.saturating_add(task.timeout_ms.saturating_mul(NS_PER_MS));
            self.arm(id, Some(due_ns));
            self.act(Action::Send(id, task.payload));
            if self.wants_successor(seat) {
                self.start(seat, now_ns);
            }
        }
    }
}
