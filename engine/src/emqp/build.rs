//! Building messages in wire form.

use super::{Command, PROTOCOL};
use crate::frames::push_frame;

/// The wire form of the first two frames of every message.
pub const HEAD: [u8; 12] = *b"\x01\x00\x01\x08eMQP/1.0";

/// Writes one message into a buffer that is used again and again.
///
/// The number of frames is given by the calls: [`MessageBuilder::frame`] for all but the last,
/// [`MessageBuilder::last`] for the last one.
#[derive(Debug)]
pub struct MessageBuilder<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> MessageBuilder<'a> {
    /// Empties `out` and writes the frames up to the command.
    pub fn begin(out: &'a mut Vec<u8>, command: Command) -> Self {
        out.clear();
        MessageBuilder::append(out, command)
    }

    /// Writes behind what `out` holds.
    pub fn append(out: &'a mut Vec<u8>, command: Command) -> Self {
        debug_assert_eq!(&HEAD[4..], PROTOCOL);
        out.extend_from_slice(&HEAD);
        push_frame(out, command.name(), true);
        MessageBuilder { out }
    }

    /// A frame that is not the last one.
    #[must_use]
    pub fn frame(self, body: &[u8]) -> Self {
        push_frame(self.out, body, true);
        self
    }

    /// The last frame.
    pub fn last(self, body: &[u8]) {
        push_frame(self.out, body, false);
    }
}

/// Appends the text of a HEARTBEAT: Unix seconds with a fraction, as Python prints them.
pub fn push_heartbeat_time(out: &mut Vec<u8>, wall_ms: u64) {
    use std::io::Write;
    // Writing into a Vec cannot fail.
    let _ = write!(out, "{}.{:03}", wall_ms / 1000, wall_ms % 1000);
}
