//! The load generator: threads that each drive their share of the clients and workers over one
//! mio poll.
//!
//! It shares the machine with the broker, so a job costs it little: messages are copies of
//! templates, all connections of a thread share one read buffer, each connection is written once
//! per turn, the clock is read once per turn. Latencies therefore count from the turn that sent
//! the REQUEST to the turn that read its result.

pub(crate) mod board;
pub(crate) mod client;
pub(crate) mod incident;
pub(crate) mod jobs;
mod orders;
pub(crate) mod requests;
mod serve;
mod setup;
pub(crate) mod shared;
pub(crate) mod tally;
mod timer;
pub(crate) mod worker;

pub(crate) use orders::Order;
pub(crate) use requests::Manners;
pub(crate) use setup::{Plan, Running, open_client, open_worker, spawn};
pub(crate) use shared::Shared;

use crate::conn::Scratch;
use crate::failure::{Failure, Result};
use crate::service::{Random, Service};
use client::Client;
use incident::{Incident, Incidents};
use jobs::Violation;
use mio::{Events, Poll, Token};
use requests::Requests;
use serve::InService;
use shared::{Links, Worked};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant, SystemTime};
use tally::Tally;
use timer::Timer;
use worker::{Worker, WorkerTemplates};

/// Longest sleep: how soon a thread sees that it shall stop.
const SLEEP_MS_MAX: u64 = 20;
/// What is due within this time is waited for without sleep: falling asleep takes as long.
const SPIN_NS_MAX: u64 = 5_000;
/// After the last job, answers that nobody waits for are looked for this long.
const LINGER_MS: u64 = 50;
/// Workers say HEARTBEAT this often.
const HEARTBEAT_MS: u64 = 2_000;
/// A job of the open loop that is sent this much after it was due was sent late.
const LATE_NS: u64 = 1_000_000;
/// Wakes a thread: a worker elsewhere has done a job, or there is an order.
const WAKER: Token = Token(usize::MAX);
/// Wakes a thread when something is due.
const TIMER: Token = Token(usize::MAX - 1);

/// When REQUESTs are sent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// A finished job is followed by the next one at once.
    Closed,
    /// At fixed times, `interval_ns` apart, whatever the answers do; latencies count from these
    /// times (no coordinated omission).
    Open { interval_ns: f64 },
}

/// What one thread has done.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// What was not collected before.
    pub(crate) tally: Box<Tally>,
    pub(crate) incidents: Incidents,
}

struct Generator<'a> {
    index: usize,
    shared: &'a Shared,
    links: &'a Links,
    poll: Poll,
    timer: Timer,
    clients: Vec<Client>,
    workers: Vec<Worker>,
    /// Tag of the first worker.
    worker_tag: u32,
    requests: Requests,
    templates: WorkerTemplates,
    scratch: Scratch,
    slots: usize,
    service: Service,
    fail_share: f64,
    random: Random,
    /// Jobs that workers are busy with, the next to end first.
    in_service: BinaryHeap<Reverse<InService>>,
    in_service_number: u64,
    /// Jobs without a result that workers of this thread have done in this turn.
    worked: Vec<Worked>,
    /// Jobs of this thread's clients that workers of others have done.
    worked_here: Receiver<Worked>,
    orders: Receiver<Order>,
    pace: Pace,
    threads: usize,
    deadline: Duration,
    heartbeats: bool,
    tolerant: bool,
    incidents: Incidents,
    start: Instant,
    now_ns: u64,
    /// Connections with output, clients first.
    listed: Vec<usize>,
    /// Connections with input that no event will tell of.
    again: Vec<usize>,
    tally: Box<Tally>,
    recording: bool,
    /// Jobs done and accepted in this turn.
    turn: (u64, u64),
    outstanding: u64,
    /// Jobs of the open loop that were due so far.
    next_due: u64,
    last_progress_ns: u64,
    next_heartbeat_ns: u64,
}

