//! Which threads there are and on which cores they run.

use super::config::{ServerConfig, StartError};
use crate::runtime::affinity::Cores;
use crate::settings::{Idle, Threading};

/// Cores from which on `auto` means `dedicated`.
const DEDICATED_CORES_MIN: usize = 4;

/// The decision, with its reason.
#[derive(Debug, Clone)]
pub(super) struct Placement {
    dedicated: bool,
    reason: &'static str,
    warning: Option<String>,
    present: Vec<usize>,
    io_threads: usize,
    io_cores: Vec<usize>,
    dispatch_core: Option<usize>,
    enough: bool,
}

impl Placement {
    /// Decides for this machine.
    pub(super) fn new(config: &ServerConfig) -> Result<Self, StartError> {
        let present = Cores::detect().ids().to_vec();
        Self::for_cores(config, present)
    }

    fn for_cores(config: &ServerConfig, present: Vec<usize>) -> Result<Self, StartError> {
        let cores = Cores::of(present.clone());
        let check = |setting: &'static str, asked: &[usize]| {
            cores
                .check(asked)
                .map_err(|source| StartError::NoSuchCore { setting, source })
        };
        let asked_io = config.io_cores.clone().unwrap_or_default();
        check("io_cores", &asked_io)?;
        check("dispatch_core", config.dispatch_core.as_slice())?;
        let (dedicated, reason) = match config.threading {
            Threading::Dedicated => (true, "set"),
            Threading::Inline => (false, "set"),
            Threading::Auto if present.len() >= DEDICATED_CORES_MIN => {
                (true, "auto: 4 cores or more")
            }
            Threading::Auto => (false, "auto: fewer than 4 cores"),
        };
        let io_threads = config.io_threads.max(2);
        let threads = if dedicated { io_threads + 1 } else { 1 };
        let enough = present.len() >= threads;
        let warning = (dedicated && !enough).then(|| {
            format!(
                "{} cores for {threads} threads: they are not pinned and do not spin",
                present.len()
            )
        });
        let mut placement = Placement {
            dedicated,
            reason,
            warning,
            io_threads,
            io_cores: asked_io,
            dispatch_core: config.dispatch_core,
            enough,
            present,
        };
        if dedicated && enough {
            placement.choose();
        } else {
            placement.io_cores.clear();
            if dedicated || config.idle == Idle::Park {
                placement.dispatch_core = placement.dispatch_core.filter(|_| !dedicated);
            }
        }
        Ok(placement)
    }

    /// Cores nobody asked for go to the threads without one, from the last core down: the first
    /// ones get most of the machine's interrupts.
    fn choose(&mut self) {
        let taken: Vec<usize> = self
            .io_cores
            .iter()
            .copied()
            .chain(self.dispatch_core)
            .collect();
        let mut free = self
            .present
            .iter()
            .rev()
            .filter(|core| !taken.contains(core));
        if self.dispatch_core.is_none() {
            self.dispatch_core = free.next().copied();
        }
        while self.io_cores.len() < self.io_threads {
            match free.next() {
                Some(core) => self.io_cores.push(*core),
                None => break,
            }
        }
    }

    pub(super) fn dedicated(&self) -> bool {
        self.dedicated
    }

    pub(super) fn threading(&self) -> &'static str {
        if self.dedicated {
            "dedicated"
        } else {
            "inline"
        }
    }

    pub(super) fn reason(&self) -> &'static str {
        self.reason
    }

    pub(super) fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    pub(super) fn cores(&self) -> usize {
        self.present.len()
    }

    /// Frontend and backend threads.
    pub(super) fn io_split(&self) -> (usize, usize) {
        (self.io_threads / 2, self.io_threads - self.io_threads / 2)
    }

    /// Core of I/O thread `number`; the administrative one (the last) has none.
    pub(super) fn io_core(&self, number: usize) -> Option<usize> {
        self.io_cores
            .get(number)
            .copied()
            .filter(|_| number < self.io_threads)
    }

    pub(super) fn dispatch_core(&self) -> Option<usize> {
        self.dispatch_core
    }

    pub(super) fn may_spin(&self) -> bool {
        self.enough
    }
}

/// Pins the calling thread to a core that was there at the start.
pub(super) fn pin(core: Option<usize>) {
    let Some(core) = core else { return };
    if let Err(error) = Cores::of(vec![core]).pin_current_thread(core) {
        tracing::warn!(core, %error, "cannot pin a thread");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(threading: Threading) -> ServerConfig {
        ServerConfig {
            threading,
            ..ServerConfig::default()
        }
    }

    #[test]
    fn auto_follows_the_number_of_cores() {
        let few = Placement::for_cores(&config(Threading::Auto), vec![0, 1]).unwrap();
        assert_eq!((few.threading(), few.warning()), ("inline", None));
        let many = Placement::for_cores(&config(Threading::Auto), vec![0, 1, 2, 3]).unwrap();
        assert_eq!((many.threading(), many.warning()), ("dedicated", None));
        assert_eq!(many.dispatch_core(), Some(3));
        assert_eq!([0, 1, 2].map(|n| many.io_core(n)), [Some(2), Some(1), None]);
    }

    #[test]
    fn too_few_cores_mean_no_pinning_and_one_warning() {
        let placement = Placement::for_cores(&config(Threading::Dedicated), vec![0, 1]).unwrap();
        assert!(placement.dedicated() && !placement.may_spin());
        assert!(placement.warning().is_some());
        assert_eq!(
            (placement.dispatch_core(), placement.io_core(0)),
            (None, None)
        );
    }

    #[test]
    fn a_core_that_is_not_there_is_an_error_naming_the_setting() {
        let config = ServerConfig {
            io_cores: Some(vec![0, 9]),
            ..ServerConfig::default()
        };
        let error = Placement::for_cores(&config, vec![0, 1])
            .unwrap_err()
            .to_string();
        assert!(error.contains("io_cores") && error.contains('9'), "{error}");
        let config = ServerConfig {
            dispatch_core: Some(5),
            ..ServerConfig::default()
        };
        let error = Placement::for_cores(&config, vec![0, 1])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("dispatch_core") && error.contains('5'),
            "{error}"
        );
    }
}
