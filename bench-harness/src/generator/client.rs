//! The client side of the load: keeps a window of REQUESTs outstanding.

use super::incident::Incident;
use super::jobs::{End, Ended, Jobs, Violation};
use super::requests::Requests;
use crate::conn::Conn;
use crate::service::Random;
use crate::wire::{Frames, Msgid, STATUS_ERROR, STATUS_LOST};

/// What a message from the broker was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A job was accepted, which may have ended it.
    Accepted(Option<Ended>),
    /// The result of a job.
    Finished(Ended, Outcome),
}

/// How a job with a result went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Failed,
    Lost,
}

/// One client connection.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) conn: Conn,
    pub(crate) jobs: Jobs,
    random: Random,
    /// Jobs sent so far, which take the queues in turn.
    sent: usize,
    /// Nothing is read before this time.
    pub(crate) paused_until_ns: Option<u64>,
}

/// A job that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) guaranteed: bool,
}

impl Client {
    pub(crate) fn new(conn: Conn, jobs: Jobs, index: usize) -> Self {
        Client {
            conn,
            jobs,
            random: Random::new(index as u64),
            // Clients begin with different queues.
            sent: index,
            paused_until_ns: None,
        }
    }

    /// Sends a REQUEST whose latency counts from `sent_ns`. None: the window is full.
    #[inline]
    pub(crate) fn send(&mut self, requests: &Requests, sent_ns: u64) -> Option<Sent> {
        if self.jobs.is_full() {
            return None;
        }
        let with_result = self.random.chance(requests.reply_share);
        let guaranteed = self.random.chance(requests.guarantee_share);
        let end = if with_result && requests.results_come {
            End::Result
        } else {
            requests.end_without_result
        };
        let msgid = self.jobs.start(sent_ns, end)?;
        let template = requests.template(self.sent, with_result, guaranteed);
        self.sent = self.sent.wrapping_add(1);
        template.push(&mut self.conn.out, msgid.bytes());
        Some(Sent { guaranteed })
    }

    /// Takes one message of the broker.
    #[inline]
    pub(crate) fn take(
        &mut self,
        buf: &[u8],
        frames: &Frames,
        now_ns: u64,
    ) -> Result<Answer, Incident> {
        if frames.get(buf, 2) != b"REPLY" {
            return Err(self.unexpected(buf, frames, now_ns));
        }
        let (msgid, result) = match frames.count {
            5 => {
                let msgid = frames.get(buf, 4);
                let accepted = self.jobs.accepted(msgid, now_ns);
                (msgid, accepted.map(Answer::Accepted))
            }
            6.. => {
                let msgid = frames.get(buf, 5);
                let outcome = match frames.get(buf, 6) {
                    STATUS_ERROR => Outcome::Failed,
                    STATUS_LOST => Outcome::Lost,
                    _ => Outcome::Done,
                };
                let ended = self.jobs.finished(msgid, now_ns);
                (msgid, ended.map(|ended| Answer::Finished(ended, outcome)))
            }
            _ => return Err(self.unexpected(buf, frames, now_ns)),
        };
        result.map_err(|violation| self.violated(violation, msgid))
    }

    #[cold]
    pub(crate) fn violated(&self, violation: Violation, msgid: &[u8]) -> Incident {
        let label = self.conn.label();
        Incident::job(violation, msgid, label, violation.text())
    }

    #[cold]
    fn unexpected(&mut self, buf: &[u8], frames: &Frames, now_ns: u64) -> Incident {
        let label = self.conn.label().to_owned();
        match frames.get(buf, 2) {
            b"REJECT" => {
                let (msgid, reason) = (frames.get(buf, 4), frames.get(buf, 5));
                match self.jobs.rejected(msgid, now_ns) {
                    Ok(ended) => Incident::rejected(ended, msgid, &label, reason),
                    Err(violation) => self.violated(violation, msgid),
                }
            }
            b"KBYE" => Incident::fatal(format!(
                "{label} says goodbye in the middle of the run: the broker is ending"
            )),
            b"DISCONNECT" => Incident::fatal(format!(
                "{label} sends the clients away: the broker is ending"
            )),
            other => Incident::fatal(format!(
                "{label} sent a client {:?} with {} frames; expected REPLY with 5 frames or more",
                String::from_utf8_lossy(other),
                frames.count
            )),
        }
    }

    /// The unfinished job that was sent first.
    pub(crate) fn oldest_missing(&self) -> Option<(u64, Msgid)> {
        self.jobs.outstanding().min_by_key(|(sent_ns, _)| *sent_ns)
    }
}
