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

    pub(super) fn table(&self, keys: &[RandomState; 2]) -> TableConfig {
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
                limit => usize::try_from(limit / 4).unwrap_or(usize::MAX),
            },
            peers: [peer(), peer(), peer()],
            routing_id_keys: keys.clone(),
        }
    }
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
