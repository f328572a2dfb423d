//! Agents on threads of their own, joined by rings.

use super::control::{AgentReport, Bell, DispatchOrder, IoOrder, Orders, Published, Publishing};
use super::dispatch::{Dispatch, Ending};
use super::events::{InEvent, OutEvent, decode_info};
use super::inline::earliest;
use super::ringed::{RingOutbox, RingSink, apply};
use crate::frames::Message;
use crate::ids::{ConnId, NS_PER_SEC, Now, Socket};
use crate::io::{InputSink, IoAgent, OutputTable};
use crate::link::{Outbox, PeerInfo};
use crate::ring::{Batch, BatchReceiver};
use crate::runtime::clock::Clock;
use crate::runtime::idle::IdleStrategy;
use crossbeam::sync::Parker;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How long the last output may take at the end.
const FINISH_NS: u64 = 2 * NS_PER_SEC;
/// Batches the dispatch takes from one ring before it looks at the others.
const BATCHES_PER_TURN: usize = 4;

/// An I/O agent with a thread of its own.
pub(super) struct IoRunner {
    pub(super) report: AgentReport,
    pub(super) io: IoAgent,
    pub(super) sink: RingSink,
    pub(super) receiver: BatchReceiver<OutEvent>,
    pub(super) clock: Clock,
    pub(super) idle: IdleStrategy,
    pub(super) bell: Arc<Bell>,
    pub(super) dispatch_bell: Arc<Bell>,
    pub(super) orders: Arc<Orders<IoOrder>>,
    pub(super) published: Arc<Published>,
}

impl IoRunner {
    /// Runs until told to finish.
    ///
    /// # Errors
    /// When the system's poll fails.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut publishing = Publishing::default();
        let mut timeout = Some(Duration::ZERO);
        let mut finishing = false;
        loop {
            self.io.poll(timeout)?;
            self.bell.awake();
            let now = self.clock.now();
            while let Some(order) = self.orders.take() {
                match order {
                    IoOrder::Finish => finishing = true,
                    other => obey(&mut self.io, other, now),
                }
            }
            let blocked_before = self.sink.blocked;
            let work = self.turn(now);
            let blocked = self.sink.blocked > blocked_before;
            self.report.count_turn(work, blocked, now.mono_ns);
            if finishing && self.receiver.is_empty() {
                break;
            }
            let more = self.io.has_work(&mut self.sink) || !self.receiver.is_empty();
            timeout = Some(Duration::ZERO);
            if publishing.due(work, now.mono_ns) {
                self.publish();
            }
            if self.idle.may_sleep(work || more, now.mono_ns) {
                self.bell.announce_sleep(self.sink.wants_room());
                let asleep = self.receiver.is_empty()
                    && self.orders.is_empty()
                    && !self.io.has_work(&mut self.sink)
                    && !self.sink.can_flush();
                if asleep {
                    self.report.figures.sleeps += 1;
                    timeout = earliest([self.io.next_deadline_ns(), publishing.wake_ns()], now);
                }
            }
        }
        finish_connections(&mut self.io, &mut self.clock)?;
        self.publish();
        Ok(())
    }

    /// Output first: it makes room for what input causes.
    fn turn(&mut self, now: Now) -> bool {
        let mut work = false;
        while let Some(mut batch) = self.receiver.take() {
            work = true;
            while let Some(event) = batch.next_event() {
                apply(&batch, event, &mut self.io.table.outs);
            }
            self.receiver.put(batch);
            // The batch is free again; the dispatch may be waiting for it.
            self.dispatch_bell.ring_for_room();
        }
        work |= self.io.turn(now.mono_ns, &mut self.sink) > 0;
        self.io.flush(now.mono_ns);
        self.sink.flush();
        let held = self.io.table.held_bytes() + self.sink.bytes_under_way();
        self.published.set_held_bytes(held);
        self.published.set_load(self.io.table.total());
        work
    }

    fn publish(&mut self) {
        self.report.take_from(&self.io);
        self.sink.report(&mut self.report.rings);
        self.published.set(&self.report);
    }
}

/// What an I/O agent is told while it runs.
pub(super) fn obey(io: &mut IoAgent, order: IoOrder, now: Now) {
    match order {
        IoOrder::Listen(listener) => {
            let (socket, addr) = (listener.socket(), listener.addr().clone());
            if let Err(error) = io.listen(listener) {
                tracing::error!(%socket, %addr, %error, "cannot listen");
            }
        }
        IoOrder::StopListening(socket) => io.stop_listening(socket),
        IoOrder::Configure(config) => {
            io.table.set_config(config.0);
            io.table.outs.set_config(config.1);
        }
        IoOrder::Adopt(stream, socket, remote) => io.admit(stream, socket, remote, now.mono_ns),
        IoOrder::Finish => {}
    }
}

/// Receives what still comes at the very end: nothing of it matters any more.
struct NullSink;

