//! A connection in a test: a `Peer`, its buffer, and what it reported.

use super::*;

/// An event without offsets, so that runs over differently cut bytes can be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Seen {
    Ready(Box<Metadata>),
    Message(Vec<Vec<u8>>),
    TooLarge(Vec<Vec<u8>>),
    Command,
    Topic(bool, Vec<u8>),
}

pub(super) fn limits() -> Limits {
    Limits::default()
}

pub(super) fn config(role: Role, socket_type: SocketType, limits: Limits) -> Arc<PeerConfig> {
    let id: &[u8] = if role == Role::Client { b"me" } else { b"" };
    Arc::new(PeerConfig::new(
        role,
        socket_type,
        id,
        &[("X-EventMQ", b"1")],
        limits,
    ))
}

/// One side of a connection.
pub(super) struct Side {
    pub(super) peer: Peer,
    pub(super) buf: Vec<u8>,
    pub(super) out: Vec<u8>,
    pub(super) seen: Vec<Seen>,
    pub(super) received_last: Vec<u8>,
    /// Most bytes the buffer held after polling.
    pub(super) held_max: usize,
    /// Polls again with every received byte, whatever NeedMore asks for.
    pub(super) heedless: bool,
    wanted: usize,
}

impl Side {
    pub(super) fn new(config: &Arc<PeerConfig>) -> Side {
        let mut out = Vec::new();
        let peer = Peer::new(config, &mut out);
        let (buf, seen, received_last) = (Vec::new(), Vec::new(), Vec::new());
        Side {
            peer,
            buf,
            out,
            seen,
            received_last,
            held_max: 0,
            heedless: false,
            wanted: 0,
        }
    }

    /// Takes received bytes as an I/O shell does, and checks what `poll` promises on every call.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.buf.extend_from_slice(bytes);
        let mut spans = Vec::new();
        while self.buf.len() >= self.wanted {
            let len = self.buf.len();
            let event = self.peer.poll(&mut self.buf, &mut spans, &mut self.out)?;
            assert_eq!(len, self.buf.len());
            let frames = |spans: &[FrameSpan], end: usize| -> Vec<Vec<u8>> {
                assert!(spans.iter().all(|s| s.end as usize <= end));
                spans
                    .iter()
                    .map(|s| self.buf[s.start as usize..s.end as usize].to_vec())
                    .collect()
            };
            let (consumed, seen) = match event {
                Event::NeedMore { at_least } => {
                    assert!(at_least > len, "{at_least} asked for, {len} there");
                    self.wanted = if self.heedless { 0 } else { at_least };
                    break;
                }
                Event::Ready { consumed, metadata } => (consumed, Seen::Ready(metadata)),
                Event::Message { wire_len, consumed } => {
                    assert!(wire_len <= consumed && !spans.is_empty());
                    let mut again = Vec::new();
                    let wire = &self.buf[..wire_len];
                    assert_eq!(crate::frames::split_wire(wire, &mut again), Some(wire_len));
                    assert_eq!(again, spans);
                    (consumed, Seen::Message(frames(&spans, wire_len)))
                }
                Event::TooLarge { consumed } => {
                    (consumed, Seen::TooLarge(frames(&spans, consumed)))
                }
                Event::Command { consumed } => (consumed, Seen::Command),
                Event::Subscription {
                    consumed,
                    subscribe,
                } => {
                    assert_eq!(spans.len(), 1);
                    let topic = frames(&spans, consumed).remove(0);
                    (consumed, Seen::Topic(subscribe, topic))
                }
            };
            assert!(consumed > 0 && consumed <= len);
            self.buf.drain(..consumed);
            self.wanted = 0;
            // The greeting is no event of interest.
            if seen != Seen::Command || self.peer.is_ready() {
                self.seen.push(seen);
            }
        }
        self.held_max = self.held_max.max(self.buf.len());
        Ok(())
    }

    /// Carries bytes both ways until nothing is left to carry.
    pub(super) fn exchange(&mut self, other: &mut Side) {
        while !(self.out.is_empty() && other.out.is_empty()) {
            other.received_last = std::mem::take(&mut self.out);
            self.received_last = std::mem::take(&mut other.out);
            other
                .receive(&other.received_last.clone())
                .expect("bytes of our own");
            self.receive(&self.received_last.clone())
                .expect("bytes of our own");
        }
    }
}

/// A DEALER client and a ROUTER server that have sent nothing yet.
pub(super) fn peers(limits: Limits) -> (Side, Side) {
    let client = config(Role::Client, SocketType::Dealer, limits);
    let server = config(Role::Server, SocketType::Router, limits);
    (Side::new(&client), Side::new(&server))
}

/// The two after their handshake, with nothing in their logs.
pub(super) fn connected(limits: Limits) -> (Side, Side) {
    let (mut client, mut server) = peers(limits);
    client.exchange(&mut server);
    client.seen.clear();
    server.seen.clear();
    (client, server)
}

/// A connection of a socket with this configuration after the handshake.
pub(super) fn ready(config: &Arc<PeerConfig>) -> Side {
    let other = match config.socket_type() {
        SocketType::XPub | SocketType::Pub => SocketType::Sub,
        _ => SocketType::Dealer,
    };
    let mut side = Side::new(config);
    let mut other = Side::new(&self::config(Role::Client, other, Limits::default()));
    side.exchange(&mut other);
    side.seen.clear();
    side
}

/// Everything `side` reports for `bytes`, given at once.
pub(super) fn drain(side: &mut Side, bytes: &mut Vec<u8>) -> Result<Vec<Seen>, Error> {
    side.receive(&std::mem::take(bytes))?;
    Ok(std::mem::take(&mut side.seen))
}
