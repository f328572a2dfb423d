//! Connections made to others, and made again when they end.
//!
//! Resolving a name and connecting block, so each attempt does that on a thread of its own, which
//! lives no longer than it; everything after that is the I/O agent's. There is at most one attempt
//! for a target at a time.

use super::agent::IoAgent;
use super::output::OutputTable;
use super::sink::InputSink;
use super::stream::NetStream;
use crate::addr::Addr;
use crate::dial::{DialError, DialId, Net, Node, Origin, RoutingId, Target};
use crate::frames::Message;
use crate::ids::{ConnId, NS_PER_MS, NS_PER_SEC, Now, Socket};
use crate::link::{CloseReason, OutClass, Outbox, PeerInfo};
use crate::metrics::Counter;
use crate::ring::Wake;
use crate::zmtp::{Limits, PeerConfig, Role};
use crossbeam::channel::{Receiver, Sender, unbounded};
use socket2::{SockRef, TcpKeepalive};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Connections that we made are of this socket, as far as limits and order of reading go.
const SOCKET: Socket = Socket::Backend;
/// A connection that was open this long counts as a success: the next pause is the shortest.
const STEADY_NS: u64 = NS_PER_SEC;
/// A dead network is noticed even by who only waits: TCP asks after this many seconds without a
/// byte, this often, and gives up behind three of them.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

#[derive(Debug)]
enum State {
    /// The next attempt begins at this time.
    Waiting {
        at_ns: u64,
    },
    /// A thread is connecting.
    Connecting,
    Handshake(ConnId),
    Open {
        conn: ConnId,
        since_ns: u64,
    },
}

#[derive(Debug)]
struct Dial {
    target: Target,
    state: State,
    wanted: bool,
    /// The next pause.
    pause_ms: u64,
    /// Begin anew without a pause when the present connection is over.
    at_once: bool,
    /// Number of the attempt under way; results of earlier ones are dropped.
    attempt: u64,
}

struct Attempt {
    dial: DialId,
    attempt: u64,
    result: Result<(NetStream, Option<SocketAddr>), DialError>,
}

/// Targets, and how far the connection to each is. The agent that owns the connections is given to
/// every call.
pub struct Dialer {
    /// Those that are kept connected, or whose last connection is not over yet.
    dials: BTreeMap<DialId, Dial>,
    dialled: u32,
    by_conn: HashMap<ConnId, DialId>,
    aborts: Vec<ConnId>,
    attempts: u64,
    random: RandomState,
    drawn: u64,
    sender: Sender<Attempt>,
    results: Receiver<Attempt>,
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialer")
            .field("dials", &self.dials)
            .finish_non_exhaustive()
    }
}

impl Default for Dialer {
    fn default() -> Self {
        // One result per target at most: `Connecting` is left only by its result.
        let (sender, results) = unbounded();
        Dialer {
            dials: BTreeMap::new(),
            dialled: 0,
            by_conn: HashMap::new(),
            aborts: Vec::new(),
            attempts: 0,
            random: RandomState::new(),
            drawn: 0,
            sender,
            results,
        }
    }
}

impl Dialer {
    /// One turn between the agent's poll and its flush: attempts that have ended, attempts that are
    /// due, input. Returns a measure of the work done.
    pub fn turn<N: Node>(&mut self, agent: &mut IoAgent, node: &mut N, now: Now) -> usize {
        let mut work = 0;
        while let Ok(attempt) = self.results.try_recv() {
            work += 1;
            self.attempt_ended(agent, attempt, node, now);
        }
        work += agent.turn(now.mono_ns, &mut self.turn_with(node, now));
        while let Some(conn) = self.aborts.pop() {
            work += 1;
            agent.table.abort(conn);
        }
        work += self.handshakes_ended(agent, node, now);
        work + self.begin_due(agent, now)
    }

    fn begin_due(&mut self, agent: &IoAgent, now: Now) -> usize {
        let due = self.dials.iter().filter(
            |(_, dial)| matches!(dial.state, State::Waiting { at_ns } if at_ns <= now.mono_ns),
        );
        let due: Vec<DialId> = due.map(|(id, _)| *id).collect();
        for id in &due {
            self.begin(*id, agent);
        }
        due.len()
    }

    /// What the node is told with: also for calls outside of [`Dialer::turn`].
    pub fn net<'a>(&'a mut self, outs: &'a mut OutputTable, now: Now) -> impl Net + use<'a> {
        DialedNet {
            dialer: self,
            outs,
            now,
        }
    }

