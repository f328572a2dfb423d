//! Keeps docs/protocol.md true: its bytes, its names, its numbers.

use eventmq::emqp::{Command, JobStatus, RejectReason};
use eventmq::frames::Message;
use eventmq::limits;
use eventmq::zmtp::{Event, Limits, Peer, PeerConfig, Role, SocketType};
use std::sync::Arc;

fn document() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/protocol.md");
    std::fs::read_to_string(path).expect("docs/protocol.md is readable")
}

/// The bytes of the block that begins with "```bytes NAME".
fn bytes(document: &str, name: &str) -> Vec<u8> {
    let (_, block) = document
        .split_once(&format!("```bytes {name}\n"))
        .expect("the block");
    let (block, _) = block.split_once("```").expect("its end");
    let digits = block.lines().flat_map(|line| {
        let (hex, _) = line.split_once(';').unwrap_or((line, ""));
        hex.split_whitespace()
    });
    digits
        .map(|d| u8::from_str_radix(d, 16).expect("two hex digits"))
        .collect()
}

/// Feeds `received` to a new peer: the frames of its messages, and what it sends.
fn run(role: Role, socket_type: SocketType, mut received: Vec<u8>) -> (Vec<Vec<u8>>, Vec<u8>) {
    let own: (&[u8], &[(&str, &[u8])]) = match role {
        Role::Server => (b"", &[("X-EventMQ", b"1")]),
        Role::Client => (b"c1", &[]),
    };
    let config = Arc::new(PeerConfig::new(
        role,
        socket_type,
        own.0,
        own.1,
        Limits::default(),
    ));
    let (mut spans, mut out, mut frames) = (Vec::new(), Vec::new(), Vec::new());
    let mut peer = Peer::new(&config, &mut out);
    loop {
        let consumed = match peer
            .poll(&mut received, &mut spans, &mut out)
            .expect("valid bytes")
        {
            Event::NeedMore { .. } => break,
            Event::Ready { consumed, .. } | Event::Command { consumed } => consumed,
            Event::Message { wire_len, consumed } => {
                let message = Message::new(&received[..wire_len], &spans);
                frames.extend(message.frames().map(<[u8]>::to_vec));
                consumed
            }
            other => panic!("unexpected {other:?}"),
        };
        received.drain(..consumed);
    }
    assert_eq!(received, b"", "the bytes end with a whole message");
    (frames, out)
}

#[test]
fn session_bytes_are_what_the_code_sends_and_understands() {
    let document = document();
    let (client, broker) = (bytes(&document, "client"), bytes(&document, "broker"));
    let (request, sent) = run(Role::Server, SocketType::Router, client.clone());
    assert!(
        broker.starts_with(&sent) && sent.len() > 64,
        "greeting and READY of the broker"
    );
    let expected = [
        &b""[..],
        b"eMQP/1.0",
        b"REQUEST",
        b"m1",
        b"default",
        b"",
        b"{}",
    ];
    assert_eq!(request, expected);

    let (reply, sent) = run(Role::Client, SocketType::Dealer, broker);
    assert!(
        client.starts_with(&sent) && sent.len() > 64,
        "greeting and READY of the client"
    );
    assert_eq!(reply, [&b""[..], b"eMQP/1.0", b"REPLY", b"b7", b"m1"]);
}

#[test]
fn every_command_reason_and_status_is_described() {
    let document = document();
    let statuses = [
        "ok",
        "error",
        "timeout",
        "lost",
        "cancelled",
        "dead",
        "refused",
    ];
    assert!(
        statuses
            .iter()
            .all(|word| JobStatus::parse(word.as_bytes()).is_some())
    );
    let commands = Command::ALL
        .iter()
        .map(|c| String::from_utf8_lossy(c.name()).into_owned());
    for word in commands.chain(statuses.map(str::to_owned)) {
        assert!(document.contains(&format!("`{word}`")), "{word}");
    }
    // The table of reasons has no word that the code does not have.
    let (_, table) = document
        .split_once("| reason | meaning |")
        .expect("the table");
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with("| `"));
    let words: Vec<_> = rows
        .map(|row| row.split('`').nth(1).expect("a word"))
        .collect();
    assert_eq!(words.len(), 9);
    for word in words {
        assert!(RejectReason::parse(word.as_bytes()).is_some(), "{word}");
    }
}

#[test]
fn limits_are_those_of_the_code() {
    let document = document();
    let mib = |bytes: usize| format!("{} MiB", bytes / (1024 * 1024));
    for (what, limit) in [
        ("| one frame |", mib(limits::FRAME_BYTES_MAX)),
        ("| one message, ", mib(limits::MESSAGE_BYTES_MAX)),
        (
            "| frames in a message |",
            limits::MESSAGE_FRAMES_MAX.to_string(),
        ),
        (
            "| a message above the limits |",
            mib(limits::DISCARD_BYTES_MAX),
        ),
        (
            "| routing id, msgid, queue name |",
            limits::ROUTING_ID_BYTES_MAX.to_string(),
        ),
        (
            "| queues in one INFORM |",
            limits::INFORM_QUEUES_MAX.to_string(),
        ),
        (
            "| ZMTP command |",
            format!("{} KiB", limits::COMMAND_BYTES_MAX / 1024),
        ),
        (
            "| ZMTP command |",
            format!("{} properties", limits::METADATA_PROPERTIES_MAX),
        ),
        (
            "| ZMTP commands between ",
            format!("{} KiB", limits::INNER_COMMAND_BYTES_MAX / 1024),
        ),
        (
            "| handshake |",
            format!("{} s", limits::HANDSHAKE_TIMEOUT_MS_DEFAULT / 1000),
        ),
        (
            "| acceptances waiting ",
            mib(limits::CLIENT_BUFFER_BYTES_DEFAULT),
        ),
        (
            "| results and REJECTs ",
            mib(limits::CLIENT_RESULT_BYTES_DEFAULT),
        ),
        (
            "| bytes waiting for a worker |",
            mib(limits::WORKER_BUFFER_BYTES_DEFAULT),
        ),
    ] {
        let row = document
            .lines()
            .find(|line| line.starts_with(what))
            .expect(what);
        assert!(row.contains(&limit), "{limit} in: {row}");
    }
}
