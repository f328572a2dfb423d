//! A schedule as it is stored.
//!
//! The body is what EventMQ 0.3.13 stores in Redis: JSON of the five body frames, the runs left in
//! its headers. What 0.3.13 does not know, when it runs next, stands beside it.

use super::identity::Identity;
use super::pyjson::Value;
use super::schedule::{BODY_FRAMES, Refusal, Schedule};

/// What a store keeps of one schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its key.
    pub identity: Identity,
    /// JSON of the five body frames.
    pub body: String,
    /// When it runs next; `None` in what 0.3.13 has stored.
    pub timing: Option<Timing>,
}

/// When a stored schedule runs, in Unix milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Its next due time.
    pub due_ms: u64,
    /// The clock when this was written.
    pub saved_ms: u64,
}

impl Timing {
    /// Its form in a store.
    pub fn to_text(self) -> String {
        format!("{} {}", self.due_ms, self.saved_ms)
    }

    /// Reads what [`Timing::to_text`] wrote; `None` for anything else.
    pub fn parse(text: &str) -> Option<Timing> {
        let (due, saved) = text.split_once(' ')?;
        Some(Timing {
            due_ms: due.parse().ok()?,
            saved_ms: saved.parse().ok()?,
        })
    }
}

/// Why a stored schedule cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadRecord {
    /// Not JSON of five texts.
    #[error("not JSON of five texts")]
    Form,
    /// A schedule that would be refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Stored under the key of another call.
    #[error("stored under the key of another call")]
    OtherKey,
}

/// The five body frames as Python's `json.dumps` prints them.
pub fn body_json(schedule: &Schedule, left: Option<u32>) -> String {
    let headers = schedule.headers_with(left);
    let texts = schedule.body.iter().enumerate().map(|(n, text)| {
        let text = if n == 1 { &headers } else { text };
        Value::Text(text.as_bytes().to_vec())
    });
    let mut out = String::new();
    Value::List(texts.collect()).print(&mut out);
    out
}

impl Record {
    /// The schedule in it.
    ///
    /// # Errors
    /// [`BadRecord`].
    pub fn schedule(&self) -> Result<Schedule, BadRecord> {
        let Ok(Value::List(list)) = Value::parse(&self.body) else {
            return Err(BadRecord::Form);
        };
        if list.len() != BODY_FRAMES {
            return Err(BadRecord::Form);
        }
        let texts = list.iter().map(|value| match value {
            Value::Text(text) => Ok(text.as_slice()),
            _ => Err(BadRecord::Form),
        });
        let texts = texts.collect::<Result<Vec<_>, _>>()?;
        let schedule = Schedule::parse(texts.into_iter())?;
        if schedule.identity != self.identity {
            return Err(BadRecord::OtherKey);
        }
        Ok(schedule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: &str = r#"["run", {"callable": "add", "path": "jobs_x", "args": [1], "kwargs": {}, "class_args": [], "class_kwargs": {}}]"#;

    #[test]
    fn stored_as_the_original_stores_it() {
        let body = ["q\u{fc}", "nohaste,run_count:3", "2", CALL, ""];
        let schedule = Schedule::parse(body.iter().map(|text| text.as_bytes())).unwrap();
        let json = body_json(&schedule, Some(1));
        let expected = r#"["q\u00fc", "nohaste,run_count:1", "2", "[\"run\", {\"callable\": \"add\", \"path\": \"jobs_x\", \"args\": [1], \"kwargs\": {}, \"class_args\": [], \"class_kwargs\": {}}]", ""]"#;
        assert_eq!(json, expected);
        let record = Record {
            identity: schedule.identity,
            body: json,
            timing: None,
        };
        let back = record.schedule().unwrap();
        assert_eq!((back.run_count, back.queue()), (Some(1), "q\u{fc}"));
    }

    #[test]
    fn what_cannot_be_used() {
        let identity = "c0d987b35c2eac1b15c923b6da2bafcb2dc5d479".parse().unwrap();
        let bad = |body: &str| {
            let body = body.to_owned();
            Record {
                identity,
                body,
                timing: None,
            }
            .schedule()
            .unwrap_err()
        };
        for body in ["", "{}", "[]", "[1,2,3,4,5]", r#"["a","b","c","d"]"#] {
            assert_eq!(bad(body), BadRecord::Form, "{body}");
        }
        // Half a surrogate pair is no text of a frame.
        assert_eq!(
            bad(r#"["\ud800","","1","",""]"#),
            BadRecord::Refused(Refusal::NotUtf8)
        );
        let other = CALL.replace("[1]", "[2]").replace('"', "\\\"");
        assert_eq!(
            bad(&format!(r#"["q","","1","{other}",""]"#)),
            BadRecord::OtherKey
        );
        let timing = Timing {
            due_ms: 5,
            saved_ms: 3,
        };
        assert_eq!(Timing::parse(&timing.to_text()), Some(timing));
        for text in ["", "1", "a b", "-1 2", "1 2 3"] {
            assert_eq!(Timing::parse(text), None, "{text}");
        }
    }
}
