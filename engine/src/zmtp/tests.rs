use super::*;
use crate::frames::{FrameSpan, OwnedMessage};
use std::sync::Arc;

mod greetings;
mod properties;
mod support;
mod traffic;

use support::{Seen, connected, drain, limits, peers};

#[test]
fn peer_state_is_small() {
    assert!(size_of::<Peer>() <= 64, "{}", size_of::<Peer>());
    assert!(size_of::<Result<Event, Error>>() <= 32);
}

#[test]
fn dealer_and_router_shake_hands_and_talk() {
    let (mut client, mut server) = peers(limits());
    client.exchange(&mut server);
    assert!(client.peer.is_ready() && server.peer.is_ready());
    assert!(client.peer.speaks_v31() && server.peer.speaks_v31());
    let Seen::Ready(metadata) = &server.seen[0] else {
        panic!("{:?}", server.seen)
    };
    assert_eq!(metadata.socket_type, SocketType::Dealer);
    assert_eq!(metadata.routing_id.as_deref(), Some(&b"me"[..]));
    assert_eq!(metadata.property("x-eventmq"), Some(&b"1"[..]));
    let Seen::Ready(metadata) = &client.seen[0] else {
        panic!("{:?}", client.seen)
    };
    assert_eq!(
        (metadata.socket_type, &metadata.routing_id),
        (SocketType::Router, &None)
    );

    let message = OwnedMessage::from_frames([&b""[..], b"eMQP/1.0", b"HEARTBEAT"]);
    client.out.extend_from_slice(message.view().wire());
    push_ping(&mut client.out, 300, b"ctx");
    client.exchange(&mut server);
    assert_eq!(
        server.seen[1..],
        [Seen::Message(message.to_frames()), Seen::Command]
    );
    assert!(server.peer.heartbeats_seen());
    assert_eq!(client.received_last, b"\x04\x08\x04PONGctx");
}

#[test]
fn spans_are_void_when_a_message_is_incomplete() {
    let (_, mut server) = connected(limits());
    let mut spans = vec![FrameSpan { start: 1, end: 2 }];
    let event = server.peer.poll(
        &mut b"\x01\x00\x00\x05ab".to_vec(),
        &mut spans,
        &mut Vec::new(),
    );
    assert_eq!(
        (event, spans.len()),
        (Ok(Event::NeedMore { at_least: 9 }), 0)
    );
}

#[test]
fn subscription_builders_match_the_version() {
    let config = support::config(Role::Server, SocketType::XPub, limits());
    for v31 in [true, false] {
        let mut bytes = Vec::new();
        push_subscription(&mut bytes, true, b"topic", v31);
        push_subscription(&mut bytes, false, b"topic", v31);
        let seen = drain(&mut support::ready(&config), &mut bytes);
        let expected = if v31 {
            [
                Seen::Topic(true, b"topic".to_vec()),
                Seen::Topic(false, b"topic".to_vec()),
            ]
        } else {
            [
                Seen::Message(vec![b"\x01topic".to_vec()]),
                Seen::Message(vec![b"\x00topic".to_vec()]),
            ]
        };
        assert_eq!(seen, Ok(expected.to_vec()));
    }
}
