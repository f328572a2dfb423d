//! From the command line to a running daemon, and to its end.

use super::args::{Args, command, generated};
use super::{Daemon, EXIT_SETTINGS, Extra, Program};
use crate::runtime::log::{self, LogHandle};
use crate::runtime::signals::{self, Request};
use crate::runtime::{notify, panic};
use crate::settings::{Applies, LogFormat, LogLevel, Settings, Sources};
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tracing::level_filters::LevelFilter;

/// How often it is seen that a daemon has ended by itself (administrative DISCONNECT).
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Longest wait for the end after a second signal.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for the log before the process ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The `main` of a daemon.
pub fn main<D: Daemon>(program: &Program) -> ExitCode {
    let nothing = Extra {
        options: |command| command,
        early: |_| None,
    };
    main_with::<D>(program, &nothing)
}

/// The `main` of a daemon with options of its own.
pub fn main_with<D: Daemon>(program: &Program, extra: &Extra) -> ExitCode {
    let name = program.name;
    let command = (extra.options)(command(program));
    let matches = command.clone().get_matches();
    if let Some(code) = (extra.early)(&matches) {
        return code;
    }
    let args = Args::from_matches(program, &matches, Sources::from_process());
    if let Some(text) = generated(command, &args) {
        let written = std::io::stdout().write_all(&text);
        return ExitCode::from(u8::from(written.is_err()));
    }
    let settings = match Settings::load(program.component, &args.sources) {
        Ok(settings) => settings,
        Err(errors) => {
            for error in errors {
                eprintln!("{name}: {error}");
            }
            return ExitCode::from(EXIT_SETTINGS);
        }
    };
    if args.check_config || args.print_config {
        for warning in settings.warnings() {
            eprintln!("{name}: warning: {warning}");
        }
        if args.print_config {
            // Whoever reads may have seen enough (`--print-config | head`).
            let _ = std::io::stdout().write_all(settings.print().as_bytes());
        }
        return ExitCode::SUCCESS;
    }
    let format = match settings.log_format() {
        LogFormat::Human => log::Format::Human,
        LogFormat::Json => log::Format::Json,
    };
    let log = match log::start(format, level(settings.log_level())) {
        Ok(log) => log,
        Err(error) => {
            eprintln!("{name}: cannot start the log: {error}");
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
        "{name} starts"
    );
    settings
        .warnings()
        .iter()
        .for_each(|warning| tracing::warn!("{warning}"));
    let code = serve::<D>(program, &args, settings, &log);
    log.flush(FLUSH_TIMEOUT);
    code
}

fn serve<D: Daemon>(
    program: &Program,
    args: &Args,
    settings: Settings,
    log: &LogHandle,
) -> ExitCode {
    // Before it starts: a signal meanwhile waits for it.
    let (sender, requests) = mpsc::channel();
    let watch = signals::watch(move |request| {
        // At the very end nobody listens any more.
        let _ = sender.send(request);
    });
    let watch = match watch {
        Ok(watch) => watch,
        Err(error) => return log_failed(log, &format!("cannot watch signals: {error}"), 1),
    };
    let daemon = match D::start(&settings) {
        Ok(daemon) => daemon,
        Err(failure) => return log_failed(log, &failure.what, failure.code),
    };
    if args.print_addresses {
        print_addresses(&daemon);
    }
    notify::ready("serving");
    let mut running = Running {
        daemon,
        program: *program,
        settings,
        sources: &args.sources,
        log,
    };
    let forced = running.take_requests(&requests);
    drop(watch);
    running.end(forced)
}

/// Logs why the process ends and sees to it that it is written.
fn log_failed(log: &LogHandle, what: &str, code: u8) -> ExitCode {
    tracing::error!("{what}");
    log.flush(FLUSH_TIMEOUT);
    ExitCode::from(code)
}

fn print_addresses<D: Daemon>(daemon: &D) {
    let lines: String = daemon
        .addresses()
        .iter()
        .map(|(name, addr)| format!("listening {name} {addr}\n"))
        .collect();
    let mut out = std::io::stdout().lock();
    // Whoever asked for the addresses may be gone; the daemon serves all the same.
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

struct Running<'a, D> {
    daemon: D,
    program: Program,
    /// What it runs with.
    settings: Settings,
    sources: &'a Sources,
    log: &'a LogHandle,
}

impl<D: Daemon> Running<'_, D> {
    /// Carries out signals until the daemon ends; true if it had to end at once.
    fn take_requests(&mut self, requests: &Receiver<Request>) -> bool {
        loop {
            match requests.recv_timeout(LOOK_INTERVAL) {
                Ok(Request::Reload) => self.reload(),
                Ok(Request::Terminate) => {
                    tracing::info!("asked to end: finishing what is under way");
                    notify::stopping("draining");
                    self.daemon.shutdown();
                }
                Ok(Request::TerminateNow) => {
                    tracing::warn!("asked to end again: ending at once");
                    self.daemon.shutdown_now();
                    return true;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
            }
            if self.daemon.is_finished() {
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
        let new = Settings::load(self.program.component, self.sources)
            .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        new.warnings()
            .iter()
            .for_each(|warning| tracing::warn!("{warning}"));
        let taken = new.without_restart(&self.settings);
        self.daemon.reload(&taken).map_err(|error| vec![error])?;
        self.log.set_level(level(taken.log_level()));
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

    fn end(mut self, forced: bool) -> ExitCode {
        let name = self.program.name;
        if forced {
            let deadline = Instant::now() + END_TIMEOUT;
            while !self.daemon.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
            if !self.daemon.is_finished() {
                let code = log_failed(self.log, &format!("{name} does not end: leaving it"), 1);
                // Not even its threads are waited for.
                std::mem::forget(self.daemon);
                return code;
            }
        }
        notify::stopping("ending");
        match self.daemon.wait() {
            Ok(()) => ExitCode::from(u8::from(forced)),
            Err(error) => log_failed(self.log, &format!("{name} ended: {error}"), 1),
        }
    }
}
