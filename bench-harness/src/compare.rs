//! `emq-bench compare A B`: two targets in alternation, ratios pair by pair.

use crate::environment::Environment;
use crate::failure::{Failure, Result};
use crate::generator::Pace;
use crate::interrupt;
use crate::measure::Measured;
use crate::report::{self, Spread};
use crate::run::{WindowOptions, check_rate, measure_site, open_pace};
use crate::site::{HowOptions, Site};
use crate::target::Spec;
use crate::workload::{Name, Overrides, Workload};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;

/// The confidence of the interval around the median of the ratios.
const CONFIDENCE: f64 = 0.95;

/// Options of `compare`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The reference: ours-inline, floor, libzmq, ...@BINARY, router@PATH, at:FRONTEND+BACKEND#PID
    a: Spec,
    /// What is compared with it: ratios are B / A
    b: Spec,
    /// The load
    #[arg(long, value_enum, default_value = "J120")]
    workload: Name,
    #[command(flatten)]
    overrides: Overrides,
    #[command(flatten)]
    how: HowOptions,
    /// Pairs of runs; every second one begins with B
    #[arg(long, value_name = "N", default_value_t = 10)]
    pairs: usize,
    /// Fail (exit 3) if the ratio of --metric is above this
    #[arg(long, value_name = "RATIO")]
    max_ratio: Option<f64>,
    /// The figure that --max-ratio is about
    #[arg(long, value_enum, default_value = "cpu")]
    metric: Metric,
    /// Send this many jobs per second at fixed times (open loop)
    #[arg(long, value_name = "JOBS")]
    rate: Option<f64>,
    #[command(flatten)]
    window: WindowOptions,
    /// Write all runs and ratios to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A figure of which less is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Metric {
    /// CPU time of the broker per job
    Cpu,
    /// Median latency
    P50,
    /// 99th percentile of the latency
    P99,
    /// Resident memory at the end
    Memory,
    /// Time per job: the inverse of jobs per second
    Time,
}

impl Metric {
    const ALL: [Metric; 5] = [
        Metric::Cpu,
        Metric::P50,
        Metric::P99,
        Metric::Memory,
        Metric::Time,
    ];

    fn of(self, run: &Measured) -> Option<f64> {
        let value = match self {
            Metric::Cpu => run.cpu.as_ref()?.us_per_job,
            Metric::P50 => run.latency.p50_us,
            Metric::P99 => run.latency.p99_us,
            Metric::Memory => run.resident?.last as f64,
            Metric::Time => 1.0 / run.jobs_per_sec.max(1e-9),
        };
        (value > 0.0).then_some(value)
    }

    fn name(self) -> &'static str {
        match self {
            Metric::Cpu => "CPU per job",
            Metric::P50 => "latency p50",
            Metric::P99 => "latency p99",
            Metric::Memory => "memory",
            Metric::Time => "time per job",
        }
    }
}

/// The ratios of one figure.
#[derive(Debug, Serialize)]
struct Ratio {
    metric: Metric,
    /// B / A, pair by pair.
    ratios: Vec<f64>,
    spread: Spread,
    /// Bounds of the median with a confidence of at least 95 %; None for fewer than 6 pairs.
    interval: Option<(f64, f64)>,
    /// Pairs in which B was lower, of those in which they differed.
    lower: usize,
    differing: usize,
    /// How likely so uneven a split, either way, would be if B were as often lower as higher
    /// (two-sided sign test).
    chance: f64,
}

/// What was found.
#[derive(Debug, Serialize)]
struct Report {
    environment: Environment,
    workload: Workload,
    a: String,
    b: String,
    ratios: Vec<Ratio>,
    runs: Vec<Measured>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let workload = Workload::new(options.workload, &options.overrides)?;
    options.window.check(&workload)?;
    if let Some(rate) = options.rate {
        check_rate("--rate", rate)?;
    }
    if !(1..=1_000).contains(&options.pairs) {
        return Err(Failure::usage("--pairs must be 1 to 1000"));
    }
    options.how.transport.check_built_in()?;
    for spec in [&options.a, &options.b] {
        spec.check_built_in()?;
    }
    report::check_writable(options.json.as_deref())?;
    interrupt::watch()?;
    let environment = Environment::now();
    let mut runs = Vec::new();
    for pair in 0..options.pairs {
        let (a, b) = (&options.a, &options.b);
        let b_first = pair % 2 == 1;
        let mut pair_runs = Vec::new();
        for spec in if b_first { [b, a] } else { [a, b] } {
            let mut measured = measure_one(options, &workload, spec)?;
            measured.round = pair;
            pair_runs.push(measured);
        }
        if b_first {
            pair_runs.reverse();
        }
        runs.append(&mut pair_runs);
        if !options.window.quiet {
            eprintln!("pair {} of {} done", pair + 1, options.pairs);
        }
    }
    let ratios: Vec<Ratio> = Metric::ALL
        .iter()
        .filter_map(|metric| ratio_of(*metric, &runs))
        .collect();
    print(options, &ratios);
    let verdict = verdict(options, &ratios);
    if let Some(path) = &options.json {
        let report = Report {
            environment,
            workload,
            a: options.a.name.clone(),
            b: options.b.name.clone(),
            ratios,
            runs,
        };
        report::write_json(path, &report)?;
    }
    verdict
}

fn measure_one(options: &Options, workload: &Workload, spec: &Spec) -> Result<Measured> {
    let mut site = Site::open(spec, workload, &options.how)?;
    let pace = options.rate.map_or(Pace::Closed, open_pace);
    let plan = options
        .window
        .plan(workload, &site, options.how.transport, pace);
    measure_site(&plan, &mut site, &options.window, options.rate, &mut |_| {
        Ok(())
    })
}

