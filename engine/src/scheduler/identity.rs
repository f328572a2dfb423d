//! What a SCHEDULE runs, and which schedule it is.
//!
//! Two SCHEDULEs are the same schedule if the same callable is called with the same arguments.
//! EventMQ 0.3.13 takes the SHA-1 of the call as Python prints it with sorted keys, and uses it as
//! key in Redis; the value here is the same, byte for byte.

use super::pyjson::Value;
use sha1::{Digest, Sha1};
use std::fmt;
use std::str::FromStr;

/// The keys of a call, all required, in their order of printing.
const KEYS: [&str; 6] = [
    "args",
    "callable",
    "class_args",
    "class_kwargs",
    "kwargs",
    "path",
];

/// Which schedule: the SHA-1 of its call. As text 40 hexadecimal digits in lower case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity([u8; 20]);

/// Not a message `["run", {...}]` with the six keys of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the message is not [\"run\", {{...}}] with the six keys of a call")]
pub struct NotACall;

impl Identity {
    /// The identity of the message of a SCHEDULE, and the call as people read it: `path.callable`.
    ///
    /// # Errors
    /// [`NotACall`].
    pub fn of_message(message: &str) -> Result<(Identity, String), NotACall> {
        let Ok(Value::List(list)) = Value::parse(message) else {
            return Err(NotACall);
        };
        let [Value::Text(run), Value::Map(call)] = list.as_slice() else {
            return Err(NotACall);
        };
        if run != b"run" {
            return Err(NotACall);
        }
        let mut printed = String::with_capacity(message.len());
        for (n, key) in KEYS.iter().enumerate() {
            printed.push_str(if n == 0 { "{\"" } else { ", \"" });
            printed.push_str(key);
            printed.push_str("\": ");
            call.get(key.as_bytes())
                .ok_or(NotACall)?
                .print(&mut printed);
        }
        printed.push('}');
        let word = |key: &str| match call.get(key.as_bytes()) {
            Some(Value::Text(text)) => String::from_utf8_lossy(text).into_owned(),
            _ => "?".to_owned(),
        };
        let name = format!("{}.{}", word("path"), word("callable"));
        Ok((Identity(Sha1::digest(&printed).into()), name))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Not 40 hexadecimal digits in lower case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not 40 hexadecimal digits in lower case")]
pub struct NotAnIdentity;

impl FromStr for Identity {
    type Err = NotAnIdentity;

    fn from_str(text: &str) -> Result<Identity, NotAnIdentity> {
        let digits = text.as_bytes();
        if digits.len() != 40 {
            return Err(NotAnIdentity);
        }
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            _ => Err(NotAnIdentity),
        };
        let mut bytes = [0; 20];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Ok(Identity(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages with the hash that EventMQ 0.3.13 makes of them, or `refused`.
    const VECTORS: &str = include_str!("../../tests/data/identity.tsv");

    #[test]
    fn as_the_original() {
        let mut accepted = 0;
        for line in VECTORS.lines() {
            let (message, expected) = line.split_once('\t').unwrap();
            let found = Identity::of_message(message)
                .map_or("refused".to_owned(), |(identity, _)| identity.to_string());
            assert_eq!(found, expected, "{message}");
            accepted += usize::from(expected != "refused");
        }
        assert!(accepted > 200, "{accepted}");
    }

    #[test]
    fn one_by_hand() {
        let message = r#"["run", {"path": "jobs_x", "callable": "add", "args": [1], "kwargs": {},
            "class_args": [], "class_kwargs": {}, "more": 5}]"#;
        let (identity, name) = Identity::of_message(message).unwrap();
        assert_eq!(
            identity.to_string(),
            "c0d987b35c2eac1b15c923b6da2bafcb2dc5d479"
        );
        assert_eq!(name, "jobs_x.add");
        assert_eq!(identity.to_string().parse(), Ok(identity));
    }

    #[test]
    fn what_is_no_call() {
        let whole = r#"["run", {"args": [], "callable": "f", "class_args": [], "class_kwargs": {},
            "kwargs": {}, "path": "p"}]"#;
        assert!(Identity::of_message(whole).is_ok());
        for key in KEYS {
            let without = whole.replacen(&format!("\"{key}\""), "\"other\"", 1);
            assert_eq!(Identity::of_message(&without), Err(NotACall), "{key}");
        }
        for message in [
            "",
            "[]",
            "[\"run\"]",
            "{}",
            "[\"ran\", {}]",
            "[1, {}]",
            "[\"run\", []]",
        ] {
            assert_eq!(Identity::of_message(message), Err(NotACall), "{message}");
        }
        let upper = "C0D987B35C2EAC1B15C923B6DA2BAFCB2DC5D479";
        for text in ["", "c0d9", upper] {
            assert_eq!(text.parse::<Identity>(), Err(NotAnIdentity));
        }
    }
}
