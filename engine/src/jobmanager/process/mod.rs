//! Processes that jobs run in: started as leaders of process groups, ended with the whole group,
//! and never outliving the job manager.
//!
//! Invariants: a group is signalled only while its leader has not been waited for, so that its
//! number cannot belong to somebody else; a process is reported as ended when nothing of its
//! group is left.

mod keeper;
mod shim;

pub(crate) use keeper::Keeper;
pub(crate) use shim::processes_can_be_started;
pub use shim::run_if_started_by_job_manager;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open,
    test_kill_process_group, waitid,
};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ExitStatus, Stdio};

/// A process and its group.
#[derive(Debug)]
pub(crate) struct GroupLeader {
    child: Child,
    /// Readable when the process has ended.
    pidfd: OwnedFd,
    group: Pid,
    waited: bool,
}

/// What a program gets as standard input, output and error.
#[derive(Debug)]
pub(crate) struct Streams {
    pub(crate) stdin: Stdio,
    pub(crate) stdout: Stdio,
    pub(crate) stderr: Stdio,
}

impl GroupLeader {
    /// Starts a program. The calling thread must live as long as the process: its end ends it.
    ///
    /// # Errors
    /// If no process can be made. That the program does not exist shows later: with `channel` as
    /// a frame on standard input, else by exit code 127.
    pub(crate) fn start(
        program: &OsStr,
        args: &[OsString],
        streams: Streams,
        channel: bool,
    ) -> io::Result<GroupLeader> {
        let mut child = shim::command(program, channel)
            .args(args)
            .process_group(0)
            .stdin(streams.stdin)
            .stdout(streams.stdout)
            .stderr(streams.stderr)
            .spawn()?;
        let group = Pid::from_child(&child);
        match pidfd_open(group, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(GroupLeader {
                child,
                pidfd,
                group,
                waited: false,
            }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error.into())
            }
        }
    }

    /// The process id, which is that of the group.
    pub(crate) fn id(&self) -> i32 {
        self.group.as_raw_nonzero().get()
    }

    /// Becomes readable when the process has ended.
    pub(crate) fn pidfd(&self) -> RawFd {
        self.pidfd.as_raw_fd()
    }

    /// Standard output and error, where they are pipes.
    pub(crate) fn take_outputs(
        &mut self,
    ) -> (
        Option<std::process::ChildStdout>,
        Option<std::process::ChildStderr>,
    ) {
        (self.child.stdout.take(), self.child.stderr.take())
    }

    /// SIGKILL to the whole group.
    pub(crate) fn kill(&self) {
        if !self.waited {
            // The leader is there, at least as a zombie: the group exists.
            let _ = kill_process_group(self.group, Signal::KILL);
        }
    }

    /// The exit status, once the process has ended. What is left of its group is killed first.
    pub(crate) fn wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if !self.waited {
            // Looked at without taking it: until then the group's number stays ours.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if waitid(WaitId::PidFd(self.pidfd.as_fd()), options)?.is_none() {
                return Ok(None);
            }
            self.kill();
        }
        let status = self.child.try_wait()?;
        self.waited = status.is_some();
        Ok(status)
    }

    /// True while a process of the group is left that is more than a zombie: those are the
    /// business of whoever inherited them.
    pub(crate) fn group_exists(&self) -> bool {
        test_kill_process_group(self.group).is_ok() && has_living_member(self.id())
    }
}

impl Drop for GroupLeader {
    fn drop(&mut self) {
        if !self.waited {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

/// Looks through all processes for one of the group. If that cannot be done, the kernel's word
/// that the group exists counts.
fn has_living_member(group: i32) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return true;
    };
    let mut names = processes.flatten().map(|entry| entry.path());
    names.any(|path| {
        std::fs::read_to_string(path.join("stat")).is_ok_and(|stat| is_living_member(&stat, group))
    })
}

/// Reads a line of `/proc/PID/stat`: PID (NAME) STATE PARENT GROUP ...
fn is_living_member(stat: &str, group: i32) -> bool {
    // The name may hold anything, brackets and spaces too.
    let Some((_, rest)) = stat.rsplit_once(") ") else {
        return false;
    };
    let mut words = rest.split(' ');
    let (state, _, of) = (words.next(), words.next(), words.next());
    of.and_then(|of| of.parse().ok()) == Some(group) && !matches!(state, Some("Z" | "X"))
}

/// How a process ended, in words.
pub(crate) fn ended(status: ExitStatus) -> String {
    if let Some(code) = status.code() {
        return format!("the process ended with exit code {code}");
    }
    match status.signal() {
        Some(signal) => {
            let name = signal_hook::low_level::signal_name(signal).unwrap_or("unknown");
            let memory = if signal == signal_hook::consts::SIGKILL {
                ", by hand or because memory ran out"
            } else {
                ""
            };
            format!("the process was killed by signal {signal} ({name}){memory}")
        }
        None => "the process ended".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_a_group_are_told_from_zombies() {
        assert!(is_living_member("12 (a) S 1 77 77 0", 77));
        assert!(is_living_member("12 (a) b) (c) R 1 77 77 0", 77));
        assert!(!is_living_member("12 (a) Z 1 77 77 0", 77));
        assert!(!is_living_member("12 (77) S 1 78 77 0", 77));
        assert!(!is_living_member("", 77));
    }

    #[test]
    fn endings_are_named() {
        assert_eq!(
            ended(ExitStatus::from_raw(3 << 8)),
            "the process ended with exit code 3"
        );
        assert_eq!(
            ended(ExitStatus::from_raw(11)),
            "the process was killed by signal 11 (SIGSEGV)"
        );
        assert!(ended(ExitStatus::from_raw(9)).ends_with("or because memory ran out"));
    }
}
