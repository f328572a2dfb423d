//! A seeded simulation: brokers that come, go, hang, drain and refuse; connections that end in the
//! middle of everything; a kernel that takes a few messages at a time. What the callers are told is
//! compared with what the brokers really took.
//!
//! `EMQ_SIM_SEEDS` = ten times the number of seeds; `EMQ_SIM_SEED` = run this one alone.

use super::*;
use crate::dial::Target;
use crate::emqp::MessageBuilder;
use crate::frames::{OwnedMessage, split_wire};
use crate::ids::{NS_PER_MS, NS_PER_SEC, Socket};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// What one caller was told.
#[derive(Debug, Default, Clone)]
struct Told {
    accepted: Option<Accepted>,
    end: Option<Result<RawResult, CallError>>,
}

#[derive(Debug)]
struct Caller {
    number: u64,
    call: bool,
    told: Arc<Mutex<BTreeMap<u64, Told>>>,
}

impl Caller {
    fn tell(&self, tell: impl FnOnce(&mut Told)) {
        tell(self.told.lock().unwrap().entry(self.number).or_default());
    }
}

impl Deliver for Caller {
    fn accepted(&mut self, how: Accepted) {
        self.tell(|told| {
            assert!(
                told.accepted.is_none() && told.end.is_none(),
                "accepted twice"
            );
            told.accepted = Some(how);
        });
    }

    fn result(self, result: RawResult) {
        assert!(self.call, "a result that nobody asked for");
        self.tell(|told| {
            assert!(told.accepted.is_some() && told.end.is_none());
            told.end = Some(Ok(result));
        });
    }

    fn failed(self, error: CallError) {
        self.tell(|told| {
            assert!(told.end.is_none(), "ended twice");
            assert!(self.call || told.accepted.is_none(), "failed after its end");
            told.end = Some(Err(error));
        });
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Mood {
    Well,
    /// Takes and answers nothing.
    Hanging,
    /// Refuses as `draining`.
    Draining,
    /// Refuses as `queue-full`.
    Full,
}

struct Server {
    up: bool,
    mood: Mood,
    extensions: bool,
}

struct Conn {
    dial: u32,
    server: usize,
    /// Not given to the kernel yet.
    out: VecDeque<Vec<u8>>,
    /// On the way to the server.
    there: VecDeque<Vec<u8>>,
    /// On the way back.
    back: VecDeque<Vec<u8>>,
    notify_below: Option<usize>,
    hung_up: bool,
    abort: bool,
}

#[derive(Debug)]
struct FakeDial {
    server: usize,
    wanted: bool,
    connected: bool,
}

#[derive(Default)]
struct FakeNet {
    dials: BTreeMap<u32, FakeDial>,
    conns: BTreeMap<ConnId, Conn>,
    made: u32,
}

impl FakeNet {
    fn conn_of(&mut self, dial: u32) -> Option<&mut Conn> {
        self.conns.values_mut().find(|conn| conn.dial == dial)
    }
}

fn server_of(addr: &Addr) -> usize {
    match addr {
        Addr::Tcp { port, .. } => usize::from(*port),
        Addr::Ipc(_) => panic!("no such address here"),
    }
}

impl Net for FakeNet {
    fn dial(&mut self, target: Target) -> DialId {
        self.made += 1;
        let server = server_of(&target.addr);
        let wanted = self.dials.values().filter(|dial| dial.wanted);
        assert!(
            wanted.into_iter().all(|dial| dial.server != server),
            "an address is dialled twice"
        );
        let dial = FakeDial {
            server,
            wanted: true,
            connected: false,
        };
        self.dials.insert(self.made, dial);
        DialId(self.made)
    }

    fn hang_up(&mut self, dial: DialId) {
        self.dials.get_mut(&dial.0).expect("dialled").wanted = false;
        if let Some(conn) = self.conn_of(dial.0) {
            conn.hung_up = true;
        }
    }

    fn redial(&mut self, dial: DialId) {
        if let Some(conn) = self.conn_of(dial.0) {
            conn.abort = true;
        }
    }

    fn send(&mut self, conn: ConnId, pieces: &[&[u8]]) {
        let conn = self
            .conns
            .get_mut(&conn)
            .expect("open, or not told otherwise");
        assert!(!conn.hung_up, "sent behind hanging up");
        conn.out.push_back(pieces.concat());
    }

    fn pending_bytes(&mut self, conn: ConnId) -> usize {
        let conn = self.conns.get(&conn);
        conn.map_or(0, |conn| conn.out.iter().map(Vec::len).sum())
    }

    fn notify_writable(&mut self, conn: ConnId, below_bytes: usize) {
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.notify_below = Some(below_bytes);
        }
    }

    fn close(&mut self, _: ConnId) {
        panic!("nothing is accepted here");
    }
}

/// What is true of one message.
#[derive(Debug, Default)]
struct Truth {
    call: bool,
    resend: bool,
    publication: bool,
    taken: u32,
    confirmed: u32,
    results: u32,
    reached: u32,
}

const BROKERS: usize = 3;
const PUBLISHER: usize = 3;

struct World {
    rng: Rng,
    core: Core<Caller>,
    net: FakeNet,
    now: Now,
    servers: Vec<Server>,
    told: Arc<Mutex<BTreeMap<u64, Told>>>,
    truths: BTreeMap<u64, Truth>,
    strays: Arc<Strays>,
    next: u64,
    slot: u32,
}

fn addr(server: usize) -> Addr {
    format!("tcp://server:{server}")
        .parse()
        .expect("an address")
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng(seed);
        let brokers = 1 + rng.below(BROKERS as u64) as usize;
        let msgids = Msgids::new([rng.next(), rng.next()]);
        let strays = Arc::<Strays>::default();
        let core = Core::new(
            (0..brokers).map(addr).collect(),
            vec![addr(PUBLISHER)],
            msgids,
            [1, 2, 3, 4],
            Arc::clone(&strays),
        );
        let servers = (0..=BROKERS).map(|server| Server {
            up: rng.chance(70),
            mood: Mood::Well,
            extensions: server == PUBLISHER || rng.chance(75),
        });
        let servers = servers.collect();
        let mut world = World {
            rng,
            core,
            net: FakeNet::default(),
            now: Now {
                mono_ns: NS_PER_SEC,
                wall_ms: 0,
            },
            servers,
            told: Arc::default(),
            truths: BTreeMap::new(),
            strays,
            next: 1,
            slot: 0,
        };
        world.core.started(world.now, &mut world.net);
        world
    }

