//! What surrounds the scheduler in the simulation: a broker, a store, the clocks, and chance.

use crate::model::{Model, Pace};
use eventmq::addr::Addr;
use eventmq::dial::{DialError, DialId, Net, Node, Origin, Target};
use eventmq::emqp::first_msgid;
use eventmq::frames::OwnedMessage;
use eventmq::ids::{ConnId, Now, Socket};
use eventmq::link::PeerInfo;
use eventmq::scheduler::cron::Cron;
use eventmq::scheduler::identity::Identity;
use eventmq::scheduler::ledger::{Answer, Health, Lease, Loaded, Request, StoreKind};
use eventmq::scheduler::node::{SchedulerCommand, SchedulerConfig, SchedulerNode, StorePort};
use eventmq::scheduler::record::Record;
use eventmq::scheduler::session::SessionConfig;
use eventmq::scheduler::timetable::Misfire;
use eventmq::scheduler::zone::Zone;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

const JOBS: u64 = 6;
const EXPRESSIONS: [&str; 7] = [
    "* * * * *",
    "*/5 * * * *",
    "30 2 * * *",
    "0 0 1,15 * 1",
    "* * * * * */30",
    "0 12 l * *",
    "0 3 * * 0#1",
];
const ZONES: [&str; 3] = ["UTC", "Europe/Berlin", "Australia/Lord_Howe"];

/// A small generator: xorshift64*.
#[derive(Debug)]
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

#[derive(Debug, Clone, Default)]
struct Port(Rc<RefCell<Vec<Request>>>);

impl StorePort for Port {
    fn ask(&mut self, request: Request) {
        let mut asked = self.0.borrow_mut();
        assert!(asked.is_empty(), "two requests at a time");
        asked.push(request);
    }
}

/// The shell: what was sent, and what was asked for.
#[derive(Debug, Default)]
struct Shell {
    dialled: bool,
    hung_up: bool,
    sent: Vec<(ConnId, Vec<Vec<u8>>)>,
    full: bool,
    wants_writable: bool,
    open: Option<ConnId>,
}

impl Net for Shell {
    fn dial(&mut self, _: Target) -> DialId {
        assert!(!std::mem::replace(&mut self.dialled, true), "dialled twice");
        DialId(0)
    }

    fn hang_up(&mut self, _: DialId) {
        self.hung_up = true;
    }

    fn redial(&mut self, _: DialId) {
        panic!("nothing here is silent");
    }

    fn send(&mut self, conn: ConnId, pieces: &[&[u8]]) {
        assert_eq!(self.open, Some(conn), "sent on a connection that is gone");
        let wire = pieces.concat();
        let mut spans = Vec::new();
        let len = eventmq::frames::split_wire(&wire, &mut spans);
        assert_eq!(len, Some(wire.len()));
        let message = eventmq::frames::Message::new(&wire, &spans);
        self.sent
            .push((conn, message.frames().map(<[u8]>::to_vec).collect()));
    }

    fn pending_bytes(&mut self, _: ConnId) -> usize {
        if self.full { usize::MAX } else { 0 }
    }

    fn notify_writable(&mut self, _: ConnId, _: usize) {
        self.wants_writable = true;
    }

    fn close(&mut self, _: ConnId) {}
}

pub(crate) struct World {
    chance: Chance,
    now: Now,
    misfire: Misfire,
    node: SchedulerNode<Port>,
    port: Port,
    shell: Shell,
    conns: u32,
    registered: bool,
    store_up: bool,
    store: BTreeMap<Identity, Record>,
    model: Model,
    identities: BTreeMap<Identity, usize>,
    /// Jobs that were scheduled or unscheduled since this process began.
    touched: BTreeSet<usize>,
    /// Runs sent on this connection that have no answer: when, which job, the message.
    unanswered: Vec<(u64, usize, Vec<Vec<u8>>)>,
    serving: bool,
    /// Runs the model wants and that are not sent yet.
    owed: BTreeMap<usize, usize>,
    sent: u64,
    incarnation: u64,
}

fn call(n: usize) -> String {
    format!(
        r#"["run", {{"callable": "f", "path": "jobs", "args": [{n}], "kwargs": {{}}, "class_args": [], "class_kwargs": {{}}}}]"#
    )
}

fn node(misfire: Misfire, port: &Port, incarnation: u64) -> SchedulerNode<Port> {
    let config = SchedulerConfig {
        broker: "tcp://127.0.0.1:1".parse::<Addr>().unwrap(),
        session: SessionConfig {
            heartbeat_interval_ms: None,
            silence_ms: 15_000,
            ack_ms: 5_000,
        },
        misfire,
        schedules_max: 1_000,
        schedule_bytes_max: 1 << 20,
        store: StoreKind::Own,
    };
    SchedulerNode::new(
        config,
        port.clone(),
        first_msgid([incarnation, incarnation << 40]),
    )
}

