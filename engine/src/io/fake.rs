//! Fake sockets and a recording sink, for tests of the tables and of the agents.

use super::{InputSink, OutputConfig, OutputTable, Stream, TableConfig};
use crate::frames::{FrameSpan, Message, OwnedMessage};
use crate::ids::{ConnId, NS_PER_SEC, Socket};
use crate::link::{Outbox, PeerInfo};
use crate::zmtp;
use std::collections::VecDeque;
use std::hash::RandomState;
use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard};

/// The wire between a fake socket and its peer.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    /// Sent by the peer and not arrived; used only if `travels`.
    in_flight: VecDeque<u8>,
    /// What the peer sends arrives only with [`Wire::arrive`].
    pub(crate) travels: bool,
    to_broker: VecDeque<u8>,
    /// Bytes the peer has ever sent, that have arrived, and that were read.
    pub(crate) sent_total: usize,
    pub(crate) arrived_total: usize,
    pub(crate) read_total: usize,
    read_edge: bool,
    write_edge: bool,
    /// A write found less room than it asked for: new room makes an edge.
    write_short: bool,
    from_broker: Vec<u8>,
    /// Bytes that one read returns at most.
    pub(crate) read_max: usize,
    /// Bytes that can be written before the "kernel" is full.
    pub(crate) write_room: usize,
    pub(crate) eof: bool,
    pub(crate) reset: bool,
    pub(crate) write_shut: bool,
    pub(crate) dropped: bool,
}

impl Wire {
    fn push(&mut self, bytes: &[u8]) {
        self.sent_total += bytes.len();
        self.in_flight.extend(bytes);
        if !self.travels {
            self.arrive(usize::MAX);
        }
    }

    /// Up to `bytes` of what is under way arrive, unless the connection has ended before.
    pub(crate) fn arrive(&mut self, bytes: usize) {
        let n = bytes.min(self.in_flight.len());
        if n > 0 && !self.eof && !self.reset {
            self.to_broker.extend(self.in_flight.drain(..n));
            self.arrived_total += n;
            self.read_edge = true;
        }
    }

    /// The peer ends its side: in order, or with a reset.
    pub(crate) fn end(&mut self, reset: bool) {
        self.eof |= !reset;
        self.reset |= reset;
        self.read_edge = true;
        self.write_edge |= reset;
    }

    /// True if anything of the peer is on its way or not yet read.
    pub(crate) fn has_unread(&self) -> bool {
        let travelling = !self.in_flight.is_empty() && !self.eof && !self.reset;
        travelling || !self.to_broker.is_empty()
    }

    /// The "kernel" takes `bytes` more.
    pub(crate) fn give_room(&mut self, bytes: usize) {
        self.write_room = self.write_room.saturating_add(bytes);
        self.write_edge |= std::mem::take(&mut self.write_short);
    }

    /// True if the system would report an event.
    pub(crate) fn has_edge(&self) -> bool {
        (self.read_edge || self.write_edge) && !self.dropped
    }

    /// What it would report: (readable, writable, ended).
    pub(crate) fn take_edge(&mut self) -> (bool, bool, bool) {
        let ended = self.eof || self.reset;
        let readable = std::mem::take(&mut self.read_edge);
        (readable, std::mem::take(&mut self.write_edge), ended)
    }
}

/// One end of it.
#[derive(Debug)]
pub(crate) struct FakeStream(Arc<Mutex<Wire>>);

impl Drop for FakeStream {
    fn drop(&mut self) {
        self.0.lock().unwrap().dropped = true;
    }
}

impl Stream for FakeStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut wire = self.0.lock().unwrap();
        if wire.to_broker.is_empty() {
            return match (wire.reset, wire.eof) {
                (true, _) => Err(io::ErrorKind::ConnectionReset.into()),
                (_, true) => Ok(0),
                _ => Err(io::ErrorKind::WouldBlock.into()),
            };
        }
        let n = buf.len().min(wire.read_max).min(wire.to_broker.len());
        for (to, from) in buf.iter_mut().zip(wire.to_broker.drain(..n)) {
            *to = from;
        }
        wire.read_total += n;
        Ok(n)
    }

    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut wire = self.0.lock().unwrap();
        if wire.reset {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let n = buf.len().min(wire.write_room);
        wire.write_short |= n < buf.len();
        if n == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        wire.write_room -= n;
        wire.from_broker.extend_from_slice(&buf[..n]);
        Ok(n)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let all: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
        self.write(&all)
    }

    fn shutdown_write(&mut self) {
        self.0.lock().unwrap().write_shut = true;
    }
}

/// The peer of a fake socket: speaks ZMTP through the client role.
pub(crate) struct FakePeer {
    wire: Arc<Mutex<Wire>>,
    zmtp: zmtp::Peer,
    received: Vec<u8>,
    spans: Vec<FrameSpan>,
}

impl FakePeer {
    /// A peer with `routing_id` (empty = none) and the stream for the table.
    pub(crate) fn new(routing_id: &[u8]) -> (FakePeer, FakeStream) {
        let config = Arc::new(zmtp::PeerConfig::new(
            zmtp::Role::Client,
            zmtp::SocketType::Dealer,
            routing_id,
            &[("X-EventMQ", b"1")],
            zmtp::Limits::default(),
        ));
        let wire = Arc::new(Mutex::new(Wire {
            read_max: usize::MAX,
            write_room: usize::MAX,
            ..Wire::default()
        }));
        let mut greeting = Vec::new();
        let zmtp = zmtp::Peer::new(&config, &mut greeting);
        wire.lock().unwrap().push(&greeting);
        let stream = FakeStream(Arc::clone(&wire));
        let peer = FakePeer {
            wire,
            zmtp,
            received: Vec::new(),
            spans: Vec::new(),
        };
        (peer, stream)
    }

