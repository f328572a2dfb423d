//! The two ends of a ring of batches.

use super::Batch;
use crate::limits::{CHUNK_BYTES, CHUNK_MESSAGES_MAX};
use crossbeam::queue::ArrayQueue;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bounds of one ring.
#[derive(Debug, Clone, Copy)]
pub struct RingConfig {
    /// Number of batches, in use or not; at least 1.
    pub batches: usize,
    /// Message bytes under way at which no further batch is opened (one always may be).
    pub bytes_max: usize,
    /// Message bytes at which a batch is full; the last message put into it may exceed it.
    pub batch_bytes: usize,
    /// Events at which a batch is full; at least 1.
    pub batch_events: usize,
}

impl Default for RingConfig {
    fn default() -> Self {
        RingConfig {
            batches: 16,
            bytes_max: 32 * 1024 * 1024,
            batch_bytes: CHUNK_BYTES,
            batch_events: CHUNK_MESSAGES_MAX,
        }
    }
}

#[derive(Debug)]
struct Shared<E> {
    forward: ArrayQueue<Box<Batch<E>>>,
    back: ArrayQueue<Box<Batch<E>>>,
    bytes_under_way: AtomicUsize,
}

/// Makes a ring.
pub fn ring<E: Copy>(config: RingConfig) -> (BatchSender<E>, BatchReceiver<E>) {
    let batches = config.batches.max(1);
    let shared = Arc::new(Shared {
        // One more than `batches`: the spare that `BatchSender::open_over` may make.
        forward: ArrayQueue::new(batches + 1),
        back: ArrayQueue::new(batches + 1),
        bytes_under_way: AtomicUsize::new(0),
    });
    let sender = BatchSender {
        shared: Arc::clone(&shared),
        open: None,
        made: 0,
        sent: false,
        config: RingConfig { batches, ..config },
    };
    (
        sender,
        BatchReceiver {
            shared,
            current: None,
        },
    )
}

/// The sending end: fills one open batch, which leaves when it is full or at the end of a turn.
#[derive(Debug)]
pub struct BatchSender<E> {
    shared: Arc<Shared<E>>,
    open: Option<Box<Batch<E>>>,
    made: usize,
    /// Something was sent since the last flush.
    sent: bool,
    config: RingConfig,
}

impl<E: Copy> BatchSender<E> {
    /// The batch to put the next event into, or `None` while all batches are under way.
    #[inline]
    pub fn open(&mut self) -> Option<&mut Batch<E>> {
        if self.open.as_ref().is_none_or(|b| b.is_full()) && !self.open_another(true) {
            return None;
        }
        self.open.as_deref_mut()
    }

    /// A batch to put an event into whether there is room or not: the open one even if it is full,
    /// else a spare. For the little that one input message or timer causes; what fans out asks
    /// [`BatchSender::has_room`] first.
    #[inline]
    pub fn open_over(&mut self) -> &mut Batch<E> {
        if self.open.as_ref().is_none_or(|b| b.is_full()) {
            self.open_another(false);
        }
        // `flush` leaves no batch open only while one is free or the spare is unmade.
        self.open.get_or_insert_with(|| {
            self.made += 1;
            Box::new(Batch::new(&self.config))
        })
    }

    /// True if [`BatchSender::open`] would succeed.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.open.as_ref().is_some_and(|b| !b.is_full()) || self.may_open(true)
    }

    fn may_open(&self, bounded: bool) -> bool {
        let under_way = self.shared.bytes_under_way.load(Ordering::Relaxed);
        let open = self.open.as_ref().map_or(0, |b| b.byte_len());
        let fits = !bounded || under_way == 0 || under_way + open <= self.config.bytes_max;
        fits && (self.made < self.config.batches || !self.shared.back.is_empty())
    }

    #[cold]
    fn open_another(&mut self, bounded: bool) -> bool {
        if !self.may_open(bounded) {
            return false;
        }
        let next = match self.shared.back.pop() {
            Some(batch) => batch,
            None if self.made < self.config.batches => {
                self.made += 1;
                Box::new(Batch::new(&self.config))
            }
            None => return false,
        };
        self.send();
        self.open = Some(next);
        true
    }

    /// Sends the open batch if it has events. With nothing free to open afterwards the batch
    /// stays open, for a later call. True if anything was sent since the last call, full batches
    /// on the way included: ring the doorbell.
    pub fn flush(&mut self) -> bool {
        if self.can_flush() {
            self.send();
        }
        std::mem::take(&mut self.sent)
    }

    /// True if [`BatchSender::flush`] would send something.
    pub fn can_flush(&self) -> bool {
        self.needs_flush() && (self.made <= self.config.batches || !self.shared.back.is_empty())
    }

    /// Batches on their way to the receiver.
    pub fn batches_under_way(&self) -> usize {
        self.shared.forward.len()
    }

    /// True while events wait in the open batch.
    pub fn needs_flush(&self) -> bool {
        self.open.as_ref().is_some_and(|b| !b.is_empty())
    }

    fn send(&mut self) {
        let Some(batch) = self.open.take() else {
            return;
        };
        self.shared
            .bytes_under_way
            .fetch_add(batch.byte_len(), Ordering::Relaxed);
        let refused = self.shared.forward.push(batch).is_err();
        assert!(!refused, "a ring has room for all of its batches");
        self.sent = true;
    }

    /// True if batches sent earlier have not been taken yet, or one is open with events.
    pub fn is_idle(&self) -> bool {
        self.shared.forward.is_empty() && self.open.as_ref().is_none_or(|b| b.is_empty())
    }

    /// Message bytes sent and not yet given back by the receiver.
    pub fn bytes_under_way(&self) -> usize {
        self.shared.bytes_under_way.load(Ordering::Relaxed)
    }
}

/// The receiving end: takes events one at a time and gives used-up batches back.
#[derive(Debug)]
pub struct BatchReceiver<E> {
    shared: Arc<Shared<E>>,
    current: Option<Box<Batch<E>>>,
}

impl<E: Copy> BatchReceiver<E> {
    /// The batch with the next event, if there is any.
    #[inline]
    pub fn current(&mut self) -> Option<&mut Batch<E>> {
        if self.current.as_ref().is_none_or(|b| b.remaining() == 0) {
            self.give_back();
            self.current = self.shared.forward.pop();
        }
        self.current.as_deref_mut()
    }

    /// Takes the whole of the current batch, so that its bytes can be read while other fields of
    /// the owner change; put it back with [`BatchReceiver::put`].
    #[inline]
    pub fn take(&mut self) -> Option<Box<Batch<E>>> {
        self.current()?;
        self.current.take()
    }

    /// Puts a batch back that [`BatchReceiver::take`] returned; used up or not.
    #[inline]
    pub fn put(&mut self, batch: Box<Batch<E>>) {
        debug_assert!(self.current.is_none());
        self.current = Some(batch);
        if self.current.as_ref().is_some_and(|b| b.remaining() == 0) {
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        if let Some(mut batch) = self.current.take() {
            self.shared
                .bytes_under_way
                .fetch_sub(batch.byte_len(), Ordering::Relaxed);
            batch.reset();
            let refused = self.shared.back.push(batch).is_err();
            assert!(!refused, "a ring has room for all of its batches");
        }
    }

    /// True without anything to take.
    pub fn is_empty(&self) -> bool {
        self.current.as_ref().is_none_or(|b| b.remaining() == 0) && self.shared.forward.is_empty()
    }
}
