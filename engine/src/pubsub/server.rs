//! The state machine as the sink of one I/O agent, on one thread.

use super::admin::AdminDesk;
use super::state::{INCOMING, OUTGOING, PubSub, PubSubConfig, PubSubFigures};
use crate::addr::Addr;
use crate::emqp::first_msgid;
use crate::frames::Message;
use crate::ids::{ConnId, NS_PER_MS, Now, Socket};
use crate::io::{
    BindError, ConnTable, InputSink, IoAgent, Listener, OutputConfig, OutputTable, Steps,
    TableConfig,
};
use crate::limits;
use crate::link::{Outbox, PeerInfo};
use crate::metrics::{Counter, Counters};
use crate::runtime::clock::Clock;
use crate::runtime::finish::finish_connections;
use crate::runtime::idle::earliest;
use crate::runtime::orders::{Bell, Orders, io_bell};
use crate::runtime::threads::{agent_thread, random};
use crate::zmtp;
use std::hash::RandomState;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use thiserror::Error;

/// At the end: publishers count as read out after this long without a message.
const QUIET_NS: u64 = 100 * NS_PER_MS;
/// At the end: publishers that go on are read no longer than this.
const DRAIN_NS: u64 = 2_000 * NS_PER_MS;
/// Largest message of a subscriber: a ZMTP 3.0 subscription and its first byte.
const SUBSCRIBER_MESSAGE_BYTES_MAX: usize = limits::SUBSCRIPTION_BYTES_MAX + 1;
/// A larger one is read and discarded up to this size, then the connection is closed.
const SUBSCRIBER_DISCARD_BYTES_MAX: usize = 1024 * 1024;

/// Names of the sockets in logs, indexed by [`Socket`].
const NAMES: [&str; 3] = ["incoming", "outgoing", "administrative"];

/// What a publisher is started with. `Default` is the documented default of each setting, on free
/// ports of the loopback interface.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Where publishers, subscribers and administrative peers connect; port 0 = a free one.
    pub addrs: [Addr; 3],
    /// Most connections of each.
    pub connections_max: [usize; 3],
    /// Settings of the state machine.
    pub pubsub: PubSubConfig,
    /// Time for the ZMTP handshake, ms.
    pub handshake_timeout_ms: u64,
}

impl Default for ServerConfig {
    fn default() -> Self {
        let free = || Addr::Tcp {
            host: "127.0.0.1".to_owned(),
            port: 0,
        };
        ServerConfig {
            addrs: [free(), free(), free()],
            connections_max: [10_000, 10_000, 64],
            pubsub: PubSubConfig::default(),
            handshake_timeout_ms: limits::HANDSHAKE_TIMEOUT_MS_DEFAULT,
        }
    }
}

impl ServerConfig {
    fn table(&self, keys: &[RandomState; 2]) -> TableConfig {
        let peer = |socket_type, limits| {
            Arc::new(zmtp::PeerConfig::new(
                zmtp::Role::Server,
                socket_type,
                b"",
                &[("X-EventMQ", b"1")],
                limits,
            ))
        };
        let from_subscribers = zmtp::Limits {
            frame_bytes_max: SUBSCRIBER_MESSAGE_BYTES_MAX,
            message_bytes_max: SUBSCRIBER_MESSAGE_BYTES_MAX + 64,
            discard_bytes_max: SUBSCRIBER_DISCARD_BYTES_MAX,
            frames_max: 4,
        };
        let router = || peer(zmtp::SocketType::Router, zmtp::Limits::default());
        TableConfig {
            handshake_ns: self.handshake_timeout_ms.saturating_mul(NS_PER_MS),
            connections_max: self.connections_max,
            partial_bytes_max: match self.pubsub.max_memory_bytes {
                0 => usize::MAX,
                limit => usize::try_from(limit / 4).unwrap_or(usize::MAX),
            },
            peers: [
                router(),
                peer(zmtp::SocketType::Pub, from_subscribers),
                router(),
            ],
            routing_id_keys: keys.clone(),
        }
    }
}

/// Why a publisher did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// An address could not be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The system refused a descriptor or a thread.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

/// How a publisher ended.
#[derive(Debug, Clone, Default)]
pub struct ExitReport {
    /// Its last figures.
    pub figures: PubSubFigures,
    /// All counters.
    pub counters: Counters,
}

#[derive(Debug)]
enum Order {
    Listen(Listener),
    Configure(Box<(TableConfig, PubSubConfig)>),
    Shutdown,
    ShutdownNow,
}

/// A running publisher. Dropping it without [`PubSubServer::wait`] ends it at once.
#[derive(Debug)]
pub struct PubSubServer {
    addrs: Mutex<[Addr; 3]>,
    config: Mutex<ServerConfig>,
    keys: [RandomState; 2],
    orders: Arc<Orders<Order>>,
    bell: Arc<Bell>,
    thread: Option<JoinHandle<io::Result<ExitReport>>>,
}

