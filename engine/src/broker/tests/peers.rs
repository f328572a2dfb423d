//! Identities: take-over, reconnect grace, output that was not sent, registering again.

use super::rig::Rig;
use crate::frames::OwnedMessage;
use crate::ids::Socket;
use crate::link::CloseReason;
use crate::metrics::Counter;

const DEFAULT: &str = r#"[[10, "default"]]"#;

#[test]
fn the_newest_connection_gets_the_output_input_of_the_old_one_counts() {
    let mut rig = Rig::new();
    let old = rig.client("c");
    let new = rig.client("c");
    assert_eq!(rig.out.closed, [(old, CloseReason::Replaced)]);
    rig.request(old, "m", "default");
    assert!(rig.got(old).is_empty());
    assert_eq!(rig.got(new), ["REPLY * m"]);
    rig.lose(old, 0);
    rig.request(new, "n", "default");
    assert_eq!(rig.got(new), ["REPLY * n"]);
}

#[test]
fn after_three_take_overs_a_newcomer_is_refused() {
    let mut rig = Rig::new();
    let conns: Vec<_> = (0..4).map(|_| rig.client("c")).collect();
    let fifth = rig.client("c");
    let replaced = conns[..3].iter().map(|conn| (*conn, CloseReason::Replaced));
    let mut expected: Vec<_> = replaced.collect();
    expected.push((fifth, CloseReason::TakeoverRefused));
    assert_eq!(rig.out.closed, expected);
    rig.request(fifth, "x", "default");
    rig.request(conns[3], "m", "default");
    assert!(rig.got(fifth).is_empty());
    assert_eq!(rig.got(conns[3]), ["REPLY * m"]);
    rig.lose(fifth, 0);
    rig.sleep(10_100);
    let sixth = rig.client("c");
    rig.request(sixth, "n", "default");
    assert_eq!(rig.got(sixth), ["REPLY * n"]);
}

#[test]
fn the_same_id_on_the_other_socket_is_another_peer() {
    let mut rig = Rig::new();
    rig.client("same");
    rig.open(Socket::Backend, "same");
    assert!(rig.out.closed.is_empty());
}

#[test]
fn a_client_that_comes_back_gets_its_result_one_that_does_not_is_counted() {
    let mut rig = Rig::new();
    let w = rig.worker("w", DEFAULT, 2);
    let c = rig.client("c");
    rig.ask(c, "a", "default");
    rig.ask(c, "b", "default");
    rig.lose(c, 0);
    rig.reply(w, "a");
    assert_eq!(rig.count(Counter::ResultsClientGone), 1);
    let c = rig.client("c");
    rig.reply(w, "b");
    assert_eq!(rig.got(c), ["REPLY x 3 b"]);
}

#[test]
fn a_worker_that_comes_back_in_time_carries_on() {
    let mut rig = Rig::new();
    let w = rig.worker("w", DEFAULT, 3);
    let c = rig.client("c");
    rig.ask(c, "a", "default");
    rig.lose(w, 0);
    rig.request(c, "b", "default");
    assert_eq!(rig.slots("w"), Some((2, 1, "grace")));
    rig.sleep(900);
    let w = rig.open(Socket::Backend, "w");
    assert_eq!(rig.jobs(w), ["b"]);
    assert_eq!(rig.slots("w"), Some((1, 2, "live")));
    rig.sleep_alive(5_000, &[w]);
    rig.got(c);
    rig.reply(w, "a");
    assert_eq!(rig.got(c), ["REPLY x 3 a"]);
}

