//! How much memory there is to use.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Bytes this process may use: the smaller of the machine's memory and the limits of its cgroup
/// and all parents (version 2, or the memory controller of version 1).
pub fn usable_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    let unit = u64::from(info.mem_unit).max(1);
    let total = (info.totalram as u64).saturating_mul(unit);
    match cgroup_limit(Path::new("/")) {
        Some(limit) => limit.min(total),
        None => total,
    }
}

/// Bytes of this process in memory, if the kernel tells.
pub fn resident_bytes() -> Option<u64> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(pages.saturating_mul(rustix::param::page_size() as u64))
}

/// The smallest limit on the way from the process's cgroup up to the root, below `root`.
fn cgroup_limit(root: &Path) -> Option<u64> {
    let membership = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let limits = membership.lines().filter_map(|line| {
        // hierarchy:controllers:path; version 2 has no controllers in its line.
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let (mount, file) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max"),
            list if list.split(',').any(|c| c == "memory") => {
                ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        smallest(&root.join(mount), path, file)
    });
    limits.min()
}

fn smallest(mount: &Path, path: &str, file: &str) -> Option<u64> {
    // Inside a container the path may lead out of the mount ("/../.."): then its top counts.
    let inside: PathBuf = Path::new(path)
        .components()
        .filter(|part| matches!(part, Component::Normal(_)))
        .collect();
    let limits = inside.ancestors().filter_map(|dir| {
        let text = fs::read_to_string(mount.join(dir).join(file)).ok()?;
        // "max", and the huge number that version 1 has for it, are no limits.
        text.trim()
            .parse::<u64>()
            .ok()
            .filter(|limit| *limit < 1 << 62)
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file tree with the given files.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_smallest_limit_of_all_parents_counts() {
        let root = tree(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.max", "1000\n"),
            ("sys/fs/cgroup/memory.max", "2000\n"),
        ]);
        assert_eq!(cgroup_limit(root.path()), Some(1_000));
    }

    #[test]
    fn version_1_has_a_mount_of_its_own() {
        let root = tree(&[
            (
                "proc/self/cgroup",
                "5:cpu,cpuacct:/x\n3:memory:/docker/id\n",
            ),
            (
                "sys/fs/cgroup/memory/docker/id/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "4096\n"),
        ]);
        assert_eq!(cgroup_limit(root.path()), Some(4_096));
    }

    #[test]
    fn without_limits_there_is_none() {
        assert_eq!(cgroup_limit(tree(&[]).path()), None);
        let root = tree(&[
            ("proc/self/cgroup", "0::/../..\nnonsense\n"),
            ("sys/fs/cgroup/memory.max", "max\n"),
        ]);
        assert_eq!(cgroup_limit(root.path()), None);
    }

    #[test]
    fn this_machine_has_memory_and_this_process_uses_some() {
        let resident = resident_bytes().unwrap();
        assert!(resident > 1 << 16 && resident < usable_bytes());
    }
}
