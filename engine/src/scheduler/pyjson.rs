//! JSON as Python's `json` module reads and prints it, for the identity of a schedule.
//!
//! `serde_json` cannot do this: Python reads `NaN` and `Infinity`, keeps integers of any size and
//! halves of surrogate pairs, and prints floats as `repr`. Numbers are kept as Python prints them.
//! Nothing here panics or recurses deeper than [`DEPTH_MAX`].

use std::collections::BTreeMap;

/// Deepest nesting read. Python's own limit is near 1,000.
pub(super) const DEPTH_MAX: usize = 256;

/// Most digits of an integer; Python 3.11 refuses more.
const INT_DIGITS_MAX: usize = 4_300;

/// Text as generalised UTF-8 (WTF-8): halves of surrogate pairs may stand alone. Ordered by bytes,
/// which is the order of code points, which is Python's.
pub(super) type Text = Vec<u8>;

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// `null`, `true`, `false`, or a number, as Python prints it.
    Plain(String),
    Text(Text),
    List(Vec<Value>),
    /// Sorted by key; of a key given twice the last value counts.
    Map(BTreeMap<Text, Value>),
}

/// What is wrong is not told: who sends such a thing has the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not JSON as Python reads it")]
pub(super) struct NotJson;

impl Value {
    /// Reads a whole text.
    pub(super) fn parse(text: &str) -> Result<Value, NotJson> {
        let mut reader = Reader {
            bytes: text.as_bytes(),
            at: 0,
        };
        let value = reader.value(0)?;
        reader.space();
        if reader.at == reader.bytes.len() {
            Ok(value)
        } else {
            Err(NotJson)
        }
    }

