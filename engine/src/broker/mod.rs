//! The broker's state machine: which job goes where, what is owed to whom.
//!
//! Owns: peers, queues, workers, schedulers, jobs, deadlines, latency figures. May import: layers
//! 0 to 2. It has no clock, socket, thread, file or randomness: the shell hands in messages, the
//! time and random seeds, and carries out what is put into its [`Outbox`].
//!
//! # How it is driven
//!
//! One turn: [`Broker::begin_turn`], [`Broker::set_external_bytes`], then the input
//! ([`Broker::handle_message`], `handle_opened`, `handle_lost` and so on, see
//! [`link`](crate::link)), then [`Broker::handle_timeout`] if [`Broker::poll_timeout`] is due,
//! then [`Broker::poll_output`]. While [`Broker::has_pending_output`] holds, only administrative
//! input may be taken.
//!
//! # Life of a job
//!
//! ```text
//!              choose a worker                     REPLY, READY, estimate
//!  REQUEST ──┬───────────────────────► in flight ─────────────────────────► ended
//!            │                          ▲      │
//!            └──► waiting (store) ──────┘      ├── worker lost ────────────► lost
//!                    ▲      READY of a worker  │
//!                    └─────────────────────────┘ not written, or refused
//! ```
//!
//! # Invariants
//!
//! - Every REQUEST gets exactly one acceptance or REJECT. An accepted job ends exactly once, with
//!   a counter of the catalogue.
//! - A hand-out takes one slot and gives back exactly one.
//! - Inside a queue jobs are handed out in accept order; a job that comes back keeps its place.
//! - A worker that may be given work and has a free slot has no waiting job it could take.
//! - No decision and no order of output depends on the order of a hash table.
//!
//! A message forwarded from the store carries its wire bytes but no frame places.

mod choose;
mod config;
mod drain;
mod heap;
mod invariants;
mod jobs;
mod latency;
mod log;
mod memory;
mod peers;
mod queues;
mod register;
mod requests;
mod results;
mod schedulers;
mod slab;
mod status;
mod steps;
mod store;
mod tasks;
mod timeouts;
mod timers;
mod turns;
mod workers;
mod workers_copy;

#[cfg(test)]
mod tests;

pub use config::{BrokerConfig, Seeds};
pub use latency::LatencySnapshot;
pub use workers_copy::WorkersCopy;

use crate::emqp::Envelope;
use crate::frames::Message;
use crate::ids::{ConnId, Now, Socket};
use crate::link::Outbox;
use crate::log_limit::shown_id;
use crate::metrics::{Counter, Counters};
use ahash::RandomState;
use drain::Phase;
use heap::IndexedHeap;
use jobs::Jobs;
use latency::Latency;
use log::{LogKind, Logs};
use memory::Memory;
use peers::{ConnState, Conns, Peers};
use queues::{Profiles, Queues};
use requests::AcceptTemplate;
use results::LateReplies;
use schedulers::Schedulers;
use slab::{NONE, Slab};
use std::collections::VecDeque;
use store::BlockPool;
use tasks::Task;
use timers::Timers;
use workers::Worker;

/// The registered workers.
#[derive(Debug)]
struct Workers {
    slab: Slab<Worker>,
}

/// The state machine. See the module documentation for how to drive it.
#[derive(Debug)]
pub struct Broker {
    config: BrokerConfig,
    conns: Conns,
    peers: Peers,
    queues: Queues,
    profiles: Profiles,
    /// Unserved queues with waiting jobs, by their oldest one that default workers may take.
    open_jobs: IndexedHeap<u64>,
    workers: Workers,
    schedulers: Schedulers,
    jobs: Jobs,
    blocks: BlockPool,
    late: LateReplies,
    timers: Timers,
    tasks: VecDeque<Task>,
    /// Queues to which jobs came back.
    returned_to: Vec<u32>,
    latency: Latency,
    counters: Counters,
    logs: Logs,
    memory: Memory,
    accept: AcceptTemplate,

    /// The time of the latest call.
    clock: Now,
    last_turn_ns: u64,
    /// Time that counts for nobody's silence.
    stalled_ns: u64,
    /// Next accept sequence.
    next_seq: u64,
    /// Order of uses (hand-outs and registrations).
    stamp: u64,
    tags: u32,
    jobs_waiting: u64,
    /// Jobs in flight whose client is owed a result.
    owed_in_flight: u64,
    /// Timers are due, but there was no room for what they send.
    timers_pending: bool,
    job_timer_armed: bool,
    job_cursor: u32,
    interval_armed: bool,
    /// False while shutting down.
    hands_out: bool,
    phase: Phase,
    drain_until_ns: u64,
    warned_not_durable: bool,

    /// Buffers that are used again.
    scratch: Vec<u8>,
    time_text: Vec<u8>,
    msgid_text: Vec<u8>,
}

