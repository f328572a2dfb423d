//! Graceful shutdown (protocol.md section 6).

use super::Broker;
use super::peers::Role;
use super::results::MadeError;
use super::slab::NONE;
use super::tasks::{EndReason, Task};
use super::timers::TimerKind;
use crate::emqp::Command;
use crate::ids::{NS_PER_MS, Now, Socket};
use crate::link::{CloseReason, OutClass, Outbox};
use crate::metrics::Counter;

/// What clients had sent before the shutdown is accepted for this long.
const ACCEPT_MS: u64 = 100;

/// Where the shutdown is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// No shutdown.
    Running,
    /// What has arrived is accepted and handed out as always.
    Accepting,
    /// Nothing is accepted or handed out; jobs that owe a result are waited for.
    Waiting,
    /// Peers are told and connections closed.
    Goodbye,
    /// The last connections of clients are closed.
    Closing,
    /// Nothing is left to do.
    Finished,
}

impl Broker {
    /// Begins a graceful shutdown; the shell has closed its listeners. Calling it again changes
    /// nothing.
    pub fn begin_shutdown<O: Outbox>(&mut self, now: Now, out: &mut O) {
        self.clock = now;
        if self.phase == Phase::Running {
            self.phase = Phase::Accepting;
            self.drain_until_ns = now.mono_ns + self.config.drain_timeout_ms * NS_PER_MS;
            let due_ns = self.drain_until_ns.min(now.mono_ns + ACCEPT_MS * NS_PER_MS);
            self.timers.arm(due_ns, TimerKind::Drain, 0, 0);
        }
        self.run_tasks(now, out);
    }

    /// True when the broker has nothing left to do: the shell may flush and exit.
    pub fn is_finished(&self) -> bool {
        self.phase == Phase::Finished
    }

    /// Ends at once: KBYE to all, error results for what is left, connections closed. It is done
    /// as far as there is room; [`Broker::poll_output`] goes on until [`Broker::is_finished`].
    pub fn end_shutdown<O: Outbox>(&mut self, now: Now, out: &mut O) {
        self.clock = now;
        self.goodbye();
        self.run_tasks(now, out);
        self.drain_check(now, out);
    }

    /// True if REQUESTs and schedules of this peer are refused because of the shutdown.
    #[inline]
    pub(super) fn refuses_requests(&self, _peer: u32) -> bool {
        self.phase >= Phase::Waiting
    }

    pub(super) fn drain_timer(&mut self, now: Now) {
        match self.phase {
            Phase::Accepting => {
                self.phase = Phase::Waiting;
                self.hands_out = false;
                self.tasks.push_back(Task::AnswerWaiting { next: 0 });
                self.tasks.push_back(Task::CloseClients { next: 0 });
                self.timers.arm(self.drain_until_ns, TimerKind::Drain, 0, 0);
            }
            Phase::Waiting if now.mono_ns >= self.drain_until_ns => self.goodbye(),
            _ => {}
        }
    }

    /// Goes to the next phases when the present one has nothing left to do.
    #[inline]
    pub(super) fn drain_check<O: Outbox>(&mut self, now: Now, out: &mut O) {
        while self.phase >= Phase::Waiting && self.tasks.is_empty() && self.next_phase() {
            self.run_tasks(now, out);
        }
    }

    /// True if there was one to go to.
    fn next_phase(&mut self) -> bool {
        match self.phase {
            Phase::Waiting if self.owed_in_flight == 0 => self.goodbye(),
            Phase::Goodbye => {
                self.phase = Phase::Closing;
                self.tasks.push_back(Task::CloseClients { next: 0 });
            }
            Phase::Closing => self.phase = Phase::Finished,
            _ => return false,
        }
        true
    }

    fn goodbye(&mut self) {
        if self.phase < Phase::Goodbye {
            self.phase = Phase::Goodbye;
            self.hands_out = false;
            self.tasks.push_back(Task::AnswerWaiting { next: 0 });
            self.tasks.push_back(Task::Goodbye {
                next: 0,
                workers: false,
            });
            self.tasks.push_back(Task::Goodbye {
                next: 0,
                workers: true,
            });
        }
    }

    /// A result was sent: a client that is owed nothing more is let go.
    #[inline]
    pub(super) fn drain_progress<O: Outbox>(&mut self, client: u32, out: &mut O) {
        if self.phase >= Phase::Waiting && client != NONE {
            self.close_if_draining(client, out);
        }
    }

