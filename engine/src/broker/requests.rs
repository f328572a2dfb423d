//! REQUESTs: acceptance, refusal, and where an accepted job goes first.

use super::Broker;
use super::log::LogKind;
use super::peers::Role;
use super::queues::DEFAULT_QUEUE;
use super::slab::NONE;
use super::store::{JobMeta, NO_HEAD, flags};
use crate::emqp::{
    Command, Envelope, MSGID_TEXT_BYTES, RejectReason, RequestHeaders, advance_msgid,
};
use crate::frames::Message;
use crate::ids::{ConnId, Now};
use crate::limits::QUEUE_NAME_BYTES_MAX;
use crate::link::{OutClass, Outbox};
use crate::metrics::Counter;

/// Where the msgid begins in an acceptance: behind `'', 'eMQP/1.0', 'REPLY'`.
const ACCEPT_ID_AT: usize = 12 + 2 + 5 + 2;
/// Everything of an acceptance but the msgid of the REQUEST.
pub(super) const ACCEPT_BYTES: usize = ACCEPT_ID_AT + MSGID_TEXT_BYTES + 2;

/// An acceptance up to the length byte of its last frame. The broker's own msgids are counted up
/// inside it.
#[derive(Debug)]
pub(super) struct AcceptTemplate {
    bytes: [u8; ACCEPT_BYTES],
}

impl AcceptTemplate {
    pub(super) fn new(seeds: [u64; 2]) -> Self {
        let mut out = Vec::new();
        crate::emqp::MessageBuilder::append(&mut out, Command::Reply)
            .frame(&crate::emqp::first_msgid(seeds))
            .last(b"");
        let bytes = out.try_into().expect("the acceptance has a fixed length");
        AcceptTemplate { bytes }
    }

    fn id_mut(&mut self) -> &mut [u8; MSGID_TEXT_BYTES] {
        self.bytes[ACCEPT_ID_AT..]
            .first_chunk_mut()
            .expect("the msgid lies in the template")
    }

    /// A fresh msgid.
    #[inline]
    pub(super) fn next_id(&mut self) -> [u8; MSGID_TEXT_BYTES] {
        advance_msgid(self.id_mut());
        *self.id_mut()
    }

    /// The acceptance of a REQUEST with a msgid of this length, up to that msgid.
    #[inline]
    pub(super) fn next_accept(&mut self, msgid_len: usize) -> &[u8] {
        advance_msgid(self.id_mut());
        // A msgid is at most 255 bytes long: a short frame.
        self.bytes[ACCEPT_BYTES - 1] = msgid_len as u8;
        &self.bytes
    }
}

impl Broker {
    #[inline]
    pub(super) fn on_request<O: Outbox>(
        &mut self,
        peer: u32,
        envelope: &Envelope<'_>,
        now: Now,
        out: &mut O,
    ) {
        let (Some(name), Some(headers)) = (envelope.body(0), envelope.body(1)) else {
            return self.reject(peer, envelope.msgid, RejectReason::Malformed, now, out);
        };
        if envelope.body_len() < 3 {
            return self.reject(peer, envelope.msgid, RejectReason::Malformed, now, out);
        }
        let Ok(headers) = RequestHeaders::parse(headers) else {
            return self.reject(peer, envelope.msgid, RejectReason::Malformed, now, out);
        };
        if let Some(reason) = self.refusal(peer, name, &headers) {
            return self.reject(peer, envelope.msgid, reason, now, out);
        }
        let message = envelope.message();
        let owes = headers.reply_requested && self.takes_results(peer);
        let meta = JobMeta {
            seq: self.next_seq,
            accepted_ns: now.mono_ns,
            client: if owes { peer } else { NONE },
            timeout_secs: headers.timeout_secs,
            flags: if headers.worker_replies {
                flags::REPLIES
            } else {
                0
            },
            // Behind at most 60 bytes of wire form.
            msgid_at: message.spans()[3].start as u8,
            msgid_len: envelope.msgid.len() as u8,
        };
        let placed = self.place(peer, name, meta, message, now, out);
        match placed {
            Ok(()) => {
                self.next_seq += 1;
                if owes {
                    self.peers.slab[peer].refs += 1;
                }
                self.counters.inc(Counter::RequestsAccepted);
                if headers.guarantee || headers.retry_count > 0 {
                    self.note_not_durable(now);
                }
                if let Some(conn) = self.peers.slab[peer].output {
                    let head = self.accept.next_accept(envelope.msgid.len());
                    out.send(conn, OutClass::Notice, &[head, envelope.msgid]);
                }
                self.watch_memory(now, out);
            }
            Err(reason) => self.reject(peer, envelope.msgid, reason, now, out),
        }
    }