    fn submit(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        let publication = self.rng.chance(15);
        let call = !publication && self.rng.chance(30);
        let resend = self.rng.chance(30);
        let command = if publication {
            Command::Publish
        } else {
            Command::Request
        };
        let mut wire = Vec::new();
        let large = if self.rng.chance(3) {
            OUTPUT_BYTES_MAX
        } else {
            5
        };
        MessageBuilder::begin(&mut wire, command)
            .frame(&self.core.msgids.text(number))
            .frame(b"q")
            .last(&vec![b'x'; large]);
        let to = if publication {
            To::Publisher
        } else {
            To::Broker
        };
        self.truths.insert(
            number,
            Truth {
                call,
                resend,
                publication,
                ..Truth::default()
            },
        );
        let deliver = Caller {
            number,
            call,
            told: Arc::clone(&self.told),
        };
        let submission = Submission {
            number,
            to,
            wire,
            resend,
            accept_ns: (500 + self.rng.below(4_500)) * NS_PER_MS,
            result_ns: call.then(|| (5_000 + self.rng.below(5_000)) * NS_PER_MS),
            deliver,
        };
        self.core
            .command(Order::Send(submission), self.now, &mut self.net);
        number
    }

    fn sleep(&mut self, ms: u64) {
        self.now.mono_ns += ms * NS_PER_MS;
        let due =
            |core: &Core<Caller>, now: Now| core.poll_timeout().is_some_and(|at| at <= now.mono_ns);
        if due(&self.core, self.now) {
            self.core.timeout(self.now, &mut self.net);
        }
        assert!(self.core.is_done() || !due(&self.core, self.now));
    }

    /// One attempt to connect that has ended.
    fn connect(&mut self) {
        let waiting = self
            .net
            .dials
            .iter()
            .filter(|(_, dial)| dial.wanted && !dial.connected);
        let waiting: Vec<u32> = waiting.map(|(id, _)| *id).collect();
        if waiting.is_empty() {
            return;
        }
        let id = waiting[self.rng.below(waiting.len() as u64) as usize];
        let server = self.net.dials[&id].server;
        if !self.servers[server].up {
            let why = DialError::Connect("refused".to_owned());
            return self
                .core
                .dial_failed(DialId(id), &why, 100, self.now, &mut self.net);
        }
        self.slot += 1;
        let conn = ConnId::new(0, self.slot % 100, self.slot);
        self.net.dials.get_mut(&id).unwrap().connected = true;
        self.net.conns.insert(
            conn,
            Conn {
                dial: id,
                server,
                out: VecDeque::new(),
                there: VecDeque::new(),
                back: VecDeque::new(),
                notify_below: None,
                hung_up: false,
                abort: false,
            },
        );
        let info = PeerInfo {
            socket: Socket::Backend,
            routing_id: b"r".to_vec(),
            speaks_extensions: self.servers[server].extensions,
            remote: None,
        };
        let origin = Origin::Dialled(DialId(id));
        self.core
            .opened(conn, origin, &info, self.now, &mut self.net);
    }

