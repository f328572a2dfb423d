//! A byte stream, real or fake.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;

/// A non-blocking byte stream. `Err(WouldBlock)` = later; `Ok(0)` from `read` = end of file.
pub trait Stream {
    /// Reads into `buf`.
    ///
    /// # Errors
    /// As `std::io::Read`.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes one slice.
    ///
    /// # Errors
    /// As `std::io::Write`.
    fn write(&mut self, buf: &[u8]) -> io::Result<usize>;

    /// Writes several slices.
    ///
    /// # Errors
    /// As `std::io::Write`.
    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Ends the sending direction; the peer reads to the end of file.
    fn shutdown_write(&mut self);
}

/// A TCP or Unix-domain connection registered with mio.
#[derive(Debug)]
pub enum NetStream {
    /// TCP.
    Tcp(mio::net::TcpStream),
    /// Unix domain.
    Unix(mio::net::UnixStream),
}

impl Stream for NetStream {
    #[inline]
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            NetStream::Tcp(stream) => Read::read(stream, buf),
            NetStream::Unix(stream) => Read::read(stream, buf),
        }
    }

    #[inline]
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            NetStream::Tcp(stream) => Write::write(stream, buf),
            NetStream::Unix(stream) => Write::write(stream, buf),
        }
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            NetStream::Tcp(stream) => Write::write_vectored(stream, bufs),
            NetStream::Unix(stream) => Write::write_vectored(stream, bufs),
        }
    }

    fn shutdown_write(&mut self) {
        // The connection may be gone already; then there is nothing left to end.
        let _ = match self {
            NetStream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            NetStream::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
    }
}

impl mio::event::Source for NetStream {
    fn register(
        &mut self,
        registry: &mio::Registry,
        token: mio::Token,
        interests: mio::Interest,
    ) -> io::Result<()> {
        match self {
            NetStream::Tcp(stream) => stream.register(registry, token, interests),
            NetStream::Unix(stream) => stream.register(registry, token, interests),
        }
    }

    fn reregister(
        &mut self,
        registry: &mio::Registry,
        token: mio::Token,
        interests: mio::Interest,
    ) -> io::Result<()> {
        match self {
            NetStream::Tcp(stream) => stream.reregister(registry, token, interests),
            NetStream::Unix(stream) => stream.reregister(registry, token, interests),
        }
    }

    fn deregister(&mut self, registry: &mio::Registry) -> io::Result<()> {
        match self {
            NetStream::Tcp(stream) => stream.deregister(registry),
            NetStream::Unix(stream) => stream.deregister(registry),
        }
    }
}
