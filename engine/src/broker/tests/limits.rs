//! Limits, back-pressure, memory.

use super::rig::Rig;
use crate::frames::OwnedMessage;
use crate::metrics::Counter;

const DEFAULT: &str = r#"[[10, "default"]]"#;

#[test]
fn too_many_queues() {
    let mut rig = Rig::with(|config| config.max_queues = 3);
    let c = rig.client("c");
    for (msgid, queue) in [
        ("1", "a"),
        ("2", "b"),
        ("3", "x"),
        ("4", "a"),
        ("5", "default"),
    ] {
        rig.request(c, msgid, queue);
    }
    let got = rig.got(c);
    assert_eq!(got[2], "REJECT * 3 too-many-queues");
    assert_eq!(
        got.iter().filter(|text| text.starts_with("REPLY")).count(),
        4
    );
    let w = rig.open(crate::ids::Socket::Backend, "w");
    rig.send(w, &["INFORM", "i", r#"[[1, "a"], [1, "new"]]"#, "worker"]);
    assert!(rig.got_all(w).is_empty());
    rig.inform(w, r#"[[1, "a"], [1, "b"]]"#, "");
}

#[test]
fn with_a_free_default_worker_unknown_names_take_no_queue() {
    let mut rig = Rig::with(|config| config.max_queues = 1);
    let w = rig.worker("w", DEFAULT, 100);
    let c = rig.client("c");
    for at in 0..50 {
        rig.request(c, "m", &format!("name{at}"));
    }
    assert_eq!(rig.jobs(w).len(), 50);
}

#[test]
fn too_large_is_rejected_if_the_msgid_was_readable() {
    let mut rig = Rig::new();
    let c = rig.client("c");
    let head = OwnedMessage::from_frames([&b""[..], b"eMQP/1.0", b"REQUEST", b"big", b"q"]);
    rig.broker
        .handle_too_large(c, &head.view(), rig.now, &mut rig.out);
    let head = OwnedMessage::from_frames([&b""[..], b"eMQP/1.0", b"REQUEST"]);
    rig.broker
        .handle_too_large(c, &head.view(), rig.now, &mut rig.out);
    assert_eq!(rig.got(c), ["REJECT * big too-large"]);
}

#[test]
fn a_slow_worker_gets_nothing_until_it_has_drained_to_half() {
    let mut rig = Rig::with(|config| config.worker_buffer_bytes = 1_000);
    let w = rig.worker("w", DEFAULT, 100);
    let c = rig.client("c");
    rig.out.pending.insert(w, 1_001);
    for at in 0..100 {
        rig.request(c, &at.to_string(), "default");
    }
    let given = rig.jobs(w).len();
    assert!((10..40).contains(&given), "{given}");
    assert_eq!(rig.out.writable_asked, [(w, 500)]);
    assert_eq!(rig.slots("w").unwrap().2, "slow");
    rig.out.pending.insert(w, 500);
    rig.broker.handle_writable(w, rig.now, &mut rig.out);
    assert!(!rig.jobs(w).is_empty());
    rig.out.pending.insert(w, 0);
    rig.broker.handle_writable(w, rig.now, &mut rig.out);
    assert_eq!(rig.slots("w").unwrap().1, 100);
}

fn fill(rig: &mut Rig, c: crate::ids::ConnId) -> usize {
    let body = "x".repeat(10_000);
    let mut sent = 0;
    while rig.out.paused != Some(true) {
        rig.send(c, &["REQUEST", &sent.to_string(), "default", "", &body]);
        sent += 1;
        assert!(sent < 1_000);
    }
    sent
}

#[test]
fn clients_are_paused_for_memory_until_a_tenth_is_free() {
    let mut rig = Rig::with(|config| config.max_memory_bytes = 1_000_000);
    let c = rig.client("c");
    let sent = fill(&mut rig, c);
    assert!((60..=101).contains(&sent), "{sent}");
    assert!(rig.broker.figures().input_paused);
    let w = rig.worker("w", DEFAULT, 0);
    for _ in 0..5 {
        rig.ready(w);
        rig.turn();
    }
    for _ in 0..10 {
        rig.ready(w);
    }
    rig.turn();
    assert_eq!(rig.out.paused, Some(false));
    assert_eq!(rig.count(Counter::InputPaused), 1);
    rig.broker.set_external_bytes(900_000);
    rig.request(c, "m", "default");
    assert_eq!(rig.out.paused, Some(true));
    rig.broker.set_external_bytes(0);
    rig.turn();
    assert_eq!(rig.out.paused, Some(false));
}

#[test]
fn if_nothing_can_be_handed_out_requests_are_refused_instead() {
    let mut rig = Rig::with(|config| config.max_memory_bytes = 1_000_000);
    let c = rig.client("c");
    fill(&mut rig, c);
    rig.sleep(9_900);
    assert_eq!(rig.out.paused, Some(true));
    rig.sleep(200);
    assert_eq!(rig.out.paused, Some(false));
    rig.got(c);
    rig.request(c, "m", "default");
    assert_eq!(rig.got(c), ["REJECT * m memory-full"]);
    let w = rig.worker("w", DEFAULT, 60);
    rig.turn();
    rig.got(w);
    rig.request(c, "n", "default");
    assert_eq!(rig.got(c), ["REPLY * n"]);
}

#[test]
fn jobs_that_need_not_wait_run_while_memory_is_full() {
    let mut rig = Rig::with(|config| config.max_memory_bytes = 1_000_000);
    let c = rig.client("c");
    fill(&mut rig, c);
    rig.sleep(11_000);
    rig.got(c);
    // Of another queue, with workers: it is not stopped by the one that nobody serves.
    let w = rig.worker("w", r#"[[1, "served"]]"#, 2);
    for n in ["1", "2"] {
        rig.request(c, n, "served");
        assert_eq!(rig.got(c), [format!("REPLY * {n}")]);
    }
    rig.request(c, "3", "served");
    assert_eq!(rig.got(c), ["REJECT * 3 memory-full"]);
    rig.ready(w);
    rig.request(c, "4", "served");
    assert_eq!(rig.got(c), ["REPLY * 4"]);
    rig.ready(w);
    // While it runs a job may have to be kept: there is an end to it.
    rig.broker.set_external_bytes(200_000);
    rig.request(c, "5", "served");
    assert_eq!(rig.got(c), ["REJECT * 5 memory-full"]);
}

#[test]
fn a_new_heartbeat_timeout_counts_for_who_is_registered() {
    let mut rig = Rig::new();
    let w = rig.worker("w", DEFAULT, 1);
    let s = rig.scheduler("s");
    let mut config = rig.broker.config.clone();
    config.heartbeat_timeout_ms = 500;
    rig.broker.reconfigure(config, rig.now);
    // The look at it that was due with the old time, then the new one.
    rig.sleep(5_100);
    assert_eq!(rig.slots("w"), None);
    assert_eq!(rig.count(Counter::WorkersRemovedSilent), 1);
    assert_eq!(rig.count(Counter::SchedulersRemoved), 1);
    rig.got(w);
    rig.got(s);
}

#[test]
fn hand_outs_stop_where_there_is_no_room_and_go_on_later() {
    let mut rig = Rig::new();
    let c = rig.client("c");
    for at in 0..50 {
        rig.request(c, &at.to_string(), "default");
    }
    let w = rig.worker("w", DEFAULT, 1);
    for _ in 0..9 {
        rig.broker.handle_lost(w, rig.now, &mut rig.out);
    }
    rig.out.released.clear();
    rig.close(w);
    // 30 slots come back at once: a hand-out of 30 jobs, of which there is room for 10.
    let w = rig.open(crate::ids::Socket::Backend, "w");
    rig.inform(w, r#"[[1, "other"]]"#, "");
    for _ in 0..30 {
        rig.ready(w);
    }
    for at in 0..40 {
        rig.request(c, &format!("o{at}"), "other");
    }
    assert_eq!(rig.jobs(w).len(), 30);
    rig.lose(w, 0);
    let x = rig.worker("x", r#"[[1, "other"]]"#, 0);
    for _ in 0..5 {
        rig.ready(x);
    }
    assert_eq!(rig.jobs(x).len(), 5);
    rig.lost(x);
    let message = OwnedMessage::from_frames([
        &b""[..],
        b"eMQP/1.0",
        b"REQUEST",
        b"o34",
        b"other",
        b"",
        b"{}",
    ]);
    rig.broker
        .handle_unsent(x, &message.view(), rig.now, &mut rig.out);
    rig.close(x);
    rig.out.room = Some(0);
    let x = rig.open(crate::ids::Socket::Backend, "x");
    assert!(rig.jobs(x).is_empty() && rig.broker.has_pending_output());
    rig.out.room = None;
    assert!(!rig.broker.poll_output(rig.now, &mut rig.out));
    assert_eq!(rig.jobs(x), ["o34"]);
}

#[test]
fn timers_wait_for_room() {
    let mut rig = Rig::new();
    let w = rig.worker("w", DEFAULT, 0);
    rig.got_all(w);
    rig.out.room = Some(0);
    rig.sleep(3_100);
    assert!(rig.got_all(w).is_empty());
    assert!(rig.broker.has_pending_output() && rig.broker.poll_timeout().is_none());
    rig.out.room = None;
    assert!(!rig.broker.poll_output(rig.now, &mut rig.out));
    assert_eq!(rig.got_all(w).len(), 1);
    assert!(rig.broker.poll_timeout().is_some());
}

#[test]
fn each_pause_for_memory_has_its_whole_time() {
    let mut rig = Rig::with(|config| config.max_memory_bytes = 1_000_000);
    let c = rig.client("c");
    for _ in 0..3 {
        fill(&mut rig, c);
        rig.sleep(6_000);
        assert_eq!(rig.out.paused, Some(true));
        let w = rig.worker("w", DEFAULT, 200);
        rig.turn();
        assert_eq!(rig.out.paused, Some(false));
        rig.lose(w, 0);
        rig.sleep(1_100);
    }
    fill(&mut rig, c);
    rig.sleep(9_900);
    assert_eq!(rig.out.paused, Some(true));
    rig.sleep(200);
    assert_eq!(rig.out.paused, Some(false));
}
