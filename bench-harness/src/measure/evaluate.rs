//! From samples and counts to figures.

use super::timeline::Point;
use super::{Findings, Moment};
use crate::broker_view::{BrokerView, Seen};
use crate::cpu::{self, Used};
use crate::generator::tally::{Ends, Stage, Tally};
use hdrhistogram::Histogram;
use serde::Serialize;

/// Quantiles of the curve in the results: this many to each halving of the distance to 1.
const TICKS_PER_HALF: u32 = 4;
/// The generator is the bottleneck when its busiest thread has no time left.
const GENERATOR_BUSY_MAX: f64 = 0.97;
/// In an open loop it is when it sends this share of the jobs late though it might have sent them.
const LATE_SHARE_MAX: f64 = 0.01;

/// Percentiles in microseconds.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Latency {
    pub(crate) count: u64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) p9999_us: f64,
    pub(crate) max_us: f64,
}

/// CPU time in the window.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Cpu {
    pub(crate) us_per_job: f64,
    /// Share of user time in ticks, 0 to 1.
    pub(crate) user_share: f64,
    /// Time per job in which threads were ready to run and had no core: noise of the machine.
    pub(crate) waited_us_per_job: f64,
    /// Switches away from the broker's threads per 1,000 jobs: because they waited for something,
    /// and because the core was given to others.
    pub(crate) voluntary_switches_per_1k: f64,
    pub(crate) involuntary_switches_per_1k: f64,
    pub(crate) threads: Vec<ThreadCpu>,
}

/// CPU time of one thread of the broker.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ThreadCpu {
    pub(crate) name: String,
    pub(crate) us_per_job: f64,
    /// Part of one core that it used, 0 to 1.
    pub(crate) busy: f64,
}

/// Latencies of the parts of a job's way; those that nobody saw are left out.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Stages {
    /// REQUEST to acceptance.
    pub(crate) accept: Option<Latency>,
    /// Acceptance to hand-out, as the worker sees it.
    pub(crate) hand_out: Option<Latency>,
    /// Hand-out to the end.
    pub(crate) finish: Option<Latency>,
}

/// Resident memory of the broker's process.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Resident {
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) max: u64,
}

/// Result of one run.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Measured {
    pub(crate) target: String,
    /// Flags that the target's libzmq was built with, if it uses one.
    pub(crate) cxxflags: Option<String>,
    pub(crate) round: usize,
    /// Jobs per second of an open loop.
    pub(crate) offered_per_sec: Option<f64>,
    pub(crate) jobs: u64,
    pub(crate) seconds: f64,
    pub(crate) jobs_per_sec: f64,
    pub(crate) ends: Ends,
    /// REQUEST sent (or due) to the end.
    pub(crate) latency: Latency,
    pub(crate) stages: Stages,
    pub(crate) cpu: Option<Cpu>,
    pub(crate) resident: Option<Resident>,
    pub(crate) generator_us_per_job: f64,
    /// Part of one core used by the busiest thread of the generator, 0 to 1.
    pub(crate) generator_busy: f64,
    /// CPU time of the generator, as a share of that of generator and broker together.
    pub(crate) generator_cpu_share: Option<f64>,
    /// Jobs of an open loop sent clearly later than due, though a window was free.
    pub(crate) late: u64,
    /// Times that a job of an open loop was due and every window was full.
    pub(crate) window_full: u64,
    /// Allocations of the broker's process in the window.
    pub(crate) allocations: Option<u64>,
    /// The broker's own view.
    pub(crate) broker_view: Option<BrokerView>,
    pub(crate) timeline: Vec<Point>,
    /// Quantile (0 to 1) and latency in µs.
    pub(crate) curve: Vec<(f64, f64)>,
}

impl Measured {
    /// The figures of the time between two samples, in which `tally` was counted.
    pub(crate) fn between(
        first: &Moment,
        last: &Moment,
        tally: &Tally,
        points: &[Point],
    ) -> Measured {
        let seconds = last.at.saturating_duration_since(first.at).as_secs_f64();
        let seconds = seconds.max(1e-9);
        let jobs = last.jobs - first.jobs;
        let per_job = |ns: u64| ns as f64 / 1e3 / jobs.max(1) as f64;
        let busy = |used: &Used| used.run_ns as f64 / 1e9 / seconds;
        let generator = last.generator.since(&first.generator);
        let cpu = cpu_of(first, last, jobs, seconds);
        let generator_us_per_job = per_job(cpu::total(&generator).run_ns);
        Measured {
            // Counted by the samples, which the CPU time comes from as well.
            jobs,
            jobs_per_sec: jobs as f64 / seconds,
            resident: first
                .resident_bytes
                .zip(last.resident_bytes)
                .map(|(first, last)| Resident {
                    first,
                    last,
                    max: points
                        .iter()
                        .filter_map(|point| point.resident_bytes)
                        .fold(first.max(last), u64::max),
                }),
            generator_us_per_job,
            generator_busy: generator.iter().map(busy).fold(0.0, f64::max),
            generator_cpu_share: cpu.as_ref().map(|cpu| {
                generator_us_per_job / (generator_us_per_job + cpu.us_per_job).max(1e-9)
            }),
            cpu,
            allocations: last
                .allocations
                .zip(first.allocations)
                .map(|(last, first)| last - first),
            ..Measured::of(tally, seconds, points)
        }
    }

