//! What a job manager is made of.

use super::executor::{CommandConfig, ExecutorConfig, Functions, PythonConfig};
use super::manager::{BrokerMode, ManagerConfig};
use crate::addr::Addr;
use crate::settings::JobManagerSettings;
use std::ffi::OsString;

/// Longest name of a job manager: with a uuid behind it, it is a routing id.
pub const NAME_BYTES_MAX: usize = 200;

/// What a job manager is made of. Times in milliseconds; defaults are those of the settings, but
/// without Python.
#[derive(Debug, Clone)]
pub struct JobManagerConfig {
    /// Backend addresses of the brokers.
    pub brokers: Vec<Addr>,
    /// How several of them are used.
    pub mode: BrokerMode,
    /// Jobs at a time.
    pub concurrent_jobs: usize,
    /// Weight and name of each queue.
    pub queues: Vec<(f64, String)>,
    /// What the routing id begins with, at most [`NAME_BYTES_MAX`]; may be empty.
    pub name: String,
    /// How Python jobs are run; `None` = not at all.
    pub python: Option<PythonConfig>,
    /// Which commands may be run.
    pub commands: CommandConfig,
    /// The functions of this program.
    pub functions: Functions,
    /// Time for a job without a `timeout` header.
    pub global_timeout_ms: u64,
    /// Time for running jobs after [`JobManager::shutdown`](super::JobManager::shutdown).
    pub kill_grace_period_ms: u64,
    /// How long the end of a job is kept for a broker that is away.
    pub late_reply_window_ms: u64,
    /// Neither send nor watch heartbeats.
    pub disable_heartbeats: bool,
    /// Time between heartbeats.
    pub heartbeat_interval_ms: u64,
    /// See `heartbeat_liveness`.
    pub heartbeat_timeout_ms: u64,
    /// After so many timeouts without a byte the broker counts as gone.
    pub heartbeat_liveness: u64,
    /// Time for the answer to a registration.
    pub reconnect_timeout_ms: u64,
}

impl Default for JobManagerConfig {
    fn default() -> Self {
        JobManagerConfig {
            brokers: vec![Addr::Tcp {
                host: "127.0.0.1".to_owned(),
                port: 47290,
            }],
            mode: BrokerMode::Failover,
            concurrent_jobs: 4,
            queues: vec![(10.0, "default".to_owned())],
            name: String::new(),
            python: None,
            commands: CommandConfig::default(),
            functions: Functions::new(),
            global_timeout_ms: 300_000,
            kill_grace_period_ms: 300_000,
            late_reply_window_ms: 300_000,
            disable_heartbeats: false,
            heartbeat_interval_ms: 3_000,
            heartbeat_timeout_ms: 5_000,
            heartbeat_liveness: 3,
            reconnect_timeout_ms: 5_000,
        }
    }
}

impl JobManagerConfig {
    /// What the settings of `emq-jobmanager` say.
    pub fn from_settings(settings: JobManagerSettings) -> JobManagerConfig {
        let s = settings;
        JobManagerConfig {
            brokers: s.worker_addr,
            mode: if s.all_brokers {
                BrokerMode::All
            } else {
                BrokerMode::Failover
            },
            concurrent_jobs: s.concurrent_jobs,
            queues: s.queues,
            name: s.name,
            python: Some(PythonConfig {
                python: OsString::from(s.python),
                max_job_count: s.max_job_count,
                subprocess_setup_func: s.subprocess_setup_func,
                setup_path: s.setup_path,
                setup_callable: s.setup_callable,
                job_entry_func: s.job_entry_func,
                job_exit_func: s.job_exit_func,
            }),
            commands: CommandConfig {
                allowed: s.exec_allowed,
                output_bytes_max: s.exec_output_bytes,
            },
            functions: Functions::new(),
            global_timeout_ms: s.global_timeout_ms,
            kill_grace_period_ms: s.kill_grace_period_ms,
            late_reply_window_ms: s.late_reply_window_ms,
            disable_heartbeats: s.disable_heartbeats,
            heartbeat_interval_ms: s.heartbeat_interval_ms,
            heartbeat_timeout_ms: s.heartbeat_timeout_ms,
            heartbeat_liveness: s.heartbeat_liveness,
            reconnect_timeout_ms: s.reconnect_timeout_ms,
        }
    }

