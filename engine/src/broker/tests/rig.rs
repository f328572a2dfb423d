//! A broker with a recording outbox and hand-driven time.

use crate::broker::{Broker, BrokerConfig, Seeds};
use crate::frames::{Message, OwnedMessage, split_wire};
use crate::ids::{ConnId, NS_PER_MS, Now, Socket};
use crate::link::{CloseReason, OutClass, Outbox, PeerInfo};
use crate::metrics::Counter;
use std::collections::BTreeMap;

/// What the broker has put out.
#[derive(Default)]
pub(super) struct Record {
    /// Wire bytes by connection, in order.
    pub(super) sent: BTreeMap<ConnId, Vec<Vec<u8>>>,
    pub(super) closed: Vec<(ConnId, CloseReason)>,
    pub(super) released: Vec<ConnId>,
    pub(super) pending: BTreeMap<ConnId, usize>,
    pub(super) writable_asked: Vec<(ConnId, usize)>,
    pub(super) never_paused: BTreeMap<ConnId, bool>,
    pub(super) paused: Option<bool>,
    /// Messages there is still room for; `None` = no limit.
    pub(super) room: Option<usize>,
}

impl Record {
    fn put(&mut self, to: ConnId, wire: Vec<u8>) {
        if let Some(room) = &mut self.room {
            *room = room.saturating_sub(1);
        }
        self.sent.entry(to).or_default().push(wire);
    }
}

impl Outbox for Record {
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
        self.pending.get(&conn).copied().unwrap_or(0)
    }

    fn notify_writable(&mut self, conn: ConnId, below_bytes: usize) {
        self.writable_asked.push((conn, below_bytes));
    }

    fn set_never_paused(&mut self, conn: ConnId, never_paused: bool) {
        self.never_paused.insert(conn, never_paused);
    }

    fn pause_input(&mut self, socket: Socket, paused: bool) {
        assert_eq!(socket, Socket::Frontend, "only clients are paused");
        self.paused = Some(paused);
    }

    fn has_room(&self) -> bool {
        self.room != Some(0)
    }
}

/// All broker msgids of a rig begin with this.
const BROKER_ID: &str = "77777777-7777-4777-b777-";

pub(super) const BODY: &str = "{}";

pub(super) struct Rig {
    pub(super) broker: Broker,
    pub(super) out: Record,
    pub(super) now: Now,
    /// Check all invariants after every step.
    pub(super) checks: bool,
    slots: u32,
    /// Connections by name, newest last, and whether they are registered peers to keep alive.
    names: BTreeMap<ConnId, String>,
}

impl Rig {
    pub(super) fn new() -> Rig {
        Rig::with(|_| {})
    }

    pub(super) fn with(change: impl FnOnce(&mut BrokerConfig)) -> Rig {
        let mut config = BrokerConfig::default();
        change(&mut config);
        let now = Now {
            mono_ns: 1_000_000_000_000,
            wall_ms: 1_796_000_000_000,
        };
        let seeds = Seeds {
            hash: [1, 2, 3, 4],
            ids: [0x7777_7777_7777_7777; 2],
        };
        let broker = Broker::new(config, seeds, now);
        Rig {
            broker,
            out: Record::default(),
            now,
            checks: true,
            slots: 0,
            names: BTreeMap::new(),
        }
    }

    fn checked(&mut self) {
        if self.checks {
            self.broker.check_invariants();
        }
    }

    /// Opens a connection of a peer that speaks the extensions.
    pub(super) fn open(&mut self, socket: Socket, id: &str) -> ConnId {
        self.open_as(socket, id, true)
    }

    pub(super) fn open_as(&mut self, socket: Socket, id: &str, extensions: bool) -> ConnId {
        let conn = ConnId::new(socket as u8, self.slots, 7);
        self.slots += 1;
        let info = PeerInfo {
            socket,
            routing_id: id.as_bytes().to_vec(),
            speaks_extensions: extensions,
            remote: None,
        };
        self.broker
            .handle_opened(conn, info, self.now, &mut self.out);
        self.names.insert(conn, id.to_owned());
        self.checked();
        conn
    }

    pub(super) fn client(&mut self, id: &str) -> ConnId {
        self.open(Socket::Frontend, id)
    }

