//! A libzmq DEALER socket that looks like a byte stream: what the generator writes and reads are
//! whole ZMTP messages, whose frames go through libzmq as those of users' clients do.

use crate::failure::{Failure, Result};
use crate::handshake::{Blocking, Opened, STEP_SECS_MAX};
use crate::wire::{Frames, Front, walk};
use eventmq::addr::Addr;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::RawFd;
use std::sync::{Mutex, PoisonError};
use zmq::{Context, DEALER, Socket};

const FLAG_MORE: u8 = 1;
const FLAG_LONG: u8 = 2;
/// Sockets of one context: libzmq takes 1,023.
const SOCKETS_PER_CONTEXT: usize = 1_000;

/// A connected socket.
pub(crate) struct ZmqStream {
    socket: Socket,
    fd: RawFd,
    nonblocking: bool,
    /// Received messages; `inbox[..taken]` has been read.
    inbox: Vec<u8>,
    taken: usize,
}

impl fmt::Debug for ZmqStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZmqStream").field("fd", &self.fd).finish()
    }
}

/// A context with room for another socket.
fn context() -> Context {
    static CURRENT: Mutex<(usize, Option<Context>)> = Mutex::new((0, None));
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let (used, context) = &mut *current;
    *used += 1;
    if *used > SOCKETS_PER_CONTEXT {
        (*used, *context) = (1, None);
    }
    context.get_or_insert_with(Context::new).clone()
}

/// Connects a DEALER with the routing id `identity`. libzmq connects by and by: whether somebody
/// listens there shows with the first answer.
pub(crate) fn connect(addr: &Addr, identity: &[u8]) -> Result<Opened> {
    let label = addr.to_string();
    let cannot = |error: zmq::Error| {
        Failure::run(format!(
            "libzmq cannot make a socket for {label}: {error}; the limit on open files may be \
             reached (ulimit -n)"
        ))
    };
    let stream = open(&label, identity).map_err(cannot)?;
    Ok(Opened {
        stream: Blocking::Zmq(stream),
        rest: Vec::new(),
        label,
        extended: false,
    })
}

fn open(endpoint: &str, identity: &[u8]) -> std::result::Result<ZmqStream, zmq::Error> {
    let socket = context().socket(DEALER)?;
    let step_ms = STEP_SECS_MAX as i32 * 1_000;
    socket.set_identity(identity)?;
    socket.set_linger(0)?;
    // The generator bounds what is outstanding itself.
    socket.set_sndhwm(0)?;
    socket.set_rcvtimeo(step_ms)?;
    socket.set_sndtimeo(step_ms)?;
    socket.connect(endpoint)?;
    let fd = socket.get_fd()?;
    Ok(ZmqStream {
        socket,
        fd,
        nonblocking: false,
        inbox: Vec::new(),
        taken: 0,
    })
}

impl ZmqStream {
    pub(crate) fn set_nonblocking(&mut self, on: bool) {
        self.nonblocking = on;
    }

    /// Becomes readable when the socket has to be looked at.
    pub(crate) fn fd(&self) -> RawFd {
        self.fd
    }

    /// True if a message can be received now.
    pub(crate) fn is_readable(&self) -> bool {
        let events = self.socket.get_events().unwrap_or(zmq::POLLIN);
        events.contains(zmq::POLLIN)
    }

    /// Takes one message into the inbox. `flags` says whether to wait for it.
    fn take_message(&mut self, flags: i32) -> std::result::Result<(), zmq::Error> {
        let mut flags = flags;
        loop {
            let frame = self.socket.recv_msg(flags)?;
            // The rest of a message is there when its beginning is.
            flags = zmq::DONTWAIT;
            let more = frame.get_more();
            let mark = if more { FLAG_MORE } else { 0 };
            if let Ok(short) = u8::try_from(frame.len()) {
                self.inbox.extend_from_slice(&[mark, short]);
            } else {
                self.inbox.push(mark | FLAG_LONG);
                let long = (frame.len() as u64).to_be_bytes();
                self.inbox.extend_from_slice(&long);
            }
            self.inbox.extend_from_slice(&frame);
            if !more {
                return Ok(());
            }
        }
    }
}

fn io_error(error: zmq::Error) -> io::Error {
    match error {
        zmq::Error::EAGAIN => io::ErrorKind::WouldBlock.into(),
        other => io::Error::other(other.to_string()),
    }
}

impl Read for ZmqStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.inbox.len() {
            self.inbox.clear();
            self.taken = 0;
            let flags = if self.nonblocking { zmq::DONTWAIT } else { 0 };
            self.take_message(flags).map_err(io_error)?;
        }
        // Only a full buffer says that there may be more.
        while self.inbox.len() - self.taken < buf.len() {
            match self.take_message(zmq::DONTWAIT) {
                Ok(()) => {}
                Err(zmq::Error::EAGAIN) => break,
                Err(error) => return Err(io_error(error)),
            }
        }
        let len = buf.len().min(self.inbox.len() - self.taken);
        buf[..len].copy_from_slice(&self.inbox[self.taken..self.taken + len]);
        self.taken += len;
        Ok(len)
    }
}

impl Write for ZmqStream {
    /// Sends whole messages; commands of ZMTP are libzmq's business and left out.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let flags = if self.nonblocking { zmq::DONTWAIT } else { 0 };
        let mut frames = Frames::default();
        let mut sent = 0;
        while sent < bytes.len() {
            let rest = &bytes[sent..];
            let len = match walk(rest, &mut frames) {
                Front::Message(len) => len,
                Front::Command { end, .. } => {
                    sent += end;
                    continue;
                }
                Front::Partial | Front::Malformed => {
                    return Err(io::Error::other("the generator sends whole messages only"));
                }
            };
            let parts = (0..frames.count).map(|index| frames.get(rest, index));
            match self.socket.send_multipart(parts, flags) {
                Ok(()) => sent += len,
                Err(zmq::Error::EAGAIN) if sent > 0 => break,
                Err(error) => return Err(io_error(error)),
            }
        }
        Ok(sent)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::message;
    use std::str::FromStr;

    #[test]
    fn messages_cross_libzmq_unchanged() {
        let router = context().socket(zmq::ROUTER).unwrap();
        router.set_rcvtimeo(20_000).unwrap();
        router.bind("tcp://127.0.0.1:*").unwrap();
        let endpoint = router.get_last_endpoint().unwrap().unwrap();
        let mut client = connect(&Addr::from_str(&endpoint).unwrap(), b"me").unwrap();
        let long = [b'x'; 400];
        let both = [message(&[b"A", &long]), message(&[b"B"])].concat();
        client.stream.write_all(&both).unwrap();
        for _ in 0..2 {
            let frames = router.recv_multipart(0).unwrap();
            assert_eq!(frames[0], b"me");
            router.send_multipart(frames, 0).unwrap();
        }
        let mut back = Vec::new();
        while back.len() < both.len() {
            let mut buf = [0; 64];
            let len = client.stream.read(&mut buf).unwrap();
            back.extend_from_slice(&buf[..len]);
        }
        assert_eq!(back, both);
    }
}
