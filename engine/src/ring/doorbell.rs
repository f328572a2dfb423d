//! Waking the other side only when it sleeps.
//!
//! A wake-up costs a system call here and a scheduler latency there, so the sending side makes one
//! only when the receiver has announced its sleep. The race between "nothing there, I sleep" and
//! "I have put something in" is the classic store-buffer one, settled by a sequentially consistent
//! fence on each side: the sleeper's lies between its announcement and its last look at the
//! queues, the ringer's between its push and its look at the announcement. At least one of them
//! sees the other. `tests/loom` shows that it holds and that leaving out either fence loses a
//! wake-up.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Something that ends the sleep of the receiving thread, from any thread.
pub trait Wake: Send + Sync {
    /// Makes the current or the next sleep end. Must not block.
    fn wake(&self);
}

/// The sleep/wake protocol between one sleeper and any number of ringers.
pub struct Doorbell<W> {
    sleeping: AtomicBool,
    waker: W,
}

impl<W> std::fmt::Debug for Doorbell<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Doorbell")
            .field("sleeping", &self.sleeping)
            .finish_non_exhaustive()
    }
}

impl<W: Wake> Doorbell<W> {
    /// A doorbell that ends sleeps through `waker`.
    pub fn new(waker: W) -> Self {
        Doorbell {
            sleeping: AtomicBool::new(false),
            waker,
        }
    }

    /// Sleeper: announces the sleep. Look at every queue once more after this, then either sleep
    /// or call [`Doorbell::awake`].
    pub fn announce_sleep(&self) {
        // Pairs with the fence in `ring`.
        self.announce_sleep_with(|| fence(Ordering::SeqCst));
    }

    /// Sleeper: no longer asleep.
    pub fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// Ringer: call after putting something in. Wakes the sleeper if it has announced a sleep.
    /// True if it did.
    pub fn ring(&self) -> bool {
        // Pairs with the fence in `announce_sleep`.
        self.ring_with(|| fence(Ordering::SeqCst))
    }

    /// The waker itself, for wake-ups that must not be lost even if nobody sleeps.
    pub fn waker(&self) -> &W {
        &self.waker
    }

    /// [`Doorbell::announce_sleep`] with the fence as an argument, for the model.
    #[doc(hidden)]
    pub fn announce_sleep_with(&self, fence: impl FnOnce()) {
        self.sleeping.store(true, Ordering::Relaxed);
        fence();
    }

    /// [`Doorbell::ring`] with the fence as an argument, for the model.
    #[doc(hidden)]
    pub fn ring_with(&self, fence: impl FnOnce()) -> bool {
        fence();
        // The load keeps the flag's cache line shared while nobody sleeps; the swap lets only one
        // of several ringers pay for the system call.
        let asleep =
            self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed);
        if asleep {
            self.waker.wake();
        }
        asleep
    }
}
