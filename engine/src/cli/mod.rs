//! `emq-cli`: the administrative commands for people and scripts, a shell, and a live view.
//!
//! Owns: the command line, a small blocking client of the administrative socket
//! ([`AdminClient`]), and what people read. May import layers 0-5 and `client`, never `broker` or
//! `server`.
//! Invariants: nothing from a peer reaches a terminal unescaped; every wait has a deadline; an
//! error is one line; the terminal is left as it was found.

mod args;
mod client;
mod error;
mod jobs;
mod link;
mod messages;
mod repeat;
mod schedules;
mod session;
mod shell;
mod show;
mod table;
mod top;

pub use args::Args;
pub use client::AdminClient;
pub use error::CliError;

use clap::CommandFactory;
use session::{Interrupt, Session};
use std::io::{self, Write};

/// Carries out one command, or the shell, and writes to `out`.
///
/// # Errors
/// The broker cannot be reached, does not answer in time, or answers something else.
pub fn run(args: &Args, out: &mut impl Write) -> Result<(), CliError> {
    match &args.command {
        Some(command) => {
            Session::new(args.options.clone(), Interrupt::none()).run(command, &args.options, out)
        }
        None => shell::run(&args.options, out),
    }
}

/// Completions of `emq-cli` for a shell.
fn completions(shell: clap_complete::Shell) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "emq-cli", &mut text);
    text
}

/// The manual page.
fn manual() -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    clap_mangen::Man::new(Args::command()).render(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests;
