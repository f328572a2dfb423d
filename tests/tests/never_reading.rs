//! Peers that ask for answers and never read them: they cost a bounded buffer and nobody else
//! anything.

use eventmq_tests::attack::{Good, LEFT_OVER, doors, memory_comes_back, start};
use eventmq_tests::raw::{self, RawDealer};
use eventmq_tests::router::{Router, Target};
use eventmq_tests::{PATIENCE, in_both_threadings};
use std::io::{ErrorKind, Write};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

in_both_threadings!(
    pings_without_end,
    registrations_without_end,
    requests_for_status_without_end,
);

/// What is written at most: far more than the buffers of the kernel take.
const FLOOD_BYTES: usize = 64 << 20;

/// Writes `unit` again and again to the socket and reads nothing, until the broker takes no more of
/// it. Returns the peer and how often it wrote.
fn flood(router: &mut Router, good: &mut Good, door: usize, unit: &[u8]) -> (RawDealer, usize) {
    let before = router.process().resident_bytes();
    let mut peer = RawDealer::connect(&doors(router)[door], &[]).expect("connects");
    let many = unit.repeat(64 * 1024 / unit.len() + 1);
    let stream = peer.stream();
    stream
        .set_write_timeout(Some(Duration::from_millis(500)))
        .expect("a time-out");
    let mut written = 0;
    while written < FLOOD_BYTES {
        match stream.write(&many[written % unit.len()..]) {
            Ok(n) => written += n,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
            Err(e) => panic!("{e}"),
        }
    }
    good.works();
    let now = router.process().resident_bytes();
    assert!(
        now < before + LEFT_OVER,
        "{} MiB, then {} MiB behind {written} bytes",
        before >> 20,
        now >> 20
    );
    (peer, written / unit.len())
}

/// Who floods is not read any more, and memory comes back when it has gone.
fn flood_each(
    target: Target,
    doors: Range<usize>,
    unit: &[u8],
    check: impl Fn(&mut RawDealer, usize),
) {
    let mut router = start(target, &[]);
    let mut good = Good::new(&router);
    let before = router.process().resident_bytes();
    for door in doors {
        let (mut peer, count) = flood(&mut router, &mut good, door, unit);
        assert!(
            count * unit.len() < FLOOD_BYTES,
            "the broker has taken it all"
        );
        check(&mut peer, count);
    }
    good.works();
    memory_comes_back(&mut router, before);
}

fn pings_without_end(target: Target) {
    let ping = raw::command(b"\x04PING\0\x0a0123456789abcdef");
    // Who begins to read gets the answers to all it asked.
    flood_each(target, 0..3, &ping, |peer, count| {
        for n in 0..count {
            let (flags, body) = peer.read_frame().expect("a PONG");
            let is_pong = flags & 4 != 0 && body.starts_with(b"\x04PONG");
            assert!(is_pong, "at {n} of {count}");
        }
    });
}

fn registrations_without_end(target: Target) {
    let inform = raw::emqp(&["INFORM", "i", r#"[[1, "q"]]"#, "worker"]);
    flood_each(target, 1..2, &inform, |_, _| {});
}

/// Answers that cannot be made in time are dropped, those of the one who floods first.
fn requests_for_status_without_end(target: Target) {
    let mut router = start(target, &[]);
    let mut good = Good::new(&router);
    let before = router.process().resident_bytes();
    let admin = doors(&router)[2].clone();
    let flooding = AtomicBool::new(true);
    thread::scope(|scope| {
        scope.spawn(|| {
            while flooding.load(Ordering::Relaxed) {
                flood(&mut router, &mut good, 2, &raw::emqp(&["STATUS", "s"]));
            }
        });
        // Ends the flood even if the assertions fail.
        let _stop = OnDrop(&flooding);
        let mut other = RawDealer::connect(&admin, &[]).expect("connects");
        for n in 0..100 {
            other.send(&["COUNTERS", "c"]).expect("sends");
            let answer = other.receive(PATIENCE).expect("an answer");
            assert_eq!(answer[2], b"REPLY", "at {n}");
        }
    });
    memory_comes_back(&mut router, before);
}

struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
