//! One connection: greeting, handshake, traffic.

use super::command::{self, Command};
use super::frame::{COMMAND, FrameHead, LONG, MORE};
use super::mechanism::{Step, peer_error};
use super::{Error, GREETING_BYTES, Metadata, PeerConfig, greeting};
use crate::frames::FrameSpan;
use crate::limits::{COMMAND_BYTES_MAX, INNER_COMMAND_BYTES_MAX};
use std::sync::Arc;

/// What [`Peer::poll`] found at the front of the received bytes. The caller drops `consumed`
/// bytes from the front and calls again.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// More bytes are needed. The caller keeps all of the buffer and calls again when it holds
    /// at least `at_least` bytes. That is a threshold to compare with, never a size to reserve:
    /// it may come from a length that the peer only announced.
    NeedMore {
        /// Bytes in all, always more than the buffer held.
        at_least: usize,
    },
    /// The handshake is done.
    Ready {
        /// Bytes to drop.
        consumed: usize,
        /// What the peer said of itself.
        metadata: Box<Metadata>,
    },
    /// `buf[..wire_len]` is a whole message in wire form and the spans are its frames. Commands
    /// that stood between its frames have been carried out and cut out: bytes were moved inside
    /// `buf[..consumed]`.
    Message {
        /// Bytes of the message.
        wire_len: usize,
        /// Bytes to drop.
        consumed: usize,
    },
    /// A message above the limits. The spans are those of its frames that came whole before the
    /// limit was reached, so that it can be answered. What follows of it is consumed as it comes,
    /// reported as [`Event::Command`].
    TooLarge {
        /// Bytes to drop.
        consumed: usize,
    },
    /// Something that is already dealt with: the greeting, a command (a PING has been answered,
    /// a PONG noted, an unknown one ignored), or bytes of a message that is being discarded.
    Command {
        /// Bytes to drop.
        consumed: usize,
    },
    /// A SUBSCRIBE or CANCEL command (ZMTP 3.1) for a PUB or XPUB socket. The only span is the
    /// topic. ZMTP 3.0 peers subscribe with messages, which are reported as such.
    Subscription {
        /// Bytes to drop.
        consumed: usize,
        /// True for SUBSCRIBE.
        subscribe: bool,
    },
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Waiting for the peer's 64 bytes.
    Greeting,
    /// Waiting for the commands of the mechanism.
    Handshake,
    /// Messages and commands, frames verbatim.
    Traffic,
    /// Inside a message above the limits: `left` bytes of the current frame are still to come,
    /// and more frames if `more`. `total` bytes have come or are announced.
    Discard { left: u64, total: u64, more: bool },
}

/// The state of one connection; see the module documentation for how it is fed.
///
/// After an error the connection is over: the caller sends what was appended to the output (an
/// ERROR command at most), closes, and does not call [`Peer::poll`] again.
#[derive(Debug)]
pub struct Peer {
    config: Arc<PeerConfig>,
    state: State,
    /// Bytes at the front of the buffer that are known to be whole frames of the message that is
    /// being received, and commands between them.
    scanned: u32,
    /// Bytes of commands among them.
    inner: u32,
    /// Message frames among them.
    frames: u32,
    pings: u32,
    v31: bool,
}

impl Peer {
    /// A new connection: appends our whole greeting to `out`.
    pub fn new(config: &Arc<PeerConfig>, out: &mut Vec<u8>) -> Peer {
        out.extend_from_slice(config.greeting());
        Peer {
            config: Arc::clone(config),
            state: State::Greeting,
            scanned: 0,
            inner: 0,
            frames: 0,
            pings: 0,
            v31: false,
        }
    }

    /// Takes the next event from the front of `buf`, which holds all bytes received and not yet
    /// consumed; after [`Event::NeedMore`] it must begin with the same bytes as before. What is
    /// to be sent is appended to `out`. `spans` is cleared, and filled as the event says, with
    /// offsets into `buf`.
    ///
    /// # Errors
    /// The peer violates the protocol or the limits: see [`Error`].
    #[inline]
    pub fn poll(
        &mut self,
        buf: &mut [u8],
        spans: &mut Vec<FrameSpan>,
        out: &mut Vec<u8>,
    ) -> Result<Event, Error> {
        spans.clear();
        if matches!(self.state, State::Traffic)
            && self.scanned == 0
            && let Some(len) = whole_message(buf, &self.config.limits, spans)
        {
            return Ok(Event::Message {
                wire_len: len,
                consumed: len,
            });
        }
        self.poll_slow(buf, spans, out)
    }

