//! The full check of the state machine's invariants, for tests and simulation.

use super::Broker;
use super::peers::{ConnState, Role};
use super::queues::DEFAULT_QUEUE;
use super::slab::NONE;
use super::store::{NO_HEAD, flags};
use super::tasks::Task;
use super::workers::blocked;
use std::collections::BTreeMap;

impl Broker {
    /// Checks every invariant in time proportional to everything there is.
    ///
    /// # Panics
    /// If one does not hold: a bug of this module.
    pub fn check_invariants(&self) {
        self.peers.check();
        self.queues.check();
        self.profiles.check(&self.queues);
        self.jobs.check();
        self.check_connections();
        self.check_references();
        self.check_workers();
        self.check_queues();
        self.check_choice();
        self.check_memory();
    }

    fn check_connections(&self) {
        let mut conns = BTreeMap::new();
        for conn in self.conns.iter() {
            *conns.entry(conn.peer).or_insert(0) += 1;
        }
        for (ix, peer) in self.peers.slab.iter() {
            assert_eq!(
                peer.conns,
                conns.remove(&ix).unwrap_or(0),
                "connections of a peer"
            );
            if let Some(output) = peer.output {
                let conn = self
                    .conns
                    .get(output)
                    .expect("output goes to a known connection");
                assert_eq!(
                    (conn.peer, conn.state),
                    (ix, ConnState::Open),
                    "output connection"
                );
            }
            match peer.role {
                Role::None => {}
                Role::Worker(worker) => assert_eq!(self.workers.slab[worker].peer, ix),
                Role::Scheduler(scheduler) => assert_eq!(self.schedulers.slab[scheduler].peer, ix),
            }
        }
        assert!(conns.is_empty(), "a connection belongs to no peer");
        for (ix, scheduler) in self.schedulers.slab.iter() {
            assert_eq!(self.peers.slab[scheduler.peer].role, Role::Scheduler(ix));
            assert_eq!(self.schedulers.order.get(&scheduler.stamp), Some(&ix));
            let lost = self.peers.slab[scheduler.peer].output.is_none();
            assert_eq!(
                scheduler.in_grace, lost,
                "a scheduler in grace has no connection"
            );
        }
        assert_eq!(self.schedulers.order.len(), self.schedulers.slab.len());
    }

    /// Every unfinished thing that refers to a client is counted.
    fn check_references(&self) {
        let mut refs = BTreeMap::new();
        let mut add = |client: u32| {
            if client != NONE {
                *refs.entry(client).or_insert(0) += 1;
            }
        };
        let mut owed = 0;
        for ix in 0..self.jobs.end() {
            if let Some(job) = self.jobs.get(ix) {
                add(job.meta.client);
                owed += u64::from(job.meta.client != NONE);
            }
        }
        for (_, queue) in self.queues.slab.iter() {
            for meta in queue.bound.metas().iter().chain(queue.open.metas().iter()) {
                add(meta.client);
            }
        }
        for held in &self.schedulers.held {
            add(held.client);
        }
        let held = &self.schedulers.held;
        let held_totals = (
            held.iter().filter(|held| held.is_schedule()).count(),
            held.iter().map(|held| held.body.wire().len()).sum(),
        );
        assert_eq!(self.schedulers.held_totals(), held_totals);
        for task in &self.tasks {
            if let Task::Unschedule { client, .. } = task {
                add(*client);
            }
        }
        assert_eq!(self.owed_in_flight, owed, "jobs in flight that are owed");
        for (ix, peer) in self.peers.slab.iter() {
            assert_eq!(
                peer.refs,
                refs.remove(&ix).unwrap_or(0),
                "references to a peer"
            );
        }
        assert!(refs.is_empty(), "a job refers to a peer that is gone");
    }

    fn check_workers(&self) {
        let mut records = 0;
        for (ix, worker) in self.workers.slab.iter() {
            let jobs = self.jobs.check_worker_jobs(&worker.jobs);
            records += jobs.len();
            assert_eq!(jobs.len(), worker.in_flight as usize, "jobs of a worker");
            assert!(jobs.iter().all(|job| self.jobs.job(*job).worker == ix));
            if worker.blocked & blocked::ENDING != 0 {
                assert!(worker.members.is_empty() && worker.free == 0);
                continue;
            }
            let peer = &self.peers.slab[worker.peer];
            assert_eq!(peer.role, Role::Worker(ix), "a worker's peer knows it");
            let lost = worker.blocked & blocked::GRACE != 0;
            assert_eq!(
                lost,
                peer.output.is_none(),
                "a worker in grace has no connection"
            );
            assert!(
                lost || peer.output == Some(worker.conn),
                "where a worker's output goes"
            );
            let leaving = worker.blocked & blocked::LEAVING != 0;
            assert_eq!(
                leaving,
                worker.profile == NONE,
                "only a leaving worker has no profile"
            );
            if leaving {
                assert!(worker.free == 0 && worker.members.is_empty());
                continue;
            }
            let key = &self.profiles.slab[worker.profile].key;
            assert_eq!(key.len(), worker.members.len(), "memberships of a worker");
            let mut missing = worker.missing.clone();
            missing.sort_unstable();
            for (place, (queue, slot)) in worker.members.iter().enumerate() {
                let entry = &self.queues.slab[*queue];
                let member = entry.members[*slot as usize];
                assert_eq!((member.worker, member.index), (ix, place as u32));
                assert_eq!((member.rank, *queue), key[place], "member and profile");
                let profile = &self.profiles.slab[worker.profile];
                let parks = profile.parks;
                let parked = entry.is_parked(profile.groups[place], worker.seat);
                let absent = if parks {
                    parked
                } else {
                    missing.binary_search(&(place as u32)).is_ok()
                };
                match entry.candidates.key(*slot) {
                    None => assert!(absent, "a worker is neither candidate nor missing"),
                    Some((rank, stamp)) => {
                        assert!(!absent, "a candidate counts as missing");
                        assert!(
                            rank == member.rank && stamp <= member.stamp,
                            "candidate key"
                        );
                    }
                }
            }
        }
        assert_eq!(
            records,
            self.jobs.len(),
            "every record is in the list of its worker"
        );
    }

