//! `emq-bench run`: one workload against one or several targets, in turns.

use crate::broker;
use crate::environment::Environment;
use crate::failure::{Failure, Result};
use crate::generator::{Pace, Plan};
use crate::measure::{self, Broker, Extent, Measured};
use crate::progress::Progress;
use crate::report::{self, RunReport};
use crate::target::{Spawned, Spec};
use crate::workload::{Name, Overrides, Workload};
use clap::Args;
use eventmq::addr::Addr;
use std::path::PathBuf;
use std::time::Duration;

/// Options of `run`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The load
    #[arg(long, value_enum, default_value = "J120")]
    workload: Name,
    #[command(flatten)]
    overrides: Overrides,
    /// What to start and measure: ours-inline, ours-dedicated, ours-auto, floor, libzmq, each
    /// optionally with @BINARY for another build of emq-bench; several with commas
    #[arg(long, value_delimiter = ',', default_value = "ours-inline")]
    target: Vec<Spec>,
    /// Run the broker (ours-*) on threads of this process; with a debugger or profiler both are seen
    #[arg(long, conflicts_with = "frontend")]
    in_process: bool,
    /// Rounds; each round measures every target once
    #[arg(long, value_name = "N", default_value_t = 1)]
    alternate: usize,
    /// Frontend of a broker that runs already, instead of --target
    #[arg(
        long,
        value_name = "ADDRESS",
        requires = "backend",
        conflicts_with = "target"
    )]
    frontend: Option<Addr>,
    /// Backend of a broker that runs already
    #[arg(long, value_name = "ADDRESS", requires = "frontend")]
    backend: Option<Addr>,
    /// Process id of that broker, to measure its CPU time
    #[arg(long, requires = "frontend")]
    pid: Option<u32>,
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
    /// Send this many jobs per second at fixed times (open loop) instead of one for each result
    #[arg(long, value_name = "JOBS")]
    rate: Option<f64>,
    /// Threads of the load generator
    #[arg(long, value_name = "N", default_value_t = 1)]
    generator_threads: usize,
    /// Give up when nothing moves for this many seconds while jobs are outstanding
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    deadline: f64,
    /// Write results, environment and all runs to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// No progress
    #[arg(long, short)]
    quiet: bool,
}

impl Options {
    fn warm_up(&self) -> Extent {
        self.warmup_jobs
            .map_or(Extent::Seconds(self.warmup), Extent::Jobs)
    }

    fn window(&self) -> Extent {
        self.jobs
            .map_or(Extent::Seconds(self.duration), Extent::Jobs)
    }

    fn pace(&self) -> Pace {
        self.rate.map_or(Pace::Closed, |rate| Pace::Open {
            interval_ns: (1e9 / rate) as u64,
        })
    }

    fn check(&self, workload: &Workload) -> Result<()> {
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
        if self.rate.is_some_and(|rate| !(0.1..=1e7).contains(&rate)) {
            return Err(Failure::usage(
                "--rate must be 0.1 to 10000000 jobs per second",
            ));
        }
        if self.jobs == Some(0) || self.alternate == 0 || self.generator_threads == 0 {
            return Err(Failure::usage(
                "--jobs, --alternate and --generator-threads must be at least 1",
            ));
        }
        if self.generator_threads > workload.clients {
            return Err(Failure::usage(format!(
                "--generator-threads is at most the number of clients, {}",
                workload.clients
            )));
        }
        if workload.workers == 0 && self.frontend.is_none() {
            return Err(Failure::usage(
                "--workers 0 needs a broker with workers of its own: give --frontend and --backend",
            ));
        }
        self.target.iter().try_for_each(Spec::check_built_in)
    }
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let workload = Workload::new(options.workload, &options.overrides)?;
    options.check(&workload)?;
    let mut runs = Vec::new();
    for round in 0..options.alternate {
        if let (Some(frontend), Some(backend)) = (&options.frontend, &options.backend) {
            let plan = plan(options, &workload, frontend, backend, true);
            let mut broker = Broker::External(options.pid);
            runs.push(measure_one(options, &plan, &mut broker, "external", round)?);
            continue;
        }
        for spec in &options.target {
            if options.in_process {
                let threading = spec.threading().ok_or_else(|| {
                    Failure::usage("--in-process runs ours-inline, ours-dedicated, ours-auto only")
                })?;
                let (_server, addresses) = broker::start_in_process(threading)?;
                let plan = plan(
                    options,
                    &workload,
                    &addresses.frontend,
                    &addresses.backend,
                    true,
                );
                runs.push(measure_one(
                    options,
                    &plan,
                    &mut Broker::InProcess,
                    &spec.name,
                    round,
                )?);
                continue;
            }
            let mut spawned = Spawned::start(spec, &workload)?;
            let addresses = spawned.addresses.clone();
            let is_broker = spec.is_broker();
            let plan = plan(
                options,
                &workload,
                &addresses.frontend,
                &addresses.backend,
                is_broker,
            );
            let mut broker = Broker::Spawned(&mut spawned);
            runs.push(measure_one(options, &plan, &mut broker, &spec.name, round)?);
        }
    }
    let summary = report::summarise(&runs);
    if runs.len() > 1 {
        report::print_summary(&workload, &summary);
    }
    if let Some(path) = &options.json {
        let environment = Environment::now();
        report::write_json(
            path,
            &RunReport {
                environment,
                workload,
                summary,
                runs,
            },
        )?;
    }
    Ok(())
}

fn plan(
    options: &Options,
    workload: &Workload,
    frontend: &Addr,
    backend: &Addr,
    is_broker: bool,
) -> Plan {
    Plan {
        workload: workload.clone(),
        frontend: frontend.clone(),
        backend: backend.clone(),
        pace: options.pace(),
        threads: options.generator_threads,
        deadline: Duration::from_secs_f64(options.deadline),
        is_broker,
    }
}

fn measure_one(
    options: &Options,
    plan: &Plan,
    broker: &mut Broker<'_>,
    name: &str,
    round: usize,
) -> Result<Measured> {
    let mut progress = Progress::new(format!("{} {name}", plan.workload.name), options.quiet);
    let result = measure::run(
        plan,
        broker,
        options.warm_up(),
        options.window(),
        &mut progress,
    );
    drop(progress);
    let mut measured = result.map_err(|failure| {
        let ended = match broker {
            Broker::Spawned(spawned) => spawned.exit_status(),
            _ => None,
        };
        let ended = ended.map_or_else(String::new, |status| {
            format!(" (the broker ended: {status})")
        });
        Failure::run(format!(
            "{} against {name}: {failure}{ended}",
            plan.workload.name
        ))
    })?;
    measured.target = name.to_owned();
    if let Broker::Spawned(spawned) = broker {
        measured.cxxflags.clone_from(&spawned.addresses.cxxflags);
    }
    measured.round = round;
    report::print_run(&measured);
    Ok(measured)
}
