//! What an agent does without work.

use crate::ids::{NS_PER_US, Now};
use std::time::Duration;

/// How long an agent looks again and again before it sleeps, with `idle = spin`: a little longer
/// than a wake-up takes, so that spinning pays at a steady load and ends without one.
pub const SPIN_NS: u64 = 200 * NS_PER_US;

/// Decides between looking again and sleeping.
#[derive(Debug, Clone)]
pub struct IdleStrategy {
    spin_ns: u64,
    last_work_ns: u64,
}

impl IdleStrategy {
    /// Sleeps as soon as there is no work.
    pub fn park() -> Self {
        IdleStrategy {
            spin_ns: 0,
            last_work_ns: 0,
        }
    }

    /// Looks again for [`SPIN_NS`] first.
    pub fn spin() -> Self {
        IdleStrategy {
            spin_ns: SPIN_NS,
            last_work_ns: 0,
        }
    }

    /// Told after each turn whether there was work; true if the agent may sleep.
    #[inline]
    pub fn may_sleep(&mut self, work: bool, now_ns: u64) -> bool {
        if work {
            self.last_work_ns = now_ns;
            return false;
        }
        now_ns.saturating_sub(self.last_work_ns) >= self.spin_ns
    }
}

/// Time from `now` to the earliest of `times`; `None` without any.
pub fn earliest<const N: usize>(times: [Option<u64>; N], now: Now) -> Option<Duration> {
    let first = times.into_iter().flatten().min()?;
    Some(Duration::from_nanos(first.saturating_sub(now.mono_ns)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_is_bounded() {
        let mut spin = IdleStrategy::spin();
        assert!(!spin.may_sleep(true, 1_000));
        assert!(!spin.may_sleep(false, 1_000 + SPIN_NS - 1));
        assert!(spin.may_sleep(false, 1_000 + SPIN_NS));
        let mut park = IdleStrategy::park();
        assert!(!park.may_sleep(true, 1_000));
        assert!(park.may_sleep(false, 1_000));
    }
}
