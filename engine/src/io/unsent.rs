//! What was not wholly sent when a connection ended, taken apart into messages again.

use super::output::Segment;
use crate::frames::{FrameSpan, Message, message_wire_len, split_wire};
use std::collections::VecDeque;

/// Flag of a ZMTP command frame (PONG and the like, which are nobody's message).
const FLAG_COMMAND: u8 = 4;

/// Messages not wholly handed to the kernel, given out newest first.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    segments: VecDeque<Segment>,
    /// (segment, start, end) of each, oldest first.
    messages: Vec<(u32, u32, u32)>,
    spans: Vec<FrameSpan>,
}

impl Unsent {
    /// From output `segments` of which `written` bytes have left; the first `skip` bytes are not
    /// frames (the greeting).
    pub(super) fn new(segments: VecDeque<Segment>, written: usize, skip: usize) -> Self {
        let mut unsent = Unsent {
            segments,
            ..Unsent::default()
        };
        for (index, segment) in unsent.segments.iter().enumerate() {
            let first = index == 0;
            let bytes = segment.bytes();
            let mut at = if first { skip } else { 0 };
            while at < bytes.len() {
                let Some(len) = message_wire_len(&bytes[at..]) else {
                    debug_assert!(false, "output is whole messages");
                    break;
                };
                let end = at + len;
                if (!first || end > written) && bytes[at] & FLAG_COMMAND == 0 {
                    unsent.messages.push((index as u32, at as u32, end as u32));
                }
                at = end;
            }
        }
        unsent
    }

    /// Length of the whole messages at the front of `bytes` that lie inside the first `written`.
    pub(super) fn whole_messages_len(bytes: &[u8], written: usize, skip: usize) -> usize {
        let mut at = 0;
        let mut next = skip;
        while next <= written {
            at = next;
            match message_wire_len(&bytes[at..]) {
                Some(len) => next = at + len,
                None => break,
            }
        }
        at
    }

    /// Hands the newest remaining message to `take`; false if there is none.
    pub(super) fn pop(&mut self, take: impl FnOnce(&Message<'_>)) -> bool {
        let Some((segment, start, end)) = self.messages.pop() else {
            return false;
        };
        self.spans.clear();
        match &self.segments[segment as usize] {
            Segment::Shared(shared) => {
                split_wire(shared, &mut self.spans);
                take(&Message::from_shared(shared, &self.spans));
            }
            Segment::Bytes(bytes) => {
                let wire = &bytes[start as usize..end as usize];
                split_wire(wire, &mut self.spans);
                take(&Message::new(wire, &self.spans));
            }
        }
        true
    }

    /// Number of messages left.
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }
}
