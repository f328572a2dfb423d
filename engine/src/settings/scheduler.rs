//! Effective settings of the scheduler as a plain struct.

use super::catalogue::{Component, Key};
use super::load::Settings;
use crate::addr::Addr;
use std::path::PathBuf;

/// What becomes of due times that passed while nothing could run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MisfireRule {
    /// One run for all of them.
    One,
    /// One each.
    All,
    /// None.
    None,
}

/// Where schedules are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScheduleStore {
    /// A file in `state_dir`.
    Embedded,
    /// Redis, in the layout of EventMQ 0.3.13.
    Redis,
    /// Memory only.
    None,
}

/// Effective settings of `emq-scheduler`. Times in milliseconds, sizes in bytes; the catalogue says
/// what each means.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "each field is the catalogue's key of the same name"
)]
pub struct SchedulerSettings {
    pub scheduler_addr: Addr,
    pub scheduler_administrative_addr: Addr,
    pub disable_heartbeats: bool,
    pub heartbeat_interval_ms: u64,
    pub heartbeat_timeout_ms: u64,
    pub heartbeat_liveness: u64,
    pub reconnect_timeout_ms: u64,
    pub misfire: MisfireRule,
    pub max_schedules: usize,
    pub max_schedule_bytes: usize,
    pub schedule_store: ScheduleStore,
    /// `None`: see [`state_dir`](super::state_dir).
    pub state_dir: Option<PathBuf>,
    pub rq_host: String,
    pub rq_port: u16,
    pub rq_db: u64,
    pub rq_password: String,
    pub redis_startup_error_hard_kill: bool,
}

impl SchedulerSettings {
    /// The effective values.
    ///
    /// # Panics
    /// If `settings` were loaded for another component.
    pub fn new(settings: &Settings) -> SchedulerSettings {
        assert_eq!(settings.component(), Component::Scheduler);
        let count = |key| usize::try_from(settings.int(key)).unwrap_or(usize::MAX);
        SchedulerSettings {
            scheduler_addr: settings.addr(Key::SchedulerAddr),
            scheduler_administrative_addr: settings.addr(Key::SchedulerAdministrativeAddr),
            disable_heartbeats: settings.bool(Key::DisableHeartbeats),
            heartbeat_interval_ms: settings.int(Key::HeartbeatInterval),
            heartbeat_timeout_ms: settings.int(Key::HeartbeatTimeout),
            heartbeat_liveness: settings.int(Key::HeartbeatLiveness),
            reconnect_timeout_ms: settings.int(Key::ReconnectTimeout),
            misfire: match settings.word(Key::Misfire) {
                "all" => MisfireRule::All,
                "none" => MisfireRule::None,
                _ => MisfireRule::One,
            },
            max_schedules: count(Key::MaxSchedules),
            max_schedule_bytes: count(Key::MaxScheduleBytes),
            schedule_store: match settings.word(Key::ScheduleStore) {
                "redis" => ScheduleStore::Redis,
                "none" => ScheduleStore::None,
                _ => ScheduleStore::Embedded,
            },
            state_dir: match settings.word(Key::StateDir) {
                "" => None,
                path => Some(PathBuf::from(path)),
            },
            rq_host: settings.word(Key::RqHost).to_owned(),
            rq_port: u16::try_from(settings.int(Key::RqPort)).unwrap_or(u16::MAX),
            rq_db: settings.int(Key::RqDb),
            rq_password: settings.word(Key::RqPassword).to_owned(),
            redis_startup_error_hard_kill: settings.bool(Key::RedisStartupErrorHardKill),
        }
    }
}
