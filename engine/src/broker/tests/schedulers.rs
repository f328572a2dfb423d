//! Schedulers that come, go and come back.

use super::rig::Rig;
use crate::ids::Socket;
use crate::metrics::Counter;

const RUN: &str = r#"["run", {"callable": "add", "path": "jobs_x", "args": [1, 2], "kwargs": {}, "class_args": [], "class_kwargs": {}}]"#;

fn schedule(rig: &mut Rig, conn: crate::ids::ConnId, command: &str, msgid: &str) {
    rig.send(conn, &[command, msgid, "q", "", "5", RUN, ""]);
}

fn ids(got: &[String]) -> Vec<String> {
    got.iter()
        .filter_map(|text| text.split(' ').nth(1))
        .map(str::to_owned)
        .collect()
}

#[test]
fn schedules_wait_for_a_scheduler_in_grace_in_their_order() {
    let mut rig = Rig::new();
    let s = rig.scheduler("s");
    let c = rig.client("c");
    rig.lose(s, 0);
    schedule(&mut rig, c, "SCHEDULE", "1");
    schedule(&mut rig, c, "UNSCHEDULE", "2");
    schedule(&mut rig, c, "SCHEDULE", "3");
    assert!(rig.got(c).is_empty());
    rig.sleep(500);
    let s = rig.client("s");
    assert_eq!(ids(&rig.got(s)), ["1", "2", "3"]);
    assert_eq!(rig.out.never_paused.get(&s), Some(&true));
}

#[test]
fn schedules_nobody_is_left_for_are_rejected() {
    let mut rig = Rig::new();
    let s = rig.scheduler("s");
    let c = rig.client("c");
    rig.lose(s, 0);
    schedule(&mut rig, c, "SCHEDULE", "1");
    schedule(&mut rig, c, "UNSCHEDULE", "2");
    rig.sleep(1_100);
    assert_eq!(
        rig.got(c),
        ["REJECT * 1 no-scheduler", "REJECT * 2 no-scheduler"]
    );
}

#[test]
fn another_live_scheduler_gets_them_unschedules_are_kept_for_the_one_in_grace() {
    let mut rig = Rig::new();
    let (s1, s2) = (rig.scheduler("s1"), rig.scheduler("s2"));
    let c = rig.client("c");
    rig.lose(s2, 0);
    schedule(&mut rig, c, "SCHEDULE", "1");
    schedule(&mut rig, c, "UNSCHEDULE", "2");
    assert_eq!(ids(&rig.got(s1)), ["1", "2"]);
    let s2 = rig.client("s2");
    assert_eq!(ids(&rig.got(s2)), ["2"]);
    rig.lose(s2, 0);
    schedule(&mut rig, c, "UNSCHEDULE", "3");
    rig.sleep_alive(1_100, &[s1]);
    assert_eq!(ids(&rig.got(s1)), ["3"]);
    assert_eq!(
        rig.got(c),
        ["REPLY * 1", "REPLY * 2", "REPLY * 3"],
        "one scheduler has got each"
    );
}

#[test]
fn schedules_that_were_not_sent_are_kept() {
    let mut rig = Rig::new();
    let s = rig.scheduler("s");
    let c = rig.client("c");
    schedule(&mut rig, c, "SCHEDULE", "1");
    schedule(&mut rig, c, "SCHEDULE", "2");
    rig.lose(s, 2);
    let s = rig.client("s");
    assert_eq!(ids(&rig.got(s)), ["1", "2"]);
}

#[test]
fn a_silent_scheduler_gets_nothing_and_is_removed() {
    let mut rig = Rig::new();
    let s = rig.scheduler("s");
    let c = rig.client("c");
    rig.sleep(5_100);
    schedule(&mut rig, c, "SCHEDULE", "1");
    assert!(rig.got(s).is_empty());
    rig.send(s, &["HEARTBEAT", "h", "1.0"]);
    assert_eq!(ids(&rig.got(s)), ["1"]);
    rig.sleep(10_100);
    assert!(rig.broker.schedulers(rig.now).schedulers.is_empty());
    assert_eq!(rig.count(Counter::SchedulersRemoved), 1);
    assert_eq!(rig.out.never_paused.get(&s), Some(&false));
}

