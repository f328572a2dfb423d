//! INFORM of a worker: what it says, registration, and what becomes of jobs it had before.

use super::Broker;
use super::choose::head_at_registration;
use super::jobs::WorkerJobs;
use super::log::LogKind;
use super::peers::Role;
use super::queues::{Member, weight_rank};
use super::slab::NONE;
use super::store::NO_HEAD;
use super::tasks::Task;
use super::timers::TimerKind;
use super::workers::{Worker, blocked};
use crate::emqp::{BadInform, Capabilities, Command, Envelope, parse_queues};
use crate::ids::{ConnId, NS_PER_MS, NS_PER_SEC, Now};
use crate::link::{OutClass, Outbox};
use crate::metrics::Counter;
use std::collections::HashSet;

/// Weight and name of each queue.
type QueueList = Vec<(f64, Vec<u8>)>;

/// Longest heartbeat interval a peer may claim, in seconds.
const HEARTBEAT_SECS_MAX: u32 = 3_600;

/// Which jobs of earlier connections a registered process still runs.
#[derive(Debug)]
pub(super) struct Judgement {
    /// The connection it registered on; jobs handed out on earlier ones are judged.
    epoch: u32,
    /// The same process as before; else it runs none of them.
    same_process: bool,
    /// If given, all others are lost.
    running: Option<HashSet<Vec<u8>>>,
}

impl Judgement {
    /// A job handed out on this connection is judged.
    fn concerns(&self, epoch: u32) -> bool {
        // Numbers of connections may wrap.
        (epoch.wrapping_sub(self.epoch) as i32) < 0
    }

    /// No job is lost.
    fn keeps_all(&self) -> bool {
        self.same_process && self.running.is_none()
    }

    /// A job that is judged is lost.
    fn is_lost(&self, msgid: &[u8]) -> bool {
        !self.same_process || self.running.as_ref().is_some_and(|r| !r.contains(msgid))
    }
}

impl Broker {
    pub(super) fn on_worker_inform<O: Outbox>(
        &mut self,
        conn: ConnId,
        peer: u32,
        envelope: &Envelope<'_>,
        now: Now,
        out: &mut O,
    ) {
        match self.read_worker_inform(envelope) {
            Ok((queues, capabilities)) => {
                if let Some(entry) = self.conns.get_mut(conn) {
                    entry.disconnect_sent = false;
                    entry.said_kbye = false;
                }
                let worker = self.register_worker(peer, queues, capabilities, now);
                self.acknowledge(peer, envelope.msgid, now, out);
                self.watch_worker(worker, now);
                self.judge(worker, now);
            }
            Err(bad) => self.bad_inform(peer, bad, now),
        }
    }

    /// Counts an INFORM that is not taken.
    pub(super) fn bad_inform(&mut self, peer: u32, bad: BadInform, now: Now) {
        self.counters.inc(Counter::IgnoredInform);
        if let Some(repeats) = self.logs.admit(LogKind::BadInform, now.mono_ns) {
            let id = crate::log_limit::shown_id(&self.peers.slab[peer].id);
            tracing::warn!(peer = %id, repeats, "INFORM ignored: {bad}");
        }
    }

    fn read_worker_inform(
        &self,
        envelope: &Envelope<'_>,
    ) -> Result<(QueueList, Capabilities), BadInform> {
        let (Some(queues), Some(kind)) = (envelope.body(0), envelope.body(1)) else {
            return Err(BadInform::Frames);
        };
        if kind != b"worker" {
            return Err(BadInform::Type);
        }
        let capabilities = Capabilities::parse(envelope.body(2).unwrap_or_default())?;
        let mut queues = match queues {
            b"" => self.config.queues.clone(),
            json => parse_queues(json)?,
        };
        // The empty name means the default queue; together with its own name the highest counts.
        let default_name = &self.config.default_queue_name;
        if let Some(at) = queues.iter().position(|(_, name)| name.is_empty()) {
            let weight = queues[at].0;
            match queues.iter().position(|(_, name)| name == default_name) {
                Some(named) => {
                    queues[named].0 = queues[named].0.max(weight);
                    queues.remove(at);
                }
                None => queues[at].1.clone_from(default_name),
            }
        }
        let new = queues
            .iter()
            .filter(|(_, name)| self.queues.find(name).is_none())
            .count();
        if new > 0 && self.queues.slab.len() + new > self.config.max_queues {
            return Err(BadInform::TooManyQueues);
        }
        Ok((queues, capabilities))
    }

