//! The generator against brokers that answer as they should, and ones that do not. The broker of
//! these tests answers REQUESTs itself; no worker is involved.

use super::*;
use crate::child::loopback;
use crate::handshake::{Blocking, Opened, accept};
use crate::measure::{self, Broker, Course, Extent, Measured};
use crate::progress::Progress;
use crate::wire::message;
use crate::workload::{Name, Overrides, Workload};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

const JOBS: u64 = 120;

/// What a broker sends for REQUEST number `n` (from 0) with this msgid.
type Answers = fn(n: u64, msgid: &[u8]) -> Vec<Vec<u8>>;

fn acceptance(msgid: &[u8]) -> Vec<u8> {
    message(&[b"REPLY", b"own", msgid])
}

fn result(msgid: &[u8]) -> Vec<u8> {
    message(&[b"REPLY", b"own", b"{\"value\": 1}", msgid, b"ok"])
}

fn serve(mut client: Opened, answers: Answers) -> Result<()> {
    let mut number = 0;
    loop {
        let mut out = Vec::new();
        client.take_messages("a REQUEST", |buf, frames| {
            assert_eq!(frames.get(buf, 2), b"REQUEST");
            assert_eq!(frames.get(buf, 5), b"reply-requested");
            out.extend(answers(number, frames.get(buf, 3)).concat());
            number += 1;
            Ok(())
        })?;
        client.send(&out)?;
    }
}

/// One client with 8 jobs outstanding and no worker.
fn plan(addr: eventmq::addr::Addr, pace: Pace) -> Plan {
    let mut workload = Workload::new(Name::L1, &Overrides::default()).unwrap();
    (workload.outstanding, workload.workers) = (8, 0);
    Plan {
        workload,
        frontend: addr.clone(),
        backend: addr,
        transport: crate::transport::Transport::Native,
        manners: Manners::Full,
        pace,
        threads: 1,
        deadline: Duration::from_millis(300),
        is_broker: true,
        tolerant: false,
    }
}

/// Sends at least [`JOBS`] jobs, 8 at a time, to a broker with these answers.
fn run(pace: Pace, answers: Answers) -> Result<Measured> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = loopback(listener.local_addr().unwrap().port());
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        // It ends when the generator closes the connection.
        let _ = accept(Blocking::Tcp(stream)).and_then(|client| serve(client, answers));
    });
    let plan = plan(addr, pace);
    let mut progress = Progress::new("test".to_owned(), true);
    let course = Course {
        warm_up: Extent::Jobs(0),
        window: Extent::Jobs(JOBS),
        interval: Duration::from_millis(50),
        administrative: None,
    };
    let mut broker = Broker::External(None);
    measure::run(&plan, &mut broker, &course, &mut progress, &mut |_| Ok(()))
}

fn failure(answers: Answers) -> String {
    run(Pace::Closed, answers).unwrap_err().to_string()
}

#[test]
fn every_job_is_answered() {
    let measured = run(Pace::Closed, |_, id| vec![acceptance(id), result(id)]).unwrap();
    assert!(
        measured.jobs >= JOBS && measured.jobs_per_sec > 0.0,
        "{measured:?}"
    );
}

#[test]
fn open_loop_keeps_its_rate() {
    let pace = Pace::Open { interval_ns: 1e6 };
    let started = Instant::now();
    run(pace, |_, id| vec![acceptance(id), result(id)]).unwrap();
    // 120 jobs, 1 ms apart.
    assert!(started.elapsed() >= Duration::from_millis(119));
}

#[test]
fn lost_result_is_missing() {
    let line = failure(|n, id| match n {
        50 => vec![acceptance(id)],
        _ => vec![acceptance(id), result(id)],
    });
    assert!(line.contains("nothing moved for 0.3 s"), "{line}");
    assert!(
        line.contains("0 acceptances and results, 1 more results"),
        "{line}"
    );
}

