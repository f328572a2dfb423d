//! Well-behaved peers spelled by hand: what libzmq does not let a test see or say.

use eventmq_tests::dealer::{Dealer, show};
use eventmq_tests::raw::{self, RawDealer};
use eventmq_tests::router::{Router, Start, Target};
use eventmq_tests::{PATIENCE, eventually, in_both_threadings};
use nix::sys::signal::Signal;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;
use zmq::Context;

in_both_threadings!(
    the_broker_announces_itself,
    pings_are_answered_with_their_context,
    pings_between_the_frames_of_a_message,
    who_sends_and_leaves_is_heard,
    the_older_connection_is_closed,
    the_fourth_take_over_is_refused,
    disconnect_once_on_each_connection,
    a_job_that_was_not_wholly_sent_goes_to_another,
    refused_while_draining,
    fragments_of_many_messages,
);

fn connect(address: &str, id: &[u8]) -> RawDealer {
    let address = Router::tcp(address);
    RawDealer::connect(address, &[("Identity", id)]).unwrap_or_else(|e| panic!("{address}: {e}"))
}

/// True if the peer is at its end; what still comes is thrown away.
fn ends(peer: &mut RawDealer) -> bool {
    loop {
        match peer.receive(PATIENCE) {
            Ok(_) => {}
            Err(e) => {
                return matches!(
                    e.kind(),
                    ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
                );
            }
        }
    }
}

/// Waits until `peer` hears nothing more for a while, and gives what it heard.
fn heard(peer: &mut RawDealer) -> Vec<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    while let Ok(frames) = peer.receive(Duration::from_millis(300)) {
        all.push(frames);
    }
    all
}

