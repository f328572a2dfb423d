//! Connections that we make (`io::dialer`, `runtime::node`) against real libzmq sockets, and
//! against what is no ZeroMQ at all.

use eventmq::addr::Addr;
use eventmq::dial::{DialError, DialId, Net, Node, Origin, RoutingId, Target};
use eventmq::frames::{Message, OwnedMessage};
use eventmq::ids::{ConnId, Now};
use eventmq::link::PeerInfo;
use eventmq::runtime::node::{NodeHandle, NodeRunner};
use eventmq_tests::PATIENCE;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

#[derive(Debug, PartialEq)]
enum Told {
    Opened(bool),
    Failed(DialError),
    Message(Vec<Vec<u8>>),
    Lost(DialError),
    Unsent(Vec<Vec<u8>>),
    Closed,
}

enum Ask {
    Send(Vec<Vec<u8>>),
    Redial,
    HangUp,
    Stop,
}

/// Tells everything it is told.
struct Teller {
    target: Target,
    dial: Option<DialId>,
    conn: Option<ConnId>,
    told: Sender<Told>,
    done: bool,
}

impl Teller {
    fn tell(&self, told: Told) {
        let _ = self.told.send(told);
    }
}

impl Node for Teller {
    type Command = Ask;

    fn started(&mut self, _: Now, net: &mut dyn Net) {
        self.dial = Some(net.dial(self.target.clone()));
    }

    fn opened(&mut self, conn: ConnId, origin: Origin, info: &PeerInfo, _: Now, _: &mut dyn Net) {
        assert_eq!(Some(origin), self.dial.map(Origin::Dialled));
        self.conn = Some(conn);
        self.tell(Told::Opened(info.speaks_extensions));
    }

    fn message(&mut self, conn: ConnId, message: &Message<'_>, _: Now, _: &mut dyn Net) {
        assert_eq!(Some(conn), self.conn);
        self.tell(Told::Message(
            message.frames().map(<[u8]>::to_vec).collect(),
        ));
    }

    fn lost(&mut self, conn: ConnId, why: &DialError, _: Now, _: &mut dyn Net) {
        assert_eq!(Some(conn), self.conn.take());
        self.tell(Told::Lost(why.clone()));
    }

    fn unsent(&mut self, _: ConnId, message: &Message<'_>, _: Now, _: &mut dyn Net) {
        self.tell(Told::Unsent(message.frames().map(<[u8]>::to_vec).collect()));
    }

    fn closed(&mut self, _: ConnId, _: Now, _: &mut dyn Net) {
        self.tell(Told::Closed);
    }

    fn dial_failed(&mut self, dial: DialId, why: &DialError, _: u64, _: Now, _: &mut dyn Net) {
        assert_eq!(Some(dial), self.dial);
        self.tell(Told::Failed(why.clone()));
    }

    fn command(&mut self, command: Ask, _: Now, net: &mut dyn Net) {
        let dial = self.dial.expect("dialled at start");
        match command {
            Ask::Send(frames) => {
                let message = OwnedMessage::from_frames(frames);
                net.send(self.conn.expect("open"), &[message.view().wire()]);
            }
            Ask::Redial => net.redial(dial),
            Ask::HangUp => net.hang_up(dial),
            Ask::Stop => self.done = true,
        }
    }

    fn poll_timeout(&self) -> Option<u64> {
        None
    }

    fn timeout(&mut self, _: Now, _: &mut dyn Net) {}

    fn is_done(&self) -> bool {
        self.done
    }
}

/// A running [`Teller`], which ends with its guard.
struct Running {
    handle: NodeHandle<Ask>,
    told: Receiver<Told>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(target: Target) -> Running {
        let (sender, told) = channel();
        let node = Teller {
            target,
            dial: None,
            conn: None,
            told: sender,
            done: false,
        };
        let (runner, handle) = NodeRunner::new(node).expect("a runner");
        let thread = std::thread::spawn(move || {
            runner.run().expect("polls");
        });
        Running {
            handle,
            told,
            thread: Some(thread),
        }
    }

    fn to(addr: &str) -> Running {
        Running::start(Target::dealer(addr.parse().expect("an address")))
    }

    fn ask(&self, ask: Ask) {
        assert!(self.handle.give(ask).is_ok(), "the node has ended");
    }

