//! What cannot be measured is said in one line with what to do, and never waited for for long.

mod common;

use common::{emq_bench, error_of};
use eventmq_tests::router::{Router, Target};
use nix::sys::signal::Signal;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Everything here has to end well before its deadlines and those of connecting add up to this.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs it, and what it says: one line, with this exit code.
#[track_caller]
fn refused(line: &str, code: i32) -> String {
    let begin = Instant::now();
    let output = emq_bench(line);
    assert!(
        begin.elapsed() < PATIENCE,
        "{line} took {:?}",
        begin.elapsed()
    );
    let error = error_of(&output);
    assert_eq!(output.status.code(), Some(code), "{line}: {error}");
    assert_eq!(error.lines().count(), 1, "{line}: {error}");
    error
}

/// A listener whose every connection is given to `serve` on a thread; it ends with the test.
fn listen(serve: fn(TcpStream)) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream));
        }
    });
    format!("tcp://{addr}")
}

const COMMANDS: [&str; 3] = ["run", "rate", "soak"];

#[test]
fn unreachable_address() {
    for command in COMMANDS {
        let line = refused(
            &format!("{command} -q --frontend tcp://127.0.0.1:1 --backend tcp://127.0.0.1:1"),
            1,
        );
        assert!(
            line.contains("cannot connect to tcp://127.0.0.1:1"),
            "{line}"
        );
        assert!(line.contains("listening there?"), "{line}");
    }
    #[cfg(feature = "libzmq")]
    assert!(
        refused(
            "run -q --transport zmq --frontend tcp://127.0.0.1:1 --backend tcp://127.0.0.1:1",
            1
        )
        .contains("listening there?")
    );
    let line = refused(
        "compare floor at:tcp://127.0.0.1:1+tcp://127.0.0.1:1 -q --duration 0.1 --warmup 0",
        1,
    );
    assert!(line.contains("listening there?"), "{line}");
}

#[test]
fn address_that_is_not_zmtp() {
    let http = listen(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        let _ = stream.read(&mut [0; 1024]);
    });
    for command in COMMANDS {
        let line = refused(
            &format!("{command} -q --frontend {http} --backend {http}"),
            1,
        );
        assert!(
            line.contains("does not speak ZMTP 3") && line.contains("HTTP/1.1 400"),
            "{line}"
        );
    }
}

#[test]
fn address_that_says_nothing() {
    let silent = listen(|mut stream| {
        let mut sink = [0; 1024];
        while stream.read(&mut sink).is_ok_and(|read| read > 0) {}
    });
    let line = refused(&format!("run -q --frontend {silent} --backend {silent}"), 1);
    assert!(line.contains("sent no ZMTP greeting for 5 s"), "{line}");
}

#[test]
fn frontend_and_backend_mixed_up() {
    let router = Router::ours(Target::Inline);
    let addresses = router.addresses();
    let line = refused(
        &format!(
            "run -q --frontend {} --backend {}",
            addresses.backend, addresses.frontend
        ),
        1,
    );
    assert!(
        line.contains("worker") && line.contains(&addresses.frontend),
        "{line}"
    );
    let line = refused(
        &format!(
            "run -q --frontend {} --backend {} --admin {}",
            addresses.frontend, addresses.backend, addresses.frontend
        ),
        1,
    );
    assert!(line.contains("no answer to STATUS"), "{line}");
}

#[test]
fn broker_that_rejects() {
    // More jobs than a queue that is not the default one may have waiting (hwm).
    let line = refused(
        "run -q --queue other --clients 1 --outstanding 20000 --service fixed:20s --duration 0.5",
        1,
    );
    assert!(line.contains("rejects a job: queue-full"), "{line}");
    assert!(
        line.contains("hwm") && line.contains("--outstanding"),
        "what to do: {line}"
    );
}

