//! The publisher: PUBLISH in, `[topic, message]` out to whoever has subscribed to a prefix of the
//! topic (protocol.md, "Publishing").
//!
//! Owns: the sans-IO state machine [`PubSub`] with its prefix tree, and [`PubSubServer`], which
//! runs it as the sink of one I/O agent on one thread. May import layers 0-5, never `broker` or
//! `server`.
//!
//! The three places of [`Socket`](crate::ids::Socket) are used as [`INCOMING`], [`OUTGOING`] and
//! `Admin`. We speak ROUTER to publishers and to administrative peers, PUB to subscribers.
//!
//! # Invariants
//!
//! - The work for one message is bounded by the length of its topic and the number of subscribers
//!   that get it; those that do not cost nothing.
//! - A published message is never encoded anew: its frames stand in a PUBLISH as they leave.
//! - Memory is bounded in subscriptions (number and bytes) and in output per subscriber and in
//!   all. What does not fit is dropped whole, for that subscriber only, and counted.
//! - A subscriber gets a message once, however many of its subscriptions match.

mod admin;
mod server;
mod state;

pub use server::{ExitReport, PubSubServer, ServerConfig, StartError};
pub use state::{INCOMING, OUTGOING, PubSub, PubSubConfig, PubSubFigures, SlowSubscriber};

#[cfg(test)]
mod tests;
