//! The simulated world around the broker.

use super::model::{
    DEFAULT, GRACE_MS, HWM, Inform, KILL_GRACE_MS, MS, Model, QUEUE_GRACE_MS, SILENCE_MS,
    SLOTS_MAX, State,
};
use eventmq::broker::{Broker, BrokerConfig, Seeds};
use eventmq::frames::{Message, OwnedMessage, split_wire};
use eventmq::ids::{ConnId, Now, Socket};
use eventmq::link::{CloseReason, OutClass, Outbox, PeerInfo};
use eventmq::metrics::Counter;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const WORKERS: [&str; 5] = ["w0", "w1", "w2", "w3", "w4"];
const CLIENTS: [&str; 3] = ["c0", "c1", "c2"];
const QUEUES: [&str; 6] = ["default", "", "a", "b", "c", "nobody"];

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}

#[derive(Default)]
struct Output {
    /// Everything put out since the last look, in order.
    log: Vec<(ConnId, Vec<u8>)>,
    closed: Vec<(ConnId, CloseReason)>,
    released: Vec<ConnId>,
    slow: BTreeSet<ConnId>,
    room: Option<u64>,
}

impl Output {
    fn put(&mut self, to: ConnId, wire: Vec<u8>) {
        if let Some(room) = &mut self.room {
            *room = room.saturating_sub(1);
        }
        self.log.push((to, wire));
    }
}

impl Outbox for Output {
    fn forward(&mut self, to: ConnId, _class: OutClass, message: &Message<'_>) {
        self.put(to, message.wire().to_vec());
    }
    fn send(&mut self, to: ConnId, _class: OutClass, pieces: &[&[u8]]) {
        self.put(to, pieces.concat());
    }
    fn close(&mut self, conn: ConnId, reason: CloseReason) {
        self.closed.push((conn, reason));
    }
    fn release(&mut self, conn: ConnId) {
        self.released.push(conn);
    }
    fn pending_bytes(&mut self, conn: ConnId) -> usize {
        usize::from(self.slow.contains(&conn))
    }
    fn notify_writable(&mut self, _conn: ConnId, _below_bytes: usize) {}
    fn set_never_paused(&mut self, _conn: ConnId, _never_paused: bool) {}
    fn pause_input(&mut self, _socket: Socket, _paused: bool) {}
    fn has_room(&self) -> bool {
        self.room != Some(0)
    }
}

/// A connection as its peer sees it.
struct Link {
    id: String,
    worker: bool,
    epoch: u64,
    /// Sent by the broker and not received yet.
    incoming: VecDeque<Vec<u8>>,
}

pub(crate) struct World {
    rng: Rng,
    broker: Broker,
    out: Output,
    now: Now,
    model: Model,
    links: BTreeMap<ConnId, Link>,
    newest: BTreeMap<String, ConnId>,
    last_seen: BTreeMap<String, u64>,
    /// Jobs a worker process has received and not answered, by worker id.
    received: BTreeMap<String, Vec<String>>,
    ended: Vec<String>,
    slots: u32,
    msgids: u64,
    stalled: bool,
    /// Acceptances and REJECTs that must come: (client, text).
    answers: Vec<(String, String)>,
    ready_ids: u64,
    bodies: usize,
    /// Tell what happens: set when one seed runs alone.
    loud: bool,
}

