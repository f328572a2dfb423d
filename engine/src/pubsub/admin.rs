//! The administrative socket: STATUS, COUNTERS, DISCONNECT.

use super::state::{PubSub, PubSubFigures, SlowSubscriber};
use super::{INCOMING, OUTGOING};
use crate::admin_api::{AdminCommand, parse_message, push_ack, push_reply, to_python_json};
use crate::emqp::{MsgidText, advance_msgid};
use crate::frames::Message;
use crate::ids::{ConnId, Socket};
use crate::io::IoAgent;
use crate::link::{OutClass, Outbox};
use crate::metrics::{Counter, Counters};
use crate::runtime::{log, memory};
use crate::snapshot::MemoryReport;
use serde::Serialize;
use std::time::Instant;

/// Requests answered in one turn; then the next ones stay unread until the next turn.
const ANSWERS_PER_TURN_MAX: usize = 8;
/// Whoever has this much of its answers unread gets no more (counted).
const UNREAD_BYTES_MAX: usize = 1024 * 1024;

/// Requests of this turn, and what is counted about them.
#[derive(Debug)]
pub(super) struct AdminDesk {
    asked: Vec<(ConnId, AdminCommand)>,
    msgid: MsgidText,
    started: Instant,
    pub(super) max_memory_bytes: u64,
    counters: Counters,
}

/// STATUS.
#[derive(Debug, Serialize)]
struct Status<'a> {
    component: &'static str,
    #[serde(flatten)]
    figures: PubSubFigures,
    publishes_received: u64,
    published_sent: u64,
    published_dropped: u64,
    waiting_bytes: u64,
    draining: bool,
    slow_subscribers: &'a [SlowSubscriber],
}

/// COUNTERS: the same parts as the broker's.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    uptime_secs: f64,
    threading: &'static str,
    counters: serde_json::Map<String, serde_json::Value>,
    figures: PubSubFigures,
    connections: Connections,
    memory: MemoryReport,
}

#[derive(Debug, Serialize)]
struct Connections {
    incoming: u64,
    outgoing: u64,
    administrative: u64,
}

impl AdminDesk {
    pub(super) fn new(first_msgid: MsgidText, max_memory_bytes: u64) -> AdminDesk {
        AdminDesk {
            asked: Vec::new(),
            msgid: first_msgid,
            started: Instant::now(),
            max_memory_bytes,
            counters: Counters::default(),
        }
    }

    /// False while no more requests should be read in this turn.
    pub(super) fn has_room(&self) -> bool {
        self.asked.len() < ANSWERS_PER_TURN_MAX
    }

    /// Reads a request. True if it asks for the end.
    pub(super) fn handle_message<O: Outbox>(
        &mut self,
        conn: ConnId,
        message: &Message<'_>,
        out: &mut O,
    ) -> bool {
        let request = match parse_message(message) {
            Ok(request) => request,
            Err(reason) => {
                self.counters.inc(reason);
                return false;
            }
        };
        match request.command {
            AdminCommand::Disconnect => {
                self.counters.inc(Counter::AdminRequests);
                advance_msgid(&mut self.msgid);
                let ack = push_ack(Vec::new(), &self.msgid, request.msgid);
                out.send(conn, OutClass::Control, &[&ack]);
                true
            }
            AdminCommand::Status | AdminCommand::Counters => {
                if out.pending_bytes(conn) > UNREAD_BYTES_MAX {
                    self.counters.inc(Counter::AdminDropped);
                } else {
                    self.counters.inc(Counter::AdminRequests);
                    self.asked.push((conn, request.command));
                }
                false
            }
            // The broker's.
            _ => {
                self.counters.inc(Counter::IgnoredRole);
                false
            }
        }
    }

    /// Answers the requests of this turn.
    pub(super) fn answer(&mut self, state: &PubSub, io: &mut IoAgent, draining: bool) {
        for (conn, command) in self.asked.drain(..).collect::<Vec<_>>() {
            let json = match command {
                AdminCommand::Counters => to_python_json(&self.report(state, io)),
                _ => {
                    let counters = state.counters();
                    let slow = state.slow_subscribers(|conn| io.table.outs.pending_bytes(conn));
                    to_python_json(&Status {
                        component: "emq-pubsub",
                        figures: state.figures(),
                        publishes_received: counters.get(Counter::PublishesReceived),
                        published_sent: counters.get(Counter::PublishedSent),
                        published_dropped: counters.get(Counter::PublishedDroppedSlow)
                            + counters.get(Counter::PublishedDroppedMemory),
                        waiting_bytes: io.table.outs.total_pending_bytes() as u64,
                        draining,
                        slow_subscribers: &slow,
                    })
                }
            };
            advance_msgid(&mut self.msgid);
            let wire = push_reply(Vec::new(), &self.msgid, &json);
            // Not `Control`: whoever asks and never reads must not grow.
            io.table.outs.send(conn, OutClass::Result, &[&wire]);
        }
    }

    /// All counters, added up.
    pub(super) fn all_counters(&self, state: &PubSub, io: &IoAgent) -> Counters {
        let mut all = io.table.counters();
        all.merge(state.counters());
        all.merge(&self.counters);
        all.add(Counter::LogRecordsDropped, log::records_dropped());
        all
    }

    fn report(&self, state: &PubSub, io: &IoAgent) -> Report {
        let figures = state.figures();
        let connections = |socket: Socket| io.table.len(socket) as u64;
        let counters = self.all_counters(state, io);
        Report {
            version: env!("CARGO_PKG_VERSION"),
            uptime_secs: (self.started.elapsed().as_secs_f64() * 1e3).round() / 1e3,
            threading: "inline",
            counters: counters
                .iter()
                .map(|(counter, value)| (counter.name().to_owned(), value.into()))
                .collect(),
            connections: Connections {
                incoming: connections(INCOMING),
                outgoing: connections(OUTGOING),
                administrative: connections(Socket::Admin),
            },
            memory: MemoryReport {
                limit_bytes: self.max_memory_bytes,
                job_bytes: figures.subscription_bytes,
                partial_bytes: io.table.partial_bytes() as u64,
                output_bytes: io.table.outs.total_pending_bytes() as u64,
                resident_bytes: memory::resident_bytes().unwrap_or(0),
                ..MemoryReport::default()
            },
            figures,
        }
    }
}
