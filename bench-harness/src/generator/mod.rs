//! The load generator: threads that each drive their share of the clients and workers over one
//! mio poll.
//!
//! It shares the machine with the broker, so a job costs it little: messages are copies of
//! templates, all connections of a thread share one read buffer, each connection is written once
//! per turn, the clock is read once per turn. Latencies therefore count from the turn that sent
//! the REQUEST to the turn that read its result.

pub(crate) mod client;
pub(crate) mod jobs;
mod setup;
pub(crate) mod worker;

pub(crate) use setup::{Plan, spawn};

use crate::conn::{More, Scratch};
use crate::failure::{Failure, Result};
use crate::wire::{Frames, Front, Template, walk};
use client::{Answer, Client};
use hdrhistogram::Histogram;
use mio::{Events, Poll};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};
use worker::{Worker, WorkerTemplates};

/// Longest sleep: how soon a thread sees that it shall stop.
const SLEEP_MS_MAX: u64 = 20;
/// After the last job, answers that nobody waits for are looked for this long.
const LINGER_MS: u64 = 50;
/// Workers say HEARTBEAT this often.
const HEARTBEAT_MS: u64 = 2_000;

/// What the threads of a run and their coordinator share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Jobs finished, summed over all threads once per turn of each.
    pub(crate) done: AtomicU64,
    /// Jobs accepted, likewise.
    pub(crate) accepted: AtomicU64,
    /// Send no more REQUESTs.
    pub(crate) stop: AtomicBool,
    /// Put latencies into the histogram.
    pub(crate) record: AtomicBool,
    /// End now: another thread has failed.
    pub(crate) abandon: AtomicBool,
    /// Threads that have no job outstanding and send none.
    pub(crate) threads_done: AtomicUsize,
}

/// When REQUESTs are sent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// A finished job is followed by the next one at once.
    Closed,
    /// At fixed times, `interval_ns` apart, whatever the answers do; latencies count from these
    /// times (no coordinated omission).
    Open { interval_ns: u64 },
}

/// What one thread has done.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) latency_ns: Histogram<u32>,
}

/// A histogram for 1 µs to 10 minutes in nanoseconds.
pub(crate) fn latency_histogram() -> Histogram<u32> {
    let mut histogram = Histogram::new_with_bounds(1_000, 600_000_000_000, 3)
        .unwrap_or_else(|error| unreachable!("constant bounds: {error}"));
    histogram.auto(false);
    histogram
}

