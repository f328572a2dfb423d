//! Effective settings of the job manager as a plain struct.

use super::catalogue::{Component, Key};
use super::load::Settings;
use super::value::Value;
use crate::addr::Addr;
use std::path::PathBuf;

/// Effective settings of `emq-jobmanager`. Times in milliseconds, sizes in bytes; the catalogue
/// says what each means.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    missing_docs,
    reason = "each field is the catalogue's key of the same name"
)]
pub struct JobManagerSettings {
    pub worker_addr: Vec<Addr>,
    /// `worker_addr_mode` is `all`.
    pub all_brokers: bool,
    pub queues: Vec<(f64, String)>,
    pub concurrent_jobs: usize,
    pub name: String,
    pub python: String,
    pub max_job_count: u64,
    pub setup_path: String,
    pub setup_callable: String,
    pub subprocess_setup_func: String,
    pub job_entry_func: String,
    pub job_exit_func: String,
    pub exec_allowed: Vec<PathBuf>,
    pub exec_output_bytes: usize,
    pub global_timeout_ms: u64,
    pub kill_grace_period_ms: u64,
    pub late_reply_window_ms: u64,
    pub disable_heartbeats: bool,
    pub heartbeat_interval_ms: u64,
    pub heartbeat_timeout_ms: u64,
    pub heartbeat_liveness: u64,
    pub reconnect_timeout_ms: u64,
}

impl JobManagerSettings {
    /// The effective values.
    ///
    /// # Panics
    /// If `settings` were loaded for another component.
    pub fn new(settings: &Settings) -> JobManagerSettings {
        assert_eq!(settings.component(), Component::JobManager);
        let number = |key| settings.int(key);
        let count = |key| usize::try_from(settings.int(key)).unwrap_or(usize::MAX);
        let text = |key| settings.word(key).to_owned();
        JobManagerSettings {
            worker_addr: match settings.value(Key::WorkerAddr) {
                Value::Addrs(addrs) => addrs.clone(),
                other => unreachable!("worker_addr: {other:?}"),
            },
            all_brokers: settings.word(Key::WorkerAddrMode) == "all",
            queues: match settings.value(Key::Queues) {
                Value::Queues(queues) => queues.clone(),
                other => unreachable!("queues: {other:?}"),
            },
            concurrent_jobs: count(Key::ConcurrentJobs),
            name: text(Key::Name),
            python: text(Key::Python),
            max_job_count: number(Key::MaxJobCount),
            setup_path: text(Key::SetupPath),
            setup_callable: text(Key::SetupCallable),
            subprocess_setup_func: text(Key::SubprocessSetupFunc),
            job_entry_func: text(Key::JobEntryFunc),
            job_exit_func: text(Key::JobExitFunc),
            exec_allowed: match settings.value(Key::ExecAllowed) {
                Value::Paths(paths) => paths.clone(),
                other => unreachable!("exec_allowed: {other:?}"),
            },
            exec_output_bytes: count(Key::ExecOutputBytes),
            global_timeout_ms: number(Key::GlobalTimeout),
            kill_grace_period_ms: number(Key::KillGracePeriod),
            late_reply_window_ms: number(Key::LateReplyWindow),
            disable_heartbeats: settings.bool(Key::DisableHeartbeats),
            heartbeat_interval_ms: number(Key::HeartbeatInterval),
            heartbeat_timeout_ms: number(Key::HeartbeatTimeout),
            heartbeat_liveness: number(Key::HeartbeatLiveness),
            reconnect_timeout_ms: number(Key::ReconnectTimeout),
        }
    }
}
