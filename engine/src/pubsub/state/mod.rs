//! The state machine: no clock, socket, thread or randomness of its own.

mod figures;
mod subscribers;
mod trie;

pub use figures::{PubSubFigures, SlowSubscriber};

use crate::emqp::{Command, Envelope};
use crate::frames::{FrameSpan, Message, SharedBytes};
use crate::ids::{ConnId, Now, Socket};
use crate::limits;
use crate::link::{OutClass, Outbox, PeerInfo};
use crate::log_limit::LogLimit;
use crate::metrics::{Counter, Counters};
use ahash::RandomState;
use std::sync::Arc;
use subscribers::Conns;
use trie::Trie;

/// Where publishers connect.
pub const INCOMING: Socket = Socket::Frontend;
/// Where subscribers connect.
pub const OUTGOING: Socket = Socket::Backend;

/// Bytes of PUBLISHes taken in one turn, at most: between turns output is written, so that a
/// subscriber that reads does not pile up what the kernel would have taken.
const TURN_INPUT_BYTES_MAX: usize = 1024 * 1024;
/// Bytes put into output in one turn before input waits for the next.
const TURN_OUTPUT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// What a subscriber may have waiting under memory pressure, however many there are.
const SHARE_BYTES_MIN: usize = 16 * 1024;

/// Settings of the state machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PubSubConfig {
    /// Output waiting for one subscriber above which messages are dropped for it.
    pub subscriber_buffer_bytes: usize,
    /// Most subscriptions of all subscribers together.
    pub max_subscriptions: usize,
    /// Most subscriptions of one subscriber.
    pub max_subscriptions_per_subscriber: usize,
    /// Output, partial messages and subscriptions together, in bytes; 0 = no limit.
    pub max_memory_bytes: u64,
}

impl Default for PubSubConfig {
    fn default() -> Self {
        PubSubConfig {
            subscriber_buffer_bytes: limits::SUBSCRIBER_BUFFER_BYTES_DEFAULT,
            max_subscriptions: limits::SUBSCRIPTIONS_MAX_DEFAULT,
            max_subscriptions_per_subscriber: limits::SUBSCRIPTIONS_PER_SUBSCRIBER_MAX_DEFAULT,
            max_memory_bytes: 0,
        }
    }
}

impl PubSubConfig {
    /// Half of the memory is for what waits to be sent, a quarter for subscriptions; the rest is
    /// the shell's (partial messages, buffers).
    fn output_bytes_max(&self) -> usize {
        match self.max_memory_bytes {
            0 => usize::MAX,
            limit => usize::try_from(limit / 2).unwrap_or(usize::MAX),
        }
    }

    fn subscription_bytes_max(&self) -> usize {
        self.output_bytes_max() / 2
    }
}

/// Lines whose rate is bounded.
#[derive(Debug, Clone, Copy)]
enum LogKind {
    BadMessage,
    Refused,
    Slow,
    Recovered,
}

const LOG_KINDS: usize = LogKind::Recovered as usize + 1;

/// The publisher without I/O. The shell calls it in the order of `link`.
#[derive(Debug)]
pub struct PubSub {
    config: PubSubConfig,
    trie: Trie,
    conns: Conns,
    counters: Counters,
    logs: LogLimit<LOG_KINDS>,
    /// Number of the message being fanned out.
    stamp: u64,
    /// What a subscriber may have waiting in this turn.
    allowance_bytes: usize,
    /// True while that is less than the setting says, for want of memory.
    under_pressure: bool,
    turn_input_bytes: usize,
    turn_output_bytes: usize,
}

impl PubSub {
    /// A publisher without peers. The seeds are those of its hash tables.
    pub fn new(config: PubSubConfig, seeds: [u64; 4]) -> PubSub {
        let [a, b, c, d] = seeds;
        PubSub {
            allowance_bytes: config.subscriber_buffer_bytes,
            config,
            trie: Trie::new(),
            conns: Conns::new(RandomState::with_seeds(a, b, c, d)),
            counters: Counters::default(),
            logs: LogLimit::default(),
            stamp: 0,
            under_pressure: false,
            turn_input_bytes: 0,
            turn_output_bytes: 0,
        }
    }

    /// Takes other settings into use. Subscriptions above a lower limit stay.
    pub fn reconfigure(&mut self, config: PubSubConfig) {
        self.config = config;
    }