    /// True when the handshake is finished.
    pub fn is_ready(&self) -> bool {
        !matches!(self.state, State::Greeting | State::Handshake)
    }

    /// True if the peer's greeting says ZMTP 3.1 or later.
    pub fn speaks_v31(&self) -> bool {
        self.v31
    }

    /// True if the peer has sent PINGs.
    pub fn heartbeats_seen(&self) -> bool {
        self.pings != 0
    }

    /// Number of PINGs received and answered; wraps.
    pub fn pings_answered(&self) -> u32 {
        self.pings
    }

    /// True between [`Event::TooLarge`] and the end of that message.
    pub fn is_discarding(&self) -> bool {
        matches!(self.state, State::Discard { .. })
    }

    #[cold]
    #[inline(never)]
    fn poll_slow(
        &mut self,
        buf: &mut [u8],
        spans: &mut Vec<FrameSpan>,
        out: &mut Vec<u8>,
    ) -> Result<Event, Error> {
        spans.clear();
        match self.state {
            State::Greeting => self.poll_greeting(buf, out),
            State::Handshake => self.poll_handshake(buf, out),
            State::Traffic => self.poll_traffic(buf, spans, out),
            State::Discard { left, total, more } => {
                self.poll_discard(buf, spans, out, Discard { left, total, more })
            }
        }
    }

    fn poll_greeting(&mut self, buf: &[u8], out: &mut Vec<u8>) -> Result<Event, Error> {
        let mechanism = self.config.mechanism();
        let Some(minor) = greeting::check(buf, mechanism)? else {
            // Errors show with single bytes, so every one is looked at.
            return Ok(Event::NeedMore {
                at_least: buf.len() + 1,
            });
        };
        self.v31 = minor >= 1;
        self.state = State::Handshake;
        mechanism.begin(&self.config, out);
        Ok(Event::Command {
            consumed: GREETING_BYTES,
        })
    }

    fn poll_handshake(&mut self, buf: &[u8], out: &mut Vec<u8>) -> Result<Event, Error> {
        let result = self.handshake_command(buf);
        if let Err(Error::Handshake(reason)) = result {
            // libzmq ignores it; for our own peers it is the line in their log that says why.
            command::push_error(out, reason);
        }
        result
    }

    fn handshake_command(&mut self, buf: &[u8]) -> Result<Event, Error> {
        let head = match FrameHead::read(buf) {
            Ok(Ok(head)) => head,
            Ok(Err(at_least)) => return Ok(Event::NeedMore { at_least }),
            Err(Error::Protocol(reason)) => return Err(Error::Handshake(reason)),
            Err(error) => return Err(error),
        };
        if !head.is_command() {
            return Err(Error::Handshake(
                "a message before the end of the handshake",
            ));
        }
        if head.body > COMMAND_BYTES_MAX as u64 {
            return Err(Error::Handshake("the command is too long"));
        }
        let end = head.bytes + head.body as usize;
        let Some(body) = buf.get(head.bytes..end) else {
            return Ok(Event::NeedMore { at_least: end });
        };
        let command = Command::parse(body).ok_or(Error::Handshake("malformed command"))?;
        let Step::Done(metadata) = self.config.mechanism().command(command, &self.config)?;
        debug_assert!(self.config.mechanism().is_verbatim());
        self.state = State::Traffic;
        Ok(Event::Ready {
            consumed: end,
            metadata,
        })
    }

