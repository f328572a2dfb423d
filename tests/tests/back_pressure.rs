//! Peers that are too slow, too many jobs at once, too little memory: service goes on for everybody
//! else, nothing is lost in silence, and memory comes back (docs/semantics.md, limits).

use eventmq_tests::attack::{Good, LEFT_OVER, doors, memory_comes_back, noise, start};
use eventmq_tests::dealer::{Dealer, show};
use eventmq_tests::raw::RawDealer;
use eventmq_tests::router::{Router, Target};
use eventmq_tests::{PATIENCE, eventually, in_both_threadings};
use std::collections::HashSet;
use std::io::Read;
use zmq::Context;

in_both_threadings!(
    a_worker_with_ten_thousand_jobs_is_lost,
    a_huge_result_to_a_slow_reader,
    huge_results_to_who_never_reads,
    a_paused_client_with_a_heartbeat_stays_connected,
    a_queue_nobody_serves_fills_the_memory,
);

/// Jobs in flight in all, as STATUS and COUNTERS add them up.
fn figure(router: &mut Router, name: &str) -> u64 {
    let counters = router.admin("COUNTERS");
    eventmq_tests::router::find_number(&counters, name)
        .unwrap_or_else(|| panic!("no {name} in {counters}"))
}

fn a_worker_with_ten_thousand_jobs_is_lost(target: Target) {
    const JOBS: usize = 10_000;
    let mut router = start(target, &[]);
    let mut good = Good::new(&router);
    let [frontend, backend, _] = doors(&router);
    let before = router.process().resident_bytes();
    let mut worker = RawDealer::connect(&backend, &[("Identity", b"big")]).expect("connects");
    worker
        .send(&["INFORM", "i", r#"[[10, "big"]]"#, "worker"])
        .expect("sends");
    worker.receive(PATIENCE).expect("an ACK");
    for _ in 0..JOBS {
        worker.send(&["READY", "r"]).expect("sends");
    }
    let mut client = RawDealer::connect(&frontend, &[]).expect("connects");
    for n in 0..JOBS {
        let msgid = n.to_string();
        client
            .send(&["REQUEST", &msgid, "big", "reply-requested", "payload"])
            .expect("sends");
        assert_eq!(client.receive(PATIENCE).expect("an answer")[2], b"REPLY");
        // All of them have reached the worker: they count as handed out.
        let job = worker.receive(PATIENCE).expect("a job");
        assert_eq!(job[3], msgid.as_bytes(), "{}", show(&job));
    }
    assert_eq!(figure(&mut router, "jobs_in_flight"), JOBS as u64);
    drop(worker);
    let mut ended = HashSet::new();
    while ended.len() < JOBS {
        let result = client.receive(PATIENCE).expect("a result");
        assert_eq!(result[6], b"lost", "{}", show(&result));
        assert!(ended.insert(result[5].clone()), "{}", show(&result));
        if ended.len() % 1_000 == 0 {
            good.works();
        }
    }
    assert_eq!(router.counter("jobs_lost"), JOBS as u64);
    assert_eq!(figure(&mut router, "jobs_in_flight"), 0);
    good.works();
    memory_comes_back(&mut router, before);
}

/// A client that has asked for `count` results, and a worker that has their jobs.
fn asked(router: &Router, count: usize) -> (RawDealer, Dealer) {
    let context = Context::new();
    let worker = Dealer::connect(&context, &router.addresses().backend, Some(b"big"));
    worker.inform_worker(r#"[[10, "big"]]"#);
    worker.ready(count);
    let mut client = RawDealer::connect(&doors(router)[0], &[]).expect("connects");
    for n in 0..count {
        client
            .send(&["REQUEST", &n.to_string(), "big", "reply-requested", "x"])
            .expect("sends");
        assert_eq!(client.receive(PATIENCE).expect("an answer")[2], b"REPLY");
        worker.expect("REQUEST");
    }
    (client, worker)
}

fn a_huge_result_to_a_slow_reader(target: Target) {
    const BYTES: usize = (64 << 20) - 1024;
    let mut router = start(target, &[]);
    let mut good = Good::new(&router);
    let before = router.process().resident_bytes();
    let (mut client, worker) = asked(&router, 1);
    let value = noise(BYTES, 3);
    worker.send(&[b"REPLY".as_slice(), b"r", &value, b"0"]);
    // As slow as the others are quick: they have a job done for each 64 KiB that it reads.
    let mut read = Vec::with_capacity(BYTES + 1024);
    let mut part = vec![0; 64 << 10];
    while read.len() < BYTES {
        let n = client
            .stream()
            .read(&mut part)
            .expect("a part of the result");
        assert!(n > 0, "ended after {}", read.len());
        read.extend_from_slice(&part[..n]);
        good.works();
        let now = router.process().resident_bytes();
        assert!(
            now < before + BYTES as u64 + LEFT_OVER + (16 << 20),
            "{} MiB",
            now >> 20
        );
    }
    let at = read
        .windows(32)
        .position(|window| window == &value[..32])
        .expect("the result");
    while read.len() < at + BYTES {
        let n = client.stream().read(&mut part).expect("the rest");
        read.extend_from_slice(&part[..n]);
    }
    assert!(read[at..at + BYTES] == value, "the result is damaged");
    good.works();
    drop(worker);
    memory_comes_back(&mut router, before);
}

fn huge_results_to_who_never_reads(target: Target) {
    const RESULTS: usize = 12;
    const BYTES: usize = 32 << 20;
    let mut router = start(target, &[("EVENTMQ_CLIENT_RESULT_BYTES", "48M")]);
    let mut good = Good::new(&router);
    let before = router.process().resident_bytes();
    let (client, worker) = asked(&router, RESULTS);
    let value = noise(BYTES, 4);
    for n in 0..RESULTS {
        worker.send(&[b"REPLY".as_slice(), b"r", &value, n.to_string().as_bytes()]);
        good.works();
    }
    // The first one waits; a second one fits only as far as the kernel has taken the first.
    router.wait_for_counter("results_dropped", RESULTS as u64 - 2);
    eventually("memory is bounded", PATIENCE, || {
        let now = router.process().resident_bytes();
        if now < before + (2 * BYTES) as u64 + LEFT_OVER {
            Ok(())
        } else {
            Err(format!("{} MiB", now >> 20))
        }
    });
    good.works();
    drop(client);
    drop(worker);
    memory_comes_back(&mut router, before);
}

/// The broker does not read clients while memory is full. One that watches it with heartbeats of
/// libzmq must not take that for its death: it would come back as another connection, and what was
/// under way on the first one would have no answer.
fn a_paused_client_with_a_heartbeat_stays_connected(target: Target) {
    let mut router = start(
        target,
        &[("EVENTMQ_MAX_MEMORY", "16M"), ("EVENTMQ_MEMORY_PAUSE", "8")],
    );
    let context = Context::new();
    let frontend = router.addresses().frontend.clone();
    let client = Dealer::connect_with(&context, &frontend, Some(b"paused"), |socket| {
        socket.set_heartbeat_ivl(300).expect("heartbeats");
        // Shorter than the pause, longer than a busy machine makes a second.
        socket.set_heartbeat_timeout(5_000).expect("a time-out");
    });
    let payload = noise(64 << 10, 5);
    let mut sent = 0;
    // Until memory is full, and as many again, which are not read then.
    for _ in 0..2 {
        for _ in 0..300 {
            let msgid = sent.to_string();
            client.send(&[b"REQUEST".as_slice(), msgid.as_bytes(), b"q", b"", &payload]);
            sent += 1;
        }
        router.wait_for_counter("input_paused", 1);
    }
    // Over when something is refused: then it is read again.
    let mut accepted = HashSet::new();
    let mut refused = 0;
    while accepted.len() + refused < sent {
        let Some(answer) = client.receive(PATIENCE) else {
            let (taken, counters) = (accepted.len(), router.admin("COUNTERS"));
            panic!("{taken} accepted, {refused} refused of {sent}: {counters:#}");
        };
        match answer[2].as_slice() {
            b"REPLY" => assert!(accepted.insert(answer[4].clone()), "{}", show(&answer)),
            b"REJECT" => {
                assert_eq!(answer[5], b"memory-full", "{}", show(&answer));
                refused += 1;
            }
            _ => panic!("{}", show(&answer)),
        }
    }
    assert!(refused > 0);
    let worker = Dealer::connect(&context, &router.addresses().backend, Some(b"worker"));
    worker.inform_worker(r#"[[10, "q"]]"#);
    worker.ready(accepted.len());
    for _ in 0..accepted.len() {
        let job = worker.expect("REQUEST");
        assert!(accepted.remove(&job[3]), "{}", show(&job));
    }
}

fn a_queue_nobody_serves_fills_the_memory(target: Target) {
    let mut router = start(
        target,
        &[("EVENTMQ_MAX_MEMORY", "32M"), ("EVENTMQ_MEMORY_PAUSE", "1")],
    );
    let mut good = Good::new(&router);
    let [frontend, backend, _] = doors(&router);
    let mut filler = RawDealer::connect(&frontend, &[]).expect("connects");
    let payload = noise(16 << 10, 6);
    let mut accepted = HashSet::new();
    let mut refused = 0;
    let mut sent = 0_u32;
    while refused < 50 {
        let msgid = sent.to_string();
        let request = [
            b"REQUEST".as_slice(),
            msgid.as_bytes(),
            b"nobody",
            b"",
            &payload,
        ];
        filler.send(&request).expect("sends");
        sent += 1;
        let answer = filler.receive(PATIENCE).expect("an answer");
        match answer[2].as_slice() {
            b"REPLY" => assert!(accepted.insert(answer[4].clone())),
            _ => {
                assert_eq!(answer[5], b"memory-full", "{}", show(&answer));
                refused += 1;
            }
        }
        if sent.is_multiple_of(100) || refused > 0 {
            good.works();
        }
    }
    assert_eq!(router.counter("rejected_memory_full"), 50);
    let mut worker = RawDealer::connect(&backend, &[]).expect("connects");
    worker
        .send(&["INFORM", "i", r#"[[10, "nobody"]]"#, "worker"])
        .expect("sends");
    worker.receive(PATIENCE).expect("an ACK");
    while !accepted.is_empty() {
        worker.send(&["READY", "r"]).expect("sends");
        let job = worker.receive(PATIENCE).expect("a job");
        assert!(accepted.remove(&job[3]), "{}", show(&job));
        assert!(job[6] == payload, "the job is damaged");
    }
    // And there is room again.
    filler
        .send(&["REQUEST", "last", "nobody", "", "x"])
        .expect("sends");
    assert_eq!(filler.receive(PATIENCE).expect("an answer")[2], b"REPLY");
    worker.send(&["READY", "r"]).expect("sends");
    worker.receive(PATIENCE).expect("a job");
    drop(worker);
    eventually("nothing is kept", PATIENCE, || {
        match figure(&mut router, "job_bytes") {
            bytes if bytes < 100_000 => Ok(()),
            bytes => Err(bytes.to_string()),
        }
    });
    good.works();
}
