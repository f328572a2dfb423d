//! The state machine with workers, queues and jobs of many shapes, driven without any I/O.
//!
//! `direct`: a worker is free when the REQUEST comes. `backlog`: jobs always wait, and a READY is
//! answered with the next one. Names tell workers × queues; `all`: every worker is in all queues.

use eventmq::broker::{Broker, BrokerConfig, Seeds};
use eventmq::frames::{Message, OwnedMessage};
use eventmq::ids::{ConnId, Now, Socket};
use eventmq::link::{CloseReason, OutClass, Outbox, PeerInfo};
use std::collections::VecDeque;
use std::hint::black_box;

/// Where the msgid of a REQUEST lies in wire form: behind `'', 'eMQP/1.0', 'REQUEST'`.
const MSGID_AT: usize = 2 + 10 + 9 + 2;

/// Keeps nothing but who was handed which job.
#[derive(Default)]
struct Null {
    handed: VecDeque<(u32, ConnId)>,
    bytes: usize,
}

impl Outbox for Null {
    fn forward(&mut self, to: ConnId, class: OutClass, message: &Message<'_>) {
        let wire = message.wire();
        self.bytes += wire.len();
        if class == OutClass::Work {
            let number = wire[MSGID_AT..MSGID_AT + 4].try_into().expect("four bytes");
            self.handed.push_back((u32::from_le_bytes(number), to));
        }
    }
    fn send(&mut self, _to: ConnId, _class: OutClass, pieces: &[&[u8]]) {
        self.bytes += pieces.iter().map(|piece| piece.len()).sum::<usize>();
    }
    fn close(&mut self, _conn: ConnId, _reason: CloseReason) {}
    fn release(&mut self, _conn: ConnId) {}
    fn pending_bytes(&mut self, _conn: ConnId) -> usize {
        0
    }
    fn notify_writable(&mut self, _conn: ConnId, _below_bytes: usize) {}
    fn set_never_paused(&mut self, _conn: ConnId, _never_paused: bool) {}
    fn pause_input(&mut self, _socket: Socket, _paused: bool) {}
    fn has_room(&self) -> bool {
        true
    }
}

/// How many workers, queues and jobs there are.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    workers: u32,
    queues: u32,
    /// Every worker is in all queues.
    all: bool,
    slots: u32,
    outstanding: u32,
    /// Capability `completions`.
    completions: bool,
}

/// One queue a worker, 1,024 jobs under way.
const fn shape(name: &'static str, workers: u32, queues: u32, slots: u32) -> Shape {
    let outstanding = 1_024;
    Shape {
        name,
        workers,
        queues,
        all: false,
        slots,
        outstanding,
        completions: false,
    }
}

pub(crate) const SHAPES: [Shape; 9] = [
    shape("direct 1x1", 1, 1, 2_000),
    shape("direct 4x1", 4, 1, 500),
    shape("direct 10x10", 10, 10, 2_000),
    shape("direct 1000x1000", 1_000, 1_000, 100),
    Shape {
        all: true,
        ..shape("direct 1000x1000 all", 1_000, 1_000, 8)
    },
    shape("backlog 4x1", 4, 1, 64),
    Shape {
        outstanding: 4_096,
        ..shape("backlog 1000x1000", 1_000, 1_000, 1)
    },
    Shape {
        all: true,
        outstanding: 2_048,
        ..shape("backlog 1000x1000 all", 1_000, 1_000, 1)
    },
    Shape {
        completions: true,
        ..shape("backlog 4x1 completions", 4, 1, 64)
    },
];

/// A broker with its workers registered, and the messages of all jobs made beforehand.
pub(crate) struct Rig {
    broker: Broker,
    out: Null,
    now: Now,
    client: ConnId,
    requests: Vec<OwnedMessage>,
    replies: Vec<OwnedMessage>,
    /// READY of a worker without `completions`, or one for each job.
    readies: Vec<OwnedMessage>,
    free: VecDeque<u32>,
}

