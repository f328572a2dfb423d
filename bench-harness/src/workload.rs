//! The canonical workloads and their parameters.

use crate::failure::{Failure, Result};
use crate::service::Service;
use clap::{Args, ValueEnum};
use serde::Serialize;

/// A named load, from which single numbers may differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
pub(crate) enum Name {
    /// 4 clients with 256 outstanding jobs each, 4 workers with 64 slots, payload 120 bytes.
    #[value(name = "J120")]
    J120,
    /// J120 with a payload of 4096 bytes.
    #[value(name = "J4K")]
    J4K,
    /// 64 clients with 4 outstanding jobs each, 16 workers with 16 slots, payload 120 bytes.
    #[value(name = "Jmany")]
    Jmany,
    /// One client with one outstanding job, one worker with one slot: latency.
    #[value(name = "L1")]
    L1,
}

/// Numbers that replace those of the named workload.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Overrides {
    /// Number of client connections
    #[arg(long, value_name = "N")]
    clients: Option<usize>,
    /// Jobs that each client keeps outstanding (1 to 65535)
    #[arg(long, value_name = "N")]
    outstanding: Option<usize>,
    /// Number of worker connections; 0 = workers of your own serve the queue
    #[arg(long, value_name = "N")]
    workers: Option<usize>,
    /// Slots of each worker
    #[arg(long, value_name = "N")]
    slots: Option<usize>,
    /// Bytes in the message frame of each REQUEST
    #[arg(long, value_name = "BYTES")]
    payload: Option<usize>,
    /// Queue of the jobs
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Number of queues, called NAME-0, NAME-1, ..., spread over the workers
    #[arg(long, value_name = "N")]
    queues: Option<usize>,
    /// Share of the jobs that ask for their result, 0 to 1
    #[arg(long, value_name = "SHARE")]
    reply_share: Option<f64>,
    /// Share of the jobs with the header guarantee, 0 to 1
    #[arg(long, value_name = "SHARE")]
    guarantee_share: Option<f64>,
    /// Share of the jobs that fail, 0 to 1
    #[arg(long, value_name = "SHARE")]
    fail_share: Option<f64>,
    /// Time that a worker takes for a job.
    #[arg(
        long,
        value_name = "TIME",
        help = "Time that a worker takes for a job: none, fixed:1ms, exp:MEAN, \
                  lognormal:MEDIAN[:SIGMA], pareto:SHORTEST[:ALPHA] (heavy tail)"
    )]
    service: Option<Service>,
}

impl Overrides {
    /// Another queue, everything else as named.
    pub(crate) fn of_queue(queue: &str) -> Self {
        Overrides {
            queue: Some(queue.to_owned()),
            ..Overrides::default()
        }
    }
}

/// One load, complete.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Workload {
    pub(crate) name: String,
    pub(crate) clients: usize,
    pub(crate) outstanding: usize,
    pub(crate) workers: usize,
    pub(crate) slots: usize,
    pub(crate) payload: usize,
    pub(crate) queue: String,
    pub(crate) queues: usize,
    pub(crate) reply_share: f64,
    pub(crate) guarantee_share: f64,
    pub(crate) fail_share: f64,
    pub(crate) service: Service,
}

/// Queues that one INFORM may name.
const QUEUES_PER_WORKER_MAX: usize = 1024;

impl Workload {
    /// The named load with the numbers that were given for it.
    pub(crate) fn new(name: Name, overrides: &Overrides) -> Result<Self> {
        let (clients, outstanding, workers, slots, payload) = match name {
            Name::J120 => (4, 256, 4, 64, 120),
            Name::J4K => (4, 256, 4, 64, 4096),
            Name::Jmany => (64, 4, 16, 16, 120),
            Name::L1 => (1, 1, 1, 1, 120),
        };
        let named = Workload {
            name: format!("{name:?}"),
            clients,
            outstanding,
            workers,
            slots,
            payload,
            queue: "default".to_owned(),
            queues: 1,
            reply_share: 1.0,
            guarantee_share: 0.0,
            fail_share: 0.0,
            service: Service::None,
        };
        let mut workload = Workload {
            clients: overrides.clients.unwrap_or(clients),
            outstanding: overrides.outstanding.unwrap_or(outstanding),
            workers: overrides.workers.unwrap_or(workers),
            slots: overrides.slots.unwrap_or(slots),
            payload: overrides.payload.unwrap_or(payload),
            queue: overrides
                .queue
                .clone()
                .unwrap_or_else(|| named.queue.clone()),
            queues: overrides.queues.unwrap_or(named.queues),
            reply_share: overrides.reply_share.unwrap_or(named.reply_share),
            guarantee_share: overrides.guarantee_share.unwrap_or(named.guarantee_share),
            fail_share: overrides.fail_share.unwrap_or(named.fail_share),
            service: overrides.service.unwrap_or(named.service),
            name: named.name.clone(),
        };
        if workload != named {
            workload.name.push('*');
        }
        workload.check()?;
        Ok(workload)
    }

