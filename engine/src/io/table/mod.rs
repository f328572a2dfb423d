//! The connections of one agent: reading, decoding, ends of life. Generic over the stream, so
//! that the same code runs on mio and in the simulation.

mod closing;
mod reading;

use super::buffers::BufferPool;
use super::output::{Flushed, OutputTable};
use super::sink::InputSink;
use super::stream::Stream;
use super::unsent::Unsent;
use crate::frames::FrameSpan;
use crate::ids::{ConnId, Socket};
use crate::limits::TURN_READ_BYTES_MAX;
use crate::link::PeerInfo;
use crate::log_limit::LogLimit;
use crate::metrics::{Counter, Counters};
use crate::zmtp;
use std::collections::VecDeque;
use std::hash::RandomState;
use std::net::SocketAddr;
use std::sync::Arc;

/// Bounds and fixed data of a table.
#[derive(Debug, Clone)]
pub struct TableConfig {
    /// Time from accept to the end of the handshake, in nanoseconds.
    pub handshake_ns: u64,
    /// Most connections per socket, indexed by `Socket`.
    pub connections_max: [usize; 3],
    /// Bytes of partial messages above which the largest stalled one is closed.
    pub partial_bytes_max: usize,
    /// ZMTP side of each socket.
    pub peers: [Arc<zmtp::PeerConfig>; 3],
    /// Keys of the routing ids made for anonymous peers; the same for all agents of a broker, so
    /// that no two of them make the same id.
    pub routing_id_keys: [RandomState; 2],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Handshake {
        deadline_ns: u64,
    },
    Open,
    /// Replaced by a newer connection: no output, reads what had arrived.
    Replaced {
        deadline_ns: u64,
    },
    /// Orderly end asked for: the output is being flushed, input discarded.
    Flushing {
        deadline_ns: u64,
    },
    /// Writing side shut down: reads and discards to the end of file.
    Linger {
        deadline_ns: u64,
    },
    /// Ended; `lost` is to be or has been told; waits for its release.
    Ended {
        told: bool,
    },
    /// Released; what was not sent is being given back.
    Returning,
}

#[derive(Debug)]
struct Conn<S> {
    stream: Option<S>,
    peer: zmtp::Peer,
    phase: Phase,
    socket: Socket,
    /// In a ready list.
    queued: bool,
    /// The kernel may have more.
    readable: bool,
    /// The peer has ended the connection. No further event tells of it, so that a short read does
    /// not mean that there is nothing more.
    ended: bool,
    /// `partial` may hold complete messages that found no room.
    stalled: bool,
    /// The last read ended no message: the next one goes straight to `partial`, so that a message
    /// that comes in crumbs is not copied once for each.
    dribbling: bool,
    /// In the list of throttled connections.
    watched: bool,
    /// We made it.
    dialled: bool,
    pings: u32,
    /// When it was last read into `partial`.
    partial_read_ns: u64,
    generation: u32,
    /// Bytes received and not yet decoded, from `partial_at` on.
    partial_at: usize,
    partial: Vec<u8>,
    /// Total bytes at which decoding makes progress again.
    need: usize,
    opening: Option<Box<PeerInfo>>,
    unsent: Option<Box<Unsent>>,
}

/// All connections of one agent.
#[derive(Debug)]
pub struct ConnTable<S> {
    agent: u8,
    config: TableConfig,
    conns: Vec<Option<Box<Conn<S>>>>,
    generations: Vec<u32>,
    free: Vec<u32>,
    open: [usize; 3],
    ready: [VecDeque<u32>; 3],
    handshakes: VecDeque<(u64, ConnId)>,
    closing: VecDeque<(u64, ConnId)>,
    /// Throttled connections, and when each must have taken something.
    throttled: VecDeque<(u64, ConnId)>,
    recv: Vec<u8>,
    spans: Vec<FrameSpan>,
    scratch: Vec<u8>,
    partial_bytes: usize,
    /// Buffers for partial messages. Not those of the output, which are of other sizes: each would
    /// have to grow again and again.
    partials: BufferPool,
    shed_log: LogLimit<1>,
    ids_made: u64,
    next_upkeep_ns: u64,
    now_ns: u64,
    counters: Counters,
    /// Output of these connections.
    pub outs: OutputTable,
}

