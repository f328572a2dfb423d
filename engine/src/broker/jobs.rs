//! Jobs in flight: a slab of records, a table by (worker, msgid), and lists in hand-out order.

use super::slab::{Dense, NONE};
use super::store::{BlockPool, Body, JobMeta, flags};
use ahash::RandomState;
use hashbrown::HashTable;
use std::hash::{BuildHasher, Hasher};

/// Msgids up to this length (uuid text and a little more) are kept inside the record.
const INLINE_MSGID_BYTES: usize = 40;
/// Kept bodies whose buffer is used again: capacity and number.
const SPARE_BODY_BYTES: usize = 4 * 1024;
const SPARE_BODIES: usize = 1_024;

/// One job in flight.
#[derive(Debug)]
pub(super) struct Job {
    /// Hash of (worker, msgid).
    hash: u64,
    /// What came with it. `meta.client` is the client that is owed a result.
    pub(super) meta: JobMeta,
    /// When it was handed out.
    pub(super) handed_ns: u64,
    /// The worker that has it; `NONE` marks a free record.
    pub(super) worker: u32,
    /// The queue it counts for.
    pub(super) queue: u32,
    /// Which of the worker's connections it was handed out on.
    pub(super) epoch: u32,
    /// Length of its wire form: tells most jobs with the same msgid apart.
    wire_len: u32,
    msgid: [u8; INLINE_MSGID_BYTES],
    msgid_long: Option<Box<[u8]>>,
    /// Neighbours in a list of [`WorkerJobs`].
    by_worker: Links,
    /// Neighbours among the queue's jobs in flight, in accept order.
    by_queue: Links,
    /// Ring of the jobs of this worker with the same msgid, oldest first: those whose REPLY has
    /// come, then those that are open.
    twins: Links,
    /// In the oldest of a ring: the oldest that is open, or `NONE`.
    open_twin: u32,
    /// Kept only where it may be needed again.
    body: Option<Body>,
}

impl Job {
    pub(super) fn msgid(&self) -> &[u8] {
        match &self.msgid_long {
            Some(long) => long,
            None => &self.msgid[..usize::from(self.meta.msgid_len)],
        }
    }

    #[inline]
    pub(super) fn has(&self, flag: u8) -> bool {
        self.meta.flags & flag != 0
    }

    pub(super) fn next_of_worker(&self) -> u32 {
        self.by_worker.next
    }
}

#[derive(Debug, Clone, Copy)]
struct Links {
    prev: u32,
    next: u32,
}

const UNLINKED: Links = Links {
    prev: NONE,
    next: NONE,
};

/// First and last of a list of jobs.
#[derive(Debug, Clone, Copy)]
pub(super) struct JobList {
    pub(super) first: u32,
    pub(super) last: u32,
}

impl JobList {
    pub(super) const EMPTY: JobList = JobList {
        first: NONE,
        last: NONE,
    };
}

/// The jobs of a worker by what is awaited, so that no message has to pass those it does not
/// mean: open ones that owe no REPLY, open ones that owe one, both in hand-out order, and those
/// that wait for their READY only, in the order of their REPLYs.
#[derive(Debug, Clone, Copy)]
pub(super) struct WorkerJobs {
    /// Open ones that owe no REPLY, open ones that do, then those of both kinds replied to.
    lists: [JobList; 4],
}

impl WorkerJobs {
    pub(super) const EMPTY: WorkerJobs = WorkerJobs {
        lists: [JobList::EMPTY; 4],
    };

    #[inline]
    fn list_of(&mut self, flags: u8) -> &mut JobList {
        const { assert!(flags::REPLIES == 1 && flags::REPLIED == 8) };
        let list = (flags & flags::REPLIES) | (flags & flags::REPLIED) >> 2;
        &mut self.lists[usize::from(list)]
    }

    /// The oldest open job that owes no REPLY; `NONE` if there is none.
    #[inline]
    pub(super) fn first_plain(&self) -> u32 {
        self.lists[0].first
    }

    /// The oldest open jobs of either kind.
    pub(super) fn firsts_open(&self) -> [u32; 2] {
        [self.lists[0].first, self.lists[1].first]
    }

    /// The first jobs of either kind that wait for their READY only.
    pub(super) fn firsts_replied(&self) -> [u32; 2] {
        [self.lists[2].first, self.lists[3].first]
    }

    /// Some job; `NONE` if there is none.
    pub(super) fn any(&self) -> u32 {
        let mut firsts = self.lists.iter().map(|list| list.first);
        firsts.find(|first| *first != NONE).unwrap_or(NONE)
    }
}

