//! Peers that want to hurt: what they send over plain TCP ends their own connection at most. The
//! broker stays up, good peers notice nothing, memory comes back.

use eventmq_tests::attack::{
    Good, LEFT_OVER, connect, doors, memory_comes_back, start, wait_for_end,
};
use eventmq_tests::dealer::{Dealer, show};
use eventmq_tests::raw::{self, RawDealer};
use eventmq_tests::router::{Router, Target};
use eventmq_tests::{PATIENCE, eventually, in_both_threadings};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;
use zmq::Context;

in_both_threadings!(
    greetings_cut_at_every_byte,
    handshakes_cut_at_every_byte,
    lengths_that_lie,
    metadata_that_lies,
    five_thousand_idle_connections,
    ten_thousand_connects_with_random_bytes,
    a_million_frames_in_one_message,
    commands_of_every_wrong_shape,
    half_messages_that_stall,
    one_byte_at_a_time,
);

fn greetings_cut_at_every_byte(target: Target) {
    let mut router = start(target, &[]);
    let mut good = Good::new(&router);
    let greeting = raw::greeting();
    for door in doors(&router) {
        for cut in 0..=greeting.len() {
            let mut stream = connect(&door);
            stream.write_all(&greeting[..cut]).expect("sends");
            if cut % 2 == 0 {
                stream.shutdown(Shutdown::Write).expect("shuts down");
                wait_for_end(&mut stream, &format!("greeting cut at {cut}"));
            }
        }
        // Each byte changed: refused or, where it does not matter, taken.
        for n in 0..greeting.len() {
            let mut bytes = greeting;
            bytes[n] ^= 0x55;
            let mut stream = connect(&door);
            // It may be refused before all of it is sent.
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(Shutdown::Write);
            wait_for_end(&mut stream, &format!("greeting with byte {n} changed"));
        }
        good.works();
    }
    // A first byte that is not FF is how ZMTP 1 begins.
    router.wait_for_counter("closed_old_zmtp", 1);
    router.wait_for_counter("closed_mechanism", 1);
}

fn handshakes_cut_at_every_byte(target: Target) {
    let mut router = start(target, &[]);
    let mut good = Good::new(&router);
    let mut bytes = raw::greeting().to_vec();
    bytes.extend(raw::ready_command(&[
        ("Socket-Type", b"DEALER"),
        ("Identity", b"cut"),
    ]));
    bytes.extend(raw::emqp(&["READY", "r"]));
    for door in doors(&router) {
        for cut in 64..bytes.len() {
            let mut stream = connect(&door);
            stream.write_all(&bytes[..cut]).expect("sends");
            stream.shutdown(Shutdown::Write).expect("shuts down");
            wait_for_end(&mut stream, &format!("handshake cut at {cut}"));
        }
        good.works();
    }
    assert_eq!(
        router.admin("ROUTER_SHOW_WORKERS")["connected_workers"]
            .as_object()
            .map_or(0, |w| w.len()),
        1
    );
}

fn lengths_that_lie(target: Target) {
    let mut router = start(target, &[]);
    let mut good = Good::new(&router);
    let before = router.process().resident_bytes();
    for door in doors(&router) {
        let mut open = Vec::new();
        for length in [
            1 << 20,
            1 << 26,
            (1 << 26) + 1,
            1 << 32,
            1 << 40,
            1 << 62,
            1 << 63,
            u64::MAX,
        ] {
            // As a message frame, one with MORE, a command, and with reserved bits set.
            for flags in [2, 3, 6, 7, 0x0a, 0xff] {
                let mut peer = RawDealer::connect(&door, &[]).expect("connects");
                let mut bytes = vec![flags];
                bytes.extend_from_slice(&length.to_be_bytes());
                bytes.extend_from_slice(b"only this much");
                peer.stream().write_all(&bytes).expect("sends");
                open.push(peer);
            }
        }
        // The announced bytes never come, and nothing was set aside for them.
        good.works();
        let now = router.process().resident_bytes();
        assert!(
            now < before + LEFT_OVER,
            "{} MiB, then {} MiB",
            before >> 20,
            now >> 20
        );
    }
    good.works();
    memory_comes_back(&mut router, before);
}

