use super::*;
use crate::dial::Target;
use crate::emqp::first_msgid;
use crate::frames::{Message, split_wire};

#[derive(Debug, Default)]
struct Shell {
    sent: Vec<Vec<String>>,
    redialled: usize,
    hung_up: bool,
}

impl Net for Shell {
    fn dial(&mut self, _: Target) -> DialId {
        DialId(0)
    }
    fn hang_up(&mut self, _: DialId) {
        self.hung_up = true;
    }
    fn redial(&mut self, _: DialId) {
        self.redialled += 1;
    }
    fn send(&mut self, _: ConnId, pieces: &[&[u8]]) {
        let wire = pieces.concat();
        let mut spans = Vec::new();
        split_wire(&wire, &mut spans).unwrap();
        let message = Message::new(&wire, &spans);
        let text = |frame| String::from_utf8_lossy(frame).into_owned();
        self.sent.push(message.frames().skip(2).map(text).collect());
    }
    fn pending_bytes(&mut self, _: ConnId) -> usize {
        0
    }
    fn notify_writable(&mut self, _: ConnId, _: usize) {}
    fn close(&mut self, _: ConnId) {}
}

fn at(ms: u64) -> Now {
    Now {
        mono_ns: ms * NS_PER_MS,
        wall_ms: 1_796_071_206_028 + ms,
    }
}

/// Connected and asked to be registered at time 0.
fn informed(ours: bool, heartbeats: bool) -> (Session, Shell) {
    let config = SessionConfig {
        heartbeat_interval_ms: heartbeats.then_some(3_000),
        silence_ms: 15_000,
        ack_ms: 5_000,
    };
    let mut session = Session::new(config, first_msgid([1, 2]));
    let mut shell = Shell::default();
    session.set_dial(DialId(0));
    session.opened(ConnId::new(0, 0, 1), ours, at(0), &mut shell);
    (session, shell)
}

fn registered(ours: bool, heartbeats: bool) -> (Session, Shell) {
    let (mut session, mut shell) = informed(ours, heartbeats);
    let msgid = shell.sent.pop().unwrap()[1].clone();
    assert!(session.ack(msgid.as_bytes(), at(0)));
    (session, shell)
}

#[test]
fn registration_in_the_words_each_broker_understands() {
    let (mut session, shell) = informed(true, true);
    assert_eq!(shell.sent[0][2..], ["", "scheduler", "heartbeat:3"]);
    assert_eq!(session.registered(), None);
    assert!(!session.ack(b"another", at(1)));
    assert!(session.ack(shell.sent[0][1].as_bytes(), at(1)));
    assert!(!session.ack(shell.sent[0][1].as_bytes(), at(1)), "once");
    assert!(session.registered().is_some());
    let (_, shell) = informed(false, true);
    assert_eq!(shell.sent[0][2..], ["", "scheduler"]);
}

#[test]
fn without_an_ack_it_connects_again() {
    for (ours, ms) in [(true, 5_000), (false, 2_000)] {
        let (mut session, mut shell) = informed(ours, true);
        assert_eq!(session.deadline(), Some(at(ms).mono_ns));
        session.timeout(at(ms - 1), &mut shell);
        assert_eq!(shell.redialled, 0);
        session.timeout(at(ms), &mut shell);
        assert_eq!(shell.redialled, 1);
    }
}

#[test]
fn heartbeats_are_sent_and_their_absence_noticed() {
    let (mut session, mut shell) = registered(true, true);
    assert_eq!(session.deadline(), Some(at(3_000).mono_ns));
    session.timeout(at(3_000), &mut shell);
    let beat = shell.sent.pop().unwrap();
    assert_eq!(
        (beat[0].as_str(), beat[2].as_str()),
        ("HEARTBEAT", "1796071209.028")
    );
    assert_eq!(session.deadline(), Some(at(6_000).mono_ns));
    session.heard(at(6_000));
    for ms in (6_000..21_000).step_by(1_000) {
        session.timeout(at(ms), &mut shell);
        assert_eq!(shell.redialled, 0);
    }
    session.timeout(at(21_000), &mut shell);
    assert_eq!((shell.redialled, session.registered()), (1, None));
    // Switched off.
    let (mut quiet, mut shell) = registered(true, false);
    assert_eq!(quiet.deadline(), None);
    quiet.timeout(at(1_000_000), &mut shell);
    assert!(shell.sent.is_empty() && shell.redialled == 0);
}

#[test]
fn disconnect_means_register_again() {
    let (mut session, mut shell) = registered(true, true);
    session.disconnected(at(10), &mut shell);
    assert_eq!(shell.sent.pop().unwrap()[0], "INFORM");
    assert_eq!((session.registered(), shell.redialled), (None, 0));
    let (mut session, mut shell) = registered(false, true);
    session.disconnected(at(10), &mut shell);
    assert_eq!((shell.sent.len(), shell.redialled), (0, 1));
}

#[test]
fn a_broker_that_leaves_gets_nothing_more() {
    let (mut session, mut shell) = registered(true, true);
    session.broker_leaves();
    assert_eq!(session.registered(), None);
    // If it does not close the connection either.
    session.timeout(at(4_999), &mut shell);
    assert!(shell.sent.is_empty() && shell.redialled == 0);
    session.timeout(at(5_000), &mut shell);
    assert_eq!(shell.redialled, 1);
}

#[test]
fn the_end_says_kbye_and_a_lost_connection_hears_nothing() {
    let (mut session, mut shell) = registered(true, true);
    session.leave(&mut shell);
    assert_eq!(shell.sent.pop().unwrap()[0], "KBYE");
    assert!(shell.hung_up);
    let (mut session, mut shell) = registered(true, true);
    session.lost();
    session.timeout(at(100_000), &mut shell);
    session.leave(&mut shell);
    assert!(shell.sent.is_empty() && shell.hung_up && shell.redialled == 0);
}
