//! The account of one client's jobs: every REQUEST gets exactly one acceptance and then exactly
//! one result.

use crate::wire::Msgid;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Sent,
    Accepted,
}

#[derive(Debug, Clone, Copy)]
struct Job {
    msgid: Msgid,
    serial: u32,
    state: State,
    sent_ns: u64,
}

/// What a broker did that the protocol does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Violation {
    /// A message names a job that this client does not have outstanding.
    Unknown,
    /// A job was accepted a second time.
    AcceptedTwice,
    /// A result came before the acceptance.
    ResultFirst,
}

impl Violation {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Violation::Unknown => "an answer to a job that is not outstanding (answered twice?)",
            Violation::AcceptedTwice => "a second acceptance of one job",
            Violation::ResultFirst => "a result before its acceptance",
        }
    }
}

/// Outstanding jobs of one client: a table indexed by the place that each msgid carries.
#[derive(Debug)]
pub(crate) struct Jobs {
    table: Vec<Job>,
    idle: Vec<u16>,
}

impl Jobs {
    /// A table for `outstanding` jobs of the sender `tag`.
    pub(crate) fn new(tag: u32, outstanding: usize) -> Self {
        let places = 0..outstanding.min(usize::from(u16::MAX)) as u16;
        let msgid = Msgid::new(tag);
        let job = |place| Job {
            msgid: msgid.with(place, 0),
            serial: 0,
            state: State::Idle,
            sent_ns: 0,
        };
        Jobs {
            table: places.clone().map(job).collect(),
            idle: places.rev().collect(),
        }
    }

    /// Takes an idle place for a job whose latency counts from `sent_ns`.
    #[inline]
    pub(crate) fn start(&mut self, sent_ns: u64) -> Option<Msgid> {
        let place = self.idle.pop()?;
        let job = &mut self.table[usize::from(place)];
        job.serial = job.serial.wrapping_add(1);
        job.msgid = job.msgid.with(place, job.serial);
        job.state = State::Sent;
        job.sent_ns = sent_ns;
        Some(job.msgid)
    }

    #[inline]
    fn find(&mut self, msgid: &[u8]) -> Result<(usize, &mut Job), Violation> {
        let place = Msgid::place(msgid).ok_or(Violation::Unknown)?;
        match self.table.get_mut(place) {
            Some(job) if job.msgid.bytes()[..] == *msgid && job.state != State::Idle => {
                Ok((place, job))
            }
            _ => Err(Violation::Unknown),
        }
    }

    /// Notes the acceptance of `msgid`.
    #[inline]
    pub(crate) fn accepted(&mut self, msgid: &[u8]) -> Result<(), Violation> {
        let (_, job) = self.find(msgid)?;
        if job.state == State::Accepted {
            return Err(Violation::AcceptedTwice);
        }
        job.state = State::Accepted;
        Ok(())
    }

    /// Notes the result of `msgid`, which ends the job, and returns when it was sent.
    #[inline]
    pub(crate) fn finished(&mut self, msgid: &[u8]) -> Result<u64, Violation> {
        let (place, job) = self.find(msgid)?;
        if job.state == State::Sent {
            return Err(Violation::ResultFirst);
        }
        job.state = State::Idle;
        let sent_ns = job.sent_ns;
        self.idle.push(place as u16);
        Ok(sent_ns)
    }

    /// Unfinished jobs: how many were not accepted, how many were accepted and not answered.
    pub(crate) fn missing(&self) -> (usize, usize) {
        let count = |state| self.table.iter().filter(|job| job.state == state).count();
        (count(State::Sent), count(State::Accepted))
    }

    /// The unfinished job that was sent first.
    pub(crate) fn oldest_missing(&self) -> Option<(u64, Msgid)> {
        let unfinished = self.table.iter().filter(|job| job.state != State::Idle);
        unfinished
            .min_by_key(|job| job.sent_ns)
            .map(|job| (job.sent_ns, job.msgid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_ends_once_after_its_acceptance() {
        let mut jobs = Jobs::new(1, 2);
        let first = jobs.start(10).unwrap();
        assert_eq!(jobs.finished(first.bytes()), Err(Violation::ResultFirst));
        assert_eq!(jobs.accepted(first.bytes()), Ok(()));
        assert_eq!(jobs.accepted(first.bytes()), Err(Violation::AcceptedTwice));
        assert_eq!(jobs.finished(first.bytes()), Ok(10));
        assert_eq!(jobs.finished(first.bytes()), Err(Violation::Unknown));
        assert_eq!(jobs.missing(), (0, 0));
    }

    #[test]
    fn place_used_again_has_a_new_msgid() {
        let mut jobs = Jobs::new(1, 1);
        let first = jobs.start(0).unwrap();
        assert_eq!(jobs.start(0), None);
        jobs.accepted(first.bytes()).unwrap();
        jobs.finished(first.bytes()).unwrap();
        let second = jobs.start(1).unwrap();
        assert_ne!(first, second);
        assert_eq!(jobs.accepted(first.bytes()), Err(Violation::Unknown));
        assert_eq!(jobs.accepted(second.bytes()), Ok(()));
    }

    #[test]
    fn other_senders_jobs_are_unknown() {
        let mut jobs = Jobs::new(1, 1);
        jobs.start(0).unwrap();
        let other = Jobs::new(2, 1).start(0).unwrap();
        assert_eq!(jobs.accepted(other.bytes()), Err(Violation::Unknown));
        assert_eq!(jobs.accepted(b""), Err(Violation::Unknown));
        assert_eq!(
            jobs.accepted(Msgid::new(1).with(9, 1).bytes()),
            Err(Violation::Unknown)
        );
    }

    #[test]
    fn what_is_missing_is_counted_by_state() {
        let mut jobs = Jobs::new(1, 3);
        let ids: Vec<Msgid> = (5..8).map(|at| jobs.start(at).unwrap()).collect();
        jobs.accepted(ids[0].bytes()).unwrap();
        jobs.accepted(ids[1].bytes()).unwrap();
        jobs.finished(ids[0].bytes()).unwrap();
        assert_eq!(jobs.missing(), (1, 1));
        assert_eq!(jobs.oldest_missing(), Some((6, ids[1])));
    }
}
