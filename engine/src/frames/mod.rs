//! A message as its bytes on the wire plus the places of its frames.
//!
//! Owns: [`Message`] (borrowed), [`FrameSpan`], [`SharedBytes`], and the writer of ZMTP message
//! frames. May import: layer 0. Invariant: a span lies inside the wire bytes it was made for.
//!
//! The wire form is kept because a forwarded job or result is byte-identical: forwarding is one
//! copy of [`Message::wire`], never a new encoding.

mod writer;

pub use writer::{
    FrameSink, MessageWriter, frame_wire_len, message_wire_len, push_frame, split_wire,
};

use std::sync::Arc;

/// Bytes of a large message (`limits::SHARED_BYTES_MIN` and more), shared instead of copied.
pub type SharedBytes = Arc<Vec<u8>>;

/// Where the body of one frame lies inside the wire bytes of its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrameSpan {
    /// Offset of the first body byte.
    pub start: u32,
    /// Offset behind the last body byte.
    pub end: u32,
}

impl FrameSpan {
    /// Length of the body in bytes.
    pub fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    /// True for a frame without a body.
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }
}

/// A borrowed view of one whole message: wire bytes and frame places.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    wire: &'a [u8],
    spans: &'a [FrameSpan],
    shared: Option<&'a SharedBytes>,
}

impl<'a> Message<'a> {
    /// A view over `wire` with the frames `spans`, which must lie inside it.
    pub fn new(wire: &'a [u8], spans: &'a [FrameSpan]) -> Self {
        debug_assert!(
            spans
                .iter()
                .all(|s| s.start <= s.end && s.end as usize <= wire.len())
        );
        Message {
            wire,
            spans,
            shared: None,
        }
    }

    /// A view over a message that is already held by reference.
    pub fn from_shared(bytes: &'a SharedBytes, spans: &'a [FrameSpan]) -> Self {
        let mut message = Message::new(bytes, spans);
        message.shared = Some(bytes);
        message
    }

    /// The message as it stood on the wire: every frame with its flags and length.
    pub fn wire(&self) -> &'a [u8] {
        self.wire
    }

    /// The shared bytes behind this view, if the message travels by reference. They are exactly
    /// [`Message::wire`].
    pub fn shared(&self) -> Option<&'a SharedBytes> {
        self.shared
    }

    /// The places of the frames.
    pub fn spans(&self) -> &'a [FrameSpan] {
        self.spans
    }

    /// Number of frames.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// True for a message without frames (none is ever received).
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Body of frame `index`, if there is one.
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        let span = self.spans.get(index)?;
        self.wire.get(span.start as usize..span.end as usize)
    }

    /// Bodies of all frames.
    pub fn frames(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let wire = self.wire;
        self.spans
            .iter()
            .map(move |s| &wire[s.start as usize..s.end as usize])
    }
}

/// An owned message, for tests, tools and everything off the hot path.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OwnedMessage {
    wire: Vec<u8>,
    spans: Vec<FrameSpan>,
}

impl OwnedMessage {
    /// Builds a message from frame bodies.
    pub fn from_frames<I>(frames: I) -> Self
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        let mut writer = MessageWriter::new(Vec::new());
        for frame in frames {
            writer.frame(frame.as_ref());
        }
        let wire = writer.finish();
        let mut spans = Vec::new();
        split_wire(&wire, &mut spans);
        OwnedMessage { wire, spans }
    }

    /// A copy of a borrowed message.
    pub fn copy_of(message: &Message<'_>) -> Self {
        OwnedMessage {
            wire: message.wire().to_vec(),
            spans: message.spans().to_vec(),
        }
    }

    /// The borrowed view.
    pub fn view(&self) -> Message<'_> {
        Message::new(&self.wire, &self.spans)
    }

    /// Bodies of all frames, copied.
    pub fn to_frames(&self) -> Vec<Vec<u8>> {
        self.view().frames().map(<[u8]>::to_vec).collect()
    }
}

#[cfg(test)]
mod tests;
