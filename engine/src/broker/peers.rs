//! Connections and the peers behind them.
//!
//! A peer is (socket, routing id). Its newest connection gets the output; input from an older one
//! stays valid until that one is lost. A peer is kept while it has a connection, a registration,
//! or unfinished jobs that owe it something.

use super::Broker;
use super::log::LogKind;
use super::slab::{NONE, Slab};
use super::tasks::Task;
use super::workers::blocked;
use crate::ids::{ConnId, NS_PER_MS, Now, Socket};
use crate::limits::{TAKEOVER_WINDOW_MS, TAKEOVERS_MAX};
use crate::link::{CloseReason, Outbox, PeerInfo};
use ahash::RandomState;
use hashbrown::HashTable;
use std::hash::{BuildHasher, Hasher};
use std::net::SocketAddr;

/// What a peer has registered as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Nothing: a client, or a worker before its INFORM.
    None,
    /// Index of the worker.
    Worker(u32),
    /// Index of the scheduler.
    Scheduler(u32),
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) socket: Socket,
    pub(super) id: Box<[u8]>,
    /// The connection that gets output: the newest one, unless it was lost.
    pub(super) output: Option<ConnId>,
    /// Connections that are not closed.
    pub(super) conns: u32,
    /// Number of its newest connection.
    pub(super) epoch: u32,
    /// Unfinished jobs and held schedules that may have something for it.
    pub(super) refs: u32,
    pub(super) role: Role,
    /// Effective time (see `Broker::effective_ns`) of its last message.
    pub(super) last_seen_ns: u64,
    /// The queue of its last REQUEST, to spare a look-up.
    pub(super) last_queue: u32,
    pub(super) extensions: bool,
    /// The broker has asked for an orderly end of its connection.
    pub(super) closing: bool,
    remote: Option<SocketAddr>,
    /// Times of the last take-overs, oldest first.
    takeovers: [Option<u64>; TAKEOVERS_MAX as usize],
}

/// One place of the connection table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Conn {
    generation: u32,
    /// `NONE` for a connection that was refused.
    pub(super) peer: u32,
    /// Which of the peer's connections this is.
    pub(super) epoch: u32,
    pub(super) state: ConnState,
    /// It said KBYE on this connection.
    pub(super) said_kbye: bool,
    /// It was told to register again.
    pub(super) disconnect_sent: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnState {
    Free,
    Open,
    Lost,
}

const FREE_CONN: Conn = Conn {
    generation: 0,
    peer: NONE,
    epoch: 0,
    state: ConnState::Free,
    said_kbye: false,
    disconnect_sent: false,
};

/// The dense table of connections: by agent, then by slot.
#[derive(Debug, Default)]
pub(super) struct Conns {
    agents: Vec<Vec<Conn>>,
}

impl Conns {
    #[inline]
    pub(super) fn get(&self, id: ConnId) -> Option<&Conn> {
        let conn = self.agents.get(id.agent())?.get(id.slot())?;
        (conn.generation == id.generation() && conn.state != ConnState::Free).then_some(conn)
    }

    pub(super) fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        let conn = self.agents.get_mut(id.agent())?.get_mut(id.slot())?;
        (conn.generation == id.generation() && conn.state != ConnState::Free).then_some(conn)
    }

    /// Takes a place. False if it is in use: the shell has not said `closed`.
    fn open(&mut self, id: ConnId, peer: u32, epoch: u32) -> bool {
        if self.agents.len() <= id.agent() {
            self.agents.resize_with(id.agent() + 1, Vec::new);
        }
        let slots = &mut self.agents[id.agent()];
        if slots.len() <= id.slot() {
            slots.resize(id.slot() + 1, FREE_CONN);
        }
        let conn = &mut slots[id.slot()];
        if conn.state != ConnState::Free {
            return false;
        }
        let generation = id.generation();
        *conn = Conn {
            generation,
            peer,
            epoch,
            state: ConnState::Open,
            ..FREE_CONN
        };
        true
    }

    /// Connections that are not closed and belong to a peer, with that peer.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Conn> {
        self.agents
            .iter()
            .flatten()
            .filter(|c| c.state != ConnState::Free && c.peer != NONE)
    }
}

