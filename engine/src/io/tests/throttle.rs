//! Peers that ask for more output than they take.

use super::*;
use crate::ids::NS_PER_MS;
use crate::limits::{OWED_BYTES_MAX, OWED_TIMEOUT_MS};

/// Floods that the table or the state machine answers with output that no class limit bounds.
#[test]
fn who_asks_and_does_not_read_is_not_read_either() {
    let ask_ping = |peer: &mut FakePeer, _: &mut Table, _: ConnId| {
        let mut ping = Vec::new();
        zmtp::push_ping(&mut ping, 10, b"0123456789abcdef");
        peer.raw(&ping);
    };
    // What a state machine does for an INFORM: an answer for each.
    let ask_answer = |peer: &mut FakePeer, table: &mut Table, id: ConnId| {
        if !table.outs.is_throttled(id.slot()) {
            peer.send(&message(1, 10));
            let answer = message(2, 60);
            table.outs.forward(id, OutClass::Control, &answer.view());
        }
    };
    type Ask<'a> = &'a dyn Fn(&mut FakePeer, &mut Table, ConnId);
    for ask in [&ask_ping as Ask<'_>, &ask_answer] {
        let (mut table, mut sink) = (table(), Recorder::default());
        let (id, mut peer) = open(&mut table, &mut sink, b"w");
        peer.wire().write_room = 0;
        for _ in 0..20_000 {
            ask(&mut peer, &mut table, id);
            step(&mut table, &mut sink, id, 0);
        }
        let waiting = table.outs.total_pending_bytes();
        assert!(waiting > OWED_BYTES_MAX && waiting < OWED_BYTES_MAX + 200);
        assert_eq!(table.counters().get(Counter::ConnectionsThrottled), 1);
        assert!(!table.has_work(&mut sink), "a spinning agent");
        // It is read again once half has left, and everything it sent is still there.
        sink.take();
        peer.send(&message(7, 5));
        peer.wire().write_room = OWED_BYTES_MAX / 4;
        step(&mut table, &mut sink, id, 0);
        assert!(sink.take().is_empty());
        peer.wire().write_room = usize::MAX;
        for _ in 0..4 {
            step(&mut table, &mut sink, id, 0);
        }
        assert_eq!(table.outs.total_pending_bytes(), 0);
        let frames: Vec<_> = message(7, 5).to_frames();
        assert_eq!(bodies(&sink.take()).last(), Some(&frames));
        peer.receive();
    }
}

#[test]
fn who_takes_nothing_for_long_is_closed_and_who_takes_slowly_is_not() {
    let (mut table, mut sink) = (table(), Recorder::default());
    let (id, peer) = open(&mut table, &mut sink, b"w");
    peer.wire().write_room = 0;
    let large = message(1, 10 * OWED_BYTES_MAX);
    table.outs.forward(id, OutClass::Control, &large.view());
    peer.send(&message(1, 10));
    let mut now_ns = 0;
    for _ in 0..3 {
        peer.wire().write_room = 10;
        now_ns += OWED_TIMEOUT_MS * NS_PER_MS;
        step(&mut table, &mut sink, id, now_ns);
        table.housekeeping(now_ns);
        assert_eq!(table.total(), 1);
    }
    for _ in 0..2 {
        now_ns += OWED_TIMEOUT_MS * NS_PER_MS;
        step(&mut table, &mut sink, id, now_ns);
        table.housekeeping(now_ns);
    }
    let counters = table.counters();
    assert_eq!(counters.get(Counter::ConnectionsClosedNotReading), 1);
    assert!(matches!(sink.take()[..], [Told::Lost(lost), ..] if lost == id));
}

#[test]
fn output_that_flows_is_never_throttled_however_much_of_it_is_owed() {
    let (mut table, mut sink) = (table(), Recorder::default());
    let (id, mut peer) = open(&mut table, &mut sink, b"w");
    // Never empty: a job always waits behind the answers.
    for n in 0..5_000 {
        let answer = message(n, 60);
        table.outs.forward(id, OutClass::Control, &answer.view());
        table
            .outs
            .forward(id, OutClass::Work, &message(n, 500).view());
        peer.wire().write_room = 600;
        step(&mut table, &mut sink, id, 0);
        assert!(!table.outs.is_throttled(id.slot()), "at {n}");
        if n % 100 == 0 {
            peer.receive();
        }
    }
}
