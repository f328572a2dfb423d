//! Properties over all cuts, truncations, flips and hostile lengths.

use super::*;
use crate::zmtp::frame::HEADS_READ;
use proptest::prelude::*;
use proptest::sample::Index;
use support::Side;

fn config() -> Arc<PeerConfig> {
    support::config(Role::Server, SocketType::Router, small())
}

/// Limits that generated streams reach.
fn small() -> Limits {
    Limits {
        frame_bytes_max: 700,
        message_bytes_max: 2000,
        discard_bytes_max: 6000,
        frames_max: 7,
    }
}

fn client_hello() -> Vec<u8> {
    let mut hello = greeting(Mechanism::Null).to_vec();
    hello.extend(ready_command(
        SocketType::Dealer,
        b"peer",
        &[("X-EventMQ", b"1")],
    ));
    hello
}

/// What a side makes of a stream: events (without commands, whose number depends on the cuts
/// while a message is discarded), output, PINGs, and the error.
type Outcome = (Vec<Seen>, Vec<u8>, u32, Option<Error>);

/// Feeds `stream` in the given pieces; a last piece takes the rest.
fn run(stream: &[u8], pieces: impl IntoIterator<Item = usize>) -> Outcome {
    let mut side = Side::new(&config());
    let mut rest = stream;
    let mut error = None;
    for piece in pieces.into_iter().chain([usize::MAX]) {
        let (now, later) = rest.split_at(piece.min(rest.len()));
        rest = later;
        if let Err(e) = side.receive(now) {
            error = Some(e);
            break;
        }
        assert!(side.buf.len() <= 2000 + crate::limits::INNER_COMMAND_BYTES_MAX);
    }
    side.seen.retain(|seen| *seen != Seen::Command);
    (side.seen, side.out, side.peer.pings_answered(), error)
}

/// The outcome must not depend on where the bytes are cut. (Of bytes that are no greeting, what
/// the error shows does.)
fn assert_same(a: &Outcome, b: &Outcome) {
    let greeting = |o: &Outcome| matches!(&o.3, Some(Error::NotZmtp(_) | Error::OldZmtp(_)));
    if greeting(a) && greeting(b) {
        return;
    }
    if let (Some(Error::Mechanism(_)), Some(Error::Mechanism(_))) = (&a.3, &b.3) {
        return;
    }
    assert_eq!(a, b);
}

#[derive(Debug, Clone)]
struct Stream {
    bytes: Vec<u8>,
    messages: Vec<Vec<Vec<u8>>>,
    pongs: Vec<u8>,
    pings: u32,
}

/// Messages within the limits, each frame preceded by commands or not.
fn streams() -> impl Strategy<Value = Stream> {
    let frame = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..40),
        1 => prop::collection::vec(any::<u8>(), 240..280),
    ];
    let ping = prop::option::weighted(
        0.3,
        (any::<u16>(), prop::collection::vec(any::<u8>(), 0..17)),
    );
    let message = prop::collection::vec((ping, any::<bool>(), frame), 1..8);
    prop::collection::vec(message, 0..6).prop_map(|messages| {
        let mut s = Stream {
            bytes: Vec::new(),
            messages: Vec::new(),
            pongs: Vec::new(),
            pings: 0,
        };
        for message in messages {
            let (count, mut frames) = (message.len(), Vec::new());
            for (i, (ping, pong, frame)) in message.into_iter().enumerate() {
                if let Some((ttl, context)) = ping {
                    push_ping(&mut s.bytes, ttl, &context);
                    push_pong(&mut s.pongs, &context);
                    s.pings += 1;
                }
                if pong {
                    push_pong(&mut s.bytes, b"x");
                }
                crate::frames::push_frame(&mut s.bytes, &frame, i + 1 < count);
                frames.push(frame);
            }
            s.messages.push(frames);
        }
        s
    })
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        prop::collection::vec(1..300_usize, 0..40),
        prop::collection::vec(1..4_usize, 0..2000),
    ]
}

