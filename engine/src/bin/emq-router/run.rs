//! From settings to a running broker, and to its end.

use crate::EXIT_SETTINGS;
use crate::args::Args;
use crate::config::server_config;
use eventmq::ids::Socket;
use eventmq::metrics::Counter;
use eventmq::runtime::log::{self, LogHandle};
use eventmq::runtime::signals::{self, Request};
use eventmq::runtime::{memory, notify, open_files, panic};
use eventmq::server::{Server, ServerConfig, StartError};
use eventmq::settings::{
    Applies, Component, LogFormat, LogLevel, RouterSettings, Settings, Sources,
};
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tracing::level_filters::LevelFilter;

/// How often it is seen that the broker has ended by itself (administrative DISCONNECT).
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Longest wait for the end after a second signal.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for the log before the process ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs a broker to its end.
pub(crate) fn run(args: &Args, settings: Settings) -> ExitCode {
    let router = RouterSettings::new(&settings);
    let format = match router.log_format {
        LogFormat::Human => log::Format::Human,
        LogFormat::Json => log::Format::Json,
    };
    let log = match log::start(format, level(router.log_level)) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("emq-router: cannot start the log: {error}");
            return ExitCode::FAILURE;
        }
    };
    panic::exit_on_panic(log.clone());
    let file = settings
        .file()
        .map_or("none".to_owned(), |path| path.display().to_string());
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        settings = file,
        "emq-router starts"
    );
    settings
        .warnings()
        .iter()
        .for_each(|warning| tracing::warn!("{warning}"));
    let code = serve(args, settings, &router, &log);
    log.flush(FLUSH_TIMEOUT);
    code
}

fn serve(args: &Args, settings: Settings, router: &RouterSettings, log: &LogHandle) -> ExitCode {
    // Before the server starts: a signal meanwhile waits for it.
    let (sender, requests) = mpsc::channel();
    let watch = signals::watch(move |request| {
        // At the very end nobody listens any more.
        let _ = sender.send(request);
    });
    let watch = match watch {
        Ok(watch) => watch,
        Err(error) => return log_failed(log, &format!("cannot watch signals: {error}"), 1),
    };
    let connections = router.max_frontend_connections
        + router.max_backend_connections
        + router.max_admin_connections;
    if let Some(warning) = open_files::raise_open_files().too_few_for(connections as u64) {
        tracing::warn!("{warning}");
    }
    let config = server_config(router, memory::usable_bytes());
    tracing::info!(
        max_memory_bytes = config.broker.max_memory_bytes,
        "memory limit"
    );
    let server = match Server::start(config) {
        Ok(server) => server,
        Err(error @ StartError::NoSuchCore { .. }) => {
            return log_failed(log, &error.to_string(), EXIT_SETTINGS);
        }
        Err(error) => return log_failed(log, &error.to_string(), 1),
    };
    if args.print_addresses {
        print_addresses(&server);
    }
    notify::ready("serving");
    let mut broker = RunningBroker {
        server,
        settings,
        sources: &args.sources,
        log,
    };
    let forced = broker.take_requests(&requests);
    drop(watch);
    broker.end(forced)
}

/// Logs why the process ends and sees to it that it is written.
fn log_failed(log: &LogHandle, what: &str, code: u8) -> ExitCode {
    tracing::error!("{what}");
    log.flush(FLUSH_TIMEOUT);
    ExitCode::from(code)
}

fn print_addresses(server: &Server) {
    let lines: String = Socket::ALL
        .iter()
        .map(|socket| format!("listening {socket} {}\n", server.addr(*socket)))
        .collect();
    let mut out = std::io::stdout().lock();
    // Whoever asked for the addresses may be gone; the broker serves all the same.
    let _ = out.write_all(lines.as_bytes()).and_then(|()| out.flush());
}

fn level(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

struct RunningBroker<'a> {
    server: Server,
    /// What it runs with.
    settings: Settings,
    sources: &'a Sources,
    log: &'a LogHandle,
}

impl RunningBroker<'_> {
    /// Carries out signals until the broker ends; true if it had to end at once.
    fn take_requests(&mut self, requests: &Receiver<Request>) -> bool {
        loop {
            match requests.recv_timeout(LOOK_INTERVAL) {
                Ok(Request::Reload) => self.reload(),
                Ok(Request::Terminate) => {
                    tracing::info!("asked to end: finishing what is under way");
                    notify::stopping("draining");
                    self.server.shutdown();
                }
                Ok(Request::TerminateNow) => {
                    tracing::warn!("asked to end again: ending at once");
                    self.server.shutdown_now();
                    return true;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
            }
            if self.server.is_finished() {
                return false;
            }
        }
    }

    /// Reads all sources again and takes into use what can be; on any error nothing changes.
    fn reload(&mut self) {
        notify::reloading();
        match self.try_reload() {
            Ok(()) => tracing::info!("settings reloaded"),
            Err(errors) => {
                for error in errors {
                    tracing::error!("{error}");
                }
                tracing::error!("settings not reloaded: the old ones stay in force");
            }
        }
        notify::ready("serving");
    }

    fn try_reload(&mut self) -> Result<(), Vec<String>> {
        let new = Settings::load(Component::Router, self.sources)
            .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        new.warnings()
            .iter()
            .for_each(|warning| tracing::warn!("{warning}"));
        let taken = new.without_restart(&self.settings);
        let router = RouterSettings::new(&taken);
        let config: ServerConfig = server_config(&router, memory::usable_bytes());
        self.server
            .reload(config)
            .map_err(|error| vec![error.to_string()])?;
        self.log.set_level(level(router.log_level));
        for change in self.settings.changes(&new) {
            let (name, old, new) = (change.key.name(), change.old, change.new);
            match change.applies {
                Applies::Restart => tracing::warn!(name, old, new, "setting needs a restart"),
                applies => {
                    tracing::info!(name, old, new, applies = applies.text(), "setting changed")
                }
            }
        }
        self.settings = taken;
        Ok(())
    }

    fn end(self, forced: bool) -> ExitCode {
        if forced {
            let deadline = Instant::now() + END_TIMEOUT;
            while !self.server.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
            if !self.server.is_finished() {
                let code = log_failed(self.log, "the broker does not end: leaving it", 1);
                // Not even its threads are waited for.
                std::mem::forget(self.server);
                return code;
            }
        }
        notify::stopping("ending");
        match self.server.wait() {
            Ok(report) => {
                let abandoned = report.figures.counters.get(Counter::JobsAbandoned);
                tracing::info!(jobs_abandoned = abandoned, "emq-router ends");
                ExitCode::from(u8::from(forced))
            }
            Err(error) => log_failed(self.log, &format!("the broker ended: {error}"), 1),
        }
    }
}
