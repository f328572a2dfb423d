//! One I/O agent: a mio poll, its listeners and its connections.

use super::listener::Listener;
use super::sink::InputSink;
use super::stream::NetStream;
use super::table::ConnTable;
use crate::ids::{ConnId, NS_PER_MS, Socket};
use crate::limits::TURN_ACCEPTS_MAX;
use crate::metrics::Counter;
use crate::ring::Wake;
use crate::zmtp::PeerConfig;
use mio::{Events, Interest, Poll, Token};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

const EVENTS_MAX: usize = 1_024;
const TOKEN_WAKER: Token = Token(usize::MAX);
/// Listeners count down from here, connections up from 0.
const TOKEN_LISTENERS: usize = usize::MAX - 1;
/// Pause after an accept that failed for want of file descriptors: no new edge will come.
const ACCEPT_RETRY_NS: u64 = 100 * NS_PER_MS;

/// Ends an agent's poll from any thread.
#[derive(Debug, Clone)]
pub struct IoWaker(Arc<mio::Waker>);

impl Wake for IoWaker {
    fn wake(&self) {
        // Fails only when the poll is gone, and with it the sleeper.
        let _ = self.0.wake();
    }
}

/// Spreads accepted connections over agents.
pub trait Handover: std::fmt::Debug + Send {
    /// Gives the connection to a less loaded agent, or back to be kept. `own_load` is the number
    /// of connections of the agent that asks.
    fn offer(
        &mut self,
        stream: NetStream,
        socket: Socket,
        remote: Option<SocketAddr>,
        own_load: usize,
    ) -> Option<NetStream>;
}

#[derive(Debug)]
struct Listening {
    listener: Listener,
    token: Token,
    ready: bool,
}

/// A mio poll with listeners and connections. Drive it with [`IoAgent::poll`], then
/// [`IoAgent::turn`], then [`Steps::flush`](super::Steps::flush).
#[derive(Debug)]
pub struct IoAgent {
    poll: Poll,
    events: Events,
    waker: IoWaker,
    listeners: Vec<Listening>,
    tokens_used: usize,
    accept_retry_ns: Option<u64>,
    accept_failing: bool,
    handover: Option<Box<dyn Handover>>,
    /// The connections.
    pub table: ConnTable<NetStream>,
}

