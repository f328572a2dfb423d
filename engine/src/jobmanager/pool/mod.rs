//! Which worker process runs which job: a state machine without I/O.
//!
//! Fed with jobs, what processes say, how they end, and the time; gives [`Action`]s. A *seat* is a
//! place for one job at a time. It has a current process, and for a moment a successor that is
//! being started: before the current one has run `max_job_count` jobs, and when all processes are
//! replaced after a reload. A process that has to be killed leaves its seat at once, and its job
//! ends when nothing of it is left.
//!
//! Every call may lead to actions; the caller carries them out in order before the next call.
//! Invariant: every job that was submitted ends exactly once.

mod seats;
#[cfg(test)]
mod tests;

use super::outcome::Ending;
use crate::ids::NS_PER_MS;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Names a job among those of one job manager.
pub(crate) type JobId = u64;
/// Names a process of the pool; never used twice.
pub(crate) type WorkerId = u64;

/// Failed starts in a row after which seats without a process count as unusable.
const FAILURES_MAX: u32 = 3;
/// First and longest pause before a start that follows a failed one.
const PAUSE_MS: (u64, u64) = (100, 10_000);
/// A process that ends this soon without having run a job has failed to start.
const SOON_NS: u64 = 1_000 * NS_PER_MS;

/// Bounds of a pool.
#[derive(Debug, Clone)]
pub(crate) struct PoolConfig {
    /// Seats.
    pub(crate) processes: usize,
    /// Jobs after which a process is replaced.
    pub(crate) max_job_count: u64,
    /// Time for a process to come up, in milliseconds.
    pub(crate) start_timeout_ms: u64,
    /// Time for a process to end by itself after its input was closed, in milliseconds.
    pub(crate) retire_timeout_ms: u64,
}

/// A job for a worker process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) id: JobId,
    /// The message, as the client sent it.
    pub(crate) payload: Vec<u8>,
    /// From the moment a process gets it, in milliseconds.
    pub(crate) timeout_ms: u64,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Start a process.
    Spawn(WorkerId),
    /// Send a job to a process.
    Send(WorkerId, Vec<u8>),
    /// Close the input of a process; it ends by itself.
    Close(WorkerId),
    /// Kill the process group.
    Kill(WorkerId),
    /// A job has ended.
    Ended(JobId, Ending),
    /// So many jobs can be run at a time.
    Capacity(usize),
    /// For the log.
    Warn(Warning, String),
}

/// Kinds of warnings: each is logged at a bounded rate of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Warning {
    /// A process did not start.
    NotStarted,
    /// A process ended in a job.
    EndedInJob,
    /// A process ended without a job.
    EndedIdle,
    /// A process cannot be understood.
    Violation,
    /// Something a process told.
    Told,
    /// Something the system refused.
    System,
}

impl Warning {
    /// How many there are.
    pub(crate) const COUNT: usize = Warning::System as usize + 1;
}

#[derive(Debug)]
enum State {
    Starting,
    Idle,
    Busy {
        job: JobId,
        timeout_ms: u64,
        begun_ns: u64,
    },
    /// SIGKILL was sent; the job ends like this when the process has.
    Killed {
        job: Option<(JobId, Ending)>,
    },
    /// Its input was closed.
    Retiring,
}

#[derive(Debug)]
struct Worker {
    seat: usize,
    state: State,
    /// Reload after which it was started.
    generation: u32,
    /// Jobs it was given.
    jobs: u64,
    /// Jobs of these that ended.
    done: u64,
    /// When it was started, then when it came up.
    since_ns: u64,
    /// How long its start took.
    start_ns: u64,
    /// How long it has run jobs.
    busy_ns: u64,
    /// Its timer, if armed.
    due_ns: Option<u64>,
    /// Why its program could not be started.
    complaint: Option<String>,
}

