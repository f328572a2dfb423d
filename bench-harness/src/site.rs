//! Which brokers a load is put on: started for it, inside this process, or running already.

use crate::broker;
use crate::failure::{Failure, Result};
use crate::generator::Manners;
use crate::handshake;
use crate::measure::Broker;
use crate::target::{At, Spawned, Spec};
use crate::transport::Transport;
use crate::workload::Workload;
use clap::{Args, ValueEnum};
use eventmq::addr::Addr;
use std::path::PathBuf;

/// What answers the broker is expected to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Answers {
    /// `original` if the broker does not announce this project's extensions, else `full`
    Auto,
    /// An acceptance of every job, and results to who asked for them
    Full,
    /// As EventMQ 0.3.13: acceptances only while a worker is free, no results
    Original,
}

/// Options that name the brokers.
#[derive(Debug, Args)]
pub(crate) struct SiteOptions {
    /// What to start and measure: ours-inline, ours-dedicated, ours-auto, floor, libzmq, each
    /// optionally with @BINARY for another build of emq-bench; router@PATH, an emq-router;
    /// at:FRONTEND+BACKEND[+ADMINISTRATIVE][#PID], a broker that runs already; several with commas
    /// [default: ours-inline]
    #[arg(long, value_delimiter = ',')]
    target: Vec<Spec>,
    /// An emq-router program to start and measure, in addition to --target if that is given
    #[arg(long, value_name = "PATH", conflicts_with = "frontend")]
    router: Vec<PathBuf>,
    #[command(flatten)]
    how: HowOptions,
    /// Frontend of a broker that runs already, instead of --target
    #[arg(
        long,
        value_name = "ADDRESS",
        requires = "backend",
        conflicts_with = "target"
    )]
    frontend: Option<Addr>,
    /// Backend of that broker
    #[arg(long, value_name = "ADDRESS", requires = "frontend")]
    backend: Option<Addr>,
    /// Administrative address of that broker, to ask for its own view
    #[arg(long, value_name = "ADDRESS", requires = "frontend")]
    admin: Option<Addr>,
    /// Process id of that broker, to measure its CPU time and memory
    #[arg(long, requires = "frontend")]
    pid: Option<u32>,
}

/// Options that say how a broker is reached.
#[derive(Debug, Args)]
pub(crate) struct HowOptions {
    /// Run the broker (ours-*) on threads of this process; with a debugger or profiler both are seen
    #[arg(long)]
    in_process: bool,
    /// What carries the messages of clients and workers
    #[arg(long, value_enum, default_value = "native")]
    pub(crate) transport: Transport,
    /// What answers a broker that runs already gives
    #[arg(long, value_enum, default_value = "auto")]
    answers: Answers,
}

/// A broker to put a load on.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) name: String,
    pub(crate) addresses: At,
    pub(crate) manners: Manners,
    /// False for `floor`.
    pub(crate) is_broker: bool,
    pub(crate) broker: Broker,
}

impl SiteOptions {
    /// The targets, of which there is at least one.
    pub(crate) fn specs(&self) -> Result<Vec<Spec>> {
        let mut specs = match (&self.frontend, &self.backend) {
            (Some(frontend), Some(backend)) => vec![Spec::external(At {
                frontend: frontend.clone(),
                backend: backend.clone(),
                administrative: self.admin.clone(),
                pid: self.pid,
            })],
            _ => self.target.clone(),
        };
        for path in &self.router {
            let text = format!("router@{}", path.display());
            specs.push(text.parse().map_err(Failure::usage)?);
        }
        if specs.is_empty() {
            specs.push(DEFAULT.parse().map_err(Failure::usage)?);
        }
        specs.iter().try_for_each(Spec::check_built_in)?;
        self.how.transport.check_built_in()?;
        Ok(specs)
    }

