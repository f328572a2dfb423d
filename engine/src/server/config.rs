//! What a server is made from.

use crate::addr::Addr;
use crate::broker::BrokerConfig;
use crate::ids::{NS_PER_MS, Socket};
use crate::io::{BindError, OutputConfig, TableConfig};
use crate::limits;
use crate::ring::RingConfig;
use crate::runtime::affinity::AffinityError;
use crate::settings::{Idle, Threading};
use crate::zmtp;
use std::hash::RandomState;
use std::io;
use std::sync::Arc;
use thiserror::Error;

/// Everything a broker is started with. `Default` is the documented default of each setting,
/// on free ports of the loopback interface.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Address of each socket, indexed by [`Socket`]; port 0 = a free one.
    pub addrs: [Addr; 3],
    /// Agents on one thread or on several.
    pub threading: Threading,
    /// Threads for frontend and backend I/O in `dedicated`; at least 2.
    pub io_threads: usize,
    /// Cores of the I/O threads, frontend first; `None` = chosen.
    pub io_cores: Option<Vec<usize>>,
    /// Core of the dispatch thread; `None` = chosen.
    pub dispatch_core: Option<usize>,
    /// What a thread does without work.
    pub idle: Idle,
    /// Settings of the state machine.
    pub broker: BrokerConfig,
    /// Time for the ZMTP handshake, ms.
    pub handshake_timeout_ms: u64,
    /// Most connections of each socket.
    pub connections_max: [usize; 3],
    /// See [`OutputConfig::client_buffer_bytes`].
    pub client_buffer_bytes: usize,
    /// See [`OutputConfig::client_result_bytes`].
    pub client_result_bytes: usize,
    /// Size of the rings in `dedicated`.
    pub ring: RingConfig,
}

impl Default for ServerConfig {
    fn default() -> Self {
        let free = || Addr::Tcp {
            host: "127.0.0.1".to_owned(),
            port: 0,
        };
        ServerConfig {
            addrs: [free(), free(), free()],
            threading: Threading::Auto,
            io_threads: 2,
            io_cores: None,
            dispatch_core: None,
            idle: Idle::Park,
            broker: BrokerConfig::default(),
            handshake_timeout_ms: limits::HANDSHAKE_TIMEOUT_MS_DEFAULT,
            connections_max: [10_000, 10_000, 64],
            client_buffer_bytes: limits::CLIENT_BUFFER_BYTES_DEFAULT,
            client_result_bytes: limits::CLIENT_RESULT_BYTES_DEFAULT,
            ring: RingConfig::default(),
        }
    }
}

impl ServerConfig {
    /// The address of one socket.
    pub fn addr(&self, socket: Socket) -> &Addr {
        &self.addrs[socket as usize]
    }

    pub(super) fn output(&self) -> OutputConfig {
        OutputConfig {
            client_buffer_bytes: self.client_buffer_bytes,
            client_result_bytes: self.client_result_bytes,
        }
    }

    /// For one of `agents` I/O agents.
    pub(super) fn table(&self, keys: &[RandomState; 2], agents: usize) -> TableConfig {
        let peer = || {
            Arc::new(zmtp::PeerConfig::new(
                zmtp::Role::Server,
                zmtp::SocketType::Router,
                b"",
                &[("X-EventMQ", b"1")],
                zmtp::Limits::default(),
            ))
        };
        TableConfig {
            handshake_ns: self.handshake_timeout_ms.saturating_mul(NS_PER_MS),
            connections_max: self.connections_max,
            partial_bytes_max: match self.broker.max_memory_bytes {
                0 => usize::MAX,
                limit => partial_bytes_max(limit, agents),
            },
            peers: [peer(), peer(), peer()],
            routing_id_keys: keys.clone(),
        }
    }
}

/// A message of the largest size, and what is read behind it in the same turn.
const PARTIAL_BYTES_MIN: usize = limits::MESSAGE_BYTES_MAX + limits::TURN_READ_BYTES_MAX;

/// The part of one agent in what partial messages may hold: a quarter of the memory in all. With
/// parts of their own, half messages on one socket do not cut off whole ones on another. Every
/// agent can receive a message of the largest size, if a quarter of the memory allows one.
fn partial_bytes_max(limit: u64, agents: usize) -> usize {
    let quarter = usize::try_from(limit / 4).unwrap_or(usize::MAX);
    (quarter / agents.max(1)).max(quarter.min(PARTIAL_BYTES_MIN))
}

/// Why a broker did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// An address could not be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A core of `io_cores` or `dispatch_core` does not exist.
    #[error("{setting}: {source}")]
    NoSuchCore {
        /// The setting.
        setting: &'static str,
        /// Which core, and those there are.
        source: AffinityError,
    },
    /// The system refused a descriptor or a thread.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_messages_have_a_quarter_of_the_memory_in_all() {
        let (kib, gib) = (1_u64 << 10, 1_u64 << 30);
        for agents in 1..=9 {
            let whole = partial_bytes_max(8 * gib, agents) * agents;
            assert!(whole as u64 <= 2 * gib, "{agents}");
            let part = partial_bytes_max(gib, agents);
            assert!(
                part >= PARTIAL_BYTES_MIN,
                "{agents}: the largest message fits"
            );
            assert!(partial_bytes_max(100 * kib, agents) as u64 <= 25 * kib);
        }
    }
}
