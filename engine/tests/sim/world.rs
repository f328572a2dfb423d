//! The simulated world around the broker.

use super::model::{
    GRACE_MS, HWM, KILL_GRACE_MS, MS, Model, QUEUE_GRACE_MS, SILENCE_MS, SLOTS_MAX, State,
};
use super::parts::{Output, Rng, frames_of};
use eventmq::broker::{Broker, BrokerConfig, Seeds};
use eventmq::frames::OwnedMessage;
use eventmq::ids::{ConnId, Now, Socket};
use eventmq::link::{CloseReason, PeerInfo};
use eventmq::metrics::Counter;
use std::collections::{BTreeMap, VecDeque};

pub(crate) const WORKERS: [&str; 5] = ["w0", "w1", "w2", "w3", "w4"];
pub(crate) const CLIENTS: [&str; 3] = ["c0", "c1", "c2"];
pub(crate) const QUEUES: [&str; 6] = ["default", "", "a", "b", "c", "nobody"];

/// A connection as its peer sees it.
pub(crate) struct Link {
    pub(crate) id: String,
    pub(crate) worker: bool,
    pub(crate) epoch: u64,
    /// Sent by the broker and not received yet.
    pub(crate) incoming: VecDeque<Vec<u8>>,
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
    /// Acceptances and REJECTs that must come: (client, text).
    pub(crate) answers: Vec<(String, String)>,
    pub(crate) ready_ids: u64,
    pub(crate) bodies: usize,
    /// Tell what happens: set when one seed runs alone.
    pub(crate) loud: bool,
}

impl World {
    pub(crate) fn new(seed: u64) -> World {
        let now = Now {
            mono_ns: 1_000_000 * MS,
            wall_ms: 1_796_000_000_000,
        };
        let config = BrokerConfig {
            hwm: HWM,
            max_slots_per_worker: SLOTS_MAX as u32,
            heartbeat_timeout_ms: SILENCE_MS,
            reconnect_grace_ms: GRACE_MS,
            queue_grace_ms: QUEUE_GRACE_MS,
            kill_grace_period_ms: KILL_GRACE_MS,
            late_reply_window_ms: 1 << 40,
            global_timeout_ms: 1 << 40,
            worker_buffer_bytes: 0,
            ..BrokerConfig::default()
        };
        let seeds = Seeds {
            hash: [seed, 2, 3, 4],
            ids: [seed, 9],
        };
        let mut model = Model::default();
        model.now = now.mono_ns;
        World {
            rng: Rng(seed.wrapping_mul(77) + 1),
            broker: Broker::new(config, seeds, now),
            out: Output::default(),
            now,
            model,
            links: BTreeMap::new(),
            newest: BTreeMap::new(),
            last_seen: BTreeMap::new(),
            received: BTreeMap::new(),
            ended: Vec::new(),
            slots: 0,
            msgids: 0,
            stalled: false,
            answers: Vec::new(),
            ready_ids: 0,
            bodies: 0,
            loud: std::env::var_os("EMQ_SIM_SEED").is_some(),
        }
    }

