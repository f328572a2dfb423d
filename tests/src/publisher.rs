//! A publisher process, ours or the original, with addresses of its own.

use crate::dealer::admin;
use crate::process::{Process, free_port, start_listening, wait_for_port};
use crate::router::find_number;
use crate::{PATIENCE, eventually, peers};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;
use zmq::Context;

/// A running `emq-pubsub`; killed when dropped, with its directory.
#[derive(Debug)]
pub struct Publisher {
    process: Process,
    /// Where publishers connect.
    pub incoming: String,
    /// Where subscribers connect.
    pub outgoing: String,
    /// Where emq-cli connects; empty for the original, which has no such socket.
    pub admin: String,
    dir: TempDir,
}

impl Publisher {
    /// The command for one of ours on free ports, with further settings as variables.
    pub fn command(env: &[(&str, &str)], dir: &Path) -> Command {
        let mut command = Command::new(peers::our_binary("emq-pubsub"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("EVENTMQ_") {
                command.env_remove(name);
            }
        }
        for name in ["INCOMING", "OUTGOING", "ADMINISTRATIVE"] {
            command.env(
                format!("EVENTMQ_PUBLISHER_{name}_ADDR"),
                "tcp://127.0.0.1:0",
            );
        }
        command
            .envs(env.iter().copied())
            .arg("--print-addresses")
            .current_dir(dir);
        command
    }

    /// Starts one of ours.
    ///
    /// # Panics
    ///
    /// If it does not come up.
    #[track_caller]
    pub fn ours(env: &[(&str, &str)]) -> Publisher {
        let dir = directory();
        let mut command = Publisher::command(env, dir.path());
        let log = dir.path().join("log");
        let (process, mut addresses) = start_listening("emq-pubsub", &mut command, &log, 3)
            .unwrap_or_else(|e| panic!("emq-pubsub did not come up: {e}"));
        let mut take = |name: &str| addresses.remove(name).expect("an address of each socket");
        Publisher {
            process,
            incoming: take("incoming"),
            outgoing: take("outgoing"),
            admin: take("administrative"),
            dir,
        }
    }

    /// Starts the original; `None` when it is missing.
    ///
    /// # Panics
    ///
    /// If it does not come up.
    #[track_caller]
    pub fn original() -> Option<Publisher> {
        let program = peers::original("emq-pubsub")?;
        // A free port may have been taken in the meantime: then another try.
        for _ in 0..4 {
            let dir = directory();
            let (incoming, outgoing) = (free_port(), free_port());
            let mut command = Command::new(&program);
            command
                .env("EVENTMQ_CONFIG_FILE", "/nonexistent")
                .env(
                    "EVENTMQ_PUBLISHER_INCOMING_ADDR",
                    format!("tcp://127.0.0.1:{incoming}"),
                )
                .env(
                    "EVENTMQ_PUBLISHER_OUTGOING_ADDR",
                    format!("tcp://127.0.0.1:{outgoing}"),
                )
                .current_dir(dir.path());
            let log = dir.path().join("log");
            let process = Process::start_group("the original emq-pubsub", &mut command, &log)
                .expect("python starts");
            if wait_for_port(incoming, PATIENCE) && wait_for_port(outgoing, PATIENCE) {
                return Some(Publisher {
                    process,
                    incoming: format!("tcp://127.0.0.1:{incoming}"),
                    outgoing: format!("tcp://127.0.0.1:{outgoing}"),
                    admin: String::new(),
                    dir,
                });
            }
        }
        panic!("the original emq-pubsub did not come up");
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Its working directory, where it also logs.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// The answer to an admin request as JSON (ours only).
    ///
    /// # Panics
    ///
    /// If there is none, or none that is JSON.
    #[track_caller]
    pub fn admin(&mut self, command: &str) -> serde_json::Value {
        if let Some(status) = self.process.ended() {
            panic!("emq-pubsub has ended: {status}; it logged:\n{}", self.log());
        }
        let json = admin(&Context::new(), &self.admin, command)
            .unwrap_or_else(|e| panic!("{e}; it logged:\n{}", self.log()));
        serde_json::from_slice(&json).unwrap_or_else(|e| panic!("{command}: {e}"))
    }

    /// A figure of STATUS or a counter of COUNTERS.
    #[track_caller]
    pub fn number(&mut self, name: &str) -> u64 {
        let status = self.admin("STATUS");
        find_number(&status, name)
            .or_else(|| find_number(&self.admin("COUNTERS"), name))
            .unwrap_or_else(|| panic!("no {name}"))
    }

    /// Waits until a figure or counter is as `wanted` says.
    #[track_caller]
    pub fn wait_for(&mut self, name: &str, wanted: impl Fn(u64) -> bool) {
        eventually(&format!("{name} as wanted"), PATIENCE, || {
            match self.number(name) {
                n if wanted(n) => Ok(()),
                n => Err(n.to_string()),
            }
        });
    }
}

fn directory() -> TempDir {
    tempfile::Builder::new()
        .prefix("emq-test-")
        .tempdir()
        .expect("a directory")
}
