//! CPU time of a process by thread, from /proc: nanoseconds from `schedstat`, the split into user
//! and system time (10 ms ticks) from `stat`, context switches from `status`.

use crate::failure::{Failure, Result};
use serde::Serialize;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// Linux reports user and system time in units of 1/100 s on every architecture it serves here.
const TICK_NS: u64 = 10_000_000;

/// Counters of one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ThreadTimes {
    name: String,
    run_ns: u64,
    /// Time the thread was ready to run and had no core.
    wait_ns: u64,
    user_ns: u64,
    system_ns: u64,
    /// Switches away from the thread: because it waited, and because another had its turn.
    voluntary_switches: u64,
    involuntary_switches: u64,
}

/// Counters of the threads of a process at one moment, by thread id.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample(HashMap<u32, ThreadTimes>);

/// CPU time of one thread, or of all together, between two samples.
#[derive(Debug, Clone, Default, Serialize, PartialEq)]
pub(crate) struct Used {
    pub(crate) name: String,
    pub(crate) run_ns: u64,
    pub(crate) wait_ns: u64,
    pub(crate) user_ns: u64,
    pub(crate) system_ns: u64,
    pub(crate) voluntary_switches: u64,
    pub(crate) involuntary_switches: u64,
}

impl Sample {
    /// Reads the counters of process `pid` now; only threads for which `wanted(name)` holds.
    pub(crate) fn take(pid: u32, wanted: impl Fn(&str) -> bool) -> Result<Self> {
        let tasks = format!("/proc/{pid}/task");
        let entries = fs::read_dir(&tasks).map_err(|error| {
            Failure::run(format!(
                "cannot read the CPU time of process {pid} ({tasks}): {error}"
            ))
        })?;
        let mut threads = HashMap::new();
        for entry in entries.flatten() {
            let Some(tid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            // A thread may end between the listing and the reading: then it is left out.
            if let Some(times) = read_thread(&entry.path()).filter(|times| wanted(&times.name)) {
                threads.insert(tid, times);
            }
        }
        Ok(Sample(threads))
    }

    /// What each thread used since `earlier`, the busiest first.
    pub(crate) fn since(&self, earlier: &Sample) -> Vec<Used> {
        let zero = ThreadTimes {
            name: String::new(),
            run_ns: 0,
            wait_ns: 0,
            user_ns: 0,
            system_ns: 0,
            voluntary_switches: 0,
            involuntary_switches: 0,
        };
        let used = |(tid, now): (&u32, &ThreadTimes)| {
            let before = earlier.0.get(tid).unwrap_or(&zero);
            Used {
                name: now.name.clone(),
                run_ns: now.run_ns.saturating_sub(before.run_ns),
                wait_ns: now.wait_ns.saturating_sub(before.wait_ns),
                user_ns: now.user_ns.saturating_sub(before.user_ns),
                system_ns: now.system_ns.saturating_sub(before.system_ns),
                voluntary_switches: now
                    .voluntary_switches
                    .saturating_sub(before.voluntary_switches),
                involuntary_switches: now
                    .involuntary_switches
                    .saturating_sub(before.involuntary_switches),
            }
        };
        let mut all: Vec<Used> = self.0.iter().map(used).collect();
        all.sort_by(|a, b| b.run_ns.cmp(&a.run_ns).then_with(|| a.name.cmp(&b.name)));
        all
    }
}

/// The sum over threads.
pub(crate) fn total(threads: &[Used]) -> Used {
    let mut sum = Used {
        name: "all".to_owned(),
        ..Used::default()
    };
    for used in threads {
        sum.run_ns += used.run_ns;
        sum.wait_ns += used.wait_ns;
        sum.user_ns += used.user_ns;
        sum.system_ns += used.system_ns;
        sum.voluntary_switches += used.voluntary_switches;
        sum.involuntary_switches += used.involuntary_switches;
    }
    sum
}

fn read_thread(task: &Path) -> Option<ThreadTimes> {
    let schedstat = fs::read_to_string(task.join("schedstat")).ok()?;
    let stat = fs::read_to_string(task.join("stat")).ok()?;
    let status = fs::read_to_string(task.join("status")).ok()?;
    parse_thread(&stat, &schedstat, &status)
}

fn parse_thread(stat: &str, schedstat: &str, status: &str) -> Option<ThreadTimes> {
    // The name stands in parentheses and may itself contain them and blanks.
    let (open, close) = (stat.find('(')?, stat.rfind(')')?);
    let fields: Vec<&str> = stat.get(close + 1..)?.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let mut times = schedstat.split_whitespace().map(str::parse::<u64>);
    Some(ThreadTimes {
        name: stat.get(open + 1..close)?.to_owned(),
        run_ns: times.next()?.ok()?,
        wait_ns: times.next()?.ok()?,
        user_ns: ticks(11)? * TICK_NS,
        system_ns: ticks(12)? * TICK_NS,
        voluntary_switches: status_value(status, "voluntary_ctxt_switches:")?,
        involuntary_switches: status_value(status, "nonvoluntary_ctxt_switches:")?,
    })
}

/// The number behind `key` in a `status` file.
fn status_value(status: &str, key: &str) -> Option<u64> {
    let rest = status.lines().find_map(|line| line.strip_prefix(key))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Resident memory of process `pid` in bytes.
pub(crate) fn resident_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path)
        .map_err(|error| Failure::run(format!("cannot read {path}: {error}")))?;
    status_value(&status, "VmRSS:")
        .map(|kib| kib * 1024)
        .ok_or_else(|| Failure::run(format!("{path} does not tell the resident memory")))
}

/// Number of open file descriptors of process `pid`.
pub(crate) fn open_files(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/fd");
    let entries = fs::read_dir(&path)
        .map_err(|error| Failure::run(format!("cannot read {path}: {error}")))?;
    Ok(entries.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    const STATUS: &str = "Name:\ta\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";

    #[test]
    fn thread_names_may_hold_anything() {
        let stat = "7 (a) b (c) R 1 1 1 0 -1 4194304 85 0 1 0 40 3 0 0 20 0 1 0 88077 0 0";
        let times = parse_thread(stat, "123456 789 4\n", STATUS).unwrap();
        assert_eq!(times.name, "a) b (c");
        assert_eq!((times.run_ns, times.wait_ns), (123_456, 789));
        assert_eq!((times.user_ns, times.system_ns), (400_000_000, 30_000_000));
        let switches = (times.voluntary_switches, times.involuntary_switches);
        assert_eq!(switches, (12, 3));
    }

    #[test]
    fn own_work_is_seen() {
        let pid = std::process::id();
        let before = Sample::take(pid, |_| true).unwrap();
        let until = Instant::now() + Duration::from_millis(60);
        let mut spins = 0_u64;
        while Instant::now() < until {
            spins = std::hint::black_box(spins + 1);
        }
        let used = total(&Sample::take(pid, |_| true).unwrap().since(&before));
        assert!(used.run_ns > 5_000_000, "{spins} spins: {used:?}");
        assert!(resident_bytes(pid).unwrap() > 100_000);
        assert!(open_files(pid).unwrap() >= 3);
    }

    #[test]
    fn missing_process_is_named() {
        let line = Sample::take(u32::MAX, |_| true).unwrap_err().to_string();
        assert!(line.contains("process 4294967295"), "{line}");
    }
}
