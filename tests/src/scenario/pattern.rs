//! Frames as a scenario writes them: what is sent, and what is expected.

use super::JOB;
use super::lexer::Word;
use crate::dealer::hex;
use regex::Regex;
use serde_json::Value;
use std::collections::HashMap;

/// One frame, to send or to compare with.
#[derive(Debug, Clone)]
pub enum Frame {
    /// These bytes.
    Bytes(Vec<u8>),
    /// A name for bytes: a uuid when first sent, what came when first received.
    Name(String),
    /// Any bytes but none (received only).
    Any,
    /// Text that the expression finds something in (received only).
    Regex(Regex),
    /// JSON of this shape (received only).
    Json(Value),
}

/// What names stand for.
pub(super) type Names = HashMap<String, Vec<u8>>;

impl Frame {
    pub(super) fn from_word(word: &Word) -> Result<Frame, String> {
        Ok(match word {
            Word::Quoted(bytes) => Frame::Bytes(bytes.clone()),
            Word::Regex(text) => Frame::Regex(Regex::new(text).map_err(|e| e.to_string())?),
            Word::Brackets(text) => match text.strip_prefix("json") {
                Some(json) => Frame::Json(parse_json(json)?),
                None => Frame::Bytes(text.clone().into_bytes()),
            },
            Word::Bare(text) => match (text.as_str(), text.split_once(':')) {
                ("*", _) => Frame::Any,
                ("@job", _) => Frame::Bytes(JOB.into()),
                (_, Some(("hex", digits))) => Frame::Bytes(unhex(digits)?),
                (_, Some(("long", length))) => {
                    let length = length
                        .parse()
                        .map_err(|_| format!("no length: {length:?}"))?;
                    Frame::Bytes(vec![b'x'; length])
                }
                _ => match text.strip_prefix('$') {
                    Some(name) => Frame::Name(name.to_owned()),
                    None => Frame::Bytes(text.clone().into_bytes()),
                },
            },
        })
    }

    /// The bytes to send.
    pub(super) fn to_send(&self, names: &mut Names) -> Result<Vec<u8>, String> {
        match self {
            Frame::Bytes(bytes) => Ok(bytes.clone()),
            Frame::Name(name) => Ok(names
                .entry(name.clone())
                .or_insert_with(|| uuid::Uuid::new_v4().to_string().into_bytes())
                .clone()),
            _ => Err(format!("{self:?} cannot be sent")),
        }
    }

    /// Compares with a received frame; `new` gets names that stand for nothing yet.
    fn compare(&self, frame: &[u8], names: &Names, new: &mut Names) -> Result<(), String> {
        let show = || crate::dealer::show(&[frame.to_vec()]);
        match self {
            Frame::Bytes(bytes) if bytes == frame => Ok(()),
            Frame::Bytes(bytes) => Err(format!(
                "{} expected, got {}",
                crate::dealer::show(std::slice::from_ref(bytes)),
                show()
            )),
            Frame::Name(name) => match names.get(name).or_else(|| new.get(name)) {
                Some(bytes) if bytes == frame => Ok(()),
                Some(bytes) => Err(format!(
                    "${name} = 0x{} expected, got {}",
                    hex(bytes),
                    show()
                )),
                None => {
                    new.insert(name.clone(), frame.to_vec());
                    Ok(())
                }
            },
            Frame::Any if frame.is_empty() => Err("anything but an empty frame expected".into()),
            Frame::Any => Ok(()),
            Frame::Regex(regex) if regex.is_match(&String::from_utf8_lossy(frame)) => Ok(()),
            Frame::Regex(regex) => Err(format!("/{regex}/ expected, got {}", show())),
            Frame::Json(pattern) => {
                let value: Value =
                    serde_json::from_slice(frame).map_err(|e| format!("{e}: {}", show()))?;
                json_matches(pattern, &value)
            }
        }
    }
}

