//! A blocking ZMTP connection: every wait has a deadline.

use super::CliError;
use crate::addr::Addr;
use crate::frames::{FrameSpan, Message};
use crate::zmtp::{
    Event, Limits, Peer, PeerConfig, Role, SocketType, push_ping, push_subscription,
};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes read at a time.
const READ_BYTES: usize = 64 * 1024;

/// A connection whose handshake is done.
#[derive(Debug)]
pub(super) struct Link {
    addr: Addr,
    stream: Stream,
    peer: Peer,
    received: Vec<u8>,
    spans: Vec<FrameSpan>,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// What ended a wait for an event.
#[derive(Debug)]
pub(super) enum Ended {
    /// The deadline is over.
    Time,
    End(String),
    Zmtp(crate::zmtp::Error),
}

impl Ended {
    /// How it ended, in words; `None` for the deadline.
    pub(super) fn how(&self) -> Option<String> {
        match self {
            Ended::Time => None,
            Ended::End(how) => Some(how.clone()),
            Ended::Zmtp(error) => Some(error.to_string()),
        }
    }
}

impl Link {
    /// Connects as a socket of this type and waits for the ZMTP handshake; `timeout` holds for
    /// both together, the lookup of a host name included.
    ///
    /// # Errors
    /// [`CliError::Connect`], [`CliError::NotABroker`].
    pub(super) fn connect(
        addr: &Addr,
        socket_type: SocketType,
        routing_id: &[u8],
        timeout: Duration,
    ) -> Result<Link, CliError> {
        let deadline = Instant::now() + timeout;
        let stream = Stream::connect(addr, deadline).map_err(|error| CliError::Connect {
            addr: addr.clone(),
            error,
        })?;
        let properties: [(&str, &[u8]); 1] = [("X-EventMQ", b"1")];
        let limits = Limits::default();
        let config = PeerConfig::new(Role::Client, socket_type, routing_id, &properties, limits);
        let mut greeting = Vec::new();
        let peer = Peer::new(&Arc::new(config), &mut greeting);
        let mut link = Link {
            addr: addr.clone(),
            stream,
            peer,
            received: Vec::new(),
            spans: Vec::new(),
        };
        link.handshake(&greeting, deadline)
            .map_err(|ended| CliError::NotABroker {
                addr: addr.clone(),
                what: match ended {
                    Ended::Time => format!("no ZMTP handshake within {} s", timeout.as_secs_f64()),
                    Ended::End(how) => format!("the connection ended during the handshake: {how}"),
                    Ended::Zmtp(error) => error.to_string(),
                },
            })?;
        Ok(link)
    }

    /// Where it leads.
    pub(super) fn addr(&self) -> &Addr {
        &self.addr
    }

    fn handshake(&mut self, greeting: &[u8], deadline: Instant) -> Result<(), Ended> {
        self.stream.send(greeting, deadline)?;
        loop {
            if let Event::Ready { consumed, .. } = self.next_event(deadline)? {
                self.received.drain(..consumed);
                return Ok(());
            }
        }
    }

    /// Sends whole messages or commands.
    pub(super) fn send(&mut self, wire: &[u8], deadline: Instant) -> Result<(), Ended> {
        self.stream.send(wire, deadline)
    }

    /// Subscribes to topics.
    pub(super) fn subscribe(&mut self, topic: &[u8], deadline: Instant) -> Result<(), Ended> {
        let mut wire = Vec::new();
        push_subscription(&mut wire, true, topic, self.peer.speaks_v31());
        self.stream.send(&wire, deadline)
    }

    /// Waits until the other side has read everything sent so far: it answers a PING. False if it
    /// speaks ZMTP 3.0, which has none.
    pub(super) fn wait_until_read(&mut self, deadline: Instant) -> Result<bool, Ended> {
        if !self.peer.speaks_v31() {
            return Ok(false);
        }
        let mut wire = Vec::new();
        push_ping(&mut wire, 0, b"read?");
        self.stream.send(&wire, deadline)?;
        loop {
            // The PONG is the only command that is due.
            let event = self.next_event_or_command(deadline)?;
            let (Event::Command { consumed } | Event::Message { consumed, .. }) = event else {
                continue;
            };
            let pong = matches!(event, Event::Command { .. })
                && self.received[..consumed].windows(4).any(|w| w == b"PONG");
            self.received.drain(..consumed);
            if pong {
                return Ok(true);
            }
        }
    }

