//! Mutation fuzzing of the state machine: arbitrary frames on both sockets, between connections
//! that come and go. Nothing may panic and every invariant must hold.
//!
//! `EMQ_FUZZ_ITERS` = number of messages; `EMQ_FUZZ_SEED` = another start.

use eventmq::broker::{Broker, BrokerConfig, Seeds};
use eventmq::frames::{Message, OwnedMessage, split_wire};
use eventmq::ids::{ConnId, Now, Socket};
use eventmq::link::{CloseReason, OutClass, Outbox, PeerInfo};
use std::collections::VecDeque;

const RUN: &str = r#"["run", {"callable": "a", "path": "p", "args": [], "kwargs": {}, "class_args": [], "class_kwargs": {}}]"#;

/// Messages that mean something, to be damaged.
const SEEDS: [&[&str]; 22] = [
    &["", "eMQP/1.0", "REQUEST", "m1", "default", "", "{}"],
    &[
        "",
        "eMQP/1.0",
        "REQUEST",
        "m1",
        "a",
        "reply-requested",
        "{}",
        "extra",
    ],
    &[
        "",
        "eMQP/1.0",
        "REQUEST",
        "m2",
        "",
        "reply-requested,timeout:1,guarantee",
        "{}",
    ],
    &[
        "",
        "eMQP/1.0",
        "REQUEST",
        "m2",
        "b",
        "retry-count:3,delay:0",
        "{}",
    ],
    &[
        "",
        "eMQP/1.0",
        "INFORM",
        "i",
        "[[10, \"default\"], [5.5, \"a\"]]",
        "worker",
    ],
    &[
        "",
        "eMQP/1.0",
        "INFORM",
        "i",
        "[[1, \"b\"]]",
        "worker",
        "completions,slots:3,instance:T",
    ],
    &[
        "",
        "eMQP/1.0",
        "INFORM",
        "i",
        "",
        "worker",
        "instance:T,running:m1+m2,heartbeat:9",
    ],
    &["", "eMQP/1.0", "INFORM", "i", "[]", "worker"],
    &["", "eMQP/1.0", "INFORM", "i", "", "scheduler", "results"],
    &["", "eMQP/1.0", "INFORM", "i", "", "scheduler"],
    &["", "eMQP/1.0", "READY", "r"],
    &["", "eMQP/1.0", "READY", "r", "m1", "ok"],
    &["", "eMQP/1.0", "READY", "r", "m2", "refused"],
    &["", "eMQP/1.0", "REPLY", "r", "3", "m1"],
    &["", "eMQP/1.0", "REPLY", "r", "3", "m2", "error"],
    &[
        "",
        "eMQP/1.0",
        "SCHEDULE",
        "s",
        "q",
        "run_count:3",
        "5",
        RUN,
        "",
    ],
    &[
        "",
        "eMQP/1.0",
        "UNSCHEDULE",
        "s",
        "q",
        "",
        "-1",
        RUN,
        "* * * * *",
    ],
    &["", "eMQP/1.0", "HEARTBEAT", "h", "1.0"],
    &["", "eMQP/1.0", "KBYE", "k"],
    &["", "eMQP/1.0", "DISCONNECT", "d"],
    &["", "eMQP/1.0", "STATUS", "d"],
    &["", "eMQP/1.0", "ACK", "d", "i"],
];

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Keeps the last messages for `unsent`.
#[derive(Default)]
struct Output {
    sent: VecDeque<(ConnId, Vec<u8>)>,
    room: usize,
}

impl Output {
    fn put(&mut self, to: ConnId, wire: Vec<u8>) {
        let mut spans = Vec::new();
        assert_eq!(
            split_wire(&wire, &mut spans),
            Some(wire.len()),
            "whole messages are sent"
        );
        self.room = self.room.saturating_sub(1);
        self.sent.push_back((to, wire));
        if self.sent.len() > 64 {
            self.sent.pop_front();
        }
    }
}

impl Outbox for Output {
    fn forward(&mut self, to: ConnId, _class: OutClass, message: &Message<'_>) {
        self.put(to, message.wire().to_vec());
    }
    fn send(&mut self, to: ConnId, _class: OutClass, pieces: &[&[u8]]) {
        self.put(to, pieces.concat());
    }
    fn close(&mut self, _conn: ConnId, _reason: CloseReason) {}
    fn release(&mut self, _conn: ConnId) {}
    fn pending_bytes(&mut self, conn: ConnId) -> usize {
        conn.slot() * 100
    }
    fn notify_writable(&mut self, _conn: ConnId, _below_bytes: usize) {}
    fn set_never_paused(&mut self, _conn: ConnId, _never_paused: bool) {}
    fn pause_input(&mut self, _socket: Socket, _paused: bool) {}
    fn has_room(&self) -> bool {
        self.room > 0
    }
}

