//! The scheduler as threads: its state machine with its connections on one, the store on another.

use super::ledger::StoreKind;
use super::node::{SchedulerCommand, SchedulerConfig, SchedulerNode};
use super::store::{self, Embedded, OpenError, RedisConfig, RedisStore, Store, StoreQueue};
use crate::addr::Addr;
use crate::emqp::first_msgid;
use crate::ids::Socket;
use crate::io::{BindError, Listener};
use crate::metrics::Counters;
use crate::runtime::node::{NodeHandle, NodeRunner};
use crate::runtime::threads::{agent_thread, random};
use std::io;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Name of the socket in logs and in what `--print-addresses` prints.
const SOCKET_NAME: &str = "administrative";

/// How long the end waits for the store's thread.
const STORE_END: Duration = Duration::from_millis(500);

/// Where schedules are kept.
#[derive(Debug, Clone)]
pub enum StoreConfig {
    /// Memory only.
    None,
    /// A file in this directory.
    Embedded(PathBuf),
    /// Redis, which other schedulers may use, too.
    Redis {
        /// Where it is.
        config: RedisConfig,
        /// End now if it answers and refuses us.
        refusal_is_fatal: bool,
    },
}

/// Why it did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The administrative address.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The embedded store.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// Redis answers and refuses us.
    #[error("the store refuses this scheduler: {0}")]
    Refused(String),
    /// Threads or descriptors.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

/// A running scheduler. Dropped, it ends in good order by itself.
#[derive(Debug)]
pub struct SchedulerServer {
    handle: NodeHandle<SchedulerCommand>,
    thread: JoinHandle<io::Result<Counters>>,
    store: Option<JoinHandle<()>>,
    admin_addr: Addr,
}

impl SchedulerServer {
    /// Starts it. `config.store` is set from `store`.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left running.
    pub fn start(
        config: SchedulerConfig,
        admin_addr: &Addr,
        store: &StoreConfig,
    ) -> Result<SchedulerServer, StartError> {
        match store {
            StoreConfig::None => Self::run(config, StoreKind::Absent, admin_addr, None::<Embedded>),
            StoreConfig::Embedded(dir) => {
                let store = Embedded::open(dir)?;
                tracing::info!(state_dir = %dir.display(), "schedules are kept in a file");
                Self::run(config, StoreKind::Own, admin_addr, Some(store))
            }
            StoreConfig::Redis {
                config: redis,
                refusal_is_fatal,
            } => {
                let instance =
                    String::from_utf8_lossy(&first_msgid([random(), random()])).into_owned();
                let mut store = RedisStore::new(redis.clone(), instance);
                match store.probe() {
                    Ok(Err(error)) if *refusal_is_fatal => return Err(StartError::Refused(error)),
                    // Said when it is used; it may come yet.
                    _ => tracing::info!(store = ?redis, "schedules are kept in Redis"),
                }
                Self::run(config, StoreKind::Shared, admin_addr, Some(store))
            }
        }
    }

    fn run<S: Store>(
        config: SchedulerConfig,
        kind: StoreKind,
        admin_addr: &Addr,
        store: Option<S>,
    ) -> Result<SchedulerServer, StartError> {
        let listener = Listener::bind_as(Socket::Admin, SOCKET_NAME, admin_addr)?;
        let admin_addr = listener.addr().clone();
        let (queue, work) = store::queue();
        let config = SchedulerConfig {
            store: kind,
            ..config
        };
        let node =
            SchedulerNode::<StoreQueue>::new(config, queue, first_msgid([random(), random()]));
        let (mut runner, handle) = NodeRunner::new(node)?;
        runner.count_sleep();
        runner.listen(listener)?;
        let store = match store {
            Some(store) => Some(store::spawn(store, work, handle.clone())?),
            None => None,
        };
        let run = move || runner.run().map(|node| node.counters().clone());
        let thread = agent_thread("emq-scheduler", run)?;
        Ok(SchedulerServer {
            handle,
            thread,
            store,
            admin_addr,
        })
    }

    /// The administrative address with its real port.
    pub fn admin_addr(&self) -> &Addr {
        &self.admin_addr
    }

    /// Takes other settings into use.
    pub fn configure(&self, config: SchedulerConfig) {
        self.tell(SchedulerCommand::Configure(Box::new(config)));
    }

    /// Asks for the end in good order: what is due is sent, what has changed is stored, the broker
    /// is told.
    pub fn shutdown(&self) {
        self.tell(SchedulerCommand::Shutdown);
    }

    /// Asks for the end at once.
    pub fn shutdown_now(&self) {
        self.tell(SchedulerCommand::ShutdownNow);
    }

    /// True when it has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the end: its counters.
    ///
    /// # Errors
    /// What the system said when it could not go on.
    pub fn wait(self) -> io::Result<Counters> {
        let counters = self.thread.join().unwrap_or_else(|_panic| {
            // A panic has ended the process before.
            Err(io::Error::other("its thread has ended by a panic"))
        })?;
        if let Some(store) = self.store {
            // It may be in the middle of a call that blocks; nothing more is owed by it than to
            // give its lease up.
            let end = Instant::now() + STORE_END;
            while !store.is_finished() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            if store.is_finished() {
                let _ = store.join();
            }
        }
        Ok(counters)
    }

    fn tell(&self, command: SchedulerCommand) {
        // One that has ended needs no telling.
        let _ = self.handle.give(command);
    }
}
