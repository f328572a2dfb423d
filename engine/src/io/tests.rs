mod throttle;

use super::fake::*;
use super::{ConnTable, OutputTable, WrittenTable};
use crate::frames::OwnedMessage;
use crate::ids::{ConnId, NS_PER_SEC, Socket};
use crate::limits::{SHARED_BYTES_MIN, TURN_READ_BYTES_MAX};
use crate::link::{CloseReason, OutClass, Outbox};
use crate::metrics::Counter;
use crate::zmtp;

type Table = ConnTable<FakeStream>;

fn table() -> Table {
    ConnTable::new(
        0,
        table_config(),
        OutputTable::new(0, output_config(), None),
    )
}

fn message(n: usize, len: usize) -> OwnedMessage {
    OwnedMessage::from_frames([b"".to_vec(), n.to_string().into_bytes(), vec![n as u8; len]])
}

/// Adds a peer and carries the handshake through.
fn open(table: &mut Table, sink: &mut Recorder, routing_id: &[u8]) -> (ConnId, FakePeer) {
    let (mut peer, stream) = FakePeer::new(routing_id);
    let id = table.add(stream, Socket::Backend, None, 0);
    for _ in 0..4 {
        step(table, sink, id, 0);
        peer.receive();
    }
    assert!(matches!(sink.take()[..], [Told::Opened(opened, ..)] if opened == id));
    (id, peer)
}

/// An event for the connection, then turns until nothing is left to do.
fn step(table: &mut Table, sink: &mut Recorder, id: ConnId, now_ns: u64) {
    table.on_event(id.slot(), true, true, false);
    table.flush();
    for _ in 0..1000 {
        if !table.has_work(sink) {
            table.housekeeping(now_ns);
            return;
        }
        table.turn(now_ns, sink);
        table.flush();
    }
    panic!("no end of work");
}

fn bodies(told: &[Told]) -> Vec<Vec<Vec<u8>>> {
    let message = |t: &Told| match t {
        Told::Message(_, frames, _) => Some(frames.clone()),
        _ => None,
    };
    told.iter().filter_map(message).collect()
}

#[test]
fn messages_arrive_whole_however_they_are_cut() {
    let sizes = [
        0,
        1,
        300,
        SHARED_BYTES_MIN,
        3 * TURN_READ_BYTES_MAX,
        5,
        100_000,
    ];
    for read_max in [1_000, 4_096, 100_003, usize::MAX] {
        let (mut table, mut sink) = (table(), Recorder::default());
        let (id, peer) = open(&mut table, &mut sink, b"w");
        peer.wire().read_max = read_max;
        let sent: Vec<_> = sizes
            .iter()
            .enumerate()
            .map(|(i, n)| message(i, *n))
            .collect();
        sent.iter().for_each(|m| peer.send(m));
        while peer.has_unread() {
            step(&mut table, &mut sink, id, 0);
        }
        let expected: Vec<_> = sent.iter().map(OwnedMessage::to_frames).collect();
        assert_eq!(bodies(&sink.take()), expected, "{read_max}");
        assert_eq!(table.partial_bytes(), 0);
    }
}

#[test]
fn one_byte_at_a_time_is_enough() {
    let (mut table, mut sink) = (table(), Recorder::default());
    let (mut peer, stream) = FakePeer::new(b"w");
    peer.wire().read_max = 1;
    let id = table.add(stream, Socket::Backend, None, 0);
    for _ in 0..2_000 {
        step(&mut table, &mut sink, id, 0);
        peer.receive();
    }
    let sent = message(1, 700);
    peer.send(&sent);
    while peer.has_unread() {
        step(&mut table, &mut sink, id, 0);
    }
    assert_eq!(bodies(&sink.take()), [sent.to_frames()]);
}

#[test]
fn a_large_message_read_in_parts_goes_on_by_reference() {
    let (mut table, mut sink) = (table(), Recorder::default());
    let (id, peer) = open(&mut table, &mut sink, b"w");
    peer.send(&message(1, 4 * TURN_READ_BYTES_MAX));
    while peer.has_unread() {
        step(&mut table, &mut sink, id, 0);
    }
    assert!(matches!(&sink.take()[..], [Told::Message(_, _, shared)] if *shared));
    assert_eq!(table.partial_bytes(), 0);
}

