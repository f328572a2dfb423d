//! The job manager: takes jobs from brokers and runs them.
//!
//! Owns: the state machine towards brokers (`manager`) and the pool of worker processes
//! (`pool`), both without I/O; the thread that runs jobs (`executor`); processes and what ends
//! with them (`process`); [`JobManager`], which puts them together. May import layers 0-5, never
//! `broker` or `server`.
//!
//! Invariants: every job taken has exactly one end, told to its broker with REPLY (if asked for)
//! and READY; no process outlives the job manager; what a job does (dies, hangs, prints, closes
//! its files, writes nonsense) concerns nobody but the job.
//!
//! # Running functions of a Rust program
//!
//! ```no_run
//! use eventmq::jobmanager::{Functions, JobManager, JobManagerConfig};
//!
//! let functions = Functions::new().register("sums", "add", |(a, b): (i64, i64)| Ok(a + b));
//! let manager = JobManager::start(JobManagerConfig {
//!     functions,
//!     ..JobManagerConfig::default()
//! })?;
//! // ...
//! manager.shutdown();
//! manager.wait()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A function that panics fails its job with the type `Panic`, provided that the program is built
//! to unwind: with `panic = "abort"`, or a panic hook that ends the process, it ends the program.
//! A function cannot be killed. When its time is over its job ends as timed out, its slot is free
//! again, and the thread is lost for as long as the function goes on; with as many lost threads as
//! slots, further jobs of functions fail.
//!
//! A program whose job manager also runs Python jobs or commands calls
//! [`run_if_started_by_job_manager`] first in `main`.

mod call;
mod config;
mod executor;
mod frame;
mod manager;
mod node;
mod outcome;
mod pool;
mod process;
#[cfg(test)]
mod rng;

pub use config::{JobManagerConfig, NAME_BYTES_MAX};
pub use executor::{CommandConfig, FunctionError, Functions, JobContext, PythonConfig};
pub use manager::BrokerMode;
pub use process::run_if_started_by_job_manager;

use crate::metrics::Counters;
use crate::runtime::node::{NodeHandle, NodeRunner};
use crate::runtime::threads::random;
use executor::Executor;
use node::{ManagerNode, Order};
use std::io;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use thiserror::Error;

/// Why a job manager did not start, or ended before its time.
#[derive(Debug, Error)]
pub enum JobManagerError {
    /// The configuration cannot work.
    #[error("{0}")]
    Config(String),
    /// A thread, a poll or a process cannot be had.
    #[error("the system refuses what the job manager needs: {0}")]
    System(#[from] io::Error),
    /// A thread of it has panicked.
    #[error("a thread of the job manager ended by a panic")]
    Panicked,
}

fn check(config: &JobManagerConfig) -> Result<(), JobManagerError> {
    config.check().map_err(JobManagerError::Config)?;
    let processes = config.python.is_some() || !config.commands.allowed.is_empty();
    if processes && !process::processes_can_be_started() {
        let what = "Python jobs and commands need run_if_started_by_job_manager() in main";
        return Err(JobManagerError::Config(what.to_owned()));
    }
    Ok(())
}

/// A running job manager.
#[derive(Debug)]
pub struct JobManager {
    orders: NodeHandle<Order>,
    thread: Option<JoinHandle<io::Result<Counters>>>,
}

impl std::fmt::Debug for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Order").finish_non_exhaustive()
    }
}

impl JobManager {
    /// Starts it: worker processes come up, brokers are connected to.
    ///
    /// # Errors
    /// [`JobManagerError`]; nothing is left running.
    pub fn start(config: JobManagerConfig) -> Result<JobManager, JobManagerError> {
        check(&config)?;
        let cell: Arc<OnceLock<Executor>> = Arc::default();
        let seeds = [random(), random(), random(), random() | 1];
        let node = ManagerNode::new(&config, seeds, Arc::clone(&cell));
        let (runner, orders) = NodeRunner::new(node)?;
        let own = orders.clone();
        let executor = Executor::start(config.executor(), move |report| {
            // Fails only when the node has ended, and then nobody asks.
            let _ = own.give(Order::Report(report));
        })?;
        // It is the only one that is ever put there.
        let _ = cell.set(executor);
        let thread = std::thread::Builder::new()
            .name("emq-brokers".to_owned())
            .spawn(move || runner.run().map(|node| node.counters()))?;
        Ok(JobManager {
            orders,
            thread: Some(thread),
        })
    }

    /// Takes other settings into use; addresses, name, mode, slots and functions stay. Worker
    /// processes are replaced one after the other, each when it has no job.
    ///
    /// # Errors
    /// What cannot work; then nothing has changed.
    pub fn reload(&self, config: JobManagerConfig) -> Result<(), JobManagerError> {
        check(&config)?;
        self.give(Order::Reload(Box::new(config)));
        Ok(())
    }

    /// Asks for the end in good order: brokers are told, running jobs end, their results are sent.
    pub fn shutdown(&self) {
        self.give(Order::Shutdown);
    }

    /// Asks for the end at once: running jobs are killed and told to be lost.
    pub fn shutdown_now(&self) {
        self.give(Order::ShutdownNow);
    }

    /// True when it has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the end; gives what was counted.
    ///
    /// # Errors
    /// When it ended before its time.
    pub fn wait(mut self) -> Result<Counters, JobManagerError> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(counters)) => Ok(counters?),
            Some(Err(_)) => Err(JobManagerError::Panicked),
            None => Ok(Counters::default()),
        }
    }

    fn give(&self, order: Order) {
        // Fails only when it has ended.
        let _ = self.orders.give(order);
    }
}

impl Drop for JobManager {
    /// Ends it at once, if it has not been waited for.
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.give(Order::ShutdownNow);
            let _ = thread.join();
        }
    }
}
