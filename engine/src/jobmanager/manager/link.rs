//! One broker: connection, registration, liveness.

use super::{Action, BrokerMode, Manager};
use crate::emqp::{Command, Envelope, MessageBuilder, MsgidText, push_heartbeat_time};
use crate::ids::{NS_PER_MS, Now};
use crate::metrics::Counter;
use std::collections::VecDeque;

/// Time for an ACK of a broker that is not ours, in milliseconds (protocol.md section 1).
const FOREIGN_ACK_MS: u64 = 2_000;
/// First and longest pause before a fresh connection to a broker that is not ours, in milliseconds.
const PAUSE_MS: (u64, u64) = (100, 5_000);
/// A connection of this length was a success.
const STEADY_NS: u64 = 1_000 * NS_PER_MS;
/// How long a broker whose connection was lost may take to come back before another one is used:
/// its `reconnect_grace`, in which the jobs it handed out are kept.
pub(super) const FAILOVER_MS: u64 = 1_000;
/// How long a broker that said KBYE may take to close the connection, in milliseconds.
const LEFT_MS: u64 = 10_000;

#[derive(Debug)]
pub(super) enum State {
    /// Given up for good.
    Off,
    /// The shell is connecting.
    Down,
    /// A fresh connection is to be made then.
    Pausing { until_ns: u64 },
    /// Connected, not registered: another broker is in use.
    Standby,
    /// INFORM was sent.
    Informing { msgid: MsgidText, until_ns: u64 },
    /// ACK has come.
    Registered,
    /// KBYE was sent; results still are.
    Leaving,
    /// The broker said KBYE; results are still sent. It is to close the connection before then.
    Left { until_ns: u64 },
}

/// The end of a job that the broker has not been told yet.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) msgid: Vec<u8>,
    pub(super) status: &'static [u8],
    /// The result, if it is asked for and not sent.
    pub(super) result: Option<Vec<u8>>,
    pub(super) since_ns: u64,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) state: State,
    /// It has the property `X-EventMQ`.
    pub(super) ours: bool,
    /// Slots it was told of with the last INFORM.
    pub(super) told: usize,
    /// READYs that no REQUEST has answered.
    pub(super) offered: usize,
    /// READYs from before the INFORM that is not answered yet.
    pub(super) doubt: usize,
    /// Fewest offers since the last look at the shares.
    pub(super) offered_min: usize,
    /// Jobs of it that run.
    pub(super) running: usize,
    /// How many slots it may have, with several brokers at once.
    pub(super) share: usize,
    /// Ends of jobs that wait for an ACK.
    pub(super) finished: VecDeque<Finished>,
    pub(super) heard_ns: u64,
    beat_ns: u64,
    opened_ns: u64,
    /// Short connections in a row.
    tries: u32,
}

impl Link {
    pub(super) fn new() -> Link {
        Link {
            state: State::Off,
            ours: false,
            told: 0,
            offered: 0,
            doubt: 0,
            offered_min: 0,
            running: 0,
            share: 0,
            finished: VecDeque::new(),
            heard_ns: 0,
            beat_ns: 0,
            opened_ns: 0,
            tries: 0,
        }
    }

    /// True if the connection is open and in use: messages can be sent.
    pub(super) fn is_connected(&self) -> bool {
        use State::{Informing, Leaving, Left, Registered};
        matches!(
            self.state,
            Informing { .. } | Registered | Leaving | Left { .. }
        )
    }

    /// True if it is registered or about to be.
    pub(super) fn takes_part(&self) -> bool {
        matches!(self.state, State::Registered | State::Informing { .. })
    }

    /// Jobs whose end the broker has not seen.
    pub(super) fn in_flight(&self) -> usize {
        self.running + self.finished.len()
    }
}

