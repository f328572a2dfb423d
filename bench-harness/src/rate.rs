//! `emq-bench rate`: open loop at rising rates, latency against rate, and the knee of that curve.
//!
//! Jobs are due at fixed times whatever the answers do, and latency counts from these times, so
//! that a broker that stops for a moment is not asked less in that moment (no coordinated
//! omission).

use crate::environment::Environment;
use crate::failure::{Failure, Result};
use crate::hlog;
use crate::interrupt;
use crate::measure::Measured;
use crate::progress::thousands;
use crate::report;
use crate::run::{WindowOptions, check_rate, measure_site, open_pace};
use crate::site::{Site, SiteOptions};
use crate::workload::{Name, Overrides, Workload};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// A rate is sustained if at most this share of a window's jobs is missing at its end,
const MISSING_SHARE_MAX: f64 = 0.02;
/// or no more than are due in this time: a short window may end in a moment's delay.
const MISSING_SECS_MAX: f64 = 0.05;
/// So many steps that are not sustained end the search upwards: the first may be an accident.
const FAILED_STEPS_MAX: usize = 2;
const STEPS_MAX: usize = 200;

/// Options of `rate`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The load; its outstanding jobs bound how far the broker may fall behind
    #[arg(long, value_enum, default_value = "J120")]
    workload: Name,
    #[command(flatten)]
    overrides: Overrides,
    #[command(flatten)]
    site: SiteOptions,
    /// First rate, in jobs per second
    #[arg(long, value_name = "JOBS", default_value_t = 10_000.0)]
    from: f64,
    /// Last rate, at most; it ends sooner when the broker does not keep up
    #[arg(long, value_name = "JOBS", default_value_t = 10_000_000.0)]
    to: f64,
    /// Difference between two rates; without it each rate is twice the one before, and the knee is
    /// then searched for between the last two
    #[arg(long, value_name = "JOBS")]
    step: Option<f64>,
    /// Rates tried between the last one with and the first one without a knee
    #[arg(long, value_name = "N", default_value_t = 5, conflicts_with = "step")]
    search: usize,
    /// The knee is behind the last rate whose 99th percentile is at most this many times that of
    /// the lowest rate
    #[arg(long, value_name = "FACTOR", default_value_t = 10.0)]
    knee_factor: f64,
    #[command(flatten)]
    window: WindowOptions,
    /// Write all steps to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the latencies of every interval to this file, an HdrHistogram log
    #[arg(long, value_name = "FILE")]
    hlog: Option<PathBuf>,
}

/// What a step says about its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    /// Done in time.
    Good,
    /// Done, with latencies far above those of the lowest rate.
    Slow,
    /// Not done.
    NotSustained,
    /// The generator did not keep its times: says nothing about the broker.
    GeneratorBound,
}

/// One rate and what came of it.
#[derive(Debug, Serialize)]
struct Step {
    rate: f64,
    verdict: Verdict,
    measured: Measured,
}

/// What was found.
#[derive(Debug, Serialize)]
struct RateReport {
    environment: Environment,
    workload: Workload,
    /// In the order of their rates.
    steps: Vec<Step>,
    /// The highest rate below the first one that was not good.
    knee_per_sec: Option<f64>,
}

impl Options {
    fn check(&self) -> Result<()> {
        check_rate("--from", self.from)?;
        check_rate("--to", self.to)?;
        if let Some(step) = self.step {
            check_rate("--step", step)?;
            if (self.to - self.from) / step > STEPS_MAX as f64 && self.to < 1e7 {
                return Err(Failure::usage(format!(
                    "from {} to {} by {step} are more than {STEPS_MAX} steps; choose a larger \
                     --step",
                    self.from, self.to
                )));
            }
        }
        if self.from > self.to {
            return Err(Failure::usage(format!(
                "--from {} is above --to {}",
                self.from, self.to
            )));
        }
        if self.knee_factor.is_nan() || self.knee_factor < 1.0 {
            return Err(Failure::usage(format!(
                "--knee-factor must be at least 1, not {}",
                self.knee_factor
            )));
        }
        Ok(())
    }
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    options.check()?;
    let workload = Workload::new(options.workload, &options.overrides)?;
    options.window.check(&workload)?;
    let spec = options.site.one_spec()?;
    report::check_writable(options.json.as_deref())?;
    interrupt::watch()?;
    let environment = Environment::now();
    let mut site = options.site.open(&spec, &workload)?;
    let steps = hlog::recording(options.hlog.as_deref(), &mut |observe| {
        climb(options, &mut |rate| {
            step(options, &workload, &mut site, rate, observe)
        })
    })?;
    let knee = knee_of(&steps);
    print(&site.name, &steps, knee);
    let report = RateReport {
        environment,
        workload,
        knee_per_sec: knee,
        steps,
    };
    options
        .json
        .as_deref()
        .map_or(Ok(()), |path| report::write_json(path, &report))
}