#[test]
fn no_worker() {
    let line = refused("run -q --workers 0", 2);
    assert!(line.contains("--frontend and --backend"), "{line}");
    let router = Router::ours(Target::Inline);
    let addresses = router.addresses();
    let line = refused(
        &format!(
            "run -q --workers 0 --deadline 0.5 --frontend {} --backend {}",
            addresses.frontend, addresses.backend
        ),
        1,
    );
    assert!(line.contains("does a worker serve this queue?"), "{line}");
    assert!(line.contains("nothing moved for 0.5 s"), "{line}");
}

/// The broker dies under the load.
#[track_caller]
fn broker_dies(command: &str) -> String {
    let mut router = Router::ours(Target::Inline);
    let addresses = router.addresses().clone();
    let line = format!(
        "{command} -q --frontend {} --backend {}",
        addresses.frontend, addresses.backend
    );
    let load = thread::spawn(move || refused(&line, 1));
    router.wait_for_counter("requests_accepted", 1_000);
    router.process().signal(Signal::SIGKILL);
    load.join().expect("one line and exit code 1")
}

#[test]
fn broker_that_dies_under_the_load() {
    for command in [
        "run --duration 60",
        "soak --minutes 5 --fault kill-worker:100ms",
    ] {
        let line = broker_dies(command);
        assert!(
            [
                "closed the connection",
                "broke",
                "cannot connect",
                "cannot write"
            ]
            .iter()
            .any(|what| line.contains(what)),
            "{line}"
        );
    }
}

#[test]
fn router_that_is_no_eventmq_broker() {
    let silent = listen(|mut stream| {
        // A greeting and a READY, then nothing more is read: the worker gets no ACK.
        let mut greeting = [0_u8; 64];
        (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
        greeting[12..16].copy_from_slice(b"NULL");
        let ready = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER";
        let _ = stream.write_all(&greeting);
        let _ = stream.write_all(ready);
        let mut sink = [0; 1024];
        while stream.read(&mut sink).is_ok_and(|read| read > 0) {}
    });
    let line = refused(
        &format!("run -q --answers full --frontend {silent} --backend {silent}"),
        1,
    );
    assert!(line.contains("ACK for a worker's INFORM"), "{line}");
}

#[test]
fn impossible_options() {
    for (line, expected) in [
        ("run --service gamma:1ms", "pareto"),
        ("run --fail-share 2", "--fail-share must be 0 to 1"),
        ("run --queues 3 --target floor", "floor takes one queue"),
        ("run --queues 5000 --workers 1", "at least 5 --workers"),
        ("run --target at:tcp://127.0.0.1:1", "FRONTEND+BACKEND"),
        (
            "run --router /nonexistent/emq-router",
            "/nonexistent/emq-router",
        ),
        ("rate --from 10 --to 5", "above --to"),
        ("rate --target floor,ours-inline", "emq-bench compare"),
        ("soak --fault reboot:5s", "kill-worker:EVERY"),
        ("soak --reply-share 0.5", "--reply-share"),
        ("soak --minutes 0", "--minutes"),
        (
            "soak --json /nonexistent/soak.json",
            "/nonexistent/soak.json",
        ),
        ("run --json /nonexistent/run.json", "cannot write results"),
        (
            "soak --deadline 1 --fault stop-reading:2s:2s",
            "too long for a --deadline",
        ),
        ("soak --target floor", "floor keeps no account"),
        ("compare ours-inline ours-dedicated --pairs 0", "--pairs"),
    ] {
        let output = emq_bench(line);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{line}: {}",
            error_of(&output)
        );
        assert!(
            error_of(&output).contains(expected),
            "{line}: {}",
            error_of(&output)
        );
    }
}

#[test]
fn report_of_what_is_no_result() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let page = path("page.html");
    let line = refused(&format!("report {} -o {page}", path("missing.json")), 1);
    assert!(line.contains("missing.json"), "{line}");
    for (name, text) in [("text.json", "no json"), ("fill.json", "{\"jobs\": 1}")] {
        std::fs::write(folder.path().join(name), text).unwrap();
        let line = refused(&format!("report {} -o {page}", path(name)), 1);
        assert!(line.contains(name) && line.contains("emq-bench"), "{line}");
    }
    assert!(!std::path::Path::new(&page).exists());
}
