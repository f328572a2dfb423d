//! REQUESTs taken, refused, and answered.

use super::link::{Finished, State};
use super::{Action, Manager};
use crate::emqp::{Command, Envelope, JobStatus, MessageBuilder, RequestHeaders};
use crate::ids::Now;
use crate::jobmanager::executor::Job;
use crate::jobmanager::outcome::Ending;
use crate::jobmanager::pool::JobId;
use crate::metrics::Counter;

/// Jobs beyond its slots that a broker can have sent by mistake before they are refused.
const SURPLUS_MAX: usize = 64;

/// A job that runs.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) broker: usize,
    pub(super) msgid: Vec<u8>,
    /// The result is asked for.
    reply: bool,
}

impl Manager {
    pub(super) fn on_request(&mut self, broker: usize, envelope: &Envelope<'_>, now: Now) {
        let link = &mut self.links[broker];
        // Whichever offer it answers.
        if link.doubt > 0 {
            link.doubt -= 1;
        } else {
            link.offered = link.offered.saturating_sub(1);
        }
        link.offered_min = link.offered_min.min(link.offered);
        let msgid = envelope.msgid.to_vec();
        let leaving = matches!(link.state, State::Leaving);
        let surplus = self.jobs.len() >= 2 * self.config.slots + SURPLUS_MAX;
        // The original has forgotten a job it has handed out: refused, it would be lost.
        if leaving && link.ours {
            self.counters.inc(Counter::ManagerJobsRefused);
            return self.tell_end(broker, &msgid, JobStatus::Refused.word());
        }
        if surplus {
            // Whatever it counts, it counts anew.
            self.counters.inc(Counter::ManagerJobsRefused);
            self.links[broker].finished.push_back(Finished {
                msgid,
                status: JobStatus::Refused.word(),
                result: None,
                since_ns: now.mono_ns,
            });
            if matches!(self.links[broker].state, State::Registered) {
                self.register_anew(broker, now);
            }
            return;
        }
        self.counters.inc(Counter::ManagerJobsTaken);
        let id = self.next_job;
        self.next_job += 1;
        self.links[broker].running += 1;
        let headers = envelope.body(1).unwrap_or_default();
        let (reply, parsed) = match RequestHeaders::parse(headers) {
            Ok(parsed) => (parsed.worker_replies, Ok(parsed)),
            Err(bad) => (
                headers.windows(15).any(|part| part == b"reply-requested"),
                Err(bad.to_string()),
            ),
        };
        self.jobs.insert(
            id,
            Running {
                broker,
                msgid,
                reply,
            },
        );
        let job = match (parsed, envelope.body(2)) {
            (Ok(headers), Some(payload)) => Ok((headers, payload.to_vec())),
            (Err(bad), _) => Err(bad),
            (_, None) => Err("fewer than three body frames".to_owned()),
        };
        match job {
            Ok((headers, payload)) => {
                let timeout_ms = match headers.timeout_secs {
                    0 => self.config.global_timeout_ms,
                    secs => u64::from(secs) * 1000,
                };
                self.act(Action::Run(Job {
                    id,
                    payload,
                    timeout_ms,
                }));
            }
            // Its sender's fault, and nobody else's matter.
            Err(message) => {
                let ending = Ending::failure("MessageError", &message, "");
                self.on_ended(id, ending, now);
            }
        }
    }

    pub(super) fn on_ended(&mut self, id: JobId, ending: Ending, now: Now) {
        let Some(job) = self.jobs.remove(&id) else {
            debug_assert!(false, "a job ended twice");
            return;
        };
        self.links[job.broker].running -= 1;
        let status = ending.status();
        self.counters.inc(match status {
            JobStatus::Ok => Counter::JobsDone,
            JobStatus::Timeout => Counter::JobsTimedOut,
            JobStatus::Lost => Counter::JobsLost,
            JobStatus::Refused => Counter::ManagerJobsRefused,
            JobStatus::Error | JobStatus::Cancelled | JobStatus::Dead => Counter::JobsFailed,
        });
        let ours = self.links[job.broker].ours;
        // The original cannot take a job back: its client is told that it was lost.
        let result =
            (job.reply && (status != JobStatus::Refused || !ours)).then(|| ending.into_result());
        let end = Finished {
            msgid: job.msgid,
            status: status.word(),
            result,
            since_ns: now.mono_ns,
        };
        self.links[job.broker].finished.push_back(end);
        self.send_finished(job.broker, now);
    }

