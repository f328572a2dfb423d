//! Where waiting jobs are kept: one compact store per queue, oldest first.
//!
//! A waiting job takes its wire bytes and 32 bytes more. Bytes lie one behind the other in
//! blocks that grow with the queue and come from a common pool, so that a queue in steady state
//! allocates nothing and a small queue holds little. Large messages are kept by reference.
//! Jobs that come back to their old place are kept in an ordered side structure.

use crate::frames::{FrameSpan, Message, SharedBytes, split_wire};
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};

/// Capacities of pooled blocks, in the order in which a growing queue takes them.
const BLOCK_BYTES: [usize; 4] = [1 << 10, 4 << 10, 16 << 10, 64 << 10];
/// Spare blocks kept for each capacity: 8 MiB of the largest, so that a queue that swings between
/// empty and a few megabytes allocates nothing.
const SPARE_BLOCKS: [usize; 4] = [256, 128, 64, 128];
/// Bytes in front of the wire bytes of a waiting job.
const HEADER_BYTES: usize = 32;
/// The head sequence of an empty store: later than every job.
pub(super) const NO_HEAD: u64 = u64::MAX;

/// What is remembered of a job besides its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JobMeta {
    /// Accept sequence: the job's number and its place in time.
    pub(super) seq: u64,
    /// When it was accepted.
    pub(super) accepted_ns: u64,
    /// The client that is owed a result, or `NONE`.
    pub(super) client: u32,
    /// From its header; 0 = the default.
    pub(super) timeout_secs: u32,
    /// `flags::*`.
    pub(super) flags: u8,
    /// Where the msgid lies in the wire bytes.
    pub(super) msgid_at: u8,
    /// Its length.
    pub(super) msgid_len: u8,
}

impl JobMeta {
    /// The msgid of the job whose wire bytes these are.
    #[inline]
    pub(super) fn msgid<'a>(&self, wire: &'a [u8]) -> &'a [u8] {
        let at = usize::from(self.msgid_at);
        &wire[at..at + usize::from(self.msgid_len)]
    }
}

/// Bits of [`JobMeta::flags`].
pub(super) mod flags {
    /// A worker without `completions` answers this job with a REPLY.
    pub(in super::super) const REPLIES: u8 = 1;
    /// May be taken by workers of the default queue.
    pub(in super::super) const OPEN: u8 = 2;
    /// Handed out through the default queue although it named another one.
    pub(in super::super) const FALLBACK: u8 = 4;
    /// Its REPLY has come; the record waits for the READY that gives the slot back.
    pub(in super::super) const REPLIED: u8 = 8;
    /// Kept by reference (store only).
    pub(super) const SHARED: u8 = 128;
}

/// Bytes of a job that is kept outside the store.
#[derive(Debug)]
pub(super) enum Body {
    /// Copied.
    Bytes(Vec<u8>),
    /// Held by reference.
    Shared(SharedBytes),
}

impl Body {
    pub(super) fn of(message: &Message<'_>) -> Body {
        match message.shared() {
            Some(shared) => Body::Shared(shared.clone()),
            None => Body::Bytes(message.wire().to_vec()),
        }
    }

    pub(super) fn wire(&self) -> &[u8] {
        match self {
            Body::Bytes(bytes) => bytes,
            Body::Shared(bytes) => bytes,
        }
    }

    fn held_bytes(&self) -> usize {
        self.wire().len()
    }

    /// A view for forwarding. It carries no frame places.
    fn view(&self) -> Message<'_> {
        match self {
            Body::Bytes(bytes) => Message::new(bytes, &[]),
            Body::Shared(bytes) => Message::from_shared(bytes, &[]),
        }
    }
}

/// Body frame 0 of a REQUEST in wire form: its queue name.
pub(super) fn queue_name_of(wire: &[u8]) -> Option<&[u8]> {
    let mut spans: Vec<FrameSpan> = Vec::new();
    split_wire(wire, &mut spans)?;
    let span = spans.get(crate::emqp::ENVELOPE_FRAMES)?;
    wire.get(span.start as usize..span.end as usize)
}

/// Spare blocks, and the number of bytes held by all stores.
#[derive(Debug, Default)]
pub(super) struct BlockPool {
    spare: [Vec<Vec<u8>>; 4],
    held: usize,
}

