//! Starting a broker, and holding on to it.

use super::admin::{AdminDesk, Facts};
use super::config::{ServerConfig, StartError};
use super::control::{AgentReport, Bell, DispatchOrder, IoOrder, Orders, Published, io_bell};
use super::dedicated::{DispatchRunner, IoRunner};
use super::dispatch::Dispatch;
use super::inline::InlineRunner;
use super::placement::{Placement, pin};
use super::ringed::{RingOutbox, RingSink};
use super::spread::Spread;
use super::turns::{DispatchEnds, IoEnds};
use crate::addr::Addr;
use crate::broker::{Broker, Seeds};
use crate::emqp::first_msgid;
use crate::ids::Socket;
use crate::io::{BindError, ConnTable, IoAgent, Listener, OutputTable, WrittenTable};
use crate::ring::{Doorbell, Wake, ring};
use crate::runtime::clock::Clock;
use crate::runtime::idle::IdleStrategy;
use crate::runtime::threads::{agent_thread, random};
use crate::settings::Idle;
use crate::snapshot::BrokerFigures;
use crossbeam::sync::{Parker, Unparker};
use std::hash::RandomState;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

struct ParkWaker(Unparker);

impl Wake for ParkWaker {
    fn wake(&self) {
        self.0.unpark();
    }
}

/// How a broker ended.
#[derive(Debug, Clone, Default)]
pub struct ExitReport {
    /// Its last figures.
    pub figures: BrokerFigures,
    /// Last reports of its agents.
    pub agents: Vec<AgentReport>,
}

/// A running broker. Dropping it without [`Server::wait`] ends it at once.
#[derive(Debug)]
pub struct Server {
    addrs: Mutex<[Addr; 3]>,
    threading: &'static str,
    config: Mutex<ServerConfig>,
    keys: [RandomState; 2],
    orders: Arc<Orders<DispatchOrder>>,
    bell: Arc<Bell>,
    /// Orders of the agent that accepts for each socket.
    io: [(Arc<Orders<IoOrder>>, Arc<Bell>); 3],
    all_io: Vec<(Arc<Orders<IoOrder>>, Arc<Bell>)>,
    published: Vec<Arc<Published>>,
    dispatch: Option<JoinHandle<io::Result<Dispatch>>>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

/// An I/O agent before it has a thread.
struct IoPart {
    name: String,
    io: IoAgent,
    bell: Arc<Bell>,
    orders: Arc<Orders<IoOrder>>,
    published: Arc<Published>,
    written: Arc<WrittenTable>,
}

impl IoPart {
    fn new(
        number: u8,
        name: &str,
        config: &ServerConfig,
        keys: &[RandomState; 2],
        ringed: bool,
        agents: usize,
    ) -> io::Result<IoPart> {
        let slots = config.connections_max.iter().sum();
        let written = WrittenTable::new(if ringed { slots } else { 0 });
        let shared = ringed.then(|| Arc::clone(&written));
        let outs = OutputTable::new(number, config.output(), shared);
        let io = IoAgent::new(ConnTable::new(number, config.table(keys, agents), outs))?;
        let bell = io_bell(io.waker());
        Ok(IoPart {
            name: name.to_owned(),
            io,
            bell,
            orders: Orders::new(),
            published: Arc::default(),
            written,
        })
    }

