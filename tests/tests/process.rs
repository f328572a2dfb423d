//! The process `emq-router`: signals, drain, reload, a stopped process, a blocked log.

use eventmq_tests::dealer::{Dealer, show};
use eventmq_tests::process::{Process, wait_for_port};
use eventmq_tests::raw::RawDealer;
use eventmq_tests::router::{Addresses, Router, Start, Target};
use eventmq_tests::{PATIENCE, eventually, in_both_threadings};
use nix::sys::signal::Signal;
use std::io::Write;
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use zmq::Context;

in_both_threadings!(
    sigterm_waits_for_a_job_that_owes_its_result,
    sigint_is_sigterm,
    sigterm_when_idle_is_quick,
    drain_timeout_ends_the_wait,
    a_waiting_job_whose_client_asked_is_answered_at_the_end,
    messages_sent_before_sigterm_are_accepted,
    a_client_keeps_what_it_sends_during_the_drain_for_the_next_broker,
    a_second_signal_ends_at_once,
    sighup_under_load_loses_nothing,
    sighup_applies_settings,
    sighup_with_a_bad_file_keeps_everything,
    sighup_changes_an_address,
    a_stopped_process_removes_nobody,
    a_log_that_nobody_reads,
    the_same_addresses_at_once_again,
    many_connections_leave_no_descriptors,
);

