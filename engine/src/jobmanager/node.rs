//! The state machine towards the brokers on a thread with their connections.

use super::config::JobManagerConfig;
use super::executor::{Executor, Report};
use super::manager::{Action, Manager, ManagerConfig};
use crate::addr::Addr;
use crate::dial::{DialError, DialId, Net, Node, Origin, RoutingId, Target};
use crate::frames::Message;
use crate::ids::{ConnId, Now};
use crate::link::PeerInfo;
use crate::metrics::Counters;
use std::sync::{Arc, OnceLock};

/// What other threads say.
pub(super) enum Order {
    Report(Report),
    Reload(Box<JobManagerConfig>),
    Shutdown,
    ShutdownNow,
}

/// The connection to one broker.
#[derive(Debug)]
struct Connection {
    addr: Addr,
    dial: Option<DialId>,
    /// The connection the state machine knows of.
    conn: Option<ConnId>,
    /// A connection that was lost, until it is closed.
    ended: Option<ConnId>,
    /// It was logged that it cannot be reached.
    told: bool,
}

pub(super) struct ManagerNode {
    config: Option<ManagerConfig>,
    manager: Option<Manager>,
    connections: Vec<Connection>,
    executor: Arc<OnceLock<Executor>>,
    finished: bool,
}

impl ManagerNode {
    pub(super) fn new(
        config: &JobManagerConfig,
        seeds: [u64; 4],
        executor: Arc<OnceLock<Executor>>,
    ) -> ManagerNode {
        let connection = |addr: &Addr| Connection {
            addr: addr.clone(),
            dial: None,
            conn: None,
            ended: None,
            told: false,
        };
        ManagerNode {
            config: Some(config.manager(seeds)),
            manager: None,
            connections: config.brokers.iter().map(connection).collect(),
            executor,
            finished: false,
        }
    }

    /// What the state machine counted.
    pub(super) fn counters(&self) -> Counters {
        self.manager
            .as_ref()
            .map(|manager| manager.counters().clone())
            .unwrap_or_default()
    }

    fn broker_of(&self, conn: ConnId) -> Option<usize> {
        self.connections
            .iter()
            .position(|known| known.conn == Some(conn))
    }

    /// Lets the state machine act, then does what it wants.
    fn with(&mut self, net: &mut dyn Net, act: impl FnOnce(&mut Manager)) {
        let Some(manager) = &mut self.manager else {
            return;
        };
        act(manager);
        while let Some(action) = manager.poll_action() {
            match action {
                Action::Connect { broker, routing_id } => {
                    let connection = &mut self.connections[broker];
                    if let Some(dial) = connection.dial.take() {
                        net.hang_up(dial);
                    }
                    (connection.conn, connection.ended) = (None, None);
                    connection.dial = Some(net.dial(Target {
                        routing_id: RoutingId::Fixed(routing_id),
                        ..Target::dealer(connection.addr.clone())
                    }));
                }
                Action::Redial { broker } => {
                    let connection = &mut self.connections[broker];
                    connection.ended = connection.conn.take();
                    if let Some(dial) = connection.dial {
                        net.redial(dial);
                    }
                }
                Action::Send { broker, wire } => {
                    if let Some(conn) = self.connections[broker].conn {
                        net.send(conn, &[&wire]);
                    }
                }
                Action::Close { broker } => {
                    let connection = &mut self.connections[broker];
                    if let Some(dial) = connection.dial.take() {
                        net.hang_up(dial);
                    }
                    (connection.conn, connection.ended) = (None, None);
                }
                Action::Run(job) => {
                    if let Some(executor) = self.executor.get() {
                        executor.run(job);
                    }
                }
                Action::CloseExecutor => {
                    if let Some(executor) = self.executor.get() {
                        executor.close();
                    }
                }
                Action::KillExecutor => {
                    if let Some(executor) = self.executor.get() {
                        executor.kill_all();
                    }
                }
                Action::Finished => self.finished = true,
            }
        }
    }
}

impl Node for ManagerNode {
    type Command = Order;