    /// Waits for the next message and gives it to `take`.
    pub(super) fn receive<T>(
        &mut self,
        deadline: Instant,
        take: impl FnOnce(&Message<'_>) -> T,
    ) -> Result<T, Ended> {
        loop {
            if let Event::Message { wire_len, consumed } = self.next_event(deadline)? {
                let message = Message::new(&self.received[..wire_len], &self.spans);
                let taken = take(&message);
                self.received.drain(..consumed);
                return Ok(taken);
            }
        }
    }

    /// Waits for the end of the handshake or the next message; everything else is dealt with here.
    /// The caller drops the bytes of the event.
    fn next_event(&mut self, deadline: Instant) -> Result<Event, Ended> {
        loop {
            match self.next_event_or_command(deadline)? {
                event @ (Event::Ready { .. } | Event::Message { .. }) => return Ok(event),
                Event::Command { consumed }
                | Event::TooLarge { consumed }
                | Event::Subscription { consumed, .. } => {
                    self.received.drain(..consumed);
                }
                Event::NeedMore { .. } => {}
            }
        }
    }

    fn next_event_or_command(&mut self, deadline: Instant) -> Result<Event, Ended> {
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
                event => return Ok(event),
            }
        }
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
        for socket_addr in look_up(host, port, deadline)? {
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
        // First: nothing below may return before what was not read is cut off again.
        let left = Some(time_left(deadline)?);
        let old = received.len();
        received.resize(old + READ_BYTES, 0);
        let free = &mut received[old..];
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

/// The addresses of a host. The system's resolver cannot be interrupted: it runs on a thread of its
/// own, which is left behind when the time is over.
fn look_up(host: &str, port: u16, deadline: Instant) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![(ip, port).into()]);
    }
    let host = host.to_owned();
    within(deadline, move || {
        Ok((host.as_str(), port).to_socket_addrs()?.collect())
    })
    .unwrap_or_else(|| {
        let what = "the lookup of the host name has not ended";
        Err(io::Error::new(ErrorKind::TimedOut, what))
    })
}

/// What `work` returns, or `None` if that takes longer.
fn within<T: Send + 'static>(
    deadline: Instant,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Option<io::Result<T>> {
    let (sender, receiver) = mpsc::channel();
    let worker = thread::Builder::new().name("resolver".to_owned());
    if let Err(error) = worker.spawn(move || sender.send(work())) {
        return Some(Err(error));
    }
    let left = deadline.saturating_duration_since(Instant::now());
    receiver.recv_timeout(left).ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolver_that_hangs_holds_up_nobody() {
        let (release, hold) = mpsc::channel::<()>();
        let soon = Instant::now() + Duration::from_millis(20);
        let answer = within(soon, move || {
            let _ = hold.recv();
            Ok(())
        });
        assert!(answer.is_none(), "{answer:?}");
        drop(release);
        let later = Instant::now() + Duration::from_secs(60);
        assert_eq!(within(later, || Ok(7)).unwrap().unwrap(), 7);
        assert!(
            within(later, || Err::<(), _>(ErrorKind::NotFound.into()))
                .unwrap()
                .is_err()
        );
    }

    #[test]
    fn nothing_is_received_but_what_was_sent() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut stream = Stream::Unix(ours);
        let mut received = b"kept".to_vec();
        let over = Instant::now();
        assert!(matches!(
            stream.receive(&mut received, over),
            Err(Ended::Time)
        ));
        let soon = Instant::now() + Duration::from_millis(5);
        while stream.receive(&mut received, soon).is_ok() {}
        assert_eq!(received, b"kept");
        theirs.write_all(b" and sent").unwrap();
        let later = Instant::now() + Duration::from_secs(60);
        stream.receive(&mut received, later).unwrap();
        assert_eq!(received, b"kept and sent");
        drop(theirs);
        assert!(matches!(
            stream.receive(&mut received, later),
            Err(Ended::End(_))
        ));
        assert_eq!(received, b"kept and sent");
    }

    #[test]
    fn numbers_are_not_looked_up_and_names_are() {
        let over = Instant::now();
        assert_eq!(
            look_up("127.0.0.1", 7, over).unwrap(),
            ["127.0.0.1:7".parse().unwrap()]
        );
        assert_eq!(
            look_up("::1", 7, over).unwrap(),
            ["[::1]:7".parse().unwrap()]
        );
        let later = Instant::now() + Duration::from_secs(60);
        let found = look_up("localhost", 7, later).unwrap();
        assert!(
            found.iter().all(|addr| addr.ip().is_loopback()),
            "{found:?}"
        );
    }
}
