//! One nonblocking connection of the generator or of `floor`: batched reads, batched writes.

use crate::failure::{Failure, Result};
use crate::handshake::{Blocking, Opened};
use mio::net::{TcpStream, UnixStream};
#[cfg(feature = "libzmq")]
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use std::io::{self, Read, Write};

/// Bytes asked for in one read.
const READ_BYTES: usize = 256 * 1024;
/// An output buffer keeps this much memory when it runs empty.
const OUT_BYTES_KEPT: usize = 4 * 1024 * 1024;

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    #[cfg(feature = "libzmq")]
    Zmq(crate::zmq_stream::ZmqStream),
    /// Given up by this side.
    Closed,
}

impl Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => s.read(buf),
            Stream::Unix(s) => s.read(buf),
            #[cfg(feature = "libzmq")]
            Stream::Zmq(s) => s.read(buf),
            Stream::Closed => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => s.write(bytes),
            Stream::Unix(s) => s.write(bytes),
            #[cfg(feature = "libzmq")]
            Stream::Zmq(s) => s.write(bytes),
            // Nobody will miss them.
            Stream::Closed => Ok(bytes.len()),
        }
    }
}

/// A registered connection. Reading is edge-triggered: [`Conn::receive`] until it says `Drained`.
#[derive(Debug)]
pub(crate) struct Conn {
    stream: Stream,
    /// Bytes to send; `out[..written]` has gone.
    pub(crate) out: Vec<u8>,
    written: usize,
    /// The incomplete message at the end of the last read.
    partial: Vec<u8>,
    /// The kernel's buffer was full at the last write; wait for a writable event.
    blocked: bool,
    /// Already in the turn's list of connections to flush.
    pub(crate) listed: bool,
    label: String,
}

/// Whether there may be more to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum More {
    /// The read was cut by the size of the buffer.
    Likely,
    /// Nothing more until the next readable event.
    Drained,
    /// The other side has closed.
    Closed,
}

/// The read buffer shared by all connections of a thread, so that it stays in cache. Empty, it is a
/// stand-in without memory while the real one is in use.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Vec<u8>);

impl Scratch {
    pub(crate) fn new() -> Self {
        Scratch(vec![0; READ_BYTES])
    }
}

impl Conn {
    /// Takes over an opened connection.
    pub(crate) fn new(opened: Opened, registry: &Registry, token: Token) -> Result<Self> {
        let Opened {
            stream,
            rest,
            label,
            ..
        } = opened;
        Conn::register(stream, rest, label.clone(), registry, token)
            .map_err(|error| Failure::run(format!("cannot watch {label}: {error}")))
    }

    fn register(
        stream: Blocking,
        partial: Vec<u8>,
        label: String,
        registry: &Registry,
        token: Token,
    ) -> io::Result<Self> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        let stream = match stream {
            Blocking::Tcp(std) => {
                std.set_nonblocking(true)?;
                let mut stream = TcpStream::from_std(std);
                registry.register(&mut stream, token, interest)?;
                Stream::Tcp(stream)
            }
            Blocking::Unix(std) => {
                std.set_nonblocking(true)?;
                let mut stream = UnixStream::from_std(std);
                registry.register(&mut stream, token, interest)?;
                Stream::Unix(stream)
            }
            #[cfg(feature = "libzmq")]
            Blocking::Zmq(mut stream) => {
                stream.set_nonblocking(true);
                // It is only a sign that the socket has to be looked at.
                registry.register(&mut SourceFd(&stream.fd()), token, Interest::READABLE)?;
                Stream::Zmq(stream)
            }
        };
        let out = Vec::with_capacity(READ_BYTES);
        Ok(Conn {
            stream,
            out,
            written: 0,
            partial,
            blocked: false,
            listed: false,
            label,
        })
    }

    /// Reads once into `scratch`, behind what was left of the last read. The returned bytes begin
    /// with a message; give what is not consumed of them to [`Conn::keep`].
    pub(crate) fn receive<'a>(&mut self, scratch: &'a mut Scratch) -> Result<(&'a [u8], More)> {
        let buf = &mut scratch.0;
        let kept = self.partial.len();
        if buf.len() < kept + READ_BYTES / 2 {
            buf.resize(2 * (kept + READ_BYTES), 0);
        }
        buf[..kept].copy_from_slice(&self.partial);
        self.partial.clear();
        loop {
            let (read, more) = match self.stream.read(&mut buf[kept..]) {
                Ok(0) => (0, More::Closed),
                Ok(len) if kept + len == buf.len() => (len, More::Likely),
                Ok(len) => (len, More::Drained),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => (0, More::Drained),
                Err(error) => return Err(self.broken(&error)),
            };
            return Ok((&buf[..kept + read], more));
        }
    }

    /// Keeps the incomplete message at the end of a read.
    #[inline]
    pub(crate) fn keep(&mut self, rest: &[u8]) {
        self.partial.extend_from_slice(rest);
    }

    /// Writes as much as the kernel takes. Does nothing while it takes nothing.
    pub(crate) fn flush(&mut self) -> Result<()> {
        while !self.blocked && self.written < self.out.len() {
            let bytes = &self.out[self.written..];
            match self.stream.write(bytes) {
                Ok(len) => {
                    // A short write means a full buffer: the writable event will come.
                    self.blocked = len < bytes.len();
                    self.written += len;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.blocked = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(&error)),
            }
        }
        if self.written == self.out.len() {
            self.out.clear();
            self.out.shrink_to(OUT_BYTES_KEPT);
            self.written = 0;
        } else if self.written > OUT_BYTES_KEPT {
            self.out.drain(..self.written);
            self.written = 0;
        }
        Ok(())
    }

    /// A writable event has come.
    pub(crate) fn unblock(&mut self) {
        self.blocked = false;
    }

    /// True if nothing waits to be written.
    pub(crate) fn is_flushed(&self) -> bool {
        self.out.is_empty()
    }

    /// Gives the connection up without a word: what was not sent or read is lost.
    pub(crate) fn close(&mut self) {
        self.stream = Stream::Closed;
        self.partial.clear();
        self.out.clear();
        self.written = 0;
    }

    /// False after [`Conn::close`].
    pub(crate) fn is_open(&self) -> bool {
        !matches!(self.stream, Stream::Closed)
    }

    /// True if there is input that no event will tell of: libzmq tells only of changes, and sending
    /// may have noticed one.
    pub(crate) fn has_unseen_input(&self) -> bool {
        match &self.stream {
            #[cfg(feature = "libzmq")]
            Stream::Zmq(s) => s.is_readable(),
            _ => false,
        }
    }

    /// Who is on the other side.
    pub(crate) fn label(&self) -> &str {
        &self.label
    }

    fn broken(&self, error: &io::Error) -> Failure {
        Failure::run(format!("the connection to {} broke: {error}", self.label))
    }
}