    pub(crate) fn run(mut self, steps: u64) {
        for _ in 0..steps {
            self.step();
        }
        self.finish();
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..30 => self.client_step(),
            30..75 => self.worker_step(),
            75..82 => self.receive(),
            82..88 => self.lose_someone(),
            88..91 => self.toggle_slow(),
            91..99 => {
                let ms = self.rng.below(900) + 1;
                self.sleep(ms);
            }
            _ if self.rng.chance(20) => {
                self.stalled = true;
                self.now.mono_ns += (self.rng.below(30_000) + 1_500) * MS;
                self.turn();
            }
            _ => {
                for _ in 0..12 {
                    self.sleep(500);
                }
            }
        }
    }

    pub(crate) fn note(&self, text: &str) {
        if self.loud {
            eprintln!("{} {text}", self.now.mono_ns / 1_000_000);
        }
    }

    /// Gives the broker room until nothing is pending, then compares.
    pub(crate) fn settle(&mut self) {
        while self.broker.has_pending_output() {
            self.out.room = self.rng.chance(70).then(|| self.rng.below(4) + 1);
            self.broker.poll_output(self.now, &mut self.out);
            self.broker.check_invariants();
        }
        self.out.room = None;
        self.broker.check_invariants();
        self.compare();
    }

    pub(crate) fn limit_room(&mut self) {
        // What one input message causes directly is always taken.
        self.out.room = self.rng.chance(10).then_some(0);
    }

    fn compare(&mut self) {
        let mut hand_outs = Vec::new();
        let (mut results, mut answers) = (Vec::new(), Vec::new());
        for (conn, wire) in std::mem::take(&mut self.out.log) {
            let frames = frames_of(&wire);
            self.note(&format!("    -> {conn} {}", frames[2..].join(" ")));
            let link = self
                .links
                .get_mut(&conn)
                .expect("output for an open connection");
            let id = link.id.clone();
            match frames[2].as_str() {
                "REQUEST" => hand_outs.push((id, frames[3].clone())),
                "REPLY" if frames.len() == 5 => answers.push((id, format!("ok {}", frames[4]))),
                "REPLY" if frames[4].contains("JobLost") => {
                    results.push((id, format!("lost {}", frames[5])));
                }
                "REPLY" if frames[4].contains("\"error\"") => {
                    results.push((id, format!("made {} {}", frames[6], frames[5])));
                }
                "REPLY" => results.push((id, format!("result {}", frames[5]))),
                "REJECT" => answers.push((id, format!("{} {}", frames[5], frames[4]))),
                "ACK" | "HEARTBEAT" | "DISCONNECT" => {}
                other => panic!("unexpected {other}"),
            }
            link.incoming.push_back(wire);
        }
        let expected = std::mem::take(&mut self.model.hand_outs);
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(worker, job)| (worker, self.model.jobs[job].msgid.clone()))
            .collect();
        assert_eq!(hand_outs, expected, "hand-outs");
        let mut expected = std::mem::take(&mut self.model.results);
        expected.sort();
        results.sort();
        assert_eq!(results, expected, "results");
        assert_eq!(
            answers,
            std::mem::take(&mut self.answers),
            "acceptances and refusals"
        );
        let shown = self.broker.workers(self.now).workers;
        let shown: Vec<_> = shown
            .into_iter()
            .map(|w| (String::from_utf8(w.id).unwrap(), w.free_slots, w.in_flight))
            .collect();
        let workers = self.model.workers.iter();
        let expected: Vec<_> = workers
            .map(|(id, w)| (id.clone(), w.free, w.jobs.len() as u64))
            .collect();
        assert_eq!(
            shown, expected,
            "free slots and jobs in flight of the workers"
        );
        assert_eq!(
            self.broker.figures().jobs_waiting,
            self.model.waiting() as u64
        );
    }

    fn turn(&mut self) {
        self.model.now = self.now.mono_ns;
        self.broker.begin_turn(self.now);
        self.limit_room();
        self.broker.handle_timeout(self.now, &mut self.out);
        while self.broker.has_pending_output() {
            self.out.room = Some(self.rng.below(4) + 1);
            self.broker.poll_output(self.now, &mut self.out);
        }
        self.model.tick();
        self.take_over_silence();
        self.settle();
    }

    /// Silence depends on when the broker ran: it may come later than by the clock, never sooner.
    fn take_over_silence(&mut self) {
        let shown = self.broker.workers(self.now).workers;
        let states: BTreeMap<_, _> = shown
            .into_iter()
            .map(|w| (String::from_utf8(w.id).unwrap(), w.state))
            .collect();
        for id in self.model.workers.keys().cloned().collect::<Vec<_>>() {
            let silent_ms = (self.now.mono_ns - self.last_seen[&id]) / MS;
            let worker = self.model.workers.get_mut(&id).unwrap();
            match states.get(&id) {
                None => {
                    assert!(
                        silent_ms >= 2 * SILENCE_MS,
                        "{id} was removed after {silent_ms} ms"
                    );
                    self.model.remove(&id, true);
                }
                Some(&"silent") => {
                    assert!(
                        silent_ms >= SILENCE_MS,
                        "{id} counts as silent after {silent_ms} ms"
                    );
                    worker.silent = true;
                }
                Some(&"live") if !self.stalled => {
                    assert!(silent_ms <= SILENCE_MS, "{id} is live after {silent_ms} ms");
                }
                Some(_) => {}
            }
        }
    }

    fn sleep(&mut self, ms: u64) {
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
        self.note(&format!(
            "{} ({conn}): {}",
            self.links[&conn].id,
            frames.join(" ")
        ));
        self.last_seen
            .insert(self.links[&conn].id.clone(), self.now.mono_ns);
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
        let info = PeerInfo {
            socket,
            routing_id: id.as_bytes().to_vec(),
            speaks_extensions: true,
            remote: None,
        };
        self.note(&format!("{id} opens {conn}"));
        self.limit_room();
        self.broker
            .handle_opened(conn, info, self.now, &mut self.out);
        let refused = self
            .out
            .closed
            .contains(&(conn, CloseReason::TakeoverRefused));
        self.out.closed.clear();
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
        }
        let epoch = self.model.epochs.get(id).copied().unwrap_or(0);
        let link = Link {
            id: id.to_owned(),
            worker,
            epoch,
            incoming: VecDeque::new(),
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

    /// Shuts down and balances the books: every accepted job has ended with a reason.
    fn finish(mut self) {
        self.broker.end_shutdown(self.now, &mut self.out);
        while !self.broker.is_finished() {
            self.out.room = Some(self.rng.below(5) + 1);
            self.broker.poll_output(self.now, &mut self.out);
            self.broker.check_invariants();
        }
        let counters = self.broker.figures().counters;
        let ends = [
            Counter::JobsDone,
            Counter::JobsFailed,
            Counter::JobsTimedOut,
            Counter::JobsLost,
            Counter::JobsUnknown,
            Counter::JobsAbandoned,
        ];
        let ended: u64 = ends.iter().map(|counter| counters.get(*counter)).sum();
        assert_eq!(
            counters.get(Counter::RequestsAccepted),
            ended,
            "accepted jobs and their ends"
        );
        assert_eq!(
            counters.get(Counter::RequestsAccepted),
            self.model.jobs.len() as u64
        );
        let abandoned = self
            .model
            .jobs
            .iter()
            .filter(|job| matches!(job.state, State::Waiting | State::InFlight(_)));
        let workers = self
            .model
            .workers
            .values()
            .filter(|w| w.grace_until.is_some());
        if workers.count() == 0 {
            assert_eq!(
                counters.get(Counter::JobsAbandoned),
                abandoned.count() as u64
            );
        }
        let owed = self
            .out
            .log
            .iter()
            .filter(|(_, wire)| frames_of(wire)[2] == "REPLY")
            .count();
        let claims = self.model.jobs.iter().filter(|job| {
            let open = matches!(job.state, State::Waiting | State::InFlight(_));
            open && job
                .client
                .as_ref()
                .is_some_and(|client| self.model.clients.contains(client))
        });
        assert_eq!(owed, claims.count(), "error results at the end");
    }
}
