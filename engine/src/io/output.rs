//! Output of an agent's connections: buffers, limits, and what the state machine asked for.

use super::buffers::BufferPool;
use super::stream::Stream;
use super::unsent::Unsent;
use crate::frames::{Message, SharedBytes};
use crate::ids::{ConnId, Socket};
use crate::limits::{OWED_BYTES_MAX, SHARED_BYTES_MIN};
use crate::link::{CloseReason, OutClass, Outbox};
use crate::metrics::{Counter, Counters};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Slices given to one vectored write.
const WRITE_SLICES_MAX: usize = 16;
/// Written bytes in front of a buffer that are cut off once they are also half of it.
const COMPACT_BYTES_MIN: usize = 64 * 1024;

/// Bounds of the output.
#[derive(Debug, Clone)]
pub struct OutputConfig {
    /// Acceptance notices are dropped above this many waiting bytes of a connection.
    pub client_buffer_bytes: usize,
    /// Results and REJECTs are dropped above this many.
    pub client_result_bytes: usize,
}

/// Per slot, all bytes ever written to or discarded for the connection in it; read by the other
/// side of a ring to know how much of what it handed over is still waiting.
#[derive(Debug)]
pub struct WrittenTable(Box<[AtomicU64]>);

impl WrittenTable {
    /// A table for `slots` connections.
    pub fn new(slots: usize) -> Arc<Self> {
        Arc::new(WrittenTable(
            (0..slots).map(|_| AtomicU64::new(0)).collect(),
        ))
    }

    /// Bytes of the slot that are no longer waiting.
    pub fn get(&self, slot: usize) -> u64 {
        // Only a hint for flow control: no other memory is read on the strength of it.
        self.0.get(slot).map_or(0, |w| w.load(Ordering::Relaxed))
    }

    fn set(&self, slot: usize, bytes: u64) {
        if let Some(written) = self.0.get(slot) {
            written.store(bytes, Ordering::Relaxed);
        }
    }
}

/// Outcome of [`OutputTable::flush`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flushed {
    /// Written as far as the kernel takes it.
    Going,
    /// As before, and the connection may be read again.
    Unthrottled,
    /// Writing failed for good.
    Broken,
}

#[derive(Debug)]
pub(super) enum Segment {
    Bytes(Vec<u8>),
    Shared(SharedBytes),
}

impl Segment {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Segment::Bytes(bytes) => bytes,
            Segment::Shared(shared) => shared,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Free,
    Open,
    /// The connection has ended; jobs for it are kept until its release.
    Lost,
}

/// Waiting bytes that the peer itself causes and that no class limit bounds: PONGs, ACKs,
/// administrative answers. Counted in two windows, because what leaves is not looked at: output is
/// first in, first out, so when all that waited at the start of a window has left, the window
/// before it has left, too. Never less than what waits; more by what left of one window.
#[derive(Debug, Default)]
struct Owed {
    before: usize,
    now: usize,
    /// Bytes that have still to leave until the window ends.
    window_left: usize,
    /// The connection is not read until half of the bound has left.
    throttled: bool,
    /// Something has left since the last [`OutputTable::take_progress`].
    progress: bool,
}

impl Owed {
    fn add(&mut self, bytes: usize) {
        self.now += bytes;
        self.throttled |= self.before + self.now > OWED_BYTES_MAX;
    }

    /// `gone` bytes have left, `pending` wait. True if the throttle ends with it.
    fn left(&mut self, gone: usize, pending: usize) -> bool {
        self.progress = true;
        if gone < self.window_left {
            self.window_left -= gone;
            return false;
        }
        self.before = if pending == 0 { 0 } else { self.now };
        self.now = 0;
        self.window_left = pending;
        self.throttled && {
            self.throttled = self.before > OWED_BYTES_MAX / 2;
            !self.throttled
        }
    }
}

/// Output of one connection: `queue` first, then `buf`; `head` bytes of the first are written.
#[derive(Debug, Default)]
struct Out {
    generation: u32,
    state: State,
    dirty: bool,
    /// The kernel's buffer is full; wait for the edge.
    blocked: bool,
    /// Writing failed; reading will find out why.
    broken: bool,
    never_paused: bool,
    /// Bytes of the greeting at the very front: not ZMTP frames.
    greeting_bytes: u8,
    head: usize,
    pending: usize,
    /// All bytes that have left, for [`WrittenTable`].
    written: u64,
    owed: Owed,
    notify_below: Option<usize>,
    buf: Vec<u8>,
    queue: VecDeque<Segment>,
}