    /// A registered worker of the original kind with `slots` free slots.
    pub(super) fn worker(&mut self, id: &str, queues: &str, slots: usize) -> ConnId {
        self.worker_with(id, queues, "", slots)
    }

    pub(super) fn worker_with(
        &mut self,
        id: &str,
        queues: &str,
        capabilities: &str,
        slots: usize,
    ) -> ConnId {
        let conn = self.open(Socket::Backend, id);
        self.inform(conn, queues, capabilities);
        for _ in 0..slots {
            self.ready(conn);
        }
        conn
    }

    pub(super) fn inform(&mut self, conn: ConnId, queues: &str, capabilities: &str) {
        self.got(conn);
        if capabilities.is_empty() {
            self.send(conn, &["INFORM", "inf", queues, "worker"]);
        } else {
            self.send(conn, &["INFORM", "inf", queues, "worker", capabilities]);
        }
        assert_eq!(
            self.got(conn).first().map(String::as_str),
            Some("ACK * inf")
        );
    }

    pub(super) fn scheduler(&mut self, id: &str) -> ConnId {
        let conn = self.client(id);
        self.send(conn, &["INFORM", "inf", "", "scheduler"]);
        assert_eq!(self.got(conn), ["ACK * inf"]);
        conn
    }

    /// Sends a message: command, msgid, body.
    pub(super) fn send(&mut self, conn: ConnId, frames: &[&str]) {
        let frames: Vec<&[u8]> = frames.iter().map(|frame| frame.as_bytes()).collect();
        self.send_frames(conn, &[&[&b""[..], b"eMQP/1.0"], &frames[..]].concat());
    }

    /// Sends a message of exactly these frames.
    pub(super) fn send_frames(&mut self, conn: ConnId, frames: &[&[u8]]) {
        let message = OwnedMessage::from_frames(frames);
        self.broker
            .handle_message(conn, &message.view(), self.now, &mut self.out);
        self.checked();
    }

    pub(super) fn ready(&mut self, conn: ConnId) {
        self.send(conn, &["READY", "r"]);
    }

    /// READY that names a job and how it ended.
    pub(super) fn done(&mut self, conn: ConnId, msgid: &str, status: &str) {
        self.send(conn, &["READY", "r", msgid, status]);
    }

    pub(super) fn request(&mut self, conn: ConnId, msgid: &str, queue: &str) {
        self.request_with(conn, msgid, queue, "");
    }

    pub(super) fn request_with(&mut self, conn: ConnId, msgid: &str, queue: &str, headers: &str) {
        self.send(conn, &["REQUEST", msgid, queue, headers, BODY]);
    }

    /// A REQUEST that asks for its result.
    pub(super) fn ask(&mut self, conn: ConnId, msgid: &str, queue: &str) {
        self.request_with(conn, msgid, queue, "reply-requested");
    }

    pub(super) fn reply(&mut self, conn: ConnId, msgid: &str) {
        self.send(conn, &["REPLY", "x", "3", msgid]);
    }

    /// What a connection was sent since the last look, without HEARTBEATs; broker msgids are `*`.
    pub(super) fn got(&mut self, conn: ConnId) -> Vec<String> {
        self.got_all(conn)
            .into_iter()
            .filter(|text| !text.starts_with("HEARTBEAT"))
            .collect()
    }

    pub(super) fn got_all(&mut self, conn: ConnId) -> Vec<String> {
        let sent = self.out.sent.remove(&conn).unwrap_or_default();
        sent.iter().map(|wire| shown(wire)).collect()
    }

    /// Msgids of the REQUESTs a connection was sent since the last look.
    pub(super) fn jobs(&mut self, conn: ConnId) -> Vec<String> {
        self.got(conn)
            .iter()
            .filter_map(|text| text.strip_prefix("REQUEST "))
            .map(|text| text.split(' ').next().unwrap_or_default().to_owned())
            .collect()
    }

    /// The wire bytes a connection was sent since the last look.
    pub(super) fn wires(&mut self, conn: ConnId) -> Vec<Vec<u8>> {
        self.out.sent.remove(&conn).unwrap_or_default()
    }

