//! The publisher with real subscribers and publishers: libzmq, sockets spelled by hand, and the
//! original's client and publisher.

use eventmq_tests::dealer::{Dealer, Frames, admin, show};
use eventmq_tests::peers::original;
use eventmq_tests::process::Process;
use eventmq_tests::publisher::Publisher;
use eventmq_tests::raw::{self, RawDealer};
use eventmq_tests::router::Router;
use eventmq_tests::{PATIENCE, eventually};
use nix::sys::signal::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use zmq::{Context, POLLIN, SUB, Socket};

/// A libzmq SUB socket.
fn subscriber(context: &Context, address: &str, topics: &[&[u8]]) -> Socket {
    let socket = context.socket(SUB).unwrap();
    socket.set_linger(0).unwrap();
    socket.set_rcvhwm(0).unwrap();
    for topic in topics {
        socket.set_subscribe(topic).unwrap();
    }
    socket.connect(address).unwrap();
    socket
}

#[track_caller]
fn receive(socket: &Socket) -> Frames {
    let ms = i64::try_from(PATIENCE.as_millis()).unwrap();
    assert!(socket.poll(POLLIN, ms).unwrap() > 0, "nothing received");
    socket.recv_multipart(0).unwrap()
}

fn publish(client: &Dealer, topic: &[u8], text: &[u8]) {
    client.send(&[b"PUBLISH", &b"m-1"[..], topic, text]);
}

/// Topic and message of the next message of a subscriber spelled by hand.
fn receive_raw(subscriber: &mut RawDealer) -> Frames {
    subscriber.receive(PATIENCE).unwrap()
}

fn subscribe_30(subscriber: &mut RawDealer, subscribe: bool, topic: &[u8]) {
    let frame = [&[u8::from(subscribe)], topic].concat();
    let wire = raw::message(&[frame]);
    subscriber.stream().write_all(&wire).unwrap();
}

fn subscribe_31(subscriber: &mut RawDealer, subscribe: bool, topic: &[u8]) {
    let name: &[u8] = if subscribe {
        b"\x09SUBSCRIBE"
    } else {
        b"\x06CANCEL"
    };
    let wire = raw::command(&[name, topic].concat());
    subscriber.stream().write_all(&wire).unwrap();
}

#[test]
fn libzmq_subscribers_get_what_they_asked_for() {
    let mut publisher = Publisher::ours(&[]);
    let context = Context::new();
    let all = subscriber(&context, &publisher.outgoing, &[b""]);
    let some = subscriber(&context, &publisher.outgoing, &[b"ab", b"x\xff"]);
    publisher.wait_for("subscriptions", |n| n == 3);
    let client = Dealer::connect(&context, &publisher.incoming, None);
    let large = vec![b'z'; 1 << 20];
    let published: &[(&[u8], &[u8])] = &[
        (b"a", b"1"),
        (b"ab", b"2"),
        (b"abc", b"\xff\x00"),
        (b"", b""),
        (b"x\xff\x01", &large),
        (b"b", b"5"),
    ];
    for (topic, text) in published {
        publish(&client, topic, text);
    }
    for (topic, text) in published {
        assert_eq!(receive(&all), [topic.to_vec(), text.to_vec()]);
    }
    for n in [1, 2, 4] {
        let (topic, text) = published[n];
        assert_eq!(receive(&some), [topic.to_vec(), text.to_vec()]);
    }
    // Seven frames: the headers in the middle stay here.
    client.send(&["PUBLISH", "m", "ab-h", "header:1", "text"]);
    for socket in [&all, &some] {
        assert_eq!(receive(socket), [b"ab-h".to_vec(), b"text".to_vec()]);
    }
    // Cancelled, and proven by a later message.
    some.set_unsubscribe(b"ab").unwrap();
    publisher.wait_for("subscriptions", |n| n == 2);
    publish(&client, b"ab", b"not for it");
    publish(&client, b"x\xff", b"for it");
    assert_eq!(receive(&some), [b"x\xff".to_vec(), b"for it".to_vec()]);
    drop(some);
    publisher.wait_for("subscribers", |n| n == 1);
    assert_eq!(publisher.number("prefixes"), 1);
}

