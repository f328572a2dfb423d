//! `emq-bench status`: how long an administrative answer takes while the broker is busy and full.
//!
//! Workers without a free slot are registered, each for one queue; jobs wait in all of these queues;
//! other clients and workers put the load J120 on a queue of their own. Then one connection to the
//! administrative socket asks at a steady pace. The time of an answer counts from when it should
//! have been asked for, so that one that is late makes those behind it late, too.

use crate::admin::Admin;
use crate::environment::Environment;
use crate::failure::{Failure, Result};
use crate::generator::{self, Manners, Pace, Plan, Shared};
use crate::handshake::{self, Opened};
use crate::measure::{self, Latency, percentiles};
use crate::progress::{Progress, thousands};
use crate::report;
use crate::target::{Spawned, Spec};
use crate::transport::Transport;
use crate::wire::{Msgid, Template, message, request};
use crate::workload::{Name, Overrides, Workload};
use clap::Args;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// Jobs sent before their acceptances are awaited.
const BATCH: usize = 1_024;
const HEARTBEAT_SECS: u64 = 2;
const TAG: u32 = 0x57a7_0000;
/// The load runs so long before the first question.
const WARM_UP: Duration = Duration::from_secs(1);

/// Options of `status`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// What to start and measure: ours-inline, ours-dedicated, ours-auto, each optionally with
    /// @BINARY for another build of emq-bench; several with commas
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "ours-inline,ours-dedicated"
    )]
    target: Vec<Spec>,
    /// What is asked
    #[arg(long, value_delimiter = ',', default_value = "STATUS", value_name = "COMMAND",
          value_parser = ["STATUS", "ROUTER_SHOW_WORKERS", "LATENCY", "COUNTERS"])]
    command: Vec<String>,
    /// Registered workers, which take no job
    #[arg(long, value_name = "N", default_value_t = 1_000,
          value_parser = clap::value_parser!(u32).range(1..=8_000))]
    workers: u32,
    /// Queues, each with a worker and waiting jobs
    #[arg(long, value_name = "N", default_value_t = 1_000,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    queues: u32,
    /// Waiting jobs
    #[arg(long, value_name = "N", default_value_t = 1_000_000,
          value_parser = clap::value_parser!(u32).range(0..=100_000_000))]
    waiting: u32,
    /// Questions
    #[arg(long, value_name = "N", default_value_t = 300,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,
    /// Milliseconds between two
    #[arg(long, value_name = "MS", default_value_t = 50,
          value_parser = clap::value_parser!(u64).range(1..=60_000))]
    interval_ms: u64,
    /// No load meanwhile
    #[arg(long)]
    idle: bool,
    /// Write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// No progress
    #[arg(long, short)]
    quiet: bool,
}