#[test]
fn without_room_nothing_is_read_and_nothing_is_lost() {
    let (mut table, mut sink) = (table(), Recorder::default());
    let (id, peer) = open(&mut table, &mut sink, b"w");
    let sent: Vec<_> = (0..500).map(|n| message(n, n * 3)).collect();
    sent.iter().for_each(|m| peer.send(m));
    peer.wire().eof = true;
    let mut told = Vec::new();
    for _ in 0..2_000 {
        sink.room = 1;
        step(&mut table, &mut sink, id, 0);
        told.extend(sink.take());
    }
    let expected: Vec<_> = sent.iter().map(OwnedMessage::to_frames).collect();
    assert_eq!(bodies(&told), expected);
    assert_eq!(told[500..], [Told::Lost(id), Told::Closed(id)]);
    assert!(table.is_empty());
}

#[test]
fn bytes_that_are_not_zmtp_end_the_connection_unannounced() {
    let (mut table, mut sink) = (table(), Recorder::default());
    let (peer, stream) = FakePeer::new(b"w");
    let id = table.add(stream, Socket::Frontend, None, 0);
    step(&mut table, &mut sink, id, 0);
    peer.raw(b"\x07garbage");
    step(&mut table, &mut sink, id, 0);
    assert_eq!(sink.take(), []);
    assert!(table.is_empty() && peer.wire().dropped);
}

#[test]
fn a_handshake_has_its_deadline() {
    let (mut table, mut sink) = (table(), Recorder::default());
    let (_peer, stream) = FakePeer::new(b"w");
    table.add(stream, Socket::Frontend, None, NS_PER_SEC);
    assert_eq!(table.next_deadline_ns(), Some(11 * NS_PER_SEC));
    assert_eq!(table.housekeeping(11 * NS_PER_SEC - 1), 0);
    assert_eq!(table.len(Socket::Frontend), 1);
    assert_eq!(table.housekeeping(11 * NS_PER_SEC), 1, "it counts as work");
    assert_eq!(table.len(Socket::Frontend), 0);
    assert_eq!(sink.take(), []);
    assert_eq!(
        table
            .counters()
            .get(Counter::ConnectionsClosedHandshakeTimeout),
        1
    );
}

#[test]
fn what_was_not_wholly_sent_comes_back_newest_first() {
    for room in [0, 1, 120, 250, 100_000, 350_000, usize::MAX] {
        let (mut table, mut sink) = (table(), Recorder::default());
        let (id, mut peer) = open(&mut table, &mut sink, b"w");
        peer.wire().write_room = room;
        let sizes = [100, 100, 2 * SHARED_BYTES_MIN, 10, 5 * SHARED_BYTES_MIN, 7];
        let sent: Vec<_> = sizes
            .iter()
            .enumerate()
            .map(|(i, n)| message(i, *n))
            .collect();
        for (n, m) in sent.iter().enumerate() {
            if n % 2 == 0 && m.view().wire().len() >= SHARED_BYTES_MIN {
                let shared = std::sync::Arc::new(m.view().wire().to_vec());
                let view = crate::frames::Message::from_shared(&shared, m.view().spans());
                table.outs.forward(id, OutClass::Work, &view);
            } else {
                table.outs.forward(id, OutClass::Work, &m.view());
            }
            table.flush();
        }
        let arrived = peer.receive().len();
        peer.wire().reset = true;
        step(&mut table, &mut sink, id, 0);
        let mut expected = vec![Told::Lost(id)];
        let back = sent[arrived..].iter().rev();
        expected.extend(back.map(|m| Told::Unsent(id, m.to_frames())));
        expected.push(Told::Closed(id));
        assert_eq!(sink.take(), expected, "{room}");
        assert!(table.is_empty());
        assert_eq!(table.outs.total_pending_bytes(), 0);
    }
}