impl BlockPool {
    /// Bytes held by blocks in use, kept bodies and large messages.
    #[inline]
    pub(super) fn held_bytes(&self) -> usize {
        self.held
    }

    /// Counts bytes kept elsewhere.
    pub(super) fn hold(&mut self, bytes: usize) {
        self.held += bytes;
    }

    /// Takes back what [`BlockPool::hold`] counted.
    pub(super) fn release(&mut self, bytes: usize) {
        self.held -= bytes;
    }

    fn take(&mut self, class: usize, need: usize) -> Vec<u8> {
        let class = (class..BLOCK_BYTES.len()).find(|class| BLOCK_BYTES[*class] >= need);
        let block = match class {
            Some(class) => self.spare[class]
                .pop()
                .unwrap_or_else(|| Vec::with_capacity(BLOCK_BYTES[class])),
            None => Vec::with_capacity(need),
        };
        self.held += block.capacity();
        block
    }

    fn give(&mut self, mut block: Vec<u8>) {
        self.held -= block.capacity();
        if let Some(class) = BLOCK_BYTES
            .iter()
            .position(|bytes| *bytes == block.capacity())
            && self.spare[class].len() < SPARE_BLOCKS[class]
        {
            block.clear();
            self.spare[class].push(block);
        }
    }
}

#[derive(Debug, Default)]
struct Block {
    data: Vec<u8>,
    read: usize,
}

/// The front job, taken out of its store for the time of a hand-out.
#[derive(Debug)]
pub(super) enum Lease {
    /// Bytes `start..end` of the front block.
    Block {
        data: Vec<u8>,
        start: usize,
        end: usize,
    },
    /// A large message.
    Shared(SharedBytes),
    /// A job that had come back.
    Returned(Body),
}

impl Lease {
    /// A view for forwarding. It carries no frame places.
    #[inline]
    pub(super) fn message(&self) -> Message<'_> {
        match self {
            Lease::Block { data, start, end } => Message::new(&data[*start..*end], &[]),
            Lease::Shared(bytes) => Message::from_shared(bytes, &[]),
            Lease::Returned(body) => body.view(),
        }
    }
}

/// A store of waiting jobs in accept order.
#[derive(Debug)]
pub(super) struct JobStore {
    blocks: VecDeque<Block>,
    shared: VecDeque<SharedBytes>,
    /// By accept sequence.
    returned: BTreeMap<u64, (JobMeta, Body)>,
    len: usize,
    head_seq: u64,
}

impl JobStore {
    pub(super) fn new() -> Self {
        JobStore {
            blocks: VecDeque::new(),
            shared: VecDeque::new(),
            returned: BTreeMap::new(),
            len: 0,
            head_seq: NO_HEAD,
        }
    }

    /// Number of jobs.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Accept sequence of the oldest job; [`NO_HEAD`] if there is none.
    #[inline]
    pub(super) fn head_seq(&self) -> u64 {
        self.head_seq
    }

    /// When the oldest job was accepted.
    pub(super) fn head_accepted_ns(&self) -> Option<u64> {
        self.peek().map(|meta| meta.accepted_ns)
    }

    /// Appends the newest job.
    #[inline]
    pub(super) fn push(&mut self, pool: &mut BlockPool, meta: &JobMeta, message: &Message<'_>) {
        let (wire, shared): (&[u8], _) = match message.shared() {
            Some(shared) => (&[], Some(shared)),
            None => (message.wire(), None),
        };
        let need = HEADER_BYTES + wire.len();
        let fits = self
            .blocks
            .back()
            .is_some_and(|b| b.data.capacity() - b.data.len() >= need);
        if !fits {
            let class = self.blocks.len().min(BLOCK_BYTES.len() - 1);
            self.blocks.push_back(Block {
                data: pool.take(class, need),
                read: 0,
            });
        }
        let mut flags = meta.flags;
        if let Some(shared) = shared {
            flags |= flags::SHARED;
            pool.hold(shared.len());
            self.shared.push_back(shared.clone());
        }
        let data = &mut self.blocks.back_mut().expect("a block was just made").data;
        data.extend_from_slice(&encode(meta, flags, wire.len()));
        data.extend_from_slice(wire);
        self.len += 1;
        self.head_seq = self.head_seq.min(meta.seq);
    }