#[test]
fn a_scheduler_that_does_not_read_is_passed_over() {
    let mut rig = Rig::with(|config| config.worker_buffer_bytes = 1_000);
    let (s1, s2) = (rig.scheduler("s1"), rig.scheduler("s2"));
    let c = rig.client("c");
    rig.out.pending.insert(s2, 1_001);
    schedule(&mut rig, c, "SCHEDULE", "1");
    schedule(&mut rig, c, "UNSCHEDULE", "2");
    assert_eq!(ids(&rig.got(s1)), ["1", "2"]);
    assert!(rig.got(s2).is_empty());
    assert_eq!(rig.out.writable_asked, [(s2, 500)]);
    rig.out.pending.insert(s2, 10);
    rig.broker.handle_writable(s2, rig.now, &mut rig.out);
    assert_eq!(ids(&rig.got(s2)), ["2"]);
}

#[test]
fn results_go_only_to_schedulers_that_take_them() {
    let mut rig = Rig::new();
    let w = rig.worker("w", r#"[[10, "default"]]"#, 4);
    let s = rig.scheduler("s");
    rig.ask(s, "a", "default");
    assert_eq!(rig.got(s), ["REPLY * a"]);
    rig.reply(w, "a");
    assert!(rig.got(s).is_empty());
    assert_eq!(rig.count(Counter::ResultsNotAsked), 1);
    rig.send(s, &["INFORM", "i", "", "scheduler", "results"]);
    rig.ask(s, "b", "default");
    rig.got(s);
    rig.reply(w, "b");
    assert_eq!(rig.got(s), ["REPLY x 3 b"]);
}

#[test]
fn a_scheduler_that_registers_again_is_the_newest() {
    let mut rig = Rig::new();
    let (s1, s2) = (rig.scheduler("s1"), rig.scheduler("s2"));
    let c = rig.client("c");
    rig.send(s1, &["INFORM", "i", "", "scheduler"]);
    rig.got(s1);
    schedule(&mut rig, c, "SCHEDULE", "1");
    assert_eq!(
        (ids(&rig.got(s1)), rig.got(s2).len()),
        (vec!["1".to_owned()], 0)
    );
    assert_eq!(rig.broker.schedulers(rig.now).schedulers.len(), 2);
}

#[test]
fn what_is_kept_for_one_scheduler_does_not_hold_up_the_others() {
    let mut rig = Rig::with(|config| config.worker_buffer_bytes = 1_000);
    let (s1, s2) = (rig.scheduler("s1"), rig.scheduler("s2"));
    let c = rig.client("c");
    rig.out.pending.insert(s1, 1_001);
    schedule(&mut rig, c, "UNSCHEDULE", "1");
    schedule(&mut rig, c, "SCHEDULE", "2");
    schedule(&mut rig, c, "UNSCHEDULE", "3");
    assert_eq!(ids(&rig.got(s2)), ["1", "2", "3"]);
    rig.out.pending.insert(s1, 0);
    rig.broker.handle_writable(s1, rig.now, &mut rig.out);
    assert_eq!(ids(&rig.got(s1)), ["1", "3"]);
}

/// Whatever is sent for a scheduler that does not read: it is bounded, refused beyond, and ends
/// with the removal of that scheduler.
#[test]
fn what_is_kept_for_a_scheduler_that_does_not_read_is_bounded() {
    for command in ["SCHEDULE", "UNSCHEDULE"] {
        let mut rig = Rig::with(|config| config.worker_buffer_bytes = 1_000);
        let s = rig.scheduler("s");
        let c = rig.client("c");
        rig.out.pending.insert(s, 1_001);
        for n in 0..1_100 {
            schedule(&mut rig, c, command, &n.to_string());
        }
        let refused = rig.got(c);
        assert_eq!(refused.len(), 1_100 - 1_024, "{command}");
        assert_eq!(refused[0], "REJECT * 1024 no-scheduler");
        assert!(rig.got(s).is_empty());
        // It is alive, but takes nothing.
        rig.sleep_alive(36_000, &[s]);
        assert_eq!(rig.count(Counter::SchedulersRemoved), 1);
        assert_eq!(rig.got(c).len(), 1_024);
        let s2 = rig.scheduler("s2");
        schedule(&mut rig, c, command, "last");
        assert_eq!(ids(&rig.got(s2)), ["last"]);
    }
}

#[test]
fn who_speaks_the_extensions_is_told_when_a_scheduler_gets_it() {
    let mut rig = Rig::new();
    let (s1, s2) = (rig.scheduler("s1"), rig.scheduler("s2"));
    let c = rig.client("c");
    let original = rig.open_as(Socket::Frontend, "o", false);
    for client in [c, original] {
        schedule(&mut rig, client, "SCHEDULE", "1");
        schedule(&mut rig, client, "UNSCHEDULE", "2");
    }
    assert_eq!(rig.got(c), ["REPLY * 1", "REPLY * 2"]);
    assert!(rig.got(original).is_empty());
    // Held ones: when those they wait for have got them, or are gone.
    rig.lose(s1, 0);
    rig.lose(s2, 0);
    schedule(&mut rig, c, "SCHEDULE", "3");
    schedule(&mut rig, c, "UNSCHEDULE", "4");
    assert!(rig.got(c).is_empty());
    let s2 = rig.client("s2");
    assert_eq!(ids(&rig.got(s2)), ["3", "4"]);
    assert_eq!(rig.got(c), ["REPLY * 3"]);
    rig.sleep_alive(1_100, &[s2]);
    assert_eq!(rig.got(c), ["REPLY * 4"]);
}

#[test]
fn what_a_lost_connection_gives_back_goes_to_who_is_live() {
    // The same scheduler on a newer connection, or another one when it has left.
    for takes_over in [true, false] {
        let mut rig = Rig::new();
        let c = rig.client("c");
        let other = rig.scheduler("other");
        let old = rig.scheduler("s");
        schedule(&mut rig, c, "SCHEDULE", "1");
        let live = if takes_over {
            rig.client("s")
        } else {
            rig.send(old, &["KBYE", "k"]);
            other
        };
        rig.lose(old, 1);
        assert_eq!(ids(&rig.got(live)), ["1"]);
        schedule(&mut rig, c, "SCHEDULE", "2");
        assert_eq!(ids(&rig.got(live)), ["2"]);
    }
}

#[test]
fn what_comes_back_and_nobody_takes_is_counted() {
    let leave: [fn(&mut Rig, crate::ids::ConnId); 2] =
        [|rig, s| rig.send(s, &["KBYE", "k"]), |_, _| {}];
    for leave in leave {
        let mut rig = Rig::new();
        let (c, s) = (rig.client("c"), rig.scheduler("s"));
        schedule(&mut rig, c, "SCHEDULE", "1");
        schedule(&mut rig, c, "UNSCHEDULE", "2");
        leave(&mut rig, s);
        rig.lose(s, 2);
        rig.sleep(1_100);
        assert_eq!(rig.count(Counter::SchedulesDropped), 2);
    }
}

#[test]
fn a_scheduler_may_be_the_client_of_what_is_held_for_it() {
    for grace_ms in [0, 1_000] {
        for command in ["SCHEDULE", "UNSCHEDULE"] {
            let mut rig = Rig::with(|config| config.reconnect_grace_ms = grace_ms);
            let s = rig.scheduler("s");
            rig.out.pending.insert(s, usize::MAX);
            schedule(&mut rig, s, command, "1");
            assert!(rig.got(s).is_empty());
            rig.lose(s, 0);
            rig.sleep(1_100);
            assert!(rig.broker.schedulers(rig.now).schedulers.is_empty());
            assert_eq!(rig.count(Counter::RejectedNoScheduler), 1);
        }
    }
}