/// The same words to a PUB socket of libzmq and to ours, by both ways of subscribing.
#[test]
fn subscriptions_count_as_with_libzmq() {
    fn script(address: &str, minor: u8, send: impl Fn(&str)) -> Vec<Vec<u8>> {
        let say = match minor {
            0 => subscribe_30,
            _ => subscribe_31,
        };
        let mut sub = RawDealer::connect_as(address, "SUB", minor, &[]).unwrap();
        let mut got = Vec::new();
        let mut round = |sub: &mut RawDealer, name: &str| {
            // Subscriptions take effect some time after they were sent. "end" is the last: once it
            // comes, those before it have been looked at.
            say(sub, true, b"end");
            let mut wait_for_end = |sub: &mut RawDealer, send_first: &str| loop {
                if !send_first.is_empty() {
                    send(send_first);
                }
                send("end");
                while let Ok(frames) = sub.receive(Duration::from_millis(50)) {
                    if frames[0] == b"end" {
                        return;
                    }
                    got.push(frames[0].clone());
                }
            };
            wait_for_end(sub, "");
            while sub.receive(Duration::from_millis(50)).is_ok() {}
            wait_for_end(sub, &format!("a-{name}"));
            while sub.receive(Duration::from_millis(50)).is_ok() {}
            say(sub, false, b"end");
        };
        say(&mut sub, true, b"a");
        say(&mut sub, true, b"a");
        round(&mut sub, "subscribed-twice");
        say(&mut sub, false, b"a");
        round(&mut sub, "cancelled-once");
        say(&mut sub, false, b"a");
        say(&mut sub, false, b"never");
        round(&mut sub, "cancelled-twice");
        say(&mut sub, true, b"a");
        round(&mut sub, "subscribed-again");
        got.dedup();
        got
    }
    for minor in [0, 1] {
        let context = Context::new();
        let theirs = context.socket(zmq::PUB).unwrap();
        theirs.set_linger(0).unwrap();
        theirs.bind("tcp://127.0.0.1:*").unwrap();
        let endpoint = theirs.get_last_endpoint().unwrap().unwrap();
        let expected = script(Router::tcp(&endpoint), minor, |topic| {
            theirs.send_multipart([topic, "text"], 0).unwrap();
        });
        let publisher = Publisher::ours(&[]);
        let client = Dealer::connect(&context, &publisher.incoming, None);
        let got = script(Router::tcp(&publisher.outgoing), minor, |topic| {
            publish(&client, topic.as_bytes(), b"text");
        });
        assert_eq!(show(&got), show(&expected), "ZMTP 3.{minor}");
        assert!(got.contains(&b"a-subscribed-twice".to_vec()));
    }
}

#[test]
fn sockets_of_the_wrong_kind_are_refused() {
    let mut publisher = Publisher::ours(&[]);
    for (address, kind) in [
        (&publisher.incoming, "SUB"),
        (&publisher.incoming, "PUB"),
        (&publisher.outgoing, "DEALER"),
        (&publisher.outgoing, "PUB"),
        (&publisher.admin, "SUB"),
    ] {
        let error = RawDealer::connect_as(Router::tcp(address), kind, 1, &[])
            .and_then(|mut peer| peer.receive(PATIENCE).map(|_| ()))
            .unwrap_err();
        assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "{kind}");
    }
    publisher.wait_for("closed_handshake", |n| n == 5);
}

/// Runs one of the Python peers.
fn python(script: &str, args: &[&str], dir: &Path) -> Option<Process> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
    let mut command = Command::new(original("python")?);
    command
        .arg(folder.join(script))
        .args(args)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PYTHONPATH", &folder)
        .env("EVENTMQ_CONFIG_FILE", "/nonexistent");
    let log = dir.join(format!("{script}.log"));
    Some(Process::start_group(script, &mut command, &log).expect("python starts"))
}

#[test]
fn the_originals_client_publishes_to_pyzmq_subscribers() {
    let mut publisher = Publisher::ours(&[]);
    let dir = publisher.dir().to_owned();
    let outgoing = publisher.outgoing.clone();
    let Some(mut sub) = python("subscriber.py", &[&outgoing, "news", "2"], &dir) else {
        return;
    };
    publisher.wait_for("subscriptions", |n| n == 1);
    let incoming = publisher.incoming.clone();
    for (topic, text) in [("other", "0"), ("news", "1"), ("news-2", "\u{e9}\u{2603}")] {
        let mut client = python("client.py", &[&incoming, "publish", topic, text], &dir).unwrap();
        assert_eq!(client.wait_code(PATIENCE), 0, "{}", client.log_tail());
    }
    assert_eq!(sub.wait_code(PATIENCE), 0, "{}", sub.log_tail());
    assert_eq!(
        sub.log_tail(),
        "news \"1\"\nnews-2 \"\\u00e9\\u2603\"",
        "topic and JSON as the original client makes it"
    );
}