    #[track_caller]
    fn next(&self) -> Told {
        self.told.recv_timeout(PATIENCE).expect("something is told")
    }

    /// The next thing that is no failed attempt.
    #[track_caller]
    fn next_success(&self) -> Told {
        loop {
            match self.next() {
                Told::Failed(_) => {}
                told => return told,
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.handle.give(Ask::Stop);
        if let Some(thread) = self.thread.take() {
            let result = thread.join();
            assert!(result.is_ok() || std::thread::panicking());
        }
    }
}

fn frames(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn router(context: &zmq::Context) -> zmq::Socket {
    let socket = context.socket(zmq::ROUTER).expect("a socket");
    socket.set_linger(0).expect("linger");
    socket
        .set_rcvtimeo(PATIENCE.as_millis() as i32)
        .expect("a time-out");
    socket
}

fn endpoint(socket: &zmq::Socket) -> String {
    socket.get_last_endpoint().expect("bound").expect("text")
}

/// A message there and one back; returns the routing id.
#[track_caller]
fn there_and_back(running: &Running, router: &zmq::Socket) -> Vec<u8> {
    running.ask(Ask::Send(frames(&["", "there"])));
    let got = router.recv_multipart(0).expect("a message");
    assert_eq!(got[1..], frames(&["", "there"]));
    let answer: Vec<&[u8]> = vec![&got[0], b"", b"back"];
    router.send_multipart(answer, 0).expect("sends");
    assert_eq!(running.next(), Told::Message(frames(&["", "back"])));
    got[0].clone()
}

#[test]
fn messages_there_and_back_over_every_kind_of_address() {
    let folder = tempfile::tempdir().expect("a folder");
    let ipc = format!("ipc://{}/socket", folder.path().display());
    for bind in ["tcp://127.0.0.1:*", "tcp://[::1]:*", &ipc] {
        let context = zmq::Context::new();
        let router = router(&context);
        router.set_ipv6(bind.contains("::1")).expect("IPv6");
        if router.bind(bind).is_err() && bind.contains("::1") {
            eprintln!("SKIPPED {bind}: no IPv6 here");
            continue;
        }
        let running = Running::to(&endpoint(&router));
        assert_eq!(running.next(), Told::Opened(false));
        let id = there_and_back(&running, &router);
        assert_eq!(id.len(), 36, "uuid text: {}", id.escape_ascii());
    }
    let context = zmq::Context::new();
    let router = router(&context);
    router.bind("tcp://127.0.0.1:*").expect("binds");
    let by_name = endpoint(&router).replace("127.0.0.1", "localhost");
    let running = Running::to(&by_name);
    assert_eq!(running.next_success(), Told::Opened(false));
    there_and_back(&running, &router);
}

#[test]
fn a_server_that_comes_late_and_comes_back_is_found() {
    let context = zmq::Context::new();
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = format!("tcp://{}", free.local_addr().expect("bound"));
    drop(free);
    let running = Running::to(&addr);
    assert!(matches!(
        running.next(),
        Told::Failed(DialError::Connect(_))
    ));
    assert!(matches!(
        running.next(),
        Told::Failed(DialError::Connect(_))
    ));
    let mut ids = Vec::new();
    for _ in 0..3 {
        let router = router(&context);
        router.bind(&addr).expect("binds");
        assert_eq!(running.next_success(), Told::Opened(false));
        ids.push(there_and_back(&running, &router));
        router.unbind(&addr).expect("unbinds");
        drop(router);
        assert_eq!(running.next(), Told::Lost(DialError::Closed));
        assert_eq!(running.next(), Told::Closed);
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3, "a fresh routing id each time");
}

#[test]
fn routing_ids_are_kept_or_fresh_as_asked() {
    let context = zmq::Context::new();
    let router = router(&context);
    router.set_router_handover(true).expect("handover");
    router.bind("tcp://127.0.0.1:*").expect("binds");
    let mut target = Target::dealer(endpoint(&router).parse().expect("an address"));
    target.routing_id = RoutingId::Fixed(b"me".to_vec());
    let running = Running::start(target);
    for _ in 0..3 {
        assert_eq!(running.next(), Told::Opened(false));
        assert_eq!(there_and_back(&running, &router), b"me");
        running.ask(Ask::Redial);
        assert_eq!(running.next(), Told::Lost(DialError::HungUp));
        assert_eq!(running.next(), Told::Closed);
    }
}

#[test]
fn hanging_up_sends_what_waits_first_and_does_not_come_back() {
    let context = zmq::Context::new();
    let router = router(&context);
    router.bind("tcp://127.0.0.1:*").expect("binds");
    let running = Running::to(&endpoint(&router));
    assert_eq!(running.next(), Told::Opened(false));
    for n in 0..1_000 {
        running.ask(Ask::Send(frames(&["", &n.to_string()])));
    }
    running.ask(Ask::HangUp);
    for n in 0..1_000 {
        let got = router.recv_multipart(0).expect("a message");
        assert_eq!(got[1..], frames(&["", &n.to_string()]));
    }
    assert_eq!(running.next(), Told::Lost(DialError::HungUp));
    assert_eq!(running.next(), Told::Closed);
    running.ask(Ask::Redial);
    router.set_rcvtimeo(500).expect("a time-out");
    assert!(router.recv_multipart(0).is_err());
    assert!(running.told.try_recv().is_err());
}

#[test]
fn what_is_no_zeromq_is_named() {
    let answers: [(&[u8], &str); 3] = [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak ZMTP"),
        (b"\xff\0\0\0\0\0\0\0\x01\x7f\x01", "ZMTP 1 or 2"),
        (b"", "ended the connection in the handshake"),
    ];
    for (answer, expected) in answers {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = format!("tcp://{}", listener.local_addr().expect("bound"));
        let running = Running::to(&addr);
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.write_all(answer).expect("writes");
        if answer.is_empty() {
            drop(stream);
        }
        match running.next() {
            Told::Failed(why) => assert!(why.to_string().contains(expected), "{why}"),
            told => panic!("{told:?}"),
        }
    }
    let running = Running::to("tcp://no-such-host.invalid:1");
    assert!(matches!(
        running.next(),
        Told::Failed(DialError::Resolve(_))
    ));
    let running = Running::to("ipc:///no/such/folder/socket");
    assert!(matches!(
        running.next(),
        Told::Failed(DialError::Connect(_))
    ));
}

/// Reads what a peer begins with and answers as a ROUTER.
fn handshake(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let mut greeting = [0; 64];
    stream.read_exact(&mut greeting).expect("a greeting");
    stream
        .write_all(&eventmq_tests::raw::greeting())
        .expect("writes");
    let mut head = [0; 2];
    stream.read_exact(&mut head).expect("a command");
    let mut ready = vec![0; usize::from(head[1])];
    stream.read_exact(&mut ready).expect("READY");
    let ours =
        eventmq_tests::raw::ready_command(&[("Socket-Type", b"ROUTER"), ("X-EventMQ", b"1")]);
    stream.write_all(&ours).expect("writes");
}

#[test]
fn what_was_not_taken_comes_back_newest_first() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = format!("tcp://{}", listener.local_addr().expect("bound"));
    let running = Running::to(&addr);
    let (mut stream, _) = listener.accept().expect("a connection");
    handshake(&mut stream);
    assert_eq!(running.next(), Told::Opened(true));
    // Far more than the kernel takes for a peer that does not read.
    let large = vec![b'x'; 1 << 20];
    for n in 0..64 {
        running.ask(Ask::Send(vec![n.to_string().into_bytes(), large.clone()]));
    }
    // Nothing is unread on this side: the end is an orderly one.
    drop(stream);
    assert_eq!(running.next(), Told::Lost(DialError::Closed));
    let mut expected = 63;
    loop {
        match running.next() {
            Told::Unsent(message) => {
                assert_eq!(message[0], expected.to_string().into_bytes());
                assert_eq!(message[1].len(), large.len());
                expected -= 1;
            }
            told => {
                assert_eq!(told, Told::Closed);
                break;
            }
        }
    }
    assert!(expected < 60, "{expected}");
}

#[test]
fn an_address_is_not_needed_to_end() {
    let addr: Addr = "tcp://127.0.0.1:1".parse().expect("an address");
    let running = Running::start(Target::dealer(addr));
    assert!(matches!(running.next(), Told::Failed(_)));
    drop(running);
}
