//! `emq-bench run`: one workload against one or several targets, in turns.

use crate::environment::Environment;
use crate::failure::{Failure, Result};
use crate::generator::{Pace, Plan};
use crate::hlog;
use crate::interrupt;
use crate::measure::{self, Broker, Course, Extent, Interval, Measured};
use crate::progress::Progress;
use crate::report::{self, RunReport};
use crate::site::{Site, SiteOptions};
use crate::transport::Transport;
use crate::workload::{Name, Overrides, Workload};
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Points of the timeline of a window, and the longest and shortest time between them.
const POINTS: f64 = 40.0;
const INTERVAL_SECS_MAX: f64 = 1.0;
const INTERVAL_SECS_MIN: f64 = 0.05;

/// Options of `run`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The load
    #[arg(long, value_enum, default_value = "J120")]
    workload: Name,
    #[command(flatten)]
    overrides: Overrides,
    #[command(flatten)]
    site: SiteOptions,
    /// Rounds; each round measures every target once
    #[arg(long, value_name = "N", default_value_t = 1)]
    alternate: usize,
    #[command(flatten)]
    window: WindowOptions,
    /// Send this many jobs per second at fixed times (open loop) instead of one for each result
    #[arg(long, value_name = "JOBS")]
    rate: Option<f64>,
    /// Write results, environment and all runs to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the latencies of every interval to this file, an HdrHistogram log
    #[arg(long, value_name = "FILE")]
    hlog: Option<PathBuf>,
}

/// Options that say how long and with what a run is measured.
#[derive(Debug, Args)]
pub(crate) struct WindowOptions {
    /// Seconds of the measured window
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    duration: f64,
    /// Seconds before it
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    warmup: f64,
    /// Jobs (at least) of the measured window, instead of --duration
    #[arg(long, value_name = "N")]
    jobs: Option<u64>,
    /// Jobs (at least) before it, instead of --warmup
    #[arg(long, value_name = "N")]
    warmup_jobs: Option<u64>,
    /// Threads of the load generator
    #[arg(long, value_name = "N", default_value_t = 1)]
    generator_threads: usize,
    /// Give up when nothing moves for this many seconds while jobs are outstanding
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    deadline: f64,
    /// No progress
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

impl WindowOptions {
    fn warm_up(&self) -> Extent {
        self.warmup_jobs
            .map_or(Extent::Seconds(self.warmup), Extent::Jobs)
    }

    fn window(&self) -> Extent {
        self.jobs
            .map_or(Extent::Seconds(self.duration), Extent::Jobs)
    }

    pub(crate) fn check(&self, workload: &Workload) -> Result<()> {
        let seconds = [
            ("--duration", self.duration),
            ("--warmup", self.warmup),
            ("--deadline", self.deadline),
        ];
        for (what, value) in seconds {
            if !(0.0..=600.0).contains(&value) {
                return Err(Failure::usage(format!(
                    "{what} must be 0 to 600 seconds, not {value}"
                )));
            }
        }
        if self.jobs == Some(0) || self.generator_threads == 0 {
            return Err(Failure::usage(
                "--jobs and --generator-threads must be at least 1",
            ));
        }
        if self.generator_threads > workload.clients {
            return Err(Failure::usage(format!(
                "--generator-threads is at most the number of clients, {}",
                workload.clients
            )));
        }
        Ok(())
    }

    /// What to measure of a broker, for how long.
    pub(crate) fn course(&self, site: &Site) -> Course {
        let interval = (self.duration / POINTS).clamp(INTERVAL_SECS_MIN, INTERVAL_SECS_MAX);
        Course {
            warm_up: self.warm_up(),
            window: self.window(),
            interval: Duration::from_secs_f64(interval),
            administrative: site.addresses.administrative.clone(),
        }
    }

    /// The load on a broker.
    pub(crate) fn plan(
        &self,
        workload: &Workload,
        site: &Site,
        transport: Transport,
        pace: Pace,
    ) -> Plan {
        Plan {
            workload: workload.clone(),
            frontend: site.addresses.frontend.clone(),
            backend: site.addresses.backend.clone(),
            transport,
            manners: site.manners,
            pace,
            threads: self.generator_threads,
            deadline: Duration::from_secs_f64(self.deadline),
            is_broker: site.is_broker,
            tolerant: false,
        }
    }
}

/// An open loop of so many jobs per second.
pub(crate) fn open_pace(rate: f64) -> Pace {
    Pace::Open {
        interval_ns: 1e9 / rate,
    }
}

/// Rates that an open loop can be asked for.
pub(crate) fn check_rate(option: &str, rate: f64) -> Result<()> {
    if (0.1..=1e7).contains(&rate) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{option} must be 0.1 to 10000000 jobs per second, not {rate}"
    )))
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let workload = Workload::new(options.workload, &options.overrides)?;
    options.window.check(&workload)?;
    if let Some(rate) = options.rate {
        check_rate("--rate", rate)?;
    }
    if options.alternate == 0 {
        return Err(Failure::usage("--alternate must be at least 1"));
    }
    let specs = options.site.specs()?;
    report::check_writable(options.json.as_deref())?;
    interrupt::watch()?;
    let environment = Environment::now();
    let runs = hlog::recording(options.hlog.as_deref(), &mut |observe| {
        let mut runs = Vec::new();
        for round in 0..options.alternate {
            for spec in &specs {
                let mut site = options.site.open(spec, &workload)?;
                let pace = options.rate.map_or(Pace::Closed, open_pace);
                let transport = options.site.transport();
                let plan = options.window.plan(&workload, &site, transport, pace);
                let mut measured = measure_site(
                    &plan,
                    &mut site,
                    &options.window,
                    options.rate,
                    &mut |interval| observe(&spec.name, interval),
                )?;
                measured.round = round;
                report::print_run(&measured);
                runs.push(measured);
            }
        }
        Ok(runs)
    })?;
    let summary = report::summarise(&runs);
    if runs.len() > 1 {
        report::print_summary(&workload, &summary);
    }
    options.json.as_deref().map_or(Ok(()), |path| {
        report::write_json(
            path,
            &RunReport {
                environment,
                workload,
                summary,
                runs,
            },
        )
    })
}

/// Measures one run against `site`. A failure says which target it was, and whether that ended.
pub(crate) fn measure_site(
    plan: &Plan,
    site: &mut Site,
    window: &WindowOptions,
    rate: Option<f64>,
    observe: &mut dyn FnMut(&Interval) -> Result<()>,
) -> Result<Measured> {
    let title = format!("{} {}", plan.workload.name, site.name);
    let mut progress = Progress::new(title, window.quiet);
    let course = window.course(site);
    let result = measure::run(plan, &mut site.broker, &course, &mut progress, observe);
    drop(progress);
    let mut measured = result.map_err(|failure| site.explain(&plan.workload.name, &failure))?;
    measured.target.clone_from(&site.name);
    measured.offered_per_sec = rate;
    if let Broker::Spawned(spawned) = &site.broker {
        measured.cxxflags.clone_from(&spawned.addresses.cxxflags);
    }
    Ok(measured)
}