#[test]
fn output_between_loss_and_release_comes_back_too() {
    let (mut table, mut sink) = (table(), Recorder::default());
    sink.release = false;
    let (id, peer) = open(&mut table, &mut sink, b"w");
    peer.wire().eof = true;
    step(&mut table, &mut sink, id, 0);
    assert_eq!(sink.take(), [Told::Lost(id)]);
    let (job, notice) = (message(1, 10), message(2, 10));
    table.outs.forward(id, OutClass::Work, &job.view());
    table.outs.forward(id, OutClass::Control, &notice.view());
    table.outs.release(id);
    step(&mut table, &mut sink, id, 0);
    assert_eq!(
        sink.take(),
        [Told::Unsent(id, job.to_frames()), Told::Closed(id)]
    );
    table.outs.forward(id, OutClass::Work, &job.view());
    assert_eq!(table.counters().get(Counter::OutputToGone), 2);
}

#[test]
fn a_client_that_does_not_read_costs_a_bounded_buffer() {
    let (mut table, mut sink) = (table(), Recorder::default());
    let (id, mut peer) = open(&mut table, &mut sink, b"c");
    peer.wire().write_room = 0;
    for n in 0..1_000 {
        table
            .outs
            .forward(id, OutClass::Notice, &message(n, 90).view());
        table.flush();
    }
    assert!(table.outs.total_pending_bytes() <= 10_000);
    let notices = table.outs.total_pending_bytes();
    for n in 0..2_000 {
        table
            .outs
            .forward(id, OutClass::Result, &message(n, 90).view());
    }
    assert!(table.outs.total_pending_bytes() <= 100_000);
    let counters = table.counters();
    assert!(counters.get(Counter::NoticesDropped) > 800 && notices > 9_000);
    assert!(counters.get(Counter::ResultsDropped) > 1_000);
    peer.wire().write_room = usize::MAX;
    step(&mut table, &mut sink, id, 0);
    assert_eq!(table.outs.total_pending_bytes(), 0);
    // One message always fits an empty buffer.
    table
        .outs
        .forward(id, OutClass::Notice, &message(1, 50_000).view());
    table.flush();
    assert_eq!(peer.receive().last(), Some(&message(1, 50_000)));
}

#[test]
fn writable_is_told_once_below_the_mark() {
    let (mut table, mut sink) = (table(), Recorder::default());
    let (id, peer) = open(&mut table, &mut sink, b"w");
    peer.wire().write_room = 0;
    table
        .outs
        .forward(id, OutClass::Work, &message(1, 1_000).view());
    table.flush();
    table.outs.notify_writable(id, 500);
    peer.wire().write_room = 400;
    step(&mut table, &mut sink, id, 0);
    assert_eq!(sink.take(), []);
    peer.wire().write_room = 400;
    step(&mut table, &mut sink, id, 0);
    peer.wire().write_room = 400;
    step(&mut table, &mut sink, id, 0);
    assert_eq!(sink.take(), [Told::Writable(id)]);
}

#[test]
fn the_dispatch_across_a_ring_sees_what_is_waiting() {
    let written = WrittenTable::new(100);
    let outs = OutputTable::new(0, output_config(), Some(std::sync::Arc::clone(&written)));
    let mut table: Table = ConnTable::new(0, table_config(), outs);
    let mut sink = Recorder::default();
    let (id, peer) = open(&mut table, &mut sink, b"w");
    assert_eq!(written.get(id.slot()), 0, "handshakes do not count");
    peer.wire().write_room = 30;
    let job = message(1, 100);
    table.outs.forward(id, OutClass::Work, &job.view());
    table.flush();
    assert_eq!(written.get(id.slot()), 30);
    for _ in 0..200 {
        table.outs.forward(id, OutClass::Notice, &job.view());
    }
    let dropped = table.counters().get(Counter::NoticesDropped);
    let len = job.view().wire().len() as u64;
    assert!(dropped > 0);
    assert_eq!(
        written.get(id.slot()),
        30 + dropped * len,
        "what is dropped is not waiting"
    );
}

#[test]
fn a_replaced_connection_delivers_what_had_arrived_and_gets_nothing() {
    let (mut table, mut sink) = (table(), Recorder::default());
    let (id, mut peer) = open(&mut table, &mut sink, b"w");
    peer.send(&message(1, 10));
    table.outs.close(id, CloseReason::Replaced);
    table
        .outs
        .forward(id, OutClass::Control, &message(9, 1).view());
    step(&mut table, &mut sink, id, 0);
    let told = sink.take();
    assert_eq!(bodies(&told), [message(1, 10).to_frames()]);
    assert_eq!(told[1..], [Told::Lost(id), Told::Closed(id)]);
    assert_eq!(peer.receive(), []);
}

