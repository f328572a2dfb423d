//! `emq-bench soak`: a load for minutes to days, with faults, every job accounted for by its msgid.
//!
//! What is outstanding is bounded by the windows of the clients, and so is the memory of the
//! account: a table of the outstanding jobs knows each msgid, and whatever names another one, or
//! names one a second time, is an incident. Points of the timeline are merged when there are many.

mod faults;
mod trend;

use crate::admin::Admin;
use crate::broker_view::Look;
use crate::environment::Environment;
use crate::failure::{Failure, Result};
use crate::generator::incident::{Incidents, Noted};
use crate::generator::jobs::Violation;
use crate::generator::tally::Tally;
use crate::generator::{self, Manners, Pace, Plan, Running, Shared};
use crate::hlog;
use crate::interrupt;
use crate::measure::{self, Broker, Interval, Measured, Moment, Timeline};
use crate::progress::{Progress, thousands};
use crate::report;
use crate::run::{check_rate, open_pace};
use crate::site::{Site, SiteOptions};
use crate::workload::{Name, Overrides, Workload};
use clap::Args;
use faults::{Fault, Faults, Happened};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use trend::Trend;

const LOOK_MS: u64 = 5;
const INTERVAL: Duration = Duration::from_secs(1);
/// The beginning, this share of the whole, is left out of trends: buffers are growing to their size.
const SETTLING_SHARE: f64 = 0.5;

/// Options of `soak`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How long
    #[arg(long, value_name = "MINUTES", default_value_t = 1.0)]
    minutes: f64,
    /// The load
    #[arg(long, value_enum, default_value = "J120")]
    workload: Name,
    #[command(flatten)]
    overrides: Overrides,
    #[command(flatten)]
    site: SiteOptions,
    /// What goes wrong, how often, and how much of it.
    #[arg(
        long,
        value_name = "FAULT",
        value_delimiter = ',',
        help = "What goes wrong, how often, and how much of it: kill-worker:EVERY, \
                  stop-reading:EVERY[:FOR] (a client), client-restart:EVERY, \
                  reconnect-storm:EVERY[:CONNECTIONS]; several with commas"
    )]
    fault: Vec<Fault>,
    /// Send this many jobs per second at fixed times instead of one for each result
    #[arg(long, value_name = "JOBS")]
    rate: Option<f64>,
    /// Threads of the load generator
    #[arg(long, value_name = "N", default_value_t = 1)]
    generator_threads: usize,
    /// Give up, or in the end count what is outstanding as unanswered, when nothing moves for this
    /// many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    deadline: f64,
    /// Write the result to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the latencies of every second to this file, an HdrHistogram log
    #[arg(long, value_name = "FILE")]
    hlog: Option<PathBuf>,
    /// No progress
    #[arg(long, short)]
    quiet: bool,
}

/// What became of all jobs.
#[derive(Debug, Clone, Default, Serialize)]
struct Account {
    /// Jobs that came to an end that their client heard of.
    ended: u64,
    /// Of these, failed as they should.
    failed: u64,
    /// Of these, lost with a worker that was killed, as their clients were told.
    lost_with_worker: u64,
    /// Given up by clients that were restarted.
    abandoned: u64,
    /// By kind, those that occurred: anything here makes the run fail.
    incidents: BTreeMap<String, u64>,
    /// The first of them.
    noted: Vec<Noted>,
}

/// What was found.
#[derive(Debug, Serialize)]
struct SoakReport {
    environment: Environment,
    workload: Workload,
    /// How long it was; shorter than asked for if a signal ended it.
    minutes: f64,
    asked_minutes: f64,
    faults: Vec<String>,
    happened: Happened,
    account: Account,
    /// Why the run failed, if it did.
    failures: Vec<String>,
    /// Growth of the broker after the beginning.
    memory: Option<Trend>,
    open_files: Option<Trend>,
    /// How the broker's counters have changed.
    counters: BTreeMap<String, u64>,
    runs: Vec<Measured>,
}

