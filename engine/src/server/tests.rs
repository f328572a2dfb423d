//! Whole brokers in process, in both threadings, with peers on real sockets.

use super::{Server, ServerConfig};
use crate::addr::Addr;
use crate::frames::{FrameSpan, Message, OwnedMessage};
use crate::ids::Socket;
use crate::metrics::Counter;
use crate::settings::Threading;
use crate::zmtp;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(20);

/// A blocking peer.
struct Peer {
    stream: TcpStream,
    zmtp: zmtp::Peer,
    received: Vec<u8>,
}

impl Peer {
    fn connect(server: &Server, socket: Socket, routing_id: &[u8]) -> Peer {
        let Addr::Tcp { host, port } = server.addr(socket) else {
            panic!("tests bind TCP")
        };
        let mut stream = TcpStream::connect((host.as_str(), port)).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let config = Arc::new(zmtp::PeerConfig::new(
            zmtp::Role::Client,
            zmtp::SocketType::Dealer,
            routing_id,
            &[("X-EventMQ", b"1")],
            zmtp::Limits::default(),
        ));
        let mut out = Vec::new();
        let zmtp = zmtp::Peer::new(&config, &mut out);
        stream.write_all(&out).unwrap();
        Peer {
            stream,
            zmtp,
            received: Vec::new(),
        }
    }

    fn send(&mut self, frames: &[&[u8]]) {
        let mut all: Vec<&[u8]> = vec![b"", b"eMQP/1.0"];
        all.extend(frames);
        let message = OwnedMessage::from_frames(all);
        self.wait_ready();
        self.stream.write_all(message.view().wire()).unwrap();
    }

    fn wait_ready(&mut self) {
        while !self.zmtp.is_ready() {
            assert!(self.step().is_none(), "no message before the handshake");
        }
    }

    /// The next message that is not a HEARTBEAT: command and what follows.
    fn receive(&mut self) -> Vec<Vec<u8>> {
        loop {
            if let Some(message) = self.step() {
                let frames = message.to_frames();
                if frames[2] != b"HEARTBEAT" {
                    return frames[2..].to_vec();
                }
            }
        }
    }

    fn expect(&mut self, command: &str, rest: &[&[u8]]) {
        let frames = self.receive();
        assert_eq!(frames[0], command.as_bytes());
        let tail = &frames[frames.len() - rest.len()..];
        assert_eq!(tail, rest, "{command}");
    }

    fn step(&mut self) -> Option<OwnedMessage> {
        let mut spans: Vec<FrameSpan> = Vec::new();
        let mut out = Vec::new();
        let event = self
            .zmtp
            .poll(&mut self.received, &mut spans, &mut out)
            .unwrap();
        self.stream.write_all(&out).unwrap();
        let (message, consumed) = match event {
            zmtp::Event::NeedMore { .. } => {
                let mut buf = vec![0; 1 << 16];
                let n = self.stream.read(&mut buf).expect("an answer in time");
                assert!(n > 0, "the broker has closed the connection");
                self.received.extend_from_slice(&buf[..n]);
                return None;
            }
            zmtp::Event::Message { wire_len, consumed } => {
                let view = Message::new(&self.received[..wire_len], &spans);
                (Some(OwnedMessage::copy_of(&view)), consumed)
            }
            zmtp::Event::Ready { consumed, .. }
            | zmtp::Event::TooLarge { consumed }
            | zmtp::Event::Command { consumed }
            | zmtp::Event::Subscription { consumed, .. } => (None, consumed),
        };
        self.received.drain(..consumed);
        message
    }

