//! Snapshots for administrative answers.

use super::Broker;
use super::drain::Phase;
use super::latency::LatencySnapshot;
use super::workers::blocked;
use crate::ids::{NS_PER_MS, NS_PER_SEC, Now};
use crate::snapshot::{
    BrokerFigures, QueueStatus, SchedulersSnapshot, StatusSnapshot, WorkersSnapshot,
};

impl Broker {
    /// What STATUS shows: O(queues + workers).
    pub fn status(&self, now: Now) -> StatusSnapshot {
        let mut queues = Vec::new();
        for (_, queue) in self.queues.slab.iter() {
            let waiting = queue.waiting() as u64;
            let unfinished = waiting + queue.in_flight;
            if unfinished == 0 && queue.processed == 0 {
                continue;
            }
            let mean_ns = |sum: u128| now.mono_ns as i128 - (sum / u128::from(unfinished)) as i128;
            let oldest_ns = [
                queue.bound.head_accepted_ns(),
                queue.open.head_accepted_ns(),
                self.jobs
                    .get(queue.flight.first)
                    .map(|job| job.meta.accepted_ns),
            ];
            let oldest_ns = oldest_ns.into_iter().flatten().min();
            queues.push(QueueStatus {
                name: queue.name.to_vec(),
                in_flight: queue.in_flight,
                waiting,
                processed: queue.processed,
                mean_age_ms: (unfinished > 0)
                    .then(|| mean_ns(queue.accepted_sum_ns).max(0) as u64 / NS_PER_MS),
                max_age_ms: oldest_ns.map(|ns| now.mono_ns.saturating_sub(ns) / NS_PER_MS),
            });
        }
        queues.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let mut processed_by_worker: Vec<_> = self
            .workers
            .slab
            .iter()
            .filter(|(_, worker)| worker.blocked & blocked::ENDING == 0)
            .map(|(_, worker)| (self.peers.slab[worker.peer].id.to_vec(), worker.processed))
            .collect();
        processed_by_worker.sort_unstable();
        StatusSnapshot {
            queues,
            processed_by_worker,
        }
    }

    /// What ROUTER_SHOW_WORKERS shows, all at once.
    pub fn workers(&self, _now: Now) -> WorkersSnapshot {
        self.workers_copy().resolve()
    }

    /// What ROUTER_SHOW_SCHEDULERS shows.
    pub fn schedulers(&self, _now: Now) -> SchedulersSnapshot {
        let mut schedulers: Vec<_> = self
            .schedulers
            .slab
            .iter()
            .map(|(_, scheduler)| {
                let peer = &self.peers.slab[scheduler.peer];
                (peer.id.to_vec(), self.seconds(peer.last_seen_ns))
            })
            .collect();
        schedulers.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        SchedulersSnapshot { schedulers }
    }

    /// Monotonic seconds of an effective time.
    pub(super) fn seconds(&self, effective_ns: u64) -> f64 {
        (effective_ns + self.stalled_ns) as f64 / NS_PER_SEC as f64
    }

    /// What COUNTERS shows of the state machine.
    pub fn figures(&self) -> BrokerFigures {
        let in_flight = self
            .queues
            .slab
            .iter()
            .map(|(_, queue)| queue.in_flight)
            .sum();
        let ending = |w: &super::workers::Worker| w.blocked & blocked::ENDING != 0;
        BrokerFigures {
            counters: self.counters.clone(),
            jobs_waiting: self.jobs_waiting,
            jobs_in_flight: in_flight,
            job_bytes: self.job_bytes(),
            memory_limit_bytes: self.config.max_memory_bytes,
            queues: self.queues.slab.len() as u64,
            workers: self.workers.slab.iter().filter(|(_, w)| !ending(w)).count() as u64,
            schedulers: self.schedulers.slab.len() as u64,
            input_paused: self.memory.paused(),
            draining: self.phase != Phase::Running,
        }
    }

    /// The latency distributions, to be rendered elsewhere.
    pub fn latency(&mut self) -> LatencySnapshot {
        self.latency.snapshot()
    }
}
