//! `emq-cli`: the administrative commands for people and scripts.
//!
//! Owns: the command line, a small blocking client of the administrative socket
//! ([`AdminClient`]), and the tables people read. May import layers 0-5, never `broker` or
//! `server`. Invariants: nothing from the broker reaches a terminal unescaped; every wait has the
//! deadline of `--timeout`; an error is one line.

mod client;
mod show;
mod table;

pub use client::{AdminClient, CliError};

use crate::addr::Addr;
use crate::admin_api::AdminCommand;
use clap::{Parser, Subcommand};
use std::io::Write;
use std::time::Duration;

/// Command line of `emq-cli`.
#[derive(Debug, Parser)]
#[command(
    name = "emq-cli",
    version,
    about = "Asks an EventMQ broker about its state"
)]
pub struct Args {
    /// The broker's administrative address.
    #[arg(
        short,
        long,
        global = true,
        value_name = "ADDR",
        env = "EVENTMQ_ADMINISTRATIVE_ADDR",
        default_value = "tcp://127.0.0.1:47293"
    )]
    addr: Addr,
    /// Longest wait for the answer, in seconds.
    #[arg(
        long,
        global = true,
        value_name = "S",
        default_value = "5",
        value_parser = timeout_from_text
    )]
    timeout: Duration,
    /// Print the answer as it comes: JSON on one line.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum Command {
    /// Jobs by queue, and jobs handed to each worker.
    Status,
    /// Registered workers, and who serves each queue.
    ShowWorkers,
    /// Registered schedulers.
    ShowSchedulers,
    /// How long jobs wait and run, by queue.
    Latency {
        /// The last whole interval instead of everything since start.
        #[arg(long)]
        interval: bool,
    },
    /// Counters, memory, connections, agents.
    Counters {
        /// Also counters that are 0.
        #[arg(long)]
        all: bool,
    },
    /// Shut the broker down in good order.
    Shutdown,
}

fn timeout_from_text(text: &str) -> Result<Duration, &'static str> {
    let seconds = text
        .parse()
        .ok()
        .filter(|s: &f64| (0.001..=86_400.0).contains(s));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or("expected seconds from 0.001 to 86400")
}

/// Carries out one command and writes its answer to `out`.
///
/// # Errors
/// The broker cannot be reached, does not answer in time, or answers something else.
pub fn run(args: &Args, out: &mut impl Write) -> Result<(), CliError> {
    let admin_command = match args.command {
        Command::Status => AdminCommand::Status,
        Command::ShowWorkers => AdminCommand::ShowWorkers,
        Command::ShowSchedulers => AdminCommand::ShowSchedulers,
        Command::Latency { .. } => AdminCommand::Latency,
        Command::Counters { .. } => AdminCommand::Counters,
        Command::Shutdown => AdminCommand::Disconnect,
    };
    let mut client = AdminClient::connect(&args.addr, args.timeout)?;
    let text = match client.request(admin_command)? {
        None if args.json => "{\"acknowledged\": true}\n".to_owned(),
        None => format!("{}: acknowledged, the broker is shutting down\n", args.addr),
        Some(json) if args.json => json + "\n",
        Some(json) => {
            let value = serde_json::from_str(&json).map_err(|error| CliError::Answer {
                addr: args.addr.clone(),
                what: format!("not JSON: {error}"),
            })?;
            match args.command {
                Command::Status => show::status(&value),
                Command::ShowWorkers => show::workers(&value),
                Command::ShowSchedulers => show::schedulers(&value),
                Command::Latency { interval } => show::latency(&value, interval),
                Command::Counters { all } => show::counters(&value, all),
                Command::Shutdown => String::new(),
            }
        }
    };
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(CliError::Output)
}

#[cfg(test)]
mod tests;
