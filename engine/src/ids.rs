//! Newtypes that everything shares: sockets, connection ids, points in time.

use std::fmt;

/// One of the three listening sockets of a process: those of the broker by name (protocol.md
/// section 1). A component with other sockets uses the same three places and says which is which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Socket {
    /// Clients and schedulers.
    Frontend = 0,
    /// Job managers ("workers").
    Backend = 1,
    /// `emq-cli` and monitoring.
    Admin = 2,
}

impl Socket {
    /// All sockets, in the order of their numbers.
    pub const ALL: [Socket; 3] = [Socket::Frontend, Socket::Backend, Socket::Admin];

    /// The name used in logs, settings and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Socket::Frontend => "frontend",
            Socket::Backend => "backend",
            Socket::Admin => "administrative",
        }
    }
}

impl fmt::Display for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One connection of one I/O agent, with a generation that makes reuse of a slot visible.
///
/// Agent numbers and slots are small and dense, so that tables can be indexed by them. The
/// generation guards output only: an action for a connection that has been replaced in its slot
/// is recognised and not carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(u64);

impl ConnId {
    /// Largest number of I/O agents (8 bits).
    pub const MAX_AGENTS: usize = 1 << 8;
    /// Largest number of slots per agent (24 bits).
    pub const MAX_SLOTS: usize = 1 << 24;

    /// Builds an id.
    ///
    /// # Panics
    /// If `slot` needs more than 24 bits: slots are bounded by the connection limits.
    pub fn new(agent: u8, slot: u32, generation: u32) -> Self {
        assert!(
            (slot as usize) < Self::MAX_SLOTS,
            "connection slot out of range"
        );
        ConnId((u64::from(agent) << 56) | (u64::from(slot) << 32) | u64::from(generation))
    }

    /// The I/O agent that owns the connection.
    pub fn agent(self) -> usize {
        (self.0 >> 56) as usize
    }

    /// The dense slot inside the agent.
    pub fn slot(self) -> usize {
        ((self.0 >> 32) & 0xff_ffff) as usize
    }

    /// The generation of the slot.
    pub fn generation(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Display for ConnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.agent(), self.slot(), self.generation())
    }
}

/// A point in time, read once per turn by the shell and handed down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Monotonic time in nanoseconds since an arbitrary start; never goes back.
    pub mono_ns: u64,
    /// Wall-clock time in milliseconds since the Unix epoch; may jump.
    pub wall_ms: u64,
}

/// Nanoseconds in one second.
pub const NS_PER_SEC: u64 = 1_000_000_000;
/// Nanoseconds in one millisecond.
pub const NS_PER_MS: u64 = 1_000_000;
/// Nanoseconds in one microsecond.
pub const NS_PER_US: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conn_id_keeps_its_parts() {
        let id = ConnId::new(255, 0xff_fffe, u32::MAX);
        assert_eq!(
            (id.agent(), id.slot(), id.generation()),
            (255, 0xff_fffe, u32::MAX)
        );
        assert_ne!(ConnId::new(1, 2, 3), ConnId::new(1, 2, 4));
    }
}
