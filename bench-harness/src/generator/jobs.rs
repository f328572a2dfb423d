//! The account of one client's jobs: every REQUEST gets exactly one acceptance and then ends
//! exactly once, with its result if it asked for one.

use super::board::JobRef;
use crate::wire::Msgid;

/// What ends a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Its result.
    Result,
    /// Its worker is done with it, as the workers of this generator tell.
    Worker,
    /// Its acceptance: nobody tells this generator more.
    Acceptance,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Sent,
    Accepted,
    /// The worker is done, the acceptance is still missing.
    Worked,
}

#[derive(Debug, Clone, Copy)]
struct Job {
    msgid: Msgid,
    serial: u32,
    state: State,
    end: End,
    sent_ns: u64,
    accepted_ns: Option<u64>,
    worked_ns: u64,
}

/// A job that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) job: JobRef,
    pub(crate) sent_ns: u64,
    pub(crate) accepted_ns: Option<u64>,
    pub(crate) ended_ns: u64,
    pub(crate) end: End,
}

/// What a broker did that the protocol does not allow, or that a test of it must not see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Violation {
    /// A message names a job that this client does not have outstanding.
    Unknown,
    /// A job was accepted a second time.
    AcceptedTwice,
    /// A result came before the acceptance.
    ResultFirst,
    /// A result came that was not asked for.
    NotRequested,
    /// A job was handed out a second time.
    HandedOutTwice,
    /// A job was refused.
    Rejected,
    /// A job was lost, and no worker with it.
    Lost,
    /// A job is outstanding at the end.
    Unanswered,
}

impl Violation {
    pub(crate) const ALL: [Violation; 8] = [
        Violation::Unknown,
        Violation::AcceptedTwice,
        Violation::ResultFirst,
        Violation::NotRequested,
        Violation::HandedOutTwice,
        Violation::Rejected,
        Violation::Lost,
        Violation::Unanswered,
    ];

    pub(crate) fn text(self) -> &'static str {
        match self {
            Violation::Unknown => "an answer to a job that is not outstanding (answered twice?)",
            Violation::AcceptedTwice => "a second acceptance of one job",
            Violation::ResultFirst => "a result before its acceptance",
            Violation::NotRequested => "a result that was not asked for",
            Violation::HandedOutTwice => "a job to a worker that was handed out before",
            Violation::Rejected => "a REJECT",
            Violation::Lost => "the result of a lost job, though no worker was lost",
            Violation::Unanswered => "no end of a job",
        }
    }
}

/// Outstanding jobs of one client: a table indexed by the place that each msgid carries.
#[derive(Debug)]
pub(crate) struct Jobs {
    client: usize,
    /// False: acceptances may be missing and late, as those of EventMQ 0.3.13.
    strict: bool,
    table: Vec<Job>,
    idle: Vec<u16>,
}

impl Jobs {
    /// A table for `outstanding` jobs of the client with this index and `tag`.
    pub(crate) fn new(client: usize, tag: u32, outstanding: usize, strict: bool) -> Self {
        let places = 0..outstanding.min(usize::from(u16::MAX)) as u16;
        let msgid = Msgid::new(tag);
        let job = |place| Job {
            msgid: msgid.with(place, 0),
            serial: 0,
            state: State::Idle,
            end: End::Result,
            sent_ns: 0,
            accepted_ns: None,
            worked_ns: 0,
        };
        Jobs {
            client,
            strict,
            table: places.clone().map(job).collect(),
            idle: places.rev().collect(),
        }
    }

    /// Takes an idle place for a job whose latency counts from `sent_ns`.
    #[inline]
    pub(crate) fn start(&mut self, sent_ns: u64, end: End) -> Option<Msgid> {
        let place = self.idle.pop()?;
        let job = &mut self.table[usize::from(place)];
        job.serial = job.serial.wrapping_add(1);
        job.msgid = job.msgid.with(place, job.serial);
        (job.state, job.end) = (State::Sent, end);
        (job.sent_ns, job.accepted_ns) = (sent_ns, None);
        Some(job.msgid)
    }

