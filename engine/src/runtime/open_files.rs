//! The limit on open files (RLIMIT_NOFILE).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fmt;

/// File descriptors used besides connections: logs, polls, listeners, reload, journal.
pub const RESERVED_FILES: u64 = 64;

/// The limit before and after raising it. `u64::MAX` = none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenFiles {
    /// Soft limit found.
    pub before: u64,
    /// Soft limit now.
    pub now: u64,
}

/// Raises the soft limit to the hard limit.
pub fn raise_open_files() -> OpenFiles {
    let found = getrlimit(Resource::Nofile);
    let before = found.current.unwrap_or(u64::MAX);
    // If it is refused, the limit stays as it was, which the caller compares with its need.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: found.maximum,
            ..found
        },
    );
    OpenFiles {
        before,
        now: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
    }
}

impl OpenFiles {
    /// What is missing for `connections` connections, as one line; `None` if all fit.
    pub fn too_few_for(self, connections: u64) -> Option<String> {
        let needed = connections.saturating_add(RESERVED_FILES);
        (self.now < needed).then(|| {
            format!(
                "the limit on open files (RLIMIT_NOFILE) is {}, but the connection limits need \
                 {needed}: connections beyond it will have to wait",
                self.now
            )
        })
    }
}

impl fmt::Display for OpenFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.now {
            u64::MAX => f.write_str("unlimited"),
            limit => write!(f, "{limit}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_as_far_as_it_goes() {
        let raised = raise_open_files();
        assert!(raised.now >= raised.before);
        let hard = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        assert!(raised.now == hard || raised.now == raised.before);
        assert_eq!(
            raise_open_files(),
            OpenFiles {
                before: raised.now,
                now: raised.now
            }
        );
    }

    #[test]
    fn a_limit_that_is_too_small_is_named() {
        let files = OpenFiles {
            before: 100,
            now: 1_064,
        };
        assert_eq!(files.too_few_for(1_000), None);
        let line = files.too_few_for(1_001).unwrap();
        assert!(
            line.contains("is 1064") && line.contains("need 1065"),
            "{line}"
        );
        let unlimited = OpenFiles {
            before: 1,
            now: u64::MAX,
        };
        assert_eq!(unlimited.too_few_for(u64::MAX), None);
    }
}
