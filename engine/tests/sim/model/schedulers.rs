//! Schedulers, and what is held for them.

use super::{MS, Model};
use eventmq::metrics::Counter;
use std::collections::{BTreeMap, VecDeque};

/// One that does not read is removed after this long.
const SLOW_MS: u64 = 30_000;

#[derive(Debug, Clone, Default)]
pub(crate) struct Scheduler {
    pub(crate) results: bool,
    stamp: u64,
    in_grace: bool,
    silent: bool,
    slow_since: Option<u64>,
    grace_until: u64,
    silence_due: u64,
}

/// A schedule that waits for a scheduler.
#[derive(Debug, Clone)]
struct Held {
    msgid: String,
    client: Option<String>,
    /// An UNSCHEDULE: who has not got it.
    waiting: Option<Vec<String>>,
    sent: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Schedulers {
    by_id: BTreeMap<String, Scheduler>,
    held: VecDeque<Held>,
    /// Of frontend peers: connections not closed, and the time of the last sign of life without
    /// the time for which the broker stood still.
    conns: BTreeMap<String, u64>,
    seen: BTreeMap<String, u64>,
    pub(crate) stalled: u64,
    /// Something came back from the connection that is being closed.
    returned: bool,
    /// Removed for silence in this turn. If the broker ends in the same one they may be told.
    pub(crate) removed: Vec<String>,
    /// What must have been put out: (scheduler, command and msgid), in order.
    pub(crate) sent: Vec<(String, String)>,
}

impl Schedulers {
    pub(crate) fn get(&self, id: &str) -> Option<&Scheduler> {
        self.by_id.get(id)
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.by_id.keys().cloned().collect()
    }

    pub(crate) fn held_for(&self, client: &str) -> usize {
        let own = |held: &&Held| held.client.as_deref() == Some(client);
        self.held.iter().filter(own).count()
    }

    fn holds_schedules(&self) -> bool {
        self.held.iter().any(|held| held.waiting.is_none())
    }

    fn by_stamp(&self) -> Vec<String> {
        let mut ids = self.ids();
        ids.sort_by_key(|id| self.by_id[id].stamp);
        ids
    }
}

impl Model {
    fn effective(&self) -> u64 {
        self.now - self.schedulers.stalled
    }

    /// Bytes came from a frontend peer.
    pub(crate) fn frontend_seen(&mut self, id: &str) {
        let now = self.effective();
        self.schedulers.seen.insert(id.to_owned(), now);
        if let Some(entry) = self.schedulers.by_id.get_mut(id)
            && std::mem::take(&mut entry.silent)
        {
            self.deliver_held();
        }
    }

    pub(crate) fn frontend_opened(&mut self, id: &str) {
        let now = self.effective();
        self.schedulers.seen.insert(id.to_owned(), now);
        *self.schedulers.conns.entry(id.to_owned()).or_default() += 1;
        if let Some(entry) = self.schedulers.by_id.get_mut(id) {
            entry.in_grace = false;
            entry.silent = false;
            entry.slow_since = None;
            self.deliver_held();
        }
    }

    pub(crate) fn frontend_lost(&mut self, id: &str) {
        let until = self.now + self.rules.grace_ms * MS;
        if let Some(entry) = self.schedulers.by_id.get_mut(id) {
            entry.in_grace = true;
            entry.slow_since = None;
            entry.grace_until = until;
        }
    }

    pub(crate) fn frontend_closed(&mut self, id: &str) {
        let conns = self.schedulers.conns.get_mut(id).unwrap();
        *conns -= 1;
        let none = *conns == 0;
        if std::mem::take(&mut self.schedulers.returned) {
            self.deliver_held();
        }
        if let Some(entry) = self.schedulers.by_id.get(id).filter(|entry| entry.in_grace) {
            if none && entry.grace_until <= self.now {
                self.unregister_scheduler(id);
            } else {
                self.deliver_held();
            }
        }
    }

    pub(crate) fn scheduler_informs(&mut self, id: &str, results: bool) {
        self.stamp += 1;
        let known = self.schedulers.by_id.get(id).cloned();
        let mut entry = known.unwrap_or_else(|| Scheduler {
            in_grace: !self.clients.contains(id),
            grace_until: self.now,
            silence_due: self.now + self.rules.silence_ms * MS,
            ..Scheduler::default()
        });
        entry.stamp = self.stamp;
        entry.silent = false;
        entry.results = results;
        self.schedulers.by_id.insert(id.to_owned(), entry);
        self.deliver_held();
    }

    pub(crate) fn unregister_scheduler(&mut self, id: &str) {
        self.schedulers.by_id.remove(id);
        for held in &mut self.schedulers.held {
            if let Some(waiting) = &mut held.waiting {
                waiting.retain(|other| other != id);
            }
        }
        self.deliver_held();
    }

    pub(crate) fn scheduler_writable(&mut self, id: &str) {
        if let Some(entry) = self.schedulers.by_id.get_mut(id) {
            entry.slow_since = None;
            self.deliver_held();
        }
    }

    /// Live, and takes what it is given.
    fn may_be_given(&mut self, id: &str) -> bool {
        let Some(entry) = self.schedulers.by_id.get_mut(id) else {
            return false;
        };
        if entry.in_grace || entry.silent || entry.slow_since.is_some() {
            return false;
        }
        if self.slow_readers.contains(id) {
            entry.slow_since = Some(self.now);
            return false;
        }
        true
    }