    /// Goes on behind what was already scanned.
    fn poll_traffic(
        &mut self,
        buf: &mut [u8],
        spans: &mut Vec<FrameSpan>,
        out: &mut Vec<u8>,
    ) -> Result<Event, Error> {
        loop {
            let at = self.scanned as usize;
            let head = match FrameHead::read(buf.get(at..).unwrap_or_default())? {
                Ok(head) => head,
                Err(bytes) => {
                    return Ok(Event::NeedMore {
                        at_least: at + bytes,
                    });
                }
            };
            if head.is_command() {
                let Some(end) = command_end(buf, at, head)? else {
                    return Ok(Event::NeedMore {
                        at_least: at + head.total() as usize,
                    });
                };
                let done = self.command(buf, at + head.bytes, end, out)?;
                if at == 0 {
                    return Ok(done.event(end, spans));
                }
                self.inner += (end - at) as u32;
                if !done.may_stand_in_message() || self.inner as usize > INNER_COMMAND_BYTES_MAX {
                    return Err(Error::Protocol("commands inside a message"));
                }
                self.scanned = end as u32;
                continue;
            }
            let limits = &self.config.limits;
            let wire = (at - self.inner as usize) as u64 + head.total();
            if self.frames as usize >= limits.frames_max
                || head.body > limits.frame_bytes_max as u64
                || wire > limits.message_bytes_max as u64
            {
                return Ok(self.too_large(buf, spans, head, wire));
            }
            let end = at + head.bytes + head.body as usize;
            if end > buf.len() {
                return Ok(Event::NeedMore { at_least: end });
            }
            self.scanned = end as u32;
            self.frames += 1;
            if !head.more() {
                return Ok(self.finish_message(buf, spans));
            }
        }
    }

    /// The scanned bytes are a whole message: fills `spans` and cuts out what is no part of it.
    fn finish_message(&mut self, buf: &mut [u8], spans: &mut Vec<FrameSpan>) -> Event {
        let consumed = self.scanned as usize;
        let wire_len = consumed - self.inner as usize;
        let mut to = 0;
        walk(&mut buf[..consumed], |buf, from, body, end, command| {
            if command {
                return;
            }
            if to != from {
                buf.copy_within(from..end, to);
            }
            spans.push(span(to + body - from, to + end - from));
            to += end - from;
        });
        debug_assert_eq!((to, spans.len()), (wire_len, self.frames as usize));
        self.restart();
        Event::Message { wire_len, consumed }
    }

    /// The frame behind the scanned bytes makes the message one of `wire` bytes, which is beyond
    /// a limit, or it is one frame too many.
    fn too_large(
        &mut self,
        buf: &mut [u8],
        spans: &mut Vec<FrameSpan>,
        head: FrameHead,
        wire: u64,
    ) -> Event {
        let at = self.scanned as usize;
        walk(&mut buf[..at], |_, _, body, end, command| {
            if !command {
                spans.push(span(body, end));
            }
        });
        let body_at = at + head.bytes;
        let here = head.body.min((buf.len() - body_at) as u64);
        let discard = Discard {
            left: head.body - here,
            total: wire,
            more: head.more(),
        };
        self.restart();
        self.state = discard.state();
        Event::TooLarge {
            consumed: body_at + here as usize,
        }
    }

    /// Consumes what has come of a message above the limits.
    fn poll_discard(
        &mut self,
        buf: &[u8],
        spans: &mut Vec<FrameSpan>,
        out: &mut Vec<u8>,
        mut discard: Discard,
    ) -> Result<Event, Error> {
        let max = self.config.limits.discard_bytes_max as u64;
        let mut at = 0;
        let missing = loop {
            if discard.total > max {
                return Err(Error::TooLarge);
            }
            let here = discard.left.min((buf.len() - at) as u64);
            discard.left -= here;
            at += here as usize;
            if discard.left > 0 {
                break 1;
            }
            if !discard.more {
                break 0;
            }
            let head = match FrameHead::read(&buf[at..])? {
                Ok(head) => head,
                Err(bytes) => break bytes,
            };
            if head.is_command() {
                let Some(end) = command_end(buf, at, head)? else {
                    break head.total() as usize;
                };
                if !self
                    .command(buf, at + head.bytes, end, out)?
                    .may_stand_in_message()
                {
                    return Err(Error::Protocol("commands inside a message"));
                }
                at = end;
            } else {
                at += head.bytes;
                discard.left = head.body;
                discard.more = head.more();
            }
            discard.total = discard.total.saturating_add(head.total());
        };
        spans.clear();
        self.state = discard.state();
        Ok(if at > 0 {
            Event::Command { consumed: at }
        } else {
            Event::NeedMore {
                at_least: missing.max(buf.len() + 1),
            }
        })
    }