impl<S: Stream> ConnTable<S> {
    /// An empty table of agent `agent`.
    pub fn new(agent: u8, config: TableConfig, outs: OutputTable) -> Self {
        ConnTable {
            agent,
            config,
            conns: Vec::new(),
            generations: Vec::new(),
            free: Vec::new(),
            open: [0; 3],
            ready: Default::default(),
            handshakes: VecDeque::new(),
            closing: VecDeque::new(),
            throttled: VecDeque::new(),
            recv: vec![0; TURN_READ_BYTES_MAX],
            spans: Vec::new(),
            scratch: Vec::new(),
            partial_bytes: 0,
            partials: BufferPool::default(),
            shed_log: LogLimit::default(),
            ids_made: 0,
            next_upkeep_ns: 0,
            now_ns: 0,
            counters: Counters::default(),
            outs,
        }
    }

    /// Changes bounds for connections made from now on.
    pub fn set_config(&mut self, config: TableConfig) {
        self.config = config;
    }

    /// Connections of `socket`, handshakes included.
    pub fn len(&self, socket: Socket) -> usize {
        self.open[socket as usize]
    }

    /// True without any connection.
    pub fn is_empty(&self) -> bool {
        self.total() == 0
    }

    /// All connections.
    pub fn total(&self) -> usize {
        self.open.iter().sum()
    }

    /// Bytes of partial messages.
    pub fn partial_bytes(&self) -> usize {
        self.partial_bytes
    }

    /// Bytes held for connections: partial messages, output, receive buffer, free buffers.
    pub fn held_bytes(&self) -> usize {
        self.partial_bytes
            + self.outs.total_pending_bytes()
            + self.outs.pooled_bytes()
            + self.partials.bytes()
            + self.recv.len()
    }

    /// Counters of input and output together.
    pub fn counters(&self) -> Counters {
        let mut all = Counters::default();
        self.copy_counters(&mut all);
        all
    }

    /// Makes `to` equal to [`ConnTable::counters`], without an allocation.
    pub fn copy_counters(&self, to: &mut Counters) {
        to.copy_from(&self.counters);
        to.merge(&self.outs.counters);
    }

    /// The counters of the input side, for the owner's own entries.
    pub fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// The slot that the next [`ConnTable::add`] will use, for registering the stream before.
    pub fn next_slot(&self) -> usize {
        self.free
            .last()
            .map_or(self.conns.len(), |slot| *slot as usize)
    }

    /// True if `socket` may have one more connection.
    pub fn has_slot(&self, socket: Socket) -> bool {
        self.open[socket as usize] < self.config.connections_max[socket as usize]
            && self.conns.len() < ConnId::MAX_SLOTS
    }

    /// Takes a fresh connection.
    pub fn add(
        &mut self,
        stream: S,
        socket: Socket,
        remote: Option<SocketAddr>,
        now_ns: u64,
    ) -> ConnId {
        self.counters.inc(Counter::ConnectionsAccepted);
        let peer = Arc::clone(&self.config.peers[socket as usize]);
        self.insert(stream, socket, remote, &peer, false, now_ns)
    }

    /// Takes a connection that we made, with a ZMTP side of its own. How it ends is kept in
    /// [`OutputTable::take_end`].
    pub fn add_dialled(
        &mut self,
        stream: S,
        socket: Socket,
        remote: Option<SocketAddr>,
        peer: &Arc<zmtp::PeerConfig>,
        now_ns: u64,
    ) -> ConnId {
        self.counters.inc(Counter::ConnectionsDialled);
        self.insert(stream, socket, remote, peer, true, now_ns)
    }

