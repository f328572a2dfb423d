//! What is measured: a broker that the harness spawns, or one that runs already.

use crate::broker::Threading;
use crate::child::{ALLOCATIONS, Addresses};
use crate::failure::{Failure, Result};
use crate::service::Service;
use crate::workload::Workload;
use clap::ValueEnum;
use clap::builder::PossibleValue;
use eventmq::addr::Addr;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashMap;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A spawned broker must listen, and answer commands, within this time.
const ANSWER_SECS_MAX: u64 = 10;
/// A broker whose standard input has ended gets this long to go.
const EXIT_MS_MAX: u64 = 2_000;

/// Kinds of spawned brokers.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// The program emq-router at the path behind the @.
    Router,
    /// A broker that runs already.
    At(At),
}

/// Addresses of a broker that runs already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) frontend: Addr,
    pub(crate) backend: Addr,
    pub(crate) administrative: Option<Addr>,
    /// Its process, if that is known.
    pub(crate) pid: Option<u32>,
}

impl From<Addresses> for At {
    fn from(addresses: Addresses) -> Self {
        At {
            frontend: addresses.frontend,
            backend: addresses.backend,
            administrative: addresses.administrative,
            pid: None,
        }
    }
}

impl FromStr for At {
    type Err = String;

    /// `FRONTEND+BACKEND` or `FRONTEND+BACKEND+ADMINISTRATIVE`, each with `#PID` behind it or not.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let whole = text;
        let (text, pid) = match text.split_once('#') {
            None => (text, None),
            Some((text, pid)) => match pid.parse() {
                Ok(pid) => (text, Some(pid)),
                Err(_) => return Err(format!("{pid:?} in {whole:?} is no process id")),
            },
        };
        let addresses = text
            .split('+')
            .map(|part| Addr::from_str(part).map_err(|error| format!("{part:?}: {error}")))
            .collect::<std::result::Result<Vec<Addr>, String>>()?;
        let mut addresses = addresses.into_iter();
        match (
            addresses.next(),
            addresses.next(),
            addresses.next(),
            addresses.next(),
        ) {
            (Some(frontend), Some(backend), administrative, None) => Ok(At {
                frontend,
                backend,
                administrative,
                pid,
            }),
            _ => Err(format!(
                "{whole:?} must be FRONTEND+BACKEND or FRONTEND+BACKEND+ADMINISTRATIVE, with #PID \
                 behind it or not, as at:tcp://127.0.0.1:47291+tcp://127.0.0.1:47290#4711"
            )),
        }
    }
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

    /// `SPEC`, or `LABEL=SPEC` to be called so in results.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let is_label = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if let Some((label, rest)) = text.split_once('=')
            && !label.is_empty()
            && label.chars().all(is_label)
        {
            let mut spec: Spec = rest.parse()?;
            label.clone_into(&mut spec.name);
            return Ok(spec);
        }
        if let Some(addresses) = text.strip_prefix("at:") {
            return Ok(Spec {
                name: text.to_owned(),
                kind: Kind::At(addresses.parse()?),
                binary: None,
            });
        }
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
            "router" if binary.is_some() => Kind::Router,
            other => {
                return Err(format!(
                    "unknown target {other:?}; there are ours-inline, ours-dedicated, ours-auto, \
                     floor, libzmq, each optionally with @BINARY, router@PATH for an emq-router, \
                     and at:FRONTEND+BACKEND[+ADMINISTRATIVE][#PID] for a broker that runs already"
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
    /// The broker named by the options --frontend and --backend.
    pub(crate) fn external(at: At) -> Spec {
        Spec {
            name: "external".to_owned(),
            kind: Kind::At(at),
            binary: None,
        }
    }

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

    /// The addresses, if it runs already.
    pub(crate) fn at(&self) -> Option<&At> {
        match &self.kind {
            Kind::At(at) => Some(at),
            _ => None,
        }
    }

    /// Says so if the reference cannot take `workload`: it knows one queue and results only.
    pub(crate) fn check_takes(&self, workload: &Workload) -> Result<()> {
        let simple = workload.fail_share <= 0.0 && workload.service == Service::None;
        let can = match self.kind {
            Kind::Floor => workload.is_plain() && simple,
            Kind::Libzmq => workload.is_plain(),
            _ => true,
        };
        if can {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "{} takes one queue of jobs that all ask for their result{}; leave --queues, \
             --reply-share, --guarantee-share{} as they are, or measure another target",
            self.name,
            if self.kind == Kind::Floor {
                " and get it at once"
            } else {
                ""
            },
            if self.kind == Kind::Floor {
                ", --fail-share, --service"
            } else {
                ""
            },
        )))
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
        match &self.kind {
            Kind::Ours(threading) => {
                let value = threading.to_possible_value();
                let name = value.as_ref().map_or("auto", PossibleValue::get_name);
                words(&["broker", "--threading", name])
            }
            Kind::Libzmq => words(&["libzmq"]),
            Kind::Publisher => words(&["publisher"]),
            Kind::LibzmqPublisher => words(&["libzmq-publisher"]),
            Kind::Router => words(&["--print-addresses"]),
            Kind::At(_) => Vec::new(),
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
    /// Where an emq-router keeps its state; goes with it. Ours ends with its standard input instead.
    router_state: Option<TempDir>,
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

    /// Starts an emq-router with default settings on free ports.
    fn start_router(spec: &Spec) -> Result<Self> {
        let path = spec.binary.as_deref().unwrap_or(Path::new("emq-router"));
        let state = tempfile::Builder::new()
            .prefix("emq-bench-")
            .tempdir()
            .map_err(|error| Failure::run(format!("cannot make a temporary folder: {error}")))?;
        let mut command = Command::new(path);
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("EVENTMQ_") {
                command.env_remove(name);
            }
        }
        for socket in ["FRONTEND", "BACKEND", "ADMINISTRATIVE"] {
            command.env(format!("EVENTMQ_{socket}_ADDR"), "tcp://127.0.0.1:0");
        }
        command
            .env("EVENTMQ_STATE_DIR", state.path())
            .env("EVENTMQ_LOG_LEVEL", "warn")
            .args(spec.arguments(None));
        let mut spawned = Spawned::spawn(&spec.name, path, &mut command)?;
        spawned.router_state = Some(state);
        let mut found = HashMap::new();
        while found.len() < 3 {
            let line = spawned.next_line().map_err(|_| {
                let failure = spawned.not_started(&spec.name);
                Failure::run(format!(
                    "{failure}; is it this project's emq-router, with the option \
                     --print-addresses? (others: --frontend and --backend)"
                ))
            })?;
            let words: Vec<&str> = line.split_whitespace().collect();
            if let ["listening", name, address] = words[..]
                && let Ok(address) = address.parse::<Addr>()
            {
                found.insert(name.to_owned(), address);
            }
        }
        for (name, address) in found {
            match name.as_str() {
                "frontend" => spawned.addresses.frontend = address,
                "backend" => spawned.addresses.backend = address,
                _ => spawned.addresses.administrative = Some(address),
            }
        }
        Ok(spawned)
    }

    fn start_with(spec: &Spec, arguments: Vec<String>) -> Result<Self> {
        if spec.kind == Kind::Router {
            return Spawned::start_router(spec);
        }
        let name = &spec.name;
        let binary = match &spec.binary {
            Some(path) => path.clone(),
            None => env::current_exe()
                .map_err(|error| Failure::run(format!("cannot find this program: {error}")))?,
        };
        let mut spawned = Spawned::spawn(name, &binary, Command::new(&binary).args(arguments))?;
        let line = spawned.next_line().map_err(|_| spawned.not_started(name))?;
        spawned.addresses = Addresses::parse(&line).ok_or_else(|| {
            Failure::run(format!("{name} printed {line:?} instead of its addresses"))
        })?;
        Ok(spawned)
    }

    fn spawn(name: &str, binary: &Path, command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C in a terminal is for this program, which ends its brokers itself.
            .process_group(0)
            .spawn()
            .map_err(|error| {
                Failure::usage(format!(
                    "cannot start {} for {name}: {error}",
                    binary.display()
                ))
            })?;
        let commands = child.stdin.take();
        let lines = read_lines(child.stdout.take());
        Ok(Spawned {
            child,
            commands,
            lines,
            addresses: Addresses {
                frontend: crate::child::loopback(0),
                backend: crate::child::loopback(0),
                administrative: None,
                cxxflags: None,
            },
            router_state: None,
        })
    }

    /// Process id of the broker.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Allocations of the broker's process so far; an emq-router does not tell them.
    pub(crate) fn allocations(&mut self) -> Result<Option<u64>> {
        if self.router_state.is_some() {
            return Ok(None);
        }
        let failure = |what: String| Failure::run(format!("the broker {what}; did it end?"));
        if let Some(commands) = &mut self.commands {
            writeln!(commands, "{ALLOCATIONS}")
                .map_err(|e| failure(format!("hears nothing: {e}")))?;
        }
        let line = self
            .next_line()
            .map_err(|_| failure("answers no command".to_owned()))?;
        line.parse()
            .map(Some)
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

    /// Asks an emq-router to end. It has nothing to wait for when the run is over.
    fn terminate(&self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // Fails only if it has ended.
            let _ = kill_process(pid, Signal::TERM);
        }
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
        if self.router_state.is_some() {
            self.terminate();
        }
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
        assert!("router".parse::<Spec>().is_err(), "needs a path");
        let labelled: Spec = "before=ours-inline@/opt/a=b/emq-bench".parse().unwrap();
        assert_eq!(labelled.name, "before");
        assert_eq!(labelled.binary, Some(PathBuf::from("/opt/a=b/emq-bench")));
        let path: Spec = "ours-inline@/opt/a=b".parse().unwrap();
        assert_eq!(path.name, "ours-inline@/opt/a=b");
        assert!(
            "ceiling"
                .parse::<Spec>()
                .unwrap_err()
                .contains("ours-inline")
        );
    }

    #[test]
    fn addresses_of_a_running_broker_are_a_target() {
        let spec: Spec = "at:tcp://127.0.0.1:1+ipc:///tmp/b+tcp://127.0.0.1:3"
            .parse()
            .unwrap();
        let at = spec.at().unwrap();
        assert_eq!(at.frontend, crate::child::loopback(1));
        assert_eq!(at.backend.to_string(), "ipc:///tmp/b");
        assert_eq!(at.administrative, Some(crate::child::loopback(3)));
        assert_eq!(at.pid, None);
        let spec: Spec = "at:tcp://127.0.0.1:1+tcp://127.0.0.1:2#77".parse().unwrap();
        assert_eq!(spec.at().unwrap().pid, Some(77));
        for wrong in [
            "at:",
            "at:tcp://127.0.0.1:1",
            "at:a+b",
            "at:tcp://x:1+tcp://x:2#",
            "at:tcp://x:1+tcp://x:2+tcp://x:3+tcp://x:4",
        ] {
            assert!(wrong.parse::<Spec>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn references_refuse_what_they_cannot_do() {
        let mut workload = Workload::new(crate::workload::Name::J120, &Default::default()).unwrap();
        workload.service = Service::Fixed { ns: 1 };
        let check =
            |name: &str, workload: &Workload| name.parse::<Spec>().unwrap().check_takes(workload);
        assert!(check("libzmq", &workload).is_ok() && check("ours-auto", &workload).is_ok());
        let line = check("floor", &workload).unwrap_err().to_string();
        assert!(line.contains("--service"), "{line}");
        workload.queues = 2;
        assert!(check("libzmq", &workload).is_err());
    }
}
