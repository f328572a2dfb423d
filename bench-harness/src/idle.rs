//! `emq-bench idle`: what connections cost that do nothing.
//!
//! Clients finish their handshake and stay silent; workers are registered and exchange heartbeats.

use crate::cpu::{self, Sample};
use crate::environment::Environment;
use crate::failure::{Failure, Result};
use crate::handshake::{self, Opened};
use crate::place::{Place, PlaceOptions};
use crate::progress::thousands;
use crate::report;
use crate::wire::{Msgid, message};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

const HEARTBEAT_SECS: f64 = 2.0;
const TAG: u32 = 0x1d1e_0000;
/// After the last handshake the broker gets this long to become quiet.
const SETTLE_MS: u64 = 500;

/// Options of `idle`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    place: PlaceOptions,
    /// Silent connections to the frontend
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    connections: usize,
    /// Registered workers with heartbeats
    #[arg(long, value_name = "N", default_value_t = 0)]
    workers: usize,
    /// Seconds to watch
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    duration: f64,
    /// Write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What was found.
#[derive(Debug, Serialize)]
struct Report {
    environment: Environment,
    target: String,
    connections: usize,
    workers: usize,
    resident_before: u64,
    resident_after: u64,
    bytes_per_connection: f64,
    /// Broker CPU of one handshake, µs.
    connect_cpu_us: f64,
    /// Part of a core used while idle, 0 to 1.
    busy: f64,
    seconds: f64,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let total = options.connections + options.workers;
    if total < 2 || !(0.1..=600.0).contains(&options.duration) {
        return Err(Failure::usage(
            "--connections and --workers must be at least 2 together, --duration 0.1 to 600",
        ));
    }
    let files = eventmq::runtime::open_files::raise_open_files();
    if let Some(line) = files.too_few_for(total as u64) {
        return Err(Failure::run(line));
    }
    let place = options.place.open()?;
    let report = measure(options, &place)?;
    println!(
        "{}: {} idle connections, {} workers with heartbeats",
        report.target, report.connections, report.workers
    );
    println!(
        "  resident bytes per connection: {:.0}; {} before, {} after",
        report.bytes_per_connection,
        thousands(report.resident_before),
        thousands(report.resident_after)
    );
    println!(
        "  CPU: {:.3} % of a core over {:.1} s; {:.1} µs to connect",
        100.0 * report.busy,
        report.seconds,
        report.connect_cpu_us
    );
    options
        .json
        .as_deref()
        .map_or(Ok(()), |path| report::write_json(path, &report))
}

fn measure(options: &Options, place: &Place) -> Result<Report> {
    // One connection of each kind first, so that what exists once is not counted.
    let (clients, workers) = (options.connections, options.workers);
    let mut first = open(options, place, 0..clients.min(1), 0..workers.min(1))?;
    thread::sleep(Duration::from_millis(SETTLE_MS));
    let sample = || Sample::take(place.pid, |_| true);
    let (before, resident_before) = (sample()?, cpu::resident_bytes(place.pid)?);
    let (clients, mut workers) = open(options, place, 1..clients, 1..workers)?;
    let total = (clients.len() + workers.len()).max(1) as f64;
    thread::sleep(Duration::from_millis(SETTLE_MS));
    let connected = sample()?;
    let connect_ns = cpu::total(&connected.since(&before)).run_ns;
    let started = Instant::now();
    while started.elapsed().as_secs_f64() < options.duration {
        workers
            .iter_mut()
            .chain(&mut first.1)
            .try_for_each(heartbeat)?;
        let left = options.duration - started.elapsed().as_secs_f64();
        thread::sleep(Duration::from_secs_f64(left.clamp(0.0, HEARTBEAT_SECS)));
    }
    let seconds = started.elapsed().as_secs_f64();
    let idle_ns = cpu::total(&sample()?.since(&connected)).run_ns;
    let resident_after = cpu::resident_bytes(place.pid)?;
    Ok(Report {
        environment: Environment::now(),
        target: place.name.clone(),
        connections: options.connections,
        workers: options.workers,
        resident_before,
        resident_after,
        bytes_per_connection: resident_after.saturating_sub(resident_before) as f64 / total,
        connect_cpu_us: connect_ns as f64 / 1e3 / total,
        busy: idle_ns as f64 / 1e9 / seconds,
        seconds,
    })
}

type Both = (Vec<Opened>, Vec<Opened>);

fn open(
    options: &Options,
    place: &Place,
    clients: std::ops::Range<usize>,
    workers: std::ops::Range<usize>,
) -> Result<Both> {
    let count = format!(
        "{} connections and {} workers",
        options.connections, options.workers
    );
    let explain = |failure: Failure| {
        Failure::run(format!(
            "while opening {count}: {failure}; the broker may have a limit"
        ))
    };
    let client = |index| {
        let identity = format!("bench-idle-client-{index}");
        handshake::connect(&place.frontend, identity.as_bytes()).map_err(explain)
    };
    let worker = |index: usize| {
        let identity = format!("bench-idle-worker-{index}");
        let mut opened =
            handshake::connect(&place.backend, identity.as_bytes()).map_err(explain)?;
        opened.register_worker("default", Msgid::new(TAG).with(0, index as u32).bytes())?;
        Ok(opened)
    };
    Ok((
        clients.map(client).collect::<Result<_>>()?,
        workers.map(worker).collect::<Result<_>>()?,
    ))
}

/// Says HEARTBEAT and throws away what the broker said meanwhile.
fn heartbeat(worker: &mut Opened) -> Result<()> {
    let since_epoch = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let text = format!("{:.3}", since_epoch.as_secs_f64());
    worker.discard_received()?;
    worker.send(&message(&[
        b"HEARTBEAT",
        Msgid::new(TAG).bytes(),
        text.as_bytes(),
    ]))
}
