//! Which broker `fill` and `idle` look at: one that they start, or one that runs already.

use crate::failure::{Failure, Result};
use crate::target::{Spawned, Spec};
use crate::workload::{Name, Overrides, Workload};
use clap::Args;
use eventmq::addr::Addr;

/// Options that name the broker.
#[derive(Debug, Args)]
pub(crate) struct PlaceOptions {
    /// What to start and measure: ours-inline, ours-dedicated, ours-auto, libzmq, each optionally
    /// with @BINARY for another build of emq-bench
    #[arg(long, default_value = "ours-inline")]
    target: Spec,
    /// Frontend of a broker that runs already, instead of --target
    #[arg(long, value_name = "ADDRESS", requires_all = ["backend", "pid"], conflicts_with = "target")]
    frontend: Option<Addr>,
    /// Backend of that broker
    #[arg(long, value_name = "ADDRESS", requires = "frontend")]
    backend: Option<Addr>,
    /// Process id of that broker
    #[arg(long, requires = "frontend")]
    pid: Option<u32>,
}

/// A running broker whose process can be looked at.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) frontend: Addr,
    pub(crate) backend: Addr,
    pub(crate) pid: u32,
    /// Ends with the measurement.
    _spawned: Option<Spawned>,
}

impl PlaceOptions {
    /// Starts the broker, or takes the one that was named.
    pub(crate) fn open(&self) -> Result<Place> {
        if let (Some(frontend), Some(backend), Some(pid)) =
            (&self.frontend, &self.backend, self.pid)
        {
            return Ok(Place {
                name: "external".to_owned(),
                frontend: frontend.clone(),
                backend: backend.clone(),
                pid,
                _spawned: None,
            });
        }
        self.target.check_built_in()?;
        if !self.target.is_broker() {
            return Err(Failure::usage(
                "floor holds no jobs and no idle connections; choose another target",
            ));
        }
        let any = Workload::new(Name::J120, &Overrides::default())?;
        let spawned = Spawned::start(&self.target, &any)?;
        Ok(Place {
            name: self.target.name.clone(),
            frontend: spawned.addresses.frontend.clone(),
            backend: spawned.addresses.backend.clone(),
            pid: spawned.pid(),
            _spawned: Some(spawned),
        })
    }
}
