//! The few eMQP messages of the load, prebuilt, and a walk over received ZMTP frames.
//!
//! Nothing here allocates per message: a message is a copy of its template with the msgid patched.

use eventmq::frames::OwnedMessage;

/// Length of every msgid the generator makes: uuid text, as clients have by habit.
pub(crate) const MSGID_BYTES: usize = 36;
/// Result frame of a job that went well.
pub(crate) const RESULT: &[u8] = br#"{"value": 1}"#;
/// Result frame of a job that failed.
const FAILED_RESULT: &[u8] =
    br#"{"value": null, "error": {"type": "BenchError", "message": "failed on purpose"}}"#;
/// Status word of a result: the job raised.
pub(crate) const STATUS_ERROR: &[u8] = b"error";
/// Status word of a result that the broker made: the job's worker was lost.
pub(crate) const STATUS_LOST: &[u8] = b"lost";

const FLAG_MORE: u8 = 1;
const FLAG_LONG: u8 = 2;
const FLAG_COMMAND: u8 = 4;
/// Frames whose places [`walk`] reports; later ones are counted only.
const SPANS_MAX: usize = 8;

/// The wire bytes of an eMQP message with these frames behind `['', 'eMQP/1.0']`.
pub(crate) fn message(frames: &[&[u8]]) -> Vec<u8> {
    let head: [&[u8]; 2] = [b"", b"eMQP/1.0"];
    OwnedMessage::from_frames(head.iter().chain(frames))
        .view()
        .wire()
        .to_vec()
}

/// A msgid: a tag that tells generators and clients apart, the place in the sender's table of
/// outstanding jobs, and a serial number that tells uses of that place apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Msgid([u8; MSGID_BYTES]);

/// Lower-case hexadecimal digits of `value`, most significant first.
#[inline]
fn hex<const N: usize>(value: u64) -> [u8; N] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [0; N];
    let mut rest = value;
    for digit in text.iter_mut().rev() {
        *digit = DIGITS[(rest & 15) as usize];
        rest >>= 4;
    }
    text
}

#[inline]
fn unhex(text: &[u8]) -> Option<usize> {
    let mut value = 0;
    for &byte in text {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        value = value << 4 | usize::from(digit);
    }
    Some(value)
}

impl Msgid {
    /// The msgid of place 0, serial 0 of the sender `tag`.
    pub(crate) fn new(tag: u32) -> Self {
        let mut text = *b"00000000-0000-4eb0-8eb0-000000000000";
        text[..8].copy_from_slice(&hex::<8>(u64::from(tag)));
        Msgid(text)
    }

    /// The same sender's msgid for another place and serial.
    #[inline]
    pub(crate) fn with(mut self, place: u16, serial: u32) -> Self {
        self.0[9..13].copy_from_slice(&hex::<4>(u64::from(place)));
        self.0[28..].copy_from_slice(&hex::<8>(u64::from(serial)));
        self
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8; MSGID_BYTES] {
        &self.0
    }

    /// The sender's tag of a received msgid.
    #[inline]
    pub(crate) fn tag(text: &[u8; MSGID_BYTES]) -> Option<u32> {
        u32::try_from(unhex(&text[..8])?).ok()
    }

    /// The serial number of a received msgid.
    #[inline]
    pub(crate) fn serial(text: &[u8; MSGID_BYTES]) -> Option<u32> {
        u32::try_from(unhex(&text[28..])?).ok()
    }

    /// The place named by a received msgid, whose sender and serial the caller still compares.
    #[inline]
    pub(crate) fn place(text: &[u8]) -> Option<usize> {
        if text.len() == MSGID_BYTES {
            unhex(&text[9..13])
        } else {
            None
        }
    }
}

/// A prebuilt message and the place of one msgid in it.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    wire: Vec<u8>,
    msgid_at: usize,
}

impl Template {
    fn new(frames: &[&[u8]], msgid: &Msgid) -> Self {
        let wire = message(frames);
        let found = wire
            .windows(MSGID_BYTES)
            .position(|window| window == msgid.bytes());
        Template {
            wire,
            msgid_at: found.unwrap_or(0),
        }
    }

    /// Bytes of the message on the wire.
    pub(crate) fn len(&self) -> usize {
        self.wire.len()
    }

    /// Offset of the msgid.
    pub(crate) fn msgid_at(&self) -> usize {
        self.msgid_at
    }

    /// Appends the message with `msgid` in its place.
    #[inline]
    pub(crate) fn push(&self, out: &mut Vec<u8>, msgid: &[u8; MSGID_BYTES]) {
        let at = out.len() + self.msgid_at;
        out.extend_from_slice(&self.wire);
        out[at..at + MSGID_BYTES].copy_from_slice(msgid);
    }
}

