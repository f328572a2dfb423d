//! What goes wrong during a soak, on a schedule.

use crate::failure::{Failure, Result};
use crate::generator::{Order, Plan, Running, open_client, open_worker};
use crate::handshake;
use crate::service::time_ns;
use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// A worker that was killed is back after this time.
const REVIVE_MS: u64 = 200;
const EXPECTED: &str = "expected kill-worker:EVERY, stop-reading:EVERY[:FOR], client-restart:EVERY \
                        or reconnect-storm:EVERY[:CONNECTIONS], times as 500ms, 5s, 2m";
const STORM_CONNECTIONS_MAX: usize = 5_000;
/// Faults more often than this would be a load of their own.
const EVERY_MIN: Duration = Duration::from_millis(50);

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    KillWorker,
    StopReading { length: Duration },
    ClientRestart,
    ReconnectStorm { connections: usize },
}

/// A fault and how often it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    kind: Kind,
    every: Duration,
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || format!("{text:?} is no fault; {EXPECTED}");
        let time = |text: &str| time_ns(text).map(Duration::from_nanos);
        let parts: Vec<&str> = text.split(':').collect();
        let (kind, every) = match parts[..] {
            ["kill-worker", every] => (Kind::KillWorker, every),
            ["client-restart", every] => (Kind::ClientRestart, every),
            ["stop-reading", every] => {
                let length = Duration::from_secs(2);
                (Kind::StopReading { length }, every)
            }
            ["stop-reading", every, length] => {
                let length = time(length).ok_or_else(wrong)?;
                (Kind::StopReading { length }, every)
            }
            ["reconnect-storm", every] => (Kind::ReconnectStorm { connections: 100 }, every),
            ["reconnect-storm", every, count] => match count.parse() {
                Ok(connections) if (1..=STORM_CONNECTIONS_MAX).contains(&connections) => {
                    (Kind::ReconnectStorm { connections }, every)
                }
                _ => {
                    return Err(format!(
                        "{count:?} in {text:?} must be 1 to {STORM_CONNECTIONS_MAX} connections"
                    ));
                }
            },
            _ => return Err(wrong()),
        };
        let every = time(every).ok_or_else(wrong)?;
        if every < EVERY_MIN {
            return Err(format!(
                "{text:?} comes too often; the least time between two is {EVERY_MIN:?}"
            ));
        }
        Ok(Fault { kind, every })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let every = format!("{}ms", self.every.as_millis());
        match self.kind {
            Kind::KillWorker => write!(f, "kill-worker:{every}"),
            Kind::ClientRestart => write!(f, "client-restart:{every}"),
            Kind::StopReading { length } => {
                write!(f, "stop-reading:{every}:{}ms", length.as_millis())
            }
            Kind::ReconnectStorm { connections } => {
                write!(f, "reconnect-storm:{every}:{connections}")
            }
        }
    }
}

/// How often something has gone wrong.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Happened {
    pub(crate) workers_killed: u64,
    pub(crate) clients_paused: u64,
    pub(crate) clients_restarted: u64,
    pub(crate) storms: u64,
    pub(crate) storm_connections: u64,
    /// Connections of storms that the broker did not take.
    pub(crate) storm_refused: u64,
}

/// A client or worker: its index over all threads, its thread, and its index there.
#[derive(Debug, Clone, Copy)]
struct Victim {
    index: usize,
    thread: usize,
    at: usize,
}

/// The schedule and the state of those it has hit.
#[derive(Debug)]
pub(crate) struct Faults {
    schedule: Vec<(Fault, Instant)>,
    clients: Vec<Victim>,
    workers: Vec<Victim>,
    /// How often each was killed or restarted.
    client_lives: Vec<u32>,
    worker_lives: Vec<u32>,
    dead: Vec<(Victim, Instant)>,
    next_client: usize,
    next_worker: usize,
    pub(crate) happened: Happened,
}

impl Faults {
    /// The first of each kind comes after its time.
    pub(crate) fn new(faults: &[Fault], plan: &Plan) -> Result<Self> {
        let now = Instant::now();
        let total = |which: usize| match which {
            0 => plan.workload.clients,
            _ => plan.workload.workers,
        };
        let victims = |which: usize| -> Vec<Victim> {
            (0..plan.threads)
                .flat_map(|thread| {
                    let sizes = Running::sizes(plan, thread);
                    let size = if which == 0 { sizes.0 } else { sizes.1 };
                    (0..size).map(move |at| (thread, at))
                })
                .enumerate()
                .map(|(index, (thread, at))| Victim { index, thread, at })
                .collect()
        };
        for fault in faults {
            if let Kind::StopReading { length } = fault.kind
                && length.as_secs_f64() > plan.deadline.as_secs_f64() / 2.0
            {
                return Err(Failure::usage(format!(
                    "{fault} is too long for a --deadline of {} s: it must be twice as long",
                    plan.deadline.as_secs_f64()
                )));
            }
        }
        Ok(Faults {
            schedule: faults
                .iter()
                .map(|fault| (*fault, now + fault.every))
                .collect(),
            clients: victims(0),
            workers: victims(1),
            client_lives: vec![0; total(0)],
            worker_lives: vec![0; total(1)],
            dead: Vec::new(),
            next_client: 0,
            next_worker: 0,
            happened: Happened::default(),
        })
    }

