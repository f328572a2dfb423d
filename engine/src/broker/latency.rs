//! Latency distributions by queue (semantics.md, latency).
//!
//! Values are counted in plain arrays with the bucket layout of an HDR histogram, only in those
//! of the running interval: what an interval counted is added to the cumulative arrays at its
//! end. Percentiles are computed elsewhere: [`LatencySnapshot::render`] fills `hdrhistogram`
//! histograms from the arrays. A snapshot takes the arrays by reference; recording goes on in new
//! ones, made when first used.

use super::slab::NONE;
use crate::snapshot::{LatencyFigures, LatencyReport, QueueLatency};
use hdrhistogram::Histogram;
use std::sync::Arc;

/// Largest value told apart, in microseconds: one hour.
const VALUE_US_MAX: u32 = 3_600_000_000;
/// Name of the entry of all queues without one of their own.
const OTHER: &[u8] = b"(other)";
/// Name of the entry of all queues together.
const ALL: &[u8] = b"(all)";

/// Bits of a bucket's linear part: 2 significant digits by queue, 3 for all together.
const QUEUE_BITS: u32 = 8;
const ALL_BITS: u32 = 11;

/// Which of the three distributions.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    Wait = 0,
    Service = 1,
    Total = 2,
}

#[inline]
fn bucket<const BITS: u32>(value: u32) -> usize {
    if value < 1 << BITS {
        return value as usize;
    }
    let shift = 31 - value.leading_zeros() - (BITS - 1);
    ((shift << (BITS - 1)) + (value >> shift)) as usize
}

/// The smallest value of a bucket.
fn bucket_value<const BITS: u32>(bucket: usize) -> u64 {
    if bucket < 1 << BITS {
        return bucket as u64;
    }
    let half = 1_usize << (BITS - 1);
    let shift = bucket / half - 1;
    ((bucket % half + half) as u64) << shift
}

#[derive(Debug, Clone)]
struct Counts<const BITS: u32> {
    counts: Vec<u32>,
    sum_us: u64,
    min_us: u32,
    max_us: u32,
}

impl<const BITS: u32> Counts<BITS> {
    #[cold]
    fn new() -> Self {
        Counts {
            counts: vec![0; bucket::<BITS>(VALUE_US_MAX) + 1],
            sum_us: 0,
            min_us: u32::MAX,
            max_us: 0,
        }
    }

    #[inline]
    fn record(&mut self, value_us: u32) {
        let count = &mut self.counts[bucket::<BITS>(value_us)];
        *count = count.saturating_add(1);
        self.sum_us += u64::from(value_us);
        self.min_us = self.min_us.min(value_us);
        self.max_us = self.max_us.max(value_us);
    }

    fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.saturating_add(*theirs);
        }
        self.sum_us += other.sum_us;
        self.min_us = self.min_us.min(other.min_us);
        self.max_us = self.max_us.max(other.max_us);
    }

    fn figures(&self) -> LatencyFigures {
        let digits = if BITS == ALL_BITS { 3 } else { 2 };
        let mut histogram = Histogram::<u32>::new_with_bounds(1, u64::from(VALUE_US_MAX), digits)
            .expect("constant bounds are valid");
        for (bucket, count) in self
            .counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
        {
            histogram.saturating_record_n(bucket_value::<BITS>(bucket), *count);
        }
        let count = self
            .counts
            .iter()
            .map(|count| u64::from(*count))
            .sum::<u64>();
        if count == 0 {
            return LatencyFigures::default();
        }
        let max = u64::from(self.max_us);
        let at = |quantile| histogram.value_at_quantile(quantile).min(max);
        LatencyFigures {
            count,
            min_us: u64::from(self.min_us),
            mean_us: self.sum_us as f64 / count as f64,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: max,
        }
    }
}

/// The three distributions of one queue, each made at its first value.
#[derive(Debug, Clone)]
struct Trio<const BITS: u32> {
    parts: [Option<Counts<BITS>>; 3],
}

impl<const BITS: u32> Default for Trio<BITS> {
    fn default() -> Self {
        Trio {
            parts: [None, None, None],
        }
    }
}

impl<const BITS: u32> Trio<BITS> {
    #[inline]
    fn record(&mut self, part: Part, value_us: u32) {
        self.parts[part as usize]
            .get_or_insert_with(Counts::new)
            .record(value_us);
    }

