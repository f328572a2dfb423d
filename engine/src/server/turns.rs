//! One turn of each agent between its poll and its sleep: no thread, no system, no clock.

use super::control::{Bell, DispatchOrder, Orders};
use super::dispatch::Decide;
use super::events::{InEvent, OutEvent, decode_info};
use super::ringed::{RingOutbox, RingSink, apply};
use crate::ids::Now;
use crate::io::Steps;
use crate::link::Outbox;
use crate::ring::{Batch, BatchReceiver};
use std::sync::Arc;

/// Batches the dispatch takes from one ring before it looks at the others.
const BATCHES_PER_TURN: usize = 4;

/// An I/O agent's ends of its two rings.
pub(super) struct IoEnds {
    pub(super) sink: RingSink,
    pub(super) receiver: BatchReceiver<OutEvent>,
    pub(super) dispatch_bell: Arc<Bell>,
}

impl IoEnds {
    /// A turn. Output first: it makes room for what input causes. True if there was work.
    pub(super) fn turn<A: Steps>(&mut self, io: &mut A, now: Now) -> bool {
        let mut work = false;
        while let Some(mut batch) = self.receiver.take() {
            work = true;
            while let Some(event) = batch.next_event() {
                apply(&batch, event, &mut io.table().outs);
            }
            self.receiver.put(batch);
            // The batch is free again; the dispatch may be waiting for it.
            self.dispatch_bell.ring_for_room();
        }
        work |= io.turn(now.mono_ns, &mut self.sink) > 0;
        // Writing is work, too: that it failed is found out by the next turn's reading.
        work |= io.table().outs.has_dirty();
        work |= io.flush(now.mono_ns);
        self.sink.flush();
        work
    }

    /// True if a turn would have something to do without a further event: no sleep then.
    pub(super) fn has_work<A: Steps>(&mut self, io: &mut A) -> bool {
        !self.receiver.is_empty() || io.has_work(&mut self.sink) || self.sink.can_flush()
    }

    /// Bytes held for the agent's connections, those on their way to the dispatch included.
    pub(super) fn held_bytes<A: Steps>(&self, io: &mut A) -> usize {
        io.table().held_bytes() + self.sink.bytes_under_way()
    }
}

/// The dispatch's ends of all rings.
pub(super) struct DispatchEnds {
    pub(super) outbox: RingOutbox,
    /// Rings from the I/O agents in the order they are looked at: administrative, backend,
    /// frontend; each with the bell of its agent.
    pub(super) inputs: Vec<(BatchReceiver<InEvent>, Arc<Bell>)>,
}

impl DispatchEnds {
    /// A turn. `held_bytes` is what the I/O agents hold; `stop_listening` is called once, when
    /// the end of the broker begins. Returns whether there was work, and whether input waits
    /// because there is no room for what it may cause.
    pub(super) fn turn<D: Decide>(
        &mut self,
        dispatch: &mut D,
        orders: &Orders<DispatchOrder>,
        held_bytes: usize,
        now: Now,
        stop_listening: impl FnOnce(),
    ) -> (bool, bool) {
        dispatch.begin_turn(now, held_bytes + self.outbox.bytes_under_way());
        let mut work = false;
        while let Some(order) = orders.take() {
            work = true;
            dispatch.order(order, now, &mut self.outbox);
        }
        let mut blocked = false;
        for (receiver, bell) in &mut self.inputs {
            for _ in 0..BATCHES_PER_TURN {
                let Some(mut batch) = receiver.take() else {
                    break;
                };
                let before = batch.remaining();
                consume(&mut batch, dispatch, &mut self.outbox, now);
                work |= batch.remaining() < before;
                let done = batch.remaining() == 0;
                receiver.put(batch);
                if !done {
                    blocked = true;
                    break;
                }
                // The batch is free again; its agent may be waiting for it.
                bell.ring_for_room();
            }
        }
        if dispatch.is_end_asked() {
            stop_listening();
            dispatch.begin_drain(now, &mut self.outbox);
            work = true;
        }
        dispatch.after_input(now, &mut self.outbox);
        work |= self.outbox.flush();
        (work, blocked)
    }

    /// True if a turn would have something to do: no sleep then.
    pub(super) fn has_work<D: Decide>(&self, dispatch: &D, orders: &Orders<DispatchOrder>) -> bool {
        let room = self.outbox.has_room();
        let input = self.inputs.iter().any(|(r, _)| !r.is_empty());
        !orders.is_empty() || (room && (input || dispatch.has_output())) || self.outbox.can_flush()
    }
}

/// Feeds the events of a batch to the dispatch as long as there is room for what they cause.
fn consume<D: Decide>(
    batch: &mut Batch<InEvent>,
    dispatch: &mut D,
    out: &mut RingOutbox,
    now: Now,
) {
    while out.has_room() {
        let Some(event) = batch.next_event() else {
            return;
        };
        let socket = match event {
            InEvent::Opened { socket, .. }
            | InEvent::Message { socket, .. }
            | InEvent::TooLarge { socket, .. }
            | InEvent::Activity { socket, .. }
            | InEvent::Lost { socket, .. }
            | InEvent::Unsent { socket, .. }
            | InEvent::Closed { socket, .. }
            | InEvent::Writable { socket, .. } => socket,
        };
        if !dispatch.takes_input(socket) && dispatch.poll_output(now, out) {
            batch.untake();
            return;
        }
        match event {
            InEvent::Opened { conn, info, .. } => {
                out.opened(conn);
                let info = decode_info(&batch.message(info));
                dispatch.opened(conn, info, now, out);
            }
            InEvent::Message {
                conn,
                socket,
                place,
            } => dispatch.message(conn, socket, &batch.message(place), now, out),
            InEvent::TooLarge { conn, socket, head } => {
                dispatch.too_large(conn, socket, &batch.message(head), now, out);
            }
            InEvent::Activity { conn, socket } => dispatch.activity(conn, socket, now, out),
            InEvent::Lost { conn, socket } => dispatch.lost(conn, socket, now, out),
            InEvent::Unsent {
                conn,
                socket,
                place,
            } => dispatch.unsent(conn, socket, &batch.message(place), now, out),
            InEvent::Closed { conn, socket } => dispatch.closed(conn, socket, now, out),
            InEvent::Writable { conn, socket } => dispatch.writable(conn, socket, now, out),
        }
    }
}
