//! Messages and commands after the handshake.

use super::*;

fn long_head(flags: u8, len: u64) -> Vec<u8> {
    [&[flags][..], &len.to_be_bytes()].concat()
}

fn small() -> Limits {
    Limits {
        frame_bytes_max: 300,
        message_bytes_max: 1000,
        discard_bytes_max: 3000,
        frames_max: 8,
    }
}

fn protocol_error(bytes: &[u8]) -> bool {
    let (_, mut server) = connected(limits());
    matches!(server.receive(bytes), Err(Error::Protocol(_)))
}

#[test]
fn pings_inside_a_message_are_answered_at_once_and_cut_out() {
    let (_, mut server) = connected(limits());
    let ping = b"\x04\x0a\x04PING\0\x64abc";
    server.receive(b"\x01\x01a").expect("frame");
    server.receive(ping).expect("PING");
    assert_eq!(server.out, b"\x04\x08\x04PONGabc");
    let big = vec![9; 400];
    let rest = [
        &long_head(3, 400)[..],
        &big,
        ping,
        b"\x04\x05\x04PONG",
        ping,
        b"\x01\x00\x00\x02zz",
    ];
    for byte in rest.concat() {
        server.receive(&[byte]).expect("rest");
    }
    let message = vec![b"a".to_vec(), big, Vec::new(), b"zz".to_vec()];
    assert_eq!(server.seen, [Seen::Message(message)]);
    assert_eq!(server.peer.pings_answered(), 3);
}

#[test]
fn ping_context_is_echoed_up_to_16_bytes() {
    let (mut client, mut server) = connected(limits());
    push_ping(&mut client.out, 0, b"");
    push_ping(&mut client.out, u16::MAX, &[b'x'; 16]);
    server.receive(&client.out).expect("PINGs");
    server
        .receive(b"\x04\x18\x04PING\0\x00yyyyyyyyyyyyyyyyy")
        .expect("a context of 17 bytes");
    let pongs = b"\x04\x05\x04PONG\x04\x15\x04PONGxxxxxxxxxxxxxxxx\x04\x15\x04PONGyyyyyyyyyyyyyyyy";
    assert_eq!(server.out, pongs);
}

#[test]
fn unknown_commands_and_foreign_subscriptions_are_ignored() {
    let (_, mut server) = connected(limits());
    server
        .receive(b"\x04\x06\x05HELLO\x04\x0a\x09SUBSCRIBE\x04\x06\x05READY")
        .expect("ignored");
    assert_eq!(server.seen, [Seen::Command, Seen::Command, Seen::Command]);
    assert!(server.out.is_empty() && !server.peer.heartbeats_seen());
}

#[test]
fn violations_end_the_connection() {
    let xpub = support::config(Role::Server, SocketType::XPub, limits());
    let inside = b"\x01\x00\x04\x0b\x09SUBSCRIBEa";
    assert!(matches!(
        support::ready(&xpub).receive(inside),
        Err(Error::Protocol(_))
    ));
    for flags in 0..=255_u8 {
        let bad = flags & 0xf8 != 0 || flags & 5 == 5;
        assert_eq!(protocol_error(&[flags]), bad, "{flags:02x}");
    }
    for (what, bytes) in [
        ("no name", &b"\x04\x00"[..]),
        ("empty name", b"\x04\x01\x00"),
        ("name beyond the body", b"\x04\x03\x04PI"),
        ("PING without TTL", b"\x04\x06\x04PING\x00"),
        ("length of 2^63", b"\x02\x80"),
        ("long command", b"\x06\0\0\0\0\0\0\x10\x01"),
    ] {
        assert!(protocol_error(bytes), "{what}");
        assert!(
            protocol_error(&[b"\x01\x00", bytes].concat()),
            "{what} inside a message"
        );
    }
    let (_, mut server) = connected(limits());
    assert_eq!(
        server.receive(b"\x04\x0a\x05ERROR\x03bad"),
        Err(Error::PeerError("bad".into()))
    );
}