    fn is_empty(&self) -> bool {
        self.parts.iter().all(Option::is_none)
    }

    fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.parts.iter_mut().zip(&other.parts) {
            if let Some(theirs) = theirs {
                mine.get_or_insert_with(Counts::new).add(theirs);
            }
        }
    }

    fn figures(&self) -> QueueLatency {
        let part = |part: Part| {
            self.parts[part as usize]
                .as_ref()
                .map_or_else(Default::default, Counts::figures)
        };
        QueueLatency {
            wait: part(Part::Wait),
            service: part(Part::Service),
            total: part(Part::Total),
        }
    }
}

/// The distributions of one queue, or of all together.
#[derive(Debug)]
struct Record<const BITS: u32> {
    /// Recorded into.
    live: Trio<BITS>,
    /// Recorded earlier in the running interval, handed to a snapshot.
    interval: Vec<Arc<Trio<BITS>>>,
    /// The last whole interval.
    last: Vec<Arc<Trio<BITS>>>,
    /// All whole intervals.
    cumulative: Arc<Trio<BITS>>,
}

impl<const BITS: u32> Record<BITS> {
    fn new() -> Self {
        Record {
            live: Trio::default(),
            interval: Vec::new(),
            last: Vec::new(),
            cumulative: Arc::default(),
        }
    }

    fn seal(&mut self) {
        if !self.live.is_empty() {
            self.interval.push(Arc::new(std::mem::take(&mut self.live)));
        }
    }

    fn end_interval(&mut self) {
        self.seal();
        self.last = std::mem::take(&mut self.interval);
        if !self.last.is_empty() {
            let cumulative = Arc::make_mut(&mut self.cumulative);
            for trio in &self.last {
                cumulative.add(trio);
            }
        }
    }

    fn snapshot(&mut self) -> Taken<BITS> {
        self.seal();
        let cumulative = std::iter::once(&self.cumulative).chain(&self.interval);
        Taken {
            cumulative: cumulative.cloned().collect(),
            last: self.last.clone(),
        }
    }
}

/// What a snapshot takes of one record: arrays to be added up.
#[derive(Debug)]
struct Taken<const BITS: u32> {
    cumulative: Vec<Arc<Trio<BITS>>>,
    last: Vec<Arc<Trio<BITS>>>,
}

fn sum<const BITS: u32>(trios: &[Arc<Trio<BITS>>]) -> QueueLatency {
    let mut sum = Trio::default();
    for trio in trios {
        sum.add(trio);
    }
    sum.figures()
}

/// All distributions.
#[derive(Debug)]
pub(super) struct Latency {
    /// Entry 0 is `(other)`.
    entries: Vec<(Vec<u8>, Record<QUEUE_BITS>)>,
    all: Record<ALL_BITS>,
    queues_max: usize,
}

impl Latency {
    pub(super) fn new(queues_max: usize) -> Self {
        let entries = vec![(OTHER.to_vec(), Record::new())];
        Latency {
            entries,
            all: Record::new(),
            queues_max,
        }
    }

    pub(super) fn set_queues_max(&mut self, queues_max: usize) {
        self.queues_max = queues_max;
    }

    /// The entry of a queue seen for the first time.
    #[cold]
    pub(super) fn entry_of(&mut self, name: &[u8]) -> u32 {
        if let Some(at) = self
            .entries
            .iter()
            .skip(1)
            .position(|entry| entry.0 == name)
        {
            return at as u32 + 1;
        }
        if self.entries.len() > self.queues_max {
            return 0;
        }
        self.entries.push((name.to_vec(), Record::new()));
        self.entries.len() as u32 - 1
    }

    /// Counts one value.
    #[inline]
    pub(super) fn record(&mut self, entry: u32, part: Part, duration_ns: u64) {
        debug_assert_ne!(entry, NONE);
        let value_us = (duration_ns / 1_000).clamp(1, u64::from(VALUE_US_MAX)) as u32;
        self.entries[entry as usize].1.live.record(part, value_us);
        self.all.live.record(part, value_us);
    }

    /// The interval is over: what it counted is kept until the next one is.
    pub(super) fn end_interval(&mut self) {
        for (_, record) in &mut self.entries {
            record.end_interval();
        }
        self.all.end_interval();
    }