#[test]
fn an_orderly_close_sends_everything_first_and_reads_to_the_end() {
    let (mut table, mut sink) = (table(), Recorder::default());
    let (id, mut peer) = open(&mut table, &mut sink, b"w");
    peer.wire().write_room = 50;
    table
        .outs
        .forward(id, OutClass::Control, &message(1, 200).view());
    table.outs.close(id, CloseReason::Shutdown);
    step(&mut table, &mut sink, id, 0);
    assert!(!peer.wire().write_shut);
    peer.wire().write_room = usize::MAX;
    peer.send(&message(2, 10));
    step(&mut table, &mut sink, id, 0);
    assert_eq!(peer.receive(), [message(1, 200)]);
    assert!(peer.wire().write_shut && !peer.wire().dropped);
    peer.wire().eof = true;
    step(&mut table, &mut sink, id, 0);
    assert_eq!(sink.take(), [Told::Lost(id), Told::Closed(id)]);
    assert!(peer.wire().dropped);
}

#[test]
fn an_orderly_close_waits_two_seconds_at_most() {
    let (mut table, mut sink) = (table(), Recorder::default());
    let (id, _peer) = open(&mut table, &mut sink, b"w");
    table.outs.close(id, CloseReason::Shutdown);
    step(&mut table, &mut sink, id, 0);
    step(&mut table, &mut sink, id, 2 * NS_PER_SEC - 1);
    step(&mut table, &mut sink, id, 2 * NS_PER_SEC - 1);
    assert_eq!(sink.take(), []);
    step(&mut table, &mut sink, id, 2 * NS_PER_SEC);
    step(&mut table, &mut sink, id, 2 * NS_PER_SEC);
    assert_eq!(sink.take(), [Told::Lost(id), Told::Closed(id)]);
}

#[test]
fn paused_connections_are_read_again_later() {
    let (mut table, mut sink) = (table(), Recorder::default());
    let (a, peer_a) = open(&mut table, &mut sink, b"a");
    let (b, peer_b) = open(&mut table, &mut sink, b"b");
    table.outs.pause_input(Socket::Backend, true);
    table.outs.set_never_paused(b, true);
    peer_a.send(&message(1, 10));
    peer_b.send(&message(2, 10));
    step(&mut table, &mut sink, a, 0);
    step(&mut table, &mut sink, b, 0);
    assert_eq!(bodies(&sink.take()), [message(2, 10).to_frames()]);
    table.outs.pause_input(Socket::Backend, false);
    step(&mut table, &mut sink, b, 0);
    assert_eq!(bodies(&sink.take()), [message(1, 10).to_frames()]);
}

#[test]
fn anonymous_peers_get_routing_ids_of_their_own() {
    let (mut table, mut sink) = (table(), Recorder::default());
    let mut ids = Vec::new();
    let mut peers = Vec::new();
    for _ in 0..3 {
        let (mut peer, stream) = FakePeer::new(b"");
        let id = table.add(stream, Socket::Frontend, None, 0);
        for _ in 0..3 {
            step(&mut table, &mut sink, id, 0);
            peer.receive();
        }
        peers.push(peer);
    }
    for told in sink.take() {
        let Told::Opened(_, routing_id, extensions) = told else {
            panic!("{told:?}")
        };
        assert!(extensions);
        assert_eq!((routing_id.len(), routing_id[0]), (17, 0));
        ids.push(routing_id);
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3);
}

#[test]
fn a_slot_in_reuse_does_not_get_what_was_meant_for_its_former_user() {
    let (mut table, mut sink) = (table(), Recorder::default());
    let (old, peer) = open(&mut table, &mut sink, b"w");
    peer.wire().eof = true;
    step(&mut table, &mut sink, old, 0);
    sink.take();
    let (new, mut peer) = open(&mut table, &mut sink, b"w");
    assert_eq!(old.slot(), new.slot());
    table
        .outs
        .forward(old, OutClass::Work, &message(1, 10).view());
    table.outs.close(old, CloseReason::Replaced);
    step(&mut table, &mut sink, new, 0);
    assert_eq!(peer.receive(), []);
    assert_eq!(sink.take(), []);
}

