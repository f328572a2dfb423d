//! A mutation fuzzer for the ZMTP peer that runs on stable Rust and repeats by seed.
//!
//! Streams made by the builders are mutated and spliced. Each mutant is fed at once, byte by byte,
//! and in random pieces, and the three runs must agree; what `Peer::poll` promises is checked on
//! every call.
//!
//! `EMQ_FUZZ_ITERS` (default 3000) and `EMQ_FUZZ_SEED` (default 1) choose how long and what; a
//! failure prints the seed, the iteration and the bytes. `EMQ_FUZZ_SEED=time` takes the clock.

use eventmq::frames::{FrameSpan, OwnedMessage, split_wire};
use eventmq::limits::{COMMAND_BYTES_MAX, INNER_COMMAND_BYTES_MAX};
use eventmq::zmtp::{
    Error, Event, Limits, Mechanism, Peer, PeerConfig, Role, SocketType, greeting, push_error,
    push_ping, push_pong, push_subscription, ready_command,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const LIMITS: Limits = Limits {
    frame_bytes_max: 1000,
    message_bytes_max: 3000,
    discard_bytes_max: 9000,
    frames_max: 10,
};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// 0..n, or 0 if `n` is 0.
    fn below(&mut self, n: usize) -> usize {
        if n == 0 {
            0
        } else {
            (self.next() % n as u64) as usize
        }
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// What a run must agree on, however the bytes are cut.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    /// Events other than Command (their number depends on the cuts while discarding).
    events: Vec<String>,
    out: Vec<u8>,
    pings: u32,
    end: Option<&'static str>,
}

fn run(config: &Arc<PeerConfig>, bytes: &[u8], mut piece: impl FnMut() -> usize) -> Outcome {
    let (mut buf, mut out, mut spans) = (Vec::new(), Vec::new(), Vec::new());
    let mut peer = Peer::new(config, &mut out);
    let (mut events, mut end, mut rest) = (Vec::new(), None, bytes);
    'all: while !rest.is_empty() {
        let (now, later) = rest.split_at(piece().clamp(1, rest.len()));
        buf.extend_from_slice(now);
        rest = later;
        loop {
            match step(&mut peer, &mut buf, &mut spans, &mut out, &mut events) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    end = Some(kind(&error));
                    assert_eq!(error.to_string().find(char::is_control), None);
                    break 'all;
                }
            }
        }
        let most = LIMITS.message_bytes_max + INNER_COMMAND_BYTES_MAX + COMMAND_BYTES_MAX;
        assert!(buf.len() <= most, "{} bytes are kept", buf.len());
        assert!(!peer.is_discarding() || buf.len() <= COMMAND_BYTES_MAX + 9);
    }
    assert!(out.len() <= 64 + config_ready_len() + bytes.len() + 300);
    Outcome {
        events,
        out,
        pings: peer.pings_answered(),
        end,
    }
}

/// One call of poll; false when more bytes are needed.
fn step(
    peer: &mut Peer,
    buf: &mut Vec<u8>,
    spans: &mut Vec<FrameSpan>,
    out: &mut Vec<u8>,
    events: &mut Vec<String>,
) -> Result<bool, Error> {
    let len = buf.len();
    let before = buf.clone();
    let (consumed, event) = match peer.poll(buf, spans, out)? {
        Event::NeedMore { at_least } => {
            assert!(at_least > len && *buf == before);
            return Ok(false);
        }
        Event::Ready { consumed, metadata } => {
            assert!(peer.is_ready());
            assert!(
                metadata
                    .routing_id
                    .as_ref()
                    .is_none_or(|id| matches!(id.len(), 1..256))
            );
            (consumed, Some(format!("ready {metadata:?}")))
        }
        Event::Message { wire_len, consumed } => {
            let mut again = Vec::new();
            assert_eq!(split_wire(&buf[..wire_len], &mut again), Some(wire_len));
            assert_eq!(again, *spans);
            assert!(wire_len <= LIMITS.message_bytes_max && spans.len() <= LIMITS.frames_max);
            (consumed, Some(format!("message {:?}", &buf[..wire_len])))
        }
        Event::TooLarge { consumed } => {
            let frames = spans.iter().map(|s| &buf[s.start as usize..s.end as usize]);
            (
                consumed,
                Some(format!("too large {:?}", frames.collect::<Vec<_>>())),
            )
        }
        Event::Command { consumed } => (consumed, None),
        Event::Subscription {
            consumed,
            subscribe,
        } => {
            let topic = &buf[spans[0].start as usize..spans[0].end as usize];
            (
                consumed,
                Some(format!("subscription {subscribe} {topic:?}")),
            )
        }
    };
    assert!(consumed > 0 && consumed <= len && buf[consumed..] == before[consumed..]);
    assert!(
        spans
            .iter()
            .all(|s| s.start <= s.end && s.end as usize <= consumed)
    );
    buf.drain(..consumed);
    events.extend(event);
    Ok(true)
}

