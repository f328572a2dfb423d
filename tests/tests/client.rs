//! The client library against our broker, the original one, and the original job manager.

use eventmq::client::{
    Accepted, CallError, Client, ClientConfig, JobError, Publication, RawRequest, Request,
    Schedule, SendError,
};
use eventmq::emqp::{JobStatus, RejectReason};
use eventmq_tests::dealer::Dealer;
use eventmq_tests::peers::original;
use eventmq_tests::process::Process;
use eventmq_tests::publisher::Publisher;
use eventmq_tests::router::{Addresses, Router, Start, Target};
use eventmq_tests::{PATIENCE, eventually, in_both_threadings};
use nix::sys::signal::Signal;
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use zmq::Context;

in_both_threadings!(
    workers_get_what_was_asked_for_and_clients_the_result,
    every_refusal_has_its_reason,
    failures_and_odd_results_are_told_apart,
    schedules_reach_the_scheduler,
    many_threads_have_many_calls_outstanding,
    jobs_survive_a_broker_that_is_restarted,
    large_jobs_and_results_pass,
    the_originals_job_manager_runs_our_jobs,
);

/// How long the original's programs may take to start.
const START: Duration = Duration::from_secs(60);

const RUN: &str = r#"["run", {"callable": "add", "path": "jobs_x", "args": [1, 2], "kwargs": {}, "class_args": [], "class_kwargs": {}}]"#;

eventmq::job! {
    /// The job of the tests, as a Rust function.
    ADD in "jobs_x" = fn add_numbers(a: i64, b: i64) -> Result<i64, String> {
        Ok(a + b)
    }
}

/// [`ADD`] as a message.
const RUN_NUMBERS: &str = r#"["run", {"callable": "add_numbers", "path": "jobs_x", "args": [1, 2], "kwargs": {}, "class_args": [], "class_kwargs": {}}]"#;

fn add() -> Request {
    Request::new("jobs_x.add").arg(1).arg(2)
}

fn client(addr: &str) -> Client {
    let config = ClientConfig::new(addr)
        .expect("an address")
        .accept_timeout(PATIENCE)
        .result_timeout(START);
    Client::start_with(config).expect("a client")
}

fn quick_client(addr: &str) -> Client {
    let config = ClientConfig::new(addr)
        .expect("an address")
        .accept_timeout(Duration::from_millis(700));
    Client::start_with(config).expect("a client")
}

fn worker(context: &Context, router: &Router, queues: &str, slots: usize) -> Dealer {
    let worker = Dealer::connect(context, &router.addresses().backend, Some(b"w1"));
    worker.inform_worker(queues);
    worker.ready(slots);
    worker
}

fn text(frames: &[Vec<u8>]) -> Vec<String> {
    frames
        .iter()
        .map(|frame| String::from_utf8_lossy(frame).into_owned())
        .collect()
}

/// An address that nobody listens on.
fn nowhere() -> String {
    Addresses::free().frontend
}

