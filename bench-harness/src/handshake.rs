//! Connecting and the ZMTP 3.0 NULL handshake, blocking and with a deadline: it is not measured.
//!
//! Both sides are here: the generator's (DEALER) and that of the reference broker `floor`
//! (ROUTER). What the peer sent behind its handshake is handed on in [`Opened::rest`].

use crate::failure::{Failure, Result};
use crate::wire::{Frames, Front, message, walk};
use eventmq::addr::Addr;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Longest time that one step of connecting may take.
pub(crate) const STEP_SECS_MAX: u64 = 5;
const GREETING_BYTES: usize = 64;
/// Property of a handshake, with the length of its name, by which this project's programs know
/// each other.
const EXTENSIONS: &[u8] = b"\x09X-EventMQ";
/// Bytes kept of a peer that never completes a message while connecting.
const REST_BYTES_MAX: usize = 1024 * 1024;

/// A blocking connection.
#[derive(Debug)]
pub(crate) enum Blocking {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(feature = "libzmq")]
    Zmq(crate::zmq_stream::ZmqStream),
}

impl Blocking {
    fn connect(addr: &Addr) -> io::Result<Self> {
        let step = Duration::from_secs(STEP_SECS_MAX);
        match addr {
            Addr::Ipc(path) => Ok(Blocking::Unix(UnixStream::connect(path)?)),
            Addr::Tcp { host, port } => {
                let host = if host == "*" { "127.0.0.1" } else { host };
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
                for candidate in (host, *port).to_socket_addrs()? {
                    match TcpStream::connect_timeout(&candidate, step) {
                        Ok(stream) => return Ok(Blocking::Tcp(stream)),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    /// Makes reads and writes fail after [`STEP_SECS_MAX`].
    pub(crate) fn set_deadlines(&self) -> io::Result<()> {
        let step = Some(Duration::from_secs(STEP_SECS_MAX));
        match self {
            Blocking::Tcp(s) => {
                s.set_nodelay(true)?;
                s.set_read_timeout(step)?;
                s.set_write_timeout(step)
            }
            Blocking::Unix(s) => {
                s.set_read_timeout(step)?;
                s.set_write_timeout(step)
            }
            // It is made with them.
            #[cfg(feature = "libzmq")]
            Blocking::Zmq(_) => Ok(()),
        }
    }
}

impl Blocking {
    fn set_nonblocking(&mut self, on: bool) -> io::Result<()> {
        match self {
            Blocking::Tcp(s) => s.set_nonblocking(on),
            Blocking::Unix(s) => s.set_nonblocking(on),
            #[cfg(feature = "libzmq")]
            Blocking::Zmq(s) => {
                s.set_nonblocking(on);
                Ok(())
            }
        }
    }
}

impl Read for Blocking {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Blocking::Tcp(s) => s.read(buf),
            Blocking::Unix(s) => s.read(buf),
            #[cfg(feature = "libzmq")]
            Blocking::Zmq(s) => s.read(buf),
        }
    }
}

impl Write for Blocking {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Blocking::Tcp(s) => s.write(buf),
            Blocking::Unix(s) => s.write(buf),
            #[cfg(feature = "libzmq")]
            Blocking::Zmq(s) => s.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection whose handshake is done.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) stream: Blocking,
    /// Received bytes that are not yet consumed.
    pub(crate) rest: Vec<u8>,
    /// What to call the other side in messages.
    pub(crate) label: String,
    /// The other side announced the extensions of this project in its handshake.
    pub(crate) extended: bool,
}

/// Connects to a broker's socket as a DEALER with the routing id `identity`.
pub(crate) fn connect(addr: &Addr, identity: &[u8]) -> Result<Opened> {
    let label = addr.to_string();
    let stream = Blocking::connect(addr).map_err(|error| {
        Failure::run(format!(
            "cannot connect to {label}: {error}; is a broker listening there? \
             (without --frontend and --backend the harness starts one itself)"
        ))
    })?;
    shake_hands(stream, label, &ready_command("DEALER", identity))
}

/// Connects to a publisher's outgoing socket as a SUB.
pub(crate) fn connect_subscriber(addr: &Addr) -> Result<Opened> {
    let label = addr.to_string();
    let stream = Blocking::connect(addr)
        .map_err(|error| Failure::run(format!("cannot connect to {label}: {error}")))?;
    shake_hands(stream, label, &ready_command("SUB", b""))
}

/// The server's side of [`connect`].
pub(crate) fn accept(stream: Blocking) -> Result<Opened> {
    shake_hands(stream, "a peer".to_owned(), &ready_command("ROUTER", b""))
}

fn shake_hands(stream: Blocking, label: String, ready: &[u8]) -> Result<Opened> {
    let mut opened = Opened {
        stream,
        rest: Vec::new(),
        label,
        extended: false,
    };
    opened
        .stream
        .set_deadlines()
        .map_err(|error| opened.io_failure("prepare", &error))?;
    opened.send(&greeting())?;
    while opened.rest.len() < GREETING_BYTES {
        if !opened.rest.is_empty() && !begins_like_zmtp(&opened.rest) {
            return Err(opened.not_zmtp());
        }
        opened.receive("a ZMTP greeting")?;
    }
    if !begins_like_zmtp(&opened.rest) || opened.rest[10] < 3 || &opened.rest[12..17] != b"NULL\0" {
        return Err(opened.not_zmtp());
    }
    opened.rest.drain(..GREETING_BYTES);
    opened.send(ready)?;
    let body = opened.command()?;
    if !body.starts_with(b"\x05READY") {
        let text = String::from_utf8_lossy(body.get(1..).unwrap_or_default()).into_owned();
        return Err(Failure::run(format!(
            "{} refuses the handshake: {:?}; it must be a ROUTER socket without authentication",
            opened.label, text
        )));
    }
    opened.extended = body
        .windows(EXTENSIONS.len())
        .any(|window| window.eq_ignore_ascii_case(EXTENSIONS));
    Ok(opened)
}

impl Opened {
    fn io_failure(&self, what: &str, error: &io::Error) -> Failure {
        Failure::run(format!(
            "cannot {what} the connection to {}: {error}",
            self.label
        ))
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream
            .write_all(bytes)
            .map_err(|error| self.io_failure("write to", &error))
    }

    /// Waits for more bytes of `what`.
    fn receive(&mut self, what: &str) -> Result<()> {
        let mut chunk = [0; 64 * 1024];
        let read = loop {
            match self.stream.read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result,
            }
        };
        let label = &self.label;
        match read {
            Ok(0) => Err(Failure::run(format!(
                "{label} closed the connection instead of sending {what}; is it an eMQP broker, \
                 and this its frontend or backend as named?"
            ))),
            Ok(len) if self.rest.len() + len <= REST_BYTES_MAX => {
                self.rest.extend_from_slice(&chunk[..len]);
                Ok(())
            }
            Ok(_) => Err(Failure::run(format!(
                "{label} floods the connection while {what} is due"
            ))),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) =>
            {
                Err(Failure::run(format!(
                    "{label} accepted the connection but sent no {} for {STEP_SECS_MAX} s; \
                     is it an eMQP broker, and this the right one of its sockets?",
                    what.trim_start_matches("a ").trim_start_matches("an ")
                )))
            }
            Err(error) => Err(self.io_failure("read from", &error)),
        }
    }

