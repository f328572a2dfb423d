//! Settings of the state machine, as plain numbers.

use crate::limits;

/// What the state machine needs to know. Times in milliseconds, sizes in bytes; the rules are in
/// protocol.md and docs/semantics.md.
#[derive(Debug, Clone, PartialEq)]
pub struct BrokerConfig {
    /// Waiting jobs of a named, served queue; 0 = no limit.
    pub hwm: usize,
    /// Largest number of queues known at one time.
    pub max_queues: usize,
    /// Free and in-flight slots of one worker together.
    pub max_slots_per_worker: u32,
    /// The queue meant by an empty name. Fixed when the broker is made.
    pub default_queue_name: Vec<u8>,
    /// What an INFORM with an empty queue list registers for: weight and name.
    pub queues: Vec<(f64, Vec<u8>)>,
    /// Time between HEARTBEATs to a peer.
    pub heartbeat_interval_ms: u64,
    /// Silence after which a peer gets no work; after twice that it is removed.
    pub heartbeat_timeout_ms: u64,
    /// Neither send nor expect heartbeats.
    pub disable_heartbeats: bool,
    /// Answer unregistered workers with DISCONNECT.
    pub disconnect_unknown: bool,
    /// How long a lost worker's or scheduler's registration is kept; 0 = not at all.
    pub reconnect_grace_ms: u64,
    /// How long a queue counts as served after its last worker left.
    pub queue_grace_ms: u64,
    /// How long a worker that said KBYE may finish its jobs.
    pub kill_grace_period_ms: u64,
    /// Time-out of a job without the header `timeout`.
    pub global_timeout_ms: u64,
    /// How long a lost job's msgid is remembered.
    pub late_reply_window_ms: u64,
    /// Longest wait for jobs at shutdown.
    pub drain_timeout_ms: u64,
    /// Output waiting for a worker above which it gets no new jobs.
    pub worker_buffer_bytes: usize,
    /// Memory for jobs and what the shell holds; 0 = no limit.
    pub max_memory_bytes: u64,
    /// How long reading from clients stops for memory while nothing can be handed out.
    pub memory_pause_ms: u64,
    /// Queues that get latency histograms of their own.
    pub latency_queues: usize,
    /// Length of a latency interval; 0 = none.
    pub latency_interval_ms: u64,
}

impl Default for BrokerConfig {
    /// The documented defaults. `max_memory_bytes` depends on the machine and is 0 here.
    fn default() -> Self {
        BrokerConfig {
            hwm: limits::HWM_DEFAULT,
            max_queues: limits::QUEUES_MAX_DEFAULT,
            max_slots_per_worker: limits::SLOTS_PER_WORKER_MAX_DEFAULT as u32,
            default_queue_name: b"default".to_vec(),
            queues: vec![(10.0, b"default".to_vec())],
            heartbeat_interval_ms: 3_000,
            heartbeat_timeout_ms: 5_000,
            disable_heartbeats: false,
            disconnect_unknown: true,
            reconnect_grace_ms: 1_000,
            queue_grace_ms: 10_000,
            kill_grace_period_ms: 300_000,
            global_timeout_ms: 300_000,
            late_reply_window_ms: 300_000,
            drain_timeout_ms: 30_000,
            worker_buffer_bytes: limits::WORKER_BUFFER_BYTES_DEFAULT,
            max_memory_bytes: 0,
            memory_pause_ms: 10_000,
            latency_queues: 256,
            latency_interval_ms: 10_000,
        }
    }
}

/// Randomness handed in by the shell: random in production, fixed in simulation and benches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seeds {
    /// Keys of the hash tables: routing ids, queue names and msgids are hostile.
    pub hash: [u64; 4],
    /// The start of the broker's own msgids.
    pub ids: [u64; 2],
}