    fn any_conn(&mut self) -> Option<ConnId> {
        let conns: Vec<ConnId> = self.net.conns.keys().copied().collect();
        (!conns.is_empty()).then(|| conns[self.rng.below(conns.len() as u64) as usize])
    }

    /// The kernel takes some messages.
    fn flush(&mut self, id: ConnId, most: u64) {
        let conn = self.net.conns.get_mut(&id).unwrap();
        for _ in 0..=self.rng.below(most) {
            conn.there.extend(conn.out.pop_front());
        }
        let pending: usize = conn.out.iter().map(Vec::len).sum();
        if conn.notify_below.is_some_and(|below| pending <= below) {
            conn.notify_below = None;
            self.core.writable(id, self.now, &mut self.net);
        }
    }

    /// The server reads a message and decides.
    fn serve(&mut self, id: ConnId) {
        let conn = self.net.conns.get_mut(&id).unwrap();
        let server = &self.servers[conn.server];
        if server.mood == Mood::Hanging {
            return;
        }
        let Some(wire) = conn.there.pop_front() else {
            return;
        };
        let mut spans = Vec::new();
        split_wire(&wire, &mut spans);
        let message = Message::new(&wire, &spans);
        let msgid = message.get(3).unwrap();
        let number = self.core.msgids.number(msgid).unwrap();
        let truth = self.truths.get_mut(&number).unwrap();
        truth.reached += 1;
        let answer = |command, frames: &[&[u8]]| {
            let head: [&[u8]; 4] = [b"", b"eMQP/1.0", command, b"new"];
            let message = OwnedMessage::from_frames([&head[..], frames].concat());
            message.view().wire().to_vec()
        };
        match server.mood {
            Mood::Draining if server.extensions => {
                conn.back
                    .push_back(answer(b"REJECT", &[msgid, b"draining"]));
            }
            Mood::Full if server.extensions && !truth.publication => {
                conn.back
                    .push_back(answer(b"REJECT", &[msgid, b"queue-full"]));
            }
            _ => {
                truth.taken += 1;
                if truth.publication {
                    return;
                }
                // The original confirms some.
                if server.extensions || self.rng.chance(50) {
                    truth.confirmed += 1;
                    conn.back.push_back(answer(b"REPLY", &[msgid]));
                }
                if truth.call && server.extensions {
                    truth.results += 1;
                    let result = answer(b"REPLY", &[b"{\"value\": 1}", msgid, b"ok"]);
                    conn.back.push_back(result);
                }
            }
        }
    }

    fn answer(&mut self, id: ConnId) {
        let conn = self.net.conns.get_mut(&id).unwrap();
        if let Some(wire) = conn.back.pop_front() {
            let mut spans = Vec::new();
            split_wire(&wire, &mut spans);
            let message = Message::new(&wire, &spans);
            self.core.message(id, &message, self.now, &mut self.net);
        }
    }

    /// The connection ends, now.
    fn end(&mut self, id: ConnId, why: &DialError) {
        // What the server has sent and what it has got may be read or be gone.
        while self.rng.chance(60) && !self.net.conns[&id].there.is_empty() {
            let before = self.net.conns[&id].there.len();
            self.serve(id);
            if self.net.conns[&id].there.len() == before {
                break;
            }
        }
        while self.rng.chance(60) && !self.net.conns[&id].back.is_empty() {
            self.answer(id);
        }
        let conn = self.net.conns.remove(&id).unwrap();
        self.core.lost(id, why, self.now, &mut self.net);
        for wire in conn.out.iter().rev() {
            let mut spans = Vec::new();
            split_wire(wire, &mut spans);
            let message = Message::new(wire, &spans);
            self.core.unsent(id, &message, self.now, &mut self.net);
        }
        self.core.closed(id, self.now, &mut self.net);
        let dial = self.net.dials.get_mut(&conn.dial).unwrap();
        dial.connected = false;
        if !dial.wanted {
            self.net.dials.remove(&conn.dial);
        }
    }