impl World {
    pub(crate) fn new(seed: u64) -> World {
        let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let misfire = chance.pick(&[Misfire::One, Misfire::All, Misfire::None]);
        let port = Port::default();
        // From 2026 on, and well before a change of the clocks now and then.
        let wall_ms = 1_767_225_600_000 + chance.below(400) * 86_400_000 + chance.below(86_400_000);
        let identities = (0..JOBS as usize).map(|n| {
            let (identity, _) = Identity::of_message(&call(n)).unwrap();
            (identity, n)
        });
        World {
            now: Now {
                mono_ns: 1_000_000_000,
                wall_ms,
            },
            misfire,
            node: node(misfire, &port, 0),
            port,
            shell: Shell::default(),
            conns: 0,
            registered: false,
            store_up: !chance.one_in(8),
            store: BTreeMap::new(),
            model: Model::new(misfire),
            identities: identities.collect(),
            touched: BTreeSet::new(),
            unanswered: Vec::new(),
            serving: true,
            owed: BTreeMap::new(),
            sent: 0,
            incarnation: 0,
            chance,
        }
    }

    /// Runs so many steps; the number of runs sent.
    pub(crate) fn run(mut self, steps: usize) -> u64 {
        self.node.started(self.now, &mut self.shell);
        self.settle();
        for _ in 0..steps {
            self.step();
            self.settle();
            self.check();
        }
        self.sent
    }

    fn step(&mut self) {
        match self.chance.below(16) {
            0..=4 => self.time_passes(),
            5 => self.clock_is_set(),
            6..=8 => self.schedule(),
            9 => self.unschedule(),
            10 => self.nonsense(),
            11 | 12 if self.shell.open.is_none() => self.connect(),
            11 => self.disconnect(),
            12 => self.answer_runs(),
            13 => self.store_up = !self.store_up,
            14 if self.chance.one_in(3) => self.restart(),
            14 => {}
            _ => self.fill_or_empty(),
        }
    }

    fn time_passes(&mut self) {
        let units = [
            1, 40, 1_000, 4_000, 10_000, 60_000, 300_000, 3_600_000, 40_000_000,
        ];
        let ms = self.chance.pick(&units) * (1 + self.chance.below(3)) + self.chance.below(3);
        self.now.mono_ns += ms * 1_000_000;
        self.now.wall_ms += ms;
    }

    fn clock_is_set(&mut self) {
        let jumps = [1_500, 61_000, 3_600_000, 5 * 3_600_000, 86_400_000];
        let ms = self.chance.pick(&jumps) + self.chance.below(997);
        if self.chance.one_in(2) {
            self.now.wall_ms += ms;
        } else {
            self.now.wall_ms -= ms;
        }
    }

    fn deliver(&mut self, frames: &[&str]) {
        let Some(conn) = self.shell.open else { return };
        let head = ["", "eMQP/1.0"];
        let message = OwnedMessage::from_frames(head.iter().chain(frames));
        self.node
            .message(conn, &message.view(), self.now, &mut self.shell);
    }

    fn schedule(&mut self) {
        if self.shell.open.is_none() {
            return;
        }
        let n = self.chance.below(JOBS) as usize;
        let mut headers = vec!["guarantee".to_owned(), "timeout:5".to_owned()];
        let hasty = self.chance.one_in(2);
        if !hasty {
            headers.push("nohaste".to_owned());
        }
        let left = match self.chance.below(4) {
            0 => Some(self.chance.below(5) as u32),
            _ => None,
        };
        headers.extend(left.map(|left| format!("run_count:{left}")));
        let (pace, interval, cron) = if self.chance.one_in(2) {
            let secs = self.chance.pick(&[3, 7, 60, 3_600, 100_000]);
            (Pace::Every(secs * 1_000), secs.to_string(), "")
        } else {
            let cron = self.chance.pick(&EXPRESSIONS);
            let zone = self.chance.pick(&ZONES);
            headers.push(format!("tz:{zone}"));
            let pace = Pace::Cron(Cron::parse(cron).unwrap(), Zone::named(zone).unwrap());
            (pace, "-1".to_owned(), cron)
        };
        let (headers, call) = (headers.join(","), call(n));
        self.deliver(&["SCHEDULE", "m", "q", &headers, &interval, &call, cron]);
        self.touched.insert(n);
        self.model.put(n, pace, left, hasty, self.now);
    }

    fn unschedule(&mut self) {
        if self.shell.open.is_some() {
            let n = self.chance.below(JOBS) as usize;
            self.deliver(&["UNSCHEDULE", "m", "q", "guarantee", "-1", &call(n), ""]);
            self.touched.insert(n);
            self.model.jobs.remove(&n);
        }
    }

