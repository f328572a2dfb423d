//! Functions of the program that embeds the job manager.

use super::super::call;
use super::super::outcome::Ending;
use super::super::pool::JobId;
use super::{Job, Order, Orders};
use crate::job::{AnyJob, Arguments};
use crossbeam::channel::{Receiver, Sender, unbounded};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What a function knows about its run.
#[derive(Debug, Clone)]
pub struct JobContext {
    /// Positional arguments.
    pub args: Vec<Value>,
    /// Arguments by name.
    pub kwargs: serde_json::Map<String, Value>,
    /// When its time is over. A function cannot be killed: one that may take long looks at this.
    pub deadline: Instant,
}

impl JobContext {
    /// True when the job has been answered as timed out.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }
}

/// Why a job of a registered function failed; becomes `error` in the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionError {
    /// A short name, as that of an exception.
    pub kind: String,
    /// One line.
    pub message: String,
}

impl FunctionError {
    /// An error of the given kind.
    pub fn new(kind: &str, message: impl fmt::Display) -> FunctionError {
        FunctionError {
            kind: kind.to_owned(),
            message: message.to_string(),
        }
    }
}

impl<E: std::error::Error> From<E> for FunctionError {
    fn from(error: E) -> FunctionError {
        let name = std::any::type_name::<E>();
        FunctionError::new(name.rsplit("::").next().unwrap_or(name), error)
    }
}

/// Returns the result as JSON.
type Function = Arc<dyn Fn(JobContext) -> Result<Vec<u8>, FunctionError> + Send + Sync>;

/// The functions that jobs may call, by path and callable.
///
/// ```
/// use eventmq::jobmanager::Functions;
///
/// let functions = Functions::new()
///     .register("sums", "add", |(a, b): (i64, i64)| Ok(a + b))
///     .register("sums", "half", |(n,): (i64,)| {
///         let half: i32 = (n / 2).try_into()?;
///         Ok(half)
///     });
/// assert_eq!(functions.len(), 2);
/// ```
///
/// A job that is declared by [`job!`](crate::job!) needs no names, and clients of it know its types:
///
/// ```
/// # use eventmq::jobmanager::Functions;
/// eventmq::job! {
///     DOUBLE in "sums" = fn double(n: i64) -> Result<i64, String> { Ok(2 * n) }
/// }
/// assert_eq!(Functions::new().job(DOUBLE).len(), 1);
/// assert_eq!(DOUBLE.with((21,)).queue_name(), "default");
/// ```
#[derive(Clone, Default)]
pub struct Functions {
    by_name: HashMap<(String, String), Function>,
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_name.keys()).finish()
    }
}

impl Functions {
    /// None yet.
    pub fn new() -> Functions {
        Functions::default()
    }

    /// Adds a function that takes the positional arguments as a tuple (or as any type serde reads
    /// from a list), `()` if there are none. Jobs with other arguments, or with arguments by name, fail.
    #[must_use]
    pub fn register<A, R>(
        self,
        path: &str,
        callable: &str,
        function: impl Fn(A) -> Result<R, FunctionError> + Send + Sync + 'static,
    ) -> Functions
    where
        A: DeserializeOwned,
        R: Serialize,
    {
        self.register_raw(path, callable, move |context| {
            if let Some(name) = context.kwargs.keys().next() {
                let message = format!("unexpected argument by name: {name}");
                return Err(FunctionError::new("ArgumentError", message));
            }
            // Serde reads `()` from null only, not from a list of nothing.
            let none = context.args.is_empty();
            let args = serde_json::from_value(Value::from(context.args))
                .or_else(|error| {
                    let unit = none.then(|| serde_json::from_value(Value::Null).ok());
                    unit.flatten().ok_or(error)
                })
                .map_err(|error| FunctionError::new("ArgumentError", error))?;
            let result = function(args)?;
            serde_json::to_value(result).map_err(|error| FunctionError::new("ResultError", error))
        })
    }

    /// Adds a function that reads its arguments itself. A later one with the same name replaces
    /// an earlier one.
    #[must_use]
    pub fn register_raw(
        mut self,
        path: &str,
        callable: &str,
        function: impl Fn(JobContext) -> Result<Value, FunctionError> + Send + Sync + 'static,
    ) -> Functions {
        let name = (path.to_owned(), callable.to_owned());
        let function = move |context| Ok(function(context)?.to_string().into_bytes());
        self.by_name.insert(name, Arc::new(function));
        self
    }

