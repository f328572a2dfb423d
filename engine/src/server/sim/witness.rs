//! A witness between the turns and the dispatch: writes down what goes in and out of the state
//! machine, per connection, and checks the order of calls.

use super::digest;
use crate::frames::{Message, split_wire};
use crate::ids::{ConnId, Now, Socket};
use crate::link::{CloseReason, OutClass, Outbox, PeerInfo};
use crate::server::control::DispatchOrder;
use crate::server::dispatch::{Decide, Dispatch};
use std::collections::BTreeMap;

/// What was seen of one connection.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) routing_id: Vec<u8>,
    /// Messages that came in, as digests.
    pub(super) told: Vec<u64>,
    /// Messages put out.
    pub(super) put_out: Vec<(OutClass, u64)>,
    /// Messages that came back, newest first.
    pub(super) unsent: Vec<u64>,
    pub(super) close: Option<CloseReason>,
    pub(super) lost: bool,
    pub(super) released: bool,
    pub(super) closed: bool,
}

/// Everything seen.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) conns: BTreeMap<ConnId, Seen>,
    /// Newest open connection of each client.
    newest: BTreeMap<Vec<u8>, ConnId>,
    pub(super) requests: u64,
    pub(super) jobs_put_out: u64,
    /// Acceptances and refusals since the last message: (connection, msgid).
    answers: Vec<(ConnId, Vec<u8>)>,
    pub(super) loud: bool,
}

impl Log {
    fn put_out(&mut self, to: ConnId, class: OutClass, wire: &[u8]) {
        let mut spans = Vec::new();
        assert_eq!(split_wire(wire, &mut spans), Some(wire.len()));
        let message = Message::new(wire, &spans);
        let command = message.get(2).unwrap();
        if self.loud {
            let command = String::from_utf8_lossy(command);
            eprintln!("  -> {to} {class:?} {command} {} B", wire.len());
        }
        let short_reply = command == b"REPLY" && message.len() == 5;
        if class != OutClass::Work && (short_reply || command == b"REJECT") {
            self.answers.push((to, message.get(4).unwrap().to_vec()));
        }
        self.jobs_put_out += u64::from(command == b"REQUEST");
        let seen = self.conns.get_mut(&to).expect("output for an opened one");
        seen.put_out.push((class, digest(wire)));
    }

    fn seen(&mut self, conn: ConnId) -> &mut Seen {
        let seen = self.conns.get_mut(&conn).expect("it was opened");
        assert!(!seen.closed, "{conn}: nothing comes behind closed");
        seen
    }
}

/// The outbox with a pen.
struct Tap<'a, O> {
    out: &'a mut O,
    log: &'a mut Log,
}

impl<O: Outbox> Outbox for Tap<'_, O> {
    fn forward(&mut self, to: ConnId, class: OutClass, message: &Message<'_>) {
        self.log.put_out(to, class, message.wire());
        self.out.forward(to, class, message);
    }
    fn send(&mut self, to: ConnId, class: OutClass, pieces: &[&[u8]]) {
        self.log.put_out(to, class, &pieces.concat());
        self.out.send(to, class, pieces);
    }
    fn close(&mut self, conn: ConnId, reason: CloseReason) {
        let seen = self.log.conns.get_mut(&conn).expect("it was opened");
        seen.close = Some(reason);
        self.out.close(conn, reason);
    }
    fn release(&mut self, conn: ConnId) {
        let seen = self.log.seen(conn);
        assert!(
            seen.lost && !seen.released,
            "{conn}: one release, behind lost"
        );
        seen.released = true;
        self.out.release(conn);
    }
    fn pending_bytes(&mut self, conn: ConnId) -> usize {
        self.out.pending_bytes(conn)
    }
    fn notify_writable(&mut self, conn: ConnId, below_bytes: usize) {
        self.out.notify_writable(conn, below_bytes);
    }
    fn set_never_paused(&mut self, conn: ConnId, never_paused: bool) {
        self.out.set_never_paused(conn, never_paused);
    }
    fn pause_input(&mut self, socket: Socket, paused: bool) {
        self.out.pause_input(socket, paused);
    }
    fn has_room(&self) -> bool {
        self.out.has_room()
    }
}

/// The dispatch, watched.
pub(super) struct Witness {
    pub(super) dispatch: Dispatch,
    pub(super) log: Log,
    /// Pause or resume the reading of clients in the next turn.
    pub(super) pause: Option<bool>,
}

impl Witness {
    pub(super) fn new(dispatch: Dispatch, loud: bool) -> Witness {
        let log = Log {
            loud,
            ..Log::default()
        };
        Witness {
            dispatch,
            log,
            pause: None,
        }
    }

    /// Only administrative input may come while a fan-out is under way.
    fn check_input(&self, socket: Socket) {
        assert!(self.dispatch.takes_input(socket), "input during a fan-out");
    }

    fn note(&self, conn: ConnId, text: &str) {
        if self.log.loud {
            eprintln!("  {conn} {text}");
        }
    }
}

impl Decide for Witness {
    fn begin_turn(&mut self, now: Now, external_bytes: usize) {
        self.dispatch.begin_turn(now, external_bytes);
    }

    fn poll_output<O: Outbox>(&mut self, now: Now, out: &mut O) -> bool {
        let log = &mut self.log;
        self.dispatch.poll_output(now, &mut Tap { out, log })
    }

