//! The scheduler: `emq-scheduler --help`.

mod preview;

use eventmq::addr::Addr;
use eventmq::daemon::{self, Daemon, Extra, Program, StartFailure};
use eventmq::metrics::Counter;
use eventmq::scheduler::ledger::StoreKind;
use eventmq::scheduler::node::SchedulerConfig;
use eventmq::scheduler::server::{SchedulerServer, StoreConfig};
use eventmq::scheduler::session::SessionConfig;
use eventmq::scheduler::store::RedisConfig;
use eventmq::scheduler::timetable::Misfire;
use eventmq::settings::{
    Component, Key, MisfireRule, ScheduleStore, SchedulerSettings, Settings, state_dir,
};
use std::process::ExitCode;

const PROGRAM: Program = Program {
    name: "emq-scheduler",
    about: "The EventMQ scheduler: jobs at intervals and by cron expressions",
    component: Component::Scheduler,
    main: &[
        Key::SchedulerAddr,
        Key::SchedulerAdministrativeAddr,
        Key::Misfire,
        Key::ScheduleStore,
        Key::StateDir,
        Key::RqHost,
        Key::LogFormat,
        Key::LogLevel,
    ],
};

fn main() -> ExitCode {
    let extra = Extra {
        options: preview::options,
        early: preview::early,
    };
    daemon::main_with::<Scheduler>(&PROGRAM, &extra)
}

struct Scheduler(SchedulerServer);

/// What the scheduler takes.
fn scheduler_config(s: &SchedulerSettings) -> SchedulerConfig {
    SchedulerConfig {
        broker: s.scheduler_addr.clone(),
        session: SessionConfig {
            heartbeat_interval_ms: (!s.disable_heartbeats).then_some(s.heartbeat_interval_ms),
            silence_ms: s.heartbeat_timeout_ms.saturating_mul(s.heartbeat_liveness),
            ack_ms: s.reconnect_timeout_ms,
        },
        misfire: match s.misfire {
            MisfireRule::One => Misfire::One,
            MisfireRule::All => Misfire::All,
            MisfireRule::None => Misfire::None,
        },
        schedules_max: s.max_schedules,
        schedule_bytes_max: s.max_schedule_bytes,
        store: StoreKind::Absent,
    }
}

fn store_config(s: &SchedulerSettings) -> Result<StoreConfig, StartFailure> {
    match s.schedule_store {
        ScheduleStore::None => Ok(StoreConfig::None),
        ScheduleStore::Redis => Ok(StoreConfig::Redis {
            config: RedisConfig {
                host: s.rq_host.clone(),
                port: s.rq_port,
                db: s.rq_db,
                password: s.rq_password.clone(),
            },
            refusal_is_fatal: s.redis_startup_error_hard_kill,
        }),
        ScheduleStore::Embedded => {
            let variables: Vec<_> = std::env::vars_os().collect();
            let variable = |name: &str| {
                let found = variables.iter().find(|(known, _)| known == name);
                found.map(|(_, value)| value.as_os_str())
            };
            let dir = s.state_dir.clone().or_else(|| state_dir(variable));
            let dir = dir.ok_or_else(|| {
                StartFailure::settings(
                    "state_dir is empty, and none of STATE_DIRECTORY, XDG_STATE_HOME and HOME is set",
                )
            })?;
            Ok(StoreConfig::Embedded(dir))
        }
    }
}

impl Daemon for Scheduler {
    fn start(settings: &Settings) -> Result<Scheduler, StartFailure> {
        let settings = SchedulerSettings::new(settings);
        let store = store_config(&settings)?;
        let config = scheduler_config(&settings);
        let admin_addr = &settings.scheduler_administrative_addr;
        match SchedulerServer::start(config, admin_addr, &store) {
            Ok(server) => Ok(Scheduler(server)),
            Err(error) => Err(StartFailure::run_time(error)),
        }
    }

    fn addresses(&self) -> Vec<(String, Addr)> {
        vec![("administrative".to_owned(), self.0.admin_addr().clone())]
    }

    fn reload(&mut self, settings: &Settings) -> Result<(), String> {
        let settings = SchedulerSettings::new(settings);
        self.0.configure(scheduler_config(&settings));
        Ok(())
    }

    fn shutdown(&mut self) {
        self.0.shutdown();
    }

    fn shutdown_now(&mut self) {
        self.0.shutdown_now();
    }

    fn is_finished(&mut self) -> bool {
        self.0.is_finished()
    }

    fn wait(self) -> Result<(), String> {
        let counters = self.0.wait().map_err(|error| error.to_string())?;
        let runs_sent = counters.get(Counter::RunsSent);
        tracing::info!(runs_sent, "emq-scheduler ends");
        Ok(())
    }
}