fn worker(router: &Router, context: &Context, slots: usize) -> Dealer {
    let worker = Dealer::connect(context, &router.addresses().backend, Some(b"worker"));
    worker.inform_worker(r#"[[10, "default"]]"#);
    worker.ready(slots);
    worker
}

fn client(router: &Router, context: &Context) -> Dealer {
    Dealer::connect(context, &router.addresses().frontend, Some(b"client"))
}

/// A job in flight whose result is owed.
fn job_in_flight(worker: &Dealer, client: &Dealer) {
    client.send(&["REQUEST", "job-1", "default", "reply-requested", "x"]);
    client.expect("REPLY");
    assert_eq!(worker.expect("REQUEST")[3], b"job-1");
}

/// Waits until nobody listens at `address` any more.
#[track_caller]
fn wait_until_closed(address: &str) {
    eventually(
        "the listener is closed",
        PATIENCE,
        || match TcpStream::connect(Router::tcp(address)) {
            Ok(_) => Err("still accepting".to_owned()),
            Err(_) => Ok(()),
        },
    );
}

fn sigterm_waits_for_a_job_that_owes_its_result(target: Target) {
    let mut router = Router::ours(target);
    let context = Context::new();
    let (worker, client) = (worker(&router, &context, 1), client(&router, &context));
    job_in_flight(&worker, &client);
    router.process().signal(Signal::SIGTERM);
    let frontend = router.addresses().frontend.clone();
    wait_until_closed(&frontend);
    assert!(
        router.process().ended().is_none(),
        "it did not wait for the job"
    );
    worker.send(&["REPLY", "r", r#"{"value": 1}"#, "job-1"]);
    worker.ready(1);
    let bye = worker.expect("KBYE");
    assert_eq!(bye.len(), 4, "{}", show(&bye));
    assert_eq!(router.process().wait_code(PATIENCE), 0);
}

fn sigint_is_sigterm(target: Target) {
    let mut router = Router::ours(target);
    let context = Context::new();
    let worker = worker(&router, &context, 1);
    router.process().signal(Signal::SIGINT);
    worker.expect("KBYE");
    assert_eq!(router.process().wait_code(PATIENCE), 0);
}

fn sigterm_when_idle_is_quick(target: Target) {
    let mut router = Router::ours(target);
    let context = Context::new();
    // Peers that read nothing do not hold it up for longer than the flush may take.
    let _peers = (worker(&router, &context, 1), client(&router, &context));
    let began = Instant::now();
    router.process().signal(Signal::SIGTERM);
    assert_eq!(router.process().wait_code(PATIENCE), 0);
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "{:?}",
        began.elapsed()
    );
}

fn drain_timeout_ends_the_wait(target: Target) {
    let mut router = Start::new(target)
        .env("EVENTMQ_DRAIN_TIMEOUT", "1")
        .start()
        .expect("ours");
    let context = Context::new();
    let (worker, client) = (worker(&router, &context, 1), client(&router, &context));
    job_in_flight(&worker, &client);
    let began = Instant::now();
    router.process().signal(Signal::SIGTERM);
    assert_eq!(router.process().wait_code(PATIENCE), 0);
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(900), "{took:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    worker.expect("KBYE");
}

fn a_waiting_job_whose_client_asked_is_answered_at_the_end(target: Target) {
    let mut router = Start::new(target)
        .env("EVENTMQ_DRAIN_TIMEOUT", "1")
        .start()
        .expect("ours");
    let context = Context::new();
    let client = client(&router, &context);
    client.send(&["REQUEST", "job-1", "default", "reply-requested", "x"]);
    client.expect("REPLY");
    router.process().signal(Signal::SIGTERM);
    let result = client.expect("REPLY");
    assert_eq!(result[5], b"job-1", "{}", show(&result));
    let value: serde_json::Value = serde_json::from_slice(&result[4]).expect("JSON");
    assert!(
        value["value"].is_null() && value["error"]["type"].is_string(),
        "{value}"
    );
    assert_eq!(router.process().wait_code(PATIENCE), 0);
}

/// Whatever was sent and arrived before the signal is accepted, and run if somebody is free.
fn messages_sent_before_sigterm_are_accepted(target: Target) {
    let mut router = Router::ours(target);
    let context = Context::new();
    let (worker, client) = (worker(&router, &context, 500), client(&router, &context));
    client.send(&["REQUEST", "job-0", "default", "", "x"]);
    client.expect("REPLY");
    for n in 1..500 {
        client.send(&["REQUEST", &format!("job-{n}"), "default", "", "x"]);
    }
    // They are with the kernel of the broker's side, or very soon.
    std::thread::sleep(Duration::from_millis(300));
    router.process().signal(Signal::SIGTERM);
    for n in 0..500 {
        let request = worker.expect("REQUEST");
        assert_eq!(request[3], format!("job-{n}").into_bytes());
    }
    worker.expect("KBYE");
    assert_eq!(router.process().wait_code(PATIENCE), 0);
}

fn a_client_keeps_what_it_sends_during_the_drain_for_the_next_broker(target: Target) {
    let mut router = Router::ours(target);
    let context = Context::new();
    let (first, owed) = (worker(&router, &context, 1), client(&router, &context));
    // It is owed nothing, so its connection is closed early in the drain.
    let other = Dealer::connect(&context, &router.addresses().frontend, Some(b"other"));
    other.send(&["REQUEST", "probe"]);
    other.expect("REJECT");
    job_in_flight(&first, &owed);
    router.process().signal(Signal::SIGTERM);
    let frontend = router.addresses().frontend.clone();
    wait_until_closed(&frontend);
    std::thread::sleep(Duration::from_millis(500));
    other.send(&["REQUEST", "job-2", "default", "", "y"]);
    first.send(&["REPLY", "r", "1", "job-1"]);
    first.expect("KBYE");
    assert_eq!(router.process().wait_code(PATIENCE), 0);
    drop(first);
    let router = Start::new(target)
        .at(router.addresses())
        .start()
        .expect("ours");
    let second = worker(&router, &context, 1);
    let request = second.expect("REQUEST");
    assert_eq!(request[3], b"job-2", "{}", show(&request));
}

fn a_second_signal_ends_at_once(target: Target) {
    let mut router = Router::ours(target);
    let context = Context::new();
    let (worker, client) = (worker(&router, &context, 1), client(&router, &context));
    job_in_flight(&worker, &client);
    router.process().signal(Signal::SIGTERM);
    let frontend = router.addresses().frontend.clone();
    wait_until_closed(&frontend);
    std::thread::sleep(Duration::from_millis(100));
    assert!(
        router.process().ended().is_none(),
        "it did not wait for the job"
    );
    let began = Instant::now();
    router.process().signal(Signal::SIGTERM);
    let code = router.process().wait_code(Duration::from_secs(10));
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    assert!(
        (0..128).contains(&code),
        "ended by a signal or a crash: {code}"
    );
}

/// Ends a load, also when the test beside it panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Jobs go round and round until `stop`; gives how many. One client, one worker.
fn load(router: &Addresses, stop: &AtomicBool, done: &AtomicUsize) {
    let context = Context::new();
    let worker = Dealer::connect(&context, &router.backend, Some(b"load-worker"));
    worker.inform_worker(r#"[[10, "default"]]"#);
    worker.ready(50);
    let client = Dealer::connect(&context, &router.frontend, Some(b"load-client"));
    let mut sent = 0_usize;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..50 {
            let msgid = sent.to_string();
            client.send(&["REQUEST", &msgid, "default", "reply-requested", "x"]);
            sent += 1;
        }
        for _ in 0..50 {
            let request = worker.expect("REQUEST");
            worker.send(&[b"REPLY".as_slice(), b"r", b"1", &request[3]]);
            worker.ready(1);
        }
        let mut results = 0;
        while results < 50 {
            results += usize::from(client.expect("REPLY").len() == 6);
        }
        done.fetch_add(50, Ordering::Relaxed);
    }
}

/// Runs `test` beside such a load and checks that the load never missed anything.
fn under_load(router: &mut Router, test: impl FnOnce(&mut Router)) {
    let addresses = router.addresses().clone();
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let load = scope.spawn(|| load(&addresses, &stop, &done));
        let guard = Stop(&stop);
        test(router);
        let before = done.load(Ordering::Relaxed);
        eventually("the load goes on", PATIENCE, || {
            if done.load(Ordering::Relaxed) > before {
                Ok(())
            } else {
                Err(before.to_string())
            }
        });
        drop(guard);
        load.join().expect("the load misses nothing");
    });
    assert!(done.into_inner() > 0);
}

