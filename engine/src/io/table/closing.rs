//! Ends of connections: deadlines, what the dispatch asks for, and giving back what was not sent.

use super::{ConnTable, Phase};
use crate::ids::{ConnId, NS_PER_MS, NS_PER_SEC};
use crate::io::sink::InputSink;
use crate::io::stream::Stream;
use crate::limits::OWED_TIMEOUT_MS;
use crate::link::CloseReason;
use crate::metrics::Counter;
use crate::zmtp;

/// How long an orderly close waits for output to leave and for the peer to end its side.
const LINGER_NS: u64 = 2 * NS_PER_SEC;
/// How long a replaced connection may go on delivering what was under way.
const REPLACED_NS: u64 = NS_PER_SEC;

impl<S: Stream> ConnTable<S> {
    /// Begins an orderly end of every connection: what waits is sent, then the writing side is
    /// shut down, then the peer's end of file is waited for.
    pub fn close_all(&mut self, now_ns: u64) {
        for slot in 0..self.conns.len() {
            let Some(conn) = &self.conns[slot] else {
                continue;
            };
            let id = ConnId::new(self.agent, slot as u32, conn.generation);
            match conn.phase {
                Phase::Open => self.close(id, CloseReason::Shutdown, now_ns),
                Phase::Handshake { .. } | Phase::Replaced { .. } => {
                    self.end(slot, Counter::ConnectionsClosedShutdown);
                }
                Phase::Ended { told: true } => self.release(id),
                _ => {}
            }
        }
    }

    /// Deadlines and upkeep. Returns how many deadlines had come: work, since what it changes is
    /// to be published.
    pub fn housekeeping(&mut self, now_ns: u64) -> usize {
        let mut work = 0;
        while let Some((at, id)) = self.handshakes.front().copied() {
            let pending = matches!(self.phase(id), Some(Phase::Handshake { .. }));
            if pending && at > now_ns {
                break;
            }
            self.handshakes.pop_front();
            if pending {
                work += 1;
                self.end(id.slot(), Counter::ConnectionsClosedHandshakeTimeout);
            }
        }
        while let Some((at, id)) = self.closing.front().copied() {
            if at > now_ns {
                break;
            }
            self.closing.pop_front();
            work += 1;
            match self.phase(id) {
                Some(Phase::Replaced { .. }) => {
                    if let Some(Some(conn)) = self.conns.get_mut(id.slot())
                        && conn.stalled
                    {
                        // Nothing more is read; what was read is told when there is room.
                        conn.stream = None;
                        conn.readable = false;
                    } else {
                        self.end(id.slot(), Counter::ConnectionsClosedReplaced);
                    }
                }
                Some(Phase::Flushing { .. } | Phase::Linger { .. }) => {
                    self.end(id.slot(), Counter::ConnectionsClosedShutdown);
                }
                _ => {}
            }
        }
        work += self.check_throttled(now_ns);
        if now_ns >= self.next_upkeep_ns {
            self.next_upkeep_ns = now_ns + NS_PER_SEC;
            self.outs.pool().trim();
            self.partials.trim();
            if self.outs.any_paused() {
                self.ping_paused();
                work += 1;
            }
        }
        work
    }

    /// A connection is not read because its peer does not take what it asked for: from now on it
    /// must take something within [`OWED_TIMEOUT_MS`].
    pub(super) fn watch_throttled(&mut self, slot: usize, id: ConnId) {
        if let Some(Some(conn)) = self.conns.get_mut(slot)
            && !std::mem::replace(&mut conn.watched, true)
        {
            self.counters.inc(Counter::ConnectionsThrottled);
            self.outs.take_progress(slot);
            let deadline_ns = self.now_ns + OWED_TIMEOUT_MS * NS_PER_MS;
            self.throttled.push_back((deadline_ns, id));
        }
    }

    fn check_throttled(&mut self, now_ns: u64) -> usize {
        let mut work = 0;
        while let Some((at, id)) = self.throttled.front().copied() {
            if at > now_ns {
                break;
            }
            self.throttled.pop_front();
            work += 1;
            let slot = id.slot();
            if self.phase(id) != Some(Phase::Open) {
                continue;
            }
            if !self.outs.is_throttled(slot) {
                if let Some(Some(conn)) = self.conns.get_mut(slot) {
                    conn.watched = false;
                }
            } else if self.outs.take_progress(slot) {
                let deadline_ns = now_ns + OWED_TIMEOUT_MS * NS_PER_MS;
                self.throttled.push_back((deadline_ns, id));
            } else {
                self.end(slot, Counter::ConnectionsClosedNotReading);
            }
        }
        work
    }

    /// Whoever watches us with ZMTP heartbeats must not take a pause for death: its PINGs are not
    /// read now, but anything we send counts as a sign of life. Its first PING may stand behind
    /// what is not read, and libzmq up to 4.3.4 sends PINGs but calls itself ZMTP 3.0, so every
    /// peer gets them: one that knows no PING ignores commands it does not know.
    fn ping_paused(&mut self) {
        for slot in 0..self.conns.len() {
            let Some(conn) = &self.conns[slot] else {
                continue;
            };
            if conn.phase == Phase::Open
                && self.outs.is_paused(slot, conn.socket)
                && self.outs.pending(slot) == 0
            {
                self.scratch.clear();
                zmtp::push_ping(&mut self.scratch, 0, b"");
                self.outs.raw(slot, &self.scratch, 0);
            }
        }
    }