    /// True if a turn has something to do without waiting.
    pub fn has_work(&self) -> bool {
        !self.results.is_empty() || !self.aborts.is_empty()
    }

    /// Monotonic time of the next attempt, in nanoseconds.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        let waiting = self.dials.values().filter_map(|dial| match dial.state {
            State::Waiting { at_ns } => Some(at_ns),
            _ => None,
        });
        waiting.min()
    }

    /// The sink through which the node is told of input.
    pub fn turn_with<'a, N: Node>(&'a mut self, node: &'a mut N, now: Now) -> DialedTurn<'a, N> {
        DialedTurn {
            dialer: self,
            node,
            now,
        }
    }

    fn random(&mut self) -> u64 {
        self.drawn += 1;
        self.random.hash_one(self.drawn)
    }

    fn begin(&mut self, id: DialId, agent: &IoAgent) {
        self.attempts += 1;
        let attempt = self.attempts;
        let Some(dial) = self.dials.get_mut(&id) else {
            return;
        };
        dial.state = State::Connecting;
        dial.attempt = attempt;
        let (addr, timeout_ms) = (dial.target.addr.clone(), dial.target.timeout_ms);
        let (sender, waker) = (self.sender.clone(), agent.waker());
        let connecting = thread::Builder::new()
            .name("emq-dial".to_owned())
            .spawn(move || {
                let result = connect(&addr, timeout_ms);
                // Fails only if nobody is interested any more.
                let _ = sender.send(Attempt {
                    dial: id,
                    attempt,
                    result,
                });
                waker.wake();
            });
        if let Err(error) = connecting {
            let result = Err(DialError::Connect(error.to_string()));
            let _ = self.sender.send(Attempt {
                dial: id,
                attempt,
                result,
            });
        }
    }

    fn attempt_ended<N: Node>(
        &mut self,
        agent: &mut IoAgent,
        attempt: Attempt,
        node: &mut N,
        now: Now,
    ) {
        let id = attempt.dial;
        let Some(dial) = self.dials.get(&id) else {
            // Hung up meanwhile.
            return;
        };
        if dial.attempt != attempt.attempt || !matches!(dial.state, State::Connecting) {
            return;
        }
        let target = dial.target.clone();
        let adopted = attempt.result.and_then(|(stream, remote)| {
            let routing_id = match &target.routing_id {
                RoutingId::Anonymous => Vec::new(),
                RoutingId::Fixed(bytes) => bytes.clone(),
                RoutingId::Fresh => {
                    let seeds = [self.random(), self.random()];
                    crate::emqp::first_msgid(seeds).to_vec()
                }
            };
            let peer = Arc::new(PeerConfig::new(
                Role::Client,
                target.socket_type,
                &routing_id,
                &[("X-EventMQ", b"1")],
                Limits::default(),
            ));
            agent
                .adopt(stream, SOCKET, remote, &peer, now.mono_ns)
                .map_err(|error| DialError::Connect(error.to_string()))
        });
        match adopted {
            Ok(conn) => {
                self.by_conn.insert(conn, id);
                if let Some(dial) = self.dials.get_mut(&id) {
                    dial.state = State::Handshake(conn);
                }
            }
            Err(why) => self.failed(agent, id, &why, node, now),
        }
    }

    /// Connections that ended before they were open: the table tells nobody else of them. Of one
    /// that was open the reason stays for `lost`.
    fn handshakes_ended<N: Node>(&mut self, agent: &mut IoAgent, node: &mut N, now: Now) -> usize {
        let mut work = 0;
        let mut at = 0;
        while let Some((conn, reason)) = agent.table.outs.ends.get(at).copied() {
            let id = self.by_conn.get(&conn).copied();
            let in_handshake = |id: &DialId| {
                let state = self.dials.get(id).map(|dial| &dial.state);
                matches!(state, Some(State::Handshake(current)) if *current == conn)
            };
            if let Some(id) = id.filter(in_handshake) {
                work += 1;
                agent.table.outs.ends.swap_remove(at);
                self.by_conn.remove(&conn);
                self.failed(agent, id, &explain(reason, true), node, now);
            } else {
                at += 1;
            }
        }
        work
    }

    fn failed<N: Node>(
        &mut self,
        agent: &mut IoAgent,
        id: DialId,
        why: &DialError,
        node: &mut N,
        now: Now,
    ) {
        if let Some(retry_in_ms) = self.pause(id, now) {
            let mut net = self.net(&mut agent.table.outs, now);
            node.dial_failed(id, why, retry_in_ms, now, &mut net);
        }
    }

    /// Sets the time of the next attempt; returns the pause until then. Forgets a target that is
    /// not wanted any more: `None`.
    fn pause(&mut self, id: DialId, now: Now) -> Option<u64> {
        let random = self.random();
        let dial = self.dials.get_mut(&id)?;
        if !dial.wanted {
            self.dials.remove(&id);
            return None;
        }
        let whole_ms = dial.pause_ms.max(1);
        dial.pause_ms = whole_ms
            .saturating_mul(2)
            .min(dial.target.pause_max_ms.max(1));
        let pause_ms = match std::mem::take(&mut dial.at_once) {
            true => 0,
            false => whole_ms - random % (whole_ms / 2 + 1),
        };
        dial.state = State::Waiting {
            at_ns: now.mono_ns + pause_ms * NS_PER_MS,
        };
        Some(pause_ms)
    }
}

