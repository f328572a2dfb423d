//! What a client can send.

use super::core::To;
use super::error::SendError;
use crate::emqp::{Command, MessageBuilder};
use crate::job::{BadRequest, Request};
use crate::json;
use crate::limits::{FRAME_BYTES_MAX, MESSAGE_BYTES_MAX, SCHEDULE_BYTES_MAX};
use serde::Serialize;

/// A message for a broker or a publisher, without its msgid: made of a [`Request`], [`Schedule`],
/// [`Unschedule`], [`Publication`] or [`RawRequest`].
#[derive(Debug, Clone)]
pub struct Outgoing {
    pub(super) command: Command,
    pub(super) body: Result<Vec<Vec<u8>>, BadRequest>,
    pub(super) resend: bool,
}

impl Outgoing {
    pub(super) fn to(&self) -> To {
        match self.command {
            Command::Publish => To::Publisher,
            _ => To::Broker,
        }
    }

    /// The whole message in wire form.
    pub(super) fn wire(&self, msgid: &[u8]) -> Result<Vec<u8>, SendError> {
        let body = self.body.as_ref().map_err(Clone::clone)?;
        let (last, others) = body.split_last().expect("every command has a body");
        let bytes: usize = body.iter().map(|frame| frame.len() + 9).sum();
        if bytes + 100 > MESSAGE_BYTES_MAX || body.iter().any(|f| f.len() > FRAME_BYTES_MAX) {
            return Err(BadRequest::TooLarge.into());
        }
        let mut wire = Vec::with_capacity(bytes + 100);
        let mut message = MessageBuilder::begin(&mut wire, self.command).frame(msgid);
        for frame in others {
            message = message.frame(frame);
        }
        message.last(last);
        Ok(wire)
    }
}

impl<R> From<Request<R>> for Outgoing {
    fn from(request: Request<R>) -> Outgoing {
        let body = request.message().map(|message| {
            vec![
                request.queue_name().as_bytes().to_vec(),
                request.headers().into_bytes(),
                message,
            ]
        });
        Outgoing {
            command: Command::Request,
            body,
            resend: request.may_be_resent(),
        }
    }
}

/// A REQUEST whose message is anything: what the original's `send_request` sends.
#[derive(Debug, Clone)]
pub struct RawRequest {
    queue: String,
    headers: String,
    message: Vec<u8>,
    resend: bool,
}

impl RawRequest {
    /// This message in this queue, with headers as they stand in their frame (`""` = none).
    pub fn new(queue: &str, headers: &str, message: impl Into<Vec<u8>>) -> RawRequest {
        RawRequest {
            queue: queue.to_owned(),
            headers: headers.to_owned(),
            message: message.into(),
            resend: false,
        }
    }

    /// See [`Request::resend`].
    #[must_use]
    pub fn resend(mut self, resend: bool) -> RawRequest {
        self.resend = resend;
        self
    }
}

impl From<RawRequest> for Outgoing {
    fn from(raw: RawRequest) -> Outgoing {
        Outgoing {
            command: Command::Request,
            body: Ok(vec![
                raw.queue.into_bytes(),
                raw.headers.into_bytes(),
                raw.message,
            ]),
            resend: raw.resend,
        }
    }
}

/// A job to be run again and again: at an interval, or by a cron expression.
///
/// The same job (path, callable and arguments) scheduled again replaces its schedule. Retries and
/// time-out of the request are handed on to its runs.
#[derive(Debug, Clone)]
pub struct Schedule {
    queue: String,
    message: Result<Vec<u8>, BadRequest>,
    run_headers: Vec<String>,
    interval: String,
    cron: String,
    stored: bool,
    nohaste: bool,
    run_count: Option<u32>,
    time_zone: Option<String>,
    resend: bool,
}

impl Schedule {
    fn new<R>(request: &Request<R>, interval: String, cron: &str) -> Schedule {
        Schedule {
            queue: request.queue_name().to_owned(),
            message: request.message(),
            run_headers: request.run_headers(),
            interval,
            cron: cron.to_owned(),
            stored: true,
            nohaste: false,
            run_count: None,
            time_zone: None,
            resend: request.may_be_resent(),
        }
    }

    fn wrong(mut self, wrong: bool, why: &'static str) -> Schedule {
        if wrong && self.message.is_ok() {
            self.message = Err(BadRequest::Schedule(why));
        }
        self
    }

    /// Every so many seconds, from now on; 0 is refused.
    pub fn every<R>(seconds: u32, request: &Request<R>) -> Schedule {
        Schedule::new(request, seconds.to_string(), "")
            .wrong(seconds == 0, "an interval of 0 seconds")
    }

