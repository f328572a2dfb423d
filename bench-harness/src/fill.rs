//! `emq-bench fill`: memory of waiting jobs, then their way out.
//!
//! One client sends jobs to a queue that nobody serves; when all are accepted the broker's
//! resident memory is compared with that before. Then one worker takes them all: each must come
//! exactly once, in the order of sending.

use crate::cpu::{self, Sample};
use crate::environment::Environment;
use crate::failure::{Failure, Result};
use crate::handshake::{self, Opened};
use crate::place::{Place, PlaceOptions};
use crate::progress::{Progress, thousands};
use crate::report;
use crate::wire::{Frames, Msgid, ready, request};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// Jobs sent before their acceptances are awaited.
const BATCH: u32 = 1_024;
/// Jobs sent and taken before memory is looked at, so that buffers have their size.
const WARM_UP: u32 = BATCH;
const TAG: u32 = 0xf111_0000;

/// Options of `fill`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    place: PlaceOptions,
    /// Number of waiting jobs
    #[arg(long, value_name = "N", default_value_t = 1_000_000,
          value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    jobs: u32,
    /// Bytes in the message frame of each REQUEST
    #[arg(long, value_name = "BYTES", default_value_t = 120)]
    payload: u32,
    /// Queue of the jobs
    #[arg(long, value_name = "NAME", default_value = "default")]
    queue: String,
    /// Slots of the worker that takes them in the end
    #[arg(long, value_name = "N", default_value_t = 1_024,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    slots: u32,
    /// Write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// No progress
    #[arg(long, short)]
    quiet: bool,
}

/// What was found.
#[derive(Debug, Serialize)]
struct Report {
    environment: Environment,
    target: String,
    jobs: u32,
    /// Bytes of one REQUEST on the wire.
    wire_bytes: usize,
    resident_before: u64,
    resident_filled: u64,
    resident_drained: u64,
    bytes_per_job: f64,
    fill_jobs_per_sec: f64,
    fill_cpu_us_per_job: f64,
    drain_jobs_per_sec: f64,
    drain_cpu_us_per_job: f64,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let place = options.place.open()?;
    let report = measure(options, &place)?;
    println!(
        "{}: {} waiting jobs of {} bytes on the wire",
        report.target,
        thousands(u64::from(report.jobs)),
        report.wire_bytes
    );
    println!(
        "  resident bytes per waiting job: {:.1} (wire {:+.1}); {} before, {} filled, {} drained",
        report.bytes_per_job,
        report.bytes_per_job - report.wire_bytes as f64,
        thousands(report.resident_before),
        thousands(report.resident_filled),
        thousands(report.resident_drained)
    );
    for (what, rate, cpu) in [
        ("fill", report.fill_jobs_per_sec, report.fill_cpu_us_per_job),
        (
            "drain",
            report.drain_jobs_per_sec,
            report.drain_cpu_us_per_job,
        ),
    ] {
        println!(
            "  {what}: {} jobs/s, broker CPU {cpu:.3} µs/job",
            thousands(rate as u64)
        );
    }
    options
        .json
        .as_deref()
        .map_or(Ok(()), |path| report::write_json(path, &report))
}

/// Time and broker CPU of a part of the measurement, per job.
struct Phase {
    started: Instant,
    sample: Sample,
}

impl Phase {
    fn begin(pid: u32) -> Result<Self> {
        Ok(Phase {
            started: Instant::now(),
            sample: Sample::take(pid, |_| true)?,
        })
    }

    /// Jobs per second and µs of CPU per job.
    fn end(&self, pid: u32, jobs: u32) -> Result<(f64, f64)> {
        let seconds = self.started.elapsed().as_secs_f64();
        let used = cpu::total(&Sample::take(pid, |_| true)?.since(&self.sample));
        let jobs = f64::from(jobs);
        Ok((jobs / seconds, used.run_ns as f64 / 1e3 / jobs))
    }
}

