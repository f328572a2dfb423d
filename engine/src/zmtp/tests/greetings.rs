//! Greeting and handshake: exact bytes, refusals.

use super::*;
use crate::metrics::Counter;

/// What libzmq 4.3.4 sends as a DEALER with the routing id "worker-1", in its three parts: the
/// signature at once, the rest of the greeting after our version, READY after our greeting.
const LIBZMQ_SIGNATURE: &[u8] = b"\xff\0\0\0\0\0\0\0\x09\x7f";
const LIBZMQ_READY: &[u8] =
    b"\x04\x31\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\x08worker-1";

fn libzmq_rest() -> Vec<u8> {
    let mut rest = b"\x03\x01NULL".to_vec();
    rest.resize(54, 0);
    rest
}

fn router() -> Side {
    Side::new(&support::config(Role::Server, SocketType::Router, limits()))
}
use super::support::Side;

/// The counter under which `bytes` end a connection that has just been accepted.
fn refusal(bytes: &[u8]) -> Option<Counter> {
    router().receive(bytes).err().map(|e| e.counter())
}

fn with_command(command: &[u8]) -> Vec<u8> {
    [&greeting(Mechanism::Null), command].concat()
}

fn ready_with(data: &[u8]) -> Vec<u8> {
    let mut out = greeting(Mechanism::Null).to_vec();
    command::push_command(&mut out, b"READY", &[data]);
    out
}

#[test]
fn libzmq_dealer_is_understood_byte_for_byte() {
    let mut server = router();
    let ours = std::mem::take(&mut server.out);
    assert_eq!(ours.len(), GREETING_BYTES);
    assert_eq!(ours[..16], *b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL");
    assert_eq!(ours[16..], [0; 48]);
    server.receive(LIBZMQ_SIGNATURE).expect("signature");
    assert!(server.out.is_empty());
    server
        .receive(&libzmq_rest())
        .expect("rest of the greeting");
    let ready = b"\x04\x38\x05READY\x0bSocket-Type\0\0\0\x06ROUTER\x08Identity\0\0\0\0\
                  \x09X-EventMQ\0\0\0\x011";
    assert_eq!(server.out, ready);
    server.receive(LIBZMQ_READY).expect("READY");
    let Seen::Ready(metadata) = &server.seen[0] else {
        panic!("{:?}", server.seen)
    };
    assert_eq!(metadata.routing_id.as_deref(), Some(&b"worker-1"[..]));
    assert!(metadata.properties.is_empty() && server.peer.speaks_v31());
}

#[test]
fn other_protocols_are_refused_at_once() {
    let tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    for bytes in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"G",
        tls,
        b"SSH-2.0-OpenSSH",
        b"\x00",
        b"\xfe\xff",
    ] {
        assert_eq!(
            refusal(bytes),
            Some(Counter::ConnectionsClosedGreeting),
            "{bytes:?}"
        );
    }
}

/// Whatever the signature has where ZMTP has `7f`, and whatever length it names.
#[test]
fn a_wrong_signature_is_another_protocol_unless_zmtp_1_could_send_it() {
    for length in [0, 1, 2, 255, 256, 257, 65_536, u64::MAX] {
        for flags in (0..=255_u8).filter(|flags| *flags != 0x7f) {
            let bytes = [&b"\xff"[..], &length.to_be_bytes(), &[flags]].concat();
            let old = flags == 0 && (1..=256).contains(&length);
            let reason = if old {
                Counter::ConnectionsClosedOldZmtp
            } else {
                Counter::ConnectionsClosedGreeting
            };
            assert_eq!(refusal(&bytes), Some(reason), "{bytes:02x?}");
        }
    }
    for second in 1..=255 {
        let reason = Some(Counter::ConnectionsClosedGreeting);
        assert_eq!(refusal(&[1, second]), reason, "{second}");
    }
}

#[test]
fn old_zmtp_is_refused_as_such() {
    let v2 = b"\xff\0\0\0\0\0\0\0\x01\x7f\x01\x05";
    let long_v1 = b"\xff\0\0\0\0\0\0\0\x01\x00";
    for bytes in [&b"\x01\x00"[..], b"\x01", b"\x06\x00hello", v2, long_v1] {
        assert_eq!(
            refusal(bytes),
            Some(Counter::ConnectionsClosedOldZmtp),
            "{bytes:?}"
        );
    }
    for revision in 0..3 {
        let bytes = [LIBZMQ_SIGNATURE, &[revision]].concat();
        assert_eq!(
            refusal(&bytes),
            Some(Counter::ConnectionsClosedOldZmtp),
            "{revision}"
        );
    }
}

#[test]
fn other_mechanisms_are_refused_with_their_first_different_byte() {
    for name in [&b"PLAIN"[..], b"CURVE", b"N\0", b"NULLX", b"NULL2"] {
        let bytes = [LIBZMQ_SIGNATURE, b"\x03\x00", name].concat();
        assert_eq!(
            refusal(&bytes),
            Some(Counter::ConnectionsClosedMechanism),
            "{name:?}"
        );
    }
    let bytes = [LIBZMQ_SIGNATURE, b"\x03\x00PLAIN\0\0\0"].concat();
    assert_eq!(
        router().receive(&bytes),
        Err(Error::Mechanism("PLAIN".into()))
    );
}