    /// Reads to the end of file.
    fn expect_close(&mut self) {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
}

fn both(test: impl Fn(ServerConfig)) {
    for threading in [Threading::Inline, Threading::Dedicated] {
        test(ServerConfig {
            threading,
            ..ServerConfig::default()
        });
    }
}

fn worker(server: &Server, id: &[u8], slots: usize) -> Peer {
    let mut worker = Peer::connect(server, Socket::Backend, id);
    worker.send(&[b"INFORM", b"i", b"[[10, \"default\"]]", b"worker"]);
    worker.expect("ACK", &[b"i"]);
    for _ in 0..slots {
        worker.send(&[b"READY", b"r"]);
    }
    worker
}

#[test]
fn a_job_goes_round() {
    both(|config| {
        let server = Server::start(config).unwrap();
        let mut worker = worker(&server, b"w", 1);
        let mut client = Peer::connect(&server, Socket::Frontend, b"");
        client.send(&[b"REQUEST", b"m1", b"", b"reply-requested", b"body"]);
        client.expect("REPLY", &[b"m1"]);
        worker.expect("REQUEST", &[b"m1", b"", b"reply-requested", b"body"]);
        worker.send(&[b"REPLY", b"x", b"{\"value\": 3}", b"m1"]);
        client.expect("REPLY", &[b"x", b"{\"value\": 3}", b"m1"]);
        let mut admin = Peer::connect(&server, Socket::Admin, b"a");
        admin.send(&[b"COUNTERS", b"c"]);
        let json: serde_json::Value = serde_json::from_slice(&admin.receive()[2]).unwrap();
        assert_eq!(json["counters"]["results_forwarded"], 1, "{json}");
        server.shutdown();
        worker.expect("KBYE", &[]);
        worker.expect_close();
        client.expect_close();
        let report = server.wait().unwrap();
        assert_eq!(report.figures.jobs_in_flight, 0);
    });
}

#[test]
fn large_payloads_pass_both_ways() {
    both(|config| {
        let server = Server::start(config).unwrap();
        let mut worker = worker(&server, b"w", 10);
        let mut client = Peer::connect(&server, Socket::Frontend, b"c");
        for len in [0, 40_000, 3_000_000, 64 * 1024 * 1024] {
            let body: Vec<u8> = (0..len).map(|i: usize| (i * 7 + i / 251) as u8).collect();
            client.send(&[b"REQUEST", b"m", b"default", b"reply-requested", &body]);
            let job = worker.receive();
            assert!(job[4] == body, "{len}");
            worker.send(&[b"REPLY", b"x", &body, b"m"]);
            worker.send(&[b"READY", b"r"]);
            client.expect("REPLY", &[b"m"]);
            let result = client.receive();
            assert!(result[2] == body, "{len}");
        }
    });
}

#[test]
fn jobs_wait_and_are_handed_out_in_order() {
    both(|config| {
        let server = Server::start(config).unwrap();
        let mut client = Peer::connect(&server, Socket::Frontend, b"c");
        for n in 0..5_000_u32 {
            client.send(&[b"REQUEST", &n.to_be_bytes(), b"", b"", b"body"]);
        }
        for n in 0..5_000_u32 {
            client.expect("REPLY", &[&n.to_be_bytes()]);
        }
        let mut worker = worker(&server, b"w", 0);
        for n in 0..5_000_u32 {
            worker.send(&[b"READY", b"r"]);
            worker.expect("REQUEST", &[&n.to_be_bytes(), b"", b"", b"body"]);
        }
    });
}

#[test]
fn a_reload_moves_an_address_and_keeps_connections() {
    both(|config| {
        let server = Server::start(config.clone()).unwrap();
        let mut worker = worker(&server, b"w", 2);
        let mut old = Peer::connect(&server, Socket::Frontend, b"old");
        old.wait_ready();
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut bad = config.clone();
        bad.addrs[0] = Addr::Tcp {
            host: "127.0.0.1".to_owned(),
            port: taken.local_addr().unwrap().port(),
        };
        let error = server.reload(bad.clone()).unwrap_err().to_string();
        assert!(error.contains("frontend"), "{error}");
        drop(taken);
        server.reload(bad.clone()).unwrap();
        assert_eq!(server.addr(Socket::Frontend), bad.addrs[0]);
        let mut new = Peer::connect(&server, Socket::Frontend, b"new");
        for client in [&mut old, &mut new] {
            client.send(&[b"REQUEST", b"m", b"", b"", b"body"]);
            client.expect("REPLY", &[b"m"]);
            worker.expect("REQUEST", &[b"body"]);
        }
    });
}

#[test]
fn an_address_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = ServerConfig::default();
    config.addrs[1] = Addr::Tcp {
        host: "127.0.0.1".to_owned(),
        port: taken.local_addr().unwrap().port(),
    };
    let error = Server::start(config).unwrap_err().to_string();
    let port = taken.local_addr().unwrap().port().to_string();
    assert!(
        error.contains("backend") && error.contains(&port),
        "{error}"
    );
}

#[test]
fn unix_domain_sockets_serve_and_are_removed() {
    both(|mut config| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("front");
        // A stale file of a process that has ended.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        config.addrs[0] = Addr::Ipc(path.clone());
        let server = Server::start(config).unwrap();
        let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
        let mut greeting = [0; 64];
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(greeting[0], 0xff);
        drop(server);
        assert!(!path.exists());
    });
}