    /// Carries out the command with the body `buf[body..end]`.
    fn command(
        &mut self,
        buf: &[u8],
        body: usize,
        end: usize,
        out: &mut Vec<u8>,
    ) -> Result<Done, Error> {
        let Some(command) = Command::parse(&buf[body..end]) else {
            return Err(Error::Protocol("malformed command"));
        };
        match command.name {
            command::PING => {
                command::push_pong(out, command::ping_context(command.data)?);
                self.pings = self.pings.wrapping_add(1);
            }
            command::ERROR => return Err(peer_error(command.data)),
            command::SUBSCRIBE | command::CANCEL
                if self.config.socket_type().takes_subscriptions() =>
            {
                let topic = span(end - command.data.len(), end);
                return Ok(Done::Subscription(
                    command.name == command::SUBSCRIBE,
                    topic,
                ));
            }
            // PONG: that bytes came is all it says. Unknown ones are for later versions.
            _ => {}
        }
        Ok(Done::Handled)
    }

    fn restart(&mut self) {
        (self.scanned, self.inner, self.frames) = (0, 0, 0);
    }
}

/// What became of a command.
enum Done {
    Handled,
    Subscription(bool, FrameSpan),
}

impl Done {
    /// Subscriptions are reported to the caller, so they must stand between messages.
    fn may_stand_in_message(&self) -> bool {
        matches!(self, Done::Handled)
    }

    fn event(self, consumed: usize, spans: &mut Vec<FrameSpan>) -> Event {
        match self {
            Done::Handled => Event::Command { consumed },
            Done::Subscription(subscribe, topic) => {
                spans.push(topic);
                Event::Subscription {
                    consumed,
                    subscribe,
                }
            }
        }
    }
}

/// The data of [`State::Discard`].
struct Discard {
    left: u64,
    total: u64,
    more: bool,
}

impl Discard {
    fn state(self) -> State {
        let Discard { left, total, more } = self;
        if left == 0 && !more {
            State::Traffic
        } else {
            State::Discard { left, total, more }
        }
    }
}

/// The fast path: one pass over the headers of a message that is whole, within the limits, and
/// without commands between its frames. Otherwise `None`, and what was put into `spans` is void.
#[inline]
fn whole_message(buf: &[u8], limits: &super::Limits, spans: &mut Vec<FrameSpan>) -> Option<usize> {
    let end_max = buf.len().min(limits.message_bytes_max);
    let mut frames_left = limits.frames_max;
    let mut at = 0_usize;
    loop {
        let flags = *buf.get(at)?;
        let (start, len) = if flags <= MORE {
            (at + 2, usize::from(*buf.get(at + 1)?))
        } else if flags & !MORE == LONG {
            let bytes: [u8; 8] = buf.get(at + 1..at + 9)?.try_into().ok()?;
            (at + 9, usize::try_from(u64::from_be_bytes(bytes)).ok()?)
        } else {
            return None;
        };
        if frames_left == 0 || len > limits.frame_bytes_max {
            return None;
        }
        frames_left -= 1;
        let end = start.checked_add(len)?;
        if end > end_max {
            return None;
        }
        spans.push(span(start, end));
        at = end;
        if flags & MORE == 0 {
            return Some(at);
        }
    }
}

/// The end of the command frame at `at`, or `None` if it has not come whole.
fn command_end(buf: &[u8], at: usize, head: FrameHead) -> Result<Option<usize>, Error> {
    if head.body > COMMAND_BYTES_MAX as u64 {
        return Err(Error::Protocol("the command is too long"));
    }
    let end = at + head.bytes + head.body as usize;
    Ok((end <= buf.len()).then_some(end))
}

/// Calls `f(buf, frame, body, end, is_command)` for every frame of `buf`, which has been scanned:
/// it holds whole frames only.
fn walk(buf: &mut [u8], mut f: impl FnMut(&mut [u8], usize, usize, usize, bool)) {
    let mut at = 0;
    while at < buf.len() {
        let flags = buf[at];
        let (body, len) = if flags & LONG == 0 {
            (at + 2, usize::from(buf[at + 1]))
        } else {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&buf[at + 1..at + 9]);
            (at + 9, u64::from_be_bytes(bytes) as usize)
        };
        f(buf, at, body, body + len, flags & COMMAND != 0);
        at = body + len;
    }
}

#[inline]
fn span(start: usize, end: usize) -> FrameSpan {
    debug_assert!(start <= end && end <= u32::MAX as usize);
    FrameSpan {
        start: start as u32,
        end: end as u32,
    }
}
