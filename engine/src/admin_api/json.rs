//! JSON as Python's `json.dumps` prints it.

use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, Serializer};
use std::fmt::Write as _;
use std::io::{self, Write};

/// Separators `", "` and `": "`, everything but printable ASCII escaped, floats as `repr`.
struct Python;

impl Formatter for Python {
    fn begin_array_value<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }

    fn write_f64<W: Write + ?Sized>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(python_float(value).as_bytes())
    }

    fn write_string_fragment<W: Write + ?Sized>(
        &mut self,
        out: &mut W,
        text: &str,
    ) -> io::Result<()> {
        let mut plain_from = 0;
        for (at, c) in text.char_indices() {
            if matches!(c, ' '..='~') {
                continue;
            }
            out.write_all(&text.as_bytes()[plain_from..at])?;
            plain_from = at + c.len_utf8();
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
        }
        out.write_all(&text.as_bytes()[plain_from..])
    }

    fn write_char_escape<W: Write + ?Sized>(
        &mut self,
        out: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        let short: &[u8] = match escape {
            CharEscape::Quote => b"\\\"",
            CharEscape::ReverseSolidus => b"\\\\",
            CharEscape::Solidus => b"/",
            CharEscape::Backspace => b"\\b",
            CharEscape::FormFeed => b"\\f",
            CharEscape::LineFeed => b"\\n",
            CharEscape::CarriageReturn => b"\\r",
            CharEscape::Tab => b"\\t",
            CharEscape::AsciiControl(byte) => return write!(out, "\\u{byte:04x}"),
        };
        out.write_all(short)
    }
}

/// Appends a value.
pub(super) fn push<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    value
        .serialize(&mut Serializer::with_formatter(out, Python))
        .expect("snapshots serialise and a Vec takes all bytes");
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

/// A finite float as Python's `repr`: the shortest digits that read back, of several such the
/// nearest, of two equally near the even ones; with an exponent below 1e-4 and from 1e16 on.
pub fn python_float(value: f64) -> String {
    let shortest = format!("{value:e}");
    let mantissa = shortest.split('e').next().unwrap_or_default();
    let places = mantissa.split('.').nth(1).map_or(0, str::len);
    // Rust's shortest form rounds a tie up, its form of given length to even.
    let rounded = format!("{value:.places$e}");
    let reads_back = rounded.parse::<f64>().is_ok_and(|back| back == value);
    let scientific = if reads_back { rounded } else { shortest };
    let (mantissa, exponent) = scientific.split_once('e').expect("an exponent");
    let exponent: i32 = exponent.parse().expect("a number");
    if !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs());
    }
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", mantissa),
    };
    let digits = mantissa.replace('.', "");
    match usize::try_from(exponent) {
        Err(_) => {
            let zeros = "0".repeat(exponent.unsigned_abs() as usize - 1);
            format!("{sign}0.{zeros}{digits}")
        }
        Ok(whole) if digits.len() > whole + 1 => {
            format!("{sign}{}.{}", &digits[..=whole], &digits[whole + 1..])
        }
        Ok(whole) => format!("{sign}{digits:0<width$}.0", width = whole + 1),
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
    fn floats_print_as_in_python() {
        for (value, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (816.191509172, "816.191509172"),
            (10.0, "10.0"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (123_456_789_012_345.6, "123456789012345.6"),
            (9_999_999_999_999_998.0, "9999999999999998.0"),
            (1e16, "1e+16"),
            (1.25e300, "1.25e+300"),
            (-0.00012, "-0.00012"),
            (-1234.5, "-1234.5"),
            (100.0, "100.0"),
            // As near to .13.
            (79_968_470_684_409.13, "79968470684409.12"),
            (2e-3, "0.002"),
            (5e-324, "5e-324"),
        ] {
            assert_eq!(text(&value), expected);
        }
        assert_eq!(text(&f64::NAN), "null");
        assert_eq!(text(&f64::INFINITY), "null");
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
