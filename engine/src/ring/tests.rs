use super::*;
use crate::frames::{Message, OwnedMessage};
use crate::limits::SHARED_BYTES_MIN;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

fn message(n: usize, len: usize) -> OwnedMessage {
    OwnedMessage::from_frames([n.to_le_bytes().to_vec(), vec![n as u8; len]])
}

fn check(message: &Message<'_>, n: usize, len: usize) {
    assert_eq!(message.get(0).unwrap(), n.to_le_bytes());
    assert_eq!(message.get(1).unwrap().len(), len);
    assert!(message.get(1).unwrap().iter().all(|b| *b == n as u8));
}

#[test]
fn batches_run_out_and_come_back() {
    let config = RingConfig {
        batches: 2,
        bytes_max: usize::MAX,
        ..RingConfig::default()
    };
    let (mut sender, mut receiver) = ring::<Place>(config);
    let mut sent = 0;
    while let Some(batch) = sender.open() {
        let place = batch.put_message(&message(sent, 1000).view(), true);
        batch.push(place);
        sent += 1;
    }
    assert!(sent > 100, "two batches hold {sent}");
    assert!(!sender.has_room());
    let mut seen = 0;
    sender.flush();
    while let Some(mut batch) = receiver.take() {
        let place = batch.next_event().unwrap();
        check(&batch.message(place), seen, 1000);
        receiver.put(batch);
        seen += 1;
    }
    assert_eq!(seen, sent);
    assert!(sender.has_room());
    assert_eq!(sender.bytes_under_way(), 0);
}

#[test]
fn large_messages_go_by_reference_and_count() {
    let config = RingConfig {
        batches: 8,
        bytes_max: 4 * SHARED_BYTES_MIN,
        ..RingConfig::default()
    };
    let (mut sender, mut receiver) = ring::<Place>(config);
    let large = message(3, 2 * SHARED_BYTES_MIN);
    let shared = Arc::new(large.view().wire().to_vec());
    let spans = large.view().spans().to_vec();
    let mut sent = 0;
    while let Some(batch) = sender.open() {
        let place = batch.put_message(&Message::from_shared(&shared, &spans), true);
        batch.push(place);
        sent += 1;
    }
    assert!(sent < 8, "bytes are bounded before batches are: {sent}");
    assert_eq!(Arc::strong_count(&shared), 1 + sent);
    sender.flush();
    while let Some(mut batch) = receiver.take() {
        let place = batch.next_event().unwrap();
        assert!(batch.message(place).shared().is_some());
        receiver.put(batch);
    }
    assert_eq!(Arc::strong_count(&shared), 1);
}

#[test]
fn the_spare_takes_what_has_no_room() {
    let (mut sender, mut receiver) = ring::<u32>(RingConfig {
        batches: 1,
        bytes_max: 1 << 20,
        ..RingConfig::default()
    });
    let mut sent = 0;
    for _ in 0..5 {
        while sender.has_room() {
            sender.open().unwrap().push(sent);
            sent += 1;
        }
        sender.flush();
        sender.open_over().push(sent);
        sent += 1;
        sender.flush();
        sender.open_over().push(sent);
        sent += 1;
    }
    let mut seen = 0;
    while seen < sent {
        sender.flush();
        let mut batch = receiver.take().expect("all that was put in arrives");
        while let Some(n) = batch.next_event() {
            assert_eq!(n, seen);
            seen += 1;
        }
        receiver.put(batch);
    }
    assert!(receiver.is_empty() && sender.is_idle());
}

#[test]
fn an_event_can_be_put_back() {
    let (mut sender, mut receiver) = ring::<u32>(RingConfig::default());
    for n in 0..3 {
        sender.open().unwrap().push(n);
    }
    sender.flush();
    let mut batch = receiver.take().unwrap();
    assert_eq!(batch.next_event(), Some(0));
    assert_eq!(batch.next_event(), Some(1));
    batch.untake();
    receiver.put(batch);
    let mut batch = receiver.take().unwrap();
    assert_eq!((batch.next_event(), batch.next_event()), (Some(1), Some(2)));
    assert_eq!(batch.next_event(), None);
}

struct Unpark {
    thread: thread::Thread,
    wakes: AtomicUsize,
}

impl Wake for Arc<Unpark> {
    fn wake(&self) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
        self.thread.unpark();
    }
}

/// Two threads, tiny ring, a sleep at every chance: every event arrives in order, and no wake-up
/// is lost (a lost one would end in the time-out of the park, which fails the test).
#[test]
fn nothing_is_lost_between_sleeping_threads() {
    const EVENTS: u64 = 200_000;
    let (mut sender, mut receiver) = ring::<u64>(RingConfig {
        batches: 3,
        bytes_max: 1 << 20,
        ..RingConfig::default()
    });
    let (bell_out, bell_in) = std::sync::mpsc::channel();
    let consumer = thread::spawn(move || {
        let waker = Arc::new(Unpark {
            thread: thread::current(),
            wakes: AtomicUsize::new(0),
        });
        let bell = Arc::new(Doorbell::new(waker));
        bell_out.send(Arc::clone(&bell)).unwrap();
        let mut expected = 0;
        while expected < EVENTS {
            match receiver.take() {
                Some(mut batch) => {
                    while let Some(n) = batch.next_event() {
                        assert_eq!(n, expected);
                        expected += 1;
                    }
                    receiver.put(batch);
                }
                None => {
                    bell.announce_sleep(false);
                    if receiver.is_empty() {
                        let before = std::time::Instant::now();
                        thread::park_timeout(Duration::from_secs(20));
                        assert!(before.elapsed() < Duration::from_secs(20), "lost wake-up");
                    }
                    bell.awake();
                }
            }
        }
    });
    let bell = bell_in.recv().unwrap();
    let mut n = 0;
    while n < EVENTS {
        match sender.open() {
            Some(batch) => {
                batch.push(n);
                n += 1;
                if n % 7 == 0 && sender.flush() {
                    bell.ring();
                }
            }
            None => {
                bell.ring();
                thread::yield_now();
            }
        }
    }
    sender.flush();
    bell.ring();
    consumer.join().unwrap();
}

#[test]
fn a_batch_that_leaves_before_the_flush_is_told_of_by_it() {
    let (mut sender, mut receiver) = ring::<u32>(RingConfig {
        batches: 1,
        batch_events: 1,
        ..RingConfig::default()
    });
    let mut take = || {
        let mut batch = receiver.take().unwrap();
        let event = batch.next_event();
        receiver.put(batch);
        event
    };
    sender.open().unwrap().push(0);
    assert!(sender.flush());
    sender.open_over().push(1);
    assert_eq!(take(), Some(0));
    // The spare leaves for the batch that has come back, which has to wait for the spare.
    sender.open_over().push(2);
    assert!(!sender.can_flush());
    assert!(sender.flush(), "the receiver may sleep");
    assert!(!sender.flush());
    assert_eq!(take(), Some(1));
    assert!(sender.flush());
    assert_eq!(take(), Some(2));
}