/// What a hand-out records.
pub(super) struct NewJob<'a> {
    pub(super) meta: JobMeta,
    pub(super) msgid: &'a [u8],
    pub(super) handed_ns: u64,
    pub(super) worker: u32,
    pub(super) queue: u32,
    pub(super) epoch: u32,
    pub(super) wire_len: u32,
}

/// A job taken out of the table.
pub(super) struct EndedJob {
    pub(super) meta: JobMeta,
    pub(super) handed_ns: u64,
    pub(super) queue: u32,
    pub(super) body: Option<Body>,
}

#[derive(Debug)]
pub(super) struct Jobs {
    records: Dense<Job>,
    free: Vec<u32>,
    table: HashTable<u32>,
    hasher: RandomState,
    spare_bodies: Vec<Vec<u8>>,
}

impl Jobs {
    pub(super) fn new(hasher: RandomState) -> Self {
        Jobs {
            records: Dense::new(),
            free: Vec::new(),
            table: HashTable::new(),
            hasher,
            spare_bodies: Vec::new(),
        }
    }

    /// Records in use.
    pub(super) fn len(&self) -> usize {
        self.records.len() - self.free.len()
    }

    /// One more than the largest index.
    pub(super) fn end(&self) -> u32 {
        self.records.len() as u32
    }

    /// The job at `ix` if the record is in use.
    pub(super) fn get(&self, ix: u32) -> Option<&Job> {
        self.records.get(ix).filter(|job| job.worker != NONE)
    }

    #[inline]
    pub(super) fn job(&self, ix: u32) -> &Job {
        &self.records[ix]
    }

    #[inline]
    fn hash(&self, worker: u32, msgid: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u32(worker);
        hasher.write(msgid);
        hasher.finish()
    }

    /// Makes a record and appends it to `of_worker` and, by accept order, to `of_queue`.
    #[inline]
    pub(super) fn insert(
        &mut self,
        new: &NewJob<'_>,
        of_worker: &mut WorkerJobs,
        of_queue: &mut JobList,
    ) -> u32 {
        let hash = self.hash(new.worker, new.msgid);
        let mut msgid = [0; INLINE_MSGID_BYTES];
        let msgid_long = match msgid.get_mut(..new.msgid.len()) {
            Some(inline) => {
                inline.copy_from_slice(new.msgid);
                None
            }
            None => Some(new.msgid.into()),
        };
        let job = Job {
            hash,
            meta: new.meta,
            handed_ns: new.handed_ns,
            worker: new.worker,
            queue: new.queue,
            epoch: new.epoch,
            wire_len: new.wire_len,
            msgid,
            msgid_long,
            by_worker: UNLINKED,
            by_queue: UNLINKED,
            twins: UNLINKED,
            open_twin: NONE,
            body: None,
        };
        let ix = match self.free.pop() {
            Some(ix) => {
                self.records[ix] = job;
                ix
            }
            None => self.records.push(job),
        };
        self.append_to_worker(ix, of_worker.list_of(new.meta.flags));
        self.insert_in_queue(ix, of_queue);
        self.enter_table(ix, hash);
        ix
    }

    #[inline]
    fn append_to_worker(&mut self, ix: u32, list: &mut JobList) {
        self.records[ix].by_worker = Links {
            prev: list.last,
            next: NONE,
        };
        match list.last {
            NONE => list.first = ix,
            last => self.records[last].by_worker.next = ix,
        }
        list.last = ix;
    }

    /// Jobs are handed out in accept order, so the place is the end but for a job that had come
    /// back: that one is older than nearly all and its place is looked for from the front.
    fn insert_in_queue(&mut self, ix: u32, list: &mut JobList) {
        const STEPS_MAX: usize = 32;
        let seq = self.records[ix].meta.seq;
        let (mut prev, mut next) = (list.last, NONE);
        if prev != NONE && self.records[prev].meta.seq > seq {
            (prev, next) = (NONE, list.first);
            // The order matters only to the age shown by STATUS: a bounded search will do.
            for _ in 0..STEPS_MAX {
                if next == NONE || self.records[next].meta.seq > seq {
                    break;
                }
                prev = next;
                next = self.records[next].by_queue.next;
            }
        }
        self.records[ix].by_queue = Links { prev, next };
        match prev {
            NONE => list.first = ix,
            prev => self.records[prev].by_queue.next = ix,
        }
        match next {
            NONE => list.last = ix,
            next => self.records[next].by_queue.prev = ix,
        }
    }

