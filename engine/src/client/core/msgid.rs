//! Msgids of one client: a random part and a number, so that an answer finds its message without a
//! table of texts.

use crate::emqp::{MSGID_TEXT_BYTES, MsgidText, first_msgid};

/// Where the digits of the number begin.
const NUMBER_AT: usize = 24;
/// Numbers are below this.
const NUMBERS: u64 = 1 << 48;

/// The msgids of one client.
#[derive(Debug, Clone, Copy)]
pub(in crate::client) struct Msgids {
    random: MsgidText,
}

impl Msgids {
    /// For two random numbers.
    pub(in crate::client) fn new(seeds: [u64; 2]) -> Msgids {
        Msgids {
            random: first_msgid(seeds),
        }
    }

    /// The msgid of a number; they repeat after 2^48.
    pub(in crate::client) fn text(&self, number: u64) -> MsgidText {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = self.random;
        let mut rest = number % NUMBERS;
        for place in text[NUMBER_AT..MSGID_TEXT_BYTES].iter_mut().rev() {
            *place = DIGITS[(rest & 15) as usize];
            rest >>= 4;
        }
        text
    }

    /// The number of a msgid of this client.
    pub(super) fn number(&self, msgid: &[u8]) -> Option<u64> {
        let digits = msgid
            .strip_prefix(&self.random[..NUMBER_AT])
            .filter(|digits| digits.len() == MSGID_TEXT_BYTES - NUMBER_AT)?;
        digits.iter().try_fold(0_u64, |number, digit| {
            let value = match digit {
                b'0'..=b'9' => digit - b'0',
                b'a'..=b'f' => digit - b'a' + 10,
                _ => return None,
            };
            Some(number << 4 | u64::from(value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_nothing_else_is_one() {
        let ids = Msgids::new([1, 2]);
        for number in [0, 1, 15, 16, 0xabc_def0_1234, NUMBERS - 1] {
            let text = ids.text(number);
            assert_eq!(ids.number(&text), Some(number));
            assert_eq!(Msgids::new([3, 2]).number(&text), None);
            assert_eq!(ids.number(&text[..35]), None);
            assert_eq!(ids.number(&[&text[..], b"0"].concat()), None);
            let mut upper = text;
            upper[35] = b'G';
            assert_eq!(ids.number(&upper), None);
        }
        assert_eq!(ids.number(b""), None);
        assert_eq!(ids.text(NUMBERS), ids.text(0));
    }
}