    /// Closes partial messages until they fit again: the largest of those that have not grown for
    /// a second, else the largest of all.
    pub(super) fn shed_partials(&mut self) {
        while self.partial_bytes > self.config.partial_bytes_max {
            let stalled_ns = self.now_ns.saturating_sub(NS_PER_SEC);
            let largest = self
                .conns
                .iter()
                .enumerate()
                .filter_map(|(slot, conn)| Some((slot, conn.as_ref()?)))
                .filter(|(_, conn)| conn.partial.capacity() > 0 && !conn.stalled)
                .max_by_key(|(_, conn)| {
                    (conn.partial_read_ns <= stalled_ns, conn.partial.capacity())
                })
                .map(|(slot, _)| slot);
            let Some(slot) = largest else { return };
            if let Some(repeats) = self.shed_log.admit(0, self.now_ns)
                && let Some(conn) = &self.conns[slot]
            {
                tracing::warn!(
                    socket = %conn.socket,
                    bytes = conn.partial.len(),
                    limit_bytes = self.config.partial_bytes_max,
                    repeats,
                    "a connection with part of a message was closed: such parts hold too much memory"
                );
            }
            self.end(slot, Counter::ConnectionsClosedMemory);
        }
    }

    pub(super) fn apply_requests<K: InputSink>(&mut self, now_ns: u64, sink: &mut K) -> usize {
        let mut work = 0;
        while let Some((id, reason)) = self.outs.closes.pop() {
            work += 1;
            self.close(id, reason, now_ns);
        }
        while let Some(id) = self.outs.releases.pop() {
            work += 1;
            self.release(id);
        }
        if std::mem::take(&mut self.outs.resumed) {
            work += 1;
            for slot in 0..self.conns.len() {
                if let Some(conn) = &mut self.conns[slot]
                    && (conn.readable || conn.stalled)
                {
                    Self::enqueue(&mut self.ready, conn, slot);
                }
            }
        }
        for i in 0..self.outs.writable.len() {
            let id = self.outs.writable[i];
            if let Some(Some(conn)) = self.conns.get(id.slot()) {
                if !sink.has_room(conn.socket) {
                    self.outs.writable.drain(..i);
                    return work;
                }
                sink.writable(id, conn.socket, &mut self.outs);
            }
            work += 1;
        }
        self.outs.writable.clear();
        work
    }

    fn close(&mut self, id: ConnId, reason: CloseReason, now_ns: u64) {
        let Some(phase) = self.phase(id) else { return };
        if !matches!(phase, Phase::Open | Phase::Replaced { .. }) {
            return;
        }
        let slot = id.slot();
        let Some(conn) = &mut self.conns[slot] else {
            return;
        };
        match reason {
            CloseReason::TakeoverRefused => {
                self.end(slot, Counter::ConnectionsRefusedTakeover);
            }
            CloseReason::Replaced => {
                self.outs.set_lost(slot);
                let deadline_ns = now_ns + REPLACED_NS;
                conn.phase = Phase::Replaced { deadline_ns };
                conn.readable = true;
                self.closing.push_back((deadline_ns, id));
                Self::enqueue(&mut self.ready, conn, slot);
            }
            CloseReason::Shutdown => {
                let deadline_ns = now_ns + LINGER_NS;
                conn.phase = Phase::Flushing { deadline_ns };
                self.closing.push_back((deadline_ns, id));
                self.flush_slot(slot);
            }
        }
    }

    fn release(&mut self, id: ConnId) {
        if self.phase(id) != Some(Phase::Ended { told: true }) {
            return;
        }
        let slot = id.slot();
        let unsent = self.outs.free_slot(slot);
        let Some(conn) = &mut self.conns[slot] else {
            return;
        };
        conn.phase = Phase::Returning;
        conn.unsent = Some(Box::new(unsent));
        Self::enqueue(&mut self.ready, conn, slot);
    }

    /// The connection is over. The stream is closed now; `lost` follows when there is room.
    pub(super) fn end(&mut self, slot: usize, reason: Counter) {
        let Some(Some(conn)) = self.conns.get_mut(slot) else {
            return;
        };
        if matches!(conn.phase, Phase::Ended { .. } | Phase::Returning) {
            return;
        }
        self.counters.inc(reason);
        if conn.dialled {
            let id = ConnId::new(self.agent, slot as u32, conn.generation);
            self.outs.ends.push((id, reason));
        }
        conn.stream = None;
        let partial = std::mem::take(&mut conn.partial);
        self.partial_bytes -= partial.capacity();
        self.partials.put(partial);
        self.outs.set_lost(slot);
        if matches!(conn.phase, Phase::Handshake { .. }) || conn.opening.is_some() {
            // Nobody was told of it.
            let _ = self.outs.free_slot(slot);
            self.forget(slot);
            return;
        }
        conn.phase = Phase::Ended { told: false };
        Self::enqueue(&mut self.ready, conn, slot);
    }

    fn forget(&mut self, slot: usize) {
        if let Some(conn) = self.conns[slot].take() {
            self.open[conn.socket as usize] -= 1;
            // An entry left in a ready list costs the slot's next user one look too many.
            self.free.push(slot as u32);
        }
    }

    pub(super) fn give_back<K: InputSink>(&mut self, slot: usize, id: ConnId, sink: &mut K) {
        let Some(conn) = &mut self.conns[slot] else {
            return;
        };
        let socket = conn.socket;
        if let Some(mut unsent) = conn.unsent.take() {
            while unsent.len() > 0 {
                if !sink.has_room(socket) {
                    conn.unsent = Some(unsent);
                    Self::enqueue(&mut self.ready, conn, slot);
                    return;
                }
                unsent.pop(|message| sink.unsent(id, socket, message, &mut self.outs));
            }
        }
        if !sink.has_room(socket) {
            Self::enqueue(&mut self.ready, conn, slot);
            return;
        }
        self.forget(slot);
        sink.closed(id, socket, &mut self.outs);
    }
}
