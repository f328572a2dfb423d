//! What is to be written to the store, and which runs wait for it.
//!
//! A run is sent only when the store has the state behind it: whoever restarts the scheduler, or
//! takes over from it, then never repeats it. Without a store, or while it is away, runs go at
//! once, and what has changed is written when the store is back.

use super::identity::Identity;
use super::record::Record;
use super::timetable::{Run, Timetable};
use crate::ids::{NS_PER_SEC, Now};
use std::collections::BTreeSet;

/// Changes in one write, if there are not more runs.
const CHANGES_PER_WRITE: usize = 1_000;
/// First pause before a store that failed is tried again; doubled up to the second.
const RETRY_NS: (u64, u64) = (NS_PER_SEC, 15 * NS_PER_SEC);

/// How long a lease holds without being renewed, in milliseconds.
pub const LEASE_MS: u64 = 8_000;
/// It is renewed, or asked for, so often.
const LEASE_POLL_NS: u64 = 2 * NS_PER_SEC;
/// Whoever holds it stops so much earlier: clocks do not run alike, and a run takes a moment.
const LEASE_MARGIN_NS: u64 = NS_PER_SEC;

/// What a store is asked for. At most one request is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// All schedules.
    Load,
    /// Write changes, and say which fires are ours.
    Write(Batch),
    /// Take or renew the lease of who fires.
    Lease,
}

/// Who fires, as the store has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// We do, for [`LEASE_MS`].
    pub ours: bool,
    /// Goes up with every change made by another than who fires.
    pub version: u64,
    /// Another scheduler waits for the lease.
    pub others: bool,
}

/// One write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// Schedules to keep.
    pub put: Vec<Record>,
    /// Schedules to delete.
    pub delete: Vec<Identity>,
    /// Runs about to be sent: schedule and due time. A store that others share takes each only
    /// once.
    pub fires: Vec<(Identity, u64)>,
    /// Tell who fires that something has changed.
    pub announce: bool,
}

/// What a store answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// What it holds.
    Loaded(Loaded),
    /// Written. These fires were another scheduler's.
    Written(Vec<(Identity, u64)>),
    /// How it stands with the lease.
    Leased(Lease),
    /// It cannot be used now.
    Failed(String),
}

/// What a store holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Each schedule once.
    pub records: Vec<Record>,
    /// List entries that named a schedule again.
    pub folded: u64,
    /// Entries that were no schedules.
    pub bad: Vec<String>,
}

/// How the store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// There is none: everything is in memory only.
    Absent,
    /// Answers.
    Up,
    /// Does not answer; tried again at this monotonic time.
    Away {
        /// Nanoseconds.
        retry_ns: u64,
    },
}

#[derive(Debug)]
struct InFlight {
    changed: Vec<Identity>,
    runs: Vec<Run>,
}

/// Schedulers on one store: which of them fires.
#[derive(Debug, Default)]
struct Shared {
    ours: bool,
    /// Until when we may fire, in monotonic nanoseconds.
    until_ns: u64,
    next_ns: u64,
    asked_ns: u64,
    version: Option<u64>,
    others: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Ledger {
    health: Health,
    loaded: bool,
    /// What the store holds is to be read again.
    reload: bool,
    /// A request without runs or changes is under way.
    asking: bool,
    in_flight: Option<InFlight>,
    waiting: Vec<Run>,
    pause_ns: u64,
    shared: Option<Shared>,
}

/// Which store there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKind {
    /// None.
    Absent,
    /// One of our own.
    Own,
    /// One that other schedulers may use, too.
    Shared,
}

impl Ledger {
    /// With a store or without.
    pub fn new(store: StoreKind) -> Ledger {
        let absent = store == StoreKind::Absent;
        Ledger {
            health: if absent { Health::Absent } else { Health::Up },
            loaded: absent,
            reload: false,
            asking: false,
            in_flight: None,
            waiting: Vec::new(),
            pause_ns: RETRY_NS.0,
            shared: (store == StoreKind::Shared).then(Shared::default),
        }
    }

    /// Whether due times are ours to serve. Runs at once are those of whoever got the SCHEDULE.
    pub fn may_fire(&self, now: Now) -> bool {
        let Some(shared) = &self.shared else {
            return true;
        };
        if shared.ours && now.mono_ns < shared.until_ns {
            return self.loaded && !self.reload;
        }
        // Cut off from the store: nobody takes over from who is alone.
        let was_firing = shared.ours || shared.version.is_none();
        matches!(self.health, Health::Away { .. }) && was_firing && !shared.others
    }

    /// How the store is.
    pub fn health(&self) -> Health {
        self.health
    }

    /// True once what the store held has been read.
    pub fn is_loaded(&self) -> bool {
        self.loaded
    }

    /// Runs that wait for the store.
    pub fn runs_waiting(&self) -> usize {
        self.waiting.len()
            + self
                .in_flight
                .as_ref()
                .map_or(0, |flight| flight.runs.len())
    }