#[test]
fn later_versions_are_spoken_to_in_ours() {
    for (major, minor, v31) in [(3, 0, false), (3, 1, true), (3, 9, true), (4, 0, true)] {
        let mut bytes = greeting(Mechanism::Null);
        (bytes[10], bytes[11]) = (major, minor);
        let mut server = router();
        server.receive(&bytes).expect("acceptable greeting");
        assert_eq!(server.peer.speaks_v31(), v31, "{major}.{minor}");
    }
}

#[test]
fn bad_handshakes_are_refused() {
    let dealer = b"\x0bSocket-Type\0\0\0\x06DEALER";
    let id = |len: usize, first: u8| {
        let mut value = vec![b'i'; len];
        value[0] = first;
        [
            &dealer[..],
            b"\x08Identity",
            &(len as u32).to_be_bytes(),
            &value,
        ]
        .concat()
    };
    let many: Vec<u8> = (0..100_u8).flat_map(|i| [2, b'a', i, 0, 0, 0, 0]).collect();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("no socket type", ready_with(b"")),
        (
            "unknown socket type",
            ready_with(b"\x0bSocket-Type\0\0\0\x06dealer"),
        ),
        ("incompatible", ready_with(b"\x0bSocket-Type\0\0\0\x03SUB")),
        ("id begins with 00", ready_with(&id(17, 0))),
        ("id too long", ready_with(&id(256, b'i'))),
        (
            "given twice",
            ready_with(&[&dealer[..], b"\x0bSOCKET-TYPE\0\0\0\x06DEALER"].concat()),
        ),
        (
            "name empty",
            ready_with(&[&dealer[..], b"\0\0\0\0\0"].concat()),
        ),
        ("name cut", ready_with(&[&dealer[..], b"\x05abc"].concat())),
        (
            "value length cut",
            ready_with(&[&dealer[..], b"\x01a\0\0"].concat()),
        ),
        (
            "value cut",
            ready_with(&[&dealer[..], b"\x01a\0\0\0\x02x"].concat()),
        ),
        (
            "value length huge",
            ready_with(&[&dealer[..], b"\x01a\xff\xff\xff\xffx"].concat()),
        ),
        (
            "many properties",
            ready_with(&[&dealer[..], &many].concat()),
        ),
        ("a message", with_command(b"\x00\x05hello")),
        ("another command", with_command(b"\x04\x06\x05HELLO")),
        ("a ping", with_command(b"\x04\x07\x04PING\0\0")),
        ("no name", with_command(b"\x04\x01\x00")),
        ("an empty command", with_command(b"\x04\x00")),
        ("name beyond the body", with_command(b"\x04\x02\x05R")),
        ("command with MORE", with_command(b"\x05")),
        ("reserved bits", with_command(b"\x0c")),
        (
            "announced above the limit",
            with_command(b"\x06\0\0\0\0\0\0\x10\x01"),
        ),
        ("announced above 2^63", with_command(b"\x06\xff")),
    ];
    for (what, bytes) in cases {
        assert_eq!(
            refusal(&bytes),
            Some(Counter::ConnectionsClosedHandshake),
            "{what}"
        );
    }
}

#[test]
fn refused_peer_is_told_why() {
    let mut server = router();
    server
        .receive(&ready_with(b""))
        .expect_err("no socket type");
    assert!(
        server.out.ends_with(b"\x04\x15\x05ERROR\x0eno socket type"),
        "{:?}",
        server.out
    );
    let mut client = Side::new(&support::config(Role::Client, SocketType::Sub, limits()));
    let error = client
        .receive(&server.out)
        .expect_err("ROUTER goes not with SUB");
    assert_eq!(error.counter(), Counter::ConnectionsClosedHandshake);
}

#[test]
fn error_command_ends_the_handshake() {
    let mut bytes = greeting(Mechanism::Null).to_vec();
    push_error(&mut bytes, "go\u{7} away");
    assert_eq!(
        router().receive(&bytes),
        Err(Error::PeerError("go\\x07 away".into()))
    );
    for odd in [&b"\x04\x06\x05ERROR"[..], b"\x04\x08\x05ERROR\xffa"] {
        assert_eq!(
            refusal(&with_command(odd)),
            Some(Counter::ConnectionsClosedError)
        );
    }
}

#[test]
fn socket_types_go_together_both_ways() {
    for a in SocketType::ALL {
        assert_eq!(SocketType::from_name(a.name().as_bytes()), Some(*a));
        for b in SocketType::ALL {
            assert_eq!(a.accepts(*b), b.accepts(*a), "{a:?} {b:?}");
        }
    }
    let accepted = SocketType::ALL
        .iter()
        .filter(|t| SocketType::Router.accepts(**t));
    assert_eq!(
        accepted.map(|t| t.name()).collect::<Vec<_>>(),
        ["REQ", "DEALER", "ROUTER"]
    );
}

#[test]
fn routing_id_of_full_length_and_unknown_properties_are_kept() {
    let id = [7; 255];
    let config = PeerConfig::new(
        Role::Client,
        SocketType::Req,
        &id,
        &[("X-b", b"2"), ("X-A", b"\0\xff")],
        limits(),
    );
    let mut client = Side::new(&Arc::new(config));
    let mut server = router();
    client.exchange(&mut server);
    let Seen::Ready(metadata) = &server.seen[0] else {
        panic!("{:?}", server.seen)
    };
    assert_eq!(metadata.routing_id.as_deref(), Some(&id[..]));
    assert_eq!(metadata.property("x-a"), Some(&b"\0\xff"[..]));
    assert_eq!(metadata.properties[0], (b"X-b".to_vec(), b"2".to_vec()));
}