/// What `reason` means to the one who connected.
fn explain(reason: Counter, in_handshake: bool) -> DialError {
    match reason {
        Counter::ConnectionsClosedShutdown => DialError::HungUp,
        Counter::ConnectionsClosedHandshakeTimeout => {
            DialError::Handshake("it does not finish the handshake")
        }
        Counter::ConnectionsClosedGreeting => DialError::Handshake("it does not speak ZMTP"),
        Counter::ConnectionsClosedOldZmtp => DialError::Handshake("it speaks ZMTP 1 or 2"),
        Counter::ConnectionsClosedMechanism => {
            DialError::Handshake("it wants another security mechanism")
        }
        Counter::ConnectionsClosedHandshake => DialError::Handshake("its handshake is wrong"),
        Counter::ConnectionsClosedError => DialError::Handshake("it answered with ERROR"),
        Counter::ConnectionsClosedProtocol => DialError::Protocol("a violation of ZMTP"),
        Counter::ConnectionsClosedTooLarge => DialError::Protocol("a message without end"),
        Counter::ConnectionsClosedMemory => {
            DialError::Protocol("partial messages above the memory limit")
        }
        _ if in_handshake => DialError::Handshake("it ended the connection in the handshake"),
        _ => DialError::Closed,
    }
}

/// Resolves and connects, on a thread that may block.
fn connect(addr: &Addr, timeout_ms: u64) -> Result<(NetStream, Option<SocketAddr>), DialError> {
    let failed = |error: std::io::Error| DialError::Connect(error.to_string());
    match addr {
        Addr::Ipc(path) => {
            let stream = UnixStream::connect(path).map_err(failed)?;
            stream.set_nonblocking(true).map_err(failed)?;
            let stream = mio::net::UnixStream::from_std(stream);
            Ok((NetStream::Unix(stream), None))
        }
        Addr::Tcp { host, port } => {
            let end = Instant::now() + Duration::from_millis(timeout_ms);
            let addrs = (host.as_str(), *port)
                .to_socket_addrs()
                .map_err(|error| DialError::Resolve(error.to_string()))?;
            let mut last = DialError::Resolve("it has no address".to_owned());
            for addr in addrs {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(DialError::TimedOut(timeout_ms));
                }
                match TcpStream::connect_timeout(&addr, left) {
                    Ok(stream) => {
                        tune(&stream).map_err(failed)?;
                        let stream = mio::net::TcpStream::from_std(stream);
                        return Ok((NetStream::Tcp(stream), Some(addr)));
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
                        last = DialError::TimedOut(timeout_ms);
                    }
                    Err(error) => last = failed(error),
                }
            }
            Err(last)
        }
    }
}

fn tune(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

struct DialedNet<'a> {
    dialer: &'a mut Dialer,
    outs: &'a mut OutputTable,
    now: Now,
}

