//! Messages that are whole ZMTP and no proper eMQP: each is refused under exactly one counter, with
//! the answer that its command calls for, and nobody else notices.

use eventmq_tests::attack::{Good, start};
use eventmq_tests::dealer::{Dealer, show};
use eventmq_tests::router::{Router, Target};
use eventmq_tests::{PATIENCE, in_both_threadings};
use std::collections::BTreeMap;
use std::time::Instant;
use zmq::Context;

in_both_threadings!(every_wrong_message_has_one_reason);

/// Counters that tell of something refused, ignored or unknown.
const REFUSALS: [&str; 4] = ["ignored_", "rejected_", "replies_", "slots_over_limit"];

/// Who sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    Client,
    /// A connection to the backend that has not registered.
    Stranger,
    /// A registered worker with `slots:1` and one free slot.
    Worker,
}

/// A job as a schedule names it.
const CALL: &[u8] = br#"["run", {"path": "m", "callable": "f", "args": [], "kwargs": {}, "class_args": [], "class_kwargs": {}}]"#;

type Bytes = Vec<u8>;

/// What is sent, the counter that goes up, and the answer: a command and perhaps a reason.
struct Row {
    from: Sender,
    frames: Vec<Bytes>,
    counter: &'static str,
    answer: Option<(&'static str, &'static str)>,
}

fn row(
    from: Sender,
    frames: &[&[u8]],
    counter: &'static str,
    answer: Option<(&'static str, &'static str)>,
) -> Row {
    Row {
        from,
        frames: frames.iter().map(|frame| frame.to_vec()).collect(),
        counter,
        answer,
    }
}

/// With the two frames that are always in front.
fn emqp(
    from: Sender,
    frames: &[&[u8]],
    counter: &'static str,
    answer: Option<(&'static str, &'static str)>,
) -> Row {
    row(
        from,
        &[&[&b""[..], b"eMQP/1.0"], frames].concat(),
        counter,
        answer,
    )
}

