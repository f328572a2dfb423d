//! Reading and decoding.

use super::{ConnTable, Phase};
use crate::frames::{Message, SharedBytes};
use crate::ids::ConnId;
use crate::io::sink::InputSink;
use crate::io::stream::Stream;
use crate::limits::{SHARED_BYTES_MIN, TURN_READ_BYTES_MAX};
use crate::metrics::Counter;
use crate::zmtp;
use std::hash::{BuildHasher, RandomState};
use std::io;

/// Smallest read into a partial message's own buffer.
const READ_BYTES_MIN: usize = 4 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parsed {
    /// All complete messages were delivered.
    Starved,
    /// The sink has no room.
    Stalled,
    /// The connection must end.
    Failed(Counter),
}

impl<S: Stream> ConnTable<S> {
    /// Reads and forgets, until the peer ends too.
    pub(super) fn discard(&mut self, slot: usize) {
        let Some(conn) = &mut self.conns[slot] else {
            return;
        };
        let Some(stream) = conn.stream.as_mut() else {
            return;
        };
        match stream.read(&mut self.recv) {
            Ok(0) => self.end(slot, Counter::ConnectionsClosedShutdown),
            Ok(n) => {
                self.counters.add(Counter::BytesReceived, n as u64);
                Self::enqueue(&mut self.ready, conn, slot);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => conn.readable = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                Self::enqueue(&mut self.ready, conn, slot);
            }
            Err(_) => self.end(slot, Counter::ConnectionsClosedShutdown),
        }
    }

    pub(super) fn read<K: InputSink>(&mut self, slot: usize, id: ConnId, sink: &mut K) {
        let Some(conn) = &mut self.conns[slot] else {
            return;
        };
        if conn.stalled {
            let mut partial = std::mem::take(&mut conn.partial);
            let (start, end) = (conn.partial_at, partial.len());
            let (parsed, at) = self.parse(slot, id, &mut partial, start, end, sink);
            if !self.keep_partial(slot, partial, at, parsed) {
                return;
            }
        }
        let Some(conn) = &mut self.conns[slot] else {
            return;
        };
        if !conn.readable {
            return;
        }
        let have = conn.partial.len() - conn.partial_at;
        if have >= SHARED_BYTES_MIN || (conn.dribbling && have > 0) {
            self.read_large(slot, id, sink);
        } else {
            self.read_batch(slot, id, have, sink);
        }
    }

    /// Reads into the agent's buffer, behind the few bytes left of the last time.
    fn read_batch<K: InputSink>(&mut self, slot: usize, id: ConnId, have: usize, sink: &mut K) {
        let Some(conn) = &mut self.conns[slot] else {
            return;
        };
        let Some(stream) = conn.stream.as_mut() else {
            return;
        };
        let mut recv = std::mem::take(&mut self.recv);
        let result = stream.read(&mut recv[have..]);
        let Some(n) = self.read_result(slot, result, recv.len() - have) else {
            self.recv = recv;
            return;
        };
        let Some(conn) = &mut self.conns[slot] else {
            return;
        };
        if have > 0 {
            recv[..have].copy_from_slice(&conn.partial[conn.partial_at..]);
            let partial = std::mem::take(&mut conn.partial);
            conn.partial_at = 0;
            self.partial_bytes -= partial.capacity();
            self.partials.put(partial);
        }
        let end = have + n;
        let told = self.counters.get(Counter::MessagesReceived);
        let (parsed, at) = self.parse(slot, id, &mut recv, 0, end, sink);
        if told == self.counters.get(Counter::MessagesReceived) {
            self.tell_activity(slot, id, sink);
        }
        if let Parsed::Failed(reason) = parsed {
            self.end(slot, reason);
        } else if let Some(Some(conn)) = self.conns.get_mut(slot) {
            conn.stalled = parsed == Parsed::Stalled;
            conn.dribbling = at == 0;
            if at < end {
                let mut partial = self.partials.take();
                partial.extend_from_slice(&recv[at..end]);
                self.partial_bytes += partial.capacity();
                conn.partial = partial;
                conn.partial_at = 0;
                conn.partial_read_ns = self.now_ns;
            }
            if conn.readable || conn.stalled {
                Self::enqueue(&mut self.ready, conn, slot);
            }
        }
        self.recv = recv;
    }

