//! Log lines at a bounded rate: the first of its kind at once, then at most one per interval with
//! the number of those that were left out. And peers' bytes as text for them.
//!
//! May import: `ids`.

use crate::ids::NS_PER_SEC;
use std::fmt::Write as _;

const INTERVAL_NS: u64 = 10 * NS_PER_SEC;

#[derive(Debug, Clone, Copy, Default)]
struct Line {
    next_ns: u64,
    left_out: u64,
}

/// The state of `N` kinds of lines, numbered from 0.
#[derive(Debug)]
pub struct LogLimit<const N: usize> {
    lines: [Line; N],
}

impl<const N: usize> Default for LogLimit<N> {
    fn default() -> Self {
        LogLimit {
            lines: [Line::default(); N],
        }
    }
}

impl<const N: usize> LogLimit<N> {
    /// The number of lines of this kind that were left out before, if this one may be written.
    ///
    /// # Panics
    /// If there is no such kind.
    pub fn admit(&mut self, kind: usize, now_ns: u64) -> Option<u64> {
        let line = &mut self.lines[kind];
        if now_ns < line.next_ns {
            line.left_out += 1;
            return None;
        }
        line.next_ns = now_ns + INTERVAL_NS;
        Some(std::mem::take(&mut line.left_out))
    }
}

/// A routing id or topic for logs: text if it is printable, else hexadecimal.
pub fn shown_id(id: &[u8]) -> String {
    if let Ok(text) = std::str::from_utf8(id)
        && !text.chars().any(char::is_control)
    {
        return text.to_owned();
    }
    let mut shown = String::from("0x");
    for byte in id {
        // Writing into a String cannot fail.
        let _ = write!(shown, "{byte:02x}");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_line_then_counts() {
        let mut logs = LogLimit::<2>::default();
        assert_eq!(logs.admit(0, 5), Some(0));
        assert_eq!(logs.admit(0, 6), None);
        assert_eq!(logs.admit(0, 7), None);
        assert_eq!(logs.admit(1, 7), Some(0));
        assert_eq!(logs.admit(0, 5 + INTERVAL_NS), Some(2));
    }

    #[test]
    fn ids_cannot_break_a_line() {
        assert_eq!(shown_id("k\u{fc}che".as_bytes()), "k\u{fc}che");
        assert_eq!(shown_id(b"a\nb"), "0x610a62");
        assert_eq!(shown_id(b"\xff"), "0xff");
    }
}
