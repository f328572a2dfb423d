//! One measured run: warm-up, window, drain.
//!
//! Nothing is counted but what happens between two samples, taken while the load goes on. After
//! the window no job is sent any more and every outstanding one must be answered.

use crate::cpu::{self, Sample, Used};
use crate::failure::{Failure, Result};
use crate::generator::{self, Outcome, Plan, Shared, latency_histogram};
use crate::progress::Progress;
use crate::target::Spawned;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const GENERATOR: &str = "generator-";
/// Name of the thread that coordinates: that of the program.
const MAIN: &str = "emq-bench";
const LOOK_MS: u64 = 5;
/// A run whose window never ends, though jobs are answered, is given up this much later.
const RUN_SECS_MAX: u64 = 600;

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

/// Where the broker's CPU time is read.
#[derive(Debug)]
pub(crate) enum Broker<'a> {
    /// A process that this one started and can ask.
    Spawned(&'a mut Spawned),
    /// Another process, if its id is known.
    External(Option<u32>),
    /// All threads of this process but the generator's and the main one.
    InProcess,
}

/// Percentiles in microseconds.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Latency {
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
}

/// CPU time in the window.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Cpu {
    pub(crate) us_per_job: f64,
    /// Share of user time in ticks, 0 to 1.
    pub(crate) user_share: f64,
    /// Time per job in which threads were ready to run and had no core: noise of the machine.
    pub(crate) waited_us_per_job: f64,
    pub(crate) threads: Vec<ThreadCpu>,
}

/// CPU time of one thread of the broker.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ThreadCpu {
    pub(crate) name: String,
    pub(crate) us_per_job: f64,
    /// Part of one core that it used, 0 to 1.
    pub(crate) busy: f64,
}

/// Result of one run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Measured {
    pub(crate) target: String,
    /// Flags that the target's libzmq was built with, if it uses one.
    pub(crate) cxxflags: Option<String>,
    pub(crate) round: usize,
    pub(crate) jobs: u64,
    pub(crate) seconds: f64,
    pub(crate) jobs_per_sec: f64,
    pub(crate) latency: Latency,
    pub(crate) cpu: Option<Cpu>,
    pub(crate) generator_us_per_job: f64,
    /// Part of one core used by the busiest thread of the generator, 0 to 1.
    pub(crate) generator_busy: f64,
    /// Allocations of the broker's process in the window.
    pub(crate) allocations: Option<u64>,
}

struct Moment {
    at: Instant,
    jobs: u64,
    broker: Option<Sample>,
    generator: Sample,
    allocations: Option<u64>,
}

impl Broker<'_> {
    fn allocations(&mut self) -> Result<Option<u64>> {
        match self {
            Broker::Spawned(spawned) => spawned.allocations().map(Some),
            Broker::External(_) => Ok(None),
            Broker::InProcess => Ok(Some(crate::allocations())),
        }
    }

    fn sample(&self) -> Result<Option<Sample>> {
        let all = |pid| Sample::take(pid, |_| true).map(Some);
        match self {
            Broker::Spawned(spawned) => all(spawned.pid()),
            Broker::External(pid) => pid.map_or(Ok(None), all),
            Broker::InProcess => {
                let wanted = |name: &str| !name.starts_with(GENERATOR) && name != MAIN;
                Sample::take(std::process::id(), wanted).map(Some)
            }
        }
    }

    fn moment(&mut self, shared: &Shared, first: bool) -> Result<Moment> {
        // Asking costs the broker a little: outside of the window.
        let before = if first { self.allocations()? } else { None };
        let at = Instant::now();
        let jobs = shared.done.load(Ordering::Relaxed);
        let broker = self.sample()?;
        let generator = Sample::take(std::process::id(), |name| name.starts_with(GENERATOR))?;
        let allocations = if first { before } else { self.allocations()? };
        Ok(Moment {
            at,
            jobs,
            broker,
            generator,
            allocations,
        })
    }
}