impl Manager {
    /// A connection with a routing id of its own: the original does not let an id in a second time
    /// before it has forgotten the first.
    pub(super) fn connect(&mut self, broker: usize) {
        let mut routing_id = self.config.name.clone().into_bytes();
        if !routing_id.is_empty() {
            routing_id.push(b':');
        }
        routing_id.extend_from_slice(&self.next_msgid());
        self.links[broker].state = State::Down;
        self.act(Action::Connect { broker, routing_id });
    }

    pub(super) fn connected(&mut self, broker: usize, ours: bool, now: Now) {
        let link = &mut self.links[broker];
        link.ours = ours;
        link.heard_ns = now.mono_ns;
        link.opened_ns = now.mono_ns;
        link.state = State::Standby;
        if self.config.mode == BrokerMode::All {
            return self.inform(broker, now);
        }
        let in_use = self.links.iter().any(Link::takes_part);
        if !in_use && (broker == self.active || self.elect_ns.is_none()) {
            self.use_broker(broker, now);
        }
    }

    fn use_broker(&mut self, broker: usize, now: Now) {
        self.active = broker;
        self.elect_ns = None;
        self.inform(broker, now);
    }

    /// With one broker at a time: the next one in the list that is connected, if none is in use.
    pub(super) fn elect(&mut self, now: Now) {
        self.elect_ns = None;
        if self.config.mode == BrokerMode::All || self.links.iter().any(Link::takes_part) {
            return;
        }
        let count = self.links.len();
        let next = (0..count).map(|n| (self.active + n) % count);
        if let Some(broker) =
            { next }.find(|broker| matches!(self.links[*broker].state, State::Standby))
        {
            self.use_broker(broker, now);
        }
    }

    pub(super) fn inform(&mut self, broker: usize, now: Now) {
        let msgid = self.next_msgid();
        let ours = self.links[broker].ours;
        let wait_ms = if ours {
            self.config.reconnect_timeout_ms
        } else {
            FOREIGN_ACK_MS
        };
        self.links[broker].state = State::Informing {
            msgid,
            until_ns: now.mono_ns + wait_ms * NS_PER_MS,
        };
        self.assign_shares();
        let told = self.slots_for(broker);
        let mut wire = Vec::new();
        let message = MessageBuilder::begin(&mut wire, Command::Inform)
            .frame(&msgid)
            .frame(self.config.queues.as_bytes());
        if ours {
            message
                .frame(b"worker")
                .last(&self.capabilities(broker, told));
        } else {
            message.last(b"worker");
        }
        let interval_ns = self.config.heartbeat_interval_ms * NS_PER_MS;
        let link = &mut self.links[broker];
        link.told = told;
        link.doubt += std::mem::take(&mut link.offered);
        link.beat_ns = now.mono_ns + interval_ns;
        self.act(Action::Send { broker, wire });
    }

    /// What a broker of ours is told (protocol.md section 3, capabilities).
    fn capabilities(&self, broker: usize, slots: usize) -> Vec<u8> {
        let heartbeat_ms = self.config.heartbeat_interval_ms;
        let mut text = format!(
            "completions,slots:{slots},instance:{},heartbeat:{}.{:03}",
            self.token,
            heartbeat_ms / 1000,
            heartbeat_ms % 1000
        )
        .into_bytes();
        let running = self.jobs.values().filter(|job| job.broker == broker);
        let running = running.map(|job| &job.msgid);
        let ids: Vec<&Vec<u8>> = running
            .chain(self.links[broker].finished.iter().map(|end| &end.msgid))
            .collect();
        // A msgid is opaque. One that the list cannot hold: without the list all jobs are kept.
        if !ids
            .iter()
            .any(|id| id.iter().any(|byte| b",+".contains(byte)))
        {
            text.extend_from_slice(b",running:");
            text.extend_from_slice(&ids.iter().map(|id| &id[..]).collect::<Vec<_>>().join(&b'+'));
        }
        text
    }

