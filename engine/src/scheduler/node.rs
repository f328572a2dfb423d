//! The scheduler as a state machine: what the broker says, the time, and what the store answers go
//! in; messages and requests to the store come out.

use super::ledger::{Answer, Health, Ledger, Loaded, Request, StoreKind};
use super::schedule::{Refusal, Schedule, identity_of};
use super::session::{Session, SessionConfig};
use super::timetable::{Misfire, Run, Timetable};
use crate::addr::Addr;
use crate::dial::{DialError, DialId, Net, Node, Origin, Target};
use crate::emqp::{Command, Envelope, MsgidText};
use crate::frames::Message;
use crate::ids::{ConnId, NS_PER_SEC, Now};
use crate::link::PeerInfo;
use crate::log_limit::{LogLimit, shown_id};
use crate::metrics::{Counter, Counters};
use std::collections::VecDeque;

/// Runs taken from the timetable in one turn.
const RUNS_PER_TURN: usize = 256;
/// Runs that may wait for the store or the broker's socket; then no more are taken.
const RUNS_WAITING_MAX: usize = 4_096;
/// Output waiting for the broker above which no runs are sent, and the mark to go on at.
const OUTPUT_BYTES: (usize, usize) = (4 << 20, 1 << 20);
/// How long the end waits for the store.
const END_NS: u64 = 2 * NS_PER_SEC;

/// What it is to do, and within which limits.
#[derive(Debug, Clone)]
pub struct SchedulerConfig {
    /// The broker's frontend.
    pub broker: Addr,
    /// Times of the connection.
    pub session: SessionConfig,
    /// What becomes of missed due times.
    pub misfire: Misfire,
    /// Most schedules.
    pub schedules_max: usize,
    /// Most bytes of schedules.
    pub schedule_bytes_max: usize,
    /// Which store there is.
    pub store: StoreKind,
}

/// What other threads tell it.
#[derive(Debug)]
pub enum SchedulerCommand {
    /// The store's answer to the request under way.
    Store(Answer),
    /// Other settings. The address of the broker needs a restart.
    Configure(Box<SchedulerConfig>),
    /// End in good order.
    Shutdown,
    /// End at once.
    ShutdownNow,
}

/// Where requests to the store go. Never called while an answer is owed.
pub trait StorePort {
    /// Takes a request; its answer comes as [`SchedulerCommand::Store`].
    fn ask(&mut self, request: Request);
}

#[derive(Debug, Clone, Copy)]
enum Line {
    Refused,
    Rejected,
    Unconfirmed,
    Unreadable,
    Input,
    Missed,
}

const LINES: usize = Line::Missed as usize + 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Serving,
    Ending { until_ns: u64 },
    Done,
}

/// See the module.
#[derive(Debug)]
pub struct SchedulerNode<S> {
    config: SchedulerConfig,
    store: S,
    pub(super) table: Timetable,
    pub(super) ledger: Ledger,
    pub(super) session: Session,
    /// Runs that may be sent.
    outbox: VecDeque<Run>,
    pub(super) counters: Counters,
    logs: LogLimit<LINES>,
    stage: Stage,
    dialled: bool,
    /// An attempt to reach the broker has failed and that has been said.
    unreachable: bool,
    /// Waits for the socket to take more.
    held_back: bool,
    /// When something is due, as of the last turn.
    next_ns: Option<u64>,
}

impl<S: StorePort> SchedulerNode<S> {
    /// A scheduler that has not begun. The msgid must be another one for each process.
    pub fn new(config: SchedulerConfig, store: S, first_msgid: MsgidText) -> Self {
        SchedulerNode {
            table: Timetable::new(
                config.misfire,
                config.schedules_max,
                config.schedule_bytes_max,
            ),
            ledger: Ledger::new(config.store),
            session: Session::new(config.session, first_msgid),
            config,
            store,
            outbox: VecDeque::new(),
            counters: Counters::default(),
            logs: LogLimit::default(),
            stage: Stage::Serving,
            dialled: false,
            unreachable: false,
            held_back: false,
            next_ns: None,
        }
    }

