//! A job declared as a function.

use super::function::{Arguments, JobFailure, JobFunction};
use super::request::Request;
use crate::json;
use std::fmt;

/// A function with the names under which clients of any language ask for it.
///
/// `F` is a function pointer: `Job<fn(i64, i64) -> Result<i64, String>>`. A constant made by
/// [`job!`](crate::job!) or [`Job::new`] is used on both sides.
#[derive(Clone, Copy)]
pub struct Job<F> {
    path: &'static str,
    callable: &'static str,
    parameters: &'static [&'static str],
    function: F,
}

impl<F> fmt::Debug for Job<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Job({}.{})", self.path, self.callable)
    }
}

impl<F: Copy> Job<F> {
    /// A job that clients know as `callable` in `path`, with the names of its parameters, by which
    /// keyword arguments find their place.
    pub const fn new(
        path: &'static str,
        callable: &'static str,
        parameters: &'static [&'static str],
        function: F,
    ) -> Self {
        Job {
            path,
            callable,
            parameters,
            function,
        }
    }

    /// The module, for those who think in Python.
    pub const fn path(&self) -> &'static str {
        self.path
    }

    /// The name in it.
    pub const fn callable(&self) -> &'static str {
        self.callable
    }

    /// The function itself.
    pub const fn function(&self) -> F {
        self.function
    }
}

impl<F: JobFunction + Copy> Job<F> {
    /// A request for this job with these arguments (a tuple), which knows the type of the result.
    pub fn with(&self, args: F::Args) -> Request<F::Output> {
        F::push_args(args, Request::new_at(self.path, self.callable)).returns()
    }
}

/// A declared job whose types do not matter any more: what a job manager keeps.
pub trait AnyJob: Send + Sync {
    /// The path under which clients ask for it.
    fn path(&self) -> &str;

    /// The callable under which clients ask for it.
    fn callable(&self) -> &str;

    /// Runs it and gives its result as JSON.
    ///
    /// # Errors
    /// [`JobFailure`]: arguments that do not fit, what the function returned, or a result that is
    /// not JSON. (A panic of the function goes through.)
    fn run(&self, arguments: Arguments) -> Result<Vec<u8>, JobFailure>;
}

impl<F: JobFunction + Copy + Send + Sync> AnyJob for Job<F> {
    fn path(&self) -> &str {
        self.path
    }

    fn callable(&self) -> &str {
        self.callable
    }

    fn run(&self, mut arguments: Arguments) -> Result<Vec<u8>, JobFailure> {
        arguments.name(self.parameters);
        let output = self.function.invoke(arguments)?;
        let mut out = Vec::new();
        json::push(&mut out, &output)
            .map_err(|error| JobFailure::new("ResultError", error.to_string()))?;
        Ok(out)
    }
}