fn frames_of(wire: &[u8]) -> Vec<String> {
    let mut spans = Vec::new();
    assert_eq!(split_wire(wire, &mut spans), Some(wire.len()));
    let message = Message::new(wire, &spans);
    message
        .frames()
        .map(|frame| String::from_utf8_lossy(frame).into_owned())
        .collect()
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

    fn note(&self, text: &str) {
        if self.loud {
            eprintln!("{} {text}", self.now.mono_ns / 1_000_000);
        }
    }

    /// Gives the broker room until nothing is pending, then compares.
    fn settle(&mut self) {
        while self.broker.has_pending_output() {
            self.out.room = self.rng.chance(70).then(|| self.rng.below(4) + 1);
            self.broker.poll_output(self.now, &mut self.out);
            self.broker.check_invariants();
        }
        self.out.room = None;
        self.broker.check_invariants();
        self.compare();
    }

    fn limit_room(&mut self) {
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

    fn send(&mut self, conn: ConnId, frames: &[&str]) {
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

    fn open(&mut self, id: &str, worker: bool) -> Option<ConnId> {
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
    fn conn_of(&mut self, id: &str, worker: bool) -> Option<ConnId> {
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

    fn client_step(&mut self) {
        let id = *self.rng.pick(&CLIENTS);
        let Some(conn) = self.conn_of(id, false) else {
            return;
        };
        let (queue, owes) = (*self.rng.pick(&QUEUES), self.rng.chance(60));
        let msgid = if self.rng.chance(15) {
            format!("twin{}", self.rng.below(3))
        } else {
            self.msgids += 1;
            format!("m{}", self.msgids)
        };
        let answer = if self.rng.chance(3) {
            self.send(conn, &["REQUEST", &msgid, queue, "timeout:x", "{}"]);
            Some("malformed")
        } else {
            let headers = if owes { "reply-requested" } else { "" };
            // Long enough that no other header or queue name makes up for it.
            self.bodies += 1;
            let body = "x".repeat(self.bodies % 100 * 40);
            self.send(conn, &["REQUEST", &msgid, queue, headers, &body]);
            self.model.request(id, &msgid, queue, owes, body.len())
        };
        if self.newest.contains_key(id) {
            self.answers
                .push((id.to_owned(), format!("{} {msgid}", answer.unwrap_or("ok"))));
        }
        self.settle();
    }

    fn worker_step(&mut self) {
        let id = *self.rng.pick(&WORKERS);
        let Some(conn) = self.conn_of(id, true) else {
            return;
        };
        if !self.model.workers.contains_key(id) {
            if self.rng.chance(80) {
                return self.inform(id, conn);
            }
            self.send(conn, &["READY", "r"]);
            return self.settle();
        }
        match self.rng.below(100) {
            0..4 => self.inform(id, conn),
            4..6 => {
                self.send(conn, &["KBYE", "k"]);
                self.before(id, conn);
                self.model.kbye(id);
                self.after(id);
            }
            6..12 => {
                self.send(conn, &["HEARTBEAT", "h", "1.0"]);
                self.before(id, conn);
                self.after(id);
            }
            12..16 => {
                let msgid = match self.ended.is_empty() {
                    false => self.rng.pick(&self.ended.clone()).clone(),
                    true => "never".to_owned(),
                };
                self.answer(id, conn, &msgid);
            }
            16..60 => match self.received.get_mut(id).filter(|jobs| !jobs.is_empty()) {
                None => self.ready(id, conn, None),
                Some(jobs) => {
                    let at = self.rng.below(jobs.len() as u64) as usize;
                    let msgid = jobs.remove(at);
                    self.ended.push(msgid.clone());
                    if self.model.workers[id].completions && self.rng.chance(60) {
                        if self.rng.chance(60) {
                            self.answer(id, conn, &msgid);
                        }
                        if self.model.workers.contains_key(id) {
                            let status = *self.rng.pick(&["ok", "error", "timeout", "refused"]);
                            self.ready(id, conn, Some((&msgid, status)));
                        }
                    } else {
                        self.answer(id, conn, &msgid);
                    }
                }
            },
            _ => self.ready(id, conn, None),
        }
    }

    /// The model's part of hearing a registered worker.
    fn before(&mut self, id: &str, conn: ConnId) {
        let newest = self.newest.get(id) == Some(&conn);
        self.model.heard(id, newest);
    }

    /// What the broker does behind a message.
    fn after(&mut self, id: &str) {
        self.model.fed(id);
        self.model.pump_returned();
        self.settle();
    }

    fn ready(&mut self, id: &str, conn: ConnId, named: Option<(&str, &str)>) {
        self.ready_ids += 1;
        let own = format!("r{}", self.ready_ids);
        match named {
            Some((msgid, status)) => self.send(conn, &["READY", &own, msgid, status]),
            None => self.send(conn, &["READY", &own]),
        }
        self.before(id, conn);
        self.model.ready(id, named);
        self.after(id);
    }

    fn answer(&mut self, id: &str, conn: ConnId, msgid: &str) {
        self.send(conn, &["REPLY", "x", "{\"value\": 3}", msgid]);
        self.before(id, conn);
        self.model.reply(id, msgid);
        self.after(id);
    }

    fn inform(&mut self, id: &str, conn: ConnId) {
        let mut inform = Inform::default();
        for queue in [DEFAULT, "a", "b", "c"] {
            if self.rng.chance(55) {
                inform
                    .queues
                    .push((self.rng.below(3) as i64 * 10 - 10, queue.to_owned()));
            }
        }
        if self.rng.chance(40) {
            // A long list: such workers are parked by the queues.
            for at in 0..20 {
                inform.queues.push((0, format!("x{at}")));
            }
        }
        let mut capabilities = Vec::new();
        if self.rng.chance(50) {
            inform.completions = true;
            capabilities.push("completions".to_owned());
        }
        if self.rng.chance(30) {
            let slots = self.rng.below(8) + 1;
            inform.slots = Some(slots);
            capabilities.push(format!("slots:{slots}"));
        }
        if self.rng.chance(40) {
            let token = format!("T{}", self.rng.below(2));
            capabilities.push(format!("instance:{token}"));
            inform.instance = Some(token);
        }
        if self.rng.chance(40) {
            let jobs = self.received.entry(id.to_owned()).or_default();
            let running: BTreeSet<String> = jobs.iter().cloned().collect();
            let text: Vec<_> = running.iter().cloned().collect();
            capabilities.push(format!("running:{}", text.join("+")));
            inform.running = Some(running);
        }
        let queues: Vec<_> = inform
            .queues
            .iter()
            .map(|(weight, name)| format!("[{weight}, \"{name}\"]"))
            .collect();
        let (queues, capabilities) = (format!("[{}]", queues.join(", ")), capabilities.join(","));
        self.send(conn, &["INFORM", "i", &queues, "worker", &capabilities]);
        let connected = self.newest.contains_key(id);
        self.model.inform(id, &inform, connected);
        self.settle();
    }

    /// Messages arrive at their peers.
    fn receive(&mut self) {
        let conns: Vec<_> = self.links.keys().copied().collect();
        for conn in conns {
            let link = self.links.get_mut(&conn).unwrap();
            for _ in 0..self.rng.below(6) {
                let Some(wire) = link.incoming.pop_front() else {
                    break;
                };
                let frames = frames_of(&wire);
                if link.worker && frames[2] == "REQUEST" {
                    self.received
                        .entry(link.id.clone())
                        .or_default()
                        .push(frames[3].clone());
                }
            }
        }
    }

    fn lose_someone(&mut self) {
        let conns: Vec<_> = self.links.keys().copied().collect();
        if conns.is_empty() {
            return;
        }
        let conn = *self.rng.pick(&conns);
        self.note(&format!("{} ({conn}) is lost", self.links[&conn].id));
        self.broker.handle_lost(conn, self.now, &mut self.out);
        assert_eq!(self.out.released.pop(), Some(conn));
        self.broker.check_invariants();
        let link = self.links.remove(&conn).unwrap();
        let id = link.id.as_str();
        let newest = self.newest.get(id) == Some(&conn);
        if newest {
            self.newest.remove(id);
        }
        self.out.slow.remove(&conn);
        if !link.worker {
            if newest {
                self.model.clients.remove(id);
            }
        } else {
            self.model.lost(id, newest);
            self.model
                .slow_readers
                .retain(|other| !newest || other != id);
        }
        let mut incoming = link.incoming;
        for _ in 0..self.rng.below(incoming.len() as u64 + 1) {
            let wire = incoming.pop_back().unwrap();
            let mut spans = Vec::new();
            split_wire(&wire, &mut spans);
            let message = Message::new(&wire, &spans);
            self.broker
                .handle_unsent(conn, &message, self.now, &mut self.out);
            self.broker.check_invariants();
            let frames = frames_of(&wire);
            self.note(&format!("    unsent: {}", frames[2..].join(" ")));
            if link.worker && frames[2] == "REQUEST" {
                self.model
                    .unsent(id, &frames[3], frames[6].len(), link.epoch);
            }
        }
        for wire in incoming {
            let frames = frames_of(&wire);
            if link.worker && frames[2] == "REQUEST" {
                self.received
                    .entry(id.to_owned())
                    .or_default()
                    .push(frames[3].clone());
            }
        }
        self.limit_room();
        self.broker.handle_closed(conn, self.now, &mut self.out);
        if link.worker {
            self.model.closed(id);
        }
        self.settle();
    }

    fn toggle_slow(&mut self) {
        let id = *self.rng.pick(&WORKERS);
        let Some(conn) = self.newest.get(id).copied() else {
            return;
        };
        if self.out.slow.insert(conn) {
            self.model.slow_readers.insert(id.to_owned());
            return;
        }
        self.out.slow.remove(&conn);
        self.model.slow_readers.remove(id);
        self.limit_room();
        self.broker.handle_writable(conn, self.now, &mut self.out);
        self.model.writable(id);
        self.settle();
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
