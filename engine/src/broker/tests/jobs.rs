//! Ends of jobs: slots, debts, completions, loss, late replies.

use super::rig::Rig;
use crate::metrics::Counter;

const DEFAULT: &str = r#"[[10, "default"]]"#;
const LOST: &str = r#"{"value": null, "error": {"type": "JobLost", "message": "the worker that had the job was lost"}}"#;

#[test]
fn a_reply_owes_a_ready_and_gives_no_slot() {
    let mut rig = Rig::new();
    let w = rig.worker("w", DEFAULT, 2);
    let c = rig.client("c");
    for msgid in ["a", "b", "x"] {
        rig.ask(c, msgid, "default");
    }
    assert_eq!(rig.slots("w"), Some((0, 2, "live")));
    rig.reply(w, "b");
    assert_eq!(rig.slots("w"), Some((0, 1, "live")));
    assert_eq!(rig.jobs(w), ["a", "b"]);
    rig.ready(w);
    assert_eq!(rig.jobs(w), ["x"]);
    assert_eq!(rig.slots("w"), Some((0, 2, "live")));
}

#[test]
fn a_ready_without_debt_ends_the_oldest_job_that_owes_no_reply() {
    let mut rig = Rig::new();
    let w = rig.worker("w", DEFAULT, 3);
    let c = rig.client("c");
    rig.ask(c, "a", "default");
    rig.request(c, "b", "default");
    rig.request(c, "d", "default");
    rig.ready(w);
    assert_eq!(rig.slots("w"), Some((1, 2, "live")));
    rig.reply(w, "b");
    assert_eq!(rig.count(Counter::RepliesUnknown), 1, "b counts as ended");
}

#[test]
fn equal_msgids_end_oldest_first_and_each_client_gets_its_result() {
    let mut rig = Rig::new();
    let w = rig.worker("w", DEFAULT, 3);
    let clients = ["c0", "c1", "c2"].map(|id| rig.client(id));
    for client in clients {
        rig.ask(client, "same", "default");
        rig.got(client);
    }
    for client in clients {
        rig.reply(w, "same");
        assert_eq!(rig.got(client), ["REPLY x 3 same"]);
    }
    assert_eq!(rig.slots("w"), Some((0, 0, "live")));
}

#[test]
fn slots_never_exceed_the_limit() {
    let mut rig = Rig::with(|config| config.max_slots_per_worker = 3);
    rig.worker("w", DEFAULT, 5);
    assert_eq!(rig.slots("w"), Some((3, 0, "live")));
    assert_eq!(rig.count(Counter::SlotsOverLimit), 2);
    rig.worker_with("v", DEFAULT, "completions,slots:2", 5);
    assert_eq!(rig.slots("v"), Some((2, 0, "live")));
    rig.worker_with("u", DEFAULT, "slots:9", 5);
    assert_eq!(rig.slots("u"), Some((3, 0, "live")));
}

#[test]
fn completions_name_the_job_that_ended() {
    let mut rig = Rig::new();
    let w = rig.worker_with("w", DEFAULT, "completions", 3);
    let c = rig.client("c");
    rig.ask(c, "a", "default");
    rig.request(c, "b", "default");
    rig.ask(c, "d", "default");
    rig.got(c);
    rig.done(w, "b", "error");
    assert_eq!(rig.slots("w"), Some((1, 2, "live")));
    rig.reply(w, "d");
    assert_eq!(rig.got(c), ["REPLY x 3 d"]);
    assert_eq!(
        (rig.slots("w"), rig.queue("default")),
        (Some((1, 2, "live")), (0, 1, 3))
    );
    rig.done(w, "d", "ok");
    assert_eq!(rig.slots("w"), Some((2, 1, "live")));
    rig.done(w, "unknown", "ok");
    assert_eq!(
        rig.slots("w"),
        Some((3, 1, "live")),
        "a READY naming an unknown job gives a slot"
    );
    rig.done(w, "a", "timeout");
    let got = rig.got(c);
    assert_eq!(got.len(), 1);
    assert!(
        got[0].contains("JobTimeout") && got[0].ends_with(" a timeout"),
        "{got:?}"
    );
    let counts = [
        Counter::JobsDone,
        Counter::JobsFailed,
        Counter::JobsTimedOut,
    ];
    assert_eq!(counts.map(|counter| rig.count(counter)), [1, 1, 1]);
}