    /// Causes what is due.
    pub(crate) fn cause(&mut self, plan: &Plan, running: &Running) -> Result<()> {
        let now = Instant::now();
        self.revive(plan, running, |since| {
            now.saturating_duration_since(since) >= Duration::from_millis(REVIVE_MS)
        })?;
        for at in 0..self.schedule.len() {
            let (fault, due) = self.schedule[at];
            if due > now {
                continue;
            }
            self.schedule[at].1 = (due + fault.every).max(now);
            match fault.kind {
                Kind::KillWorker => self.kill_worker(running, now),
                Kind::StopReading { length } => self.pause_client(running, length),
                Kind::ClientRestart => self.restart_client(plan, running)?,
                Kind::ReconnectStorm { connections } => self.storm(plan, connections),
            }
        }
        Ok(())
    }

    /// Brings all killed workers back.
    pub(crate) fn mend(&mut self, plan: &Plan, running: &Running) -> Result<()> {
        self.revive(plan, running, |_| true)
    }

    fn revive(
        &mut self,
        plan: &Plan,
        running: &Running,
        is_due: impl Fn(Instant) -> bool,
    ) -> Result<()> {
        let (due, dead) = self.dead.iter().partition(|(_, since)| is_due(*since));
        self.dead = dead;
        let due: Vec<(Victim, Instant)> = due;
        for (worker, _) in due {
            self.worker_lives[worker.index] += 1;
            let opened = open_worker(plan, worker.index, self.worker_lives[worker.index])?;
            running.order(worker.thread, Order::ReviveWorker(worker.at, opened));
        }
        Ok(())
    }

    fn kill_worker(&mut self, running: &Running, now: Instant) {
        let worker = self.workers[self.next_worker % self.workers.len()];
        self.next_worker += 1;
        if self.dead.iter().any(|(dead, _)| dead.index == worker.index) {
            return;
        }
        running.order(worker.thread, Order::KillWorker(worker.at));
        self.dead.push((worker, now));
        self.happened.workers_killed += 1;
    }

    fn next_client(&mut self) -> Victim {
        let client = self.clients[self.next_client % self.clients.len()];
        self.next_client += 1;
        client
    }

    fn pause_client(&mut self, running: &Running, length: Duration) {
        let client = self.next_client();
        let for_ns = length.as_nanos() as u64;
        running.order(client.thread, Order::PauseClient(client.at, for_ns));
        self.happened.clients_paused += 1;
    }

    fn restart_client(&mut self, plan: &Plan, running: &Running) -> Result<()> {
        let client = self.next_client();
        self.client_lives[client.index] += 1;
        let opened = open_client(plan, client.index, self.client_lives[client.index])?;
        running.order(client.thread, Order::RestartClient(client.at, opened));
        self.happened.clients_restarted += 1;
        Ok(())
    }

    /// Many connections at once to both sockets, which go again without a word.
    fn storm(&mut self, plan: &Plan, connections: usize) {
        let mut open = Vec::with_capacity(connections);
        for number in 0..connections {
            let addr = match number % 2 {
                0 => &plan.frontend,
                _ => &plan.backend,
            };
            let identity = format!("bench-storm-{number}");
            match handshake::connect(addr, identity.as_bytes()) {
                Ok(opened) => open.push(opened),
                Err(_) => self.happened.storm_refused += 1,
            }
        }
        self.happened.storms += 1;
        self.happened.storm_connections += connections as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_written_as_they_are_read() {
        for text in [
            "kill-worker:5000ms",
            "stop-reading:1000ms:500ms",
            "client-restart:60000ms",
            "reconnect-storm:2000ms:7",
        ] {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
        let storm: Fault = "reconnect-storm:1m".parse().unwrap();
        assert_eq!(storm.kind, Kind::ReconnectStorm { connections: 100 });
        assert_eq!(storm.every, Duration::from_secs(60));
    }

    #[test]
    fn what_is_no_fault_is_told_what_is() {
        for text in [
            "kill-worker",
            "kill-worker:5",
            "kill-worker:1ms",
            "kill-worker:5s:2",
            "reboot:5s",
            "reconnect-storm:1s:0",
            "stop-reading:1s:x",
        ] {
            let line = text.parse::<Fault>().unwrap_err();
            assert!(line.contains(text), "{line}");
        }
        assert!(
            "reboot:5s"
                .parse::<Fault>()
                .unwrap_err()
                .contains("client-restart")
        );
    }
}
