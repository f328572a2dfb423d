//! JSON as Python's `json.dumps` prints it, which is what the peers of 0.3.13 send and expect.
//!
//! Separators are `", "` and `": "`, everything but printable ASCII is escaped, floats are as
//! `repr`. Keys stand in the order in which they are serialised. NaN and the infinities, which are
//! not JSON, are refused (Python prints them, and its peers then cannot be read).

use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, Serializer};
use std::io::{self, Write};

mod finite;

/// Why a value is not JSON.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// NaN or an infinity.
    #[error("NaN and infinities are not JSON")]
    NotFinite,
    /// What serde says: a key that is no text, say.
    #[error("{0}")]
    Unserialisable(String),
}

impl serde::ser::Error for JsonError {
    fn custom<T: std::fmt::Display>(what: T) -> JsonError {
        JsonError::Unserialisable(what.to_string())
    }
}

/// Appends a value.
///
/// # Errors
/// [`JsonError`]; `out` is then as it was.
pub fn push<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) -> Result<(), JsonError> {
    value.serialize(finite::Finite)?;
    push_with_null(out, value)
}

/// As [`push`], but NaN and the infinities become `null`.
///
/// # Errors
/// [`JsonError::Unserialisable`]; `out` is then as it was.
pub fn push_with_null<T: Serialize + ?Sized>(
    out: &mut Vec<u8>,
    value: &T,
) -> Result<(), JsonError> {
    let len = out.len();
    value
        .serialize(&mut Serializer::with_formatter(&mut *out, Python))
        .map_err(|error| {
            out.truncate(len);
            JsonError::Unserialisable(error.to_string())
        })
}

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
    use serde_json::Value;
    use std::collections::BTreeMap;

    fn text<T: Serialize + ?Sized>(value: &T) -> String {
        let mut out = Vec::new();
        push(&mut out, value).unwrap();
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
    }

    #[derive(Serialize)]
    enum Shape {
        Unit,
        New(f64),
        Tuple(u8, f32),
        Struct { a: f64 },
    }

    #[test]
    fn what_is_not_json_is_refused_wherever_it_stands() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let refused = |value: &dyn Fn(&mut Vec<u8>) -> Result<(), JsonError>| {
                let mut out = b"kept".to_vec();
                assert_eq!(value(&mut out), Err(JsonError::NotFinite));
                assert_eq!(out, b"kept");
            };
            refused(&|out| push(out, &bad));
            refused(&|out| push(out, &(bad as f32)));
            refused(&|out| push(out, &Some(bad)));
            refused(&|out| push(out, &[1.0, bad]));
            refused(&|out| push(out, &(1, "x", bad)));
            refused(&|out| push(out, &BTreeMap::from([("k", vec![bad])])));
            refused(&|out| push(out, &Shape::New(bad)));
            refused(&|out| push(out, &Shape::Tuple(1, bad as f32)));
            refused(&|out| push(out, &Shape::Struct { a: bad }));
        }
        let mut out = Vec::new();
        push_with_null(&mut out, &f64::NAN).unwrap();
        assert_eq!(out, b"null");
        let keys = BTreeMap::from([(vec![1], 2)]);
        assert!(matches!(
            push(&mut out, &keys),
            Err(JsonError::Unserialisable(_))
        ));
        assert_eq!(out, b"null");
    }

    #[test]
    fn every_kind_of_value_prints_as_in_python() {
        for (printed, expected) in [
            (
                text(&(1, "\u{e9}", None::<u8>, true)),
                r#"[1, "\u00e9", null, true]"#,
            ),
            (text(&()), "null"),
            (text(&Shape::Unit), r#""Unit""#),
            (text(&Shape::New(1.0)), r#"{"New": 1.0}"#),
            (text(&Shape::Tuple(1, 0.5)), r#"{"Tuple": [1, 0.5]}"#),
            (
                text(&Shape::Struct { a: 1e16 }),
                r#"{"Struct": {"a": 1e+16}}"#,
            ),
            (text(&BTreeMap::from([(1, 'x')])), r#"{"1": "x"}"#),
            (text(&u128::MAX), "340282366920938463463374607431768211455"),
            (text::<[u8]>(&[]), "[]"),
        ] {
            assert_eq!(printed, expected);
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>()
                .prop_filter("finite", |v| v.is_finite())
                .prop_map(Value::from),
            ".{0,20}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 30, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(".{0,8}", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_value_reads_back(value in values()) {
            let printed = text(&value);
            prop_assert!(printed.bytes().all(|b| matches!(b, b' '..=b'~')));
            prop_assert_eq!(serde_json::from_str::<Value>(&printed).unwrap(), value);
        }
    }
}