impl IoAgent {
    /// An agent around `table`.
    ///
    /// # Errors
    /// When the system has no poll or event descriptor left.
    pub fn new(table: ConnTable<NetStream>) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = IoWaker(Arc::new(mio::Waker::new(poll.registry(), TOKEN_WAKER)?));
        Ok(IoAgent {
            poll,
            events: Events::with_capacity(EVENTS_MAX),
            waker,
            listeners: Vec::new(),
            tokens_used: 0,
            accept_retry_ns: None,
            accept_failing: false,
            handover: None,
            table,
        })
    }

    /// Ends the agent's poll from elsewhere.
    pub fn waker(&self) -> IoWaker {
        self.waker.clone()
    }

    /// Spreads what is accepted from now on.
    pub fn set_handover(&mut self, handover: Box<dyn Handover>) {
        self.handover = Some(handover);
    }

    /// Starts accepting from `listener`.
    ///
    /// # Errors
    /// What the system says about registering it.
    pub fn listen(&mut self, mut listener: Listener) -> io::Result<()> {
        let token = Token(TOKEN_LISTENERS - self.tokens_used);
        self.tokens_used += 1;
        listener.register(self.poll.registry(), token)?;
        self.listeners.push(Listening {
            listener,
            token,
            ready: true,
        });
        Ok(())
    }

    /// Stops accepting for `socket`; connections stay.
    pub fn stop_listening(&mut self, socket: Socket) {
        self.listeners.retain(|l| l.listener.socket() != socket);
    }

    /// Waits for events, at most `timeout` (`None` = until one comes), and takes note of them.
    ///
    /// # Errors
    /// What the system says; an interrupted wait is none.
    pub fn poll(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(&mut self.events, timeout) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        }
        for event in &self.events {
            let token = event.token();
            if token == TOKEN_WAKER {
                continue;
            }
            if token.0 > TOKEN_LISTENERS - self.tokens_used {
                for listening in &mut self.listeners {
                    listening.ready |= listening.token == token;
                }
                continue;
            }
            let ended = event.is_error() || event.is_read_closed();
            self.table
                .on_event(token.0, event.is_readable(), event.is_writable(), ended);
        }
        Ok(())
    }

    /// True if [`IoAgent::turn`] has something to do without waiting.
    pub fn has_work<K: InputSink>(&mut self, sink: &mut K) -> bool {
        self.table.has_work(sink)
            || (self.accept_retry_ns.is_none() && self.listeners.iter().any(|l| l.ready))
    }

    /// Monotonic time of the next deadline.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        match (self.table.next_deadline_ns(), self.accept_retry_ns) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Accepts, reads and delivers. Returns a measure of the work done.
    pub fn turn<K: InputSink>(&mut self, now_ns: u64, sink: &mut K) -> usize {
        let accepted = self.accept(now_ns);
        accepted + self.table.turn(now_ns, sink)
    }

    fn accept(&mut self, now_ns: u64) -> usize {
        if self.accept_retry_ns.is_some_and(|at| at > now_ns) {
            return 0;
        }
        self.accept_retry_ns = None;
        let mut accepted = 0;
        for i in 0..self.listeners.len() {
            let mut left = TURN_ACCEPTS_MAX;
            while self.listeners[i].ready && left > 0 {
                left -= 1;
                match self.listeners[i].listener.accept() {
                    Ok((stream, remote)) => {
                        accepted += 1;
                        self.accept_failing = false;
                        let socket = self.listeners[i].listener.socket();
                        let load = self.table.total();
                        let kept = match &mut self.handover {
                            Some(handover) => handover.offer(stream, socket, remote, load),
                            None => Some(stream),
                        };
                        if let Some(stream) = kept {
                            self.admit(stream, socket, remote, now_ns);
                        }
                    }
                    Err(error) => match error.kind() {
                        io::ErrorKind::WouldBlock => self.listeners[i].ready = false,
                        // The peer has gone between its connect and now.
                        io::ErrorKind::ConnectionAborted
                        | io::ErrorKind::ConnectionReset
                        | io::ErrorKind::Interrupted
                        | io::ErrorKind::InvalidInput
                        | io::ErrorKind::NotConnected => {}
                        _ => {
                            self.accept_failed(i, &error, now_ns);
                            return accepted;
                        }
                    },
                }
            }
        }
        accepted
    }

    fn accept_failed(&mut self, listener: usize, error: &io::Error, now_ns: u64) {
        self.table.counters_mut().inc(Counter::AcceptErrors);
        self.accept_retry_ns = Some(now_ns + ACCEPT_RETRY_NS);
        if !std::mem::replace(&mut self.accept_failing, true) {
            let socket = self.listeners[listener].listener.name();
            tracing::warn!(socket, %error, "cannot accept connections; trying again until it works");
        }
    }

    /// Takes a fresh connection, unless the socket has its maximum.
    pub fn admit(
        &mut self,
        mut stream: NetStream,
        socket: Socket,
        remote: Option<SocketAddr>,
        now_ns: u64,
    ) {
        if !self.table.has_slot(socket) {
            self.table
                .counters_mut()
                .inc(Counter::ConnectionsRefusedLimit);
            return;
        }
        let token = Token(self.table.next_slot());
        let interest = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self.poll.registry().register(&mut stream, token, interest) {
            self.table.counters_mut().inc(Counter::AcceptErrors);
            tracing::warn!(%socket, %error, "cannot watch a fresh connection");
            return;
        }
        self.table.add(stream, socket, remote, now_ns);
    }

    /// Takes a connection that was made to another side.
    ///
    /// # Errors
    /// When the socket has its maximum, or the system refuses to watch it.
    pub fn adopt(
        &mut self,
        mut stream: NetStream,
        socket: Socket,
        remote: Option<SocketAddr>,
        peer: &Arc<PeerConfig>,
        now_ns: u64,
    ) -> io::Result<ConnId> {
        if !self.table.has_slot(socket) {
            return Err(io::Error::other("too many connections"));
        }
        let token = Token(self.table.next_slot());
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll
            .registry()
            .register(&mut stream, token, interest)?;
        Ok(self.table.add_dialled(stream, socket, remote, peer, now_ns))
    }
}
