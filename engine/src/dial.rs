//! What the components that connect to others (client, job manager, scheduler, tools) and the
//! shell that keeps their connections say to each other.
//!
//! A component is a state machine, [`Node`]: it is told what happens and the time, and answers
//! through [`Net`]. It has no socket, clock, thread or randomness of its own.
//!
//! # Life of a dialled connection, as the state machine sees it
//!
//! [`Net::dial`] → any number of `dial_failed` → `opened` → any number of `message` → `lost` →
//! any number of `unsent`, newest first → `closed` → the shell dials again by itself, and so on,
//! until [`Net::hang_up`].

use crate::addr::Addr;
use crate::frames::Message;
use crate::ids::{ConnId, Now, Socket};
use crate::link::PeerInfo;
use crate::zmtp::SocketType;
use thiserror::Error;

/// A target that is kept connected. Never used twice by one shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DialId(pub u32);

/// The routing id a connection announces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RoutingId {
    /// None: the other side makes one.
    Anonymous,
    /// This one, 1-255 bytes.
    Fixed(Vec<u8>),
    /// A fresh one for every connection, 36 bytes of uuid text (what the broker of 0.3.13 and its
    /// tools expect, protocol.md section 1).
    Fresh,
}

/// Where to connect and as what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The other side.
    pub addr: Addr,
    /// Our kind of socket.
    pub socket_type: SocketType,
    /// Our routing id.
    pub routing_id: RoutingId,
    /// Longest time in which the system must have connected, in milliseconds. The handshake behind
    /// it has a limit of the shell's own.
    pub timeout_ms: u64,
    /// Pause before the second attempt, in milliseconds; each further one is twice as long, up to
    /// `pause_max_ms`. Every pause is cut by a random part of at most a half.
    pub pause_min_ms: u64,
    /// See `pause_min_ms`.
    pub pause_max_ms: u64,
}

impl Target {
    /// A DEALER with a fresh routing id for every connection: 5 s for an attempt, pauses of 100 ms
    /// to 2 s.
    pub fn dealer(addr: Addr) -> Target {
        Target {
            addr,
            socket_type: SocketType::Dealer,
            routing_id: RoutingId::Fresh,
            timeout_ms: 5_000,
            pause_min_ms: 100,
            pause_max_ms: 2_000,
        }
    }
}

/// Why an attempt to connect failed, or a connection ended.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DialError {
    /// The name has no address, or could not be resolved.
    #[error("the name cannot be resolved: {0}")]
    Resolve(String),
    /// The system could not connect.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// Not finished in time.
    #[error("no answer in {0} ms")]
    TimedOut(u64),
    /// Something else answers there, or refuses us.
    #[error("the other side is no ZeroMQ socket that takes us: {0}")]
    Handshake(&'static str),
    /// The other side ended the connection, or the network did.
    #[error("the connection was ended by the other side")]
    Closed,
    /// What came was not ZMTP, or above the limits.
    #[error("what the other side sent broke the rules: {0}")]
    Protocol(&'static str),
    /// We ended it.
    #[error("closed")]
    HungUp,
}

/// Whose connection it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// Made for this target.
    Dialled(DialId),
    /// Accepted by a listener of this socket.
    Accepted(Socket),
}

/// What a state machine may ask of the shell. Calls never fail and never block.
pub trait Net {
    /// Keeps a connection to `target`, from now on.
    fn dial(&mut self, target: Target) -> DialId;

    /// Ends it for good: what waits is sent, then the connection is closed in order. `lost`,
    /// `unsent` and `closed` still follow if it was open.
    fn hang_up(&mut self, dial: DialId);

    /// Ends the present connection at once, if there is one, and makes another (with a fresh
    /// routing id, if the target has such).
    fn redial(&mut self, dial: DialId);

    /// Sends a message given as consecutive pieces of its wire form (whole ZMTP frames; see
    /// [`MessageBuilder`](crate::emqp::MessageBuilder)). For a connection that is gone it is
    /// discarded: a state machine does not send between `lost` and the next `opened`.
    fn send(&mut self, conn: ConnId, pieces: &[&[u8]]);

    /// Bytes given to the connection and not yet taken by the kernel.
    fn pending_bytes(&mut self, conn: ConnId) -> usize;

    /// Asks for one `writable` once at most `below_bytes` are pending.
    fn notify_writable(&mut self, conn: ConnId, below_bytes: usize);

    /// Closes an accepted connection in order.
    fn close(&mut self, conn: ConnId);
}

/// A component's state machine.
pub trait Node {
    /// What other threads ask of it.
    type Command: Send + 'static;

    /// The shell has started. Where a state machine dials first.
    fn started(&mut self, now: Now, net: &mut dyn Net);

    /// A handshake has finished.
    fn opened(
        &mut self,
        conn: ConnId,
        origin: Origin,
        info: &PeerInfo,
        now: Now,
        net: &mut dyn Net,
    );

    /// A whole message.
    fn message(&mut self, conn: ConnId, message: &Message<'_>, now: Now, net: &mut dyn Net);

    /// Bytes came that made no message: a sign of life.
    fn activity(&mut self, _conn: ConnId, _now: Now, _net: &mut dyn Net) {}

    /// A message above the size limits was discarded; `head` holds its first frames.
    fn too_large(&mut self, _conn: ConnId, _head: &Message<'_>, _now: Now, _net: &mut dyn Net) {}

    /// Fewer bytes wait than were asked about.
    fn writable(&mut self, _conn: ConnId, _now: Now, _net: &mut dyn Net) {}

    /// The connection has ended; nothing more comes from it.
    fn lost(&mut self, conn: ConnId, why: &DialError, now: Now, net: &mut dyn Net);

    /// A message that was not wholly given to the kernel before the end, newest first: the other
    /// side has not got it.
    fn unsent(&mut self, conn: ConnId, message: &Message<'_>, now: Now, net: &mut dyn Net);

    /// Everything of the connection is over.
    fn closed(&mut self, _conn: ConnId, _now: Now, _net: &mut dyn Net) {}

    /// An attempt to connect has failed; the next one follows in `retry_in_ms`.
    fn dial_failed(
        &mut self,
        dial: DialId,
        why: &DialError,
        retry_in_ms: u64,
        now: Now,
        net: &mut dyn Net,
    );

    /// A command from another thread.
    fn command(&mut self, command: Self::Command, now: Now, net: &mut dyn Net);

    /// To be called at this monotonic time, in nanoseconds.
    fn poll_timeout(&self) -> Option<u64>;

    /// The time has come.
    fn timeout(&mut self, now: Now, net: &mut dyn Net);

    /// Called once per turn behind its input: for what is better done for many messages at once.
    fn after_input(&mut self, _now: Now, _net: &mut dyn Net) {}

    /// True when the shell may end: what waits is still sent, for at most 2 s.
    fn is_done(&self) -> bool;
}
