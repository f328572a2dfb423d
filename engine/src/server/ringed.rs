//! The two sides of the rings: an I/O agent's sink and the dispatch's outbox.

use super::control::Bell;
use super::events::{InEvent, OutEvent, encode_info};
use crate::frames::Message;
use crate::ids::{ConnId, Socket};
use crate::io::{InputSink, OutputTable, WrittenTable};
use crate::link::{CloseReason, OutClass, Outbox, PeerInfo};
use crate::ring::{Batch, BatchSender, Place, RingConfig};
use crate::snapshot::RingReport;
use std::sync::Arc;

fn ring_report<E: Copy>(
    report: &mut RingReport,
    sender: &BatchSender<E>,
    config: RingConfig,
    offers_failed: u64,
) {
    report.items = sender.batches_under_way() as u64;
    report.items_max = config.batches as u64;
    report.bytes = sender.bytes_under_way() as u64;
    report.bytes_max = config.bytes_max as u64;
    report.offers_failed = offers_failed;
}

fn named(name: &str) -> RingReport {
    RingReport {
        name: name.to_owned(),
        ..RingReport::default()
    }
}

/// Puts what an I/O agent reads into its ring.
pub(super) struct RingSink {
    sender: BatchSender<InEvent>,
    bell: Arc<Bell>,
    name: String,
    config: RingConfig,
    /// Times that there was no room.
    pub(super) blocked: u64,
}

impl RingSink {
    /// `bell` is the dispatch's, `name` the agent's.
    pub(super) fn new(
        sender: BatchSender<InEvent>,
        bell: Arc<Bell>,
        name: &str,
        config: RingConfig,
    ) -> Self {
        RingSink {
            sender,
            bell,
            name: format!("{name} to dispatch"),
            config,
            blocked: 0,
        }
    }

    /// Makes `reports` say how the ring is, without an allocation but the first time.
    pub(super) fn report(&self, reports: &mut Vec<RingReport>) {
        if reports.is_empty() {
            reports.push(named(&self.name));
        }
        ring_report(&mut reports[0], &self.sender, self.config, self.blocked);
    }

    pub(super) fn can_flush(&self) -> bool {
        self.sender.can_flush()
    }

    /// True if a batch given back would let this side go on.
    pub(super) fn wants_room(&self) -> bool {
        !self.sender.has_room() || self.sender.needs_flush()
    }

    /// Sends what this turn has put in.
    pub(super) fn flush(&mut self) {
        if self.sender.flush() {
            self.bell.ring();
        }
    }

    pub(super) fn bytes_under_way(&self) -> usize {
        self.sender.bytes_under_way()
    }

    #[inline]
    fn put(&mut self, message: &Message<'_>, event: impl FnOnce(Place) -> InEvent) {
        let batch = self.sender.open_over();
        let place = batch.put_message(message, true);
        batch.push(event(place));
    }

    fn push(&mut self, event: InEvent) {
        self.sender.open_over().push(event);
    }
}

impl InputSink for RingSink {
    #[inline]
    fn has_room(&mut self, _socket: Socket) -> bool {
        let room = self.sender.has_room();
        self.blocked += u64::from(!room);
        room
    }

    fn opened(&mut self, conn: ConnId, info: PeerInfo, _outs: &mut OutputTable) {
        let socket = info.socket;
        self.put(&encode_info(&info).view(), |info| InEvent::Opened {
            conn,
            socket,
            info,
        });
    }

    #[inline]
    fn message(
        &mut self,
        conn: ConnId,
        socket: Socket,
        message: &Message<'_>,
        _outs: &mut OutputTable,
    ) {
        self.put(message, |place| InEvent::Message {
            conn,
            socket,
            place,
        });
    }

    fn too_large(
        &mut self,
        conn: ConnId,
        socket: Socket,
        head: &Message<'_>,
        _outs: &mut OutputTable,
    ) {
        self.put(head, |head| InEvent::TooLarge { conn, socket, head });
    }