    fn not_zmtp(&self) -> Failure {
        let begin = &self.rest[..self.rest.len().min(16)];
        Failure::run(format!(
            "{} does not speak ZMTP 3 with the NULL mechanism (it begins with {}); \
             give the address of a broker's frontend or backend",
            self.label,
            begin.escape_ascii()
        ))
    }

    fn command(&mut self) -> Result<Vec<u8>> {
        let mut frames = Frames::default();
        loop {
            match walk(&self.rest, &mut frames) {
                Front::Command { body_at, end } => {
                    let body = self.rest[body_at..end].to_vec();
                    self.rest.drain(..end);
                    return Ok(body);
                }
                Front::Partial => self.receive("a ZMTP READY")?,
                Front::Message(_) | Front::Malformed => return Err(self.not_zmtp()),
            }
        }
    }

    /// Takes the next message; its frames are copied. Deadline: `until`.
    pub(crate) fn next_message(&mut self, what: &str, until: Instant) -> Result<Vec<Vec<u8>>> {
        let mut frames = Frames::default();
        loop {
            match walk(&self.rest, &mut frames) {
                Front::Message(len) => {
                    let copy = (0..frames.count)
                        .map(|i| frames.get(&self.rest, i).to_vec())
                        .collect();
                    self.rest.drain(..len);
                    return Ok(copy);
                }
                Front::Command { end, .. } => drop(self.rest.drain(..end)),
                Front::Partial if Instant::now() < until => self.receive(what)?,
                Front::Partial => {
                    return Err(Failure::run(format!(
                        "{} sent no {what} in time",
                        self.label
                    )));
                }
                Front::Malformed => return Err(self.not_zmtp()),
            }
        }
    }

