//! Log lines at a bounded rate: the first of its kind at once, then at most one per interval with
//! the number of those that were left out.

use crate::ids::NS_PER_SEC;

const INTERVAL_NS: u64 = 10 * NS_PER_SEC;

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

#[derive(Debug, Clone, Copy, Default)]
struct Line {
    next_ns: u64,
    left_out: u64,
}

#[derive(Debug, Default)]
pub(super) struct Logs {
    lines: [Line; KINDS],
}

impl Logs {
    /// The number of lines of this kind that were left out before, if this one may be written.
    pub(super) fn admit(&mut self, kind: LogKind, now_ns: u64) -> Option<u64> {
        let line = &mut self.lines[kind as usize];
        if now_ns < line.next_ns {
            line.left_out += 1;
            return None;
        }
        line.next_ns = now_ns + INTERVAL_NS;
        Some(std::mem::take(&mut line.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_line_then_counts() {
        let mut logs = Logs::default();
        assert_eq!(logs.admit(LogKind::Memory, 5), Some(0));
        assert_eq!(logs.admit(LogKind::Memory, 6), None);
        assert_eq!(logs.admit(LogKind::Memory, 7), None);
        assert_eq!(logs.admit(LogKind::Stall, 7), Some(0));
        assert_eq!(logs.admit(LogKind::Memory, 5 + INTERVAL_NS), Some(2));
    }
}