#[test]
fn endless_pings_inside_a_message_end_the_connection() {
    let (_, mut server) = connected(limits());
    server.receive(b"\x01\x00").expect("first frame");
    let ping = b"\x04\x07\x04PING\0\0";
    let error = (0..1_000_000)
        .find_map(|_| server.receive(ping).err())
        .expect("a bound");
    assert_eq!(error, Error::Protocol("commands inside a message"));
    assert!(server.held_max <= crate::limits::INNER_COMMAND_BYTES_MAX + 2);
}

#[test]
fn messages_at_the_limits_are_taken() {
    let (_, mut server) = connected(small());
    let three = OwnedMessage::from_frames([[1; 300], [2; 300], [3; 300]]);
    let eight = OwnedMessage::from_frames([b""; 8]);
    server
        .receive(&[three.view().wire(), eight.view().wire()].concat())
        .expect("fine");
    assert_eq!(
        server.seen,
        [
            Seen::Message(three.to_frames()),
            Seen::Message(eight.to_frames())
        ]
    );
}

#[test]
fn message_above_a_limit_is_discarded_and_the_next_one_read() {
    let next = OwnedMessage::from_frames([b"next"]);
    let head = [&b"\x01\x01a\x01\x01b"[..]].concat();
    let one_frame = [&head[..], &long_head(2, 301), &[0; 301]].concat();
    let whole = OwnedMessage::from_frames([[1; 300], [2; 300], [3; 300], [4; 300]]);
    let frames = OwnedMessage::from_frames([b"f"; 9]);
    for (wire, readable) in [
        (&one_frame[..], vec![b"a".to_vec(), b"b".to_vec()]),
        (whole.view().wire(), whole.to_frames()[..3].to_vec()),
        (frames.view().wire(), frames.to_frames()[..8].to_vec()),
    ] {
        for cut in 1..wire.len() {
            let (_, mut server) = connected(small());
            let bytes = [wire, next.view().wire()].concat();
            server.receive(&bytes[..cut]).expect("discarded");
            server.receive(&bytes[cut..]).expect("discarded");
            server.seen.retain(|s| *s != Seen::Command);
            let expected = [
                Seen::TooLarge(readable.clone()),
                Seen::Message(next.to_frames()),
            ];
            assert_eq!(server.seen, expected, "{cut}");
            assert!(server.held_max <= 1000);
        }
    }
}

#[test]
fn pings_inside_a_discarded_message_are_answered() {
    let (_, mut server) = connected(small());
    server.receive(&long_head(3, 400)).expect("header");
    assert_eq!(server.seen, [Seen::TooLarge(Vec::new())]);
    assert!(server.peer.is_discarding());
    for byte in [
        &[0; 400][..],
        b"\x04\x08\x04PING\0\0x",
        b"\x00\x00",
        b"\x00\x01y",
    ]
    .concat()
    {
        server.receive(&[byte]).expect("discarded");
        assert!(server.buf.len() < 12);
    }
    assert_eq!(server.out, b"\x04\x06\x04PONGx");
    assert!(!server.peer.is_discarding());
    assert_eq!(
        server.seen.last(),
        Some(&Seen::Message(vec![b"y".to_vec()]))
    );
}

#[test]
fn discarding_has_an_end() {
    // Announced beyond it: reported once, then over.
    let (_, mut server) = connected(small());
    let bytes = [
        b"\x01\x01a".to_vec(),
        long_head(2, (1 << 63) - 1),
        vec![0; 10],
    ]
    .concat();
    assert_eq!(server.receive(&bytes), Err(Error::TooLarge));
    assert_eq!(server.seen, [Seen::TooLarge(vec![b"a".to_vec()])]);

    // A million frames without a last one.
    let (_, mut server) = connected(small());
    let frames = b"\x01\x00".repeat(100);
    let error = (0..10_000).find_map(|_| server.receive(&frames).err());
    assert_eq!(error, Some(Error::TooLarge));
    assert!(server.held_max < 20);
    assert_eq!(server.seen[0], Seen::TooLarge(vec![Vec::new(); 8]));
}
