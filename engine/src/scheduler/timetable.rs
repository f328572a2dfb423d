//! Which schedule is due when, and what becomes of due times that pass without a run.
//!
//! Interval schedules count on the monotonic clock, so that a clock that is set does not move them;
//! cron schedules follow the wall clock. Every due time has a key, the Unix millisecond it stands
//! for, which is never used twice for one schedule while the clock is not set back by hours.

mod due;

use self::due::{advance_cron, advance_interval, first_due, stored_due};
use super::identity::Identity;
use super::record::{BadRecord, Record, Timing, body_json};
use super::schedule::{Pace, Refusal, Schedule};
use crate::ids::{NS_PER_MS, NS_PER_SEC, Now};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// With `misfire = none` a due time counts as kept up to so much later.
pub const LATE_MS_MAX: u64 = 5_000;
/// With `misfire = all` at most so many due times in a row are made up for; the rest is as `one`.
pub const CATCH_UP_MAX: u32 = 1_000;
/// A clock set back by less keeps the due times of cron schedules, so that nothing runs twice;
/// set back by more, the clock was wrong before, and they are computed anew.
pub const SET_BACK_MS: u64 = 3 * 3_600_000;
/// Longest sleep while a cron schedule waits: a clock set forward is noticed so late.
const WALL_LOOK_NS: u64 = NS_PER_SEC;

/// What becomes of due times that passed while nothing could run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misfire {
    /// One run for all of them.
    One,
    /// A run for each, up to [`CATCH_UP_MAX`].
    All,
    /// None.
    None,
}

/// One run to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// What runs.
    pub schedule: Arc<Schedule>,
    /// The due time it is for: its key, together with the identity of the schedule.
    pub due_ms: u64,
}

/// When an entry is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Monotonic nanoseconds; may be before the start of the clock.
    Mono(i64),
    /// Unix milliseconds.
    Wall(u64),
}

#[derive(Debug)]
struct Entry {
    schedule: Arc<Schedule>,
    left: Option<u32>,
    at: At,
    due_ms: u64,
    /// A run that does not wait for a due time: place in the queue of such, and key.
    at_once: Option<(u64, u64)>,
    /// Due times made up for in a row.
    caught_up: u32,
    runs: u64,
    last_ms: Option<u64>,
}

/// What is shown of a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// What it is.
    pub schedule: Arc<Schedule>,
    /// Runs left, if limited.
    pub left: Option<u32>,
    /// Next due time.
    pub due_ms: u64,
    /// Runs since it was taken or restored by this process.
    pub runs: u64,
    /// When the last of them was.
    pub last_ms: Option<u64>,
}

/// All schedules.
#[derive(Debug)]
pub struct Timetable {
    misfire: Misfire,
    schedules_max: usize,
    bytes_max: usize,
    entries: BTreeMap<Identity, Entry>,
    by_mono: BTreeSet<(i64, Identity)>,
    by_wall: BTreeSet<(u64, Identity)>,
    at_once: BTreeSet<(u64, Identity)>,
    bytes: usize,
    next_place: u64,
    /// Key of the latest run at once: two in one millisecond are two.
    last_at_once_ms: u64,
    changed: BTreeSet<Identity>,
    missed: u64,
    ended: u64,
    /// Wall clock minus monotonic clock when last looked at, in milliseconds.
    offset_ms: Option<i64>,
}

impl Timetable {
    /// An empty one with its limits.
    pub fn new(misfire: Misfire, schedules_max: usize, bytes_max: usize) -> Timetable {
        Timetable {
            misfire,
            schedules_max,
            bytes_max,
            entries: BTreeMap::new(),
            by_mono: BTreeSet::new(),
            by_wall: BTreeSet::new(),
            at_once: BTreeSet::new(),
            bytes: 0,
            next_place: 0,
            last_at_once_ms: 0,
            changed: BTreeSet::new(),
            missed: 0,
            ended: 0,
            offset_ms: None,
        }
    }

    /// Other limits and another rule for missed due times, from now on.
    pub fn configure(&mut self, misfire: Misfire, schedules_max: usize, bytes_max: usize) {
        self.misfire = misfire;
        self.schedules_max = schedules_max;
        self.bytes_max = bytes_max;
    }