    pub(crate) fn wire(&self) -> MutexGuard<'_, Wire> {
        self.wire.lock().unwrap()
    }

    pub(crate) fn send(&self, message: &OwnedMessage) {
        self.raw(message.view().wire());
    }

    pub(crate) fn raw(&self, bytes: &[u8]) {
        self.wire().push(bytes);
    }

    /// PINGs of the broker that were answered.
    pub(crate) fn pongs(&self) -> u32 {
        self.zmtp.pings_answered()
    }

    pub(crate) fn has_unread(&self) -> bool {
        self.wire().has_unread()
    }

    /// The handshake has finished.
    pub(crate) fn is_ready(&self) -> bool {
        self.zmtp.is_ready()
    }

    /// Reads what has come and answers what the protocol wants answered.
    pub(crate) fn receive(&mut self) -> Vec<OwnedMessage> {
        let fresh = std::mem::take(&mut self.wire().from_broker);
        self.received.extend(fresh);
        let mut messages = Vec::new();
        let mut at = 0;
        loop {
            let mut out = Vec::new();
            let event = self
                .zmtp
                .poll(&mut self.received[at..], &mut self.spans, &mut out)
                .expect("the broker's side speaks ZMTP");
            self.raw(&out);
            match event {
                zmtp::Event::NeedMore { .. } => break,
                zmtp::Event::Message { wire_len, consumed } => {
                    let view = Message::new(&self.received[at..at + wire_len], &self.spans);
                    messages.push(OwnedMessage::copy_of(&view));
                    at += consumed;
                }
                zmtp::Event::Ready { consumed, .. }
                | zmtp::Event::TooLarge { consumed }
                | zmtp::Event::Command { consumed }
                | zmtp::Event::Subscription { consumed, .. } => at += consumed,
            }
        }
        self.received.drain(..at);
        messages
    }
}

/// A table's configuration for tests.
pub(crate) fn table_config() -> TableConfig {
    let peer = || {
        Arc::new(zmtp::PeerConfig::new(
            zmtp::Role::Server,
            zmtp::SocketType::Router,
            b"",
            &[("X-EventMQ", b"1")],
            zmtp::Limits::default(),
        ))
    };
    TableConfig {
        handshake_ns: 10 * NS_PER_SEC,
        connections_max: [100; 3],
        partial_bytes_max: 64 << 20,
        peers: [peer(), peer(), peer()],
        routing_id_keys: [RandomState::new(), RandomState::new()],
    }
}

/// Output limits for tests.
pub(crate) fn output_config() -> OutputConfig {
    OutputConfig {
        client_buffer_bytes: 10_000,
        client_result_bytes: 100_000,
    }
}

/// What a sink was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Told {
    Opened(ConnId, Vec<u8>, bool),
    Message(ConnId, Vec<Vec<u8>>, bool),
    TooLarge(ConnId, Vec<Vec<u8>>),
    Lost(ConnId),
    Unsent(ConnId, Vec<Vec<u8>>),
    Closed(ConnId),
    Writable(ConnId),
}

/// Writes everything down; takes at most `room` things until more room is given.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) told: Vec<Told>,
    /// Signs of life without a message.
    pub(crate) active: Vec<ConnId>,
    pub(crate) room: usize,
    pub(crate) release: bool,
}

impl Default for Recorder {
    fn default() -> Self {
        Recorder {
            told: Vec::new(),
            active: Vec::new(),
            room: usize::MAX,
            release: true,
        }
    }
}

impl Recorder {
    fn note(&mut self, told: Told) {
        assert!(self.room > 0, "told without room: {told:?}");
        self.room -= 1;
        self.told.push(told);
    }

    pub(crate) fn take(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.told)
    }
}

fn frames(message: &Message<'_>) -> Vec<Vec<u8>> {
    message.frames().map(<[u8]>::to_vec).collect()
}

impl InputSink for Recorder {
    fn has_room(&mut self, _: Socket) -> bool {
        self.room > 0
    }
    fn opened(&mut self, conn: ConnId, info: PeerInfo, _: &mut OutputTable) {
        self.note(Told::Opened(conn, info.routing_id, info.speaks_extensions));
    }
    fn message(&mut self, conn: ConnId, _: Socket, message: &Message<'_>, _: &mut OutputTable) {
        let shared = message.shared().is_some();
        self.note(Told::Message(conn, frames(message), shared));
    }
    fn too_large(&mut self, conn: ConnId, _: Socket, head: &Message<'_>, _: &mut OutputTable) {
        self.note(Told::TooLarge(conn, frames(head)));
    }
    fn activity(&mut self, conn: ConnId, _: Socket, _: &mut OutputTable) {
        assert!(self.room > 0, "told without room");
        self.active.push(conn);
    }
    fn lost(&mut self, conn: ConnId, _: Socket, outs: &mut OutputTable) {
        self.note(Told::Lost(conn));
        if self.release {
            outs.release(conn);
        }
    }
    fn unsent(&mut self, conn: ConnId, _: Socket, message: &Message<'_>, _: &mut OutputTable) {
        self.note(Told::Unsent(conn, frames(message)));
    }
    fn closed(&mut self, conn: ConnId, _: Socket, _: &mut OutputTable) {
        self.note(Told::Closed(conn));
    }
    fn writable(&mut self, conn: ConnId, _: Socket, _: &mut OutputTable) {
        self.note(Told::Writable(conn));
    }
}
