//! Effective settings of the broker as a plain struct. What the broker and the server take is made
//! from it above this layer.

use super::catalogue::{Component, Key};
use super::load::Settings;
use super::value::{MemoryLimit, Value};
use crate::addr::Addr;
use std::ffi::OsStr;
use std::path::PathBuf;

/// How agents are spread over threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Threading {
    /// `Dedicated` with 4 cores or more, else `Inline`.
    Auto,
    /// A thread for each agent.
    Dedicated,
    /// All agents on one thread.
    Inline,
}

/// What an agent's thread does without work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Idle {
    /// Spin shortly, then sleep until woken.
    Park,
    /// Spin.
    Spin,
}

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LogFormat {
    /// One readable line per record.
    Human,
    /// One JSON object per line.
    Json,
}

/// Least severe records that are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LogLevel {
    /// Only errors.
    Error,
    /// Warnings too.
    Warn,
    /// The usual level.
    Info,
    /// Details of single peers.
    Debug,
    /// Everything.
    Trace,
}

/// Effective settings of `emq-router`. Times in milliseconds, sizes in bytes; the catalogue says
/// what each means.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    missing_docs,
    reason = "each field is the catalogue's key of the same name"
)]
pub struct RouterSettings {
    pub frontend_addr: Addr,
    pub backend_addr: Addr,
    pub administrative_addr: Addr,
    pub default_queue_name: String,
    pub queues: Vec<(f64, String)>,
    /// 0 = no limit.
    pub hwm: usize,
    pub max_queues: usize,
    pub max_slots_per_worker: usize,
    pub queue_grace_ms: u64,
    pub global_timeout_ms: u64,
    pub late_reply_window_ms: u64,
    pub kill_grace_period_ms: u64,
    pub drain_timeout_ms: u64,
    pub disable_heartbeats: bool,
    pub heartbeat_interval_ms: u64,
    pub heartbeat_timeout_ms: u64,
    pub reconnect_grace_ms: u64,
    pub disconnect_unknown: bool,
    pub handshake_timeout_ms: u64,
    pub max_frontend_connections: usize,
    pub max_backend_connections: usize,
    pub max_admin_connections: usize,
    pub max_memory: MemoryLimit,
    pub memory_pause_ms: u64,
    pub client_buffer_bytes: usize,
    pub client_result_bytes: usize,
    pub worker_buffer_bytes: usize,
    pub threading: Threading,
    pub io_threads: usize,
    /// `None` = automatic.
    pub io_cores: Option<Vec<usize>>,
    /// `None` = automatic.
    pub dispatch_core: Option<usize>,
    pub idle: Idle,
    pub latency_queues: usize,
    pub latency_interval_ms: u64,
    pub log_format: LogFormat,
    /// `super_debug` makes it `Debug` unless `log_level` is given.
    pub log_level: LogLevel,
    /// `None`: see [`state_dir`].
    pub state_dir: Option<PathBuf>,
}