    fn started(&mut self, now: Now, net: &mut dyn Net) {
        self.manager = self.config.take().map(|config| Manager::new(config, now));
        self.with(net, |_| {});
    }

    fn opened(
        &mut self,
        conn: ConnId,
        origin: Origin,
        info: &PeerInfo,
        now: Now,
        net: &mut dyn Net,
    ) {
        let mut known = self.connections.iter();
        let broker = known.position(|known| known.dial.map(Origin::Dialled) == Some(origin));
        let Some(broker) = broker else { return };
        self.connections[broker].conn = Some(conn);
        self.connections[broker].told = false;
        let ours = info.speaks_extensions;
        self.with(net, |manager| manager.handle_connected(broker, ours, now));
    }

    fn message(&mut self, conn: ConnId, message: &Message<'_>, now: Now, net: &mut dyn Net) {
        if let Some(broker) = self.broker_of(conn) {
            self.with(net, |manager| manager.handle_message(broker, message, now));
        }
    }

    fn activity(&mut self, conn: ConnId, now: Now, net: &mut dyn Net) {
        if let Some(broker) = self.broker_of(conn) {
            self.with(net, |manager| manager.handle_alive(broker, now));
        }
    }

    fn too_large(&mut self, conn: ConnId, head: &Message<'_>, now: Now, net: &mut dyn Net) {
        // Its slot is in use by a job that cannot be run: as one whose message is missing.
        self.message(conn, head, now, net);
    }

    fn lost(&mut self, conn: ConnId, _: &DialError, now: Now, net: &mut dyn Net) {
        if let Some(broker) = self.broker_of(conn) {
            self.connections[broker].conn = None;
            self.connections[broker].ended = Some(conn);
            self.with(net, |manager| manager.handle_lost(broker, now));
        }
    }

    fn unsent(&mut self, conn: ConnId, message: &Message<'_>, now: Now, net: &mut dyn Net) {
        let mut known = self.connections.iter();
        if let Some(broker) = known.position(|known| known.ended == Some(conn)) {
            self.with(net, |manager| manager.handle_unsent(broker, message, now));
        }
    }

    fn closed(&mut self, conn: ConnId, _: Now, _: &mut dyn Net) {
        for connection in &mut self.connections {
            if connection.ended == Some(conn) {
                connection.ended = None;
            }
        }
    }

    fn dial_failed(&mut self, dial: DialId, why: &DialError, _: u64, _: Now, _: &mut dyn Net) {
        let mut known = self.connections.iter_mut();
        if let Some(connection) = known.find(|known| known.dial == Some(dial))
            && !std::mem::replace(&mut connection.told, true)
        {
            tracing::warn!(broker = %connection.addr, "the broker cannot be reached, trying on: {why}");
        }
    }

    fn command(&mut self, order: Order, now: Now, net: &mut dyn Net) {
        match order {
            Order::Report(Report::Capacity(capacity)) => {
                self.with(net, |manager| manager.handle_capacity(capacity, now));
            }
            Order::Report(Report::Ended(job, ending)) => {
                self.with(net, |manager| manager.handle_ended(job, ending, now));
            }
            Order::Report(Report::Closed) => {
                self.with(net, |manager| manager.handle_executor_closed(now));
            }
            Order::Reload(config) => {
                if let Some(executor) = self.executor.get() {
                    executor.reload(config.python.clone(), config.commands.clone());
                }
                // The seeds of the start stay.
                let config = config.manager([0; 4]);
                self.with(net, |manager| manager.reload(config, now));
            }
            Order::Shutdown => self.with(net, |manager| manager.shutdown(now)),
            Order::ShutdownNow => self.with(net, |manager| manager.shutdown_now(now)),
        }
    }

    fn poll_timeout(&self) -> Option<u64> {
        self.manager.as_ref().and_then(Manager::poll_timeout)
    }

    fn timeout(&mut self, now: Now, net: &mut dyn Net) {
        self.with(net, |manager| manager.handle_timeout(now));
    }

    fn is_done(&self) -> bool {
        self.finished
    }
}
