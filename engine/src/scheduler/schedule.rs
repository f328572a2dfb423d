//! One SCHEDULE, read and checked (protocol.md, "Schedules").

use super::cron::{Cron, CronError};
use super::identity::{Identity, NotACall};
use super::zone::{UnknownZone, Zone};
use crate::emqp::RequestHeaders;
use crate::limits::{QUEUE_NAME_BYTES_MAX, SCHEDULE_BYTES_MAX};
use crate::metrics::Counter;

/// Longest interval: a hundred years, in seconds.
const INTERVAL_SECS_MAX: u64 = 100 * 366 * 86_400;

/// Number of body frames.
pub const BODY_FRAMES: usize = 5;

/// Why a SCHEDULE or UNSCHEDULE is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Fewer than five body frames.
    #[error("fewer than five body frames")]
    Frames,
    /// A frame is not UTF-8.
    #[error("a frame is not UTF-8")]
    NotUtf8,
    /// Above `limits::SCHEDULE_BYTES_MAX`, or a queue name above 255 bytes.
    #[error("the message or the name of the queue is too long")]
    TooLarge,
    /// The message is no call.
    #[error(transparent)]
    Call(#[from] NotACall),
    /// No whole number of seconds, or zero, or above a hundred years.
    #[error("the interval is no whole number of seconds, or zero, or above a hundred years")]
    Interval,
    /// The cron expression.
    #[error("cron expression: {0}")]
    Cron(#[from] CronError),
    /// `tz:` with an unknown name.
    #[error("header tz: {0}")]
    Zone(#[from] UnknownZone),
    /// A header with a bad number.
    #[error("a header without a number of ASCII digits below 2^32")]
    Headers,
    /// The limit on schedules or on their bytes.
    #[error("max_schedules or max_schedule_bytes reached")]
    Full,
}

impl Refusal {
    /// What it is counted as.
    pub fn counter(self) -> Counter {
        match self {
            Refusal::Frames | Refusal::NotUtf8 | Refusal::TooLarge | Refusal::Call(_) => {
                Counter::SchedulesRefusedMalformed
            }
            Refusal::Interval => Counter::SchedulesRefusedInterval,
            Refusal::Cron(_) => Counter::SchedulesRefusedCron,
            Refusal::Zone(_) | Refusal::Headers => Counter::SchedulesRefusedHeaders,
            Refusal::Full => Counter::SchedulesRefusedFull,
        }
    }
}

/// When it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pace {
    /// Every so many milliseconds.
    Every(u64),
    /// By an expression on the clock of a time zone.
    Cron(Box<Cron>, Zone),
}

/// A SCHEDULE that can be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// Which schedule: equal calls are the same one.
    pub identity: Identity,
    /// `path.callable`, for people.
    pub name: String,
    /// The body frames as they came: queue, headers, interval, message, cron.
    pub body: [String; BODY_FRAMES],
    /// When it runs.
    pub pace: Pace,
    /// Number of runs in all, if limited.
    pub run_count: Option<u32>,
    /// No run at once.
    pub nohaste: bool,
    /// Name of the time zone as given.
    pub zone_name: Option<String>,
    /// The headers of its REQUESTs.
    pub run_headers: String,
}

/// The headers of a SCHEDULE that its runs do not get.
#[derive(Debug, Default, PartialEq, Eq)]
struct Headers<'a> {
    run_count: Option<u32>,
    nohaste: bool,
    zone: Option<&'a str>,
    run: String,
}

impl Schedule {
    /// Reads the body of a SCHEDULE.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn parse<'a>(body: impl Iterator<Item = &'a [u8]>) -> Result<Schedule, Refusal> {
        let [queue, headers, interval, message, cron] = texts(body)?;
        let (identity, name) = Identity::of_message(message)?;
        let read = Headers::parse(headers)?;
        let pace = pace(interval, cron, read.zone)?;
        Ok(Schedule {
            identity,
            name,
            body: [queue, headers, interval, message, cron].map(str::to_owned),
            pace,
            run_count: read.run_count,
            nohaste: read.nohaste,
            zone_name: read.zone.map(str::to_owned),
            run_headers: read.run,
        })
    }

    /// The queue of its runs.
    pub fn queue(&self) -> &str {
        &self.body[0]
    }

    /// What its runs run.
    pub fn message(&self) -> &str {
        &self.body[3]
    }

    /// The headers with `left` as the number of runs, as they are stored.
    pub fn headers_with(&self, left: Option<u32>) -> String {
        let Some(left) = left else {
            return self.body[1].clone();
        };
        let mut seen = false;
        let mut items: Vec<String> = Vec::new();
        for item in self.body[1].split(',') {
            if !item.starts_with("run_count:") {
                items.push(item.to_owned());
            } else if !std::mem::replace(&mut seen, true) {
                items.push(format!("run_count:{left}"));
            }
        }
        items.join(",")
    }

    /// Bytes it takes, roughly.
    pub fn bytes(&self) -> usize {
        const REST: usize = 512;
        self.body.iter().map(String::len).sum::<usize>()
            + self.run_headers.len()
            + self.name.len()
            + REST
    }
}