fn step(
    options: &Options,
    workload: &Workload,
    site: &mut Site,
    rate: f64,
    observe: &mut hlog::Observe<'_>,
) -> Result<Measured> {
    let transport = options.site.transport();
    let plan = options
        .window
        .plan(workload, site, transport, open_pace(rate));
    let tag = format!("{}@{rate:.0}", site.name);
    let measured = measure_site(&plan, site, &options.window, Some(rate), &mut |interval| {
        observe(&tag, interval)
    })?;
    if !options.window.quiet {
        eprintln!(
            "{} of {} jobs/s, p99 {:.0} µs",
            thousands(measured.jobs_per_sec as u64),
            thousands(rate as u64),
            measured.latency.p99_us
        );
    }
    Ok(measured)
}

/// Measures rising rates until one is too much, then, without a fixed step, some between.
fn climb(options: &Options, measure: &mut dyn FnMut(f64) -> Result<Measured>) -> Result<Vec<Step>> {
    let mut steps: Vec<Step> = Vec::new();
    let mut rate = options.from;
    let mut failed = 0;
    while rate <= options.to && failed < FAILED_STEPS_MAX && steps.len() < STEPS_MAX {
        failed = match take(&mut steps, rate, options, measure)? {
            true => 0,
            false => failed + 1,
        };
        rate = options.step.map_or(rate * 2.0, |step| rate + step);
    }
    if options.step.is_some() {
        return Ok(steps);
    }
    for _ in 0..options.search {
        let Some(good) = knee_of(&steps) else { break };
        let above = |step: &&Step| step.rate > good && step.tells();
        let Some(bad) = steps.iter().find(above).map(|step| step.rate) else {
            break;
        };
        take(&mut steps, f64::midpoint(good, bad), options, measure)?;
    }
    Ok(steps)
}

/// True if all jobs but those of a moment were done.
fn is_sustained(rate: f64, measured: &Measured) -> bool {
    let missing_secs = measured.seconds - measured.jobs as f64 / rate;
    missing_secs <= (MISSING_SHARE_MAX * measured.seconds).max(MISSING_SECS_MAX)
}

/// Measures one rate and puts it to its place. False if it was not sustained, whoever is to blame.
fn take(
    steps: &mut Vec<Step>,
    rate: f64,
    options: &Options,
    measure: &mut dyn FnMut(f64) -> Result<Measured>,
) -> Result<bool> {
    let measured = measure(rate)?;
    let sustained = is_sustained(rate, &measured);
    let base_us = steps.first().map_or(measured.latency.p99_us, |first| {
        first.measured.latency.p99_us
    });
    let verdict = if measured.is_generator_bound() {
        Verdict::GeneratorBound
    } else if !sustained {
        Verdict::NotSustained
    } else if measured.latency.p99_us > options.knee_factor * base_us {
        Verdict::Slow
    } else {
        Verdict::Good
    };
    let at = steps.partition_point(|step| step.rate < rate);
    steps.insert(
        at,
        Step {
            rate,
            verdict,
            measured,
        },
    );
    Ok(sustained)
}

impl Step {
    /// False if the generator was in the way.
    fn tells(&self) -> bool {
        self.verdict != Verdict::GeneratorBound
    }
}

/// The last of the rates that are good from the lowest on; those at which the generator was late
/// are passed over. None if all are good, or none is.
fn knee_of(steps: &[Step]) -> Option<f64> {
    let telling: Vec<&Step> = steps.iter().filter(|step| step.tells()).collect();
    let good = telling
        .iter()
        .take_while(|step| step.verdict == Verdict::Good)
        .count();
    (good > 0 && good < telling.len()).then(|| telling[good - 1].rate)
}

