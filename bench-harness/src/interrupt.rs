//! SIGINT and SIGTERM end a measurement in order: brokers that were started end with it, and a soak
//! gives its account of the time so far. A second signal ends the program at once.

use crate::failure::{Failure, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Exit status after a second signal, as shells have it for SIGINT.
const EXIT_CODE: i32 = 130;

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on the signals are noted instead of ending the program.
pub(crate) fn watch() -> Result<()> {
    let asked = ASKED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag unset.
        flag::register_conditional_shutdown(signal, EXIT_CODE, Arc::clone(asked))
            .and_then(|_| flag::register(signal, Arc::clone(asked)))
            .map_err(|error| Failure::run(format!("cannot watch for signals: {error}")))?;
    }
    Ok(())
}

/// True after a signal.
pub(crate) fn is_asked() -> bool {
    ASKED
        .get()
        .is_some_and(|asked| asked.load(Ordering::Relaxed))
}
