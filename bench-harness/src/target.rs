//! What is measured: a broker that the harness spawns, or one that runs already.

use crate::broker::Threading;
use crate::child::{ALLOCATIONS, Addresses};
use crate::failure::{Failure, Result};
use crate::workload::Workload;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// A spawned broker must listen, and answer commands, within this time.
const ANSWER_SECS_MAX: u64 = 10;
/// A broker whose standard input has ended gets this long to go.
const EXIT_MS_MAX: u64 = 2_000;

/// Kinds of spawned brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// This project's broker with this value of `--threading`.
    Ours(Threading),
    /// The forwarder that parses nothing.
    Floor,
    /// Two libzmq ROUTER sockets.
    Libzmq,
    /// This project's publisher.
    Publisher,
    /// A ROUTER and a PUB socket of libzmq.
    LibzmqPublisher,
}

/// A spawned broker as named on the command line: `KIND` or `KIND@BINARY`, where BINARY is another
/// build of this program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) name: String,
    kind: Kind,
    binary: Option<PathBuf>,
}

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (kind, binary) = match text.split_once('@') {
            Some((kind, binary)) => (kind, Some(PathBuf::from(binary))),
            None => (text, None),
        };
        let kind = match kind {
            "ours-inline" => Kind::Ours(Threading::Inline),
            "ours-dedicated" => Kind::Ours(Threading::Dedicated),
            "ours-auto" => Kind::Ours(Threading::Auto),
            "floor" => Kind::Floor,
            "libzmq" => Kind::Libzmq,
            other => {
                return Err(format!(
                    "unknown target {other:?}; there are ours-inline, ours-dedicated, ours-auto, \
                     floor, libzmq, each optionally with @BINARY"
                ));
            }
        };
        Ok(Spec {
            name: text.to_owned(),
            kind,
            binary,
        })
    }
}

impl Spec {
    /// A publisher: this project's, or that on libzmq.
    pub(crate) fn publisher(libzmq: bool) -> Spec {
        let (name, kind) = match libzmq {
            false => ("ours", Kind::Publisher),
            true => ("libzmq", Kind::LibzmqPublisher),
        };
        Spec {
            name: name.to_owned(),
            kind,
            binary: None,
        }
    }

    /// The threading of a broker of this build.
    pub(crate) fn threading(&self) -> Option<Threading> {
        match self.kind {
            Kind::Ours(threading) if self.binary.is_none() => Some(threading),
            _ => None,
        }
    }

    /// False for `floor`, which only forwards.
    pub(crate) fn is_broker(&self) -> bool {
        self.kind != Kind::Floor
    }

    /// Says so if this program would have to contain libzmq and does not.
    pub(crate) fn check_built_in(&self) -> Result<()> {
        if cfg!(feature = "libzmq")
            || !matches!(self.kind, Kind::Libzmq | Kind::LibzmqPublisher)
            || self.binary.is_some()
        {
            return Ok(());
        }
        Err(Failure::usage(
            "this emq-bench is built without libzmq; build it with --features libzmq",
        ))
    }

    fn arguments(&self, workload: Option<&Workload>) -> Vec<String> {
        let words = |text: &[&str]| text.iter().map(|word| (*word).to_owned()).collect();
        match self.kind {
            Kind::Ours(threading) => {
                let value = threading.to_possible_value();
                let name = value.as_ref().map_or("auto", PossibleValue::get_name);
                words(&["broker", "--threading", name])
            }
            Kind::Libzmq => words(&["libzmq"]),
            Kind::Publisher => words(&["publisher"]),
            Kind::LibzmqPublisher => words(&["libzmq-publisher"]),
            Kind::Floor => {
                let mut all = words(&["floor"]);
                if let Some(workload) = workload {
                    all.extend(words(&[
                        "--payload",
                        &workload.payload.to_string(),
                        "--slots",
                        &workload.slots.to_string(),
                        "--queue",
                        &workload.queue,
                    ]));
                }
                all
            }
        }
    }
}

