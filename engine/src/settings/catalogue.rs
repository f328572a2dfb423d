//! The one catalogue of settings. Parsing, `--print-config`, reload and docs/settings.md come
//! from it.

use super::value::{Kind, Value};

/// A program that reads settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Component {
    /// `emq-router`, section `[router]`.
    Router = 1,
    /// `emq-jobmanager`, section `[jobmanager]`.
    JobManager = 2,
    /// `emq-scheduler`, section `[scheduler]`.
    Scheduler = 4,
    /// `emq-pubsub`, section `[publisher]`.
    Publisher = 8,
}

impl Component {
    /// All components.
    pub const ALL: [Component; 4] = [
        Component::Router,
        Component::JobManager,
        Component::Scheduler,
        Component::Publisher,
    ];

    /// The component's own section.
    pub fn section(self) -> &'static str {
        match self {
            Component::Router => "router",
            Component::JobManager => "jobmanager",
            Component::Scheduler => "scheduler",
            Component::Publisher => "publisher",
        }
    }
}

/// When a changed value counts after a reload (SIGHUP).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Applies {
    /// At once.
    Now,
    /// For connections made from then on.
    NewConnections,
    /// Only after a restart; a reload says so.
    Restart,
    /// Never: accepted because files of earlier versions may hold it.
    Never,
}

impl Applies {
    /// In words, for the documentation and the log.
    pub fn text(self) -> &'static str {
        match self {
            Applies::Now => "now",
            Applies::NewConnections => "new connections",
            Applies::Restart => "restart",
            Applies::Never => "no effect",
        }
    }
}

const R: u8 = Component::Router as u8;
const J: u8 = Component::JobManager as u8;
const S: u8 = Component::Scheduler as u8;
const P: u8 = Component::Publisher as u8;
const ALL: u8 = R | J | S | P;

/// One day, the usual upper bound of a time, in milliseconds.
const DAY: u64 = 86_400_000;
/// Largest number of bytes a buffer setting takes.
const BUFFER_MAX: u64 = 1 << 40;
/// Largest count.
const COUNT_MAX: u64 = 1_000_000_000;

macro_rules! catalogue {
    ($($variant:ident, $name:literal, $kind:expr, $default:literal, $used_by:expr, $applies:ident,
       $help:literal;)*) => {
        /// Name of one setting.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Key {
            $(
                #[doc = $help]
                $variant,
            )*
        }

        impl Key {
            /// All settings in catalogue order.
            pub const ALL: &'static [Key] = &[$(Key::$variant,)*];

            /// What the catalogue says about it.
            pub fn info(self) -> &'static KeyInfo {
                const INFOS: &[KeyInfo] = &[$(KeyInfo {
                    name: $name,
                    kind: $kind,
                    default: $default,
                    used_by: $used_by,
                    applies: Applies::$applies,
                    help: $help,
                },)*];
                &INFOS[self as usize]
            }
        }
    };
}

/// What the catalogue says about one setting.
#[derive(Debug)]
pub struct KeyInfo {
    /// Name in files, lower case. `EVENTMQ_` and the upper-case name in the environment; dashes
    /// for underscores on the command line.
    pub name: &'static str,
    /// Type and bounds.
    pub kind: Kind,
    /// Default, in the form of a file.
    pub default: &'static str,
    used_by: u8,
    /// When a reload applies it.
    pub applies: Applies,
    /// One line for people.
    pub help: &'static str,
}

impl KeyInfo {
    /// True if `component` reads it.
    pub fn is_used_by(&self, component: Component) -> bool {
        self.used_by & component as u8 != 0
    }

    /// The default as a value.
    ///
    /// # Panics
    /// Never: a test reads every default.
    pub fn default_value(&self) -> Value {
        self.kind
            .parse(self.default)
            .expect("defaults have the form of their kind")
    }

    /// The environment variable.
    pub fn env_name(&self) -> String {
        format!("EVENTMQ_{}", self.name.to_ascii_uppercase())
    }
}

impl Key {
    /// Finds a setting by its lower-case name.
    pub fn by_name(name: &str) -> Option<Key> {
        Key::ALL.iter().copied().find(|key| key.info().name == name)
    }

