//! The doorbell of `eventmq::ring`, compiled on loom's atomics and driven through every
//! interleaving. The queue is a stand-in: a counter that is added to and read with the orderings
//! of a real queue (release on push, acquire on look), which is all the doorbell may rely on.
#![cfg(test)]
#![allow(
    unreachable_pub,
    dead_code,
    reason = "the doorbell is public and used where it belongs"
)]

#[path = "../../../engine/src/ring/doorbell.rs"]
mod doorbell;

use doorbell::{Doorbell, Wake};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(&self) {
        self.0.unpark();
    }
}

/// One sleeper, `ringers` threads that each put one thing in and ring. Loom fails the model when
/// the sleeper sleeps for ever.
fn model(ringers: usize, sleeper_fence: bool, ringer_fence: bool) {
    model_of(ringers, sleeper_fence, ringer_fence, false);
}

/// `for_room`: the sleeper waits for room, and the last ringer gives a batch back.
fn model_of(ringers: usize, sleeper_fence: bool, ringer_fence: bool, for_room: bool) {
    let mut builder = loom::model::Builder::new();
    // With two ringers every interleaving takes hours; three preemptions find what there is.
    builder.preemption_bound = (ringers > 1).then_some(3);
    builder.check(move || {
        let queue = Arc::new(AtomicUsize::new(0));
        let bell = Arc::new(Doorbell::new(Unpark(thread::current())));
        let threads: Vec<_> = (0..ringers)
            .map(|n| {
                let gives_back = for_room && n + 1 == ringers;
                let (queue, bell) = (Arc::clone(&queue), Arc::clone(&bell));
                thread::spawn(move || {
                    queue.fetch_add(1, Ordering::Release);
                    match (ringer_fence, gives_back) {
                        (true, false) => bell.ring(),
                        (true, true) => bell.ring_for_room(),
                        (false, false) => bell.ring_with(1, || ()),
                        (false, true) => bell.ring_with(2, || ()),
                    };
                })
            })
            .collect();
        while queue.load(Ordering::Acquire) < ringers {
            if sleeper_fence {
                bell.announce_sleep(for_room);
            } else {
                bell.announce_sleep_with(for_room, || ());
            }
            if queue.load(Ordering::Acquire) < ringers {
                thread::park();
            }
            bell.awake();
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn no_wake_up_is_lost() {
    model(1, true, true);
}

#[test]
fn no_wake_up_is_lost_between_two_ringers() {
    model(2, true, true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_sleepers_fence_one_is_lost() {
    model(1, false, true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_ringers_fence_one_is_lost() {
    model(1, true, false);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_any_fence_one_is_lost() {
    model(1, false, false);
}

#[test]
fn who_waits_for_room_is_woken_by_room_and_by_input() {
    model_of(1, true, true, true);
    model_of(2, true, true, true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_sleepers_fence_room_goes_unnoticed() {
    model_of(1, false, true, true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_ringers_fence_room_goes_unnoticed() {
    model_of(1, true, false, true);
}