    fn activity(&mut self, conn: ConnId, socket: Socket, _outs: &mut OutputTable) {
        self.push(InEvent::Activity { conn, socket });
    }

    fn lost(&mut self, conn: ConnId, socket: Socket, _outs: &mut OutputTable) {
        self.push(InEvent::Lost { conn, socket });
    }

    fn unsent(
        &mut self,
        conn: ConnId,
        socket: Socket,
        message: &Message<'_>,
        _outs: &mut OutputTable,
    ) {
        self.put(message, |place| InEvent::Unsent {
            conn,
            socket,
            place,
        });
    }

    fn closed(&mut self, conn: ConnId, socket: Socket, _outs: &mut OutputTable) {
        self.push(InEvent::Closed { conn, socket });
    }

    fn writable(&mut self, conn: ConnId, socket: Socket, _outs: &mut OutputTable) {
        self.push(InEvent::Writable { conn, socket });
    }
}

/// One I/O agent as the dispatch sees it.
struct Side {
    name: String,
    sender: BatchSender<OutEvent>,
    bell: Arc<Bell>,
    written: Arc<WrittenTable>,
    /// Bytes handed over per slot since its connection, of this generation, was opened.
    handed: Vec<(u32, u64)>,
}

impl Side {
    #[inline]
    fn message(
        &mut self,
        conn: ConnId,
        class: OutClass,
        len: usize,
        put: impl FnOnce(&mut Batch<OutEvent>) -> Place,
    ) {
        // An administrative answer may be for a connection whose slot has been reused.
        if let Some((generation, handed)) = self.handed.get_mut(conn.slot())
            && *generation == conn.generation()
        {
            *handed += len as u64;
        }
        let batch = self.sender.open_over();
        let place = put(batch);
        batch.push(OutEvent::Message { conn, class, place });
    }
}

/// Puts what the dispatch sends into the rings of the I/O agents, indexed by agent number.
pub(super) struct RingOutbox {
    sides: Vec<Side>,
    config: RingConfig,
}

impl RingOutbox {
    pub(super) fn new(config: RingConfig) -> Self {
        RingOutbox {
            sides: Vec::new(),
            config,
        }
    }

    /// Makes `reports` say how the rings are, without an allocation but the first time.
    pub(super) fn report(&self, reports: &mut Vec<RingReport>) {
        if reports.is_empty() {
            reports.extend(self.sides.iter().map(|s| named(&s.name)));
        }
        for (report, side) in reports.iter_mut().zip(&self.sides) {
            ring_report(report, &side.sender, self.config, 0);
        }
    }

    pub(super) fn can_flush(&self) -> bool {
        self.sides.iter().any(|s| s.sender.can_flush())
    }

    pub(super) fn add_agent(
        &mut self,
        name: &str,
        sender: BatchSender<OutEvent>,
        bell: Arc<Bell>,
        written: Arc<WrittenTable>,
    ) {
        let name = format!("dispatch to {name}");
        self.sides.push(Side {
            name,
            sender,
            bell,
            written,
            handed: Vec::new(),
        });
    }

    /// A connection has been opened: nothing has been handed to it.
    pub(super) fn opened(&mut self, conn: ConnId) {
        let handed = &mut self.sides[conn.agent()].handed;
        if conn.slot() >= handed.len() {
            handed.resize(conn.slot() + 1, (0, 0));
        }
        handed[conn.slot()] = (conn.generation(), 0);
    }

    /// Sends what has been put in; true if anything was.
    pub(super) fn flush(&mut self) -> bool {
        let mut any = false;
        for side in &mut self.sides {
            if side.sender.flush() {
                side.bell.ring();
                any = true;
            }
        }
        any
    }

    /// True if a batch given back would let the dispatch go on.
    pub(super) fn wants_room(&self) -> bool {
        !self.has_room() || self.needs_flush()
    }

    pub(super) fn needs_flush(&self) -> bool {
        self.sides.iter().any(|s| s.sender.needs_flush())
    }