    fn newest_live(&mut self) -> Option<String> {
        let ids = self.schedulers.by_stamp();
        ids.into_iter().rev().find(|id| self.may_be_given(id))
    }

    fn send_schedule(&mut self, id: &str, command: &str, msgid: &str) {
        self.count(Counter::SchedulesForwarded);
        let text = format!("{command} {msgid}");
        self.schedulers.sent.push((id.to_owned(), text));
    }

    fn accept_schedule(&mut self, client: &str, msgid: &str) {
        if self.speaks.contains(client) {
            self.answer(client, "ok", msgid);
        }
    }

    /// A well-formed SCHEDULE or UNSCHEDULE.
    pub(crate) fn schedule(&mut self, client: &str, command: &str, msgid: &str) {
        if self.refuses() {
            return self.reject(client, "draining", msgid);
        }
        if self.schedulers.by_id.is_empty() {
            return self.reject(client, "no-scheduler", msgid);
        }
        let mut held = Held {
            msgid: msgid.to_owned(),
            client: Some(client.to_owned()),
            waiting: None,
            sent: false,
        };
        if command == "UNSCHEDULE" {
            let mut waiting = Vec::new();
            for id in self.schedulers.by_stamp() {
                if self.may_be_given(&id) && !self.schedulers.holds_schedules() {
                    self.send_schedule(&id, command, msgid);
                    held.sent = true;
                } else {
                    waiting.push(id);
                }
            }
            if waiting.is_empty() {
                return self.accept_schedule(client, msgid);
            }
            held.waiting = Some(waiting);
        } else if let Some(id) = self.newest_live()
            && !self.schedulers.holds_schedules()
        {
            self.send_schedule(&id, command, msgid);
            return self.accept_schedule(client, msgid);
        }
        self.schedulers.held.push_back(held);
    }

    fn deliver_held(&mut self) {
        let mut kept = VecDeque::new();
        for mut held in std::mem::take(&mut self.schedulers.held) {
            let done = match held.waiting.take() {
                None => match self.newest_live() {
                    Some(id) => {
                        self.send_schedule(&id, "SCHEDULE", &held.msgid);
                        held.sent = true;
                        true
                    }
                    None => self.schedulers.by_id.is_empty(),
                },
                Some(mut waiting) => {
                    waiting.retain(|id| {
                        let given = self.may_be_given(id);
                        if given {
                            self.send_schedule(id, "UNSCHEDULE", &held.msgid);
                            held.sent = true;
                        }
                        !given
                    });
                    let done = waiting.is_empty();
                    held.waiting = Some(waiting);
                    done
                }
            };
            if !done {
                kept.push_back(held);
                continue;
            }
            match &held.client {
                Some(client) if held.sent => self.accept_schedule(client, &held.msgid),
                Some(client) => self.reject(client, "no-scheduler", &held.msgid),
                None if held.sent => {}
                None => self.count(Counter::SchedulesDropped),
            }
        }
        self.schedulers.held = kept;
    }

    /// A schedule that was not written to this scheduler. They come newest first.
    pub(crate) fn schedule_unsent(&mut self, id: &str, command: &str, msgid: &str) {
        let registered = self.schedulers.by_id.contains_key(id);
        let unschedule = command == "UNSCHEDULE";
        if !registered && (unschedule || self.schedulers.by_id.is_empty()) {
            return self.count(Counter::SchedulesDropped);
        }
        self.schedulers.returned = true;
        self.schedulers.held.push_front(Held {
            msgid: msgid.to_owned(),
            client: None,
            waiting: unschedule.then(|| vec![id.to_owned()]),
            sent: false,
        });
    }

    pub(super) fn schedulers_tick(&mut self) {
        self.schedulers.removed.clear();
        loop {
            // Ends of grace and looks at silence, as they become due.
            let entries = self.schedulers.by_id.iter();
            let due = entries.flat_map(|(id, entry)| {
                let closed = self.schedulers.conns.get(id) == Some(&0);
                let grace = (entry.in_grace && closed).then_some(entry.grace_until);
                [grace, Some(entry.silence_due)].map(|at| at.map(|at| (at, id.clone())))
            });
            let next = due.flatten().min().filter(|(at, _)| *at <= self.now);
            let Some((at, id)) = next else { return };
            let entry = &self.schedulers.by_id[&id];
            if at < entry.silence_due {
                self.unregister_scheduler(&id);
            } else {
                self.look_at_silence(&id);
            }
        }
    }

    fn look_at_silence(&mut self, id: &str) {
        let (now, silence) = (self.effective(), self.rules.silence_ms * MS);
        let stalled = self.schedulers.stalled;
        let seen = self.schedulers.seen[id];
        // Time that did not count may have been more than what has passed since.
        let silent_for = now.saturating_sub(seen);
        let entry = self.schedulers.by_id.get_mut(id).unwrap();
        let slow_over = |at: u64| at + SLOW_MS * MS <= self.now;
        if entry.in_grace {
            entry.silence_due = now + silence + stalled;
        } else if silent_for >= 2 * silence || entry.slow_since.is_some_and(slow_over) {
            self.schedulers.removed.push(id.to_owned());
            self.unregister_scheduler(id);
        } else if silent_for >= silence {
            entry.silent = true;
            entry.silence_due = seen + 2 * silence + stalled;
        } else {
            entry.silence_due = seen + silence + stalled;
        }
    }
}
