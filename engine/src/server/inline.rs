//! All agents on one thread: the dispatch is the I/O agent's sink.

use super::control::{AgentReport, Bell, DispatchOrder, IoOrder, Orders, Published, Publishing};
use super::dedicated::obey;
use super::dispatch::{Decide, Dispatch, Ending};
use crate::frames::Message;
use crate::ids::{ConnId, Now, Socket};
use crate::io::{InputSink, IoAgent, OutputTable, Steps};
use crate::link::PeerInfo;
use crate::runtime::clock::Clock;
use crate::runtime::finish::finish_connections;
use crate::runtime::idle::{IdleStrategy, earliest};
use std::sync::Arc;
use std::time::Duration;

struct InlineSink<'a, D> {
    dispatch: &'a mut D,
    now: Now,
}

impl<D: Decide> InputSink for InlineSink<'_, D> {
    #[inline]
    fn has_room(&mut self, socket: Socket) -> bool {
        self.dispatch.takes_input(socket)
    }

    fn opened(&mut self, conn: ConnId, info: PeerInfo, outs: &mut OutputTable) {
        self.dispatch.opened(conn, info, self.now, outs);
    }

    #[inline]
    fn message(
        &mut self,
        conn: ConnId,
        socket: Socket,
        message: &Message<'_>,
        outs: &mut OutputTable,
    ) {
        self.dispatch.message(conn, socket, message, self.now, outs);
    }

    fn too_large(
        &mut self,
        conn: ConnId,
        socket: Socket,
        head: &Message<'_>,
        outs: &mut OutputTable,
    ) {
        self.dispatch.too_large(conn, socket, head, self.now, outs);
    }

    fn activity(&mut self, conn: ConnId, socket: Socket, outs: &mut OutputTable) {
        self.dispatch.activity(conn, socket, self.now, outs);
    }

    fn lost(&mut self, conn: ConnId, socket: Socket, outs: &mut OutputTable) {
        self.dispatch.lost(conn, socket, self.now, outs);
    }

    fn unsent(
        &mut self,
        conn: ConnId,
        socket: Socket,
        message: &Message<'_>,
        outs: &mut OutputTable,
    ) {
        self.dispatch.unsent(conn, socket, message, self.now, outs);
    }

    fn closed(&mut self, conn: ConnId, socket: Socket, outs: &mut OutputTable) {
        self.dispatch.closed(conn, socket, self.now, outs);
    }

    fn writable(&mut self, conn: ConnId, socket: Socket, outs: &mut OutputTable) {
        self.dispatch.writable(conn, socket, self.now, outs);
    }
}

/// Everything on one thread.
pub(super) struct InlineRunner {
    pub(super) report: AgentReport,
    pub(super) io: IoAgent,
    pub(super) dispatch: Dispatch,
    pub(super) clock: Clock,
    pub(super) idle: IdleStrategy,
    pub(super) bell: Arc<Bell>,
    pub(super) io_orders: Arc<Orders<IoOrder>>,
    pub(super) orders: Arc<Orders<DispatchOrder>>,
    pub(super) published: Arc<Published>,
}

impl InlineRunner {
    /// Runs to the end of the broker; gives the dispatch back for the final account.
    ///
    /// # Errors
    /// When the system's poll fails, which nothing can be done about.
    pub(super) fn run(mut self) -> std::io::Result<Dispatch> {
        let mut publishing = Publishing::default();
        let mut timeout = Some(Duration::ZERO);
        while self.dispatch.ending != Ending::Done {
            self.io.poll(timeout)?;
            self.bell.awake();
            let now = self.clock.now();
            let mut ordered = false;
            while let Some(order) = self.io_orders.take() {
                ordered = true;
                obey(&mut self.io, order, now);
            }
            let work = turn(&mut self.io, &mut self.dispatch, &self.orders, now) || ordered;
            self.report.count_turn(work, false, now.mono_ns);
            let more = has_work(&mut self.io, &mut self.dispatch, &self.orders, now);
            timeout = Some(Duration::ZERO);
            if publishing.due(work, now.mono_ns) {
                self.publish();
            }
            if self.idle.may_sleep(work || more, now.mono_ns) {
                self.bell.announce_sleep(false);
                let more = has_work(&mut self.io, &mut self.dispatch, &self.orders, now);
                if self.io_orders.is_empty() && !more {
                    self.report.figures.sleeps += 1;
                    let timer = self.dispatch.broker.poll_timeout();
                    timeout = earliest(
                        [timer, self.io.next_deadline_ns(), publishing.wake_ns()],
                        now,
                    );
                }
            }
        }
        finish_connections(&mut self.io, &mut self.clock)?;
        self.publish();
        Ok(self.dispatch)
    }

    fn publish(&mut self) {
        self.report.take_from(&self.io);
        self.published.set(&self.report);
    }
}

/// A turn of all agents. True if there was work.
pub(super) fn turn<A: Steps, D: Decide>(
    io: &mut A,
    dispatch: &mut D,
    orders: &Orders<DispatchOrder>,
    now: Now,
) -> bool {
    dispatch.begin_turn(now, io.table().held_bytes());
    while let Some(order) = orders.take() {
        dispatch.order(order, now, &mut io.table().outs);
    }
    let mut sink = InlineSink { dispatch, now };
    let work = io.turn(now.mono_ns, &mut sink);
    if dispatch.is_end_asked() {
        for socket in Socket::ALL {
            io.stop_listening(socket);
        }
        dispatch.begin_drain(now, &mut io.table().outs);
    }
    dispatch.after_input(now, &mut io.table().outs);
    let dirty = io.table().outs.has_dirty();
    let deadlines = io.flush(now.mono_ns);
    work > 0 || dirty || deadlines
}

/// True if a turn would have something to do without a further event: no sleep then.
pub(super) fn has_work<A: Steps, D: Decide>(
    io: &mut A,
    dispatch: &mut D,
    orders: &Orders<DispatchOrder>,
    now: Now,
) -> bool {
    let more = !orders.is_empty() || dispatch.has_output();
    more || io.has_work(&mut InlineSink { dispatch, now })
}
