//! Binding addresses.

use super::stream::NetStream;
use crate::addr::Addr;
use crate::ids::Socket;
use socket2::{Domain, Protocol, SockAddr, Socket as RawSocket, Type};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Connections the kernel may hold that have not been accepted.
const BACKLOG: i32 = 4_096;

/// Longest path of a Unix-domain socket: what the system's address holds, without the zero behind
/// it.
const UNIX_PATH_BYTES_MAX: usize = 107;

/// Why an address could not be bound.
#[derive(Debug, Error)]
#[error("cannot bind {name} address {addr}: {source}")]
pub struct BindError {
    /// Whose address: the name of the socket.
    pub name: &'static str,
    /// The address.
    pub addr: Addr,
    /// What the system said.
    pub source: io::Error,
}

#[derive(Debug)]
enum Inner {
    Tcp(mio::net::TcpListener),
    Unix(mio::net::UnixListener, PathBuf),
}

/// A bound, listening, non-blocking socket.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    name: &'static str,
    addr: Addr,
    inner: Inner,
}

impl Listener {
    /// Binds `addr` for `socket`. The host `*` binds every interface; a name is resolved and its
    /// first address taken. A stale Unix-domain socket file that nobody listens on is replaced.
    ///
    /// # Errors
    /// [`BindError`] naming socket and address.
    pub fn bind(socket: Socket, addr: &Addr) -> Result<Self, BindError> {
        Listener::bind_as(socket, socket.name(), addr)
    }

    /// As [`Listener::bind`], for a component that has another name for the socket.
    ///
    /// # Errors
    /// [`BindError`] with that name.
    pub fn bind_as(socket: Socket, name: &'static str, addr: &Addr) -> Result<Self, BindError> {
        let bound = match addr {
            Addr::Tcp { host, port } => bind_tcp(host, *port),
            Addr::Ipc(path) => bind_unix(path),
        };
        let (inner, addr) = bound.map_err(|source| BindError {
            name,
            addr: addr.clone(),
            source,
        })?;
        Ok(Listener {
            socket,
            name,
            addr,
            inner,
        })
    }

    /// The address with its real port.
    pub fn addr(&self) -> &Addr {
        &self.addr
    }

    /// The name of the socket in logs.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Which of the sockets it serves.
    pub fn socket(&self) -> Socket {
        self.socket
    }

    /// Takes one waiting connection.
    ///
    /// # Errors
    /// `WouldBlock` without one; else what the system says.
    pub fn accept(&self) -> io::Result<(NetStream, Option<SocketAddr>)> {
        match &self.inner {
            Inner::Tcp(listener) => {
                let (stream, remote) = listener.accept()?;
                // Batches are written whole; waiting for more only adds latency.
                stream.set_nodelay(true)?;
                Ok((NetStream::Tcp(stream), Some(remote)))
            }
            Inner::Unix(listener, _) => Ok((NetStream::Unix(listener.accept()?.0), None)),
        }
    }

    /// Registers with a mio poll.
    ///
    /// # Errors
    /// What the system says.
    pub fn register(&mut self, registry: &mio::Registry, token: mio::Token) -> io::Result<()> {
        let interest = mio::Interest::READABLE;
        match &mut self.inner {
            Inner::Tcp(listener) => registry.register(listener, token, interest),
            Inner::Unix(listener, _) => registry.register(listener, token, interest),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Inner::Unix(_, path) = &self.inner {
            // Someone may have removed it already.
            let _ = fs::remove_file(path);
        }
    }
}

fn bind_tcp(host: &str, port: u16) -> io::Result<(Inner, Addr)> {
    let target = if host == "*" {
        SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)
    } else {
        (host, port).to_socket_addrs()?.next().ok_or_else(|| {
            io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address")
        })?
    };
    let raw = RawSocket::new(
        Domain::for_address(target),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    raw.set_nonblocking(true)?;
    raw.set_reuse_address(true)?;
    raw.bind(&SockAddr::from(target))?;
    raw.listen(BACKLOG)?;
    let listener = mio::net::TcpListener::from_std(raw.into());
    let port = listener.local_addr()?.port();
    Ok((
        Inner::Tcp(listener),
        Addr::Tcp {
            host: host.to_owned(),
            port,
        },
    ))
}

fn bind_unix(path: &Path) -> io::Result<(Inner, Addr)> {
    let bytes = path.as_os_str().len();
    if bytes > UNIX_PATH_BYTES_MAX {
        let fault = format!("the path is too long: {bytes} bytes of at most {UNIX_PATH_BYTES_MAX}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, fault));
    }
    let addr = SockAddr::unix(path)?;
    let raw = RawSocket::new(Domain::UNIX, Type::STREAM, None)?;
    raw.set_nonblocking(true)?;
    if let Err(error) = raw.bind(&addr) {
        if error.kind() != io::ErrorKind::AddrInUse || !is_stale(path, &addr) {
            return Err(error);
        }
        fs::remove_file(path)?;
        raw.bind(&addr)?;
    }
    raw.listen(BACKLOG)?;
    let listener = mio::net::UnixListener::from_std(raw.into());
    Ok((
        Inner::Unix(listener, path.to_owned()),
        Addr::Ipc(path.to_owned()),
    ))
}

/// True for a socket file left by a process that has ended.
fn is_stale(path: &Path, addr: &SockAddr) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    let refused = RawSocket::new(Domain::UNIX, Type::STREAM, None)
        .and_then(|probe| probe.connect(addr))
        .is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
    is_socket && refused
}
