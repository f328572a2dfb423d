//! What runs the jobs: one thread that feeds worker processes, starts commands, hands functions to
//! threads, and watches over all of them.
//!
//! One thread with one poll is enough: it copies bytes between pipes and sleeps otherwise, and the
//! processes it starts live exactly as long as it does, because the parent-death signal follows
//! the thread that started them. What ends is seen at once through a pidfd in the same poll.

mod command;
mod functions;
mod processes;
mod thread;

pub use functions::{FunctionError, Functions, JobContext};

use super::outcome::Ending;
use super::pool::{JobId, Task};
use crossbeam::channel::{Receiver, Sender, unbounded};
use mio::{Poll, Token, Waker};
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

/// How worker processes are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PythonConfig {
    /// The interpreter; looked for in `PATH` if it has no slash.
    pub python: OsString,
    /// Jobs after which a process is replaced by a new one.
    pub max_job_count: u64,
    /// `module.function` called once in each new process; empty = none.
    pub subprocess_setup_func: String,
    /// Module of [`PythonConfig::setup_callable`], the older form of the above.
    pub setup_path: String,
    /// See [`PythonConfig::setup_path`].
    pub setup_callable: String,
    /// `module.function` called before each job; empty = none.
    pub job_entry_func: String,
    /// `module.function` called after each job; empty = none.
    pub job_exit_func: String,
}

impl Default for PythonConfig {
    fn default() -> Self {
        PythonConfig {
            python: OsString::from("python3"),
            max_job_count: 1024,
            subprocess_setup_func: String::new(),
            setup_path: String::new(),
            setup_callable: String::new(),
            job_entry_func: String::new(),
            job_exit_func: String::new(),
        }
    }
}

/// Which commands may be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandConfig {
    /// Absolute paths; a job names one of them, or its last part. Empty: no commands.
    pub allowed: Vec<PathBuf>,
    /// Bytes kept of standard output, and of standard error; what comes after is thrown away.
    pub output_bytes_max: usize,
}

impl Default for CommandConfig {
    fn default() -> Self {
        CommandConfig {
            allowed: Vec::new(),
            output_bytes_max: 1 << 20,
        }
    }
}

/// What the executor is made of.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExecutorConfig {
    /// Jobs at a time.
    pub(crate) slots: usize,
    /// Without it no Python job can be run.
    pub(crate) python: Option<PythonConfig>,
    pub(crate) commands: CommandConfig,
    pub(crate) functions: Functions,
}

/// A job to run.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: JobId,
    pub(crate) payload: Vec<u8>,
    pub(crate) timeout_ms: u64,
}

/// What the executor says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// So many jobs can be run at a time.
    Capacity(usize),
    /// A job has ended.
    Ended(JobId, Ending),
    /// Nothing is left; it comes once, last.
    Closed,
}

enum Order {
    Run(Job),
    Reload(Box<(Option<PythonConfig>, CommandConfig)>),
    Close,
    KillAll,
    /// A thread has carried out a function.
    FunctionEnded(JobId, Ending),
}

/// Gives orders and wakes the thread.
#[derive(Clone)]
struct Orders {
    sender: Sender<Order>,
    waker: Arc<Waker>,
}

impl Orders {
    fn give(&self, order: Order) {
        // At the end nobody takes orders any more.
        if self.sender.send(order).is_ok() {
            let _ = self.waker.wake();
        }
    }
}

/// The running thread. Dropping it kills what runs.
pub(crate) struct Executor {
    orders: Orders,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor").finish_non_exhaustive()
    }
}

const WAKE: Token = Token(0);

impl Executor {
    /// Starts the thread. `report` is called on it.
    ///
    /// # Errors
    /// If the thread or its poll cannot be made.
    pub(crate) fn start(
        config: ExecutorConfig,
        report: impl FnMut(Report) + Send + 'static,
    ) -> io::Result<Executor> {
        let poll = Poll::new()?;
        let (sender, receiver): (_, Receiver<Order>) = unbounded();
        let orders = Orders {
            sender,
            waker: Arc::new(Waker::new(poll.registry(), WAKE)?),
        };
        let own = orders.clone();
        let thread = std::thread::Builder::new()
            .name("emq-jobs".to_owned())
            // The processes are this thread's children from the first one on.
            .spawn(move || {
                thread::Shell::new(config, poll, receiver, own, Box::new(report)).run();
            })?;
        Ok(Executor {
            orders,
            thread: Some(thread),
        })
    }

    /// Runs a job; its end is reported.
    pub(crate) fn run(&self, job: Job) {
        self.orders.give(Order::Run(job));
    }

    /// Other settings. Worker processes are replaced one after the other.
    pub(crate) fn reload(&self, python: Option<PythonConfig>, commands: CommandConfig) {
        self.orders
            .give(Order::Reload(Box::new((python, commands))));
    }

    /// No further jobs; [`Report::Closed`] comes when the running ones have ended.
    pub(crate) fn close(&self) {
        self.orders.give(Order::Close);
    }

    /// Kills what runs, except functions, which cannot be.
    pub(crate) fn kill_all(&self) {
        self.orders.give(Order::KillAll);
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.close();
        self.kill_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl From<Job> for Task {
    fn from(job: Job) -> Task {
        Task {
            id: job.id,
            payload: job.payload,
            timeout_ms: job.timeout_ms,
        }
    }
}
