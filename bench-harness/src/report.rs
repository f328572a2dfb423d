//! Tables of results on standard output, and the JSON file.

use crate::broker_view::BrokerView;
use crate::environment::Environment;
use crate::failure::{Failure, Result};
use crate::measure::{Cpu, Latency, Measured};
use crate::progress::thousands;
use crate::workload::Workload;
use serde::Serialize;
use std::fs::OpenOptions;
use std::path::Path;

/// Everything one `run` found out.
#[derive(Debug, Serialize)]
pub(crate) struct RunReport {
    pub(crate) environment: Environment,
    pub(crate) workload: Workload,
    pub(crate) summary: Vec<Summary>,
    pub(crate) runs: Vec<Measured>,
}

/// Middle and spread of several values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// One target over all rounds. Ratios compare with the run of `floor` (or `libzmq`) in the same
/// round, then the median of the rounds is taken.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) target: String,
    pub(crate) jobs_per_sec: Spread,
    pub(crate) cpu_us_per_job: Option<Spread>,
    pub(crate) to_floor: Option<Spread>,
    pub(crate) to_libzmq: Option<Spread>,
    pub(crate) p50_us: Spread,
    pub(crate) p99_us: Spread,
    pub(crate) allocations_per_100k: Option<Spread>,
}

impl Spread {
    /// Of at least one value.
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.collect();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let half = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[half]
        } else {
            f64::midpoint(sorted[half - 1], sorted[half])
        };
        Some(Spread { median, min, max })
    }

    pub(crate) fn show(self, digits: usize) -> String {
        let Spread { median, min, max } = self;
        format!("{median:.digits$} ({min:.digits$}-{max:.digits$})")
    }
}

/// One entry per target, in the order of their first runs.
pub(crate) fn summarise(runs: &[Measured]) -> Vec<Summary> {
    let mut targets: Vec<&str> = Vec::new();
    for run in runs {
        if !targets.contains(&run.target.as_str()) {
            targets.push(&run.target);
        }
    }
    targets
        .into_iter()
        .filter_map(|target| summary_of(target, runs))
        .collect()
}

fn summary_of(target: &str, runs: &[Measured]) -> Option<Summary> {
    let own = || runs.iter().filter(|run| run.target == target);
    let cpu = |run: &Measured| run.cpu.as_ref().map(|cpu| cpu.us_per_job);
    let ratio_to = |reference: &str| {
        let ratio = |run: &Measured| {
            let other = runs
                .iter()
                .find(|other| other.round == run.round && other.target == reference)?;
            Some(cpu(run)? / cpu(other)?)
        };
        Spread::of(own().filter_map(ratio))
    };
    let per_100k = |run: &Measured| Some(run.allocations? as f64 * 1e5 / run.jobs.max(1) as f64);
    Some(Summary {
        target: target.to_owned(),
        jobs_per_sec: Spread::of(own().map(|run| run.jobs_per_sec))?,
        cpu_us_per_job: Spread::of(own().filter_map(cpu)),
        to_floor: ratio_to("floor"),
        to_libzmq: ratio_to("libzmq"),
        p50_us: Spread::of(own().map(|run| run.latency.p50_us))?,
        p99_us: Spread::of(own().map(|run| run.latency.p99_us))?,
        allocations_per_100k: Spread::of(own().filter_map(per_100k)),
    })
}

/// One run in full.
pub(crate) fn print_run(run: &Measured) {
    let offered = run.offered_per_sec.map_or_else(String::new, |rate| {
        format!(" of {} offered", thousands(rate as u64))
    });
    println!(
        "{}: {} jobs/s{offered} ({} jobs in {:.2} s)",
        run.target,
        thousands(run.jobs_per_sec as u64),
        thousands(run.jobs),
        run.seconds
    );
    print_ends(run);
    print_latency("latency µs", &run.latency);
    let stages = &run.stages;
    for (what, latency) in [
        ("  REQUEST to acceptance", &stages.accept),
        ("  acceptance to hand-out", &stages.hand_out),
        ("  hand-out to end", &stages.finish),
    ] {
        if let Some(latency) = latency {
            print_latency(what, latency);
        }
    }
    match &run.cpu {
        Some(cpu) => print_cpu(cpu),
        None => println!("  broker CPU: unknown (give its process id with --pid)"),
    }
    if let Some(resident) = run.resident {
        println!(
            "  broker memory: {} KiB at the end, {:+} KiB in the window, {} KiB at most",
            thousands(resident.last / 1024),
            (resident.last as i64 - resident.first as i64) / 1024,
            thousands(resident.max / 1024)
        );
    }
    if let Some(allocations) = run.allocations {
        let per_100k = allocations as f64 * 1e5 / run.jobs.max(1) as f64;
        println!("  broker allocations: {allocations} ({per_100k:.1} per 100,000 jobs)");
    }
    if let Some(view) = &run.broker_view {
        print_view(view);
    }
    print_generator(run);
}

fn print_ends(run: &Measured) {
    let ends = run.ends;
    let mut parts = Vec::new();
    for (count, what) in [
        (ends.failed, "failed"),
        (ends.without_result, "without a result"),
        (ends.guaranteed, "with guarantee"),
    ] {
        if count > 0 {
            parts.push(format!("{} {what}", thousands(count)));
        }
    }
    if ends.accepted < run.jobs / 2 {
        parts.push(format!("{} accepted", thousands(ends.accepted)));
    }
    if !parts.is_empty() {
        println!("  jobs: {}", parts.join(", "));
    }
}