    /// The start of a turn. `waiting_bytes` is the output waiting in all connections.
    pub fn begin_turn(&mut self, waiting_bytes: usize) {
        self.turn_input_bytes = 0;
        self.turn_output_bytes = 0;
        let max = self.config.output_bytes_max();
        // From half of the memory on everybody gets the same share of the other half, so that
        // those who read go on getting everything.
        self.under_pressure = waiting_bytes > max / 2;
        let share = (max / 2) / self.conns.subscribers().max(1);
        self.allowance_bytes = match self.under_pressure {
            true => share
                .max(SHARE_BYTES_MIN)
                .min(self.config.subscriber_buffer_bytes),
            false => self.config.subscriber_buffer_bytes,
        };
    }

    /// False while nothing more should be read from publishers in this turn.
    #[inline]
    pub fn takes_input(&self) -> bool {
        // At most half of what a subscriber may have waiting: with that much written between
        // turns, whoever reads is not dropped for what came in one turn.
        let input_max = TURN_INPUT_BYTES_MAX.min(self.config.subscriber_buffer_bytes / 2);
        self.turn_input_bytes < input_max && self.turn_output_bytes < TURN_OUTPUT_BYTES_MAX
    }

    /// A handshake has finished.
    pub fn handle_opened(&mut self, conn: ConnId, info: &PeerInfo) {
        self.conns.open(conn, info);
    }

    /// A whole message from a publisher or subscriber.
    #[inline]
    pub fn handle_message<O: Outbox>(
        &mut self,
        conn: ConnId,
        socket: Socket,
        message: &Message<'_>,
        now: Now,
        out: &mut O,
    ) {
        if socket == OUTGOING {
            return self.on_subscriber(conn, message, now);
        }
        match Envelope::parse(message) {
            Ok(envelope) => match envelope.command {
                Command::Publish => self.publish(conn, message, now, out),
                // Nothing is kept for a publisher: that it lives or leaves changes nothing.
                Command::Heartbeat | Command::Kbye => {}
                _ => self.ignore(conn, Counter::IgnoredRole, "not for this socket", now),
            },
            Err(bad) => self.ignore(conn, bad.counter(), bad, now),
        }
    }

    /// A message above the size limits; `head` holds its frames as far as they were read.
    pub fn handle_too_large(&mut self, conn: ConnId, socket: Socket, head: &Message<'_>, now: Now) {
        if socket == OUTGOING && !head.is_empty() {
            // Several frames are no subscription, whatever their size.
            self.counters.inc(Counter::IgnoredFromSubscriber);
        } else if socket == OUTGOING {
            self.refuse(conn, Counter::SubscriptionsRefusedTooLong, now);
        } else {
            // The shell has counted it.
            self.log_ignored(conn, &"above the size limits", now);
        }
    }

    /// A connection has ended: its subscriptions go with it.
    pub fn handle_lost<O: Outbox>(&mut self, conn: ConnId, out: &mut O) {
        self.conns.end(conn, &mut self.trie);
        out.release(conn);
    }

    /// A message that was not wholly sent before its connection ended.
    pub fn handle_unsent(&mut self, socket: Socket) {
        if socket == OUTGOING {
            self.counters.inc(Counter::PublishedUnsent);
        }
    }

    /// Fans a PUBLISH out.
    #[inline]
    fn publish<O: Outbox>(&mut self, conn: ConnId, message: &Message<'_>, now: Now, out: &mut O) {
        let wire = message.wire();
        let spans = message.spans();
        // A frame's header stands right behind the frame before it.
        let tail = |frame: usize| &wire[spans[frame - 1].end as usize..];
        let (first, second) = match spans.len() {
            6 => (tail(4), &[][..]),
            // The headers in the middle are left out: two pieces, still as they came.
            7 => (&tail(4)[..tail(4).len() - tail(5).len()], tail(6)),
            _ => {
                let why = "PUBLISH has neither 6 nor 7 frames";
                return self.ignore(conn, Counter::IgnoredPublish, why, now);
            }
        };
        self.counters.inc(Counter::PublishesReceived);
        self.turn_input_bytes += wire.len();
        self.stamp += 1;
        let topic = message.get(4).unwrap_or_default();
        let len = first.len() + second.len();
        let mut fan_out = FanOut {
            conns: &mut self.conns,
            stamp: self.stamp,
            allowance_bytes: self.allowance_bytes,
            payload: Payload::new(first, second),
            len,
            taken: 0,
            matched: 0,
            newly_slow: None,
            newly_well: None,
        };
        self.trie.matches(topic, |conn| fan_out.give(conn, out));
        let FanOut {
            taken,
            matched,
            newly_slow,
            newly_well,
            ..
        } = fan_out;
        self.turn_output_bytes += taken * len;
        self.counters.add(Counter::PublishedSent, taken as u64);
        if matched == 0 {
            self.counters.inc(Counter::PublishesUnheard);
        } else if taken < matched {
            let reason = match self.under_pressure {
                true => Counter::PublishedDroppedMemory,
                false => Counter::PublishedDroppedSlow,
            };
            self.counters.add(reason, (matched - taken) as u64);
        }
        if newly_slow.is_some() || newly_well.is_some() {
            self.log_slow(newly_slow, newly_well, now);
        }
    }