/// REQUEST with a payload of `payload` bytes.
pub(crate) fn request(queue: &str, headers: &str, payload: usize) -> Template {
    let id = Msgid::new(0);
    let body: Vec<u8> = b"[\"run\", {\"path\": \"bench\"}] "
        .iter()
        .copied()
        .cycle()
        .take(payload)
        .collect();
    Template::new(
        &[
            b"REQUEST",
            id.bytes(),
            queue.as_bytes(),
            headers.as_bytes(),
            &body,
        ],
        &id,
    )
}

/// READY of a worker.
pub(crate) fn ready() -> Template {
    let id = Msgid::new(0);
    Template::new(&[b"READY", id.bytes()], &id)
}

/// Acceptance as the broker sends it; the msgid in it is that of the REQUEST.
pub(crate) fn acceptance() -> Template {
    let (own, request) = (Msgid::new(u32::MAX), Msgid::new(0));
    Template::new(&[b"REPLY", own.bytes(), request.bytes()], &request)
}

/// REPLY of a worker, with two msgids: its own and that of the REQUEST.
#[derive(Debug, Clone)]
pub(crate) struct ReplyTemplate {
    template: Template,
    request_at: usize,
}

impl ReplyTemplate {
    /// Of a job that went well.
    pub(crate) fn new() -> Self {
        ReplyTemplate::with(RESULT, None)
    }

    /// Of a job that failed, with the status word that says so.
    pub(crate) fn failed() -> Self {
        ReplyTemplate::with(FAILED_RESULT, Some(STATUS_ERROR))
    }

    fn with(result: &[u8], status: Option<&[u8]>) -> Self {
        let (own, request) = (Msgid::new(0), Msgid::new(u32::MAX));
        let mut frames: Vec<&[u8]> = vec![b"REPLY", own.bytes(), result, request.bytes()];
        frames.extend(status);
        ReplyTemplate {
            template: Template::new(&frames, &own),
            request_at: Template::new(&frames, &request).msgid_at,
        }
    }

    /// Bytes of the message on the wire.
    pub(crate) fn len(&self) -> usize {
        self.template.len()
    }

    /// Appends the REPLY `own` to the REQUEST `request`.
    #[inline]
    pub(crate) fn push(&self, out: &mut Vec<u8>, own: &Msgid, request: &[u8; MSGID_BYTES]) {
        let at = out.len() + self.request_at;
        self.template.push(out, own.bytes());
        out[at..at + MSGID_BYTES].copy_from_slice(request);
    }
}

/// Where the frames of one received message lie.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Frames {
    spans: [(u32, u32); SPANS_MAX],
    /// Number of frames, which may be above the number of known places.
    pub(crate) count: usize,
}

impl Frames {
    /// Body of frame `index` of the message that begins `buf`.
    #[inline]
    pub(crate) fn get<'a>(&self, buf: &'a [u8], index: usize) -> &'a [u8] {
        if index >= self.count.min(SPANS_MAX) {
            return &[];
        }
        let (start, end) = self.spans[index];
        &buf[start as usize..end as usize]
    }
}

/// What stands at the front of the received bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Front {
    /// A whole message of this many bytes.
    Message(usize),
    /// A whole ZMTP command; its body ends there.
    Command { body_at: usize, end: usize },
    /// The message goes on behind the received bytes.
    Partial,
    /// Not ZMTP.
    Malformed,
}

/// Finds the frames of the message at the front of `buf`.
#[inline]
pub(crate) fn walk(buf: &[u8], frames: &mut Frames) -> Front {
    let mut at = 0_usize;
    frames.count = 0;
    loop {
        let Some(&[flags, short]) = buf.get(at..at + 2) else {
            return Front::Partial;
        };
        let (start, len) = if flags & FLAG_LONG == 0 {
            (at + 2, usize::from(short))
        } else {
            let Some(long) = buf.get(at + 1..at + 9) else {
                return Front::Partial;
            };
            let long: [u8; 8] = long.try_into().unwrap_or_default();
            (at + 9, u64::from_be_bytes(long) as usize)
        };
        if flags > FLAG_MORE | FLAG_LONG {
            let command = flags & !FLAG_LONG == FLAG_COMMAND && frames.count == 0;
            return match buf.len() >= start.saturating_add(len) {
                _ if !command => Front::Malformed,
                true => Front::Command {
                    body_at: start,
                    end: start + len,
                },
                false => Front::Partial,
            };
        }
        let end = start.saturating_add(len);
        if end > buf.len() {
            return Front::Partial;
        }
        if frames.count < SPANS_MAX {
            frames.spans[frames.count] = (start as u32, end as u32);
        }
        frames.count += 1;
        at = end;
        if flags & FLAG_MORE == 0 {
            return Front::Message(at);
        }
    }
}

#[cfg(test)]
mod tests;