    fn register_worker(
        &mut self,
        peer: u32,
        queues: QueueList,
        capabilities: Capabilities,
        now: Now,
    ) -> u32 {
        self.counters.inc(Counter::WorkersRegistered);
        let mut key = Vec::with_capacity(queues.len());
        for (weight, name) in &queues {
            let queue = match self.queues.find(name) {
                Some(queue) => queue,
                None => self.create_queue(name, now),
            };
            key.push((weight_rank(*weight), queue));
        }
        let open_head = self.open_jobs.peek().map_or(NO_HEAD, |top| top.0);
        let head = |queues: &_, queue| head_at_registration(queues, queue, open_head);
        let profile = self.profiles.intern(key, &mut self.queues, head);
        let worker = match self.peers.slab[peer].role {
            Role::Worker(worker) => {
                self.reset_worker(worker, profile, &capabilities, now);
                worker
            }
            _ => self.create_worker(peer, profile, now),
        };
        let slots_max = self.config.max_slots_per_worker;
        let entry = &mut self.workers.slab[worker];
        entry.completions = capabilities.completions;
        entry.informed_epoch = entry.epoch;
        entry.slots_max = capabilities
            .slots
            .map_or(slots_max, |slots| slots.min(slots_max));
        entry.instance = capabilities.instance;
        entry.heartbeat_secs = capabilities.heartbeat_secs;
        let seat = self.profiles.slab[profile].take_seat();
        self.workers.slab[worker].seat = seat;
        for place in 0..self.profiles.slab[profile].key.len() as u32 {
            let (rank, queue) = self.profiles.slab[profile].key[place as usize];
            self.stamp += 1;
            let member = Member {
                worker,
                index: place,
                rank,
                stamp: self.stamp,
            };
            let slot = self.queues.slab[queue].join(member);
            let entry = &mut self.workers.slab[worker];
            entry.members.push((queue, slot));
            if self.profiles.slab[profile].parks {
                let group = self.profiles.slab[profile].groups[place as usize];
                self.queues.slab[queue].park(group, seat, slot);
            } else {
                entry.missing.push(place);
            }
        }
        worker
    }

    fn create_worker(&mut self, peer: u32, profile: u32, now: Now) -> u32 {
        let tag = self.next_tag();
        let conn = self.peers.slab[peer].output;
        let id_hash = self.late.hash(&self.peers.slab[peer].id);
        let worker = self.workers.slab.insert(Worker {
            peer,
            id_hash,
            tag,
            profile,
            seat: 0,
            conn: conn.unwrap_or(ConnId::new(0, 0, 0)),
            // Its message was read before its connection was lost: the loss is still to come.
            blocked: if conn.is_none() { blocked::GRACE } else { 0 },
            completions: false,
            free: 0,
            in_flight: 0,
            slots_max: 0,
            slots_seen: 0,
            debts: 0,
            cancels: 0,
            epoch: self.peers.slab[peer].epoch,
            informed_epoch: 0,
            jobs: WorkerJobs::EMPTY,
            members: Vec::new(),
            missing: Vec::new(),
            out_bytes: 0,
            processed: 0,
            instance: None,
            heartbeat_secs: None,
            registered_ns: now.mono_ns,
            grace_until_ns: now.mono_ns,
            leave_until_ns: 0,
            leave_armed: false,
            idle_since_ns: None,
            idle_armed: false,
            beat_armed: false,
            silence_armed: false,
            judgement: None,
        });
        self.peers.slab[peer].role = Role::Worker(worker);
        worker
    }

    /// A registered worker registers again: other queues, no free slots.
    fn reset_worker(&mut self, worker: u32, profile: u32, capabilities: &Capabilities, now: Now) {
        self.leave_queues(worker, now);
        self.drop_replied(worker, now);
        let entry = &mut self.workers.slab[worker];
        let same_process = match (&entry.instance, &capabilities.instance) {
            (Some(old), Some(new)) => old == new,
            _ => false,
        };
        entry.profile = profile;
        entry.blocked &= blocked::SLOW | blocked::GRACE;
        entry.free = 0;
        entry.debts = 0;
        entry.cancels = 0;
        entry.slots_seen = 0;
        entry.idle_since_ns = None;
        entry.registered_ns = now.mono_ns;
        let running = capabilities
            .running
            .as_ref()
            .map(|ids| ids.iter().cloned().collect());
        let epoch = entry.epoch;
        entry.judgement = Some(Box::new(Judgement {
            epoch,
            same_process,
            running,
        }));
    }

