//! A blocking client of the administrative socket: one connection, one question at a time.

use super::CliError;
use super::link::{Ended, Link};
use crate::addr::Addr;
use crate::admin_api::AdminCommand;
use crate::emqp::{Command, Envelope, MessageBuilder, MsgidText, advance_msgid, first_msgid};
use crate::frames::Message;
use crate::zmtp::SocketType;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// A connection to the administrative socket of a broker or publisher, handshake done.
#[derive(Debug)]
pub struct AdminClient {
    link: Link,
    timeout: Duration,
    msgid: MsgidText,
}

/// A msgid, or a routing id that is text: a ROUTER of version 0.3.13 dies of others.
pub(super) fn random_id() -> MsgidText {
    let random = RandomState::new();
    first_msgid([random.hash_one(0), random.hash_one(1)])
}

impl AdminClient {
    /// Connects and waits for the ZMTP handshake; `timeout` holds for both together, and later
    /// for each request.
    ///
    /// # Errors
    /// [`CliError::Connect`], [`CliError::NotABroker`].
    pub fn connect(addr: &Addr, timeout: Duration) -> Result<AdminClient, CliError> {
        Ok(AdminClient {
            link: Link::connect(addr, SocketType::Dealer, &random_id(), timeout)?,
            timeout,
            msgid: random_id(),
        })
    }

    /// Where it leads.
    pub fn addr(&self) -> &Addr {
        self.link.addr()
    }

    /// Changes the longest wait for an answer.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Sends a command and waits for its answer: the JSON, or `None` for the ACK of DISCONNECT.
    ///
    /// # Errors
    /// [`CliError::Timeout`], [`CliError::Lost`], [`CliError::Answer`].
    pub fn request(&mut self, command: AdminCommand) -> Result<Option<String>, CliError> {
        self.request_with(command, None)
    }

    /// As [`AdminClient::request`], with a body frame.
    ///
    /// # Errors
    /// The same.
    pub fn request_with(
        &mut self,
        command: AdminCommand,
        body: Option<&[u8]>,
    ) -> Result<Option<String>, CliError> {
        let deadline = Instant::now() + self.timeout;
        let addr = self.addr().clone();
        let answer = self
            .ask(command, body, deadline)
            .map_err(|ended| match ended.how() {
                None => CliError::Timeout {
                    addr: addr.clone(),
                    command: String::from_utf8_lossy(command.name()).into_owned(),
                    seconds: self.timeout.as_secs_f64(),
                },
                Some(what) => CliError::Lost {
                    addr: addr.clone(),
                    what,
                },
            })?;
        answer.map_err(|what| CliError::Answer {
            addr,
            what: what.to_owned(),
        })
    }

    /// As [`AdminClient::request`], the answer read as JSON.
    ///
    /// # Errors
    /// The same.
    pub fn json(&mut self, command: AdminCommand) -> Result<serde_json::Value, CliError> {
        let json = self.request(command)?.unwrap_or_default();
        read(self.addr(), &json)
    }

    /// The inner error is an answer that is not one to `command`.
    fn ask(
        &mut self,
        command: AdminCommand,
        body: Option<&[u8]>,
        deadline: Instant,
    ) -> Result<Result<Option<String>, &'static str>, Ended> {
        advance_msgid(&mut self.msgid);
        let emqp = Command::parse(command.name()).expect("administrative commands are eMQP's");
        let mut request = Vec::new();
        let builder = MessageBuilder::begin(&mut request, emqp);
        match body {
            Some(body) => builder.frame(&self.msgid).last(body),
            None => builder.last(&self.msgid),
        }
        self.link.send(&request, deadline)?;
        loop {
            let msgid = self.msgid;
            let answer = self
                .link
                .receive(deadline, |message| read_answer(message, command, &msgid))?;
            if let Some(answer) = answer {
                return Ok(answer);
            }
        }
    }
}

/// The JSON of an answer, which is always an object.
pub(super) fn read(addr: &Addr, json: &str) -> Result<serde_json::Value, CliError> {
    let what = match serde_json::from_str(json) {
        Ok(value @ serde_json::Value::Object(_)) => return Ok(value),
        Ok(_) => "not that of a broker: no JSON object".to_owned(),
        Err(error) => format!("not JSON: {error}"),
    };
    Err(CliError::Answer {
        addr: addr.clone(),
        what,
    })
}

/// `None`: nothing to do with the request (a HEARTBEAT, say).
fn read_answer(
    message: &Message<'_>,
    command: AdminCommand,
    msgid: &[u8],
) -> Option<Result<Option<String>, &'static str>> {
    let Ok(envelope) = Envelope::parse(message) else {
        return Some(Err("the message is not one of eMQP/1.0"));
    };
    match (envelope.command, command) {
        (Command::Ack, AdminCommand::Disconnect) => {
            (envelope.body(0) == Some(msgid)).then_some(Ok(None))
        }
        (Command::Reply, AdminCommand::Disconnect) => None,
        (Command::Reply, _) => {
            let json = envelope
                .body(0)
                .and_then(|json| std::str::from_utf8(json).ok());
            Some(
                json.map(|json| Some(json.to_owned()))
                    .ok_or("no JSON in the REPLY"),
            )
        }
        _ => None,
    }
}
