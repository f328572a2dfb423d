//! The memory limit: reading from clients stops, and if that does not help REQUESTs are refused
//! (semantics.md, limits and refusals).

use super::Broker;
use super::log::LogKind;
use super::timers::TimerKind;
use crate::ids::{NS_PER_MS, Now, Socket};
use crate::link::Outbox;
use crate::metrics::Counter;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Normal,
    /// Clients are not read. `handed_out` jobs had been handed out at the last look.
    Paused {
        handed_out: u64,
    },
    /// Clients are read again, but REQUESTs that would have to wait are refused.
    Refusing,
}

#[derive(Debug)]
pub(super) struct Memory {
    state: State,
    /// Tells the timer of this pause from those of earlier ones.
    tag: u32,
    /// Held by the shell.
    external_bytes: u64,
}

impl Memory {
    pub(super) fn new() -> Self {
        Memory {
            state: State::Normal,
            tag: 0,
            external_bytes: 0,
        }
    }

    #[inline]
    pub(super) fn refusing(&self) -> bool {
        self.state == State::Refusing
    }

    pub(super) fn paused(&self) -> bool {
        matches!(self.state, State::Paused { .. })
    }
}

impl Broker {
    /// Memory held by the shell: partial messages, rings, output. To be told once per turn.
    pub fn set_external_bytes(&mut self, bytes: usize) {
        self.memory.external_bytes = bytes as u64;
    }

    /// Bytes of waiting and kept jobs and of the records of jobs in flight.
    pub(super) fn job_bytes(&self) -> u64 {
        let records = self.jobs.len() * size_of::<super::jobs::Job>();
        (self.blocks.held_bytes() + records) as u64
    }

    /// True if even a job that can be handed out at once is refused: while it runs it may have to
    /// be kept.
    pub(super) fn is_far_above_limit(&self) -> bool {
        let limit = self.config.max_memory_bytes;
        self.job_bytes() + self.memory.external_bytes > limit + limit / 8
    }

    /// Compares what is used with the limit.
    #[inline]
    pub(super) fn watch_memory<O: Outbox>(&mut self, now: Now, out: &mut O) {
        let limit = self.config.max_memory_bytes;
        if limit == 0 && self.memory.state == State::Normal {
            return;
        }
        let used = self.job_bytes() + self.memory.external_bytes;
        match self.memory.state {
            State::Normal if used > limit => self.pause(now, out),
            State::Normal => {}
            // Until a tenth is free.
            _ if limit == 0 || used <= limit - limit / 10 => {
                if self.memory.paused() {
                    out.pause_input(Socket::Frontend, false);
                }
                self.memory.state = State::Normal;
            }
            _ => {}
        }
    }

    #[cold]
    fn pause<O: Outbox>(&mut self, now: Now, out: &mut O) {
        self.counters.inc(Counter::InputPaused);
        if let Some(repeats) = self.logs.admit(LogKind::Memory, now.mono_ns) {
            let limit_bytes = self.config.max_memory_bytes;
            tracing::warn!(
                limit_bytes,
                repeats,
                "max_memory reached: clients are not read"
            );
        }
        let handed_out = self.counters.get(Counter::JobsHandedOut);
        self.memory.state = State::Paused { handed_out };
        out.pause_input(Socket::Frontend, true);
        self.arm_memory_timer(now);
    }

    fn arm_memory_timer(&mut self, now: Now) {
        let due_ns = now.mono_ns + self.config.memory_pause_ms * NS_PER_MS;
        self.memory.tag = self.memory.tag.wrapping_add(1);
        let tag = self.memory.tag;
        self.timers.arm(due_ns, TimerKind::Memory, 0, tag);
    }

    /// Nothing was handed out for a whole pause: read again, and refuse.
    pub(super) fn memory_timer<O: Outbox>(&mut self, tag: u32, now: Now, out: &mut O) {
        let State::Paused { handed_out } = self.memory.state else {
            return;
        };
        if tag != self.memory.tag {
            return;
        }
        let now_handed_out = self.counters.get(Counter::JobsHandedOut);
        if now_handed_out == handed_out {
            self.memory.state = State::Refusing;
            out.pause_input(Socket::Frontend, false);
        } else {
            self.memory.state = State::Paused {
                handed_out: now_handed_out,
            };
            self.arm_memory_timer(now);
        }
    }
}