impl InputSink for NullSink {
    fn has_room(&mut self, _: Socket) -> bool {
        true
    }
    fn opened(&mut self, _: ConnId, _: PeerInfo, _: &mut OutputTable) {}
    fn message(&mut self, _: ConnId, _: Socket, _: &Message<'_>, _: &mut OutputTable) {}
    fn too_large(&mut self, _: ConnId, _: Socket, _: &Message<'_>, _: &mut OutputTable) {}
    fn lost(&mut self, conn: ConnId, _: Socket, outs: &mut OutputTable) {
        outs.release(conn);
    }
    fn unsent(&mut self, _: ConnId, _: Socket, _: &Message<'_>, _: &mut OutputTable) {}
    fn closed(&mut self, _: ConnId, _: Socket, _: &mut OutputTable) {}
    fn writable(&mut self, _: ConnId, _: Socket, _: &mut OutputTable) {}
}

/// Sends what is waiting and closes every connection in order, for at most [`FINISH_NS`].
pub(super) fn finish_connections(io: &mut IoAgent, clock: &mut Clock) -> io::Result<()> {
    let began = clock.now();
    for socket in Socket::ALL {
        io.stop_listening(socket);
    }
    io.table.close_all(began.mono_ns);
    let end_ns = began.mono_ns + FINISH_NS;
    loop {
        let now = clock.now();
        io.turn(now.mono_ns, &mut NullSink);
        io.flush(now.mono_ns);
        if io.table.is_empty() || now.mono_ns >= end_ns {
            return Ok(());
        }
        let wait = match io.has_work(&mut NullSink) {
            true => Some(Duration::ZERO),
            false => earliest([Some(end_ns), io.next_deadline_ns()], now),
        };
        io.poll(wait)?;
    }
}

/// The dispatch on a thread of its own.
pub(super) struct DispatchRunner {
    pub(super) report: AgentReport,
    pub(super) dispatch: Dispatch,
    pub(super) outbox: RingOutbox,
    /// Rings from the I/O agents in the order they are looked at: administrative, backend,
    /// frontend; each with the bell of its agent.
    pub(super) inputs: Vec<(BatchReceiver<InEvent>, Arc<Bell>)>,
    pub(super) clock: Clock,
    pub(super) idle: IdleStrategy,
    pub(super) parker: Parker,
    pub(super) bell: Arc<Bell>,
    pub(super) orders: Arc<Orders<DispatchOrder>>,
    pub(super) io_orders: Vec<(Arc<Orders<IoOrder>>, Arc<Bell>)>,
    pub(super) agents: Vec<Arc<Published>>,
    pub(super) published: Arc<Published>,
}

impl DispatchRunner {
    /// Runs to the end of the broker, tells the I/O agents to finish, and gives the dispatch back
    /// for the final account.
    pub(super) fn run(mut self) -> Dispatch {
        let mut publishing = Publishing::default();
        loop {
            let now = self.clock.now();
            let (work, blocked) = self.turn(now);
            self.report.count_turn(work, blocked, now.mono_ns);
            if self.dispatch.ending == Ending::Done {
                break;
            }
            if publishing.due(work, now.mono_ns) {
                self.publish();
            }
            if self.idle.may_sleep(work, now.mono_ns) {
                self.bell.announce_sleep(self.outbox.wants_room());
                if !self.has_work() {
                    self.report.figures.sleeps += 1;
                    match earliest(
                        [self.dispatch.broker.poll_timeout(), publishing.wake_ns()],
                        self.clock.now(),
                    ) {
                        Some(timeout) => self.parker.park_timeout(timeout),
                        None => self.parker.park(),
                    }
                }
                self.bell.awake();
            }
        }
        while self.outbox.needs_flush() {
            if !self.outbox.flush() {
                // The agents are draining their rings: room comes.
                std::thread::yield_now();
            }
        }
        self.publish();
        for (orders, bell) in &self.io_orders {
            tell(orders, IoOrder::Finish, bell);
        }
        self.dispatch
    }

    fn turn(&mut self, now: Now) -> (bool, bool) {
        let dispatch = &mut self.dispatch;
        dispatch.broker.begin_turn(now);
        let held = self.agents.iter().map(|a| a.held_bytes()).sum::<usize>();
        let under_way = self.outbox.bytes_under_way();
        dispatch.broker.set_external_bytes(held + under_way);
        let mut work = false;
        while let Some(order) = self.orders.take() {
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
        if dispatch.ending == Ending::Asked {
            for (orders, bell) in &self.io_orders {
                for socket in Socket::ALL {
                    tell(orders, IoOrder::StopListening(socket), bell);
                }
            }
            dispatch.begin_drain(now, &mut self.outbox);
            work = true;
        }
        dispatch.after_input(now, &mut self.outbox);
        work |= self.outbox.flush();
        (work, blocked)
    }

    /// True if a turn would have something to do.
    fn has_work(&self) -> bool {
        let room = self.outbox.has_room();
        let input = self.inputs.iter().any(|(r, _)| !r.is_empty());
        let output = self.dispatch.broker.has_pending_output() || self.dispatch.admin.has_answers();
        !self.orders.is_empty() || (room && (input || output)) || self.outbox.can_flush()
    }

    fn publish(&mut self) {
        self.outbox.report(&mut self.report.rings);
        self.report.settle();
        self.published.set(&self.report);
    }
}

/// Gives an order that must arrive.
fn tell(orders: &Orders<IoOrder>, order: IoOrder, bell: &Bell) {
    let mut order = order;
    while let Err(back) = orders.give(order, bell) {
        order = back;
        std::thread::yield_now();
    }
}

/// Feeds the events of a batch to the dispatch as long as there is room for what they cause.
pub(super) fn consume(
    batch: &mut Batch<InEvent>,
    dispatch: &mut Dispatch,
    out: &mut RingOutbox,
    now: Now,
) {
    while out.has_room() {
        let Some(event) = batch.next_event() else {
            return;
        };
        let socket = match event {
            InEvent::Opened { .. } => Socket::Admin,
            InEvent::Message { socket, .. }
            | InEvent::TooLarge { socket, .. }
            | InEvent::Lost { socket, .. }
            | InEvent::Unsent { socket, .. }
            | InEvent::Closed { socket, .. }
            | InEvent::Writable { socket, .. } => socket,
        };
        if !dispatch.takes_input(socket) && dispatch.broker.poll_output(now, out) {
            batch.untake();
            return;
        }
        match event {
            InEvent::Opened { conn, info } => {
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
