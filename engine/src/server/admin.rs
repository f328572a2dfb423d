//! The administrative socket: requests are read here, answers are made on a thread of their own.

use super::control::{Bell, Published};
use crate::admin_api::{AdminCommand, Answer, Rendering, parse_message, push_ack, push_reply};
use crate::broker::{Broker, LatencySnapshot, WorkersCopy};
use crate::emqp::{MsgidText, advance_msgid};
use crate::frames::Message;
use crate::ids::{ConnId, Now};
use crate::link::{OutClass, Outbox};
use crate::metrics::{Counter, Counters};
use crate::snapshot::{BrokerFigures, CountersReport, MemoryReport, RingReport};
use crossbeam::channel::{Receiver, Sender, bounded};
use crossbeam::queue::ArrayQueue;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// Requests being rendered; further ones are not answered (and counted).
const RENDERING_MAX: usize = 64;
/// Of them, those of one connection while half of the places are free; else one, so that a flood
/// on some connections leaves places for the others.
const RENDERING_PER_CONNECTION_MAX: usize = 8;
/// Bytes of an answer made at a time.
const SLICE_BYTES: usize = 64 * 1024;

/// What an answer is made from, taken on the dispatch thread.
enum Source {
    Ready(Answer),
    Workers(Arc<WorkersCopy>),
    Latency(LatencySnapshot),
    Counters(Box<BrokerFigures>),
}

struct Job {
    conn: ConnId,
    msgid: MsgidText,
    source: Source,
}

/// What is fixed for the life of a broker, for COUNTERS.
pub(super) struct Facts {
    pub(super) started: Instant,
    pub(super) threading: &'static str,
    pub(super) agents: Vec<Arc<Published>>,
}

/// The dispatch's side.
pub(super) struct AdminDesk {
    jobs: Sender<Job>,
    answers: Arc<ArrayQueue<(ConnId, Vec<u8>)>>,
    /// Connections of the requests under way, one entry each; at most [`RENDERING_MAX`].
    under_way: Vec<ConnId>,
    /// Taken in this turn: whoever asks in the same turn shares it.
    workers: Option<Arc<WorkersCopy>>,
    msgid: MsgidText,
    pub(super) counters: Counters,
}

impl std::fmt::Debug for AdminDesk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdminDesk").finish_non_exhaustive()
    }
}

impl AdminDesk {
    /// A desk and the thread that makes its answers, which ends with the desk.
    ///
    /// # Errors
    /// When the system refuses the thread.
    pub(super) fn start(
        facts: Facts,
        first_msgid: MsgidText,
        bell: Arc<Bell>,
    ) -> std::io::Result<AdminDesk> {
        let (desk, renderer) = AdminDesk::new(facts, first_msgid, bell);
        thread::Builder::new()
            .name("emq-admin".to_owned())
            .spawn(move || renderer.run())?;
        Ok(desk)
    }

    /// A desk and what makes its answers.
    pub(super) fn new(
        facts: Facts,
        first_msgid: MsgidText,
        bell: Arc<Bell>,
    ) -> (AdminDesk, Renderer) {
        let (jobs, work) = bounded(RENDERING_MAX);
        let answers = Arc::new(ArrayQueue::new(RENDERING_MAX));
        let desk = AdminDesk {
            jobs,
            answers: Arc::clone(&answers),
            under_way: Vec::with_capacity(RENDERING_MAX),
            workers: None,
            msgid: first_msgid,
            counters: Counters::default(),
        };
        let renderer = Renderer {
            jobs: work,
            answers,
            facts,
            bell,
        };
        (desk, renderer)
    }

    /// Reads a request. True if it asks for the end of the broker.
    pub(super) fn handle_message<O: Outbox>(
        &mut self,
        conn: ConnId,
        message: &Message<'_>,
        broker: &mut Broker,
        now: Now,
        out: &mut O,
    ) -> bool {
        let request = match parse_message(message) {
            Ok(request) => request,
            Err(reason) => {
                self.counters.inc(reason);
                return false;
            }
        };
        self.counters.inc(Counter::AdminRequests);
        // Before the snapshot is taken: a request that gets no answer must cost little.
        if request.command != AdminCommand::Disconnect && !self.has_place(conn) {
            self.counters.inc(Counter::AdminDropped);
            return false;
        }
        advance_msgid(&mut self.msgid);
        let source = match request.command {
            AdminCommand::Disconnect => {
                let ack = push_ack(Vec::new(), &self.msgid, request.msgid);
                out.send(conn, OutClass::Control, &[&ack]);
                return true;
            }
            AdminCommand::Status => Source::Ready(Answer::Status(broker.status(now))),
            AdminCommand::ShowWorkers => {
                let copy = self
                    .workers
                    .get_or_insert_with(|| Arc::new(broker.workers_copy()));
                Source::Workers(Arc::clone(copy))
            }
            AdminCommand::ShowSchedulers => {
                Source::Ready(Answer::Schedulers(broker.schedulers(now)))
            }
            // A scheduler's.
            AdminCommand::ShowSchedules => {
                self.counters.inc(Counter::IgnoredRole);
                return false;
            }
            AdminCommand::Latency => Source::Latency(broker.latency()),
            AdminCommand::Counters => {
                let mut figures = Box::new(broker.figures());
                figures.counters.merge(&self.counters);
                Source::Counters(figures)
            }
        };
        let job = Job {
            conn,
            msgid: self.msgid,
            source,
        };
        if self.jobs.try_send(job).is_ok() {
            self.under_way.push(conn);
        } else {
            self.counters.inc(Counter::AdminDropped);
        }
        false
    }