/// What was found of one target and command.
#[derive(Debug, Serialize)]
struct Found {
    target: String,
    command: String,
    /// Of one answer.
    bytes: usize,
    latency: Latency,
    /// Of the load while questions were asked; `null` without a load.
    jobs_per_sec: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Report {
    environment: Environment,
    workers: u32,
    queues: u32,
    waiting: u32,
    interval_ms: u64,
    found: Vec<Found>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let files = eventmq::runtime::open_files::raise_open_files();
    if let Some(line) = files.too_few_for(u64::from(options.workers)) {
        return Err(Failure::run(line));
    }
    let mut found = Vec::new();
    for spec in &options.target {
        if spec.threading().is_none() && !spec.name.starts_with("ours-") {
            return Err(Failure::usage(format!(
                "{} has no administrative socket of ours; choose ours-inline, ours-dedicated, \
                 ours-auto",
                spec.name
            )));
        }
        found.extend(measure(options, spec)?);
    }
    println!(
        "{} workers, {} queues, {} waiting jobs{}",
        thousands(u64::from(options.workers)),
        thousands(u64::from(options.queues)),
        thousands(u64::from(options.waiting)),
        if options.idle {
            ""
        } else {
            ", and J120 on a queue of its own"
        }
    );
    let mut rows = vec![
        [
            "target",
            "asked",
            "bytes",
            "p50",
            "p99",
            "p99.9",
            "max",
            "load, jobs/s",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for one in &found {
        let ms = |us: f64| format!("{:.2} ms", us / 1e3);
        let load = one
            .jobs_per_sec
            .map_or("-".to_owned(), |rate| thousands(rate as u64));
        rows.push(vec![
            one.target.clone(),
            one.command.clone(),
            thousands(one.bytes as u64),
            ms(one.latency.p50_us),
            ms(one.latency.p99_us),
            ms(one.latency.p999_us),
            ms(one.latency.max_us),
            load,
        ]);
    }
    print!("{}", report::align(&rows));
    options.json.as_deref().map_or(Ok(()), |path| {
        let report = Report {
            environment: Environment::now(),
            workers: options.workers,
            queues: options.queues,
            waiting: options.waiting,
            interval_ms: options.interval_ms,
            found,
        };
        report::write_json(path, &report)
    })
}

fn measure(options: &Options, spec: &Spec) -> Result<Vec<Found>> {
    let overrides = Overrides::of_queue("load");
    let workload = Workload::new(Name::J120, &overrides)?;
    let spawned = Spawned::start(spec, &workload)?;
    let addresses = spawned.addresses.clone();
    let Some(administrative) = &addresses.administrative else {
        return Err(Failure::run(format!(
            "{} has no administrative address",
            spec.name
        )));
    };
    let mut progress = Progress::new(format!("status {}", spec.name), options.quiet);
    let mut workers = Vec::new();
    for index in 0..options.workers {
        let identity = format!("bench-status-worker-{index}");
        let mut worker = handshake::connect(&addresses.backend, identity.as_bytes())?;
        worker.register_worker(&queue(index % options.queues), Msgid::new(TAG).bytes())?;
        workers.push(worker);
        progress.show("registering", u64::from(index), None);
    }
    // They must not be taken for lost, however long filling takes.
    let over = Arc::new(AtomicBool::new(false));
    let alive = thread::spawn({
        let over = Arc::clone(&over);
        move || keep_alive(workers, &over)
    });
    let result = (|| {
        let mut client = handshake::connect(&addresses.frontend, b"bench-status-client")?;
        fill(options, &mut client, &mut progress)?;
        let plan = Plan {
            workload,
            frontend: addresses.frontend.clone(),
            backend: addresses.backend.clone(),
            transport: Transport::Native,
            manners: Manners::Full,
            pace: Pace::Closed,
            threads: 1,
            deadline: Duration::from_secs(10),
            is_broker: true,
            tolerant: false,
        };
        let shared = Arc::new(Shared::new(1));
        let running = match options.idle {
            true => None,
            false => Some(generator::spawn(&plan, &shared)?),
        };
        thread::sleep(if options.idle {
            Duration::ZERO
        } else {
            WARM_UP
        });
        let mut admin = Admin::connect(administrative)?;
        let mut found = Vec::new();
        let asked: Result<()> = options.command.iter().try_for_each(|command| {
            let begun = (Instant::now(), shared.done.load(Ordering::Relaxed));
            let (bytes, latency) = ask(options, &mut admin, command, &mut progress)?;
            let jobs = shared.done.load(Ordering::Relaxed) - begun.1;
            let rate = jobs as f64 / begun.0.elapsed().as_secs_f64();
            found.push(Found {
                target: spec.name.clone(),
                command: command.clone(),
                bytes,
                latency: percentiles(&latency),
                jobs_per_sec: (!options.idle).then_some(rate),
            });
            Ok(())
        });
        if let Some(running) = running {
            measure::end(&shared, running, asked.is_err())?;
        }
        asked.map(|()| found)
    })();
    over.store(true, Ordering::Relaxed);
    let kept = alive
        .join()
        .map_err(|_| Failure::run("the thread of the workers panicked"))?;
    // What went wrong first is the reason for the rest.
    let found = result?;
    kept?;
    Ok(found)
}

fn queue(index: u32) -> String {
    format!("status-{index}")
}

/// Sends the waiting jobs, spread over the queues, and waits for their acceptances.
fn fill(options: &Options, client: &mut Opened, progress: &mut Progress) -> Result<()> {
    let templates: Vec<Template> = (0..options.queues)
        .map(|index| request(&queue(index), "", 120))
        .collect();
    let (mut sent, mut accepted) = (0_u32, 0_u32);
    while sent < options.waiting {
        let mut out = Vec::new();
        let until = options.waiting.min(sent + BATCH as u32);
        for serial in sent..until {
            let template = &templates[(serial % options.queues) as usize];
            template.push(&mut out, Msgid::new(TAG).with(0, serial).bytes());
        }
        client.send(&out)?;
        sent = until;
        while accepted < sent {
            client.take_messages("an acceptance", |buf, frames| {
                if frames.get(buf, 2) == b"REPLY" && frames.count == 5 {
                    accepted += 1;
                    return Ok(());
                }
                Err(Failure::run(format!(
                    "the broker answered {} {} after {accepted} accepted jobs",
                    frames.get(buf, 2).escape_ascii(),
                    frames.get(buf, 5).escape_ascii()
                )))
            })?;
        }
        progress.show("filling", u64::from(accepted), None);
    }
    Ok(())
}

/// HEARTBEATs until it is over.
fn keep_alive(mut workers: Vec<Opened>, over: &AtomicBool) -> Result<()> {
    let mut due = Instant::now();
    while !over.load(Ordering::Relaxed) {
        if Instant::now() < due {
            thread::sleep(Duration::from_millis(20));
            continue;
        }
        due += Duration::from_secs(HEARTBEAT_SECS);
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let text = format!("{:.3}", since_epoch.unwrap_or_default().as_secs_f64());
        let beat = message(&[b"HEARTBEAT", Msgid::new(TAG).bytes(), text.as_bytes()]);
        for worker in &mut workers {
            worker.discard_received()?;
            worker.send(&beat)?;
        }
    }
    Ok(())
}

/// Asks at a steady pace. Bytes of the last answer, and nanoseconds of all.
fn ask(
    options: &Options,
    admin: &mut Admin,
    command: &str,
    progress: &mut Progress,
) -> Result<(usize, Histogram<u64>)> {
    let mut latency = generator::tally::latency_histogram();
    let interval = Duration::from_millis(options.interval_ms);
    let start = Instant::now();
    let mut bytes = 0;
    for number in 0..options.count {
        let due = start + interval * number;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        bytes = admin.ask_text(command)?.len();
        latency.saturating_record(due.elapsed().as_nanos() as u64);
        progress.show("asking", u64::from(number), None);
    }
    Ok((bytes, latency))
}