    /// Reasons to refuse a REQUEST that do not depend on its queue.
    #[inline]
    fn refusal(
        &mut self,
        peer: u32,
        name: &[u8],
        headers: &RequestHeaders,
    ) -> Option<RejectReason> {
        if name.len() > QUEUE_NAME_BYTES_MAX {
            return Some(RejectReason::TooLarge);
        }
        if headers.delay_secs > 0 || headers.debounce_secs > 0 {
            return Some(RejectReason::Unsupported);
        }
        if self.refuses_requests(peer) {
            return Some(RejectReason::Draining);
        }
        if self.memory.refusing() && self.is_far_above_limit() {
            return Some(RejectReason::MemoryFull);
        }
        None
    }

    #[cold]
    fn note_not_durable(&mut self, now: Now) {
        self.counters.inc(Counter::GuaranteeNotDurable);
        if !std::mem::replace(&mut self.warned_not_durable, true)
            && self.logs.admit(LogKind::NotDurable, now.mono_ns).is_some()
        {
            tracing::warn!("guarantee and retry-count are carried on, but not acted on");
        }
    }

    /// False for a registered scheduler that does not take results (protocol.md section 3).
    #[inline]
    pub(super) fn takes_results(&self, peer: u32) -> bool {
        match self.peers.slab[peer].role {
            Role::Scheduler(scheduler) => self.schedulers.slab[scheduler].results,
            _ => true,
        }
    }

    #[inline]
    fn find_queue(&mut self, peer: u32, name: &[u8]) -> Option<u32> {
        if name.is_empty() {
            return Some(DEFAULT_QUEUE);
        }
        let cached = self.peers.slab[peer].last_queue;
        if self
            .queues
            .slab
            .get(cached)
            .is_some_and(|queue| *queue.name == *name)
        {
            return Some(cached);
        }
        let found = self.queues.find(name)?;
        self.peers.slab[peer].last_queue = found;
        Some(found)
    }

    /// Hands the job out or lets it wait.
    #[inline]
    fn place<O: Outbox>(
        &mut self,
        peer: u32,
        name: &[u8],
        mut meta: JobMeta,
        message: &Message<'_>,
        now: Now,
        out: &mut O,
    ) -> Result<(), RejectReason> {
        let known = self.find_queue(peer, name);
        let served = known.filter(|queue| self.is_served(*queue, now));
        if let Some(queue) = served {
            if self.head_for_workers(queue) == NO_HEAD
                && self.hands_out
                && let Some((worker, slot)) = self.choose_worker(queue)
            {
                self.queues.slab[queue].accepted_sum_ns += u128::from(meta.accepted_ns);
                self.give(worker, queue, slot, meta, message, now, out);
                return Ok(());
            }
            if self.memory.refusing() {
                return Err(RejectReason::MemoryFull);
            }
            let limit = self.config.hwm;
            if limit > 0 && queue != DEFAULT_QUEUE && self.queues.slab[queue].waiting() >= limit {
                return Err(RejectReason::QueueFull);
            }
            self.wait_in(queue, meta, message);
            return Ok(());
        }
        meta.flags |= flags::OPEN;
        if self.head_for_workers(DEFAULT_QUEUE) == NO_HEAD
            && self.hands_out
            && let Some((worker, slot)) = self.choose_worker(DEFAULT_QUEUE)
        {
            meta.flags |= flags::FALLBACK;
            self.queues.slab[DEFAULT_QUEUE].accepted_sum_ns += u128::from(meta.accepted_ns);
            self.give(worker, DEFAULT_QUEUE, slot, meta, message, now, out);
            return Ok(());
        }
        if self.memory.refusing() {
            return Err(RejectReason::MemoryFull);
        }
        let queue = match known {
            Some(queue) => queue,
            None if self.queues.slab.len() >= self.config.max_queues => {
                return Err(RejectReason::TooManyQueues);
            }
            None => {
                let queue = self.create_queue(name, now);
                self.peers.slab[peer].last_queue = queue;
                queue
            }
        };
        self.wait_in(queue, meta, message);
        Ok(())
    }

