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

    /// While the state machine has a fan-out under way only administrative input is taken.
    #[inline]
    pub(super) fn takes_input(&self, socket: Socket) -> bool {
        socket == Socket::Admin || !self.broker.has_pending_output()
    }

    pub(super) fn opened<O: Outbox>(
        &mut self,
        conn: ConnId,
        info: PeerInfo,
        now: Now,
        out: &mut O,
    ) {
        if info.socket != Socket::Admin {
            self.broker.handle_opened(conn, info, now, out);
        }
    }

    #[inline]
    pub(super) fn message<O: Outbox>(
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

    pub(super) fn too_large<O: Outbox>(
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

    pub(super) fn lost<O: Outbox>(&mut self, conn: ConnId, socket: Socket, now: Now, out: &mut O) {
        if socket == Socket::Admin {
            out.release(conn);
        } else {
            self.broker.handle_lost(conn, now, out);
        }
    }

    pub(super) fn unsent<O: Outbox>(
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

    pub(super) fn closed<O: Outbox>(
        &mut self,
        conn: ConnId,
        socket: Socket,
        now: Now,
        out: &mut O,
    ) {
        if socket != Socket::Admin {
            self.broker.handle_closed(conn, now, out);
        }
    }

    pub(super) fn writable<O: Outbox>(
        &mut self,
        conn: ConnId,
        socket: Socket,
        now: Now,
        out: &mut O,
    ) {
        if socket != Socket::Admin {
            self.broker.handle_writable(conn, now, out);
        }
    }

    pub(super) fn order<O: Outbox>(&mut self, order: DispatchOrder, now: Now, out: &mut O) {
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

    fn ask_end(&mut self) {
        if self.ending == Ending::No {
            self.ending = Ending::Asked;
        }
    }

    /// After input: timers, fan-outs, administrative answers, the steps of an end.
    /// True if something is still to be sent and waits for room.
    pub(super) fn after_input<O: Outbox>(&mut self, now: Now, out: &mut O) -> bool {
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

    /// Listeners are closed: drain.
    pub(super) fn begin_drain<O: Outbox>(&mut self, now: Now, out: &mut O) {
        if self.ending == Ending::Asked {
            tracing::info!("draining: no new connections");
            self.broker.begin_shutdown(now, out);
            self.ending = Ending::Draining;
        }
    }
}
