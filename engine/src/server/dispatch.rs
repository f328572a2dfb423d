//! The dispatch agent: feeds the state machine and serves the administrative socket.

use super::admin::AdminDesk;
use super::control::DispatchOrder;
use crate::broker::Broker;
use crate::frames::Message;
use crate::ids::{ConnId, Now, Socket};
use crate::link::{Outbox, PeerInfo};

/// How far the end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// Not asked for.
    No,
    /// Asked for; listeners are to be closed.
    Asked,
    /// No more connections; waiting for jobs.
    Draining,
    /// Nothing more is to be done but sending what is waiting.
    Done,
}

/// The dispatch as the turns of the agents see it: [`Dispatch`] itself, or a witness around it.
pub(super) trait Decide {
    /// The start of a turn. `external_bytes` are held by the I/O agents and the rings.
    fn begin_turn(&mut self, now: Now, external_bytes: usize);

    /// Goes on with fan-outs while there is room; true if something is still pending.
    fn poll_output<O: Outbox>(&mut self, now: Now, out: &mut O) -> bool;

    /// True while a turn with room for output would find something to send.
    fn has_output(&self) -> bool;

    /// Asked to end; listeners are to be closed before [`Decide::begin_drain`].
    fn is_end_asked(&self) -> bool;

    /// While the state machine has a fan-out under way only administrative input is taken.
    fn takes_input(&self, socket: Socket) -> bool;

    // The calls of [`crate::io::InputSink`].

    fn opened<O: Outbox>(&mut self, conn: ConnId, info: PeerInfo, now: Now, out: &mut O);

    fn message<O: Outbox>(
        &mut self,
        conn: ConnId,
        socket: Socket,
        message: &Message<'_>,
        now: Now,
        out: &mut O,
    );

    fn too_large<O: Outbox>(
        &mut self,
        conn: ConnId,
        socket: Socket,
        head: &Message<'_>,
        now: Now,
        out: &mut O,
    );

    fn activity<O: Outbox>(&mut self, conn: ConnId, socket: Socket, now: Now, out: &mut O);

    fn lost<O: Outbox>(&mut self, conn: ConnId, socket: Socket, now: Now, out: &mut O);

    fn unsent<O: Outbox>(
        &mut self,
        conn: ConnId,
        socket: Socket,
        message: &Message<'_>,
        now: Now,
        out: &mut O,
    );

    fn closed<O: Outbox>(&mut self, conn: ConnId, socket: Socket, now: Now, out: &mut O);

    fn writable<O: Outbox>(&mut self, conn: ConnId, socket: Socket, now: Now, out: &mut O);

    /// Carries out an order.
    fn order<O: Outbox>(&mut self, order: DispatchOrder, now: Now, out: &mut O);

    /// After input: timers, fan-outs, administrative answers, the steps of an end.
    /// True if something is still to be sent and waits for room.
    fn after_input<O: Outbox>(&mut self, now: Now, out: &mut O) -> bool;

    /// Listeners are closed: drain.
    fn begin_drain<O: Outbox>(&mut self, now: Now, out: &mut O);
}

/// State machine and administrative desk, with the calls of the shell routed to the right one.
#[derive(Debug)]
pub(super) struct Dispatch {
    pub(super) broker: Broker,
    pub(super) admin: AdminDesk,
    pub(super) ending: Ending,
}

impl Dispatch {
    pub(super) fn new(broker: Broker, admin: AdminDesk) -> Self {
        Dispatch {
            broker,
            admin,
            ending: Ending::No,
        }
    }

    fn ask_end(&mut self) {
        if self.ending == Ending::No {
            self.ending = Ending::Asked;
        }
    }
}

impl Decide for Dispatch {
    #[inline]
    fn begin_turn(&mut self, now: Now, external_bytes: usize) {
        self.broker.begin_turn(now);
        self.broker.set_external_bytes(external_bytes);
    }

