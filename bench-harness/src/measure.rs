//! One measured run: warm-up, window, drain.
//!
//! Nothing is counted but what happens between two samples, taken while the load goes on. After
//! the window no job is sent any more and every outstanding one must be answered.

mod evaluate;
mod timeline;

pub(crate) use evaluate::{Cpu, Latency, Measured, percentiles};
pub(crate) use timeline::{Interval, Point, Timeline};

use crate::admin::Admin;
use crate::broker_view::Look;
use crate::cpu::{self, Sample};
use crate::failure::{Failure, Result};
use crate::generator::tally::Tally;
use crate::generator::{self, Outcome, Plan, Running, Shared};
use crate::interrupt;
use crate::progress::Progress;
use crate::target::Spawned;
use eventmq::addr::Addr;
use eventmq::server::Server;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const GENERATOR: &str = "generator-";
/// The I/O threads of libzmq, which are the generator's when it uses that.
const LIBZMQ: &str = "ZMQbg";
/// Name of the thread that coordinates: that of the program.
const MAIN: &str = "emq-bench";
const LOOK_MS: u64 = 5;
/// A run whose window never ends, though jobs are answered, is given up this much later.
const RUN_SECS_MAX: u64 = 600;

const INTERRUPTED: &str = "ended by a signal before it was done";

/// How long something lasts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Extent {
    Seconds(f64),
    Jobs(u64),
}

impl Extent {
    fn reached(self, started: Instant, jobs: u64) -> bool {
        match self {
            Extent::Seconds(secs) => started.elapsed().as_secs_f64() >= secs,
            Extent::Jobs(wanted) => jobs >= wanted,
        }
    }
}

/// Where the broker's CPU time is read. Dropping it ends a broker that was started.
#[derive(Debug)]
pub(crate) enum Broker {
    /// A process that this one started and can ask.
    Spawned(Spawned),
    /// Another process, if its id is known.
    External(Option<u32>),
    /// All threads of this process but the generator's and the main one.
    InProcess(#[expect(dead_code, reason = "dropping it ends the broker")] Box<Server>),
}

/// What is measured, and for how long.
#[derive(Debug, Clone)]
pub(crate) struct Course {
    pub(crate) warm_up: Extent,
    pub(crate) window: Extent,
    /// Length of the intervals of the timeline.
    pub(crate) interval: Duration,
    /// Where to ask the broker for its own view.
    pub(crate) administrative: Option<Addr>,
}

/// A sample of all that is counted, taken while the load goes on.
#[derive(Debug)]
pub(crate) struct Moment {
    pub(crate) at: Instant,
    jobs: u64,
    broker: Option<Sample>,
    generator: Sample,
    allocations: Option<u64>,
    resident_bytes: Option<u64>,
}

impl Broker {
    fn allocations(&mut self) -> Result<Option<u64>> {
        match self {
            Broker::Spawned(spawned) => spawned.allocations(),
            Broker::External(_) => Ok(None),
            Broker::InProcess(_) => Ok(Some(crate::allocations())),
        }
    }

    /// The process to look at; that of this program when the broker is part of it.
    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            Broker::Spawned(spawned) => Some(spawned.pid()),
            Broker::External(pid) => *pid,
            Broker::InProcess(_) => Some(std::process::id()),
        }
    }

    /// Resident memory, of the whole process also when the broker is only a part of it.
    pub(crate) fn resident_bytes(&self) -> Result<Option<u64>> {
        self.pid().map(cpu::resident_bytes).transpose()
    }

    fn sample(&self) -> Result<Option<Sample>> {
        let wanted = |name: &str| match self {
            Broker::InProcess(_) => !is_generator(name) && name != MAIN,
            _ => true,
        };
        self.pid().map(|pid| Sample::take(pid, wanted)).transpose()
    }

    /// Takes a sample. Of two, the time between them is measured.
    pub(crate) fn moment(&mut self, shared: &Shared, first: bool) -> Result<Moment> {
        // Asking costs the broker a little: outside of the window.
        let before = if first { self.allocations()? } else { None };
        let at = Instant::now();
        let jobs = shared.done.load(Ordering::Relaxed);
        let broker = self.sample()?;
        let generator = Sample::take(std::process::id(), is_generator)?;
        let allocations = if first { before } else { self.allocations()? };
        Ok(Moment {
            at,
            jobs,
            broker,
            generator,
            allocations,
            resident_bytes: self.resident_bytes()?,
        })
    }
}

fn is_generator(thread: &str) -> bool {
    thread.starts_with(GENERATOR) || thread.starts_with(LIBZMQ)
}

/// Everything a run has found, before it is evaluated.
struct Findings {
    first: Moment,
    last: Moment,
    /// Counted in the window.
    window: Tally,
    /// Counted from the first to the last job.
    all: Tally,
    timeline: Timeline,
    looks: Option<(Look, Look)>,
}

