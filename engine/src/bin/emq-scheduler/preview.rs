//! `emq-scheduler --preview "CRON"`: when an expression fires next.

use clap::{Arg, ArgMatches, Command};
use eventmq::daemon::EXIT_SETTINGS;
use eventmq::scheduler::cron::Cron;
use eventmq::scheduler::zone::Zone;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// The options for it.
pub(crate) fn options(command: Command) -> Command {
    command
        .arg(
            Arg::new("preview")
                .long("preview")
                .value_name("CRON")
                .help("Print when a cron expression fires next, and end"),
        )
        .arg(
            Arg::new("preview-timezone")
                .long("timezone")
                .value_name("AREA/CITY")
                .default_value("UTC")
                .requires("preview")
                .help("Time zone of --preview, as in the header tz:"),
        )
        .arg(
            Arg::new("preview-count")
                .long("count")
                .value_name("N")
                .default_value("10")
                .value_parser(clap::value_parser!(u32).range(1..=10_000))
                .requires("preview")
                .help("How many times --preview prints"),
        )
}

/// Carries it out if it was asked for.
pub(crate) fn early(matches: &ArgMatches) -> Option<ExitCode> {
    let text = matches.get_one::<String>("preview")?;
    let zone = matches.get_one::<String>("preview-timezone")?;
    let count = *matches.get_one::<u32>("preview-count")?;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    match lines(text, zone, count, now_ms) {
        Ok(lines) => {
            // Whoever reads may have seen enough.
            let _ = std::io::stdout().write_all(lines.as_bytes());
            Some(ExitCode::SUCCESS)
        }
        Err(what) => {
            eprintln!("emq-scheduler: {what}");
            Some(ExitCode::from(EXIT_SETTINGS))
        }
    }
}

fn lines(text: &str, zone: &str, count: u32, now_ms: u64) -> Result<String, String> {
    let cron = Cron::parse(text).map_err(|error| format!("cron expression {text:?}: {error}"))?;
    let zone = Zone::named(zone).map_err(|error| format!("{zone:?}: {error}"))?;
    let times = std::iter::successors(Some(now_ms), |at| zone.next_after(&cron, *at));
    let times = times.skip(1).take(count as usize);
    Ok(times.map(|at| zone.show(at) + "\n").collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_or_what_is_wrong() {
        let at = 1_767_225_600_000;
        assert_eq!(
            lines("0 0 13 * 5", "UTC", 3, at).unwrap(),
            "2026-01-02 00:00:00 UTC\n2026-01-09 00:00:00 UTC\n2026-01-13 00:00:00 UTC\n"
        );
        assert_eq!(
            lines("30 2 29 3 *", "Europe/Berlin", 1, at).unwrap(),
            "2026-03-29 03:00:00 CEST\n"
        );
        let wrong = lines("0 0 31 2 *", "UTC", 1, at).unwrap_err();
        assert_eq!(wrong, "cron expression \"0 0 31 2 *\": no such date exists");
        assert!(lines("* * * * *", "Nowhere", 1, at).is_err());
    }
}