impl Net for DialedNet<'_> {
    fn dial(&mut self, target: Target) -> DialId {
        let id = DialId(self.dialer.dialled);
        self.dialer.dialled += 1;
        let pause_ms = target.pause_min_ms;
        let dial = Dial {
            target,
            state: State::Waiting {
                at_ns: self.now.mono_ns,
            },
            wanted: true,
            pause_ms,
            at_once: false,
            attempt: 0,
        };
        self.dialer.dials.insert(id, dial);
        id
    }

    fn hang_up(&mut self, dial: DialId) {
        let id = dial;
        let Some(dial) = self.dialer.dials.get_mut(&id) else {
            return;
        };
        dial.wanted = false;
        match dial.state {
            State::Open { conn, .. } => self.outs.close(conn, CloseReason::Shutdown),
            State::Handshake(conn) => self.dialer.aborts.push(conn),
            State::Waiting { .. } | State::Connecting => {
                self.dialer.dials.remove(&id);
            }
        }
    }

    fn redial(&mut self, dial: DialId) {
        let Some(dial) = self.dialer.dials.get_mut(&dial) else {
            return;
        };
        if !dial.wanted {
            return;
        }
        match &mut dial.state {
            State::Open { conn, .. } | State::Handshake(conn) => {
                dial.at_once = true;
                self.dialer.aborts.push(*conn);
            }
            State::Waiting { at_ns } => *at_ns = self.now.mono_ns,
            State::Connecting => {}
        }
    }

    fn send(&mut self, conn: ConnId, pieces: &[&[u8]]) {
        self.outs.send(conn, OutClass::Work, pieces);
    }

    fn pending_bytes(&mut self, conn: ConnId) -> usize {
        self.outs.pending_bytes(conn)
    }

    fn notify_writable(&mut self, conn: ConnId, below_bytes: usize) {
        self.outs.notify_writable(conn, below_bytes);
    }

    fn close(&mut self, conn: ConnId) {
        self.outs.close(conn, CloseReason::Shutdown);
    }
}

/// The node as the agent's sink, for one turn.
#[derive(Debug)]
pub struct DialedTurn<'a, N> {
    dialer: &'a mut Dialer,
    node: &'a mut N,
    now: Now,
}

impl<N: Node> InputSink for DialedTurn<'_, N> {
    fn has_room(&mut self, _: Socket) -> bool {
        true
    }

    fn opened(&mut self, conn: ConnId, info: PeerInfo, outs: &mut OutputTable) {
        let origin = match self.dialer.by_conn.get(&conn) {
            Some(id) => {
                if let Some(dial) = self.dialer.dials.get_mut(id) {
                    dial.state = State::Open {
                        conn,
                        since_ns: self.now.mono_ns,
                    };
                    if !dial.wanted {
                        outs.close(conn, CloseReason::Shutdown);
                    }
                }
                Origin::Dialled(*id)
            }
            None => Origin::Accepted(info.socket),
        };
        let mut net = self.dialer.net(outs, self.now);
        self.node.opened(conn, origin, &info, self.now, &mut net);
    }

    fn message(&mut self, conn: ConnId, _: Socket, message: &Message<'_>, outs: &mut OutputTable) {
        let mut net = self.dialer.net(outs, self.now);
        self.node.message(conn, message, self.now, &mut net);
    }

    fn activity(&mut self, conn: ConnId, _: Socket, outs: &mut OutputTable) {
        let mut net = self.dialer.net(outs, self.now);
        self.node.activity(conn, self.now, &mut net);
    }

    fn too_large(&mut self, conn: ConnId, _: Socket, head: &Message<'_>, outs: &mut OutputTable) {
        let mut net = self.dialer.net(outs, self.now);
        self.node.too_large(conn, head, self.now, &mut net);
    }

    fn lost(&mut self, conn: ConnId, _: Socket, outs: &mut OutputTable) {
        let reason = outs.take_end(conn);
        let why = explain(reason.unwrap_or(Counter::ConnectionsClosedByPeer), false);
        let mut net = self.dialer.net(outs, self.now);
        self.node.lost(conn, &why, self.now, &mut net);
        drop(net);
        outs.release(conn);
    }

    fn unsent(&mut self, conn: ConnId, _: Socket, message: &Message<'_>, outs: &mut OutputTable) {
        let mut net = self.dialer.net(outs, self.now);
        self.node.unsent(conn, message, self.now, &mut net);
    }

    fn closed(&mut self, conn: ConnId, _: Socket, outs: &mut OutputTable) {
        let mut net = self.dialer.net(outs, self.now);
        self.node.closed(conn, self.now, &mut net);
        drop(net);
        if let Some(id) = self.dialer.by_conn.remove(&conn) {
            if let Some(dial) = self.dialer.dials.get_mut(&id)
                && let State::Open { since_ns, .. } = dial.state
                && self.now.mono_ns.saturating_sub(since_ns) >= STEADY_NS
            {
                dial.pause_ms = dial.target.pause_min_ms;
            }
            self.dialer.pause(id, self.now);
        }
    }

    fn writable(&mut self, conn: ConnId, _: Socket, outs: &mut OutputTable) {
        let mut net = self.dialer.net(outs, self.now);
        self.node.writable(conn, self.now, &mut net);
    }
}
