//! Why a connection ends.

use crate::metrics::Counter;
use thiserror::Error as ThisError;

/// What a peer did that ends its connection. Nothing else is affected.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum Error {
    /// The first bytes are not those of ZMTP: another protocol, or noise.
    #[error("not ZMTP: the greeting begins with {0:02x?}")]
    NotZmtp(Box<[u8]>),
    /// The peer speaks ZMTP 1 or 2 (libzmq before 4.0).
    #[error("the peer speaks ZMTP {0}, at least 3 is needed")]
    OldZmtp(u8),
    /// The peer wants another security mechanism. The text is the part of its name received.
    #[error("the peer wants the mechanism {0:?}")]
    Mechanism(Box<str>),
    /// A handshake command that cannot be accepted.
    #[error("handshake failed: {0}")]
    Handshake(&'static str),
    /// A violation of ZMTP after the handshake.
    #[error("ZMTP violation: {0}")]
    Protocol(&'static str),
    /// The peer sent an ERROR command. The text is its reason, without control characters.
    #[error("the peer sent ERROR: {0}")]
    PeerError(Box<str>),
    /// A message above the limits went on beyond `discard_bytes_max`, or announced that it would.
    #[error("message above the size up to which it is discarded")]
    TooLarge,
}

impl Error {
    /// The counter under which this end of a connection is counted.
    pub fn counter(&self) -> Counter {
        match self {
            Error::NotZmtp(_) => Counter::ConnectionsClosedGreeting,
            Error::OldZmtp(_) => Counter::ConnectionsClosedOldZmtp,
            Error::Mechanism(_) => Counter::ConnectionsClosedMechanism,
            Error::Handshake(_) => Counter::ConnectionsClosedHandshake,
            Error::Protocol(_) => Counter::ConnectionsClosedProtocol,
            Error::PeerError(_) => Counter::ConnectionsClosedError,
            Error::TooLarge => Counter::ConnectionsClosedTooLarge,
        }
    }
}

/// Bytes of a peer as text that can stand in a log line: printable ASCII, the rest escaped.
pub(super) fn printable(bytes: &[u8]) -> Box<str> {
    bytes.escape_ascii().to_string().into_boxed_str()
}