    /// What it has counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How the store is.
    pub fn store_health(&self) -> Health {
        self.ledger.health()
    }

    /// Runs that wait for the broker.
    pub(super) fn runs_waiting(&self) -> usize {
        self.outbox.len() + self.ledger.runs_waiting()
    }

    /// Takes what is due, asks the store, sends what may be sent.
    fn pump(&mut self, now: Now, net: &mut dyn Net) {
        if self.table.look_at_clock(now) {
            tracing::warn!(
                "the clock was set back by hours: due times of cron schedules are computed anew"
            );
        }
        if self.stage == Stage::Serving && self.session.registered().is_some() {
            let room = RUNS_WAITING_MAX.saturating_sub(self.runs_waiting());
            let may_fire = self.ledger.may_fire(now);
            for _ in 0..room.min(RUNS_PER_TURN) {
                let run = if may_fire {
                    self.table.take_due(now)
                } else {
                    self.table.take_at_once(now)
                };
                let Some(run) = run else { break };
                self.outbox.extend(self.ledger.run(run));
            }
        }
        self.count_table(now);
        if let Some(request) = self.ledger.request(&mut self.table, now) {
            self.store.ask(request);
        }
        self.send_runs(now, net);
        if !self.dialled && self.ledger.health() != Health::Up {
            self.dial(net);
        }
        if let Stage::Ending { until_ns } = self.stage {
            let owed = self.ledger.health() == Health::Up
                && (self.ledger.is_busy() || self.table.has_changed());
            if !owed || now.mono_ns >= until_ns {
                self.finish(net);
            }
        }
        self.next_ns = self.deadline(now);
    }

