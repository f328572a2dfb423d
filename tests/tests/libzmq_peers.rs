//! Peers of the real libzmq: routing ids, reconnects, ZMTP heartbeats, sizes, and peers that do
//! not read.

use eventmq_tests::attack::noise;
use eventmq_tests::dealer::{Dealer, show};
use eventmq_tests::raw::RawDealer;
use eventmq_tests::router::{Router, Start, Target};
use eventmq_tests::{PATIENCE, eventually, in_both_threadings};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use zmq::{Context, Socket};

in_both_threadings!(
    a_client_that_reconnects_under_its_id_gets_its_results,
    two_connections_that_fight_for_one_id_do_not_hurt_others,
    zmtp_heartbeats_during_large_messages,
    payloads_of_every_size_come_back_unchanged,
    a_payload_above_the_limit_is_refused,
    a_client_that_never_reads,
    a_worker_that_stops_reading,
    many_peers_of_each_kind,
);

/// Answers every REQUEST with its own payload, then says READY, until told to stop.
fn echo(worker: &Dealer, stop: &AtomicBool) {
    let mut replies = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let Some(frames) = worker.receive(Duration::from_millis(20)) else {
            continue;
        };
        if frames[2] != b"REQUEST" {
            continue;
        }
        replies += 1;
        let reply = format!("reply-{replies}");
        let payload = frames[6].as_slice();
        worker.send(&[b"REPLY".as_slice(), reply.as_bytes(), payload, &frames[3]]);
        worker.ready(1);
    }
}

/// Runs `test` beside a worker of `queue` that echoes, with `slots` slots.
fn beside_echo<T>(
    router: &Router,
    queue: &str,
    slots: usize,
    configure: impl FnOnce(&Socket),
    test: impl FnOnce() -> T,
) -> T {
    struct StopOnDrop<'a>(&'a AtomicBool);
    impl Drop for StopOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let context = Context::new();
    let id = format!("echo-{queue}");
    let backend = &router.addresses().backend;
    let worker = Dealer::connect_with(&context, backend, Some(id.as_bytes()), configure);
    worker.inform_worker(&format!(r#"[[10, "{queue}"]]"#));
    worker.ready(slots);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The socket moves into its thread.
        scope.spawn(|| {
            let worker = worker;
            echo(&worker, &stop);
        });
        let _stop = StopOnDrop(&stop);
        test()
    })
}

/// Sends one REQUEST and waits for its acceptance and its result; gives the result.
#[track_caller]
fn round_trip(client: &Dealer, queue: &str, msgid: &str, payload: &[u8]) -> Vec<u8> {
    client.send(&[
        b"REQUEST".as_slice(),
        msgid.as_bytes(),
        queue.as_bytes(),
        b"reply-requested",
        payload,
    ]);
    let accepted = client.expect("REPLY");
    assert!(
        accepted.len() == 5 && accepted[4] == msgid.as_bytes(),
        "{}",
        show(&accepted)
    );
    let mut result = client.expect("REPLY");
    assert!(
        result.len() == 6 && result[5] == msgid.as_bytes(),
        "{}",
        show(&result)
    );
    result.swap_remove(4)
}

