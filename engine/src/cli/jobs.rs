//! `send`, `schedule` and `unschedule`, through the client library.

use super::CliError;
use super::args::{Command, Job};
use super::session::write;
use super::table::harmless;
use crate::addr::Addr;
use crate::client::{Accepted, CallError, Client, ClientConfig, Schedule, Unschedule};
use crate::job::Request;
use serde_json::{Value, json};
use std::io::Write;
use std::time::Duration;

/// Carries out one of the three commands.
pub(super) fn run(
    command: &Command,
    addr: &Addr,
    timeout: Duration,
    json: bool,
    out: &mut impl Write,
) -> Result<(), CliError> {
    let missing = |error: &dyn std::fmt::Display| CliError::Missing(format!("{addr}: {error}"));
    let config = ClientConfig::new(&addr.to_string())
        .map_err(|error| missing(&error))?
        .accept_timeout(timeout);
    let client = Client::start_with(config).map_err(|error| missing(&error))?;
    let accepted = match command {
        Command::Send { job, wait, .. } => {
            let request = send_request(job, command)?;
            match wait {
                Some(wait) => {
                    let value = client
                        .call_within::<Value>(request.returns(), timeout.saturating_add(*wait))
                        .map_err(|error| failed(addr, &error))?;
                    let text = match json {
                        true => format!("{}\n", json!({"value": value})),
                        false => format!("{}\n", harmless(&value.to_string())),
                    };
                    return write(out, text.as_bytes());
                }
                None => client.defer_job(request),
            }
        }
        Command::Schedule {
            job,
            every,
            cron,
            nohaste,
            run_count,
            time_zone,
        } => {
            let request = request(job)?;
            let schedule = match (every, cron) {
                (Some(secs), _) => Schedule::every(*secs, &request),
                (None, cron) => Schedule::cron(cron.as_deref().unwrap_or_default(), &request),
            };
            // As the client of 0.3.13 does.
            let mut schedule = schedule.stored(true).nohaste(*nohaste);
            if let Some(runs) = run_count {
                schedule = schedule.run_count(*runs);
            }
            if let Some(zone) = time_zone {
                schedule = schedule.time_zone(zone);
            }
            client.schedule(schedule)
        }
        Command::Unschedule { job } => client.send(Unschedule::new(&request(job)?)),
        _ => return Ok(()),
    };
    let accepted = accepted.map_err(|error| missing(&error))?;
    let confirmed = accepted == Accepted::Confirmed;
    let text = match (json, confirmed) {
        (true, _) => format!("{}\n", json!({"accepted": true, "confirmed": confirmed})),
        (false, true) => format!("{addr}: accepted\n"),
        (false, false) => format!("{addr}: sent; this broker does not confirm\n"),
    };
    write(out, text.as_bytes())
}

fn failed(addr: &Addr, error: &CallError) -> CliError {
    // A job may fail with any text.
    CliError::Missing(harmless(&format!("{addr}: {error}")))
}

fn send_request(job: &Job, command: &Command) -> Result<Request, CliError> {
    let mut request = request(job)?;
    if let Command::Send {
        retry_count,
        guarantee,
        job_timeout,
        delay,
        debounce,
        ..
    } = command
    {
        request = request
            .retry_count(*retry_count)
            .guarantee(*guarantee)
            .timeout_secs(*job_timeout)
            .delay_secs(*delay)
            .debounce_secs(*debounce);
    }
    Ok(request)
}

fn request(job: &Job) -> Result<Request, CliError> {
    let mut request = Request::new(&job.name).queue(&job.queue);
    for text in &job.args {
        request = request.arg(value(text));
    }
    for text in &job.class_args {
        request = request.class_arg(value(text));
    }
    for text in &job.kwargs {
        let (name, text) = named(text)?;
        request = request.kwarg(name, value(text));
    }
    for text in &job.class_kwargs {
        let (name, text) = named(text)?;
        request = request.class_kwarg(name, value(text));
    }
    Ok(request)
}

fn named(text: &str) -> Result<(&str, &str), CliError> {
    let split = text.split_once('=').filter(|(name, _)| !name.is_empty());
    split.ok_or_else(|| CliError::Missing(format!("{text:?}: expected NAME=VALUE")))
}

/// JSON if it is that, else text. Digits that JSON's numbers do not hold stay text: nothing is
/// rounded in silence.
fn value(text: &str) -> Value {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let whole = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Number(number)) if whole && number.is_f64() => Value::String(text.to_owned()),
        Ok(value) => value,
        Err(_) => Value::String(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_json_or_text() {
        for (text, expected) in [
            ("1", json!(1)),
            ("-2.5", json!(-2.5)),
            ("true", json!(true)),
            ("null", json!(null)),
            ("[1, \"a\"]", json!([1, "a"])),
            ("\"1\"", json!("1")),
            ("word", json!("word")),
            ("NaN", json!("NaN")),
            ("", json!("")),
            (
                "18446744073709551615",
                json!(18_446_744_073_709_551_615_u64),
            ),
            ("18446744073709551616", json!("18446744073709551616")),
        ] {
            assert_eq!(value(text), expected, "{text:?}");
        }
        assert_eq!(named("a=b=c").unwrap(), ("a", "b=c"));
        assert!(named("=x").is_err() && named("x").is_err());
    }

    #[test]
    fn a_job_is_what_the_original_client_sends() {
        let words = |text: &[&str]| text.iter().map(|w| (*w).to_owned()).collect();
        let job = Job {
            name: "jobs_x:K.m".to_owned(),
            args: words(&["1", "two"]),
            kwargs: words(&["b=3"]),
            class_args: words(&["[1]"]),
            class_kwargs: words(&["k=v"]),
            queue: "email".to_owned(),
        };
        let request = request(&job).unwrap();
        assert_eq!(request.queue_name(), "email");
        assert_eq!(
            String::from_utf8(request.message().unwrap()).unwrap(),
            r#"["run", {"callable": "m", "path": "jobs_x:K", "args": [1, "two"], "kwargs": {"b": 3}, "class_args": [[1]], "class_kwargs": {"k": "v"}}]"#
        );
    }
}