/// A valid stream of everything, for mutations.
fn everything() -> Vec<u8> {
    let mut stream = client_hello();
    let long = vec![b'l'; 300];
    let frames = [&b""[..], b"eMQP/1.0", b"REQUEST", &long];
    stream.extend_from_slice(OwnedMessage::from_frames(frames).view().wire());
    stream.extend_from_slice(b"\x01\x00");
    push_ping(&mut stream, 1, b"ping");
    stream.extend_from_slice(b"\x00\x01z");
    push_pong(&mut stream, b"");
    stream.extend_from_slice(OwnedMessage::from_frames([[0; 701]]).view().wire());
    stream.extend_from_slice(OwnedMessage::from_frames([b""; 9]).view().wire());
    stream.extend_from_slice(b"\x02\0\0\0\0\0\0\0\x02ab");
    stream
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_traffic_cut_anywhere_decodes_to_itself(stream in streams(), pieces in cuts()) {
        let bytes = [client_hello(), stream.bytes].concat();
        let (seen, out, pings, error) = run(&bytes, pieces);
        prop_assert_eq!(error, None);
        prop_assert!(matches!(seen[0], Seen::Ready(_)));
        let messages: Vec<_> = stream.messages.into_iter().map(Seen::Message).collect();
        prop_assert_eq!(&seen[1..], messages);
        prop_assert_eq!(pings, stream.pings);
        prop_assert!(out.ends_with(&stream.pongs));
        let mut hello = greeting(Mechanism::Null).to_vec();
        hello.extend(ready_command(SocketType::Router, b"", &[("X-EventMQ", b"1")]));
        prop_assert_eq!(&out[..out.len() - stream.pongs.len()], hello);
    }

    #[test]
    fn damaged_traffic_gives_the_same_outcome_for_every_cut(
        stream in streams(),
        damage in prop::collection::vec((any::<Index>(), any::<u8>()), 0..4),
        pieces in cuts(),
    ) {
        let mut bytes = [client_hello(), stream.bytes].concat();
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        assert_same(&run(&bytes, [bytes.len()]), &run(&bytes, pieces));
    }

    #[test]
    fn hostile_lengths_never_grow_the_buffer(
        heads in prop::collection::vec((0..8_u8, any::<u64>(), 0..64_u32), 1..40),
        pieces in cuts(),
    ) {
        let mut bytes = client_hello();
        for (flags, len, shift) in heads {
            bytes.push(flags & 7);
            if flags & 2 == 0 {
                bytes.push(len as u8);
            } else {
                bytes.extend_from_slice(&(len >> shift).to_be_bytes());
            }
            bytes.extend_from_slice(&[1; 30]);
        }
        // The bound is asserted in run.
        assert_same(&run(&bytes, [bytes.len()]), &run(&bytes, pieces));
    }

    #[test]
    fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..200), hello in 0..3_usize) {
        let hello = client_hello()[..[0, GREETING_BYTES, client_hello().len()][hello]].to_vec();
        let bytes = [hello, noise].concat();
        assert_same(&run(&bytes, [bytes.len()]), &run(&bytes, vec![1; bytes.len()]));
    }
}

#[test]
fn both_roles_shake_hands_over_every_cut() {
    let hello = client_hello();
    let whole = run(&hello, [hello.len()]);
    assert!(matches!(whole.0[..], [Seen::Ready(_)]));
    for first in 0..=hello.len() {
        for second in [1, 2, hello.len()] {
            assert_eq!(run(&hello, [first, second]), whole, "{first} {second}");
        }
    }
    // Each side gets what the other has sent so far in pieces of n bytes.
    for n in 1..=GREETING_BYTES {
        let (mut client, mut server) = peers(small());
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        while !(client.peer.is_ready() && server.peer.is_ready()) {
            to_server.append(&mut client.out);
            to_client.append(&mut server.out);
            server
                .receive(
                    &to_server
                        .drain(..n.min(to_server.len()))
                        .collect::<Vec<_>>(),
                )
                .unwrap();
            client
                .receive(
                    &to_client
                        .drain(..n.min(to_client.len()))
                        .collect::<Vec<_>>(),
                )
                .unwrap();
        }
        assert!(matches!(server.seen[..], [Seen::Ready(_)]), "{n}");
        assert!(matches!(client.seen[..], [Seen::Ready(_)]), "{n}");
    }
}

#[test]
fn every_truncation_and_flip_is_survived() {
    let stream = everything();
    let whole = run(&stream, [stream.len()]);
    assert_eq!(whole.3, None);
    let kinds = whole.0.iter().map(|s| matches!(s, Seen::TooLarge(_)));
    assert_eq!(
        kinds.collect::<Vec<_>>(),
        [false, false, false, true, true, false]
    );
    for cut in 0..=stream.len() {
        assert_same(&run(&stream, [cut]), &whole);
        let cut_off = &stream[..cut];
        assert_same(&run(cut_off, [cut]), &run(cut_off, vec![1; cut]));
    }
    let mut bytes = stream.clone();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            bytes[at] ^= 1 << bit;
            assert_same(
                &run(&bytes, [bytes.len()]),
                &run(&bytes, vec![1; bytes.len()]),
            );
            bytes[at] ^= 1 << bit;
        }
    }
}

#[test]
fn work_is_linear_in_the_bytes_however_they_are_cut() {
    let frames: Vec<_> = (0..2000).map(|i| vec![1; i % 3]).collect();
    let limits = Limits {
        frames_max: 2000,
        ..Limits::default()
    };
    let message = OwnedMessage::from_frames(&frames);
    let wire = message.view().wire();
    for (piece, heedless) in [1, 2, 7, 1000, wire.len()]
        .into_iter()
        .zip([true, false].repeat(3))
    {
        let (_, mut server) = connected(limits);
        server.heedless = heedless;
        HEADS_READ.set(0);
        for bytes in wire.chunks(piece) {
            server.receive(bytes).expect("valid");
        }
        assert_eq!(server.seen, [Seen::Message(message.to_frames())]);
        // One header for every frame, and one that is not whole or not followed by its body for
        // every call.
        let most = frames.len() + wire.len().div_ceil(piece) + 1;
        assert!(
            HEADS_READ.get() <= most,
            "{} of {most}, pieces of {piece}",
            HEADS_READ.get()
        );
    }
}

#[test]
fn large_frame_is_kept_by_the_caller_and_reported_once() {
    let (_, mut server) = connected(Limits::default());
    let body = vec![5; 3 * 1024 * 1024];
    let message = OwnedMessage::from_frames([&b"head"[..], &body, b"tail"]);
    HEADS_READ.set(0);
    for bytes in message.view().wire().chunks(1000) {
        server.receive(bytes).expect("valid");
    }
    assert_eq!(server.seen, [Seen::Message(message.to_frames())]);
    assert!(
        HEADS_READ.get() < 10,
        "at_least spares the calls in between"
    );
}
