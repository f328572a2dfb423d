//! Writing ZMTP message frames, and taking apart wire bytes that are already known to be whole.

use super::FrameSpan;

const FLAG_MORE: u8 = 1;
const FLAG_LONG: u8 = 2;

/// Something that frames are written into.
pub trait FrameSink {
    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]);
}

impl FrameSink for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Bytes that a frame with a body of `body_len` bytes takes on the wire.
pub fn frame_wire_len(body_len: usize) -> usize {
    body_len + if body_len > 255 { 9 } else { 2 }
}

/// Appends one message frame (flags, length, body).
#[inline]
pub fn push_frame<S: FrameSink>(out: &mut S, body: &[u8], more: bool) {
    let flag = if more { FLAG_MORE } else { 0 };
    match u8::try_from(body.len()) {
        Ok(short) => out.put(&[flag, short]),
        Err(_) => {
            let mut head = [0_u8; 9];
            head[0] = flag | FLAG_LONG;
            head[1..].copy_from_slice(&(body.len() as u64).to_be_bytes());
            out.put(&head);
        }
    }
    out.put(body);
}

/// Writes the frames of one message; the last one is known only at the end, so the writer keeps
/// the place of the latest flags byte and clears its MORE bit in [`MessageWriter::finish`].
#[derive(Debug)]
pub struct MessageWriter {
    out: Vec<u8>,
    last_flags: Option<usize>,
}

impl MessageWriter {
    /// Appends to `out`, which may hold earlier messages.
    pub fn new(out: Vec<u8>) -> Self {
        MessageWriter {
            out,
            last_flags: None,
        }
    }

    /// Appends one frame.
    pub fn frame(&mut self, body: &[u8]) -> &mut Self {
        self.last_flags = Some(self.out.len());
        push_frame(&mut self.out, body, true);
        self
    }

    /// Marks the last frame as last and gives the buffer back.
    pub fn finish(mut self) -> Vec<u8> {
        if let Some(at) = self.last_flags {
            self.out[at] &= !FLAG_MORE;
        }
        self.out
    }
}

/// Finds the frames of the first message in `wire`, which holds whole frames written by this
/// program or checked by the decoder. Appends the spans and returns the length of the message,
/// or `None` if `wire` does not begin with a whole message.
pub fn split_wire(wire: &[u8], spans: &mut Vec<FrameSpan>) -> Option<usize> {
    walk(wire, |span| spans.push(span))
}

/// Length of the first message in `wire`, as [`split_wire`] without the spans.
pub fn message_wire_len(wire: &[u8]) -> Option<usize> {
    walk(wire, |_| ())
}

fn walk(wire: &[u8], mut each: impl FnMut(FrameSpan)) -> Option<usize> {
    let mut at = 0_usize;
    loop {
        let flags = *wire.get(at)?;
        let (head, len) = if flags & FLAG_LONG == 0 {
            (2, usize::from(*wire.get(at + 1)?))
        } else {
            let bytes: [u8; 8] = wire.get(at + 1..at + 9)?.try_into().ok()?;
            (9, usize::try_from(u64::from_be_bytes(bytes)).ok()?)
        };
        let start = at + head;
        let end = start.checked_add(len)?;
        if end > wire.len() {
            return None;
        }
        each(FrameSpan {
            start: u32::try_from(start).ok()?,
            end: u32::try_from(end).ok()?,
        });
        at = end;
        if flags & FLAG_MORE == 0 {
            return Some(at);
        }
    }
}