    /// True if no place is idle.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.idle.is_empty()
    }

    #[inline]
    fn find(&mut self, msgid: &[u8]) -> Result<(usize, &mut Job), Violation> {
        let place = Msgid::place(msgid).ok_or(Violation::Unknown)?;
        match self.table.get_mut(place) {
            Some(job) if job.msgid.bytes()[..] == *msgid => Ok((place, job)),
            _ => Err(Violation::Unknown),
        }
    }

    #[inline]
    fn end(&mut self, place: usize, ended_ns: u64) -> Ended {
        let job = &mut self.table[place];
        job.state = State::Idle;
        self.idle.push(place as u16);
        Ended {
            job: JobRef {
                client: self.client,
                place,
                serial: job.serial,
            },
            sent_ns: job.sent_ns,
            accepted_ns: job.accepted_ns,
            ended_ns,
            end: job.end,
        }
    }

    /// Notes the acceptance of `msgid`, which may end the job.
    #[inline]
    pub(crate) fn accepted(
        &mut self,
        msgid: &[u8],
        now_ns: u64,
    ) -> Result<Option<Ended>, Violation> {
        let strict = self.strict;
        let (place, job) = match self.find(msgid) {
            Err(_) if !strict => return Ok(None),
            found => found?,
        };
        match (job.state, job.end) {
            (State::Accepted, _) => return Err(Violation::AcceptedTwice),
            (State::Idle, _) if strict => return Err(Violation::Unknown),
            (State::Idle, _) => return Ok(None),
            (State::Worked, _) => {
                job.accepted_ns = Some(now_ns);
                let worked_ns = job.worked_ns;
                return Ok(Some(self.end(place, worked_ns)));
            }
            (State::Sent, End::Acceptance) => {
                job.accepted_ns = Some(now_ns);
                return Ok(Some(self.end(place, now_ns)));
            }
            (State::Sent, _) => {
                job.state = State::Accepted;
                job.accepted_ns = Some(now_ns);
            }
        }
        Ok(None)
    }

    /// Notes the result of `msgid`, which ends the job.
    #[inline]
    pub(crate) fn finished(&mut self, msgid: &[u8], now_ns: u64) -> Result<Ended, Violation> {
        let (place, job) = self.find(msgid)?;
        match (job.state, job.end) {
            (State::Idle, _) => Err(Violation::Unknown),
            (_, End::Worker | End::Acceptance) => Err(Violation::NotRequested),
            (State::Sent, _) => Err(Violation::ResultFirst),
            _ => Ok(self.end(place, now_ns)),
        }
    }

    /// A worker is done with a job that asked for no result. None: it has not been accepted yet,
    /// or has ended another way.
    pub(crate) fn worked(&mut self, place: usize, serial: u32, now_ns: u64) -> Option<Ended> {
        let strict = self.strict;
        let job = self.table.get_mut(place)?;
        if job.serial != serial || job.end != End::Worker {
            return None;
        }
        match job.state {
            State::Accepted => Some(self.end(place, now_ns)),
            State::Sent if !strict => Some(self.end(place, now_ns)),
            State::Sent => {
                (job.state, job.worked_ns) = (State::Worked, now_ns);
                None
            }
            State::Idle | State::Worked => None,
        }
    }

    /// Notes that `msgid` was refused, which ends the job.
    pub(crate) fn rejected(&mut self, msgid: &[u8], now_ns: u64) -> Result<Ended, Violation> {
        let (place, job) = self.find(msgid)?;
        match job.state {
            State::Sent => Ok(self.end(place, now_ns)),
            State::Idle | State::Accepted | State::Worked => Err(Violation::Unknown),
        }
    }

    /// Forgets all outstanding jobs, whose number is returned: nobody will hear of them.
    pub(crate) fn abandon(&mut self) -> u64 {
        let mut abandoned = 0;
        for place in 0..self.table.len() {
            if self.table[place].state != State::Idle {
                self.end(place, 0);
                abandoned += 1;
            }
        }
        abandoned
    }

    /// Unfinished jobs: how many were not accepted, how many were accepted and not ended.
    pub(crate) fn missing(&self) -> (usize, usize) {
        let count = |state| self.table.iter().filter(|job| job.state == state).count();
        (
            count(State::Sent) + count(State::Worked),
            count(State::Accepted),
        )
    }

    /// Unfinished jobs, in no order.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = (u64, Msgid)> {
        let unfinished = self.table.iter().filter(|job| job.state != State::Idle);
        unfinished.map(|job| (job.sent_ns, job.msgid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs(places: usize) -> Jobs {
        Jobs::new(0, 1, places, true)
    }

    #[test]
    fn job_ends_once_after_its_acceptance() {
        let mut jobs = jobs(2);
        let first = jobs.start(10, End::Result).unwrap();
        assert_eq!(jobs.finished(first.bytes(), 1), Err(Violation::ResultFirst));
        assert_eq!(jobs.accepted(first.bytes(), 20), Ok(None));
        assert_eq!(
            jobs.accepted(first.bytes(), 21),
            Err(Violation::AcceptedTwice)
        );
        let ended = jobs.finished(first.bytes(), 30).unwrap();
        assert_eq!(
            (ended.sent_ns, ended.accepted_ns, ended.ended_ns),
            (10, Some(20), 30)
        );
        assert_eq!(jobs.finished(first.bytes(), 31), Err(Violation::Unknown));
        assert_eq!(jobs.accepted(first.bytes(), 31), Err(Violation::Unknown));
        assert_eq!(jobs.missing(), (0, 0));
    }

    #[test]
    fn job_without_result_ends_when_accepted_and_worked_on() {
        for worker_first in [false, true] {
            let mut jobs = jobs(1);
            let id = jobs.start(10, End::Worker).unwrap();
            let ended = if worker_first {
                assert_eq!(jobs.worked(0, 1, 30), None);
                assert_eq!(jobs.missing(), (1, 0));
                jobs.accepted(id.bytes(), 40).unwrap()
            } else {
                assert_eq!(jobs.accepted(id.bytes(), 20), Ok(None));
                jobs.worked(0, 1, 30)
            };
            assert_eq!(ended.unwrap().ended_ns, 30);
            assert_eq!(jobs.worked(0, 1, 50), None);
            let id = jobs.start(60, End::Worker).unwrap();
            jobs.accepted(id.bytes(), 61).unwrap();
            assert_eq!(jobs.finished(id.bytes(), 62), Err(Violation::NotRequested));
        }
    }

    #[test]
    fn acceptance_ends_a_job_that_nobody_tells_of() {
        let mut jobs = jobs(1);
        let id = jobs.start(10, End::Acceptance).unwrap();
        assert_eq!(jobs.accepted(id.bytes(), 25).unwrap().unwrap().ended_ns, 25);
    }

    #[test]
    fn the_originals_acceptances_may_be_late_or_missing() {
        let mut jobs = Jobs::new(0, 1, 1, false);
        let first = jobs.start(10, End::Worker).unwrap();
        assert!(jobs.worked(0, 1, 20).is_some());
        assert_eq!(jobs.accepted(first.bytes(), 30), Ok(None));
        let second = jobs.start(40, End::Worker).unwrap();
        assert_eq!(jobs.accepted(first.bytes(), 50), Ok(None));
        assert_eq!(jobs.accepted(second.bytes(), 50), Ok(None));
        assert_eq!(jobs.worked(0, 2, 60).unwrap().accepted_ns, Some(50));
    }

    #[test]
    fn place_used_again_has_a_new_msgid() {
        let mut jobs = jobs(1);
        let first = jobs.start(0, End::Result).unwrap();
        assert!(jobs.is_full());
        assert_eq!(jobs.start(0, End::Result), None);
        jobs.accepted(first.bytes(), 1).unwrap();
        jobs.finished(first.bytes(), 2).unwrap();
        let second = jobs.start(1, End::Result).unwrap();
        assert_ne!(first, second);
        assert_eq!(jobs.accepted(first.bytes(), 3), Err(Violation::Unknown));
        assert_eq!(jobs.accepted(second.bytes(), 3), Ok(None));
    }

    #[test]
    fn other_senders_jobs_are_unknown() {
        let mut jobs = jobs(1);
        jobs.start(0, End::Result).unwrap();
        let other = Jobs::new(0, 2, 1, true).start(0, End::Result).unwrap();
        for id in [&other.bytes()[..], b"", Msgid::new(1).with(9, 1).bytes()] {
            assert_eq!(jobs.accepted(id, 1), Err(Violation::Unknown));
        }
    }

    #[test]
    fn refused_and_abandoned_jobs_free_their_places() {
        let mut jobs = jobs(2);
        let first = jobs.start(5, End::Result).unwrap();
        assert!(jobs.rejected(first.bytes(), 6).is_ok());
        assert_eq!(jobs.rejected(first.bytes(), 6), Err(Violation::Unknown));
        let second = jobs.start(7, End::Result).unwrap();
        jobs.accepted(second.bytes(), 8).unwrap();
        assert_eq!(jobs.rejected(second.bytes(), 9), Err(Violation::Unknown));
        assert_eq!((jobs.abandon(), jobs.abandon()), (1, 0));
        assert_eq!(jobs.finished(second.bytes(), 9), Err(Violation::Unknown));
    }

    #[test]
    fn what_is_missing_is_counted_by_state() {
        let mut jobs = jobs(3);
        let ids: Vec<Msgid> = (5..8)
            .map(|at| jobs.start(at, End::Result).unwrap())
            .collect();
        jobs.accepted(ids[0].bytes(), 9).unwrap();
        jobs.accepted(ids[1].bytes(), 9).unwrap();
        jobs.finished(ids[0].bytes(), 9).unwrap();
        assert_eq!(jobs.missing(), (1, 1));
        assert_eq!(
            jobs.outstanding().min_by_key(|job| job.0),
            Some((6, ids[1]))
        );
    }
}