    fn has_output(&self) -> bool {
        self.dispatch.has_output()
    }

    fn is_end_asked(&self) -> bool {
        self.dispatch.is_end_asked()
    }

    fn takes_input(&self, socket: Socket) -> bool {
        self.dispatch.takes_input(socket)
    }

    fn opened<O: Outbox>(&mut self, conn: ConnId, info: PeerInfo, now: Now, out: &mut O) {
        self.note(conn, "opened");
        self.check_input(info.socket);
        let (socket, routing_id) = (info.socket, info.routing_id.clone());
        let seen = Seen {
            routing_id: routing_id.clone(),
            ..Seen::default()
        };
        let known = self.log.conns.insert(conn, seen);
        assert!(known.is_none(), "{conn} is opened once");
        let log = &mut self.log;
        self.dispatch.opened(conn, info, now, &mut Tap { out, log });
        if socket == Socket::Frontend && log.conns[&conn].close.is_none() {
            log.newest.insert(routing_id, conn);
        }
    }

    fn message<O: Outbox>(
        &mut self,
        conn: ConnId,
        socket: Socket,
        message: &Message<'_>,
        now: Now,
        out: &mut O,
    ) {
        self.note(conn, "message");
        self.check_input(socket);
        let seen = self.log.seen(conn);
        assert!(!seen.lost, "{conn}: no message comes behind lost");
        seen.told.push(digest(message.wire()));
        let routing_id = seen.routing_id.clone();
        // What a refused newcomer had sent goes with its connection, which is counted.
        let refused = seen.close == Some(CloseReason::TakeoverRefused);
        let request = !refused && socket == Socket::Frontend && message.get(2) == Some(b"REQUEST");
        let log = &mut self.log;
        log.answers.clear();
        let out = &mut Tap { out, log };
        self.dispatch.message(conn, socket, message, now, out);
        if request {
            self.log.requests += 1;
            let newest = self.log.newest.get(&routing_id);
            let msgid = message.get(3).unwrap();
            let expected: Vec<_> = newest.map(|c| (*c, msgid.to_vec())).into_iter().collect();
            assert_eq!(self.log.answers, expected, "answers to a REQUEST");
        }
    }

    fn too_large<O: Outbox>(&mut self, _: ConnId, _: Socket, _: &Message<'_>, _: Now, _: &mut O) {
        panic!("nobody sends such messages");
    }

    fn lost<O: Outbox>(&mut self, conn: ConnId, socket: Socket, now: Now, out: &mut O) {
        self.note(conn, "lost");
        self.check_input(socket);
        let seen = self.log.seen(conn);
        assert!(!seen.lost, "{conn} is lost once");
        seen.lost = true;
        let log = &mut self.log;
        log.newest.retain(|_, newest| *newest != conn);
        self.dispatch.lost(conn, socket, now, &mut Tap { out, log });
    }

    fn unsent<O: Outbox>(
        &mut self,
        conn: ConnId,
        socket: Socket,
        message: &Message<'_>,
        now: Now,
        out: &mut O,
    ) {
        self.note(conn, "unsent");
        self.check_input(socket);
        let seen = self.log.seen(conn);
        assert!(
            seen.released,
            "{conn}: nothing comes back before its release"
        );
        seen.unsent.push(digest(message.wire()));
        let out = &mut Tap {
            out,
            log: &mut self.log,
        };
        self.dispatch.unsent(conn, socket, message, now, out);
    }

    fn closed<O: Outbox>(&mut self, conn: ConnId, socket: Socket, now: Now, out: &mut O) {
        self.note(conn, "closed");
        self.check_input(socket);
        let seen = self.log.seen(conn);
        assert!(seen.released, "{conn} is closed behind its release");
        seen.closed = true;
        let log = &mut self.log;
        self.dispatch
            .closed(conn, socket, now, &mut Tap { out, log });
    }

    fn activity<O: Outbox>(&mut self, conn: ConnId, socket: Socket, now: Now, out: &mut O) {
        self.note(conn, "activity");
        self.check_input(socket);
        let log = &mut self.log;
        self.dispatch
            .activity(conn, socket, now, &mut Tap { out, log });
    }

    fn writable<O: Outbox>(&mut self, conn: ConnId, socket: Socket, now: Now, out: &mut O) {
        self.note(conn, "writable");
        self.check_input(socket);
        let log = &mut self.log;
        self.dispatch
            .writable(conn, socket, now, &mut Tap { out, log });
    }

    fn order<O: Outbox>(&mut self, order: DispatchOrder, now: Now, out: &mut O) {
        let log = &mut self.log;
        self.dispatch.order(order, now, &mut Tap { out, log });
    }

    fn after_input<O: Outbox>(&mut self, now: Now, out: &mut O) -> bool {
        if let Some(paused) = self.pause.take() {
            out.pause_input(Socket::Frontend, paused);
        }
        let log = &mut self.log;
        let pending = self.dispatch.after_input(now, &mut Tap { out, log });
        // Slots that come back with what was not sent count for nothing before `closed`.
        let mut conns = self.log.conns.values();
        if !conns.any(|seen| seen.released && !seen.closed) {
            self.dispatch.broker.check_invariants();
        }
        pending
    }

    fn begin_drain<O: Outbox>(&mut self, now: Now, out: &mut O) {
        let log = &mut self.log;
        self.dispatch.begin_drain(now, &mut Tap { out, log });
    }
}