    fn handle(&self) -> (Arc<Orders<IoOrder>>, Arc<Bell>) {
        (Arc::clone(&self.orders), Arc::clone(&self.bell))
    }
}

fn idle(config: &ServerConfig, may_spin: bool) -> IdleStrategy {
    match config.idle {
        Idle::Spin if may_spin => IdleStrategy::spin(),
        _ => IdleStrategy::park(),
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    core: Option<usize>,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    agent_thread(name, move || {
        pin(core);
        run()
    })
}

impl Server {
    /// Binds the three addresses and starts the threads.
    ///
    /// # Errors
    /// [`StartError`] names what is wrong; nothing is left running.
    pub fn start(config: ServerConfig) -> Result<Server, StartError> {
        let placement = Placement::new(&config)?;
        let mut listeners = Vec::new();
        for socket in Socket::ALL {
            listeners.push(Listener::bind(socket, config.addr(socket))?);
        }
        let addrs = [0, 1, 2].map(|i: usize| listeners[i].addr().clone());
        for (socket, addr) in Socket::ALL.iter().zip(&addrs) {
            tracing::info!(%socket, %addr, "listening");
        }
        tracing::info!(
            threading = placement.threading(),
            cores = placement.cores(),
            reason = placement.reason(),
            "threading chosen"
        );
        if let Some(warning) = placement.warning() {
            tracing::warn!("{warning}");
        }
        let started = Instant::now();
        let mut clock = Clock::new();
        let now = clock.now();
        let seeds = Seeds {
            hash: [random(), random(), random(), random()],
            ids: [random(), random()],
        };
        let broker = Broker::new(config.broker.clone(), seeds, now);
        let keys = [RandomState::new(), RandomState::new()];
        let builder = Builder {
            config,
            placement,
            keys,
            addrs,
            started,
            clock,
        };
        if builder.placement.dedicated() {
            builder.dedicated(broker, listeners)
        } else {
            builder.inline(broker, listeners)
        }
    }

    /// The address of a socket, with its real port.
    pub fn addr(&self, socket: Socket) -> Addr {
        let addrs = self.addrs.lock().unwrap_or_else(PoisonError::into_inner);
        addrs[socket as usize].clone()
    }

    /// `inline` or `dedicated`.
    pub fn threading(&self) -> &'static str {
        self.threading
    }

    /// Latest reports of the agents, the dispatch last.
    pub fn agents(&self) -> Vec<AgentReport> {
        self.published.iter().map(|p| p.get()).collect()
    }

    /// Asks for a graceful end: no new connections, running jobs finish (protocol.md section 6).
    pub fn shutdown(&self) {
        self.order(DispatchOrder::Shutdown);
    }

    /// Asks for the end at once.
    pub fn shutdown_now(&self) {
        self.order(DispatchOrder::ShutdownNow);
    }

    fn order(&self, order: DispatchOrder) {
        self.orders.give_surely(order, &self.bell);
    }

    /// Takes new settings into use: those of the state machine and the limits at once, addresses
    /// by binding the new one before the old one stops accepting. Threading, cores and rings stay
    /// as they are until a restart.
    ///
    /// # Errors
    /// When a changed address cannot be bound; then nothing at all has changed.
    pub fn reload(&self, new: ServerConfig) -> Result<(), StartError> {
        let mut current = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fresh = Vec::new();
        for socket in Socket::ALL {
            let addr = new.addr(socket);
            if addr != current.addr(socket) && *addr != self.addr(socket) {
                self.refuse_own_address(socket, addr)?;
                fresh.push(Listener::bind(socket, addr)?);
            }
        }
        for listener in fresh {
            let socket = listener.socket();
            let addr = listener.addr().clone();
            tracing::info!(%socket, %addr, "listening on the new address");
            self.tell_io(socket, IoOrder::StopListening(socket));
            self.tell_io(socket, IoOrder::Listen(listener));
            let mut addrs = self.addrs.lock().unwrap_or_else(PoisonError::into_inner);
            addrs[socket as usize] = addr;
        }
        for (orders, bell) in &self.all_io {
            let config = Box::new((new.table(&self.keys, self.all_io.len()), new.output()));
            orders.give_surely(IoOrder::Configure(config), bell);
        }
        self.order(DispatchOrder::Configure(Box::new(new.broker.clone())));
        *current = new;
        Ok(())
    }

    /// A new address is bound before the old one is given up, so one socket cannot take what
    /// another still has.
    fn refuse_own_address(&self, socket: Socket, addr: &Addr) -> Result<(), BindError> {
        let has = |other: &Socket| *other != socket && self.addr(*other) == *addr;
        let Some(other) = Socket::ALL.into_iter().find(has) else {
            return Ok(());
        };
        let fault = format!(
            "the {other} socket has it until a reload has moved that one: move them one after the \
             other, or restart"
        );
        Err(BindError {
            name: socket.name(),
            addr: addr.clone(),
            source: io::Error::new(io::ErrorKind::AddrInUse, fault),
        })
    }

    fn tell_io(&self, socket: Socket, order: IoOrder) {
        let (orders, bell) = &self.io[socket as usize];
        orders.give_surely(order, bell);
    }

    /// True when the broker has ended or is about to.
    pub fn is_finished(&self) -> bool {
        self.dispatch.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// When the system's poll failed.
    pub fn wait(mut self) -> io::Result<ExitReport> {
        let figures = self.join()?;
        Ok(ExitReport {
            figures,
            agents: self.agents(),
        })
    }

    fn join(&mut self) -> io::Result<BrokerFigures> {
        let mut figures = BrokerFigures::default();
        if let Some(thread) = self.dispatch.take() {
            // A panic has ended the process already.
            if let Ok(dispatch) = thread.join() {
                let dispatch = dispatch?;
                figures = dispatch.broker.figures();
                figures.counters.merge(&dispatch.admin.counters);
            }
        }
        for thread in self.threads.drain(..) {
            if let Ok(result) = thread.join() {
                result?;
            }
        }
        Ok(figures)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.dispatch.is_some() {
            self.shutdown_now();
            // An error here has no one left to go to.
            let _ = self.join();
        }
    }
}

struct Builder {
    config: ServerConfig,
    placement: Placement,
    keys: [RandomState; 2],
    addrs: [Addr; 3],
    started: Instant,
    clock: Clock,
}

impl Builder {
    fn desk(&self, agents: Vec<Arc<Published>>, bell: &Arc<Bell>) -> io::Result<AdminDesk> {
        let facts = Facts {
            started: self.started,
            threading: self.placement.threading(),
            agents,
        };
        AdminDesk::start(facts, first_msgid([random(), random()]), Arc::clone(bell))
    }

    fn inline(self, broker: Broker, listeners: Vec<Listener>) -> Result<Server, StartError> {
        let name = "emq-inline";
        let mut part = IoPart::new(0, name, &self.config, &self.keys, false, 1)?;
        for listener in listeners {
            part.io.listen(listener)?;
        }
        let handle = part.handle();
        let published = vec![Arc::clone(&part.published)];
        let desk = self.desk(published.clone(), &part.bell)?;
        let orders = Orders::new();
        let core = self.placement.dispatch_core();
        let runner = InlineRunner {
            report: AgentReport::new(name, core),
            io: part.io,
            dispatch: Dispatch::new(broker, desk),
            clock: self.clock,
            idle: idle(&self.config, self.placement.may_spin()),
            bell: part.bell,
            io_orders: part.orders,
            orders: Arc::clone(&orders),
            published: part.published,
        };
        let bell = Arc::clone(&handle.1);
        let dispatch = spawn(name, core, move || runner.run())?;
        Ok(Server {
            addrs: Mutex::new(self.addrs),
            threading: self.placement.threading(),
            config: Mutex::new(self.config),
            keys: self.keys,
            orders,
            bell,
            io: [handle.clone(), handle.clone(), handle.clone()],
            all_io: vec![handle],
            published,
            dispatch: Some(dispatch),
            threads: Vec::new(),
        })
    }

    fn dedicated(self, broker: Broker, listeners: Vec<Listener>) -> Result<Server, StartError> {
        let (front, back) = self.placement.io_split();
        let mut names = Vec::new();
        for (socket, count) in [("front", front), ("back", back)] {
            for n in 0..count {
                names.push(match count {
                    1 => format!("emq-io-{socket}"),
                    _ => format!("emq-io-{socket}-{n}"),
                });
            }
        }
        names.push("emq-io-admin".to_owned());
        let agents = names.len();
        let mut parts = Vec::new();
        for (number, name) in names.iter().enumerate() {
            let number = u8::try_from(number).map_err(io::Error::other)?;
            parts.push(IoPart::new(
                number,
                name,
                &self.config,
                &self.keys,
                true,
                agents,
            )?);
        }
        // The first agent of each socket accepts.
        let first = [0, front, front + back];
        for (listener, at) in listeners.into_iter().zip(first) {
            parts[at].io.listen(listener)?;
        }
        for (at, count) in [(0, front), (front, back)] {
            let members = parts[at..at + count]
                .iter()
                .map(|p| (p.handle(), Arc::clone(&p.published)));
            let spread = Spread::new(members.collect());
            parts[at].io.set_handover(Box::new(spread));
        }
        let parker = Parker::new();
        let waker: Box<dyn Wake> = Box::new(ParkWaker(parker.unparker().clone()));
        let bell: Arc<Bell> = Arc::new(Doorbell::new(waker));
        let io_published: Vec<_> = parts.iter().map(|p| Arc::clone(&p.published)).collect();
        let mut published = io_published.clone();
        published.push(Arc::default());
        let handles: Vec<_> = parts.iter().map(IoPart::handle).collect();
        let mut outbox = RingOutbox::new(self.config.ring);
        let mut inputs = Vec::new();
        let mut threads = Vec::new();
        let desk = self.desk(published.clone(), &bell)?;
        for (number, part) in parts.into_iter().enumerate() {
            let (in_sender, in_receiver) = ring(self.config.ring);
            let (out_sender, out_receiver) = ring(self.config.ring);
            outbox.add_agent(&part.name, out_sender, Arc::clone(&part.bell), part.written);
            // Administrative first, then the backend, then the frontend.
            inputs.insert(0, (in_receiver, Arc::clone(&part.bell)));
            let core = self.placement.io_core(number);
            let admin = number == front + back;
            let runner = IoRunner {
                report: AgentReport::new(&part.name, core),
                io: part.io,
                ends: IoEnds {
                    sink: RingSink::new(in_sender, Arc::clone(&bell), &part.name, self.config.ring),
                    receiver: out_receiver,
                    dispatch_bell: Arc::clone(&bell),
                },
                clock: self.clock,
                idle: idle(&self.config, self.placement.may_spin() && !admin),
                bell: part.bell,
                orders: part.orders,
                published: part.published,
            };
            threads.push(spawn(&part.name, core, move || runner.run())?);
        }
        let orders = Orders::new();
        let core = self.placement.dispatch_core();
        let name = "emq-dispatch";
        let runner = DispatchRunner {
            report: AgentReport::new(name, core),
            dispatch: Dispatch::new(broker, desk),
            ends: DispatchEnds { outbox, inputs },
            clock: self.clock,
            idle: idle(&self.config, self.placement.may_spin()),
            parker,
            bell: Arc::clone(&bell),
            orders: Arc::clone(&orders),
            io_orders: handles.clone(),
            agents: io_published,
            published: Arc::clone(&published[published.len() - 1]),
        };
        let dispatch = spawn(name, core, move || Ok(runner.run()))?;
        Ok(Server {
            addrs: Mutex::new(self.addrs),
            threading: self.placement.threading(),
            config: Mutex::new(self.config),
            keys: self.keys,
            orders,
            bell,
            io: first.map(|at| handles[at].clone()),
            all_io: handles,
            published,
            dispatch: Some(dispatch),
            threads,
        })
    }
}
