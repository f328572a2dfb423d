//! What clients and schedulers do.

use super::model::Request;
use super::world::{CLIENTS, QUEUES, SCHEDULERS, World};
use eventmq::frames::OwnedMessage;
use eventmq::metrics::Counter;

const RUN: &str = r#"["run", {"callable": "add", "path": "jobs_x", "args": [1, 2], "kwargs": {}, "class_args": [], "class_kwargs": {}}]"#;

impl World {
    /// A peer of the frontend that sends something, and the connection it uses.
    fn sender(&mut self) -> Option<(&'static str, eventmq::ids::ConnId)> {
        let ids: Vec<_> = CLIENTS.iter().chain(&SCHEDULERS).collect();
        let id = if self.rng.chance(85) {
            *self.rng.pick(&CLIENTS)
        } else {
            **self.rng.pick(&ids)
        };
        let scheduler = self.model.schedulers.get(id).is_some();
        // Clients that are not read: only what had been read before is still to come.
        if self.model.is_paused() && !scheduler && self.rng.chance(70) {
            return None;
        }
        Some((id, self.conn_of(id, false)?))
    }

    pub(crate) fn client_step(&mut self) {
        let Some((id, conn)) = self.sender() else {
            return;
        };
        let mut request = Request {
            queue: (*self.rng.pick(&QUEUES)).to_owned(),
            owes: self.rng.chance(60),
            timeout_secs: *self.rng.pick(&[0, 0, 0, 2, 20]),
            msgid: if self.rng.chance(15) {
                format!("twin{}", self.rng.below(3))
            } else {
                self.msgids += 1;
                format!("m{}", self.msgids)
            },
            ..Request::default()
        };
        let mut headers = Vec::new();
        if request.owes {
            headers.push("reply-requested".to_owned());
        }
        if request.timeout_secs > 0 {
            headers.push(format!("timeout:{}", request.timeout_secs));
        }
        // Long enough that no other header or queue name makes up for it.
        self.bodies += 1;
        let body = "x".repeat(self.bodies % 100 * 60);
        request.body = body.len();
        let mut frames = 5;
        let mut too_large = false;
        match self.rng.below(60) {
            0 => {
                headers.push("timeout:x".to_owned());
                request.bad = Some("malformed");
            }
            1 => {
                frames = 4;
                request.bad = Some("malformed");
            }
            2 => {
                request.queue = "q".repeat(256);
                request.bad = Some("too-large");
            }
            3 => {
                headers.push("delay:1".to_owned());
                request.bad = Some("unsupported");
            }
            4 => {
                too_large = true;
                request.bad = Some("too-large");
            }
            5 => {
                // Nothing a client may say.
                let ignored = self.counted(Counter::IgnoredRole);
                self.send(conn, &["READY", &request.msgid]);
                assert_eq!(self.counted(Counter::IgnoredRole), ignored + 1);
                return self.settle();
            }
            _ => {}
        }
        let headers = headers.join(",");
        let all = ["REQUEST", &request.msgid, &request.queue, &headers, &body];
        let mut shown = self.look();
        if too_large {
            self.send_too_large(conn, &all[..3]);
        } else {
            self.send(conn, &all[..frames]);
        }
        let refused = self.counted(Counter::RejectedTooManyQueues);
        shown.too_many_queues = refused > self.model.counted(Counter::RejectedTooManyQueues);
        if self.model.request(id, &request, shown) {
            let used = self.look().used;
            self.model.watch_memory(used);
        }
        self.settle();
    }

    /// The first frames of a message above the limits.
    fn send_too_large(&mut self, conn: eventmq::ids::ConnId, frames: &[&str]) {
        let mut all = vec!["", "eMQP/1.0"];
        all.extend(frames);
        let head = OwnedMessage::from_frames(&all);
        let id = self.links[&conn].id.clone();
        self.note(|| format!("{id} ({conn}): too large: {}", frames.join(" ")));
        self.model.frontend_seen(&id);
        self.limit_room();
        self.broker
            .handle_too_large(conn, &head.view(), self.now, &mut self.out);
    }

    /// A SCHEDULE or UNSCHEDULE.
    pub(crate) fn schedule_step(&mut self) {
        let Some((id, conn)) = self.sender() else {
            return;
        };
        self.msgids += 1;
        let msgid = format!("m{}", self.msgids);
        let command = *self.rng.pick(&["SCHEDULE", "SCHEDULE", "UNSCHEDULE"]);
        if self.rng.chance(8) {
            self.send(conn, &[command, &msgid, "a", "", "five", RUN, ""]);
            self.model.reject(id, "malformed", &msgid);
        } else {
            self.held_some.insert(id.to_owned());
            self.send(conn, &[command, &msgid, "a", "", "5", RUN, ""]);
            self.model.schedule(id, command, &msgid);
        }
        self.settle();
    }

    pub(crate) fn scheduler_step(&mut self) {
        let id = *self.rng.pick(&SCHEDULERS);
        let Some(conn) = self.conn_of(id, false) else {
            return;
        };
        let registered = self.model.schedulers.get(id).is_some();
        match self.rng.below(100) {
            0..60 if !registered => self.scheduler_informs(id, conn),
            0..6 => self.scheduler_informs(id, conn),
            6..16 => {
                self.send(conn, &["KBYE", "k"]);
                if registered {
                    self.model.unregister_scheduler(id);
                } else {
                    self.model.unregistered(id, false, false);
                }
            }
            _ => {
                self.send(conn, &["HEARTBEAT", "h", "1.0"]);
                if !registered {
                    self.model.unregistered(id, false, false);
                }
            }
        }
        self.settle();
    }

    fn scheduler_informs(&mut self, id: &str, conn: eventmq::ids::ConnId) {
        let results = self.rng.chance(50);
        let capabilities = if results { "results" } else { "" };
        self.msgids += 1;
        let msgid = format!("i{}", self.msgids);
        if self.rng.chance(5) {
            return self.send(conn, &["INFORM", &msgid, "", "worker", ""]);
        }
        self.send(conn, &["INFORM", &msgid, "", "scheduler", capabilities]);
        if self.newest.contains_key(id) {
            self.acks.push((id.to_owned(), msgid));
        }
        self.model.scheduler_informs(id, results);
    }
}