fn with_file(target: Target, dir: &Path, text: &str) -> Start {
    let file = dir.join("eventmq.conf");
    std::fs::write(&file, text).expect("writes the settings");
    Start::new(target)
        .arg("-C")
        .arg(file.to_str().expect("UTF-8"))
}

/// Waits until the log has `part`.
#[track_caller]
fn wait_for_log(router: &Router, part: &str) {
    eventually(&format!("{part:?} in the log"), PATIENCE, || {
        let text = std::fs::read_to_string(router.log()).unwrap_or_default();
        if text.contains(part) {
            Ok(())
        } else {
            Err(text)
        }
    });
}

/// What can be wrong with a settings file, and a part of the line that says so.
const BROKEN: [(&str, &str); 4] = [
    ("[router\nhwm = 9999\n", "eventmq.conf:1:"),
    ("[router]\nhwm = 9999\nmax_queues = many\n", "max_queues"),
    ("[router]\nhwm = 9999\nnonsense\n", "eventmq.conf:3:"),
    (
        "[router]\nhwm = 9999\nfrontend_addr = udp://1\n",
        "frontend_addr",
    ),
];

/// A hundred reloads, every second one of a broken or missing file.
fn sighup_under_load_loses_nothing(target: Target) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("eventmq.conf");
    let mut router = with_file(target, dir.path(), "[router]\nhwm = 5\n")
        .start()
        .expect("ours");
    let heard = |router: &Router| {
        let text = std::fs::read_to_string(router.log()).unwrap_or_default();
        (
            text.matches("settings reloaded").count(),
            text.matches("settings not reloaded").count(),
        )
    };
    under_load(&mut router, |router| {
        for n in 0..50 {
            let text = format!("[router]\nhwm = {}\n", n % 4 + 1);
            std::fs::write(&file, text).expect("writes");
            router.process().signal(Signal::SIGHUP);
            eventually("it is reloaded", PATIENCE, || match heard(router) {
                (good, bad) if (good, bad) == (n + 1, n) => Ok(()),
                heard => Err(format!("{heard:?} at {n}")),
            });
            match BROKEN.get(n % (BROKEN.len() + 1)) {
                Some((text, part)) => {
                    std::fs::write(&file, text).expect("writes");
                    router.process().signal(Signal::SIGHUP);
                    wait_for_log(router, part);
                }
                None => {
                    std::fs::remove_file(&file).expect("removes");
                    router.process().signal(Signal::SIGHUP);
                }
            }
            eventually("it is refused", PATIENCE, || match heard(router) {
                (good, bad) if (good, bad) == (n + 1, n + 1) => Ok(()),
                heard => Err(format!("{heard:?} at {n}")),
            });
        }
    });
    // The last good one was number 49.
    assert_eq!(accepted_of_five(&router), 2);
}

/// How many of five jobs for a queue without a free worker are accepted.
fn accepted_of_five(router: &Router) -> usize {
    let context = Context::new();
    let id = uuid::Uuid::new_v4().to_string();
    let queue = format!("[[10, \"{id}\"]]");
    let worker = Dealer::connect(&context, &router.addresses().backend, Some(id.as_bytes()));
    worker.inform_worker(&queue);
    let client = Dealer::connect(&context, &router.addresses().frontend, Some(id.as_bytes()));
    (0..5)
        .filter(|n| {
            client.send(&["REQUEST", &n.to_string(), &id, "", "x"]);
            let answer = client.receive(PATIENCE).expect("an answer");
            assert!(
                answer[2] == b"REPLY" || answer[2] == b"REJECT",
                "{}",
                show(&answer)
            );
            answer[2] == b"REPLY"
        })
        .count()
}

