//! The keeper: a small process that outlives the job manager by a moment and ends the process
//! groups the job manager leaves behind when it is killed. The parent-death signal reaches only
//! the processes the job manager started itself; this reaches what they started.
//!
//! It reads lines `+ID` and `-ID` from its standard input; at the end of the input, which comes
//! with the end of the job manager, it kills the groups that are left.

use super::shim::keeper_command;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::BTreeSet;
use std::io::{self, BufRead, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};

/// What the process does.
pub(super) fn run() {
    // Else `ps` shows it as "exe".
    let _ = rustix::thread::set_name(c"emq-keeper");
    for group in remaining(io::stdin().lock()) {
        if let Some(group) = Pid::from_raw(group) {
            // It may have ended meanwhile.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// The groups that are left at the end of the input.
fn remaining(input: impl BufRead) -> BTreeSet<i32> {
    let mut groups = BTreeSet::new();
    // A line that cannot be read is the end, too.
    for line in input.lines().map_while(Result::ok) {
        let (sign, group) = line.split_at_checked(1).unwrap_or_default();
        match group.parse() {
            Ok(group) if sign == "+" => drop(groups.insert(group)),
            Ok(group) if sign == "-" => drop(groups.remove(&group)),
            _ => {}
        }
    }
    groups
}

/// The job manager's side. The process is started for the first group.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    child: Option<Child>,
    groups: BTreeSet<i32>,
}

impl Keeper {
    /// A group has begun.
    pub(crate) fn add(&mut self, group: i32) {
        self.groups.insert(group);
        self.tell(&format!("+{group}\n"));
    }

    /// A group has ended.
    pub(crate) fn remove(&mut self, group: i32) {
        self.groups.remove(&group);
        self.tell(&format!("-{group}\n"));
    }

    fn tell(&mut self, line: &str) {
        let input = self.child.as_mut().and_then(|child| child.stdin.as_mut());
        // Lines are short and read at once: this does not block while the process lives.
        if input.is_some_and(|input| input.write_all(line.as_bytes()).is_ok()) {
            return;
        }
        // The first one, or somebody killed it. A new one is told everything.
        if let Some(mut gone) = self.child.take() {
            let _ = gone.wait();
        }
        match spawn() {
            Ok(mut child) => {
                if let Some(input) = &mut child.stdin {
                    let all: String = self.groups.iter().map(|g| format!("+{g}\n")).collect();
                    let _ = input.write_all(all.as_bytes());
                }
                self.child = Some(child);
            }
            Err(error) => tracing::warn!(%error, "the keeper of process groups cannot be started"),
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.stdin.take());
            let _ = child.wait();
        }
    }
}

fn spawn() -> io::Result<Child> {
    keeper_command()
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_taken_back_remains() {
        let input = &b"+5\n+7\n-5\n+9\nx\n+\n\n-8\n+9\n"[..];
        assert_eq!(remaining(input), BTreeSet::from([7, 9]));
    }
}
