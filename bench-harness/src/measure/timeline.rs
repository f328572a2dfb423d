//! The window in intervals: rate, latency, memory and descriptors over time.

use super::Broker;
use crate::cpu;
use crate::failure::Result;
use crate::generator::tally::{Stage, Tally};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant, SystemTime};

/// When there are more points than this, neighbours are merged: a run of days has as many as one
/// of minutes.
const POINTS_MAX: usize = 1_024;

/// One interval.
#[derive(Debug)]
pub(crate) struct Interval {
    /// Since 1970, and how long it lasted.
    pub(crate) began: Duration,
    pub(crate) length: Duration,
    pub(crate) tally: Tally,
}

impl Interval {
    /// The 99th percentile of the total latency, if a job has ended.
    pub(crate) fn p99_us(&self) -> Option<u64> {
        let total = self.tally.stage(Stage::Total);
        (!total.is_empty()).then(|| total.value_at_quantile(0.99) / 1_000)
    }
}

/// What is kept of an interval, or of several neighbours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Point {
    /// End of the interval, in seconds since the beginning of the window.
    pub(crate) at_secs: f64,
    pub(crate) jobs_per_sec: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) resident_bytes: Option<u64>,
    pub(crate) open_files: Option<u64>,
}

/// The points so far.
#[derive(Debug)]
pub(crate) struct Timeline {
    interval: Duration,
    start: Instant,
    last: Instant,
    points: Vec<Point>,
}

impl Timeline {
    pub(crate) fn new(interval: Duration, start: Instant) -> Self {
        Timeline {
            interval,
            start,
            last: start,
            points: Vec::new(),
        }
    }

    /// True when an interval has ended.
    pub(crate) fn is_due(&self) -> bool {
        self.last.elapsed() >= self.interval
    }

    /// Ends an interval, in which `tally` was counted.
    pub(crate) fn take(&mut self, tally: Tally, broker: &Broker) -> Result<Interval> {
        let now = Instant::now();
        let length = now.saturating_duration_since(self.last);
        self.last = now;
        let total = tally.stage(Stage::Total);
        let us = |quantile| total.value_at_quantile(quantile) as f64 / 1e3;
        self.push(Point {
            at_secs: now.saturating_duration_since(self.start).as_secs_f64(),
            jobs_per_sec: tally.done as f64 / length.as_secs_f64().max(1e-9),
            p50_us: us(0.5),
            p99_us: us(0.99),
            resident_bytes: broker.resident_bytes()?,
            open_files: broker.pid().map(cpu::open_files).transpose()?,
        });
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Ok(Interval {
            began: since_epoch.unwrap_or_default().saturating_sub(length),
            length,
            tally,
        })
    }

    fn push(&mut self, point: Point) {
        self.points.push(point);
        if self.points.len() > POINTS_MAX {
            self.points = self.points.chunks(2).map(merge).collect();
        }
    }

    pub(crate) fn points(&self) -> &[Point] {
        &self.points
    }
}

/// Neighbours as one: the mean rate, the worst of the rest.
fn merge(points: &[Point]) -> Point {
    let mut merged = points[points.len() - 1].clone();
    let sum: f64 = points.iter().map(|point| point.jobs_per_sec).sum();
    merged.jobs_per_sec = sum / points.len() as f64;
    for point in points {
        merged.p50_us = merged.p50_us.max(point.p50_us);
        merged.p99_us = merged.p99_us.max(point.p99_us);
        merged.resident_bytes = merged.resident_bytes.max(point.resident_bytes);
        merged.open_files = merged.open_files.max(point.open_files);
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_points_are_merged_and_cover_the_same_time() {
        let mut timeline = Timeline::new(Duration::ZERO, Instant::now());
        for number in 0..10 * POINTS_MAX {
            timeline.push(Point {
                at_secs: number as f64,
                jobs_per_sec: 100.0,
                p50_us: 1.0,
                p99_us: if number == 3_000 { 77.0 } else { 2.0 },
                resident_bytes: Some(number as u64),
                open_files: None,
            });
        }
        let points = timeline.points();
        assert!(points.len() <= POINTS_MAX && points.len() > POINTS_MAX / 4);
        assert!(
            points
                .windows(2)
                .all(|pair| pair[0].at_secs < pair[1].at_secs)
        );
        assert!(points.last().unwrap().at_secs >= 10.0 * POINTS_MAX as f64 - 1.0);
        assert_eq!(points.iter().filter(|point| point.p99_us > 70.0).count(), 1);
        let rates = points.iter().map(|point| point.jobs_per_sec);
        assert!(rates.clone().all(|rate| (rate - 100.0).abs() < 1e-9));
    }
}
