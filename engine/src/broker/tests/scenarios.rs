//! The scenarios that run against every broker, in short: what peers see on the wire.

use super::rig::{BODY, Rig};
use crate::ids::Socket;
use crate::metrics::Counter;

const DEFAULT: &str = r#"[[10, "default"]]"#;
const RUN: &str = r#"["run", {"callable": "add", "path": "jobs_x", "args": [1, 2], "kwargs": {}, "class_args": [], "class_kwargs": {}}]"#;

#[test]
fn inform_is_acknowledged_and_registers() {
    let mut rig = Rig::new();
    let w1 = rig.worker("w1", DEFAULT, 0);
    assert!(rig.got(w1).is_empty());
    let shown = rig.broker.workers(rig.now);
    assert_eq!(shown.workers[0].queues, [(10.0, b"default".to_vec())]);
    assert_eq!(
        shown.queues,
        [(b"default".to_vec(), vec![(10.0, b"w1".to_vec())])]
    );
    assert_eq!(rig.slots("w1"), Some((0, 0, "live")));
}

#[test]
fn inform_with_empty_queues_takes_the_setting() {
    let mut rig = Rig::with(|config| config.queues = vec![(3.0, b"a".to_vec())]);
    rig.worker("w1", "", 0);
    rig.worker("w2", "[]", 0);
    let shown = rig.broker.workers(rig.now);
    assert_eq!(shown.workers[0].queues, [(3.0, b"a".to_vec())]);
    assert!(shown.workers[1].queues.is_empty());
}

#[test]
fn inform_of_a_wrong_form_is_ignored() {
    let mut rig = Rig::new();
    let w1 = rig.open(Socket::Backend, "w1");
    let bad: [&[&str]; 7] = [
        &["INFORM", "i", DEFAULT, "bogus"],
        &["INFORM", "i", DEFAULT, "WORKER"],
        &["INFORM", "i", "default", "worker"],
        &["INFORM", "i", "5", "worker"],
        &["INFORM", "i", DEFAULT],
        &["INFORM", "i"],
        &["INFORM", "i", "", "scheduler"],
    ];
    for frames in bad {
        rig.send(w1, frames);
    }
    let c1 = rig.client("c1");
    rig.send(c1, &["INFORM", "i", DEFAULT, "worker"]);
    assert!(rig.got_all(w1).is_empty() && rig.got_all(c1).is_empty());
    assert_eq!(rig.count(Counter::IgnoredInform), bad.len() as u64 + 1);
    assert!(rig.broker.workers(rig.now).workers.is_empty());
}

#[test]
fn inform_twice_resets_slots() {
    let mut rig = Rig::new();
    let w1 = rig.worker("w1", DEFAULT, 2);
    rig.inform(w1, DEFAULT, "");
    assert_eq!(rig.slots("w1"), Some((0, 0, "live")));
    let c1 = rig.client("c1");
    rig.request(c1, "m", "default");
    assert_eq!(rig.got(c1), ["REPLY * m"]);
    assert!(rig.got(w1).is_empty());
    rig.ready(w1);
    assert_eq!(rig.got(w1), ["REQUEST m default  {}"]);
    assert!(rig.got(c1).is_empty());
}