    /// By a cron expression of five fields, or six with seconds last.
    pub fn cron<R>(expression: &str, request: &Request<R>) -> Schedule {
        let fields = expression.split_whitespace().count();
        Schedule::new(request, "-1".to_owned(), expression).wrong(
            !(5..=6).contains(&fields),
            "a cron expression has five or six fields",
        )
    }

    /// The scheduler is to keep it when it ends (header `guarantee`; on, as in 0.3.13).
    #[must_use]
    pub fn stored(mut self, stored: bool) -> Schedule {
        self.stored = stored;
        self
    }

    /// The first run comes after one interval, or at the first time of the expression, instead of
    /// at once.
    #[must_use]
    pub fn nohaste(mut self, nohaste: bool) -> Schedule {
        self.nohaste = nohaste;
        self
    }

    /// So many runs in all.
    #[must_use]
    pub fn run_count(mut self, runs: u32) -> Schedule {
        self.run_count = Some(runs);
        self
    }

    /// The zone of a cron expression's times (`Europe/Berlin`), instead of UTC. Schedulers of
    /// 0.3.13 do not know this.
    #[must_use]
    pub fn time_zone(mut self, zone: &str) -> Schedule {
        self.time_zone = Some(zone.to_owned());
        let bad = zone.is_empty() || zone.contains(|c: char| c == ',' || c.is_control());
        self.wrong(bad, "that is no name of a time zone")
    }

    fn headers(&self) -> String {
        let mut all = Vec::new();
        if self.stored {
            all.push("guarantee".to_owned());
        }
        if self.nohaste {
            all.push("nohaste".to_owned());
        }
        if let Some(runs) = self.run_count {
            all.push(format!("run_count:{runs}"));
        }
        all.extend(self.time_zone.iter().map(|zone| format!("tz:{zone}")));
        all.extend(self.run_headers.iter().cloned());
        all.join(",")
    }
}

fn schedule(command: Command, schedule: Schedule) -> Outgoing {
    let headers = schedule.headers().into_bytes();
    let body = schedule.message.and_then(|message| {
        if message.len() + headers.len() + schedule.cron.len() + 1_000 > SCHEDULE_BYTES_MAX {
            return Err(BadRequest::TooLarge);
        }
        Ok(vec![
            schedule.queue.into_bytes(),
            headers,
            schedule.interval.into_bytes(),
            message,
            schedule.cron.into_bytes(),
        ])
    });
    Outgoing {
        command,
        body,
        resend: schedule.resend,
    }
}

impl From<Schedule> for Outgoing {
    fn from(new: Schedule) -> Outgoing {
        schedule(Command::Schedule, new)
    }
}

/// The end of a schedule: that of the job with this path, callable and arguments.
#[derive(Debug, Clone)]
pub struct Unschedule(Schedule);

impl Unschedule {
    /// Of this job.
    pub fn new<R>(request: &Request<R>) -> Unschedule {
        let mut schedule = Schedule::new(request, "-1".to_owned(), "");
        schedule.run_headers.clear();
        Unschedule(schedule)
    }
}

impl From<Unschedule> for Outgoing {
    fn from(old: Unschedule) -> Outgoing {
        schedule(Command::Unschedule, old.0)
    }
}

/// A message for the subscribers of a topic.
#[derive(Debug, Clone)]
pub struct Publication {
    topic: Vec<u8>,
    message: Result<Vec<u8>, BadRequest>,
    resend: bool,
}

impl Publication {
    /// These bytes.
    pub fn new(topic: impl Into<Vec<u8>>, message: impl Into<Vec<u8>>) -> Publication {
        Publication {
            topic: topic.into(),
            message: Ok(message.into()),
            resend: false,
        }
    }

    /// A value as JSON, as the original's `send_publish_request` does.
    pub fn json<T: Serialize + ?Sized>(topic: impl Into<Vec<u8>>, value: &T) -> Publication {
        let mut message = Vec::new();
        let pushed = json::push(&mut message, value);
        let message = pushed
            .map(|()| message)
            .map_err(|why| BadRequest::Argument {
                argument: "the message".to_owned(),
                why,
            });
        Publication {
            topic: topic.into(),
            message,
            resend: false,
        }
    }

    /// See [`Request::resend`]: subscribers may get it twice.
    #[must_use]
    pub fn resend(mut self, resend: bool) -> Publication {
        self.resend = resend;
        self
    }
}

