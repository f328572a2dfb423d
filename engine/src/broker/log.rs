//! The kinds of log lines whose rate is bounded.

use crate::log_limit::LogLimit;

/// What is logged. Payloads never are.
#[derive(Debug, Clone, Copy)]
pub(super) enum LogKind {
    Takeover,
    BadEnvelope,
    BadInform,
    BadRole,
    Rejected,
    NotDurable,
    WorkerLost,
    SchedulerLost,
    JobsLost,
    Memory,
    Stall,
}

const KINDS: usize = LogKind::Stall as usize + 1;

#[derive(Debug, Default)]
pub(super) struct Logs(LogLimit<KINDS>);

impl Logs {
    /// See [`LogLimit::admit`].
    pub(super) fn admit(&mut self, kind: LogKind, now_ns: u64) -> Option<u64> {
        self.0.admit(kind as usize, now_ns)
    }
}
