//! Work that may cause more output than one input message: done as far as there is room, the
//! rest later from where it stopped. Nothing here is a list of messages.

use super::Broker;
use super::slab::NONE;
use super::store::Body;
use crate::ids::{ConnId, Now};
use crate::link::Outbox;
use smallvec::SmallVec;

/// How the remaining jobs of a worker end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndReason {
    /// Lost with it.
    Lost,
    /// It left without telling.
    Unknown,
    /// The broker stops.
    Abandoned,
}

#[derive(Debug)]
pub(super) enum Task {
    /// Hand a worker what it may take.
    Feed { worker: u32, tag: u32 },
    /// Hand out the waiting jobs of a queue.
    Pump { queue: u32 },
    /// End all jobs of a removed worker, then forget it.
    EndWorker { worker: u32, reason: EndReason },
    /// End these jobs (index and accept sequence, next one last).
    Lose { jobs: Vec<(u32, u64)> },
    /// Send an UNSCHEDULE to all schedulers registered after the stamp `after`.
    Unschedule {
        body: Body,
        client: u32,
        after: u64,
        waiting: SmallVec<[u32; 2]>,
        sent: bool,
    },
    /// Close client connections that are owed nothing, from this peer index on.
    CloseClients { next: u32 },
    /// Error results for waiting jobs, from this queue index on.
    AnswerWaiting { next: u32 },
    /// KBYE to all schedulers and workers, from this peer index on.
    Goodbye { next: u32, workers: bool },
}

impl Broker {
    /// Does what is pending as far as there is room.
    #[inline]
    pub(super) fn run_tasks<O: Outbox>(&mut self, now: Now, out: &mut O) {
        if !self.tasks.is_empty() {
            self.run_pending(now, out);
        }
    }

    #[cold]
    fn run_pending<O: Outbox>(&mut self, now: Now, out: &mut O) {
        while let Some(mut task) = self.tasks.pop_front() {
            if !out.has_room() || !self.run_task(&mut task, now, out) {
                self.tasks.push_front(task);
                return;
            }
        }
    }

    /// True when the task is done.
    fn run_task<O: Outbox>(&mut self, task: &mut Task, now: Now, out: &mut O) -> bool {
        match task {
            Task::Feed { worker, tag } => {
                let current = self
                    .workers
                    .slab
                    .get(*worker)
                    .is_some_and(|w| w.tag == *tag);
                !current || self.feed(*worker, now, out)
            }
            Task::Pump { queue } => {
                if self.queues.slab.get(*queue).is_none() {
                    return true;
                }
                let done = self.pump(*queue, now, out);
                if done {
                    self.queues.slab[*queue].pump_due = false;
                }
                done
            }
            Task::EndWorker { worker, reason } => self.end_worker(*worker, *reason, now, out),
            Task::Lose { jobs } => {
                while let Some((job, seq)) = jobs.pop() {
                    if self
                        .jobs
                        .get(job)
                        .is_some_and(|record| record.meta.seq == seq)
                    {
                        self.lose_job(job, EndReason::Lost, now, out);
                        if !out.has_room() {
                            break;
                        }
                    }
                }
                jobs.is_empty()
            }
            Task::Unschedule { .. } => self.run_unschedule(task, now, out),
            Task::CloseClients { next } => self.close_clients(next, out),
            Task::AnswerWaiting { next } => self.answer_waiting(next, now, out),
            Task::Goodbye { next, workers } => self.say_goodbye(next, *workers, out),
        }
    }

    fn end_worker<O: Outbox>(
        &mut self,
        worker: u32,
        reason: EndReason,
        now: Now,
        out: &mut O,
    ) -> bool {
        loop {
            let job = self.workers.slab[worker].jobs.any();
            if job == NONE {
                self.workers.slab.remove(worker);
                return true;
            }
            if !out.has_room() {
                return false;
            }
            self.lose_job(job, reason, now, out);
        }
    }

    /// Goes on with what is pending. True if something still is.
    pub fn poll_output<O: Outbox>(&mut self, now: Now, out: &mut O) -> bool {
        self.clock = now;
        self.run_tasks(now, out);
        if self.timers_pending && self.tasks.is_empty() {
            self.handle_timeout(now, out);
        }
        self.watch_memory(now, out);
        self.run_tasks(now, out);
        self.drain_check(now, out);
        self.has_pending_output()
    }

    /// True while something waits for room: then only administrative input may be taken.
    pub fn has_pending_output(&self) -> bool {
        !self.tasks.is_empty() || self.timers_pending
    }

    /// A message that was not wholly handed to the kernel when its connection was lost, newest
    /// first. A job in it was never handed out; a schedule is kept for its scheduler.
    pub fn handle_unsent<O: Outbox>(
        &mut self,
        conn: ConnId,
        message: &crate::frames::Message<'_>,
        now: Now,
        out: &mut O,
    ) {
        use super::peers::Role;
        use crate::emqp::{Command, Envelope};
        let _ = out;
        self.clock = now;
        let Some(entry) = self.conns.get(conn) else {
            return;
        };
        if entry.peer == NONE {
            return;
        }
        let (role, epoch) = (self.peers.slab[entry.peer].role, entry.epoch);
        let Ok(envelope) = Envelope::parse(message) else {
            return;
        };
        match (role, envelope.command) {
            (Role::Worker(worker), Command::Request) => {
                let len = message.wire().len();
                let Some(job) = self.jobs.newest_on(worker, envelope.msgid, len, epoch) else {
                    return;
                };
                let kept = self.jobs.keeps_body(job);
                self.return_job(job, (!kept).then(|| Body::of(message)));
                // Since an INFORM on another connection it counts its slots anew.
                let worker = &mut self.workers.slab[worker];
                let leaving = worker.blocked & super::workers::blocked::LEAVING != 0;
                if !leaving && epoch.wrapping_sub(worker.informed_epoch) as i32 >= 0 {
                    worker.free += 1;
                }
            }
            (role, Command::Schedule | Command::Unschedule) => {
                let scheduler = match role {
                    Role::Scheduler(scheduler) => Some(scheduler),
                    _ => None,
                };
                self.hold_unsent(scheduler, envelope.command, message);
            }
            _ => {}
        }
    }
}
