//! What the workers of all threads have seen of the clients' jobs: a table that both sides share,
//! so that a job's way through the broker can be told from its ends.

use crate::wire::{MSGID_BYTES, Msgid};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A job, as its msgid tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JobRef {
    /// Index of its client over all threads.
    pub(crate) client: usize,
    pub(crate) place: usize,
    pub(crate) serial: u32,
}

/// How a hand-out stands to what the workers have seen before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandOut {
    First,
    /// The same job was handed out before.
    Again,
    /// A later job of the same place was handed out before.
    Earlier,
}

#[derive(Debug, Default)]
struct Place {
    /// The use of the place that was handed out last.
    serial: AtomicU32,
    handed_ns: AtomicU64,
}

/// One entry for each place of each client.
#[derive(Debug)]
pub(crate) struct Board {
    first_tag: u32,
    clients: Vec<Box<[Place]>>,
}

impl Board {
    /// For clients whose tags begin with `first_tag`.
    pub(crate) fn new(first_tag: u32, clients: usize, outstanding: usize) -> Self {
        let places = || (0..outstanding).map(|_| Place::default()).collect();
        Board {
            first_tag,
            clients: (0..clients).map(|_| places()).collect(),
        }
    }

    /// The job with this msgid, if one of the clients can have sent it.
    #[inline]
    pub(crate) fn find(&self, msgid: &[u8; MSGID_BYTES]) -> Option<JobRef> {
        let client = Msgid::tag(msgid)?.checked_sub(self.first_tag)? as usize;
        let place = Msgid::place(msgid)?;
        self.clients.get(client)?.get(place)?;
        let serial = Msgid::serial(msgid)?;
        Some(JobRef {
            client,
            place,
            serial,
        })
    }

    /// Notes that a worker was given the job.
    #[inline]
    pub(crate) fn hand_out(&self, job: JobRef, now_ns: u64) -> HandOut {
        let place = &self.clients[job.client][job.place];
        // Serial numbers of a place only grow; a difference above half of their range is less.
        let before = place.serial.load(Ordering::Relaxed);
        match job.serial.wrapping_sub(before) {
            0 => return HandOut::Again,
            ahead if ahead > u32::MAX / 2 => return HandOut::Earlier,
            _ => {}
        }
        place.handed_ns.store(now_ns, Ordering::Relaxed);
        place.serial.store(job.serial, Ordering::Release);
        HandOut::First
    }

    /// The msgid of the job.
    pub(crate) fn msgid(&self, job: JobRef) -> Msgid {
        Msgid::new(self.first_tag + job.client as u32).with(job.place as u16, job.serial)
    }

    /// When the job was handed out, if a worker of this generator got it.
    #[inline]
    pub(crate) fn handed_ns(&self, job: JobRef) -> Option<u64> {
        let place = &self.clients[job.client][job.place];
        (place.serial.load(Ordering::Acquire) == job.serial)
            .then(|| place.handed_ns.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_is_found_by_its_msgid_and_handed_out_once() {
        let board = Board::new(100, 2, 3);
        let id = Msgid::new(101).with(2, 7);
        let job = board.find(id.bytes()).unwrap();
        assert_eq!((job.client, job.place, job.serial), (1, 2, 7));
        assert_eq!(board.handed_ns(job), None);
        assert_eq!(board.msgid(job), id);
        assert_eq!(board.hand_out(job, 55), HandOut::First);
        assert_eq!(board.handed_ns(job), Some(55));
        assert_eq!(board.hand_out(job, 56), HandOut::Again);
        let next = board.find(id.with(2, 8).bytes()).unwrap();
        assert_eq!(board.hand_out(next, 60), HandOut::First);
        assert_eq!(board.hand_out(job, 61), HandOut::Earlier);
        assert_eq!(board.handed_ns(job), None);
    }

    #[test]
    fn jobs_of_others_are_not_found() {
        let board = Board::new(100, 2, 3);
        for id in [
            Msgid::new(99).with(0, 1),
            Msgid::new(102).with(0, 1),
            Msgid::new(100).with(3, 1),
        ] {
            assert_eq!(board.find(id.bytes()), None);
        }
        assert_eq!(board.find(&[b'-'; MSGID_BYTES]), None);
    }
}