/// All peers by index and by (socket, routing id).
#[derive(Debug)]
pub(super) struct Peers {
    pub(super) slab: Slab<Peer>,
    by_id: HashTable<u32>,
    hasher: RandomState,
}

impl Peers {
    pub(super) fn new(hasher: RandomState) -> Self {
        Peers {
            slab: Slab::new(),
            by_id: HashTable::new(),
            hasher,
        }
    }

    fn hash(hasher: &RandomState, socket: Socket, id: &[u8]) -> u64 {
        let mut state = hasher.build_hasher();
        state.write_u8(socket as u8);
        state.write(id);
        state.finish()
    }

    pub(super) fn find(&self, socket: Socket, id: &[u8]) -> Option<u32> {
        let hash = Peers::hash(&self.hasher, socket, id);
        let same = |ix: &u32| {
            let peer = &self.slab[*ix];
            peer.socket == socket && *peer.id == *id
        };
        self.by_id.find(hash, same).copied()
    }

    fn create(&mut self, info: &PeerInfo) -> u32 {
        let ix = self.slab.insert(Peer {
            socket: info.socket,
            id: info.routing_id.as_slice().into(),
            output: None,
            conns: 0,
            epoch: 0,
            refs: 0,
            role: Role::None,
            last_seen_ns: 0,
            last_queue: NONE,
            extensions: false,
            closing: false,
            remote: None,
            takeovers: [None; TAKEOVERS_MAX as usize],
        });
        let Peers {
            slab,
            by_id,
            hasher,
        } = self;
        let hash = Peers::hash(hasher, info.socket, &info.routing_id);
        by_id.insert_unique(hash, ix, |other| {
            let peer = &slab[*other];
            Peers::hash(hasher, peer.socket, &peer.id)
        });
        ix
    }

    /// Drops the entry if nothing needs it any more.
    pub(super) fn drop_unused(&mut self, ix: u32) {
        let peer = &self.slab[ix];
        if peer.conns > 0 || peer.refs > 0 || peer.role != Role::None {
            return;
        }
        let hash = Peers::hash(&self.hasher, peer.socket, &peer.id);
        match self.by_id.find_entry(hash, |other| *other == ix) {
            Ok(entry) => {
                entry.remove();
            }
            Err(_) => unreachable!("a known peer is found by its id"),
        }
        self.slab.remove(ix);
    }

    /// One unfinished thing less refers to the peer.
    #[inline]
    pub(super) fn release(&mut self, ix: u32) {
        let peer = &mut self.slab[ix];
        peer.refs -= 1;
        if peer.refs == 0 && peer.conns == 0 {
            self.drop_unused(ix);
        }
    }

    pub(super) fn check(&self) {
        assert_eq!(self.by_id.len(), self.slab.len(), "peers by id");
        for (ix, peer) in self.slab.iter() {
            assert_eq!(
                self.find(peer.socket, &peer.id),
                Some(ix),
                "peer found by its id"
            );
            let needed = peer.conns > 0 || peer.refs > 0 || peer.role != Role::None;
            assert!(needed, "a peer that nothing needs is kept");
        }
    }
}

impl Broker {
    /// A handshake has finished.
    pub fn handle_opened<O: Outbox>(
        &mut self,
        conn: ConnId,
        info: PeerInfo,
        now: Now,
        out: &mut O,
    ) {
        let known = self.peers.find(info.socket, &info.routing_id);
        if let Some(peer) = known
            && let Some(old) = self.peers.slab[peer].output
            && !self.take_over(peer, old, conn, &info, now, out)
        {
            let opened = self.conns.open(conn, NONE, 0);
            debug_assert!(opened, "connection {conn} opened twice");
            return;
        }
        let peer = known.unwrap_or_else(|| self.peers.create(&info));
        let epoch = self.peers.slab[peer].epoch.wrapping_add(1);
        if !self.conns.open(conn, peer, epoch) {
            debug_assert!(false, "connection {conn} opened twice");
            self.peers.drop_unused(peer);
            return;
        }
        let effective_ns = self.effective_ns(now);
        let entry = &mut self.peers.slab[peer];
        entry.output = Some(conn);
        entry.epoch = epoch;
        entry.conns += 1;
        entry.last_seen_ns = effective_ns;
        entry.extensions = info.speaks_extensions;
        entry.remote = info.remote;
        entry.closing = false;
        match entry.role {
            Role::Worker(worker) => self.worker_reconnected(worker, conn, epoch),
            Role::Scheduler(scheduler) => self.scheduler_reconnected(scheduler, conn, now, out),
            Role::None => {}
        }
        self.close_if_draining(peer, out);
        self.run_tasks(now, out);
    }