impl PubSubServer {
    /// Binds the three addresses and starts the thread.
    ///
    /// # Errors
    /// [`StartError`] names what is wrong; nothing is left running.
    pub fn start(config: ServerConfig) -> Result<PubSubServer, StartError> {
        let keys = [RandomState::new(), RandomState::new()];
        let output = OutputConfig {
            client_buffer_bytes: limits::CLIENT_BUFFER_BYTES_DEFAULT,
            client_result_bytes: limits::CLIENT_RESULT_BYTES_DEFAULT,
        };
        let outs = OutputTable::new(0, output, None);
        let mut io = IoAgent::new(ConnTable::new(0, config.table(&keys), outs))?;
        let mut addrs = config.addrs.clone();
        for socket in Socket::ALL {
            let listener = bind(socket, &config)?;
            addrs[socket as usize] = listener.addr().clone();
            io.listen(listener)?;
        }
        let bell = io_bell(io.waker());
        let orders = Orders::new();
        let runner = Runner {
            io,
            state: PubSub::new(
                config.pubsub.clone(),
                [random(), random(), random(), random()],
            ),
            admin: AdminDesk::new(
                first_msgid([random(), random()]),
                config.pubsub.max_memory_bytes,
            ),
            clock: Clock::new(),
            orders: Arc::clone(&orders),
            ending: Ending::No,
        };
        let thread = agent_thread("emq-pubsub", move || runner.run())?;
        Ok(PubSubServer {
            addrs: Mutex::new(addrs),
            config: Mutex::new(config),
            keys,
            orders,
            bell,
            thread: Some(thread),
        })
    }

    /// The address of a socket with its real port: [`INCOMING`], [`OUTGOING`] or `Admin`.
    pub fn addr(&self, socket: Socket) -> Addr {
        let addrs = self.addrs.lock().unwrap_or_else(PoisonError::into_inner);
        addrs[socket as usize].clone()
    }

    /// The name of a socket in logs.
    pub fn socket_name(socket: Socket) -> &'static str {
        NAMES[socket as usize]
    }

    /// Asks for the end in good order: what has arrived is published and written out.
    pub fn shutdown(&self) {
        self.orders.give_surely(Order::Shutdown, &self.bell);
    }

    /// Asks for the end at once.
    pub fn shutdown_now(&self) {
        self.orders.give_surely(Order::ShutdownNow, &self.bell);
    }

    /// Takes new settings into use: addresses by binding the new one before the old one stops
    /// accepting, the handshake time for new connections, the rest at once.
    ///
    /// # Errors
    /// When a changed address cannot be bound; then nothing at all has changed.
    pub fn reload(&self, new: ServerConfig) -> Result<(), StartError> {
        let mut current = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fresh = Vec::new();
        for socket in Socket::ALL {
            if new.addrs[socket as usize] != current.addrs[socket as usize] {
                fresh.push(bind(socket, &new)?);
            }
        }
        for listener in fresh {
            let mut addrs = self.addrs.lock().unwrap_or_else(PoisonError::into_inner);
            addrs[listener.socket() as usize] = listener.addr().clone();
            self.orders.give_surely(Order::Listen(listener), &self.bell);
        }
        let config = Box::new((new.table(&self.keys), new.pubsub.clone()));
        self.orders
            .give_surely(Order::Configure(config), &self.bell);
        *current = new;
        Ok(())
    }

    /// True when it has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// When the system's poll failed.
    pub fn wait(mut self) -> io::Result<ExitReport> {
        self.join()
    }

    fn join(&mut self) -> io::Result<ExitReport> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            // A panic has ended the process already.
            _ => Ok(ExitReport::default()),
        }
    }
}

impl Drop for PubSubServer {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.shutdown_now();
            // An error here has no one left to go to.
            let _ = self.join();
        }
    }
}

fn bind(socket: Socket, config: &ServerConfig) -> Result<Listener, BindError> {
    let name = NAMES[socket as usize];
    let listener = Listener::bind_as(socket, name, &config.addrs[socket as usize])?;
    tracing::info!(socket = name, addr = %listener.addr(), "listening");
    Ok(listener)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    No,
    Asked,
    /// Reads what publishers have sent, until they are quiet or the time is over.
    Draining {
        published: u64,
        quiet_until_ns: u64,
        until_ns: u64,
    },
    Done,
}

struct Runner {
    io: IoAgent,
    state: PubSub,
    admin: AdminDesk,
    clock: Clock,
    orders: Arc<Orders<Order>>,
    ending: Ending,
}

struct Sink<'a> {
    state: &'a mut PubSub,
    admin: &'a mut AdminDesk,
    ending: &'a mut Ending,
    now: Now,
}

impl Runner {
    fn run(mut self) -> io::Result<ExitReport> {
        let mut timeout = Some(Duration::ZERO);
        while self.ending != Ending::Done {
            self.io.poll(timeout)?;
            let now = self.clock.now();
            while let Some(order) = self.orders.take() {
                self.obey(order);
            }
            let more = self.turn(now);
            timeout = match more || !self.orders.is_empty() {
                true => Some(Duration::ZERO),
                false => {
                    let quiet = match self.ending {
                        Ending::Draining { quiet_until_ns, .. } => Some(quiet_until_ns),
                        _ => None,
                    };
                    earliest([quiet, self.io.next_deadline_ns()], now)
                }
            };
        }
        finish_connections(&mut self.io, &mut self.clock)?;
        Ok(ExitReport {
            figures: self.state.figures(),
            counters: self.admin.all_counters(&self.state, &self.io),
        })
    }

