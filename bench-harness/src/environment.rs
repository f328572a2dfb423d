//! Where and with what a result was measured.

use serde::Serialize;
use std::process::Command;
use std::{env, fs, thread};

/// What every result file says about its origin.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Environment {
    /// Commit of the working directory, with `-dirty` if tracked files differ from it.
    commit: String,
    command_line: Vec<String>,
    /// Seconds since 1970.
    unix_secs: u64,
    cores: usize,
    processor: String,
    kernel: String,
    version: &'static str,
    /// `release` means that debug assertions are off.
    build: &'static str,
    features: Vec<&'static str>,
}

impl Environment {
    /// Version of this program.
    pub(crate) fn version(&self) -> &str {
        self.version
    }

    /// Looks at the machine and the working directory now.
    pub(crate) fn now() -> Self {
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name"));
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let mut command_line: Vec<String> = env::args().collect();
        if let Some(program) = command_line.first_mut() {
            *program = env!("CARGO_BIN_NAME").to_owned();
        }
        Environment {
            commit: commit(),
            command_line,
            unix_secs: since_epoch.unwrap_or_default().as_secs(),
            cores: thread::available_parallelism().map_or(0, usize::from),
            processor: model
                .unwrap_or_default()
                .trim_start_matches([' ', '\t', ':'])
                .to_owned(),
            kernel: release.trim().to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            build: if cfg!(debug_assertions) {
                "with debug assertions"
            } else {
                "release"
            },
            features: if cfg!(feature = "libzmq") {
                vec!["libzmq"]
            } else {
                Vec::new()
            },
        }
    }
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let Some(head) = git(&["rev-parse", "HEAD"]) else {
        return "unknown".to_owned();
    };
    match git(&["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => head,
        _ => head + "-dirty",
    }
}