fn a_client_that_reconnects_under_its_id_gets_its_results(target: Target) {
    let router = Router::ours(target);
    let context = Context::new();
    let worker = Dealer::connect(&context, &router.addresses().backend, Some(b"w"));
    worker.inform_worker(r#"[[10, "default"]]"#);
    worker.ready(10);
    for round in 0..5 {
        let msgid = format!("m{round}");
        let client = Dealer::connect(&context, &router.addresses().frontend, Some(b"client"));
        client.send(&["REQUEST", &msgid, "default", "reply-requested", "x"]);
        client.expect("REPLY");
        let request = worker.expect("REQUEST");
        drop(client);
        // A second connection with this id; the result finds it, whether or not the broker has
        // seen the end of the first one.
        let again = Dealer::connect(&context, &router.addresses().frontend, Some(b"client"));
        let probe = format!("probe{round}");
        again.send(&["REQUEST", &probe]);
        again.expect("REJECT");
        worker.send(&[b"REPLY".as_slice(), b"r", b"result", &request[3]]);
        let result = again.expect("REPLY");
        assert_eq!(result[4], b"result", "{}", show(&result));
        assert_eq!(result[5], msgid.as_bytes());
        drop(again);
        // Not more than three take-overs in 10 s are allowed; these are none if the broker saw
        // the connections end first.
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn two_connections_that_fight_for_one_id_do_not_hurt_others(target: Target) {
    let mut router = Router::ours(target);
    let context = Context::new();
    let frontend = router.addresses().frontend.clone();
    // libzmq comes back 0.1 s after it was closed, under the same id: each takes the place of the
    // other, again and again, until the broker refuses the newcomer.
    let first = Dealer::connect(&context, &frontend, Some(b"twin"));
    let second = Dealer::connect(&context, &frontend, Some(b"twin"));
    eventually("a newcomer is refused", PATIENCE, || {
        match router.counter("refused_takeover") {
            0 => Err("none was".to_owned()),
            _ => Ok(()),
        }
    });
    beside_echo(
        &router,
        "default",
        4,
        |_| {},
        || {
            let client = Dealer::connect(&context, &frontend, Some(b"other"));
            for n in 0..200 {
                let payload = noise(100, n);
                assert_eq!(
                    round_trip(&client, "default", &format!("m{n}"), &payload),
                    payload
                );
            }
        },
    );
    drop(second);
    // Alone, it gets its place when the ten seconds of the take-overs are over.
    eventually("the twin that stays works", Duration::from_secs(40), || {
        let msgid = uuid_text();
        first.send(&["REQUEST", &msgid]);
        match first.receive(Duration::from_millis(500)) {
            Some(frames) if frames.get(2).is_some_and(|c| c == b"REJECT") => Ok(()),
            other => Err(other.map_or("no answer".to_owned(), |frames| show(&frames))),
        }
    });
}

fn uuid_text() -> String {
    uuid::Uuid::new_v4().to_string()
}

fn zmtp_heartbeats_during_large_messages(target: Target) {
    let mut router = Router::ours(target);
    let heartbeats = |socket: &Socket| {
        socket.set_heartbeat_ivl(20).expect("a heartbeat interval");
        socket
            .set_heartbeat_timeout(5_000)
            .expect("a heartbeat time-out");
        socket
            .set_heartbeat_ttl(10_000)
            .expect("a heartbeat time to live");
    };
    let context = Context::new();
    let frontend = router.addresses().frontend.clone();
    beside_echo(&router, "default", 1, heartbeats, || {
        let client = Dealer::connect_with(&context, &frontend, Some(b"client"), heartbeats);
        for n in 0..5 {
            let payload = noise(20 << 20, n);
            let result = round_trip(&client, "default", &format!("m{n}"), &payload);
            assert!(result == payload, "payload {n} came back different");
        }
        // Small ones in between, and some idle time with nothing but PINGs.
        for n in 0..20 {
            let payload = noise(n, 1);
            let result = round_trip(&client, "default", &format!("s{n}"), &payload);
            assert_eq!(result, payload);
            std::thread::sleep(Duration::from_millis(25));
        }
    });
    router.wait_for_counter("pings_answered", 11);
    assert_eq!(router.counter("closed_protocol"), 0);
}

fn payloads_of_every_size_come_back_unchanged(target: Target) {
    let router = Router::ours(target);
    let context = Context::new();
    let frontend = router.addresses().frontend.clone();
    let sizes = [
        0,
        1,
        2,
        253,
        254,
        255,
        256,
        257,
        1_000,
        4_095,
        4_096,
        8_191,
        8_192,
        16_384,
        32_767,
        32_768,
        32_769,
        65_535,
        65_536,
        65_537,
        131_072,
        1 << 20,
        (1 << 20) + 1,
        5_000_000,
        20 << 20,
        (64 << 20) - 1,
        64 << 20,
    ];
    beside_echo(
        &router,
        "default",
        1,
        |_| {},
        || {
            let client = Dealer::connect(&context, &frontend, Some(b"client"));
            for size in sizes {
                let payload = noise(size, size as u64);
                let result = round_trip(&client, "default", &format!("m{size}"), &payload);
                assert!(
                    result == payload,
                    "{size} bytes came back as {} others",
                    result.len()
                );
            }
            // Several sizes on their way at once.
            let batch: Vec<_> = (0..40)
                .map(|n| noise(1_usize << (n % 20), n as u64))
                .collect();
            for (n, payload) in batch.iter().enumerate() {
                let msgid = format!("b{n}");
                let head = [
                    b"REQUEST".as_slice(),
                    msgid.as_bytes(),
                    b"default",
                    b"reply-requested",
                ];
                client.send(&[head.as_slice(), &[payload]].concat());
            }
            let mut left = batch.len();
            while left > 0 {
                let frames = client.expect("REPLY");
                if frames.len() == 5 {
                    continue;
                }
                let msgid = String::from_utf8(frames[5].clone()).expect("our msgid");
                let n: usize = msgid[1..].parse().expect("our msgid");
                assert!(frames[4] == batch[n], "{msgid} came back different");
                left -= 1;
            }
        },
    );
}

fn a_payload_above_the_limit_is_refused(target: Target) {
    let mut router = Router::ours(target);
    let context = Context::new();
    let frontend = router.addresses().frontend.clone();
    beside_echo(
        &router,
        "default",
        1,
        |_| {},
        || {
            let client = Dealer::connect(&context, &frontend, Some(b"client"));
            let payload = noise((64 << 20) + 1, 1);
            client.send(&[b"REQUEST".as_slice(), b"big", b"default", b"", &payload]);
            let reject = client.expect("REJECT");
            assert_eq!(
                &reject[4..],
                [b"big".to_vec(), b"too-large".to_vec()],
                "{}",
                show(&reject)
            );
            // The connection goes on behind it.
            assert_eq!(round_trip(&client, "default", "small", b"x"), b"x");
        },
    );
    router.wait_for_counter("rejected_too_large", 1);
}

/// A million requests from a client that reads nothing: every job runs, what it does not read is
/// dropped and counted, and memory stays bounded.
fn a_client_that_never_reads(target: Target) {
    const JOBS: usize = 1_000_000;
    const MEMORY: u64 = 256 << 20;
    let mut router = Start::new(target)
        .env("EVENTMQ_MAX_MEMORY", "256M")
        .start()
        .expect("ours is never missing");
    let context = Context::new();
    let worker = Dealer::connect(&context, &router.addresses().backend, Some(b"worker"));
    worker.inform_worker(r#"[[10, "default"]]"#);
    worker.ready(1_000);
    let frontend = router.addresses().frontend.clone();
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let done = &done;
        scope.spawn(move || {
            let context = Context::new();
            let client = Dealer::connect_with(&context, &frontend, Some(b"deaf"), |socket| {
                // With these libzmq stops reading, and stops taking more to send, very soon.
                socket.set_rcvhwm(1).expect("a limit");
                socket.set_sndhwm(1_000).expect("a limit");
                // A broker that takes no more fails the test instead of hanging it.
                socket.set_sndtimeo(60_000).expect("a time-out");
            });
            for n in 0..JOBS {
                let msgid = n.to_string();
                client.send(&["REQUEST", &msgid, "default", "reply-requested", "[]"]);
            }
            // The connection stays until all have run.
            while done.load(Ordering::Relaxed) < JOBS {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        // Set in any case, so that a failure here does not leave the client waiting.
        struct Finish<'a>(&'a AtomicUsize);
        impl Drop for Finish<'_> {
            fn drop(&mut self) {
                self.0.store(usize::MAX, Ordering::Relaxed);
            }
        }
        let _finish = Finish(done);
        let mut ran = vec![false; JOBS];
        for count in 0..JOBS {
            let frames = worker
                .receive(PATIENCE)
                .unwrap_or_else(|| panic!("{count} of {JOBS} jobs ran, then nothing came"));
            let msgid = std::str::from_utf8(&frames[3]).expect("our msgid");
            let n: usize = msgid.parse().expect("our msgid");
            assert!(!std::mem::replace(&mut ran[n], true), "job {n} came twice");
            worker.send(&[b"REPLY".as_slice(), b"r", b"{}", &frames[3]]);
            worker.ready(1);
        }
        assert!(ran.iter().all(|ran| *ran));
    });
    let most = router.process().resident_bytes_max();
    eprintln!("{}: {} MiB at most", target.name(), most >> 20);
    assert!(most < MEMORY + (64 << 20), "{} MiB resident", most >> 20);
    router.wait_for_counter("notices_dropped", 1);
    router.wait_for_counter("requests_accepted", JOBS as u64);
}

fn a_worker_that_stops_reading(target: Target) {
    // It says nothing either; that is not what this is about.
    let mut router = Start::new(target)
        .env("EVENTMQ_HEARTBEAT_TIMEOUT", "600")
        .start()
        .expect("ours");
    let backend = Router::tcp(&router.addresses().backend).to_owned();
    let mut deaf = RawDealer::connect(&backend, &[("Identity", b"deaf")]).expect("connects");
    deaf.send(&["INFORM", "i", r#"[[10, "default"]]"#, "worker"])
        .expect("sends");
    let ack = deaf.receive(PATIENCE).expect("an ACK");
    assert_eq!(ack[2], b"ACK", "{}", show(&ack));
    for n in 0..5_000 {
        deaf.send(&["READY", &format!("r{n}")]).expect("sends");
    }
    eventually("its slots count", PATIENCE, || {
        let shown = router.admin("ROUTER_SHOW_WORKERS");
        let slots = shown["connected_workers"]["deaf"]["available_slots"].as_u64();
        if slots == Some(5_000) {
            Ok(())
        } else {
            Err(shown.to_string())
        }
    });
    const JOBS: usize = 400;
    let payload = noise(100_000, 7);
    let context = Context::new();
    let frontend = router.addresses().frontend.clone();
    let good = Dealer::connect(&context, &router.addresses().backend, Some(b"good"));
    good.inform_worker(r#"[[10, "default"]]"#);
    good.ready(4);
    let client = Dealer::connect(&context, &frontend, Some(b"client"));
    let (mut sent, mut by_good) = (0, 0);
    let mut slowest = Duration::ZERO;
    while sent < JOBS {
        let began = Instant::now();
        let msgid = format!("m{sent}");
        client.send(&[
            b"REQUEST".as_slice(),
            msgid.as_bytes(),
            b"default",
            b"",
            &payload,
        ]);
        client.expect("REPLY");
        slowest = slowest.max(began.elapsed());
        sent += 1;
        while let Some(frames) = good.receive(Duration::ZERO) {
            assert!(frames[6] == payload);
            by_good += 1;
            good.ready(1);
        }
    }
    // Everything that the deaf one did not get, the good one does.
    let mut quiet_since = Instant::now();
    while quiet_since.elapsed() < Duration::from_millis(500) {
        if good.receive(Duration::from_millis(20)).is_some() {
            by_good += 1;
            good.ready(1);
            quiet_since = Instant::now();
        }
    }
    eprintln!(
        "{}: {by_good} of {JOBS} to the good worker, slowest {slowest:?}",
        target.name()
    );
    let to_deaf = JOBS - by_good;
    // 8 MiB in the broker and what the kernel holds in two socket buffers.
    assert!(
        to_deaf * payload.len() < 24 << 20,
        "{to_deaf} jobs to a worker that does not read"
    );
    assert!(by_good > JOBS / 2, "{by_good}");
    assert!(
        slowest < Duration::from_secs(5),
        "{slowest:?} for an acceptance"
    );
    assert_eq!(
        router.counter("workers_removed_lost"),
        0,
        "slow is not dead"
    );
    // It reads again: all that it was given is there, and it is given more.
    for n in 0..to_deaf {
        let frames = deaf
            .receive(PATIENCE)
            .unwrap_or_else(|e| panic!("job {n} of {to_deaf}: {e}"));
        assert!(frames[6] == payload, "job {n} is damaged");
    }
    eventually("it is given jobs again", PATIENCE, || {
        client.send(&["REQUEST", "again", "default", "", "x"]);
        client.expect("REPLY");
        match deaf.receive(Duration::from_millis(200)) {
            Ok(frames) if frames[2] == b"REQUEST" => Ok(()),
            Ok(frames) => Err(show(&frames)),
            Err(error) => Err(error.to_string()),
        }
    });
}

/// A hundred clients and twenty workers at once, nameless and named, each client's results to
/// itself and in order.
fn many_peers_of_each_kind(target: Target) {
    let router = Router::ours(target);
    let context = Context::new();
    let stop = AtomicBool::new(false);
    let addresses = router.addresses().clone();
    let workers: Vec<_> = (0..20)
        .map(|n| {
            let id = format!("worker-{n}");
            let id = (n % 2 == 0).then_some(id.as_bytes());
            let worker = Dealer::connect(&context, &addresses.backend, id);
            worker.inform_worker(r#"[[10, "default"]]"#);
            worker.ready(3);
            worker
        })
        .collect();
    let clients: Vec<_> = (0..100)
        .map(|n| {
            let id = format!("client-{n}");
            let id = (n % 2 == 0).then_some(id.as_bytes());
            Dealer::connect(&context, &addresses.frontend, id)
        })
        .collect();
    std::thread::scope(|scope| {
        let stop = &stop;
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for worker in &workers {
                    while let Some(frames) = worker.receive(Duration::ZERO) {
                        worker.send(&[b"REPLY".as_slice(), b"r", &frames[6], &frames[3]]);
                        worker.ready(1);
                    }
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stop = Stop(stop);
        for round in 0..20 {
            for (n, client) in clients.iter().enumerate() {
                let payload = format!("{n}/{round}");
                client.send(&[
                    "REQUEST",
                    &round.to_string(),
                    "default",
                    "reply-requested",
                    &payload,
                ]);
            }
        }
        for (n, client) in clients.iter().enumerate() {
            let (mut accepted, mut results) = (0, Vec::new());
            while results.len() < 20 {
                let frames = client.expect("REPLY");
                if frames.len() == 5 {
                    assert_eq!(frames[4], accepted.to_string().as_bytes(), "in order");
                    accepted += 1;
                } else {
                    let msgid = std::str::from_utf8(&frames[5]).expect("our msgid");
                    assert_eq!(frames[4], format!("{n}/{msgid}").as_bytes());
                    results.push(msgid.to_owned());
                }
            }
            assert_eq!(accepted, 20);
            results.sort_unstable();
            results.dedup();
            assert_eq!(results.len(), 20, "client {n} got a result twice");
        }
    });
}
