//! The simulated world around the broker.

use super::model::{MS, Model, Phase, Rules, Shown};
use super::parts::{Output, Rng};
use eventmq::broker::{Broker, Seeds};
use eventmq::frames::OwnedMessage;
use eventmq::ids::{ConnId, Now, Socket};
use eventmq::link::{CloseReason, PeerInfo};
use eventmq::metrics::Counter;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub(crate) const WORKERS: [&str; 5] = ["w0", "w1", "w2", "w3", "w4"];
pub(crate) const CLIENTS: [&str; 3] = ["c0", "c1", "c2"];
pub(crate) const SCHEDULERS: [&str; 3] = ["s0", "s1", "s2"];
pub(crate) const QUEUES: [&str; 8] = ["default", "", "a", "b", "c", "nobody", "none", "d"];
/// Steps of a run.
pub(crate) const STEPS: u64 = 250;

/// A connection as its peer sees it.
pub(crate) struct Link {
    pub(crate) id: String,
    pub(crate) worker: bool,
    pub(crate) epoch: u64,
    /// Sent by the broker and not received yet.
    pub(crate) incoming: VecDeque<Vec<u8>>,
    /// It said KBYE on this connection.
    pub(crate) said_kbye: bool,
    /// It was told to register again.
    pub(crate) told: bool,
}

pub(crate) struct World {
    pub(crate) rng: Rng,
    pub(crate) broker: Broker,
    pub(crate) out: Output,
    pub(crate) now: Now,
    pub(crate) model: Model,
    pub(crate) links: BTreeMap<ConnId, Link>,
    pub(crate) newest: BTreeMap<String, ConnId>,
    pub(crate) last_seen: BTreeMap<String, u64>,
    /// Jobs a worker process has received and not answered, by worker id.
    pub(crate) received: BTreeMap<String, Vec<String>>,
    pub(crate) ended: Vec<String>,
    pub(crate) slots: u32,
    pub(crate) msgids: u64,
    pub(crate) stalled: bool,
    pub(crate) ready_ids: u64,
    pub(crate) bodies: usize,
    /// Memory held by the shell.
    pub(crate) external: u64,
    /// Shortest and longest time-out of silence so far.
    pub(crate) silence_ms: (u64, u64),
    pub(crate) reloaded: u64,
    /// ACKs that must come: (peer, msgid).
    pub(crate) acks: Vec<(String, String)>,
    /// Clients whose schedules may have been held.
    pub(crate) held_some: BTreeSet<String>,
    last_turn: u64,
    removed_silent: u64,
    /// Connections of this run that were asked to close in order.
    pub(crate) closing: BTreeSet<ConnId>,
    seed: u64,
    /// Tell what happens.
    loud: bool,
}

impl World {
    pub(crate) fn new(seed: u64, loud: bool) -> World {
        let now = Now {
            mono_ns: 1_000_000 * MS,
            wall_ms: 1_796_000_000_000,
        };
        let mut rng = Rng(seed.wrapping_mul(77) + 1);
        let rules = Rules::draw(&mut rng);
        let seeds = Seeds {
            hash: [seed, 2, 3, 4],
            ids: [seed, 9],
        };
        let world = World {
            broker: Broker::new(rules.config(), seeds, now),
            rng,
            out: Output::default(),
            now,
            silence_ms: (rules.silence_ms, rules.silence_ms),
            model: Model::new(now.mono_ns, rules),
            links: BTreeMap::new(),
            newest: BTreeMap::new(),
            last_seen: BTreeMap::new(),
            received: BTreeMap::new(),
            ended: Vec::new(),
            slots: 0,
            msgids: 0,
            stalled: false,
            ready_ids: 0,
            bodies: 0,
            external: 0,
            reloaded: now.mono_ns,
            last_turn: now.mono_ns,
            removed_silent: 0,
            closing: BTreeSet::new(),
            acks: Vec::new(),
            held_some: BTreeSet::new(),
            seed,
            loud,
        };
        world.note(|| format!("{:?}", world.model.rules));
        world
    }

    /// Runs all steps but those of `skipped`. The random numbers of a step depend on the seed and
    /// the step alone, so that a failing run can be shortened.
    pub(crate) fn run(mut self, skipped: &BTreeSet<u64>) {
        let seed = self.seed;
        for step in (0..STEPS).filter(|step| !skipped.contains(step)) {
            self.rng = Rng((seed << 20)
                .wrapping_add(step)
                .wrapping_mul(0x2545_f491_4f6c_dd1d));
            self.note(|| format!("step {step}"));
            self.step();
        }
        self.rng = Rng(seed);
        self.finish(skipped);
    }

    /// No two things happen at the same time: the order of deadlines is never a matter of chance.
    fn pass_a_moment(&mut self) {
        self.now.mono_ns += 1 + self.rng.below(1_000);
        self.model.now = self.now.mono_ns;
    }

