//! How a job ended, and what its REPLY says about it.

use crate::emqp::JobStatus;
use serde_json::{Value, json};

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ending {
    /// It returned; the result frame, JSON `{"value": ...}`.
    Value(Vec<u8>),
    /// It failed; the result frame, JSON `{"value": ..., "error": {...}}`.
    Error(Vec<u8>),
    /// It ran longer than this many milliseconds and was killed.
    TimedOut {
        /// Its time.
        after_ms: u64,
    },
    /// The process it ran in ended; in words, how.
    Died(String),
    /// The job manager ended before it did.
    Killed,
    /// It was never started: it goes back to the broker.
    NotStarted,
}

impl Ending {
    /// A failure with its type and message, in the form of a raised exception.
    pub(super) fn failure(kind: &str, message: &str, traceback: &str) -> Ending {
        Ending::Error(told(Value::from(message), kind, message, Some(traceback)))
    }

    /// The status word of REPLY and READY (protocol.md section 3).
    pub(super) fn status(&self) -> JobStatus {
        match self {
            Ending::Value(_) => JobStatus::Ok,
            Ending::Error(_) => JobStatus::Error,
            Ending::TimedOut { .. } => JobStatus::Timeout,
            Ending::Died(_) | Ending::Killed => JobStatus::Lost,
            Ending::NotStarted => JobStatus::Refused,
        }
    }

    /// The result frame of the REPLY.
    pub(super) fn into_result(self) -> Vec<u8> {
        match self {
            Ending::Value(result) | Ending::Error(result) => result,
            // 0.3.13 answers with this value and nothing else.
            Ending::TimedOut { after_ms } => {
                let message = format!("killed after {}.{:03} s", after_ms / 1000, after_ms % 1000);
                told(Value::from("TimeoutError"), "TimeoutError", &message, None)
            }
            Ending::Died(how) => told(Value::Null, "ProcessDied", &how, None),
            Ending::Killed => told(Value::Null, "JobLost", "the job manager ended", None),
            Ending::NotStarted => told(Value::Null, "JobLost", "it was not started", None),
        }
    }
}

fn told(value: Value, kind: &str, message: &str, traceback: Option<&str>) -> Vec<u8> {
    let mut error = json!({"type": kind, "message": message});
    if let (Some(traceback), Some(error)) = (traceback, error.as_object_mut()) {
        error.insert("traceback".to_owned(), Value::from(traceback));
    }
    json!({"value": value, "error": error})
        .to_string()
        .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ending_is_json_with_its_status() {
        for (ending, status, value, kind) in [
            (
                Ending::failure("E", "a \"b\"", "t"),
                "error",
                json!("a \"b\""),
                "E",
            ),
            (
                Ending::TimedOut { after_ms: 1_500 },
                "timeout",
                json!("TimeoutError"),
                "TimeoutError",
            ),
            (
                Ending::Died("exit code 3".into()),
                "lost",
                Value::Null,
                "ProcessDied",
            ),
            (Ending::Killed, "lost", Value::Null, "JobLost"),
            (Ending::NotStarted, "refused", Value::Null, "JobLost"),
        ] {
            assert_eq!(ending.status().word(), status.as_bytes());
            let result: Value = serde_json::from_slice(&ending.into_result()).unwrap();
            assert_eq!(result["value"], value);
            assert_eq!(result["error"]["type"], kind);
            assert!(result["error"]["message"].is_string());
        }
    }
}
