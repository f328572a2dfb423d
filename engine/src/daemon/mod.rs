//! What the `main` functions of the daemons share: command line, settings, log, signals, reload,
//! systemd, exit codes.
//!
//! Owns: the [options](command) made from the catalogue of settings, and the life of a process
//! around a [`Daemon`]. May import layers 0-5, never `broker`: what runs is the daemon's matter.
//! Invariants: errors of the command line and of settings are lines on standard error and exit
//! code 2; everything else is the log's; a reload changes all or nothing; the second SIGTERM or
//! SIGINT ends the process within two seconds whatever the daemon does.
//!
//! Exit codes: 0 = ended in good order, 1 = run-time error or ended at once, 2 = usage or
//! settings.

mod args;
mod run;

pub use args::command;
pub use run::{main, main_with};

use crate::addr::Addr;
use crate::settings::{Component, Key, Settings};

/// Exit code for a wrong command line and wrong settings.
pub const EXIT_SETTINGS: u8 = 2;

/// A program: its name, and which settings it has.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    /// Name of the binary.
    pub name: &'static str,
    /// One line for `--help`.
    pub about: &'static str,
    /// Whose settings it reads.
    pub component: Component,
    /// Settings shown by `-h`; `--help` shows all.
    pub main: &'static [Key],
}

/// Options of one program beside its settings.
#[derive(Debug, Clone, Copy)]
pub struct Extra {
    /// Adds them to the command line.
    pub options: fn(clap::Command) -> clap::Command,
    /// Looks at them before anything else is done; an exit code ends the process.
    pub early: fn(&clap::ArgMatches) -> Option<std::process::ExitCode>,
}

/// Why a daemon did not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartFailure {
    /// One line for the log.
    pub what: String,
    /// Exit code: 1, or [`EXIT_SETTINGS`] if another value of a setting would help.
    pub code: u8,
}

impl StartFailure {
    /// A run-time error: exit code 1.
    pub fn run_time(what: impl ToString) -> StartFailure {
        StartFailure {
            what: what.to_string(),
            code: 1,
        }
    }

    /// A setting that cannot be had here: exit code 2.
    pub fn settings(what: impl ToString) -> StartFailure {
        StartFailure {
            what: what.to_string(),
            code: EXIT_SETTINGS,
        }
    }
}

/// What runs inside the process. Its threads do the work; the calls come from the main thread.
pub trait Daemon: Sized {
    /// Starts it. Records go to `tracing`.
    ///
    /// # Errors
    /// [`StartFailure`]; nothing is left running.
    fn start(settings: &Settings) -> Result<Self, StartFailure>;

    /// The addresses it listens on with their real ports, for `--print-addresses`.
    fn addresses(&self) -> Vec<(String, Addr)>;

    /// Takes other settings into use. Values that need a restart are those of the start.
    ///
    /// # Errors
    /// One line; then nothing has changed.
    fn reload(&mut self, settings: &Settings) -> Result<(), String>;

    /// Asks for the end in good order.
    fn shutdown(&mut self);

    /// Asks for the end at once.
    fn shutdown_now(&mut self);

    /// True when it has ended, asked or not.
    fn is_finished(&mut self) -> bool;

    /// Waits for the end and logs the last record.
    ///
    /// # Errors
    /// One line that says why it ended.
    fn wait(self) -> Result<(), String>;
}
