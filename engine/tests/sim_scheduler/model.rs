//! The model: each schedule by itself, due time by due time.

use eventmq::ids::Now;
use eventmq::scheduler::cron::Cron;
use eventmq::scheduler::timetable::{CATCH_UP_MAX, LATE_MS_MAX, Misfire, SET_BACK_MS};
use eventmq::scheduler::zone::Zone;
use std::collections::BTreeMap;

/// When a job of the model runs.
#[derive(Debug, Clone)]
pub(crate) enum Pace {
    /// Every so many milliseconds.
    Every(u64),
    /// By an expression.
    Cron(Cron, Zone),
}

#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) pace: Pace,
    pub(crate) left: Option<u32>,
    hasty: bool,
    /// Milliseconds: monotonic for an interval, wall for cron.
    next: i128,
    /// The next due time as the wall clock of the last change saw it.
    pub(crate) due_ms: i128,
}

/// By number of job.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) misfire: Misfire,
    pub(crate) jobs: BTreeMap<usize, Job>,
    offset_ms: Option<i128>,
}

fn mono(now: Now) -> i128 {
    i128::from(now.mono_ns / 1_000_000)
}

fn wall(now: Now) -> i128 {
    i128::from(now.wall_ms)
}

impl Job {
    fn new(pace: Pace, left: Option<u32>, now: Now) -> Job {
        let mut job = Job {
            pace,
            left,
            hasty: false,
            next: 0,
            due_ms: 0,
        };
        job.begin(now);
        job
    }

    /// The first due time after now.
    fn begin(&mut self, now: Now) {
        match &self.pace {
            Pace::Every(ms) => {
                self.next = mono(now) + i128::from(*ms);
                self.due_ms = wall(now) + i128::from(*ms);
            }
            Pace::Cron(..) => {
                self.next = self.following(wall(now));
                self.due_ms = self.next;
            }
        }
    }

    fn following(&self, due: i128) -> i128 {
        match &self.pace {
            Pace::Every(ms) => due + i128::from(*ms),
            Pace::Cron(cron, zone) => {
                let after = u64::try_from(due).expect("a time after 1970");
                i128::from(zone.next_after(cron, after).expect("a next time"))
            }
        }
    }

    /// Runs due now.
    fn take(&mut self, misfire: Misfire, now: Now) -> usize {
        let clock = match self.pace {
            Pace::Every(_) => mono(now),
            Pace::Cron(..) => wall(now),
        };
        let mut due = Vec::new();
        while self.next <= clock {
            due.push(self.next);
            self.next = self.following(self.next);
        }
        if !due.is_empty() {
            self.due_ms = match self.pace {
                Pace::Every(_) => wall(now) + (self.next - clock),
                Pace::Cron(..) => self.next,
            };
        }
        let by_time = match (misfire, due.last()) {
            (_, None) => 0,
            (Misfire::One, _) => 1,
            (Misfire::All, _) => due.len().min(CATCH_UP_MAX as usize + 1),
            (Misfire::None, Some(last)) => usize::from(clock - last <= i128::from(LATE_MS_MAX)),
        };
        let wanted = by_time + usize::from(std::mem::take(&mut self.hasty));
        match &mut self.left {
            None => wanted,
            Some(left) => {
                let runs = wanted.min(*left as usize);
                *left -= runs as u32;
                runs
            }
        }
    }
}

impl Model {
    pub(crate) fn new(misfire: Misfire) -> Model {
        Model {
            misfire,
            jobs: BTreeMap::new(),
            offset_ms: None,
        }
    }

    /// A SCHEDULE.
    pub(crate) fn put(&mut self, n: usize, pace: Pace, left: Option<u32>, hasty: bool, now: Now) {
        self.jobs.remove(&n);
        if left != Some(0) {
            let mut job = Job::new(pace, left, now);
            job.hasty = hasty;
            self.jobs.insert(n, job);
        }
    }

    /// What a new process finds.
    pub(crate) fn restore(
        &mut self,
        n: usize,
        pace: Pace,
        left: Option<u32>,
        due_ms: u64,
        saved_ms: u64,
        now: Now,
    ) {
        let mut job = Job::new(pace, left, now);
        let clock_is_wrong = wall(now) + i128::from(SET_BACK_MS) < i128::from(saved_ms);
        let due = i128::from(due_ms);
        match &job.pace {
            _ if clock_is_wrong => {}
            Pace::Every(ms) if due - wall(now) > i128::from(*ms) => {}
            Pace::Every(_) => {
                job.next = mono(now) + due - wall(now);
                job.due_ms = due;
            }
            Pace::Cron(..) => {
                job.next = due;
                job.due_ms = due;
            }
        }
        self.jobs.insert(n, job);
    }

    /// A look at the clock, which may have been set back by hours.
    pub(crate) fn look(&mut self, now: Now) {
        let offset = wall(now) - mono(now);
        let before = self.offset_ms.replace(offset);
        if before.is_some_and(|before| before - offset >= i128::from(SET_BACK_MS)) {
            for job in self.jobs.values_mut() {
                if let Pace::Cron(..) = job.pace {
                    job.begin(now);
                }
            }
        }
    }

    /// A new process looks at the clock for the first time.
    pub(crate) fn forget_clock(&mut self) {
        self.offset_ms = None;
    }

    /// Runs of each job that are due now.
    pub(crate) fn take(&mut self, now: Now) -> BTreeMap<usize, usize> {
        let misfire = self.misfire;
        let runs = self
            .jobs
            .iter_mut()
            .map(|(n, job)| (*n, job.take(misfire, now)));
        let runs = runs.filter(|(_, runs)| *runs > 0).collect();
        self.jobs.retain(|_, job| job.left != Some(0));
        runs
    }
}
