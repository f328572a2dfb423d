//! `schedules`: what a scheduler runs, and when next, a page at a time.

use super::client;
use super::session::write;
use super::show::{NONE, text};
use super::table::Table;
use super::{AdminClient, CliError};
use crate::admin_api::AdminCommand;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;
use std::io::Write;
use std::time::SystemTime;

/// Asks page after page and prints each as it comes; with `json` one page is one line, as it came.
pub(super) fn print(
    client: &mut AdminClient,
    limit: Option<u64>,
    json: bool,
    now: SystemTime,
    out: &mut impl Write,
) -> Result<(), CliError> {
    let now_ms = Timestamp::try_from(now).map_or(0, Timestamp::as_millisecond);
    let mut left = limit.unwrap_or(u64::MAX);
    let mut after: Option<String> = None;
    loop {
        let body = after.as_deref().map(str::as_bytes);
        let answer = client
            .request_with(AdminCommand::ShowSchedules, body)?
            .unwrap_or_default();
        let mut page = client::read(client.addr(), &answer)?;
        let next = page["next"].as_str().map(str::to_owned);
        let Some(schedules) = page["schedules"].as_array_mut() else {
            return Err(CliError::Answer {
                addr: client.addr().clone(),
                what: "not that of a scheduler: no schedules in it".to_owned(),
            });
        };
        let cut = schedules.len() as u64 > left;
        schedules.truncate(usize::try_from(left).unwrap_or(usize::MAX));
        left -= schedules.len() as u64;
        let shown = match json {
            true if cut => page.to_string() + "\n",
            true => answer + "\n",
            false => table(schedules, now_ms),
        };
        write(out, shown.as_bytes())?;
        // Ids go up from page to page: who answers with another one would be asked for ever.
        if left == 0 || next.is_none() || next <= after {
            return Ok(());
        }
        after = next;
    }
}

/// One page.
fn table(schedules: &[Value], now_ms: i64) -> String {
    let mut table = Table::new(&["CALL", "QUEUE<", "WHEN<", "NEXT<", "LAST<", "RUNS", "LEFT"]);
    for schedule in schedules {
        let zone = schedule["timezone"].as_str();
        let time = |key: &str| {
            schedule[key]
                .as_f64()
                .map_or(NONE.to_owned(), |unix_secs| moment(unix_secs, zone, now_ms))
        };
        let when = match (&schedule["interval"], &schedule["cron"]) {
            (Value::Number(secs), _) => format!("every {} s", secs.as_f64().unwrap_or(0.0)),
            (_, Value::String(cron)) => format!("{cron} ({})", zone.unwrap_or("UTC")),
            _ => NONE.to_owned(),
        };
        let left = match &schedule["runs_left"] {
            Value::Null => NONE.to_owned(),
            left => text(left),
        };
        table.row(vec![
            text(&schedule["call"]),
            text(&schedule["queue"]),
            when,
            time("next_run"),
            time("last_run"),
            text(&schedule["runs"]),
            left,
        ]);
    }
    table.print("no schedules")
}

/// A time of day where the schedule counts, and how far it is from now.
fn moment(unix_secs: f64, zone: Option<&str>, now_ms: i64) -> String {
    let ms = (unix_secs * 1e3) as i64;
    let Ok(at) = Timestamp::from_millisecond(ms) else {
        return NONE.to_owned();
    };
    let zone = zone.and_then(|name| TimeZone::get(name).ok());
    let zone = zone.unwrap_or(TimeZone::UTC);
    let offset = zone.to_offset_info(at);
    let local = zone.to_datetime(at).strftime("%Y-%m-%d %H:%M:%S");
    let far = distance(ms.abs_diff(now_ms) / 1_000);
    let far = if ms < now_ms {
        format!("{far} ago")
    } else {
        format!("in {far}")
    };
    format!("{local} {} ({far})", offset.abbreviation())
}

/// Two units at most: 59 s, 3 min 20 s, 5 h 7 min, 12 d 3 h.
fn distance(secs: u64) -> String {
    let units = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let first = units
        .iter()
        .position(|(size, _)| secs >= *size)
        .unwrap_or(3);
    let (size, name) = units[first];
    let (whole, rest) = (secs / size, secs % size);
    match units.get(first + 1) {
        Some((smaller, unit)) if rest / smaller > 0 => {
            format!("{whole} {name} {} {unit}", rest / smaller)
        }
        _ => format!("{whole} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// 1 January 2026, 00:00:00 UTC.
    const NOW_MS: i64 = 1_767_225_600_000;

    #[test]
    fn times_are_those_of_the_schedule() {
        let at = |secs: i64| (NOW_MS / 1_000 + secs) as f64;
        let page = [
            json!({"call": "jobs.add", "queue": "default", "interval": 10.0, "cron": null,
                   "timezone": null, "next_run": at(9), "last_run": at(-61), "runs": 3,
                   "runs_left": 7}),
            json!({"call": "jobs.\u{1b}[2J", "queue": "mail", "interval": null,
                   "cron": "0 2 * * *", "timezone": "Europe/Berlin", "next_run": at(3_600),
                   "last_run": null, "runs": 0, "runs_left": null}),
        ];
        let shown = table(&page, NOW_MS);
        let mut lines = shown.lines();
        assert!(lines.next().unwrap().starts_with("CALL"), "{shown}");
        for expected in [
            [
                "jobs.add",
                "every 10 s",
                "2026-01-01 00:00:09 UTC (in 9 s)",
                "2025-12-31 23:58:59 UTC (1 min 1 s ago)",
            ],
            [
                "jobs.\\u{1b}[2J",
                "0 2 * * * (Europe/Berlin)",
                "2026-01-01 02:00:00 CET (in 1 h)",
                "-",
            ],
        ] {
            let line = lines.next().unwrap();
            assert!(expected.iter().all(|part| line.contains(part)), "{line}");
        }
        assert_eq!(table(&[], NOW_MS), "no schedules\n");
    }

    #[test]
    fn nonsense_is_shown_as_unknown() {
        let shown = table(
            &[json!({"next_run": 1e300, "cron": 5, "interval": "x"})],
            NOW_MS,
        );
        assert!(shown.lines().nth(1).unwrap().starts_with("- "), "{shown}");
        assert_eq!(
            moment(f64::NAN, Some("No/Where"), 0),
            "1970-01-01 00:00:00 UTC (in 0 s)"
        );
    }

    #[test]
    fn distances() {
        for (secs, expected) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (200, "3 min 20 s"),
            (3_601, "1 h"),
            (18_420, "5 h 7 min"),
            (1_047_600, "12 d 3 h"),
        ] {
            assert_eq!(distance(secs), expected);
        }
    }
}