    /// Ends a connection at once.
    pub fn abort(&mut self, id: ConnId) {
        if self.phase(id).is_some() {
            self.end(id.slot(), Counter::ConnectionsClosedShutdown);
        }
    }

    fn insert(
        &mut self,
        stream: S,
        socket: Socket,
        remote: Option<SocketAddr>,
        peer: &Arc<zmtp::PeerConfig>,
        dialled: bool,
        now_ns: u64,
    ) -> ConnId {
        let slot = self.next_slot();
        if self.free.pop().is_none() {
            self.conns.push(None);
            self.generations.push(0);
        }
        self.generations[slot] = self.generations[slot].wrapping_add(1);
        let generation = self.generations[slot];
        let id = ConnId::new(self.agent, slot as u32, generation);
        self.outs.open_slot(slot, generation);
        self.scratch.clear();
        let peer = zmtp::Peer::new(peer, &mut self.scratch);
        let greeting_bytes = self.scratch.len() as u8;
        self.outs.raw(slot, &self.scratch, greeting_bytes);
        let deadline_ns = now_ns + self.config.handshake_ns;
        self.handshakes.push_back((deadline_ns, id));
        let info = PeerInfo {
            socket,
            routing_id: Vec::new(),
            speaks_extensions: false,
            remote,
        };
        self.conns[slot] = Some(Box::new(Conn {
            stream: Some(stream),
            peer,
            phase: Phase::Handshake { deadline_ns },
            socket,
            queued: false,
            readable: false,
            ended: false,
            stalled: false,
            dribbling: false,
            watched: false,
            dialled,
            pings: 0,
            partial_read_ns: now_ns,
            generation,
            partial_at: 0,
            partial: Vec::new(),
            need: 0,
            opening: Some(Box::new(info)),
            unsent: None,
        }));
        self.open[socket as usize] += 1;
        id
    }

    /// The kernel says that `slot` can be read, written, or has been ended by its peer, which
    /// reading finds behind what came before.
    pub fn on_event(&mut self, slot: usize, readable: bool, writable: bool, ended: bool) {
        let Some(Some(conn)) = self.conns.get_mut(slot) else {
            return;
        };
        conn.ended |= ended;
        if readable || ended {
            conn.readable = true;
            Self::enqueue(&mut self.ready, conn, slot);
        }
        if writable {
            self.outs.unblock(slot);
        }
    }

    fn enqueue(ready: &mut [VecDeque<u32>; 3], conn: &mut Conn<S>, slot: usize) {
        if !conn.queued {
            conn.queued = true;
            ready[conn.socket as usize].push_back(slot as u32);
        }
    }

    /// True if a turn has something to do without a further event, provided there is room.
    pub fn has_work<K: InputSink>(&mut self, sink: &mut K) -> bool {
        self.outs.has_dirty()
            || self.outs.resumed
            || !(self.outs.closes.is_empty() && self.outs.releases.is_empty())
            || self.next_writable().is_some_and(|s| sink.has_room(s))
            || Socket::ALL
                .iter()
                .any(|s| !self.ready[*s as usize].is_empty() && sink.has_room(*s))
    }

    /// The socket of the connection whose drained output is to be told of next.
    fn next_writable(&self) -> Option<Socket> {
        let id = self.outs.writable.first()?;
        let conn = self.conns.get(id.slot())?.as_ref();
        // Of a connection that is gone nothing is told.
        Some(conn.map_or(Socket::Admin, |conn| conn.socket))
    }