impl Rig {
    pub(crate) fn new(shape: Shape) -> Rig {
        let now = Now {
            mono_ns: 1_000_000_000,
            wall_ms: 1_796_000_000_000,
        };
        let config = BrokerConfig {
            hwm: 0,
            disable_heartbeats: true,
            ..BrokerConfig::default()
        };
        let seeds = Seeds {
            hash: [1, 2, 3, 4],
            ids: [5, 6],
        };
        let mut broker = Broker::new(config, seeds, now);
        let mut out = Null::default();
        let name = |queue: u32| {
            if shape.queues == 1 {
                "default".to_owned()
            } else {
                format!("queue{queue}")
            }
        };
        let all: Vec<_> = (0..shape.queues)
            .map(|q| format!("[10, \"{}\"]", name(q)))
            .collect();
        let ready = OwnedMessage::from_frames(["", "eMQP/1.0", "READY", &"r".repeat(36)]);
        for worker in 0..shape.workers {
            let conn = ConnId::new(1, worker, 1);
            open(
                &mut broker,
                conn,
                Socket::Backend,
                &format!("worker{worker}"),
                now,
                &mut out,
            );
            let queues = match shape.all {
                true => format!("[{}]", all.join(", ")),
                false => format!("[{}]", all[(worker % shape.queues) as usize]),
            };
            let capabilities = if shape.completions { "completions" } else { "" };
            let inform = OwnedMessage::from_frames([
                "",
                "eMQP/1.0",
                "INFORM",
                "i",
                &queues,
                "worker",
                capabilities,
            ]);
            broker.handle_message(conn, &inform.view(), now, &mut out);
            for _ in 0..shape.slots {
                broker.handle_message(conn, &ready.view(), now, &mut out);
            }
        }
        let client = ConnId::new(0, 0, 1);
        open(
            &mut broker,
            client,
            Socket::Frontend,
            "client",
            now,
            &mut out,
        );
        let msgid = |number: u32| {
            let mut id = [b'-'; 36];
            id[..4].copy_from_slice(&number.to_le_bytes());
            id
        };
        let payload = [b'x'; 120];
        let numbers = 0..shape.outstanding;
        let requests = numbers.clone().map(|number| {
            // Spread over the queues without a pattern the choice could profit from.
            let queue = name(number.wrapping_mul(2_654_435_761) % shape.queues);
            let id = msgid(number);
            let frames: [&[u8]; 7] = [
                b"",
                b"eMQP/1.0",
                b"REQUEST",
                &id,
                queue.as_bytes(),
                b"reply-requested",
                &payload,
            ];
            OwnedMessage::from_frames(frames)
        });
        let replies = numbers.clone().map(|number| {
            let id = msgid(number);
            let frames: [&[u8]; 6] = [
                b"",
                b"eMQP/1.0",
                b"REPLY",
                &[b'y'; 36],
                b"{\"value\": 3}",
                &id,
            ];
            OwnedMessage::from_frames(frames)
        });
        let readies = numbers.clone().map(|number| {
            let id = msgid(number);
            let frames: [&[u8]; 6] = [b"", b"eMQP/1.0", b"READY", &[b'r'; 36], &id, b"ok"];
            if shape.completions {
                OwnedMessage::from_frames(frames)
            } else {
                ready.clone()
            }
        });
        Rig {
            requests: requests.collect(),
            replies: replies.collect(),
            readies: readies.collect(),
            free: numbers.collect(),
            broker,
            out,
            now,
            client,
        }
    }

    /// The whole life of `jobs` jobs.
    pub(crate) fn run(&mut self, jobs: u64) {
        for _ in 0..jobs {
            while let Some(number) = self.free.pop_front() {
                let request = self.requests[number as usize].view();
                self.broker
                    .handle_message(self.client, &request, self.now, &mut self.out);
            }
            self.now.mono_ns += 700;
            let (number, worker) = self.out.handed.pop_front().expect("a job is in flight");
            let reply = self.replies[number as usize].view();
            self.broker
                .handle_message(worker, &reply, self.now, &mut self.out);
            let ready = self.readies[number as usize].view();
            self.broker
                .handle_message(worker, &ready, self.now, &mut self.out);
            self.free.push_back(number);
        }
        black_box(self.out.bytes);
    }
}

fn open(broker: &mut Broker, conn: ConnId, socket: Socket, id: &str, now: Now, out: &mut Null) {
    let routing_id = id.as_bytes().to_vec();
    let info = PeerInfo {
        socket,
        routing_id,
        speaks_extensions: true,
        remote: None,
    };
    broker.handle_opened(conn, info, now, out);
}