    /// Number of schedules.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True without schedules.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes they take, roughly.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Due times that passed without a run of their own since this was last asked.
    pub fn take_missed(&mut self) -> u64 {
        std::mem::take(&mut self.missed)
    }

    /// Schedules that have used up their runs since this was last asked.
    pub fn take_ended(&mut self) -> u64 {
        std::mem::take(&mut self.ended)
    }

    /// Takes a schedule; one of the same identity is replaced, its timer begins anew. Without
    /// `nohaste` it is due at once.
    ///
    /// # Errors
    /// [`Refusal::Full`], [`Refusal::Cron`] if it never comes again.
    pub fn put(&mut self, schedule: Schedule, now: Now) -> Result<(), Refusal> {
        let identity = schedule.identity;
        let (freed, others) = match self.entries.get(&identity) {
            Some(old) => (old.schedule.bytes(), self.entries.len() - 1),
            None => (0, self.entries.len()),
        };
        if others >= self.schedules_max || self.bytes - freed + schedule.bytes() > self.bytes_max {
            return Err(Refusal::Full);
        }
        let (at, due_ms) =
            first_due(&schedule.pace, now).ok_or(Refusal::Cron(super::cron::CronError::Never))?;
        self.forget(identity);
        self.changed.insert(identity);
        let left = schedule.run_count;
        if left == Some(0) {
            self.ended += 1;
            return Ok(());
        }
        let hasty = !schedule.nohaste;
        self.insert(schedule, left, at, due_ms);
        if hasty {
            self.at_once(identity, now.wall_ms);
        }
        Ok(())
    }

    /// Takes a stored schedule: due when it was, or one interval from now if that is not known.
    /// Never a run at once by itself.
    ///
    /// # Errors
    /// [`BadRecord`]. The limits are not asked: it was taken once.
    pub fn restore(&mut self, record: &Record, now: Now) -> Result<(), BadRecord> {
        let schedule = record.schedule()?;
        let never = BadRecord::Refused(Refusal::Cron(super::cron::CronError::Never));
        let first = first_due(&schedule.pace, now).ok_or(never)?;
        let (at, due_ms) = match record.timing {
            None => first,
            Some(timing) => stored_due(&schedule.pace, timing, first, now),
        };
        let left = schedule.run_count;
        self.forget(schedule.identity);
        if left == Some(0) {
            self.changed.insert(schedule.identity);
            self.ended += 1;
        } else {
            // What the store says of its next due time may be of no use.
            if record.timing.is_none_or(|timing| timing.due_ms != due_ms) {
                self.changed.insert(schedule.identity);
            }
            self.insert(schedule, left, at, due_ms);
        }
        Ok(())
    }

    /// Removes a schedule; false if there is none.
    pub fn remove(&mut self, identity: Identity) -> bool {
        // Also if it is not known here: a store may have it.
        self.changed.insert(identity);
        self.forget(identity)
    }

    /// Makes it equal to what a store holds, but for schedules whose changes are not written yet.
    /// The number of schedules taken, and those that could not be.
    pub fn reconcile(&mut self, records: &[Record], now: Now) -> (u64, Vec<(Identity, BadRecord)>) {
        let stored: BTreeSet<Identity> = records.iter().map(|record| record.identity).collect();
        let gone = |identity: &Identity| !stored.contains(identity);
        let gone: Vec<Identity> = self.entries.keys().copied().filter(gone).collect();
        for identity in gone {
            if !self.changed.contains(&identity) {
                self.forget(identity);
            }
        }
        let (mut taken, mut bad) = (0, Vec::new());
        for record in records {
            if self.changed.contains(&record.identity) || self.is_same(record, now) {
                continue;
            }
            match self.restore(record, now) {
                Ok(()) => taken += 1,
                Err(error) => bad.push((record.identity, error)),
            }
        }
        (taken, bad)
    }

