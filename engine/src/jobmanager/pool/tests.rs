//! Single rules, and a seeded simulation with processes that behave in every way there is.
//! `EMQ_SIM_SEEDS` = number of seeds, `EMQ_SIM_SEED` = run this one alone.

use super::super::rng::{Rng, for_each_seed};
use super::*;
use std::collections::HashMap;

const MS: u64 = NS_PER_MS;

fn config(processes: usize, max_job_count: u64) -> PoolConfig {
    PoolConfig {
        processes,
        max_job_count,
        start_timeout_ms: 60_000,
        retire_timeout_ms: 5_000,
    }
}

fn task(id: JobId) -> Task {
    Task {
        id,
        payload: id.to_string().into_bytes(),
        timeout_ms: 1_000,
    }
}

fn actions(pool: &mut Pool) -> Vec<Action> {
    std::iter::from_fn(|| pool.poll_action()).collect()
}

/// A pool of one whose process 0 is up.
fn pool_of_one(max_job_count: u64) -> Pool {
    let mut pool = Pool::new(config(1, max_job_count), 0);
    assert_eq!(actions(&mut pool), [Action::Spawn(0)]);
    pool.handle_up(0, 10 * MS);
    assert_eq!(actions(&mut pool), [Action::Capacity(1)]);
    pool
}

fn value() -> Ending {
    Ending::Value(b"{}".to_vec())
}

#[test]
fn a_timeout_kills_and_the_job_ends_with_the_process() {
    let mut pool = pool_of_one(100);
    pool.submit(task(7), 20 * MS);
    assert_eq!(actions(&mut pool), [Action::Send(0, b"7".to_vec())]);
    assert_eq!(pool.poll_timeout(), Some(1_020 * MS));
    pool.handle_timeout(1_020 * MS);
    assert_eq!(actions(&mut pool), [Action::Kill(0), Action::Spawn(1)]);
    // What the process still says counts no more.
    pool.handle_result(0, value(), 1_021 * MS);
    pool.submit(task(8), 1_021 * MS);
    assert_eq!(actions(&mut pool), []);
    pool.handle_exit(0, "killed", 1_030 * MS);
    let ended = Action::Ended(7, Ending::TimedOut { after_ms: 1_000 });
    assert_eq!(actions(&mut pool), [ended]);
    pool.handle_up(1, 1_040 * MS);
    assert_eq!(actions(&mut pool), [Action::Send(1, b"8".to_vec())]);
}

#[test]
fn the_successor_starts_before_the_last_job_ends() {
    let mut pool = pool_of_one(2);
    pool.submit(task(1), 0);
    assert_eq!(actions(&mut pool).len(), 1);
    // The next job will take as long, and the start only half of that.
    pool.handle_result(0, value(), 20 * MS);
    assert_eq!(actions(&mut pool), [Action::Ended(1, value())]);
    pool.submit(task(2), 20 * MS);
    assert_eq!(
        actions(&mut pool),
        [Action::Send(0, b"2".to_vec()), Action::Spawn(1)]
    );
    pool.handle_up(1, 25 * MS);
    pool.handle_result(0, value(), 30 * MS);
    pool.submit(task(3), 30 * MS);
    assert_eq!(
        actions(&mut pool),
        [
            Action::Ended(2, value()),
            Action::Close(0),
            Action::Send(1, b"3".to_vec())
        ]
    );
    // It does not end by itself.
    pool.handle_timeout(30 * MS + 5_000 * MS);
    assert!(actions(&mut pool).contains(&Action::Kill(0)));
}

#[test]
fn replacing_goes_from_seat_to_seat() {
    let mut pool = Pool::new(config(2, 100), 0);
    pool.handle_up(0, MS);
    pool.handle_up(1, MS);
    pool.submit(task(1), MS);
    actions(&mut pool);
    pool.replace_all(100, 2 * MS);
    assert_eq!(actions(&mut pool), [Action::Spawn(2)]);
    // Its seat is busy: it waits there, and the next seat is begun.
    pool.handle_up(2, 3 * MS);
    assert_eq!(actions(&mut pool), [Action::Spawn(3)]);
    pool.handle_up(3, 4 * MS);
    assert_eq!(actions(&mut pool), [Action::Close(1)]);
    pool.handle_result(0, value(), 5 * MS);
    assert_eq!(
        actions(&mut pool),
        [Action::Ended(1, value()), Action::Close(0)]
    );
    pool.submit(task(2), 6 * MS);
    pool.submit(task(3), 6 * MS);
    assert_eq!(
        actions(&mut pool),
        [
            Action::Send(2, b"2".to_vec()),
            Action::Send(3, b"3".to_vec())
        ]
    );
}

#[test]
fn what_cannot_start_takes_no_jobs() {
    let mut pool = Pool::new(config(1, 100), 0);
    let mut now = 0;
    for failure in 0..4 {
        let spawned = actions(&mut pool);
        assert!(
            matches!(spawned[..], [Action::Spawn(_)]),
            "{failure}: {spawned:?}"
        );
        pool.handle_no_program(failure, "cannot start nothing".to_owned());
        pool.handle_exit(failure, "exit code 127", now);
        let warned = "a worker process did not start: cannot start nothing".to_owned();
        assert_eq!(
            actions(&mut pool),
            [Action::Warn(Warning::NotStarted, warned)]
        );
        let due = pool.poll_timeout().unwrap();
        assert!(due > now, "a pause is made");
        now = due;
        pool.handle_timeout(now);
    }
    pool.submit(task(1), now);
    assert!(actions(&mut pool).contains(&Action::Ended(1, Ending::NotStarted)));
    pool.handle_up(4, now);
    assert_eq!(actions(&mut pool), [Action::Capacity(1)]);
}