    /// The name in files.
    pub fn name(self) -> &'static str {
        self.info().name
    }

    /// True if its value must not be shown.
    pub fn is_secret(self) -> bool {
        self == Key::RqPassword
    }
}

catalogue! {
    // Addresses.
    FrontendAddr, "frontend_addr", Kind::Addr, "tcp://127.0.0.1:47291", R, Now,
        "where clients and schedulers connect";
    BackendAddr, "backend_addr", Kind::Addr, "tcp://127.0.0.1:47290", R, Now,
        "where job managers connect";
    AdministrativeAddr, "administrative_addr", Kind::Addr, "tcp://127.0.0.1:47293", R, Now,
        "where emq-cli and monitoring connect";
    SchedulerAddr, "scheduler_addr", Kind::Addr, "tcp://127.0.0.1:47291", S, Restart,
        "the broker's frontend, as the scheduler reaches it";
    SchedulerAdministrativeAddr, "scheduler_administrative_addr", Kind::Addr,
        "tcp://127.0.0.1:47296", S, Restart, "where emq-cli and monitoring connect to the scheduler";
    WorkerAddr, "worker_addr", Kind::Addrs, "tcp://127.0.0.1:47290", J, Restart,
        "the broker's backend, as the job manager reaches it; several brokers: see worker_addr_mode";
    WorkerAddrMode, "worker_addr_mode", Kind::Choice(&["failover", "all"]), "failover", J, Restart,
        "failover: one broker at a time, in the order of worker_addr; all: every one, each slot offered to one at a time";
    WorkerAddrDefault, "worker_addr_default", Kind::Addr, "tcp://127.0.0.1:47290", J, Never,
        "not used by version 0.3.13 either; see worker_addr";
    WorkerAddrFailover, "worker_addr_failover", Kind::Addr, "tcp://127.0.0.1:47290", J, Never,
        "not used by version 0.3.13 either; see worker_addr";
    PublisherIncomingAddr, "publisher_incoming_addr", Kind::Addr, "tcp://127.0.0.1:47298", P, Now,
        "where publishers connect";
    PublisherOutgoingAddr, "publisher_outgoing_addr", Kind::Addr, "tcp://127.0.0.1:47299", P, Now,
        "where subscribers connect";
    PublisherAdministrativeAddr, "publisher_administrative_addr", Kind::Addr,
        "tcp://127.0.0.1:47297", P, Now, "where emq-cli and monitoring connect to the publisher";
    // Queues and jobs.
    DefaultQueueName, "default_queue_name", Kind::Name, "default", R, Restart,
        "the queue for REQUESTs that name none, and for queues nobody serves";
    DefaultQueueWeight, "default_queue_weight", Kind::Int(0, COUNT_MAX), "10", R | J, Never,
        "not used by version 0.3.13 either; weights stand in queues";
    Queues, "queues", Kind::Queues, "[[10, \"default\"]]", R | J, Now,
        "queues of the job manager; in the broker, queues of a worker whose INFORM names none";
    Hwm, "hwm", Kind::Int(0, COUNT_MAX), "10000", R, Now,
        "most waiting jobs of a served queue other than the default queue, 0 = no limit";
    MaxQueues, "max_queues", Kind::Int(1, 1_000_000), "10000", R, Now, "most queues known at a time";
    MaxSlotsPerWorker, "max_slots_per_worker", Kind::Int(1, 1_000_000), "10000", R, Now,
        "most free slots and jobs in flight of one worker";
    QueueGrace, "queue_grace", Kind::Secs(0, DAY), "10", R, Now,
        "how long a queue counts as served after its last worker left";
    GlobalTimeout, "global_timeout", Kind::Secs(1_000, 365 * DAY), "300", R | J, Now,
        "time for a job without its own timeout header";
    LateReplyWindow, "late_reply_window", Kind::Secs(0, 7 * DAY), "300", R | J, Now,
        "how long a REPLY for a lost job is still matched, and kept for a broker that is away";
    KillGracePeriod, "kill_grace_period", Kind::Secs(0, 7 * DAY), "300", R | J, Now,
        "time for running jobs to end after their worker said KBYE; then they are killed";
    DrainTimeout, "drain_timeout", Kind::Secs(0, DAY), "30", R, Now,
        "longest wait at shutdown for jobs that owe a result";
    // Heartbeats and connections.
    DisableHeartbeats, "disable_heartbeats", Kind::Bool, "false", R | J | S, Now,
        "neither send nor watch heartbeats";
    HeartbeatInterval, "heartbeat_interval", Kind::Secs(100, DAY), "3", R | J | S, Now,
        "time between heartbeats";
    HeartbeatTimeout, "heartbeat_timeout", Kind::Secs(100, DAY), "5", R | J | S, Now,
        "silence after which a peer gets no new work; after twice that the broker removes it";
    HeartbeatLiveness, "heartbeat_liveness", Kind::Int(1, 1_000), "3", J | S, Restart,
        "timeouts without a heartbeat after which the broker counts as gone";
    ReconnectTimeout, "reconnect_timeout", Kind::Secs(100, DAY), "5", J | S, Restart,
        "time to wait for an ACK before connecting again";
    ReconnectGrace, "reconnect_grace", Kind::Secs(0, DAY), "1", R, Now,
        "how long the registration of a lost connection is kept, 0 = not at all";
    DisconnectUnknown, "disconnect_unknown", Kind::Bool, "true", R, Now,
        "answer unregistered workers with DISCONNECT, so that they register again";
    HandshakeTimeout, "handshake_timeout", Kind::Secs(100, DAY), "10", R | P, NewConnections,
        "time for the ZMTP handshake";
    MaxFrontendConnections, "max_frontend_connections", Kind::Int(1, 1_000_000), "10000", R, Restart,
        "most connections of the frontend";
    MaxBackendConnections, "max_backend_connections", Kind::Int(1, 1_000_000), "10000", R, Restart,
        "most connections of the backend";
    MaxAdminConnections, "max_admin_connections", Kind::Int(1, 10_000), "64", R | P, Restart,
        "most connections of the administrative socket";
    MaxPublisherConnections, "max_publisher_connections", Kind::Int(1, 1_000_000), "10000", P,
        Restart, "most connections of publishers";
    MaxSubscriberConnections, "max_subscriber_connections", Kind::Int(1, 1_000_000), "10000", P,
        Restart, "most connections of subscribers";
    // Memory.
    MaxMemory, "max_memory", Kind::Memory, "50%", R | P, Now,
        "jobs, subscriptions, partial messages and buffers together; percent of min(RAM, cgroup limit)";
    MemoryPause, "memory_pause", Kind::Secs(0, DAY), "10", R, Now,
        "how long clients may be left unread for memory before their REQUESTs are refused";
    ClientBufferBytes, "client_buffer_bytes", Kind::Bytes(0, BUFFER_MAX), "1M", R, Now,
        "output waiting for one client above which acceptance notices are dropped";
    ClientResultBytes, "client_result_bytes", Kind::Bytes(0, BUFFER_MAX), "16M", R, Now,
        "output waiting for one client above which results and REJECTs are dropped";
    WorkerBufferBytes, "worker_buffer_bytes", Kind::Bytes(4 << 10, BUFFER_MAX), "8M", R, Now,
        "output waiting for one worker above which it gets no new jobs";
    SubscriberBufferBytes, "subscriber_buffer_bytes", Kind::Bytes(64 << 10, BUFFER_MAX), "8M", P, Now,
        "output waiting for one subscriber above which messages are dropped for it";
    MaxSubscriptions, "max_subscriptions", Kind::Int(1, COUNT_MAX), "1000000", P, Now,
        "most subscriptions of all subscribers together";
    MaxSubscriptionsPerSubscriber, "max_subscriptions_per_subscriber", Kind::Int(1, COUNT_MAX),
        "100000", P, Now, "most subscriptions of one subscriber";
    // Threads.
    Threading, "threading", Kind::Choice(&["auto", "dedicated", "inline"]), "auto", R, Restart,
        "dedicated: a thread per agent; inline: one thread; auto: dedicated with 4 cores or more";
    IoThreads, "io_threads", Kind::Int(1, 64), "2", R, Restart,
        "I/O threads of frontend and backend with dedicated threading";
    IoCores, "io_cores", Kind::Cores, "auto", R, Restart, "cores of the I/O threads, in order";
    DispatchCore, "dispatch_core", Kind::Core, "auto", R, Restart, "core of the dispatch thread";
    Idle, "idle", Kind::Choice(&["park", "spin"]), "park", R, Restart,
        "what a thread without work does with dedicated threading";
    // Latency and logs.
    LatencyQueues, "latency_queues", Kind::Int(0, 100_000), "256", R, Restart,
        "queues with latency figures of their own; the rest is under (other)";
    LatencyInterval, "latency_interval", Kind::Secs(1_000, DAY), "10", R, Now,
        "length of the interval of LATENCY";
    LogFormat, "log_format", Kind::Choice(&["human", "json"]), "human", ALL, Restart,
        "form of the log on standard error";
    LogLevel, "log_level", Kind::Choice(&["error", "warn", "info", "debug", "trace"]), "info", ALL,
        Now, "least severe records to log";
    SuperDebug, "super_debug", Kind::Bool, "false", ALL, Now,
        "log_level debug, unless log_level is given";
    HideHeartbeatLogs, "hide_heartbeat_logs", Kind::Bool, "true", ALL, Never,
        "heartbeats are never logged";
    // Job manager.
    ConcurrentJobs, "concurrent_jobs", Kind::Int(1, 10_000), "4", J, Restart,
        "jobs run at the same time, each Python job in a process of its own";
    Name, "name", Kind::Text, "", J, Restart,
        "what the job manager's routing id begins with, at most 200 bytes";
    Python, "python", Kind::Name, "python3", J, Now, "the interpreter of worker processes";
    MaxJobCount, "max_job_count", Kind::Int(1, COUNT_MAX), "1024", J, Now,
        "jobs after which a worker process is replaced";
    SetupPath, "setup_path", Kind::Text, "", J, Now, "old form of subprocess_setup_func";
    SetupCallable, "setup_callable", Kind::Text, "", J, Now, "old form of subprocess_setup_func";
    SubprocessSetupFunc, "subprocess_setup_func", Kind::Text, "", J, Now,
        "module.function called once in each new worker process";
    JobEntryFunc, "job_entry_func", Kind::Text, "", J, Now, "module.function called before each job";
    JobExitFunc, "job_exit_func", Kind::Text, "", J, Now, "module.function called after each job";
    ExecAllowed, "exec_allowed", Kind::Paths, "", J, Now,
        "commands that jobs with the path exec may run; none if empty";
    ExecOutputBytes, "exec_output_bytes", Kind::Bytes(0, 4 << 20), "1M", J, Now,
        "bytes kept of each output of a command, the rest is thrown away";
    // Scheduler.
    Misfire, "misfire", Kind::Choice(&["one", "all", "none"]), "one", S, Now,
        "runs for due times that passed while nothing could run: one for all of them, one each, none";
    MaxSchedules, "max_schedules", Kind::Int(1, 10_000_000), "100000", S, Now, "most schedules";
    MaxScheduleBytes, "max_schedule_bytes", Kind::Bytes(1 << 20, BUFFER_MAX), "256M", S, Now,
        "bytes of all schedules together";
    ScheduleStore, "schedule_store", Kind::Choice(&["embedded", "redis", "none"]), "embedded", S,
        Restart, "where schedules are kept: a file in state_dir, Redis as by version 0.3.13, memory only";
    RqHost, "rq_host", Kind::Text, "localhost", S, Restart, "host of Redis";
    RqPort, "rq_port", Kind::Int(1, 65_535), "6379", S, Restart, "port of Redis";
    RqDb, "rq_db", Kind::Int(0, COUNT_MAX), "0", S, Restart, "database number in Redis";
    RqPassword, "rq_password", Kind::Text, "", S, Restart, "password of Redis; never printed";
    RedisClientClass, "redis_client_class", Kind::Text, "redis.StrictRedis", S, Never,
        "a class of Python's redis";
    RedisClientClassKwargs, "redis_client_class_kwargs", Kind::Dict, "{}", S, Never,
        "arguments of a class of Python's redis";
    RedisStartupErrorHardKill, "redis_startup_error_hard_kill", Kind::Bool, "true", S, Restart,
        "end if Redis answers at start and refuses us; one that cannot be reached is waited for";
    // Files.
    ConfigFile, "config_file", Kind::Text, "/etc/eventmq.conf", ALL, Restart,
        "the settings file; only from the environment (-C names it on the command line)";
    StateDir, "state_dir", Kind::Text, "", R | S, Restart,
        "where state is kept (the router of this version keeps none and does not use it); empty: $STATE_DIRECTORY, else $XDG_STATE_HOME/eventmq, else ~/.local/state/eventmq";
    Wal, "wal", Kind::Text, "/var/log/eventmq/wal.log", R, Never,
        "the message log of version 0.3.13, which this version does not write";
    WalEnabled, "wal_enabled", Kind::Bool, "false", R, Never,
        "the message log of version 0.3.13, which this version does not write";
    MaxSockets, "max_sockets", Kind::Int(1, COUNT_MAX), "1024", ALL, Never,
        "sockets of libzmq, which is not used; see max_frontend_connections";
    DefaultEncoding, "default_encoding", Kind::Text, "utf-8", ALL, Never,
        "text is UTF-8; job contents are never decoded";
}