    /// True while an answer is owed.
    pub fn is_busy(&self) -> bool {
        self.asking || self.in_flight.is_some()
    }

    /// A run that is due. Given back at once if there is no store to ask.
    pub fn run(&mut self, run: Run) -> Option<Run> {
        if self.health == Health::Up {
            self.waiting.push(run);
            return None;
        }
        Some(run)
    }

    /// The next request, if the store can be asked and there is something to ask.
    pub fn request(&mut self, table: &mut Timetable, now: Now) -> Option<Request> {
        if self.is_busy() {
            return None;
        }
        match self.health {
            Health::Absent => {
                // Nobody will ever ask for them.
                table.take_changed(std::iter::empty(), usize::MAX);
                return None;
            }
            Health::Away { retry_ns } if now.mono_ns < retry_ns => return None,
            _ => {}
        }
        if let Some(shared) = &mut self.shared
            && shared.next_ns <= now.mono_ns
        {
            shared.asked_ns = now.mono_ns;
            shared.next_ns = now.mono_ns + LEASE_POLL_NS;
            self.asking = true;
            return Some(Request::Lease);
        }
        if !self.loaded || self.reload {
            self.asking = true;
            return Some(Request::Load);
        }
        if !table.has_changed() && self.waiting.is_empty() {
            return None;
        }
        let runs = std::mem::take(&mut self.waiting);
        // A run goes out when this write is done: what it changed must be in it. All runs that wait
        // are taken, because the record of a schedule has the state behind its latest run.
        let of_runs = runs.iter().map(|run| run.schedule.identity);
        let changed = table.take_changed(of_runs, CHANGES_PER_WRITE);
        let fires = runs.iter().map(|run| (run.schedule.identity, run.due_ms));
        let mut batch = Batch {
            fires: fires.collect(),
            announce: self.shared.as_ref().is_some_and(|shared| !shared.ours),
            ..Batch::default()
        };
        for identity in &changed {
            match table.record(*identity, now) {
                Some(record) => batch.put.push(record),
                None => batch.delete.push(*identity),
            }
        }
        self.in_flight = Some(InFlight { changed, runs });
        Some(Request::Write(batch))
    }

    /// The store has loaded.
    pub fn loaded(&mut self) {
        self.asking = false;
        self.loaded = true;
        self.reload = false;
        self.up();
    }

    /// The store has told about the lease. True if that changes who fires.
    pub fn leased(&mut self, lease: Lease) -> bool {
        self.asking = false;
        self.up();
        let Some(shared) = &mut self.shared else {
            return false;
        };
        let changed = shared.ours != lease.ours || shared.version.is_none();
        let stale = shared.version != Some(lease.version) || changed;
        shared.ours = lease.ours;
        shared.version = Some(lease.version);
        shared.others = lease.others;
        shared.until_ns = (shared.asked_ns + LEASE_MS * 1_000_000).saturating_sub(LEASE_MARGIN_NS);
        if lease.ours && stale && self.loaded {
            self.reload = true;
        }
        changed
    }

    /// The store has written: the runs that may be sent now, and the number of those that were
    /// another's.
    pub fn written(&mut self, denied: &[(Identity, u64)]) -> (Vec<Run>, usize) {
        self.up();
        let mut runs = self
            .in_flight
            .take()
            .map_or(Vec::new(), |flight| flight.runs);
        let all = runs.len();
        let denied: BTreeSet<_> = denied.iter().copied().collect();
        runs.retain(|run| !denied.contains(&(run.schedule.identity, run.due_ms)));
        let others = all - runs.len();
        // Then another has fired, and knows better what is due.
        self.reload |= others > 0;
        (runs, others)
    }

    /// The store cannot be used: the runs that waited for it. They go without it.
    pub fn failed(&mut self, table: &mut Timetable, now: Now) -> Vec<Run> {
        self.asking = false;
        self.health = Health::Away {
            retry_ns: now.mono_ns + self.pause_ns,
        };
        self.pause_ns = (self.pause_ns * 2).min(RETRY_NS.1);
        let mut runs = Vec::new();
        if let Some(flight) = self.in_flight.take() {
            table.give_back_changed(flight.changed.into_iter());
            runs = flight.runs;
        }
        runs.append(&mut self.waiting);
        runs
    }

    /// When it wants to be asked again.
    pub fn deadline(&self) -> Option<u64> {
        if self.is_busy() {
            return None;
        }
        match (self.health, &self.shared) {
            (Health::Away { retry_ns }, _) => Some(retry_ns),
            (_, Some(shared)) => Some(shared.next_ns),
            _ => None,
        }
    }

    fn up(&mut self) {
        self.health = Health::Up;
        self.pause_ns = RETRY_NS.0;
    }
}

#[cfg(test)]
mod tests;
