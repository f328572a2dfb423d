//! Wakes a thread at a time that is finer than the whole milliseconds of polling.

use crate::failure::{Failure, Result};
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io;

/// A timer that a poll waits for. Each time it is set anew makes one event, which needs no reading.
#[derive(Debug)]
pub(super) struct Timer {
    fd: OwnedFd,
    /// In the generator's time, what it is set to.
    due_ns: Option<u64>,
}

impl Timer {
    pub(super) fn new(registry: &Registry, token: Token) -> Result<Self> {
        let make = || -> io::Result<OwnedFd> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
            registry.register(&mut SourceFd(&fd.as_raw_fd()), token, Interest::READABLE)?;
            Ok(fd)
        };
        let fd = make().map_err(|error| Failure::run(format!("cannot make a timer: {error}")))?;
        Ok(Timer { fd, due_ns: None })
    }

    /// Makes the poll return at `due_ns`, unless it does already.
    pub(super) fn set(&mut self, due_ns: u64, now_ns: u64) -> Result<()> {
        if self.due_ns == Some(due_ns) {
            return Ok(());
        }
        // Zero would mean never.
        let left_ns = due_ns.saturating_sub(now_ns).max(1);
        let time = |ns: u64| Timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        };
        let once = Itimerspec {
            it_interval: time(0),
            it_value: time(left_ns),
        };
        timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &once)
            .map_err(|error| Failure::run(format!("cannot set a timer: {error}")))?;
        self.due_ns = Some(due_ns);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::{Events, Poll};
    use std::time::{Duration, Instant};

    #[test]
    fn poll_wakes_each_time_it_is_set() {
        let mut poll = Poll::new().unwrap();
        let mut timer = Timer::new(poll.registry(), Token(3)).unwrap();
        let mut events = Events::with_capacity(4);
        let start = Instant::now();
        let now_ns = || start.elapsed().as_nanos() as u64;
        for due_ns in [300_000, 700_000, 0] {
            timer.set(due_ns, now_ns()).unwrap();
            let patience = Some(Duration::from_secs(20));
            poll.poll(&mut events, patience).unwrap();
            assert_eq!(events.iter().next().unwrap().token(), Token(3));
            assert!(now_ns() >= due_ns);
        }
    }
}
