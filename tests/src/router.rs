//! A broker process with three addresses of its own.

use crate::dealer::{Dealer, admin};
use crate::process::{Process, free_port, start_listening};
use crate::{PATIENCE, peers};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use zmq::Context;

/// Which broker a test talks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Ours, every agent on one thread.
    Inline,
    /// Ours, I/O and dispatch on threads of their own.
    Dedicated,
    /// EventMQ 0.3.13.
    Original,
}

impl Target {
    /// Both threadings of ours.
    pub const OURS: [Target; 2] = [Target::Inline, Target::Dedicated];

    /// The name in test names.
    pub fn name(self) -> &'static str {
        match self {
            Target::Inline => "inline",
            Target::Dedicated => "dedicated",
            Target::Original => "original",
        }
    }

    /// True unless it is the original.
    pub fn is_ours(self) -> bool {
        self != Target::Original
    }
}

/// The three addresses of a broker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Where clients and schedulers connect.
    pub frontend: String,
    /// Where workers connect.
    pub backend: String,
    /// Where emq-cli connects.
    pub admin: String,
}

impl Addresses {
    /// Any free port of 127.0.0.1 for each: for a broker that takes port 0.
    pub fn any() -> Addresses {
        let any = || "tcp://127.0.0.1:0".to_owned();
        Addresses {
            frontend: any(),
            backend: any(),
            admin: any(),
        }
    }

    /// Three ports that are free now.
    pub fn free() -> Addresses {
        let free = || format!("tcp://127.0.0.1:{}", free_port());
        Addresses {
            frontend: free(),
            backend: free(),
            admin: free(),
        }
    }
}

/// A broker that answers STATUS; killed when dropped, with its directory.
#[derive(Debug)]
pub struct Router {
    process: Process,
    addresses: Addresses,
    target: Target,
    dir: TempDir,
}

/// How to start a broker.
#[derive(Debug, Clone)]
pub struct Start {
    target: Target,
    env: Vec<(String, String)>,
    args: Vec<String>,
    addresses: Option<Addresses>,
}

impl Start {
    /// A broker with default settings on ports of its own.
    pub fn new(target: Target) -> Start {
        Start {
            target,
            env: Vec::new(),
            args: Vec::new(),
            addresses: None,
        }
    }

    /// Sets an environment variable, `EVENTMQ_HWM` for one.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Start {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds a command-line argument.
    #[must_use]
    pub fn arg(mut self, arg: &str) -> Start {
        self.args.push(arg.to_owned());
        self
    }

    /// Binds these addresses instead of free ones (a broker started again).
    #[must_use]
    pub fn at(mut self, addresses: &Addresses) -> Start {
        self.addresses = Some(addresses.clone());
        self
    }

    /// The command without its output redirected, for tests that look at the process itself.
    /// `None` when the original is missing (said so already).
    pub fn command(&self, addresses: &Addresses, dir: &Path) -> Option<Command> {
        let program = match self.target {
            Target::Original => peers::original("emq-router")?,
            _ => peers::our_binary("emq-router"),
        };
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("EVENTMQ_") {
                command.env_remove(name);
            }
        }
        command
            .env("EVENTMQ_FRONTEND_ADDR", &addresses.frontend)
            .env("EVENTMQ_BACKEND_ADDR", &addresses.backend)
            .env("EVENTMQ_ADMINISTRATIVE_ADDR", &addresses.admin)
            .env("EVENTMQ_STATE_DIR", dir.join("state"))
            .current_dir(dir);
        if self.target.is_ours() {
            command
                .env("EVENTMQ_THREADING", self.target.name())
                .arg("--print-addresses");
        } else {
            // It makes this file even when it does not write to it.
            command
                .env("EVENTMQ_WAL", dir.join("wal").join("wal.log"))
                .env("EVENTMQ_CONFIG_FILE", "/nonexistent");
        }
        command.args(&self.args);
        command.envs(self.env.iter().map(|(k, v)| (k.as_str(), v.as_str())));
        Some(command)
    }

    /// Starts it and waits until it answers STATUS. `None` when the original is missing.
    ///
    /// # Panics
    ///
    /// If it does not come up.
    #[track_caller]
    pub fn start(&self) -> Option<Router> {
        let mut last = String::new();
        // A free port may have been taken in the meantime; only then does a second try help.
        let tries = if self.target.is_ours() || self.addresses.is_some() {
            1
        } else {
            4
        };
        for _ in 0..tries {
            let dir = tempfile::Builder::new()
                .prefix("emq-test-")
                .tempdir()
                .expect("a directory");
            let addresses = match (&self.addresses, self.target) {
                (Some(addresses), _) => addresses.clone(),
                (None, Target::Original) => Addresses::free(),
                (None, _) => Addresses::any(),
            };
            let mut command = self.command(&addresses, dir.path())?;
            let log = dir.path().join("log");
            let started = if self.target.is_ours() {
                start_ours(&mut command, &log)
            } else {
                Process::start_group("the original emq-router", &mut command, &log)
                    .map(|process| (process, addresses))
                    .map_err(|error| error.to_string())
            };
            let (process, addresses) = match started {
                Ok(started) => started,
                Err(error) => {
                    let log = std::fs::read_to_string(&log).unwrap_or_default();
                    last = format!("{error}; it logged:\n{log}");
                    continue;
                }
            };
            let mut router = Router {
                process,
                addresses,
                target: self.target,
                dir,
            };
            match router.wait_until_up() {
                Ok(()) => return Some(router),
                Err(error) => last = format!("{error}; it logged:\n{}", router.process.log_tail()),
            }
        }
        panic!(
            "emq-router ({}) did not come up: {last}",
            self.target.name()
        );
    }
}