/// Processes as the simulation sees them.
#[derive(Debug, Default, Clone)]
struct Fake {
    up: bool,
    job: Option<JobId>,
    jobs: u64,
    killed: bool,
    closed: bool,
}

struct World {
    pool: Pool,
    rng: Rng,
    now: u64,
    fakes: BTreeMap<WorkerId, Fake>,
    submitted: u64,
    ended: HashMap<JobId, Ending>,
    capacity: usize,
    max_job_count: u64,
    processes: usize,
    /// One in so many starts fails.
    start_failure: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let processes = 1 + rng.below(4) as usize;
        let max_job_count = 1 + rng.below(6);
        World {
            pool: Pool::new(config(processes, max_job_count), 0),
            start_failure: 2 + rng.below(10),
            rng,
            now: 0,
            fakes: BTreeMap::new(),
            submitted: 0,
            ended: HashMap::new(),
            capacity: 0,
            max_job_count,
            processes,
        }
    }

    fn drain(&mut self) {
        while let Some(action) = self.pool.poll_action() {
            match action {
                Action::Spawn(id) => {
                    assert!(self.fakes.insert(id, Fake::default()).is_none());
                }
                Action::Send(id, payload) => {
                    let fake = self.fakes.get_mut(&id).expect("a living process");
                    assert!(fake.up && fake.job.is_none() && !fake.killed && !fake.closed);
                    fake.jobs += 1;
                    assert!(fake.jobs <= self.max_job_count, "more than max_job_count");
                    fake.job = Some(String::from_utf8(payload).unwrap().parse().unwrap());
                }
                Action::Close(id) => {
                    let fake = self.fakes.get_mut(&id).expect("a living process");
                    assert!(fake.job.is_none());
                    fake.closed = true;
                }
                Action::Kill(id) => {
                    self.fakes.get_mut(&id).expect("a living process").killed = true
                }
                Action::Ended(job, ending) => {
                    // Whoever had it no longer runs it.
                    assert!(self.fakes.values().all(|fake| fake.job != Some(job)));
                    assert!(self.ended.insert(job, ending).is_none(), "ended twice");
                }
                Action::Capacity(capacity) => {
                    assert!(capacity <= self.processes && capacity != self.capacity);
                    self.capacity = capacity;
                }
                Action::Warn(..) => {}
            }
        }
        let busy = self
            .fakes
            .values()
            .filter(|fake| fake.job.is_some() && !fake.killed);
        assert!(busy.count() <= self.processes);
    }

    fn random_fake(&mut self) -> Option<WorkerId> {
        if self.fakes.is_empty() {
            return None;
        }
        let nth = self.rng.below(self.fakes.len() as u64) as usize;
        self.fakes.keys().nth(nth).copied()
    }

    fn exit(&mut self, id: WorkerId) {
        self.fakes.remove(&id);
        self.pool.handle_exit(id, "it ended", self.now);
    }

    fn step(&mut self, ending: bool) {
        self.now += self.rng.below(50) * MS;
        match self.rng.below(if ending { 10 } else { 16 }) {
            0..=5 => {
                let Some(id) = self.random_fake() else { return };
                let fake = self.fakes[&id].clone();
                if fake.killed || fake.closed {
                    self.exit(id);
                } else if !fake.up {
                    if self.rng.below(self.start_failure) == 0 {
                        self.exit(id);
                    } else {
                        self.fakes.get_mut(&id).expect("there").up = true;
                        self.pool.handle_up(id, self.now);
                    }
                } else if fake.job.is_some() {
                    self.fakes.get_mut(&id).expect("there").job = None;
                    self.pool.handle_result(id, value(), self.now);
                }
            }
            6 => {
                let Some(id) = self.random_fake() else { return };
                match self.rng.below(3) {
                    0 => self.exit(id),
                    1 if self.fakes[&id].up => self.pool.violation(id, "nonsense", self.now),
                    _ => {}
                }
            }
            7..=9 => {
                if let Some(due) = self.pool.poll_timeout() {
                    self.now = self.now.max(due);
                    self.pool.handle_timeout(self.now);
                }
            }
            10..=14 => {
                self.submitted += 1;
                self.pool.submit(task(self.submitted), self.now);
            }
            _ => self.pool.replace_all(self.max_job_count, self.now),
        }
        self.drain();
    }

    fn run(mut self) {
        self.drain();
        for _ in 0..400 {
            self.step(false);
        }
        // Every job ends, with nothing but time and processes.
        self.start_failure = u64::MAX;
        for _ in 0..20_000 {
            if self.ended.len() as u64 == self.submitted {
                break;
            }
            self.step(true);
        }
        assert_eq!(self.ended.len() as u64, self.submitted);
        self.pool.close(self.now);
        self.drain();
        for _ in 0..5_000 {
            if self.pool.is_empty() {
                break;
            }
            self.step(true);
        }
        assert!(self.pool.is_empty() && self.fakes.is_empty());
        assert_eq!(self.pool.poll_timeout(), None);
    }
}

#[test]
fn every_job_ends_once_whatever_processes_do() {
    for_each_seed(500, |seed| World::new(seed).run());
}