#[test]
fn dropping_a_server_ends_it_soon() {
    both(|config| {
        let server = Server::start(config).unwrap();
        let mut worker = worker(&server, b"w", 1);
        let began = Instant::now();
        drop(server);
        assert!(began.elapsed() < DEADLINE);
        worker.expect_close();
    });
}

#[test]
fn more_io_threads_share_the_connections() {
    let config = ServerConfig {
        threading: Threading::Dedicated,
        io_threads: 4,
        ..ServerConfig::default()
    };
    let server = Server::start(config).unwrap();
    let mut clients: Vec<_> = (0..40)
        .map(|_| Peer::connect(&server, Socket::Frontend, b""))
        .collect();
    let mut worker = worker(&server, b"w", 40);
    for client in &mut clients {
        client.send(&[b"REQUEST", b"m", b"", b"", b"body"]);
        client.expect("REPLY", &[b"m"]);
        worker.expect("REQUEST", &[b"body"]);
    }
    let deadline = Instant::now() + DEADLINE;
    loop {
        let agents = server.agents();
        let counts: Vec<_> = agents.iter().map(|a| a.connections[0]).collect();
        if counts.iter().sum::<usize>() == 40 {
            assert!(counts[..2].iter().all(|n| *n >= 10), "{counts:?}");
            break;
        }
        assert!(Instant::now() < deadline, "{counts:?}");
        std::thread::yield_now();
    }
}

/// Data and end of file are one event to the system more often than not.
#[test]
fn a_peer_that_ends_right_behind_its_last_message_is_let_go() {
    both(|config| {
        let server = Server::start(config).unwrap();
        for _ in 0..20 {
            let mut peer = Peer::connect(&server, Socket::Frontend, b"brief");
            peer.wait_ready();
            peer.send(&[b"HEARTBEAT", b"h", b"1.0"]);
            peer.stream.shutdown(std::net::Shutdown::Write).unwrap();
            peer.expect_close();
        }
    });
}

/// What an agent does by the clock is published like what its peers make it do: `server.agents`
/// is what COUNTERS shows, and asks nothing of the agent.
#[test]
fn connections_closed_by_time_are_shown_without_further_events() {
    both(|config| {
        let server = Server::start(ServerConfig {
            handshake_timeout_ms: 200,
            ..config
        })
        .unwrap();
        let Addr::Tcp { host, port } = server.addr(Socket::Frontend) else {
            panic!("tests bind TCP")
        };
        let mut silent: Vec<_> = (0..10)
            .map(|_| TcpStream::connect((host.as_str(), port)).unwrap())
            .collect();
        for stream in &mut silent {
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            stream.read_to_end(&mut Vec::new()).expect("it is closed");
        }
        let deadline = Instant::now() + DEADLINE;
        loop {
            let agents = server.agents();
            let open: usize = agents.iter().map(|agent| agent.connections[0]).sum();
            let timed_out: u64 = agents
                .iter()
                .map(|agent| {
                    let reason = Counter::ConnectionsClosedHandshakeTimeout;
                    agent.counters.get(reason)
                })
                .sum();
            if (open, timed_out) == (0, 10) {
                break;
            }
            assert!(Instant::now() < deadline, "{open} open, {timed_out} closed");
            std::thread::yield_now();
        }
    });
}

#[test]
fn sockets_that_swap_addresses_are_told_why_not() {
    let server = Server::start(ServerConfig::default()).unwrap();
    let mut config = ServerConfig::default();
    for socket in Socket::ALL {
        config.addrs[socket as usize] = server.addr(socket);
    }
    let own = config.clone();
    server.reload(own.clone()).unwrap();
    config.addrs.swap(0, 1);
    let error = server.reload(config).unwrap_err().to_string();
    assert!(
        error.contains("frontend") && error.contains("the backend socket has it"),
        "{error}"
    );
    assert_eq!(server.addr(Socket::Frontend), own.addrs[0]);
}

#[test]
fn a_path_that_is_too_long_is_named_as_such() {
    let mut config = ServerConfig::default();
    config.addrs[0] = Addr::Ipc(format!("/tmp/{}", "x".repeat(103)).into());
    let error = Server::start(config).unwrap_err().to_string();
    assert!(
        error.contains("the path is too long: 108 bytes of at most 107"),
        "{error}"
    );
}
