//! What a SCHEDULE or UNSCHEDULE must look like to be forwarded (protocol.md section 3): the
//! original's scheduler dies of anything else.

use super::Envelope;
use super::headers::number;
use crate::limits::SCHEDULE_BYTES_MAX;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Why a SCHEDULE or UNSCHEDULE is not forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadSchedule {
    /// The form is wrong.
    #[error("malformed schedule")]
    Malformed,
    /// Above `limits::SCHEDULE_BYTES_MAX`.
    #[error("schedule too large")]
    TooLarge,
}

/// Checks the body: at least five frames, all UTF-8, an integer interval, digits in `run_count`,
/// and a message that is JSON `["run", {...}]` with the six keys.
///
/// # Errors
/// The first rule that does not hold.
pub fn check_schedule(envelope: &Envelope<'_>) -> Result<(), BadSchedule> {
    let message = envelope.message();
    if envelope.body_len() < 5 {
        return Err(BadSchedule::Malformed);
    }
    if message.wire().len() > SCHEDULE_BYTES_MAX {
        return Err(BadSchedule::TooLarge);
    }
    if !message
        .frames()
        .all(|frame| std::str::from_utf8(frame).is_ok())
    {
        return Err(BadSchedule::Malformed);
    }
    let body = |index| envelope.body(index).unwrap_or_default();
    if is_integer(body(2)) && run_count_readable(body(1)) && is_run(body(3)) {
        Ok(())
    } else {
        Err(BadSchedule::Malformed)
    }
}

fn is_integer(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    (1..=18).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit)
}

/// The original looks for the substring, so every item that contains it must be readable.
fn run_count_readable(csv: &[u8]) -> bool {
    const NAME: &[u8] = b"run_count";
    csv.split(|byte| *byte == b',')
        .filter(|item| item.windows(NAME.len()).any(|part| part == NAME))
        .all(|item| {
            item.strip_prefix(b"run_count:")
                .is_some_and(|n| number(n).is_ok())
        })
}

fn is_run(json: &[u8]) -> bool {
    serde_json::from_slice::<Run>(json).is_ok()
}

/// `["run", {six keys}, ...]`, without keeping any of it.
struct Run;

impl<'de> Deserialize<'de> for Run {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Run, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Run;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("[\"run\", {...}]")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Run, A::Error> {
                let first = list.next_element::<String>()?;
                let job = list.next_element::<Job>()?;
                if first.as_deref() != Some("run") || job.is_none() {
                    return Err(serde::de::Error::custom("not a run"));
                }
                if list.next_element::<IgnoredAny>()?.is_some() {
                    return Err(serde::de::Error::custom("more than two elements"));
                }
                Ok(Run)
            }
        }
        deserializer.deserialize_seq(List)
    }
}

struct Job;

impl<'de> Deserialize<'de> for Job {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Job, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Job;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with the six keys of a job")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Job, A::Error> {
                const KEYS: [&str; 6] = [
                    "args",
                    "callable",
                    "class_args",
                    "class_kwargs",
                    "kwargs",
                    "path",
                ];
                let mut seen = 0_u8;
                while let Some(key) = map.next_key::<String>()? {
                    map.next_value::<IgnoredAny>()?;
                    if let Some(place) = KEYS.iter().position(|known| *known == key) {
                        seen |= 1 << place;
                    }
                }
                if seen == (1 << KEYS.len()) - 1 {
                    Ok(Job)
                } else {
                    Err(serde::de::Error::custom("a key is missing"))
                }
            }
        }
        deserializer.deserialize_map(Keys)
    }
}