    /// References to all arrays, to be rendered elsewhere.
    pub(super) fn snapshot(&mut self) -> LatencySnapshot {
        let entries = self.entries.iter_mut();
        LatencySnapshot {
            entries: entries
                .map(|(name, record)| (name.clone(), record.snapshot()))
                .collect(),
            all: self.all.snapshot(),
        }
    }
}

/// The distributions at one moment; cheap to take, rendered off the dispatch thread.
#[derive(Debug)]
pub struct LatencySnapshot {
    entries: Vec<(Vec<u8>, Taken<QUEUE_BITS>)>,
    all: Taken<ALL_BITS>,
}

impl LatencySnapshot {
    /// Computes the figures: `(all)` first, then the queues by name, then `(other)`. Entries
    /// without a value are left out.
    pub fn render(mut self) -> LatencyReport {
        self.entries[1..].sort_by(|a, b| a.0.cmp(&b.0));
        self.entries.rotate_left(1);
        let shown = |latency: &QueueLatency| latency.wait.count + latency.total.count > 0;
        let all = std::iter::once((ALL.to_vec(), sum(&self.all.cumulative)));
        let queues = self
            .entries
            .iter()
            .map(|(name, t)| (name.clone(), sum(&t.cumulative)));
        let cumulative = all
            .chain(queues)
            .filter(|(_, latency)| shown(latency))
            .collect();
        let all = std::iter::once((ALL.to_vec(), sum(&self.all.last)));
        let queues = self
            .entries
            .iter()
            .map(|(name, t)| (name.clone(), sum(&t.last)));
        let interval = all
            .chain(queues)
            .filter(|(_, latency)| shown(latency))
            .collect();
        LatencyReport {
            cumulative,
            interval,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_those_of_an_hdr_histogram() {
        let histogram = Histogram::<u32>::new_with_bounds(1, u64::from(VALUE_US_MAX), 2).unwrap();
        let mut value = 1_u32;
        while value < VALUE_US_MAX / 2 {
            let lowest = bucket_value::<QUEUE_BITS>(bucket::<QUEUE_BITS>(value));
            assert_eq!(
                lowest,
                histogram.lowest_equivalent(u64::from(value)),
                "{value}"
            );
            value += value / 3 + 1;
        }
        assert_eq!(
            bucket::<QUEUE_BITS>(VALUE_US_MAX) + 1,
            Counts::<QUEUE_BITS>::new().counts.len()
        );
    }

    #[test]
    fn figures_by_queue_and_together() {
        let mut latency = Latency::new(2);
        let (a, b, c) = (
            latency.entry_of(b"a"),
            latency.entry_of(b"b"),
            latency.entry_of(b"c"),
        );
        assert_eq!((a, b, c, latency.entry_of(b"a")), (1, 2, 0, 1));
        for ms in 1..=100_u64 {
            latency.record(a, Part::Wait, ms * 1_000_000);
        }
        latency.record(c, Part::Total, 5_000);
        latency.end_interval();
        latency.record(b, Part::Service, 0);
        latency.record(b, Part::Wait, 0);
        let held = latency.snapshot();
        latency.record(a, Part::Wait, 1_000_000);
        let report = held.render();
        let names: Vec<_> = report
            .cumulative
            .iter()
            .map(|(name, _)| name.as_slice())
            .collect();
        assert_eq!(names, [ALL, b"a", b"b", OTHER]);
        let wait = report.cumulative[1].1.wait;
        assert_eq!(
            (wait.count, wait.min_us, wait.max_us),
            (100, 1_000, 100_000)
        );
        assert!((wait.mean_us - 50_500.0).abs() < 1e-6);
        assert!((49_500..=50_500).contains(&wait.p50_us), "{wait:?}");
        assert!((99_000..=100_000).contains(&wait.p99_us), "{wait:?}");
        let names: Vec<_> = report
            .interval
            .iter()
            .map(|(name, _)| name.as_slice())
            .collect();
        assert_eq!(names, [ALL, b"a", OTHER]);
        assert_eq!(report.cumulative[0].1.wait.count, 101);
        assert_eq!(latency.snapshot().render().cumulative[1].1.wait.count, 101);
    }
}