    pub(super) fn on_ack(&mut self, broker: usize, envelope: &Envelope<'_>, now: Now) {
        let link = &mut self.links[broker];
        let State::Informing { msgid, .. } = &link.state else {
            return self.counters.inc(Counter::IgnoredUnexpected);
        };
        if envelope.body(0) != Some(&msgid[..]) {
            return self.counters.inc(Counter::IgnoredUnexpected);
        }
        link.state = State::Registered;
        link.doubt = 0;
        link.offered_min = 0;
        self.counters.inc(Counter::ManagerRegistrations);
        tracing::info!(
            broker = self.named(broker),
            ours = self.links[broker].ours,
            "registered"
        );
        self.redistribute(now);
        self.send_finished(broker, now);
    }

    /// The broker leaves: it hands out nothing more, and results may still reach it.
    pub(super) fn on_kbye(&mut self, broker: usize, now: Now) {
        let link = &mut self.links[broker];
        if !matches!(link.state, State::Registered | State::Informing { .. }) {
            return;
        }
        tracing::info!(broker = self.named(broker), "the broker leaves");
        let link = &mut self.links[broker];
        link.state = State::Left {
            until_ns: now.mono_ns + LEFT_MS * NS_PER_MS,
        };
        (link.offered, link.doubt) = (0, 0);
        self.send_finished(broker, now);
        self.elect(now);
        self.redistribute(now);
    }

    /// The broker does not know us (any more).
    pub(super) fn on_disconnect(&mut self, broker: usize, now: Now) {
        if matches!(self.links[broker].state, State::Registered) {
            tracing::info!(
                broker = self.named(broker),
                "the broker asks for another registration"
            );
            self.register_anew(broker, now);
        }
    }

    /// INFORM again: on the same connection with ours, else on a fresh one.
    pub(super) fn register_anew(&mut self, broker: usize, now: Now) {
        if self.links[broker].ours {
            self.inform(broker, now);
        } else {
            let wire = self.plain(Command::Kbye);
            self.act(Action::Send { broker, wire });
            let link = &mut self.links[broker];
            (link.offered, link.doubt) = (0, 0);
            self.connect(broker);
            self.elect_ns = Some(now.mono_ns + FAILOVER_MS * NS_PER_MS);
            self.redistribute(now);
        }
    }

    pub(super) fn say_kbye(&mut self, broker: usize) {
        let link = &mut self.links[broker];
        (link.offered, link.doubt) = (0, 0);
        if matches!(link.state, State::Registered | State::Informing { .. }) {
            link.state = State::Leaving;
            let wire = self.plain(Command::Kbye);
            self.act(Action::Send { broker, wire });
        }
    }

    pub(super) fn lost(&mut self, broker: usize, now: Now) {
        let link = &mut self.links[broker];
        if matches!(link.state, State::Off | State::Pausing { .. }) {
            return;
        }
        (link.offered, link.doubt) = (0, 0);
        let was_registered = link.takes_part();
        if link.is_connected() {
            tracing::info!(
                broker = self.named(broker),
                "the connection to the broker is lost"
            );
        }
        let link = &mut self.links[broker];
        if self.closing {
            link.state = State::Off;
            return self.act(Action::Close { broker });
        }
        // The shell connects again, with the same routing id: right for a broker of ours.
        link.state = State::Down;
        if !link.ours {
            self.act(Action::Close { broker });
            self.pause(broker, now);
        }
        if was_registered {
            self.elect_ns = Some(now.mono_ns + FAILOVER_MS * NS_PER_MS);
        }
        self.redistribute(now);
    }

    /// Waits before a fresh connection; how long grows while connections are short.
    fn pause(&mut self, broker: usize, now: Now) {
        let link = &mut self.links[broker];
        let steady = now.mono_ns - link.opened_ns >= STEADY_NS;
        link.tries = if steady { 0 } else { link.tries + 1 };
        let (first_ms, most_ms) = PAUSE_MS;
        let pause_ms = first_ms
            .saturating_mul(1 << link.tries.min(16))
            .min(most_ms);
        // Half to the whole of it: many job managers do not come back at the same instant.
        let pause_ms = pause_ms / 2 + self.random_below(pause_ms / 2);
        let until_ns = now.mono_ns + pause_ms * NS_PER_MS;
        self.links[broker].state = State::Pausing { until_ns };
    }

