//! One turn's worth of events and the message bytes they refer to.

use super::RingConfig;
use crate::frames::{FrameSpan, Message, SharedBytes};
use crate::limits::SHARED_BYTES_MIN;

/// Where a message lies inside its [`Batch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Start in the batch's bytes, or the index of the shared bytes.
    start: u32,
    /// Length of the wire form; `SHARED` marks a message held by reference.
    len: u32,
    span_start: u32,
    span_count: u32,
}

const SHARED: u32 = u32::MAX;

/// Events of kind `E` and the bytes of the messages in them. Small messages are copied one behind
/// the other; large ones (`limits::SHARED_BYTES_MIN`) are held by reference.
#[derive(Debug)]
pub struct Batch<E> {
    bytes: Vec<u8>,
    spans: Vec<FrameSpan>,
    shared: Vec<SharedBytes>,
    shared_bytes: usize,
    events: Vec<E>,
    /// Index of the next event the receiver takes.
    cursor: usize,
    bytes_max: usize,
    events_max: usize,
}

impl<E: Copy> Batch<E> {
    /// An empty batch of a ring with these bounds.
    pub(super) fn new(config: &RingConfig) -> Self {
        Batch {
            bytes: Vec::new(),
            spans: Vec::new(),
            shared: Vec::new(),
            shared_bytes: 0,
            events: Vec::new(),
            cursor: 0,
            bytes_max: config.batch_bytes,
            events_max: config.batch_events,
        }
    }

    /// True when nothing more should be put in.
    pub fn is_full(&self) -> bool {
        self.bytes.len() + self.shared_bytes >= self.bytes_max
            || self.events.len() >= self.events_max
    }

    /// True without events.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Bytes of messages in it, shared ones included.
    pub fn byte_len(&self) -> usize {
        self.bytes.len() + self.shared_bytes
    }

    /// Puts a message's bytes in and returns its place. With `keep_spans` the frame places are
    /// kept too, so that the receiver need not look for them again.
    #[inline]
    pub fn put_message(&mut self, message: &Message<'_>, keep_spans: bool) -> Place {
        let span_start = self.spans.len() as u32;
        let mut span_count = 0;
        if keep_spans {
            self.spans.extend_from_slice(message.spans());
            span_count = message.spans().len() as u32;
        }
        let wire = message.wire();
        if wire.len() >= SHARED_BYTES_MIN {
            let shared = match message.shared() {
                Some(shared) => SharedBytes::clone(shared),
                None => SharedBytes::new(wire.to_vec()),
            };
            return self.put_shared(shared, span_start, span_count);
        }
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(wire);
        Place {
            start,
            len: wire.len() as u32,
            span_start,
            span_count,
        }
    }

    /// Puts in a message given as pieces of its wire form, without frame places.
    #[inline]
    pub fn put_pieces(&mut self, pieces: &[&[u8]]) -> Place {
        let start = self.bytes.len();
        for piece in pieces {
            self.bytes.extend_from_slice(piece);
        }
        let len = self.bytes.len() - start;
        if len >= SHARED_BYTES_MIN {
            let shared = SharedBytes::new(self.bytes.split_off(start));
            return self.put_shared(shared, self.spans.len() as u32, 0);
        }
        Place {
            start: start as u32,
            len: len as u32,
            span_start: self.spans.len() as u32,
            span_count: 0,
        }
    }

    fn put_shared(&mut self, shared: SharedBytes, span_start: u32, span_count: u32) -> Place {
        self.shared_bytes += shared.len();
        self.shared.push(shared);
        Place {
            start: (self.shared.len() - 1) as u32,
            len: SHARED,
            span_start,
            span_count,
        }
    }

    /// Adds an event.
    #[inline]
    pub fn push(&mut self, event: E) {
        self.events.push(event);
    }

    /// The message at `place`, which this batch returned.
    #[inline]
    pub fn message(&self, place: Place) -> Message<'_> {
        let first = place.span_start as usize;
        let spans = &self.spans[first..first + place.span_count as usize];
        if place.len == SHARED {
            Message::from_shared(&self.shared[place.start as usize], spans)
        } else {
            let start = place.start as usize;
            Message::new(&self.bytes[start..start + place.len as usize], spans)
        }
    }

    /// The next event that has not been taken, and takes it.
    #[inline]
    pub fn next_event(&mut self) -> Option<E> {
        let event = self.events.get(self.cursor).copied();
        self.cursor += usize::from(event.is_some());
        event
    }

    /// Puts the event taken last back, to be taken again later.
    pub fn untake(&mut self) {
        self.cursor = self.cursor.saturating_sub(1);
    }

    /// Events not yet taken.
    pub fn remaining(&self) -> usize {
        self.events.len() - self.cursor
    }

    /// Makes it empty for its next use. Memory is kept up to what a full batch needs.
    pub(super) fn reset(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(self.bytes_max + SHARED_BYTES_MIN);
        self.spans.clear();
        self.shared.clear();
        self.shared_bytes = 0;
        self.events.clear();
        self.cursor = 0;
    }
}
