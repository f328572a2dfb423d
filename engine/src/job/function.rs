//! Functions as jobs: arguments from JSON to the function's types, results back.

use super::request::Request;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::fmt::Display;

/// Why a job failed, as a result tells it: `{"type": ..., "message": ...}`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct JobFailure {
    /// What kind of failure: the name of the error's type.
    pub kind: String,
    /// In words.
    pub message: String,
}

impl JobFailure {
    /// A failure of this kind.
    pub fn new(kind: impl Into<String>, message: impl Into<String>) -> JobFailure {
        JobFailure {
            kind: kind.into(),
            message: message.into(),
        }
    }

    fn argument(message: String) -> JobFailure {
        JobFailure::new("ArgumentError", message)
    }

    /// Of what a function returned.
    fn of<E: Display>(error: &E) -> JobFailure {
        let name = std::any::type_name::<E>();
        let name = name.split('<').next().unwrap_or(name);
        let kind = match name.rsplit("::").next().unwrap_or(name) {
            // Text is no kind of error.
            "String" | "&str" | "str" => "Error",
            kind => kind,
        };
        JobFailure::new(kind, error.to_string())
    }
}

/// The arguments of one run, taken one after the other.
#[derive(Debug, Default)]
pub struct Arguments {
    args: std::vec::IntoIter<Value>,
    kwargs: Map<String, Value>,
    names: &'static [&'static str],
    taken: usize,
}

impl Arguments {
    /// From `args` and `kwargs` of a message.
    pub fn new(args: Vec<Value>, kwargs: Map<String, Value>) -> Arguments {
        Arguments {
            args: args.into_iter(),
            kwargs,
            names: &[],
            taken: 0,
        }
    }

    pub(super) fn name(&mut self, names: &'static [&'static str]) {
        self.names = names;
    }

    /// The next argument: by place, else by name.
    fn next<T: DeserializeOwned>(&mut self) -> Result<T, JobFailure> {
        let at = self.taken;
        self.taken += 1;
        let name = self.names.get(at).copied().unwrap_or_default();
        let shown = match name {
            "" => format!("argument {}", at + 1),
            name => format!("argument {} ({name})", at + 1),
        };
        let by_name = self.kwargs.remove(name);
        let value = match (self.args.next(), by_name) {
            (Some(_), Some(_)) => {
                return Err(JobFailure::argument(format!("{shown} is given twice")));
            }
            (Some(value), None) | (None, Some(value)) => value,
            (None, None) => return Err(JobFailure::argument(format!("{shown} is missing"))),
        };
        serde_json::from_value(value)
            .map_err(|error| JobFailure::argument(format!("{shown}: {error}")))
    }

    /// Nothing is left.
    fn end(mut self) -> Result<(), JobFailure> {
        if let Some(name) = self.kwargs.keys().next() {
            let name = crate::log_limit::shown_id(name.as_bytes());
            return Err(JobFailure::argument(format!("unknown argument {name}")));
        }
        if self.args.next().is_some() {
            let takes = self.taken;
            let given = takes + 1 + self.args.len();
            return Err(JobFailure::argument(format!(
                "{takes} arguments expected, {given} given"
            )));
        }
        Ok(())
    }
}

/// Function pointers that can be jobs: up to eight arguments, all types readable and writable by
/// serde, a `Result` with an error that can be displayed.
pub trait JobFunction {
    /// All arguments, a tuple.
    type Args;
    /// What a run that succeeds gives.
    type Output: Serialize + DeserializeOwned;

    /// Adds the arguments to a request.
    fn push_args(args: Self::Args, request: Request) -> Request;

    /// Calls the function.
    ///
    /// # Errors
    /// Arguments that do not fit, and what the function returns.
    fn invoke(&self, arguments: Arguments) -> Result<Self::Output, JobFailure>;
}

macro_rules! functions {
    ($($argument:ident)*) => {
        impl<$($argument,)* Output, Failure> JobFunction
            for fn($($argument),*) -> Result<Output, Failure>
        where
            $($argument: Serialize + DeserializeOwned,)*
            Output: Serialize + DeserializeOwned,
            Failure: Display,
        {
            type Args = ($($argument,)*);
            type Output = Output;

            #[allow(non_snake_case, clippy::unused_unit)]
            fn push_args(args: Self::Args, request: Request) -> Request {
                let ($($argument,)*) = args;
                request$(.arg($argument))*
            }

            #[allow(non_snake_case, unused_mut)]
            fn invoke(&self, mut arguments: Arguments) -> Result<Output, JobFailure> {
                $(let $argument = arguments.next()?;)*
                arguments.end()?;
                self($($argument),*).map_err(|error| JobFailure::of(&error))
            }
        }
    };
}

functions!();
functions!(A);
functions!(A B);
functions!(A B C);
functions!(A B C D);
functions!(A B C D E);
functions!(A B C D E F);
functions!(A B C D E F G);
functions!(A B C D E F G H);
