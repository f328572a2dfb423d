//! Reference `libzmq`: two ROUTER sockets in one thread, the broker's rules reduced to one queue.
//!
//! A REQUEST is accepted and goes to the worker that has a free slot and was used longest ago, or
//! waits; a REPLY goes to the client that sent the REQUEST; a READY frees a slot. Frames are moved,
//! not copied. libzmq's I/O threads do the reading and writing.

use crate::child::{self, Addresses};
use crate::failure::{Failure, Result};
use crate::wire::Msgid;
use eventmq::addr::Addr;
use std::collections::{HashMap, VecDeque};
use std::str::FromStr;
use zmq::{Context, Message, Socket};

/// Messages taken from one socket before the other one is looked at.
const BATCH: usize = 1_000;
const CONTROL_TAG: u32 = 0xb0b0_b0b0;

type Clients = HashMap<Vec<u8>, Message, ahash::RandomState>;
type Indices = HashMap<Vec<u8>, usize, ahash::RandomState>;

struct Worker {
    id: Vec<u8>,
    free_slots: usize,
    /// In [`Router::free`].
    listed: bool,
}

struct Router {
    frontend: Socket,
    backend: Socket,
    workers: Vec<Worker>,
    indices: Indices,
    /// Workers with free slots, the one used longest ago first.
    free: VecDeque<usize>,
    /// REQUESTs without the client's routing id.
    waiting: VecDeque<Vec<Message>>,
    /// Routing id of the client by msgid of the REQUEST.
    clients: Clients,
    serial: u32,
}

/// Runs until standard input ends.
pub(crate) fn run() -> Result<()> {
    serve().map_err(|error| Failure::run(format!("libzmq broker: {error}")))?
}

fn serve() -> std::result::Result<Result<()>, zmq::Error> {
    let context = Context::new();
    let listen = || -> std::result::Result<(Socket, Addr), zmq::Error> {
        let socket = context.socket(zmq::ROUTER)?;
        socket.set_sndhwm(0)?;
        socket.set_rcvhwm(0)?;
        socket.set_linger(0)?;
        socket.bind("tcp://127.0.0.1:*")?;
        let endpoint = socket.get_last_endpoint()?.unwrap_or_default();
        let addr = Addr::from_str(&endpoint).unwrap_or_else(|_| child::loopback(0));
        Ok((socket, addr))
    };
    let (frontend, frontend_addr) = listen()?;
    let (backend, backend_addr) = listen()?;
    let addresses = Addresses {
        frontend: frontend_addr,
        backend: backend_addr,
        administrative: None,
        cxxflags: Some(option_env!("CXXFLAGS").unwrap_or("").to_owned()),
    };
    if let Err(failure) = child::announce(&addresses) {
        return Ok(Err(failure));
    }
    let mut router = Router {
        frontend,
        backend,
        workers: Vec::new(),
        indices: Indices::default(),
        free: VecDeque::new(),
        waiting: VecDeque::new(),
        clients: Clients::default(),
        serial: 0,
    };
    loop {
        let mut items = [
            router.backend.as_poll_item(zmq::POLLIN),
            router.frontend.as_poll_item(zmq::POLLIN),
        ];
        zmq::poll(&mut items, -1)?;
        let (from_workers, from_clients) = (items[0].is_readable(), items[1].is_readable());
        if from_workers {
            router.drain_backend()?;
        }
        if from_clients {
            router.drain_frontend()?;
        }
    }
}

/// Runs the publisher until standard input ends: PUBLISHes from a ROUTER, topic and message to a
/// PUB, one thread, frames moved and not copied.
pub(crate) fn run_publisher() -> Result<()> {
    let failure = |error: zmq::Error| Failure::run(format!("libzmq publisher: {error}"));
    let context = Context::new();
    let listen = |kind| -> std::result::Result<(Socket, Addr), zmq::Error> {
        let socket = context.socket(kind)?;
        // No message may be dropped: the load generator waits for all of them.
        socket.set_sndhwm(0)?;
        socket.set_rcvhwm(0)?;
        socket.set_linger(0)?;
        socket.bind("tcp://127.0.0.1:*")?;
        let endpoint = socket.get_last_endpoint()?.unwrap_or_default();
        let addr = Addr::from_str(&endpoint).unwrap_or_else(|_| child::loopback(0));
        Ok((socket, addr))
    };
    let (incoming, frontend) = listen(zmq::ROUTER).map_err(failure)?;
    let (outgoing, backend) = listen(zmq::PUB).map_err(failure)?;
    child::announce(&Addresses {
        frontend,
        backend,
        administrative: None,
        cxxflags: Some(option_env!("CXXFLAGS").unwrap_or("").to_owned()),
    })?;
    loop {
        zmq::poll(&mut [incoming.as_poll_item(zmq::POLLIN)], -1).map_err(failure)?;
        for _ in 0..BATCH {
            let Some(mut frames) = receive(&incoming).map_err(failure)? else {
                break;
            };
            // Routing id, '', eMQP/1.0, PUBLISH, msgid, topic, message.
            if frames.len() != 7 || frames[3].as_str() != Some("PUBLISH") {
                continue;
            }
            let (Some(text), Some(topic)) = (frames.pop(), frames.pop()) else {
                continue;
            };
            outgoing.send(topic, zmq::SNDMORE).map_err(failure)?;
            outgoing.send(text, 0).map_err(failure)?;
        }
    }
}