fn metadata_that_lies(target: Target) {
    let router = start(target, &[]);
    let mut good = Good::new(&router);
    let property = |name_length: u8, name: &[u8], length: u32, value: &[u8]| {
        let mut body = b"\x05READY".to_vec();
        body.push(name_length);
        body.extend_from_slice(name);
        body.extend_from_slice(&length.to_be_bytes());
        body.extend_from_slice(value);
        raw::command(&body)
    };
    let long = [b'x'; 256];
    let attacks: Vec<Vec<u8>> = vec![
        property(255, b"Socket-Type", 6, b"DEALER"),
        property(11, b"Socket-Type", u32::MAX, b"DEALER"),
        property(11, b"Socket-Type", 7, b"DEALER"),
        property(11, b"Socket-Type", 3, b"PUB"),
        property(0, b"", 6, b"DEALER"),
        raw::ready_command(&[("Socket-Type", b"DEALER"), ("Identity", &long)]),
        raw::ready_command(&[("Socket-Type", b"DEALER"), ("Identity", b"\x00mine")]),
        raw::ready_command(&[("Socket-Type", b"DEALER"), ("Socket-Type", b"PUB")]),
        raw::command(b"\x05READY"),
        raw::command(b"\x05ERROR\x03bad"),
        raw::command(b"\x04PING\x00\x00"),
        raw::command(b""),
        raw::command(b"\xffREADY"),
        raw::message(&["a message", "before the handshake"]),
        raw::ready_command(&vec![("X", b"y".as_slice()); 20_000]),
    ];
    for door in doors(&router) {
        for (n, attack) in attacks.iter().enumerate() {
            let mut stream = connect(&door);
            stream.write_all(&raw::greeting()).expect("sends");
            // It may be ended before all is sent.
            let _ = stream.write_all(attack);
            let _ = stream.shutdown(Shutdown::Write);
            wait_for_end(&mut stream, &format!("attack {n}"));
        }
        good.works();
    }
    // An id that begins with 00 belongs to the broker: who claims one is not taken in.
    let claimed = RawDealer::connect(&doors(&router)[0], &[("Identity", b"\x00mine")]);
    let refused = match claimed {
        Err(_) => true,
        Ok(mut peer) => {
            let _ = peer.send(&["REQUEST", "m"]);
            peer.receive(Duration::from_secs(5)).is_err()
        }
    };
    assert!(refused, "a routing id that begins with 00 was accepted");
    good.works();
}

/// The soft limit on open files raised for this process and what it starts; `false` if the hard
/// one is too low for `files`.
fn raise_open_files(files: u64) -> bool {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    if soft < files && hard >= files {
        setrlimit(Resource::RLIMIT_NOFILE, files, hard).expect("raises the soft limit");
    }
    hard >= files
}

fn five_thousand_idle_connections(target: Target) {
    const CONNECTIONS: usize = 5_000;
    if !raise_open_files(8_192) {
        eventmq_tests::peers::skip(
            "5,000 connections",
            "the hard limit of open files is too low",
        );
        return;
    }
    let mut router = start(target, &[("EVENTMQ_HANDSHAKE_TIMEOUT", "3")]);
    let mut good = Good::new(&router);
    let before = router.process().resident_bytes();
    let files = router.process().open_files();
    let door = Router::tcp(&router.addresses().frontend).to_owned();
    let mut idle: Vec<_> = (0..CONNECTIONS).map(|_| connect(&door)).collect();
    eventually("all are accepted", PATIENCE, || {
        match router.counter("connections_accepted") {
            n if n >= CONNECTIONS as u64 => Ok(()),
            n => Err(n.to_string()),
        }
    });
    let slowest = (0..50).map(|_| good.works()).max().expect("fifty");
    assert!(
        slowest < Duration::from_secs(5),
        "{slowest:?} beside idle connections"
    );
    let each = router.process().resident_bytes().saturating_sub(before) / CONNECTIONS as u64;
    eprintln!("{}: {each} bytes for each idle connection", target.name());
    assert!(each < 16 << 10, "{each} bytes for each idle connection");
    // None has finished its handshake: the broker ends them.
    for stream in &mut idle {
        wait_for_end(stream, "an idle connection");
    }
    drop(idle);
    good.works();
    eventually("their descriptors are closed", PATIENCE, || {
        let now = router.process().open_files();
        if now <= files + 2 {
            Ok(())
        } else {
            Err(format!("{files}, then {now}"))
        }
    });
    router.wait_for_counter("closed_handshake_timeout", CONNECTIONS as u64 - 10);
    memory_comes_back(&mut router, before);
}

