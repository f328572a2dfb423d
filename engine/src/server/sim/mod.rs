//! A seeded simulation of the agents: the turns that production runs, with rings of a few small
//! batches and fake sockets, stepped on one thread in random order. Agents fall asleep and are
//! woken as their runners do it; an agent that sleeps is stepped only when its bell was rung, its
//! sockets have an event or its time has come, so that a wake-up that is missing shows.
//!
//! Checked all along: order of calls per connection, answers to REQUESTs, the invariants of the
//! state machine. At rest, when every peer reads everything: whatever was put out has arrived, came
//! back, or is counted; whatever was read has been told; no byte is still accounted for.
//!
//! `EMQ_SIM_SEEDS` = number of seeds; `EMQ_SIM_SEED` = run this one alone, and tell.

mod checks;
mod peers;
mod thread;
mod witness;

use super::admin::{AdminDesk, Facts, Renderer};
use super::control::{DispatchOrder, Orders};
use super::dispatch::{Dispatch, Ending};
use super::inline;
use super::ringed::{RingOutbox, RingSink};
use super::turns::{DispatchEnds, IoEnds};
use crate::broker::{Broker, BrokerConfig, Seeds};
use crate::emqp::first_msgid;
use crate::ids::{NS_PER_MS, Now, Socket};
use crate::io::fake::{FakePeer, FakeStream, table_config};
use crate::io::{ConnTable, OutputConfig, OutputTable, WrittenTable};
use crate::ring::{RingConfig, ring};
use peers::Link;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Instant;
use thread::{State, Thread};
use witness::Witness;

/// Random steps before everything is let run.
const STEPS: u64 = 500;
/// Rounds in which everything must come to rest.
const ROUNDS_MAX: usize = 3_000;
const LINKS_MAX: usize = 10;

pub(super) struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}

/// A message in short.
pub(super) fn digest(wire: &[u8]) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(wire)
}

struct Io {
    thread: Thread,
    table: ConnTable<FakeStream>,
    /// `None`: the dispatch is on the same thread.
    ends: Option<IoEnds>,
}

/// The dispatch's thread, where it has one.
struct Apart {
    thread: Thread,
    ends: DispatchEnds,
}

struct World {
    rng: Rng,
    now: Now,
    ios: Vec<Io>,
    apart: Option<Apart>,
    witness: Witness,
    renderer: Renderer,
    orders: Arc<Orders<DispatchOrder>>,
    links: Vec<Link>,
    /// The thread that the system does not let run for a while.
    halted: Option<usize>,
    msgids: u64,
    loud: bool,
}