/// The ratios of `metric`, if both targets have it in some pair. `runs` are A and B by turns.
fn ratio_of(metric: Metric, runs: &[Measured]) -> Option<Ratio> {
    let ratios: Vec<f64> = runs
        .chunks_exact(2)
        .filter_map(|pair| Some(metric.of(&pair[1])? / metric.of(&pair[0])?))
        .collect();
    let spread = Spread::of(ratios.iter().copied())?;
    let lower = ratios.iter().filter(|ratio| **ratio < 1.0).count();
    let differing = lower + ratios.iter().filter(|ratio| **ratio > 1.0).count();
    Some(Ratio {
        metric,
        spread,
        interval: median_interval(&ratios),
        lower,
        differing,
        chance: sign_test(lower, differing),
        ratios,
    })
}

/// Probability of at most `successes` heads in `trials` throws of a fair coin.
fn binomial_at_most(successes: usize, trials: usize) -> f64 {
    // In logarithms: 0.5^1000 is no f64.
    let mut log_term = trials as f64 * 0.5_f64.ln();
    let mut sum = log_term.exp();
    for k in 1..=successes {
        log_term += ((trials - k + 1) as f64 / k as f64).ln();
        sum += log_term.exp();
    }
    sum.min(1.0)
}

/// Two-sided sign test.
fn sign_test(lower: usize, differing: usize) -> f64 {
    let fewer = lower.min(differing - lower);
    (2.0 * binomial_at_most(fewer, differing)).min(1.0)
}

/// A confidence interval of the median that assumes nothing about the distribution: from the k-th
/// lowest to the k-th highest value, with the largest k that still has the confidence.
fn median_interval(values: &[f64]) -> Option<(f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let outside = |k: usize| 2.0 * binomial_at_most(k, sorted.len());
    let k = (0..sorted.len() / 2)
        .take_while(|k| outside(*k) <= 1.0 - CONFIDENCE)
        .last()?;
    Some((sorted[k], sorted[sorted.len() - 1 - k]))
}

fn print(options: &Options, ratios: &[Ratio]) {
    println!(
        "{} / {}, {} pairs in alternation; below 1: {} needs less",
        options.b.name, options.a.name, options.pairs, options.b.name
    );
    let head = [
        "",
        "median (min-max)",
        "95 % interval",
        "lower in",
        "sign test",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for ratio in ratios {
        let interval = ratio.interval.map_or_else(
            || "needs 6 pairs".to_owned(),
            |(low, high)| format!("{low:.3}-{high:.3}"),
        );
        rows.push(vec![
            ratio.metric.name().to_owned(),
            ratio.spread.show(3),
            interval,
            format!("{} of {}", ratio.lower, ratio.differing),
            format!("p = {:.4}", ratio.chance),
        ]);
    }
    print!("{}", report::align(&rows));
}

/// The ratio that was asked for must not be above its bound. Not even the lower end of the interval
/// being below helps: the median decides.
fn verdict(options: &Options, ratios: &[Ratio]) -> Result<()> {
    let Some(bound) = options.max_ratio else {
        return Ok(());
    };
    let metric = options.metric.name();
    let Some(ratio) = ratios.iter().find(|ratio| ratio.metric == options.metric) else {
        return Err(Failure::run(format!(
            "no {metric} of both targets is known (at:...#PID), so --max-ratio says nothing"
        )));
    };
    let median = ratio.spread.median;
    if median <= bound {
        println!("{metric}: {median:.3} is within {bound}");
        return Ok(());
    }
    Err(Failure::with_code(
        format!("{metric}: the ratio {median:.3} is above {bound}"),
        3,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(value: f64, expected: f64) {
        assert!((value - expected).abs() < 1e-9, "{value}, not {expected}");
    }

    #[test]
    fn sign_test_is_that_of_the_tables() {
        near(sign_test(0, 10), 2.0 / 1024.0);
        near(sign_test(10, 10), 2.0 / 1024.0);
        near(sign_test(1, 8), 2.0 * 9.0 / 256.0);
        near(sign_test(5, 10), 1.0);
        near(sign_test(0, 0), 1.0);
        assert!(sign_test(400, 1000) < 1e-9);
    }

    #[test]
    fn interval_of_the_median_is_that_of_the_tables() {
        let values = |count: usize| (1..=count).map(|value| value as f64).collect::<Vec<_>>();
        assert_eq!(median_interval(&values(5)), None);
        // Order statistics for 95 %: n = 6: 1 and 6; n = 10: 2 and 9; n = 20: 6 and 15.
        assert_eq!(median_interval(&values(6)), Some((1.0, 6.0)));
        assert_eq!(median_interval(&values(10)), Some((2.0, 9.0)));
        assert_eq!(median_interval(&values(20)), Some((6.0, 15.0)));
    }

    #[test]
    fn ratios_are_taken_within_pairs() {
        let run = |p50_us: f64| {
            let mut run = Measured::default();
            run.latency.p50_us = p50_us;
            run
        };
        let runs = [run(10.0), run(5.0), run(100.0), run(60.0)];
        let ratio = ratio_of(Metric::P50, &runs).unwrap();
        assert_eq!(ratio.ratios, [0.5, 0.6]);
        assert_eq!((ratio.lower, ratio.differing), (2, 2));
        assert!(ratio_of(Metric::Cpu, &runs).is_none(), "nobody knows it");
    }
}
