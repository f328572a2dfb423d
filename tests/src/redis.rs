//! Debian's redis-server with a folder and a port of its own.

use crate::process::{Process, free_port, wait_for_port};
use crate::{PATIENCE, peers};
use std::process::Command;
use tempfile::TempDir;

/// A Redis server; killed when dropped, with its folder.
#[derive(Debug)]
pub struct Redis {
    process: Option<Process>,
    port: u16,
    dir: TempDir,
}

impl Redis {
    /// Starts one, or `None` after SKIPPED was printed because there is no `redis-server`.
    ///
    /// # Panics
    ///
    /// With `CI=true` when it is missing, and if it does not come up.
    pub fn start() -> Option<Redis> {
        if let Err(error) = Command::new("redis-server").arg("--version").output() {
            peers::skip("redis-server", &error.to_string());
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let mut redis = Redis {
            process: None,
            port: 0,
            dir,
        };
        // A free port may be taken meanwhile: then another try.
        for _ in 0..4 {
            redis.port = free_port();
            if redis.try_start() {
                return Some(redis);
            }
        }
        panic!("redis-server did not come up");
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Ends it.
    pub fn stop(&mut self) {
        self.process = None;
    }

    /// Starts it again on the same port, with what it held.
    ///
    /// # Panics
    ///
    /// If it does not come up.
    pub fn start_again(&mut self) {
        assert!(self.try_start(), "redis-server did not come up again");
    }

    /// What a command of `redis-cli` prints, line by line.
    ///
    /// # Panics
    ///
    /// If it fails.
    #[track_caller]
    pub fn ask(&self, words: &[&str]) -> Vec<String> {
        let output = Command::new("redis-cli")
            .args(["-p", &self.port.to_string(), "--raw"])
            .args(words)
            .output()
            .expect("redis-cli runs");
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        text.lines()
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect()
    }

    fn try_start(&mut self) -> bool {
        let log = self.dir.path().join("log");
        let mut command = Command::new("redis-server");
        command
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"])
            .args(["--port", &self.port.to_string()])
            .arg("--dir")
            .arg(self.dir.path())
            .stdout(std::process::Stdio::null())
            .current_dir(self.dir.path());
        let process = Process::start("redis-server", &mut command, &log).expect("it was there");
        self.process = Some(process);
        wait_for_port(self.port, PATIENCE)
    }
}
