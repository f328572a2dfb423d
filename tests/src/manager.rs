//! A job manager process, ours or the original, and a client that counts ends of jobs.

use crate::dealer::Dealer;
use crate::process::Process;
use crate::router::Router;
use crate::{PATIENCE, eventually, peers};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use zmq::Context;

/// The environment variable by which everything a job manager starts is found again.
const MARK: &str = "EMQ_TEST_MARK";

/// A running job manager with the jobs of `tests/python` on its path.
#[derive(Debug)]
pub struct Manager {
    process: Process,
    dir: TempDir,
    mark: String,
}

/// How to start one.
#[derive(Debug, Clone)]
pub struct StartManager {
    original: bool,
    addrs: Vec<String>,
    env: Vec<(String, String)>,
    args: Vec<String>,
}

impl StartManager {
    /// One of ours for this broker's backend.
    pub fn ours(router: &Router) -> StartManager {
        StartManager::at(&[&router.addresses().backend])
    }

    /// One of ours for these backend addresses.
    pub fn at(addrs: &[&str]) -> StartManager {
        StartManager {
            original: false,
            addrs: addrs.iter().map(|addr| (*addr).to_owned()).collect(),
            env: Vec::new(),
            args: Vec::new(),
        }
    }

    /// The original's.
    #[must_use]
    pub fn original(mut self) -> StartManager {
        self.original = true;
        self
    }

    /// Sets a setting by its name in files.
    #[must_use]
    pub fn set(self, name: &str, value: &str) -> StartManager {
        self.env(&format!("EVENTMQ_{}", name.to_ascii_uppercase()), value)
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> StartManager {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds command-line arguments.
    #[must_use]
    pub fn args(mut self, args: &[&str]) -> StartManager {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
        self
    }

    /// The command, with a directory of its own. `None` when the original is missing.
    pub fn command(&self, dir: &Path, mark: &str) -> Option<Command> {
        let mut command = Command::new(if self.original {
            peers::original("emq-jobmanager")?
        } else {
            peers::our_binary("emq-jobmanager")
        });
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("EVENTMQ_") {
                command.env_remove(name);
            }
        }
        let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
        command
            .env("PYTHONPATH", python)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("EVENTMQ_WORKER_ADDR", self.addrs.join(","))
            .env("EMQ_TEST_TRACE", dir.join("trace"))
            .env(MARK, mark)
            .current_dir(dir)
            .args(&self.args)
            .envs(self.env.iter().map(|(k, v)| (k.as_str(), v.as_str())));
        if self.original {
            command.env("EVENTMQ_CONFIG_FILE", "/nonexistent");
        }
        Some(command)
    }

    /// Starts it.
    ///
    /// # Panics
    ///
    /// If it cannot be started, or the original is missing.
    #[track_caller]
    pub fn start(&self) -> Manager {
        let dir = tempfile::Builder::new()
            .prefix("emq-manager-")
            .tempdir()
            .expect("a directory");
        let mark = uuid::Uuid::new_v4().to_string();
        let mut command = self
            .command(dir.path(), &mark)
            .expect("the program is there");
        let log = dir.path().join("log");
        let process = Process::start_group("emq-jobmanager", &mut command, &log)
            .expect("emq-jobmanager starts");
        Manager { process, dir, mark }
    }
}

impl Manager {
    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Its working directory, where it also logs (`log`) and jobs record (`trace`).
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// What it and its jobs wrote to standard output and error.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.dir().join("log")).unwrap_or_default())
            .into_owned()
    }

    /// The words that jobs recorded, in order.
    pub fn trace(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.dir().join("trace")).unwrap_or_default();
        let words = text.lines().filter_map(|line| line.split(' ').next());
        words.map(str::to_owned).collect()
    }

    /// Ids of all processes that have it as an ancestor, with their names, itself excluded: they
    /// are known by a variable in their environment. Zombies do not count.
    pub fn offspring(&self) -> Vec<(i32, String)> {
        let own = self.process.pid().as_raw();
        let mark = format!("{MARK}={}", self.mark);
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
            let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<i32>().ok())
            else {
                continue;
            };
            let environ = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            let marked = environ
                .split(|byte| *byte == 0)
                .any(|part| part == mark.as_bytes());
            if marked && pid != own {
                let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
                found.push((pid, name.trim().to_owned()));
            }
        }
        found
    }

    /// Waits until none of them is left.
    #[track_caller]
    pub fn expect_no_offspring(&self) {
        eventually("no process is left over", PATIENCE, || {
            let left = self.offspring();
            if left.is_empty() {
                Ok(())
            } else {
                Err(format!("{left:?}"))
            }
        });
    }

    /// SIGTERM, and the exit code. No process may be left over.
    #[track_caller]
    pub fn terminate(&mut self) -> i32 {
        self.process.signal(Signal::SIGTERM);
        let code = self.process.wait_code(2 * PATIENCE);
        self.expect_no_offspring();
        code
    }
}

/// The message of a job `path.callable(*args)`; `path` may be `module:Class`.
pub fn call(name: &str, args: Value) -> Value {
    let (path, callable) = name.rsplit_once('.').expect("module.callable");
    json!(["run", {"callable": callable, "path": path, "args": args, "kwargs": {},
                   "class_args": [], "class_kwargs": {}}])
}

/// The end of a job: result and status word.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// The result frame.
    pub result: Value,
    /// The status frame; empty if there is none.
    pub status: String,
}