impl RouterSettings {
    /// The effective values.
    ///
    /// # Panics
    /// If `settings` were loaded for another component.
    pub fn new(settings: &Settings) -> RouterSettings {
        assert_eq!(settings.component(), Component::Router);
        let ms = |key| settings.int(key);
        let count = |key| usize::try_from(settings.int(key)).unwrap_or(usize::MAX);
        RouterSettings {
            frontend_addr: settings.addr(Key::FrontendAddr),
            backend_addr: settings.addr(Key::BackendAddr),
            administrative_addr: settings.addr(Key::AdministrativeAddr),
            default_queue_name: settings.word(Key::DefaultQueueName).to_owned(),
            queues: match settings.value(Key::Queues) {
                Value::Queues(queues) => queues.clone(),
                other => unreachable!("queues: {other:?}"),
            },
            hwm: count(Key::Hwm),
            max_queues: count(Key::MaxQueues),
            max_slots_per_worker: count(Key::MaxSlotsPerWorker),
            queue_grace_ms: ms(Key::QueueGrace),
            global_timeout_ms: ms(Key::GlobalTimeout),
            late_reply_window_ms: ms(Key::LateReplyWindow),
            kill_grace_period_ms: ms(Key::KillGracePeriod),
            drain_timeout_ms: ms(Key::DrainTimeout),
            disable_heartbeats: settings.bool(Key::DisableHeartbeats),
            heartbeat_interval_ms: ms(Key::HeartbeatInterval),
            heartbeat_timeout_ms: ms(Key::HeartbeatTimeout),
            reconnect_grace_ms: ms(Key::ReconnectGrace),
            disconnect_unknown: settings.bool(Key::DisconnectUnknown),
            handshake_timeout_ms: ms(Key::HandshakeTimeout),
            max_frontend_connections: count(Key::MaxFrontendConnections),
            max_backend_connections: count(Key::MaxBackendConnections),
            max_admin_connections: count(Key::MaxAdminConnections),
            max_memory: match settings.value(Key::MaxMemory) {
                Value::Memory(limit) => *limit,
                other => unreachable!("max_memory: {other:?}"),
            },
            memory_pause_ms: ms(Key::MemoryPause),
            client_buffer_bytes: count(Key::ClientBufferBytes),
            client_result_bytes: count(Key::ClientResultBytes),
            worker_buffer_bytes: count(Key::WorkerBufferBytes),
            threading: match settings.word(Key::Threading) {
                "dedicated" => Threading::Dedicated,
                "inline" => Threading::Inline,
                _ => Threading::Auto,
            },
            io_threads: count(Key::IoThreads),
            io_cores: settings.cores(Key::IoCores),
            dispatch_core: settings.cores(Key::DispatchCore).map(|cores| cores[0]),
            idle: if settings.word(Key::Idle) == "spin" {
                Idle::Spin
            } else {
                Idle::Park
            },
            latency_queues: count(Key::LatencyQueues),
            latency_interval_ms: ms(Key::LatencyInterval),
            log_format: settings.log_format(),
            log_level: settings.log_level(),
            state_dir: match settings.word(Key::StateDir) {
                "" => None,
                path => Some(PathBuf::from(path)),
            },
        }
    }
}

impl Settings {
    /// Form of the log; every component has this setting.
    pub fn log_format(&self) -> LogFormat {
        if self.word(Key::LogFormat) == "json" {
            LogFormat::Json
        } else {
            LogFormat::Human
        }
    }

    /// Level of the log, `super_debug` included; every component has this setting.
    pub fn log_level(&self) -> LogLevel {
        match self.word(Key::LogLevel) {
            "error" => LogLevel::Error,
            "warn" => LogLevel::Warn,
            "debug" => LogLevel::Debug,
            "trace" => LogLevel::Trace,
            _ => LogLevel::Info,
        }
    }

    pub(super) fn bool(&self, key: Key) -> bool {
        *self.value(key) == Value::Bool(true)
    }

    pub(super) fn word(&self, key: Key) -> &str {
        match self.value(key) {
            Value::Text(text) => text,
            other => unreachable!("{} is not text: {other:?}", key.name()),
        }
    }

    pub(super) fn addr(&self, key: Key) -> Addr {
        match self.value(key) {
            Value::Addr(addr) => addr.clone(),
            other => unreachable!("{} is not an address: {other:?}", key.name()),
        }
    }

    pub(super) fn cores(&self, key: Key) -> Option<Vec<usize>> {
        match self.value(key) {
            Value::Cores(cores) => cores.clone(),
            other => unreachable!("{} is not cores: {other:?}", key.name()),
        }
    }
}

/// The directory for state if the setting `state_dir` is empty: `$STATE_DIRECTORY` (set by
/// systemd; the first of several), else `$XDG_STATE_HOME/eventmq`, else
/// `~/.local/state/eventmq`. `None` without any of them. XDG's directory must be absolute.
pub fn state_dir<'a>(variable: impl Fn(&str) -> Option<&'a OsStr>) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.is_empty());
    if let Some(dirs) = set("STATE_DIRECTORY") {
        return std::env::split_paths(dirs).next();
    }
    if let Some(home) = set("XDG_STATE_HOME")
        .map(PathBuf::from)
        .filter(|dir| dir.is_absolute())
    {
        return Some(home.join("eventmq"));
    }
    set("HOME").map(|home| PathBuf::from(home).join(".local/state/eventmq"))
}