    /// Ends the older connection's output, or refuses the newcomer. True if it may go on.
    fn take_over<O: Outbox>(
        &mut self,
        peer: u32,
        old: ConnId,
        new: ConnId,
        info: &PeerInfo,
        now: Now,
        out: &mut O,
    ) -> bool {
        let entry = &mut self.peers.slab[peer];
        let window_ns = TAKEOVER_WINDOW_MS * NS_PER_MS;
        if entry.takeovers[0].is_some_and(|oldest| now.mono_ns - oldest < window_ns) {
            let (first, second) = (entry.remote, info.remote);
            if let Some(repeats) = self.logs.admit(LogKind::Takeover, now.mono_ns) {
                tracing::warn!(
                    socket = %info.socket, first = ?first, second = ?second, repeats,
                    "two peers use the same routing id: the newcomer is refused"
                );
            }
            out.close(new, CloseReason::TakeoverRefused);
            return false;
        }
        entry.takeovers.rotate_left(1);
        entry.takeovers[TAKEOVERS_MAX as usize - 1] = Some(now.mono_ns);
        out.close(old, CloseReason::Replaced);
        true
    }

    /// A connection has ended, behind every complete message that was read from it.
    pub fn handle_lost<O: Outbox>(&mut self, conn: ConnId, now: Now, out: &mut O) {
        let Some(entry) = self.conns.get_mut(conn) else {
            return;
        };
        if entry.state == ConnState::Lost {
            return;
        }
        entry.state = ConnState::Lost;
        let peer = entry.peer;
        if peer != NONE && self.peers.slab[peer].output == Some(conn) {
            self.peers.slab[peer].output = None;
            match self.peers.slab[peer].role {
                Role::Worker(worker) => {
                    let grace_ns = self.config.reconnect_grace_ms * NS_PER_MS;
                    let worker = &mut self.workers.slab[worker];
                    worker.blocked |= blocked::GRACE;
                    worker.blocked &= !(blocked::SLOW | blocked::HOLD);
                    worker.grace_until_ns = now.mono_ns + grace_ns;
                }
                Role::Scheduler(scheduler) => self.scheduler_lost(scheduler, now),
                Role::None => {}
            }
        }
        out.release(conn);
    }

    /// Everything that was not sent has been given back; the connection's slot may be used again.
    pub fn handle_closed<O: Outbox>(&mut self, conn: ConnId, now: Now, out: &mut O) {
        let Some(entry) = self.conns.get_mut(conn) else {
            return;
        };
        debug_assert_eq!(entry.state, ConnState::Lost, "closed without lost");
        self.deliver_returned(now, out);
        let Some(entry) = self.conns.get_mut(conn) else {
            return;
        };
        entry.state = ConnState::Free;
        let peer = std::mem::replace(&mut entry.peer, NONE);
        if peer != NONE {
            self.peers.slab[peer].conns -= 1;
            if let Role::Worker(worker) = self.peers.slab[peer].role
                && self.workers.slab[worker].available()
            {
                // It lives on another connection and has got slots back: in turn with the others
                // for what came back, then for what was waiting anyway.
                self.restore_candidate(worker);
                self.pump_returned();
                let tag = self.workers.slab[worker].tag;
                self.tasks.push_back(Task::Feed { worker, tag });
            }
        }
        self.pump_returned();
        if peer != NONE {
            match self.peers.slab[peer].role {
                Role::Worker(worker) => self.worker_closed(worker, now),
                Role::Scheduler(scheduler) => self.scheduler_closed(scheduler, now, out),
                Role::None => self.peers.drop_unused(peer),
            }
        }
        self.run_tasks(now, out);
    }
}
