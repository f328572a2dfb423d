//! eMQP/1.0 messages: commands, headers, capabilities and msgids, parsed and built.
//!
//! Owns: the meaning of the frames of a message (protocol.md sections 2 to 4). May import:
//! layers 0 and 1. Invariants: nothing here panics on what a peer sent, allocates by announced
//! sizes, or requires UTF-8 where the protocol does not. Names are compared as bytes.

mod build;
mod headers;
mod inform;
mod msgids;
mod schedule;

pub use build::{HEAD, MessageBuilder, push_heartbeat_time};
pub use headers::{BadHeader, RequestHeaders};
pub use inform::{BadInform, Capabilities, parse_queues};
pub use msgids::{MSGID_TEXT_BYTES, MsgidText, advance_msgid, first_msgid};
pub use schedule::{BadSchedule, check_schedule};

use crate::frames::Message;
use crate::limits::MSGID_BYTES_MAX;
use crate::metrics::Counter;

/// The protocol name in the second frame of every message.
pub const PROTOCOL: &[u8; 8] = b"eMQP/1.0";

/// Frames in front of a command's body: empty, protocol, command, msgid.
pub const ENVELOPE_FRAMES: usize = 4;

macro_rules! commands {
    ($( $variant:ident = $name:literal, $help:literal; )*) => {
        /// The commands of protocol.md section 3.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Command {
            $(
                #[doc = $help]
                $variant,
            )*
        }

        impl Command {
            /// All commands.
            pub const ALL: &'static [Command] = &[$(Command::$variant,)*];

            /// The name on the wire.
            pub const fn name(self) -> &'static [u8] {
                match self { $(Command::$variant => $name,)* }
            }
        }
    };
}

commands! {
    Request = b"REQUEST", "run a job";
    Reply = b"REPLY", "an acceptance or a result";
    Reject = b"REJECT", "not taken, with a reason";
    Inform = b"INFORM", "register a worker or scheduler";
    Ack = b"ACK", "registered";
    Ready = b"READY", "one more free slot";
    Heartbeat = b"HEARTBEAT", "liveness";
    Kbye = b"KBYE", "the sender leaves";
    Disconnect = b"DISCONNECT", "register again; from an admin tool: shut down";
    Schedule = b"SCHEDULE", "add a schedule";
    Unschedule = b"UNSCHEDULE", "remove a schedule";
    Publish = b"PUBLISH", "a message to subscribers";
    Status = b"STATUS", "administrative: figures by queue";
    ShowWorkers = b"ROUTER_SHOW_WORKERS", "administrative: registered workers";
    ShowSchedulers = b"ROUTER_SHOW_SCHEDULERS", "administrative: registered schedulers";
    ShowSchedules = b"SCHEDULER_SHOW_SCHEDULES", "administrative: the schedules of a scheduler";
    Latency = b"LATENCY", "administrative: latency histograms";
    Counters = b"COUNTERS", "administrative: all counters";
}

impl Command {
    /// The command with this exact name; `KBAI` is an alias of `KBYE`.
    #[inline]
    pub fn parse(name: &[u8]) -> Option<Command> {
        // Compared by length first, then as arrays: a few instructions, no text is decoded.
        match name.len() {
            5 if is(name, b"READY") => Some(Command::Ready),
            5 if is(name, b"REPLY") => Some(Command::Reply),
            7 if is(name, b"REQUEST") => Some(Command::Request),
            9 if is(name, b"HEARTBEAT") => Some(Command::Heartbeat),
            _ => Command::parse_rare(name),
        }
    }

    #[cold]
    fn parse_rare(name: &[u8]) -> Option<Command> {
        if name == b"KBAI" {
            return Some(Command::Kbye);
        }
        Command::ALL
            .iter()
            .copied()
            .find(|command| command.name() == name)
    }
}

#[inline]
fn is<const N: usize>(name: &[u8], expected: &[u8; N]) -> bool {
    name.first_chunk::<N>() == Some(expected)
}

/// Why a message has no envelope. Such a message is counted and ignored (protocol.md section 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadEnvelope {
    /// Fewer than four frames.
    #[error("fewer than four frames")]
    Frames,
    /// The first frame is not empty.
    #[error("the first frame is not empty")]
    Frame0,
    /// The second frame is not `eMQP/1.0`.
    #[error("the second frame is not eMQP/1.0")]
    Version,
    /// The command is unknown.
    #[error("unknown command")]
    Command,
    /// The msgid is empty or too long.
    #[error("msgid empty or above 255 bytes")]
    Msgid,
}

impl BadEnvelope {
    /// The counter of this reason.
    pub fn counter(self) -> Counter {
        match self {
            BadEnvelope::Frames => Counter::IgnoredFrames,
            BadEnvelope::Frame0 => Counter::IgnoredFrame0,
            BadEnvelope::Version => Counter::IgnoredVersion,
            BadEnvelope::Command => Counter::IgnoredCommand,
            BadEnvelope::Msgid => Counter::IgnoredMsgid,
        }
    }
}