    /// What the state machine has asked for.
    fn endings(&mut self) {
        self.net
            .dials
            .retain(|_, dial| dial.wanted || dial.connected);
        let asked = self
            .net
            .conns
            .iter()
            .filter(|(_, conn)| conn.abort || (conn.hung_up && conn.out.is_empty()));
        let asked: Vec<ConnId> = asked.map(|(id, _)| *id).collect();
        for id in asked {
            self.end(id, &DialError::HungUp);
        }
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..25 => {
                self.submit();
            }
            25..35 => self.connect(),
            35..55 => {
                if let Some(conn) = self.any_conn() {
                    self.flush(conn, 5);
                }
            }
            55..70 => {
                if let Some(conn) = self.any_conn() {
                    self.serve(conn);
                }
            }
            70..86 => {
                if let Some(conn) = self.any_conn() {
                    self.answer(conn);
                }
            }
            86..89 => {
                if let Some(conn) = self.any_conn() {
                    self.end(conn, &DialError::Closed);
                }
            }
            89..92 => {
                let server = self.rng.below(self.servers.len() as u64) as usize;
                self.servers[server].up = self.rng.chance(70);
            }
            92..95 => {
                let server = self.rng.below(self.servers.len() as u64) as usize;
                let moods = [Mood::Well, Mood::Hanging, Mood::Draining, Mood::Full];
                self.servers[server].mood = moods[self.rng.below(4) as usize];
            }
            _ => {
                let ms = self.rng.below(700);
                self.sleep(ms);
            }
        }
        self.endings();
        self.check();
    }

    fn check(&self) {
        assert_eq!(self.core.entries.len(), self.core.deadlines.len());
        for route in &self.core.routes {
            for number in &route.queue {
                assert_eq!(self.core.entries[number].state, State::Waiting);
            }
        }
        let queued: usize = self.core.routes.iter().map(|route| route.queue.len()).sum();
        let waiting = self.core.entries.values();
        let waiting = waiting
            .filter(|entry| entry.state == State::Waiting)
            .count();
        assert_eq!(queued, waiting, "something waits where nobody looks");
        for (number, told) in self.told.lock().unwrap().iter() {
            let truth = &self.truths[number];
            match told.accepted {
                Some(Accepted::Confirmed) => assert!(truth.confirmed > 0, "{number} {told:?}"),
                Some(Accepted::Unconfirmed) => assert!(!truth.call),
                None => {}
            }
            match &told.end {
                Some(Ok(_)) => assert!(truth.results > 0),
                Some(Err(CallError::Send(error))) if !error.may_have_been_taken() => {
                    assert_eq!(truth.taken, 0, "{number} {error:?} {truth:?}");
                }
                Some(Err(CallError::NoResults)) => assert_eq!(truth.taken, 0),
                Some(Err(CallError::TimedOut | CallError::ConnectionLost)) => {
                    assert!(truth.confirmed > 0, "{number} {told:?}");
                }
                _ => {}
            }
        }
        for (number, truth) in &self.truths {
            assert!(
                truth.resend || truth.taken <= 1,
                "{number} ran twice: {truth:?}"
            );
        }
    }

    /// Everybody is well: everything submitted now must be accepted.
    fn recover(&mut self) {
        for server in &mut self.servers {
            server.up = true;
            server.mood = Mood::Well;
        }
        // Old time-outs, connections that hang.
        for _ in 0..40 {
            self.work();
            self.sleep(300);
        }
        let fresh: Vec<u64> = (0..20).map(|_| self.submit()).collect();
        for _ in 0..40 {
            self.work();
            self.sleep(10);
        }
        let told = self.told.lock().unwrap().clone();
        for number in fresh {
            let told = &told[&number];
            let no_results = told.end == Some(Err(CallError::NoResults));
            let accepted = told.accepted.is_some() && told.end.as_ref().is_none_or(Result::is_ok);
            assert!(accepted || no_results, "{number}: {told:?}");
        }
    }

    fn work(&mut self) {
        for _ in 0..30 {
            self.connect();
            let conns: Vec<ConnId> = self.net.conns.keys().copied().collect();
            for conn in conns {
                self.flush(conn, 20);
                for _ in 0..20 {
                    self.serve(conn);
                    self.answer(conn);
                    self.answer(conn);
                }
            }
            self.endings();
            self.check();
        }
    }

    fn run(mut self, steps: usize) {
        for _ in 0..steps {
            self.step();
        }
        if self.rng.chance(80) {
            self.recover();
        }
        self.submit();
        let within_ns = self.rng.below(3_000) * NS_PER_MS;
        self.core
            .command(Order::Close { within_ns }, self.now, &mut self.net);
        let late = self.submit();
        self.sleep(3_000);
        self.endings();
        self.check();
        assert!(self.core.is_done());
        let told = self.told.lock().unwrap();
        assert_eq!(told[&late].end, Some(Err(SendError::Closed.into())));
        for (number, truth) in &self.truths {
            let told = &told[number];
            let ended = told.end.is_some() || (told.accepted.is_some() && !truth.call);
            assert!(ended, "{number} has no end: {told:?} {truth:?}");
        }
        assert_eq!(self.strays.messages.load(Ordering::Relaxed), 0);
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().expect("a number"))
}

#[test]
fn callers_are_told_what_the_brokers_did() {
    let seeds = match number("EMQ_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        // One seed here is as much work as ten of the other simulations.
        None => 0..number("EMQ_SIM_SEEDS").map_or(100, |seeds| seeds.div_ceil(10)),
    };
    for seed in seeds {
        let run = std::panic::catch_unwind(|| World::new(seed).run(400));
        if let Err(panic) = run {
            eprintln!("failing seed: run it alone with EMQ_SIM_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
