//! Splits a line of a scenario into words.

/// One word of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Word {
    /// As it stands, without any space in it.
    Bare(String),
    /// What stood between quotes.
    Quoted(Vec<u8>),
    /// `[...]`, `{...}` or `json{...}`, spaces and all.
    Brackets(String),
    /// `/.../`
    Regex(String),
}

impl Word {
    /// The text of a word that was not quoted.
    pub(super) fn bare(&self) -> Option<&str> {
        match self {
            Word::Bare(text) => Some(text),
            _ => None,
        }
    }
}

/// The words of `line`. Fails with a sentence for people.
pub(super) fn words(line: &str) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let (word, length) = match rest.as_bytes()[0] {
            b'\'' => quoted(rest)?,
            b'[' | b'{' => brackets(rest, 0)?,
            b'/' => {
                let end = rest[1..]
                    .find("/ ")
                    .map(|n| n + 1)
                    .unwrap_or(rest.trim_end().len() - 1);
                (Word::Regex(rest[1..end].to_owned()), end + 1)
            }
            _ if rest.starts_with("json{") => brackets(rest, 4)?,
            _ => {
                let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
                (Word::Bare(rest[..end].to_owned()), end)
            }
        };
        words.push(word);
        let after = &rest[length..];
        if !after.is_empty() && !after.starts_with(char::is_whitespace) {
            return Err(format!("a space is missing before {after:?}"));
        }
        rest = after.trim_start();
    }
    Ok(words)
}

fn quoted(text: &str) -> Result<(Word, usize), String> {
    let bytes = text.as_bytes();
    let mut value = Vec::new();
    let mut at = 1;
    loop {
        match (bytes.get(at), bytes.get(at + 1)) {
            (None, _) => return Err(format!("no closing quote in {text:?}")),
            (Some(b'\''), _) => return Ok((Word::Quoted(value), at + 1)),
            (Some(b'\\'), Some(b'x')) => {
                let digits = text.get(at + 2..at + 4).unwrap_or_default();
                let byte = u8::from_str_radix(digits, 16)
                    .map_err(|_| format!("two hex digits expected behind \\x, got {digits:?}"))?;
                value.push(byte);
                at += 4;
            }
            (Some(b'\\'), Some(&escaped)) => {
                value.push(escaped);
                at += 2;
            }
            (Some(&byte), _) => {
                value.push(byte);
                at += 1;
            }
        }
    }
}

/// The word up to the bracket that closes the one at `start`.
fn brackets(text: &str, start: usize) -> Result<(Word, usize), String> {
    let mut depth = 0_usize;
    let mut in_string = false;
    let mut bytes = text.bytes().enumerate().skip(start);
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'\\' if in_string => {
                bytes.next();
            }
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => {
                depth -= 1;
                if depth == 0 {
                    return Ok((Word::Brackets(text[..=at].to_owned()), at + 1));
                }
            }
            _ => {}
        }
    }
    Err(format!("no closing bracket in {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_word() {
        let line = r#"c1 > '' 'a \x00\'' [[10, "x ]"]] json{"a": {}} /^1/ x"#;
        let expected = vec![
            Word::Bare("c1".into()),
            Word::Bare(">".into()),
            Word::Quoted(Vec::new()),
            Word::Quoted(b"a \x00'".to_vec()),
            Word::Brackets(r#"[[10, "x ]"]]"#.into()),
            Word::Brackets(r#"json{"a": {}}"#.into()),
            Word::Regex("^1".into()),
            Word::Bare("x".into()),
        ];
        assert_eq!(words(line).unwrap(), expected);
    }

    #[test]
    fn what_is_not_closed_is_refused() {
        for line in ["'abc", "[[10]", r#"{"a": "}"#, "'a'b"] {
            assert!(words(line).is_err(), "{line}");
        }
    }
}