/// The same with the original's publisher, which publishes the headers of 7 frames: what the
/// tests above expect is what a subscriber of it gets.
#[test]
fn reference_the_originals_publisher() {
    let Some(publisher) = Publisher::original() else {
        return;
    };
    let context = Context::new();
    let sub = subscriber(&context, &publisher.outgoing, &[b"t"]);
    let client = Dealer::connect(&context, &publisher.incoming, Some(b"text-id"));
    let first = eventually("a message", PATIENCE, || {
        publish(&client, b"topic", b"text");
        match sub.poll(POLLIN, 50).unwrap() {
            0 => Err("none yet".to_owned()),
            _ => Ok(sub.recv_multipart(0).unwrap()),
        }
    });
    assert_eq!(first, [b"topic".to_vec(), b"text".to_vec()]);
}

#[test]
fn a_slow_subscriber_does_not_slow_the_others() {
    let mut publisher = Publisher::ours(&[("EVENTMQ_SUBSCRIBER_BUFFER_BYTES", "256K")]);
    let context = Context::new();
    let mut stuck = RawDealer::connect_as(Router::tcp(&publisher.outgoing), "SUB", 1, &[]).unwrap();
    subscribe_31(&mut stuck, true, b"");
    let well = subscriber(&context, &publisher.outgoing, &[b""]);
    publisher.wait_for("subscriptions", |n| n == 2);
    let client = Dealer::connect(&context, &publisher.incoming, None);
    // More than the kernel's buffers take, whatever their size here.
    const COUNT: usize = 20_000;
    let text = vec![b'x'; 2_000];
    for n in 0..COUNT {
        publish(&client, format!("t{n}").as_bytes(), &text);
        // The good one reads all the time.
        if n % 50 == 49 {
            for n in n - 49..=n {
                assert_eq!(receive(&well)[0], format!("t{n}").into_bytes());
            }
        }
    }
    publisher.wait_for("published_dropped_slow", |n| n > 1_000);
    let status = publisher.admin("STATUS");
    assert_eq!(status["slow"], 1, "{status}");
    let slow = &status["slow_subscribers"][0];
    assert_eq!(slow["slow"], true, "{status}");
    assert!(slow["waiting_bytes"].as_u64().unwrap() <= 256 << 10);
    assert!(publisher.log().contains("a subscriber does not read"));
    // It goes on where it can, with whole messages, and gets what comes once it has read.
    let dropped = publisher.number("published_dropped_slow");
    let taken = 2 * COUNT as u64 - dropped - COUNT as u64;
    for _ in 0..taken {
        let frames = receive_raw(&mut stuck);
        assert_eq!((frames.len(), frames[1].len()), (2, 2_000));
    }
    publish(&client, b"again", b"");
    assert_eq!(receive_raw(&mut stuck)[0], b"again");
    publisher.wait_for("slow", |n| n == 0);
    assert_eq!(publisher.number("published_dropped_slow"), dropped);
}

#[test]
fn a_million_subscriptions_from_one_peer() {
    let mut publisher = Publisher::ours(&[("EVENTMQ_MAX_SUBSCRIPTIONS_PER_SUBSCRIBER", "100000")]);
    let context = Context::new();
    let good = subscriber(&context, &publisher.outgoing, &[b"good"]);
    publisher.wait_for("subscriptions", |n| n == 1);
    let before = publisher.process().resident_bytes();
    let mut peer = RawDealer::connect_as(Router::tcp(&publisher.outgoing), "SUB", 0, &[]).unwrap();
    let mut wire = Vec::new();
    for n in 0..1_000_000_u32 {
        let topic = format!("\x01{:x}-subscription", n.wrapping_mul(2_654_435_761));
        wire.extend_from_slice(&[0, u8::try_from(topic.len()).unwrap()]);
        wire.extend_from_slice(topic.as_bytes());
    }
    peer.stream().write_all(&wire).unwrap();
    publisher.wait_for("subscriptions_refused_peer", |n| n == 900_000);
    assert_eq!(publisher.number("subscriptions"), 100_001);
    let log = publisher.log();
    assert_eq!(log.matches("subscription refused").count(), 1, "{log}");
    let grown = publisher.process().resident_bytes() - before;
    assert!(grown < 100 << 20, "{grown} bytes for 100,000 subscriptions");
    let client = Dealer::connect(&context, &publisher.incoming, None);
    publish(&client, b"good", b"1");
    assert_eq!(receive(&good)[1], b"1");
    drop(peer);
    publisher.wait_for("subscriptions", |n| n == 1);
    assert_eq!(publisher.number("prefixes"), 1);
}