/// Which schedule an UNSCHEDULE means: only its message counts.
///
/// # Errors
/// The first rule that does not hold.
pub fn identity_of<'a>(body: impl Iterator<Item = &'a [u8]>) -> Result<Identity, Refusal> {
    let [_, _, _, message, _] = texts(body)?;
    Ok(Identity::of_message(message)?.0)
}

fn texts<'a>(mut body: impl Iterator<Item = &'a [u8]>) -> Result<[&'a str; BODY_FRAMES], Refusal> {
    let mut texts = [""; BODY_FRAMES];
    let mut bytes = 0;
    for text in &mut texts {
        let frame = body.next().ok_or(Refusal::Frames)?;
        bytes += frame.len();
        *text = std::str::from_utf8(frame).map_err(|_error| Refusal::NotUtf8)?;
    }
    if bytes > SCHEDULE_BYTES_MAX || texts[0].len() > QUEUE_NAME_BYTES_MAX {
        return Err(Refusal::TooLarge);
    }
    Ok(texts)
}

/// A negative interval stands for the cron expression.
fn pace(interval: &str, cron: &str, zone: Option<&str>) -> Result<Pace, Refusal> {
    let digits = interval.strip_prefix('-').unwrap_or(interval);
    if !(1..=18).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Refusal::Interval);
    }
    let secs: u64 = digits.parse().map_err(|_error| Refusal::Interval)?;
    let zone = zone.map_or(Ok(Zone::utc()), Zone::named)?;
    if digits.len() < interval.len() && secs > 0 {
        return Ok(Pace::Cron(Box::new(Cron::parse(cron)?), zone));
    }
    if !(1..=INTERVAL_SECS_MAX).contains(&secs) {
        return Err(Refusal::Interval);
    }
    Ok(Pace::Every(secs * 1_000))
}

impl<'a> Headers<'a> {
    /// Names are exact; of duplicates the last counts; what is not for the scheduler is for its
    /// runs.
    fn parse(csv: &'a str) -> Result<Headers<'a>, Refusal> {
        // Asked for as 0.3.13 does: its broker takes a job for ended only by its REPLY.
        let mut headers = Headers {
            run: "reply-requested".to_owned(),
            ..Headers::default()
        };
        for item in csv.split(',') {
            match item {
                "" | "reply-requested" | "guarantee" => {}
                "nohaste" => headers.nohaste = true,
                "guarantee-runs" => headers.run += ",guarantee",
                _ => {
                    if let Some(count) = item.strip_prefix("run_count:") {
                        headers.run_count = Some(number(count)?);
                    } else if let Some(zone) = item.strip_prefix("tz:") {
                        headers.zone = Some(zone);
                    } else if matches!(item, "run_count" | "tz") {
                        return Err(Refusal::Headers);
                    } else {
                        headers.run += ",";
                        headers.run += item;
                    }
                }
            }
        }
        RequestHeaders::parse(headers.run.as_bytes()).map_err(|_bad| Refusal::Headers)?;
        Ok(headers)
    }
}

fn number(digits: &str) -> Result<u32, Refusal> {
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let value = plain.then(|| digits.parse().ok()).flatten();
    value.ok_or(Refusal::Headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: &str = r#"["run", {"callable": "add", "path": "jobs", "args": [1], "kwargs": {},
        "class_args": [], "class_kwargs": {}}]"#;

    fn parse(body: [&str; 5]) -> Result<Schedule, Refusal> {
        Schedule::parse(body.iter().map(|text| text.as_bytes()))
    }

