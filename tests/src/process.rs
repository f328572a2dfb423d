//! Children of a test. A guard ends what it started, by its id, whatever happens to the test.

use crate::eventually;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A running child; killed and waited for when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// The child leads a process group of its own, which is killed with it.
    group: bool,
    name: String,
    log: Option<PathBuf>,
}

impl Process {
    /// Starts `command` with standard error appended to the file `log`.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> io::Result<Process> {
        let file = File::options().create(true).append(true).open(log)?;
        let child = command.stdin(Stdio::null()).stderr(file).spawn()?;
        Ok(Process {
            child,
            group: false,
            name: name.to_owned(),
            log: Some(log.to_owned()),
        })
    }

    /// Starts `command` with both outputs appended to `log`, as the leader of a process group, so
    /// that the children it forks end with it.
    pub fn start_group(name: &str, command: &mut Command, log: &Path) -> io::Result<Process> {
        let file = File::options().create(true).append(true).open(log)?;
        command.stdout(file.try_clone()?).process_group(0);
        let child = command.stdin(Stdio::null()).stderr(file).spawn()?;
        Ok(Process {
            child,
            group: true,
            name: name.to_owned(),
            log: Some(log.to_owned()),
        })
    }

    /// Watches over a child that the caller started.
    pub fn adopt(name: &str, child: Child) -> Process {
        Process {
            child,
            group: false,
            name: name.to_owned(),
            log: None,
        }
    }

    /// The child itself, to take its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Its process id.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a process id fits an i32"))
    }

    /// Sends a signal to the child alone.
    ///
    /// # Panics
    ///
    /// If the child was already waited for, or is not ours to signal.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap_or_else(|e| panic!("{signal} to {}: {e}", self.name));
    }

    /// The exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the child can be waited for")
    }

    /// Waits for the end.
    ///
    /// # Panics
    ///
    /// If it still runs after `patience`.
    #[track_caller]
    pub fn wait(&mut self, patience: Duration) -> ExitStatus {
        let name = self.name.clone();
        eventually(&format!("{name} ends"), patience, || {
            self.ended().ok_or_else(|| "still running".to_owned())
        })
    }

    /// Waits for the end and gives the exit code; a death by signal gives minus the signal.
    #[track_caller]
    pub fn wait_code(&mut self, patience: Duration) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        let status = self.wait(patience);
        status
            .code()
            .unwrap_or_else(|| -status.signal().expect("a code or a signal"))
    }

    /// Resident memory in bytes (`VmRSS`).
    pub fn resident_bytes(&self) -> u64 {
        self.status_kib("VmRSS:") * 1024
    }

    /// The highest resident memory so far in bytes (`VmHWM`).
    pub fn resident_bytes_max(&self) -> u64 {
        self.status_kib("VmHWM:") * 1024
    }

    /// Number of open file descriptors.
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).map_or(0, Iterator::count)
    }

    fn status_kib(&self, key: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))
            .unwrap_or_else(|e| panic!("{} has no /proc status: {e}", self.name));
        text.lines()
            .find_map(|line| line.strip_prefix(key))
            .and_then(|rest| rest.trim().split(' ').next()?.parse().ok())
            .unwrap_or_else(|| panic!("no {key} for {}", self.name))
    }

    /// The last lines that the child logged, for failure messages.
    pub fn log_tail(&self) -> String {
        let Some(path) = &self.log else {
            return String::new();
        };
        let text = std::fs::read(path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.group {
            // Forked children may outlive their leader: the group is signalled in any case.
            let _ = killpg(self.pid(), Signal::SIGKILL);
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- {} logged:\n{}\n---", self.name, self.log_tail());
        }
    }
}

/// Starts one of our daemons with `--print-addresses` and reads the `count` addresses that it
/// prints, one `listening NAME ADDRESS` a line: by name.
pub fn start_listening(
    name: &str,
    command: &mut Command,
    log: &Path,
    count: usize,
) -> Result<(Process, HashMap<String, String>), String> {
    command.stdout(Stdio::piped());
    let mut process = Process::start(name, command, log).map_err(|error| error.to_string())?;
    let stdout = process.child().stdout.take().expect("stdout is a pipe");
    let (lines, received) = mpsc::channel();
    // Ends with the pipe, that is with the process.
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // Goes on reading when nobody listens, so that the daemon never blocks on a full pipe.
            let _ = lines.send(line);
        }
    });
    let mut addresses = HashMap::new();
    let end = Instant::now() + crate::PATIENCE;
    while addresses.len() < count {
        let left = end.saturating_duration_since(Instant::now());
        let line = received.recv_timeout(left).map_err(|error| match error {
            mpsc::RecvTimeoutError::Timeout => "it prints no addresses".to_owned(),
            mpsc::RecvTimeoutError::Disconnected => {
                format!("it ended: {:?}", process.wait(crate::PATIENCE))
            }
        })?;
        if let ["listening", name, address] = line.split_whitespace().collect::<Vec<_>>()[..] {
            addresses.insert(name.to_owned(), address.to_owned());
        }
    }
    Ok((process, addresses))
}

/// A TCP port of 127.0.0.1 that nobody listens on now. For programs that cannot take port 0: it
/// may be taken by another before they bind it, so their start is retried.
pub fn free_port() -> u16 {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    socket
        .local_addr()
        .expect("a bound socket has an address")
        .port()
}

/// Waits until somebody accepts connections at `port` of 127.0.0.1.
pub fn wait_for_port(port: u16, patience: Duration) -> bool {
    let end = Instant::now() + patience;
    while Instant::now() < end {
        if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}
