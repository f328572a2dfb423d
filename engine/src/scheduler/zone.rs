//! Time zones of cron schedules: from a moment to the next one that an expression matches on the
//! zone's wall clock.
//!
//! The IANA data is part of the binary, so that every scheduler gives the same answer. A time that
//! a change of the clock leaves out runs at the first instant after the gap; one that comes twice
//! runs once, the first time.

use super::cron::Cron;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};

/// A time zone by its IANA name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone {
    zone: TimeZone,
}

/// No zone has this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no time zone of this name")]
pub struct UnknownZone;

impl Zone {
    /// UTC.
    pub fn utc() -> Zone {
        Zone {
            zone: TimeZone::UTC,
        }
    }

    /// The zone with an IANA name, `Europe/Berlin`.
    ///
    /// # Errors
    /// [`UnknownZone`].
    pub fn named(name: &str) -> Result<Zone, UnknownZone> {
        let zone = TimeZoneDatabase::bundled()
            .get(name)
            .map_err(|_error| UnknownZone)?;
        Ok(Zone { zone })
    }

    /// The first moment strictly after `after_ms` (Unix milliseconds) that `cron` matches on this
    /// zone's clock. `None` after the year 9999.
    pub fn next_after(&self, cron: &Cron, after_ms: u64) -> Option<u64> {
        let after = Timestamp::from_millisecond(i64::try_from(after_ms).ok()?).ok()?;
        let offset = self.zone.to_offset(after);
        let mut civil = offset.to_datetime(after);
        // In the second pass of a repeated hour the candidates of the rest of that hour have been.
        loop {
            civil = cron.next_after(civil)?;
            let found = self.instant(civil)?;
            if found > after {
                return u64::try_from(found.as_millisecond()).ok();
            }
        }
    }

    /// A moment as the zone's clock shows it, for people.
    pub fn show(&self, ms: u64) -> String {
        i64::try_from(ms)
            .ok()
            .and_then(|ms| Timestamp::from_millisecond(ms).ok())
            .map_or_else(
                || format!("{ms} ms"),
                |at| {
                    let info = self.zone.to_offset_info(at);
                    let civil = info.offset().to_datetime(at);
                    let shown = civil.strftime("%Y-%m-%d %H:%M:%S");
                    format!("{shown} {}", info.abbreviation())
                },
            )
    }