    pub(super) fn bytes_under_way(&self) -> usize {
        self.sides.iter().map(|s| s.sender.bytes_under_way()).sum()
    }

    fn push(&mut self, conn: ConnId, event: OutEvent) {
        self.sides[conn.agent()].sender.open_over().push(event);
    }
}

impl Outbox for RingOutbox {
    #[inline]
    fn forward(&mut self, to: ConnId, class: OutClass, message: &Message<'_>) {
        let len = message.wire().len();
        self.sides[to.agent()].message(to, class, len, |b| b.put_message(message, false));
    }

    #[inline]
    fn send(&mut self, to: ConnId, class: OutClass, pieces: &[&[u8]]) {
        let len = pieces.iter().map(|p| p.len()).sum();
        self.sides[to.agent()].message(to, class, len, |b| b.put_pieces(pieces));
    }

    fn close(&mut self, conn: ConnId, reason: CloseReason) {
        self.push(conn, OutEvent::Close { conn, reason });
    }

    fn release(&mut self, conn: ConnId) {
        self.push(conn, OutEvent::Release { conn });
    }

    fn pending_bytes(&mut self, conn: ConnId) -> usize {
        let side = &self.sides[conn.agent()];
        let handed = side.handed.get(conn.slot()).map_or(0, |(_, bytes)| *bytes);
        // Both wrap. A slot in reuse may look as if more had left than was handed over.
        let waiting = handed
            .wrapping_sub(side.written.get(conn.slot()))
            .cast_signed();
        usize::try_from(waiting).unwrap_or(0)
    }

    fn notify_writable(&mut self, conn: ConnId, below_bytes: usize) {
        self.push(conn, OutEvent::NotifyWritable { conn, below_bytes });
    }

    fn set_never_paused(&mut self, conn: ConnId, never_paused: bool) {
        self.push(conn, OutEvent::NeverPaused { conn, never_paused });
    }

    fn pause_input(&mut self, socket: Socket, paused: bool) {
        for side in &mut self.sides {
            side.sender
                .open_over()
                .push(OutEvent::PauseInput { socket, paused });
        }
    }

    fn has_room(&self) -> bool {
        self.sides.iter().all(|side| side.sender.has_room())
    }
}

/// Carries out what came over a ring.
pub(super) fn apply(batch: &Batch<OutEvent>, event: OutEvent, outs: &mut OutputTable) {
    match event {
        OutEvent::Message { conn, class, place } => {
            outs.forward(conn, class, &batch.message(place));
        }
        OutEvent::Close { conn, reason } => outs.close(conn, reason),
        OutEvent::Release { conn } => outs.release(conn),
        OutEvent::NotifyWritable { conn, below_bytes } => outs.notify_writable(conn, below_bytes),
        OutEvent::NeverPaused { conn, never_paused } => outs.set_never_paused(conn, never_paused),
        OutEvent::PauseInput { socket, paused } => outs.pause_input(socket, paused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{Doorbell, Wake, ring};

    struct Nobody;

    impl Wake for Nobody {
        fn wake(&self) {}
    }

    #[test]
    fn what_is_sent_to_a_former_user_of_a_slot_does_not_count_for_the_next() {
        let config = RingConfig::default();
        let mut outbox = RingOutbox::new(config);
        let waker: Box<dyn Wake> = Box::new(Nobody);
        let bell = Arc::new(Doorbell::new(waker));
        outbox.add_agent("io", ring(config).0, bell, WrittenTable::new(4));
        let (old, new) = (ConnId::new(0, 2, 1), ConnId::new(0, 2, 2));
        outbox.opened(old);
        outbox.opened(new);
        outbox.send(old, OutClass::Result, &[b"late"]);
        assert_eq!(outbox.pending_bytes(new), 0);
        outbox.send(new, OutClass::Result, &[b"in time"]);
        assert_eq!(outbox.pending_bytes(new), 7);
    }
}