    /// Puts a job that was handed out back to its old place.
    pub(super) fn put_back(&mut self, pool: &mut BlockPool, meta: JobMeta, body: Body) {
        pool.hold(body.held_bytes());
        let earlier = self.returned.insert(meta.seq, (meta, body));
        assert!(earlier.is_none(), "a job waits twice");
        self.len += 1;
        self.head_seq = self.head_seq.min(meta.seq);
    }

    /// Takes the oldest job out for a hand-out; [`JobStore::consume`] must follow.
    #[inline]
    pub(super) fn lease(&mut self) -> Option<(JobMeta, Lease)> {
        let front = self
            .blocks
            .front_mut()
            .map(|block| decode(&block.data[block.read..]));
        if !self.returned.is_empty()
            && let Some(leased) = self.lease_returned(front.map(|(meta, _)| meta.seq))
        {
            return Some(leased);
        }
        let (mut meta, len) = front?;
        let block = self.blocks.front_mut().expect("there is a front block");
        let start = block.read + HEADER_BYTES;
        block.read = start + len;
        if meta.flags & flags::SHARED != 0 {
            meta.flags &= !flags::SHARED;
            let bytes = self.shared.pop_front().expect("a shared job has its bytes");
            return Some((meta, Lease::Shared(bytes)));
        }
        let data = std::mem::take(&mut block.data);
        Some((
            meta,
            Lease::Block {
                data,
                start,
                end: start + len,
            },
        ))
    }

    #[cold]
    fn lease_returned(&mut self, front_seq: Option<u64>) -> Option<(JobMeta, Lease)> {
        let (seq, _) = self.returned.first_key_value()?;
        if front_seq.is_some_and(|front| front < *seq) {
            return None;
        }
        let (_, (meta, body)) = self.returned.pop_first()?;
        Some((meta, Lease::Returned(body)))
    }

    /// Gives the lease back; the job is no longer in the store.
    #[inline]
    pub(super) fn consume(&mut self, pool: &mut BlockPool, lease: Lease) {
        match lease {
            Lease::Block { data, .. } => {
                let block = self
                    .blocks
                    .front_mut()
                    .expect("a leased block is at the front");
                block.data = data;
            }
            Lease::Shared(bytes) => pool.release(bytes.len()),
            Lease::Returned(body) => pool.release(body.held_bytes()),
        }
        self.len -= 1;
        if self
            .blocks
            .front()
            .is_some_and(|block| block.read == block.data.len())
        {
            let block = self.blocks.pop_front().expect("there is a front block");
            pool.give(block.data);
        }
        self.head_seq = self.peek().map_or(NO_HEAD, |meta| meta.seq);
    }

    #[inline]
    fn peek(&self) -> Option<JobMeta> {
        let front = self
            .blocks
            .front()
            .map(|block| decode(&block.data[block.read..]).0);
        if self.returned.is_empty() {
            return front;
        }
        let back = self.returned.first_key_value().map(|(_, (meta, _))| *meta);
        match (front, back) {
            (Some(front), Some(back)) => Some(if back.seq < front.seq { back } else { front }),
            (front, back) => front.or(back),
        }
    }

    /// Bytes held, counted anew.
    pub(super) fn count_held_bytes(&self) -> usize {
        let blocks = self.blocks.iter().map(|block| block.data.capacity());
        let shared = self.shared.iter().map(|bytes| bytes.len());
        let returned = self.returned.values().map(|(_, body)| body.held_bytes());
        blocks.chain(shared).chain(returned).sum()
    }

    /// All waiting jobs in no particular order.
    pub(super) fn metas(&self) -> SmallVec<[JobMeta; 8]> {
        let mut metas = SmallVec::new();
        for block in &self.blocks {
            let mut at = block.read;
            while at < block.data.len() {
                let (meta, len) = decode(&block.data[at..]);
                metas.push(meta);
                at += HEADER_BYTES + len;
            }
        }
        metas.extend(self.returned.values().map(|(meta, _)| *meta));
        metas
    }
}