fn print(name: &str, steps: &[Step], knee: Option<f64>) {
    println!("{name}: latency in µs from when a job was due");
    let head = [
        "offered/s",
        "done/s",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "p99.99",
        "max",
        "CPU µs/job",
        "",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for step in steps {
        let (run, l) = (&step.measured, &step.measured.latency);
        let mut row = vec![
            thousands(step.rate as u64),
            thousands(run.jobs_per_sec as u64),
        ];
        row.extend(
            [
                l.p50_us, l.p90_us, l.p99_us, l.p999_us, l.p9999_us, l.max_us,
            ]
            .map(|us| format!("{us:.0}")),
        );
        let cpu = run.cpu.as_ref();
        row.push(cpu.map_or("-".to_owned(), |cpu| format!("{:.2}", cpu.us_per_job)));
        row.push(
            match step.verdict {
                Verdict::Good => "",
                Verdict::Slow => "slow",
                Verdict::NotSustained => "not sustained",
                Verdict::GeneratorBound => "the generator was late",
            }
            .to_owned(),
        );
        rows.push(row);
    }
    print!("{}", report::align(&rows));
    match knee {
        Some(rate) => println!("knee: behind {} jobs/s", thousands(rate as u64)),
        None if steps
            .iter()
            .all(|step| !step.tells() || step.verdict == Verdict::Good) =>
        {
            println!("knee: none up to the last rate (a higher --to)");
        }
        None => println!("knee: below the lowest rate (a lower --from)"),
    }
    if steps
        .iter()
        .any(|step| step.verdict == Verdict::GeneratorBound)
    {
        println!(
            "WARNING: at some rates the generator itself was late: they say nothing about the \
             broker (--generator-threads, if there are free cores)"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn options(words: &str) -> Options {
        Line::parse_from(["rate"].into_iter().chain(words.split_whitespace())).options
    }

    /// A broker that carries 100,000 jobs per second and is slow from 70,000 on.
    fn broker(rate: f64) -> Result<Measured> {
        let mut measured = Measured {
            offered_per_sec: Some(rate),
            jobs: rate.min(100_000.0) as u64,
            seconds: 1.0,
            window_full: u64::from(rate > 100_000.0),
            ..Measured::default()
        };
        measured.latency.p99_us = if rate < 70_000.0 { 100.0 } else { 5_000.0 };
        Ok(measured)
    }

    fn rates(steps: &[Step]) -> Vec<f64> {
        steps.iter().map(|step| step.rate).collect()
    }

    #[test]
    fn knee_is_searched_for() {
        let steps = climb(&options("--from 10000 --search 4"), &mut broker).unwrap();
        let knee = knee_of(&steps).unwrap();
        assert!((65_000.0..70_000.0).contains(&knee), "{:?}", rates(&steps));
        assert!(rates(&steps).is_sorted());
        assert!(
            rates(&steps).contains(&320_000.0),
            "two that are not sustained"
        );
        assert!(!rates(&steps).contains(&640_000.0));
    }

    #[test]
    fn moment_at_the_end_of_a_short_window_is_no_overload() {
        let measured = |seconds: f64, jobs: u64| Measured {
            jobs,
            seconds,
            ..Measured::default()
        };
        assert!(is_sustained(1_000.0, &measured(0.3, 260)));
        assert!(!is_sustained(1_000.0, &measured(0.3, 240)));
        assert!(is_sustained(1_000.0, &measured(5.0, 4_910)));
        assert!(!is_sustained(1_000.0, &measured(5.0, 4_890)));
    }

    #[test]
    fn fixed_steps_are_kept() {
        let steps = climb(
            &options("--from 50000 --to 80000 --step 10000"),
            &mut broker,
        )
        .unwrap();
        assert_eq!(rates(&steps), [5e4, 6e4, 7e4, 8e4]);
        assert_eq!(knee_of(&steps), Some(6e4));
        assert_eq!(steps[2].verdict, Verdict::Slow);
    }

    #[test]
    fn rates_at_which_the_generator_was_late_do_not_count() {
        let mut hindered = |rate: f64| {
            let mut measured = broker(rate)?;
            measured.late = if rate == 20_000.0 { 9_000 } else { 0 };
            Ok(measured)
        };
        let line = "--from 10000 --to 90000 --step 10000";
        let steps = climb(&options(line), &mut hindered).unwrap();
        assert_eq!(steps[1].verdict, Verdict::GeneratorBound);
        assert_eq!(knee_of(&steps), Some(6e4));
    }

    #[test]
    fn no_knee_is_found_where_there_is_none() {
        let steps = climb(&options("--from 1000 --to 9000"), &mut broker).unwrap();
        assert_eq!((rates(&steps).len(), knee_of(&steps)), (4, None));
    }

    #[test]
    fn impossible_rates_are_named() {
        for (words, expected) in [
            ("--from 0", "--from"),
            ("--from 20 --to 10", "above --to"),
            ("--from 1 --to 1000 --step 1", "larger --step"),
            ("--knee-factor 0.5", "--knee-factor"),
        ] {
            let line = options(words).check().unwrap_err().to_string();
            assert!(line.contains(expected), "{words}: {line}");
        }
    }
}