/// Compares a whole message; names bound by it are kept only if all of it matches.
pub(super) fn compare(
    expected: &[Frame],
    frames: &[Vec<u8>],
    names: &mut Names,
) -> Result<(), String> {
    let got = || crate::dealer::show(frames);
    if expected.len() != frames.len() {
        return Err(format!("{} frames expected, got {}", expected.len(), got()));
    }
    let mut new = Names::new();
    for (n, (pattern, frame)) in expected.iter().zip(frames).enumerate() {
        pattern
            .compare(frame, names, &mut new)
            .map_err(|e| format!("frame {n}: {e}; the whole message: {}", got()))?;
    }
    names.extend(new);
    Ok(())
}

pub(super) fn parse_json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|e| format!("{e} in {text}"))
}

/// Compares JSON with a pattern, see the module documentation.
pub fn json_matches(pattern: &Value, value: &Value) -> Result<(), String> {
    at_path(pattern, value, "$")
}

fn at_path(pattern: &Value, value: &Value, path: &str) -> Result<(), String> {
    let differs = || Err(format!("{path}: {pattern} expected, got {value}"));
    match (pattern, value) {
        (Value::String(s), _) if s == "*" => Ok(()),
        (Value::String(s), Value::Number(_)) if s == "*num" => Ok(()),
        (Value::String(s), Value::String(_)) if s == "*str" => Ok(()),
        (Value::Object(wanted), Value::Object(got)) => {
            for (key, pattern) in wanted.iter().filter(|(key, _)| *key != "...") {
                let Some(value) = got.get(key) else {
                    return differs();
                };
                at_path(pattern, value, &format!("{path}.{key}"))?;
            }
            if !wanted.contains_key("...") && got.keys().any(|key| !wanted.contains_key(key)) {
                return differs();
            }
            Ok(())
        }
        (Value::Array(wanted), Value::Array(got)) if wanted.len() == got.len() => {
            for (n, (pattern, value)) in wanted.iter().zip(got).enumerate() {
                at_path(pattern, value, &format!("{path}[{n}]"))?;
            }
            Ok(())
        }
        // 10 and 10.0 are the same weight.
        (Value::Number(a), Value::Number(b)) if a.as_f64() == b.as_f64() => Ok(()),
        _ if pattern == value => Ok(()),
        _ => differs(),
    }
}

fn unhex(digits: &str) -> Result<Vec<u8>, String> {
    let byte = |n| u8::from_str_radix(digits.get(n..n + 2).unwrap_or_default(), 16);
    (0..digits.len())
        .step_by(2)
        .map(|n| byte(n).map_err(|_| format!("not hexadecimal: {digits:?}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn objects_are_closed_unless_they_say_otherwise() {
        let value = json!({"a": 1, "b": [10.0, "x"]});
        assert!(json_matches(&json!({"a": "*num", "b": [10, "*str"]}), &value).is_ok());
        assert!(json_matches(&json!({"a": 1, "...": 0}), &value).is_ok());
        assert!(json_matches(&json!({"a": 1}), &value).is_err());
        assert!(json_matches(&json!({"a": 2, "...": 0}), &value).is_err());
        assert!(json_matches(&json!({"a": 1, "c": "*", "...": 0}), &value).is_err());
        assert!(json_matches(&json!({}), &json!({})).is_ok());
        assert!(json_matches(&json!({}), &value).is_err());
    }

    #[test]
    fn a_name_is_bound_once_and_only_by_a_message_that_matches() {
        let word = |text: &str| Frame::from_word(&Word::Bare(text.into())).unwrap();
        let mut names = Names::new();
        let pattern = [word("$m"), word("x")];
        assert!(compare(&pattern, &[b"1".to_vec(), b"y".to_vec()], &mut names).is_err());
        assert!(names.is_empty());
        assert!(compare(&pattern, &[b"1".to_vec(), b"x".to_vec()], &mut names).is_ok());
        assert!(compare(&pattern, &[b"2".to_vec(), b"x".to_vec()], &mut names).is_err());
    }
}
