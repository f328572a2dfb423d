//! The peers of the simulated broker: clients, workers and administrators on fake sockets.

use super::{Rng, digest};
use crate::frames::OwnedMessage;
use crate::ids::{ConnId, Socket};
use crate::io::fake::FakePeer;
use crate::limits::SHARED_BYTES_MIN;

/// One connection as its peer sees it.
pub(super) struct Link {
    pub(super) peer: FakePeer,
    pub(super) socket: Socket,
    pub(super) conn: ConnId,
    pub(super) routing_id: String,
    /// Whole messages sent: bytes of the connection up to their end, and digest.
    pub(super) sent: Vec<(usize, u64)>,
    pub(super) received: Vec<u64>,
    /// The peer has ended it.
    pub(super) ended: bool,
    /// Jobs received and not answered.
    jobs: Vec<Vec<u8>>,
    informed: bool,
}

impl Link {
    pub(super) fn new(peer: FakePeer, socket: Socket, conn: ConnId, routing_id: String) -> Link {
        Link {
            peer,
            socket,
            conn,
            routing_id,
            sent: Vec::new(),
            received: Vec::new(),
            ended: false,
            jobs: Vec::new(),
            informed: false,
        }
    }

    /// True while the peer may send.
    pub(super) fn is_alive(&self) -> bool {
        !self.ended && !self.peer.wire().dropped
    }

    fn send(&mut self, frames: &[&[u8]]) {
        let mut all: Vec<&[u8]> = vec![b"", b"eMQP/1.0"];
        all.extend(frames);
        let message = OwnedMessage::from_frames(all);
        self.peer.send(&message);
        let end = self.peer.wire().sent_total;
        self.sent.push((end, digest(message.view().wire())));
    }

    /// Takes in what has arrived at the peer.
    pub(super) fn receive(&mut self) {
        for message in self.peer.receive() {
            self.received.push(digest(message.view().wire()));
            let frames = message.to_frames();
            match &frames[2][..] {
                b"REQUEST" => self.jobs.push(frames[3].clone()),
                b"DISCONNECT" => self.informed = false,
                _ => {}
            }
        }
    }

    /// Sends something.
    pub(super) fn act(&mut self, rng: &mut Rng, msgids: &mut u64) {
        if !self.is_alive() || !self.peer.is_ready() {
            return;
        }
        *msgids += 1;
        let msgid = format!("m{msgids}").into_bytes();
        match self.socket {
            Socket::Frontend => self.act_client(rng, &msgid, msgids),
            Socket::Backend => self.act_worker(rng, &msgid),
            Socket::Admin => {
                let commands: [&[u8]; 3] = [b"STATUS", b"ROUTER_SHOW_WORKERS", b"LATENCY"];
                self.send(&[*rng.pick(&commands), &msgid]);
            }
        }
    }

    fn act_client(&mut self, rng: &mut Rng, msgid: &[u8], msgids: &mut u64) {
        if rng.chance(10) {
            return self.send(&[b"HEARTBEAT", msgid, b"1.0"]);
        }
        let mut msgid = msgid.to_vec();
        for _ in 0..=rng.below(6) {
            let body = vec![b'x'; body_len(rng)];
            let queues: [&[u8]; 4] = [b"default", b"a", b"b", b"nobody"];
            let headers: [&[u8]; 2] = [b"", b"reply-requested"];
            let (queue, headers) = (*rng.pick(&queues), *rng.pick(&headers));
            self.send(&[b"REQUEST", &msgid, queue, headers, &body]);
            *msgids += 1;
            msgid = format!("m{msgids}").into_bytes();
        }
    }

    fn act_worker(&mut self, rng: &mut Rng, msgid: &[u8]) {
        if !self.informed {
            self.informed = true;
            let queues: [&[u8]; 3] = [
                b"[[10, \"default\"]]",
                b"[[10, \"a\"], [0, \"default\"]]",
                b"[[1, \"a\"], [1, \"b\"]]",
            ];
            let capabilities: [&[u8]; 2] = [b"", b"completions"];
            let (queues, capabilities) = (*rng.pick(&queues), *rng.pick(&capabilities));
            return self.send(&[b"INFORM", msgid, queues, b"worker", capabilities]);
        }
        match rng.below(100) {
            0..2 => self.send(&[b"KBYE", msgid]),
            2..12 => self.send(&[b"HEARTBEAT", msgid, b"1.0"]),
            12..70 => {
                for _ in 0..=rng.below(8) {
                    self.send(&[b"READY", msgid]);
                }
            }
            _ => {
                for _ in 0..=rng.below(5) {
                    let Some(job) = self.jobs.pop() else { return };
                    let body = vec![b'r'; body_len(rng)];
                    self.send(&[b"REPLY", msgid, &body, &job]);
                }
            }
        }
    }
}

/// Mostly small, some large enough to travel by reference, few above one turn's reading.
fn body_len(rng: &mut Rng) -> usize {
    let len = match rng.below(400) {
        0 => 300_000,
        1..10 => SHARED_BYTES_MIN + rng.below(50_000) as usize,
        10..60 => rng.below(3_000) as usize,
        _ => rng.below(120) as usize,
    };
    len + 2
}
