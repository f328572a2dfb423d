//! A seeded simulation: the state machine between brokers that count slots as the protocol says,
//! connections that are lost with what is on its way, and an executor that ends jobs in every way.
//!
//! At the end, when everything has been delivered, both sides must agree on every slot, no slot may
//! be missing, and every job must have had exactly one end. `EMQ_SIM_SEEDS`, `EMQ_SIM_SEED`.

mod broker;

use super::super::rng::{Rng, for_each_seed};
use super::*;
use crate::frames::split_wire;
use broker::{Broker, message};
use std::collections::{BTreeSet, VecDeque};

const MS: u64 = NS_PER_MS;

#[derive(Debug, Default)]
struct Wire {
    /// Number of the connection; `None` while a try is under way.
    open: Option<u64>,
    to_broker: VecDeque<Vec<u8>>,
    to_manager: VecDeque<Vec<u8>>,
    /// The manager has closed it: what it sent still arrives.
    closed: bool,
}

struct World {
    manager: Manager,
    rng: Rng,
    now: Now,
    brokers: Vec<Broker>,
    /// Newest last; older ones were closed by the manager.
    wires: Vec<Vec<Wire>>,
    conns: u64,
    running: BTreeSet<JobId>,
    slots: usize,
    capacity: usize,
    jobs: u64,
    executor_closed: bool,
    finished: bool,
    /// Percent of the steps that break something.
    trouble: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let brokers = 1 + rng.below(3) as usize;
        let slots = 1 + rng.below(5) as usize;
        let mode = if rng.below(2) == 0 {
            BrokerMode::Failover
        } else {
            BrokerMode::All
        };
        let ours_percent = [0, 50, 100, 100][rng.below(4) as usize];
        let now = Now {
            mono_ns: 1_000 * MS,
            wall_ms: 1,
        };
        let config = ManagerConfig {
            brokers: (0..brokers).map(|n| format!("broker {n}")).collect(),
            mode,
            slots,
            queues: "[[10, \"default\"]]".to_owned(),
            name: String::new(),
            heartbeat_interval_ms: 3_000,
            heartbeat_timeout_ms: 5_000,
            heartbeat_liveness: 3,
            disable_heartbeats: rng.below(4) == 0,
            reconnect_timeout_ms: 5_000,
            global_timeout_ms: 300_000,
            kill_grace_period_ms: 300_000,
            late_reply_window_ms: 300_000,
            seeds: [rng.next(), rng.next(), rng.next(), rng.next() | 1],
        };
        World {
            manager: Manager::new(config, now),
            brokers: (0..brokers)
                .map(|_| Broker {
                    ours: rng.below(100) < ours_percent,
                    ..Broker::default()
                })
                .collect(),
            wires: (0..brokers).map(|_| Vec::new()).collect(),
            trouble: rng.below(12),
            rng,
            now,
            conns: 0,
            running: BTreeSet::new(),
            slots,
            capacity: 0,
            jobs: 0,
            executor_closed: false,
            finished: false,
        }
    }

    fn drain(&mut self) {
        while let Some(action) = self.manager.poll_action() {
            match action {
                Action::Connect { broker, .. } => {
                    self.close(broker, true);
                    self.wires[broker].push(Wire::default());
                }
                Action::Redial { broker } => {
                    self.close(broker, false);
                    self.wires[broker].push(Wire::default());
                }
                Action::Send { broker, wire } => {
                    let conn = self.wires[broker].last_mut().expect("connected");
                    assert!(conn.open.is_some() && !conn.closed, "sent to nobody");
                    conn.to_broker.push_back(wire);
                }
                Action::Close { broker } => self.close(broker, true),
                Action::Run(job) => {
                    assert!(!self.executor_closed);
                    assert!(self.running.insert(job.id));
                    // A broker that forgot its jobs may send more than there are slots.
                    assert!(self.running.len() <= 2 * self.slots + 64);
                }
                Action::CloseExecutor => self.executor_closed = true,
                Action::KillExecutor => self.end_all(Ending::Killed),
                Action::Finished => self.finished = true,
            }
        }
    }

    fn end_all(&mut self, ending: Ending) {
        for id in std::mem::take(&mut self.running) {
            self.manager.handle_ended(id, ending.clone(), self.now);
        }
    }

    /// The manager wants to hear no more of the present connection.
    fn close(&mut self, broker: usize, flush: bool) {
        match self.wires[broker].last_mut() {
            Some(conn) if conn.closed => {}
            Some(conn) if conn.open.is_some() => {
                conn.closed = true;
                if !flush {
                    conn.to_broker.clear();
                }
            }
            Some(_) => drop(self.wires[broker].pop()),
            None => {}
        }
    }

    fn reset(&mut self, broker: usize) {
        let Some(conn) = self.wires[broker].pop() else {
            return;
        };
        if conn.open.is_none() {
            // Another try.
            return self.wires[broker].push(Wire::default());
        }
        if self.brokers[broker].conn == conn.open {
            self.brokers[broker].lose_connection();
        }
        if conn.closed {
            return;
        }
        self.manager.handle_lost(broker, self.now);
        // Some of what the broker has not got had not left: it comes back.
        let unsent = self.rng.below(conn.to_broker.len() as u64 + 1) as usize;
        for wire in conn.to_broker.iter().rev().take(unsent) {
            let mut spans = Vec::new();
            split_wire(wire, &mut spans).expect("whole");
            let message = Message::new(wire, &spans);
            self.manager.handle_unsent(broker, &message, self.now);
        }
        // The shell connects again by itself, unless it has been told otherwise.
        self.wires[broker].push(Wire::default());
    }

    /// Moves something along at one broker; false if nothing was to be moved.
    fn move_something(&mut self, broker: usize) -> bool {
        // A closed connection delivers what was sent, then ends; the newer one only after that, or
        // the routing id would be taken over, which the broker's own simulation covers.
        let Some(conn) = self.wires[broker].first_mut() else {
            return false;
        };
        if conn.closed {
            match conn.to_broker.pop_front() {
                Some(wire) => self.brokers[broker].receive(&wire),
                None => {
                    let conn = self.wires[broker].remove(0);
                    if conn.open.is_some() && self.brokers[broker].conn == conn.open {
                        self.brokers[broker].lose_connection();
                    }
                }
            }
            self.brokers[broker].out.clear();
            return true;
        }
        if conn.open.is_none() {
            self.conns += 1;
            conn.open = Some(self.conns);
            self.brokers[broker].conn = Some(self.conns);
            let ours = self.brokers[broker].ours;
            self.manager.handle_connected(broker, ours, self.now);
            return true;
        }
        let towards_broker = self.rng.below(2) == 0;
        if towards_broker && let Some(wire) = conn.to_broker.pop_front() {
            self.brokers[broker].receive(&wire);
            conn.to_manager.extend(self.brokers[broker].out.drain(..));
            return true;
        }
        match conn.to_manager.pop_front() {
            Some(wire) => {
                let mut spans = Vec::new();
                split_wire(&wire, &mut spans).expect("whole");
                let message = Message::new(&wire, &spans);
                self.manager.handle_message(broker, &message, self.now);
                true
            }
            None if towards_broker => false,
            None => !conn.to_broker.is_empty(),
        }
    }

    fn push(&mut self, broker: usize, wires: Vec<Vec<u8>>) {
        match self.wires[broker].last_mut() {
            Some(conn) if conn.open.is_some() && !conn.closed => conn.to_manager.extend(wires),
            _ => {}
        }
    }

    fn end_some_job(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let nth = self.rng.below(self.running.len() as u64) as usize;
        let id = *self.running.iter().nth(nth).expect("counted");
        self.running.remove(&id);
        let ending = match self.rng.below(5) {
            0 => Ending::TimedOut { after_ms: 1 },
            1 => Ending::Died("x".to_owned()),
            2 => Ending::failure("E", "m", ""),
            _ => Ending::Value(b"{}".to_vec()),
        };
        self.manager.handle_ended(id, ending, self.now);
    }

    fn pass_time(&mut self) {
        let due = self.manager.poll_timeout().unwrap_or(self.now.mono_ns);
        self.now.mono_ns = self.now.mono_ns.max(due);
        // Living brokers send heartbeats meanwhile.
        for broker in 0..self.brokers.len() {
            if self.brokers[broker].conn.is_some() {
                self.manager.handle_alive(broker, self.now);
            }
        }
        self.manager.handle_timeout(self.now);
    }

    fn capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.manager.handle_capacity(capacity, self.now);
        if capacity == 0 && self.rng.below(2) == 0 {
            self.end_all(Ending::NotStarted);
        }
    }

    fn step(&mut self) {
        self.now.mono_ns += self.rng.below(20) * MS;
        let broker = self.rng.below(self.brokers.len() as u64) as usize;
        if self.rng.below(100) < self.trouble {
            match self.rng.below(8) {
                0..=2 => self.reset(broker),
                3 => {
                    self.brokers[broker].forget();
                    self.reset(broker);
                }
                4 => {
                    // It removes the worker and says so when it hears of it.
                    self.brokers[broker].forget();
                    self.push(broker, vec![message(Command::Disconnect, &[])]);
                }
                5 => {
                    self.push(broker, vec![message(Command::Kbye, &[])]);
                    self.brokers[broker].free = 0;
                    self.brokers[broker].registered = false;
                    self.brokers[broker].forget();
                }
                6 => {
                    let capacity = self.rng.below(self.slots as u64 + 1) as usize;
                    self.capacity(capacity);
                }
                _ => self.now.mono_ns += 20_000 * MS,
            }
        } else {
            match self.rng.below(12) {
                0..=5 => drop(self.move_something(broker)),
                6..=7 => self.end_some_job(),
                8 if self.capacity < self.slots => self.capacity(self.capacity + 1),
                8 | 9 => self.pass_time(),
                _ => {
                    self.jobs += 1;
                    let job = format!("{broker}-{}", self.jobs).into_bytes();
                    self.brokers[broker].waiting.push_back(job);
                    self.brokers[broker].hand_out();
                    let out = std::mem::take(&mut self.brokers[broker].out);
                    self.push(broker, out);
                }
            }
        }
        self.drain();
    }

    /// Delivers everything, ends every job.
    fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..100_000 {
            let mut moved = false;
            for broker in 0..self.brokers.len() {
                moved |= self.move_something(broker);
                self.drain();
            }
            if !self.running.is_empty() {
                self.end_some_job();
                moved = true;
            }
            self.drain();
            quiet = if moved { 0 } else { quiet + 1 };
            if quiet > 10 {
                if self.is_settled() {
                    return;
                }
                self.pass_time();
                self.drain();
                quiet = 0;
            }
        }
        let brokers: Vec<_> = self.brokers.iter().collect();
        panic!(
            "it does not settle at {:?}, {:?}: {:#?}\n{:#?}\n{brokers:#?}",
            self.now,
            self.manager.poll_timeout(),
            self.wires,
            self.manager
        );
    }

    fn is_settled(&self) -> bool {
        let used = |(broker, link): (usize, &Link)| {
            self.manager.config.mode == BrokerMode::All
                || self.manager.active == broker
                || link.is_connected()
        };
        let links = self
            .manager
            .links
            .iter()
            .enumerate()
            .filter(|(n, link)| used((*n, link)));
        self.running.is_empty()
            && links.clone().count() > 0
            && links.clone().all(|(n, link)| {
                matches!(link.state, State::Registered)
                    && (self.brokers[n].waiting.is_empty() || link.share == 0)
            })
    }

    fn check_agreement(&mut self) {
        let mut free = 0;
        for (n, link) in self.manager.links.iter().enumerate() {
            if !matches!(link.state, State::Registered) {
                continue;
            }
            let broker = &self.brokers[n];
            assert_eq!(
                link.offered, broker.free,
                "broker {n}: {link:?}\n{broker:?}"
            );
            assert!(broker.in_flight.is_empty() || !broker.ours, "{broker:?}");
            free += broker.free;
        }
        assert_eq!(
            free, self.capacity,
            "free slots in all: {:#?}",
            self.manager
        );
    }

    fn run(mut self) {
        self.drain();
        for _ in 0..300 {
            self.step();
        }
        self.capacity(self.slots);
        self.drain();
        self.settle();
        self.check_agreement();
        // And it ends.
        for _ in 0..self.rng.below(20) {
            self.trouble = 0;
            self.step();
        }
        self.manager.shutdown(self.now);
        self.drain();
        for _ in 0..10_000 {
            for broker in 0..self.brokers.len() {
                self.move_something(broker);
            }
            if self.rng.below(3) == 0 {
                self.end_some_job();
            }
            self.drain();
            if self.executor_closed && self.running.is_empty() {
                self.executor_closed = false;
                self.manager.handle_executor_closed(self.now);
                self.drain();
            }
        }
        assert!(self.finished, "{:#?}", self.manager);
        assert_eq!(self.manager.poll_timeout(), None, "{:#?}", self.manager);
        for broker in &mut self.brokers {
            assert!(broker.conn.is_none(), "left open: {broker:#?}");
            // The grace for those it has lost ends.
            broker.forget();
            // Every job has ended once or waits.
            let waiting = broker
                .waiting
                .iter()
                .filter(|job| broker.ends.contains_key(*job));
            assert_eq!(waiting.count(), 0, "{broker:#?}");
        }
    }
}

#[test]
fn brokers_and_job_manager_agree_on_every_slot() {
    for_each_seed(500, |seed| World::new(seed).run());
}
