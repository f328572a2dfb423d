//! What clients, workers and the network do.

use super::model::{DEFAULT, Inform};
use super::parts::frames_of;
use super::world::{SCHEDULERS, WORKERS, World};
use eventmq::frames::{Message, OwnedMessage, split_wire};
use eventmq::ids::ConnId;
use eventmq::metrics::Counter;
use std::collections::BTreeSet;

impl World {
    pub(crate) fn worker_step(&mut self) {
        let id = *self.rng.pick(&WORKERS);
        let Some(conn) = self.conn_of(id, true) else {
            return;
        };
        if !self.model.workers.contains_key(id) {
            return match self.rng.below(100) {
                0..75 => self.inform(id, conn),
                _ => self.unregistered(id, conn),
            };
        }
        match self.rng.below(100) {
            0..4 => self.inform(id, conn),
            4..6 => {
                self.links.get_mut(&conn).unwrap().said_kbye = true;
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
                let msgid = self.some_ended();
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

    fn some_ended(&mut self) -> String {
        match self.ended.is_empty() {
            false => self.rng.pick(&self.ended).clone(),
            true => "never".to_owned(),
        }
    }

    /// A message of a worker that has not registered, or was removed.
    fn unregistered(&mut self, id: &str, conn: ConnId) {
        let link = self.links.get_mut(&conn).unwrap();
        if self.rng.chance(15) {
            link.said_kbye = true;
            self.send(conn, &["KBYE", "k"]);
            self.model.unregistered(id, false, false);
            return self.settle();
        }
        let tell = self.model.rules.disconnect_unknown && !link.said_kbye && !link.told;
        link.told |= tell;
        let connected = self.newest.contains_key(id);
        match self.rng.below(3) {
            0 => self.send(conn, &["READY", "r"]),
            1 => self.send(conn, &["HEARTBEAT", "h", "1.0"]),
            _ => {
                let msgid = self.some_ended();
                self.send(conn, &["REPLY", "x", "{\"value\": 3}", &msgid]);
                self.model.count_unmatched(&msgid);
                self.model.told(id, tell, connected);
                return self.settle();
            }
        }
        self.model.unregistered(id, tell, connected);
        self.settle();
    }

    /// The model's part of hearing a registered worker.
    pub(crate) fn before(&mut self, id: &str, conn: ConnId) {
        let newest = self.newest.get(id) == Some(&conn);
        self.model.heard(id, newest);
    }

    /// What the broker does behind a message.
    pub(crate) fn after(&mut self, id: &str) {
        self.model.fed(id);
        self.model.pump_returned();
        self.settle();
    }

    pub(crate) fn ready(&mut self, id: &str, conn: ConnId, named: Option<(&str, &str)>) {
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

    pub(crate) fn answer(&mut self, id: &str, conn: ConnId, msgid: &str) {
        let status = *self.rng.pick(&["", "ok", "error", "timeout"]);
        let reply = ["REPLY", "x", "{\"value\": 3}", msgid, status];
        let frames = if status.is_empty() { 4 } else { 5 };
        self.send(conn, &reply[..frames]);
        self.before(id, conn);
        self.model.reply(id, msgid, status);
        self.after(id);
    }

    pub(crate) fn inform(&mut self, id: &str, conn: ConnId) {
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
        self.msgids += 1;
        let msgid = format!("i{}", self.msgids);
        let kind = if self.rng.chance(4) {
            "scheduler"
        } else {
            "worker"
        };
        let mut shown = self.look();
        let ignored = self.counted(Counter::IgnoredInform);
        self.send(conn, &["INFORM", &msgid, &queues, kind, &capabilities]);
        shown.too_many_queues = self.counted(Counter::IgnoredInform) > ignored;
        if kind == "worker" && !self.model.has_too_many_queues(&inform.queues, shown) {
            let link = self.links.get_mut(&conn).unwrap();
            (link.said_kbye, link.told) = (false, false);
            let connected = self.newest.contains_key(id);
            if connected {
                self.acks.push((id.to_owned(), msgid));
            }
            self.model.inform(id, &inform, connected);
        } else {
            self.model.alive(id);
        }
        self.settle();
    }

    /// Messages arrive at their peers.
    pub(crate) fn receive(&mut self) {
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

    pub(crate) fn lose_someone(&mut self) {
        let conns: Vec<_> = self.links.keys().copied().collect();
        if conns.is_empty() {
            return;
        }
        let conn = *self.rng.pick(&conns);
        self.note(|| format!("{} ({conn}) is lost", self.links[&conn].id));
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
                self.model.slow_readers.remove(id);
                self.model.frontend_lost(id);
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
            self.note(|| format!("    unsent: {}", frames[2..].join(" ")));
            if matches!(frames[2].as_str(), "SCHEDULE" | "UNSCHEDULE") {
                self.model.schedule_unsent(id, &frames[2], &frames[3]);
            }
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
        self.out.never_paused.remove(&conn);
        if link.worker {
            self.model.closed(id);
        } else {
            self.model.frontend_closed(id);
        }
        self.settle();
    }

    pub(crate) fn toggle_slow(&mut self) {
        let ids: Vec<_> = WORKERS.iter().chain(&SCHEDULERS).collect();
        let id = **self.rng.pick(&ids);
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
        self.model.scheduler_writable(id);
        self.settle();
    }

    /// Bytes that make no message, or none that is taken.
    pub(crate) fn show_life(&mut self) {
        let conns: Vec<_> = self.links.keys().copied().collect();
        if conns.is_empty() {
            return;
        }
        let conn = *self.rng.pick(&conns);
        let (id, worker) = (self.links[&conn].id.clone(), self.links[&conn].worker);
        self.note(|| format!("{id} ({conn}) shows life"));
        self.last_seen.insert(id.clone(), self.now.mono_ns);
        self.limit_room();
        let (now, out) = (self.now, &mut self.out);
        match self.rng.below(4) {
            0 => {
                let message = OwnedMessage::from_frames(["", "eMQP/0.9", "READY", "r"]);
                self.broker.handle_message(conn, &message.view(), now, out);
            }
            1 => {
                let message = OwnedMessage::from_frames(["", "eMQP/1.0", "ACK", "r"]);
                self.broker.handle_message(conn, &message.view(), now, out);
            }
            2 => {
                let head = OwnedMessage::from_frames(["", "eMQP/1.0", "REPLY", "r"]);
                self.broker.handle_too_large(conn, &head.view(), now, out);
            }
            _ => self.broker.handle_activity(conn, now, out),
        }
        if worker {
            self.model.alive(&id);
        } else {
            self.model.frontend_seen(&id);
        }
        self.settle();
    }
}
