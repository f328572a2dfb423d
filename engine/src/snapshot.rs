//! Plain copies of the broker's state for administrative answers, made on the dispatch thread in
//! O(queues + workers) and rendered elsewhere.

use crate::metrics::Counters;
use serde::{Serialize, Serializer};

/// What STATUS shows (semantics.md, administrative answers). Names are raw bytes from peers.
#[derive(Debug, Clone, Default)]
pub struct StatusSnapshot {
    /// One entry per queue that has anything to show, ordered by name.
    pub queues: Vec<QueueStatus>,
    /// Registered workers and the number of jobs handed to each, ordered by id.
    pub processed_by_worker: Vec<(Vec<u8>, u64)>,
}

/// Figures of one queue.
#[derive(Debug, Clone, Default)]
pub struct QueueStatus {
    /// Queue name; `''` never appears, it is the default queue.
    pub name: Vec<u8>,
    /// Handed out and unfinished.
    pub in_flight: u64,
    /// Waiting.
    pub waiting: u64,
    /// Handed out since start.
    pub processed: u64,
    /// Mean age in ms of unfinished jobs, if there are any.
    pub mean_age_ms: Option<u64>,
    /// Age in ms of the oldest unfinished job, if there is one.
    pub max_age_ms: Option<u64>,
}

/// Name of a queue, and (weight, worker id) in pick order.
pub type QueueWorkers = (Vec<u8>, Vec<(f64, Vec<u8>)>);

/// What ROUTER_SHOW_WORKERS shows.
#[derive(Debug, Clone, Default)]
pub struct WorkersSnapshot {
    /// Registered workers, ordered by id.
    pub workers: Vec<WorkerStatus>,
    /// Queues with at least one worker that may be given work: name and (weight, worker id) in
    /// pick order.
    pub queues: Vec<QueueWorkers>,
}

/// One worker.
#[derive(Debug, Clone, Default)]
pub struct WorkerStatus {
    /// Routing id.
    pub id: Vec<u8>,
    /// Weight and name of each queue, as registered.
    pub queues: Vec<(f64, Vec<u8>)>,
    /// Monotonic seconds at which it was last heard.
    pub last_seen_secs: f64,
    /// Free slots.
    pub free_slots: u64,
    /// Jobs in flight.
    pub in_flight: u64,
    /// `live`, `silent`, `grace`, `leaving` or `slow`.
    pub state: &'static str,
}

/// What ROUTER_SHOW_SCHEDULERS shows.
#[derive(Debug, Clone, Default)]
pub struct SchedulersSnapshot {
    /// Routing id and monotonic seconds at which it was last heard, ordered by id.
    pub schedulers: Vec<(Vec<u8>, f64)>,
}

/// One latency distribution, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct LatencyFigures {
    /// Number of values.
    pub count: u64,
    /// Smallest.
    pub min_us: u64,
    /// Mean; shown with one decimal.
    #[serde(serialize_with = "tenths")]
    pub mean_us: f64,
    /// Median.
    pub p50_us: u64,
    /// 90th percentile.
    pub p90_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
    /// 99.9th percentile.
    pub p999_us: u64,
    /// Largest.
    pub max_us: u64,
}

/// The three distributions of one queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct QueueLatency {
    /// Accepted → handed out.
    pub wait: LatencyFigures,
    /// Handed out → ended.
    pub service: LatencyFigures,
    /// Accepted → ended.
    pub total: LatencyFigures,
}

/// What LATENCY shows: queues by name, ordered as they are to be shown.
#[derive(Debug, Clone, Default)]
pub struct LatencyReport {
    /// Since start.
    pub cumulative: Vec<(Vec<u8>, QueueLatency)>,
    /// In the last whole interval.
    pub interval: Vec<(Vec<u8>, QueueLatency)>,
}

/// Figures of the broker that are not per queue: what COUNTERS shows besides the counters.
#[derive(Debug, Clone, Default)]
pub struct BrokerFigures {
    /// Counters of the state machine.
    pub counters: Counters,
    /// Jobs waiting.
    pub jobs_waiting: u64,
    /// Jobs in flight.
    pub jobs_in_flight: u64,
    /// Bytes held by waiting and kept jobs.
    pub job_bytes: u64,
    /// Effective `max_memory`.
    pub memory_limit_bytes: u64,
    /// Queues known.
    pub queues: u64,
    /// Workers registered.
    pub workers: u64,
    /// Schedulers registered.
    pub schedulers: u64,
    /// True while input from clients is paused for memory.
    pub input_paused: bool,
    /// True while draining.
    pub draining: bool,
}

/// What COUNTERS shows: everything that is not per queue. Made by the shell.
#[derive(Debug, Clone, Default)]
pub struct CountersReport {
    /// Version of the program.
    pub version: &'static str,
    /// Seconds since start.
    pub uptime_secs: f64,
    /// `inline` or `dedicated`, as chosen at start.
    pub threading: &'static str,
    /// Counters of the state machine and of all agents, added up.
    pub counters: Counters,
    /// Figures of the state machine; its counters are not shown again.
    pub figures: BrokerFigures,
    /// Open connections, indexed by [`Socket`](crate::ids::Socket).
    pub connections: [u64; 3],
    /// Memory.
    pub memory: MemoryReport,
    /// Agents, in the order of their numbers.
    pub agents: Vec<AgentReport>,
    /// Rings between agents; none with inline threading.
    pub rings: Vec<RingReport>,
}

/// Memory as `max_memory` counts it, in bytes.
#[derive(Debug, Clone, Default, Serialize)]
pub struct MemoryReport {
    /// Effective `max_memory`.
    pub limit_bytes: u64,
    /// Waiting and kept jobs.
    pub job_bytes: u64,
    /// Partial messages in receive buffers.
    pub partial_bytes: u64,
    /// Chunks outstanding in rings.
    pub ring_bytes: u64,
    /// Output not yet written.
    pub output_bytes: u64,
    /// Resident set of the process, if it can be read.
    pub resident_bytes: u64,
}

/// One agent: what it holds and where its time went.
#[derive(Debug, Clone, Default, Serialize)]
pub struct AgentReport {
    /// Name, also of its thread.
    pub name: String,
    /// Core it is pinned to.
    pub core: Option<usize>,
    /// Open connections.
    pub connections: u64,
    /// Turns that found work.
    pub turns_busy: u64,
    /// Turns that found none.
    pub turns_idle: u64,
    /// Times it slept.
    pub sleeps: u64,
    /// Milliseconds in turns that found work.
    pub busy_ms: u64,
    /// Milliseconds in turns that found none, and asleep.
    pub idle_ms: u64,
    /// Milliseconds in turns that left input alone for want of room for output.
    pub back_pressure_ms: u64,
}

/// One ring between two agents.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RingReport {
    /// From, to and socket.
    pub name: String,
    /// Items in it.
    pub items: u64,
    /// Items it holds at most.
    pub items_max: u64,
    /// Bytes in it.
    pub bytes: u64,
    /// Bytes it holds at most.
    pub bytes_max: u64,
    /// Offers refused since start, because it was full.
    pub offers_failed: u64,
}

fn tenths<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((value * 10.0).round() / 10.0)
}