#[test]
fn a_replied_job_with_a_twin_gives_back_its_own_slot() {
    let mut rig = Rig::new();
    let w = rig.worker_with("w", DEFAULT, "completions", 2);
    let c = rig.client("c");
    rig.ask(c, "same", "default");
    rig.ask(c, "same", "default");
    rig.got(c);
    rig.reply(w, "same");
    rig.done(w, "same", "ok");
    assert_eq!(rig.slots("w"), Some((1, 1, "live")));
    rig.reply(w, "same");
    assert_eq!(rig.got(c).len(), 2);
    rig.done(w, "same", "ok");
    assert_eq!(rig.slots("w"), Some((2, 0, "live")));
}

#[test]
fn a_refused_job_goes_back_to_its_old_place() {
    let mut rig = Rig::new();
    let a = rig.worker_with("a", DEFAULT, "completions", 1);
    let c = rig.client("c");
    for msgid in ["1", "2", "3"] {
        rig.request(c, msgid, "default");
    }
    rig.send(a, &["KBYE", "k"]);
    rig.done(a, "1", "refused");
    assert_eq!(rig.slots("a"), None);
    assert_eq!(rig.queue("default"), (3, 0, 0));
    let b = rig.worker("b", DEFAULT, 2);
    assert_eq!(rig.jobs(b), ["1", "2"]);
    assert_eq!(rig.count(Counter::JobsReturned), 1);
}

