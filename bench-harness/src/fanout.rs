//! `emq-bench fanout`: one publisher, many subscribers.
//!
//! Each target in turn, round by round: a spawned publisher gets PUBLISHes from one connection and
//! sends each to every subscriber. The generator lets only so many be under way that nobody has to
//! drop, and counts every byte: a message that does not come makes the run fail.

use crate::cpu::{self, Sample};
use crate::environment::Environment;
use crate::failure::{Failure, Result};
use crate::handshake::{self, Opened};
use crate::report;
use crate::target::{Spawned, Spec};
use clap::Args;
use eventmq::frames::OwnedMessage;
use serde::Serialize;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Messages written at once.
const BATCH: u64 = 100;
/// Messages that may be under way.
const WINDOW: u64 = 2_000;
/// Longest wait for messages that are under way.
const MISSING_SECS_MAX: u64 = 10;
const TOPIC: &[u8] = b"bench.topic";

/// Options of `fanout`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Publishers to compare: ours, libzmq
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "ours"
    )]
    target: Vec<String>,
    /// Subscribers that get every message
    #[arg(long, value_name = "N", default_value_t = 10)]
    subscribers: usize,
    /// Subscribers that get none
    #[arg(long, value_name = "N", default_value_t = 0)]
    others: usize,
    /// Bytes of a message
    #[arg(long, value_name = "BYTES", default_value_t = 120)]
    payload: usize,
    /// Seconds for each target in each round
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    duration: f64,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// Write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One target in one round.
#[derive(Debug, Serialize)]
struct Round {
    target: String,
    published: u64,
    delivered: u64,
    seconds: f64,
    published_per_second: f64,
    delivered_per_second: f64,
    cpu_us_per_published: f64,
    cpu_us_per_delivered: f64,
    /// Time the publisher's threads waited for a core.
    waited_us_per_published: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    environment: Environment,
    subscribers: usize,
    others: usize,
    payload: usize,
    rounds: Vec<Round>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.subscribers == 0 || !(0.1..=600.0).contains(&options.duration) {
        return Err(Failure::usage(
            "--subscribers must be at least 1, --duration 0.1 to 600",
        ));
    }
    let mut specs = Vec::new();
    for name in &options.target {
        let spec = match name.as_str() {
            "ours" => Spec::publisher(false),
            "libzmq" => Spec::publisher(true),
            other => {
                let line = format!("unknown target {other:?}; there are ours and libzmq");
                return Err(Failure::usage(line));
            }
        };
        spec.check_built_in()?;
        specs.push(spec);
    }
    let mut report = Report {
        environment: Environment::now(),
        subscribers: options.subscribers,
        others: options.others,
        payload: options.payload,
        rounds: Vec::new(),
    };
    for _ in 0..options.rounds {
        for spec in &specs {
            let round = measure(spec, options)?;
            println!(
                "{:8} {:>10.0} published/s {:>11.0} delivered/s {:>7.3} us CPU/published \
                 {:>7.3} us CPU/delivered",
                round.target,
                round.published_per_second,
                round.delivered_per_second,
                round.cpu_us_per_published,
                round.cpu_us_per_delivered,
            );
            report.rounds.push(round);
        }
    }
    options
        .json
        .as_deref()
        .map_or(Ok(()), |path| report::write_json(path, &report))
}

/// What a subscriber has got so far, in messages.
struct Counted {
    bytes: Vec<AtomicU64>,
    message_bytes: u64,
    ended: AtomicBool,
}

impl Counted {
    /// Messages that every subscriber has.
    fn all_have(&self) -> u64 {
        let bytes = self.bytes.iter().map(|n| n.load(Ordering::Relaxed));
        bytes.min().unwrap_or(0) / self.message_bytes
    }
}

/// Frames on the wire.
fn message(frames: &[&[u8]]) -> Vec<u8> {
    OwnedMessage::from_frames(frames).view().wire().to_vec()
}

