//! The canonical workloads and their parameters.

use crate::failure::{Failure, Result};
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
}

/// One load, complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Workload {
    pub(crate) name: String,
    pub(crate) clients: usize,
    pub(crate) outstanding: usize,
    pub(crate) workers: usize,
    pub(crate) slots: usize,
    pub(crate) payload: usize,
    pub(crate) queue: String,
}

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
            ("--queue: bytes of the name", self.queue.len(), 0, 255),
        ];
        for (what, value, min, max) in bounds {
            if !(min..=max).contains(&value) {
                return Err(Failure::usage(format!(
                    "{what} must be {min} to {max}, not {value}"
                )));
            }
        }
        Ok(())
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
