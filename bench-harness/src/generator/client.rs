//! The client side of the load: keeps a window of REQUESTs outstanding.

use super::jobs::{Jobs, Violation};
use crate::conn::Conn;
use crate::failure::{Failure, Result};
use crate::wire::{Frames, Template};

/// What a message from the broker was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A job was accepted.
    Accepted,
    /// A job that was sent then has ended.
    Finished { sent_ns: u64 },
}

/// One client connection.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) conn: Conn,
    pub(crate) jobs: Jobs,
}

impl Client {
    pub(crate) fn new(conn: Conn, tag: u32, outstanding: usize) -> Self {
        Client {
            conn,
            jobs: Jobs::new(tag, outstanding),
        }
    }

    /// Sends a REQUEST whose latency counts from `sent_ns`. False: the window is full.
    #[inline]
    pub(crate) fn send(&mut self, request: &Template, sent_ns: u64) -> bool {
        match self.jobs.start(sent_ns) {
            Some(msgid) => {
                request.push(&mut self.conn.out, msgid.bytes());
                true
            }
            None => false,
        }
    }

    /// Takes one message of the broker.
    #[inline]
    pub(crate) fn take(&mut self, buf: &[u8], frames: &Frames) -> Result<Answer> {
        if frames.get(buf, 2) != b"REPLY" {
            return Err(self.unexpected(buf, frames));
        }
        let result = match frames.count {
            5 => self
                .jobs
                .accepted(frames.get(buf, 4))
                .map(|()| Answer::Accepted),
            6.. => self
                .jobs
                .finished(frames.get(buf, 5))
                .map(|sent_ns| Answer::Finished { sent_ns }),
            _ => return Err(self.unexpected(buf, frames)),
        };
        result.map_err(|violation| self.violated(violation))
    }

    #[cold]
    fn violated(&self, violation: Violation) -> Failure {
        Failure::run(format!("{} sent {}", self.conn.label(), violation.text()))
    }

    #[cold]
    fn unexpected(&self, buf: &[u8], frames: &Frames) -> Failure {
        let label = self.conn.label();
        match frames.get(buf, 2) {
            b"REJECT" => Failure::run(format!(
                "{label} rejects a job: {}",
                frames.get(buf, 5).escape_ascii()
            )),
            b"KBYE" => Failure::run(format!("{label} says goodbye in the middle of the run")),
            other => Failure::run(format!(
                "{label} sent a client {:?} with {} frames; expected REPLY with 5 frames or more",
                String::from_utf8_lossy(other),
                frames.count
            )),
        }
    }
}
