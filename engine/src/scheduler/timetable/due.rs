//! Due times: the first, the next, and what becomes of those that passed.

use super::{At, CATCH_UP_MAX, LATE_MS_MAX, Misfire, SET_BACK_MS};
use crate::ids::{NS_PER_MS, Now};
use crate::scheduler::record::Timing;
use crate::scheduler::schedule::Pace;

/// What an entry does at a due time.
pub(super) struct Step {
    /// Key of the run it has now.
    pub(super) fires: Option<u64>,
    pub(super) next: Option<(At, u64)>,
    /// Due times left behind without a run of their own.
    pub(super) missed: u64,
    /// The next due time has passed, too.
    pub(super) more_due: bool,
}

/// The step of an interval schedule due at `at`.
pub(super) fn advance_interval(
    ms: u64,
    at: i64,
    due_ms: u64,
    misfire: Misfire,
    caught_up: u32,
    now: Now,
) -> Step {
    let interval = i128::from(ms) * i128::from(NS_PER_MS);
    let late = i128::from(now.mono_ns) - i128::from(at);
    let passed = late / interval;
    // How many due times this step leaves behind, and what it runs for.
    let (behind, fires, missed) = match misfire {
        Misfire::All if caught_up < CATCH_UP_MAX => (1, Some(due_ms), 0),
        Misfire::One | Misfire::All => (passed + 1, Some(due_ms), passed),
        Misfire::None => {
            let latest_is_late = late - passed * interval > i128::from(LATE_MS_MAX * NS_PER_MS);
            if latest_is_late {
                (passed + 1, None, passed + 1)
            } else {
                let key = i128::from(due_ms) + passed * i128::from(ms);
                let key = u64::try_from(key).unwrap_or(u64::MAX);
                (passed + 1, Some(key), passed)
            }
        }
    };
    let next = i128::from(at) + behind * interval;
    let wait_ms = (next - i128::from(now.mono_ns)) / i128::from(NS_PER_MS);
    // By the clock of now, and never the key of a run before.
    let by_clock = i128::from(now.wall_ms) + wait_ms;
    let key = if behind == 1 && wait_ms < 0 {
        due_ms.saturating_add(ms)
    } else {
        u64::try_from(by_clock).unwrap_or(0)
    };
    let used = fires.unwrap_or(due_ms);
    Step {
        fires,
        next: Some((
            At::Mono(i64::try_from(next).unwrap_or(i64::MAX)),
            if key == used { key + 1 } else { key },
        )),
        missed: u64::try_from(missed).unwrap_or(u64::MAX),
        more_due: next <= i128::from(now.mono_ns),
    }
}

/// The step of a cron schedule due at `due_ms`.
pub(super) fn advance_cron(
    next_after: impl Fn(u64) -> Option<u64>,
    due_ms: u64,
    misfire: Misfire,
    caught_up: u32,
    now: Now,
) -> Step {
    /// Missed due times are counted up to here, then the rest as one.
    const COUNT_MAX: u64 = 1_000;
    let wall = |at: u64| (At::Wall(at), at);
    let following = next_after(due_ms);
    if misfire == Misfire::All && caught_up < CATCH_UP_MAX {
        return Step {
            fires: Some(due_ms),
            next: following.map(wall),
            missed: 0,
            more_due: following.is_some_and(|next| next <= now.wall_ms),
        };
    }
    let mut passed = 0;
    let mut next = following;
    while let Some(at) = next.filter(|at| *at <= now.wall_ms) {
        passed += 1;
        next = next_after(if passed < COUNT_MAX { at } else { now.wall_ms });
    }
    let fires = if misfire != Misfire::None || now.wall_ms - due_ms <= LATE_MS_MAX {
        Some(due_ms)
    } else {
        // Another one may just have become due.
        next_after(now.wall_ms.saturating_sub(LATE_MS_MAX + 1)).filter(|at| *at <= now.wall_ms)
    };
    Step {
        fires,
        next: next.map(wall),
        missed: passed + u64::from(fires.is_none()),
        more_due: false,
    }
}

/// The first due time after now.
pub(super) fn first_due(pace: &Pace, now: Now) -> Option<(At, u64)> {
    match pace {
        Pace::Every(ms) => {
            let at = now.mono_ns as i64 + (*ms * NS_PER_MS) as i64;
            Some((At::Mono(at), now.wall_ms + ms))
        }
        Pace::Cron(cron, zone) => {
            let due_ms = zone.next_after(cron, now.wall_ms)?;
            Some((At::Wall(due_ms), due_ms))
        }
    }
}

/// The due time of a stored schedule. `first` is what it would be if nothing were known.
pub(super) fn stored_due(pace: &Pace, timing: Timing, first: (At, u64), now: Now) -> (At, u64) {
    // The clock was set back by hours meanwhile: what was computed by it is worth nothing.
    if now.wall_ms.saturating_add(SET_BACK_MS) < timing.saved_ms {
        return first;
    }
    match pace {
        Pace::Every(ms) => {
            let wait_ms = timing.due_ms as i128 - now.wall_ms as i128;
            if wait_ms > i128::from(*ms) {
                return first;
            }
            let at = now.mono_ns as i128 + wait_ms * i128::from(NS_PER_MS);
            let at = i64::try_from(at).unwrap_or(i64::MIN);
            (At::Mono(at), timing.due_ms)
        }
        Pace::Cron(..) => (At::Wall(timing.due_ms), timing.due_ms),
    }
}