    /// Reads the rest of a large message into the connection's own buffer, never beyond what it
    /// is known to need, so that the whole message can be passed on by reference.
    fn read_large<K: InputSink>(&mut self, slot: usize, id: ConnId, sink: &mut K) {
        let Some(conn) = &mut self.conns[slot] else {
            return;
        };
        let Some(stream) = conn.stream.as_mut() else {
            return;
        };
        let mut partial = std::mem::take(&mut conn.partial);
        let capacity = partial.capacity();
        let start = partial.len();
        let have = start - conn.partial_at;
        let want = conn
            .need
            .saturating_sub(have)
            .clamp(READ_BYTES_MIN, TURN_READ_BYTES_MAX);
        let want = if conn.need > have {
            want.min(conn.need - have)
        } else {
            want
        };
        grow(&mut partial, start + want, conn.partial_at + conn.need);
        partial.resize(start + want, 0);
        let result = stream.read(&mut partial[start..]);
        let n = self.read_result(slot, result, want);
        partial.truncate(start + n.unwrap_or(0));
        self.partial_bytes = self.partial_bytes + partial.capacity() - capacity;
        let now_ns = self.now_ns;
        let Some(Some(conn)) = self.conns.get_mut(slot) else {
            // The read has ended the connection; its buffer goes with it.
            self.partial_bytes -= partial.capacity();
            return;
        };
        if conn.stream.is_none() {
            self.partial_bytes -= partial.capacity();
            return;
        }
        if n.is_some() {
            conn.partial_read_ns = now_ns;
        }
        if n.is_none() || partial.len() - conn.partial_at < conn.need {
            conn.partial = partial;
            if conn.readable {
                Self::enqueue(&mut self.ready, conn, slot);
            }
            if n.is_some() {
                self.tell_activity(slot, id, sink);
            }
            return;
        }
        let (start, end) = (conn.partial_at, partial.len());
        let (parsed, at) = self.parse(slot, id, &mut partial, start, end, sink);
        if self.keep_partial(slot, partial, at, parsed)
            && let Some(Some(conn)) = self.conns.get_mut(slot)
            && conn.readable
        {
            Self::enqueue(&mut self.ready, conn, slot);
        }
    }

    /// Bytes came that made no message. Without room it is left out: the next bytes tell it.
    fn tell_activity<K: InputSink>(&mut self, slot: usize, id: ConnId, sink: &mut K) {
        let Some(Some(conn)) = self.conns.get(slot) else {
            return;
        };
        if conn.phase == Phase::Open && conn.opening.is_none() && sink.has_room(conn.socket) {
            sink.activity(id, conn.socket, &mut self.outs);
        }
    }

    /// Notes the outcome of a read of `asked` bytes; `None` = nothing was read.
    fn read_result(
        &mut self,
        slot: usize,
        result: io::Result<usize>,
        asked: usize,
    ) -> Option<usize> {
        let conn = self.conns[slot].as_mut()?;
        match result {
            Ok(0) => {
                // Everything before it has been delivered: stalled bytes are looked at first.
                conn.readable = false;
                self.end(slot, Counter::ConnectionsClosedByPeer);
                None
            }
            Ok(n) => {
                // A short read means drained; the next edge tells of more, except of an end that
                // an earlier one told of.
                conn.readable = n == asked || conn.ended;
                self.counters.add(Counter::BytesReceived, n as u64);
                Some(n)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                conn.readable = false;
                if matches!(conn.phase, Phase::Replaced { .. }) {
                    self.end(slot, Counter::ConnectionsClosedReplaced);
                }
                None
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                Self::enqueue(&mut self.ready, conn, slot);
                None
            }
            Err(_) => {
                self.end(slot, Counter::ConnectionsClosedByPeer);
                None
            }
        }
    }

    /// Puts a connection's own buffer back after parsing up to `at`. False if it has ended.
    fn keep_partial(
        &mut self,
        slot: usize,
        mut partial: Vec<u8>,
        at: usize,
        parsed: Parsed,
    ) -> bool {
        let done = at >= partial.len();
        if done || matches!(parsed, Parsed::Failed(_)) {
            // The capacity leaves the account with the buffer (which may have been shared: then
            // `partial` is an empty one and `parse` has taken it off already).
            self.partial_bytes -= partial.capacity();
            partial.clear();
            self.partials.put(std::mem::take(&mut partial));
        }
        let Some(Some(conn)) = self.conns.get_mut(slot) else {
            return false;
        };
        conn.partial = partial;
        conn.partial_at = if done { 0 } else { at };
        conn.stalled = parsed == Parsed::Stalled;
        if let Parsed::Failed(reason) = parsed {
            self.end(slot, reason);
            return false;
        }
        if conn.stalled {
            Self::enqueue(&mut self.ready, conn, slot);
            return false;
        }
        true
    }