#[derive(Debug, Default)]
struct Seat {
    current: Option<WorkerId>,
    successor: Option<WorkerId>,
    /// When to start a process, if a pause is being made.
    start_ns: Option<u64>,
    /// It has had a process that came up.
    proven: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Pool {
    config: PoolConfig,
    workers: BTreeMap<WorkerId, Worker>,
    seats: Vec<Seat>,
    idle: BTreeSet<usize>,
    waiting: VecDeque<Task>,
    timers: BTreeSet<(u64, WorkerId)>,
    actions: VecDeque<Action>,
    next_id: WorkerId,
    generation: u32,
    failures: u32,
    capacity: usize,
    closed: bool,
}

impl Pool {
    /// Starts all processes.
    pub(crate) fn new(config: PoolConfig, now_ns: u64) -> Pool {
        let mut pool = Pool {
            seats: std::iter::repeat_with(Seat::default)
                .take(config.processes)
                .collect(),
            config,
            workers: BTreeMap::new(),
            idle: BTreeSet::new(),
            waiting: VecDeque::new(),
            timers: BTreeSet::new(),
            actions: VecDeque::new(),
            next_id: 0,
            generation: 0,
            failures: 0,
            capacity: 0,
            closed: false,
        };
        for seat in 0..pool.seats.len() {
            pool.start(seat, now_ns);
        }
        pool
    }

    /// The next thing to do.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Pool::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        let pauses = self.seats.iter().filter_map(|seat| seat.start_ns).min();
        let timer = self.timers.first().map(|(due_ns, _)| *due_ns);
        pauses.into_iter().chain(timer).min()
    }

    /// A job to run. It waits for a process if there is none just now.
    pub(crate) fn submit(&mut self, task: Task, now_ns: u64) {
        if self.closed || (self.capacity == 0 && self.failures >= FAILURES_MAX) {
            self.act(Action::Ended(task.id, Ending::NotStarted));
            return;
        }
        self.waiting.push_back(task);
        self.feed(now_ns);
    }