impl World {
    fn new(seed: u64, inline: bool, loud: bool) -> World {
        let mut rng = Rng(seed.wrapping_mul(131) + u64::from(inline));
        let now = Now {
            mono_ns: 1_000_000 * NS_PER_MS,
            wall_ms: 1_796_000_000_000,
        };
        let config = BrokerConfig {
            hwm: 20,
            max_slots_per_worker: 12,
            worker_buffer_bytes: 100 << rng.below(10),
            ..BrokerConfig::default()
        };
        let seeds = Seeds {
            hash: [seed, 2, 3, 4],
            ids: [seed, 9],
        };
        let broker = Broker::new(config, seeds, now);
        let agents = if inline { 1 } else { 3 };
        let threads: Vec<_> = (0..agents).map(|_| Thread::new()).collect();
        let dispatch_thread = Thread::new();
        let bell = match inline {
            true => Arc::clone(&threads[0].bell),
            false => Arc::clone(&dispatch_thread.bell),
        };
        let facts = Facts {
            started: Instant::now(),
            threading: "simulated",
            agents: Vec::new(),
        };
        let (desk, renderer) = AdminDesk::new(facts, first_msgid([seed, 1]), Arc::clone(&bell));
        let config = RingConfig {
            batches: 1 + rng.below(4) as usize,
            bytes_max: 1_000 << rng.below(8),
            batch_bytes: 100 << rng.below(6),
            batch_events: 1 + rng.below(4) as usize,
        };
        let limits = OutputConfig {
            client_buffer_bytes: 200 << rng.below(8),
            client_result_bytes: 500 << rng.below(10),
        };
        let mut outbox = RingOutbox::new(config);
        let mut inputs = Vec::new();
        let mut ios = Vec::new();
        for (number, thread) in threads.into_iter().enumerate() {
            let number = number as u8;
            let written = WrittenTable::new(300);
            let shared = (!inline).then(|| Arc::clone(&written));
            let outs = OutputTable::new(number, limits.clone(), shared);
            let ends = (!inline).then(|| {
                let (in_sender, in_receiver) = ring(config);
                let (out_sender, receiver) = ring(config);
                outbox.add_agent("io", out_sender, Arc::clone(&thread.bell), written);
                inputs.insert(0, (in_receiver, Arc::clone(&thread.bell)));
                IoEnds {
                    sink: RingSink::new(in_sender, Arc::clone(&bell), "io", config),
                    receiver,
                    dispatch_bell: Arc::clone(&bell),
                }
            });
            ios.push(Io {
                thread,
                table: ConnTable::new(number, table_config(), outs),
                ends,
            });
        }
        World {
            rng,
            now,
            ios,
            apart: (!inline).then_some(Apart {
                thread: dispatch_thread,
                ends: DispatchEnds { outbox, inputs },
            }),
            witness: Witness::new(Dispatch::new(broker, desk), loud),
            renderer,
            orders: Orders::new(),
            links: Vec::new(),
            halted: None,
            msgids: 0,
            loud,
        }
    }

    fn note(&self, text: impl FnOnce() -> String) {
        if self.loud {
            eprintln!("{} {}", self.now.mono_ns / NS_PER_MS, text());
        }
    }

    fn threads(&self) -> usize {
        self.ios.len() + usize::from(self.apart.is_some())
    }

    fn is_runnable(&self, number: usize) -> bool {
        match self.ios.get(number) {
            Some(io) => {
                let mine = self.links.iter().filter(|l| l.conn.agent() == number);
                io.thread.is_runnable(self.now.mono_ns)
                    || mine.into_iter().any(|l| l.peer.wire().has_edge())
            }
            None => {
                let apart = self.apart.as_ref().unwrap();
                apart.thread.is_runnable(self.now.mono_ns)
            }
        }
    }

    /// One step of a thread: a turn, or the two steps from there to its sleep.
    fn step(&mut self, number: usize) {
        if number < self.ios.len() {
            self.step_io(number);
        } else {
            self.step_dispatch();
        }
    }

    fn step_io(&mut self, number: usize) {
        let (now, io) = (self.now, &mut self.ios[number]);
        if io.thread.state == State::Drowsy {
            let ends = io.ends.as_ref();
            let for_room = ends.is_some_and(|ends| ends.sink.wants_room());
            return io.thread.fall_asleep(for_room);
        }
        if io.thread.state == State::Announced {
            let more = match &mut io.ends {
                Some(ends) => ends.has_work(&mut io.table),
                None => inline::has_work(&mut io.table, &mut self.witness, &self.orders, now),
            };
            let mut until_ns = io.table.next_deadline_ns();
            if io.ends.is_none() {
                let timer = self.witness.dispatch.broker.poll_timeout();
                until_ns = [until_ns, timer].into_iter().flatten().min();
            }
            io.thread.state = match more {
                true => State::Awake,
                false => State::Asleep { until_ns },
            };
            return;
        }
        for link in self.links.iter().filter(|l| l.conn.agent() == number) {
            if link.peer.wire().has_edge() {
                let (readable, writable, ended) = link.peer.wire().take_edge();
                io.table
                    .on_event(link.conn.slot(), readable, writable, ended);
            }
        }
        io.thread.awake();
        io.thread.state = State::Awake;
        // With more to do but nothing done, the next turn must do something.
        for idle_before in [false, true] {
            let (work, more) = match &mut io.ends {
                Some(ends) => {
                    let work = ends.turn(&mut io.table, now);
                    (work, ends.has_work(&mut io.table))
                }
                None => {
                    let (table, witness) = (&mut io.table, &mut self.witness);
                    let work = inline::turn(table, witness, &self.orders, now);
                    (work, inline::has_work(table, witness, &self.orders, now))
                }
            };
            if work || !more {
                if !work {
                    io.thread.state = State::Drowsy;
                }
                break;
            }
            assert!(!idle_before, "agent {number} looks for work it cannot do");
        }
    }