    /// Sends the ends of jobs that can be told now. REPLYs may go before the ACK, READYs not.
    pub(super) fn send_finished(&mut self, broker: usize, now: Now) {
        let link = &self.links[broker];
        if !link.is_connected() {
            return;
        }
        let informing = matches!(link.state, State::Informing { .. });
        for at in 0..self.links[broker].finished.len() {
            let end = &mut self.links[broker].finished[at];
            if let Some(result) = end.result.take() {
                let (msgid, status) = (end.msgid.clone(), end.status);
                self.send_result(broker, &result, &msgid, status);
            }
        }
        if informing {
            return;
        }
        while let Some(end) = self.links[broker].finished.pop_front() {
            self.tell_end(broker, &end.msgid, end.status);
        }
        self.offer_free_slots(now);
    }

    fn send_result(&mut self, broker: usize, result: &[u8], job: &[u8], status: &[u8]) {
        let msgid = self.next_msgid();
        let mut wire = Vec::with_capacity(result.len() + job.len() + 128);
        let message = MessageBuilder::begin(&mut wire, Command::Reply)
            .frame(&msgid)
            .frame(result);
        if self.links[broker].ours {
            message.frame(job).last(status);
        } else {
            message.last(job);
        }
        self.act(Action::Send { broker, wire });
    }

    /// READY naming a job, for a broker of ours: its slot is offered again with it. Others get
    /// their READY as any free slot does.
    fn tell_end(&mut self, broker: usize, job: &[u8], status: &[u8]) {
        let msgid = self.next_msgid();
        let link = &mut self.links[broker];
        if !link.ours || !link.is_connected() {
            return;
        }
        // As the broker counts: no slot beyond those it was told of.
        if matches!(link.state, State::Registered) && link.in_flight() + link.offered < link.told {
            link.offered += 1;
        }
        let mut wire = Vec::new();
        MessageBuilder::begin(&mut wire, Command::Ready)
            .frame(&msgid)
            .frame(job)
            .last(status);
        self.act(Action::Send { broker, wire });
    }

    pub(super) fn on_unsent(&mut self, broker: usize, envelope: &Envelope<'_>, now: Now) {
        let (result, job, status) = match envelope.command {
            Command::Ready => (None, envelope.body(0), envelope.body(1)),
            Command::Reply => (envelope.body(0), envelope.body(1), envelope.body(2)),
            _ => return,
        };
        let Some(job) = job.filter(|job| !job.is_empty()) else {
            return;
        };
        let result = result.map(<[u8]>::to_vec);
        let status = status.and_then(JobStatus::parse).unwrap_or(JobStatus::Ok);
        let ends = &mut self.links[broker].finished;
        // The READY behind this REPLY is there already.
        let ready = ends
            .iter_mut()
            .find(|end| end.msgid == job && end.result.is_none());
        match (ready, result) {
            (Some(end), Some(result)) => end.result = Some(result),
            (_, result) => ends.push_front(Finished {
                msgid: job.to_vec(),
                status: status.word(),
                result,
                since_ns: now.mono_ns,
            }),
        }
    }

    /// Forgets ends of jobs from before `since_ns` that nobody took.
    pub(super) fn drop_finished(&mut self, broker: usize, since_ns: u64) {
        let ends = &mut self.links[broker].finished;
        let mut dropped = 0_u64;
        while ends.front().is_some_and(|end| end.since_ns <= since_ns) {
            ends.pop_front();
            dropped += 1;
        }
        if dropped > 0 {
            self.counters.add(Counter::ManagerEndsDropped, dropped);
            tracing::warn!(
                broker = self.named(broker),
                dropped,
                "ends of jobs could not be told: the broker is gone"
            );
        }
    }
}
