//! A broker with one worker, as the simulation has it.

use super::super::*;
use crate::emqp::Capabilities;
use crate::frames::{FrameSpan, split_wire};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How a job ended, as its broker sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Told,
    Lost,
}

/// A broker with one worker, counted as protocol.md sections 3 and 8 say.
#[derive(Debug, Default)]
pub(super) struct Broker {
    pub(super) ours: bool,
    /// Number of the connection, while there is one.
    pub(super) conn: Option<u64>,
    pub(super) registered: bool,
    pub(super) instance: Vec<u8>,
    pub(super) epoch: u64,
    pub(super) left: bool,
    pub(super) free: usize,
    pub(super) slots: usize,
    pub(super) waiting: VecDeque<Vec<u8>>,
    /// Handed out: connection, replied.
    pub(super) in_flight: BTreeMap<Vec<u8>, (u64, bool)>,
    pub(super) ends: BTreeMap<Vec<u8>, End>,
    pub(super) replies: BTreeSet<Vec<u8>>,
    pub(super) out: Vec<Vec<u8>>,
}

pub(super) fn message(command: Command, body: &[&[u8]]) -> Vec<u8> {
    let mut writer = crate::frames::MessageWriter::new(Vec::new());
    writer
        .frame(b"")
        .frame(b"eMQP/1.0")
        .frame(command.name())
        .frame(b"broker");
    body.iter().for_each(|frame| {
        writer.frame(frame);
    });
    writer.finish()
}

fn request(job: &[u8]) -> Vec<u8> {
    let mut writer = crate::frames::MessageWriter::new(Vec::new());
    writer
        .frame(b"")
        .frame(b"eMQP/1.0")
        .frame(b"REQUEST")
        .frame(job);
    writer
        .frame(b"default")
        .frame(b"reply-requested")
        .frame(b"[\"run\", {}]");
    writer.finish()
}

impl Broker {
    pub(super) fn lose_connection(&mut self) {
        self.conn = None;
        self.free = 0;
        if !self.ours || self.left {
            self.forget();
        }
    }

    /// The worker is no longer known; its jobs are lost.
    pub(super) fn forget(&mut self) {
        self.registered = false;
        self.left = false;
        self.free = 0;
        for (job, (_, replied)) in std::mem::take(&mut self.in_flight) {
            self.end(job, if replied { End::Told } else { End::Lost });
        }
    }

    pub(super) fn end(&mut self, job: Vec<u8>, end: End) {
        assert!(self.ends.insert(job, end).is_none(), "a job ended twice");
    }

    pub(super) fn hand_out(&mut self) {
        while self.free > 0 && self.registered && !self.left {
            let Some(job) = self.waiting.pop_front() else {
                return;
            };
            self.free -= 1;
            self.out.push(request(&job));
            self.in_flight.insert(job, (self.epoch, false));
        }
    }

    pub(super) fn receive(&mut self, wire: &[u8]) {
        let mut spans: Vec<FrameSpan> = Vec::new();
        assert_eq!(split_wire(wire, &mut spans), Some(wire.len()));
        let message_in = Message::new(wire, &spans);
        let envelope = Envelope::parse(&message_in).expect("well-formed");
        let conn = self.conn.expect("connected");
        match envelope.command {
            Command::Inform => {
                assert_eq!(envelope.body(0), Some(&b"[[10, \"default\"]]"[..]));
                assert_eq!(envelope.body(1), Some(&b"worker"[..]));
                assert_eq!(envelope.body_len(), if self.ours { 3 } else { 2 });
                assert!(
                    self.ours || !self.registered,
                    "INFORM twice to the original"
                );
                let said = Capabilities::parse(envelope.body(2).unwrap_or_default()).unwrap();
                self.free = 0;
                self.slots = said.slots.map_or(usize::MAX, |slots| slots as usize);
                if self.ours {
                    assert!(said.completions && said.heartbeat_secs.is_some());
                    let same = said.instance.as_ref() == Some(&self.instance);
                    let running = said.running.expect("these msgids can be listed");
                    for (job, (epoch, replied)) in self.in_flight.clone() {
                        if replied {
                            self.in_flight.remove(&job);
                            self.end(job, End::Told);
                        } else if epoch != conn && !(same && running.contains(&job)) {
                            self.in_flight.remove(&job);
                            self.end(job, End::Lost);
                        }
                    }
                }
                self.instance = said.instance.unwrap_or_default();
                self.registered = true;
                self.epoch = conn;
                self.out.push(message(Command::Ack, &[envelope.msgid]));
            }
            Command::Ready if !self.registered => {}
            Command::Ready => {
                if self.ours
                    && let Some(job) = envelope.body(0)
                {
                    let job = job.to_vec();
                    if self.in_flight.remove(&job).is_some() {
                        if envelope.body(1) == Some(b"refused") {
                            self.waiting.push_front(job);
                        } else {
                            self.end(job, End::Told);
                        }
                    }
                }
                let taken = if self.ours { self.in_flight.len() } else { 0 };
                if !self.left && self.free + taken < self.slots {
                    self.free += 1;
                }
                self.hand_out();
            }
            Command::Reply => {
                let job = envelope.body(1).expect("names the job").to_vec();
                assert_eq!(envelope.body_len(), if self.ours { 3 } else { 2 });
                if let Some((_, replied)) = self.in_flight.get_mut(&job) {
                    assert!(!*replied, "two results for {}", job.escape_ascii());
                    *replied = true;
                    if !self.ours {
                        self.in_flight.remove(&job);
                        self.end(job.clone(), End::Told);
                    }
                }
                self.replies.insert(job);
            }
            Command::Heartbeat => {}
            Command::Kbye => {
                self.left = true;
                self.free = 0;
                if !self.ours {
                    self.forget();
                }
            }
            other => panic!("{other:?} sent to a broker"),
        }
    }
}