/// The output of all connections of one agent. Implements [`Outbox`] for the case that dispatch
/// and I/O share a thread; otherwise the agent applies what comes over its ring.
#[derive(Debug)]
pub struct OutputTable {
    agent: u8,
    config: OutputConfig,
    slots: Vec<Out>,
    dirty: Vec<u32>,
    pool: BufferPool,
    pending_bytes: usize,
    written: Option<Arc<WrittenTable>>,
    pub(super) counters: Counters,
    pub(super) closes: Vec<(ConnId, CloseReason)>,
    /// How connections that we made have ended.
    pub(super) ends: Vec<(ConnId, Counter)>,
    pub(super) releases: Vec<ConnId>,
    pub(super) writable: Vec<ConnId>,
    paused: [bool; 3],
    pub(super) resumed: bool,
}

impl OutputTable {
    /// An empty table of agent `agent`. `written` is given where the dispatch is on another
    /// thread.
    pub fn new(agent: u8, config: OutputConfig, written: Option<Arc<WrittenTable>>) -> Self {
        OutputTable {
            agent,
            config,
            slots: Vec::new(),
            dirty: Vec::new(),
            pool: BufferPool::default(),
            pending_bytes: 0,
            written,
            counters: Counters::default(),
            closes: Vec::new(),
            ends: Vec::new(),
            releases: Vec::new(),
            writable: Vec::new(),
            paused: [false; 3],
            resumed: false,
        }
    }

    /// Changes the bounds.
    pub fn set_config(&mut self, config: OutputConfig) {
        self.config = config;
    }

    /// How this connection, which we made, has ended; told once.
    pub fn take_end(&mut self, conn: ConnId) -> Option<Counter> {
        let at = self.ends.iter().position(|(ended, _)| *ended == conn)?;
        Some(self.ends.swap_remove(at).1)
    }

    /// Bytes waiting in all connections.
    pub fn total_pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Bytes of free buffers.
    pub(super) fn pooled_bytes(&self) -> usize {
        self.pool.bytes()
    }

    pub(super) fn pool(&mut self) -> &mut BufferPool {
        &mut self.pool
    }

