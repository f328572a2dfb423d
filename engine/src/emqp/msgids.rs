//! The broker's own msgids: text of the form of a uuid, counted up in place.
//!
//! A fresh msgid costs a few nanoseconds: the random part is fixed per process and the last
//! twelve hexadecimal digits are a counter that starts at a random value.

/// Length of a msgid made by the broker.
pub const MSGID_TEXT_BYTES: usize = 36;

/// A msgid as text.
pub type MsgidText = [u8; MSGID_TEXT_BYTES];

/// First digit of the counter.
const COUNTER_AT: usize = 24;

/// The first msgid for two random numbers.
pub fn first_msgid(seeds: [u64; 2]) -> MsgidText {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [b'-'; MSGID_TEXT_BYTES];
    let bits = (u128::from(seeds[0]) << 64) | u128::from(seeds[1]);
    let mut digit = 0;
    for (at, byte) in text.iter_mut().enumerate() {
        if matches!(at, 8 | 13 | 18 | 23) {
            continue;
        }
        let nibble = (bits >> (124 - 4 * digit)) as usize & 15;
        *byte = match at {
            14 => b'4',
            19 => DIGITS[8 | (nibble & 3)],
            _ => DIGITS[nibble],
        };
        digit += 1;
    }
    text
}

/// Counts `text` up by one, in place. The counter wraps after 2^48.
#[inline]
pub fn advance_msgid(text: &mut MsgidText) {
    for at in (COUNTER_AT..MSGID_TEXT_BYTES).rev() {
        match text[at] {
            b'9' => text[at] = b'a',
            b'f' => {
                text[at] = b'0';
                continue;
            }
            _ => text[at] += 1,
        }
        return;
    }
}