    /// One turn; true if another one has something to do at once.
    fn turn(&mut self, now: Now) -> bool {
        let Runner {
            io,
            state,
            admin,
            ending,
            ..
        } = self;
        let mut sink = Sink {
            state,
            admin,
            ending,
            now,
        };
        io.turn(now.mono_ns, &mut sink);
        self.go_on_ending(now);
        let draining = self.ending != Ending::No;
        self.admin.answer(&self.state, &mut self.io, draining);
        self.io.flush(now.mono_ns);
        self.state
            .begin_turn(self.io.table.outs.total_pending_bytes());
        let mut sink = Sink {
            state: &mut self.state,
            admin: &mut self.admin,
            ending: &mut self.ending,
            now,
        };
        self.io.has_work(&mut sink)
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Listen(listener) => {
                let (name, addr) = (listener.name(), listener.addr().clone());
                self.io.stop_listening(listener.socket());
                if let Err(error) = self.io.listen(listener) {
                    tracing::error!(socket = name, %addr, %error, "cannot listen");
                }
            }
            Order::Configure(config) => {
                let (table, pubsub) = *config;
                self.admin.max_memory_bytes = pubsub.max_memory_bytes;
                self.io.table.set_config(table);
                self.state.reconfigure(pubsub);
            }
            Order::Shutdown if self.ending == Ending::No => self.ending = Ending::Asked,
            Order::Shutdown => {}
            Order::ShutdownNow => self.ending = Ending::Done,
        }
    }

    fn go_on_ending(&mut self, now: Now) {
        let published = self.state.counters().get(Counter::PublishesReceived);
        match self.ending {
            Ending::No | Ending::Done => {}
            Ending::Asked => {
                tracing::info!("draining: no new connections");
                for socket in Socket::ALL {
                    self.io.stop_listening(socket);
                }
                self.ending = Ending::Draining {
                    published,
                    quiet_until_ns: now.mono_ns + QUIET_NS,
                    until_ns: now.mono_ns + DRAIN_NS,
                };
            }
            Ending::Draining {
                published: before,
                quiet_until_ns,
                until_ns,
            } => {
                let going_on = published != before;
                if now.mono_ns >= until_ns || (!going_on && now.mono_ns >= quiet_until_ns) {
                    self.ending = Ending::Done;
                } else if going_on {
                    self.ending = Ending::Draining {
                        published,
                        quiet_until_ns: now.mono_ns + QUIET_NS,
                        until_ns,
                    };
                }
            }
        }
    }
}

impl InputSink for Sink<'_> {
    #[inline]
    fn has_room(&mut self, socket: Socket) -> bool {
        match socket {
            INCOMING => self.state.takes_input(),
            Socket::Admin => self.admin.has_room(),
            _ => true,
        }
    }

    fn opened(&mut self, conn: ConnId, info: PeerInfo, _: &mut OutputTable) {
        if info.socket != Socket::Admin {
            self.state.handle_opened(conn, &info);
        }
    }

    #[inline]
    fn message(
        &mut self,
        conn: ConnId,
        socket: Socket,
        message: &Message<'_>,
        outs: &mut OutputTable,
    ) {
        if socket != Socket::Admin {
            self.state
                .handle_message(conn, socket, message, self.now, outs);
        } else if self.admin.handle_message(conn, message, outs) && *self.ending == Ending::No {
            *self.ending = Ending::Asked;
        }
    }

    fn subscription(
        &mut self,
        conn: ConnId,
        socket: Socket,
        subscribe: bool,
        topic: &[u8],
        _: &mut OutputTable,
    ) {
        if socket == OUTGOING {
            self.state
                .handle_subscription(conn, subscribe, topic, self.now);
        }
    }

    fn activity(&mut self, _: ConnId, _: Socket, _: &mut OutputTable) {}

    fn too_large(&mut self, conn: ConnId, socket: Socket, head: &Message<'_>, _: &mut OutputTable) {
        if socket != Socket::Admin {
            self.state.handle_too_large(conn, socket, head, self.now);
        }
    }

    fn lost(&mut self, conn: ConnId, socket: Socket, outs: &mut OutputTable) {
        if socket == Socket::Admin {
            outs.release(conn);
        } else {
            self.state.handle_lost(conn, outs);
        }
    }

    fn unsent(&mut self, _: ConnId, socket: Socket, _: &Message<'_>, _: &mut OutputTable) {
        self.state.handle_unsent(socket);
    }

    fn closed(&mut self, _: ConnId, _: Socket, _: &mut OutputTable) {}

    fn writable(&mut self, _: ConnId, _: Socket, _: &mut OutputTable) {}
}
