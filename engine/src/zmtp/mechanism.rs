//! The security mechanism: what the handshake consists of, and what becomes of frames after it.
//!
//! This is the seam for further mechanisms. Each is a variant of [`Mechanism`] with its own
//! handshake; [`Mechanism::is_verbatim`] says whether message frames stand on the wire as they
//! are. With NULL and PLAIN they do, so a message can be forwarded byte for byte; CURVE boxes
//! every frame by itself and would leave the handshake into a state of its own in `Peer`.

use super::command::{self, Command};
use super::error::printable;
use super::greeting::NAME_BYTES;
use super::{Error, Metadata, PeerConfig};

/// A ZMTP security mechanism.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Mechanism {
    /// No authentication and no encryption: each side sends READY with its metadata.
    #[default]
    Null,
}

/// What a handshake command led to.
pub(super) enum Step {
    /// The handshake is finished; this is what the peer said of itself.
    Done(Box<Metadata>),
}

impl Mechanism {
    /// The name in the greeting, padded with zeros.
    pub(super) fn name(self) -> &'static [u8; NAME_BYTES] {
        match self {
            Mechanism::Null => b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        }
    }

    /// True if message frames are sent as they are.
    pub(super) fn is_verbatim(self) -> bool {
        match self {
            Mechanism::Null => true,
        }
    }

    /// The greetings agree: appends what this side says first.
    ///
    /// NULL has no order: both sides send READY as soon as they can, so nobody waits.
    pub(super) fn begin(self, config: &PeerConfig, out: &mut Vec<u8>) {
        match self {
            Mechanism::Null => out.extend_from_slice(config.ready()),
        }
    }

    /// Takes one command of the peer's handshake.
    pub(super) fn command(self, command: Command<'_>, config: &PeerConfig) -> Result<Step, Error> {
        if command.name == command::ERROR {
            return Err(peer_error(command.data));
        }
        match self {
            Mechanism::Null => {
                if command.name != command::READY {
                    return Err(Error::Handshake("the command is neither READY nor ERROR"));
                }
                let metadata = Metadata::parse(command.data)?;
                if !config.socket_type().accepts(metadata.socket_type) {
                    return Err(Error::Handshake("the socket types do not go together"));
                }
                Ok(Step::Done(Box::new(metadata)))
            }
        }
    }
}

/// The error for an ERROR command with this data (one length byte and the reason).
pub(super) fn peer_error(data: &[u8]) -> Error {
    let reason = match data.split_first() {
        Some((&len, rest)) => rest.get(..usize::from(len)).unwrap_or(rest),
        None => &[],
    };
    Error::PeerError(printable(reason))
}
