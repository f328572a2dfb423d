//! Scenario files: what peers say to a broker and what they must hear.
//!
//! The files in `tests/scenarios` are the description of the broker's behaviour on the wire; the
//! same text runs against our broker and against EventMQ 0.3.13, and says where the two differ.
//!
//! ```text
//! scenario lru_equal_weight
//! | Equal weights: the worker used longest ago.
//! set EVENTMQ_HWM=2                       the broker's environment
//! worker A [[10, "default"]] slots 2      connects, INFORM, ACK, READYs; waits until they count
//! worker B [[10, "default"]] with completions
//! scheduler s1                            the same for a scheduler
//! client c1                               connects to the frontend
//! open x backend as hex:00ff              a connection by hand; `nameless`: without a routing id
//! c1 > REQUEST $m default '' @job         sends '' eMQP/1.0 and these frames
//! A < REQUEST $m default '' @job          receives exactly these, HEARTBEATs aside
//! c1 >> junk eMQP/1.0 REQUEST $m          sends only these frames; `<<` receives
//! one of A B as who < REQUEST * * * *     one of them receives it; $who is its name
//! quiet A c1                              nothing more has come for them
//! beat A                                  the next message is a HEARTBEAT
//! slots A 2                               waits until the broker counts two free slots
//! unlisted A                              waits until A gets no more jobs; `listed`
//! admin STATUS -> {"inflight_messages_by_queue": {"default": 1}, "...": 0}
//! admin STATUS == '{...}'                 byte for byte
//! crowd 130 frontend > HEARTBEAT $h 1.0   so many nameless peers send this
//! pause 300                               milliseconds, where nothing can be awaited
//! close A                                 the connection ends, unsent messages with it
//! alive                                   the broker answers STATUS
//! dies 1                                  the broker ends with this code
//! ours:                                   indented lines: only against ours
//!   c1 < REPLY * $m
//! original:                               only against the original
//!   quiet c1
//! ```
//!
//! Frames: `word`, `'quoted \x00'`, `hex:00ff`, `long:300` (so many x), `[...]` and `{...}` as
//! they stand, `$name` (a new uuid when first sent, kept when first received), `@job` (a job as
//! the original client writes it). Received only: `*` (not empty), `/regex/`, `json{...}`.
//! In a JSON pattern `"*"` is anything, `"*num"` a number, `"*str"` a string; an object has exactly
//! the keys given, or more if one of them is `"..."`.
//!
//! A scenario named `scenario NAME ours` or `... original` runs against that side only.

mod lexer;
mod parse;
mod pattern;
mod run;

pub use parse::{Action, Scenario, Side, Step, parse};
pub use pattern::{Frame, json_matches};
pub use run::run;

/// A job as the original's client writes it.
pub const JOB: &str = r#"["run", {"callable": "add", "path": "jobs_x", "args": [1, 2], "kwargs": {}, "class_args": [], "class_kwargs": {}}]"#;