    /// Delivers the complete messages of `buf[at..end]`; returns how far it came. A large message
    /// that is all of `buf` is taken out of it and goes on by reference.
    fn parse<K: InputSink>(
        &mut self,
        slot: usize,
        id: ConnId,
        buf: &mut Vec<u8>,
        mut at: usize,
        end: usize,
        sink: &mut K,
    ) -> (Parsed, usize) {
        let Some(conn) = self.conns[slot].as_mut() else {
            return (Parsed::Starved, end);
        };
        let socket = conn.socket;
        let mut messages = 0;
        let outcome = loop {
            if conn.peer.is_ready() && !sink.has_room(socket) {
                break Parsed::Stalled;
            }
            if conn.phase == Phase::Open
                && let Some(info) = conn.opening.take()
            {
                sink.opened(id, *info, &mut self.outs);
                // That may have taken the last room.
                continue;
            }
            self.scratch.clear();
            let event = conn
                .peer
                .poll(&mut buf[at..end], &mut self.spans, &mut self.scratch);
            if !self.scratch.is_empty() {
                self.outs.raw(slot, &self.scratch, 0);
            }
            match event {
                Ok(zmtp::Event::Message { wire_len, consumed }) => {
                    messages += 1;
                    if wire_len >= SHARED_BYTES_MIN && wire_len == buf.len() {
                        self.partial_bytes -= buf.capacity();
                        let mut bytes = std::mem::take(buf);
                        if bytes.capacity() - bytes.len() > bytes.len() / 8 {
                            bytes.shrink_to_fit();
                        }
                        let shared = SharedBytes::new(bytes);
                        let message = Message::from_shared(&shared, &self.spans);
                        sink.message(id, socket, &message, &mut self.outs);
                        // `buf` is empty now: nothing is left to parse.
                        conn.need = 0;
                        break Parsed::Starved;
                    }
                    let message = Message::new(&buf[at..at + wire_len], &self.spans);
                    sink.message(id, socket, &message, &mut self.outs);
                    at += consumed;
                }
                Ok(zmtp::Event::NeedMore { at_least }) => {
                    conn.need = at_least;
                    break Parsed::Starved;
                }
                Ok(zmtp::Event::Ready { consumed, metadata }) => {
                    at += consumed;
                    conn.phase = Phase::Open;
                    self.counters.inc(Counter::HandshakesCompleted);
                    if let Some(info) = conn.opening.as_mut() {
                        info.speaks_extensions = metadata.property("X-EventMQ") == Some(b"1");
                        info.routing_id = match metadata.routing_id {
                            Some(routing_id) => routing_id,
                            None => {
                                self.ids_made += 1;
                                make_routing_id(
                                    &self.config.routing_id_keys,
                                    self.agent,
                                    self.ids_made,
                                )
                            }
                        };
                    }
                }
                Ok(zmtp::Event::TooLarge { consumed }) => {
                    self.counters.inc(Counter::MessagesTooLarge);
                    let head = Message::new(&buf[at..end], &self.spans);
                    sink.too_large(id, socket, &head, &mut self.outs);
                    at += consumed;
                }
                Ok(zmtp::Event::Command { consumed }) => {
                    at += consumed;
                    let pings = conn.peer.pings_answered();
                    let fresh = pings.wrapping_sub(std::mem::replace(&mut conn.pings, pings));
                    self.counters.add(Counter::PingsAnswered, fresh.into());
                }
                Ok(zmtp::Event::Subscription {
                    consumed,
                    subscribe,
                }) => {
                    let command = Message::new(&buf[at..at + consumed], &self.spans);
                    let topic = command.get(0).unwrap_or_default();
                    sink.subscription(id, socket, subscribe, topic, &mut self.outs);
                    at += consumed;
                }
                Err(error) => break Parsed::Failed(error.counter()),
            }
        };
        self.counters.add(Counter::MessagesReceived, messages);
        if matches!(outcome, Parsed::Failed(_)) {
            // The ERROR that says why, as far as it goes.
            self.flush_slot(slot);
        }
        (outcome, at)
    }
}

/// Makes room for `bytes` in a buffer that is known to need `need` in the end: it doubles, as it
/// would by itself, but not beyond that. What is reserved never exceeds twice what has come.
fn grow(buffer: &mut Vec<u8>, bytes: usize, need: usize) {
    if buffer.capacity() < bytes {
        let wanted = (2 * buffer.capacity()).min(need).max(bytes);
        buffer.reserve_exact(wanted - buffer.len());
    }
}

/// A routing id for a peer that has none: 00 and 16 bytes that cannot be guessed from others.
/// `agent` and `n` are never the same twice while `keys` are in use.
fn make_routing_id(keys: &[RandomState; 2], agent: u8, n: u64) -> Vec<u8> {
    let mut id = vec![0];
    for key in keys {
        id.extend_from_slice(&key.hash_one((agent, n)).to_be_bytes());
    }
    id
}