    /// Adds a job declared by [`job!`](crate::job!). Arguments come by place or by name; an error of
    /// its function becomes `error` in the result, with the name of its type.
    #[must_use]
    pub fn job(mut self, job: impl AnyJob + 'static) -> Functions {
        let name = (job.path().to_owned(), job.callable().to_owned());
        let function = move |context: JobContext| {
            job.run(Arguments::new(context.args, context.kwargs))
                .map_err(|failure| FunctionError::new(&failure.kind, failure.message))
        };
        self.by_name.insert(name, Arc::new(function));
        self
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    fn find(&self, path: &str, callable: &str) -> Option<Function> {
        // The key is a pair of owned texts; a lookup is nothing next to a job.
        self.by_name
            .get(&(path.to_owned(), callable.to_owned()))
            .cloned()
    }
}

/// The threads that run functions.
pub(super) struct FunctionThreads {
    functions: Functions,
    sender: Sender<(Job, Function)>,
    receiver: Receiver<(Job, Function)>,
    orders: Orders,
    /// Threads that wait for work or run it.
    threads: Arc<AtomicUsize>,
    /// Jobs that were given up while their function ran on.
    abandoned: usize,
    slots: usize,
    /// Deadlines of running jobs, and their times in milliseconds.
    running: HashMap<JobId, (Instant, u64)>,
}

impl FunctionThreads {
    pub(super) fn new(functions: Functions, slots: usize, orders: Orders) -> FunctionThreads {
        let (sender, receiver) = unbounded();
        FunctionThreads {
            functions,
            sender,
            receiver,
            orders,
            threads: Arc::default(),
            abandoned: 0,
            slots,
            running: HashMap::new(),
        }
    }

    /// True if this program has such a function.
    pub(super) fn has(&self, path: &str, callable: &str) -> bool {
        self.functions.find(path, callable).is_some()
    }

    /// True if there is any.
    pub(super) fn any(&self) -> bool {
        !self.functions.is_empty()
    }

    /// Runs a job on a thread.
    pub(super) fn run(&mut self, path: &str, callable: &str, job: Job) -> Result<(), Ending> {
        let Some(function) = self.functions.find(path, callable) else {
            let message = format!("no function {callable} is registered under {path}");
            return Err(Ending::failure("NotRegistered", &message, ""));
        };
        let busy = self.running.len() + self.abandoned;
        if busy >= self.threads.load(Ordering::SeqCst) {
            if busy >= 2 * self.slots {
                let message = "all threads are held by functions that ran out of time";
                return Err(Ending::failure("NoThread", message, ""));
            }
            self.add_thread()
                .map_err(|error| Ending::failure("NoThread", &error.to_string(), ""))?;
        }
        let deadline = Instant::now()
            .checked_add(Duration::from_millis(job.timeout_ms))
            .unwrap_or_else(|| Instant::now() + Duration::from_secs(365 * 86_400));
        self.running.insert(job.id, (deadline, job.timeout_ms));
        // The receiver is ours: it is there.
        let _ = self.sender.send((job, function));
        Ok(())
    }

    /// A function came back; false if its job had been given up.
    pub(super) fn ended(&mut self, id: JobId) -> bool {
        let known = self.running.remove(&id).is_some();
        if !known {
            self.abandoned -= 1;
        }
        known
    }

    /// The next deadline.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.running.values().map(|(deadline, _)| *deadline).min()
    }

    /// The jobs whose time is over, and how they end; their functions are left alone.
    pub(super) fn expired(&mut self, now: Instant) -> Vec<(JobId, Ending)> {
        let late: Vec<(JobId, Ending)> = self
            .running
            .iter()
            .filter(|(_, (deadline, _))| *deadline <= now)
            .map(|(id, (_, after_ms))| {
                let after_ms = *after_ms;
                (*id, Ending::TimedOut { after_ms })
            })
            .collect();
        for (id, _) in &late {
            self.running.remove(id);
        }
        self.abandoned += late.len();
        late
    }

    /// All jobs: the job manager ends now.
    pub(super) fn give_up_all(&mut self) -> Vec<JobId> {
        self.abandoned += self.running.len();
        self.running.drain().map(|(id, _)| id).collect()
    }

    /// True if no job is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    fn add_thread(&self) -> std::io::Result<()> {
        let (receiver, orders) = (self.receiver.clone(), self.orders.clone());
        let threads = Arc::clone(&self.threads);
        threads.fetch_add(1, Ordering::SeqCst);
        let spawned = std::thread::Builder::new()
            .name("emq-function".to_owned())
            .spawn(move || {
                for (job, function) in receiver {
                    let ending = run(&job, &function);
                    orders.give(Order::FunctionEnded(job.id, ending));
                }
            });
        if spawned.is_err() {
            self.threads.fetch_sub(1, Ordering::SeqCst);
        }
        spawned.map(drop)
    }
}

fn run(job: &Job, function: &Function) -> Ending {
    let arguments = match call::arguments(&job.payload) {
        Ok(arguments) => arguments,
        Err(message) => return Ending::failure("MessageError", &message, ""),
    };
    let context = JobContext {
        args: arguments.args,
        kwargs: arguments.kwargs,
        deadline: Instant::now() + Duration::from_millis(job.timeout_ms.min(1 << 40)),
    };
    // A function that panics has broken its own job only; what it shares it answers for itself.
    match std::panic::catch_unwind(AssertUnwindSafe(|| function(context))) {
        Ok(Ok(value)) => value_of(&value),
        Ok(Err(error)) => Ending::failure(&error.kind, &error.message, ""),
        Err(panic) => {
            let message = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "no message".to_owned());
            Ending::failure("Panic", &message, "")
        }
    }
}

fn value_of(json: &[u8]) -> Ending {
    let result = [&br#"{"value": "#[..], json, b"}"].concat();
    match result.len() {
        len if len > super::processes::RESULT_BYTES_MAX => {
            let message = format!("the result has {len} bytes as JSON");
            Ending::failure("ResultTooLarge", &message, "")
        }
        _ => Ending::Value(result),
    }
}
