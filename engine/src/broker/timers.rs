//! All deadlines of the state machine.
//!
//! A timer that fires looks at the present state of what it watches and arms itself again if its
//! time has not come: messages never touch a timer, they only store when they came.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimerKind {
    /// HEARTBEAT to a worker.
    WorkerBeat,
    /// Has the worker been silent?
    WorkerSilence,
    /// End of a worker's reconnect grace.
    WorkerGrace,
    /// End of the time a leaving worker has.
    WorkerLeave,
    /// Have all slots of a worker been free while it owes REPLYs?
    WorkerIdle,
    /// HEARTBEAT to a scheduler.
    SchedulerBeat,
    /// Has the scheduler been silent?
    SchedulerSilence,
    /// End of a scheduler's reconnect grace.
    SchedulerGrace,
    /// Is the queue still served, or may it be forgotten?
    Queue,
    /// Pause for memory.
    Memory,
    /// Look through the jobs in flight for time-outs.
    Jobs,
    /// Phases of the shutdown.
    Drain,
    /// End of a latency interval.
    Interval,
}

/// One deadline. `tag` tells whether the entry at `index` is still the one meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Timer {
    /// Monotonic nanoseconds.
    pub(super) due_ns: u64,
    pub(super) kind: TimerKind,
    pub(super) index: u32,
    pub(super) tag: u32,
}

#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<Timer>>,
}

impl Timers {
    pub(super) fn arm(&mut self, due_ns: u64, kind: TimerKind, index: u32, tag: u32) {
        self.heap.push(Reverse(Timer {
            due_ns,
            kind,
            index,
            tag,
        }));
    }

    pub(super) fn earliest_ns(&self) -> Option<u64> {
        self.heap.peek().map(|timer| timer.0.due_ns)
    }

    /// Timers that run.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Takes the earliest timer if it is due.
    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<Timer> {
        if self.earliest_ns()? > now_ns {
            return None;
        }
        self.heap.pop().map(|timer| timer.0)
    }
}
