//! What tests that attack the broker share: peers that must not notice, and memory that must come
//! back.

use crate::dealer::{Dealer, show};
use crate::router::{Router, Start, Target};
use crate::{PATIENCE, eventually};
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use zmq::Context;

/// How much more memory the broker may hold than before an attack, when it is over. The allocator
/// keeps some of what was freed.
pub const LEFT_OVER: u64 = 48 << 20;

/// A worker and a client that go on working whatever the others do.
#[derive(Debug)]
pub struct Good {
    /// Of the queue `good`, with one free slot between two jobs.
    pub worker: Dealer,
    /// Its client.
    pub client: Dealer,
    count: usize,
}

impl Good {
    /// Both are connected, and a job has come through.
    pub fn new(router: &Router) -> Good {
        let context = Context::new();
        let addresses = router.addresses();
        let worker = Dealer::connect(&context, &addresses.backend, Some(b"good-worker"));
        worker.inform_worker(r#"[[10, "good"]]"#);
        worker.ready(1);
        let client = Dealer::connect(&context, &addresses.frontend, Some(b"good-client"));
        let mut good = Good {
            worker,
            client,
            count: 0,
        };
        good.works();
        good
    }

    /// One job there and its result back.
    #[track_caller]
    pub fn works(&mut self) -> Duration {
        let began = Instant::now();
        self.count += 1;
        let msgid = format!("good-{}", self.count);
        self.client
            .send(&["REQUEST", &msgid, "good", "reply-requested", "payload"]);
        let accepted = self.client.expect("REPLY");
        assert_eq!(accepted[4], msgid.as_bytes(), "{}", show(&accepted));
        let request = self.worker.expect("REQUEST");
        assert_eq!(request[3], msgid.as_bytes(), "{}", show(&request));
        self.worker.send(&["REPLY", "r", "result", &msgid]);
        self.worker.ready(1);
        let result = self.client.expect("REPLY");
        assert_eq!(result[5], msgid.as_bytes(), "{}", show(&result));
        began.elapsed()
    }
}

/// A broker that does not mind that the good worker says nothing while it is not asked.
pub fn start(target: Target, env: &[(&str, &str)]) -> Router {
    let start = Start::new(target).env("EVENTMQ_HEARTBEAT_TIMEOUT", "600");
    let start = env
        .iter()
        .fold(start, |start, (name, value)| start.env(name, value));
    start.start().expect("ours is never missing")
}

/// Three TCP addresses: every attack goes to each of them.
pub fn doors(router: &Router) -> [String; 3] {
    let addresses = router.addresses();
    [&addresses.frontend, &addresses.backend, &addresses.admin].map(|a| Router::tcp(a).to_owned())
}

/// A plain connection with time-outs.
pub fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap_or_else(|e| panic!("{address}: {e}"));
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    stream
        .set_write_timeout(Some(PATIENCE))
        .expect("a time-out");
    stream
}

/// Waits until the broker ends this connection; what it still says is thrown away.
#[track_caller]
pub fn wait_for_end(stream: &mut TcpStream, what: &str) {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
                return;
            }
            Err(e) => panic!("{what}: the connection was not ended: {e}"),
        }
    }
}

/// Memory settles near `before` bytes.
#[track_caller]
pub fn memory_comes_back(router: &mut Router, before: u64) {
    let limit = before + LEFT_OVER;
    eventually("memory comes back", PATIENCE, || {
        let now = router.process().resident_bytes();
        if now <= limit {
            Ok(())
        } else {
            Err(format!("{} MiB of {} MiB", now >> 20, limit >> 20))
        }
    });
}

/// Bytes that differ everywhere and are the same for the same seed.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
