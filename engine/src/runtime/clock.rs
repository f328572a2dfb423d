//! Reading the time, once per turn.

use crate::ids::{NS_PER_MS, NS_PER_SEC, Now};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How far the wall clock is carried on by the monotonic one before it is read again.
const WALL_READ_NS: u64 = 100 * NS_PER_MS;

/// Makes [`Now`] values. Copies share their start, so that values of all agents compare.
///
/// The wall clock is read every 100 ms and carried on by the monotonic clock between: one clock
/// read per turn instead of two. A jump of the wall clock shows up to 100 ms late.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
    /// Wall time at `wall_read_ns`, in nanoseconds since the Unix epoch.
    wall_ns: u64,
    /// Monotonic time at which the wall clock was read.
    wall_read_ns: u64,
    /// For a clock that counts sleep: what the system had slept at the start, and since then, in
    /// nanoseconds.
    slept: Option<(u64, u64)>,
}

impl Clock {
    /// A clock whose monotonic time starts now, at one second: 0 stays free for "never".
    pub fn new() -> Clock {
        let now = Instant::now();
        let start = now.checked_sub(Duration::from_secs(1)).unwrap_or(now);
        let mut clock = Clock {
            start,
            wall_ns: 0,
            wall_read_ns: 0,
            slept: None,
        };
        clock.read_wall(clock.mono_ns());
        clock
    }

    /// As [`Clock::new`], but the monotonic time also counts while the system sleeps (seen up to
    /// 100 ms after it wakes).
    pub fn counting_sleep() -> Clock {
        let mut clock = Clock::new();
        clock.slept = Some((system_slept_ns(), 0));
        clock
    }

    /// The time.
    #[inline]
    pub fn now(&mut self) -> Now {
        let mono_ns = self.mono_ns();
        let mono_ns = if mono_ns.saturating_sub(self.wall_read_ns) >= WALL_READ_NS {
            self.read_wall(mono_ns)
        } else {
            mono_ns
        };
        let wall_ns = self
            .wall_ns
            .saturating_add(mono_ns.saturating_sub(self.wall_read_ns));
        Now {
            mono_ns,
            wall_ms: wall_ns / NS_PER_MS,
        }
    }

    #[inline]
    fn mono_ns(&self) -> u64 {
        // 64 bits of nanoseconds are 584 years.
        self.start.elapsed().as_nanos() as u64 + self.slept.map_or(0, |(_, since_ns)| since_ns)
    }

    /// Gives the monotonic time back, with what the system has slept since the last reading.
    #[cold]
    fn read_wall(&mut self, mono_ns: u64) -> u64 {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        self.wall_ns = u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX);
        let mut mono_ns = mono_ns;
        if let Some((at_start_ns, since_ns)) = &mut self.slept {
            let before_ns = *since_ns;
            // Never less than before: it is read in two steps.
            *since_ns = before_ns.max(system_slept_ns().saturating_sub(*at_start_ns));
            mono_ns += *since_ns - before_ns;
        }
        self.wall_read_ns = mono_ns;
        mono_ns
    }
}

/// How long the system has slept since it was started, to a few microseconds.
fn system_slept_ns() -> u64 {
    use rustix::time::{ClockId, clock_gettime};
    let ns = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec as u64 * NS_PER_SEC + time.tv_nsec as u64
    };
    let awake_ns = ns(ClockId::Monotonic);
    let slept_ns = ns(ClockId::Boottime).saturating_sub(awake_ns);
    // Below this it is the time between the two readings.
    if slept_ns < NS_PER_MS { 0 } else { slept_ns }
}

impl Default for Clock {
    fn default() -> Self {
        Clock::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_and_copies_agree() {
        let mut clock = Clock::new();
        let mut copy = clock;
        let mut last = clock.now();
        assert!(last.mono_ns > 0);
        for _ in 0..1_000 {
            let now = clock.now();
            assert!(now.mono_ns >= last.mono_ns);
            last = now;
        }
        assert!(copy.now().mono_ns >= last.mono_ns);
        assert!(clock.now().mono_ns - last.mono_ns < 60_000 * NS_PER_MS);
    }

    #[test]
    fn wall_time_is_that_of_the_system() {
        let mut clock = Clock::new();
        let system_ms = || {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_millis() as u64
        };
        let before = system_ms();
        let wall = clock.now().wall_ms;
        assert!(
            wall + 1 >= before && wall <= system_ms() + 1,
            "{before} {wall}"
        );
    }

    #[test]
    fn sleep_counts_if_it_is_asked_for() {
        let mut clock = Clock::counting_sleep();
        let before = clock.now();
        // As if the system had slept for an hour since the start of the clock.
        let (at_start_ns, _) = clock.slept.unwrap();
        clock.slept = Some((at_start_ns, 3_600 * NS_PER_SEC));
        let after = clock.now();
        assert!(after.mono_ns - before.mono_ns >= 3_600 * NS_PER_SEC);
        assert!(clock.now().mono_ns >= after.mono_ns);
        assert_eq!(Clock::new().slept, None);
    }

    #[test]
    fn a_wall_clock_read_long_ago_is_read_again() {
        let mut clock = Clock::new();
        let right = clock.now().wall_ms;
        clock.wall_ns = 5 * NS_PER_MS;
        assert!(
            clock.now().wall_ms < right,
            "carried on from the last reading"
        );
        clock.wall_read_ns = 0;
        clock.wall_ns = 5 * NS_PER_MS;
        assert!(clock.now().wall_ms >= right, "read anew after 100 ms");
    }
}