const _: () = assert!(Key::ALL.len() <= 256, "a key is one byte");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_defaults_have_their_form() {
        let mut names = HashSet::new();
        for (index, key) in Key::ALL.iter().enumerate() {
            let info = key.info();
            assert_eq!(*key as usize, index);
            assert!(names.insert(info.name), "{} twice", info.name);
            assert_eq!(info.name, info.name.to_ascii_lowercase());
            assert_eq!(Key::by_name(info.name), Some(*key));
            assert!(info.kind.parse(info.default).is_some(), "{}", info.name);
            assert!(!info.help.is_empty() && !info.help.ends_with('.'));
            assert!(
                Component::ALL.iter().any(|c| info.is_used_by(*c)),
                "{}",
                info.name
            );
        }
    }

    #[test]
    fn every_name_of_the_original_exists() {
        let names = "super_debug hide_heartbeat_logs max_sockets default_queue_name \
            default_queue_weight queues reconnect_timeout disable_heartbeats heartbeat_liveness \
            heartbeat_timeout heartbeat_interval config_file default_encoding frontend_addr \
            backend_addr administrative_addr scheduler_addr worker_addr worker_addr_default \
            worker_addr_failover publisher_incoming_addr publisher_outgoing_addr concurrent_jobs \
            hwm rq_host rq_port rq_db rq_password redis_client_class redis_client_class_kwargs \
            redis_startup_error_hard_kill max_job_count setup_path setup_callable \
            subprocess_setup_func job_entry_func job_exit_func kill_grace_period global_timeout \
            wal wal_enabled";
        for name in names.split_ascii_whitespace() {
            assert!(Key::by_name(name).is_some(), "{name}");
        }
    }

    #[test]
    fn defaults_agree_with_the_limits() {
        for (key, expected) in [
            (Key::Hwm, limits::HWM_DEFAULT),
            (Key::MaxQueues, limits::QUEUES_MAX_DEFAULT),
            (Key::MaxSlotsPerWorker, limits::SLOTS_PER_WORKER_MAX_DEFAULT),
            (Key::ClientBufferBytes, limits::CLIENT_BUFFER_BYTES_DEFAULT),
            (Key::ClientResultBytes, limits::CLIENT_RESULT_BYTES_DEFAULT),
            (Key::WorkerBufferBytes, limits::WORKER_BUFFER_BYTES_DEFAULT),
            (
                Key::SubscriberBufferBytes,
                limits::SUBSCRIBER_BUFFER_BYTES_DEFAULT,
            ),
            (Key::MaxSubscriptions, limits::SUBSCRIPTIONS_MAX_DEFAULT),
            (
                Key::MaxSubscriptionsPerSubscriber,
                limits::SUBSCRIPTIONS_PER_SUBSCRIBER_MAX_DEFAULT,
            ),
        ] {
            assert_eq!(
                key.info().default_value(),
                Value::Int(expected as u64),
                "{}",
                key.name()
            );
        }
        assert_eq!(
            Key::HandshakeTimeout.info().default_value(),
            Value::Ms(limits::HANDSHAKE_TIMEOUT_MS_DEFAULT)
        );
    }
}
