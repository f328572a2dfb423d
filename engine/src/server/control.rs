//! Orders to agents, and what agents publish about themselves.

use crate::broker::BrokerConfig;
use crate::ids::{NS_PER_MS, Socket};
use crate::io::{IoAgent, Listener, NetStream, OutputConfig, TableConfig};
use crate::metrics::Counters;
pub(super) use crate::runtime::orders::{Bell, Orders, io_bell};
use crate::snapshot;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// To an I/O agent.
#[derive(Debug)]
pub(super) enum IoOrder {
    Listen(Listener),
    StopListening(Socket),
    Configure(Box<(TableConfig, OutputConfig)>),
    /// Take over a fresh connection that another agent has accepted.
    Adopt(NetStream, Socket, Option<SocketAddr>),
    /// Send what is waiting, close everything, end. Acted upon when the rings are empty.
    Finish,
}

/// To the dispatch.
#[derive(Debug)]
pub(super) enum DispatchOrder {
    /// Drain, then end.
    Shutdown,
    /// End at once.
    ShutdownNow,
    Configure(Box<BrokerConfig>),
}

/// What became of a turn.
#[derive(Debug, Clone, Copy, Default)]
enum Turn {
    #[default]
    First,
    Busy,
    Idle,
    Blocked,
}

impl From<bool> for Turn {
    fn from(work: bool) -> Turn {
        if work { Turn::Busy } else { Turn::Idle }
    }
}

/// What an agent says of itself.
#[derive(Debug, Clone, Default)]
pub struct AgentReport {
    /// What is shown.
    pub figures: snapshot::AgentReport,
    /// Its counters.
    pub counters: Counters,
    /// Connections per socket.
    pub connections: [usize; 3],
    /// Bytes of partial messages.
    pub partial_bytes: usize,
    /// Bytes of output not yet written.
    pub output_bytes: usize,
    /// The rings it sends into.
    pub rings: Vec<snapshot::RingReport>,
    turn: Turn,
    busy_ns: u64,
    idle_ns: u64,
    blocked_ns: u64,
    turn_began_ns: u64,
}

impl AgentReport {
    pub(super) fn new(name: &str, core: Option<usize>) -> Self {
        let figures = snapshot::AgentReport {
            name: name.to_owned(),
            core,
            ..snapshot::AgentReport::default()
        };
        AgentReport {
            figures,
            ..AgentReport::default()
        }
    }

    /// Counts a turn that began at `now_ns`. Its time, the sleep behind it included, runs to the
    /// start of the next one and is booked then.
    #[inline]
    pub(super) fn count_turn(&mut self, work: bool, blocked: bool, now_ns: u64) {
        let spent = now_ns.saturating_sub(std::mem::replace(&mut self.turn_began_ns, now_ns));
        match std::mem::replace(
            &mut self.turn,
            if blocked { Turn::Blocked } else { work.into() },
        ) {
            Turn::First => {}
            Turn::Busy => self.busy_ns += spent,
            Turn::Idle => self.idle_ns += spent,
            Turn::Blocked => self.blocked_ns += spent,
        }
        self.figures.turns_busy += u64::from(work);
        self.figures.turns_idle += u64::from(!work);
    }

    pub(super) fn take_from(&mut self, io: &IoAgent) {
        io.table.copy_counters(&mut self.counters);
        self.connections = Socket::ALL.map(|s| io.table.len(s));
        self.partial_bytes = io.table.partial_bytes();
        self.output_bytes = io.table.outs.total_pending_bytes();
        self.settle();
    }

    /// Becomes equal to `other`, a later report of the same agent, without new allocations.
    fn copy_from(&mut self, other: &AgentReport) {
        if self.figures.name != other.figures.name || self.rings.len() != other.rings.len() {
            self.clone_from(other);
            return;
        }
        let name = std::mem::take(&mut self.figures.name);
        self.figures = snapshot::AgentReport {
            name,
            ..other.figures
        };
        self.counters.copy_from(&other.counters);
        self.connections = other.connections;
        self.partial_bytes = other.partial_bytes;
        self.output_bytes = other.output_bytes;
        for (mine, theirs) in self.rings.iter_mut().zip(&other.rings) {
            let name = std::mem::take(&mut mine.name);
            *mine = snapshot::RingReport { name, ..*theirs };
        }
    }

    pub(super) fn settle(&mut self) {
        self.figures.connections = self.connections.iter().map(|n| *n as u64).sum();
        self.figures.busy_ms = self.busy_ns / NS_PER_MS;
        self.figures.idle_ms = self.idle_ns / NS_PER_MS;
        self.figures.back_pressure_ms = self.blocked_ns / NS_PER_MS;
    }
}

/// When an agent publishes: at most ten times a second, and once more when it comes to rest.
#[derive(Debug, Default)]
pub(super) struct Publishing {
    next_ns: u64,
    pending: bool,
}

impl Publishing {
    /// After a turn. True if it is time.
    #[inline]
    pub(super) fn due(&mut self, work: bool, now_ns: u64) -> bool {
        self.pending |= work;
        let due = self.pending && now_ns >= self.next_ns;
        if due {
            self.pending = false;
            self.next_ns = now_ns + PUBLISH_NS;
        }
        due
    }

    /// When an agent that sleeps should wake for it.
    pub(super) fn wake_ns(&self) -> Option<u64> {
        self.pending.then_some(self.next_ns)
    }
}

/// How often an agent publishes its report while it has work.
const PUBLISH_NS: u64 = 100 * NS_PER_MS;

/// Where an agent publishes; read by administrative requests and other agents.
#[derive(Debug, Default)]
pub(super) struct Published {
    report: Mutex<AgentReport>,
    held_bytes: AtomicUsize,
    load: AtomicUsize,
}

impl Published {
    pub(super) fn set(&self, report: &AgentReport) {
        self.report
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .copy_from(report);
    }

    pub(super) fn get(&self) -> AgentReport {
        self.report
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    // The two figures below only steer thresholds: nothing else is read on the strength of them,
    // so relaxed ordering is enough.

    pub(super) fn set_held_bytes(&self, bytes: usize) {
        self.held_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn set_load(&self, connections: usize) {
        self.load.store(connections, Ordering::Relaxed);
    }

    pub(super) fn add_load(&self) {
        self.load.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }
}
