//! Latency distributions by queue (semantics.md, latency).
//!
//! Values are counted in plain arrays with the bucket layout of an HDR histogram, one index
//! computation for the cumulative and the interval array. Percentiles are computed elsewhere:
//! [`LatencySnapshot::render`] fills `hdrhistogram` histograms from the arrays. A snapshot takes
//! references; an array that is recorded into while a snapshot holds it is copied once.

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
    count: u64,
    sum_us: u64,
    min_us: u32,
    max_us: u32,
}

impl<const BITS: u32> Counts<BITS> {
    fn new() -> Self {
        Counts {
            counts: vec![0; bucket::<BITS>(VALUE_US_MAX) + 1],
            count: 0,
            sum_us: 0,
            min_us: u32::MAX,
            max_us: 0,
        }
    }

    #[inline]
    fn record(&mut self, value_us: u32, bucket: usize) {
        let count = &mut self.counts[bucket];
        *count = count.saturating_add(1);
        self.count += 1;
        self.sum_us += u64::from(value_us);
        self.min_us = self.min_us.min(value_us);
        self.max_us = self.max_us.max(value_us);
    }

    fn figures(&self) -> LatencyFigures {
        if self.count == 0 {
            return LatencyFigures::default();
        }
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
        let max = u64::from(self.max_us);
        let at = |quantile| histogram.value_at_quantile(quantile).min(max);
        LatencyFigures {
            count: self.count,
            min_us: u64::from(self.min_us),
            mean_us: self.sum_us as f64 / self.count as f64,
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
    fn record(&mut self, part: Part, value_us: u32, bucket: usize) {
        self.parts[part as usize]
            .get_or_insert_with(Counts::new)
            .record(value_us, bucket);
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

/// Recorded into, and now and then held by a snapshot.
#[derive(Debug)]
enum Cell<const BITS: u32> {
    Owned(Trio<BITS>),
    Shared(Arc<Trio<BITS>>),
}

impl<const BITS: u32> Cell<BITS> {
    fn new() -> Self {
        Cell::Owned(Trio::default())
    }

    #[inline]
    fn trio(&mut self) -> &mut Trio<BITS> {
        if let Cell::Shared(shared) = self {
            let shared = std::mem::take(shared);
            let trio = Arc::try_unwrap(shared).unwrap_or_else(|shared| (*shared).clone());
            *self = Cell::Owned(trio);
        }
        match self {
            Cell::Owned(trio) => trio,
            Cell::Shared(_) => unreachable!("made owned above"),
        }
    }

    fn share(&mut self) -> Arc<Trio<BITS>> {
        if let Cell::Owned(trio) = self {
            *self = Cell::Shared(Arc::new(std::mem::take(trio)));
        }
        match self {
            Cell::Shared(shared) => Arc::clone(shared),
            Cell::Owned(_) => unreachable!("made shared above"),
        }
    }
}

#[derive(Debug)]
struct Entry {
    name: Vec<u8>,
    cumulative: Cell<QUEUE_BITS>,
    interval: Cell<QUEUE_BITS>,
    last: Option<Arc<Trio<QUEUE_BITS>>>,
}

impl Entry {
    fn new(name: &[u8]) -> Self {
        Entry {
            name: name.to_vec(),
            cumulative: Cell::new(),
            interval: Cell::new(),
            last: None,
        }
    }
}

/// All distributions.
#[derive(Debug)]
pub(super) struct Latency {
    /// Entry 0 is `(other)`.
    entries: Vec<Entry>,
    all: Cell<ALL_BITS>,
    all_interval: Cell<ALL_BITS>,
    all_last: Option<Arc<Trio<ALL_BITS>>>,
    queues_max: usize,
}

impl Latency {
    pub(super) fn new(queues_max: usize) -> Self {
        Latency {
            entries: vec![Entry::new(OTHER)],
            all: Cell::new(),
            all_interval: Cell::new(),
            all_last: None,
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
            .position(|entry| entry.name == name)
        {
            return at as u32 + 1;
        }
        if self.entries.len() > self.queues_max {
            return 0;
        }
        self.entries.push(Entry::new(name));
        self.entries.len() as u32 - 1
    }

    /// Counts one value.
    #[inline]
    pub(super) fn record(&mut self, entry: u32, part: Part, duration_ns: u64) {
        debug_assert_ne!(entry, NONE);
        let value_us = (duration_ns / 1_000).clamp(1, u64::from(VALUE_US_MAX)) as u32;
        let by_queue = bucket::<QUEUE_BITS>(value_us);
        let by_all = bucket::<ALL_BITS>(value_us);
        let entry = &mut self.entries[entry as usize];
        entry.cumulative.trio().record(part, value_us, by_queue);
        entry.interval.trio().record(part, value_us, by_queue);
        self.all.trio().record(part, value_us, by_all);
        self.all_interval.trio().record(part, value_us, by_all);
    }

    /// The interval is over: what it counted is kept until the next one is, the arrays of the
    /// new one are made when first used.
    pub(super) fn end_interval(&mut self) {
        for entry in &mut self.entries {
            entry.last = Some(entry.interval.share());
            entry.interval = Cell::new();
        }
        self.all_last = Some(self.all_interval.share());
        self.all_interval = Cell::new();
    }

    /// References to all arrays, to be rendered elsewhere.
    pub(super) fn snapshot(&mut self) -> LatencySnapshot {
        LatencySnapshot {
            entries: self
                .entries
                .iter_mut()
                .map(|e| (e.name.clone(), e.cumulative.share(), e.last.clone()))
                .collect(),
            all: self.all.share(),
            all_last: self.all_last.clone(),
        }
    }
}

/// One queue's name, its distributions since start, and those of the last interval.
type NamedTrios = (
    Vec<u8>,
    Arc<Trio<QUEUE_BITS>>,
    Option<Arc<Trio<QUEUE_BITS>>>,
);

/// The distributions at one moment; cheap to take, rendered off the dispatch thread.
#[derive(Debug)]
pub struct LatencySnapshot {
    entries: Vec<NamedTrios>,
    all: Arc<Trio<ALL_BITS>>,
    all_last: Option<Arc<Trio<ALL_BITS>>>,
}

impl LatencySnapshot {
    /// Computes the figures: `(all)` first, then the queues by name, then `(other)`. Entries
    /// without a value are left out.
    pub fn render(mut self) -> LatencyReport {
        self.entries[1..].sort_by(|a, b| a.0.cmp(&b.0));
        self.entries.rotate_left(1);
        let shown = |latency: &QueueLatency| latency.wait.count + latency.total.count > 0;
        let mut report = LatencyReport::default();
        let all = std::iter::once((ALL.to_vec(), self.all.figures()));
        let queues = self
            .entries
            .iter()
            .map(|(name, trio, _)| (name.clone(), trio.figures()));
        report.cumulative = all
            .chain(queues)
            .filter(|(_, latency)| shown(latency))
            .collect();
        let all = self
            .all_last
            .iter()
            .map(|trio| (ALL.to_vec(), trio.figures()));
        let queues = self
            .entries
            .iter()
            .filter_map(|(name, _, last)| Some((name.clone(), last.as_ref()?.figures())));
        report.interval = all
            .chain(queues)
            .filter(|(_, latency)| shown(latency))
            .collect();
        report
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