#[test]
fn inform_for_other_queues_leaves_the_old_ones() {
    let mut rig = Rig::new();
    let w1 = rig.worker("w1", r#"[[10, "qa"]]"#, 1);
    let w2 = rig.worker("w2", DEFAULT, 1);
    rig.inform(w1, r#"[[10, "qb"]]"#, "");
    rig.ready(w1);
    let c1 = rig.client("c1");
    rig.request(c1, "m", "qa");
    assert!(rig.got(w1).is_empty() && rig.got(w2).is_empty());
    let w3 = rig.worker("w3", r#"[[10, "qa"]]"#, 0);
    rig.ready(w3);
    assert_eq!(rig.got(w3), ["REQUEST m qa  {}"]);
}

#[test]
fn request_is_forwarded_byte_for_byte_and_accepted() {
    let mut rig = Rig::new();
    let w1 = rig.worker("w1", DEFAULT, 2);
    rig.got(w1);
    let c1 = rig.client("c1");
    rig.request_with(
        c1,
        "m",
        "default",
        "reply-requested,guarantee,retry-count:3,timeout:7",
    );
    assert_eq!(
        rig.got(w1),
        ["REQUEST m default reply-requested,guarantee,retry-count:3,timeout:7 {}"]
    );
    assert_eq!(rig.got(c1), ["REPLY * m"]);
    assert_eq!(rig.count(Counter::GuaranteeNotDurable), 1);
    rig.send(c1, &["REQUEST", "m2", "default", "", BODY, "extra", ""]);
    assert_eq!(rig.got(w1), ["REQUEST m2 default  {} extra "]);
    let odd: [&[u8]; 7] = [
        b"",
        b"eMQP/1.0",
        b"REQUEST",
        b"m3",
        b"default",
        b"",
        b"\xff\xfe\x00\xc3",
    ];
    rig.ready(w1);
    rig.send_frames(c1, &odd);
    let sent = crate::frames::OwnedMessage::from_frames(odd);
    assert_eq!(rig.wires(w1), [sent.view().wire().to_vec()]);
}

#[test]
fn waiting_jobs_are_accepted_at_once_and_handed_out_in_order() {
    let mut rig = Rig::new();
    let c1 = rig.client("c1");
    for msgid in ["m0", "m1", "m2"] {
        rig.request(c1, msgid, "default");
    }
    assert_eq!(rig.got(c1), ["REPLY * m0", "REPLY * m1", "REPLY * m2"]);
    let w1 = rig.worker("w1", DEFAULT, 2);
    assert_eq!(rig.jobs(w1), ["m0", "m1"]);
    // Without `completions` a READY that owes nothing counts as the end of the oldest job.
    assert_eq!(rig.queue("default"), (1, 1, 2));
}

#[test]
fn unknown_and_empty_queue_names_go_to_default_workers() {
    let mut rig = Rig::new();
    let w1 = rig.worker("w1", DEFAULT, 2);
    let c1 = rig.client("c1");
    rig.request(c1, "m", "nobody");
    rig.request(c1, "n", "");
    assert_eq!(rig.got(w1), ["REQUEST m nobody  {}", "REQUEST n   {}"]);
    assert_eq!(rig.got(c1), ["REPLY * m", "REPLY * n"]);
}

#[test]
fn hwm_refuses_in_named_queues_only() {
    let mut rig = Rig::with(|config| config.hwm = 2);
    let wq = rig.worker("wq", r#"[[10, "q"]]"#, 0);
    let c1 = rig.client("c1");
    for msgid in ["m0", "m1", "m2", "m3"] {
        rig.request(c1, msgid, "q");
        rig.request(c1, "d", "default");
    }
    let got: Vec<_> = rig
        .got(c1)
        .into_iter()
        .filter(|text| !text.ends_with(" d"))
        .collect();
    assert_eq!(
        got,
        [
            "REPLY * m0",
            "REPLY * m1",
            "REJECT * m2 queue-full",
            "REJECT * m3 queue-full"
        ]
    );
    assert_eq!((rig.queue("q").0, rig.queue("default").0), (2, 4));
    for _ in 0..3 {
        rig.ready(wq);
    }
    assert_eq!(rig.jobs(wq), ["m0", "m1"]);
}

#[test]
fn kbye_removes_a_worker_and_its_running_jobs_may_still_end() {
    let mut rig = Rig::new();
    let a = rig.worker("A", DEFAULT, 2);
    let b = rig.worker("B", DEFAULT, 2);
    let c1 = rig.client("c1");
    rig.ask(c1, "m0", "default");
    assert_eq!(rig.jobs(a), ["m0"]);
    rig.send(a, &["KBYE", "k"]);
    assert_eq!(rig.slots("A"), Some((0, 1, "leaving")));
    rig.ready(a);
    rig.request(c1, "m1", "default");
    rig.request(c1, "m2", "default");
    assert_eq!(rig.jobs(b), ["m1", "m2"]);
    rig.got(c1);
    rig.reply(a, "m0");
    assert_eq!(rig.got(c1), ["REPLY x 3 m0"]);
    assert_eq!(rig.slots("A"), None);
    rig.ready(a);
    assert!(rig.got(a).is_empty(), "no DISCONNECT behind a KBYE");
}

#[test]
fn a_dead_connection_gets_no_more_jobs() {
    let mut rig = Rig::new();
    let a = rig.worker("A", DEFAULT, 2);
    let b = rig.worker("B", r#"[[5, "default"]]"#, 2);
    let c1 = rig.client("c1");
    rig.request(c1, "m0", "default");
    assert_eq!(rig.jobs(a), ["m0"]);
    rig.lose(a, 0);
    rig.request(c1, "m1", "default");
    assert_eq!(rig.jobs(b), ["m1"]);
    assert_eq!(rig.slots("A"), Some((1, 1, "grace")));
    let queues = rig.broker.workers(rig.now).queues;
    assert_eq!(queues, [(b"default".to_vec(), vec![(5.0, b"B".to_vec())])]);
    rig.sleep(1_000);
    assert_eq!(rig.slots("A"), None);
    assert_eq!(rig.count(Counter::JobsLost), 1);
}

#[test]
fn an_unregistered_worker_is_told_once_to_register() {
    let mut rig = Rig::new();
    let w9 = rig.open(Socket::Backend, "w9");
    rig.ready(w9);
    rig.send(w9, &["HEARTBEAT", "b", "1.0"]);
    rig.send(w9, &["REPLY", "c", "x", "y"]);
    rig.send(w9, &["FOO", "e"]);
    rig.send(w9, &["KBYE", "d"]);
    assert_eq!(rig.got(w9), ["DISCONNECT *"]);
    let shy = rig.open(Socket::Backend, "w8");
    rig.send(shy, &["KBYE", "d"]);
    rig.ready(shy);
    assert!(rig.got(shy).is_empty());
}

#[test]
fn malformed_requests_are_rejected_other_malformed_input_ignored() {
    let mut rig = Rig::new();
    let w1 = rig.worker("w1", DEFAULT, 1);
    let c1 = rig.client("c1");
    rig.send(c1, &["REQUEST", "m"]);
    rig.send(c1, &["REQUEST", "n", "default"]);
    rig.send(c1, &["REQUEST", "o", "default", ""]);
    rig.request_with(c1, "p", "default", "timeout:x");
    rig.request_with(c1, "q", "default", "delay:3");
    let long = "n".repeat(256);
    rig.request(c1, "r", &long);
    assert_eq!(
        rig.got(c1),
        [
            "REJECT * m malformed",
            "REJECT * n malformed",
            "REJECT * o malformed",
            "REJECT * p malformed",
            "REJECT * q unsupported",
            "REJECT * r too-large"
        ]
    );
    let ignored: [&[&[u8]]; 6] = [
        &[b"", b"eMQP/9.9", b"REQUEST", b"m", b"default", b"", b"{}"],
        &[
            b"junk",
            b"eMQP/1.0",
            b"REQUEST",
            b"m",
            b"default",
            b"",
            b"{}",
        ],
        &[b"", b"eMQP/1.0", b"request", b"m", b"default", b"", b"{}"],
        &[b"", b"eMQP/1.0", b"REQUEST"],
        &[b"", b"eMQP/1.0", b"REQUEST", b"", b"default", b"", b"{}"],
        &[],
    ];
    for frames in ignored {
        rig.send_frames(c1, frames);
    }
    for command in [
        "FOO",
        "READY",
        "HEARTBEAT",
        "KBYE",
        "DISCONNECT",
        "STATUS",
        "REPLY",
    ] {
        rig.send(c1, &[command, "x", "1.0"]);
    }
    for command in [
        "FOO",
        "SCHEDULE",
        "REQUEST",
        "DISCONNECT",
        "STATUS",
        "inform",
    ] {
        rig.send(w1, &[command, "s", "q", "", "1", "{}", ""]);
    }
    rig.send(w1, &["REPLY", "r", "3"]);
    rig.send(w1, &["REPLY", "r", "3", ""]);
    assert!(rig.got(w1).is_empty() && rig.got(c1).is_empty());
    assert_eq!(rig.count(Counter::IgnoredReply), 2);
    rig.request(c1, "m", "default");
    assert_eq!(
        (rig.jobs(w1), rig.got(c1)),
        (vec!["m".to_owned()], vec!["REPLY * m".to_owned()])
    );
}

#[test]
fn a_result_goes_to_the_client_that_asked_byte_for_byte() {
    let mut rig = Rig::new();
    let w1 = rig.worker("w1", DEFAULT, 2);
    let c1 = rig.client("c1");
    rig.ask(c1, "m", "default");
    rig.request(c1, "n", "default");
    rig.got(c1);
    let frames: [&[u8]; 8] = [
        b"",
        b"eMQP/1.0",
        b"REPLY",
        b"r",
        b"{\"value\": 3}",
        b"m",
        b"ok",
        b"more",
    ];
    rig.send_frames(w1, &frames);
    let sent = crate::frames::OwnedMessage::from_frames(frames);
    assert_eq!(rig.wires(c1), [sent.view().wire().to_vec()]);
    rig.reply(w1, "n");
    assert!(rig.got(c1).is_empty());
    assert_eq!(rig.count(Counter::ResultsNotAsked), 1);
    rig.reply(w1, "m");
    assert!(rig.got(c1).is_empty(), "a second REPLY is not a result");
    assert_eq!(rig.count(Counter::RepliesUnknown), 1);
}

#[test]
fn status_of_a_job_in_flight_and_one_waiting() {
    let mut rig = Rig::new();
    assert!(rig.broker.status(rig.now).queues.is_empty());
    rig.worker("w1", DEFAULT, 1);
    let c1 = rig.client("c1");
    rig.request(c1, "m", "default");
    rig.sleep(100);
    rig.request(c1, "n", "default");
    rig.sleep(100);
    let status = rig.broker.status(rig.now);
    let queue = &status.queues[0];
    assert_eq!(queue.name, b"default");
    assert_eq!((queue.in_flight, queue.waiting, queue.processed), (1, 1, 1));
    assert_eq!(
        (queue.mean_age_ms, queue.max_age_ms),
        (Some(150), Some(200))
    );
    assert_eq!(status.processed_by_worker, [(b"w1".to_vec(), 1)]);
}

#[test]
fn heartbeats_behind_the_ack_and_every_interval() {
    let mut rig = Rig::new();
    let w1 = rig.open(Socket::Backend, "w1");
    rig.send(w1, &["INFORM", "i", DEFAULT, "worker"]);
    let s1 = rig.client("s1");
    rig.send(s1, &["INFORM", "i", "", "scheduler"]);
    for conn in [w1, s1] {
        let got = rig.got_all(conn);
        assert_eq!((got.len(), got[0].as_str()), (2, "ACK * i"));
        assert_eq!(got[1], "HEARTBEAT * 1796000000.000");
    }
    rig.sleep_alive(9_100, &[w1, s1]);
    assert_eq!((rig.got_all(w1).len(), rig.got_all(s1).len()), (3, 3));
}

#[test]
fn a_silent_worker_gets_no_work_and_is_removed() {
    let mut rig = Rig::new();
    let w1 = rig.worker("w1", DEFAULT, 1);
    let c1 = rig.client("c1");
    rig.sleep(4_900);
    assert_eq!(rig.slots("w1"), Some((1, 0, "live")));
    rig.sleep(200);
    assert_eq!(rig.slots("w1"), Some((1, 0, "silent")));
    rig.request(c1, "m", "default");
    assert!(rig.jobs(w1).is_empty());
    rig.send(w1, &["HEARTBEAT", "h", "1.0"]);
    assert_eq!(rig.jobs(w1), ["m"]);
    rig.sleep(10_100);
    assert_eq!(rig.slots("w1"), None);
    assert_eq!(rig.count(Counter::WorkersRemovedSilent), 1);
    assert_eq!(rig.count(Counter::JobsLost), 1);
    rig.ready(w1);
    assert_eq!(rig.got(w1), ["DISCONNECT *"]);
}

#[test]
fn without_heartbeats_silence_is_no_loss() {
    let mut rig = Rig::with(|config| config.disable_heartbeats = true);
    let w1 = rig.worker("w1", DEFAULT, 1);
    let c1 = rig.client("c1");
    rig.sleep(60_000);
    rig.request(c1, "m", "default");
    assert_eq!(rig.got_all(w1), ["REQUEST m default  {}"]);
}

#[test]
fn schedules_go_to_the_newest_unschedules_to_all() {
    let mut rig = Rig::new();
    let (s1, s2) = (rig.scheduler("s1"), rig.scheduler("s2"));
    let c1 = rig.client("c1");
    rig.send(c1, &["SCHEDULE", "m0", "q", "guarantee", "5", RUN, ""]);
    rig.send(c1, &["SCHEDULE", "m1", "q", "guarantee", "5", RUN, ""]);
    rig.send(c1, &["UNSCHEDULE", "m2", "q", "guarantee", "-1", RUN, ""]);
    assert_eq!(rig.got(s1).len(), 1);
    let got = rig.got(s2);
    assert_eq!(got.len(), 3);
    assert_eq!(got[2], format!("UNSCHEDULE m2 q guarantee -1 {RUN} "));
    assert_eq!(rig.got(c1), ["REPLY * m0", "REPLY * m1", "REPLY * m2"]);
    rig.send(s2, &["KBYE", "k"]);
    rig.send(c1, &["SCHEDULE", "m3", "q", "", "5", RUN, ""]);
    assert_eq!((rig.got(s1).len(), rig.got(s2).len()), (1, 0));
}

#[test]
fn schedules_without_a_scheduler_or_of_a_wrong_form_are_rejected() {
    let mut rig = Rig::new();
    let c1 = rig.client("c1");
    rig.send(c1, &["SCHEDULE", "m", "q", "", "5", RUN, ""]);
    rig.send(c1, &["UNSCHEDULE", "n", "q", "", "5", RUN, ""]);
    assert_eq!(
        rig.got(c1),
        ["REJECT * m no-scheduler", "REJECT * n no-scheduler"]
    );
    let s1 = rig.scheduler("s1");
    rig.send(c1, &["SCHEDULE", "m", "q", "", "x", RUN, ""]);
    rig.send(c1, &["SCHEDULE", "m"]);
    assert_eq!(
        rig.got(c1),
        ["REJECT * m malformed", "REJECT * m malformed"]
    );
    assert!(rig.got(s1).is_empty());
}
