//! How much may be outstanding: who has more waits, or is told.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Messages and bytes that may be outstanding. One message always may.
#[derive(Debug)]
pub(super) struct Room {
    messages_max: usize,
    bytes_max: usize,
    used: Mutex<Used>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct Used {
    messages: usize,
    bytes: usize,
    waiting: usize,
}

/// A place for one message; its bytes and itself are given back in two steps.
#[derive(Debug)]
pub(super) struct Permit {
    room: Arc<Room>,
    bytes: usize,
}

impl Room {
    pub(super) fn new(messages_max: usize, bytes_max: usize) -> Arc<Room> {
        Arc::new(Room {
            messages_max,
            bytes_max,
            used: Mutex::default(),
            freed: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Used> {
        // Numbers are never left half changed.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fits(&self, used: &Used, bytes: usize) -> bool {
        used.messages == 0
            || (used.messages < self.messages_max
                && used.bytes.saturating_add(bytes) <= self.bytes_max)
    }

    /// A place, waiting up to `patience` for one.
    pub(super) fn take(self: &Arc<Room>, bytes: usize, patience: Duration) -> Option<Permit> {
        let mut used = self.lock();
        if !self.fits(&used, bytes) {
            if patience.is_zero() {
                return None;
            }
            let end = Instant::now() + patience;
            while !self.fits(&used, bytes) {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return None;
                }
                used.waiting += 1;
                let woken = self.freed.wait_timeout(used, left);
                used = woken.unwrap_or_else(PoisonError::into_inner).0;
                used.waiting -= 1;
            }
        }
        used.messages += 1;
        used.bytes += bytes;
        Some(Permit {
            room: Arc::clone(self),
            bytes,
        })
    }

    fn give_back(&self, messages: usize, bytes: usize) {
        let mut used = self.lock();
        used.messages -= messages;
        used.bytes -= bytes;
        let waiting = used.waiting > 0;
        drop(used);
        if waiting {
            self.freed.notify_all();
        }
    }
}

impl Permit {
    /// The bytes are not kept any more, but the message is still outstanding.
    pub(super) fn release_bytes(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.room.give_back(0, bytes);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.room.give_back(1, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_always_fits_and_others_wait_for_room() {
        let room = Room::new(2, 100);
        let now = Duration::ZERO;
        let mut large = room.take(1_000, now).unwrap();
        assert!(room.take(1, now).is_none());
        large.release_bytes();
        let small = room.take(100, now).unwrap();
        assert!(room.take(0, now).is_none(), "two messages");
        drop(large);
        assert!(room.take(1, now).is_none(), "101 bytes");
        let waiting = Arc::clone(&room);
        let thread = std::thread::spawn(move || {
            let permit = waiting.take(50, Duration::from_secs(60));
            permit.is_some()
        });
        drop(small);
        assert!(thread.join().unwrap());
        let used = room.lock();
        assert_eq!((used.messages, used.bytes, used.waiting), (0, 0, 0));
    }
}
