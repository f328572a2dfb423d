//! The settings of a run. They may change while it runs.

use super::super::parts::Rng;
use eventmq::broker::BrokerConfig;

#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    pub(crate) hwm: usize,
    pub(crate) max_queues: u64,
    pub(crate) slots_max: u64,
    pub(crate) silence_ms: u64,
    pub(crate) grace_ms: u64,
    pub(crate) queue_grace_ms: u64,
    pub(crate) kill_grace_ms: u64,
    pub(crate) timeout_ms: u64,
    pub(crate) drain_ms: u64,
    pub(crate) disconnect_unknown: bool,
    /// 0 = no limit.
    pub(crate) max_memory: u64,
    pub(crate) memory_pause_ms: u64,
}

impl Rules {
    pub(crate) fn draw(rng: &mut Rng) -> Rules {
        Rules {
            hwm: *rng.pick(&[8, 8, 3, 0]),
            max_queues: *rng.pick(&[10_000, 10_000, 5, 26]),
            slots_max: *rng.pick(&[6, 6, 2]),
            silence_ms: *rng.pick(&[5_000, 5_000, 3_000, 8_000]),
            grace_ms: *rng.pick(&[1_000, 1_000, 0, 2_500]),
            queue_grace_ms: *rng.pick(&[10_000, 10_000, 2_000]),
            kill_grace_ms: *rng.pick(&[3_000, 3_000, 700]),
            timeout_ms: *rng.pick(&[300_000, 300_000, 1_000, 4_000]),
            // At no time at which anything else ends.
            drain_ms: *rng.pick(&[29_987, 2_987, 53]),
            disconnect_unknown: rng.chance(80),
            max_memory: *rng.pick(&[0, 0, 4_000, 12_000]),
            memory_pause_ms: *rng.pick(&[10_000, 1_500]),
        }
    }

    pub(crate) fn config(&self) -> BrokerConfig {
        BrokerConfig {
            hwm: self.hwm,
            max_queues: self.max_queues as usize,
            max_slots_per_worker: self.slots_max as u32,
            heartbeat_timeout_ms: self.silence_ms,
            reconnect_grace_ms: self.grace_ms,
            queue_grace_ms: self.queue_grace_ms,
            kill_grace_period_ms: self.kill_grace_ms,
            global_timeout_ms: self.timeout_ms,
            drain_timeout_ms: self.drain_ms,
            disconnect_unknown: self.disconnect_unknown,
            max_memory_bytes: self.max_memory,
            memory_pause_ms: self.memory_pause_ms,
            late_reply_window_ms: 1 << 40,
            worker_buffer_bytes: 0,
            ..BrokerConfig::default()
        }
    }
}
