//! Jobs: how one is asked for ([`Request`]), and how one is declared once as a Rust function and
//! used by the client that asks for it and the job manager that runs it ([`Job`],
//! [`job!`](crate::job!)).
//!
//! Owns: the message of a REQUEST (protocol.md section 3) and its headers (section 4), arguments
//! from JSON. May import layers 0 to 2. Invariants: nothing here touches a socket; what a peer sent
//! never panics; the bytes are those of the client library of 0.3.13.

mod declare;
mod function;
mod request;

pub use declare::{AnyJob, Job};
pub use function::{Arguments, JobFailure, JobFunction};
pub use request::{BadRequest, DEFAULT_QUEUE, Request};

/// Declares a job: a function, and beside it the [`Job`] that both sides use.
///
/// ```
/// eventmq::job! {
///     /// Adds two numbers.
///     pub ADD in "tasks" = fn add(a: i64, b: i64) -> Result<i64, String> {
///         a.checked_add(b).ok_or_else(|| "too large".to_owned())
///     }
/// }
///
/// // The client's side: `client.call(ADD.with((1, 2)))`.
/// let request = ADD.with((1, 2)).queue("math");
/// assert_eq!(
///     request.message().unwrap(),
///     br#"["run", {"callable": "add", "path": "tasks", "args": [1, 2], "kwargs": {}, "class_args": [], "class_kwargs": {}}]"#
/// );
/// // It is still a function.
/// assert_eq!(add(1, 2), Ok(3));
/// ```
///
/// The function takes up to eight arguments that serde can read and write, and returns a `Result`
/// whose error can be displayed.
#[macro_export]
macro_rules! job {
    ($(
        $(#[$meta:meta])*
        $vis:vis $name:ident in $path:literal =
            fn $function:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty $body:block
    )*) => {
        $(
            $(#[$meta])*
            #[allow(clippy::type_complexity)]
            $vis const $name: $crate::job::Job<fn($($type),*) -> $result> =
                $crate::job::Job::new(
                    $path,
                    stringify!($function),
                    &[$(stringify!($argument)),*],
                    $function,
                );

            $(#[$meta])*
            $vis fn $function($($argument: $type),*) -> $result $body
        )*
    };
}

#[cfg(test)]
mod tests;