/// Runs `plan` against `broker`. Each interval of the window is shown to `observe`.
pub(crate) fn run(
    plan: &Plan,
    broker: &mut Broker,
    course: &Course,
    progress: &mut Progress,
    observe: &mut dyn FnMut(&Interval) -> Result<()>,
) -> Result<Measured> {
    // A broker of EventMQ 0.3.13 answers STATUS only.
    let full = plan.manners == generator::Manners::Full;
    let mut admin = course
        .administrative
        .as_ref()
        .map(Admin::connect)
        .transpose()?;
    let before = admin
        .as_mut()
        .map(|admin| Look::take(admin, full))
        .transpose()?;
    let shared = Arc::new(Shared::new(plan.threads));
    let running = generator::spawn(plan, &shared)?;
    let window = run_window(&shared, &running, broker, course, progress, observe);
    let ended = end(&shared, running, window.is_err());
    if interrupt::is_asked() {
        return Err(Failure::run(INTERRUPTED));
    }
    // A thread that failed knows more than the coordinator that misses its jobs.
    let outcomes = ended?;
    let (first, last, window, timeline, mut all) = window?;
    for outcome in &outcomes {
        all.add(&outcome.tally);
    }
    let after = admin
        .as_mut()
        .map(|admin| Look::take(admin, full))
        .transpose()?;
    Ok(evaluate::evaluate(&Findings {
        first,
        last,
        window,
        all,
        timeline,
        looks: before.zip(after),
    }))
}

/// Lets all threads finish their jobs, or `abandon` them, and waits for them.
pub(crate) fn end(shared: &Shared, running: Running, abandon: bool) -> Result<Vec<Outcome>> {
    shared.stop.store(true, Ordering::SeqCst);
    if abandon {
        shared.abandon.store(true, Ordering::SeqCst);
    }
    join(running.threads)
}

type Window = (Moment, Moment, Tally, Timeline, Tally);

fn run_window(
    shared: &Shared,
    running: &Running,
    broker: &mut Broker,
    course: &Course,
    progress: &mut Progress,
    observe: &mut dyn FnMut(&Interval) -> Result<()>,
) -> Result<Window> {
    let mut wait =
        |extent: Extent, from: u64, what, each: &mut dyn FnMut() -> Result<Option<u64>>| {
            let started = Instant::now();
            let mut p99_us = None;
            loop {
                // First: a window without any length would measure nothing.
                thread::sleep(Duration::from_millis(LOOK_MS));
                let jobs = shared.done.load(Ordering::Relaxed);
                p99_us = each()?.or(p99_us);
                progress.show(what, jobs, p99_us);
                let over = running.threads.iter().all(JoinHandle::is_finished);
                if extent.reached(started, jobs - from) || over {
                    return Ok(());
                }
                if shared.abandon.load(Ordering::Relaxed) {
                    return Err(Failure::run("abandoned"));
                }
                if interrupt::is_asked() {
                    return Err(Failure::run(INTERRUPTED));
                }
                if started.elapsed() > Duration::from_secs(RUN_SECS_MAX) {
                    return Err(Failure::run(format!(
                        "the {what} has not ended in {RUN_SECS_MAX} s"
                    )));
                }
            }
        };
    wait(course.warm_up, 0, "warm-up", &mut || Ok(None))?;
    let mut all = shared.collect();
    let first = broker.moment(shared, true)?;
    shared.record.store(true, Ordering::Relaxed);
    let mut timeline = Timeline::new(course.interval, first.at);
    let mut window = Tally::new();
    wait(course.window, first.jobs, "measuring", &mut || {
        if !timeline.is_due() {
            return Ok(None);
        }
        let interval = timeline.take(shared.collect(), broker)?;
        window.add(&interval.tally);
        observe(&interval)?;
        Ok(interval.p99_us())
    })?;
    let last = broker.moment(shared, false)?;
    shared.record.store(false, Ordering::Relaxed);
    let interval = timeline.take(shared.collect(), broker)?;
    window.add(&interval.tally);
    observe(&interval)?;
    all.add(&window);
    Ok((first, last, window, timeline, all))
}

fn join(threads: Vec<JoinHandle<Result<Outcome>>>) -> Result<Vec<Outcome>> {
    let panicked = || Failure::run("a generator thread panicked; this is a defect of emq-bench");
    let results: Vec<Result<Outcome>> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap_or_else(|_| Err(panicked())))
        .collect();
    // The first failure caused the others to be abandoned.
    let is_cause = |failure: &&Failure| !failure.to_string().starts_with("abandoned");
    let failures = || results.iter().filter_map(|result| result.as_ref().err());
    if let Some(failure) = failures().find(is_cause).or_else(|| failures().next()) {
        return Err(failure.clone());
    }
    results.into_iter().collect()
}
