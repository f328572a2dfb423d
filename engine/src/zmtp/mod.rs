//! ZMTP 3.0 and 3.1 without I/O: the wire protocol of ZeroMQ sockets, for both sides of a
//! connection (protocol.md section 1).
//!
//! Owns: greeting, mechanism, handshake metadata, commands, the decoder of message frames, and
//! [`Peer`], which puts them together for one connection. May import: layers 0 and 1.
//!
//! # How a connection is fed
//!
//! The caller owns the bytes. [`Peer::new`] appends our greeting to the output; then everything
//! received is appended to a buffer and [`Peer::poll`] is called with what has not been consumed,
//! until it answers [`Event::NeedMore`]. What must be sent is appended to the output given to
//! `poll`; it always consists of whole commands, so it may be put between any two messages.
//!
//! # Invariants
//!
//! - Nothing is allocated or kept for a size that a peer announces. Sizes and counts are checked
//!   when a frame header is read, before its body.
//! - The bytes that a caller has to keep are bounded: one message within the limits plus
//!   `limits::INNER_COMMAND_BYTES_MAX` of commands between its frames. A message above the limits
//!   is consumed as it comes.
//! - Work is linear in the bytes received, however they are cut: a frame header is read at most
//!   three times, and a body byte is moved at most once, and only if a command stood in front of
//!   it inside its message.
//! - No bytes make it panic; they end in an event, or in an [`Error`] that ends the connection.

mod command;
mod config;
mod error;
mod frame;
mod greeting;
mod mechanism;
mod metadata;
mod peer;

pub use command::{push_error, push_ping, push_pong, push_subscription};
pub use config::{Limits, PeerConfig, Role, SocketType};
pub use error::Error;
pub use greeting::{GREETING_BYTES, greeting};
pub use mechanism::Mechanism;
pub use metadata::{Metadata, ready_command};
pub use peer::{Event, Peer};

#[cfg(test)]
mod tests;