    /// During the shutdown, ends the connection of a client that is owed nothing.
    pub(super) fn close_if_draining<O: Outbox>(&mut self, peer: u32, out: &mut O) {
        if self.phase < Phase::Waiting {
            return;
        }
        let Some(entry) = self.peers.slab.get_mut(peer) else {
            return;
        };
        let last = self.phase >= Phase::Goodbye;
        let client = entry.socket == Socket::Frontend && entry.role == Role::None;
        let done = if client {
            entry.refs == 0 || self.phase >= Phase::Closing
        } else {
            last
        };
        if done
            && !entry.closing
            && let Some(conn) = entry.output
        {
            entry.closing = true;
            out.close(conn, CloseReason::Shutdown);
        }
    }

    /// Closes clients that are owed nothing, from peer `next` on. True when done.
    pub(super) fn close_clients<O: Outbox>(&mut self, next: &mut u32, out: &mut O) -> bool {
        while *next < self.peers.slab.end() {
            if !out.has_room() {
                return false;
            }
            let client = |peer: &super::peers::Peer| peer.socket == Socket::Frontend;
            if self.peers.slab.get(*next).is_some_and(client) {
                self.close_if_draining(*next, out);
            }
            *next += 1;
        }
        true
    }

    /// Ends all waiting jobs, with an error result where one was asked for. True when done.
    pub(super) fn answer_waiting<O: Outbox>(
        &mut self,
        next: &mut u32,
        now: Now,
        out: &mut O,
    ) -> bool {
        while *next < self.queues.slab.end() {
            if self.queues.slab.get(*next).is_none() {
                *next += 1;
                continue;
            }
            for open in [false, true] {
                while self.queues.slab[*next].store(open).len() > 0 {
                    if !out.has_room() {
                        return false;
                    }
                    self.abandon_head(*next, open, now, out);
                }
            }
            *next += 1;
        }
        true
    }

    fn abandon_head<O: Outbox>(&mut self, queue: u32, open: bool, now: Now, out: &mut O) {
        let store = self.queues.slab[queue].store(open);
        let Some((meta, lease)) = store.lease() else {
            return;
        };
        self.counters.inc(Counter::JobsAbandoned);
        if meta.client != NONE {
            let message = lease.message();
            let msgid = meta.msgid(message.wire());
            self.deliver_made(meta.client, msgid, MadeError::Stopped, out);
        }
        self.queues.slab[queue]
            .store(open)
            .consume(&mut self.blocks, lease);
        self.queues.slab[queue].accepted_sum_ns -= u128::from(meta.accepted_ns);
        self.jobs_waiting -= 1;
        self.after_take(queue, open, now);
        if meta.client != NONE {
            self.peers.release(meta.client);
            self.drain_progress(meta.client, out);
        }
    }

    /// KBYE to schedulers, or to workers, from peer `next` on, and the end of their connections.
    /// True when done.
    pub(super) fn say_goodbye<O: Outbox>(
        &mut self,
        next: &mut u32,
        workers: bool,
        out: &mut O,
    ) -> bool {
        while *next < self.peers.slab.end() {
            if !out.has_room() {
                return false;
            }
            let peer = *next;
            *next += 1;
            let Some(entry) = self.peers.slab.get(peer) else {
                continue;
            };
            let output = entry.output;
            match (entry.role, workers) {
                (Role::Worker(worker), true) => {
                    self.send_kbye(output, out);
                    self.unregister_worker(worker, EndReason::Abandoned, self.clock);
                    self.close_if_draining(peer, out);
                }
                (Role::Scheduler(scheduler), false) => {
                    self.send_kbye(output, out);
                    self.unregister_scheduler(scheduler, self.clock, out);
                }
                (Role::None, true) if entry.socket == Socket::Backend => {
                    self.close_if_draining(peer, out);
                }
                _ => {}
            }
        }
        true
    }

    fn send_kbye<O: Outbox>(&mut self, to: Option<crate::ids::ConnId>, out: &mut O) {
        let Some(conn) = to else { return };
        let id = self.accept.next_id();
        crate::emqp::MessageBuilder::begin(&mut self.scratch, Command::Kbye).last(&id);
        out.send(conn, OutClass::Control, &[&self.scratch]);
    }
}