/// Starts ours and reads the addresses that it prints.
fn start_ours(command: &mut Command, log: &Path) -> Result<(Process, Addresses), String> {
    let (process, mut addresses) = start_listening("emq-router", command, log, 3)?;
    let mut take = |name: &str| addresses.remove(name).unwrap_or_default();
    let addresses = Addresses {
        frontend: take("frontend"),
        backend: take("backend"),
        admin: take("administrative"),
    };
    Ok((process, addresses))
}

impl Router {
    /// A broker with default settings; `None` when the original is missing.
    #[track_caller]
    pub fn start(target: Target) -> Option<Router> {
        Start::new(target).start()
    }

    /// One of ours with default settings.
    #[track_caller]
    pub fn ours(target: Target) -> Router {
        assert!(target.is_ours());
        Start::new(target).start().expect("ours is never missing")
    }

    /// Which broker it is.
    pub fn target(&self) -> Target {
        self.target
    }

    /// Its addresses.
    pub fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// The TCP address (`127.0.0.1:1234`) behind one of its `tcp://` addresses.
    pub fn tcp(address: &str) -> &str {
        address.strip_prefix("tcp://").expect("a tcp:// address")
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Its working directory, where it also logs.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The file that has what it wrote to standard error.
    pub fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// The answer to an admin request as JSON.
    ///
    /// # Panics
    ///
    /// If there is none, or none that is JSON.
    #[track_caller]
    pub fn admin(&mut self, command: &str) -> serde_json::Value {
        if let Some(status) = self.process.ended() {
            panic!(
                "the broker has ended: {status}; it logged:\n{}",
                self.process.log_tail()
            );
        }
        let json = admin(&Context::new(), &self.addresses.admin, command)
            .unwrap_or_else(|e| panic!("{e}; it logged:\n{}", self.process.log_tail()));
        serde_json::from_slice(&json).unwrap_or_else(|e| {
            panic!(
                "{command} is answered {:?}: {e}",
                crate::dealer::show(&[json])
            )
        })
    }

    /// One counter of COUNTERS (ours only); 0 when it is not there.
    #[track_caller]
    pub fn counter(&mut self, name: &str) -> u64 {
        let answer = self.admin("COUNTERS");
        find_number(&answer, name).unwrap_or(0)
    }

    /// Waits until a counter of COUNTERS is at least `count`: agents publish theirs from time to
    /// time, not with each step.
    ///
    /// # Panics
    ///
    /// If it does not get there.
    #[track_caller]
    pub fn wait_for_counter(&mut self, name: &str, count: u64) {
        crate::eventually(&format!("{name} is {count}"), PATIENCE, || {
            match self.counter(name) {
                got if got >= count => Ok(()),
                got => Err(got.to_string()),
            }
        });
    }

    fn wait_until_up(&mut self) -> Result<(), String> {
        let context = Context::new();
        let probe = Dealer::connect(&context, &self.addresses.admin, Some(b"startup-probe"));
        probe.send(&["STATUS", "startup"]);
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(status) = self.process.ended() {
                return Err(format!("it ended: {status}"));
            }
            if probe.receive(Duration::from_millis(20)).is_some() {
                return Ok(());
            }
        }
        Err("it does not answer STATUS".to_owned())
    }
}

/// The number at the first key `name`, at any depth.
pub fn find_number(value: &serde_json::Value, name: &str) -> Option<u64> {
    let object = value.as_object()?;
    object
        .get(name)
        .and_then(serde_json::Value::as_u64)
        .or_else(|| object.values().find_map(|inner| find_number(inner, name)))
}