fn the_broker_announces_itself(target: Target) {
    let router = Router::ours(target);
    let addresses = router.addresses();
    for address in [&addresses.frontend, &addresses.backend, &addresses.admin] {
        let mut stream = TcpStream::connect(Router::tcp(address)).expect("connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
        let mut bytes = raw::greeting().to_vec();
        bytes.extend(raw::ready_command(&[("Socket-Type", b"DEALER")]));
        stream.write_all(&bytes).expect("sends");
        let mut greeting = [0; 64];
        stream.read_exact(&mut greeting).expect("a greeting");
        assert_eq!((greeting[0], greeting[9], greeting[10]), (0xff, 0x7f, 3));
        assert_eq!(&greeting[12..17], b"NULL\0");
        let mut head = [0; 2];
        stream.read_exact(&mut head).expect("a command");
        assert_eq!(head[0], 4, "a short command");
        let mut body = vec![0; usize::from(head[1])];
        stream.read_exact(&mut body).expect("its body");
        let has = |part: &[u8]| body.windows(part.len()).any(|window| window == part);
        assert!(body.starts_with(b"\x05READY"), "{body:?}");
        assert!(has(b"\x0bSocket-Type\0\0\0\x06ROUTER"), "{body:?}");
        assert!(has(b"\x09X-EventMQ\0\0\0\x011"), "{body:?}");
    }
}

fn pings_are_answered_with_their_context(target: Target) {
    let router = Router::ours(target);
    for context in [b"".as_slice(), b"x", b"sixteen bytes ok"] {
        let mut peer = connect(&router.addresses().frontend, b"pinger");
        let mut ping = b"\x04PING\x00\x64".to_vec();
        ping.extend_from_slice(context);
        peer.stream()
            .write_all(&raw::command(&ping))
            .expect("sends");
        let (flags, body) = peer.read_frame().expect("a PONG");
        assert_eq!(flags & 4, 4, "a command");
        assert_eq!(body, [b"\x04PONG".as_slice(), context].concat());
        drop(peer);
    }
}

fn pings_between_the_frames_of_a_message(target: Target) {
    let router = Router::ours(target);
    let context = Context::new();
    let worker = Dealer::connect(&context, &router.addresses().backend, Some(b"worker"));
    worker.inform_worker(r#"[[10, "default"]]"#);
    worker.ready(1);
    let mut peer = connect(&router.addresses().frontend, b"client");
    let frames: [&[u8]; 7] = [
        b"",
        b"eMQP/1.0",
        b"REQUEST",
        b"m",
        b"default",
        b"reply-requested",
        b"payload",
    ];
    for (n, frame) in frames.iter().enumerate() {
        let mut bytes = vec![
            u8::from(n + 1 < frames.len()),
            u8::try_from(frame.len()).unwrap(),
        ];
        bytes.extend_from_slice(frame);
        if n + 1 < frames.len() {
            bytes.extend(raw::command(
                &[b"\x04PING\x00\x64".as_slice(), &[n as u8]].concat(),
            ));
        }
        peer.stream().write_all(&bytes).expect("sends");
        // Answered at once, though the message is not complete.
        if n + 1 < frames.len() {
            let (flags, body) = peer.read_frame().expect("a PONG");
            assert_eq!(
                (flags & 4, body),
                (4, [b"\x04PONG".as_slice(), &[n as u8]].concat())
            );
        }
    }
    let request = worker.expect("REQUEST");
    assert_eq!(request, frames.map(<[u8]>::to_vec), "{}", show(&request));
    let accepted = peer.receive(PATIENCE).expect("an answer");
    assert_eq!(accepted[4], b"m");
}

/// FIN right behind the last message: all of them count.
fn who_sends_and_leaves_is_heard(target: Target) {
    let mut router = Router::ours(target);
    let mut bytes = raw::greeting().to_vec();
    bytes.extend(raw::ready_command(&[
        ("Socket-Type", b"DEALER"),
        ("Identity", b"leaver"),
    ]));
    for n in 0..1_000 {
        bytes.extend(raw::emqp(&[
            "REQUEST",
            &format!("m{n}"),
            "default",
            "",
            "x",
        ]));
    }
    let address = Router::tcp(&router.addresses().frontend).to_owned();
    let mut stream = TcpStream::connect(address).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    stream.write_all(&bytes).expect("sends");
    stream.shutdown(Shutdown::Write).expect("shuts down");
    // Reads to the end: closing with unread input would be a reset.
    let mut sink = Vec::new();
    let _ = stream.read_to_end(&mut sink);
    eventually("all are accepted", PATIENCE, || {
        match router.counter("requests_accepted") {
            1_000 => Ok(()),
            n => Err(n.to_string()),
        }
    });
}

fn the_older_connection_is_closed(target: Target) {
    let mut router = Router::ours(target);
    let frontend = router.addresses().frontend.clone();
    let mut older = connect(&frontend, b"twin");
    older.send(&["REQUEST", "first"]).expect("sends");
    assert_eq!(older.receive(PATIENCE).expect("an answer")[4], b"first");
    // What it sent completely before its end still counts.
    older
        .send(&["REQUEST", "job", "default", "", "x"])
        .expect("sends");
    let mut newer = connect(&frontend, b"twin");
    newer.send(&["REQUEST", "second"]).expect("sends");
    assert!(ends(&mut older), "the older connection goes on");
    let answers = heard(&mut newer);
    assert!(
        answers.iter().any(|frames| frames[4] == b"second"),
        "{answers:?}"
    );
    router.wait_for_counter("requests_accepted", 1);
    router.wait_for_counter("closed_replaced", 1);
}

fn the_fourth_take_over_is_refused(target: Target) {
    let mut router = Router::ours(target);
    let frontend = router.addresses().frontend.clone();
    let mut holder = connect(&frontend, b"twin");
    for n in 0..3 {
        let mut newer = connect(&frontend, b"twin");
        newer.send(&["REQUEST", "probe"]).expect("sends");
        let answer = newer
            .receive(PATIENCE)
            .unwrap_or_else(|e| panic!("take-over {n}: {e}"));
        assert_eq!(answer[4], b"probe");
        assert!(
            ends(&mut holder),
            "take-over {n}: the older connection goes on"
        );
        holder = newer;
    }
    let address = Router::tcp(&frontend);
    let mut fourth = RawDealer::begin(address, "DEALER", 0, &[("Identity", b"twin")])
        .unwrap_or_else(|e| panic!("{address}: {e}"));
    assert!(
        ends(&mut fourth),
        "a fourth take-over within 10 s was not refused"
    );
    holder.send(&["REQUEST", "still"]).expect("sends");
    assert_eq!(holder.receive(PATIENCE).expect("an answer")[4], b"still");
    router.wait_for_counter("refused_takeover", 1);
    eventually("one warning names both addresses", PATIENCE, || {
        let text = std::fs::read_to_string(router.log()).unwrap_or_default();
        let peers = [&mut holder, &mut fourth]
            .map(|peer| peer.stream().local_addr().expect("an address").to_string());
        if text
            .lines()
            .any(|line| peers.iter().all(|peer| line.contains(peer)))
        {
            Ok(())
        } else {
            Err(text)
        }
    });
}

fn disconnect_once_on_each_connection(target: Target) {
    let router = Router::ours(target);
    for round in 0..2 {
        let mut peer = connect(&router.addresses().backend, b"stranger");
        for n in 0..10 {
            peer.send(&["READY", &n.to_string()]).expect("sends");
            peer.send(&["HEARTBEAT", "h", "1.0"]).expect("sends");
        }
        let told = heard(&mut peer);
        assert_eq!(told.len(), 1, "round {round}: {told:?}");
        assert_eq!(
            (told[0].len(), told[0][2].as_slice()),
            (4, b"DISCONNECT".as_slice())
        );
        drop(peer);
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The worker vanishes while 20 MB of a job are on their way to it: the job was never handed out.
fn a_job_that_was_not_wholly_sent_goes_to_another(target: Target) {
    let mut router = Start::new(target)
        .env("EVENTMQ_RECONNECT_GRACE", "0.2")
        .start()
        .expect("ours");
    let context = Context::new();
    let mut first = connect(&router.addresses().backend, b"first");
    first
        .send(&["INFORM", "i", r#"[[10, "default"]]"#, "worker"])
        .expect("sends");
    assert_eq!(first.receive(PATIENCE).expect("an ACK")[2], b"ACK");
    first.send(&["READY", "r"]).expect("sends");
    let client = Dealer::connect(&context, &router.addresses().frontend, Some(b"client"));
    let payload = vec![b'p'; 20 << 20];
    client.send(&[
        b"REQUEST".as_slice(),
        b"m",
        b"default",
        b"reply-requested",
        &payload,
    ]);
    client.expect("REPLY");
    eventually("it is handed out", PATIENCE, || {
        let status = router.admin("STATUS");
        match status["inflight_messages_by_queue"]["default"].as_u64() {
            Some(1) => Ok(()),
            _ => Err(status.to_string()),
        }
    });
    drop(first);
    let second = Dealer::connect(&context, &router.addresses().backend, Some(b"second"));
    second.inform_worker(r#"[[10, "default"]]"#);
    second.ready(1);
    let request = second.expect("REQUEST");
    assert!(request[6] == payload, "the payload is damaged");
    second.send(&["REPLY", "r", "done", "m"]);
    let result = client.expect("REPLY");
    assert_eq!(result[4], b"done", "{}", show(&result));
    assert_eq!(router.counter("jobs_lost"), 0);
    router.wait_for_counter("jobs_returned", 1);
}

/// A client that stays connected because it is owed a result is told `draining`, if it is one of
/// those that know the word.
fn refused_while_draining(target: Target) {
    let mut router = Router::ours(target);
    let context = Context::new();
    let worker = Dealer::connect(&context, &router.addresses().backend, Some(b"worker"));
    worker.inform_worker(r#"[[10, "default"]]"#);
    worker.ready(2);
    let frontend = Router::tcp(&router.addresses().frontend).to_owned();
    let mut ours =
        RawDealer::connect(&frontend, &[("Identity", b"ours"), ("X-EventMQ", b"1")]).expect("ok");
    let mut other = RawDealer::connect(&frontend, &[("Identity", b"other")]).expect("ok");
    for (peer, msgid) in [(&mut ours, "m-ours"), (&mut other, "m-other")] {
        peer.send(&["REQUEST", msgid, "default", "reply-requested", "x"])
            .expect("sends");
        assert_eq!(
            peer.receive(PATIENCE).expect("accepted")[4],
            msgid.as_bytes()
        );
        worker.expect("REQUEST");
    }
    router.process().signal(Signal::SIGTERM);
    // Accepted or refused, but always answered; refused in the end.
    let mut sent = 0;
    eventually("REJECT draining", PATIENCE, || {
        sent += 1;
        let msgid = format!("late-{sent}");
        ours.send(&["REQUEST", &msgid, "default", "", "x"])
            .map_err(|e| e.to_string())?;
        let answer = ours.receive(PATIENCE).map_err(|e| e.to_string())?;
        assert_eq!(answer[4], msgid.as_bytes(), "{}", show(&answer));
        if answer[2] == b"REJECT" && answer[5] == b"draining" {
            Ok(())
        } else {
            Err(show(&answer))
        }
    });
    other
        .send(&["REQUEST", "late", "default", "", "x"])
        .expect("sends");
    worker.send(&["REPLY", "r1", "1", "m-ours"]);
    worker.send(&["REPLY", "r2", "2", "m-other"]);
    assert_eq!(ours.receive(PATIENCE).expect("a result")[5], b"m-ours");
    assert_eq!(
        other.receive(PATIENCE).expect("a result")[5],
        b"m-other",
        "nothing before it"
    );
    assert_eq!(router.process().wait_code(PATIENCE), 0);
}

/// The same stream of messages cut into pieces of many sizes.
fn fragments_of_many_messages(target: Target) {
    let mut router = Router::ours(target);
    let mut bytes = Vec::new();
    for n in 0..200_usize {
        let payload = vec![b'x'; n * 7];
        let msgid = format!("m{n}");
        let frames: [&[u8]; 5] = [b"REQUEST", msgid.as_bytes(), b"nobody", b"", &payload];
        bytes.extend(raw::emqp(&frames));
    }
    let pieces = [1, 2, 3, 7, 63, 64, 65, 500, 1_447, 4_096, 65_536];
    for (round, piece) in pieces.into_iter().enumerate() {
        let id = format!("piece-{piece}");
        let mut peer = connect(&router.addresses().frontend, id.as_bytes());
        // Single bytes over the whole of it would take too long.
        let end = if piece < 4 { 2_000 } else { bytes.len() };
        for part in bytes[..end].chunks(piece) {
            peer.stream().write_all(part).expect("sends");
        }
        if end == bytes.len() {
            for n in 0..200 {
                let answer = peer.receive(PATIENCE).expect("an answer");
                assert_eq!(answer[4], format!("m{n}").into_bytes(), "round {round}");
            }
        } else {
            assert_eq!(peer.receive(PATIENCE).expect("an answer")[4], b"m0");
        }
    }
    let full = pieces.iter().filter(|piece| **piece >= 4).count() as u64;
    router.wait_for_counter("requests_accepted", full * 200);
}
