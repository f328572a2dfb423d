//! Agents on threads of their own, joined by rings.

use super::control::{AgentReport, Bell, DispatchOrder, IoOrder, Orders, Published, Publishing};
use super::dispatch::{Dispatch, Ending};
use super::turns::{DispatchEnds, IoEnds};
use crate::ids::{Now, Socket};
use crate::io::IoAgent;
use crate::runtime::clock::Clock;
use crate::runtime::finish::finish_connections;
use crate::runtime::idle::{IdleStrategy, earliest};
use crossbeam::sync::Parker;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// An I/O agent with a thread of its own.
pub(super) struct IoRunner {
    pub(super) report: AgentReport,
    pub(super) io: IoAgent,
    pub(super) ends: IoEnds,
    pub(super) clock: Clock,
    pub(super) idle: IdleStrategy,
    pub(super) bell: Arc<Bell>,
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
            let mut ordered = false;
            while let Some(order) = self.orders.take() {
                ordered = true;
                match order {
                    IoOrder::Finish => finishing = true,
                    other => obey(&mut self.io, other, now),
                }
            }
            let blocked_before = self.ends.sink.blocked;
            let work = self.ends.turn(&mut self.io, now) || ordered;
            let blocked = self.ends.sink.blocked > blocked_before;
            self.report.count_turn(work, blocked, now.mono_ns);
            self.published
                .set_held_bytes(self.ends.held_bytes(&mut self.io));
            self.published.set_load(self.io.table.total());
            if finishing && self.ends.receiver.is_empty() {
                break;
            }
            let more = self.ends.has_work(&mut self.io);
            timeout = Some(Duration::ZERO);
            if publishing.due(work, now.mono_ns) {
                self.publish();
            }
            if self.idle.may_sleep(work || more, now.mono_ns) {
                self.bell.announce_sleep(self.ends.sink.wants_room());
                if self.orders.is_empty() && !self.ends.has_work(&mut self.io) {
                    self.report.figures.sleeps += 1;
                    timeout = earliest([self.io.next_deadline_ns(), publishing.wake_ns()], now);
                }
            }
        }
        finish_connections(&mut self.io, &mut self.clock)?;
        self.publish();
        Ok(())
    }

    fn publish(&mut self) {
        self.report.take_from(&self.io);
        self.ends.sink.report(&mut self.report.rings);
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

/// The dispatch on a thread of its own.
pub(super) struct DispatchRunner {
    pub(super) report: AgentReport,
    pub(super) dispatch: Dispatch,
    pub(super) ends: DispatchEnds,
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
                self.bell.announce_sleep(self.ends.outbox.wants_room());
                if !self.ends.has_work(&self.dispatch, &self.orders) {
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
        while self.ends.outbox.needs_flush() {
            if !self.ends.outbox.flush() {
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
        let held = self.agents.iter().map(|a| a.held_bytes()).sum();
        let io_orders = &self.io_orders;
        let stop_listening = || {
            for (orders, bell) in io_orders {
                for socket in Socket::ALL {
                    tell(orders, IoOrder::StopListening(socket), bell);
                }
            }
        };
        let dispatch = &mut self.dispatch;
        let orders = &self.orders;
        self.ends.turn(dispatch, orders, held, now, stop_listening)
    }

    fn publish(&mut self) {
        self.ends.outbox.report(&mut self.report.rings);
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
