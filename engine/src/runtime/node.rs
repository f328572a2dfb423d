//! Runs a component's state machine ([`Node`]) on a thread of its own: connections, time, and
//! commands from other threads.

use super::clock::Clock;
use super::finish::finish_connections;
use super::idle::earliest;
use super::orders::{Bell, io_bell};
use crate::dial::Node;
use crate::ids::{NS_PER_MS, NS_PER_SEC};
use crate::io::{
    ConnTable, Dialer, IoAgent, Listener, OutputConfig, OutputTable, Steps, TableConfig,
};
use crate::limits::{
    CLIENT_RESULT_BYTES_DEFAULT, COMPONENT_PARTIAL_BYTES_MAX, HANDSHAKE_TIMEOUT_MS_DEFAULT,
};
use crate::metrics::Counters;
use crate::zmtp::{Limits, PeerConfig, Role, SocketType};
use crossbeam::channel::{Receiver, Sender, TrySendError, bounded};
use std::hash::RandomState;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Commands that may wait.
const COMMANDS_MAX: usize = 4_096;
/// Commands taken in one turn, so that input is not kept waiting.
const COMMANDS_PER_TURN: usize = 1_024;
/// Connections of one component.
const CONNECTIONS_MAX: usize = 10_000;

/// Gives commands to a running node from any thread.
#[derive(Debug)]
pub struct NodeHandle<C> {
    sender: Sender<C>,
    bell: Arc<Bell>,
}

impl<C> Clone for NodeHandle<C> {
    fn clone(&self) -> Self {
        NodeHandle {
            sender: self.sender.clone(),
            bell: Arc::clone(&self.bell),
        }
    }
}

impl<C> NodeHandle<C> {
    /// Gives a command; waits while too many are waiting already.
    ///
    /// # Errors
    /// The command, when the node has ended.
    pub fn give(&self, command: C) -> Result<(), C> {
        match self.try_give(command) {
            Ok(()) => Ok(()),
            Err(TrySendError::Disconnected(command)) => Err(command),
            Err(TrySendError::Full(command)) => {
                self.sender.send(command).map_err(|error| error.0)?;
                self.bell.ring();
                Ok(())
            }
        }
    }

    /// Gives a command if there is a place for it.
    ///
    /// # Errors
    /// With the command: no place, or the node has ended.
    pub fn try_give(&self, command: C) -> Result<(), TrySendError<C>> {
        let result = self.sender.try_send(command);
        // Full or not: whoever sleeps has something to do.
        self.bell.ring();
        result
    }
}

/// A node with its connections, not running yet.
pub struct NodeRunner<N: Node> {
    node: N,
    io: IoAgent,
    dialer: Dialer,
    clock: Clock,
    commands: Receiver<N::Command>,
    bell: Arc<Bell>,
}

impl<N: Node + std::fmt::Debug> std::fmt::Debug for NodeRunner<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeRunner")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl<N: Node> NodeRunner<N> {
    /// A runner, and the way to give it commands.
    ///
    /// # Errors
    /// When the system has no poll or event descriptor left.
    pub fn new(node: N) -> io::Result<(NodeRunner<N>, NodeHandle<N::Command>)> {
        let router = Arc::new(PeerConfig::new(
            Role::Server,
            SocketType::Router,
            b"",
            &[("X-EventMQ", b"1")],
            Limits::default(),
        ));
        let table = TableConfig {
            handshake_ns: HANDSHAKE_TIMEOUT_MS_DEFAULT * NS_PER_MS,
            connections_max: [CONNECTIONS_MAX; 3],
            partial_bytes_max: COMPONENT_PARTIAL_BYTES_MAX,
            peers: [Arc::clone(&router), Arc::clone(&router), router],
            routing_id_keys: [RandomState::new(), RandomState::new()],
        };
        let output = OutputConfig {
            client_buffer_bytes: CLIENT_RESULT_BYTES_DEFAULT,
            client_result_bytes: CLIENT_RESULT_BYTES_DEFAULT,
        };
        let io = IoAgent::new(ConnTable::new(0, table, OutputTable::new(0, output, None)))?;
        let bell = io_bell(io.waker());
        let (sender, commands) = bounded(COMMANDS_MAX);
        let handle = NodeHandle {
            sender,
            bell: Arc::clone(&bell),
        };
        let runner = NodeRunner {
            node,
            io,
            dialer: Dialer::default(),
            clock: Clock::new(),
            commands,
            bell,
        };
        Ok((runner, handle))
    }

    /// Accepts connections, too: ROUTER, as the broker's sockets are.
    ///
    /// # Errors
    /// What the system says about watching the listener.
    pub fn listen(&mut self, listener: Listener) -> io::Result<()> {
        self.io.listen(listener)
    }

    /// Lets the node's monotonic time count while the system sleeps. To be called first.
    pub fn count_sleep(&mut self) {
        self.clock = Clock::counting_sleep();
    }

    /// Counters of the connections.
    pub fn counters(&self) -> Counters {
        self.io.table.counters()
    }

    /// Runs on the calling thread until the node is done, or nobody can give it commands any more
    /// and it says so; then closes its connections in order. Gives the node back.
    ///
    /// # Errors
    /// When the system's poll fails, which nothing can be done about.
    pub fn run(mut self) -> io::Result<N> {
        let now = self.clock.now();
        let mut net = self.dialer.net(&mut self.io.table.outs, now);
        self.node.started(now, &mut net);
        drop(net);
        let mut timeout = Some(Duration::ZERO);
        while !self.node.is_done() {
            self.io.poll(timeout)?;
            self.bell.awake();
            let work = self.turn();
            timeout = Some(Duration::ZERO);
            if work || self.has_work() {
                continue;
            }
            self.bell.announce_sleep(false);
            if !self.has_work() {
                let now = self.clock.now();
                let node = self.node.poll_timeout();
                let dialer = self.dialer.next_deadline_ns();
                timeout = earliest([node, dialer, self.io.next_deadline_ns(), upkeep(now)], now);
            }
        }
        finish_connections(&mut self.io, &mut self.clock)?;
        Ok(self.node)
    }

    fn turn(&mut self) -> bool {
        let now = self.clock.now();
        let mut work = 0;
        for _ in 0..COMMANDS_PER_TURN {
            let Ok(command) = self.commands.try_recv() else {
                break;
            };
            work += 1;
            let mut net = self.dialer.net(&mut self.io.table.outs, now);
            self.node.command(command, now, &mut net);
        }
        work += self.dialer.turn(&mut self.io, &mut self.node, now);
        let mut net = self.dialer.net(&mut self.io.table.outs, now);
        if self.node.poll_timeout().is_some_and(|at| at <= now.mono_ns) {
            work += 1;
            self.node.timeout(now, &mut net);
        }
        self.node.after_input(now, &mut net);
        drop(net);
        let dirty = self.io.table.outs.has_dirty();
        self.io.flush(now.mono_ns);
        work > 0 || dirty
    }

    fn has_work(&mut self) -> bool {
        let now = self.clock.now();
        !self.commands.is_empty()
            || self.dialer.has_work()
            || self.node.is_done()
            || self
                .io
                .has_work(&mut self.dialer.turn_with(&mut self.node, now))
    }
}

/// Buffers are trimmed now and then even while nothing happens.
fn upkeep(now: crate::ids::Now) -> Option<u64> {
    Some(now.mono_ns + 60 * NS_PER_SEC)
}
