//! Shared parts of the system tests: real peers and real processes around the broker.
//!
//! - [`process`]: children that end with their guard, also when the test panics
//! - [`publisher`]: an `emq-pubsub`, ours or the original
//! - [`router`]: an `emq-router`, ours or the original, on ports of its own
//! - [`manager`]: a job manager, ours or the original, and a client that counts ends of jobs
//! - [`peers`]: the virtual environment with the original Python package, or why it is missing
//! - [`dealer`]: libzmq DEALER sockets with deadlines
//! - [`raw`]: ZMTP spelled by hand over plain TCP, for bytes that libzmq would never send
//! - [`attack`]: what tests that attack the broker share
//! - [`redis`]: a Redis server with a folder and a port of its own
//! - [`scheduler`]: one of our schedulers
//! - [`scenario`]: the scenario files of `tests/scenarios` and what runs them
//!
//! Every wait for something that must happen has a deadline; what must *not* happen is asked for
//! behind a round trip that proves that the broker has taken what came before.

pub mod attack;
pub mod dealer;
pub mod manager;
pub mod peers;
pub mod process;
pub mod publisher;
pub mod raw;
pub mod redis;
pub mod router;
pub mod scenario;
pub mod scheduler;

use std::time::{Duration, Instant};

/// How long a thing that must happen may take on a busy machine before a test calls it missing.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Calls `probe` until it gives a value or `patience` is over.
///
/// # Panics
///
/// After `patience`, naming `what` and the last thing that `probe` said instead.
#[track_caller]
pub fn eventually<T>(
    what: &str,
    patience: Duration,
    mut probe: impl FnMut() -> Result<T, String>,
) -> T {
    let end = Instant::now() + patience;
    loop {
        match probe() {
            Ok(value) => return value,
            Err(last) if Instant::now() >= end => {
                panic!("not within {patience:?}: {what}; last: {last}")
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Makes of each function `fn name(target: Target)` a test for both threadings of our broker:
/// `inline::name` and `dedicated::name`.
#[macro_export]
macro_rules! in_both_threadings {
    ($($name:ident),* $(,)?) => {
        mod inline {
            $(
                #[test]
                fn $name() {
                    super::$name($crate::router::Target::Inline);
                }
            )*
        }
        mod dedicated {
            $(
                #[test]
                fn $name() {
                    super::$name($crate::router::Target::Dedicated);
                }
            )*
        }
    };
}
