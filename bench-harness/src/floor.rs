//! Reference `floor`: a forwarder with the broker's pattern of reads and writes that parses
//! nothing, as the cost below which no broker of this shape can go.
//!
//! It completes the handshakes, acknowledges workers, and then only copies bytes, knowing the size
//! of each message beforehand. What a client sends is cut into one run per worker with free slots;
//! what finds none is copied to the end of one buffer of waiting jobs, as a broker must. Each job's
//! acceptance is a prebuilt message in which the msgid is copied from its known place. Results go
//! back to the clients in the order in which the jobs were handed out; the READYs between them are
//! left out and each lets one waiting job go. There are no frames, lookups, timers, or checks.

use crate::child::{self, Addresses};
use crate::conn::{Conn, More, Scratch};
use crate::failure::{Failure, Result};
use crate::handshake::{self, Blocking, STEP_SECS_MAX};
use crate::wire::{MSGID_BYTES, ReplyTemplate, Template, acceptance, message, ready, request};
use clap::Args;
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token};
use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

const FRONTEND: Token = Token(usize::MAX);
const BACKEND: Token = Token(usize::MAX - 1);

/// What `floor` must know of the load.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Bytes in the message frame of each REQUEST
    #[arg(long, default_value_t = 120)]
    payload: usize,
    /// Slots that each worker offers when it comes
    #[arg(long, default_value_t = 64)]
    slots: usize,
    /// Queue of the jobs
    #[arg(long, default_value = "default")]
    queue: String,
}

/// Sizes of the messages, and what is the same in every acceptance.
#[derive(Debug)]
struct Sizes {
    request: usize,
    msgid_at: usize,
    reply: usize,
    ready: usize,
    acceptance: Template,
    slots: usize,
}

#[derive(Debug)]
enum Side {
    Client,
    Worker(Worker),
}

#[derive(Debug)]
struct Worker {
    /// Bytes of the first READYs that are still to come.
    skip: usize,
    free_slots: usize,
    /// Clients that results are owed to, and how many, oldest first.
    owed: Runs,
}

/// Clients and numbers of consecutive jobs of theirs.
type Runs = VecDeque<(usize, usize)>;

/// Jobs for which no slot was free.
#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    /// `bytes[..taken]` has been handed out.
    taken: usize,
    runs: Runs,
}

#[derive(Debug)]
struct Peer {
    conn: Conn,
    side: Side,
}

#[derive(Debug)]
struct Floor {
    sizes: Sizes,
    /// By token; `None` where a peer has gone.
    peers: Vec<Option<Peer>>,
    workers: Vec<usize>,
    next_worker: usize,
    waiting: Waiting,
    listed: Vec<usize>,
    scratch: Scratch,
}

/// Runs until standard input ends.
pub(crate) fn run(options: &Options) -> Result<()> {
    let failure = |error: io::Error| Failure::run(format!("floor cannot run: {error}"));
    let request = request(&options.queue, "reply-requested", options.payload);
    let mut floor = Floor {
        sizes: Sizes {
            request: request.len(),
            msgid_at: request.msgid_at(),
            reply: ReplyTemplate::new().len(),
            ready: ready().len(),
            acceptance: acceptance(),
            slots: options.slots,
        },
        peers: Vec::new(),
        workers: Vec::new(),
        next_worker: 0,
        waiting: Waiting::default(),
        listed: Vec::new(),
        scratch: Scratch::new(),
    };
    let mut poll = Poll::new().map_err(failure)?;
    let listen = |token| -> io::Result<TcpListener> {
        let mut listener = TcpListener::bind(([127, 0, 0, 1], 0).into())?;
        poll.registry()
            .register(&mut listener, token, Interest::READABLE)?;
        Ok(listener)
    };
    let frontend = listen(FRONTEND).map_err(failure)?;
    let backend = listen(BACKEND).map_err(failure)?;
    let port = |listener: &TcpListener| listener.local_addr().map(|addr| addr.port());
    child::announce(&Addresses {
        frontend: child::loopback(port(&frontend).map_err(failure)?),
        backend: child::loopback(port(&backend).map_err(failure)?),
        administrative: None,
        cxxflags: None,
    })?;
    let mut events = Events::with_capacity(1024);
    loop {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            result => result.map_err(failure)?,
        }
        for event in &events {
            match event.token() {
                FRONTEND => floor.accept(&frontend, &poll, false)?,
                BACKEND => floor.accept(&backend, &poll, true)?,
                Token(at) => {
                    if event.is_writable() {
                        floor.unblock(at);
                    }
                    if event.is_readable() || event.is_read_closed() {
                        floor.serve(at);
                    }
                }
            }
        }
        floor.flush();
    }
}