    /// Served: the default queue, one with a worker, or one whose last worker left lately.
    #[inline]
    pub(super) fn is_served(&self, queue: u32, now: Now) -> bool {
        let entry = &self.queues.slab[queue];
        entry.workers > 0 || queue == DEFAULT_QUEUE || now.mono_ns < entry.served_until_ns
    }

    #[inline]
    fn wait_in(&mut self, queue: u32, meta: JobMeta, message: &Message<'_>) {
        let open = meta.flags & flags::OPEN != 0;
        let entry = &mut self.queues.slab[queue];
        entry.accepted_sum_ns += u128::from(meta.accepted_ns);
        let store = entry.store(open);
        let was_empty = store.len() == 0;
        store.push(&mut self.blocks, &meta, message);
        self.jobs_waiting += 1;
        if was_empty {
            self.head_changed(queue, open);
        }
    }

    /// Tells a peer that its message was not taken.
    #[cold]
    pub(super) fn reject<O: Outbox>(
        &mut self,
        peer: u32,
        msgid: &[u8],
        reason: RejectReason,
        now: Now,
        out: &mut O,
    ) {
        self.counters.inc(match reason {
            RejectReason::Malformed => Counter::RejectedMalformed,
            RejectReason::QueueFull => Counter::RejectedQueueFull,
            RejectReason::TooManyQueues => Counter::RejectedTooManyQueues,
            RejectReason::MemoryFull => Counter::RejectedMemoryFull,
            RejectReason::Draining => Counter::RejectedDraining,
            RejectReason::NoScheduler => Counter::RejectedNoScheduler,
            RejectReason::TooLarge => Counter::RejectedTooLarge,
            RejectReason::NotDurable => Counter::GuaranteeNotDurable,
            RejectReason::Unsupported => Counter::RejectedUnsupported,
        });
        let word = String::from_utf8_lossy(reason.word());
        if reason != RejectReason::Draining
            && let Some(repeats) = self.logs.admit(LogKind::Rejected, now.mono_ns)
        {
            let id = crate::log_limit::shown_id(&self.peers.slab[peer].id);
            tracing::warn!(reason = %word, peer = %id, repeats, "message refused");
        }
        let entry = &self.peers.slab[peer];
        // Only our own peers know this reason (protocol.md section 1).
        if reason == RejectReason::Draining && !entry.extensions {
            return;
        }
        let Some(conn) = entry.output else { return };
        let id = self.accept.next_id();
        crate::emqp::MessageBuilder::begin(&mut self.scratch, Command::Reject)
            .frame(&id)
            .frame(msgid)
            .last(reason.word());
        out.send(conn, OutClass::Result, &[&self.scratch]);
    }

    /// The first frames of a message above the size limits; the rest is being discarded.
    pub fn handle_too_large<O: Outbox>(
        &mut self,
        conn: ConnId,
        head: &Message<'_>,
        now: Now,
        out: &mut O,
    ) {
        let Some(peer) = self.seen(conn, now) else {
            return;
        };
        self.shows_life(peer, now, out);
        match Envelope::parse(head) {
            Ok(envelope)
                if self.peers.slab[peer].socket == crate::ids::Socket::Frontend
                    && matches!(
                        envelope.command,
                        Command::Request | Command::Schedule | Command::Unschedule
                    ) =>
            {
                self.reject(peer, envelope.msgid, RejectReason::TooLarge, now, out);
            }
            Ok(_) => {}
            Err(bad) => self.counters.inc(bad.counter()),
        }
        self.run_tasks(now, out);
    }
}
