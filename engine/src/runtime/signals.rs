//! SIGTERM, SIGINT and SIGHUP on a thread of their own.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use std::io;
use std::thread;

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Request {
    /// First SIGTERM or SIGINT: end in good order.
    Terminate,
    /// A further SIGTERM or SIGINT: end at once.
    TerminateNow,
    /// SIGHUP: read the settings again.
    Reload,
}

/// Stops watching when dropped; the signals are ignored then.
#[derive(Debug)]
pub struct SignalWatch {
    handle: Handle,
}

impl Drop for SignalWatch {
    fn drop(&mut self) {
        self.handle.close();
    }
}

/// Starts the thread; it calls `on_request` for each signal.
///
/// # Errors
/// If the handlers cannot be installed or the thread cannot be started.
pub fn watch(mut on_request: impl FnMut(Request) + Send + 'static) -> io::Result<SignalWatch> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let handle = signals.handle();
    thread::Builder::new()
        .name("emq-signals".to_owned())
        .spawn(move || {
            let mut terminating = false;
            for signal in signals.forever() {
                on_request(match signal {
                    SIGHUP => Request::Reload,
                    _ if terminating => Request::TerminateNow,
                    _ => {
                        terminating = true;
                        Request::Terminate
                    }
                });
            }
        })?;
    Ok(SignalWatch { handle })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn the_second_termination_is_at_once() {
        let (sender, requests) = mpsc::channel();
        let _watch = watch(move |request| sender.send(request).unwrap()).unwrap();
        for (signal, expected) in [
            (SIGHUP, Request::Reload),
            (SIGTERM, Request::Terminate),
            (SIGHUP, Request::Reload),
            (SIGINT, Request::TerminateNow),
            (SIGTERM, Request::TerminateNow),
        ] {
            signal_hook::low_level::raise(signal).unwrap();
            assert_eq!(requests.recv_timeout(Duration::from_secs(20)), Ok(expected));
        }
    }
}
