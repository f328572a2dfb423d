//! The job manager: `emq-jobmanager --help`.

use eventmq::addr::Addr;
use eventmq::daemon::{self, Daemon, Program, StartFailure};
use eventmq::jobmanager::{JobManager, JobManagerConfig, JobManagerError};
use eventmq::metrics::Counter;
use eventmq::settings::{Component, JobManagerSettings, Key, Settings};
use std::path::Path;
use std::process::ExitCode;

const PROGRAM: Program = Program {
    name: "emq-jobmanager",
    about: "The EventMQ job manager: runs the jobs that a broker hands out",
    component: Component::JobManager,
    main: &[
        Key::WorkerAddr,
        Key::Queues,
        Key::ConcurrentJobs,
        Key::Name,
        Key::Python,
        Key::MaxJobCount,
        Key::KillGracePeriod,
        Key::LogFormat,
        Key::LogLevel,
    ],
};

fn main() -> ExitCode {
    eventmq::jobmanager::run_if_started_by_job_manager();
    daemon::main::<Manager>(&PROGRAM)
}

struct Manager(JobManager);

/// The settings, if the interpreter is there: without one every job would wait for nothing.
fn config(settings: &Settings) -> Result<JobManagerConfig, String> {
    let settings = JobManagerSettings::new(settings);
    let python = Path::new(&settings.python);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = if settings.python.contains('/') {
        python.is_file()
    } else {
        std::env::split_paths(&path).any(|dir| dir.join(python).is_file())
    };
    if found {
        Ok(JobManagerConfig::from_settings(settings))
    } else {
        Err(format!(
            "python = {:?}: there is no such program",
            settings.python
        ))
    }
}

impl Daemon for Manager {
    fn start(settings: &Settings) -> Result<Manager, StartFailure> {
        let config = config(settings).map_err(StartFailure::settings)?;
        match JobManager::start(config) {
            Ok(manager) => Ok(Manager(manager)),
            Err(error @ JobManagerError::Config(_)) => Err(StartFailure::settings(error)),
            Err(error) => Err(StartFailure::run_time(error)),
        }
    }

    fn addresses(&self) -> Vec<(String, Addr)> {
        Vec::new()
    }

    fn reload(&mut self, settings: &Settings) -> Result<(), String> {
        self.0
            .reload(config(settings)?)
            .map_err(|error| error.to_string())
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
        let count = |counter| counters.get(counter);
        tracing::info!(
            jobs_taken = count(Counter::ManagerJobsTaken),
            done = count(Counter::JobsDone),
            failed = count(Counter::JobsFailed),
            timed_out = count(Counter::JobsTimedOut),
            lost = count(Counter::JobsLost),
            refused = count(Counter::ManagerJobsRefused),
            ends_dropped = count(Counter::ManagerEndsDropped),
            "emq-jobmanager ends"
        );
        Ok(())
    }
}