fn rows() -> Vec<Row> {
    use Sender::{Client, Stranger, Worker};
    let long = [b'n'; 256];
    let malformed = Some(("REJECT", "malformed"));
    let mut rows = vec![
        row(Client, &[b""], "ignored_frames", None),
        row(
            Client,
            &[b"", b"eMQP/1.0", b"REQUEST"],
            "ignored_frames",
            None,
        ),
        row(
            Client,
            &[b"x", b"eMQP/1.0", b"REQUEST", b"m"],
            "ignored_frame0",
            None,
        ),
        row(
            Client,
            &[b"", b"eMQP/2.0", b"REQUEST", b"m"],
            "ignored_version",
            None,
        ),
        row(
            Client,
            &[b"", b"", b"REQUEST", b"m"],
            "ignored_version",
            None,
        ),
        row(
            Client,
            &[b"", b"\xff\xfe", b"REQUEST", b"m"],
            "ignored_version",
            None,
        ),
        emqp(
            Client,
            &[b"request", b"m", b"q", b"", b"b"],
            "ignored_command",
            None,
        ),
        emqp(Client, &[b"", b"m"], "ignored_command", None),
        emqp(Client, &[b"\xff\xfe", b"m"], "ignored_command", None),
        emqp(Client, &[&long, b"m"], "ignored_command", None),
        emqp(
            Client,
            &[b"REQUEST", b"", b"q", b"", b"b"],
            "ignored_msgid",
            None,
        ),
        emqp(
            Client,
            &[b"REQUEST", &long, b"q", b"", b"b"],
            "ignored_msgid",
            None,
        ),
        // Too few, too many, or not fitting.
        emqp(Client, &[b"REQUEST", b"m"], "rejected_malformed", malformed),
        emqp(
            Client,
            &[b"REQUEST", b"m", b"q"],
            "rejected_malformed",
            malformed,
        ),
        emqp(
            Client,
            &[b"REQUEST", b"m", b"q", b""],
            "rejected_malformed",
            malformed,
        ),
        emqp(
            Client,
            &[b"REQUEST", b"m", &long, b"", b"b"],
            "rejected_too_large",
            Some(("REJECT", "too-large")),
        ),
        emqp(
            Client,
            &[b"SCHEDULE", b"m", b"q"],
            "rejected_malformed",
            malformed,
        ),
        emqp(
            Client,
            &[b"UNSCHEDULE", b"m"],
            "rejected_malformed",
            malformed,
        ),
        emqp(
            Client,
            &[b"SCHEDULE", b"m", b"q", b"", b"5", CALL, b""],
            "rejected_no_scheduler",
            Some(("REJECT", "no-scheduler")),
        ),
        emqp(
            Client,
            &[b"SCHEDULE", b"m", b"q", b"", b"5", b"b", b""],
            "rejected_malformed",
            malformed,
        ),
        emqp(Client, &[b"INFORM", b"m"], "ignored_inform", None),
        emqp(
            Client,
            &[b"INFORM", b"m", b"", b"worker"],
            "ignored_inform",
            None,
        ),
        emqp(
            Client,
            &[b"INFORM", b"m", b"", b"\xff"],
            "ignored_inform",
            None,
        ),
        emqp(Worker, &[b"REPLY", b"m"], "ignored_reply", None),
        emqp(Worker, &[b"REPLY", b"m", b"result"], "ignored_reply", None),
        emqp(
            Worker,
            &[b"REPLY", b"m", b"result", b""],
            "ignored_reply",
            None,
        ),
        emqp(
            Worker,
            &[b"REPLY", b"m", b"result", &long],
            "ignored_reply",
            None,
        ),
        emqp(
            Worker,
            &[b"REPLY", b"m", b"result", b"nobody's"],
            "replies_unknown",
            None,
        ),
        emqp(
            Worker,
            &[b"REPLY", b"m", b"result", b"\xff", b"ok"],
            "replies_unknown",
            None,
        ),
        emqp(Worker, &[b"READY", b"m"], "slots_over_limit", None),
    ];
    for headers in [
        "timeout:x",
        "timeout:-1",
        "retry-count:",
        "delay:1e9",
        "debounce:x",
    ] {
        let frames = [&b"REQUEST"[..], b"m", b"q", headers.as_bytes(), b"b"];
        rows.push(emqp(Client, &frames, "rejected_malformed", malformed));
    }
    for command in [
        "READY", "REPLY", "ACK", "REJECT", "PUBLISH", "STATUS", "COUNTERS",
    ] {
        rows.push(emqp(
            Client,
            &[command.as_bytes(), b"m"],
            "ignored_role",
            None,
        ));
    }
    for command in ["REQUEST", "SCHEDULE", "ACK", "REJECT", "PUBLISH", "STATUS"] {
        for from in [Stranger, Worker] {
            rows.push(emqp(
                from,
                &[command.as_bytes(), b"m"],
                "ignored_role",
                None,
            ));
        }
    }
    // The first of these is told to register, once for each connection.
    let told = Some(("DISCONNECT", ""));
    for frames in [
        &[&b"READY"[..], b"m"][..],
        &[b"READY", b"m", b"job", b"ok"],
        &[b"HEARTBEAT", b"m", b"\xff"],
        &[b"REPLY", b"m"],
        &[b"REPLY", b"m", b"result", b""],
        &[b"REPLY", b"m", b"result", &long],
    ] {
        rows.push(emqp(Stranger, frames, "ignored_unregistered", told));
    }
    rows.push(emqp(
        Stranger,
        &[b"KBYE", b"m"],
        "ignored_unregistered",
        None,
    ));
    let ended = [&b"REPLY"[..], b"m", b"result", b"nobody's"];
    rows.push(emqp(Stranger, &ended, "replies_unknown", told));
    for queues in [
        "x",
        "5",
        "null",
        "{}",
        "[5]",
        "[[10]]",
        "[[\"a\", 10]]",
        "[[10, 5]]",
        "[[10, \"a\", 1]]",
        "[[1e400, \"a\"]]",
        "[[NaN, \"a\"]]",
        "[[10, \"a\"]",
        "\u{feff}[]",
    ] {
        let frames = [&b"INFORM"[..], b"m", queues.as_bytes(), b"worker"];
        rows.push(emqp(Stranger, &frames, "ignored_inform", None));
    }
    for capabilities in [
        "slots:x",
        "slots:-1",
        "slots:99999999999999999999",
        "heartbeat:x",
    ] {
        let queues = br#"[[10, "a"]]"#;
        let frames = [
            &b"INFORM"[..],
            b"m",
            queues,
            b"worker",
            capabilities.as_bytes(),
        ];
        rows.push(emqp(Stranger, &frames, "ignored_inform", None));
    }
    for frames in [
        &[&b"INFORM"[..], b"m"][..],
        &[b"INFORM", b"m", br#"[[10, "a"]]"#, b"scheduler"],
        &[b"INFORM", b"m", br#"[[10, "a"]]"#, "w\u{f6}rker".as_bytes()],
        &[b"INFORM", b"m", b"\xff\xfe", b"worker"],
    ] {
        rows.push(emqp(Stranger, frames, "ignored_inform", None));
    }
    rows
}

/// The counters that count.
fn refusals(router: &mut Router) -> BTreeMap<String, u64> {
    let report = router.admin("COUNTERS");
    let counters = report["counters"].as_object().expect("counters");
    let refuses = |name: &str| REFUSALS.iter().any(|prefix| name.starts_with(prefix));
    counters
        .iter()
        .filter(|(name, _)| refuses(name))
        .map(|(name, count)| (name.clone(), count.as_u64().expect("a number")))
        .filter(|(_, count)| *count > 0)
        .collect()
}

fn every_wrong_message_has_one_reason(target: Target) {
    let mut router = start(target, &[]);
    let mut good = Good::new(&router);
    let context = Context::new();
    let addresses = router.addresses().clone();
    let mut expected = refusals(&mut router);
    let mut found = expected.clone();
    let mut wrong = Vec::new();
    for (number, row) in rows().iter().enumerate() {
        let id = format!("wrong-{number}");
        let address = match row.from {
            Sender::Client => &addresses.frontend,
            Sender::Stranger | Sender::Worker => &addresses.backend,
        };
        let peer = Dealer::connect(&context, address, Some(id.as_bytes()));
        if row.from == Sender::Worker {
            peer.send(&["INFORM", "i", r#"[[10, "its own"]]"#, "worker", "slots:1"]);
            peer.expect("ACK");
            peer.ready(1);
        }
        peer.send_raw(&row.frames);
        let what = format!("{:?}: {}", row.from, show(&row.frames));
        *expected.entry(row.counter.to_owned()).or_default() += 1;
        let before: u64 = found.values().sum();
        let end = Instant::now() + PATIENCE;
        while found.values().sum::<u64>() == before && Instant::now() < end {
            found = refusals(&mut router);
        }
        if found != expected {
            let other = found
                .iter()
                .filter(|(name, n)| expected.get(*name) != Some(n));
            let other: Vec<_> = other.collect();
            wrong.push(format!("{what}: {}, not {other:?}", row.counter));
            expected.clone_from(&found);
            continue;
        }
        if let Some((command, reason)) = row.answer {
            let answer = peer.expect(command);
            if command == "REJECT" {
                assert_eq!(answer[5], reason.as_bytes(), "{what}: {}", show(&answer));
            }
        }
        if number % 10 == 0 {
            good.works();
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    good.works();
    // Nothing more came of any of them.
    assert_eq!(refusals(&mut router), expected);
}