    #[cold]
    fn ignore(&mut self, conn: ConnId, reason: Counter, why: impl std::fmt::Display, now: Now) {
        self.counters.inc(reason);
        self.log_ignored(conn, &why, now);
    }

    fn log_ignored(&mut self, conn: ConnId, why: &dyn std::fmt::Display, now: Now) {
        if let Some(repeats) = self.logs.admit(LogKind::BadMessage as usize, now.mono_ns) {
            let peer = self.conns.shown(conn);
            tracing::warn!(peer, repeats, "message ignored: {why}");
        }
    }

    #[cold]
    fn log_slow(&mut self, slow: Option<ConnId>, well: Option<ConnId>, now: Now) {
        if let Some(conn) = slow
            && let Some(repeats) = self.logs.admit(LogKind::Slow as usize, now.mono_ns)
        {
            let (subscriber, allowance_bytes) = (self.conns.shown(conn), self.allowance_bytes);
            let slow = self.conns.slow();
            tracing::warn!(
                subscriber,
                allowance_bytes,
                slow,
                repeats,
                "a subscriber does not read: messages are dropped for it"
            );
        }
        if let Some(conn) = well
            && let Some(repeats) = self.logs.admit(LogKind::Recovered as usize, now.mono_ns)
        {
            let (subscriber, dropped) = (self.conns.shown(conn), self.conns.dropped(conn));
            tracing::info!(subscriber, dropped, repeats, "a subscriber reads again");
        }
    }
}

/// A message as it goes to every subscriber.
struct Payload<'a> {
    pieces: [&'a [u8]; 2],
    /// A large one is copied once and goes on by reference.
    shared: Option<(SharedBytes, [FrameSpan; 2])>,
}

impl<'a> Payload<'a> {
    fn new(first: &'a [u8], second: &'a [u8]) -> Payload<'a> {
        Payload {
            pieces: [first, second],
            shared: None,
        }
    }

    #[inline]
    fn send<O: Outbox>(&mut self, to: ConnId, len: usize, out: &mut O) {
        if len < limits::SHARED_BYTES_MIN {
            let pieces = match self.pieces[1].is_empty() {
                true => &self.pieces[..1],
                false => &self.pieces[..],
            };
            return out.send(to, OutClass::Work, pieces);
        }
        let (bytes, spans) = self.shared.get_or_insert_with(|| {
            let bytes = self.pieces.concat();
            let mut spans = Vec::with_capacity(2);
            crate::frames::split_wire(&bytes, &mut spans);
            let spans = [
                spans.first().copied().unwrap_or_default(),
                spans.get(1).copied().unwrap_or_default(),
            ];
            (Arc::new(bytes), spans)
        });
        out.forward(to, OutClass::Work, &Message::from_shared(bytes, spans));
    }
}

struct FanOut<'a> {
    conns: &'a mut Conns,
    stamp: u64,
    allowance_bytes: usize,
    payload: Payload<'a>,
    len: usize,
    taken: usize,
    matched: usize,
    newly_slow: Option<ConnId>,
    newly_well: Option<ConnId>,
}

impl FanOut<'_> {
    /// To one subscriber, unless it has the message already or does not read.
    #[inline]
    fn give<O: Outbox>(&mut self, conn: ConnId, out: &mut O) {
        let Some(subscriber) = self.conns.mark(conn, self.stamp) else {
            return;
        };
        self.matched += 1;
        let waiting = out.pending_bytes(conn);
        // One message always goes to a subscriber that has nothing waiting.
        if waiting > 0 && waiting + self.len > self.allowance_bytes {
            subscriber.dropped += 1;
            if !std::mem::replace(&mut subscriber.slow, true) {
                self.conns.count_slow(true);
                self.newly_slow = Some(conn);
            }
            return;
        }
        if subscriber.slow && waiting <= self.allowance_bytes / 2 {
            subscriber.slow = false;
            self.conns.count_slow(false);
            self.newly_well = Some(conn);
        }
        self.taken += 1;
        self.payload.send(conn, self.len, out);
    }
}

#[cfg(test)]
mod tests;
