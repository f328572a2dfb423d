//! The administrative socket: STATUS, COUNTERS, SCHEDULER_SHOW_SCHEDULES, DISCONNECT.

use super::identity::Identity;
use super::ledger::Health;
use super::node::{SchedulerNode, StorePort};
use super::schedule::Pace;
use super::timetable::Shown;
use crate::admin_api::{AdminCommand, push_ack, push_reply, to_python_json};
use crate::dial::Net;
use crate::emqp::Envelope;
use crate::frames::Message;
use crate::ids::{ConnId, Now};
use crate::metrics::Counter;
use serde::Serialize;

/// Whoever has this much of its answers unread gets no more (counted).
const UNREAD_BYTES_MAX: usize = 1024 * 1024;
/// Schedules in one answer.
const SCHEDULES_PER_ANSWER: usize = 1_000;

/// STATUS.
#[derive(Debug, Serialize)]
struct Status {
    component: &'static str,
    registered: bool,
    schedules: usize,
    schedule_bytes: usize,
    runs_sent: u64,
    runs_waiting: usize,
    runs_unanswered: usize,
    store: &'static str,
    /// Whether it serves due times, or stands by for another.
    serves: bool,
}

/// COUNTERS.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    counters: serde_json::Map<String, serde_json::Value>,
}

/// SCHEDULER_SHOW_SCHEDULES.
#[derive(Debug, Serialize)]
struct Page {
    schedules: Vec<Line>,
    /// What to ask with for the next page.
    next: Option<String>,
}

#[derive(Debug, Serialize)]
struct Line {
    id: String,
    call: String,
    queue: String,
    headers: String,
    interval: Option<f64>,
    cron: Option<String>,
    timezone: Option<String>,
    next_run: f64,
    last_run: Option<f64>,
    runs: u64,
    runs_left: Option<u32>,
}

impl<S: StorePort> SchedulerNode<S> {
    /// Answers a request. True if it asks for the end.
    pub(super) fn on_admin(
        &mut self,
        conn: ConnId,
        message: &Message<'_>,
        now: Now,
        net: &mut dyn Net,
    ) -> bool {
        let envelope = match Envelope::parse(message) {
            Ok(envelope) => envelope,
            Err(bad) => {
                self.counters.inc(bad.counter());
                return false;
            }
        };
        let json = match AdminCommand::from_command(envelope.command) {
            Some(AdminCommand::Disconnect) => {
                self.counters.inc(Counter::AdminRequests);
                let ack = push_ack(Vec::new(), &self.session.next_msgid(), envelope.msgid);
                net.send(conn, &[&ack]);
                return true;
            }
            Some(_) if net.pending_bytes(conn) > UNREAD_BYTES_MAX => {
                self.counters.inc(Counter::AdminDropped);
                return false;
            }
            Some(AdminCommand::Status) => to_python_json(&self.status(now)),
            Some(AdminCommand::Counters) => to_python_json(&self.report()),
            Some(AdminCommand::ShowSchedules) => to_python_json(&self.page(envelope.body(0))),
            _ => {
                self.counters.inc(Counter::IgnoredRole);
                return false;
            }
        };
        self.counters.inc(Counter::AdminRequests);
        let reply = push_reply(Vec::new(), &self.session.next_msgid(), &json);
        net.send(conn, &[&reply]);
        false
    }

    fn status(&self, now: Now) -> Status {
        Status {
            component: "emq-scheduler",
            registered: self.session.registered().is_some(),
            schedules: self.table.len(),
            schedule_bytes: self.table.bytes(),
            runs_sent: self.counters.get(Counter::RunsSent),
            runs_waiting: self.runs_waiting(),
            runs_unanswered: self.session.open_runs(),
            store: match self.ledger.health() {
                Health::Absent => "none",
                Health::Up => "up",
                Health::Away { .. } => "away",
            },
            serves: self.ledger.may_fire(now),
        }
    }

    fn report(&self) -> Report {
        let counters = self.counters.iter();
        Report {
            version: env!("CARGO_PKG_VERSION"),
            counters: counters
                .map(|(counter, value)| (counter.name().to_owned(), value.into()))
                .collect(),
        }
    }

    /// The schedules behind the identity given, if it is one.
    fn page(&self, after: Option<&[u8]>) -> Page {
        let after: Option<Identity> = after
            .and_then(|text| std::str::from_utf8(text).ok())
            .and_then(|text| text.parse().ok());
        let mut shown = self.table.shown(after);
        let schedules: Vec<Line> = shown
            .by_ref()
            .take(SCHEDULES_PER_ANSWER)
            .map(line)
            .collect();
        let more = shown.next().is_some();
        let next = schedules
            .last()
            .filter(|_| more)
            .map(|last| last.id.clone());
        Page { schedules, next }
    }
}

fn line(shown: Shown) -> Line {
    let seconds = |ms: u64| ms as f64 / 1e3;
    let schedule = &shown.schedule;
    let (interval, cron) = match &schedule.pace {
        Pace::Every(ms) => (Some(seconds(*ms)), None),
        Pace::Cron(..) => (None, Some(schedule.body[4].clone())),
    };
    let timezone = cron
        .is_some()
        .then(|| schedule.zone_name.clone().unwrap_or("UTC".to_owned()));
    Line {
        id: schedule.identity.to_string(),
        call: schedule.name.clone(),
        queue: schedule.queue().to_owned(),
        headers: schedule.body[1].clone(),
        interval,
        cron,
        timezone,
        next_run: seconds(shown.due_ms),
        last_run: shown.last_ms.map(seconds),
        runs: shown.runs,
        runs_left: shown.left,
    }
}