/// Receives a whole message: routing id first. `None` when nothing waits.
fn receive(socket: &Socket) -> std::result::Result<Option<Vec<Message>>, zmq::Error> {
    let mut frames = Vec::with_capacity(8);
    loop {
        let mut frame = Message::new();
        match socket.recv(&mut frame, zmq::DONTWAIT) {
            Err(zmq::Error::EAGAIN) => return Ok(None),
            result => result?,
        }
        let more = frame.get_more();
        frames.push(frame);
        if !more {
            return Ok(Some(frames));
        }
    }
}

/// Sends `frames` to the peer `to`. A peer that has gone is no error: ROUTER drops the message.
fn send(
    socket: &Socket,
    to: &[u8],
    frames: impl ExactSizeIterator<Item = Message>,
) -> std::result::Result<(), zmq::Error> {
    socket.send(to, zmq::SNDMORE)?;
    let last = frames.len().saturating_sub(1);
    for (index, frame) in frames.enumerate() {
        socket.send(frame, if index < last { zmq::SNDMORE } else { 0 })?;
    }
    Ok(())
}

impl Router {
    fn own_id(&mut self) -> Msgid {
        self.serial = self.serial.wrapping_add(1);
        Msgid::new(CONTROL_TAG).with(0, self.serial)
    }

    fn drain_frontend(&mut self) -> std::result::Result<(), zmq::Error> {
        for _ in 0..BATCH {
            let Some(mut frames) = receive(&self.frontend)? else {
                break;
            };
            if frames.len() < 8 || &frames[3][..] != b"REQUEST" {
                continue;
            }
            let client = frames.remove(0);
            let own = self.own_id();
            let parts: [&[u8]; 5] = [b"", b"eMQP/1.0", b"REPLY", own.bytes(), &frames[3]];
            send(
                &self.frontend,
                &client,
                parts.into_iter().map(Message::from),
            )?;
            self.clients.insert(frames[3].to_vec(), client);
            self.waiting.push_back(frames);
            self.hand_out()?;
        }
        Ok(())
    }

    fn drain_backend(&mut self) -> std::result::Result<(), zmq::Error> {
        for _ in 0..BATCH {
            let Some(frames) = receive(&self.backend)? else {
                break;
            };
            match frames.get(3).map(|command| &command[..]) {
                Some(b"REPLY") if frames.len() >= 7 => {
                    if let Some(client) = self.clients.remove(&frames[6][..]) {
                        let mut body = frames.into_iter();
                        body.next();
                        send(&self.frontend, &client, body)?;
                    }
                }
                Some(b"READY") => self.ready(&frames[0])?,
                Some(b"INFORM") if frames.len() >= 5 => self.register(&frames)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn register(&mut self, frames: &[Message]) -> std::result::Result<(), zmq::Error> {
        let id = frames[0].to_vec();
        let own = self.own_id();
        let parts: [&[u8]; 5] = [b"", b"eMQP/1.0", b"ACK", own.bytes(), &frames[4]];
        send(&self.backend, &id, parts.into_iter().map(Message::from))?;
        self.indices.insert(id.clone(), self.workers.len());
        self.workers.push(Worker {
            id,
            free_slots: 0,
            listed: false,
        });
        Ok(())
    }

    fn ready(&mut self, id: &[u8]) -> std::result::Result<(), zmq::Error> {
        let Some(&index) = self.indices.get(id) else {
            return Ok(());
        };
        let worker = &mut self.workers[index];
        worker.free_slots += 1;
        if !worker.listed {
            worker.listed = true;
            self.free.push_back(index);
        }
        self.hand_out()
    }

    fn hand_out(&mut self) -> std::result::Result<(), zmq::Error> {
        while let Some(&index) = self.free.front() {
            let Some(frames) = self.waiting.pop_front() else {
                break;
            };
            self.free.pop_front();
            let worker = &mut self.workers[index];
            worker.free_slots -= 1;
            worker.listed = worker.free_slots > 0;
            if worker.listed {
                self.free.push_back(index);
            }
            send(&self.backend, &worker.id, frames.into_iter())?;
        }
        Ok(())
    }
}
