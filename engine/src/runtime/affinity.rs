//! Pinning threads to cores.

use std::fmt::Write as _;
use thiserror::Error;

/// Cores this process may run on. A pinned thread passes its core on to the threads it starts, so
/// this is read before any thread is pinned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cores(Vec<usize>);

/// A thread cannot be pinned.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AffinityError {
    /// The core is not there, or not allowed to this process (cpuset, taskset).
    #[error("core {core} does not exist or is not allowed to this process (allowed: {allowed})")]
    NoSuchCore {
        /// The core asked for.
        core: usize,
        /// The allowed ones, as ranges.
        allowed: String,
    },
    /// The kernel refused.
    #[error("the kernel refused to pin a thread to core {0}")]
    Refused(usize),
}

impl Cores {
    /// Reads them. Without an answer from the kernel, as many as the standard library counts.
    pub fn detect() -> Cores {
        if let Some(cores) = core_affinity::get_core_ids().filter(|cores| !cores.is_empty()) {
            return Cores(cores.into_iter().map(|core| core.id).collect());
        }
        Cores((0..std::thread::available_parallelism().map_or(1, usize::from)).collect())
    }

    /// These cores, whether they are there or not.
    pub fn of(cores: Vec<usize>) -> Cores {
        Cores(cores)
    }

    /// Core numbers, ascending.
    pub fn ids(&self) -> &[usize] {
        &self.0
    }

    /// Checks that all `cores` can be pinned to.
    ///
    /// # Errors
    /// Names the first that cannot.
    pub fn check(&self, cores: &[usize]) -> Result<(), AffinityError> {
        match cores.iter().find(|core| !self.0.contains(core)) {
            None => Ok(()),
            Some(core) => Err(AffinityError::NoSuchCore {
                core: *core,
                allowed: ranges(&self.0),
            }),
        }
    }

    /// Pins the calling thread.
    ///
    /// # Errors
    /// If the core is not among these, or the kernel refuses.
    pub fn pin_current_thread(&self, core: usize) -> Result<(), AffinityError> {
        self.check(&[core])?;
        if core_affinity::set_for_current(core_affinity::CoreId { id: core }) {
            Ok(())
        } else {
            Err(AffinityError::Refused(core))
        }
    }
}

/// `0-2,5`.
fn ranges(cores: &[usize]) -> String {
    let mut text = String::new();
    let mut rest = cores;
    while let Some(first) = rest.first() {
        let len = rest
            .iter()
            .zip(*first..)
            .take_while(|(core, n)| **core == *n)
            .count();
        let comma = if text.is_empty() { "" } else { "," };
        let _ = match len {
            1 => write!(text, "{comma}{first}"),
            _ => write!(text, "{comma}{first}-{}", first + len - 1),
        };
        rest = &rest[len..];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_does_not_exist_is_named() {
        let cores = Cores(vec![0, 1, 2, 5]);
        assert_eq!(cores.check(&[5, 0]), Ok(()));
        assert_eq!(
            cores.check(&[0, 3]).unwrap_err().to_string(),
            "core 3 does not exist or is not allowed to this process (allowed: 0-2,5)"
        );
        assert_eq!(
            Cores::detect()
                .pin_current_thread(1_000_000)
                .unwrap_err()
                .to_string()
                .split(" (")
                .next(),
            Some("core 1000000 does not exist or is not allowed to this process")
        );
    }

    #[test]
    fn a_pinned_thread_runs_on_its_core_only() {
        let cores = Cores::detect();
        let last = *cores.ids().last().unwrap();
        std::thread::spawn(move || {
            cores.pin_current_thread(last).unwrap();
            assert_eq!(Cores::detect().ids(), [last]);
        })
        .join()
        .unwrap();
    }
}
