//! What can go wrong, each in one line.

use crate::addr::Addr;
use std::io;
use thiserror::Error;

/// Why there is no answer; each prints as one line.
#[derive(Debug, Error)]
pub enum CliError {
    /// No connection.
    #[error("{addr}: cannot connect: {error}")]
    Connect {
        /// Where to.
        addr: Addr,
        /// Why not.
        error: io::Error,
    },
    /// Something else than a ZeroMQ ROUTER listens there.
    #[error("{addr}: no EventMQ broker: {what}")]
    NotABroker {
        /// Where.
        addr: Addr,
        /// What it did.
        what: String,
    },
    /// No answer in time.
    #[error(
        "{addr}: no answer to {command} within {seconds} s (is it the administrative address, \
         and does the broker know this command?)"
    )]
    Timeout {
        /// Where.
        addr: Addr,
        /// Name of the command.
        command: String,
        /// How long was waited.
        seconds: f64,
    },
    /// The connection ended before the answer.
    #[error("{addr}: the connection ended before the answer: {what}")]
    Lost {
        /// Where.
        addr: Addr,
        /// How.
        what: String,
    },
    /// The answer is not what was asked for.
    #[error("{addr}: unexpected answer: {what}")]
    Answer {
        /// Where.
        addr: Addr,
        /// What is wrong with it.
        what: String,
    },
    /// A command of the shell needs a connection.
    #[error("not connected: connect ADDRESS comes first")]
    NotConnected,
    /// What was waited for did not come.
    #[error("{0}")]
    Missing(String),
    /// The terminal cannot be used.
    #[error("cannot use the terminal: {0}")]
    Terminal(String),
    /// The answer cannot be written out.
    #[error("cannot write the answer: {0}")]
    Output(io::Error),
}
