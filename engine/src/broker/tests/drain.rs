//! Graceful shutdown.

use super::rig::Rig;
use crate::link::CloseReason;
use crate::metrics::Counter;

const DEFAULT: &str = r#"[[10, "default"]]"#;

#[test]
fn an_idle_broker_says_goodbye_and_finishes() {
    let mut rig = Rig::new();
    let (w, s, c) = (
        rig.worker("w", DEFAULT, 1),
        rig.scheduler("s"),
        rig.client("c"),
    );
    rig.broker.begin_shutdown(rig.now, &mut rig.out);
    assert!(!rig.broker.is_finished() && rig.broker.figures().draining);
    rig.request(c, "m", "default");
    assert_eq!(rig.got(c), ["REPLY * m"], "what had arrived is accepted");
    assert_eq!(rig.jobs(w), ["m"]);
    rig.sleep(200);
    assert!(rig.broker.is_finished());
    assert_eq!(
        (rig.got(w), rig.got(s)),
        (vec!["KBYE *".into()], vec!["KBYE *".into()])
    );
    let mut closed = rig.out.closed.clone();
    closed.sort_by_key(|entry| entry.0);
    let mut all = [c, s, w].map(|conn| (conn, CloseReason::Shutdown));
    all.sort_by_key(|entry| entry.0);
    assert_eq!(closed, all);
    assert_eq!(
        rig.count(Counter::JobsAbandoned),
        1,
        "a plain job is not waited for"
    );
}

#[test]
fn jobs_that_owe_a_result_are_waited_for_waiting_ones_are_answered() {
    let mut rig = Rig::new();
    let w = rig.worker("w", DEFAULT, 1);
    let (c1, c2) = (rig.client("c1"), rig.client("c2"));
    rig.ask(c1, "a", "default");
    rig.ask(c2, "b", "default");
    rig.request(c2, "d", "default");
    rig.got(c1);
    rig.got(c2);
    rig.broker.begin_shutdown(rig.now, &mut rig.out);
    rig.sleep(200);
    let got = rig.got(c2);
    assert!(
        got.len() == 1 && got[0].contains("BrokerStopped"),
        "{got:?}"
    );
    assert!(got[0].ends_with(" b lost"));
    assert_eq!(rig.out.closed, [(c2, CloseReason::Shutdown)]);
    rig.request(c1, "e", "default");
    assert_eq!(rig.got(c1), ["REJECT * e draining"]);
    rig.sleep_alive(5_000, &[w]);
    assert!(!rig.broker.is_finished());
    rig.ready(w);
    rig.reply(w, "a");
    assert_eq!(rig.got(c1), ["REPLY x 3 a"]);
    rig.turn();
    assert!(rig.broker.is_finished());
    assert_eq!(rig.count(Counter::JobsAbandoned), 2);
}

#[test]
fn the_wait_ends_after_drain_timeout() {
    let mut rig = Rig::new();
    let w = rig.worker("w", DEFAULT, 1);
    let c = rig.client("c");
    rig.ask(c, "a", "default");
    rig.got(c);
    rig.broker.begin_shutdown(rig.now, &mut rig.out);
    rig.sleep_alive(29_000, &[w]);
    assert!(!rig.broker.is_finished());
    rig.sleep_alive(1_100, &[w]);
    rig.turn();
    assert!(rig.broker.is_finished());
    let got = rig.got(c);
    assert!(
        got.len() == 1 && got[0].contains("BrokerStopped"),
        "{got:?}"
    );
}

#[test]
fn a_second_signal_ends_at_once_however_little_room_there_is() {
    let mut rig = Rig::new();
    let w = rig.worker("w", DEFAULT, 3);
    let c = rig.client("c");
    for at in 0..6 {
        rig.ask(c, &at.to_string(), "default");
    }
    rig.got(c);
    rig.broker.begin_shutdown(rig.now, &mut rig.out);
    rig.broker.end_shutdown(rig.now, &mut rig.out);
    let mut turns = 0;
    while !rig.broker.is_finished() {
        rig.out.room = Some(1);
        rig.broker.poll_output(rig.now, &mut rig.out);
        rig.broker.check_invariants();
        turns += 1;
        assert!(turns < 100);
    }
    assert_eq!(rig.got(c).len(), 6);
    assert!(rig.got(w).contains(&"KBYE *".to_owned()));
    assert_eq!(rig.count(Counter::JobsAbandoned), 6);
}

#[test]
fn only_peers_that_know_it_are_told_draining() {
    let mut rig = Rig::new();
    let w = rig.worker("w", DEFAULT, 1);
    let old = rig.open_as(crate::ids::Socket::Frontend, "old", false);
    rig.ask(old, "a", "default");
    rig.got(old);
    rig.broker.begin_shutdown(rig.now, &mut rig.out);
    rig.sleep_alive(200, &[w]);
    rig.request(old, "b", "default");
    assert!(rig.got(old).is_empty());
    let new = rig.client("new");
    assert_eq!(rig.out.closed, [(new, CloseReason::Shutdown)]);
}
