//! Frame headers: flags and length.

use super::Error;

/// More frames of the same message follow.
pub(super) const MORE: u8 = 1;
/// The length takes eight bytes.
pub(super) const LONG: u8 = 2;
/// The frame is a command.
pub(super) const COMMAND: u8 = 4;
const RESERVED: u8 = !(MORE | LONG | COMMAND);

/// A frame header that was read whole and is valid.
#[derive(Debug, Clone, Copy)]
pub(super) struct FrameHead {
    flags: u8,
    /// Bytes of the header itself: 2 or 9.
    pub(super) bytes: usize,
    /// Bytes of the body, below 2^63. May be far above what is acceptable.
    pub(super) body: u64,
}

impl FrameHead {
    /// Reads the header at the front of `buf`. `Err(n)` inside `Ok`: `n` bytes are needed in all.
    ///
    /// The flags and the first byte of a long length are judged as soon as they are there.
    pub(super) fn read(buf: &[u8]) -> Result<Result<FrameHead, usize>, Error> {
        #[cfg(test)]
        HEADS_READ.set(HEADS_READ.get() + 1);
        let Some(&flags) = buf.first() else {
            return Ok(Err(1));
        };
        if flags & RESERVED != 0 {
            return Err(Error::Protocol("reserved flag bits are set"));
        }
        if flags & (COMMAND | MORE) == COMMAND | MORE {
            return Err(Error::Protocol("a command has the flag MORE"));
        }
        if flags & LONG == 0 {
            return Ok(match buf.get(1) {
                Some(&len) => Ok(FrameHead {
                    flags,
                    bytes: 2,
                    body: u64::from(len),
                }),
                None => Err(2),
            });
        }
        if buf.get(1).is_some_and(|first| first & 0x80 != 0) {
            return Err(Error::Protocol("frame length of 2^63 or more"));
        }
        Ok(match buf.get(1..9).and_then(|len| len.try_into().ok()) {
            Some(len) => Ok(FrameHead {
                flags,
                bytes: 9,
                body: u64::from_be_bytes(len),
            }),
            None => Err(if buf.len() == 1 { 2 } else { 9 }),
        })
    }

    pub(super) fn is_command(self) -> bool {
        self.flags & COMMAND != 0
    }

    pub(super) fn more(self) -> bool {
        self.flags & MORE != 0
    }

    /// Bytes of header and body together.
    pub(super) fn total(self) -> u64 {
        self.bytes as u64 + self.body
    }
}

#[cfg(test)]
thread_local! {
    /// Calls of [`FrameHead::read`], for the tests that bound the work.
    pub(super) static HEADS_READ: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}