    fn is_same(&self, record: &Record, now: Now) -> bool {
        self.record(record.identity, now).is_some_and(|own| {
            let due_ms = |record: &Record| record.timing.map(|timing| timing.due_ms);
            own.body == record.body && due_ms(&own) == due_ms(record)
        })
    }

    /// Looks at the clock: due times of cron schedules are computed anew if it was set back by
    /// hours. To be called before [`Timetable::take_due`].
    pub fn look_at_clock(&mut self, now: Now) -> bool {
        let offset = now.wall_ms as i64 - (now.mono_ns / NS_PER_MS) as i64;
        let before = self.offset_ms.replace(offset);
        if before.is_none_or(|before| before - offset < SET_BACK_MS as i64) {
            return false;
        }
        for (_, identity) in std::mem::take(&mut self.by_wall) {
            let Some(entry) = self.entries.get_mut(&identity) else {
                continue;
            };
            if let Some((at, due_ms)) = first_due(&entry.schedule.pace, now) {
                entry.at = at;
                entry.due_ms = due_ms;
                self.by_wall.insert((due_ms, identity));
                self.changed.insert(identity);
            }
        }
        true
    }

    /// The next run that does not wait for a due time, if there is one.
    pub fn take_at_once(&mut self, now: Now) -> Option<Run> {
        let (place, identity) = self.at_once.pop_first()?;
        let entry = self.entries.get_mut(&identity)?;
        let (_, due_ms) = entry.at_once.take()?;
        debug_assert!(place < self.next_place);
        Some(self.run(identity, due_ms, now))
    }

    /// The next run that is due, if there is one.
    pub fn take_due(&mut self, now: Now) -> Option<Run> {
        if let Some(run) = self.take_at_once(now) {
            return Some(run);
        }
        loop {
            let identity = self.first_due_entry(now)?;
            if let Some(due_ms) = self.advance(identity, now) {
                return Some(self.run(identity, due_ms, now));
            }
        }
    }

    /// When something may be due, in monotonic nanoseconds.
    pub fn deadline(&self, now: Now) -> Option<u64> {
        if !self.at_once.is_empty() {
            return Some(now.mono_ns);
        }
        let mono = self.by_mono.first().map(|(at, _)| (*at).max(0) as u64);
        let wall = self.by_wall.first().map(|(due_ms, _)| {
            let wait = due_ms.saturating_sub(now.wall_ms).saturating_mul(NS_PER_MS);
            now.mono_ns + wait.min(WALL_LOOK_NS)
        });
        mono.into_iter().chain(wall).min()
    }

    /// Schedules that have changed since this was last asked: all of `first` that have, then others
    /// while there are fewer than `max`.
    pub fn take_changed(
        &mut self,
        first: impl Iterator<Item = Identity>,
        max: usize,
    ) -> Vec<Identity> {
        let mut taken: Vec<_> = first.filter(|of| self.changed.remove(of)).collect();
        while taken.len() < max
            && let Some(identity) = self.changed.pop_first()
        {
            taken.push(identity);
        }
        taken
    }

    /// Puts changes back that could not be written.
    pub fn give_back_changed(&mut self, changed: impl Iterator<Item = Identity>) {
        self.changed.extend(changed);
    }

    /// True if there are changes to write.
    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// A schedule as it is to be stored; `None` if it is to be deleted.
    pub fn record(&self, identity: Identity, now: Now) -> Option<Record> {
        let entry = self.entries.get(&identity)?;
        Some(Record {
            identity,
            body: body_json(&entry.schedule, entry.left),
            timing: Some(Timing {
                due_ms: entry.due_ms,
                saved_ms: now.wall_ms,
            }),
        })
    }