    pub(crate) fn step(&mut self) {
        self.pass_a_moment();
        match self.rng.below(100) {
            0..26 => self.client_step(),
            26..67 => self.worker_step(),
            67..72 => self.scheduler_step(),
            72..75 => self.schedule_step(),
            75..81 => self.receive(),
            81..87 => self.lose_someone(),
            87..90 => self.toggle_slow(),
            90 => self.show_life(),
            91..98 => {
                let ms = self.rng.below(900) + 1;
                self.sleep(ms);
            }
            98 if self.model.phase == Phase::Running && self.rng.chance(15) => {
                self.stand_still();
            }
            98 if self.rng.chance(30) => self.reload(),
            _ => {
                for _ in 0..12 {
                    self.sleep(500);
                }
            }
        }
    }

    /// The broker does not run for a while.
    fn stand_still(&mut self) {
        let until = self.now.mono_ns + (self.rng.below(30_000) + 1_500) * MS;
        let before = std::mem::replace(&mut self.model.now, until);
        if !self.model.overdue().is_empty() {
            // Time-outs are looked at four times a second, in the middle of everything else that
            // would be late.
            self.model.now = before;
            return;
        }
        self.stalled = true;
        self.now.mono_ns = until;
        self.turn();
    }

    /// Other settings while the broker runs.
    fn reload(&mut self) {
        let old = self.model.rules.silence_ms;
        self.model.rules = Rules::draw(&mut self.rng);
        if self.rng.chance(70) {
            self.model.rules.silence_ms = old;
        }
        let silence_ms = self.model.rules.silence_ms;
        self.silence_ms.0 = self.silence_ms.0.min(silence_ms);
        self.silence_ms.1 = self.silence_ms.1.max(silence_ms);
        self.reloaded = self.now.mono_ns;
        self.note(|| format!("reload: {:?}", self.model.rules));
        let config = self.model.rules.config();
        self.broker.reconfigure(config, self.now);
        self.settle();
    }

    /// What the broker shows before a message.
    pub(crate) fn look(&self) -> Shown {
        let figures = self.broker.figures();
        Shown {
            used: figures.job_bytes + self.external,
            queues: figures.queues,
            too_many_queues: false,
        }
    }

    pub(crate) fn counted(&self, counter: Counter) -> u64 {
        self.broker.figures().counters.get(counter)
    }

    pub(crate) fn note(&self, text: impl FnOnce() -> String) {
        if self.loud {
            eprintln!("{} {}", self.now.mono_ns / MS, text());
        }
    }

    /// Gives the broker room until nothing is pending, then compares.
    pub(crate) fn settle(&mut self) {
        loop {
            self.out.room = self.rng.chance(70).then(|| self.rng.below(4) + 1);
            self.poll();
            self.broker.check_invariants();
            if !self.broker.has_pending_output() {
                break;
            }
        }
        self.out.room = None;
        self.model.drain_check();
        self.compare();
    }

    fn poll(&mut self) {
        self.broker.poll_output(self.now, &mut self.out);
        let used = self.look().used;
        self.model.watch_memory(used);
    }

    pub(crate) fn limit_room(&mut self) {
        // What one input message causes directly is always taken.
        self.out.room = self.rng.chance(10).then_some(0);
    }

    pub(crate) fn turn(&mut self) {
        self.model.now = self.now.mono_ns;
        // Time in which the broker did not run is nobody's silence.
        let last = std::mem::replace(&mut self.last_turn, self.now.mono_ns);
        let due = self.broker.poll_timeout().unwrap_or(self.now.mono_ns);
        let gap = self.now.mono_ns.saturating_sub(due.max(last));
        if gap > 1_000 * MS {
            self.model.schedulers.stalled += gap;
        }
        if self.rng.chance(30) {
            self.external = self.rng.below(6) * self.rng.below(600);
        }
        self.broker.begin_turn(self.now);
        self.broker.set_external_bytes(self.external as usize);
        let overdue = self.model.overdue();
        if overdue.is_empty() {
            self.limit_room();
        }
        self.broker.handle_timeout(self.now, &mut self.out);
        self.model.tick();
        while self.broker.has_pending_output() {
            self.out.room = overdue.is_empty().then(|| self.rng.below(4) + 1);
            self.poll();
        }
        self.take_over_silence();
        self.take_over_timeouts();
        self.settle();
    }

    /// The broker looks at the time-outs of all jobs in flight four times a second.
    fn take_over_timeouts(&mut self) {
        if self.counted(Counter::JobsLost) > self.model.counted(Counter::JobsLost) {
            self.model.lose_overdue();
        }
        for (id, _, due) in self.model.overdue() {
            let late_ms = (self.now.mono_ns - due.max(self.reloaded)) / MS;
            assert!(late_ms <= 250, "a job of {id} is overdue by {late_ms} ms");
        }
    }