/// Runs `plan` against `broker` and measures `window` after `warm_up`.
pub(crate) fn run(
    plan: &Plan,
    broker: &mut Broker<'_>,
    warm_up: Extent,
    window: Extent,
    progress: &mut Progress,
) -> Result<Measured> {
    let shared = Arc::new(Shared::default());
    let threads = generator::spawn(plan, &shared)?;
    let window = run_window(&shared, &threads, broker, warm_up, window, progress);
    shared.stop.store(true, Ordering::SeqCst);
    if window.is_err() {
        shared.abandon.store(true, Ordering::SeqCst);
    }
    let joined = join(threads);
    // A thread that failed knows more than the coordinator that misses its jobs.
    let outcomes = joined?;
    let (first, last) = window?;
    Ok(evaluate(&first, &last, &outcomes))
}

fn run_window(
    shared: &Shared,
    threads: &[JoinHandle<Result<Outcome>>],
    broker: &mut Broker<'_>,
    warm_up: Extent,
    window: Extent,
    progress: &mut Progress,
) -> Result<(Moment, Moment)> {
    let mut wait = |extent: Extent, from: u64, what: &'static str| {
        let started = Instant::now();
        loop {
            let jobs = shared.done.load(Ordering::Relaxed);
            progress.show(what, jobs);
            if extent.reached(started, jobs - from) || threads.iter().all(JoinHandle::is_finished) {
                return Ok(());
            }
            if shared.abandon.load(Ordering::Relaxed) {
                return Err(Failure::run("abandoned"));
            }
            if started.elapsed() > Duration::from_secs(RUN_SECS_MAX) {
                return Err(Failure::run(format!(
                    "the {what} has not ended in {RUN_SECS_MAX} s"
                )));
            }
            thread::sleep(Duration::from_millis(LOOK_MS));
        }
    };
    wait(warm_up, 0, "warm-up")?;
    let first = broker.moment(shared, true)?;
    shared.record.store(true, Ordering::Relaxed);
    wait(window, first.jobs, "measuring")?;
    let last = broker.moment(shared, false)?;
    shared.record.store(false, Ordering::Relaxed);
    Ok((first, last))
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

fn evaluate(first: &Moment, last: &Moment, outcomes: &[Outcome]) -> Measured {
    let seconds = last
        .at
        .saturating_duration_since(first.at)
        .as_secs_f64()
        .max(1e-9);
    let jobs = last.jobs - first.jobs;
    let per_job = |ns: u64| ns as f64 / 1e3 / jobs.max(1) as f64;
    let busy = |used: &Used| used.run_ns as f64 / 1e9 / seconds;
    let mut latency = latency_histogram();
    for outcome in outcomes {
        latency
            .add(&outcome.latency_ns)
            .unwrap_or_else(|e| unreachable!("same bounds: {e}"));
    }
    let generator = last.generator.since(&first.generator);
    let cpu = last
        .broker
        .as_ref()
        .zip(first.broker.as_ref())
        .map(|(last, first)| {
            let threads = last.since(first);
            let all = cpu::total(&threads);
            Cpu {
                us_per_job: per_job(all.run_ns),
                user_share: all.user_ns as f64 / (all.user_ns + all.system_ns).max(1) as f64,
                waited_us_per_job: per_job(all.wait_ns),
                threads: threads
                    .iter()
                    .filter(|used| used.run_ns * 1000 > all.run_ns)
                    .map(|used| ThreadCpu {
                        name: used.name.clone(),
                        us_per_job: per_job(used.run_ns),
                        busy: busy(used),
                    })
                    .collect(),
            }
        });
    Measured {
        target: String::new(),
        cxxflags: None,
        round: 0,
        jobs,
        seconds,
        jobs_per_sec: jobs as f64 / seconds,
        latency: percentiles(&latency),
        cpu,
        generator_us_per_job: per_job(cpu::total(&generator).run_ns),
        generator_busy: generator.iter().map(busy).fold(0.0, f64::max),
        allocations: last
            .allocations
            .zip(first.allocations)
            .map(|(last, first)| last - first),
    }
}

fn percentiles(histogram: &Histogram<u32>) -> Latency {
    let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
    Latency {
        mean_us: histogram.mean() / 1e3,
        p50_us: at(0.5),
        p90_us: at(0.9),
        p99_us: at(0.99),
        p999_us: at(0.999),
        max_us: histogram.max() as f64 / 1e3,
    }
}