    /// The one target of a command that takes only one.
    pub(crate) fn one_spec(&self) -> Result<Spec> {
        let mut specs = self.specs()?;
        match (specs.pop(), specs.is_empty()) {
            (Some(spec), true) => Ok(spec),
            _ => Err(Failure::usage(
                "this command measures one target; see emq-bench compare for two",
            )),
        }
    }

    /// Starts the broker of `spec`, or finds it.
    pub(crate) fn open(&self, spec: &Spec, workload: &Workload) -> Result<Site> {
        Site::open(spec, workload, &self.how)
    }

    pub(crate) fn transport(&self) -> Transport {
        self.how.transport
    }
}

/// The target if none is named.
const DEFAULT: &str = "ours-inline";

impl Site {
    /// Starts the broker of `spec`, or finds the one that runs already.
    pub(crate) fn open(spec: &Spec, workload: &Workload, how: &HowOptions) -> Result<Site> {
        spec.check_takes(workload)?;
        if workload.workers == 0 && spec.at().is_none() {
            return Err(Failure::usage(
                "--workers 0 needs a broker with workers of its own: give --frontend and --backend",
            ));
        }
        let mut site = if how.in_process {
            let threading = spec.threading().ok_or_else(|| {
                Failure::usage("--in-process runs ours-inline, ours-dedicated, ours-auto only")
            })?;
            let (server, addresses) = broker::start_in_process(threading)?;
            Site {
                name: spec.name.clone(),
                addresses: addresses.into(),
                manners: Manners::Full,
                is_broker: true,
                broker: Broker::InProcess(Box::new(server)),
            }
        } else if let Some(at) = spec.at() {
            Site {
                name: spec.name.clone(),
                addresses: at.clone(),
                manners: Manners::Full,
                is_broker: true,
                broker: Broker::External(at.pid),
            }
        } else {
            let spawned = Spawned::start(spec, workload)?;
            Site {
                name: spec.name.clone(),
                addresses: spawned.addresses.clone().into(),
                manners: Manners::Full,
                is_broker: spec.is_broker(),
                broker: Broker::Spawned(spawned),
            }
        };
        if let Broker::External(_) = site.broker {
            site.manners = look_at(&site.addresses, how.answers)?;
        }
        if site.manners == Manners::Original && workload.workers == 0 {
            return Err(Failure::usage(
                "a broker that gives no results tells nothing of jobs that other workers do; \
                 leave --workers above 0, or give --answers full",
            ));
        }
        Ok(site)
    }
}

impl Site {
    /// Adds to a failure of a run which target it was, and whether that has ended.
    pub(crate) fn explain(&mut self, workload: &str, failure: &Failure) -> Failure {
        let ended = match &mut self.broker {
            Broker::Spawned(spawned) => spawned.exit_status(),
            _ => None,
        };
        let ended = ended.map_or_else(String::new, |status| {
            format!(" (the broker ended: {status})")
        });
        let name = &self.name;
        Failure::run(format!("{workload} against {name}: {failure}{ended}"))
    }
}

/// Shakes hands with both sockets, so that what is wrong with them is said before the load, and
/// tells what kind of broker it is if `answers` leaves that open.
fn look_at(addresses: &At, answers: Answers) -> Result<Manners> {
    let hello = |addr: &Addr| {
        let identity = format!("bench-hello-{}", std::process::id());
        handshake::connect(addr, identity.as_bytes())
    };
    let frontend = hello(&addresses.frontend)?;
    hello(&addresses.backend)?;
    match answers {
        Answers::Full => return Ok(Manners::Full),
        Answers::Original => return Ok(Manners::Original),
        Answers::Auto if frontend.extended => return Ok(Manners::Full),
        Answers::Auto => {}
    }
    eprintln!(
        "emq-bench: {} does not announce this project's extensions and is measured as EventMQ \
         0.3.13, which gives no results (--answers full if it does)",
        addresses.frontend
    );
    Ok(Manners::Original)
}