    fn check(&self) -> Result<()> {
        let bounds = [
            ("--clients", self.clients, 1, 8_000),
            ("--outstanding", self.outstanding, 1, usize::from(u16::MAX)),
            ("--workers", self.workers, 0, 8_000),
            ("--slots", self.slots, 1, 10_000),
            ("--payload", self.payload, 0, 64 * 1024 * 1024),
            ("--queue: bytes of the name", self.queue.len(), 0, 240),
            ("--queues", self.queues, 1, 100_000),
        ];
        for (what, value, min, max) in bounds {
            if !(min..=max).contains(&value) {
                return Err(Failure::usage(format!(
                    "{what} must be {min} to {max}, not {value}"
                )));
            }
        }
        let shares = [
            ("--reply-share", self.reply_share),
            ("--guarantee-share", self.guarantee_share),
            ("--fail-share", self.fail_share),
        ];
        for (what, value) in shares {
            if !(0.0..=1.0).contains(&value) {
                return Err(Failure::usage(format!(
                    "{what} must be 0 to 1, not {value}"
                )));
            }
        }
        if self.workers > 0 && self.queues.div_ceil(self.workers) > QUEUES_PER_WORKER_MAX {
            return Err(Failure::usage(format!(
                "a worker serves at most {QUEUES_PER_WORKER_MAX} queues; with {} queues there must \
                 be at least {} --workers",
                self.queues,
                self.queues.div_ceil(QUEUES_PER_WORKER_MAX)
            )));
        }
        Ok(())
    }

    /// The name of queue `index`.
    pub(crate) fn queue_name(&self, index: usize) -> String {
        match self.queues {
            1 => self.queue.clone(),
            _ => format!("{}-{index}", self.queue),
        }
    }

    /// The queues that worker `index` serves. Every queue has a worker.
    pub(crate) fn queues_of_worker(&self, index: usize) -> Vec<String> {
        if self.queues < self.workers {
            return vec![self.queue_name(index % self.queues)];
        }
        (index..self.queues)
            .step_by(self.workers.max(1))
            .map(|queue| self.queue_name(queue))
            .collect()
    }

    /// True if each job asks for its result, and all are of one queue.
    pub(crate) fn is_plain(&self) -> bool {
        self.queues == 1 && self.reply_share >= 1.0 && self.guarantee_share <= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_numbers_mark_the_name() {
        let plain = Workload::new(Name::Jmany, &Overrides::default()).unwrap();
        assert_eq!(
            (plain.name.as_str(), plain.clients, plain.slots),
            ("Jmany", 64, 16)
        );
        let changed = Overrides {
            payload: Some(9),
            ..Overrides::default()
        };
        let changed = Workload::new(Name::J120, &changed).unwrap();
        assert_eq!(
            (changed.name.as_str(), changed.payload, changed.clients),
            ("J120*", 9, 4)
        );
    }

    #[test]
    fn every_queue_has_a_worker() {
        for (queues, workers) in [(1, 3), (2, 5), (7, 7), (10, 3)] {
            let overrides = Overrides {
                queues: Some(queues),
                workers: Some(workers),
                ..Overrides::default()
            };
            let workload = Workload::new(Name::J120, &overrides).unwrap();
            let mut served: Vec<String> = (0..workers)
                .flat_map(|worker| {
                    let queues = workload.queues_of_worker(worker);
                    assert!(!queues.is_empty(), "{queues:?}");
                    queues
                })
                .collect();
            served.sort();
            served.dedup();
            assert_eq!(served.len(), queues, "{workers} workers");
        }
    }

    #[test]
    fn shares_and_queues_have_bounds() {
        let shares = Overrides {
            fail_share: Some(1.5),
            ..Overrides::default()
        };
        let queues = Overrides {
            queues: Some(5_000),
            ..Overrides::default()
        };
        let line = |overrides| {
            Workload::new(Name::J120, overrides)
                .unwrap_err()
                .to_string()
        };
        assert!(line(&shares).contains("--fail-share must be 0 to 1, not 1.5"));
        assert!(line(&queues).contains("at least 5 --workers"));
    }

    #[test]
    fn impossible_numbers_name_the_option_and_its_bounds() {
        let overrides = Overrides {
            outstanding: Some(70_000),
            ..Overrides::default()
        };
        let line = Workload::new(Name::J120, &overrides)
            .unwrap_err()
            .to_string();
        assert!(
            line.contains("--outstanding must be 1 to 65535, not 70000"),
            "{line}"
        );
    }
}
