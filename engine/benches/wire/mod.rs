//! Bytes as they come from a peer, and a connection that takes them.

use eventmq::frames::{FrameSpan, OwnedMessage};
use eventmq::zmtp::{Event, Limits, Peer, PeerConfig, Role, SocketType};
use std::hint::black_box;
use std::sync::Arc;

/// A REQUEST of seven frames and about 200 bytes.
pub(crate) fn request() -> OwnedMessage {
    let msgid = "3f2504e0-4f89-41d3-9a0c-0305e82c3301";
    let payload = "x".repeat(120);
    OwnedMessage::from_frames([
        "",
        "eMQP/1.0",
        "REQUEST",
        msgid,
        "default",
        "reply-requested",
        &payload,
    ])
}

fn config(role: Role, socket_type: SocketType) -> Arc<PeerConfig> {
    Arc::new(PeerConfig::new(
        role,
        socket_type,
        b"",
        &[("X-EventMQ", b"1")],
        Limits::default(),
    ))
}

/// A server connection that has finished its handshake.
pub(crate) fn connected() -> Peer {
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    let mut client = Peer::new(&config(Role::Client, SocketType::Dealer), &mut to_server);
    let mut server = Peer::new(&config(Role::Server, SocketType::Router), &mut to_client);
    client
        .poll(&mut to_client, &mut Vec::new(), &mut to_server)
        .expect("greeting");
    let mut spans = Vec::new();
    server
        .poll(&mut to_server, &mut spans, &mut to_client)
        .expect("greeting");
    server
        .poll(&mut to_server[64..], &mut spans, &mut to_client)
        .expect("READY");
    assert!(server.is_ready());
    server
}

/// Takes everything out of `buf`; returns the bytes taken and the number of messages.
pub(crate) fn decode(
    peer: &mut Peer,
    buf: &mut [u8],
    spans: &mut Vec<FrameSpan>,
    out: &mut Vec<u8>,
) -> (usize, usize) {
    let (mut at, mut messages) = (0, 0);
    loop {
        match peer.poll(&mut buf[at..], spans, out).expect("valid bytes") {
            Event::Message { consumed, .. } => {
                black_box(&*spans);
                at += consumed;
                messages += 1;
            }
            Event::NeedMore { .. } => return (at, messages),
            Event::Command { consumed } => at += consumed,
            other => panic!("unexpected {other:?}"),
        }
    }
}

/// Messages of one to nine frames, every fourth one long, in wire form: nothing for the branch
/// predictor to learn. Returns their number, too.
pub(crate) fn mixed() -> (Vec<u8>, usize) {
    let mut state = 1_u64;
    let mut random = |n: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let (mut mixed, mut messages) = (Vec::new(), 0);
    while mixed.len() < 128 * 1024 {
        let frame = |r: u64| {
            vec![
                7;
                if r < 50 {
                    300 + r as usize
                } else {
                    r as usize - 50
                }
            ]
        };
        let frames: Vec<_> = (0..=random(9)).map(|_| frame(random(200))).collect();
        mixed.extend_from_slice(OwnedMessage::from_frames(frames).view().wire());
        messages += 1;
    }
    (mixed, messages)
}
