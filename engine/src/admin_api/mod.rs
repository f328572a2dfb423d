//! The administrative commands: which one a message is, and the answers as JSON.
//!
//! Owns: [`AdminCommand`], the JSON forms of the snapshots in [`snapshot`](crate::snapshot), and
//! the frames around them. May import layers 0-3 but not `broker`. Invariants: every answer is
//! valid JSON in ASCII, byte for byte as Python's `json.dumps` prints it (separators `", "` and
//! `": "`, key order of EventMQ 0.3.13); a name or id that is not UTF-8 is shown as `0x` and hex;
//! a large answer can be made in slices ([`Rendering`]).

mod json;
mod render;

pub use crate::json::python_float;
pub use render::{
    Answer, Rendering, render_counters, render_latency, render_schedulers, render_status,
    render_workers,
};

use crate::emqp::{Command, Envelope, PROTOCOL};
use crate::frames::{Message, MessageWriter};
use crate::metrics::Counter;

/// A command of the administrative socket (protocol.md section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AdminCommand {
    /// Figures per queue and worker.
    Status,
    /// Workers and the queues they serve.
    ShowWorkers,
    /// Schedulers.
    ShowSchedulers,
    /// The schedules of a scheduler, which alone answers it.
    ShowSchedules,
    /// Graceful shutdown, answered with ACK.
    Disconnect,
    /// Latency distributions.
    Latency,
    /// Counters and everything that is not per queue.
    Counters,
}

impl AdminCommand {
    /// All commands.
    pub const ALL: [AdminCommand; 7] = [
        AdminCommand::Status,
        AdminCommand::ShowWorkers,
        AdminCommand::ShowSchedulers,
        AdminCommand::ShowSchedules,
        AdminCommand::Disconnect,
        AdminCommand::Latency,
        AdminCommand::Counters,
    ];

    /// The command frame.
    pub fn name(self) -> &'static [u8] {
        self.command().name()
    }

    fn command(self) -> Command {
        match self {
            AdminCommand::Status => Command::Status,
            AdminCommand::ShowWorkers => Command::ShowWorkers,
            AdminCommand::ShowSchedulers => Command::ShowSchedulers,
            AdminCommand::ShowSchedules => Command::ShowSchedules,
            AdminCommand::Disconnect => Command::Disconnect,
            AdminCommand::Latency => Command::Latency,
            AdminCommand::Counters => Command::Counters,
        }
    }

    /// The administrative command among all commands of eMQP.
    pub fn from_command(command: Command) -> Option<AdminCommand> {
        AdminCommand::ALL
            .into_iter()
            .find(|known| known.command() == command)
    }
}

/// A request understood: the command and the msgid, which only an ACK repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdminRequest<'a> {
    /// What is asked for.
    pub command: AdminCommand,
    /// The request's msgid, 1-255 bytes.
    pub msgid: &'a [u8],
}

/// Reads a command frame; names are exact.
pub fn parse(command: &[u8]) -> Option<AdminCommand> {
    Command::parse(command).and_then(AdminCommand::from_command)
}

/// Reads a whole message from the administrative socket: `['', 'eMQP/1.0', COMMAND, msgid]`,
/// further frames are not looked at.
///
/// # Errors
/// The counter under which the message is ignored.
pub fn parse_message<'a>(message: &Message<'a>) -> Result<AdminRequest<'a>, Counter> {
    let envelope = Envelope::parse(message).map_err(|bad| bad.counter())?;
    let command = AdminCommand::from_command(envelope.command).ok_or(Counter::IgnoredRole)?;
    Ok(AdminRequest {
        command,
        msgid: envelope.msgid,
    })
}

/// A value as JSON, printed as Python's `json.dumps` prints it: for answers of components that
/// have their own.
///
/// # Panics
/// If the value does not serialise.
pub fn to_python_json<T: serde::Serialize + ?Sized>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    json::push(&mut out, value);
    out
}

/// Appends the answer to everything but DISCONNECT in its wire form. `newid` is a fresh msgid: the
/// request's is not in the answer.
pub fn push_reply(out: Vec<u8>, newid: &[u8], json: &[u8]) -> Vec<u8> {
    push_frames(out, Command::Reply, newid, json)
}

/// Appends the answer to DISCONNECT in its wire form.
pub fn push_ack(out: Vec<u8>, newid: &[u8], msgid: &[u8]) -> Vec<u8> {
    push_frames(out, Command::Ack, newid, msgid)
}

fn push_frames(out: Vec<u8>, command: Command, newid: &[u8], body: &[u8]) -> Vec<u8> {
    let mut writer = MessageWriter::new(out);
    writer
        .frame(b"")
        .frame(PROTOCOL)
        .frame(command.name())
        .frame(newid)
        .frame(body);
    writer.finish()
}

#[cfg(test)]
mod tests;