impl Generator<'_> {
    fn run(mut self) -> Result<Outcome> {
        let mut events = Events::with_capacity(1024);
        self.begin()?;
        let mut finished_ns = None;
        loop {
            self.now_ns = self.clock();
            self.obey_orders()?;
            for event in &events {
                let at = event.token().0;
                if event.token() == WAKER || event.token() == TIMER {
                    continue;
                }
                if event.is_writable() {
                    self.conn(at).unblock();
                    self.list(at);
                }
                if event.is_readable() || event.is_read_closed() {
                    self.serve(at)?;
                }
            }
            self.serve_again()?;
            self.end_services();
            self.end_pauses()?;
            self.take_worked();
            self.start_jobs();
            self.heartbeat();
            self.flush()?;
            self.publish();
            if finished_ns.is_none() && self.is_finished() {
                finished_ns = Some(self.now_ns);
                self.shared.threads_done.fetch_add(1, Ordering::SeqCst);
            }
            if self.is_over(finished_ns)? {
                break;
            }
            let sleep = self.sleep()?;
            self.poll
                .poll(&mut events, Some(sleep))
                .or_else(|error| match error.kind() {
                    std::io::ErrorKind::Interrupted => Ok(()),
                    _ => Err(Failure::run(format!("cannot wait for events: {error}"))),
                })?;
        }
        for worker in &mut self.workers {
            worker.push_goodbye();
            worker.conn.flush()?;
        }
        self.note_unanswered()?;
        Ok(Outcome {
            tally: self.tally,
            incidents: self.incidents,
        })
    }

    /// Offers all slots, takes what came with the handshakes, fills the windows.
    fn begin(&mut self) -> Result<()> {
        let clients = self.clients.len();
        for (at, worker) in self.workers.iter_mut().enumerate() {
            worker.offer(self.slots, &self.templates);
            worker.conn.listed = true;
            self.listed.push(clients + at);
        }
        self.flush()?;
        for at in 0..clients + self.workers.len() {
            self.serve(at)?;
        }
        if matches!(self.pace, Pace::Closed) {
            for at in 0..clients {
                self.fill_window(at);
            }
        }
        self.now_ns = self.clock();
        Ok(())
    }

    fn clock(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// How long to wait for events at most; sets the timer if something is due sooner.
    fn sleep(&mut self) -> Result<Duration> {
        let is_open = matches!(self.pace, Pace::Open { .. });
        // The way out of a sleep takes longer than a job: what is measured must not contain it.
        if !self.again.is_empty() || (is_open && !self.tolerant) {
            return Ok(Duration::ZERO);
        }
        let longest = Duration::from_millis(SLEEP_MS_MAX);
        let service = self.in_service.peek().map(|Reverse(next)| next.due_ns);
        let next = match (service, self.next_job_ns()) {
            (Some(service), Some(job)) => service.min(job),
            (Some(due), None) | (None, Some(due)) => due,
            (None, None) => return Ok(longest),
        };
        let now_ns = self.clock();
        if next <= now_ns + SPIN_NS_MAX {
            return Ok(Duration::ZERO);
        }
        self.timer.set(next, now_ns)?;
        Ok(longest)
    }

    /// When the next job of an open loop is due, if a window has room for it.
    fn next_job_ns(&self) -> Option<u64> {
        let Pace::Open { interval_ns } = self.pace else {
            return None;
        };
        let has_room = self.clients.iter().any(|client| !client.jobs.is_full());
        (has_room && self.may_send()).then_some((self.next_due as f64 * interval_ns) as u64)
    }

    #[inline]
    fn conn(&mut self, at: usize) -> &mut crate::conn::Conn {
        let clients = self.clients.len();
        if at < clients {
            &mut self.clients[at].conn
        } else {
            &mut self.workers[at - clients].conn
        }
    }

    #[inline]
    fn list(&mut self, at: usize) {
        let conn = self.conn(at);
        if !conn.listed {
            conn.listed = true;
            self.listed.push(at);
        }
    }

    /// Something went wrong: the end of the run, unless it is to go on.
    #[cold]
    fn incident(&mut self, incident: Incident) -> Result<()> {
        if self.tolerant {
            self.incidents.note(incident)
        } else {
            Err(incident.into_failure())
        }
    }

    #[cold]
    fn closed(&mut self, at: usize) -> Failure {
        let side = if at < self.clients.len() {
            "client"
        } else {
            "worker"
        };
        let label = self.conn(at).label().to_owned();
        let missing = self.missing();
        Failure::run(format!(
            "{label} closed the connection of a {side}; {missing}"
        ))
    }

    fn may_send(&self) -> bool {
        !self.shared.stop.load(Ordering::Relaxed)
    }

    fn fill_window(&mut self, at: usize) {
        if !self.may_send() {
            return;
        }
        let client = &mut self.clients[at];
        while let Some(sent) = client.send(&self.requests, self.now_ns) {
            self.outstanding += 1;
            self.tally.recorded.guaranteed += u64::from(sent.guaranteed && self.recording);
        }
    }

    /// Sends what is due in the open loop. A job that finds every window full is sent late, but
    /// its latency counts from when it was due.
    fn start_jobs(&mut self) {
        let Pace::Open { interval_ns } = self.pace else {
            return;
        };
        let clients = self.clients.len();
        while self.may_send() {
            let due_ns = (self.next_due as f64 * interval_ns) as u64;
            if due_ns > self.now_ns {
                return;
            }
            let first = self.next_due as usize % clients;
            let (requests, all) = (&self.requests, &mut self.clients);
            let sent = (first..first + clients)
                .map(|at| at % clients)
                .find_map(|at| Some((at, all[at].send(requests, due_ns)?)));
            let Some((at, sent)) = sent else {
                self.tally.window_full += 1;
                return;
            };
            self.list(at);
            self.next_due += 1;
            self.outstanding += 1;
            self.tally.recorded.guaranteed += u64::from(sent.guaranteed && self.recording);
            self.tally.late += u64::from(self.now_ns - due_ns > LATE_NS);
        }
    }

    fn heartbeat(&mut self) {
        if !self.heartbeats || self.now_ns < self.next_heartbeat_ns {
            return;
        }
        self.next_heartbeat_ns = self.now_ns + HEARTBEAT_MS * 1_000_000;
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let unix_secs = since_epoch.unwrap_or_default().as_secs_f64();
        for at in 0..self.workers.len() {
            self.workers[at].push_heartbeat(unix_secs);
            self.list(self.clients.len() + at);
        }
    }

    fn flush(&mut self) -> Result<()> {
        let mut listed = std::mem::take(&mut self.listed);
        for at in listed.drain(..) {
            let conn = self.conn(at);
            conn.listed = false;
            conn.flush()?;
            if conn.has_unseen_input() {
                self.again.push(at);
            }
        }
        self.listed = listed;
        Ok(())
    }

    fn publish(&mut self) {
        let (done, accepted) = std::mem::take(&mut self.turn);
        if done + accepted > 0 {
            self.shared.done.fetch_add(done, Ordering::Relaxed);
            self.shared.accepted.fetch_add(accepted, Ordering::Relaxed);
            self.last_progress_ns = self.now_ns;
        }
        self.shared.hand_over(self.index, &mut self.tally);
        self.recording = self.shared.record.load(Ordering::Relaxed);
    }

    fn is_finished(&self) -> bool {
        self.outstanding == 0 && !self.may_send()
    }

    /// True when nothing is left to do for any thread; an error when nothing moves any more.
    fn is_over(&self, finished_ns: Option<u64>) -> Result<bool> {
        if self.shared.abandon.load(Ordering::Relaxed) {
            return Err(Failure::run("abandoned because another thread failed"));
        }
        if let Some(finished_ns) = finished_ns {
            let all = self.shared.threads_done.load(Ordering::SeqCst) >= self.threads;
            return Ok(all && self.now_ns >= finished_ns + LINGER_MS * 1_000_000);
        }
        let silent = self.outstanding > 0
            && self.now_ns.saturating_sub(self.last_progress_ns) > self.deadline.as_nanos() as u64;
        if silent && self.tolerant && !self.may_send() {
            // The others need not wait for this thread.
            self.shared.threads_done.fetch_add(1, Ordering::SeqCst);
            return Ok(true);
        }
        if silent {
            let secs = self.deadline.as_secs_f64();
            return Err(Failure::run(format!(
                "nothing moved for {secs} s; {}",
                self.missing()
            )));
        }
        Ok(false)
    }

    /// Jobs that are outstanding though the run is over: only a tolerant run gets here with some.
    fn note_unanswered(&mut self) -> Result<()> {
        let mut missing = Vec::new();
        for client in &self.clients {
            for (_, msgid) in client.jobs.outstanding() {
                missing.push(client.violated(Violation::Unanswered, msgid.bytes()));
            }
        }
        missing
            .into_iter()
            .try_for_each(|incident| self.incident(incident))
    }

    fn missing(&self) -> String {
        let (mut unaccepted, mut unanswered) = (0, 0);
        for client in &self.clients {
            let (sent, accepted) = client.jobs.missing();
            unaccepted += sent;
            unanswered += accepted;
        }
        let oldest = self.clients.iter().filter_map(Client::oldest_missing);
        let Some((sent_ns, msgid)) = oldest.min_by_key(|(sent_ns, _)| *sent_ns) else {
            return "no job was outstanding".to_owned();
        };
        let age = self.now_ns.saturating_sub(sent_ns) as f64 / 1e9;
        let hint = if unaccepted == 0 && self.shared.done.load(Ordering::Relaxed) == 0 {
            "; does a worker serve this queue? (--workers)"
        } else {
            ""
        };
        format!(
            "missing: {unaccepted} acceptances and results, {unanswered} more results; \
             the oldest job, {}, was sent {age:.1} s ago{hint}",
            msgid.bytes().escape_ascii()
        )
    }
}

#[cfg(test)]
mod tests;
