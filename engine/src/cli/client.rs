//! A blocking client of the administrative socket: one connection, one question at a time.

use crate::addr::Addr;
use crate::admin_api::AdminCommand;
use crate::emqp::{Command, Envelope, MessageBuilder, MsgidText, advance_msgid, first_msgid};
use crate::frames::{FrameSpan, Message};
use crate::zmtp::{Event, Limits, Peer, PeerConfig, Role, SocketType};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Bytes read at a time.
const READ_BYTES: usize = 64 * 1024;

/// Why there is no answer; each prints as one line.
#[derive(Debug, Error)]
pub enum CliError {
    /// No connection.
    #[error("{addr}: cannot connect: {error}")]
    Connect {
        /// Where to.
        addr: Addr,
        /// Why not.
        error: io::Error,
    },
    /// Something else than a ZeroMQ ROUTER listens there.
    #[error("{addr}: no EventMQ broker: {what}")]
    NotABroker {
        /// Where.
        addr: Addr,
        /// What it did.
        what: String,
    },
    /// No answer in time.
    #[error(
        "{addr}: no answer to {command} within {seconds} s (is it the administrative address, \
         and does the broker know this command?)"
    )]
    Timeout {
        /// Where.
        addr: Addr,
        /// Name of the command.
        command: String,
        /// How long was waited.
        seconds: f64,
    },
    /// The connection ended before the answer.
    #[error("{addr}: the connection ended before the answer: {what}")]
    Lost {
        /// Where.
        addr: Addr,
        /// How.
        what: String,
    },
    /// The answer is not what was asked for.
    #[error("{addr}: unexpected answer: {what}")]
    Answer {
        /// Where.
        addr: Addr,
        /// What is wrong with it.
        what: String,
    },
    /// The answer cannot be written out.
    #[error("cannot write the answer: {0}")]
    Output(io::Error),
}

/// A connection to the administrative socket of a broker, handshake done.
#[derive(Debug)]
pub struct AdminClient {
    addr: Addr,
    timeout: Duration,
    stream: Stream,
    peer: Peer,
    received: Vec<u8>,
    spans: Vec<FrameSpan>,
    msgid: MsgidText,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// What ended a wait for an event.
enum Ended {
    Time,
    End(String),
    Zmtp(crate::zmtp::Error),
}

impl AdminClient {
    /// Connects and waits for the ZMTP handshake; `timeout` holds for both together, and later
    /// for each request. The lookup of a host name is not bounded by it.
    ///
    /// # Errors
    /// [`CliError::Connect`], [`CliError::NotABroker`].
    pub fn connect(addr: &Addr, timeout: Duration) -> Result<AdminClient, CliError> {
        let deadline = Instant::now() + timeout;
        let stream = Stream::connect(addr, deadline).map_err(|error| CliError::Connect {
            addr: addr.clone(),
            error,
        })?;
        // A ROUTER of version 0.3.13 dies of an id that is not text.
        let random = RandomState::new();
        let msgid = first_msgid([random.hash_one(0), random.hash_one(1)]);
        let id = first_msgid([random.hash_one(2), random.hash_one(3)]);
        let properties: [(&str, &[u8]); 1] = [("X-EventMQ", b"1")];
        let limits = Limits::default();
        let config = PeerConfig::new(Role::Client, SocketType::Dealer, &id, &properties, limits);
        let mut greeting = Vec::new();
        let peer = Peer::new(&Arc::new(config), &mut greeting);
        let (received, spans) = (Vec::new(), Vec::new());
        let mut client = AdminClient {
            addr: addr.clone(),
            timeout,
            stream,
            peer,
            received,
            spans,
            msgid,
        };
        client
            .handshake(&greeting, deadline)
            .map_err(|ended| CliError::NotABroker {
                addr: addr.clone(),
                what: match ended {
                    Ended::Time => format!("no ZMTP handshake within {} s", timeout.as_secs_f64()),
                    Ended::End(how) => format!("the connection ended during the handshake: {how}"),
                    Ended::Zmtp(error) => error.to_string(),
                },
            })?;
        Ok(client)
    }

    /// Sends a command and waits for its answer: the JSON, or `None` for the ACK of DISCONNECT.
    ///
    /// # Errors
    /// [`CliError::Timeout`], [`CliError::Lost`], [`CliError::Answer`].
    pub fn request(&mut self, command: AdminCommand) -> Result<Option<String>, CliError> {
        let deadline = Instant::now() + self.timeout;
        let addr = self.addr.clone();
        let answer = self.ask(command, deadline).map_err(|ended| match ended {
            Ended::Time => CliError::Timeout {
                addr: addr.clone(),
                command: String::from_utf8_lossy(command.name()).into_owned(),
                seconds: self.timeout.as_secs_f64(),
            },
            Ended::End(what) => CliError::Lost {
                addr: addr.clone(),
                what,
            },
            Ended::Zmtp(error) => CliError::Lost {
                addr: addr.clone(),
                what: error.to_string(),
            },
        })?;
        answer.map_err(|what| CliError::Answer {
            addr,
            what: what.to_owned(),
        })
    }

    fn handshake(&mut self, greeting: &[u8], deadline: Instant) -> Result<(), Ended> {
        self.stream.send(greeting, deadline)?;
        loop {
            if let (Event::Ready { consumed, .. }, _) = self.next_event(deadline)? {
                self.received.drain(..consumed);
                return Ok(());
            }
        }
    }