fn sighup_applies_settings(target: Target) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut router = with_file(target, dir.path(), "[router]\nhwm = 2\n")
        .start()
        .expect("ours");
    assert_eq!(accepted_of_five(&router), 2);
    std::fs::write(dir.path().join("eventmq.conf"), "[router]\nhwm = 4\n").expect("writes");
    router.process().signal(Signal::SIGHUP);
    eventually("the new limit holds", PATIENCE, || {
        match accepted_of_five(&router) {
            4 => Ok(()),
            n => Err(n.to_string()),
        }
    });
}

fn sighup_with_a_bad_file_keeps_everything(target: Target) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut router = with_file(target, dir.path(), "[router]\nhwm = 2\n")
        .start()
        .expect("ours");
    let bad = "[router]\nhwm = 4\nheartbeat_interval = soon\n";
    std::fs::write(dir.path().join("eventmq.conf"), bad).expect("writes");
    router.process().signal(Signal::SIGHUP);
    wait_for_log(&router, "heartbeat_interval");
    assert_eq!(
        accepted_of_five(&router),
        2,
        "nothing of a bad file is applied"
    );
}

fn sighup_changes_an_address(target: Target) {
    let dir = tempfile::tempdir().expect("a directory");
    let addresses = Addresses::free();
    let text = |frontend: &str| {
        format!(
            "[router]\nfrontend_addr = {frontend}\nbackend_addr = {}\nadministrative_addr = {}\n",
            addresses.backend, addresses.admin
        )
    };
    // From the file alone: what the environment says cannot change.
    let start = with_file(target, dir.path(), &text(&addresses.frontend));
    let mut command = start.command(&addresses, dir.path()).expect("ours");
    for name in ["FRONTEND", "BACKEND", "ADMINISTRATIVE"] {
        command.env_remove(format!("EVENTMQ_{name}_ADDR"));
    }
    command.stdout(Stdio::null());
    let log = dir.path().join("log");
    let mut process = Process::start("emq-router", &mut command, &log).expect("starts");
    let context = Context::new();
    let old = Dealer::connect(&context, &addresses.frontend, Some(b"old"));
    let works = |client: &Dealer, what: &str| {
        client.send(&["REQUEST", what]);
        let answer = client.expect("REJECT");
        assert_eq!(answer[4], what.as_bytes(), "{}", show(&answer));
    };
    works(&old, "before");
    let other = Addresses::free().frontend;
    std::fs::write(dir.path().join("eventmq.conf"), text(&other)).expect("writes");
    process.signal(Signal::SIGHUP);
    wait_until_closed(&addresses.frontend);
    let new = Dealer::connect(&context, &other, Some(b"new"));
    works(&new, "at the new address");
    works(&old, "the old connection stays");
    process.signal(Signal::SIGTERM);
    assert_eq!(process.wait_code(PATIENCE), 0);
}

/// A hundred workers beat every 0.3 s and would be given up after 2 s; the broker is stopped for
/// `stopped` and then continues. Nobody is removed, nobody has to register again.
fn stop_and_continue(target: Target, timeout: &str, stopped: Duration) {
    let mut router = Start::new(target)
        .env("EVENTMQ_HEARTBEAT_TIMEOUT", timeout)
        .env("EVENTMQ_HEARTBEAT_INTERVAL", "0.5")
        .start()
        .expect("ours");
    let context = Context::new();
    let backend = router.addresses().backend.clone();
    let workers: Vec<_> = (0..100)
        .map(|n| {
            let id = format!("worker-{n}");
            let worker = Dealer::connect(&context, &backend, Some(id.as_bytes()));
            worker.inform_worker(r#"[[10, "default"]]"#);
            worker.ready(1);
            worker
        })
        .collect();
    let beat = |worker: &Dealer| worker.send(&["HEARTBEAT", "h", "1.0"]);
    router.process().signal(Signal::SIGSTOP);
    let end = Instant::now() + stopped;
    while Instant::now() < end {
        workers.iter().for_each(beat);
        std::thread::sleep(Duration::from_millis(300));
    }
    router.process().signal(Signal::SIGCONT);
    // Long enough for every time-out that was running to fire.
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        workers.iter().for_each(beat);
        std::thread::sleep(Duration::from_millis(300));
    }
    let shown = router.admin("ROUTER_SHOW_WORKERS");
    let listed = shown["connected_queues"]["default"]
        .as_array()
        .map_or(0, Vec::len);
    assert_eq!(listed, 100, "{shown}");
    let told = workers
        .iter()
        .filter(|w| w.receive(Duration::ZERO).is_some())
        .count();
    assert_eq!(told, 0, "workers were told to register again");
    let client = client(&router, &context);
    for n in 0..100 {
        client.send(&["REQUEST", &n.to_string(), "default", "", "x"]);
        client.expect("REPLY");
    }
    for worker in &workers {
        worker.expect("REQUEST");
    }
    assert_eq!(router.counter("workers_removed_silent"), 0);
}