    fn check_queues(&self) {
        let mut waiting = 0;
        for (ix, queue) in self.queues.slab.iter() {
            queue.candidates.check();
            waiting += queue.waiting() as u64;
            let members = queue
                .members
                .iter()
                .filter(|member| member.worker != NONE)
                .count();
            assert_eq!(members, queue.workers as usize, "workers of a queue");
            assert_eq!(
                queue.count_parked(),
                queue.parked,
                "parked workers of a queue"
            );
            let flight = self.jobs.check_list(queue.flight, true);
            assert_eq!(
                flight.len() as u64,
                queue.in_flight,
                "jobs in flight of a queue"
            );
            let mut sum = 0;
            for job in flight {
                let job = self.jobs.job(job);
                assert!(job.queue == ix && !job.has(flags::REPLIED));
                sum += u128::from(job.meta.accepted_ns);
            }
            for (store, open) in [(&queue.bound, false), (&queue.open, true)] {
                let metas = store.metas();
                assert_eq!(metas.len(), store.len(), "length of a store");
                let head = metas.iter().map(|meta| meta.seq).min().unwrap_or(NO_HEAD);
                assert_eq!(head, store.head_seq(), "oldest job of a store");
                assert!(
                    metas
                        .iter()
                        .all(|meta| (meta.flags & flags::OPEN != 0) == open)
                );
                sum += metas
                    .iter()
                    .map(|meta| u128::from(meta.accepted_ns))
                    .sum::<u128>();
            }
            assert_eq!(sum, queue.accepted_sum_ns, "accept times of a queue");
            let open_head = queue.open.head_seq();
            let known = self.open_jobs.key(ix).unwrap_or(NO_HEAD);
            assert_eq!(known, open_head, "oldest open job of a queue");
            let watched = queue.workers > 0 || ix == DEFAULT_QUEUE || queue.timer_armed;
            assert!(watched, "a queue without workers has a timer");
        }
        assert_eq!(waiting, self.jobs_waiting, "waiting jobs");
        self.open_jobs.check();
    }

    /// Nobody waits for something that is there.
    fn check_choice(&self) {
        for (_, profile) in self.profiles.slab.iter() {
            profile.waiting.check();
            let seats: u32 = profile.available.iter().map(|w| w.count_ones()).sum();
            assert_eq!(
                profile.available_seats, seats,
                "seats that may be available"
            );
            for (place, (rank, queue)) in profile.key.iter().enumerate() {
                let head = self.head_for_workers(*queue);
                if head != NO_HEAD {
                    let key = profile.waiting.key(place as u32);
                    let key = key.expect("a profile knows its queues with waiting jobs");
                    assert!(
                        key.0 == *rank && key.1 <= head,
                        "key of a queue in a profile"
                    );
                }
            }
        }
        if !self.tasks.is_empty() || !self.returned_to.is_empty() || !self.hands_out {
            return;
        }
        for (_, worker) in self
            .workers
            .slab
            .iter()
            .filter(|(_, worker)| worker.available())
        {
            assert!(worker.missing.is_empty(), "a free worker is no candidate");
            let profile = &self.profiles.slab[worker.profile];
            assert!(
                !profile.parks || profile.is_available(worker.seat),
                "a free worker is parked"
            );
            for (queue, _) in &worker.members {
                assert_eq!(
                    self.head_for_workers(*queue),
                    NO_HEAD,
                    "a job waits for a free worker"
                );
            }
        }
    }

    fn check_memory(&self) {
        let queues = self.queues.slab.iter();
        let waiting: usize = queues
            .map(|(_, q)| q.bound.count_held_bytes() + q.open.count_held_bytes())
            .sum();
        let tasks = self.tasks.iter().map(|task| match task {
            Task::Unschedule { body, .. } => body.wire().len(),
            _ => 0,
        });
        let schedules = self.schedulers.held_totals().1 + tasks.sum::<usize>();
        assert_eq!(
            self.blocks.held_bytes(),
            waiting + self.jobs.count_kept_bytes() + schedules,
            "bytes held by waiting jobs, jobs in flight and schedules"
        );
    }
}