    /// What cannot work, in one line.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.brokers.is_empty() {
            return Err("no broker is given".to_owned());
        }
        if self.concurrent_jobs == 0 {
            return Err("concurrent_jobs is 0".to_owned());
        }
        if self.name.len() > NAME_BYTES_MAX {
            let len = self.name.len();
            return Err(format!(
                "the name has {len} bytes, at most {NAME_BYTES_MAX} go"
            ));
        }
        if self.queues.iter().any(|(weight, _)| !weight.is_finite()) {
            return Err("a weight is not a finite number".to_owned());
        }
        Ok(())
    }

    pub(super) fn manager(&self, seeds: [u64; 4]) -> ManagerConfig {
        let queues = self.queues.iter();
        let queues: Vec<String> = queues
            .map(|(weight, name)| format!("[{weight}, {}]", serde_json::Value::from(name.as_str())))
            .collect();
        ManagerConfig {
            brokers: self.brokers.iter().map(ToString::to_string).collect(),
            mode: self.mode,
            slots: self.concurrent_jobs,
            queues: format!("[{}]", queues.join(", ")),
            name: self.name.clone(),
            heartbeat_interval_ms: self.heartbeat_interval_ms,
            heartbeat_timeout_ms: self.heartbeat_timeout_ms,
            heartbeat_liveness: self.heartbeat_liveness,
            disable_heartbeats: self.disable_heartbeats,
            reconnect_timeout_ms: self.reconnect_timeout_ms,
            global_timeout_ms: self.global_timeout_ms,
            kill_grace_period_ms: self.kill_grace_period_ms,
            late_reply_window_ms: self.late_reply_window_ms,
            seeds,
        }
    }

    pub(super) fn executor(&self) -> ExecutorConfig {
        ExecutorConfig {
            slots: self.concurrent_jobs,
            python: self.python.clone(),
            commands: self.commands.clone(),
            functions: self.functions.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Component, Settings, Sources};

    #[test]
    fn default_settings_are_the_defaults() {
        let sources = Sources {
            config_file: Some("/dev/null".into()),
            ..Sources::default()
        };
        let settings = Settings::load(Component::JobManager, &sources).unwrap();
        let config = JobManagerConfig::from_settings(JobManagerSettings::new(&settings));
        let default = JobManagerConfig {
            python: Some(PythonConfig::default()),
            ..JobManagerConfig::default()
        };
        assert_eq!(format!("{config:?}"), format!("{default:?}"));
        assert_eq!(config.check(), Ok(()));
        assert_eq!(config.manager([0; 4]).queues, "[[10, \"default\"]]");
    }

    #[test]
    fn what_cannot_work_is_named() {
        for (config, what) in [
            (
                JobManagerConfig {
                    brokers: Vec::new(),
                    ..JobManagerConfig::default()
                },
                "no broker",
            ),
            (
                JobManagerConfig {
                    concurrent_jobs: 0,
                    ..JobManagerConfig::default()
                },
                "concurrent_jobs",
            ),
            (
                JobManagerConfig {
                    name: "x".repeat(201),
                    ..JobManagerConfig::default()
                },
                "201 bytes",
            ),
            (
                JobManagerConfig {
                    queues: vec![(f64::NAN, "a".to_owned())],
                    ..JobManagerConfig::default()
                },
                "weight",
            ),
        ] {
            let error = config.check().unwrap_err();
            assert!(error.contains(what), "{error}");
        }
    }
}