    fn nonsense(&mut self) {
        let call = call(0);
        let wrong: [&[&str]; 8] = [
            &["SCHEDULE", "m", "q", "", "0", &call, ""],
            &["SCHEDULE", "m", "q", "", "-1", &call, "0 0 31 2 *"],
            &["SCHEDULE", "m", "q", "", "5", "[]", ""],
            &["SCHEDULE", "m", "q", "", "5"],
            &["SCHEDULE", "m", "q", "run_count:x", "5", &call, ""],
            &["UNSCHEDULE", "m", "q", "", "5", "{", ""],
            &["NONSENSE", "m"],
            &["ACK", "m", "nothing asked"],
        ];
        let frames = self.chance.pick(&wrong);
        self.deliver(frames);
    }

    fn connect(&mut self) {
        if !self.shell.dialled || self.shell.hung_up {
            return;
        }
        self.conns += 1;
        let conn = ConnId::new(0, 1, self.conns);
        self.shell.open = Some(conn);
        self.shell.full = false;
        let info = PeerInfo {
            socket: Socket::Backend,
            routing_id: b"broker".to_vec(),
            speaks_extensions: true,
            remote: None,
        };
        let origin = Origin::Dialled(DialId(0));
        self.node
            .opened(conn, origin, &info, self.now, &mut self.shell);
        let (_, inform) = self.shell.sent.pop().expect("an INFORM");
        assert_eq!(inform[2], b"INFORM");
        let msgid = String::from_utf8(inform[3].clone()).unwrap();
        self.deliver(&["ACK", "m", &msgid]);
        self.registered = true;
    }

    /// The connection ends; some of what was sent last was not written.
    fn disconnect(&mut self) {
        let Some(conn) = self.shell.open.take() else {
            return;
        };
        self.registered = false;
        let gone = DialError::Closed;
        self.node.lost(conn, &gone, self.now, &mut self.shell);
        let unsent = self.chance.below(4);
        for _ in 0..unsent {
            let Some((_, n, frames)) = self.unanswered.pop() else {
                break;
            };
            let message = OwnedMessage::from_frames(&frames);
            self.node
                .unsent(conn, &message.view(), self.now, &mut self.shell);
            *self.owed.entry(n).or_default() += 1;
        }
        self.unanswered.clear();
        self.node.closed(conn, self.now, &mut self.shell);
    }

    /// The broker takes a run, or refuses it.
    fn answer_runs(&mut self) {
        if self.unanswered.is_empty() {
            return;
        }
        let at = self.chance.below(self.unanswered.len() as u64) as usize;
        let (_, n, frames) = self.unanswered.remove(at);
        let msgid = String::from_utf8(frames[3].clone()).unwrap();
        match self.chance.below(3) {
            0 => self.deliver(&["REPLY", "m", &msgid]),
            1 => self.deliver(&["REJECT", "m", &msgid, "queue-full"]),
            _ => {
                self.deliver(&["REJECT", "m", &msgid, "draining"]);
                *self.owed.entry(n).or_default() += 1;
            }
        }
        // An answer that comes again is nobody's.
        self.deliver(&["REJECT", "m", &msgid, "draining"]);
    }

    fn fill_or_empty(&mut self) {
        if self.shell.full {
            self.shell.full = false;
            if std::mem::take(&mut self.shell.wants_writable)
                && let Some(conn) = self.shell.open
            {
                self.node.writable(conn, self.now, &mut self.shell);
            }
        } else if self.misfire != Misfire::All {
            // With so many runs the limit on those that wait would come into play.
            self.shell.full = self.shell.open.is_some();
        }
    }

    /// In order, or killed.
    fn restart(&mut self) {
        if self.chance.one_in(2) {
            self.serving = false;
            let down = SchedulerCommand::Shutdown;
            self.node.command(down, self.now, &mut self.shell);
            self.settle();
            self.check();
            assert!(self.node.is_done() && self.shell.hung_up == self.shell.dialled);
            self.serving = true;
        }
        self.incarnation += 1;
        self.port = Port::default();
        self.shell = Shell::default();
        self.registered = false;
        self.node = node(self.misfire, &self.port, self.incarnation);
        // Runs that waited for the broker's socket are gone with the process, not repeated.
        self.owed.clear();
        self.touched.clear();
        self.unanswered.clear();
        self.model.jobs.clear();
        self.model.forget_clock();
        let away = self.chance.below(3) * self.chance.pick(&[1_000, 3_600_000, 86_400_000]);
        self.now.wall_ms += away;
        self.now.mono_ns = 1_000_000_000;
        self.node.started(self.now, &mut self.shell);
    }