    /// Silence depends on when the broker ran: it may come later than by the clock, never sooner.
    fn take_over_silence(&mut self) {
        let shown = self.broker.workers(self.now).workers;
        let states: BTreeMap<_, _> = shown
            .into_iter()
            .map(|w| (String::from_utf8(w.id).unwrap(), w.state))
            .collect();
        let removed = self.counted(Counter::WorkersRemovedSilent);
        let removed = removed - std::mem::replace(&mut self.removed_silent, removed);
        let workers = self.model.workers.iter();
        let watched = workers.filter(|(_, w)| w.grace_until.is_none() && w.leave_until.is_none());
        let mut silent: Vec<_> = watched
            .map(|(id, _)| (self.last_seen[id], id.clone()))
            .collect();
        silent.sort();
        silent.truncate(removed as usize);
        for id in self.model.workers.keys().cloned().collect::<Vec<_>>() {
            let silent_ms = (self.now.mono_ns - self.last_seen[&id]) / MS;
            // At the end all are removed; of these only as many as are counted were silent.
            if self.broker.is_finished() && !silent.iter().any(|(_, other)| *other == id) {
                continue;
            }
            let worker = self.model.workers.get_mut(&id).unwrap();
            match states.get(&id) {
                None => {
                    assert!(
                        silent_ms >= 2 * self.silence_ms.0,
                        "{id} was removed after {silent_ms} ms"
                    );
                    self.model.remove(&id, Counter::JobsLost);
                }
                Some(&"silent") => {
                    assert!(
                        silent_ms >= self.silence_ms.0,
                        "{id} counts as silent after {silent_ms} ms"
                    );
                    worker.silent = true;
                }
                Some(&"live") if !self.stalled => {
                    let longest_ms = self.silence_ms.1;
                    assert!(silent_ms <= longest_ms, "{id} is live after {silent_ms} ms");
                }
                Some(_) => {}
            }
        }
    }

    pub(crate) fn sleep(&mut self, ms: u64) {
        let until_ns = self.now.mono_ns + ms * MS;
        while self.now.mono_ns < until_ns {
            let next_ns = self.broker.poll_timeout().unwrap_or(until_ns);
            self.now.mono_ns = next_ns.clamp(self.now.mono_ns + 1, until_ns);
            self.turn();
        }
    }

    pub(crate) fn send(&mut self, conn: ConnId, frames: &[&str]) {
        let mut all = vec!["", "eMQP/1.0"];
        all.extend(frames);
        let message = OwnedMessage::from_frames(&all);
        let id = self.links[&conn].id.clone();
        self.note(|| format!("{id} ({conn}): {}", frames.join(" ")));
        self.pass_a_moment();
        self.last_seen.insert(id.clone(), self.now.mono_ns);
        if !self.links[&conn].worker {
            self.model.frontend_seen(&id);
        }
        self.limit_room();
        self.broker
            .handle_message(conn, &message.view(), self.now, &mut self.out);
    }

    pub(crate) fn open(&mut self, id: &str, worker: bool) -> Option<ConnId> {
        let socket = if worker {
            Socket::Backend
        } else {
            Socket::Frontend
        };
        let conn = ConnId::new(socket as u8, self.slots, 1);
        self.slots += 1;
        let speaks = self.rng.chance(70);
        let info = PeerInfo {
            socket,
            routing_id: id.as_bytes().to_vec(),
            speaks_extensions: speaks,
            remote: None,
        };
        self.note(|| format!("{id} opens {conn}"));
        self.limit_room();
        self.broker
            .handle_opened(conn, info, self.now, &mut self.out);
        let refused = self
            .out
            .closed
            .contains(&(conn, CloseReason::TakeoverRefused));
        if refused {
            self.broker.handle_lost(conn, self.now, &mut self.out);
            self.broker.handle_closed(conn, self.now, &mut self.out);
            self.settle();
            return None;
        }
        self.model.slow_readers.remove(id);
        if worker {
            self.model.opened(id);
        } else {
            self.model.clients.insert(id.to_owned());
            self.model.speaks.remove(id);
            self.model.speaks.extend(speaks.then(|| id.to_owned()));
            self.model.frontend_opened(id);
        }
        let epoch = self.model.epochs.get(id).copied().unwrap_or(0);
        let link = Link {
            id: id.to_owned(),
            worker,
            epoch,
            incoming: VecDeque::new(),
            said_kbye: false,
            told: false,
        };
        self.links.insert(conn, link);
        self.newest.insert(id.to_owned(), conn);
        self.last_seen.insert(id.to_owned(), self.now.mono_ns);
        self.settle();
        Some(conn)
    }

    /// A connection of this peer: usually the newest, sometimes none or an older one.
    pub(crate) fn conn_of(&mut self, id: &str, worker: bool) -> Option<ConnId> {
        match self.newest.get(id).copied() {
            None => {
                if self.rng.chance(50) {
                    self.open(id, worker)
                } else {
                    None
                }
            }
            Some(_) if self.rng.chance(3) => self.open(id, worker),
            Some(newest) => {
                let older = self
                    .links
                    .iter()
                    .find(|(conn, l)| l.id == id && **conn != newest);
                match older.map(|(conn, _)| *conn) {
                    Some(older) if self.rng.chance(20) => Some(older),
                    _ => Some(newest),
                }
            }
        }
    }
}