fn workers_get_what_was_asked_for_and_clients_the_result(target: Target) {
    let router = Router::ours(target);
    let context = Context::new();
    let worker = worker(&context, &router, r#"[[10, "default"]]"#, 10);
    let client = client(&router.addresses().frontend);

    assert_eq!(client.defer_job(add()), Ok(Accepted::Confirmed));
    let got = text(&worker.expect("REQUEST"));
    assert_eq!(got[4..], ["default", "", RUN]);

    let raw = RawRequest::new("default", "timeout:5,x", b"\xff\0".to_vec());
    assert_eq!(client.send_request(raw), Ok(Accepted::Confirmed));
    let got = worker.expect("REQUEST");
    assert_eq!(got[5..], [b"timeout:5,x".to_vec(), b"\xff\0".to_vec()]);

    let pending = client.start_call(ADD.with((1, 2))).expect("room");
    let got = worker.expect("REQUEST");
    assert_eq!(
        text(&got)[3..],
        [pending.msgid(), "default", "reply-requested", RUN_NUMBERS]
    );
    worker.send(&[&b"REPLY"[..], b"r", br#"{"value": 3}"#, &got[3], b"ok"]);
    assert_eq!(pending.wait(), Ok(3));

    let msgid = client.post(add()).expect("room");
    assert_eq!(text(&worker.expect("REQUEST"))[3], msgid);
    assert!(client.close(PATIENCE).is_empty());
    assert_eq!(client.defer_job(add()), Err(SendError::Closed));
}

fn every_refusal_has_its_reason(target: Target) {
    let router = Start::new(target).env("EVENTMQ_HWM", "2").start();
    let router = router.expect("ours");
    let context = Context::new();
    let worker = worker(&context, &router, r#"[[10, "narrow"]]"#, 0);
    let client = client(&router.addresses().frontend);
    let rejected = |result: Result<Accepted, SendError>, expected: RejectReason| match result {
        Err(error @ SendError::Rejected { reason, .. }) => {
            assert_eq!(reason, Some(expected));
            assert!(!error.may_have_been_taken());
        }
        other => panic!("{expected:?} expected: {other:?}"),
    };
    for _ in 0..2 {
        assert_eq!(
            client.defer_job(add().queue("narrow")),
            Ok(Accepted::Confirmed)
        );
    }
    rejected(
        client.defer_job(add().queue("narrow")),
        RejectReason::QueueFull,
    );
    rejected(
        client.schedule(Schedule::every(5, &add())),
        RejectReason::NoScheduler,
    );
    rejected(client.unschedule(&add()), RejectReason::NoScheduler);
    rejected(
        client.defer_job(add().delay_secs(1)),
        RejectReason::Unsupported,
    );
    let raw = RawRequest::new("q", "timeout:x", "");
    rejected(client.send_request(raw), RejectReason::Malformed);

    // What nobody waits for is listed.
    let msgid = client.post(add().queue("narrow")).expect("room");
    let failures = eventually("a failure", PATIENCE, || {
        let failures = client.take_failures();
        if failures.is_empty() {
            Err(String::new())
        } else {
            Ok(failures)
        }
    });
    assert_eq!(failures.list[0].msgid, msgid);
    assert!(failures.list[0].error.to_string().contains("queue-full"));
    // What cannot be sent is told at once.
    let nan = client.defer_job(add().arg(f64::NAN));
    assert!(matches!(nan, Err(SendError::Invalid(_))), "{nan:?}");
    drop(worker);
}

fn failures_and_odd_results_are_told_apart(target: Target) {
    let router = Router::ours(target);
    let context = Context::new();
    let worker = worker(&context, &router, r#"[[10, "default"]]"#, 10);
    let client = client(&router.addresses().frontend);
    let answered = |frames: &[&[u8]]| {
        let pending = client.start_call(add().returns::<i64>()).expect("room");
        let msgid = worker.expect("REQUEST")[3].clone();
        let (json, rest) = frames.split_first().expect("a result");
        worker.send(&[&[&b"REPLY"[..], b"r", json, &msgid], rest].concat());
        pending.wait()
    };
    let error = br#"{"value": null, "error": {"type": "KeyError", "message": "'x'", "traceback": "line 1"}}"#;
    let expected = JobError {
        status: Some(JobStatus::Error),
        kind: "KeyError".to_owned(),
        message: "'x'".to_owned(),
        traceback: Some("line 1".to_owned()),
    };
    assert_eq!(answered(&[error, b"error"]), Err(CallError::Job(expected)));
    assert_eq!(answered(&[br#"{"value": -5}"#]), Ok(-5));
    for odd in [
        &b"\xff"[..],
        b"",
        b"{\"value\": NaN}",
        br#"{"value": "TimeoutError"}"#,
    ] {
        let result = answered(&[odd]);
        assert!(matches!(result, Err(CallError::Result(_))), "{result:?}");
    }
    // The worker is gone: the broker says so.
    let pending = client.start_call(add().returns::<i64>()).expect("room");
    worker.expect("REQUEST");
    drop(worker);
    match pending.wait() {
        Err(CallError::Job(error)) => assert_eq!(error.kind, "JobLost"),
        other => panic!("{other:?}"),
    }
    // Nobody runs it.
    let late = client.call_within(add().returns::<i64>(), Duration::from_millis(300));
    assert_eq!(late, Err(CallError::TimedOut));
}

fn schedules_reach_the_scheduler(target: Target) {
    let router = Router::ours(target);
    let context = Context::new();
    let scheduler = Dealer::connect(&context, &router.addresses().frontend, Some(b"s1"));
    scheduler.send(&["INFORM", "inf", "", "scheduler"]);
    scheduler.expect("ACK");
    let client = client(&router.addresses().frontend);
    let every = Schedule::every(10, &add()).nohaste(true).run_count(3);
    assert_eq!(client.schedule(every), Ok(Accepted::Confirmed));
    assert_eq!(
        text(&scheduler.expect("SCHEDULE"))[4..],
        ["default", "guarantee,nohaste,run_count:3", "10", RUN, ""]
    );
    let cron = Schedule::cron("*/5 * * * *", &add().queue("q"));
    assert_eq!(client.schedule(cron), Ok(Accepted::Confirmed));
    assert_eq!(
        text(&scheduler.expect("SCHEDULE"))[4..],
        ["q", "guarantee", "-1", RUN, "*/5 * * * *"]
    );
    assert_eq!(client.unschedule(&add()), Ok(Accepted::Confirmed));
    assert_eq!(
        text(&scheduler.expect("UNSCHEDULE"))[4..],
        ["default", "guarantee", "-1", RUN, ""]
    );
}

fn many_threads_have_many_calls_outstanding(target: Target) {
    const THREADS: i64 = 8;
    const EACH: i64 = 500;
    let router = Router::ours(target);
    let context = Context::new();
    let worker = worker(&context, &router, r#"[[10, "default"]]"#, 100);
    let client = client(&router.addresses().frontend);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let client = client.clone();
            scope.spawn(move || {
                let calls: Vec<_> = (0..EACH)
                    .map(|n| {
                        let n = thread * EACH + n;
                        let request = Request::new("jobs_x.echo").arg(n).returns::<i64>();
                        (n, client.start_call(request).expect("room"))
                    })
                    .collect();
                for (n, call) in calls {
                    assert_eq!(call.wait(), Ok(n));
                }
            });
        }
        for _ in 0..THREADS * EACH {
            let got = worker.expect("REQUEST");
            let json: serde_json::Value = serde_json::from_slice(&got[6]).expect("JSON");
            let result = format!(r#"{{"value": {}}}"#, json[1]["args"][0]);
            worker.send(&[b"REPLY", &b"r"[..], result.as_bytes(), &got[3], b"ok"]);
            worker.ready(1);
        }
    });
    assert_eq!(client.stray_answers(), 0);
}

fn jobs_survive_a_broker_that_is_restarted(target: Target) {
    let router = Router::ours(target);
    let addresses = router.addresses().clone();
    let client = client(&addresses.frontend);
    assert_eq!(client.defer_job(add()), Ok(Accepted::Confirmed));
    drop(router);
    // Waits for the next broker.
    let waiting = client.start(add()).expect("room");
    let call = client.start_call(add().returns::<i64>()).expect("room");
    let mut router = Start::new(target).at(&addresses).start().expect("ours");
    assert_eq!(waiting.wait(), Ok(Accepted::Confirmed));
    // A broker that is asked to end refuses or loses nothing that is not told.
    router.process().signal(Signal::SIGTERM);
    router.process().wait(PATIENCE);
    match call.wait() {
        Err(CallError::ConnectionLost) => {}
        Err(CallError::Job(error)) => assert_eq!(error.status, Some(JobStatus::Lost), "{error}"),
        other => panic!("{other:?}"),
    }
    assert!(client.take_failures().is_empty());
}

fn large_jobs_and_results_pass(target: Target) {
    let router = Router::ours(target);
    let context = Context::new();
    let worker = worker(&context, &router, r#"[[10, "default"]]"#, 4);
    let client = client(&router.addresses().frontend);
    let large = "x".repeat(16 << 20);
    let request = Request::new("jobs_x.echo").arg(&large).returns::<String>();
    let calls: Vec<_> = (0..3)
        .map(|_| client.start_call(request.clone()).expect("room"))
        .collect();
    for call in calls {
        let got = worker.expect("REQUEST");
        let json: serde_json::Value = serde_json::from_slice(&got[6]).expect("JSON");
        let result = format!(r#"{{"value": {}}}"#, json[1]["args"][0]);
        worker.send(&[b"REPLY", &b"r"[..], result.as_bytes(), &got[3], b"ok"]);
        assert_eq!(call.wait().map(|text| text.len()), Ok(large.len()));
    }
}

#[test]
fn the_first_broker_that_can_be_reached_is_used_and_left_when_it_goes() {
    let first = Router::ours(Target::Inline);
    let second = Router::ours(Target::Inline);
    let list = format!(
        "{}, {}, {}",
        nowhere(),
        first.addresses().frontend,
        second.addresses().frontend
    );
    let context = Context::new();
    let (one, two) = (
        worker(&context, &first, r#"[[10, "default"]]"#, 10),
        worker(&context, &second, r#"[[10, "default"]]"#, 10),
    );
    let client = client(&list);
    assert_eq!(client.defer_job(add()), Ok(Accepted::Confirmed));
    one.expect("REQUEST");
    drop(first);
    assert_eq!(client.defer_job(add()), Ok(Accepted::Confirmed));
    two.expect("REQUEST");
}

#[test]
fn without_a_broker_the_caller_is_told_why() {
    let client = quick_client(&format!("{},ipc:///no/such/socket", nowhere()));
    match client.defer_job(add()) {
        Err(SendError::NotConnected(why)) => {
            assert!(why.contains("tcp://") || why.contains("ipc://"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    let unknown = quick_client("tcp://no-such-host.invalid:1").defer_job(add());
    assert!(
        matches!(unknown, Err(SendError::NotConnected(_))),
        "{unknown:?}"
    );
}

/// A broker that has stopped: its kernel takes everything, and it answers nothing.
#[test]
fn a_broker_that_hangs_is_left_for_the_next_one() {
    let mut first = Router::ours(Target::Inline);
    let second = Router::ours(Target::Inline);
    let client = quick_client(&format!(
        "{},{}",
        first.addresses().frontend,
        second.addresses().frontend
    ));
    assert_eq!(client.defer_job(add()), Ok(Accepted::Confirmed));
    first.process().signal(Signal::SIGSTOP);
    let stat = format!("/proc/{}/stat", first.process().pid());
    eventually("it is stopped", PATIENCE, || {
        let text = std::fs::read_to_string(&stat).expect("its state");
        if text.contains(") T ") {
            Ok(())
        } else {
            Err(text)
        }
    });
    let error = client.defer_job(add()).expect_err("it hangs");
    assert!(error.may_have_been_taken(), "{error}");
    eventually("the second broker is used", PATIENCE, || {
        client.defer_job(add()).map_err(|error| error.to_string())
    });
    // What may run twice is not lost meanwhile.
    first.process().signal(Signal::SIGCONT);
}

#[test]
fn too_much_outstanding_is_told_at_once_or_waited_for() {
    let config = ClientConfig::new(&nowhere())
        .expect("an address")
        .accept_timeout(Duration::from_millis(500))
        .outstanding_max(3, 1 << 20);
    let client = Client::start_with(config).expect("a client");
    let tickets: Vec<_> = (0..3).map(|_| client.start(add()).expect("room")).collect();
    assert_eq!(client.start(add()).err(), Some(SendError::Full));
    for ticket in tickets {
        assert!(matches!(ticket.wait(), Err(SendError::NotConnected(_))));
    }
    assert!(client.start(add()).is_ok());
}

#[test]
fn publications_reach_subscribers() {
    let publisher = Publisher::ours(&[]);
    let context = Context::new();
    let subscriber = context.socket(zmq::SUB).expect("a socket");
    subscriber.set_linger(0).expect("linger");
    subscriber.set_subscribe(b"news").expect("subscribes");
    subscriber.connect(&publisher.outgoing).expect("connects");
    let config = ClientConfig::new(&nowhere())
        .and_then(|config| config.publishers(&publisher.incoming))
        .expect("addresses")
        .accept_timeout(PATIENCE);
    let client = Client::start_with(config).expect("a client");
    // Until the subscription has arrived.
    subscriber.set_rcvtimeo(100).expect("a time-out");
    let got = eventually("a publication", PATIENCE, || {
        let publication = Publication::json("news.today", &["update", "1"]);
        assert_eq!(client.publish(publication), Ok(Accepted::Unconfirmed));
        subscriber.recv_multipart(0).map_err(|e| e.to_string())
    });
    assert_eq!(text(&got), ["news.today", r#"["update", "1"]"#]);
}

/// The original's job manager with the jobs of `tests/python`; `None` when it is missing.
fn job_manager(router: &Router) -> Option<Process> {
    let mut command = Command::new(original("emq-jobmanager")?);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("EVENTMQ_") {
            command.env_remove(name);
        }
    }
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
    command
        .env("PYTHONPATH", python)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("EVENTMQ_CONFIG_FILE", "/nonexistent")
        .env("EVENTMQ_WORKER_ADDR", &router.addresses().backend)
        .env("EMQ_TEST_TRACE", router.dir().join("trace"))
        .current_dir(router.dir());
    let log = router.dir().join("jobmanager.log");
    let started = Process::start_group("emq-jobmanager", &mut command, &log);
    Some(started.expect("emq-jobmanager starts"))
}

/// How often each word was recorded.
fn runs(router: &Router) -> HashMap<String, usize> {
    let text = std::fs::read_to_string(router.dir().join("trace")).unwrap_or_default();
    let mut runs = HashMap::new();
    for word in text.lines().filter_map(|line| line.split(' ').next()) {
        *runs.entry(word.to_owned()).or_default() += 1;
    }
    runs
}

fn the_originals_job_manager_runs_our_jobs(target: Target) {
    let router = Router::ours(target);
    let Some(_manager) = job_manager(&router) else {
        return;
    };
    let client = client(&router.addresses().frontend);
    let calls: Vec<_> = (0..200)
        .map(|n| {
            let word = format!("\u{e9}{n}");
            let request = Request::new("jobs_x.record").kwarg("word", &word);
            (
                word,
                client
                    .start_call(request.returns::<String>())
                    .expect("room"),
            )
        })
        .collect();
    for (word, call) in calls {
        assert_eq!(call.wait(), Ok(word));
    }
    let runs = runs(&router);
    assert_eq!((runs.len(), runs.values().sum::<usize>()), (200, 200));
    // An exception looks like a result there.
    let wrong = client.call(Request::new("jobs_x.nothing").returns::<String>());
    assert!(wrong.is_ok_and(|text| text.contains("no attribute")));
}

#[test]
fn the_original_broker_takes_our_jobs_unconfirmed_and_owes_no_results() {
    let Some(router) = Router::start(Target::Original) else {
        return;
    };
    let Some(_manager) = job_manager(&router) else {
        return;
    };
    let client = client(&router.addresses().frontend);
    for n in 0..200 {
        let request = Request::new("jobs_x.record").arg(format!("w{n}"));
        let accepted = client.defer_job(request);
        assert!(accepted.is_ok(), "{accepted:?}");
    }
    eventually("all have run", START, || {
        let runs = runs(&router);
        if runs.len() == 200 {
            Ok(())
        } else {
            Err(runs.len().to_string())
        }
    });
    assert!(runs(&router).values().all(|count| *count == 1));
    let call = client.call(Request::new("jobs_x.record").arg("x").returns::<String>());
    assert_eq!(call, Err(CallError::NoResults));
    // Without an answer to wait for, a client that ends has still sent everything.
    for n in 0..200 {
        client
            .post(Request::new("jobs_x.record").arg(format!("p{n}")))
            .expect("room");
    }
    drop(client);
    eventually("all have run", START, || {
        let runs = runs(&router);
        if runs.len() == 400 {
            Ok(())
        } else {
            Err(runs.len().to_string())
        }
    });
}