#[test]
fn a_paused_peer_with_heartbeats_gets_signs_of_life() {
    let mut ping = Vec::new();
    zmtp::push_ping(&mut ping, 10, b"x");
    // Its first PING is read before the pause, or stands behind what is not read.
    for read in [true, false] {
        let (mut table, mut sink) = (table(), Recorder::default());
        let (id, mut peer) = open(&mut table, &mut sink, b"c");
        table.outs.pause_input(Socket::Backend, !read);
        peer.raw(&ping);
        step(&mut table, &mut sink, id, 0);
        let answered = table.counters().get(Counter::PingsAnswered);
        assert_eq!(answered, u64::from(read));
        peer.receive();
        let before = peer.pongs();
        table.outs.pause_input(Socket::Backend, true);
        for second in 1..=3 {
            peer.send(&message(1, 10));
            step(&mut table, &mut sink, id, second * NS_PER_SEC);
            table.flush();
            assert_eq!(peer.receive(), []);
            let wake_ns = table
                .next_deadline_ns()
                .expect("to be woken for the next one");
            assert!(wake_ns <= (second + 1) * NS_PER_SEC);
            let pongs = peer.pongs() - before;
            assert_eq!(pongs, second as u32, "our peer has answered a PING");
        }
        assert!(bodies(&sink.take()).is_empty());
    }
}

#[test]
fn partial_messages_have_a_limit_together() {
    let mut config = table_config();
    config.partial_bytes_max = 1 << 20;
    let outs = OutputTable::new(0, output_config(), None);
    let mut table: Table = ConnTable::new(0, config, outs);
    let mut sink = Recorder::default();
    let peers: Vec<_> = (0..8_u8)
        .map(|n| open(&mut table, &mut sink, &[b'a' + n]))
        .collect();
    for (n, (id, peer)) in peers.iter().enumerate() {
        // The third is the largest; none of them ends.
        let part = if n == 2 { 250_000 } else { 160_000 };
        peer.raw(&message(n, 1 << 20).view().wire()[..part]);
        step(&mut table, &mut sink, *id, n as u64 * NS_PER_SEC);
        assert!(table.partial_bytes() <= 1 << 20);
    }
    for _ in 0..3 {
        step(&mut table, &mut sink, peers[0].0, 8 * NS_PER_SEC);
    }
    let closed = table.counters().get(Counter::ConnectionsClosedMemory);
    assert!((1..=4).contains(&closed), "{closed}");
    let told = sink.take();
    assert_eq!(told[0], Told::Lost(peers[2].0), "the largest goes first");
    let lost = told.iter().filter(|t| matches!(t, Told::Lost(_)));
    assert_eq!(lost.count() as u64, closed);
    assert_eq!(table.total() as u64, 8 - closed);
}

#[test]
fn a_message_that_comes_in_parts_holds_no_more_than_its_size() {
    let (mut table, mut sink) = (table(), Recorder::default());
    let (id, peer) = open(&mut table, &mut sink, b"w");
    let large = message(1, 9 << 20);
    let wire = large.view().wire().to_vec();
    for part in wire.chunks(100_000) {
        peer.raw(part);
        step(&mut table, &mut sink, id, 0);
        assert!(
            table.partial_bytes() <= wire.len(),
            "{}",
            table.partial_bytes()
        );
    }
    assert_eq!(bodies(&sink.take()), [large.to_frames()]);
    assert_eq!(table.partial_bytes(), 0);
}

#[test]
fn an_end_that_comes_together_with_data_is_seen_without_another_event() {
    let (mut table, mut sink) = (table(), Recorder::default());
    let (id, peer) = open(&mut table, &mut sink, b"w");
    peer.send(&message(1, 10));
    peer.wire().end(false);
    let (readable, writable, ended) = peer.wire().take_edge();
    table.on_event(id.slot(), readable, writable, ended);
    while table.has_work(&mut sink) {
        table.turn(0, &mut sink);
    }
    let told = sink.take();
    assert_eq!(bodies(&told), [message(1, 10).to_frames()]);
    assert_eq!(told[1..], [Told::Lost(id), Told::Closed(id)]);
}