    /// The inner error is an answer that is not one to `command`.
    fn ask(
        &mut self,
        command: AdminCommand,
        deadline: Instant,
    ) -> Result<Result<Option<String>, &'static str>, Ended> {
        advance_msgid(&mut self.msgid);
        let emqp = Command::parse(command.name()).expect("administrative commands are eMQP's");
        let mut request = Vec::new();
        MessageBuilder::begin(&mut request, emqp).last(&self.msgid);
        self.stream.send(&request, deadline)?;
        loop {
            let (Event::Message { wire_len, consumed }, spans) = self.next_event(deadline)? else {
                continue;
            };
            let message = Message::new(&self.received[..wire_len], &spans);
            let answer = read_answer(&message, command, &self.msgid);
            self.received.drain(..consumed);
            self.spans = spans;
            if let Some(answer) = answer {
                return Ok(answer);
            }
        }
    }

    /// Waits for the next handshake end or message; everything else is dealt with here. The
    /// caller drops the bytes of the event.
    fn next_event(&mut self, deadline: Instant) -> Result<(Event, Vec<FrameSpan>), Ended> {
        let mut out = Vec::new();
        loop {
            let event = self
                .peer
                .poll(&mut self.received, &mut self.spans, &mut out);
            if !out.is_empty() {
                let sent = self.stream.send(&out, deadline);
                out.clear();
                // A peer that ends a bad handshake may be gone; what it said counts more.
                if event.is_ok() {
                    sent?;
                }
            }
            match event.map_err(Ended::Zmtp)? {
                Event::NeedMore { .. } => self.stream.receive(&mut self.received, deadline)?,
                event @ (Event::Ready { .. } | Event::Message { .. }) => {
                    return Ok((event, std::mem::take(&mut self.spans)));
                }
                Event::Command { consumed }
                | Event::TooLarge { consumed }
                | Event::Subscription { consumed, .. } => {
                    self.received.drain(..consumed);
                }
            }
        }
    }
}

/// `None`: nothing to do with the request (a HEARTBEAT, say).
fn read_answer(
    message: &Message<'_>,
    command: AdminCommand,
    msgid: &[u8],
) -> Option<Result<Option<String>, &'static str>> {
    let Ok(envelope) = Envelope::parse(message) else {
        return Some(Err("the message is not one of eMQP/1.0"));
    };
    match (envelope.command, command) {
        (Command::Ack, AdminCommand::Disconnect) => {
            (envelope.body(0) == Some(msgid)).then_some(Ok(None))
        }
        (Command::Reply, AdminCommand::Disconnect) => None,
        (Command::Reply, _) => {
            let json = envelope
                .body(0)
                .and_then(|json| std::str::from_utf8(json).ok());
            Some(
                json.map(|json| Some(json.to_owned()))
                    .ok_or("no JSON in the REPLY"),
            )
        }
        _ => None,
    }
}

impl Stream {
    fn connect(addr: &Addr, deadline: Instant) -> io::Result<Stream> {
        let (host, port) = match addr {
            Addr::Ipc(path) => return UnixStream::connect(path).map(Stream::Unix),
            // What a broker binds for every interface is reached here on this one.
            Addr::Tcp { host, port } if host == "*" => ("127.0.0.1", *port),
            Addr::Tcp { host, port } => (host.as_str(), *port),
        };
        let mut last = io::Error::new(ErrorKind::NotFound, "the host has no address");
        for socket_addr in (host, port).to_socket_addrs()? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            match TcpStream::connect_timeout(&socket_addr, left) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(Stream::Tcp(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn send(&mut self, bytes: &[u8], deadline: Instant) -> Result<(), Ended> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let left = Some(time_left(deadline)?);
            let sent = match self {
                Stream::Tcp(s) => s.set_write_timeout(left).and_then(|()| s.write(rest)),
                Stream::Unix(s) => s.set_write_timeout(left).and_then(|()| s.write(rest)),
            };
            match sent {
                Ok(len) => rest = &rest[len..],
                Err(error) => go_on(&error)?,
            }
        }
        Ok(())
    }

    /// Appends what comes next to `received`.
    fn receive(&mut self, received: &mut Vec<u8>, deadline: Instant) -> Result<(), Ended> {
        let old = received.len();
        received.resize(old + READ_BYTES, 0);
        let free = &mut received[old..];
        let left = Some(time_left(deadline)?);
        let got = match self {
            Stream::Tcp(s) => s.set_read_timeout(left).and_then(|()| s.read(free)),
            Stream::Unix(s) => s.set_read_timeout(left).and_then(|()| s.read(free)),
        };
        received.truncate(old + *got.as_ref().unwrap_or(&0));
        match got {
            Ok(0) => Err(Ended::End("closed by the other side".to_owned())),
            Ok(_) => Ok(()),
            Err(error) => go_on(&error),
        }
    }
}

fn time_left(deadline: Instant) -> Result<Duration, Ended> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err(Ended::Time)
    } else {
        Ok(left)
    }
}

/// A time-out of the socket is no error: the deadline is looked at before the next call.
fn go_on(error: &io::Error) -> Result<(), Ended> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(()),
        _ => Err(Ended::End(error.to_string())),
    }
}