#[test]
fn a_refused_job_of_an_unserved_queue_waits_under_its_name() {
    let mut rig = Rig::new();
    let a = rig.worker_with("a", DEFAULT, "completions", 1);
    let c = rig.client("c");
    rig.request(c, "1", "x");
    assert_eq!(rig.queue("default"), (0, 1, 1));
    rig.send(a, &["KBYE", "k"]);
    rig.done(a, "1", "refused");
    assert_eq!((rig.queue("default").0, rig.queue("x").0), (0, 1));
    let x = rig.worker("x", r#"[[1, "x"]]"#, 1);
    assert_eq!(rig.jobs(x), ["1"]);
}

#[test]
fn jobs_of_a_lost_worker_end_with_an_error_result() {
    let mut rig = Rig::new();
    let w = rig.worker("w", DEFAULT, 3);
    let c = rig.client("c");
    rig.ask(c, "a", "default");
    rig.request(c, "b", "default");
    rig.got(c);
    rig.lose(w, 0);
    assert!(rig.got(c).is_empty());
    rig.sleep(1_000);
    assert_eq!(rig.got(c), [format!("REPLY * {LOST} a lost")]);
    assert_eq!(rig.count(Counter::JobsLost), 2);
    assert_eq!(rig.queue("default"), (0, 0, 2));
}

#[test]
fn a_late_reply_is_counted_and_cancels_the_slot_of_a_new_id() {
    let mut rig = Rig::with(|config| config.reconnect_grace_ms = 0);
    let w = rig.worker("old", DEFAULT, 1);
    let c = rig.client("c");
    rig.ask(c, "a", "default");
    rig.lose(w, 0);
    let w = rig.worker("new", DEFAULT, 1);
    rig.got(c);
    rig.reply(w, "a");
    assert_eq!(rig.count(Counter::RepliesLate), 1);
    assert!(rig.got(c).is_empty(), "the client has its error result");
    rig.ready(w);
    assert_eq!(
        rig.slots("new"),
        Some((1, 0, "live")),
        "counted when it came back"
    );
    rig.ready(w);
    assert_eq!(rig.slots("new"), Some((2, 0, "live")));
    rig.sleep_alive(300_100, &[w]);
    rig.reply(w, "a");
    assert_eq!(rig.count(Counter::RepliesUnknown), 1, "the window is over");
}

#[test]
fn a_job_whose_process_died_is_lost_when_all_slots_are_free() {
    let mut rig = Rig::new();
    let w = rig.worker("w", DEFAULT, 2);
    let c = rig.client("c");
    rig.sleep_alive(31_000, &[w]);
    rig.ask(c, "a", "default");
    rig.got(c);
    rig.ready(w);
    assert_eq!(
        rig.slots("w"),
        Some((2, 1, "live")),
        "the process was replaced"
    );
    rig.sleep_alive(1_900, &[w]);
    assert_eq!(rig.slots("w"), Some((2, 1, "live")));
    rig.sleep_alive(200, &[w]);
    assert_eq!(rig.slots("w"), Some((2, 0, "live")));
    assert_eq!(rig.got(c), [format!("REPLY * {LOST} a lost")]);
}

#[test]
fn a_slot_that_comes_late_is_no_sign_of_a_dead_process() {
    let mut rig = Rig::new();
    let c = rig.client("c");
    rig.ask(c, "a", "default");
    let w = rig.worker("w", DEFAULT, 1);
    rig.sleep_alive(5_000, &[w]);
    rig.ready(w);
    rig.sleep_alive(10_000, &[w]);
    assert_eq!(rig.slots("w"), Some((1, 1, "live")));
    rig.got(c);
    rig.reply(w, "a");
    assert_eq!(rig.got(c), ["REPLY x 3 a"]);
}

#[test]
fn a_job_that_owes_a_reply_is_given_up_long_after_its_timeout() {
    let mut rig = Rig::new();
    let w = rig.worker("w", DEFAULT, 1);
    let v = rig.worker_with("v", DEFAULT, "completions", 1);
    let c = rig.client("c");
    rig.request_with(c, "a", "default", "reply-requested,timeout:5");
    rig.request_with(c, "b", "default", "reply-requested,timeout:5");
    assert_eq!(
        (rig.jobs(w), rig.jobs(v)),
        (vec!["a".to_owned()], vec!["b".to_owned()])
    );
    rig.got(c);
    rig.sleep_alive(14_900, &[w, v]);
    assert!(rig.got(c).is_empty());
    rig.sleep_alive(1_000, &[w, v]);
    assert_eq!(rig.got(c), [format!("REPLY * {LOST} a lost")]);
    assert_eq!(
        rig.slots("v"),
        Some((0, 1, "live")),
        "one that names its jobs is waited for"
    );
}

#[test]
fn a_worker_that_leaves_ends_its_plain_jobs_as_unknown() {
    let mut rig = Rig::with(|config| config.kill_grace_period_ms = 2_000);
    let (v, w) = (rig.worker("v", DEFAULT, 1), rig.worker("w", DEFAULT, 1));
    let c = rig.client("c");
    rig.ask(c, "a", "default");
    rig.ask(c, "b", "default");
    rig.got(c);
    rig.send(v, &["KBYE", "k"]);
    rig.send(w, &["KBYE", "k"]);
    rig.lose(v, 0);
    assert_eq!((rig.slots("v"), rig.count(Counter::JobsUnknown)), (None, 1));
    rig.sleep(2_100);
    assert_eq!((rig.slots("w"), rig.count(Counter::JobsUnknown)), (None, 2));
    assert!(rig.got(c).is_empty());
    assert_eq!(rig.count(Counter::JobsLost), 0);
}

#[test]
fn latency_is_recorded_by_queue() {
    let mut rig = Rig::new();
    let w = rig.worker("w", DEFAULT, 0);
    let c = rig.client("c");
    rig.ask(c, "a", "default");
    rig.sleep(2_000);
    rig.ready(w);
    rig.sleep(1_000);
    rig.reply(w, "a");
    let report = rig.broker.latency().render();
    let (name, latency) = &report.cumulative[1];
    assert_eq!(name, b"default");
    assert_eq!(
        [latency.wait.max_us, latency.service.max_us],
        [2_000_000, 1_000_000]
    );
    assert_eq!((latency.total.count, latency.total.max_us), (1, 3_000_000));
    assert!(report.interval.is_empty());
    rig.sleep_alive(10_000, &[w]);
    assert_eq!(rig.broker.latency().render().interval[1].1.total.count, 1);
    rig.sleep_alive(10_000, &[w]);
    assert!(rig.broker.latency().render().interval.is_empty());
}