fn damage(rng: &mut Rng, frames: &mut Vec<Vec<u8>>) {
    for _ in 0..rng.below(3) {
        if frames.is_empty() {
            return;
        }
        let at = rng.below(frames.len());
        match rng.below(9) {
            0 => {
                frames.remove(at);
            }
            1 => frames.insert(at, vec![rng.next() as u8; rng.below(5)]),
            2 => frames.truncate(at),
            3 => frames[at] = vec![b'z'; 254 + rng.below(4)],
            4 => frames[at].clear(),
            5 => {
                let other = rng.below(frames.len());
                frames.swap(at, other);
            }
            6 => frames[at].push(rng.next() as u8),
            _ => {
                let len = frames[at].len();
                if len > 0 {
                    let byte = rng.below(len);
                    frames[at][byte] = rng.next() as u8;
                }
            }
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// One connection slot: the connection and whether it is open.
struct Slot {
    conn: ConnId,
    socket: Socket,
    open: bool,
}

fn reopen(slot: &mut Slot, id: usize, broker: &mut Broker, now: Now, out: &mut Output) {
    let old = slot.conn;
    slot.conn = ConnId::new(old.agent() as u8, old.slot() as u32, old.generation() + 1);
    slot.open = true;
    let info = PeerInfo {
        socket: slot.socket,
        routing_id: vec![0xff, id as u8],
        speaks_extensions: id.is_multiple_of(2),
        remote: None,
    };
    broker.handle_opened(slot.conn, info, now, out);
}

fn lose(slot: &mut Slot, unsent: usize, broker: &mut Broker, now: Now, out: &mut Output) {
    slot.open = false;
    broker.handle_lost(slot.conn, now, out);
    let sent = std::mem::take(&mut out.sent);
    for (conn, wire) in sent
        .iter()
        .rev()
        .filter(|(conn, _)| *conn == slot.conn)
        .take(unsent)
    {
        let mut spans = Vec::new();
        split_wire(wire, &mut spans);
        broker.handle_unsent(*conn, &Message::new(wire, &spans), now, out);
    }
    broker.handle_closed(slot.conn, now, out);
}

#[test]
fn arbitrary_messages_never_break_the_broker() {
    let mut rng = Rng(number("EMQ_FUZZ_SEED", 0x2545_f491_4f6c_dd1d));
    let mut now = Now {
        mono_ns: 1_000_000_000,
        wall_ms: 1_796_000_000_000,
    };
    let config = BrokerConfig {
        hwm: 5,
        max_queues: 6,
        max_slots_per_worker: 9,
        worker_buffer_bytes: 900,
        max_memory_bytes: 40_000,
        memory_pause_ms: 500,
        kill_grace_period_ms: 2_000,
        late_reply_window_ms: 1_000,
        queue_grace_ms: 700,
        latency_queues: 3,
        ..BrokerConfig::default()
    };
    let mut broker = Broker::new(config.clone(), Seeds::default(), now);
    let mut out = Output::default();
    let mut slots: Vec<Slot> = (0..14)
        .map(|slot| {
            let socket = if slot % 2 == 0 {
                Socket::Frontend
            } else {
                Socket::Backend
            };
            Slot {
                conn: ConnId::new(socket as u8, slot, 0),
                socket,
                open: false,
            }
        })
        .collect();
    for round in 0..number("EMQ_FUZZ_ITERS", 60_000) {
        out.room = 1 + rng.below(6);
        let at = rng.below(slots.len());
        if !slots[at].open {
            // Two slots share a routing id: take-overs happen.
            reopen(&mut slots[at], at % 10, &mut broker, now, &mut out);
        }
        match rng.below(60) {
            0 => {
                let unsent = rng.below(8);
                lose(&mut slots[at], unsent, &mut broker, now, &mut out);
            }
            1 => {
                now.mono_ns += rng.next() % 3_000_000_000;
                broker.begin_turn(now);
                broker.handle_timeout(now, &mut out);
            }
            2 => broker.handle_writable(slots[at].conn, now, &mut out),
            3 => {
                let head = OwnedMessage::from_frames(&SEEDS[rng.below(SEEDS.len())][..4]);
                broker.handle_too_large(slots[at].conn, &head.view(), now, &mut out);
            }
            4 => broker.handle_activity(slots[at].conn, now, &mut out),
            5 => broker.set_external_bytes(rng.below(3) * 20_000),
            6 if rng.below(20) == 0 => {
                broker.begin_shutdown(now, &mut out);
            }
            _ => {
                let seed = SEEDS[rng.below(SEEDS.len())];
                let mut frames: Vec<_> = seed.iter().map(|f| f.as_bytes().to_vec()).collect();
                damage(&mut rng, &mut frames);
                let message = OwnedMessage::from_frames(&frames);
                broker.handle_message(slots[at].conn, &message.view(), now, &mut out);
            }
        }
        broker.check_invariants();
        while broker.has_pending_output() {
            out.room = 1 + rng.below(3);
            broker.poll_output(now, &mut out);
            broker.check_invariants();
        }
        out.room = 100;
        broker.poll_output(now, &mut out);
        if round % 1_000 == 0 {
            let _ = (
                broker.status(now),
                broker.workers(now),
                broker.schedulers(now),
            );
            let _ = broker.latency().render();
        }
        if broker.is_finished() || round % 20_000 == 19_999 {
            broker.end_shutdown(now, &mut out);
            while !broker.is_finished() {
                out.room = 1 + rng.below(3);
                broker.poll_output(now, &mut out);
            }
            broker.check_invariants();
            broker = Broker::new(config.clone(), Seeds::default(), now);
            for slot in &mut slots {
                slot.open = false;
            }
        }
    }
}