    /// Turns until nothing happens without time.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            if self
                .node
                .poll_timeout()
                .is_some_and(|at| at <= self.now.mono_ns)
            {
                self.node.timeout(self.now, &mut self.shell);
            }
            self.node.after_input(self.now, &mut self.shell);
            let request = self.port.0.borrow_mut().pop();
            if let Some(request) = request {
                let answer = self.carry_out(request);
                let command = SchedulerCommand::Store(answer);
                self.node.command(command, self.now, &mut self.shell);
                continue;
            }
            if self
                .node
                .poll_timeout()
                .is_none_or(|at| at > self.now.mono_ns)
                || self.node.is_done()
            {
                self.model.look(self.now);
                if self.registered && self.serving {
                    for (n, runs) in self.model.take(self.now) {
                        *self.owed.entry(n).or_default() += runs;
                    }
                }
                return;
            }
        }
        panic!("it does not come to rest");
    }

    fn carry_out(&mut self, request: Request) -> Answer {
        if !self.store_up {
            return Answer::Failed("away".to_owned());
        }
        match request {
            Request::Load => {
                self.take_over_stored();
                Answer::Loaded(Loaded {
                    records: self.store.values().cloned().collect(),
                    ..Loaded::default()
                })
            }
            Request::Lease => Answer::Leased(Lease {
                ours: true,
                version: 0,
                others: false,
            }),
            Request::Write(batch) => {
                for (identity, due_ms) in &batch.fires {
                    let kept = batch.put.iter().any(|record| record.identity == *identity);
                    let gone = batch.delete.contains(identity);
                    assert!(kept || gone, "a run at {due_ms} without its state");
                }
                for record in batch.put {
                    self.store.insert(record.identity, record);
                }
                for identity in batch.delete {
                    self.store.remove(&identity);
                }
                Answer::Written(Vec::new())
            }
        }
    }

    /// What is stored and not known by now is the model's, too.
    fn take_over_stored(&mut self) {
        for (identity, record) in &self.store {
            let n = self.identities[identity];
            let schedule = record.schedule().expect("what was stored by us");
            if self.touched.contains(&n) {
                continue;
            }
            let timing = record.timing.expect("stored by us");
            let pace = match &schedule.pace {
                eventmq::scheduler::schedule::Pace::Every(ms) => Pace::Every(*ms),
                eventmq::scheduler::schedule::Pace::Cron(cron, zone) => {
                    Pace::Cron((**cron).clone(), zone.clone())
                }
            };
            let left = schedule.run_count;
            self.model
                .restore(n, pace, left, timing.due_ms, timing.saved_ms, self.now);
        }
    }

    /// What was sent is what the model wants; what is stored is what the model has.
    fn check(&mut self) {
        for (_, frames) in std::mem::take(&mut self.shell.sent) {
            if frames[2] != b"REQUEST" {
                assert_eq!(frames[2], b"KBYE");
                continue;
            }
            assert_eq!(
                frames[4..6],
                [b"q".to_vec(), b"reply-requested,timeout:5".to_vec()]
            );
            let n = (0..JOBS as usize).find(|n| call(*n).as_bytes() == frames[6]);
            let n = n.expect("a job of ours");
            let owed = self.owed.get_mut(&n).filter(|owed| **owed > 0);
            *owed.unwrap_or_else(|| panic!("a run of job {n} too many")) -= 1;
            self.sent += 1;
            self.unanswered
                .push((self.now.mono_ns + 60_000_000_000, n, frames));
        }
        let now_ns = self.now.mono_ns;
        self.unanswered.retain(|(until_ns, ..)| *until_ns > now_ns);
        self.owed.retain(|_, owed| *owed > 0);
        if self.registered && self.serving && !self.shell.full {
            assert!(
                self.owed.is_empty(),
                "runs that were not sent: {:?}",
                self.owed
            );
        }
        if self.node.store_health() == Health::Up {
            let stored: Vec<usize> = self.store.keys().map(|id| self.identities[id]).collect();
            let known: Vec<usize> = self.model.jobs.keys().copied().collect();
            assert_eq!(
                stored.iter().collect::<BTreeSet<_>>(),
                known.iter().collect()
            );
            for (identity, record) in &self.store {
                let job = &self.model.jobs[&self.identities[identity]];
                let schedule = record.schedule().expect("what was stored by us");
                let due_ms = i128::from(record.timing.expect("stored by us").due_ms);
                assert_eq!(schedule.run_count, job.left, "{record:?} {job:?}");
                // A due time never has the key of the one before, however the clock was set.
                let moved = i128::from(matches!(job.pace, Pace::Every(_)));
                let allowed = job.due_ms..=job.due_ms + moved;
                assert!(allowed.contains(&due_ms), "{record:?} {job:?}");
            }
        }
    }
}