impl Options {
    fn check(&self, workload: &Workload) -> Result<()> {
        if !(0.01..=100_000.0).contains(&self.minutes) {
            return Err(Failure::usage(format!(
                "--minutes must be 0.01 to 100000, not {}",
                self.minutes
            )));
        }
        if !(0.1..=600.0).contains(&self.deadline) {
            return Err(Failure::usage("--deadline must be 0.1 to 600 seconds"));
        }
        if let Some(rate) = self.rate {
            check_rate("--rate", rate)?;
        }
        if workload.reply_share < 1.0 {
            return Err(Failure::usage(
                "soak accounts for jobs by their results; leave --reply-share as it is",
            ));
        }
        if workload.workers == 0 {
            return Err(Failure::usage("soak needs --workers of its own"));
        }
        if !(1..=workload.clients).contains(&self.generator_threads) {
            return Err(Failure::usage(format!(
                "--generator-threads must be 1 to the number of clients, {}",
                workload.clients
            )));
        }
        Ok(())
    }

    fn plan(&self, workload: &Workload, site: &Site) -> Plan {
        Plan {
            workload: workload.clone(),
            frontend: site.addresses.frontend.clone(),
            backend: site.addresses.backend.clone(),
            transport: self.site.transport(),
            manners: site.manners,
            pace: self.rate.map_or(Pace::Closed, open_pace),
            threads: self.generator_threads,
            deadline: Duration::from_secs_f64(self.deadline),
            is_broker: site.is_broker,
            tolerant: true,
        }
    }
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result<()> {
    let workload = Workload::new(options.workload, &options.overrides)?;
    options.check(&workload)?;
    let spec = options.site.one_spec()?;
    if !spec.is_broker() {
        return Err(Failure::usage(
            "floor keeps no account of jobs; choose another target",
        ));
    }
    report::check_writable(options.json.as_deref())?;
    interrupt::watch()?;
    let environment = Environment::now();
    let mut site = options.site.open(&spec, &workload)?;
    let plan = options.plan(&workload, &site);
    let mut faults = Faults::new(&options.fault, &plan)?;
    let mut admin = match (&site.addresses.administrative, site.manners) {
        (Some(addr), Manners::Full) => Some(Admin::connect(addr)?),
        _ => None,
    };
    let mut look = || {
        let look = admin.as_mut().map(|admin| Look::take(admin, true));
        look.transpose()
    };
    let before = look()?;
    let name = site.name.clone();
    let result = hlog::recording(options.hlog.as_deref(), &mut |observe| {
        soak(
            options,
            &plan,
            &mut site.broker,
            &mut faults,
            &mut |interval| observe(&name, interval),
        )
    });
    let soaked = result.map_err(|failure| site.explain(&workload.name, &failure))?;
    let after = look()?;
    let counters = before
        .zip(after)
        .map(|(before, after)| after.since(&before));
    let account = account_of(&soaked);
    let failures = failures_of(&account, &faults.happened, &workload);
    let points = soaked.timeline.points();
    let trend =
        |value: fn(&measure::Point) -> Option<u64>| Trend::of(points, SETTLING_SHARE, value);
    let (first, last) = &soaked.samples;
    let mut measured = Measured::between(first, last, &soaked.tally, points);
    measured.target.clone_from(&site.name);
    measured.offered_per_sec = options.rate;
    let report = SoakReport {
        environment,
        minutes: last.at.saturating_duration_since(first.at).as_secs_f64() / 60.0,
        asked_minutes: options.minutes,
        faults: options.fault.iter().map(Fault::to_string).collect(),
        happened: faults.happened.clone(),
        account,
        memory: trend(|point| point.resident_bytes),
        open_files: trend(|point| point.open_files),
        counters: counters.unwrap_or_default(),
        runs: vec![measured],
        workload,
        failures,
    };
    print(&report);
    if let Some(path) = &options.json {
        report::write_json(path, &report)?;
    }
    match report.failures.first() {
        None => Ok(()),
        Some(first) => Err(Failure::run(format!(
            "the soak of {name} failed: {first}{}",
            match report.failures.len() {
                1 => String::new(),
                count => format!(" (and {} more, see above)", count - 1),
            }
        ))),
    }
}

/// Everything counted in a soak.
struct Soaked {
    tally: Tally,
    incidents: Incidents,
    timeline: Timeline,
    /// At the beginning and before the last jobs were waited for.
    samples: (Moment, Moment),
}

fn soak(
    options: &Options,
    plan: &Plan,
    broker: &mut Broker,
    faults: &mut Faults,
    observe: &mut dyn FnMut(&Interval) -> Result<()>,
) -> Result<Soaked> {
    let shared = Arc::new(Shared::new(plan.threads));
    shared.record.store(true, Ordering::Relaxed);
    let running = generator::spawn(plan, &shared)?;
    let first = broker.moment(&shared, true);
    let mut tally = Tally::new();
    let mut timeline = Timeline::new(INTERVAL, Instant::now());
    let result = first.and_then(|first| {
        let mut each = |broker: &Broker| {
            if !timeline.is_due() {
                return Ok(None);
            }
            let interval = timeline.take(shared.collect(), broker)?;
            tally.add(&interval.tally);
            observe(&interval)?;
            Ok(interval.p99_us())
        };
        watch(options, plan, broker, faults, &shared, &running, &mut each)?;
        Ok((first, broker.moment(&shared, false)?))
    });
    let outcomes = measure::end(&shared, running, result.is_err())?;
    let samples = result?;
    let mut incidents = Incidents::default();
    for outcome in outcomes {
        tally.add(&outcome.tally);
        incidents.add(&outcome.incidents);
    }
    Ok(Soaked {
        tally,
        incidents,
        timeline,
        samples,
    })
}

/// Causes faults and shows progress until the time is over. `each` ends an interval when one is
/// over and gives its 99th percentile.
fn watch(
    options: &Options,
    plan: &Plan,
    broker: &Broker,
    faults: &mut Faults,
    shared: &Shared,
    running: &Running,
    each: &mut dyn FnMut(&Broker) -> Result<Option<u64>>,
) -> Result<()> {
    let mut progress = Progress::new("soak".to_owned(), options.quiet);
    let until = Instant::now() + Duration::from_secs_f64(60.0 * options.minutes);
    let mut p99_us = None;
    let is_over = || Instant::now() >= until || interrupt::is_asked();
    while !is_over() && !running.threads.iter().all(JoinHandle::is_finished) {
        if shared.abandon.load(Ordering::Relaxed) {
            return Err(Failure::run("abandoned"));
        }
        faults.cause(plan, running)?;
        p99_us = each(broker)?.or(p99_us);
        progress.show("soaking", shared.done.load(Ordering::Relaxed), p99_us);
        thread::sleep(Duration::from_millis(LOOK_MS));
    }
    // Workers that were killed last come back, so that the jobs still waiting can be done.
    faults.mend(plan, running)
}

fn account_of(soaked: &Soaked) -> Account {
    let incidents = &soaked.incidents;
    let counted = |violation: &Violation| {
        let count = incidents.count(*violation);
        let name = serde_json::to_value(violation).ok()?.as_str()?.to_owned();
        (count > 0).then_some((name, count))
    };
    Account {
        ended: soaked.tally.done,
        failed: soaked.tally.recorded.failed,
        lost_with_worker: soaked.tally.lost - incidents.count(Violation::Lost),
        abandoned: soaked.tally.abandoned,
        incidents: Violation::ALL.iter().filter_map(counted).collect(),
        noted: incidents.noted.clone(),
    }
}

fn failures_of(account: &Account, happened: &Happened, workload: &Workload) -> Vec<String> {
    let mut failures = Vec::new();
    for (kind, count) in &account.incidents {
        let first = account
            .noted
            .iter()
            .find(|noted| {
                serde_json::to_value(noted.violation).is_ok_and(|name| name == kind.as_str())
            })
            .map_or_else(String::new, |noted| format!(", first {}", noted.text));
        failures.push(format!("{} times {kind}{first}", thousands(*count)));
    }
    // A worker holds no more jobs than it has slots.
    let lost_max = happened.workers_killed * workload.slots as u64;
    if account.lost_with_worker > lost_max {
        failures.push(format!(
            "{} jobs were lost with workers, but those that were killed had only {lost_max} slots",
            account.lost_with_worker
        ));
    }
    if account.ended == 0 {
        failures.push("no job has ended; does a worker serve this queue?".to_owned());
    }
    failures
}

fn print(report: &SoakReport) {
    let (account, happened) = (&report.account, &report.happened);
    for run in &report.runs {
        report::print_run(run);
    }
    if report.minutes < 0.95 * report.asked_minutes {
        println!(
            "  ended by a signal after {:.1} of {} minutes",
            report.minutes, report.asked_minutes
        );
    }
    println!(
        "  faults: {} workers killed, {} clients stopped reading, {} clients restarted, {} storms \
         of {} connections in all ({} refused)",
        happened.workers_killed,
        happened.clients_paused,
        happened.clients_restarted,
        happened.storms,
        thousands(happened.storm_connections),
        happened.storm_refused
    );
    println!(
        "  jobs: {} ended, of which {} failed as they should and {} were lost with killed workers; \
         {} given up by restarted clients",
        thousands(account.ended),
        thousands(account.failed),
        thousands(account.lost_with_worker),
        thousands(account.abandoned)
    );
    if let Some(memory) = &report.memory {
        println!(
            "  broker memory: {:+.0} KiB per hour (± {:.0}), from {} to {} KiB",
            memory.per_hour / 1024.0,
            memory.error_per_hour / 1024.0,
            thousands(memory.first / 1024),
            thousands(memory.last / 1024)
        );
    }
    if let Some(files) = &report.open_files {
        println!(
            "  broker descriptors: {:+.1} per hour (± {:.1}), from {} to {}",
            files.per_hour, files.error_per_hour, files.first, files.last
        );
    }
    if report.failures.is_empty() {
        println!("  every job is accounted for: 0 lost, 0 unanswered, 0 twice");
    }
    for failure in &report.failures {
        println!("  FAILED: {failure}");
    }
    for noted in &account.noted {
        println!("    {}", noted.text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload() -> Workload {
        Workload::new(Name::L1, &Overrides::default()).unwrap()
    }

    #[test]
    fn more_losses_than_slots_of_killed_workers_fail() {
        let account = |lost_with_worker| Account {
            ended: 10,
            lost_with_worker,
            ..Account::default()
        };
        let happened = Happened {
            workers_killed: 2,
            ..Happened::default()
        };
        assert!(failures_of(&account(2), &happened, &workload()).is_empty());
        let failures = failures_of(&account(3), &happened, &workload());
        assert!(failures[0].contains("had only 2 slots"), "{failures:?}");
    }

    #[test]
    fn incidents_fail_with_their_msgid() {
        let account = Account {
            ended: 1,
            incidents: BTreeMap::from([("unanswered".to_owned(), 7)]),
            noted: vec![Noted {
                violation: Violation::Unanswered,
                msgid: "m-1".to_owned(),
                text: "no end of a job: m-1".to_owned(),
            }],
            ..Account::default()
        };
        let failures = failures_of(&account, &Happened::default(), &workload());
        assert_eq!(failures, ["7 times unanswered, first no end of a job: m-1"]);
        let nothing = failures_of(&Account::default(), &Happened::default(), &workload());
        assert!(nothing[0].contains("no job has ended"));
    }
}
