//! Reader of INI files as Python's `configparser` reads them, with line numbers.
//!
//! A reader of our own because the kept crates (`rust-ini`, `configparser`, `ini_core`) give no
//! line numbers for their values, which our errors must name, and do not read what existing
//! EventMQ files may hold: values that go on over indented lines.
//!
//! Rules: `[section]`; `name = value` or `name: value`; names are case-insensitive; a line that
//! begins with `#` or `;` is a comment, anywhere else these belong to the value; a line indented
//! further than the name it follows continues its value; a name may be given once per section.
//! There is no interpolation: `%` is a character like any other.

use std::collections::HashMap;
use thiserror::Error;

/// Largest settings file.
pub(super) const FILE_BYTES_MAX: usize = 1024 * 1024;

/// One `name = value` of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) section: String,
    /// Lower case.
    pub(super) name: String,
    /// Without surrounding white space; continuation lines joined with `\n`.
    pub(super) value: String,
    /// Line of the name, from 1.
    pub(super) line: usize,
}

/// A file as entries in their order, and the sections with the line of their first header.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct IniFile {
    pub(super) entries: Vec<Entry>,
    pub(super) sections: Vec<(String, usize)>,
}

/// What is wrong with a file, and in which line.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{what}")]
pub(super) struct IniError {
    pub(super) line: usize,
    pub(super) what: String,
}

impl IniFile {
    /// Reads a whole file.
    pub(super) fn parse(bytes: &[u8]) -> Result<IniFile, IniError> {
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let line = 1 + bytes[..error.valid_up_to()]
                .iter()
                .filter(|b| **b == b'\n')
                .count();
            IniError {
                line,
                what: "not UTF-8 text".to_owned(),
            }
        })?;
        let mut reader = Reader::default();
        for (index, line) in text.lines().enumerate() {
            reader.line(index + 1, line)?;
        }
        Ok(reader.file)
    }
}

#[derive(Default)]
struct Reader {
    file: IniFile,
    section: Option<String>,
    /// Indentation of the entry that the next lines may continue.
    indent: Option<usize>,
    /// Empty lines since its last line: part of the value only if it goes on behind them.
    blank: usize,
    /// First line of each (section, name).
    seen: HashMap<(String, String), usize>,
}

impl Reader {
    fn line(&mut self, number: usize, line: &str) -> Result<(), IniError> {
        let text = line.trim();
        if text.is_empty() {
            self.blank += 1;
            return Ok(());
        }
        if text.starts_with(['#', ';']) {
            return Ok(());
        }
        let indent = line.len() - line.trim_start().len();
        let blank = std::mem::take(&mut self.blank);
        if self.indent.is_some_and(|of_name| indent > of_name) {
            let entry = self.file.entries.last_mut().expect("an entry to continue");
            entry.value.extend(std::iter::repeat_n('\n', blank + 1));
            entry.value.push_str(text);
            return Ok(());
        }
        self.indent = None;
        if let Some(rest) = text.strip_prefix('[') {
            return self.header(number, rest);
        }
        self.entry(number, text)?;
        self.indent = Some(indent);
        Ok(())
    }

    fn header(&mut self, number: usize, rest: &str) -> Result<(), IniError> {
        let Some(name) = rest
            .strip_suffix(']')
            .filter(|name| !name.trim().is_empty())
        else {
            return Err(IniError {
                line: number,
                what: "expected [SECTION]".to_owned(),
            });
        };
        let name = name.trim().to_owned();
        if !self.file.sections.iter().any(|(known, _)| *known == name) {
            self.file.sections.push((name.clone(), number));
        }
        self.section = Some(name);
        Ok(())
    }

    fn entry(&mut self, number: usize, text: &str) -> Result<(), IniError> {
        let error = |what: String| Err(IniError { line: number, what });
        let Some((name, value)) = text.split_once(['=', ':']) else {
            return error("expected NAME = VALUE".to_owned());
        };
        let name = name.trim().to_ascii_lowercase();
        if name.is_empty() {
            return error("expected NAME = VALUE, the name is missing".to_owned());
        }
        let Some(section) = self.section.clone() else {
            return error("expected a [SECTION] before the first NAME = VALUE".to_owned());
        };
        if let Some(first) = self.seen.insert((section.clone(), name.clone()), number) {
            let name = super::value::shown(&name);
            return error(format!(
                "{name} is given twice in [{section}], first in line {first}"
            ));
        }
        let value = value.trim().to_owned();
        self.file.entries.push(Entry {
            section,
            name,
            value,
            line: number,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entries(text: &str) -> Vec<(String, String, String, usize)> {
        let file = IniFile::parse(text.as_bytes()).unwrap();
        file.entries
            .into_iter()
            .map(|e| (e.section, e.name, e.value, e.line))
            .collect()
    }

    fn entry(s: &str, n: &str, v: &str, line: usize) -> (String, String, String, usize) {
        (s.to_owned(), n.to_owned(), v.to_owned(), line)
    }

    #[test]
    fn sections_names_comments_and_values() {
        let text =
            "\u{feff}# c\n[global]\nHWM = 5 ; not a comment\n; c\n\na:b=c\r\n[router]\nx =\n";
        assert_eq!(
            entries(text),
            [
                entry("global", "hwm", "5 ; not a comment", 3),
                entry("global", "a", "b=c", 6),
                entry("router", "x", "", 8),
            ]
        );
    }

    #[test]
    fn indented_lines_continue_a_value() {
        let text = "[g]\nqueues = [[10, \"a\"],\n  # comment\n  [5, \"b\"]]\n\n  tail\n\nb = 1\n";
        assert_eq!(
            entries(text),
            [
                entry("g", "queues", "[[10, \"a\"],\n[5, \"b\"]]\n\ntail", 2),
                entry("g", "b", "1", 8)
            ]
        );
    }

    #[test]
    fn an_indented_name_does_not_continue_a_section_header() {
        assert_eq!(
            entries("[g]\n  a = 1\n  b = 2\n"),
            [entry("g", "a", "1", 2), entry("g", "b", "2", 3)]
        );
    }

    #[test]
    fn errors_name_their_line() {
        for (text, line, word) in [
            ("a = 1\n", 1, "expected a [SECTION]"),
            ("[g]\n\nnonsense\n", 3, "expected NAME = VALUE"),
            ("[g]\n= 1\n", 2, "name is missing"),
            ("[g\n", 1, "expected [SECTION]"),
            ("[ ]\n", 1, "expected [SECTION]"),
            ("[g]\na=1\n[h]\na=1\n[g]\nA=2\n", 6, "first in line 2"),
        ] {
            let error = IniFile::parse(text.as_bytes()).unwrap_err();
            assert_eq!(error.line, line, "{text:?}");
            assert!(error.what.contains(word), "{}", error.what);
        }
        let error = IniFile::parse(b"[g]\na=\xff\n").unwrap_err();
        assert_eq!((error.line, error.what.as_str()), (2, "not UTF-8 text"));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = IniFile::parse(&bytes);
        }

        #[test]
        fn arbitrary_lines_never_panic(text in "([\\[\\]=:#; a\\n]|\\PC){0,60}") {
            let _ = IniFile::parse(text.as_bytes());
        }
    }
}
