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
use loom::sync::atomic::{AtomicU8, Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU8, Ordering, fence};

const AWAKE: u8 = 0;
/// Sleeps until there is something to take.
const ASLEEP: u8 = 1;
/// Sleeps until there is something to take, or room for what it has.
const ASLEEP_FOR_ROOM: u8 = 2;

/// Something that ends the sleep of the receiving thread, from any thread.
pub trait Wake: Send + Sync {
    /// Makes the current or the next sleep end. Must not block.
    fn wake(&self);
}

/// The sleep/wake protocol between one sleeper and any number of ringers.
pub struct Doorbell<W> {
    state: AtomicU8,
    waker: W,
}

impl<W> std::fmt::Debug for Doorbell<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Doorbell")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl<W: Wake> Doorbell<W> {
    /// A doorbell that ends sleeps through `waker`.
    pub fn new(waker: W) -> Self {
        Doorbell {
            state: AtomicU8::new(AWAKE),
            waker,
        }
    }

    /// Sleeper: announces the sleep; `for_room` if it also waits for room in a ring it sends into.
    /// Look at every queue once more after this, then either sleep or call [`Doorbell::awake`].
    pub fn announce_sleep(&self, for_room: bool) {
        // Pairs with the fence in `ring` and `ring_for_room`.
        self.announce_sleep_with(for_room, || fence(Ordering::SeqCst));
    }

    /// Sleeper: no longer asleep.
    pub fn awake(&self) {
        self.state.store(AWAKE, Ordering::Relaxed);
    }

    /// Ringer: call after putting something in. Wakes the sleeper if it has announced a sleep.
    /// True if it did.
    pub fn ring(&self) -> bool {
        // Pairs with the fence in `announce_sleep`.
        self.ring_with(ASLEEP, || fence(Ordering::SeqCst))
    }

    /// Ringer: call after making room, that is giving a batch back. Wakes the sleeper only if it
    /// waits for room: most sleepers have nothing to send, and a wake-up is dear.
    pub fn ring_for_room(&self) -> bool {
        // Pairs with the fence in `announce_sleep`.
        self.ring_with(ASLEEP_FOR_ROOM, || fence(Ordering::SeqCst))
    }

    /// The waker itself, for wake-ups that must not be lost even if nobody sleeps.
    pub fn waker(&self) -> &W {
        &self.waker
    }

    /// [`Doorbell::announce_sleep`] with the fence as an argument, for the model.
    #[doc(hidden)]
    pub fn announce_sleep_with(&self, for_room: bool, fence: impl FnOnce()) {
        let state = if for_room { ASLEEP_FOR_ROOM } else { ASLEEP };
        self.state.store(state, Ordering::Relaxed);
        fence();
    }

    /// [`Doorbell::ring`] with the fence as an argument, for the model. Wakes a sleeper whose
    /// state is `least` or more.
    #[doc(hidden)]
    pub fn ring_with(&self, least: u8, fence: impl FnOnce()) -> bool {
        fence();
        // The load keeps the flag's cache line shared while nobody sleeps; the swap lets only one
        // of several ringers pay for the system call.
        let asleep = self.state.load(Ordering::Relaxed) >= least
            && self.state.swap(AWAKE, Ordering::Relaxed) != AWAKE;
        if asleep {
            self.waker.wake();
        }
        asleep
    }
}