    pub(super) fn open_slot(&mut self, slot: usize, generation: u32) {
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, Out::default);
        }
        if let Some(written) = &self.written {
            written.set(slot, 0);
        }
        self.slots[slot] = Out {
            generation,
            state: State::Open,
            ..Out::default()
        };
    }

    fn find(&mut self, conn: ConnId) -> Option<&mut Out> {
        debug_assert_eq!(conn.agent(), usize::from(self.agent));
        self.slots
            .get_mut(conn.slot())
            .filter(|out| out.generation == conn.generation() && out.state != State::Free)
    }

    /// Appends bytes of the connection itself (greeting, READY, PONG).
    pub(super) fn raw(&mut self, slot: usize, bytes: &[u8], greeting_bytes: u8) {
        let out = &mut self.slots[slot];
        if out.state != State::Open {
            // Replaced: it is still read, but gets no more output.
            return;
        }
        out.greeting_bytes += greeting_bytes;
        out.owed.add(bytes.len());
        // The dispatch never handed these over: they cancel out when they leave.
        out.written = out.written.wrapping_sub(bytes.len() as u64);
        Self::append(&mut self.pool, out, bytes);
        self.account(slot, bytes.len());
    }

    #[inline]
    fn append(pool: &mut BufferPool, out: &mut Out, bytes: &[u8]) {
        if out.buf.capacity() == 0 {
            out.buf = pool.take();
        }
        out.buf.extend_from_slice(bytes);
    }

    #[inline]
    fn account(&mut self, slot: usize, len: usize) {
        let out = &mut self.slots[slot];
        out.pending += len;
        self.pending_bytes += len;
        if !out.dirty {
            out.dirty = true;
            self.dirty.push(slot as u32);
        }
    }

    /// True if a message of `class` and `len` bytes goes out to `to`; counted if not.
    #[inline]
    fn admit(&mut self, to: ConnId, class: OutClass, len: usize) -> bool {
        let (buffer, result) = (
            self.config.client_buffer_bytes,
            self.config.client_result_bytes,
        );
        let Some(out) = self.find(to) else {
            self.counters.inc(Counter::OutputToGone);
            return false;
        };
        let (limit, reason) = match class {
            OutClass::Work => (usize::MAX, Counter::OutputToGone),
            OutClass::Control if out.state == State::Open => (usize::MAX, Counter::OutputToGone),
            OutClass::Notice if out.state == State::Open => (buffer, Counter::NoticesDropped),
            OutClass::Result if out.state == State::Open => (result, Counter::ResultsDropped),
            _ => (0, Counter::OutputToGone),
        };
        // One message always fits an empty buffer of a living connection.
        let admitted = out.pending.saturating_add(len) <= limit
            || (out.pending == 0 && out.state == State::Open);
        if class == OutClass::Control && admitted {
            out.owed.add(len);
        }
        self.counters.inc(if admitted {
            Counter::MessagesSent
        } else {
            reason
        });
        if !admitted {
            // The other side of a ring counts it as handed over.
            self.add_written(to.slot(), len);
        }
        admitted
    }

    fn add_written(&mut self, slot: usize, len: usize) {
        let out = &mut self.slots[slot];
        out.written = out.written.wrapping_add(len as u64);
        if let Some(written) = &self.written {
            written.set(slot, out.written);
        }
    }

    /// Takes the slots with fresh output. Give the vector back with [`OutputTable::restore_dirty`].
    pub(super) fn take_dirty(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.dirty)
    }

    pub(super) fn restore_dirty(&mut self, mut dirty: Vec<u32>) {
        dirty.clear();
        if self.dirty.is_empty() {
            self.dirty = dirty;
        }
    }

    /// True if a connection has fresh output.
    pub fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// The kernel has room again.
    pub(super) fn unblock(&mut self, slot: usize) {
        let Some(out) = self.slots.get_mut(slot) else {
            return;
        };
        out.blocked = false;
        if out.pending > 0 && !out.dirty && out.state == State::Open {
            out.dirty = true;
            self.dirty.push(slot as u32);
        }
    }

    /// Writes what waits for `slot`.
    pub(super) fn flush<S: Stream>(&mut self, slot: usize, stream: &mut S) -> Flushed {
        let out = &mut self.slots[slot];
        out.dirty = false;
        let mut gone = 0;
        while out.pending > 0 && !out.blocked && !out.broken && out.state == State::Open {
            let (asked, result) = if out.queue.is_empty() {
                let bytes = &out.buf[out.head..];
                (bytes.len(), stream.write(bytes))
            } else {
                write_segments(out, stream)
            };
            match result {
                Ok(0) => out.broken = true,
                Ok(n) => {
                    gone += n;
                    out.pending -= n;
                    advance(&mut self.pool, out, n);
                    // A short write of a stream socket means that its buffer is full.
                    out.blocked = n < asked;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => out.blocked = true,
                Err(_) => out.broken = true,
            }
        }
        if out.pending == 0 && out.buf.capacity() > 0 {
            let buf = std::mem::take(&mut out.buf);
            out.head = 0;
            out.greeting_bytes = 0;
            self.pool.put(buf);
        }
        let flushed = if out.broken {
            Flushed::Broken
        } else if gone > 0 && out.owed.left(gone, out.pending) {
            Flushed::Unthrottled
        } else {
            Flushed::Going
        };
        self.pending_bytes -= gone;
        self.counters.add(Counter::BytesSent, gone as u64);
        self.add_written(slot, gone);
        self.tell_writable(slot);
        flushed
    }

    /// True if the connection is not to be read, because its peer does not take what it asks for.
    pub(super) fn is_throttled(&self, slot: usize) -> bool {
        let out = &self.slots[slot];
        out.owed.throttled && !out.broken
    }

    /// True if the peer has taken a byte since this was last asked.
    pub(super) fn take_progress(&mut self, slot: usize) -> bool {
        std::mem::take(&mut self.slots[slot].owed.progress)
    }

    fn tell_writable(&mut self, slot: usize) {
        let out = &mut self.slots[slot];
        if out.notify_below.is_some_and(|below| out.pending <= below) && out.state == State::Open {
            out.notify_below = None;
            self.writable
                .push(ConnId::new(self.agent, slot as u32, out.generation));
        }
    }

    /// Bytes waiting for `slot`.
    pub(super) fn pending(&self, slot: usize) -> usize {
        self.slots[slot].pending
    }

    /// True if some connections are not to be read.
    pub(super) fn any_paused(&self) -> bool {
        self.paused.contains(&true)
    }

    /// True if connections of `socket` are not to be read, this one not being exempt.
    pub(super) fn is_paused(&self, slot: usize, socket: Socket) -> bool {
        self.paused[socket as usize] && !self.slots[slot].never_paused
    }

    /// No more output for the connection; what waits is kept until its release.
    pub(super) fn set_lost(&mut self, slot: usize) {
        self.slots[slot].state = State::Lost;
    }

    /// Takes what was not wholly sent and frees the slot's output.
    pub(super) fn free_slot(&mut self, slot: usize) -> Unsent {
        let out = &mut self.slots[slot];
        self.pending_bytes -= out.pending;
        let (pending, head) = (out.pending, out.head);
        let skip = usize::from(out.greeting_bytes);
        let mut segments = std::mem::take(&mut out.queue);
        let buf = std::mem::take(&mut out.buf);
        // The entry stays in `dirty` if it is there; a free slot is passed over.
        *out = Out {
            generation: out.generation,
            dirty: out.dirty,
            ..Out::default()
        };
        if pending == 0 {
            self.pool.put(buf);
            return Unsent::default();
        }
        if !buf.is_empty() {
            segments.push_back(Segment::Bytes(buf));
        }
        Unsent::new(segments, head, skip)
    }
}