impl Ended {
    /// `error.type` of the result.
    pub fn error(&self) -> &str {
        self.result["error"]["type"].as_str().unwrap_or("")
    }

    /// `error.message` of the result.
    pub fn message(&self) -> &str {
        self.result["error"]["message"].as_str().unwrap_or("")
    }
}

/// A client that knows which of its jobs were accepted and how they ended.
pub struct Client {
    dealer: Dealer,
    sent: usize,
    /// Jobs accepted.
    pub accepted: HashMap<String, usize>,
    /// Reasons of REJECTs.
    pub rejected: HashMap<String, String>,
    /// Ends, by msgid.
    pub ended: HashMap<String, Vec<Ended>>,
    /// Lives as long as its socket.
    _context: Context,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("sent", &self.sent)
            .field("accepted", &self.accepted.len())
            .field("ended", &self.ended.len())
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to the broker's frontend.
    pub fn connect(router: &Router) -> Client {
        Client::at(&router.addresses().frontend)
    }

    /// Connects to a frontend.
    pub fn at(frontend: &str) -> Client {
        let context = Context::new();
        let id = uuid::Uuid::new_v4().to_string();
        Client {
            dealer: Dealer::connect(&context, frontend, Some(id.as_bytes())),
            sent: 0,
            accepted: HashMap::new(),
            rejected: HashMap::new(),
            ended: HashMap::new(),
            _context: context,
        }
    }

    /// Sends a job and gives its msgid.
    pub fn send(&mut self, headers: &str, message: &[u8]) -> String {
        self.send_to("default", headers, message)
    }

    /// Sends a job for a queue.
    pub fn send_to(&mut self, queue: &str, headers: &str, message: &[u8]) -> String {
        self.sent += 1;
        let id = format!("job-{}", self.sent);
        let frames: [&[u8]; 5] = [
            b"REQUEST",
            id.as_bytes(),
            queue.as_bytes(),
            headers.as_bytes(),
            message,
        ];
        self.dealer.send(&frames);
        id
    }

    /// Takes what has come.
    pub fn receive(&mut self, patience: Duration) -> bool {
        let Some(frames) = self.dealer.receive(patience) else {
            return false;
        };
        let text = |at: usize| String::from_utf8_lossy(&frames[at]).into_owned();
        match (&frames[2][..], frames.len()) {
            (b"REPLY", 5) => *self.accepted.entry(text(4)).or_default() += 1,
            (b"REPLY", _) => {
                let result = serde_json::from_slice(&frames[4]).unwrap_or_else(|error| {
                    panic!(
                        "a result is not JSON: {error}: {}",
                        frames[4].escape_ascii()
                    )
                });
                let status = if frames.len() > 6 {
                    text(6)
                } else {
                    String::new()
                };
                self.ended
                    .entry(text(5))
                    .or_default()
                    .push(Ended { result, status });
            }
            (b"REJECT", _) => drop(self.rejected.insert(text(4), text(5))),
            (other, _) => panic!("{} received", other.escape_ascii()),
        }
        true
    }

    /// Takes everything until `done` says so.
    ///
    /// # Panics
    ///
    /// If nothing comes any more before.
    #[track_caller]
    pub fn receive_until(
        &mut self,
        what: &str,
        patience: Duration,
        done: impl Fn(&Client) -> bool,
    ) {
        let end = Instant::now() + patience;
        while !done(self) {
            let left = end.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "not within {patience:?}: {what}; {} sent, {} accepted, {} ended",
                self.sent,
                self.accepted.len(),
                self.ended.len()
            );
            self.receive(left.min(Duration::from_secs(1)));
        }
    }

    /// Sends a job and waits for its end.
    #[track_caller]
    pub fn run_with(&mut self, headers: &str, message: &[u8]) -> Ended {
        let headers = match headers {
            "" => "reply-requested".to_owned(),
            more => format!("reply-requested,{more}"),
        };
        let id = self.send(&headers, message);
        self.receive_until(&id, 3 * PATIENCE, |client| client.ended.contains_key(&id));
        self.ended[&id][0].clone()
    }

    /// [`Client::run_with`] for `name(*args)`.
    #[track_caller]
    pub fn run(&mut self, name: &str, args: Value) -> Ended {
        self.run_with("", call(name, args).to_string().as_bytes())
    }

    /// The value of a job that must end well.
    #[track_caller]
    pub fn value(&mut self, name: &str, args: Value) -> Value {
        let ended = self.run(name, args);
        assert_eq!(ended.status, "ok", "{ended:?}");
        ended.result["value"].clone()
    }
}

/// Waits until the broker counts exactly `count` free slots, and as many workers as `workers`.
#[track_caller]
pub fn wait_for_slots(router: &mut Router, workers: usize, count: u64) {
    eventually(&format!("{count} free slots"), 3 * PATIENCE, || {
        let shown = router.admin("ROUTER_SHOW_WORKERS");
        let known = shown["connected_workers"].as_object().expect("an object");
        let slots: u64 = known
            .values()
            .filter_map(|w| w["available_slots"].as_u64())
            .sum();
        if slots == count && known.len() == workers {
            Ok(())
        } else {
            Err(format!("{slots}: {shown}"))
        }
    });
}

/// The path of a file in `tests/python`.
pub fn python_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("python")
        .join(name)
}