impl Floor {
    /// Takes all waiting connections. A peer that fails its handshake is left alone.
    fn accept(&mut self, listener: &TcpListener, poll: &Poll, is_worker: bool) -> Result<()> {
        loop {
            let stream = match listener.accept() {
                Ok((stream, _)) => std::net::TcpStream::from(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(Failure::run(format!("cannot accept: {error}"))),
            };
            let opened = stream
                .set_nonblocking(false)
                .map_err(|error| Failure::run(format!("cannot accept: {error}")))
                .and_then(|()| handshake::accept(Blocking::Tcp(stream)));
            let Ok(mut opened) = opened else { continue };
            let token = self.peers.len();
            let mut side = Side::Client;
            if is_worker {
                let until = Instant::now() + Duration::from_secs(STEP_SECS_MAX);
                let Ok(inform) = opened.next_message("an INFORM", until) else {
                    continue;
                };
                let own = [b'0'; MSGID_BYTES];
                let msgid = inform.get(3).map_or(&[][..], Vec::as_slice);
                if opened.send(&message(&[b"ACK", &own, msgid])).is_err() {
                    continue;
                }
                let skip = self.sizes.slots * self.sizes.ready;
                let owed = Runs::with_capacity(1024);
                side = Side::Worker(Worker {
                    skip,
                    free_slots: self.sizes.slots,
                    owed,
                });
                self.workers.push(token);
            }
            let conn = Conn::new(opened, poll.registry(), Token(token))?;
            self.peers.push(Some(Peer { conn, side }));
            self.serve(token);
        }
    }

    fn unblock(&mut self, at: usize) {
        if let Some(peer) = &mut self.peers[at] {
            peer.conn.unblock();
            list(&mut self.listed, &mut peer.conn, at);
        }
    }

    fn serve(&mut self, at: usize) {
        // Taken out, so that its bytes can be copied to other peers.
        let Some(mut peer) = self.peers[at].take() else {
            return;
        };
        let mut scratch = std::mem::take(&mut self.scratch);
        let alive = loop {
            let Ok((buf, more)) = peer.conn.receive(&mut scratch) else {
                break false;
            };
            let used = match &mut peer.side {
                Side::Client => self.hand_out(at, buf, &mut peer.conn),
                Side::Worker(worker) => {
                    let used = self.give_back(buf, worker);
                    if self
                        .waiting
                        .move_to(&mut peer.conn, worker, self.sizes.request)
                    {
                        list(&mut self.listed, &mut peer.conn, at);
                    }
                    used
                }
            };
            peer.conn.keep(&buf[used..]);
            match more {
                More::Likely => {}
                More::Drained => break true,
                More::Closed => break false,
            }
        };
        self.scratch = scratch;
        if alive {
            self.peers[at] = Some(peer);
        } else {
            self.workers.retain(|&worker| worker != at);
        }
    }

    /// Accepts whole REQUESTs of client `at` and copies them to the workers, one run for each.
    fn hand_out(&mut self, at: usize, buf: &[u8], client: &mut Conn) -> usize {
        let Sizes {
            request, msgid_at, ..
        } = self.sizes;
        let jobs = buf.len() / request;
        if jobs == 0 || self.workers.is_empty() {
            return 0;
        }
        let whole = &buf[..jobs * request];
        for job in whole.chunks_exact(request) {
            if let Ok(msgid) = job[msgid_at..msgid_at + MSGID_BYTES].try_into() {
                self.sizes.acceptance.push(&mut client.out, msgid);
            }
        }
        list(&mut self.listed, client, at);
        let mut rest = whole;
        if self.waiting.runs.is_empty() {
            rest = self.deal(at, whole);
        }
        if !rest.is_empty() {
            self.waiting.bytes.extend_from_slice(rest);
            self.waiting.runs.push_back((at, rest.len() / request));
        }
        whole.len()
    }

    /// Copies the jobs of client `at` to the workers with free slots, one run for each, and returns
    /// what is left.
    fn deal<'a>(&mut self, at: usize, whole: &'a [u8]) -> &'a [u8] {
        let request = self.sizes.request;
        let run = (whole.len() / request).div_ceil(self.workers.len());
        let mut rest = whole;
        for _ in 0..self.workers.len() {
            if rest.is_empty() {
                break;
            }
            self.next_worker = (self.next_worker + 1) % self.workers.len();
            let token = self.workers[self.next_worker];
            if let Some(Peer {
                conn,
                side: Side::Worker(worker),
            }) = &mut self.peers[token]
            {
                let jobs = run.min(worker.free_slots).min(rest.len() / request);
                if jobs > 0 {
                    let (part, behind) = rest.split_at(jobs * request);
                    conn.out.extend_from_slice(part);
                    worker.free_slots -= jobs;
                    worker.owed.push_back((at, jobs));
                    list(&mut self.listed, conn, token);
                    rest = behind;
                }
            }
        }
        rest
    }

    /// Copies whole results of a worker to the clients they are owed to.
    fn give_back(&mut self, buf: &[u8], worker: &mut Worker) -> usize {
        let first = buf.len().min(worker.skip);
        worker.skip -= first;
        let pair = self.sizes.reply + self.sizes.ready;
        let mut rest = &buf[first..];
        while let Some((client, jobs)) = worker.owed.front_mut() {
            let take = (rest.len() / pair).min(*jobs);
            if take == 0 {
                break;
            }
            let (whole, behind) = rest.split_at(take * pair);
            if let Some(peer) = &mut self.peers[*client] {
                for answer in whole.chunks_exact(pair) {
                    peer.conn.out.extend_from_slice(&answer[..self.sizes.reply]);
                }
                list(&mut self.listed, &mut peer.conn, *client);
            }
            rest = behind;
            worker.free_slots += take;
            *jobs -= take;
            if *jobs == 0 {
                worker.owed.pop_front();
            }
        }
        buf.len() - rest.len()
    }

    fn flush(&mut self) {
        for at in self.listed.drain(..) {
            if let Some(peer) = &mut self.peers[at] {
                peer.conn.listed = false;
                // A broken connection also becomes readable and is dropped there.
                let _ = peer.conn.flush();
            }
        }
    }
}

impl Waiting {
    /// Copies as many jobs as `worker` has free slots. True if there were any.
    fn move_to(&mut self, conn: &mut Conn, worker: &mut Worker, request: usize) -> bool {
        let before = worker.free_slots;
        while let Some((client, jobs)) = self.runs.front_mut() {
            let take = worker.free_slots.min(*jobs);
            if take == 0 {
                break;
            }
            let end = self.taken + take * request;
            conn.out.extend_from_slice(&self.bytes[self.taken..end]);
            self.taken = end;
            worker.free_slots -= take;
            worker.owed.push_back((*client, take));
            *jobs -= take;
            if *jobs == 0 {
                self.runs.pop_front();
            }
        }
        // The front of the buffer is used again when at least half of it is free.
        if self.taken * 2 >= self.bytes.len() {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        worker.free_slots < before
    }
}

fn list(listed: &mut Vec<usize>, conn: &mut Conn, at: usize) {
    if !conn.listed {
        conn.listed = true;
        listed.push(at);
    }
}
