//! Taking what the broker sends to the clients and workers of a thread.

use super::board::HandOut;
use super::client::{Answer, Outcome};
use super::incident::Incident;
use super::jobs::{Ended, Violation};
use super::shared::Worked;
use super::tally::Way;
use super::worker::{Given, not_ours};
use super::{Generator, Pace};
use crate::conn::More;
use crate::failure::{Failure, Result};
use crate::service::Service;
use crate::wire::{Frames, Front, MSGID_BYTES, walk};
use std::cmp::Reverse;
use std::sync::atomic::Ordering;

/// The broker notices the death of a worker within this time, so that jobs sent in it may still
/// be lost with the worker.
const LOSS_NOTICED_NS: u64 = 3_000_000_000;

/// A job that a worker is busy with. Ordered by the time of its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct InService {
    pub(super) due_ns: u64,
    /// Of two that end at the same time the earlier one goes first.
    number: u64,
    worker: usize,
    life: u32,
    msgid: [u8; MSGID_BYTES],
    wants_result: bool,
}

impl Generator<'_> {
    pub(super) fn serve(&mut self, at: usize) -> Result<()> {
        if at < self.clients.len() {
            self.serve_client(at)
        } else {
            self.serve_worker(at)
        }
    }

    /// Connections whose input no event tells of.
    pub(super) fn serve_again(&mut self) -> Result<()> {
        for at in std::mem::take(&mut self.again) {
            self.serve(at)?;
        }
        Ok(())
    }

    fn serve_client(&mut self, at: usize) -> Result<()> {
        if self.clients[at].paused_until_ns.is_some() {
            return Ok(());
        }
        let mut frames = Frames::default();
        let mut scratch = std::mem::take(&mut self.scratch);
        let more = loop {
            let client = &mut self.clients[at];
            let (buf, more) = client.conn.receive(&mut scratch)?;
            let mut rest = buf;
            loop {
                match walk(rest, &mut frames) {
                    Front::Message(len) => {
                        let answer = self.clients[at].take(rest, &frames, self.now_ns);
                        rest = &rest[len..];
                        match answer {
                            Ok(answer) => self.count(answer)?,
                            Err(incident) => {
                                if let Some(ended) = incident.ended {
                                    self.count_end(&ended);
                                }
                                self.incident(incident)?;
                            }
                        }
                    }
                    Front::Command { body_at, end } => {
                        pong(&rest[body_at..end], &mut self.clients[at].conn.out);
                        rest = &rest[end..];
                    }
                    Front::Partial => break,
                    Front::Malformed => return Err(not_zmtp(self.clients[at].conn.label(), rest)),
                }
            }
            self.clients[at].conn.keep(rest);
            if more != More::Likely {
                break more;
            }
        };
        self.scratch = scratch;
        if more == More::Closed {
            return Err(self.closed(at));
        }
        if matches!(self.pace, Pace::Closed) {
            self.fill_window(at);
        }
        if !self.clients[at].conn.is_flushed() {
            self.list(at);
        }
        Ok(())
    }

    #[inline]
    fn count(&mut self, answer: Answer) -> Result<()> {
        match answer {
            Answer::Accepted(ended) => {
                self.turn.1 += 1;
                self.tally.accepted += 1;
                self.tally.recorded.accepted += u64::from(self.recording);
                if let Some(ended) = ended {
                    self.tally.recorded.without_result += u64::from(self.recording);
                    self.count_end(&ended);
                }
            }
            Answer::Finished(ended, outcome) => {
                self.count_end(&ended);
                match outcome {
                    Outcome::Done => {}
                    Outcome::Failed => self.tally.recorded.failed += u64::from(self.recording),
                    Outcome::Lost => return self.count_lost(&ended),
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn count_end(&mut self, ended: &Ended) {
        self.turn.0 += 1;
        self.tally.done += 1;
        self.outstanding -= 1;
        if self.recording {
            self.tally.record(&Way {
                sent_ns: ended.sent_ns,
                accepted_ns: ended.accepted_ns,
                handed_ns: self.links.board.handed_ns(ended.job),
                ended_ns: ended.ended_ns,
            });
        }
    }

    /// A job may be lost only with a worker that this generator has killed.
    #[cold]
    fn count_lost(&mut self, ended: &Ended) -> Result<()> {
        self.tally.lost += 1;
        let killed_ns = self.shared.killed_ns.load(Ordering::Relaxed);
        if killed_ns > 0 && ended.sent_ns <= killed_ns + LOSS_NOTICED_NS {
            return Ok(());
        }
        let msgid = self.links.board.msgid(ended.job);
        let what = Violation::Lost.text();
        self.incident(Incident::job(
            Violation::Lost,
            msgid.bytes(),
            "the broker",
            what,
        ))
    }

    fn serve_worker(&mut self, at: usize) -> Result<()> {
        let worker_at = at - self.clients.len();
        let mut frames = Frames::default();
        let mut scratch = std::mem::take(&mut self.scratch);
        let more = loop {
            let (buf, more) = self.workers[worker_at].conn.receive(&mut scratch)?;
            let mut rest = buf;
            loop {
                let worker = &mut self.workers[worker_at];
                match walk(rest, &mut frames) {
                    Front::Message(len) => {
                        match worker.take(rest, &frames) {
                            Ok(Some(given)) => self.work(worker_at, &given)?,
                            Ok(None) => {}
                            Err(incident) => self.incident(incident)?,
                        }
                        rest = &rest[len..];
                    }
                    Front::Command { body_at, end } => {
                        pong(&rest[body_at..end], &mut worker.conn.out);
                        rest = &rest[end..];
                    }
                    Front::Partial => break,
                    Front::Malformed => return Err(not_zmtp(worker.conn.label(), rest)),
                }
            }
            self.workers[worker_at].conn.keep(rest);
            if more != More::Likely {
                break more;
            }
        };
        self.scratch = scratch;
        if more == More::Closed {
            return Err(self.closed(at));
        }
        if !self.workers[worker_at].conn.is_flushed() {
            self.list(at);
        }
        Ok(())
    }

    /// A worker has been given a job.
    #[inline]
    fn work(&mut self, worker_at: usize, given: &Given) -> Result<()> {
        let Some(job) = self.links.board.find(&given.msgid) else {
            return self.incident(not_ours());
        };
        match self.links.board.hand_out(job, self.now_ns) {
            HandOut::First => {}
            // A job that its client has abandoned, whose place is in use again.
            HandOut::Earlier if self.tolerant => {}
            HandOut::Earlier | HandOut::Again => {
                let label = self.workers[worker_at].conn.label().to_owned();
                let violation = Violation::HandedOutTwice;
                self.incident(Incident::job(
                    violation,
                    &given.msgid,
                    &label,
                    violation.text(),
                ))?;
            }
        }
        if self.service == Service::None {
            self.answer(worker_at, &given.msgid, given.wants_result);
            return Ok(());
        }
        self.in_service_number += 1;
        self.in_service.push(Reverse(InService {
            due_ns: self.now_ns + self.service.draw_ns(&mut self.random),
            number: self.in_service_number,
            worker: worker_at,
            life: self.workers[worker_at].life,
            msgid: given.msgid,
            wants_result: given.wants_result,
        }));
        Ok(())
    }

    /// A worker is done with a job.
    #[inline]
    fn answer(&mut self, worker_at: usize, msgid: &[u8; MSGID_BYTES], wants_result: bool) {
        let failed = self.random.chance(self.fail_share);
        self.workers[worker_at].answer(msgid, failed, &self.templates);
        if wants_result && self.requests.results_come {
            return;
        }
        if let Some(job) = self.links.board.find(msgid) {
            let at_ns = self.now_ns;
            self.worked.push(Worked { job, at_ns });
        }
    }

    /// Ends the jobs whose time is over.
    pub(super) fn end_services(&mut self) {
        while let Some(Reverse(next)) = self.in_service.peek().copied() {
            if next.due_ns > self.now_ns {
                break;
            }
            self.in_service.pop();
            let worker = &self.workers[next.worker];
            // What a worker was busy with dies with it.
            if worker.life == next.life && worker.conn.is_open() {
                self.answer(next.worker, &next.msgid, next.wants_result);
                self.list(self.clients.len() + next.worker);
            }
        }
    }

    /// Tells the clients of jobs without result what workers have done.
    pub(super) fn take_worked(&mut self) {
        let mut worked = std::mem::take(&mut self.worked);
        let mut told = vec![false; if worked.is_empty() { 0 } else { self.threads }];
        for one in worked.drain(..) {
            let (thread, at) = self.links.routes[one.job.client];
            if thread == self.index {
                self.end_worked(at, &one);
            } else {
                self.links.threads[thread].send(one);
                told[thread] = true;
            }
        }
        self.worked = worked;
        for thread in (0..told.len()).filter(|thread| told[*thread]) {
            // A thread that has ended needs not be woken.
            let _ = self.links.threads[thread].waker.wake();
        }
        while let Ok(one) = self.worked_here.try_recv() {
            let (_, at) = self.links.routes[one.job.client];
            self.end_worked(at, &one);
        }
    }

    fn end_worked(&mut self, at: usize, worked: &Worked) {
        let jobs = &mut self.clients[at].jobs;
        let Some(ended) = jobs.worked(worked.job.place, worked.job.serial, worked.at_ns) else {
            return;
        };
        self.tally.recorded.without_result += u64::from(self.recording);
        self.count_end(&ended);
        if matches!(self.pace, Pace::Closed) {
            self.fill_window(at);
            self.list(at);
        }
    }
}

/// Answers a PING (ZMTP 3.1) with a PONG that echoes its context.
#[cold]
pub(super) fn pong(command: &[u8], out: &mut Vec<u8>) {
    if let Some(rest) = command.strip_prefix(b"\x04PING")
        && let Some(context) = rest.get(2..).filter(|context| context.len() <= 16)
    {
        out.extend_from_slice(&[4, 5 + context.len() as u8]);
        out.extend_from_slice(b"\x04PONG");
        out.extend_from_slice(context);
    }
}

#[cold]
fn not_zmtp(label: &str, rest: &[u8]) -> Failure {
    let begin = &rest[..rest.len().min(16)];
    Failure::run(format!(
        "{label} sent what is no ZMTP message: {}",
        begin.escape_ascii()
    ))
}
