//! The connection with the broker: registration, heartbeats, and what it says about runs.

use super::timetable::Run;
use crate::dial::{DialId, Net};
use crate::emqp::{Command, MessageBuilder, MsgidText, advance_msgid, push_heartbeat_time};
use crate::ids::{ConnId, NS_PER_MS, NS_PER_SEC, Now};
use std::collections::{BTreeMap, VecDeque};

/// A broker without our extensions is asked again on a fresh connection after this time.
const ORIGINAL_ACK_NS: u64 = 2 * NS_PER_SEC;
/// How long an acceptance is waited for.
const ACCEPTANCE_NS: u64 = 60 * NS_PER_SEC;
/// Runs whose acceptance is waited for; the oldest is given up beyond it.
const OPEN_RUNS_MAX: usize = 16_384;

/// Times of a session, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct SessionConfig {
    /// Between heartbeats; `None`: none are sent and none missed.
    pub heartbeat_interval_ms: Option<u64>,
    /// Silence after which the broker counts as gone.
    pub silence_ms: u64,
    /// Longest wait for an ACK.
    pub ack_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    /// INFORM sent with this msgid.
    Informed {
        msgid: MsgidText,
        since_ns: u64,
    },
    Registered,
    /// The broker said KBYE, or will be dialled again.
    Left,
    /// The connection has ended; what was not sent is still coming back.
    Lost,
}

#[derive(Debug)]
struct Link {
    conn: ConnId,
    stage: Stage,
    ours: bool,
    heard_ns: u64,
    beat_ns: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,
    dial: Option<DialId>,
    link: Option<Link>,
    msgid: MsgidText,
    open: BTreeMap<MsgidText, Run>,
    open_order: VecDeque<(u64, MsgidText)>,
    buf: Vec<u8>,
}

impl Session {
    /// Not connected. `msgid` is the first one used.
    pub fn new(config: SessionConfig, msgid: MsgidText) -> Session {
        Session {
            config,
            dial: None,
            link: None,
            msgid,
            open: BTreeMap::new(),
            open_order: VecDeque::new(),
            buf: Vec::new(),
        }
    }

    /// Other times, from now on.
    pub fn configure(&mut self, config: SessionConfig) {
        self.config = config;
    }

    /// The target that is kept connected.
    pub fn set_dial(&mut self, dial: DialId) {
        self.dial = Some(dial);
    }

    /// The target that is kept connected.
    pub fn dial(&self) -> Option<DialId> {
        self.dial
    }

    /// True if this is its connection.
    pub fn is(&self, conn: ConnId) -> bool {
        self.link.as_ref().is_some_and(|link| link.conn == conn)
    }

    /// The connection, if the broker has us registered.
    pub fn registered(&self) -> Option<ConnId> {
        let link = self.link.as_ref()?;
        (link.stage == Stage::Registered).then_some(link.conn)
    }

    /// Whether it is connected at all.
    pub fn is_connected(&self) -> bool {
        self.link.is_some()
    }