    fn silence_ns(&self) -> u64 {
        self.config.heartbeat_timeout_ms * self.config.heartbeat_liveness * NS_PER_MS
    }

    /// When something is due with this broker.
    pub(super) fn link_due(&self, link: &Link) -> Option<u64> {
        let beats = link.is_connected() && !self.config.disable_heartbeats;
        let beat = beats.then_some(link.beat_ns);
        let watched = beats && !matches!(link.state, State::Leaving);
        let silence = watched.then(|| link.heard_ns + self.silence_ns());
        let keep_ns = self.config.late_reply_window_ms * NS_PER_MS;
        let kept = link.finished.front().filter(|_| !link.is_connected());
        let kept = kept.map(|end| end.since_ns + keep_ns);
        let state = match link.state {
            State::Pausing { until_ns }
            | State::Informing { until_ns, .. }
            | State::Left { until_ns } => Some(until_ns),
            _ => None,
        };
        [beat, silence, kept, state].into_iter().flatten().min()
    }

    pub(super) fn look_at_link(&mut self, broker: usize, now: Now) {
        let keep_ns = self.config.late_reply_window_ms * NS_PER_MS;
        if !self.links[broker].is_connected() {
            self.drop_finished(broker, now.mono_ns.saturating_sub(keep_ns));
        }
        let link = &self.links[broker];
        let beats = link.is_connected() && !self.config.disable_heartbeats;
        // A broker may forget who said KBYE, and go on taking results.
        let watched = beats && !matches!(link.state, State::Leaving);
        if watched && link.heard_ns + self.silence_ns() <= now.mono_ns {
            tracing::warn!(
                broker = self.named(broker),
                "the broker is silent: connecting anew"
            );
            self.counters.inc(Counter::ManagerBrokerSilent);
            self.give_up(broker, now);
            return;
        }
        if beats && link.beat_ns <= now.mono_ns {
            self.links[broker].beat_ns =
                now.mono_ns + self.config.heartbeat_interval_ms * NS_PER_MS;
            let mut time = Vec::new();
            push_heartbeat_time(&mut time, now.wall_ms);
            let msgid = self.next_msgid();
            let mut wire = Vec::new();
            MessageBuilder::begin(&mut wire, Command::Heartbeat)
                .frame(&msgid)
                .last(&time);
            self.act(Action::Send { broker, wire });
        }
        match self.links[broker].state {
            State::Pausing { until_ns } if until_ns <= now.mono_ns => self.connect(broker),
            State::Informing { until_ns, .. } if until_ns <= now.mono_ns => {
                tracing::warn!(
                    broker = self.named(broker),
                    "no answer to INFORM: connecting anew"
                );
                self.give_up(broker, now);
            }
            State::Left { until_ns } if until_ns <= now.mono_ns => self.give_up(broker, now),
            _ => {}
        }
    }

    /// A connection that leads nowhere: another one is made.
    fn give_up(&mut self, broker: usize, now: Now) {
        let link = &mut self.links[broker];
        (link.offered, link.doubt) = (0, 0);
        if self.closing {
            link.state = State::Off;
            return self.act(Action::Close { broker });
        }
        if link.ours {
            link.state = State::Down;
            self.act(Action::Redial { broker });
        } else {
            self.connect(broker);
        }
        self.elect(now);
        self.redistribute(now);
    }

    /// A message without a body.
    pub(super) fn plain(&mut self, command: Command) -> Vec<u8> {
        let msgid = self.next_msgid();
        let mut wire = Vec::new();
        MessageBuilder::begin(&mut wire, command).last(&msgid);
        wire
    }
}