#[test]
fn endless_topics_leave_nothing_behind() {
    let mut publisher = Publisher::ours(&[]);
    let context = Context::new();
    let sub = subscriber(&context, &publisher.outgoing, &[b"end"]);
    publisher.wait_for("subscriptions", |n| n == 1);
    let client = Dealer::connect(&context, &publisher.incoming, None);
    let round = |publisher: &mut Publisher, round: usize| {
        for n in 0..100_000 {
            publish(&client, format!("{round}-{n}-topic").as_bytes(), b"x");
        }
        publish(&client, &vec![b'e'; 1 << 20], b"a topic of a megabyte");
        publish(&client, b"end", b"");
        receive(&sub);
        publisher.process().resident_bytes()
    };
    let first = round(&mut publisher, 0);
    let mut last = first;
    for n in 1..4 {
        last = round(&mut publisher, n);
    }
    assert!(last < first + (16 << 20), "{first} then {last}");
    assert_eq!(publisher.number("publishes_unheard"), 400_004);
}

#[test]
fn hostile_bytes_end_one_connection() {
    let mut publisher = Publisher::ours(&[]);
    let context = Context::new();
    let good = subscriber(&context, &publisher.outgoing, &[b""]);
    publisher.wait_for("subscriptions", |n| n == 1);
    let client = Dealer::connect(&context, &publisher.incoming, None);
    let addresses = [&publisher.incoming, &publisher.outgoing, &publisher.admin]
        .map(|address| Router::tcp(address).to_owned());
    let mut seed = 0x1234_5678_9abc_def1_u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for address in &addresses {
        for _ in 0..200 {
            let mut stream = TcpStream::connect(address).unwrap();
            let bytes: Vec<u8> = (0..random() % 200).map(|_| random() as u8).collect();
            let _ = stream.write_all(&bytes);
        }
    }
    // After the handshake: commands and messages that lie, and everything a subscriber must not say.
    let attacks: Vec<Vec<u8>> = vec![
        raw::command(b""),
        raw::command(b"\x09SUBSCRIB"),
        raw::command(&[&b"\x09SUBSCRIBE"[..], &[b'x'; 5_000]].concat()),
        raw::message(&[&[1_u8; 4_002][..]]),
        raw::message(&[vec![1_u8; 2 << 20]]),
        vec![2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        // A SUBSCRIBE between the frames of a message.
        [&[1, 1, 1][..], &raw::command(b"\x09SUBSCRIBEx")].concat(),
        raw::message(&[b""; 70]),
        (0..3_000).map(|_| random() as u8).collect(),
    ];
    for attack in &attacks {
        for (address, kind) in addresses.iter().zip(["DEALER", "SUB", "DEALER"]) {
            let mut peer = RawDealer::connect_as(address, kind, 1, &[]).unwrap();
            let _ = peer.stream().write_all(attack);
            let _ = peer.stream().shutdown(std::net::Shutdown::Write);
            let _ = peer.stream().read_to_end(&mut Vec::new());
        }
        publish(&client, b"t", b"still there");
        assert_eq!(receive(&good)[1], b"still there");
    }
    assert_eq!(publisher.number("subscriptions_refused_too_long"), 2);
    assert_eq!(publisher.number("subscriptions"), 1);
    assert_eq!(publisher.process().ended(), None);
}

#[test]
fn nothing_leaks_when_peers_come_and_go() {
    let mut publisher = Publisher::ours(&[]);
    let context = Context::new();
    let client = Dealer::connect(&context, &publisher.incoming, None);
    publisher.wait_for("publishers", |n| n == 1);
    let files = publisher.process().open_files();
    let mut sizes = Vec::new();
    for _ in 0..3 {
        for n in 0..200_u32 {
            let address = Router::tcp(&publisher.outgoing);
            let mut peer = RawDealer::connect_as(address, "SUB", n as u8 % 2, &[]).unwrap();
            for topic in 0..50 {
                subscribe_30(&mut peer, true, format!("{n}-{topic}").as_bytes());
                subscribe_31(&mut peer, true, format!("{n}").as_bytes());
            }
            publish(&client, format!("{n}").as_bytes(), &[0; 1_000]);
        }
        publisher.wait_for("subscribers", |n| n == 0);
        sizes.push(publisher.process().resident_bytes());
    }
    assert_eq!(publisher.number("subscriptions"), 0);
    assert_eq!(publisher.number("prefixes"), 0);
    eventually("descriptors are closed", PATIENCE, || {
        match publisher.process().open_files() {
            now if now <= files => Ok(()),
            now => Err(format!("{now}, {files} before")),
        }
    });
    assert!(sizes[2] < sizes[0] + (8 << 20), "{sizes:?}");
}

#[test]
fn sigterm_publishes_what_has_arrived() {
    let mut publisher = Publisher::ours(&[]);
    let context = Context::new();
    let sub = subscriber(&context, &publisher.outgoing, &[b""]);
    publisher.wait_for("subscriptions", |n| n == 1);
    let mut client = RawDealer::connect(Router::tcp(&publisher.incoming), &[]).unwrap();
    for n in 0..5_000 {
        let n = n.to_string();
        client.send(&["PUBLISH", "m", &n, "text"]).unwrap();
    }
    publisher.process().signal(Signal::SIGTERM);
    for n in 0..5_000 {
        assert_eq!(receive(&sub)[0], n.to_string().into_bytes());
    }
    let began = Instant::now();
    assert_eq!(publisher.process().wait_code(PATIENCE), 0);
    assert!(began.elapsed() < Duration::from_secs(10));
    assert!(publisher.log().contains("emq-pubsub ends"));
}

#[test]
fn the_administrative_socket_answers_and_ends_it() {
    let mut publisher = Publisher::ours(&[]);
    let status = publisher.admin("STATUS");
    assert_eq!(status["component"], "emq-pubsub");
    let counters = publisher.admin("COUNTERS");
    assert_eq!(counters["connections"]["administrative"], 1, "{counters}");
    assert!(counters["memory"]["limit_bytes"].as_u64().unwrap() > 1 << 20);
    assert_eq!(counters["counters"]["publishes_received"], 0);
    // No client can end it.
    let context = Context::new();
    let client = Dealer::connect(&context, &publisher.incoming, None);
    client.send(&["DISCONNECT", "m"]);
    publisher.wait_for("ignored_role", |n| n == 1);
    let dealer = Dealer::connect(&context, &publisher.admin, None);
    dealer.send(&["DISCONNECT", "bye"]);
    assert_eq!(dealer.expect("ACK")[4], b"bye");
    assert_eq!(publisher.process().wait_code(PATIENCE), 0);
}

#[test]
fn whoever_asks_and_never_reads_does_not_grow_it() {
    let mut publisher = Publisher::ours(&[]);
    let mut peer = RawDealer::connect(Router::tcp(&publisher.admin), &[]).unwrap();
    let wire = raw::emqp(&["COUNTERS", "m"]).repeat(100_000);
    peer.stream().write_all(&wire).unwrap();
    publisher.wait_for("messages_received", |n| n >= 100_000);
    assert!(publisher.number("admin_dropped") > 0);
    assert!(publisher.process().resident_bytes_max() < 128 << 20);
    assert!(admin(&Context::new(), &publisher.admin, "STATUS").is_ok());
}

#[test]
fn settings_and_signals_are_those_of_every_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("emq.conf");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    let run = |args: &[&str], env: &[(&str, &str)]| {
        let output = Publisher::command(env, dir.path()).args(args).output();
        let output = output.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let path = file.to_str().unwrap();
    write("[publisher]\nmax_subscriptions = many\nhwm = 1\n");
    let (code, out, errors) = run(&["-C", path], &[]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    let expected = "max_subscriptions = \"many\": expected a whole number from 1 to 1000000000\n";
    assert_eq!(errors, format!("emq-pubsub: {path}:2: {expected}"));
    write("[publisher]\nmax_subscriptions = 7\n");
    let (code, printed, _) = run(&["-C", path, "--print-config"], &[]);
    assert_eq!(code, Some(0));
    assert!(printed.contains("max_subscriptions = 7\n"), "{printed}");
    let (code, help, _) = run(&["--help"], &[]);
    assert_eq!(code, Some(0));
    assert!(help.contains("--subscriber-buffer-bytes"), "{help}");
    let (code, version, _) = run(&["--version"], &[]);
    assert_eq!(code, Some(0));
    assert!(version.starts_with("emq-pubsub "), "{version}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = format!("tcp://{}", taken.local_addr().unwrap());
    let (code, _, log) = run(&[], &[("EVENTMQ_PUBLISHER_OUTGOING_ADDR", &addr)]);
    assert_eq!(code, Some(1));
    assert!(log.contains(&format!("cannot bind outgoing address {addr}")));

    let mut publisher = Publisher::ours(&[("EVENTMQ_CONFIG_FILE", path)]);
    write("[publisher]\nmax_subscriptions = 2\n");
    publisher.process().signal(Signal::SIGHUP);
    eventually("the reload", PATIENCE, || match publisher.log() {
        log if log.contains("settings reloaded") => Ok(()),
        log => Err(log),
    });
    let context = Context::new();
    let _sub = subscriber(&context, &publisher.outgoing, &[b"1", b"2", b"3"]);
    publisher.wait_for("subscriptions_refused_total", |n| n == 1);
}