fn write_segments<S: Stream>(out: &Out, stream: &mut S) -> (usize, io::Result<usize>) {
    let mut slices = [IoSlice::new(&[]); WRITE_SLICES_MAX];
    let mut used = 0;
    let mut asked = 0;
    let parts = out
        .queue
        .iter()
        .map(Segment::bytes)
        .chain(std::iter::once(&out.buf[..]));
    for (i, part) in parts.take(WRITE_SLICES_MAX).enumerate() {
        let part = if i == 0 { &part[out.head..] } else { part };
        slices[i] = IoSlice::new(part);
        used = i + 1;
        asked += part.len();
    }
    (asked, stream.write_vectored(&slices[..used]))
}

/// Takes note of `n` written bytes.
fn advance(pool: &mut BufferPool, out: &mut Out, n: usize) {
    out.head += n;
    while let Some(first) = out.queue.front() {
        let len = first.bytes().len();
        if out.head < len {
            return;
        }
        out.head -= len;
        out.greeting_bytes = 0;
        if let Some(Segment::Bytes(buf)) = out.queue.pop_front() {
            pool.put(buf);
        }
    }
    if out.head >= COMPACT_BYTES_MIN && out.head * 2 >= out.buf.len() {
        // Cut at the start of the message that is under way: `unsent` must find it whole.
        let whole = Unsent::whole_messages_len(&out.buf, out.head, out.greeting_bytes.into());
        out.buf.drain(..whole);
        out.head -= whole;
        out.greeting_bytes = 0;
    }
}

impl Outbox for OutputTable {
    #[inline]
    fn forward(&mut self, to: ConnId, class: OutClass, message: &Message<'_>) {
        let wire = message.wire();
        if !self.admit(to, class, wire.len()) {
            return;
        }
        let out = &mut self.slots[to.slot()];
        match message.shared() {
            Some(shared) if wire.len() >= SHARED_BYTES_MIN => {
                if !out.buf.is_empty() {
                    out.queue
                        .push_back(Segment::Bytes(std::mem::take(&mut out.buf)));
                }
                out.queue
                    .push_back(Segment::Shared(SharedBytes::clone(shared)));
            }
            _ => Self::append(&mut self.pool, out, wire),
        }
        self.account(to.slot(), wire.len());
    }

    #[inline]
    fn send(&mut self, to: ConnId, class: OutClass, pieces: &[&[u8]]) {
        let len = pieces.iter().map(|p| p.len()).sum();
        if !self.admit(to, class, len) {
            return;
        }
        let out = &mut self.slots[to.slot()];
        for piece in pieces {
            Self::append(&mut self.pool, out, piece);
        }
        self.account(to.slot(), len);
    }

    fn close(&mut self, conn: ConnId, reason: CloseReason) {
        if let Some(out) = self.find(conn) {
            if reason != CloseReason::Shutdown {
                // From here on nothing more leaves, not even what is already in the buffer.
                out.state = State::Lost;
            }
            self.closes.push((conn, reason));
        }
    }

    fn release(&mut self, conn: ConnId) {
        if self.find(conn).is_some() {
            self.releases.push(conn);
        }
    }

    fn pending_bytes(&mut self, conn: ConnId) -> usize {
        self.find(conn).map_or(0, |out| out.pending)
    }

    fn notify_writable(&mut self, conn: ConnId, below_bytes: usize) {
        if let Some(out) = self.find(conn) {
            out.notify_below = Some(below_bytes);
            self.tell_writable(conn.slot());
        }
    }

    fn set_never_paused(&mut self, conn: ConnId, never_paused: bool) {
        if let Some(out) = self.find(conn) {
            out.never_paused = never_paused;
            self.resumed |= never_paused;
        }
    }

    fn pause_input(&mut self, socket: Socket, paused: bool) {
        self.paused[socket as usize] = paused;
        self.resumed |= !paused;
    }

    fn has_room(&self) -> bool {
        true
    }
}