/// A small generator: the same numbers for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).expect("below n")
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}

fn ten_thousand_connects_with_random_bytes(target: Target) {
    let mut router = start(target, &[]);
    let mut good = Good::new(&router);
    let doors = doors(&router);
    let before = router.process().resident_bytes();
    let mut random = Random(0x5eed_0001);
    for n in 0..10_000 {
        let mut bytes = Vec::new();
        // A third is noise from the start, a third behind a greeting, a third behind a handshake.
        if n % 3 > 0 {
            bytes.extend(raw::greeting());
        }
        if n % 3 > 1 {
            bytes.extend(raw::ready_command(&[("Socket-Type", b"DEALER")]));
        }
        let length = random.below(200);
        bytes.extend(random.bytes(length));
        let stream = socket2::Socket::from(connect(&doors[n % 3]));
        // Reset at the end: ten thousand ports do not wait for their time-out.
        stream.set_linger(Some(Duration::ZERO)).expect("linger");
        let mut stream = TcpStream::from(stream);
        let _ = stream.write_all(&bytes);
        if n % 1_000 == 999 {
            good.works();
        }
    }
    good.works();
    memory_comes_back(&mut router, before);
}

fn a_million_frames_in_one_message(target: Target) {
    let mut router = start(target, &[]);
    let mut good = Good::new(&router);
    let before = router.process().resident_bytes();
    for (n, door) in doors(&router)[..2].iter().enumerate() {
        let mut peer = RawDealer::connect(door, &[]).expect("connects");
        // A frame of one byte with MORE, a million times.
        let chunk = [1, 1, b'x'].repeat(10_000);
        let mut ended = false;
        for _ in 0..100 {
            if peer.stream().write_all(&chunk).is_err() {
                ended = true;
                break;
            }
            good.works();
        }
        let now = router.process().resident_bytes();
        assert!(
            now < before + LEFT_OVER,
            "{} MiB, then {} MiB",
            before >> 20,
            now >> 20
        );
        // If it was not ended for it: the message is finished and the next one is heard.
        if !ended && n == 0 {
            let mut rest = vec![0, 0];
            rest.extend(raw::emqp(&["REQUEST", "after"]));
            if peer.stream().write_all(&rest).is_ok()
                && let Ok(frames) = peer.receive(PATIENCE)
            {
                assert_eq!(frames[2], b"REJECT", "{}", show(&frames));
            }
        }
    }
    good.works();
    memory_comes_back(&mut router, before);
}

/// Every command with random frames on every socket, many thousand times.
fn commands_of_every_wrong_shape(target: Target) {
    let mut router = start(target, &[]);
    let mut good = Good::new(&router);
    let before = router.process().resident_bytes();
    let commands: &[&[u8]] = &[
        b"REQUEST",
        b"REPLY",
        b"INFORM",
        b"READY",
        b"ACK",
        b"HEARTBEAT",
        b"KBYE",
        b"KBAI",
        b"SCHEDULE",
        b"UNSCHEDULE",
        b"REJECT",
        b"PUBLISH",
        b"STATUS",
        b"ROUTER_SHOW_WORKERS",
        b"LATENCY",
        b"COUNTERS",
        b"DISCONNECT",
        b"",
        b"request",
        b"\xff\xfe",
    ];
    let long = vec![b'y'; 70_000];
    let deep = "[".repeat(5_000);
    let bodies: &[&[u8]] = &[
        b"",
        b"x",
        b"worker",
        b"scheduler",
        b"junk",
        b"[[10, \"junk\"]]",
        b"[[10]]",
        b"[]",
        b"{}",
        b"null",
        b"5",
        b"-1",
        b"\xff\xfe\x00",
        b"reply-requested",
        b"timeout:99999999999999999999",
        b"guarantee,retry-count:1",
        b"completions,slots:0,instance:,running:a+b",
        b"slots:x",
        b"heartbeat:1e400",
        b"[\"run\", {}]",
        b"ok",
        b"lost",
        b"refused",
        b"[[1e308, \"a\"], [NaN, \"b\"]]",
        b"* * * * *",
        &long,
        deep.as_bytes(),
    ];
    let mut random = Random(0x5eed_0002);
    let context = Context::new();
    let addresses = router.addresses().clone();
    for round in 0..30 {
        let sockets = [
            (&addresses.frontend, Some(format!("bad-client-{round}"))),
            (&addresses.backend, Some(format!("bad-worker-{round}"))),
            (&addresses.frontend, None),
            (&addresses.backend, None),
            (&addresses.admin, None),
        ];
        let peers: Vec<_> = sockets
            .iter()
            .map(|(address, id)| {
                Dealer::connect(&context, address, id.as_ref().map(String::as_bytes))
            })
            .collect();
        for _ in 0..200 {
            for (n, peer) in peers.iter().enumerate() {
                let command = commands[random.below(commands.len())];
                if n == 4 && command == b"DISCONNECT" {
                    // There it is no wrong shape: it shuts the broker down.
                    continue;
                }
                let mut frames = vec![command];
                let count = random.below(9);
                frames.extend((0..count).map(|_| bodies[random.below(bodies.len())]));
                if random.below(20) == 0 {
                    peer.send_raw(&frames);
                } else {
                    peer.send(&frames);
                }
            }
        }
        good.works();
        // What they were told does not matter; they go, half of them without reading it.
        for peer in peers.iter().take(3) {
            while peer.receive_any(Duration::ZERO).is_some() {}
        }
    }
    good.works();
    router.admin("STATUS");
    router.admin("ROUTER_SHOW_WORKERS");
    router.admin("ROUTER_SHOW_SCHEDULERS");
    router.admin("LATENCY");
    // Jobs for queues that nobody serves are still waiting; they are few and small but for one
    // body of 70 kB.
    let limit = before + LEFT_OVER + (256 << 20);
    assert!(router.process().resident_bytes() < limit);
}