    /// The schedules behind `after` in order of identity.
    pub fn shown(&self, after: Option<Identity>) -> impl Iterator<Item = Shown> + '_ {
        let from = after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let behind = self.entries.range((from, std::ops::Bound::Unbounded));
        behind.map(|(_, entry)| Shown {
            schedule: Arc::clone(&entry.schedule),
            left: entry.left,
            due_ms: entry.due_ms,
            runs: entry.runs,
            last_ms: entry.last_ms,
        })
    }

    fn insert(&mut self, schedule: Schedule, left: Option<u32>, at: At, due_ms: u64) {
        let identity = schedule.identity;
        self.bytes += schedule.bytes();
        self.index(identity, at);
        self.entries.insert(
            identity,
            Entry {
                schedule: Arc::new(schedule),
                left,
                at,
                due_ms,
                at_once: None,
                caught_up: 0,
                runs: 0,
                last_ms: None,
            },
        );
    }

    fn at_once(&mut self, identity: Identity, now_ms: u64) {
        let place = self.next_place;
        let due_ms = now_ms.max(self.last_at_once_ms + 1);
        self.last_at_once_ms = due_ms;
        if let Some(entry) = self.entries.get_mut(&identity) {
            self.next_place += 1;
            entry.at_once = Some((place, due_ms));
            self.at_once.insert((place, identity));
        }
    }

    fn forget(&mut self, identity: Identity) -> bool {
        let Some(entry) = self.entries.remove(&identity) else {
            return false;
        };
        self.bytes -= entry.schedule.bytes();
        self.unindex(identity, entry.at);
        if let Some((place, _)) = entry.at_once {
            self.at_once.remove(&(place, identity));
        }
        true
    }

    fn index(&mut self, identity: Identity, at: At) {
        match at {
            At::Mono(at) => self.by_mono.insert((at, identity)),
            At::Wall(at) => self.by_wall.insert((at, identity)),
        };
    }

    fn unindex(&mut self, identity: Identity, at: At) {
        match at {
            At::Mono(at) => self.by_mono.remove(&(at, identity)),
            At::Wall(at) => self.by_wall.remove(&(at, identity)),
        };
    }

    fn first_due_entry(&self, now: Now) -> Option<Identity> {
        let mono = self
            .by_mono
            .first()
            .filter(|(at, _)| *at <= now.mono_ns as i64);
        let wall = || self.by_wall.first().filter(|(at, _)| *at <= now.wall_ms);
        mono.map(|(_, identity)| *identity)
            .or_else(|| wall().map(|(_, identity)| *identity))
    }

    /// Moves a due entry to its next due time. The key of the run it has now, if it has one.
    fn advance(&mut self, identity: Identity, now: Now) -> Option<u64> {
        let entry = self
            .entries
            .get_mut(&identity)
            .expect("indexed entries exist");
        let step = match (&entry.schedule.pace, entry.at) {
            (Pace::Every(ms), At::Mono(at)) => {
                advance_interval(*ms, at, entry.due_ms, self.misfire, entry.caught_up, now)
            }
            (Pace::Cron(cron, zone), At::Wall(due_ms)) => {
                let next_after = |ms| zone.next_after(cron, ms);
                advance_cron(next_after, due_ms, self.misfire, entry.caught_up, now)
            }
            (pace, at) => unreachable!("{pace:?} is due at {at:?}"),
        };
        let old = entry.at;
        entry.caught_up = if step.more_due {
            entry.caught_up + 1
        } else {
            0
        };
        self.missed += step.missed;
        self.changed.insert(identity);
        self.unindex(identity, old);
        match step.next {
            Some((at, due_ms)) => {
                let entry = self.entries.get_mut(&identity).expect("as above");
                entry.at = at;
                entry.due_ms = due_ms;
                self.index(identity, at);
            }
            // The end of time: the run that is due is its last.
            None => self.entries.get_mut(&identity).expect("as above").left = Some(1),
        }
        step.fires
    }

    /// Counts a run; the entry ends with its last one.
    fn run(&mut self, identity: Identity, due_ms: u64, now: Now) -> Run {
        let entry = self.entries.get_mut(&identity).expect("what runs exists");
        let run = Run {
            schedule: Arc::clone(&entry.schedule),
            due_ms,
        };
        entry.runs += 1;
        entry.last_ms = Some(now.wall_ms);
        self.changed.insert(identity);
        if let Some(left) = &mut entry.left {
            *left -= 1;
            if *left == 0 {
                self.forget(identity);
                self.ended += 1;
            }
        }
        run
    }
}

#[cfg(test)]
mod tests;