fn measure(spec: &Spec, options: &Options) -> Result<Round> {
    let spawned = Spawned::start_publisher(spec)?;
    let text = vec![b'x'; options.payload];
    let delivered = message(&[TOPIC, &text]);
    let published = message(&[b"", b"eMQP/1.0", b"PUBLISH", b"m", TOPIC, &text]);
    let batch = published.repeat(BATCH as usize);
    let counted = Arc::new(Counted {
        bytes: (0..options.subscribers)
            .map(|_| AtomicU64::new(0))
            .collect(),
        message_bytes: delivered.len() as u64,
        ended: AtomicBool::new(false),
    });
    let mut others = Vec::new();
    for n in 0..options.others {
        let mut other = handshake::connect_subscriber(&spawned.addresses.backend)?;
        other.send(&message(&[format!("\x01other.{n}").as_bytes()]))?;
        others.push(other);
    }
    let mut threads = Vec::new();
    for n in 0..options.subscribers {
        let mut subscriber = handshake::connect_subscriber(&spawned.addresses.backend)?;
        subscriber.send(&message(&[b"\x01bench."]))?;
        let counted = Arc::clone(&counted);
        threads.push(thread::spawn(move || count(subscriber, n, &counted)));
    }
    let mut publisher = handshake::connect(&spawned.addresses.frontend, b"publisher")?;
    let mut sent = warm_up(&mut publisher, &published, &counted)?;
    let pid = spawned.pid();
    let all = |_: &str| true;
    let (began, before, first) = (Instant::now(), Sample::take(pid, all)?, sent);
    let until = began + Duration::from_secs_f64(options.duration);
    while Instant::now() < until {
        publisher.send(&batch)?;
        sent += BATCH;
        wait_for(&counted, sent.saturating_sub(WINDOW))?;
    }
    wait_for(&counted, sent)?;
    let seconds = began.elapsed().as_secs_f64();
    let used = cpu::total(&Sample::take(pid, all)?.since(&before));
    counted.ended.store(true, Ordering::Relaxed);
    drop(spawned);
    for thread in threads {
        // A subscriber's thread has nothing to say at the end.
        let _ = thread.join();
    }
    let published = sent - first;
    let delivered = published * options.subscribers as u64;
    let us = used.run_ns as f64 / 1e3;
    Ok(Round {
        target: spec.name.clone(),
        published,
        delivered,
        seconds,
        published_per_second: published as f64 / seconds,
        delivered_per_second: delivered as f64 / seconds,
        cpu_us_per_published: us / published as f64,
        cpu_us_per_delivered: us / delivered as f64,
        waited_us_per_published: used.wait_ns as f64 / 1e3 / published as f64,
    })
}

/// Subscriptions take effect some time after they were sent: publishes one message after the other
/// until all subscribers get them, then starts counting there. Returns the messages that count.
fn warm_up(publisher: &mut Opened, published: &[u8], counted: &Counted) -> Result<u64> {
    let until = Instant::now() + Duration::from_secs(MISSING_SECS_MAX);
    while counted.all_have() == 0 {
        if Instant::now() > until {
            return Err(Failure::run("not every subscriber gets messages"));
        }
        publisher.send(published)?;
        thread::sleep(Duration::from_millis(5));
    }
    // What is under way arrives; from here on everybody has the same.
    thread::sleep(Duration::from_millis(300));
    for bytes in &counted.bytes {
        bytes.store(0, Ordering::Relaxed);
    }
    Ok(0)
}

fn wait_for(counted: &Counted, messages: u64) -> Result<()> {
    let mut until = None;
    while counted.all_have() < messages {
        let now = Instant::now();
        let until = *until.get_or_insert(now + Duration::from_secs(MISSING_SECS_MAX));
        if now > until {
            let have = counted.all_have();
            return Err(Failure::run(format!(
                "a subscriber has {have} of {messages} messages: some were dropped"
            )));
        }
        thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

/// Reads to the end and counts.
fn count(mut subscriber: Opened, n: usize, counted: &Counted) {
    let mut scratch = vec![0; 256 * 1024];
    while !counted.ended.load(Ordering::Relaxed) {
        match subscriber.stream.read(&mut scratch) {
            Ok(0) | Err(_) => return,
            Ok(bytes) => counted.bytes[n].fetch_add(bytes as u64, Ordering::Relaxed),
        };
    }
}