impl Broker {
    /// A broker without peers.
    pub fn new(config: BrokerConfig, seeds: Seeds, now: Now) -> Broker {
        let [a, b, c, d] = seeds.hash;
        let hasher = RandomState::with_seeds(a, b, c, d);
        let mut broker = Broker {
            conns: Conns::default(),
            peers: Peers::new(hasher.clone()),
            queues: Queues::new(hasher.clone(), &config.default_queue_name),
            profiles: Profiles::new(hasher.clone()),
            open_jobs: IndexedHeap::new(),
            workers: Workers { slab: Slab::new() },
            schedulers: Schedulers::new(),
            jobs: Jobs::new(hasher.clone()),
            blocks: BlockPool::default(),
            late: LateReplies::new(hasher),
            timers: Timers::default(),
            tasks: VecDeque::new(),
            returned_to: Vec::new(),
            latency: Latency::new(config.latency_queues),
            counters: Counters::default(),
            logs: Logs::default(),
            memory: Memory::new(),
            accept: AcceptTemplate::new(seeds.ids),
            clock: now,
            last_turn_ns: now.mono_ns,
            stalled_ns: 0,
            next_seq: 0,
            stamp: 0,
            tags: 0,
            jobs_waiting: 0,
            owed_in_flight: 0,
            timers_pending: false,
            job_timer_armed: false,
            job_cursor: 0,
            interval_armed: false,
            hands_out: true,
            phase: Phase::Running,
            drain_until_ns: 0,
            warned_not_durable: false,
            scratch: Vec::new(),
            time_text: Vec::new(),
            msgid_text: Vec::new(),
            config,
        };
        broker.arm_interval(now);
        broker
    }

    /// Takes other settings. The name of the default queue stays; limits of a worker's slots apply
    /// from its next INFORM on, heartbeat times when the ones that run have run out, everything
    /// else at once.
    pub fn reconfigure(&mut self, config: BrokerConfig, now: Now) {
        self.clock = now;
        let default_queue_name = std::mem::take(&mut self.config.default_queue_name);
        self.config = BrokerConfig {
            default_queue_name,
            ..config
        };
        self.latency.set_queues_max(self.config.latency_queues);
        self.arm_interval(now);
        if !self.config.disable_heartbeats {
            for worker in 0..self.workers.slab.end() {
                if self.workers.slab.get(worker).is_some() {
                    self.watch_worker(worker, now);
                }
            }
            for scheduler in 0..self.schedulers.slab.end() {
                if self.schedulers.slab.get(scheduler).is_some() {
                    self.watch_scheduler(scheduler, now);
                }
            }
        }
    }

    /// A whole message from a peer.
    pub fn handle_message<O: Outbox>(
        &mut self,
        conn: ConnId,
        message: &Message<'_>,
        now: Now,
        out: &mut O,
    ) {
        let Some(peer) = self.seen(conn, now) else {
            return;
        };
        match Envelope::parse(message) {
            Ok(envelope) => match self.peers.slab[peer].socket {
                Socket::Frontend => self.on_frontend(conn, peer, &envelope, now, out),
                Socket::Backend => self.on_backend(conn, peer, &envelope, now, out),
                // Served by the shell.
                Socket::Admin => self.wrong_role(peer, now),
            },
            Err(bad) => {
                self.shows_life(peer, now, out);
                self.bad_envelope(peer, bad, now);
            }
        }
        self.run_tasks(now, out);
    }

    /// The peer of an open connection, noted as heard now.
    #[inline]
    fn seen(&mut self, conn: ConnId, now: Now) -> Option<u32> {
        self.clock = now;
        let entry = self.conns.get(conn)?;
        if entry.peer == NONE || entry.state == ConnState::Lost {
            return None;
        }
        let peer = entry.peer;
        self.peers.slab[peer].last_seen_ns = self.effective_ns(now);
        Some(peer)
    }

    #[cold]
    fn bad_envelope(&mut self, peer: u32, bad: crate::emqp::BadEnvelope, now: Now) {
        self.counters.inc(bad.counter());
        if let Some(repeats) = self.logs.admit(LogKind::BadEnvelope, now.mono_ns) {
            let id = shown_id(&self.peers.slab[peer].id);
            tracing::warn!(peer = %id, repeats, "message ignored: {bad}");
        }
    }

    #[cold]
    fn wrong_role(&mut self, peer: u32, now: Now) {
        self.counters.inc(Counter::IgnoredRole);
        if let Some(repeats) = self.logs.admit(LogKind::BadRole, now.mono_ns) {
            let entry = &self.peers.slab[peer];
            let id = shown_id(&entry.id);
            let socket = entry.socket;
            tracing::warn!(peer = %id, %socket, repeats, "message ignored: not for this socket");
        }
    }

    fn next_tag(&mut self) -> u32 {
        self.tags = self.tags.wrapping_add(1);
        self.tags
    }
}