    /// ACK, and a HEARTBEAT right behind it: the original's job manager starts on the first one.
    pub(super) fn acknowledge<O: Outbox>(
        &mut self,
        peer: u32,
        msgid: &[u8],
        now: Now,
        out: &mut O,
    ) {
        let Some(conn) = self.peers.slab[peer].output else {
            return;
        };
        let id = self.accept.next_id();
        crate::emqp::MessageBuilder::begin(&mut self.scratch, Command::Ack)
            .frame(&id)
            .last(msgid);
        out.send(conn, OutClass::Control, &[&self.scratch]);
        if !self.config.disable_heartbeats {
            self.send_heartbeat(conn, now, out);
        }
    }

    pub(super) fn send_heartbeat<O: Outbox>(&mut self, conn: ConnId, now: Now, out: &mut O) {
        let id = self.accept.next_id();
        self.time_text.clear();
        crate::emqp::push_heartbeat_time(&mut self.time_text, now.wall_ms);
        crate::emqp::MessageBuilder::begin(&mut self.scratch, Command::Heartbeat)
            .frame(&id)
            .last(&self.time_text);
        out.send(conn, OutClass::Control, &[&self.scratch]);
    }

    /// Silence after which a peer with this heartbeat interval gets no work.
    pub(super) fn silence_ns(&self, heartbeat_secs: Option<u32>) -> u64 {
        let own_ns = self.config.heartbeat_timeout_ms * NS_PER_MS;
        // The proportion of the defaults: 5 s for an interval of 3 s.
        let secs = u64::from(heartbeat_secs.unwrap_or(0).min(HEARTBEAT_SECS_MAX));
        own_ns.max(secs * NS_PER_SEC * 5 / 3).max(1)
    }

    /// Arms the timers of a registered worker that are not armed yet.
    pub(super) fn watch_worker(&mut self, worker: u32, now: Now) {
        if self.config.disable_heartbeats {
            return;
        }
        let silence_ns = self.silence_ns(self.workers.slab[worker].heartbeat_secs);
        let entry = &mut self.workers.slab[worker];
        if !std::mem::replace(&mut entry.beat_armed, true) {
            let due_ns = now.mono_ns + self.config.heartbeat_interval_ms * NS_PER_MS;
            self.timers
                .arm(due_ns, TimerKind::WorkerBeat, worker, entry.tag);
        }
        if !std::mem::replace(&mut entry.silence_armed, true) {
            let due_ns = now.mono_ns + silence_ns;
            self.timers
                .arm(due_ns, TimerKind::WorkerSilence, worker, entry.tag);
        }
    }

    /// Decides which jobs of earlier connections are lost, once those connections have ended and
    /// given back what was not sent.
    pub(super) fn judge(&mut self, worker: u32, now: Now) {
        let entry = &self.workers.slab[worker];
        if self.peers.slab[entry.peer].conns > 1 {
            return;
        }
        let Some(judgement) = self.workers.slab[worker].judgement.take() else {
            return;
        };
        if judgement.keeps_all() {
            return;
        }
        let mut lost = Vec::new();
        for mut ix in self.workers.slab[worker].jobs.firsts_open() {
            while ix != NONE {
                let job = self.jobs.job(ix);
                if !judgement.concerns(job.epoch) {
                    // Those behind it were handed out later.
                    break;
                }
                if judgement.is_lost(job.msgid()) {
                    lost.push((ix, job.meta.seq));
                }
                ix = job.next_of_worker();
            }
        }
        // Those replied to since its INFORM, while an older connection was still read.
        for mut ix in self.workers.slab[worker].jobs.firsts_replied() {
            while ix != NONE {
                let job = self.jobs.job(ix);
                if judgement.concerns(job.epoch) && judgement.is_lost(job.msgid()) {
                    lost.push((ix, job.meta.seq));
                }
                ix = job.next_of_worker();
            }
        }
        if !lost.is_empty() {
            lost.reverse();
            self.log_lost(worker, lost.len(), now);
            self.tasks.push_back(Task::Lose { jobs: lost });
        }
    }

    pub(super) fn log_lost(&mut self, worker: u32, jobs: usize, now: Now) {
        if let Some(repeats) = self.logs.admit(LogKind::JobsLost, now.mono_ns) {
            let peer = self.workers.slab[worker].peer;
            let id = crate::log_limit::shown_id(&self.peers.slab[peer].id);
            tracing::warn!(worker = %id, jobs, repeats, "jobs lost with their worker");
        }
    }
}
