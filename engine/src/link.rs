//! What the shell (`io`, `server`) and the state machine (`broker`) say to each other about
//! connections. Neither knows the other; both know these types.
//!
//! # Life of a connection, as the state machine sees it
//!
//! `opened` → any number of `message` → `lost` → (state machine answers [`Outbox::release`]) →
//! any number of `unsent` → `closed`.
//!
//! `lost` comes behind every complete message that was read. Output for a lost connection is kept
//! until its release; on release the shell gives back, newest first, each message that was not
//! wholly handed to the kernel, so that a job in it counts as never handed out.

use crate::frames::Message;
use crate::ids::{ConnId, Socket};
use std::net::SocketAddr;

/// What is known of a peer when its handshake has finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// The socket it connected to.
    pub socket: Socket,
    /// Its routing id, 1-255 bytes. Made by the shell (00 + 16 random bytes) if the peer has none.
    pub routing_id: Vec<u8>,
    /// True if the peer announced `X-EventMQ: 1` in its READY metadata.
    pub speaks_extensions: bool,
    /// Where it connected from, for logs (`None`: a Unix-domain socket).
    pub remote: Option<SocketAddr>,
}

/// What a message means to its sender and therefore what may happen to it under pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutClass {
    /// Acceptance of a REQUEST: dropped and counted while the connection has more than
    /// `client_buffer_bytes` waiting.
    Notice,
    /// A result or a REJECT: dropped and counted above `client_result_bytes`.
    Result,
    /// A job or a schedule on its way to a worker or scheduler: never dropped here. A message on
    /// its way to a subscriber: the publisher has bounded it.
    Work,
    /// ACK, HEARTBEAT, DISCONNECT, KBYE, administrative answers: never dropped; the state machine
    /// bounds how many it causes.
    Control,
}

/// Why the state machine ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// A newer connection with the same routing id took its place. No more output.
    Replaced,
    /// The routing id was taken over too often; the newcomer is refused.
    TakeoverRefused,
    /// Orderly end: flush what is waiting, shut down writing, read to the end, close.
    Shutdown,
}

/// Where the state machine puts what it wants sent. Implemented by the shell.
///
/// Calls never fail and never block: a message for a connection that is gone is kept for
/// `unsent` (before its release) or counted and discarded (after it).
pub trait Outbox {
    /// Sends `message` as it stands, byte for byte.
    fn forward(&mut self, to: ConnId, class: OutClass, message: &Message<'_>);

    /// Sends a message given as consecutive pieces of its wire form (whole ZMTP frames).
    fn send(&mut self, to: ConnId, class: OutClass, pieces: &[&[u8]]);

    /// Ends a connection. `lost` still follows, behind the messages that were already read.
    fn close(&mut self, conn: ConnId, reason: CloseReason);

    /// `lost` has been taken note of: give back what was not sent, then `closed`.
    fn release(&mut self, conn: ConnId);

    /// Bytes given to this connection and not yet written to the kernel; may be an upper bound.
    fn pending_bytes(&mut self, conn: ConnId) -> usize;

    /// Asks for one `writable` event once the connection has at most `below_bytes` waiting.
    fn notify_writable(&mut self, conn: ConnId, below_bytes: usize);

    /// A scheduler's connection is read even while [`Outbox::pause_input`] holds.
    fn set_never_paused(&mut self, conn: ConnId, never_paused: bool);

    /// Stops or resumes reading from all connections of `socket`.
    fn pause_input(&mut self, socket: Socket, paused: bool);

    /// False when what one more input message may cause might not find room. Fan-outs stop here
    /// and go on from their cursor later.
    fn has_room(&self) -> bool;
}