    fn instant(&self, civil: DateTime) -> Option<Timestamp> {
        match self.zone.to_ambiguous_timestamp(civil).offset() {
            AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(civil).ok(),
            AmbiguousOffset::Fold { before, .. } => before.to_timestamp(civil).ok(),
            AmbiguousOffset::Gap { before, .. } => {
                // By the clock of before the gap this is the end of the gap or later.
                let inside = before.to_timestamp(civil).ok()?;
                let behind = Timestamp::from_second(inside.as_second().checked_add(1)?).ok()?;
                let change = self.zone.preceding(behind).next()?;
                Some(change.timestamp())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(text: &str) -> u64 {
        let at: Timestamp = text.parse().unwrap();
        u64::try_from(at.as_millisecond()).unwrap()
    }

    /// The next `count` fires as UTC.
    fn fires(zone: &str, cron: &str, from: &str, count: usize) -> Vec<String> {
        let (zone, cron) = (Zone::named(zone).unwrap(), Cron::parse(cron).unwrap());
        let mut at = ms(from);
        let mut found = Vec::new();
        for _ in 0..count {
            at = zone.next_after(&cron, at).unwrap();
            found.push(
                Timestamp::from_millisecond(i64::try_from(at).unwrap())
                    .unwrap()
                    .to_string(),
            );
        }
        found
    }

    #[test]
    fn a_time_that_does_not_exist_runs_at_the_first_instant_after() {
        // 29 March 2026, 02:00 CET becomes 03:00 CEST at 01:00 UTC.
        assert_eq!(
            fires("Europe/Berlin", "30 2 * * *", "2026-03-28T00:00:00Z", 3),
            [
                "2026-03-28T01:30:00Z",
                "2026-03-29T01:00:00Z",
                "2026-03-30T00:30:00Z"
            ]
        );
        // All of a gap at once, and together with what is due then anyway.
        assert_eq!(
            fires(
                "Europe/Berlin",
                "*/20 2,3 29 3 *",
                "2026-03-29T00:59:59Z",
                4
            ),
            [
                "2026-03-29T01:00:00Z",
                "2026-03-29T01:20:00Z",
                "2026-03-29T01:40:00Z",
                "2027-03-29T00:00:00Z"
            ]
        );
        // Its beginning, which does not exist either.
        assert_eq!(
            fires("Europe/Berlin", "0 2 29 3 *", "2026-03-29T00:00:00Z", 1),
            ["2026-03-29T01:00:00Z"]
        );
        // Half an hour: Lord Howe, 02:00 becomes 02:30 on 4 October 2026.
        assert_eq!(
            fires(
                "Australia/Lord_Howe",
                "15 2 * * *",
                "2026-10-03T00:00:00Z",
                2
            ),
            ["2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"]
        );
        // A whole day: Samoa had no 30 December 2011.
        assert_eq!(
            fires("Pacific/Apia", "0 12 30 12 *", "2011-12-29T00:00:00Z", 1),
            ["2011-12-30T10:00:00Z"]
        );
    }

    #[test]
    fn a_time_that_comes_twice_runs_once() {
        // 25 October 2026, 03:00 CEST becomes 02:00 CET at 01:00 UTC.
        assert_eq!(
            fires("Europe/Berlin", "30 2 * * *", "2026-10-24T12:00:00Z", 2),
            ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]
        );
        // Also for who looks only after the first time.
        assert_eq!(
            fires("Europe/Berlin", "30 2 * * *", "2026-10-25T01:10:00Z", 1),
            ["2026-10-26T01:30:00Z"]
        );
        assert_eq!(
            fires("Europe/Berlin", "*/30 * * * *", "2026-10-24T23:59:59Z", 4),
            [
                "2026-10-25T00:00:00Z",
                "2026-10-25T00:30:00Z",
                "2026-10-25T02:00:00Z",
                "2026-10-25T02:30:00Z"
            ]
        );
    }

    #[test]
    fn every_day_of_ten_years_in_every_zone_has_one_fire_in_order() {
        let cron = Cron::parse("30 2 * * *").unwrap();
        let (from, to) = (ms("2015-01-01T00:00:00Z"), ms("2027-01-01T00:00:00Z"));
        let mut zones = 0;
        for name in TimeZoneDatabase::bundled().available() {
            let Ok(zone) = Zone::named(name.as_str()) else {
                continue;
            };
            zones += 1;
            let mut at = from;
            let mut count = 0;
            loop {
                let next = zone.next_after(&cron, at).unwrap();
                assert!(next > at, "{name}");
                let hours = (next - at) as f64 / 3.6e6;
                assert!(
                    count == 0 || (20.0..=28.0).contains(&hours),
                    "{name} {hours}"
                );
                at = next;
                if at >= to {
                    break;
                }
                count += 1;
            }
            assert!((4382..=4384).contains(&count), "{name}: {count}");
        }
        assert!(zones > 300, "{zones}");
    }

    #[test]
    fn names() {
        for bad in ["", "Europe", "Europe/Nowhere", "../../etc/passwd", "UTC\0"] {
            assert_eq!(Zone::named(bad), Err(UnknownZone), "{bad}");
        }
        assert!(Zone::named("UTC").is_ok());
        assert_eq!(Zone::utc().show(0), "1970-01-01 00:00:00 UTC");
        let berlin = Zone::named("Europe/Berlin").unwrap();
        assert_eq!(
            berlin.show(ms("2026-07-01T10:00:00Z")),
            "2026-07-01 12:00:00 CEST"
        );
        assert_eq!(
            berlin.next_after(&Cron::parse("* * * * *").unwrap(), u64::MAX),
            None
        );
    }
}