    /// Gives all whole messages to `each`, of which it awaits at least one; commands are left out.
    pub(crate) fn take_messages(
        &mut self,
        what: &str,
        mut each: impl FnMut(&[u8], &Frames) -> Result<()>,
    ) -> Result<()> {
        let mut frames = Frames::default();
        let (mut at, mut taken) = (0, 0);
        loop {
            let rest = &self.rest[at..];
            match walk(rest, &mut frames) {
                Front::Message(len) => {
                    each(rest, &frames)?;
                    at += len;
                    taken += 1;
                }
                Front::Command { end, .. } => at += end,
                Front::Partial if taken > 0 => break,
                Front::Partial => {
                    self.rest.drain(..at);
                    at = 0;
                    self.receive(what)?;
                }
                Front::Malformed => return Err(self.not_zmtp()),
            }
        }
        self.rest.drain(..at);
        Ok(())
    }

    /// Throws away what has been received, without waiting for more.
    pub(crate) fn discard_received(&mut self) -> Result<()> {
        self.rest.clear();
        let mut chunk = [0; 4096];
        let result = self.stream.set_nonblocking(true).and_then(|()| {
            loop {
                match self.stream.read(&mut chunk) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
            self.stream.set_nonblocking(false)
        });
        result.map_err(|error| self.io_failure("read from", &error))
    }

    /// Registers a worker of one queue.
    pub(crate) fn register_worker(&mut self, queue: &str, msgid: &[u8]) -> Result<()> {
        self.register_worker_of(&[queue.to_owned()], msgid)
    }

    /// Registers a worker: sends INFORM for `queues`, all with the same weight, and waits for its
    /// ACK.
    pub(crate) fn register_worker_of(&mut self, queues: &[String], msgid: &[u8]) -> Result<()> {
        let weighted: Vec<(u32, &String)> = queues.iter().map(|queue| (10, queue)).collect();
        let queues = serde_json::json!(weighted).to_string();
        self.send(&message(&[b"INFORM", msgid, queues.as_bytes(), b"worker"]))?;
        let until = Instant::now() + Duration::from_secs(STEP_SECS_MAX);
        loop {
            let frames = self.next_message("an ACK for a worker's INFORM", until)?;
            match frames.get(2).map(Vec::as_slice) {
                Some(b"ACK") if frames.get(4).is_some_and(|id| id == msgid) => return Ok(()),
                Some(b"HEARTBEAT") => {}
                other => {
                    let command = String::from_utf8_lossy(other.unwrap_or_default()).into_owned();
                    return Err(Failure::run(format!(
                        "{} answers {command:?} to a worker's INFORM; is it the broker's backend?",
                        self.label
                    )));
                }
            }
        }
    }
}

fn begins_like_zmtp(bytes: &[u8]) -> bool {
    bytes[0] == 0xff && bytes.get(9).is_none_or(|&byte| byte == 0x7f)
}

fn greeting() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    (bytes[0], bytes[9], bytes[10]) = (0xff, 0x7f, 3);
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

/// READY with these properties. `identity` is at most 150 bytes, so that the command is short.
fn ready_command(socket_type: &str, identity: &[u8]) -> Vec<u8> {
    let mut body = b"\x05READY".to_vec();
    for (name, value) in [
        ("Socket-Type", socket_type.as_bytes()),
        ("Identity", identity),
    ] {
        body.push(name.len() as u8);
        body.extend_from_slice(name.as_bytes());
        body.extend_from_slice(&(value.len() as u32).to_be_bytes());
        body.extend_from_slice(value);
    }
    debug_assert!(body.len() < 256);
    let mut command = vec![4, body.len() as u8];
    command.append(&mut body);
    command
}

#[cfg(test)]
mod tests;