    #[test]
    fn an_interval_and_a_cron_schedule() {
        let schedule = parse(["q", "guarantee", "10", CALL, ""]).unwrap();
        assert_eq!(schedule.pace, Pace::Every(10_000));
        assert_eq!((schedule.run_count, schedule.nohaste), (None, false));
        assert_eq!(schedule.run_headers, "reply-requested");
        assert_eq!(
            (schedule.queue(), schedule.name.as_str()),
            ("q", "jobs.add")
        );
        let cron = parse(["", "nohaste,run_count:3", "-7", CALL, "0 0 * * 5#2"]).unwrap();
        assert!(matches!(cron.pace, Pace::Cron(..)));
        assert_eq!((cron.run_count, cron.nohaste), (Some(3), true));
        assert_eq!(cron.identity, schedule.identity);
        // As in 0.3.13 the interval decides.
        let both = parse(["", "", "5", CALL, "not looked at"]).unwrap();
        assert_eq!(both.pace, Pace::Every(5_000));
        let berlin = parse(["", "tz:Europe/Berlin", "-1", CALL, "0 4 * * *"]).unwrap();
        assert_eq!(berlin.zone_name.as_deref(), Some("Europe/Berlin"));
    }

    #[test]
    fn headers_for_the_runs() {
        let headers = |csv| parse(["q", csv, "1", CALL, ""]).map(|s| s.run_headers);
        assert_eq!(
            headers("guarantee,timeout:7,nohaste,run_count:2,retry-count:3,x:y,tz:UTC").unwrap(),
            "reply-requested,timeout:7,retry-count:3,x:y"
        );
        assert_eq!(
            headers("reply-requested,guarantee-runs").unwrap(),
            "reply-requested,guarantee"
        );
        for bad in [
            "timeout:x",
            "timeout",
            "run_count:-1",
            "run_count:",
            "run_count",
            "tz",
            "delay:",
        ] {
            assert_eq!(headers(bad), Err(Refusal::Headers), "{bad}");
        }
        assert_eq!(headers("tz:Nowhere"), Err(Refusal::Zone(UnknownZone)));
    }

    #[test]
    fn what_is_refused() {
        let refused = |body| parse(body).unwrap_err();
        for interval in ["0", "-0", "", "1.5", "x", "--1", "+5", "9999999999", " 1"] {
            assert_eq!(
                refused(["q", "", interval, CALL, ""]),
                Refusal::Interval,
                "{interval}"
            );
        }
        assert_eq!(
            refused(["q", "", "-1", CALL, ""]),
            Refusal::Cron(CronError::Fields)
        );
        assert_eq!(
            refused(["q", "", "-1", CALL, "0 0 31 2 *"]),
            Refusal::Cron(CronError::Never)
        );
        assert_eq!(
            refused(["q", "", "5", "[\"run\"]", ""]),
            Refusal::Call(NotACall)
        );
        let long = "q".repeat(256);
        assert_eq!(refused([&long, "", "5", CALL, ""]), Refusal::TooLarge);
        let huge = " ".repeat(SCHEDULE_BYTES_MAX) + CALL;
        assert_eq!(refused(["q", "", "5", &huge, ""]), Refusal::TooLarge);
        let short = [&b"q"[..], b"", b"5", CALL.as_bytes()];
        assert_eq!(Schedule::parse(short.into_iter()), Err(Refusal::Frames));
        let bytes = [&b"\xff"[..], b"", b"5", CALL.as_bytes(), b""];
        assert_eq!(Schedule::parse(bytes.into_iter()), Err(Refusal::NotUtf8));
        // An UNSCHEDULE needs only its message.
        let anything = [&b"q"[..], b"timeout:x", b"zero", CALL.as_bytes(), b"x"];
        assert!(identity_of(anything.into_iter()).is_ok());
    }

    #[test]
    fn what_is_left_is_written_into_the_headers() {
        let schedule = parse(["q", "nohaste,run_count:5,x,run_count:3", "1", CALL, ""]).unwrap();
        assert_eq!(schedule.run_count, Some(3));
        assert_eq!(schedule.headers_with(Some(2)), "nohaste,run_count:2,x");
        let endless = parse(["q", "guarantee", "1", CALL, ""]).unwrap();
        assert_eq!(endless.headers_with(None), "guarantee");
    }
}
