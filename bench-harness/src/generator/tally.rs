//! What a thread of the generator counts between two looks of the coordinator.

use hdrhistogram::Histogram;
use serde::Serialize;

/// A histogram for 1 µs to 10 minutes in nanoseconds.
pub(crate) fn latency_histogram() -> Histogram<u64> {
    let mut histogram = Histogram::new_with_bounds(1_000, 600_000_000_000, 3)
        .unwrap_or_else(|error| unreachable!("constant bounds: {error}"));
    histogram.auto(false);
    histogram
}

/// Parts of a job's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// REQUEST sent (or due) to acceptance received.
    Accept,
    /// Acceptance received to REQUEST received by a worker; 0 if the worker had it first.
    HandOut,
    /// REQUEST received by a worker to result received; without a result: to the worker's READY.
    Finish,
    /// REQUEST sent (or due) to the end.
    Total,
}

impl Stage {
    pub(crate) const ALL: [Stage; 4] = [Stage::Accept, Stage::HandOut, Stage::Finish, Stage::Total];

    /// The name in results and logs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Stage::Accept => "accept",
            Stage::HandOut => "hand-out",
            Stage::Finish => "finish",
            Stage::Total => "total",
        }
    }
}

/// When the parts of a job's way ended, in the generator's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) sent_ns: u64,
    pub(crate) accepted_ns: Option<u64>,
    pub(crate) handed_ns: Option<u64>,
    pub(crate) ended_ns: u64,
}

/// What became of jobs, besides being done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Ends {
    pub(crate) accepted: u64,
    /// Results with the status `error`.
    pub(crate) failed: u64,
    /// Ended without a result because they asked for none.
    pub(crate) without_result: u64,
    /// Sent with the header `guarantee`.
    pub(crate) guaranteed: u64,
}

/// Counts and latencies of jobs.
#[derive(Debug, Clone)]
pub(crate) struct Tally {
    stages: [Histogram<u64>; 4],
    /// Jobs that have ended while latencies were recorded.
    pub(crate) recorded: Ends,
    /// Jobs that have ended.
    pub(crate) done: u64,
    /// Acceptances.
    pub(crate) accepted: u64,
    /// Results with the status `lost`.
    pub(crate) lost: u64,
    /// Jobs that were outstanding when their client restarted.
    pub(crate) abandoned: u64,
    /// Jobs of the open loop that were sent clearly after they were due.
    pub(crate) late: u64,
    /// Times that a job of the open loop was due and every window was full.
    pub(crate) window_full: u64,
}

impl Tally {
    pub(crate) fn new() -> Self {
        Tally {
            stages: std::array::from_fn(|_| latency_histogram()),
            recorded: Ends::default(),
            done: 0,
            accepted: 0,
            lost: 0,
            abandoned: 0,
            late: 0,
            window_full: 0,
        }
    }

    /// Records the latencies of a job that has ended.
    #[inline]
    pub(crate) fn record(&mut self, way: &Way) {
        let between = |from: u64, to: u64| to.saturating_sub(from);
        self.put(Stage::Total, between(way.sent_ns, way.ended_ns));
        if let Some(accepted_ns) = way.accepted_ns {
            self.put(Stage::Accept, between(way.sent_ns, accepted_ns));
            if let Some(handed_ns) = way.handed_ns {
                self.put(Stage::HandOut, between(accepted_ns, handed_ns));
            }
        }
        if let Some(handed_ns) = way.handed_ns {
            self.put(Stage::Finish, between(handed_ns, way.ended_ns));
        }
    }

    #[inline]
    fn put(&mut self, stage: Stage, ns: u64) {
        self.stages[stage as usize].saturating_record(ns);
    }

    pub(crate) fn stage(&self, stage: Stage) -> &Histogram<u64> {
        &self.stages[stage as usize]
    }

    /// Adds what another thread, or an earlier time, has counted.
    pub(crate) fn add(&mut self, other: &Tally) {
        for (own, other) in self.stages.iter_mut().zip(&other.stages) {
            own.add(other)
                .unwrap_or_else(|error| unreachable!("same bounds: {error}"));
        }
        for (own, other) in [
            (&mut self.done, other.done),
            (&mut self.accepted, other.accepted),
            (&mut self.recorded.accepted, other.recorded.accepted),
            (&mut self.recorded.failed, other.recorded.failed),
            (
                &mut self.recorded.without_result,
                other.recorded.without_result,
            ),
            (&mut self.recorded.guaranteed, other.recorded.guaranteed),
            (&mut self.lost, other.lost),
            (&mut self.abandoned, other.abandoned),
            (&mut self.late, other.late),
            (&mut self.window_full, other.window_full),
        ] {
            *own += other;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_the_way_is_recorded() {
        let mut tally = Tally::new();
        tally.record(&Way {
            sent_ns: 1_000_000,
            accepted_ns: Some(3_000_000),
            handed_ns: Some(6_000_000),
            ended_ns: 11_000_000,
        });
        let ms = |stage| tally.stage(stage).max() / 1_000_000;
        assert_eq!(Stage::ALL.map(ms), [2, 3, 5, 10]);
        // The worker had it before the acceptance was read.
        let mut early = Tally::new();
        early.record(&Way {
            sent_ns: 0,
            accepted_ns: Some(5_000),
            handed_ns: Some(4_000),
            ended_ns: 9_000,
        });
        assert_eq!(early.stage(Stage::HandOut).max(), 0);
        tally.add(&early);
        assert_eq!(Stage::ALL.map(|stage| tally.stage(stage).len()), [2; 4]);
    }

    #[test]
    fn what_is_not_known_is_not_recorded() {
        let mut tally = Tally::new();
        tally.record(&Way {
            sent_ns: 0,
            accepted_ns: None,
            handed_ns: None,
            ended_ns: 9_000,
        });
        assert_eq!(
            Stage::ALL.map(|stage| tally.stage(stage).len()),
            [0, 0, 0, 1]
        );
    }
}