    /// The connection ends. The last `unsent` messages it was given come back.
    pub(super) fn lose(&mut self, conn: ConnId, unsent: usize) {
        self.lost(conn);
        let mut sent = self.wires(conn);
        for _ in 0..unsent {
            let wire = sent.pop().expect("that many messages were sent");
            self.unsent(conn, &wire);
        }
        self.out.sent.insert(conn, sent);
        self.close(conn);
    }

    /// A message that was not wholly sent comes back.
    pub(super) fn unsent(&mut self, conn: ConnId, wire: &[u8]) {
        let mut spans = Vec::new();
        split_wire(wire, &mut spans);
        let message = Message::new(wire, &spans);
        self.broker
            .handle_unsent(conn, &message, self.now, &mut self.out);
        self.checked();
    }

    pub(super) fn lost(&mut self, conn: ConnId) {
        self.broker.handle_lost(conn, self.now, &mut self.out);
        assert_eq!(self.out.released.pop(), Some(conn));
        self.checked();
    }

    pub(super) fn close(&mut self, conn: ConnId) {
        self.broker.handle_closed(conn, self.now, &mut self.out);
        self.names.remove(&conn);
        self.checked();
    }

    /// Time passes; timers fire when they are due.
    pub(super) fn sleep(&mut self, ms: u64) {
        let until_ns = self.now.mono_ns + ms * NS_PER_MS;
        let start = self.now;
        while self.now.mono_ns < until_ns {
            let next_ns = self
                .broker
                .poll_timeout()
                .unwrap_or(until_ns)
                .max(self.now.mono_ns);
            let next_ns = next_ns.min(until_ns);
            let wall_ms = start.wall_ms + (next_ns - start.mono_ns) / NS_PER_MS;
            self.now = Now {
                mono_ns: next_ns,
                wall_ms,
            };
            self.turn();
            if self.broker.poll_timeout() == Some(next_ns) && next_ns < until_ns {
                self.now.mono_ns += 1;
            }
        }
    }

    /// One turn without input.
    pub(super) fn turn(&mut self) {
        self.broker.begin_turn(self.now);
        self.broker.handle_timeout(self.now, &mut self.out);
        self.broker.poll_output(self.now, &mut self.out);
        self.checked();
    }

    /// Time passes while these peers send HEARTBEATs.
    pub(super) fn sleep_alive(&mut self, ms: u64, alive: &[ConnId]) {
        let mut left = ms;
        while left > 0 {
            for conn in alive {
                self.send(*conn, &["HEARTBEAT", "h", "1.0"]);
            }
            self.sleep(left.min(1_000));
            left -= left.min(1_000);
        }
    }

    pub(super) fn count(&self, counter: Counter) -> u64 {
        self.broker.figures().counters.get(counter)
    }

    /// (free slots, in flight, state) of a registered worker.
    pub(super) fn slots(&self, id: &str) -> Option<(u64, u64, &'static str)> {
        let workers = self.broker.workers(self.now).workers;
        let worker = workers
            .into_iter()
            .find(|worker| worker.id == id.as_bytes())?;
        Some((worker.free_slots, worker.in_flight, worker.state))
    }

    /// (waiting, in flight, processed) of a queue, or zeros.
    pub(super) fn queue(&self, name: &str) -> (u64, u64, u64) {
        let queues = self.broker.status(self.now).queues;
        let queue = queues
            .into_iter()
            .find(|queue| queue.name == name.as_bytes());
        queue.map_or((0, 0, 0), |q| (q.waiting, q.in_flight, q.processed))
    }
}

/// Frames from the command on, joined by spaces.
pub(super) fn shown(wire: &[u8]) -> String {
    let mut spans = Vec::new();
    assert_eq!(
        split_wire(wire, &mut spans),
        Some(wire.len()),
        "one whole message was sent"
    );
    let message = Message::new(wire, &spans);
    let frames: Vec<_> = message.frames().map(String::from_utf8_lossy).collect();
    assert_eq!(&frames[..2], ["", "eMQP/1.0"]);
    let shown = frames[2..].iter().map(|frame| {
        if frame.starts_with(BROKER_ID) {
            "*"
        } else {
            frame.as_ref()
        }
    });
    shown.collect::<Vec<_>>().join(" ")
}
