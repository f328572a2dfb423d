//! The broker: `emq-router --help`.
//!
//! Exit codes: 0 = ended in good order, 1 = run-time error or ended at once, 2 = usage or
//! settings.

mod args;
mod config;
mod run;

use eventmq::settings::{Component, Settings};
use std::io::Write as _;
use std::process::ExitCode;

/// Exit code for usage and settings.
const EXIT_SETTINGS: u8 = 2;

fn main() -> ExitCode {
    let args = args::Args::from_command_line();
    let settings = match Settings::load(Component::Router, &args.sources) {
        Ok(settings) => settings,
        Err(errors) => {
            for error in errors {
                eprintln!("emq-router: {error}");
            }
            return ExitCode::from(EXIT_SETTINGS);
        }
    };
    if args.check_config || args.print_config {
        for warning in settings.warnings() {
            eprintln!("emq-router: warning: {warning}");
        }
        if args.print_config {
            // Whoever reads may have seen enough (`--print-config | head`).
            let _ = std::io::stdout().write_all(settings.print().as_bytes());
        }
        return ExitCode::SUCCESS;
    }
    run::run(&args, settings)
}