    #[inline]
    fn enter_table(&mut self, ix: u32, hash: u64) {
        let records = &self.records;
        let (worker, msgid) = (records[ix].worker, records[ix].msgid());
        let entry = self.table.entry(
            hash,
            |other| {
                let other = &records[*other];
                other.worker == worker && other.msgid() == msgid
            },
            |other| records[*other].hash,
        );
        match entry {
            hashbrown::hash_table::Entry::Vacant(vacant) => {
                vacant.insert(ix);
                let job = &mut self.records[ix];
                job.twins = Links { prev: ix, next: ix };
                job.open_twin = ix;
            }
            hashbrown::hash_table::Entry::Occupied(oldest) => {
                let oldest = *oldest.get();
                let newest = self.records[oldest].twins.prev;
                self.records[ix].twins = Links {
                    prev: newest,
                    next: oldest,
                };
                self.records[newest].twins.next = ix;
                let oldest = &mut self.records[oldest];
                oldest.twins.prev = ix;
                if oldest.open_twin == NONE {
                    oldest.open_twin = ix;
                }
            }
        }
    }

    /// The oldest job of `worker` with this msgid, replied to or not.
    #[inline]
    pub(super) fn oldest(&self, worker: u32, msgid: &[u8]) -> Option<u32> {
        let hash = self.hash(worker, msgid);
        self.table
            .find(hash, |ix| {
                let job = &self.records[*ix];
                job.worker == worker && job.msgid() == msgid
            })
            .copied()
    }

    /// The oldest job of `worker` with this msgid whose REPLY has not come.
    #[inline]
    pub(super) fn oldest_open(&self, worker: u32, msgid: &[u8]) -> Option<u32> {
        let oldest = self.oldest(worker, msgid)?;
        let open = self.records[oldest].open_twin;
        (open != NONE).then_some(open)
    }

    /// The newest job of `worker` with this msgid and length that was handed out on connection
    /// `epoch` and whose REPLY has not come.
    pub(super) fn newest_on(
        &self,
        worker: u32,
        msgid: &[u8],
        wire_len: usize,
        epoch: u32,
    ) -> Option<u32> {
        let oldest = self.oldest(worker, msgid)?;
        let newest = self.records[oldest].twins.prev;
        let mut ix = newest;
        loop {
            let job = &self.records[ix];
            if job.has(flags::REPLIED) {
                // All older ones have been replied to as well.
                return None;
            }
            if job.epoch == epoch && job.wire_len as usize == wire_len {
                return Some(ix);
            }
            ix = job.twins.prev;
            if ix == newest {
                return None;
            }
        }
    }

    /// The job has ended, but its record stays for the READY that gives its slot back. Takes it
    /// out of its queue's list.
    pub(super) fn mark_replied(
        &mut self,
        ix: u32,
        of_worker: &mut WorkerJobs,
        of_queue: &mut JobList,
    ) {
        self.unlink_from_queue(ix, of_queue);
        self.unlink_from_worker(ix, of_worker);
        let job = &mut self.records[ix];
        job.meta.flags |= flags::REPLIED;
        job.meta.client = NONE;
        let next = job.twins.next;
        if next == ix {
            job.open_twin = NONE;
        } else {
            self.open_twin_closed(ix, next);
        }
        let flags = self.records[ix].meta.flags;
        self.append_to_worker(ix, of_worker.list_of(flags));
    }

    /// The oldest open job `ix` of a ring of several has been replied to or is leaving: `next` is
    /// now the oldest open one, unless the ring begins with it.
    #[cold]
    fn open_twin_closed(&mut self, ix: u32, next: u32) {
        let job = &self.records[ix];
        let oldest = self.oldest(job.worker, job.msgid());
        let oldest = oldest.expect("a job in flight is found by its msgid");
        debug_assert_eq!(self.records[oldest].open_twin, ix);
        let open = if next == oldest { NONE } else { next };
        self.records[oldest].open_twin = open;
    }

    fn unlink_from_queue(&mut self, ix: u32, list: &mut JobList) {
        let Links { prev, next } = self.records[ix].by_queue;
        match prev {
            NONE => list.first = next,
            prev => self.records[prev].by_queue.next = next,
        }
        match next {
            NONE => list.last = prev,
            next => self.records[next].by_queue.prev = prev,
        }
    }

    #[inline]
    fn unlink_from_worker(&mut self, ix: u32, jobs: &mut WorkerJobs) {
        let job = &self.records[ix];
        let (Links { prev, next }, list) = (job.by_worker, jobs.list_of(job.meta.flags));
        match prev {
            NONE => list.first = next,
            prev => self.records[prev].by_worker.next = next,
        }
        match next {
            NONE => list.last = prev,
            next => self.records[next].by_worker.prev = prev,
        }
    }

    /// Removes a record from all lists. `of_queue` is `None` for one already marked as replied.
    #[inline]
    pub(super) fn remove(
        &mut self,
        ix: u32,
        of_worker: &mut WorkerJobs,
        of_queue: Option<&mut JobList>,
    ) -> EndedJob {
        if let Some(list) = of_queue {
            self.unlink_from_queue(ix, list);
        }
        self.unlink_from_worker(ix, of_worker);
        self.leave_table(ix);
        self.free.push(ix);
        let job = &mut self.records[ix];
        let ended = EndedJob {
            meta: job.meta,
            handed_ns: job.handed_ns,
            queue: job.queue,
            body: job.body.take(),
        };
        job.worker = NONE;
        job.msgid_long = None;
        ended
    }