    fn step_dispatch(&mut self) {
        let now = self.now;
        let apart = self.apart.as_mut().unwrap();
        let (witness, ends) = (&mut self.witness, &mut apart.ends);
        if apart.thread.state == State::Drowsy {
            return apart.thread.fall_asleep(ends.outbox.wants_room());
        }
        if apart.thread.state == State::Announced {
            apart.thread.state = match ends.has_work(witness, &self.orders) {
                true => State::Awake,
                false => State::Asleep {
                    until_ns: witness.dispatch.broker.poll_timeout(),
                },
            };
            return;
        }
        apart.thread.awake();
        apart.thread.state = State::Awake;
        let ios = self.ios.iter_mut();
        let held = ios.map(|io| io.ends.as_ref().unwrap().held_bytes(&mut io.table));
        let held = held.sum();
        for idle_before in [false, true] {
            let (work, _) = ends.turn(witness, &self.orders, held, now, || ());
            let more = ends.has_work(witness, &self.orders);
            if work || !more {
                if !work {
                    apart.thread.state = State::Drowsy;
                }
                break;
            }
            assert!(!idle_before, "the dispatch looks for work it cannot do");
        }
    }

    fn connect(&mut self) {
        if self.links.iter().filter(|l| l.is_alive()).count() >= LINKS_MAX {
            return;
        }
        let (socket, ids) = match self.rng.below(10) {
            0..4 => (Socket::Frontend, 3),
            4..9 => (Socket::Backend, 3),
            _ => (Socket::Admin, 2),
        };
        let routing_id = format!("{}{}", socket.name(), self.rng.below(ids));
        let (peer, stream) = FakePeer::new(routing_id.as_bytes());
        {
            let mut wire = peer.wire();
            wire.travels = true;
            wire.write_room = self.rng.below(3_000) as usize;
        }
        let agent = if self.ios.len() == 1 {
            0
        } else {
            socket as usize
        };
        let table = &mut self.ios[agent].table;
        let conn = table.add(stream, socket, None, self.now.mono_ns);
        // The agent has just accepted it: it is not asleep.
        self.ios[agent].thread.state = State::Awake;
        self.note(|| format!("{routing_id} connects as {conn}"));
        self.links.push(Link::new(peer, socket, conn, routing_id));
    }

    fn random_link(&mut self) -> Option<usize> {
        let alive = self.links.iter().enumerate().filter(|(_, l)| l.is_alive());
        let alive: Vec<_> = alive.map(|(at, _)| at).collect();
        (!alive.is_empty()).then(|| *self.rng.pick(&alive))
    }

    fn act(&mut self) {
        let Some(at) = self.random_link() else { return };
        let rng = &mut self.rng;
        let link = &mut self.links[at];
        match rng.below(100) {
            0..35 => link.act(rng, &mut self.msgids),
            35..65 => {
                let bytes = match rng.chance(50) {
                    true => usize::MAX,
                    false => rng.below(400) as usize,
                };
                link.peer.wire().arrive(bytes);
            }
            65..97 => {
                let bytes = 1 << rng.below(18);
                link.peer.wire().give_room(bytes as usize);
                link.receive();
            }
            what => {
                if rng.chance(50) {
                    link.peer.wire().arrive(usize::MAX);
                }
                link.ended = true;
                link.peer.wire().end(what == 99);
                let text = format!("{} {} ends", link.routing_id, link.conn);
                self.note(|| text);
            }
        }
    }