    /// Time of the earliest deadline, in monotonic nanoseconds.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let first = |list: &VecDeque<(u64, ConnId)>| list.front().map(|(at, _)| *at);
        let lists = [&self.handshakes, &self.closing, &self.throttled];
        // Who is not read is given signs of life, even while nothing else happens.
        let upkeep = self.outs.any_paused().then_some(self.next_upkeep_ns);
        lists.into_iter().filter_map(first).chain(upkeep).min()
    }

    /// One round of input: carries out what the sink asked for, then reads every connection that
    /// has something, administrative ones first, workers before clients. Returns the number of
    /// connections looked at.
    pub fn turn<K: InputSink>(&mut self, now_ns: u64, sink: &mut K) -> usize {
        self.now_ns = now_ns;
        let mut work = self.apply_requests(now_ns, sink);
        for socket in [Socket::Admin, Socket::Backend, Socket::Frontend] {
            for _ in 0..self.ready[socket as usize].len() {
                if !sink.has_room(socket) {
                    break;
                }
                let Some(slot) = self.ready[socket as usize].pop_front() else {
                    break;
                };
                work += 1;
                self.serve(slot as usize, sink);
            }
        }
        if self.partial_bytes > self.config.partial_bytes_max {
            self.shed_partials();
        }
        work + self.apply_requests(now_ns, sink)
    }

    /// Writes all fresh output, each connection once.
    pub fn flush(&mut self) {
        let dirty = self.outs.take_dirty();
        for slot in &dirty {
            self.flush_slot(*slot as usize);
        }
        self.outs.restore_dirty(dirty);
    }

    fn flush_slot(&mut self, slot: usize) {
        let Some(Some(conn)) = self.conns.get_mut(slot) else {
            return;
        };
        let Some(stream) = conn.stream.as_mut() else {
            return;
        };
        let flushed = self.outs.flush(slot, stream);
        if flushed == Flushed::Broken {
            // Reading tells why, behind what was still to be read.
            conn.readable = true;
            Self::enqueue(&mut self.ready, conn, slot);
        } else if flushed == Flushed::Unthrottled {
            // An edge may have come meanwhile.
            Self::enqueue(&mut self.ready, conn, slot);
        } else if matches!(conn.phase, Phase::Flushing { .. }) && self.outs.pending(slot) == 0 {
            stream.shutdown_write();
            if let Phase::Flushing { deadline_ns } = conn.phase {
                conn.phase = Phase::Linger { deadline_ns };
            }
            conn.readable = true;
            Self::enqueue(&mut self.ready, conn, slot);
        }
    }

    fn phase(&self, id: ConnId) -> Option<Phase> {
        let conn = self.conns.get(id.slot())?.as_ref()?;
        (conn.generation == id.generation()).then_some(conn.phase)
    }

    /// One connection's turn.
    fn serve<K: InputSink>(&mut self, slot: usize, sink: &mut K) {
        let Some(Some(conn)) = self.conns.get_mut(slot) else {
            return;
        };
        conn.queued = false;
        let id = ConnId::new(self.agent, slot as u32, conn.generation);
        match conn.phase {
            Phase::Handshake { .. } | Phase::Open => {
                if self.outs.is_paused(slot, conn.socket) && conn.phase == Phase::Open {
                    return;
                }
                if self.outs.is_throttled(slot) && !conn.ended {
                    self.watch_throttled(slot, id);
                    return;
                }
                self.read(slot, id, sink);
            }
            Phase::Replaced { .. } => {
                self.read(slot, id, sink);
                if let Some(Some(conn)) = self.conns.get(slot)
                    && matches!(conn.phase, Phase::Replaced { .. })
                    && (!conn.readable || conn.stream.is_none())
                    && !conn.stalled
                {
                    self.end(slot, Counter::ConnectionsClosedReplaced);
                }
            }
            Phase::Flushing { .. } | Phase::Linger { .. } => self.discard(slot),
            Phase::Ended { told: false } => {
                conn.phase = Phase::Ended { told: true };
                sink.lost(id, conn.socket, &mut self.outs);
            }
            Phase::Ended { told: true } => {}
            Phase::Returning => self.give_back(slot, id, sink),
        }
    }
}