/// Connections stop in the middle of a large message: what they sent is held, bounded, and
/// given back when they go. The largest are ended when all together are too much.
fn half_messages_that_stall(target: Target) {
    let mut router = start(target, &[("EVENTMQ_MAX_MEMORY", "256M")]);
    let mut good = Good::new(&router);
    let before = router.process().resident_bytes();
    let door = Router::tcp(&router.addresses().frontend).to_owned();
    let half = vec![b'z'; 10 << 20];
    let mut head = raw::emqp(&["REQUEST", "m", "junk", "", ""]);
    // The empty last frame becomes the start of one of 20 MiB.
    head.truncate(head.len() - 2);
    head.push(2);
    head.extend_from_slice(&(20_u64 << 20).to_be_bytes());
    let mut settled = Vec::new();
    for round in 0..3 {
        let mut stalled = Vec::new();
        for _ in 0..30 {
            let mut peer = RawDealer::connect(&door, &[]).expect("connects");
            peer.stream()
                .set_write_timeout(Some(Duration::from_millis(500)))
                .expect("a time-out");
            // Cut short when it is ended for the memory it takes.
            let _ = peer
                .stream()
                .write_all(&head)
                .and_then(|()| peer.stream().write_all(&half));
            stalled.push(peer);
            good.works();
        }
        drop(stalled);
        good.works();
        // The allocator keeps some of it, but not more with each round.
        memory_comes_back(&mut router, before + (48 << 20));
        settled.push(router.process().resident_bytes() >> 20);
        let most = router.process().resident_bytes_max();
        // A quarter of the limit, what is on its way in buffers, and the broker itself.
        assert!(
            most < before + (128 << 20),
            "round {round}: {} MiB for half messages",
            most >> 20
        );
    }
    eprintln!("{}: settled at {settled:?} MiB", target.name());
    router.wait_for_counter("closed_partial_memory", 1);
}

fn one_byte_at_a_time(target: Target) {
    let router = start(target, &[]);
    let mut good = Good::new(&router);
    let door = Router::tcp(&router.addresses().frontend).to_owned();
    let mut peer = RawDealer::connect(&door, &[("Identity", b"slow")]).expect("connects");
    for byte in raw::emqp(&[
        "REQUEST",
        "slow-1",
        "good",
        "reply-requested",
        "drop by drop",
    ]) {
        peer.stream().write_all(&[byte]).expect("sends");
        std::thread::sleep(Duration::from_micros(200));
    }
    let accepted = peer.receive(PATIENCE).expect("an answer");
    assert_eq!(accepted[4], b"slow-1", "{}", show(&accepted));
    let request = good.worker.expect("REQUEST");
    assert_eq!(request[6], b"drop by drop");
    good.worker.send(&["REPLY", "r", "result", "slow-1"]);
    good.worker.ready(1);
    let result = peer.receive(PATIENCE).expect("a result");
    assert_eq!(result[4], b"result");
    good.works();
}