/// A message with a well-formed envelope.
#[derive(Debug, Clone, Copy)]
pub struct Envelope<'a> {
    /// What it asks for.
    pub command: Command,
    /// Chosen by the sender, 1-255 bytes, opaque.
    pub msgid: &'a [u8],
    message: Message<'a>,
}

impl<'a> Envelope<'a> {
    /// Reads the first four frames.
    ///
    /// # Errors
    /// The first rule of protocol.md section 2 that does not hold.
    #[inline]
    pub fn parse(message: &Message<'a>) -> Result<Envelope<'a>, BadEnvelope> {
        // The usual form of the first two frames is told by one comparison.
        let usual = message.wire().first_chunk::<12>() == Some(&HEAD);
        let (Some(name), Some(msgid)) = (message.get(2), message.get(3)) else {
            return Err(BadEnvelope::Frames);
        };
        if !usual {
            if message.get(0).is_none_or(|empty| !empty.is_empty()) {
                return Err(BadEnvelope::Frame0);
            }
            if message.get(1).is_none_or(|version| version != PROTOCOL) {
                return Err(BadEnvelope::Version);
            }
        }
        let command = Command::parse(name).ok_or(BadEnvelope::Command)?;
        if msgid.is_empty() || msgid.len() > MSGID_BYTES_MAX {
            return Err(BadEnvelope::Msgid);
        }
        Ok(Envelope {
            command,
            msgid,
            message: *message,
        })
    }

    /// Body frame `index`, if there is one.
    #[inline]
    pub fn body(&self, index: usize) -> Option<&'a [u8]> {
        self.message.get(ENVELOPE_FRAMES + index)
    }

    /// Number of body frames.
    #[inline]
    pub fn body_len(&self) -> usize {
        self.message.len() - ENVELOPE_FRAMES
    }

    /// The message this was read from.
    #[inline]
    pub fn message(&self) -> &Message<'a> {
        &self.message
    }
}

/// How a job ended, in the words of protocol.md section 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobStatus {
    /// It returned.
    Ok,
    /// It raised.
    Error,
    /// It ran into its time-out.
    Timeout,
    /// Its worker was lost.
    Lost,
    /// It was cancelled.
    Cancelled,
    /// It was given up after its last retry.
    Dead,
    /// It was never started.
    Refused,
}

impl JobStatus {
    /// The status with this word.
    pub fn parse(word: &[u8]) -> Option<JobStatus> {
        Some(match word {
            b"ok" => JobStatus::Ok,
            b"error" => JobStatus::Error,
            b"timeout" => JobStatus::Timeout,
            b"lost" => JobStatus::Lost,
            b"cancelled" => JobStatus::Cancelled,
            b"dead" => JobStatus::Dead,
            b"refused" => JobStatus::Refused,
            _ => return None,
        })
    }

    /// The word on the wire.
    pub fn word(self) -> &'static [u8] {
        match self {
            JobStatus::Ok => b"ok",
            JobStatus::Error => b"error",
            JobStatus::Timeout => b"timeout",
            JobStatus::Lost => b"lost",
            JobStatus::Cancelled => b"cancelled",
            JobStatus::Dead => b"dead",
            JobStatus::Refused => b"refused",
        }
    }
}

/// Why a message was not taken: the second body frame of a REJECT (protocol.md section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// Frames missing, or a header that cannot be read.
    Malformed,
    /// The queue has `hwm` waiting jobs.
    QueueFull,
    /// `max_queues` queues are known.
    TooManyQueues,
    /// `max_memory` is used up and nothing could be handed out.
    MemoryFull,
    /// The broker is shutting down.
    Draining,
    /// No scheduler is registered.
    NoScheduler,
    /// Above the size limits.
    TooLarge,
    /// A guaranteed job that could not be made durable.
    NotDurable,
    /// A header this version does not carry out.
    Unsupported,
}

impl RejectReason {
    /// The word on the wire.
    pub fn word(self) -> &'static [u8] {
        match self {
            RejectReason::Malformed => b"malformed",
            RejectReason::QueueFull => b"queue-full",
            RejectReason::TooManyQueues => b"too-many-queues",
            RejectReason::MemoryFull => b"memory-full",
            RejectReason::Draining => b"draining",
            RejectReason::NoScheduler => b"no-scheduler",
            RejectReason::TooLarge => b"too-large",
            RejectReason::NotDurable => b"not-durable",
            RejectReason::Unsupported => b"unsupported",
        }
    }

    /// The reason with this word.
    pub fn parse(word: &[u8]) -> Option<RejectReason> {
        [
            RejectReason::Malformed,
            RejectReason::QueueFull,
            RejectReason::TooManyQueues,
            RejectReason::MemoryFull,
            RejectReason::Draining,
            RejectReason::NoScheduler,
            RejectReason::TooLarge,
            RejectReason::NotDurable,
            RejectReason::Unsupported,
        ]
        .into_iter()
        .find(|reason| reason.word() == word)
    }
}

#[cfg(test)]
mod tests;
