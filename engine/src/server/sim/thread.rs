//! A thread of production as its neighbours see it: whether it sleeps, and what wakes it.

use crate::ring::{Doorbell, Wake};
use crate::server::control::Bell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A sleeper's alarm.
#[derive(Debug, Default)]
struct Alarm(AtomicBool);

struct AlarmWaker(Arc<Alarm>);

impl Wake for AlarmWaker {
    fn wake(&self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

fn alarm() -> (Arc<Alarm>, Arc<Bell>) {
    let alarm = Arc::new(Alarm::default());
    let waker: Box<dyn Wake> = Box::new(AlarmWaker(Arc::clone(&alarm)));
    (alarm, Arc::new(Doorbell::new(waker)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Awake,
    /// A turn has found nothing to do; the sleep is still to be announced.
    Drowsy,
    /// The sleep is announced; the last look is still to come.
    Announced,
    Asleep {
        until_ns: Option<u64>,
    },
}

/// A thread of production: its bell and whether it sleeps.
pub(super) struct Thread {
    alarm: Arc<Alarm>,
    pub(super) bell: Arc<Bell>,
    pub(super) state: State,
}

impl Thread {
    pub(super) fn new() -> Thread {
        let (alarm, bell) = alarm();
        Thread {
            alarm,
            bell,
            state: State::Awake,
        }
    }

    pub(super) fn is_runnable(&self, now_ns: u64) -> bool {
        match self.state {
            State::Awake | State::Drowsy | State::Announced => true,
            State::Asleep { until_ns } => {
                self.alarm.0.load(Ordering::Relaxed) || until_ns.is_some_and(|at| at <= now_ns)
            }
        }
    }

    pub(super) fn awake(&mut self) {
        self.alarm.0.store(false, Ordering::Relaxed);
        self.bell.awake();
    }

    pub(super) fn fall_asleep(&mut self, for_room: bool) {
        self.bell.announce_sleep(for_room);
        self.state = State::Announced;
    }
}
