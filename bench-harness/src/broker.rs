//! `emq-bench broker`: this project's broker with its default settings, started by `run`.

use crate::child::{self, Addresses};
use crate::failure::{Failure, Result};
use clap::{Args, ValueEnum};
use eventmq::ids::Socket;
use eventmq::server::{Server, ServerConfig};
use eventmq::settings;

/// How the broker spreads its agents over threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Threading {
    Auto,
    Dedicated,
    Inline,
}

/// What an agent's thread does without work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Idle {
    Park,
    Spin,
}

/// Settings that matter for measurements.
#[derive(Debug, Clone, Args)]
pub(crate) struct Options {
    /// Agents on one thread or on several
    #[arg(long, value_enum, default_value = "auto")]
    threading: Threading,
    /// What a thread does without work
    #[arg(long, value_enum, default_value = "park")]
    idle: Idle,
    /// Threads for frontend and backend with dedicated threading
    #[arg(long, value_name = "N", default_value_t = 2)]
    io_threads: usize,
    /// Cores of the I/O threads, with commas
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    io_cores: Option<Vec<usize>>,
    /// Core of the dispatch thread
    #[arg(long, value_name = "CORE")]
    dispatch_core: Option<usize>,
}

/// Starts a broker with default settings but for `options`, on free ports.
fn start(options: &Options) -> Result<(Server, Addresses)> {
    let config = ServerConfig {
        threading: match options.threading {
            Threading::Auto => settings::Threading::Auto,
            Threading::Dedicated => settings::Threading::Dedicated,
            Threading::Inline => settings::Threading::Inline,
        },
        idle: match options.idle {
            Idle::Park => settings::Idle::Park,
            Idle::Spin => settings::Idle::Spin,
        },
        io_threads: options.io_threads,
        io_cores: options.io_cores.clone(),
        dispatch_core: options.dispatch_core,
        ..ServerConfig::default()
    };
    eventmq::runtime::open_files::raise_open_files();
    let server = Server::start(config).map_err(|error| Failure::run(error.to_string()))?;
    let addresses = Addresses {
        frontend: server.addr(Socket::Frontend),
        backend: server.addr(Socket::Backend),
        administrative: Some(server.addr(Socket::Admin)),
        cxxflags: None,
    };
    Ok((server, addresses))
}

/// Starts a broker inside this process; it ends when the server is dropped.
pub(crate) fn start_in_process(threading: Threading) -> Result<(Server, Addresses)> {
    start(&Options {
        threading,
        idle: Idle::Park,
        io_threads: 2,
        io_cores: None,
        dispatch_core: None,
    })
}

/// Runs until standard input ends.
pub(crate) fn run(options: &Options) -> Result<()> {
    let (server, addresses) = start(options)?;
    child::announce(&addresses)?;
    let report = server
        .wait()
        .map_err(|error| Failure::run(format!("broker: {error}")))?;
    Err(Failure::run(format!(
        "the broker ended by itself: {report:?}"
    )))
}

/// Runs this project's publisher with its default settings until standard input ends.
pub(crate) fn run_publisher() -> Result<()> {
    use eventmq::pubsub::{INCOMING, OUTGOING, PubSubServer, ServerConfig};
    let server = PubSubServer::start(ServerConfig::default())
        .map_err(|error| Failure::run(error.to_string()))?;
    child::announce(&Addresses {
        frontend: server.addr(INCOMING),
        backend: server.addr(OUTGOING),
        administrative: None,
        cxxflags: None,
    })?;
    let report = server
        .wait()
        .map_err(|error| Failure::run(format!("publisher: {error}")))?;
    Err(Failure::run(format!(
        "the publisher ended by itself: {:?}",
        report.figures
    )))
}
