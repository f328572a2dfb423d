//! The worker side of the load: answers every REQUEST with REPLY and READY, at once or after the
//! time that the job takes.

use super::incident::Incident;
use crate::conn::Conn;
use crate::wire::{Frames, MSGID_BYTES, Msgid, ReplyTemplate, Template, message, ready};

/// Templates shared by the workers of a thread.
#[derive(Debug)]
pub(crate) struct WorkerTemplates {
    ready: Template,
    reply: ReplyTemplate,
    failed: ReplyTemplate,
}

impl WorkerTemplates {
    pub(crate) fn new() -> Self {
        WorkerTemplates {
            ready: ready(),
            reply: ReplyTemplate::new(),
            failed: ReplyTemplate::failed(),
        }
    }
}

/// One worker connection.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) conn: Conn,
    /// Base of the msgids of its own messages.
    own: Msgid,
    serial: u32,
    /// READYs sent less REQUESTs received; below zero the broker has handed out too much.
    free_slots: i64,
    /// Tells the lives of a worker apart that is killed and comes back.
    pub(crate) life: u32,
}

/// A job that a worker was given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Given {
    pub(crate) msgid: [u8; MSGID_BYTES],
    pub(crate) wants_result: bool,
}

impl Worker {
    pub(crate) fn new(conn: Conn, tag: u32, life: u32) -> Self {
        Worker {
            conn,
            own: Msgid::new(tag),
            serial: 0,
            free_slots: 0,
            life,
        }
    }

    /// Offers `slots` slots.
    pub(crate) fn offer(&mut self, slots: usize, templates: &WorkerTemplates) {
        for _ in 0..slots {
            self.push_ready(templates);
        }
    }

    fn push_ready(&mut self, templates: &WorkerTemplates) {
        self.serial = self.serial.wrapping_add(1);
        let id = self.own.with(1, self.serial);
        templates.ready.push(&mut self.conn.out, id.bytes());
        self.free_slots += 1;
    }

    /// Takes one message of the broker.
    #[inline]
    pub(crate) fn take(&mut self, buf: &[u8], frames: &Frames) -> Result<Option<Given>, Incident> {
        if frames.get(buf, 2) != b"REQUEST" {
            return self.take_other(buf, frames).map(|()| None);
        }
        let Ok(msgid) = <[u8; MSGID_BYTES]>::try_from(frames.get(buf, 3)) else {
            return Err(not_ours());
        };
        self.free_slots -= 1;
        if self.free_slots < 0 {
            return Err(Incident::fatal(format!(
                "{} hands out more jobs than the worker has free slots",
                self.conn.label()
            )));
        }
        let wants_result = frames.get(buf, 5).starts_with(b"reply-requested");
        Ok(Some(Given {
            msgid,
            wants_result,
        }))
    }

    /// The job is done, or has failed.
    #[inline]
    pub(crate) fn answer(
        &mut self,
        msgid: &[u8; MSGID_BYTES],
        failed: bool,
        templates: &WorkerTemplates,
    ) {
        let own = self.own.with(0, self.serial);
        let reply = if failed {
            &templates.failed
        } else {
            &templates.reply
        };
        reply.push(&mut self.conn.out, &own, msgid);
        self.push_ready(templates);
    }

    #[cold]
    fn take_other(&mut self, buf: &[u8], frames: &Frames) -> Result<(), Incident> {
        match frames.get(buf, 2) {
            b"HEARTBEAT" | b"ACK" => Ok(()),
            other => Err(Incident::fatal(format!(
                "{} sent {} to a worker in the middle of the run",
                self.conn.label(),
                other.escape_ascii()
            ))),
        }
    }

    /// Sign of life of a worker that has nothing else to say.
    pub(crate) fn push_heartbeat(&mut self, unix_secs: f64) {
        let text = format!("{unix_secs:.3}");
        let id = self.own.with(2, self.serial);
        let wire = message(&[b"HEARTBEAT", id.bytes(), text.as_bytes()]);
        self.conn.out.extend_from_slice(&wire);
    }

    /// Leaves in order.
    pub(crate) fn push_goodbye(&mut self) {
        let id = self.own.with(3, self.serial);
        self.conn
            .out
            .extend_from_slice(&message(&[b"KBYE", id.bytes()]));
    }
}

/// A worker was given somebody else's job.
#[cold]
pub(crate) fn not_ours() -> Incident {
    Incident::fatal(
        "a worker was given a job that this generator did not send; is the queue in use by \
         others, or does it hold jobs of an earlier run? (choose another with --queue)"
            .to_owned(),
    )
}
