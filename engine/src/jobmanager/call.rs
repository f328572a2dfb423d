//! What a job calls, as far as the job manager has to know before it hands it on.

use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;

/// The path that stands for "run a command".
const COMMAND_PATH: &str = "exec";

/// Who is to run a job.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Route {
    /// The command `program` with these arguments.
    Command { program: String, args: Vec<Value> },
    /// The function registered under path and callable, or Python.
    Named { path: String, callable: String },
    /// The message could not be read: Python reads more, and says what is wrong with the rest.
    Unread,
}

#[derive(Deserialize)]
struct Head<'a> {
    #[serde(borrow)]
    path: Cow<'a, str>,
    #[serde(borrow)]
    callable: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Args {
    #[serde(default)]
    args: Vec<Value>,
}

/// A registered function's arguments.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Arguments {
    #[serde(default)]
    pub(super) args: Vec<Value>,
    #[serde(default)]
    pub(super) kwargs: serde_json::Map<String, Value>,
}

/// Reads whom a message `["run", {"path": ..., "callable": ..., ...}]` is for.
pub(super) fn route(message: &[u8]) -> Route {
    let Ok((_, head)) = serde_json::from_slice::<(serde::de::IgnoredAny, Head<'_>)>(message) else {
        return Route::Unread;
    };
    if head.path != COMMAND_PATH {
        return Route::Named {
            path: head.path.into_owned(),
            callable: head.callable.into_owned(),
        };
    }
    match serde_json::from_slice::<(serde::de::IgnoredAny, Args)>(message) {
        Ok((_, Args { args })) => Route::Command {
            program: head.callable.into_owned(),
            args,
        },
        Err(_) => Route::Unread,
    }
}

/// Reads the arguments of a message.
///
/// # Errors
/// In words, what is wrong with it.
pub(super) fn arguments(message: &[u8]) -> Result<Arguments, String> {
    serde_json::from_slice::<(serde::de::IgnoredAny, Arguments)>(message)
        .map(|(_, arguments)| arguments)
        .map_err(|error| format!("the message is not [\"run\", {{...}}]: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn named(path: &str, callable: &str) -> Route {
        Route::Named {
            path: path.to_owned(),
            callable: callable.to_owned(),
        }
    }

    #[test]
    fn jobs_go_where_they_belong() {
        let original = br#"["run", {"callable": "add", "path": "jobs_x", "args": [1, 2], "kwargs": {}, "class_args": [], "class_kwargs": {}}]"#;
        assert_eq!(route(original), named("jobs_x", "add"));
        assert_eq!(
            route(br#"["zzz", {"path": "a:B", "callable": "c\u0041"}]"#),
            named("a:B", "cA")
        );
        let command = br#"["run", {"path": "exec", "callable": "/bin/echo", "args": ["a", 1]}]"#;
        let program = "/bin/echo".to_owned();
        let args = vec![Value::from("a"), Value::from(1)];
        assert_eq!(route(command), Route::Command { program, args });
        for unread in [
            &b""[..],
            b"[]",
            b"[\"run\"]",
            b"[\"run\", {}]",
            b"[\"run\", {\"path\": \"a\"}]",
            b"{\"path\": \"a\", \"callable\": \"b\"}",
            b"[\"run\", {\"path\": \"a\", \"callable\": \"b\", \"args\": [NaN]}]",
            b"[\"run\", {\"path\": \"exec\", \"callable\": \"b\", \"args\": 5}]",
            b"\xff",
        ] {
            assert_eq!(route(unread), Route::Unread, "{}", unread.escape_ascii());
        }
    }

    #[test]
    fn arguments_may_be_missing() {
        let all = arguments(br#"["run", {"args": [1], "kwargs": {"k": null}}]"#).unwrap();
        assert_eq!((all.args.len(), all.kwargs.len()), (1, 1));
        let none = arguments(br#"["run", {}]"#).unwrap();
        assert!(none.args.is_empty() && none.kwargs.is_empty());
        assert!(
            arguments(b"[1]")
                .unwrap_err()
                .starts_with("the message is not")
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            route(&bytes);
            let _ = arguments(&bytes);
        }
    }
}