    /// The process is ready for jobs.
    pub(crate) fn handle_up(&mut self, id: WorkerId, now_ns: u64) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        if !matches!(worker.state, State::Starting) {
            return self.violation(id, "it said twice that it is up", now_ns);
        }
        worker.state = State::Idle;
        worker.start_ns = now_ns - worker.since_ns;
        worker.since_ns = now_ns;
        let seat = worker.seat;
        self.arm(id, None);
        self.failures = 0;
        self.seats[seat].proven = true;
        if self.seats[seat].successor == Some(id) {
            self.settle(seat, now_ns);
        } else {
            self.idle.insert(seat);
        }
        self.update_capacity();
        self.replace_outdated(now_ns);
        self.feed(now_ns);
    }

    /// The process says that its job ended.
    pub(crate) fn handle_result(&mut self, id: WorkerId, ending: Ending, now_ns: u64) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        match worker.state {
            State::Busy { job, begun_ns, .. } => {
                worker.state = State::Idle;
                worker.done += 1;
                worker.busy_ns += now_ns - begun_ns;
                let seat = worker.seat;
                self.arm(id, None);
                self.act(Action::Ended(job, ending));
                self.idle.insert(seat);
                self.settle(seat, now_ns);
                self.replace_outdated(now_ns);
                self.feed(now_ns);
            }
            // The time was up before the result came.
            State::Killed { .. } => {}
            _ => self.violation(id, "it sent a result without a job", now_ns),
        }
    }

    /// The program of the process could not be started; its end follows.
    pub(crate) fn handle_no_program(&mut self, id: WorkerId, complaint: String) {
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.complaint = Some(complaint);
        }
    }

    /// The process cannot be understood any more.
    pub(crate) fn violation(&mut self, id: WorkerId, what: &str, now_ns: u64) {
        let text = format!("a worker process is killed: {what}");
        self.act(Action::Warn(Warning::Violation, text));
        let ending = Ending::Died(format!("the process was killed: {what}"));
        self.kill(id, ending, now_ns);
    }

    /// The process and its group are gone; `how` in words.
    pub(crate) fn handle_exit(&mut self, id: WorkerId, how: &str, now_ns: u64) {
        let Some(worker) = self.workers.remove(&id) else {
            return;
        };
        if let Some(due_ns) = worker.due_ns {
            self.timers.remove(&(due_ns, id));
        }
        self.vacate(worker.seat, id);
        let how = worker.complaint.as_deref().unwrap_or(how);
        match worker.state {
            State::Starting => self.failed(worker.seat, how, now_ns),
            State::Idle if worker.jobs == 0 && now_ns - worker.since_ns < SOON_NS => {
                self.failed(worker.seat, how, now_ns);
            }
            State::Idle => {
                let text = format!("a worker process without a job ended: {how}");
                self.act(Action::Warn(Warning::EndedIdle, text));
            }
            State::Busy { job, .. } => {
                let text = format!("a worker process ended in a job: {how}");
                self.act(Action::Warn(Warning::EndedInJob, text));
                self.act(Action::Ended(job, Ending::Died(how.to_owned())));
            }
            State::Killed { job } => {
                if let Some((job, ending)) = job {
                    self.act(Action::Ended(job, ending));
                }
            }
            State::Retiring => {}
        }
        self.settle(worker.seat, now_ns);
        self.update_capacity();
        self.replace_outdated(now_ns);
        self.feed(now_ns);
    }

    /// No process could be made for it.
    pub(crate) fn handle_spawn_failed(&mut self, id: WorkerId, error: &str, now_ns: u64) {
        self.handle_exit(id, &format!("no process can be started: {error}"), now_ns);
    }

    /// The time has come that [`Pool::poll_timeout`] named.
    pub(crate) fn handle_timeout(&mut self, now_ns: u64) {
        while let Some((due_ns, id)) = self.timers.first().copied() {
            if due_ns > now_ns {
                break;
            }
            self.timers.pop_first();
            let Some(worker) = self.workers.get_mut(&id) else {
                continue;
            };
            worker.due_ns = None;
            match worker.state {
                State::Busy { timeout_ms, .. } => {
                    let after_ms = timeout_ms;
                    self.kill(id, Ending::TimedOut { after_ms }, now_ns);
                }
                State::Starting => {
                    worker.complaint = Some("it did not come up in time".to_owned());
                    self.act(Action::Kill(id));
                }
                State::Retiring => self.act(Action::Kill(id)),
                State::Idle | State::Killed { .. } => {}
            }
        }
        for seat in 0..self.seats.len() {
            if self.seats[seat].start_ns.is_some_and(|due| due <= now_ns) {
                self.seats[seat].start_ns = None;
                self.start(seat, now_ns);
            }
        }
    }

    /// Replaces every process by a new one, seat by seat, each when its successor is up and it has
    /// no job.
    pub(crate) fn replace_all(&mut self, max_job_count: u64, now_ns: u64) {
        self.config.max_job_count = max_job_count;
        self.generation += 1;
        // A pause after a failed start is over: what was reloaded may have mended it.
        self.failures = 0;
        for seat in &mut self.seats {
            seat.start_ns = seat.start_ns.map(|_| now_ns);
        }
        self.replace_outdated(now_ns);
    }

    /// No further jobs; processes end once they have none.
    pub(crate) fn close(&mut self, now_ns: u64) {
        self.closed = true;
        while let Some(task) = self.waiting.pop_front() {
            self.act(Action::Ended(task.id, Ending::NotStarted));
        }
        for seat in 0..self.seats.len() {
            self.seats[seat].start_ns = None;
            self.settle(seat, now_ns);
        }
        let starting: Vec<WorkerId> = self
            .workers
            .iter()
            .filter(|(_, worker)| matches!(worker.state, State::Starting))
            .map(|(id, _)| *id)
            .collect();
        for id in starting {
            self.kill(id, Ending::Killed, now_ns);
        }
        self.update_capacity();
    }

    /// Kills every process that has a job; the jobs end as [`Ending::Killed`].
    pub(crate) fn kill_all(&mut self, now_ns: u64) {
        let ids: Vec<WorkerId> = self.workers.keys().copied().collect();
        for id in ids {
            self.kill(id, Ending::Killed, now_ns);
        }
    }

    /// True when no process is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    fn arm(&mut self, id: WorkerId, due_ns: Option<u64>) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        if let Some(old) = std::mem::replace(&mut worker.due_ns, due_ns) {
            self.timers.remove(&(old, id));
        }
        if let Some(due_ns) = due_ns {
            self.timers.insert((due_ns, id));
        }
    }

    fn kill(&mut self, id: WorkerId, ending: Ending, now_ns: u64) {
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        let job = match &worker.state {
            State::Killed { .. } => return,
            State::Busy { job, .. } => Some((*job, ending)),
            State::Starting | State::Idle | State::Retiring => None,
        };
        worker.state = State::Killed { job };
        let seat = worker.seat;
        self.arm(id, None);
        self.act(Action::Kill(id));
        self.vacate(seat, id);
        self.settle(seat, now_ns);
        self.update_capacity();
    }
}
