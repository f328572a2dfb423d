//! Frames between the job manager and a worker process: four bytes of length (big-endian), one
//! byte of kind, the body.

use thiserror::Error;

/// Bytes in front of the body.
pub(super) const HEAD_BYTES: usize = 5;

/// What a frame says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// To the process: its settings, once.
    Settings,
    /// To the process: a job.
    Job,
    /// The process is ready for jobs.
    Up,
    /// Something for the log.
    Warning,
    /// The job returned.
    Value,
    /// The job failed.
    Failure,
    /// The program could not be started.
    NoProgram,
}

impl Kind {
    const ALL: [Kind; 7] = [
        Kind::Settings,
        Kind::Job,
        Kind::Up,
        Kind::Warning,
        Kind::Value,
        Kind::Failure,
        Kind::NoProgram,
    ];

    fn byte(self) -> u8 {
        match self {
            Kind::Settings => b'C',
            Kind::Job => b'J',
            Kind::Up => b'U',
            Kind::Warning => b'W',
            Kind::Value => b'V',
            Kind::Failure => b'E',
            Kind::NoProgram => b'X',
        }
    }
}

/// The first bytes of a frame.
///
/// # Panics
/// If the body has 4 GiB or more: messages are limited far below.
pub(super) fn head(kind: Kind, body_len: usize) -> [u8; HEAD_BYTES] {
    let len = u32::try_from(body_len).expect("a body fits a message");
    let [a, b, c, d] = len.to_be_bytes();
    [a, b, c, d, kind.byte()]
}

/// What a process sent is not a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum BadFrame {
    /// Unknown kind.
    #[error("it wrote something else than a result into its channel")]
    Kind,
    /// Longer than any result.
    #[error("it announced more than a result may have")]
    TooLarge,
}

/// Bytes received and not yet taken.
#[derive(Debug, Default)]
pub(super) struct FrameBuffer {
    bytes: Vec<u8>,
    taken: usize,
}

impl FrameBuffer {
    /// Adds what was read.
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            self.taken = 0;
        } else if self.taken > 64 * 1024 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame, if there is one. Memory grows with what was received only.
    ///
    /// # Errors
    /// [`BadFrame`]; the process cannot be understood from then on.
    pub(super) fn next(&mut self, body_max: usize) -> Result<Option<(Kind, Vec<u8>)>, BadFrame> {
        let rest = &self.bytes[self.taken..];
        let Some(head) = rest.first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let len = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let kind = Kind::ALL.into_iter().find(|kind| kind.byte() == head[4]);
        let kind = kind.ok_or(BadFrame::Kind)?;
        if len > body_max {
            return Err(BadFrame::TooLarge);
        }
        let end = HEAD_BYTES + len;
        if rest.len() < end {
            return Ok(None);
        }
        // A large body that is all there is changes hands instead of being copied.
        let body = if self.taken == 0 && rest.len() == end && len > 64 * 1024 {
            let mut bytes = std::mem::take(&mut self.bytes);
            bytes.drain(..HEAD_BYTES);
            bytes
        } else {
            let body = rest[HEAD_BYTES..end].to_vec();
            self.taken += end;
            body
        };
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            self.taken = 0;
            self.bytes.shrink_to(64 * 1024);
        }
        Ok(Some((kind, body)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kinds() -> impl Strategy<Value = Kind> {
        (0..Kind::ALL.len()).prop_map(|n| Kind::ALL[n])
    }

    proptest! {
        #[test]
        fn frames_come_out_whole_however_they_are_cut(
            frames in prop::collection::vec((kinds(), prop::collection::vec(any::<u8>(), 0..300)), 0..8),
            cuts in prop::collection::vec(1_usize..200, 1..50),
        ) {
            let mut wire = Vec::new();
            for (kind, body) in &frames {
                wire.extend_from_slice(&head(*kind, body.len()));
                wire.extend_from_slice(body);
            }
            let mut buffer = FrameBuffer::default();
            let mut got = Vec::new();
            let mut rest = &wire[..];
            let mut cuts = cuts.iter().cycle();
            while !rest.is_empty() {
                let cut = (*cuts.next().unwrap()).min(rest.len());
                buffer.extend(&rest[..cut]);
                rest = &rest[cut..];
                while let Some(frame) = buffer.next(300).unwrap() {
                    got.push(frame);
                }
            }
            prop_assert_eq!(got, frames);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut buffer = FrameBuffer::default();
            buffer.extend(&bytes);
            while let Ok(Some(_)) = buffer.next(300) {}
        }
    }

    #[test]
    fn large_bodies_and_bad_heads() {
        let body = vec![7; 1 << 20];
        let mut buffer = FrameBuffer::default();
        buffer.extend(&head(Kind::Value, body.len()));
        assert_eq!(buffer.next(body.len()), Ok(None));
        buffer.extend(&body);
        assert_eq!(buffer.next(body.len()), Ok(Some((Kind::Value, body))));
        buffer.extend(b"\0\0\0\0?");
        assert_eq!(buffer.next(10), Err(BadFrame::Kind));
        let mut buffer = FrameBuffer::default();
        buffer.extend(&head(Kind::Value, 11));
        assert_eq!(buffer.next(10), Err(BadFrame::TooLarge));
    }
}
