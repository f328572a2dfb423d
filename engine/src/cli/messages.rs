//! `publish` and `subscribe`.

use super::CliError;
use super::client::random_id;
use super::link::Link;
use super::session::{Interrupt, write};
use super::table::harmless;
use crate::addr::Addr;
use crate::admin_api::to_python_json;
use crate::emqp::{Command, MessageBuilder};
use crate::frames::Message;
use crate::zmtp::SocketType;
use serde::Serialize;
use std::io::Write;
use std::time::{Duration, Instant};

/// How long a wait lasts before it looks whether it was interrupted.
const LOOK: Duration = Duration::from_millis(100);

/// Publishes one message and waits until the publisher has read it (if it can tell).
pub(super) fn publish(
    addr: &Addr,
    timeout: Duration,
    json: bool,
    topic: &str,
    message: &str,
    out: &mut impl Write,
) -> Result<(), CliError> {
    let mut link = Link::connect(addr, SocketType::Dealer, &random_id(), timeout)?;
    let deadline = Instant::now() + timeout;
    let mut wire = Vec::new();
    let msgid = random_id();
    MessageBuilder::begin(&mut wire, Command::Publish)
        .frame(&msgid)
        .frame(topic.as_bytes())
        .last(message.as_bytes());
    let read = link
        .send(&wire, deadline)
        .and_then(|()| link.wait_until_read(deadline))
        .map_err(|ended| match ended.how() {
            Some(what) => CliError::Lost {
                addr: addr.clone(),
                what,
            },
            None => CliError::Timeout {
                addr: addr.clone(),
                command: "PUBLISH".to_owned(),
                seconds: timeout.as_secs_f64(),
            },
        })?;
    let text = match (json, read) {
        (true, _) => format!("{}\n", serde_json::json!({"published": true, "read": read})),
        (false, true) => format!("{addr}: published\n"),
        (false, false) => format!("{addr}: sent\n"),
    };
    write(out, text.as_bytes())
}

/// What to subscribe to, and for how long.
pub(super) struct Subscription<'a> {
    pub(super) topics: &'a [String],
    pub(super) count: Option<u64>,
    /// Longest wait for a message; zero = for ever.
    pub(super) wait: Duration,
    pub(super) json: bool,
}

#[derive(Serialize)]
struct Published {
    topic: String,
    message: String,
}

/// Prints what is published.
pub(super) fn subscribe(
    addr: &Addr,
    timeout: Duration,
    what: &Subscription<'_>,
    interrupt: &Interrupt,
    out: &mut impl Write,
) -> Result<(), CliError> {
    let lost = |what| CliError::Lost {
        addr: addr.clone(),
        what,
    };
    let mut link = Link::connect(addr, SocketType::Sub, b"", timeout)?;
    let deadline = Instant::now() + timeout;
    let everything = [String::new()];
    let topics = match what.topics {
        [] => &everything,
        topics => topics,
    };
    for topic in topics {
        link.subscribe(topic.as_bytes(), deadline)
            .map_err(|ended| lost(ended.how().unwrap_or_else(|| "it does not read".to_owned())))?;
    }
    let mut left = what.count;
    let mut heard = Instant::now();
    while left != Some(0) {
        let text = link.receive(Instant::now() + LOOK, |message| line(message, what.json));
        match text {
            Ok(text) => {
                heard = Instant::now();
                left = left.map(|n| n - 1);
                write(out, &text)?;
            }
            Err(ended) => {
                if let Some(how) = ended.how() {
                    return Err(lost(how));
                }
                if interrupt.is_set() {
                    return Ok(());
                }
                if !what.wait.is_zero() && heard.elapsed() >= what.wait {
                    let wait = what.wait.as_secs_f64();
                    let text = format!("{addr}: no message within {wait} s");
                    return Err(CliError::Missing(text));
                }
            }
        }
    }
    Ok(())
}

fn line(message: &Message<'_>, json: bool) -> Vec<u8> {
    let text = |frame: usize| match std::str::from_utf8(message.get(frame).unwrap_or_default()) {
        Ok(text) => text.to_owned(),
        Err(_) => crate::log_limit::shown_id(message.get(frame).unwrap_or_default()),
    };
    let (topic, message) = (text(0), text(1));
    if json {
        let mut line = to_python_json(&Published { topic, message });
        line.push(b'\n');
        line
    } else {
        format!("{} {}\n", harmless(&topic), harmless(&message)).into_bytes()
    }
}