#[inline]
fn encode(meta: &JobMeta, flags: u8, len: usize) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[0..8].copy_from_slice(&meta.seq.to_le_bytes());
    bytes[8..16].copy_from_slice(&meta.accepted_ns.to_le_bytes());
    bytes[16..20].copy_from_slice(&meta.client.to_le_bytes());
    bytes[20..24].copy_from_slice(&meta.timeout_secs.to_le_bytes());
    bytes[24..28].copy_from_slice(&(len as u32).to_le_bytes());
    bytes[28] = flags;
    bytes[29] = meta.msgid_at;
    bytes[30] = meta.msgid_len;
    bytes
}

/// The header at the front of `bytes`, and the length of the wire bytes behind it.
#[inline]
fn decode(bytes: &[u8]) -> (JobMeta, usize) {
    let header = bytes
        .first_chunk::<HEADER_BYTES>()
        .expect("a stored job has a header");
    let u64_at = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
    let u32_at = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
    let meta = JobMeta {
        seq: u64_at(0),
        accepted_ns: u64_at(8),
        client: u32_at(16),
        timeout_secs: u32_at(20),
        flags: header[28],
        msgid_at: header[29],
        msgid_len: header[30],
    };
    (meta, u32_at(24) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn meta(seq: u64) -> JobMeta {
        JobMeta {
            seq,
            accepted_ns: seq * 10,
            client: 7,
            timeout_secs: 3,
            flags: flags::REPLIES,
            msgid_at: 4,
            msgid_len: 2,
        }
    }

    fn wire(seq: u64, len: usize) -> Vec<u8> {
        (0..len).map(|at| (seq as usize + at) as u8).collect()
    }

    fn take(store: &mut JobStore, pool: &mut BlockPool) -> Option<(JobMeta, Vec<u8>)> {
        let (meta, lease) = store.lease()?;
        let bytes = lease.message().wire().to_vec();
        store.consume(pool, lease);
        Some((meta, bytes))
    }

    #[test]
    fn jobs_come_out_in_accept_order_whatever_their_size() {
        let (mut store, mut pool) = (JobStore::new(), BlockPool::default());
        let sizes = [10, 200, 5_000, 70_000, 0, 300];
        for round in 0..3_u64 {
            for at in 0..2_000_u64 {
                let seq = round * 10_000 + at;
                let bytes = wire(seq, sizes[at as usize % sizes.len()]);
                if at % 7 == 0 {
                    let shared = Arc::new(bytes);
                    store.push(&mut pool, &meta(seq), &Message::from_shared(&shared, &[]));
                } else {
                    store.push(&mut pool, &meta(seq), &Message::new(&bytes, &[]));
                }
            }
            for at in 0..2_000_u64 {
                let seq = round * 10_000 + at;
                assert_eq!(store.head_seq(), seq);
                let (found, bytes) = take(&mut store, &mut pool).unwrap();
                assert_eq!(found, meta(seq));
                assert_eq!(bytes, wire(seq, sizes[at as usize % sizes.len()]));
            }
            assert_eq!(
                (store.len(), store.head_seq(), pool.held_bytes()),
                (0, NO_HEAD, 0)
            );
        }
    }

    #[test]
    fn a_job_that_comes_back_keeps_its_place() {
        let (mut store, mut pool) = (JobStore::new(), BlockPool::default());
        for seq in 0..6 {
            store.push(&mut pool, &meta(seq), &Message::new(&wire(seq, 100), &[]));
        }
        for _ in 0..4 {
            take(&mut store, &mut pool).unwrap();
        }
        for seq in [3, 1] {
            store.put_back(&mut pool, meta(seq), Body::Bytes(wire(seq, 100)));
        }
        let mut order = Vec::new();
        while let Some((found, bytes)) = take(&mut store, &mut pool) {
            assert_eq!(bytes, wire(found.seq, 100));
            order.push(found.seq);
        }
        assert_eq!(order, [1, 3, 4, 5]);
        assert_eq!(pool.held_bytes(), 0);
    }

    #[test]
    fn small_queues_hold_small_blocks() {
        let (mut store, mut pool) = (JobStore::new(), BlockPool::default());
        store.push(&mut pool, &meta(0), &Message::new(&wire(0, 192), &[]));
        assert_eq!(pool.held_bytes(), BLOCK_BYTES[0]);
        for seq in 1..100_000 {
            store.push(&mut pool, &meta(seq), &Message::new(&wire(seq, 192), &[]));
        }
        assert!(
            pool.held_bytes() < 100_000 * (192 + 40),
            "{}",
            pool.held_bytes()
        );
    }
}