#[test]
fn hand_outs_that_were_not_sent_go_back_to_their_place_with_their_slots() {
    let mut rig = Rig::new();
    let a = rig.worker("a", DEFAULT, 4);
    let c = rig.client("c");
    for msgid in ["1", "2", "3", "4", "5"] {
        rig.ask(c, msgid, "default");
    }
    assert_eq!(rig.queue("default"), (1, 4, 4));
    let b = rig.worker("b", r#"[[1, "default"]]"#, 0);
    rig.lose(a, 3);
    assert_eq!(rig.slots("a"), Some((3, 1, "grace")));
    assert_eq!(rig.queue("default"), (4, 1, 1));
    assert_eq!(rig.count(Counter::JobsReturned), 3);
    rig.ready(b);
    assert_eq!(rig.jobs(b), ["2"]);
    let a = rig.open(Socket::Backend, "a");
    assert_eq!(rig.jobs(a), ["3", "4", "5"]);
    rig.got(c);
    for msgid in ["1", "3", "4", "5"] {
        rig.reply(a, msgid);
    }
    rig.reply(b, "2");
    assert_eq!(rig.got(c).len(), 5);
}

#[test]
fn returned_jobs_go_to_other_free_workers_in_their_order() {
    let mut rig = Rig::new();
    let a = rig.worker("a", r#"[[20, "default"]]"#, 3);
    let b = rig.worker("b", DEFAULT, 5);
    let c = rig.client("c");
    for msgid in ["1", "2", "3"] {
        rig.request(c, msgid, "default");
    }
    rig.lose(a, 3);
    assert_eq!(rig.jobs(b), ["1", "2", "3"]);
}

#[test]
fn unsent_twins_of_an_older_connection_are_told_apart() {
    let mut rig = Rig::new();
    let old = rig.worker("w", DEFAULT, 2);
    let c = rig.client("c");
    rig.ask(c, "same", "default");
    let new = rig.open(Socket::Backend, "w");
    rig.ask(c, "same", "default");
    assert_eq!(
        (rig.jobs(new), rig.slots("w")),
        (vec!["same".into()], Some((0, 2, "live")))
    );
    rig.lost(old);
    rig.out.sent.remove(&old);
    rig.close(old);
    rig.lost(new);
    rig.close(new);
    assert_eq!(rig.slots("w"), Some((0, 2, "grace")));
}

#[test]
fn informing_again_on_the_same_connection_keeps_jobs_on_another_loses_them() {
    let mut rig = Rig::new();
    let w = rig.worker("w", DEFAULT, 2);
    let c = rig.client("c");
    rig.ask(c, "a", "default");
    rig.inform(w, DEFAULT, "");
    assert_eq!(rig.slots("w"), Some((0, 1, "live")));
    rig.lose(w, 0);
    let w = rig.open(Socket::Backend, "w");
    rig.got(c);
    rig.inform(w, DEFAULT, "");
    assert_eq!(rig.slots("w"), Some((0, 0, "live")));
    assert!(rig.got(c)[0].contains("JobLost"));
}

#[test]
fn an_instance_tells_what_it_still_runs() {
    let mut rig = Rig::new();
    let all = "completions,instance:T";
    let w = rig.worker_with("w", DEFAULT, all, 4);
    let c = rig.client("c");
    for msgid in ["a", "b", "d"] {
        rig.ask(c, msgid, "default");
    }
    rig.lose(w, 1);
    rig.request(c, "e", "default");
    rig.got(c);
    let w = rig.open(Socket::Backend, "w");
    assert!(
        rig.jobs(w).is_empty(),
        "nothing is handed out before it has told"
    );
    assert_eq!(rig.slots("w"), Some((2, 2, "grace")));
    rig.send(
        w,
        &[
            "INFORM",
            "i",
            DEFAULT,
            "worker",
            "completions,instance:T,running:a+z",
        ],
    );
    assert_eq!(rig.slots("w"), Some((0, 1, "live")));
    let got = rig.got(c);
    assert!(got.len() == 1 && got[0].ends_with(" b lost"), "{got:?}");
    rig.ready(w);
    rig.ready(w);
    assert_eq!(rig.jobs(w), ["d", "e"]);
    // Another process under the same id.
    rig.lose(w, 0);
    let w = rig.open(Socket::Backend, "w");
    rig.send(
        w,
        &["INFORM", "i", DEFAULT, "worker", "completions,instance:U"],
    );
    assert_eq!(rig.slots("w"), Some((0, 0, "live")));
    assert_eq!(rig.got(c).len(), 2);
}

#[test]
fn a_judgement_waits_for_what_the_old_connection_gives_back() {
    let mut rig = Rig::new();
    let w = rig.worker_with("w", DEFAULT, "completions,instance:T", 2);
    let c = rig.client("c");
    rig.ask(c, "a", "default");
    rig.ask(c, "b", "default");
    rig.got(c);
    let new = rig.open(Socket::Backend, "w");
    rig.send(
        new,
        &[
            "INFORM",
            "i",
            DEFAULT,
            "worker",
            "completions,instance:T,running:",
        ],
    );
    assert!(rig.got(c).is_empty(), "b may not have been sent");
    rig.lose(w, 1);
    let got = rig.got(c);
    assert!(got.len() == 1 && got[0].ends_with(" a lost"), "{got:?}");
    assert_eq!(rig.queue("default").0, 1);
}

#[test]
fn a_broker_result_for_ten_thousand_jobs_is_put_out_as_there_is_room() {
    let mut rig = Rig::with(|config| config.reconnect_grace_ms = 0);
    let w = rig.worker("w", DEFAULT, 0);
    let c = rig.client("c");
    for at in 0..500 {
        rig.ready(w);
        rig.ask(c, &at.to_string(), "default");
    }
    rig.got(c);
    rig.out.room = Some(200);
    rig.lose(w, 0);
    assert_eq!(rig.got(c).len(), 200);
    assert!(rig.broker.has_pending_output());
    rig.out.room = Some(200);
    assert!(rig.broker.poll_output(rig.now, &mut rig.out));
    rig.out.room = None;
    assert!(!rig.broker.poll_output(rig.now, &mut rig.out));
    let got = rig.got(c);
    assert_eq!(got.len(), 300);
    assert!(got[299].ends_with(" 499 lost"));
}

#[test]
fn a_stopped_broker_removes_nobody() {
    let mut rig = Rig::new();
    let w = rig.worker("w", DEFAULT, 1);
    rig.sleep_alive(2_000, &[w]);
    rig.now.mono_ns += 60_000_000_000;
    rig.turn();
    assert_eq!(rig.slots("w"), Some((1, 0, "live")));
    assert_eq!(rig.count(Counter::Stalls), 1);
    // It was heard at 1 s; the time up to 3 s, when a HEARTBEAT was due, counts.
    rig.sleep(7_900);
    assert_eq!(rig.slots("w").unwrap().2, "silent");
    rig.sleep(200);
    assert_eq!(rig.slots("w"), None);
}

#[test]
fn a_claimed_heartbeat_interval_stretches_the_patience() {
    let mut rig = Rig::new();
    let w = rig.worker_with("w", DEFAULT, "heartbeat:30", 1);
    rig.sleep(40_000);
    assert_eq!(rig.slots("w"), Some((1, 0, "live")));
    rig.broker.handle_activity(w, rig.now, &mut rig.out);
    rig.sleep(55_000);
    assert_eq!(rig.slots("w"), Some((1, 0, "silent")));
    let c = rig.client("c");
    rig.request(c, "m", "default");
    rig.broker.handle_activity(w, rig.now, &mut rig.out);
    assert_eq!(rig.jobs(w), ["m"]);
}

#[test]
fn whatever_a_silent_worker_sends_shows_that_it_lives() {
    type Act = fn(&mut Rig, crate::ids::ConnId);
    let acts: [Act; 6] = [
        |rig, w| rig.send(w, &["HEARTBEAT", "h", "1.0"]),
        // None of these is taken.
        |rig, w| rig.send(w, &["INFORM", "i", "not json", "worker", ""]),
        |rig, w| rig.send(w, &["REQUEST", "m", "default", "", "{}"]),
        |rig, w| rig.send(w, &["WHAT", "m"]),
        |rig, w| {
            let head = OwnedMessage::from_frames(["", "eMQP/1.0", "REPLY", "x"]);
            rig.broker
                .handle_too_large(w, &head.view(), rig.now, &mut rig.out);
        },
        |rig, w| rig.broker.handle_activity(w, rig.now, &mut rig.out),
    ];
    for (number, act) in acts.into_iter().enumerate() {
        let mut rig = Rig::new();
        let w = rig.worker("w", DEFAULT, 1);
        let c = rig.client("c");
        rig.sleep(5_100);
        rig.request(c, "m", "default");
        assert_eq!(rig.slots("w").unwrap().2, "silent");
        act(&mut rig, w);
        assert_eq!(rig.slots("w").unwrap().2, "live", "{number}");
        assert_eq!(rig.jobs(w).len(), 1, "{number}");
    }
}
