//! The broker: `emq-router --help`.

mod config;

use config::server_config;
use eventmq::addr::Addr;
use eventmq::daemon::{self, Daemon, Program, StartFailure};
use eventmq::ids::Socket;
use eventmq::metrics::Counter;
use eventmq::runtime::{memory, open_files};
use eventmq::server::{Server, StartError};
use eventmq::settings::{Component, Key, RouterSettings, Settings};
use std::process::ExitCode;

const PROGRAM: Program = Program {
    name: "emq-router",
    about: "The EventMQ broker",
    component: Component::Router,
    main: &[
        Key::FrontendAddr,
        Key::BackendAddr,
        Key::AdministrativeAddr,
        Key::Threading,
        Key::Hwm,
        Key::MaxMemory,
        Key::DrainTimeout,
        Key::LogFormat,
        Key::LogLevel,
    ],
};

fn main() -> ExitCode {
    daemon::main::<Router>(&PROGRAM)
}

struct Router(Server);

impl Daemon for Router {
    fn start(settings: &Settings) -> Result<Router, StartFailure> {
        let router = RouterSettings::new(settings);
        let connections = router.max_frontend_connections
            + router.max_backend_connections
            + router.max_admin_connections;
        if let Some(warning) = open_files::raise_open_files().too_few_for(connections as u64) {
            tracing::warn!("{warning}");
        }
        let config = server_config(&router, memory::usable_bytes());
        tracing::info!(
            max_memory_bytes = config.broker.max_memory_bytes,
            "memory limit"
        );
        match Server::start(config) {
            Ok(server) => Ok(Router(server)),
            Err(error @ StartError::NoSuchCore { .. }) => Err(StartFailure::settings(error)),
            Err(error) => Err(StartFailure::run_time(error)),
        }
    }

    fn addresses(&self) -> Vec<(String, Addr)> {
        Socket::ALL
            .iter()
            .map(|socket| (socket.name().to_owned(), self.0.addr(*socket)))
            .collect()
    }

    fn reload(&mut self, settings: &Settings) -> Result<(), String> {
        let config = server_config(&RouterSettings::new(settings), memory::usable_bytes());
        self.0.reload(config).map_err(|error| error.to_string())
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
        let report = self.0.wait().map_err(|error| error.to_string())?;
        let abandoned = report.figures.counters.get(Counter::JobsAbandoned);
        tracing::info!(jobs_abandoned = abandoned, "emq-router ends");
        Ok(())
    }
}
