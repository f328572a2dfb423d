//! Asking a broker over its administrative socket.

use crate::failure::{Failure, Result};
use crate::handshake::{self, Opened, STEP_SECS_MAX};
use crate::wire::{Msgid, message};
use eventmq::addr::Addr;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Sender of the questions.
const TAG: u32 = 0xad31_0000;

/// A connection to an administrative socket.
#[derive(Debug)]
pub(crate) struct Admin(Opened);

impl Admin {
    /// Connects.
    pub(crate) fn connect(addr: &Addr) -> Result<Self> {
        let identity = format!("bench-admin-{}", std::process::id());
        handshake::connect(addr, identity.as_bytes()).map(Admin)
    }

    /// Sends `command` and waits for the JSON of the answer.
    pub(crate) fn ask(&mut self, command: &str) -> Result<Value> {
        let text = self.ask_text(command)?;
        serde_json::from_slice(&text).map_err(|error| {
            Failure::run(format!(
                "{} answers {command} with what is no JSON: {error}",
                self.0.label
            ))
        })
    }

    /// Sends `command` and waits for the answer, which is not read.
    pub(crate) fn ask_text(&mut self, command: &str) -> Result<Vec<u8>> {
        let msgid = Msgid::new(TAG);
        self.0
            .send(&message(&[command.as_bytes(), msgid.bytes()]))?;
        let until = Instant::now() + Duration::from_secs(STEP_SECS_MAX);
        let mut frames = self
            .0
            .next_message(&format!("an answer to {command}"), until)?;
        if frames.get(2).map(Vec::as_slice) != Some(b"REPLY") {
            return Err(Failure::run(format!(
                "{} answers {command} with {}; is it an administrative address?",
                self.0.label,
                frames.get(2).map_or(&[][..], Vec::as_slice).escape_ascii()
            )));
        }
        // '', eMQP/1.0, REPLY, an id, JSON: 0.3.13 puts the JSON into the last frame as well.
        Ok(frames.pop().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::{Threading, start_in_process};

    #[test]
    fn broker_answers_what_it_is_asked() {
        let (_server, addresses) = start_in_process(Threading::Inline).unwrap();
        let mut admin = Admin::connect(&addresses.administrative.unwrap()).unwrap();
        let status = admin.ask("STATUS").unwrap();
        assert!(status["waiting_messages_by_queue"].is_object(), "{status}");
        assert!(admin.ask("LATENCY").unwrap()["cumulative"].is_object());
        assert!(admin.ask("COUNTERS").unwrap()["counters"].is_object());
    }
}