#[test]
fn lost_request_is_missing() {
    let line = failure(|n, id| match n {
        99 => Vec::new(),
        _ => vec![acceptance(id), result(id)],
    });
    assert!(
        line.contains("1 acceptances and results, 0 more results"),
        "{line}"
    );
}

#[test]
fn no_worker_is_suspected_when_nothing_comes_back() {
    let line = failure(|_, id| vec![acceptance(id)]);
    assert!(
        line.contains("8 more results") && line.contains("does a worker serve"),
        "{line}"
    );
}

#[test]
fn rejection_gives_its_reason() {
    let line = failure(|n, id| match n {
        3 => vec![message(&[b"REJECT", b"own", id, b"queue-full"])],
        _ => vec![acceptance(id), result(id)],
    });
    assert!(line.contains("rejects a job: queue-full"), "{line}");
}

#[test]
fn second_result_is_an_error() {
    let line = failure(|n, id| match n {
        99 => vec![acceptance(id), result(id), result(id)],
        _ => vec![acceptance(id), result(id)],
    });
    assert!(line.contains("not outstanding"), "{line}");
}

#[test]
fn result_before_acceptance_is_an_error() {
    let line = failure(|_, id| vec![result(id), acceptance(id)]);
    assert!(line.contains("a result before its acceptance"), "{line}");
}

#[test]
fn bytes_that_are_no_frames_are_shown() {
    let line = failure(|_, _| vec![b"nonsense".to_vec()]);
    assert!(line.contains("no ZMTP message: nonsense"), "{line}");
}

#[test]
fn ping_is_answered_with_its_context() {
    let mut out = Vec::new();
    serve::pong(b"\x04PING\x00\x64ctx", &mut out);
    assert_eq!(out, b"\x04\x08\x04PONGctx");
    out.clear();
    serve::pong(b"\x04PONG", &mut out);
    assert!(out.is_empty());
}

/// Lets a tolerant generator run against a broker with these answers until `jobs` are done.
fn soak(jobs: u64, answers: Answers) -> Vec<Outcome> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = loopback(listener.local_addr().unwrap().port());
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let _ = accept(Blocking::Tcp(stream)).and_then(|client| serve(client, answers));
    });
    let mut plan = plan(addr, Pace::Closed);
    plan.tolerant = true;
    let shared = Arc::new(Shared::new(1));
    let running = spawn(&plan, &shared).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while shared.done.load(Ordering::Relaxed) < jobs && Instant::now() < until {
        thread::yield_now();
    }
    measure::end(&shared, running, false).unwrap()
}

#[test]
fn tolerant_run_names_what_was_lost_and_what_came_twice() {
    let outcomes = soak(JOBS, |n, id| match n {
        // Never answered.
        20 => Vec::new(),
        30 => vec![acceptance(id)],
        40 => vec![acceptance(id), result(id), result(id)],
        50 => vec![acceptance(id), acceptance(id), result(id)],
        60 => vec![message(&[b"REJECT", b"own", id, b"memory-full"])],
        70 => vec![
            acceptance(id),
            message(&[b"REPLY", b"own", b"{}", id, b"lost"]),
        ],
        _ => vec![acceptance(id), result(id)],
    });
    let [outcome] = &outcomes[..] else {
        panic!("one thread");
    };
    let incidents = &outcome.incidents;
    let counts = Violation::ALL.map(|violation| (violation, incidents.count(violation)));
    for (violation, count) in counts {
        let expected = match violation {
            Violation::Unanswered => 2,
            Violation::Unknown
            | Violation::AcceptedTwice
            | Violation::Rejected
            | Violation::Lost => 1,
            _ => 0,
        };
        assert_eq!(count, expected, "{violation:?}");
    }
    for noted in &incidents.noted {
        assert_eq!(noted.msgid.len(), crate::wire::MSGID_BYTES, "{noted:?}");
        assert!(noted.text.contains(&noted.msgid), "{noted:?}");
    }
    assert!(outcome.tally.done >= JOBS);
}