fn measure(options: &Options, place: &Place) -> Result<Report> {
    let mut progress = Progress::new(format!("fill {}", place.name), options.quiet);
    let mut client = handshake::connect(&place.frontend, b"bench-fill-client")?;
    let send = |client: &mut Opened, from, to, progress: &mut Progress| {
        fill(client, options, from, to, progress)
    };
    send(&mut client, 0, WARM_UP, &mut progress)?;
    let before = cpu::resident_bytes(place.pid)?;
    let phase = Phase::begin(place.pid)?;
    let all = WARM_UP + options.jobs;
    send(&mut client, WARM_UP, all, &mut progress)?;
    let (fill_jobs_per_sec, fill_cpu_us_per_job) = phase.end(place.pid, options.jobs)?;
    let filled = cpu::resident_bytes(place.pid)?;
    let phase = Phase::begin(place.pid)?;
    drain(options, place, all, &mut progress)?;
    let (drain_jobs_per_sec, drain_cpu_us_per_job) = phase.end(place.pid, all)?;
    Ok(Report {
        environment: Environment::now(),
        target: place.name.clone(),
        jobs: options.jobs,
        wire_bytes: request(&options.queue, "", options.payload as usize).len(),
        resident_before: before,
        resident_filled: filled,
        resident_drained: cpu::resident_bytes(place.pid)?,
        bytes_per_job: filled.saturating_sub(before) as f64 / f64::from(options.jobs),
        fill_jobs_per_sec,
        fill_cpu_us_per_job,
        drain_jobs_per_sec,
        drain_cpu_us_per_job,
    })
}

/// Sends the jobs `from..to` and waits for their acceptances.
fn fill(
    client: &mut Opened,
    options: &Options,
    from: u32,
    to: u32,
    progress: &mut Progress,
) -> Result<()> {
    let template = request(&options.queue, "", options.payload as usize);
    let msgid = Msgid::new(TAG);
    let (mut sent, mut accepted) = (from, from);
    while sent < to {
        let mut out = Vec::new();
        let batch = BATCH.min(to - sent);
        for serial in sent..sent + batch {
            template.push(&mut out, msgid.with(0, serial).bytes());
        }
        client.send(&out)?;
        sent += batch;
        while accepted < sent {
            client.take_messages("an acceptance", |buf, frames| {
                if frames.get(buf, 2) == b"REPLY" && frames.count == 5 {
                    accepted += 1;
                    return Ok(());
                }
                Err(refused(buf, frames, accepted - from))
            })?;
        }
        progress.show("filling", u64::from(accepted), None);
    }
    Ok(())
}

fn refused(buf: &[u8], frames: &Frames, accepted: u32) -> Failure {
    let hint = match frames.get(buf, 5) {
        b"queue-full" => "; only the default queue is without a limit (setting hwm)",
        b"memory-full" => "; the broker's max_memory is reached",
        _ => "",
    };
    Failure::run(format!(
        "the broker answered {} {} after {accepted} accepted jobs{hint}",
        frames.get(buf, 2).escape_ascii(),
        frames.get(buf, 5).escape_ascii()
    ))
}

/// Takes all jobs with one worker.
fn drain(options: &Options, place: &Place, jobs: u32, progress: &mut Progress) -> Result<()> {
    let mut worker = handshake::connect(&place.backend, b"bench-fill-worker")?;
    worker.register_worker(&options.queue, Msgid::new(TAG).with(1, 0).bytes())?;
    let msgid = Msgid::new(TAG);
    let template = ready();
    let mut out = Vec::new();
    for _ in 0..options.slots {
        template.push(&mut out, msgid.with(2, 0).bytes());
    }
    let mut taken = 0;
    while taken < jobs {
        worker.send(&out)?;
        out.clear();
        worker
            .take_messages("the next waiting job", |buf, frames| {
                if frames.get(buf, 2) != b"REQUEST" {
                    return Ok(());
                }
                if frames.get(buf, 3) != msgid.with(0, taken).bytes() {
                    return Err(Failure::run(format!(
                        "job {taken} should have come next, but the worker was given {}",
                        frames.get(buf, 3).escape_ascii()
                    )));
                }
                taken += 1;
                template.push(&mut out, msgid.with(2, taken).bytes());
                Ok(())
            })
            .map_err(|failure| {
                Failure::run(format!("{taken} of {jobs} jobs came back: {failure}"))
            })?;
        progress.show("draining", u64::from(taken), None);
    }
    let goodbye = crate::wire::message(&[b"KBYE", msgid.with(3, 0).bytes()]);
    worker.send(&goodbye)
}
