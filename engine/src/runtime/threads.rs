//! Threads of agents, and the system's randomness.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::thread::{self, JoinHandle};

/// Ends the process when an agent's thread panics: a process with a dead thread would look alive
/// and do nothing.
struct ExitOnPanic;

impl Drop for ExitOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::exit(1);
        }
    }
}

/// Starts the thread of an agent. A panic in it ends the process.
///
/// # Errors
/// When the system refuses the thread.
pub fn agent_thread<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _guard = ExitOnPanic;
        run()
    })
}

/// Random numbers of this process: the standard library's hash keys come from the system.
pub fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}
