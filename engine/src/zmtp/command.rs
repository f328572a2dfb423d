//! ZMTP commands: taking one apart, and the builders.

use super::Error;
use super::frame::{COMMAND, LONG};
use crate::limits::PING_CONTEXT_BYTES_MAX;

pub(super) const READY: &[u8] = b"READY";
pub(super) const ERROR: &[u8] = b"ERROR";
pub(super) const PING: &[u8] = b"PING";
pub(super) const PONG: &[u8] = b"PONG";
pub(super) const SUBSCRIBE: &[u8] = b"SUBSCRIBE";
pub(super) const CANCEL: &[u8] = b"CANCEL";

/// A command: its name, and what follows it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Command<'a> {
    pub(super) name: &'a [u8],
    pub(super) data: &'a [u8],
}

impl<'a> Command<'a> {
    /// Takes the body of a command frame apart. `None` if the name is empty or does not fit.
    pub(super) fn parse(body: &'a [u8]) -> Option<Self> {
        let (&len, rest) = body.split_first()?;
        let (name, data) = rest.split_at_checked(usize::from(len))?;
        if name.is_empty() {
            None
        } else {
            Some(Command { name, data })
        }
    }
}

/// The context of a PING that PONG has to carry. What exceeds 16 bytes is left out, as libzmq
/// does; a PING without its two bytes of time-to-live is malformed.
pub(super) fn ping_context(data: &[u8]) -> Result<&[u8], Error> {
    let context = data
        .get(2..)
        .ok_or(Error::Protocol("a PING without its time-to-live"))?;
    Ok(&context[..context.len().min(PING_CONTEXT_BYTES_MAX)])
}

/// Appends a command frame whose data is the concatenation of `parts`.
pub(super) fn push_command(out: &mut Vec<u8>, name: &[u8], parts: &[&[u8]]) {
    debug_assert!(!name.is_empty() && name.len() <= 255);
    let len = 1 + name.len() + parts.iter().map(|p| p.len()).sum::<usize>();
    match u8::try_from(len) {
        Ok(short) => out.extend_from_slice(&[COMMAND, short]),
        Err(_) => {
            out.push(COMMAND | LONG);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    out.push(name.len() as u8);
    out.extend_from_slice(name);
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// Appends a PING. `ttl_ds` is in tenths of a second: after that much silence of ours the peer
/// may give the connection up; 0 = it should not. Of `context` at most 16 bytes are sent; the
/// PONG brings them back.
pub fn push_ping(out: &mut Vec<u8>, ttl_ds: u16, context: &[u8]) {
    let context = &context[..context.len().min(PING_CONTEXT_BYTES_MAX)];
    push_command(out, PING, &[&ttl_ds.to_be_bytes(), context]);
}

/// Appends the PONG for a PING with this context (at most 16 bytes of it are sent).
pub fn push_pong(out: &mut Vec<u8>, context: &[u8]) {
    push_command(
        out,
        PONG,
        &[&context[..context.len().min(PING_CONTEXT_BYTES_MAX)]],
    );
}

/// Appends an ERROR with at most 255 bytes of `reason`.
pub fn push_error(out: &mut Vec<u8>, reason: &str) {
    let reason = &reason.as_bytes()[..reason.len().min(255)];
    push_command(out, ERROR, &[&[reason.len() as u8], reason]);
}

/// Appends what tells a PUB or XPUB peer that we subscribe to `topic`, or do so no longer: the
/// command of ZMTP 3.1 if the peer speaks it ([`Peer::speaks_v31`](super::Peer::speaks_v31)),
/// else the message of ZMTP 3.0 (one frame: 1 or 0, then the topic).
pub fn push_subscription(out: &mut Vec<u8>, subscribe: bool, topic: &[u8], v31: bool) {
    if v31 {
        push_command(out, if subscribe { SUBSCRIBE } else { CANCEL }, &[topic]);
        return;
    }
    let mut body = Vec::with_capacity(topic.len() + 1);
    body.push(u8::from(subscribe));
    body.extend_from_slice(topic);
    crate::frames::push_frame(out, &body, false);
}