    /// Appends it as `json.dumps(value, sort_keys=True)` prints it.
    pub(super) fn print(&self, out: &mut String) {
        match self {
            Value::Plain(text) => out.push_str(text),
            Value::Text(text) => print_text(text, out),
            Value::List(values) => {
                out.push('[');
                for (n, value) in values.iter().enumerate() {
                    if n > 0 {
                        out.push_str(", ");
                    }
                    value.print(out);
                }
                out.push(']');
            }
            Value::Map(map) => {
                out.push('{');
                for (n, (key, value)) in map.iter().enumerate() {
                    if n > 0 {
                        out.push_str(", ");
                    }
                    print_text(key, out);
                    out.push_str(": ");
                    value.print(out);
                }
                out.push('}');
            }
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Takes `word` if it comes next.
    fn take(&mut self, word: &str) -> bool {
        let found = self.bytes[self.at..].starts_with(word.as_bytes());
        if found {
            self.at += word.len();
        }
        found
    }

    fn value(&mut self, depth: usize) -> Result<Value, NotJson> {
        if depth > DEPTH_MAX {
            return Err(NotJson);
        }
        self.space();
        match self.peek() {
            Some(b'"') => self.text().map(Value::Text),
            Some(b'[') => self.list(depth),
            Some(b'{') => self.map(depth),
            _ => {
                for word in ["null", "true", "false", "NaN", "Infinity", "-Infinity"] {
                    if self.take(word) {
                        return Ok(Value::Plain(word.to_owned()));
                    }
                }
                self.number().map(Value::Plain)
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value, NotJson> {
        let mut values = Vec::new();
        self.at += 1;
        self.space();
        if self.take("]") {
            return Ok(Value::List(values));
        }
        loop {
            values.push(self.value(depth + 1)?);
            self.space();
            if self.take("]") {
                return Ok(Value::List(values));
            }
            if !self.take(",") {
                return Err(NotJson);
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, NotJson> {
        let mut map = BTreeMap::new();
        self.at += 1;
        self.space();
        if self.take("}") {
            return Ok(Value::Map(map));
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return Err(NotJson);
            }
            let key = self.text()?;
            self.space();
            if !self.take(":") {
                return Err(NotJson);
            }
            map.insert(key, self.value(depth + 1)?);
            self.space();
            if self.take("}") {
                return Ok(Value::Map(map));
            }
            if !self.take(",") {
                return Err(NotJson);
            }
        }
    }

    fn digits(&mut self) -> usize {
        let from = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        self.at - from
    }

    fn number(&mut self) -> Result<String, NotJson> {
        let from = self.at;
        self.take("-");
        let digits = match self.peek() {
            // Nothing follows a leading zero; what comes then is somebody else's error.
            Some(b'0') => {
                self.at += 1;
                1
            }
            _ => self.digits(),
        };
        if digits == 0 {
            return Err(NotJson);
        }
        let mut float = false;
        if self.take(".") {
            if self.digits() == 0 {
                return Err(NotJson);
            }
            float = true;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            let _ = self.take("+") || self.take("-");
            if self.digits() == 0 {
                return Err(NotJson);
            }
            float = true;
        }
        let text = std::str::from_utf8(&self.bytes[from..self.at]).map_err(|_error| NotJson)?;
        if float {
            let value: f64 = text.parse().map_err(|_error| NotJson)?;
            return Ok(float_text(value));
        }
        if digits > INT_DIGITS_MAX {
            return Err(NotJson);
        }
        Ok(if text == "-0" { "0" } else { text }.to_owned())
    }

    fn text(&mut self) -> Result<Text, NotJson> {
        let mut out = Text::new();
        self.at += 1;
        loop {
            let from = self.at;
            while self
                .peek()
                .is_some_and(|byte| !matches!(byte, b'"' | b'\\' | 0..=0x1f))
            {
                self.at += 1;
            }
            out.extend_from_slice(&self.bytes[from..self.at]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    self.at += 1;
                    self.escape(&mut out)?;
                }
                _ => return Err(NotJson),
            }
        }
    }

    fn escape(&mut self, out: &mut Text) -> Result<(), NotJson> {
        let byte = self.peek().ok_or(NotJson)?;
        self.at += 1;
        let plain = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let mut code = self.four_digits()?;
                // A pair becomes one character; a half alone stays what it is.
                if (0xd800..0xdc00).contains(&code) && self.bytes[self.at..].starts_with(b"\\u") {
                    let back = self.at;
                    self.at += 2;
                    match self.four_digits() {
                        Ok(low) if (0xdc00..0xe000).contains(&low) => {
                            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                        }
                        _ => self.at = back,
                    }
                }
                push_code_point(out, code);
                return Ok(());
            }
            _ => return Err(NotJson),
        };
        out.push(plain);
        Ok(())
    }

    fn four_digits(&mut self) -> Result<u32, NotJson> {
        let digits = self.bytes.get(self.at..self.at + 4).ok_or(NotJson)?;
        let mut code = 0;
        for digit in digits {
            code = code * 16 + char::from(*digit).to_digit(16).ok_or(NotJson)?;
        }
        self.at += 4;
        Ok(code)
    }
}

/// As UTF-8 would encode it if surrogates were characters.
fn push_code_point(out: &mut Text, code: u32) {
    match char::from_u32(code) {
        Some(c) => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        None => out.extend_from_slice(&[
            0xe0 | (code >> 12) as u8,
            0x80 | (code >> 6 & 0x3f) as u8,
            0x80 | (code & 0x3f) as u8,
        ]),
    }
}

/// A float as Python prints it in JSON.
fn float_text(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        let text = if value > 0.0 { "Infinity" } else { "-Infinity" };
        text.to_owned()
    } else {
        crate::admin_api::python_float(value)
    }
}

/// A text in quotes, everything but printable ASCII escaped as UTF-16.
fn print_text(text: &[u8], out: &mut String) {
    use std::fmt::Write as _;
    out.push('"');
    let mut at = 0;
    while at < text.len() {
        let (code, len) = code_point(&text[at..]);
        at += len;
        match code {
            0x22 => out.push_str("\\\""),
            0x5c => out.push_str("\\\\"),
            0x0a => out.push_str("\\n"),
            0x0d => out.push_str("\\r"),
            0x09 => out.push_str("\\t"),
            0x08 => out.push_str("\\b"),
            0x0c => out.push_str("\\f"),
            0x20..=0x7e => out.push(code as u8 as char),
            // Writing into a String cannot fail.
            0x10000.. => {
                let rest = code - 0x10000;
                let (high, low) = (0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
                let _ = write!(out, "\\u{high:04x}\\u{low:04x}");
            }
            _ => {
                let _ = write!(out, "\\u{code:04x}");
            }
        }
    }
    out.push('"');
}

/// The first code point of generalised UTF-8 and its length; such text is made only here.
fn code_point(text: &[u8]) -> (u32, usize) {
    let bits = |n: usize| u32::from(text.get(n).copied().unwrap_or(0)) & 0x3f;
    let first = u32::from(text[0]);
    match first {
        0xf0.. => (
            (first & 7) << 18 | bits(1) << 12 | bits(2) << 6 | bits(3),
            4,
        ),
        0xe0.. => ((first & 15) << 12 | bits(1) << 6 | bits(2), 3),
        0xc0.. => ((first & 31) << 6 | bits(1), 2),
        _ => (first, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn dumps(text: &str) -> Option<String> {
        let mut out = String::new();
        Value::parse(text).ok()?.print(&mut out);
        Some(out)
    }

    #[test]
    fn prints_as_python() {
        for (text, expected) in [
            (
                " [ 1 ,2.0, -0, -0.0, 1E5, 1e400, -1e400, NaN, -Infinity ] ",
                "[1, 2.0, 0, -0.0, 100000.0, Infinity, -Infinity, NaN, -Infinity]",
            ),
            (
                "123456789012345678901234567890",
                "123456789012345678901234567890",
            ),
            (
                r#"{"b":1,"a":{"d":null,"c":[true,false]},"b":2}"#,
                r#"{"a": {"c": [true, false], "d": null}, "b": 2}"#,
            ),
            (
                r#""\ud83d\ude00 \ud83d x \ude00 é\/\u007f""#,
                r#""\ud83d\ude00 \ud83d x \ude00 \u00e9/\u007f""#,
            ),
            // By code points: a character above 0xffff sorts behind U+FFFF.
            (
                r#"{"\ud83d\ude00":1,"\uffff":2,"\ud83d":3}"#,
                r#"{"\ud83d": 3, "\uffff": 2, "\ud83d\ude00": 1}"#,
            ),
            ("[]", "[]"),
            ("{}", "{}"),
        ] {
            assert_eq!(dumps(text).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_python_does_not_read() {
        let deep = "[".repeat(100_000);
        let digits = "1".repeat(4_301);
        for text in [
            "",
            " ",
            "nul",
            "01",
            "-",
            "1.",
            ".5",
            "1e",
            "+1",
            "[1,]",
            "[1 2]",
            "{\"a\"}",
            "{1:2}",
            "{\"a\":1,}",
            "\"\n\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"abc",
            "1 2",
            "'a'",
            "\u{feff}1",
            "-NaN",
            "\"\\u+123\"",
            deep.as_str(),
            digits.as_str(),
        ] {
            assert_eq!(dumps(text), None, "{text:.40}");
        }
    }

    proptest! {
        #[test]
        fn any_text_reads_back(text in "\\PC{0,20}", float in any::<f64>()) {
            let json = serde_json::to_string(&(&text, float)).unwrap();
            let printed = dumps(&json).unwrap();
            prop_assert!(printed.is_ascii());
            prop_assert_eq!(dumps(&printed), Some(printed.clone()));
            let (back, _): (String, serde_json::Value) = serde_json::from_str(&printed).unwrap();
            prop_assert_eq!(back, text);
        }

        #[test]
        fn arbitrary_text_never_panics(text in "[\\[\\]{}\":,0-9eE.\\\\ud8c+-]{0,60}") {
            let _ = dumps(&text);
        }
    }
}
