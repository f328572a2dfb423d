//! `emq-bench`: load generator and reference brokers for EventMQ.
//!
//! `emq-bench run` starts a broker (this program again, as another process), puts a load on it,
//! and reports rate, latency, and the broker's CPU time per job, next to what a forwarder that
//! parses nothing (`floor`) and two libzmq ROUTER sockets (`libzmq`) need for the same load.
//! docs/bench.md tells how to use it and how to read the numbers.

mod admin;
mod broker;
mod broker_view;
mod child;
mod compare;
mod conn;
mod cpu;
mod environment;
mod failure;
mod fanout;
mod fill;
mod floor;
mod generator;
mod handshake;
mod hlog;
mod idle;
mod interrupt;
#[cfg(feature = "libzmq")]
mod libzmq;
mod measure;
mod page;
mod place;
mod progress;
mod rate;
mod report;
mod run;
mod service;
mod site;
mod soak;
mod status;
mod target;
mod transport;
mod wire;
mod workload;
#[cfg(feature = "libzmq")]
mod zmq_stream;

use clap::{Parser, Subcommand};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;
use std::process::ExitCode;

/// Counts allocations of the whole process: the bar is at most 100 in 100,000 jobs. A counter
/// costs two atomic additions per call, nothing for a broker that does not allocate.
#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Allocations and reallocations of this process so far.
pub(crate) fn allocations() -> u64 {
    let stats = ALLOCATOR.stats();
    (stats.allocations + stats.reallocations) as u64
}

/// Measures EventMQ brokers under load
#[derive(Debug, Parser)]
#[command(name = "emq-bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Put a load on one or several brokers and compare them
    Run(Box<run::Options>),
    /// Send at fixed, rising rates: latency by rate, and where it bends
    Rate(Box<rate::Options>),
    /// Put a load on a broker for long, with faults, and account for every job
    Soak(Box<soak::Options>),
    /// Measure two targets in alternation: ratios pair by pair
    Compare(Box<compare::Options>),
    /// Make one HTML page of results, with pictures and comparison
    Report(page::Options),
    /// Let jobs wait without a worker: memory per job, then take them all
    Fill(Box<fill::Options>),
    /// Open connections that do nothing: memory and CPU
    Idle(Box<idle::Options>),
    /// Ask a busy and full broker for its status: how long an answer takes
    Status(status::Options),
    /// Publish to many subscribers and compare publishers
    Fanout(Box<fanout::Options>),
    /// Be the broker of this project (started by run)
    Broker(broker::Options),
    /// Be the reference that forwards and parses nothing (started by run)
    Floor(floor::Options),
    /// Be the reference on two libzmq ROUTER sockets (started by run)
    #[cfg(feature = "libzmq")]
    Libzmq,
    /// Be the publisher of this project (started by fanout)
    Publisher,
    /// Be the publisher on a ROUTER and a PUB socket of libzmq (started by fanout)
    #[cfg(feature = "libzmq")]
    LibzmqPublisher,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Run(options) => run::run(&options),
        Command::Rate(options) => rate::run(&options),
        Command::Soak(options) => soak::run(&options),
        Command::Compare(options) => compare::run(&options),
        Command::Report(options) => page::run(&options),
        Command::Fill(options) => fill::run(&options),
        Command::Idle(options) => idle::run(&options),
        Command::Status(options) => status::run(&options),
        Command::Broker(options) => broker::run(&options),
        Command::Floor(options) => floor::run(&options),
        #[cfg(feature = "libzmq")]
        Command::Libzmq => libzmq::run(),
        Command::Fanout(options) => fanout::run(&options),
        Command::Publisher => broker::run_publisher(),
        #[cfg(feature = "libzmq")]
        Command::LibzmqPublisher => libzmq::run_publisher(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("emq-bench: {failure}");
            ExitCode::from(failure.code())
        }
    }
}