    fn deadline(&self, now: Now) -> Option<u64> {
        let takes_runs = self.stage == Stage::Serving
            && self.session.registered().is_some()
            && self.runs_waiting() < RUNS_WAITING_MAX
            && self.ledger.may_fire(now);
        let due = if takes_runs {
            self.table.deadline(now)
        } else {
            None
        };
        let end = match self.stage {
            Stage::Ending { until_ns } => Some(until_ns),
            _ => None,
        };
        [due, end, self.session.deadline(), self.ledger.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Runs that were taken before the end are still sent.
    fn send_runs(&mut self, now: Now, net: &mut dyn Net) {
        while let Some(conn) = self.session.registered()
            && !self.outbox.is_empty()
        {
            if net.pending_bytes(conn) > OUTPUT_BYTES.0 {
                if !std::mem::replace(&mut self.held_back, true) {
                    net.notify_writable(conn, OUTPUT_BYTES.1);
                }
                return;
            }
            let Some(run) = self.outbox.pop_front() else {
                return;
            };
            self.counters.inc(Counter::RunsSent);
            if let Some(given_up) = self.session.send(run, now, net) {
                self.unconfirmed(&[given_up], self.session.is_confirming(), now);
            }
        }
    }

    fn finish(&mut self, net: &mut dyn Net) {
        self.session.leave(net);
        self.stage = Stage::Done;
        let (schedules, waiting) = (self.table.len(), self.outbox.len());
        if self.ledger.health() == Health::Absent && schedules > 0 {
            tracing::warn!(
                schedules,
                "ending: nothing is stored, the schedules are gone"
            );
        } else if matches!(self.ledger.health(), Health::Away { .. }) && self.table.has_changed() {
            tracing::error!(
                "ending while the store is away: its state is older than the schedules"
            );
        }
        if waiting > 0 {
            tracing::warn!(runs = waiting, "ending with runs that could not be sent");
        }
    }

    fn dial(&mut self, net: &mut dyn Net) {
        self.dialled = true;
        let dial = net.dial(Target::dealer(self.config.broker.clone()));
        self.session.set_dial(dial);
    }

    fn count_table(&mut self, now: Now) {
        let missed = self.table.take_missed();
        if missed > 0 {
            self.counters.add(Counter::RunsMissed, missed);
            if let Some(left_out) = self.logs.admit(Line::Missed as usize, now.mono_ns) {
                let misfire = self.config.misfire;
                tracing::warn!(
                    missed,
                    ?misfire,
                    left_out,
                    "due times passed without a run of their own"
                );
            }
        }
        self.counters
            .add(Counter::SchedulesEnded, self.table.take_ended());
    }

    fn on_schedule(&mut self, envelope: &Envelope<'_>, now: Now) {
        let body = envelope
            .message()
            .frames()
            .skip(crate::emqp::ENVELOPE_FRAMES);
        let taken = Schedule::parse(body).and_then(|schedule| {
            let shown = (schedule.identity, schedule.name.clone());
            self.table.put(schedule, now).map(|()| shown)
        });
        match taken {
            Ok((identity, name)) => {
                self.counters.inc(Counter::SchedulesTaken);
                tracing::debug!(%identity, name, "scheduled");
            }
            Err(refusal) => self.refuse(envelope, refusal, now),
        }
    }

    fn on_unschedule(&mut self, envelope: &Envelope<'_>, now: Now) {
        let body = envelope
            .message()
            .frames()
            .skip(crate::emqp::ENVELOPE_FRAMES);
        match identity_of(body) {
            Ok(identity) => {
                let known = self.table.remove(identity);
                self.counters.inc(if known {
                    Counter::SchedulesUnscheduled
                } else {
                    Counter::SchedulesUnknown
                });
                tracing::debug!(%identity, known, "unscheduled");
            }
            Err(refusal) => self.refuse(envelope, refusal, now),
        }
    }

    fn refuse(&mut self, envelope: &Envelope<'_>, refusal: Refusal, now: Now) {
        self.counters.inc(refusal.counter());
        if let Some(left_out) = self.logs.admit(Line::Refused as usize, now.mono_ns) {
            let msgid = shown_id(envelope.msgid);
            let command = shown_id(envelope.command.name());
            tracing::warn!(command, msgid, left_out, "refused: {refusal}");
        }
    }

    fn on_reject(&mut self, envelope: &Envelope<'_>, now: Now) {
        let (of, reason) = (
            envelope.body(0).unwrap_or_default(),
            envelope.body(1).unwrap_or_default(),
        );
        let Some(run) = self.session.answered(of) else {
            return;
        };
        // A broker that leaves has certainly not taken it, and another one will.
        if reason == b"draining" {
            self.counters.inc(Counter::RunsSentAgain);
            self.outbox.push_back(run);
            return;
        }
        self.counters.inc(Counter::RunsRejected);
        if let Some(left_out) = self.logs.admit(Line::Rejected as usize, now.mono_ns) {
            let (identity, name) = (run.schedule.identity, &run.schedule.name);
            let (queue, reason) = (run.schedule.queue(), shown_id(reason));
            tracing::warn!(
                %identity, name, queue, reason, left_out,
                "the broker has refused a run; it is not repeated before the next due time"
            );
        }
    }

    /// 0.3.13 accepts only what it can hand out at once: its silence means nothing.
    fn unconfirmed(&mut self, runs: &[Run], confirming: bool, now: Now) {
        if !confirming || runs.is_empty() {
            return;
        }
        self.counters
            .add(Counter::RunsUnconfirmed, runs.len() as u64);
        if let Some(run) = runs.first()
            && let Some(left_out) = self.logs.admit(Line::Unconfirmed as usize, now.mono_ns)
        {
            let (runs, name) = (runs.len(), &run.schedule.name);
            tracing::warn!(
                runs,
                name,
                left_out,
                "the broker has not confirmed runs: whether it has them is not known"
            );
        }
    }

    fn on_broker(&mut self, message: &Message<'_>, now: Now, net: &mut dyn Net) {
        self.session.heard(now);
        let envelope = match Envelope::parse(message) {
            Ok(envelope) => envelope,
            Err(bad) => {
                self.counters.inc(bad.counter());
                if let Some(left_out) = self.logs.admit(Line::Input as usize, now.mono_ns) {
                    tracing::warn!(left_out, "a message of the broker was ignored: {bad}");
                }
                return;
            }
        };
        match envelope.command {
            Command::Schedule => self.on_schedule(&envelope, now),
            Command::Unschedule => self.on_unschedule(&envelope, now),
            Command::Ack => {
                if self.session.ack(envelope.body(0).unwrap_or_default(), now) {
                    self.counters.inc(Counter::SchedulerRegistrations);
                    tracing::info!(broker = %self.config.broker, "registered");
                }
            }
            Command::Reply if envelope.body_len() == 1 => {
                if self
                    .session
                    .answered(envelope.body(0).unwrap_or_default())
                    .is_some()
                {
                    self.counters.inc(Counter::RunsAccepted);
                }
            }
            // A result, which nobody asked for.
            Command::Reply | Command::Heartbeat => {}
            Command::Reject => self.on_reject(&envelope, now),
            Command::Disconnect => {
                tracing::info!("the broker does not know this scheduler: registering again");
                self.session.disconnected(now, net);
            }
            Command::Kbye => {
                tracing::info!("the broker leaves");
                self.session.broker_leaves();
            }
            _ => self.counters.inc(Counter::IgnoredRole),
        }
    }

    fn on_store(&mut self, answer: Answer, now: Now, net: &mut dyn Net) {
        if let Health::Away { .. } = self.ledger.health()
            && !matches!(answer, Answer::Failed(_))
        {
            tracing::info!("the store answers again");
        }
        match answer {
            Answer::Loaded(loaded) => {
                self.take_loaded(&loaded, now);
                self.ledger.loaded();
            }
            Answer::Written(denied) => {
                let (runs, others) = self.ledger.written(&denied);
                self.counters.add(Counter::RunsOfOthers, others as u64);
                self.outbox.extend(runs);
            }
            Answer::Leased(lease) => {
                if self.ledger.leased(lease) {
                    let others = lease.others;
                    if lease.ours {
                        tracing::info!(others, "this scheduler serves the due times");
                    } else {
                        tracing::info!("another scheduler serves the due times; standing by");
                    }
                }
            }
            Answer::Failed(error) => {
                self.counters.inc(Counter::StoreFailures);
                if !matches!(self.ledger.health(), Health::Away { .. }) {
                    tracing::error!("the store cannot be used, going on in memory: {error}");
                }
                self.outbox.extend(self.ledger.failed(&mut self.table, now));
            }
        }
        let known = self.ledger.is_loaded() || self.ledger.health() != Health::Up;
        if !self.dialled && known && self.stage == Stage::Serving {
            self.dial(net);
        }
    }

    fn take_loaded(&mut self, loaded: &Loaded, now: Now) {
        // What has happened since and is not written yet is newer.
        let (schedules, bad) = self.table.reconcile(&loaded.records, now);
        self.counters.add(Counter::SchedulesRestored, schedules);
        for (identity, error) in bad {
            self.unreadable(&format!("{identity}: {error}"), now);
        }
        for what in &loaded.bad {
            self.unreadable(what, now);
        }
        self.counters.add(Counter::StoreFolded, loaded.folded);
        let folded = loaded.folded;
        tracing::info!(schedules, folded, "schedules restored");
    }

    fn unreadable(&mut self, what: &str, now: Now) {
        self.counters.inc(Counter::StoreUnreadable);
        if let Some(left_out) = self.logs.admit(Line::Unreadable as usize, now.mono_ns) {
            tracing::warn!(
                left_out,
                "a stored entry is no schedule and left alone: {what}"
            );
        }
    }

    fn shut_down(&mut self, now: Now) {
        if self.stage == Stage::Serving {
            self.stage = Stage::Ending {
                until_ns: now.mono_ns + END_NS,
            };
        }
    }
}

impl<S: StorePort> Node for SchedulerNode<S> {
    type Command = SchedulerCommand;

    fn started(&mut self, now: Now, net: &mut dyn Net) {
        // The broker is told of us when the store has been read.
        self.pump(now, net);
    }

    fn opened(
        &mut self,
        conn: ConnId,
        origin: Origin,
        info: &PeerInfo,
        now: Now,
        net: &mut dyn Net,
    ) {
        if let Origin::Dialled(_) = origin {
            self.unreachable = false;
            self.held_back = false;
            self.session.opened(conn, info.speaks_extensions, now, net);
        }
    }

    fn message(&mut self, conn: ConnId, message: &Message<'_>, now: Now, net: &mut dyn Net) {
        if self.session.is(conn) {
            self.on_broker(message, now, net);
        } else if self.on_admin(conn, message, now, net) {
            tracing::info!("asked to end by an administrative DISCONNECT");
            self.shut_down(now);
        }
    }

    fn activity(&mut self, conn: ConnId, now: Now, _net: &mut dyn Net) {
        if self.session.is(conn) {
            self.session.heard(now);
        }
    }

    fn writable(&mut self, conn: ConnId, now: Now, net: &mut dyn Net) {
        if self.session.is(conn) {
            self.held_back = false;
            self.send_runs(now, net);
        }
    }

    fn lost(&mut self, conn: ConnId, why: &DialError, _now: Now, _net: &mut dyn Net) {
        if self.session.is(conn) {
            self.session.lost();
            if self.stage == Stage::Serving {
                tracing::warn!(broker = %self.config.broker, "connection lost: {why}");
            }
        }
    }

    fn unsent(&mut self, conn: ConnId, message: &Message<'_>, _now: Now, _net: &mut dyn Net) {
        if self.session.is(conn)
            && let Ok(envelope) = Envelope::parse(message)
            && envelope.command == Command::Request
            && let Some(run) = self.session.answered(envelope.msgid)
        {
            self.counters.inc(Counter::RunsSentAgain);
            // Newest first: in front of what waits, so that the order is the old one.
            self.outbox.push_front(run);
        }
    }

    fn closed(&mut self, conn: ConnId, now: Now, _net: &mut dyn Net) {
        if self.session.is(conn) {
            let confirming = self.session.is_confirming();
            let open = self.session.closed();
            self.unconfirmed(&open, confirming, now);
        }
    }

    fn dial_failed(
        &mut self,
        _dial: DialId,
        why: &DialError,
        _retry_in_ms: u64,
        _now: Now,
        _net: &mut dyn Net,
    ) {
        if !std::mem::replace(&mut self.unreachable, true) {
            tracing::warn!(broker = %self.config.broker, "cannot reach the broker, trying on: {why}");
        }
    }

    fn command(&mut self, command: SchedulerCommand, now: Now, net: &mut dyn Net) {
        match command {
            SchedulerCommand::Store(answer) => self.on_store(answer, now, net),
            SchedulerCommand::Configure(config) => {
                let config = *config;
                self.session.configure(config.session);
                self.table.configure(
                    config.misfire,
                    config.schedules_max,
                    config.schedule_bytes_max,
                );
                self.config = SchedulerConfig {
                    broker: self.config.broker.clone(),
                    store: self.config.store,
                    ..config
                };
            }
            SchedulerCommand::Shutdown => self.shut_down(now),
            SchedulerCommand::ShutdownNow => self.stage = Stage::Done,
        }
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.next_ns
    }

    fn timeout(&mut self, now: Now, net: &mut dyn Net) {
        let given_up = self.session.timeout(now, net);
        self.unconfirmed(&given_up, self.session.is_confirming(), now);
    }

    fn after_input(&mut self, now: Now, net: &mut dyn Net) {
        self.pump(now, net);
    }

    fn is_done(&self) -> bool {
        self.stage == Stage::Done
    }
}