/// Whether bytes that are no ZMTP 3 are another protocol or an old version is told from as many
/// bytes as are there.
fn kind(error: &Error) -> &'static str {
    match error {
        Error::NotZmtp(_) | Error::OldZmtp(_) => "greeting",
        other => other.counter().name(),
    }
}

fn config_ready_len() -> usize {
    ready_command(SocketType::Router, b"", &[("X-EventMQ", b"1")]).len()
}

/// The receivers of the streams of [`corpus`], in its order.
fn configs() -> Vec<Arc<PeerConfig>> {
    [SocketType::Router, SocketType::XPub, SocketType::Dealer]
        .map(|kind| {
            let role = if kind == SocketType::Dealer {
                Role::Client
            } else {
                Role::Server
            };
            Arc::new(PeerConfig::new(
                role,
                kind,
                b"",
                &[("X-EventMQ", b"1")],
                LIMITS,
            ))
        })
        .to_vec()
}

/// Valid streams, as lists of pieces that can also be recombined.
fn corpus() -> Vec<Vec<Vec<u8>>> {
    let hello = |kind, id: &[u8]| {
        let greeting = greeting(Mechanism::Null).to_vec();
        vec![
            greeting,
            ready_command(kind, id, &[("X-EventMQ", b"1"), ("X-Other", b"\0\xff")]),
        ]
    };
    let build = |f: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        f(&mut bytes);
        bytes
    };
    let message = |frames: &[&[u8]]| OwnedMessage::from_frames(frames).view().wire().to_vec();
    let request = message(&[
        b"",
        b"eMQP/1.0",
        b"REQUEST",
        b"id",
        b"q",
        b"h:1",
        &[b'p'; 300],
    ]);
    let ping = build(&|b| push_ping(b, 300, b"0123456789abcdef"));
    let mut inside = request.clone();
    inside.splice(2..2, ping.iter().copied());
    let mut dealer = hello(SocketType::Dealer, b"worker-1");
    dealer.extend([
        request.clone(),
        ping.clone(),
        inside,
        build(&|b| push_pong(b, b"x")),
    ]);
    dealer.extend([
        message(&[&[1; 1001]]),
        message(&[&b"x"[..]; 11]),
        message(&[&[2; 900][..]; 4]),
    ]);
    dealer.push(request.clone());
    let mut sub = hello(SocketType::Sub, b"");
    for (subscribe, v31) in [(true, true), (false, true), (true, false), (false, false)] {
        sub.push(build(&|b| push_subscription(b, subscribe, b"topic", v31)));
    }
    sub.push(build(&|b| push_error(b, "enough")));
    let mut router = hello(SocketType::Router, b"");
    router.extend([ping, request]);
    vec![dealer, sub, router]
}