    #[inline]
    fn poll_output<O: Outbox>(&mut self, now: Now, out: &mut O) -> bool {
        self.broker.poll_output(now, out)
    }

    fn has_output(&self) -> bool {
        self.broker.has_pending_output() || self.admin.has_answers()
    }

    #[inline]
    fn is_end_asked(&self) -> bool {
        self.ending == Ending::Asked
    }

    #[inline]
    fn takes_input(&self, socket: Socket) -> bool {
        socket == Socket::Admin || !self.broker.has_pending_output()
    }

    fn opened<O: Outbox>(&mut self, conn: ConnId, info: PeerInfo, now: Now, out: &mut O) {
        if info.socket != Socket::Admin {
            self.broker.handle_opened(conn, info, now, out);
        }
    }

    #[inline]
    fn message<O: Outbox>(
        &mut self,
        conn: ConnId,
        socket: Socket,
        message: &Message<'_>,
        now: Now,
        out: &mut O,
    ) {
        if socket != Socket::Admin {
            self.broker.handle_message(conn, message, now, out);
        } else if self
            .admin
            .handle_message(conn, message, &mut self.broker, now, out)
        {
            self.ask_end();
        }
    }

    fn too_large<O: Outbox>(
        &mut self,
        conn: ConnId,
        socket: Socket,
        head: &Message<'_>,
        now: Now,
        out: &mut O,
    ) {
        if socket != Socket::Admin {
            self.broker.handle_too_large(conn, head, now, out);
        }
    }

    fn activity<O: Outbox>(&mut self, conn: ConnId, socket: Socket, now: Now, out: &mut O) {
        if socket != Socket::Admin {
            self.broker.handle_activity(conn, now, out);
        }
    }

    fn lost<O: Outbox>(&mut self, conn: ConnId, socket: Socket, now: Now, out: &mut O) {
        if socket == Socket::Admin {
            out.release(conn);
        } else {
            self.broker.handle_lost(conn, now, out);
        }
    }

    fn unsent<O: Outbox>(
        &mut self,
        conn: ConnId,
        socket: Socket,
        message: &Message<'_>,
        now: Now,
        out: &mut O,
    ) {
        if socket != Socket::Admin {
            self.broker.handle_unsent(conn, message, now, out);
        }
    }

    fn closed<O: Outbox>(&mut self, conn: ConnId, socket: Socket, now: Now, out: &mut O) {
        if socket != Socket::Admin {
            self.broker.handle_closed(conn, now, out);
        }
    }

    fn writable<O: Outbox>(&mut self, conn: ConnId, socket: Socket, now: Now, out: &mut O) {
        if socket != Socket::Admin {
            self.broker.handle_writable(conn, now, out);
        }
    }

    fn order<O: Outbox>(&mut self, order: DispatchOrder, now: Now, out: &mut O) {
        match order {
            DispatchOrder::Shutdown => self.ask_end(),
            DispatchOrder::ShutdownNow => {
                if self.ending != Ending::Done {
                    self.broker.end_shutdown(now, out);
                    self.ending = Ending::Done;
                }
            }
            DispatchOrder::Configure(config) => self.broker.reconfigure(*config, now),
        }
    }

    fn after_input<O: Outbox>(&mut self, now: Now, out: &mut O) -> bool {
        self.broker.handle_timeout(now, out);
        let pending = self.broker.poll_output(now, out);
        self.admin.send_answers(out);
        if self.ending == Ending::Draining && !pending && self.broker.is_finished() {
            self.broker.end_shutdown(now, out);
            while self.broker.poll_output(now, out) && out.has_room() {}
            self.ending = Ending::Done;
        }
        pending
    }

    fn begin_drain<O: Outbox>(&mut self, now: Now, out: &mut O) {
        if self.ending == Ending::Asked {
            tracing::info!("draining: no new connections");
            self.broker.begin_shutdown(now, out);
            self.ending = Ending::Draining;
        }
    }
}