    fn pass_time(&mut self, ms: u64) {
        self.now.mono_ns += ms * NS_PER_MS;
        self.now.wall_ms += ms;
    }

    fn random_step(&mut self) {
        match self.rng.below(100) {
            0..55 => {
                let halted = self.halted;
                let threads = (0..self.threads()).filter(|n| Some(*n) != halted);
                let runnable = threads.filter(|n| self.is_runnable(*n));
                let runnable: Vec<_> = runnable.collect();
                if !runnable.is_empty() {
                    let number = *self.rng.pick(&runnable);
                    self.step(number);
                }
            }
            55..93 => self.act(),
            93..96 => self.connect(),
            96 if self.rng.chance(40) => {
                self.renderer.step();
            }
            96 => {
                let number = self.rng.below(self.threads() as u64 + 1) as usize;
                self.halted = (number < self.threads()).then_some(number);
            }
            97 => self.witness.pause = Some(self.rng.chance(40)),
            _ => {
                let ms = 1 << self.rng.below(11);
                let ms = self.rng.below(ms) + 1;
                self.pass_time(ms);
            }
        }
    }

    /// Everything may run, the peers read everything and send nothing new.
    fn rest(&mut self) {
        self.witness.pause = Some(false);
        // The pause ends with the dispatch's next turn, whatever it sleeps for.
        let dispatching = self.threads() - 1;
        match &mut self.apart {
            Some(apart) => apart.thread.state = State::Awake,
            None => self.ios[dispatching].thread.state = State::Awake,
        }
        for _ in 0..ROUNDS_MAX {
            let mut moved = false;
            for link in &mut self.links {
                link.peer.wire().arrive(usize::MAX);
                link.peer.wire().give_room(1 << 30);
                link.receive();
            }
            moved |= self.renderer.step();
            for number in 0..self.threads() {
                if self.is_runnable(number) {
                    moved = true;
                    self.step(number);
                    self.check_sleepers();
                }
            }
            if !moved {
                return self.check_rest();
            }
        }
        panic!("no rest");
    }

    fn run(mut self) {
        for _ in 0..STEPS {
            self.random_step();
            self.check_sleepers();
        }
        self.rest();
        for _ in 0..STEPS / 4 {
            self.random_step();
            self.check_sleepers();
        }
        self.rest();
        for link in self.links.iter_mut().filter(|l| l.is_alive()) {
            link.ended = true;
            link.peer.wire().end(false);
        }
        self.rest();
        let ending = self.rng.chance(50);
        if ending {
            let bell = match &self.apart {
                Some(apart) => Arc::clone(&apart.thread.bell),
                None => Arc::clone(&self.ios[0].thread.bell),
            };
            self.orders.give(DispatchOrder::Shutdown, &bell).unwrap();
        }
        for _ in 0..8 {
            self.pass_time(5_000);
            self.rest();
        }
        assert_eq!(ending, self.witness.dispatch.ending == Ending::Done);
        for io in &self.ios {
            assert!(io.table.is_empty(), "connections are left");
        }
        assert!(self.witness.log.conns.values().all(|seen| seen.closed));
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().expect("a number"))
}

fn run(inline: bool) {
    let alone = number("EMQ_SIM_SEED");
    let seeds = match alone {
        Some(seed) => seed..seed + 1,
        None => 0..number("EMQ_SIM_SEEDS").unwrap_or(300),
    };
    for seed in seeds {
        let world = || World::new(seed, inline, alone.is_some()).run();
        if let Err(panic) = std::panic::catch_unwind(world) {
            eprintln!("failing seed: run it alone with EMQ_SIM_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn agents_joined_by_rings_lose_nothing_and_come_to_rest() {
    run(false);
}

#[test]
fn agents_on_one_thread_lose_nothing_and_come_to_rest() {
    run(true);
}
