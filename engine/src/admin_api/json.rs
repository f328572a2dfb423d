//! The parts of administrative answers.

use crate::json;
use serde::Serialize;
use std::fmt::Write as _;

/// Appends a value.
pub(super) fn push<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    json::push_with_null(out, value).expect("snapshots serialise");
}

/// Appends a key of an object that was begun with `{`, behind a comma where needed.
pub(super) fn push_key(out: &mut Vec<u8>, name: &[u8]) {
    push_comma(out);
    push(out, &Name(name));
    out.extend_from_slice(b": ");
}

/// Appends a comma unless an object or array has just been begun.
pub(super) fn push_comma(out: &mut Vec<u8>) {
    if !matches!(out.last(), None | Some(b'{' | b'[')) {
        out.extend_from_slice(b", ");
    }
}

/// A queue name or routing id from a peer: text if it is UTF-8, else `0x` and hex.
pub(super) struct Name<'a>(pub(super) &'a [u8]);

impl Serialize for Name<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Ok(text) = std::str::from_utf8(self.0) {
            return serializer.serialize_str(text);
        }
        let mut hex = String::with_capacity(2 + 2 * self.0.len());
        hex.push_str("0x");
        for byte in self.0 {
            let _ = write!(hex, "{byte:02x}");
        }
        serializer.serialize_str(&hex)
    }
}

/// A weight: whole ones as Python prints an int, because that is what peers send. (Weights that
/// are not finite are not accepted from peers; they would be null.)
pub(super) struct Weight(pub(super) f64);

impl Serialize for Weight {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        /// Up to here a float holds every whole number.
        const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;
        if self.0.fract() == 0.0 && self.0.abs() <= WHOLE_MAX {
            serializer.serialize_i64(self.0 as i64)
        } else {
            serializer.serialize_f64(self.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text<T: Serialize + ?Sized>(value: &T) -> String {
        let mut out = Vec::new();
        push(&mut out, value);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn weights_print_as_they_were_sent() {
        for (weight, expected) in [
            (10.0, "10"),
            (-3.0, "-3"),
            (0.0, "0"),
            (10.5, "10.5"),
            (9_007_199_254_740_992.0, "9007199254740992"),
            (1e300, "1e+300"),
        ] {
            assert_eq!(text(&Weight(weight)), expected);
        }
    }

    #[test]
    fn strings_print_as_in_python() {
        assert_eq!(
            text(&Name(
                "a\"\\/\n\r\t\u{8}\u{c}\u{1}\u{7f}\u{e9}\u{2603}\u{1f600}".as_bytes()
            )),
            r#""a\"\\/\n\r\t\b\f\u0001\u007f\u00e9\u2603\ud83d\ude00""#
        );
        assert_eq!(text(&Name(b"\0\xff\x10")), "\"0x00ff10\"");
        assert_eq!(text(&Name(b"")), "\"\"");
        assert_eq!(text(&Name(b"\0a")), r#""\u0000a""#);
    }

    proptest! {
        #[test]
        fn any_name_is_ascii_json(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let printed = text(&Name(&bytes));
            prop_assert!(printed.bytes().all(|b| matches!(b, b' '..=b'~')), "{}", printed);
            let back: String = serde_json::from_str(&printed).unwrap();
            match std::str::from_utf8(&bytes) {
                Ok(same) => prop_assert_eq!(back, same),
                Err(_) => prop_assert_eq!(back.len(), 2 + 2 * bytes.len()),
            }
        }

        #[test]
        fn any_text_reads_back(name in "\\PC{0,30}") {
            let back: String = serde_json::from_str(&text(&Name(name.as_bytes()))).unwrap();
            prop_assert_eq!(back, name);
        }

        #[test]
        fn any_float_reads_back(value in any::<f64>().prop_filter("finite", |v| v.is_finite())) {
            let back: f64 = serde_json::from_str(&text(&value)).unwrap();
            prop_assert_eq!(back.to_bits(), value.to_bits());
            let back: f64 = serde_json::from_str(&text(&Weight(value))).unwrap();
            prop_assert_eq!(back, value);
        }
    }
}