struct Generator<'a> {
    shared: &'a Shared,
    poll: Poll,
    clients: Vec<Client>,
    workers: Vec<Worker>,
    request: Template,
    templates: WorkerTemplates,
    scratch: Scratch,
    slots: usize,
    pace: Pace,
    threads: usize,
    deadline: Duration,
    heartbeats: bool,
    start: Instant,
    now_ns: u64,
    /// Connections with output, clients first.
    listed: Vec<usize>,
    latency_ns: Histogram<u32>,
    recording: bool,
    turn_done: u64,
    turn_accepted: u64,
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
            for event in &events {
                let at = event.token().0;
                if event.is_writable() {
                    self.conn(at).unblock();
                    self.list(at);
                }
                if event.is_readable() || event.is_read_closed() {
                    self.serve(at)?;
                }
            }
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
            self.poll
                .poll(&mut events, Some(self.sleep()))
                .or_else(|error| match error.kind() {
                    std::io::ErrorKind::Interrupted => Ok(()),
                    _ => Err(Failure::run(format!("cannot wait for events: {error}"))),
                })?;
        }
        for worker in &mut self.workers {
            worker.push_goodbye();
            worker.conn.flush()?;
        }
        Ok(Outcome {
            latency_ns: self.latency_ns,
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

    fn sleep(&self) -> Duration {
        match self.pace {
            // An event loop that sleeps whole milliseconds cannot keep a rate: it spins instead.
            Pace::Open { .. } => Duration::ZERO,
            Pace::Closed => Duration::from_millis(SLEEP_MS_MAX),
        }
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

    fn serve(&mut self, at: usize) -> Result<()> {
        if at < self.clients.len() {
            self.serve_client(at)
        } else {
            self.serve_worker(at)
        }
    }

    fn serve_client(&mut self, at: usize) -> Result<()> {
        let client = &mut self.clients[at];
        let mut frames = Frames::default();
        let mut free = 0;
        loop {
            let (buf, more) = client.conn.receive(&mut self.scratch)?;
            let mut rest = buf;
            loop {
                match walk(rest, &mut frames) {
                    Front::Message(len) => {
                        match client.take(rest, &frames)? {
                            Answer::Accepted => self.turn_accepted += 1,
                            Answer::Finished { sent_ns } => {
                                free += 1;
                                if self.recording {
                                    let elapsed = self.now_ns.saturating_sub(sent_ns);
                                    self.latency_ns.saturating_record(elapsed);
                                }
                            }
                        }
                        rest = &rest[len..];
                    }
                    Front::Command { body_at, end } => {
                        pong(&rest[body_at..end], &mut client.conn.out);
                        rest = &rest[end..];
                    }
                    Front::Partial => break,
                    Front::Malformed => return Err(not_zmtp(client.conn.label(), rest)),
                }
            }
            client.conn.keep(rest);
            match more {
                More::Likely => {}
                More::Drained => break,
                More::Closed => return Err(self.closed(at)),
            }
        }
        self.turn_done += free;
        self.outstanding -= free;
        if matches!(self.pace, Pace::Closed) {
            self.fill_window(at);
        }
        if !self.clients[at].conn.is_flushed() {
            self.list(at);
        }
        Ok(())
    }

    fn serve_worker(&mut self, at: usize) -> Result<()> {
        let worker = &mut self.workers[at - self.clients.len()];
        let mut frames = Frames::default();
        loop {
            let (buf, more) = worker.conn.receive(&mut self.scratch)?;
            let mut rest = buf;
            loop {
                match walk(rest, &mut frames) {
                    Front::Message(len) => {
                        worker.take(rest, &frames, &self.templates)?;
                        rest = &rest[len..];
                    }
                    Front::Command { body_at, end } => {
                        pong(&rest[body_at..end], &mut worker.conn.out);
                        rest = &rest[end..];
                    }
                    Front::Partial => break,
                    Front::Malformed => return Err(not_zmtp(worker.conn.label(), rest)),
                }
            }
            worker.conn.keep(rest);
            match more {
                More::Likely => {}
                More::Drained => break,
                More::Closed => return Err(self.closed(at)),
            }
        }
        if !worker.conn.is_flushed() {
            self.list(at);
        }
        Ok(())
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
        while client.send(&self.request, self.now_ns) {
            self.outstanding += 1;
        }
    }

    /// Sends what is due in the open loop. A job that finds every window full is sent late, but
    /// its latency counts from when it was due.
    fn start_jobs(&mut self) {
        let Pace::Open { interval_ns } = self.pace else {
            return;
        };
        while self.next_due * interval_ns <= self.now_ns && self.may_send() {
            let due_ns = self.next_due * interval_ns;
            let clients = self.clients.len();
            let first = self.next_due as usize % clients;
            let sender = (first..first + clients)
                .map(|at| at % clients)
                .find(|&at| self.clients[at].send(&self.request, due_ns));
            let Some(at) = sender else { return };
            self.list(at);
            self.next_due += 1;
            self.outstanding += 1;
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
        }
        self.listed = listed;
        Ok(())
    }

    fn publish(&mut self) {
        if self.turn_done + self.turn_accepted > 0 {
            self.shared
                .done
                .fetch_add(self.turn_done, Ordering::Relaxed);
            self.shared
                .accepted
                .fetch_add(self.turn_accepted, Ordering::Relaxed);
            (self.turn_done, self.turn_accepted) = (0, 0);
            self.last_progress_ns = self.now_ns;
        }
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
        if silent {
            let secs = self.deadline.as_secs_f64();
            return Err(Failure::run(format!(
                "nothing moved for {secs} s; {}",
                self.missing()
            )));
        }
        Ok(false)
    }

    fn missing(&self) -> String {
        let (mut unaccepted, mut unanswered) = (0, 0);
        for client in &self.clients {
            let (sent, accepted) = client.jobs.missing();
            unaccepted += sent;
            unanswered += accepted;
        }
        let oldest = self
            .clients
            .iter()
            .filter_map(|client| client.jobs.oldest_missing());
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

/// Answers a PING (ZMTP 3.1) with a PONG that echoes its context.
#[cold]
fn pong(command: &[u8], out: &mut Vec<u8>) {
    if let Some(rest) = command.strip_prefix(b"\x04PING")
        && let Some(context) = rest.get(2..).filter(|context| context.len() <= 16)
    {
        out.extend_from_slice(&[4, 5 + context.len() as u8]);
        out.extend_from_slice(b"\x04PONG");
        out.extend_from_slice(context);
    }
}

#[cold]
fn not_zmtp(label: &str, rest: &[u8]) -> Failure {
    let begin = &rest[..rest.len().min(16)];
    Failure::run(format!(
        "{label} sent what is no ZMTP message: {}",
        begin.escape_ascii()
    ))
}

#[cfg(test)]
mod tests;
