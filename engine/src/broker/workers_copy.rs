//! What ROUTER_SHOW_WORKERS is made from: taken on the dispatch thread without an allocation per
//! name or membership, put in order and given names elsewhere.

use super::Broker;
use super::queues::rank_weight;
use super::slab::NONE;
use super::workers::blocked;
use crate::snapshot::{WorkerStatus, WorkersSnapshot};
use std::sync::Arc;

/// Names one behind the other, found by the number under which they were put in.
#[derive(Debug, Default)]
struct Names {
    bytes: Vec<u8>,
    /// By number: where its name begins and ends; empty where none was put in.
    places: Vec<(u32, u32)>,
}

impl Names {
    fn put(&mut self, number: u32, name: &[u8]) {
        let number = number as usize;
        if number >= self.places.len() {
            self.places.resize(number + 1, (0, 0));
        }
        let from = self.bytes.len() as u32;
        self.bytes.extend_from_slice(name);
        self.places[number] = (from, self.bytes.len() as u32);
    }

    fn get(&self, number: u32) -> &[u8] {
        let (from, to) = self.places[number as usize];
        &self.bytes[from as usize..to as usize]
    }
}

#[derive(Debug)]
struct WorkerCopy {
    worker: u32,
    /// Its queue list, which all workers with the same one share with the state machine.
    key: Arc<[(u64, u32)]>,
    last_seen_secs: f64,
    free: u32,
    in_flight: u32,
    state: &'static str,
}

/// A worker in a queue: rank of its weight, time of its latest use, number.
type MemberCopy = (u64, u64, u32);

/// The workers and their queues at one moment.
#[derive(Debug)]
pub struct WorkersCopy {
    workers: Vec<WorkerCopy>,
    worker_names: Names,
    queue_names: Names,
    /// Number of each queue, and where its members end in `members`.
    queues: Vec<(u32, usize)>,
    members: Vec<MemberCopy>,
}

impl WorkersCopy {
    /// Puts everything in order and gives it its names.
    pub fn resolve(&self) -> WorkersSnapshot {
        let status = |copy: &WorkerCopy| {
            let queues = copy.key.iter().map(|(rank, queue)| {
                let name = self.queue_names.get(*queue).to_vec();
                (rank_weight(*rank), name)
            });
            WorkerStatus {
                id: self.worker_names.get(copy.worker).to_vec(),
                queues: queues.collect(),
                last_seen_secs: copy.last_seen_secs,
                free_slots: u64::from(copy.free),
                in_flight: u64::from(copy.in_flight),
                state: copy.state,
            }
        };
        let mut workers: Vec<_> = self.workers.iter().map(status).collect();
        workers.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        let (mut queues, mut from) = (Vec::with_capacity(self.queues.len()), 0);
        for (queue, to) in &self.queues {
            let mut members = self.members[from..*to].to_vec();
            members.sort_unstable();
            let order = members.into_iter().map(|(rank, _, worker)| {
                let id = self.worker_names.get(worker).to_vec();
                (rank_weight(rank), id)
            });
            queues.push((self.queue_names.get(*queue).to_vec(), order.collect()));
            from = *to;
        }
        queues.sort_unstable_by(|a: &(Vec<u8>, _), b| a.0.cmp(&b.0));
        WorkersSnapshot { workers, queues }
    }
}

impl Broker {
    /// What ROUTER_SHOW_WORKERS is made from: O(queues + workers + memberships), some bytes each.
    pub fn workers_copy(&self) -> WorkersCopy {
        let mut copy = WorkersCopy {
            workers: Vec::with_capacity(self.workers.slab.len()),
            worker_names: Names::default(),
            queue_names: Names::default(),
            queues: Vec::with_capacity(self.queues.slab.len()),
            members: Vec::new(),
        };
        // By worker: may be given work.
        let mut serves = vec![false; self.workers.slab.end() as usize];
        let nothing: Arc<[(u64, u32)]> = Arc::default();
        for (number, worker) in self.workers.slab.iter() {
            if worker.blocked & blocked::ENDING != 0 {
                continue;
            }
            serves[number as usize] = worker.blocked == 0;
            let peer = &self.peers.slab[worker.peer];
            copy.worker_names.put(number, &peer.id);
            let profile = self.profiles.slab.get(worker.profile);
            copy.workers.push(WorkerCopy {
                worker: number,
                key: profile.map_or(&nothing, |profile| &profile.key).clone(),
                last_seen_secs: self.seconds(peer.last_seen_ns),
                free: worker.free,
                in_flight: worker.in_flight,
                state: worker.state(),
            });
        }
        let total = self
            .queues
            .slab
            .iter()
            .map(|(_, queue)| queue.workers as usize);
        copy.members.reserve_exact(total.sum());
        for (number, queue) in self.queues.slab.iter() {
            copy.queue_names.put(number, &queue.name);
            let from = copy.members.len();
            for member in &queue.members {
                if member.worker != NONE && serves[member.worker as usize] {
                    copy.members
                        .push((member.rank, member.stamp, member.worker));
                }
            }
            if copy.members.len() > from {
                copy.queues.push((number, copy.members.len()));
            }
        }
        copy
    }
}

#[cfg(test)]
impl WorkersCopy {
    /// Different queue lists held, by address.
    pub(super) fn lists(&self) -> usize {
        let addresses = self.workers.iter().map(|copy| copy.key.as_ptr());
        addresses.collect::<std::collections::HashSet<_>>().len()
    }
}