    /// Whether the broker confirms what it takes.
    pub fn is_confirming(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.ours)
    }

    /// Runs whose acceptance is waited for.
    pub fn open_runs(&self) -> usize {
        self.open.len()
    }

    /// A fresh msgid.
    pub fn next_msgid(&mut self) -> MsgidText {
        advance_msgid(&mut self.msgid);
        self.msgid
    }

    /// Connected: asks to be registered.
    pub fn opened(&mut self, conn: ConnId, ours: bool, now: Now, net: &mut dyn Net) {
        self.link = Some(Link {
            conn,
            stage: Stage::Left,
            ours,
            heard_ns: now.mono_ns,
            beat_ns: u64::MAX,
        });
        self.inform(now, net);
    }

    /// The connection has ended.
    pub fn lost(&mut self) {
        if let Some(link) = &mut self.link {
            link.stage = Stage::Lost;
            link.beat_ns = u64::MAX;
        }
    }

    /// Nothing more comes of the connection: the runs whose fate is not known.
    pub fn closed(&mut self) -> Vec<Run> {
        self.link = None;
        self.open_order.clear();
        std::mem::take(&mut self.open).into_values().collect()
    }

    /// A sign of life.
    pub fn heard(&mut self, now: Now) {
        if let Some(link) = &mut self.link {
            link.heard_ns = now.mono_ns;
        }
    }

    /// ACK. True if it is the one that registers us.
    pub fn ack(&mut self, of: &[u8], now: Now) -> bool {
        let beat_ns = self.next_beat(now);
        let Some(link) = &mut self.link else {
            return false;
        };
        let hit = matches!(&link.stage, Stage::Informed { msgid, .. } if msgid == of);
        if hit {
            link.stage = Stage::Registered;
            link.beat_ns = beat_ns;
        }
        hit
    }

    /// DISCONNECT: the broker does not know us. Register again; a broker without our extensions
    /// wants a fresh connection for that.
    pub fn disconnected(&mut self, now: Now, net: &mut dyn Net) {
        match (&self.link, self.dial) {
            (Some(link), _) if link.ours => self.inform(now, net),
            (Some(_), Some(dial)) => net.redial(dial),
            _ => {}
        }
    }

    /// KBYE: the broker leaves, and closes the connection.
    pub fn broker_leaves(&mut self) {
        if let Some(link) = &mut self.link
            && link.stage != Stage::Lost
        {
            link.stage = Stage::Left;
            link.beat_ns = u64::MAX;
        }
    }

    /// Sends a run to the broker, which must have us registered. A run that is given up because
    /// too many wait for their acceptance.
    pub fn send(&mut self, run: Run, now: Now, net: &mut dyn Net) -> Option<Run> {
        let msgid = self.next_msgid();
        let link = self.link.as_ref()?;
        let schedule = &run.schedule;
        MessageBuilder::begin(&mut self.buf, Command::Request)
            .frame(&msgid)
            .frame(schedule.queue().as_bytes())
            .frame(schedule.run_headers.as_bytes())
            .last(schedule.message().as_bytes());
        net.send(link.conn, &[&self.buf]);
        self.open.insert(msgid, run);
        self.open_order
            .push_back((now.mono_ns + ACCEPTANCE_NS, msgid));
        if self.open.len() <= OPEN_RUNS_MAX {
            return None;
        }
        loop {
            let (_, oldest) = self.open_order.pop_front()?;
            if let Some(run) = self.open.remove(&oldest) {
                return Some(run);
            }
        }
    }

    /// An acceptance, a REJECT, or a REQUEST that was not sent: the run it is for.
    pub fn answered(&mut self, msgid: &[u8]) -> Option<Run> {
        let msgid: &MsgidText = msgid.try_into().ok()?;
        self.open.remove(msgid)
    }

    /// Does what is due; the runs whose acceptance is no longer waited for.
    pub fn timeout(&mut self, now: Now, net: &mut dyn Net) -> Vec<Run> {
        let mut given_up = Vec::new();
        while let Some((until_ns, msgid)) = self.open_order.front() {
            if *until_ns > now.mono_ns && self.open.contains_key(msgid) {
                break;
            }
            given_up.extend(self.open.remove(msgid));
            self.open_order.pop_front();
        }
        let beat_ns = self.next_beat(now);
        if let Some(silent_ns) = self.silence_ns()
            && silent_ns <= now.mono_ns
            && let (Some(dial), Some(link)) = (self.dial, &mut self.link)
        {
            tracing::warn!("the broker is silent: connecting again");
            // Until the loss is told.
            link.heard_ns = now.mono_ns;
            link.stage = Stage::Left;
            link.beat_ns = u64::MAX;
            net.redial(dial);
        }
        if let Some(link) = &mut self.link
            && link.beat_ns <= now.mono_ns
        {
            link.beat_ns = beat_ns;
            let conn = link.conn;
            let msgid = self.next_msgid();
            let mut text = Vec::new();
            push_heartbeat_time(&mut text, now.wall_ms);
            MessageBuilder::begin(&mut self.buf, Command::Heartbeat)
                .frame(&msgid)
                .last(&text);
            net.send(conn, &[&self.buf]);
        }
        given_up
    }

    /// When something is due.
    pub fn deadline(&self) -> Option<u64> {
        let beat = self.link.as_ref().map(|link| link.beat_ns);
        let beat = beat.filter(|beat_ns| *beat_ns < u64::MAX);
        let open = self.open_order.front().map(|(until_ns, _)| *until_ns);
        [beat, open, self.silence_ns()].into_iter().flatten().min()
    }

    /// KBYE, and the end of the connection behind what is still waiting to be written.
    pub fn leave(&mut self, net: &mut dyn Net) {
        if let Some(conn) = self.registered() {
            let msgid = self.next_msgid();
            MessageBuilder::begin(&mut self.buf, Command::Kbye).last(&msgid);
            net.send(conn, &[&self.buf]);
        }
        self.broker_leaves();
        if let Some(dial) = self.dial.take() {
            net.hang_up(dial);
        }
    }

    fn inform(&mut self, now: Now, net: &mut dyn Net) {
        let msgid = self.next_msgid();
        let capabilities = self
            .config
            .heartbeat_interval_ms
            .map_or(String::new(), |ms| {
                format!("heartbeat:{}", ms.div_ceil(1_000))
            });
        let Some(link) = &mut self.link else { return };
        let builder = MessageBuilder::begin(&mut self.buf, Command::Inform)
            .frame(&msgid)
            .frame(b"");
        if link.ours && !capabilities.is_empty() {
            builder.frame(b"scheduler").last(capabilities.as_bytes());
        } else {
            builder.last(b"scheduler");
        }
        link.stage = Stage::Informed {
            msgid,
            since_ns: now.mono_ns,
        };
        link.beat_ns = u64::MAX;
        net.send(link.conn, &[&self.buf]);
    }

    fn next_beat(&self, now: Now) -> u64 {
        self.config
            .heartbeat_interval_ms
            .map_or(u64::MAX, |ms| now.mono_ns + ms * NS_PER_MS)
    }

    /// When the broker counts as gone.
    fn silence_ns(&self) -> Option<u64> {
        let link = self.link.as_ref()?;
        let ack_ns = self.config.ack_ms * NS_PER_MS;
        match &link.stage {
            Stage::Informed { since_ns, .. } if link.ours => Some(since_ns + ack_ns),
            Stage::Informed { since_ns, .. } => Some(since_ns + ack_ns.min(ORIGINAL_ACK_NS)),
            Stage::Left => Some(link.heard_ns + ack_ns),
            Stage::Lost => None,
            Stage::Registered => {
                self.config.heartbeat_interval_ms?;
                Some(link.heard_ns + self.config.silence_ms * NS_PER_MS)
            }
        }
    }
}

#[cfg(test)]
mod tests;