impl From<Publication> for Outgoing {
    fn from(publication: Publication) -> Outgoing {
        let topic = publication.topic;
        Outgoing {
            command: Command::Publish,
            body: publication.message.map(|message| vec![topic, message]),
            resend: publication.resend,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::split_wire;

    fn frames(outgoing: impl Into<Outgoing>) -> Vec<String> {
        let wire = outgoing.into().wire(b"id").unwrap();
        let mut spans = Vec::new();
        split_wire(&wire, &mut spans);
        crate::frames::Message::new(&wire, &spans)
            .frames()
            .skip(2)
            .map(|frame| String::from_utf8(frame.to_vec()).unwrap())
            .collect()
    }

    const RUN: &str = r#"["run", {"callable": "add", "path": "jobs_x", "args": [1], "kwargs": {}, "class_args": [], "class_kwargs": {}}]"#;

    fn add() -> Request {
        Request::new("jobs_x.add").arg(1)
    }

    /// The vectors that the client library of 0.3.13 gave.
    #[test]
    fn messages_have_the_frames_of_the_original_client() {
        let all = add()
            .reply_requested(true)
            .guarantee(true)
            .retry_count(3)
            .timeout_secs(7)
            .queue("email");
        let headers = "reply-requested,guarantee,retry-count:3,timeout:7";
        let cases: [(Outgoing, &[&str]); 7] = [
            (add().into(), &["REQUEST", "id", "default", "", RUN]),
            (all.into(), &["REQUEST", "id", "email", headers, RUN]),
            (
                RawRequest::new("k\u{fc}", "", "5").into(),
                &["REQUEST", "id", "k\u{fc}", "", "5"],
            ),
            (
                Schedule::every(10, &add()).into(),
                &["SCHEDULE", "id", "default", "guarantee", "10", RUN, ""],
            ),
            (
                Schedule::cron("* * * * *", &add().queue("q2"))
                    .stored(false)
                    .nohaste(true)
                    .run_count(3)
                    .into(),
                &[
                    "SCHEDULE",
                    "id",
                    "q2",
                    "nohaste,run_count:3",
                    "-1",
                    RUN,
                    "* * * * *",
                ],
            ),
            (
                Unschedule::new(&add().timeout_secs(9)).into(),
                &["UNSCHEDULE", "id", "default", "guarantee", "-1", RUN, ""],
            ),
            (
                Publication::json("topic", &["update", "1"]).into(),
                &["PUBLISH", "id", "topic", r#"["update", "1"]"#],
            ),
        ];
        for (outgoing, expected) in cases {
            assert_eq!(frames(outgoing), expected);
        }
    }

    #[test]
    fn schedules_hand_headers_on_to_their_runs() {
        let request = add().guarantee(true).retry_count(2).timeout_secs(60);
        let cron = Schedule::cron("0 12 * * 1-5", &request).time_zone("Europe/Berlin");
        assert_eq!(
            frames(cron)[3],
            "guarantee,tz:Europe/Berlin,guarantee-runs,retry-count:2,timeout:60"
        );
    }

    #[test]
    fn what_no_peer_would_take_is_refused_here() {
        let large = "x".repeat(SCHEDULE_BYTES_MAX);
        for (outgoing, expected) in [
            (
                Schedule::every(0, &add()).into(),
                "no schedule: an interval",
            ),
            (
                Schedule::cron("* * *", &add()).into(),
                "no schedule: a cron",
            ),
            (
                Schedule::cron("* * * * * * *", &add()).into(),
                "no schedule: a cron",
            ),
            (
                Schedule::cron("* * * * *", &add()).time_zone("a,b").into(),
                "no schedule: that is no name",
            ),
            (
                Schedule::every(1, &Request::new("add")).into(),
                "\"add\" names no job",
            ),
            (
                Schedule::every(1, &add().arg(large)).into(),
                "the message has more",
            ),
            (Publication::json("t", &f64::NAN).into(), "the message: NaN"),
            (
                Publication::new("t", vec![0; FRAME_BYTES_MAX + 1]).into(),
                "the message has more",
            ),
            (
                Publication::new(vec![0; FRAME_BYTES_MAX], vec![0; FRAME_BYTES_MAX]).into(),
                "the message has more",
            ),
        ] as [(Outgoing, &str); 9]
        {
            let error = outgoing.wire(b"id").unwrap_err();
            assert!(matches!(error, SendError::Invalid(_)));
            assert!(error.to_string().starts_with(expected), "{error}");
        }
    }
}
