//! Random numbers, the recording outbox, and frames for people.

use eventmq::frames::{Message, split_wire};
use eventmq::ids::{ConnId, Socket};
use eventmq::link::{CloseReason, OutClass, Outbox};
use std::collections::BTreeSet;

pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}

#[derive(Default)]
pub(crate) struct Output {
    /// Everything put out since the last look, in order.
    pub(crate) log: Vec<(ConnId, Vec<u8>)>,
    pub(crate) closed: Vec<(ConnId, CloseReason)>,
    pub(crate) released: Vec<ConnId>,
    pub(crate) slow: BTreeSet<ConnId>,
    pub(crate) room: Option<u64>,
    /// Clients are not read.
    pub(crate) paused: bool,
    /// Read although clients are not.
    pub(crate) never_paused: BTreeSet<ConnId>,
}

impl Output {
    fn put(&mut self, to: ConnId, wire: Vec<u8>) {
        if let Some(room) = &mut self.room {
            *room = room.saturating_sub(1);
        }
        self.log.push((to, wire));
    }
}

impl Outbox for Output {
    fn forward(&mut self, to: ConnId, _class: OutClass, message: &Message<'_>) {
        self.put(to, message.wire().to_vec());
    }
    fn send(&mut self, to: ConnId, _class: OutClass, pieces: &[&[u8]]) {
        self.put(to, pieces.concat());
    }
    fn close(&mut self, conn: ConnId, reason: CloseReason) {
        self.closed.push((conn, reason));
    }
    fn release(&mut self, conn: ConnId) {
        self.released.push(conn);
    }
    fn pending_bytes(&mut self, conn: ConnId) -> usize {
        usize::from(self.slow.contains(&conn))
    }
    fn notify_writable(&mut self, _conn: ConnId, _below_bytes: usize) {}
    fn set_never_paused(&mut self, conn: ConnId, never_paused: bool) {
        if never_paused {
            self.never_paused.insert(conn);
        } else {
            self.never_paused.remove(&conn);
        }
    }
    fn pause_input(&mut self, socket: Socket, paused: bool) {
        assert_eq!(socket, Socket::Frontend);
        self.paused = paused;
    }
    fn has_room(&self) -> bool {
        self.room != Some(0)
    }
}

pub(crate) fn frames_of(wire: &[u8]) -> Vec<String> {
    let mut spans = Vec::new();
    assert_eq!(split_wire(wire, &mut spans), Some(wire.len()));
    let message = Message::new(wire, &spans);
    message
        .frames()
        .map(|frame| String::from_utf8_lossy(frame).into_owned())
        .collect()
}