    /// The figures that the jobs alone tell.
    fn of(tally: &Tally, seconds: f64, points: &[Point]) -> Measured {
        let stage = |stage| percentiles(tally.stage(stage));
        let known = |latency: Latency| (latency.count > 0).then_some(latency);
        Measured {
            seconds,
            ends: tally.recorded,
            latency: stage(Stage::Total),
            stages: Stages {
                accept: known(stage(Stage::Accept)),
                hand_out: known(stage(Stage::HandOut)),
                finish: known(stage(Stage::Finish)),
            },
            late: tally.late,
            window_full: tally.window_full,
            timeline: points.to_vec(),
            curve: curve(tally),
            ..Measured::default()
        }
    }

    /// True if the broker might have carried more than the generator sent.
    pub(crate) fn is_generator_bound(&self) -> bool {
        if self.offered_per_sec.is_some() {
            // It spins, so that its CPU time says nothing.
            return self.window_full == 0
                && self.late as f64 > LATE_SHARE_MAX * self.jobs.max(1) as f64;
        }
        self.generator_busy > GENERATOR_BUSY_MAX
    }
}

pub(super) fn evaluate(findings: &Findings) -> Measured {
    let Findings {
        first,
        last,
        window,
        all,
        timeline,
        looks,
    } = findings;
    let mut measured = Measured::between(first, last, window, timeline.points());
    measured.broker_view = looks.as_ref().map(|(before, after)| {
        let seen = Seen {
            accepted: all.accepted,
            lost: all.lost,
            finish: measured.stages.finish.as_ref(),
            total: &measured.latency,
        };
        BrokerView::between(before, after, &seen)
    });
    measured
}

fn cpu_of(first: &Moment, last: &Moment, jobs: u64, seconds: f64) -> Option<Cpu> {
    let (first, last) = (first.broker.as_ref()?, last.broker.as_ref()?);
    let threads = last.since(first);
    let all = cpu::total(&threads);
    let per_job = |ns: u64| ns as f64 / 1e3 / jobs.max(1) as f64;
    let per_1k = |count: u64| count as f64 * 1e3 / jobs.max(1) as f64;
    Some(Cpu {
        us_per_job: per_job(all.run_ns),
        user_share: all.user_ns as f64 / (all.user_ns + all.system_ns).max(1) as f64,
        waited_us_per_job: per_job(all.wait_ns),
        voluntary_switches_per_1k: per_1k(all.voluntary_switches),
        involuntary_switches_per_1k: per_1k(all.involuntary_switches),
        threads: threads
            .iter()
            .filter(|used| used.run_ns * 1000 > all.run_ns)
            .map(|used| ThreadCpu {
                name: used.name.clone(),
                us_per_job: per_job(used.run_ns),
                busy: used.run_ns as f64 / 1e9 / seconds,
            })
            .collect(),
    })
}

/// The percentile curve of the total latency.
fn curve(window: &Tally) -> Vec<(f64, f64)> {
    window
        .stage(Stage::Total)
        .iter_quantiles(TICKS_PER_HALF)
        .map(|value| (value.quantile(), value.value_iterated_to() as f64 / 1e3))
        .collect()
}

/// The percentiles of a histogram of nanoseconds.
pub(crate) fn percentiles(histogram: &Histogram<u64>) -> Latency {
    // A quantile is the upper end of its bucket, which may lie above the highest value.
    let highest = histogram.max();
    let at = |quantile| histogram.value_at_quantile(quantile).min(highest) as f64 / 1e3;
    Latency {
        count: histogram.len(),
        mean_us: histogram.mean() / 1e3,
        p50_us: at(0.5),
        p90_us: at(0.9),
        p99_us: at(0.99),
        p999_us: at(0.999),
        p9999_us: at(0.9999),
        max_us: histogram.max() as f64 / 1e3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_percentile_is_above_the_highest_value() {
        let mut histogram = crate::generator::tally::latency_histogram();
        assert!(percentiles(&histogram).max_us.abs() < 1e-9, "of nothing");
        histogram.record(0).unwrap();
        let latency = percentiles(&histogram);
        assert!(latency.p50_us <= latency.max_us, "{latency:?}");
    }

    #[test]
    fn generator_is_the_bottleneck_when_it_has_no_time_left_or_is_late() {
        let closed = |generator_busy| Measured {
            generator_busy,
            ..Measured::default()
        };
        assert!(closed(0.99).is_generator_bound() && !closed(0.5).is_generator_bound());
        let open = |late, window_full| Measured {
            offered_per_sec: Some(1.0),
            generator_busy: 1.0,
            jobs: 1_000,
            late,
            window_full,
            ..Measured::default()
        };
        assert!(open(50, 0).is_generator_bound());
        assert!(!open(1, 0).is_generator_bound());
        assert!(!open(50, 9).is_generator_bound(), "the broker was late");
    }
}