    /// True if one more request of `conn` may be rendered.
    fn has_place(&self, conn: ConnId) -> bool {
        let own = self.under_way.iter().filter(|c| **c == conn).count();
        match self.under_way.len() {
            n if n < RENDERING_MAX / 2 => own < RENDERING_PER_CONNECTION_MAX,
            n if n < RENDERING_MAX => own == 0,
            _ => false,
        }
    }

    /// True if answers wait to be sent.
    pub(super) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// The end of a turn: sends what has been made.
    pub(super) fn send_answers<O: Outbox>(&mut self, out: &mut O) {
        self.workers = None;
        while out.has_room() {
            let Some((conn, answer)) = self.answers.pop() else {
                return;
            };
            if let Some(at) = self.under_way.iter().position(|c| *c == conn) {
                self.under_way.swap_remove(at);
            }
            // Not `Control`: whoever asks and never reads must not grow.
            out.send(conn, OutClass::Result, &[&answer]);
        }
    }
}

/// Makes the answers.
pub(super) struct Renderer {
    jobs: Receiver<Job>,
    answers: Arc<ArrayQueue<(ConnId, Vec<u8>)>>,
    facts: Facts,
    bell: Arc<Bell>,
}

impl Renderer {
    /// Until the desk is gone.
    fn run(&self) {
        while let Ok(job) = self.jobs.recv() {
            self.render(job);
        }
    }

    /// Makes one answer; false without a request.
    #[cfg(test)]
    pub(super) fn step(&self) -> bool {
        let job = self.jobs.try_recv();
        job.is_ok_and(|job| {
            self.render(job);
            true
        })
    }

    /// True if a request waits.
    #[cfg(test)]
    pub(super) fn has_work(&self) -> bool {
        !self.jobs.is_empty() && !self.answers.is_full()
    }

    fn render(&self, job: Job) {
        let answer = match job.source {
            Source::Ready(answer) => answer,
            Source::Workers(copy) => Answer::Workers(copy.resolve()),
            Source::Latency(latency) => Answer::Latency(latency.render()),
            Source::Counters(figures) => Answer::Counters(Box::new(report(*figures, &self.facts))),
        };
        let mut rendering = Rendering::new(answer);
        while !rendering.step(SLICE_BYTES) {}
        let wire = push_reply(Vec::new(), &job.msgid, &rendering.finish());
        let mut item = (job.conn, wire);
        // As many places as requests under way: full only while the dispatch is behind.
        while let Err(back) = self.answers.push(item) {
            item = back;
            self.bell.ring();
            thread::yield_now();
        }
        self.bell.ring();
    }
}

fn report(figures: BrokerFigures, facts: &Facts) -> CountersReport {
    let mut report = CountersReport {
        version: env!("CARGO_PKG_VERSION"),
        uptime_secs: facts.started.elapsed().as_secs_f64(),
        threading: facts.threading,
        counters: figures.counters.clone(),
        memory: MemoryReport {
            limit_bytes: figures.memory_limit_bytes,
            job_bytes: figures.job_bytes,
            resident_bytes: crate::runtime::memory::resident_bytes().unwrap_or(0),
            ..MemoryReport::default()
        },
        figures,
        ..CountersReport::default()
    };
    report.counters.add(
        Counter::LogRecordsDropped,
        crate::runtime::log::records_dropped(),
    );
    for published in &facts.agents {
        let agent = published.get();
        report.counters.merge(&agent.counters);
        for (all, own) in report.connections.iter_mut().zip(agent.connections) {
            *all += own as u64;
        }
        report.memory.partial_bytes += agent.partial_bytes as u64;
        report.memory.output_bytes += agent.output_bytes as u64;
        let rings: &[RingReport] = &agent.rings;
        report.memory.ring_bytes += rings.iter().map(|r| r.bytes).sum::<u64>();
        report.rings.extend_from_slice(rings);
        report.agents.push(agent.figures);
    }
    report
}