#[test]
fn a_replaced_connection_tells_what_was_read_even_behind_its_deadline() {
    let (mut table, mut sink) = (table(), Recorder::default());
    let (id, peer) = open(&mut table, &mut sink, b"w");
    for n in 0..3 {
        peer.send(&message(n, 10));
    }
    sink.room = 1;
    step(&mut table, &mut sink, id, 0);
    table.outs.close(id, CloseReason::Replaced);
    step(&mut table, &mut sink, id, 0);
    step(&mut table, &mut sink, id, 10 * NS_PER_SEC);
    peer.send(&message(9, 10));
    sink.room = usize::MAX;
    step(&mut table, &mut sink, id, 10 * NS_PER_SEC);
    let told = sink.take();
    let read = [0, 1, 2].map(|n| message(n, 10).to_frames());
    assert_eq!(bodies(&told), read);
    assert_eq!(told[3..], [Told::Lost(id), Told::Closed(id)]);
}

#[test]
fn drained_output_that_cannot_be_told_is_no_work() {
    let (mut table, mut sink) = (table(), Recorder::default());
    let (id, _peer) = open(&mut table, &mut sink, b"w");
    table.outs.notify_writable(id, 100);
    sink.room = 0;
    table.turn(0, &mut sink);
    assert!(!table.has_work(&mut sink));
    sink.room = 1;
    assert!(table.has_work(&mut sink));
    table.turn(0, &mut sink);
    assert_eq!(sink.take(), [Told::Writable(id)]);
}

#[test]
fn the_first_message_waits_for_room_behind_the_opening() {
    let (mut table, mut sink) = (table(), Recorder::default());
    let (mut peer, stream) = FakePeer::new(b"w");
    let id = table.add(stream, Socket::Backend, None, 0);
    step(&mut table, &mut sink, id, 0);
    // Its READY, and the message right behind it.
    peer.receive();
    peer.send(&message(1, 10));
    sink.room = 1;
    step(&mut table, &mut sink, id, 0);
    assert!(matches!(sink.take()[..], [Told::Opened(..)]));
    sink.room = 1;
    step(&mut table, &mut sink, id, 0);
    assert_eq!(bodies(&sink.take()), [message(1, 10).to_frames()]);
}

#[test]
fn a_pause_ends_even_while_drained_output_cannot_be_told() {
    let (mut table, mut sink) = (table(), Recorder::default());
    let (id, peer) = open(&mut table, &mut sink, b"w");
    table.outs.pause_input(Socket::Backend, true);
    peer.send(&message(1, 10));
    step(&mut table, &mut sink, id, 0);
    table.outs.notify_writable(id, 100);
    table.outs.pause_input(Socket::Backend, false);
    sink.room = 0;
    assert!(table.turn(0, &mut sink) > 0);
    assert!(
        !table.has_work(&mut sink),
        "nothing more to do without room"
    );
    sink.room = 2;
    table.turn(0, &mut sink);
    let told = sink.take();
    assert_eq!(told[0], Told::Writable(id));
    assert_eq!(bodies(&told), [message(1, 10).to_frames()]);
}

#[test]
fn bytes_that_make_no_message_are_signs_of_life() {
    let (mut table, mut sink) = (table(), Recorder::default());
    let (id, peer) = open(&mut table, &mut sink, b"w");
    sink.active.clear();
    let mut ping = Vec::new();
    zmtp::push_ping(&mut ping, 10, b"x");
    peer.raw(&ping);
    step(&mut table, &mut sink, id, 0);
    assert_eq!(sink.active, [id]);
    // Parts of messages small and large, each part one sign; a whole message is its own sign.
    for len in [100, 3 * SHARED_BYTES_MIN] {
        let sent = message(1, len);
        let (front, back) = sent.view().wire().split_at(len / 2);
        sink.active.clear();
        peer.raw(&front[..front.len() - 10]);
        step(&mut table, &mut sink, id, 0);
        peer.raw(&front[front.len() - 10..]);
        step(&mut table, &mut sink, id, 0);
        assert!(sink.active.len() >= 2, "{len}");
        sink.active.clear();
        peer.raw(back);
        step(&mut table, &mut sink, id, 0);
        assert_eq!(bodies(&sink.take()), [sent.to_frames()]);
    }
}