fn print_latency(what: &str, l: &Latency) {
    println!(
        "  {what}: p50 {:.0}, p90 {:.0}, p99 {:.0}, p99.9 {:.0}, p99.99 {:.0}, max {:.0}, mean {:.0}",
        l.p50_us, l.p90_us, l.p99_us, l.p999_us, l.p9999_us, l.max_us, l.mean_us
    );
}

fn print_cpu(cpu: &Cpu) {
    println!(
        "  broker CPU: {:.3} µs/job ({:.0} % user), waited for a core {:.3} µs/job",
        cpu.us_per_job,
        100.0 * cpu.user_share,
        cpu.waited_us_per_job
    );
    println!(
        "  context switches per 1,000 jobs: {:.1} to wait, {:.1} forced",
        cpu.voluntary_switches_per_1k, cpu.involuntary_switches_per_1k
    );
    if cpu.threads.len() < 2 {
        return;
    }
    for thread in &cpu.threads {
        println!(
            "    {:<16} {:.3} µs/job, busy {:.0} %",
            thread.name,
            thread.us_per_job,
            100.0 * thread.busy
        );
    }
    if let Some(busiest) = cpu.threads.first() {
        println!(
            "    the busiest thread alone would carry {} jobs/s",
            thousands((1e6 / busiest.us_per_job.max(1e-9)) as u64)
        );
    }
}

fn print_view(view: &BrokerView) {
    if let Some(latency) = &view.latency {
        let part = |name: &str| {
            let us = |at: &str| latency[name][at].as_f64().unwrap_or(0.0);
            format!("{name} p50 {:.0} p99 {:.0}", us("p50_us"), us("p99_us"))
        };
        println!(
            "  the broker's own view µs, since its start: {}, {}, {}",
            part("wait"),
            part("service"),
            part("total")
        );
    }
    for difference in &view.differences {
        println!("  differs: {difference}");
    }
    if view.differences.is_empty() && view.latency.is_some() {
        println!("  the broker's counts agree with those of clients and workers");
    }
}

fn print_generator(run: &Measured) {
    let share = run.generator_cpu_share.map_or_else(String::new, |share| {
        format!(", {:.0} % of all CPU time used", 100.0 * share)
    });
    println!(
        "  generator: {:.3} µs/job, busy {:.0} %{share}",
        run.generator_us_per_job,
        100.0 * run.generator_busy
    );
    if !run.is_generator_bound() {
        return;
    }
    match run.offered_per_sec {
        None => println!(
            "  WARNING: the generator was at its limit, the broker may carry more \
             (--generator-threads, if there are free cores)"
        ),
        Some(_) => println!(
            "  WARNING: the generator sent {} jobs more than 1 ms late by itself: latencies count \
             its delay (a lower rate, more --generator-threads, or a less busy machine)",
            thousands(run.late)
        ),
    }
}

/// The comparison of all targets.
pub(crate) fn print_summary(workload: &Workload, summary: &[Summary]) {
    println!(
        "{}: {} clients x {} outstanding, {} workers x {} slots, {} bytes; median (min-max)",
        workload.name,
        workload.clients,
        workload.outstanding,
        workload.workers,
        workload.slots,
        workload.payload
    );
    let head = [
        "target",
        "CPU µs/job",
        "x floor",
        "x libzmq",
        "jobs/s",
        "p50 µs",
        "p99 µs",
    ];
    let mut rows: Vec<Vec<String>> = vec![head.map(str::to_owned).to_vec()];
    let shown = |spread: Option<Spread>, digits| {
        spread.map_or_else(|| "-".to_owned(), |spread| spread.show(digits))
    };
    for entry in summary {
        rows.push(vec![
            entry.target.clone(),
            shown(entry.cpu_us_per_job, 3),
            shown(entry.to_floor, 2),
            shown(entry.to_libzmq, 3),
            shown(Some(entry.jobs_per_sec), 0),
            shown(Some(entry.p50_us), 0),
            shown(Some(entry.p99_us), 0),
        ]);
    }
    print!("{}", align(&rows));
}

pub(crate) fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell_width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell: &String| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns)
        .map(|column| cell_width(column).unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, &width)| format!("{cell:<width$}"))
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Says before a measurement that its result cannot be written. What the file holds stays.
pub(crate) fn check_writable(path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let existed = path.exists();
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        // A measurement that fails leaves no empty file.
        .and_then(|_| match existed {
            true => Ok(()),
            false => std::fs::remove_file(path),
        })
        .map_err(|error| {
            Failure::usage(format!(
                "cannot write results to {}: {error}",
                path.display()
            ))
        })
}

/// Writes `report` to `path`.
pub(crate) fn write_json(path: &Path, report: &impl Serialize) -> Result<()> {
    let failure =
        |error: &dyn std::fmt::Display| Failure::run(format!("{}: {error}", path.display()));
    let mut text = serde_json::to_string_pretty(report).map_err(|error| failure(&error))?;
    text.push('\n');
    std::fs::write(path, text).map_err(|error| failure(&error))
}

#[cfg(test)]
mod tests;