fn a_stopped_process_removes_nobody(target: Target) {
    stop_and_continue(target, "1", Duration::from_secs(4));
}

#[test]
#[ignore = "long: 20 s stopped"]
fn long_inline_stopped_for_twenty_seconds() {
    stop_and_continue(Target::Inline, "5", Duration::from_secs(20));
}

#[test]
#[ignore = "long: 20 s stopped"]
fn long_dedicated_stopped_for_twenty_seconds() {
    stop_and_continue(Target::Dedicated, "5", Duration::from_secs(20));
}

/// Standard error is a pipe that is full from the start: logging must not stop the broker.
fn a_log_that_nobody_reads(target: Target) {
    let dir = tempfile::tempdir().expect("a directory");
    let addresses = Addresses::free();
    // Nothing here depends on how quick a busy machine is.
    let start = Start::new(target)
        .env("EVENTMQ_LOG_LEVEL", "trace")
        .env("EVENTMQ_HEARTBEAT_TIMEOUT", "600");
    let mut command = start.command(&addresses, dir.path()).expect("ours");
    let (_unread, mut full) = std::io::pipe().expect("a pipe");
    // As much as a pipe of Linux takes: the next byte blocks its writer.
    full.write_all(&[b'-'; 64 << 10]).expect("fills it");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(full);
    let mut process = Process::adopt("emq-router", command.spawn().expect("starts"));
    for address in [&addresses.frontend, &addresses.backend] {
        let port = address
            .rsplit(':')
            .next()
            .and_then(|p| p.parse().ok())
            .expect("a port");
        assert!(wait_for_port(port, PATIENCE), "nobody listens at {address}");
    }
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let load = scope.spawn(|| load(&addresses, &stop, &done));
        let guard = Stop(&stop);
        // Reasons to log: connections, malformed messages, workers that nobody knows.
        for n in 0..3_000 {
            let address = if n % 2 == 0 {
                &addresses.frontend
            } else {
                &addresses.backend
            };
            let id = format!("noise-{n}");
            let mut peer = RawDealer::connect(Router::tcp(address), &[("Identity", id.as_bytes())])
                .expect("connects");
            peer.send(&["INFORM", "i", "nonsense", "worker"])
                .expect("sends");
            peer.send(&["READY", "r"]).expect("sends");
        }
        let before = done.load(Ordering::Relaxed);
        eventually("jobs go on", PATIENCE, || {
            let now = done.load(Ordering::Relaxed);
            if now > before + 500 {
                Ok(())
            } else {
                Err(now.to_string())
            }
        });
        drop(guard);
        load.join().expect("the load misses nothing");
    });
    assert!(process.ended().is_none());
    // It also ends, though what it has to say at the end finds no room.
    process.signal(Signal::SIGTERM);
    assert_eq!(process.wait_code(PATIENCE), 0);
}

/// Killed with connections open, started again at the same addresses at once.
fn the_same_addresses_at_once_again(target: Target) {
    let mut router = Router::ours(target);
    let addresses = router.addresses().clone();
    let context = Context::new();
    let client = client(&router, &context);
    for _ in 0..3 {
        client.send(&["REQUEST", "m"]);
        client.expect("REJECT");
        router.process().signal(Signal::SIGKILL);
        router.process().wait(PATIENCE);
        router = Start::new(target).at(&addresses).start().expect("ours");
    }
    client.send(&["REQUEST", "m"]);
    client.expect("REJECT");
}

fn many_connections_leave_no_descriptors(target: Target) {
    let mut router = Router::ours(target);
    let addresses = router.addresses().clone();
    let context = Context::new();
    let settled = client(&router, &context);
    settled.send(&["REQUEST", "m"]);
    settled.expect("REJECT");
    let before = router.process().open_files();
    for round in 0..10 {
        let peers: Vec<_> = (0..50)
            .map(|n| {
                let id = format!("{round}-{n}");
                let peer = Dealer::connect(&context, &addresses.frontend, Some(id.as_bytes()));
                peer.send(&["REQUEST", "m"]);
                peer
            })
            .collect();
        for peer in &peers {
            peer.expect("REJECT");
        }
    }
    eventually("their descriptors are closed", PATIENCE, || {
        let now = router.process().open_files();
        if now <= before + 1 {
            Ok(())
        } else {
            Err(format!("{before}, then {now}"))
        }
    });
}