/// A spawned broker. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Spawned {
    child: Child,
    commands: Option<ChildStdin>,
    lines: Receiver<String>,
    pub(crate) addresses: Addresses,
}

impl Spawned {
    /// Starts the broker of `spec` for `workload` and waits until it listens.
    pub(crate) fn start(spec: &Spec, workload: &Workload) -> Result<Self> {
        Spawned::start_with(spec, spec.arguments(Some(workload)))
    }

    /// Starts the publisher of `spec` and waits until it listens.
    pub(crate) fn start_publisher(spec: &Spec) -> Result<Self> {
        Spawned::start_with(spec, spec.arguments(None))
    }

    fn start_with(spec: &Spec, arguments: Vec<String>) -> Result<Self> {
        let name = &spec.name;
        let binary = match &spec.binary {
            Some(path) => path.clone(),
            None => env::current_exe()
                .map_err(|error| Failure::run(format!("cannot find this program: {error}")))?,
        };
        let mut child = Command::new(&binary)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| {
                Failure::usage(format!(
                    "cannot start {} for {name}: {error}",
                    binary.display()
                ))
            })?;
        let commands = child.stdin.take();
        let lines = read_lines(child.stdout.take());
        let addresses = Addresses {
            frontend: crate::child::loopback(0),
            backend: crate::child::loopback(0),
            cxxflags: None,
        };
        let mut spawned = Spawned {
            child,
            commands,
            lines,
            addresses,
        };
        let line = spawned.next_line().map_err(|_| spawned.not_started(name))?;
        spawned.addresses = Addresses::parse(&line).ok_or_else(|| {
            Failure::run(format!("{name} printed {line:?} instead of its addresses"))
        })?;
        Ok(spawned)
    }

    /// Process id of the broker.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Allocations of the broker's process so far.
    pub(crate) fn allocations(&mut self) -> Result<u64> {
        let failure = |what: String| Failure::run(format!("the broker {what}; did it end?"));
        if let Some(commands) = &mut self.commands {
            writeln!(commands, "{ALLOCATIONS}")
                .map_err(|e| failure(format!("hears nothing: {e}")))?;
        }
        let line = self
            .next_line()
            .map_err(|_| failure("answers no command".to_owned()))?;
        line.parse()
            .map_err(|_| failure(format!("answers {line:?} to {ALLOCATIONS}")))
    }

    /// The exit status, if the broker has ended.
    pub(crate) fn exit_status(&mut self) -> Option<String> {
        self.child
            .try_wait()
            .ok()
            .flatten()
            .map(|status| status.to_string())
    }

    fn next_line(&self) -> std::result::Result<String, RecvTimeoutError> {
        self.lines
            .recv_timeout(Duration::from_secs(ANSWER_SECS_MAX))
    }

    fn not_started(&mut self, name: &str) -> Failure {
        thread::sleep(Duration::from_millis(50));
        match self.exit_status() {
            Some(status) => Failure::run(format!("{name} did not start: {status}")),
            None => Failure::run(format!("{name} did not listen within {ANSWER_SECS_MAX} s")),
        }
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        drop(self.commands.take());
        let until = Instant::now() + Duration::from_millis(EXIT_MS_MAX);
        while self.exit_status().is_none() {
            if Instant::now() > until {
                // Killing fails only if it has ended after all.
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A thread reads the child's lines, so that waiting for one can have a deadline.
fn read_lines(out: Option<std::process::ChildStdout>) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    if let Some(out) = out {
        thread::spawn(move || {
            for line in BufReader::new(out)
                .lines()
                .map_while(std::result::Result::ok)
            {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_parse_with_and_without_a_binary() {
        let spec: Spec = "ours-dedicated@/opt/old/emq-bench".parse().unwrap();
        assert_eq!(spec.kind, Kind::Ours(Threading::Dedicated));
        assert_eq!(spec.binary, Some(PathBuf::from("/opt/old/emq-bench")));
        assert_eq!("floor".parse::<Spec>().unwrap().binary, None);
        assert!(
            "ceiling"
                .parse::<Spec>()
                .unwrap_err()
                .contains("ours-inline")
        );
    }
}