    #[inline]
    fn leave_table(&mut self, ix: u32) {
        let Links { prev, next } = self.records[ix].twins;
        let hash = self.records[ix].hash;
        let found = self.table.find_entry(hash, |other| *other == ix);
        if next == ix {
            found.expect("a lone job is in the table").remove();
            return;
        }
        if let Ok(mut oldest) = found {
            *oldest.get_mut() = next;
            let open = self.records[ix].open_twin;
            self.records[next].open_twin = if open == ix { next } else { open };
        } else if !self.records[ix].has(flags::REPLIED) && self.records[prev].has(flags::REPLIED) {
            self.open_twin_closed(ix, next);
        }
        self.records[prev].twins.next = next;
        self.records[next].twins.prev = prev;
    }

    /// Keeps the bytes of a job.
    pub(super) fn keep_body(
        &mut self,
        ix: u32,
        message: &crate::frames::Message<'_>,
        pool: &mut BlockPool,
    ) {
        let body = match message.shared() {
            Some(shared) => Body::Shared(shared.clone()),
            None => {
                let mut bytes = self.spare_bodies.pop().unwrap_or_default();
                bytes.extend_from_slice(message.wire());
                Body::Bytes(bytes)
            }
        };
        pool.hold(body.wire().len());
        self.records[ix].body = Some(body);
    }

    /// Bytes kept, counted anew.
    pub(super) fn count_kept_bytes(&self) -> usize {
        let bodies = self.records.iter().filter_map(|job| job.body.as_ref());
        bodies.map(|body| body.wire().len()).sum()
    }

    /// True if the bytes of the job are kept.
    pub(super) fn keeps_body(&self, ix: u32) -> bool {
        self.records[ix].body.is_some()
    }

    /// Lets go of kept bytes; small buffers are used again.
    pub(super) fn drop_body(&mut self, body: Body, pool: &mut BlockPool) {
        pool.release(body.wire().len());
        if let Body::Bytes(mut bytes) = body
            && bytes.capacity() <= SPARE_BODY_BYTES
            && self.spare_bodies.len() < SPARE_BODIES
        {
            bytes.clear();
            self.spare_bodies.push(bytes);
        }
    }

    /// The jobs of a worker, and whether each is in the list of its kind.
    pub(super) fn check_worker_jobs(&self, jobs: &WorkerJobs) -> Vec<u32> {
        let mut all = Vec::new();
        for (place, list) in jobs.lists.iter().enumerate() {
            for ix in self.check_list(*list, false) {
                let mut own = WorkerJobs::EMPTY;
                own.list_of(self.job(ix).meta.flags).first = ix;
                assert_eq!(own.lists[place].first, ix, "list of a worker's job");
                all.push(ix);
            }
        }
        all
    }

    /// The jobs of a list in its order, and whether they are linked as they must be.
    pub(super) fn check_list(&self, list: JobList, queue: bool) -> Vec<u32> {
        let links = |ix: u32| {
            let job = &self.records[ix];
            if queue { job.by_queue } else { job.by_worker }
        };
        let (mut found, mut prev, mut ix) = (Vec::new(), NONE, list.first);
        while ix != NONE {
            assert_eq!(links(ix).prev, prev, "backward link of a job list");
            found.push(ix);
            prev = ix;
            ix = links(ix).next;
        }
        assert_eq!(list.last, prev, "end of a job list");
        found
    }

    /// Every record in use is found by its key, and no others are in the table.
    pub(super) fn check(&self) {
        let mut reached = 0;
        for oldest in &self.table {
            let mut ix = *oldest;
            let first = &self.records[ix];
            let mut open = NONE;
            assert!(first.worker != NONE, "a free record is in the table");
            loop {
                let job = &self.records[ix];
                assert_eq!(
                    (job.worker, job.msgid()),
                    (first.worker, first.msgid()),
                    "twins"
                );
                assert_eq!(self.records[job.twins.next].twins.prev, ix, "twin links");
                if open == NONE && !job.has(flags::REPLIED) {
                    open = ix;
                }
                let in_order = open == NONE || !job.has(flags::REPLIED);
                assert!(in_order, "a twin was replied to before an older one");
                reached += 1;
                ix = job.twins.next;
                if ix == *oldest {
                    break;
                }
            }
            assert_eq!(first.open_twin, open, "oldest open twin");
        }
        assert_eq!(reached, self.len(), "records reachable from the table");
    }
}
