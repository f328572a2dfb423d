//! The memory limit: clients are not read, then refused.

use super::{MS, Model};
use eventmq::metrics::Counter;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Memory {
    #[default]
    Normal,
    /// Clients are not read. Jobs handed out at the last look, and the time of the next.
    Paused { handed_out: u64, until: u64 },
    /// REQUESTs that would have to wait are refused.
    Refusing,
}

impl Model {
    pub(crate) fn is_paused(&self) -> bool {
        matches!(self.memory, Memory::Paused { .. })
    }

    /// The broker looks at what it uses.
    pub(crate) fn watch_memory(&mut self, used: u64) {
        let limit = self.rules.max_memory;
        if self.memory == Memory::Normal {
            if limit > 0 && used > limit {
                self.count(Counter::InputPaused);
                self.pause();
            }
        } else if limit == 0 || used <= limit - limit / 10 {
            self.memory = Memory::Normal;
        }
    }

    fn pause(&mut self) {
        self.memory = Memory::Paused {
            handed_out: self.counted(Counter::JobsHandedOut),
            until: self.now + self.rules.memory_pause_ms * MS,
        };
    }

    pub(crate) fn memory_tick(&mut self) {
        if let Memory::Paused { handed_out, until } = self.memory
            && until <= self.now
        {
            if handed_out == self.counted(Counter::JobsHandedOut) {
                self.memory = Memory::Refusing;
            } else {
                self.pause();
            }
        }
    }
}