/// Damaged pieces of the stream `own`, and of others.
fn mutant(random: &mut Random, corpus: &[Vec<Vec<u8>>], own: usize) -> Vec<u8> {
    let mut pieces = corpus[own].clone();
    // Rarely damage the order of the handshake: most mutants should get to the traffic.
    for _ in 0..random.below(4) {
        let at = if random.below(20) == 0 {
            0
        } else {
            2 + random.below(pieces.len() - 1)
        };
        let other = random.pick(corpus);
        let piece = random.pick(other).clone();
        pieces.insert(at, piece);
    }
    let safe = if random.below(4) == 0 {
        0
    } else {
        pieces[0].len() + pieces[1].len()
    };
    let mut bytes = pieces.concat();
    for _ in 0..random.below(6) {
        damage(random, &mut bytes, safe);
    }
    bytes
}

/// One mutation behind the first `safe` bytes.
fn damage(random: &mut Random, bytes: &mut Vec<u8>, safe: usize) {
    if bytes.len() <= safe {
        return;
    }
    let at = safe + random.below(bytes.len() - safe);
    match random.below(8) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next() as u8,
        2 => bytes[at] = *random.pick(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 127, 128, 254, 255]),
        3 => bytes.truncate(at),
        4 => {
            let end = (at + 1 + random.below(20)).min(bytes.len());
            bytes.drain(at..end);
        }
        5 => {
            let end = (at + 1 + random.below(400)).min(bytes.len());
            let copy = bytes[at..end].to_vec();
            for _ in 0..=random.below(12) {
                bytes.splice(at..at, copy.iter().copied());
            }
        }
        6 => {
            let flags = random.below(8) as u8;
            let shift = random.below(64);
            let len = *random.pick(&[0, 1, 255, 256, 1000, 1001, 3000, 9000, u64::MAX >> shift]);
            let head = [&[flags][..], &len.to_be_bytes()].concat();
            bytes.splice(at..at, head);
        }
        _ => {
            let noise: Vec<_> = (0..random.below(30)).map(|_| random.next() as u8).collect();
            bytes.splice(at..at, noise);
        }
    }
}

fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) if text == "time" => {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            since.expect("a clock after 1970").as_nanos() as u64
        }
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => default,
    }
}

#[test]
fn mutated_streams_break_no_promise() {
    let iterations = setting("EMQ_FUZZ_ITERS", 3000);
    let seed = setting("EMQ_FUZZ_SEED", 1);
    let (corpus, configs) = (corpus(), configs());
    let (mut ready, mut ended, mut messages) = (0, 0, 0);
    for iteration in 0..iterations {
        let mut random = Random(seed.wrapping_add(iteration.wrapping_mul(0x5851_f42d_4c95_7f2d)));
        let own = random.below(corpus.len());
        let bytes = mutant(&mut random, &corpus, own);
        let fitting = random.below(8) != 0;
        let config = if fitting {
            &configs[own]
        } else {
            random.pick(&configs)
        };
        let result = catch_unwind(AssertUnwindSafe(|| {
            let whole = run(config, &bytes, || usize::MAX);
            assert_eq!(run(config, &bytes, || 1), whole, "fed byte by byte");
            let most = 1 + random.below(200);
            assert_eq!(
                run(config, &bytes, || 1 + random.below(most)),
                whole,
                "in pieces"
            );
            whole
        }));
        let Ok(whole) = result else {
            let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
            panic!(
                "EMQ_FUZZ_SEED={seed}, iteration {iteration}, {:?}: {hex}",
                config.socket_type()
            );
        };
        ready += usize::from(whole.events.first().is_some_and(|e| e.starts_with("ready")));
        ended += usize::from(whole.end.is_some());
        messages += whole
            .events
            .iter()
            .filter(|e| e.starts_with("message"))
            .count();
    }
    // The mutants must not all fail early, or none.
    if iterations >= 1000 {
        let iterations = iterations as usize;
        assert!(
            ready > iterations / 4 && messages > iterations,
            "{ready} {messages}"
        );
        assert!(ended > iterations / 4 && ended < iterations, "{ended}");
    }
}
