use super::*;
use jiff::Timestamp;
use jiff::tz::Offset;
use proptest::prelude::*;

/// Times made by croniter 1.0.5: expression, start, the next three or `refused`.
const VECTORS: &str = include_str!("../../../tests/data/cron.tsv");

fn civil(seconds: i64) -> DateTime {
    Offset::UTC.to_datetime(Timestamp::from_second(seconds).unwrap())
}

fn date(text: &str) -> DateTime {
    text.parse().unwrap()
}

/// The next `count` times as text.
fn fires(expression: &str, from: &str, count: usize) -> Vec<String> {
    let cron = Cron::parse(expression).unwrap();
    let mut at = date(from);
    let mut found = Vec::new();
    for _ in 0..count {
        at = cron.next_after(at).unwrap();
        found.push(at.strftime("%Y-%m-%d %H:%M:%S").to_string());
    }
    found
}

fn days(expression: &str, from: &str, count: usize) -> Vec<String> {
    let whole = fires(expression, from, count);
    whole.iter().map(|text| text[..10].to_owned()).collect()
}

#[test]
fn as_croniter() {
    let mut accepted = 0;
    for line in VECTORS.lines() {
        let parts: Vec<&str> = line.split('\t').collect();
        let [expression, start, expected @ ..] = parts.as_slice() else {
            panic!("{line}")
        };
        let mut at = civil(start.parse().unwrap());
        let found: Vec<String> = match Cron::parse(expression) {
            Err(_) => vec!["refused".to_owned()],
            Ok(cron) => expected
                .iter()
                .map(|_| {
                    at = cron.next_after(at).unwrap();
                    let at = Offset::UTC.to_timestamp(at).unwrap();
                    at.as_second().to_string()
                })
                .collect(),
        };
        assert_eq!(found, expected, "{expression:?} from {start}");
        accepted += usize::from(expected.len() == 3);
    }
    assert!(accepted > 300, "{accepted}");
}

#[test]
fn both_day_fields_mean_either() {
    assert_eq!(
        days("0 0 13 * 5", "2026-01-01T00:00", 3),
        ["2026-01-02", "2026-01-09", "2026-01-13"]
    );
    assert_eq!(
        days("0 0 */2 * 1", "2026-01-01T00:00", 3),
        ["2026-01-03", "2026-01-05", "2026-01-07"]
    );
    // A full range counts as `*`.
    assert_eq!(
        days("0 0 1-31 * 4", "2026-01-01T00:00", 2),
        ["2026-01-08", "2026-01-15"]
    );
    assert_eq!(
        days("0 0 13 * 0-6", "2026-01-01T00:00", 2),
        ["2026-01-13", "2026-02-13"]
    );
}

#[test]
fn last_days_and_leap_days() {
    assert_eq!(
        days("0 0 l * *", "2026-01-31T00:00", 2),
        ["2026-02-28", "2026-03-31"]
    );
    assert_eq!(days("0 0 l 2 *", "2024-01-01T00:00", 1), ["2024-02-29"]);
    assert_eq!(days("0 0 29 2 *", "2096-03-01T00:00", 1), ["2104-02-29"]);
    // 29 February on a Friday, around a century year without a leap day.
    assert_eq!(
        days("0 0 * 2 5#5", "2092-03-01T00:00", 2),
        ["2104-02-29", "2132-02-29"]
    );
    // Otherwise than croniter: the last day of February, too.
    assert_eq!(
        days("0 0 30,l * *", "2026-01-01T00:00", 5),
        [
            "2026-01-30",
            "2026-01-31",
            "2026-02-28",
            "2026-03-30",
            "2026-03-31"
        ]
    );
}

#[test]
fn the_nth_weekday() {
    assert_eq!(
        days("0 0 * * 5#2", "2026-01-01T00:00", 2),
        ["2026-01-09", "2026-02-13"]
    );
    assert_eq!(
        days("0 0 * * fri#2,mon", "2026-01-01T00:00", 2),
        ["2026-01-09", "2026-02-13"]
    );
}

#[test]
fn seconds_are_the_sixth_field() {
    assert_eq!(
        fires("* * * * * 15,45", "2026-01-01T00:00:15", 2),
        ["2026-01-01 00:00:45", "2026-01-01 00:01:15"]
    );
    assert_eq!(
        fires("59 23 31 12 * 59", "2026-12-31T23:59:58.9", 2),
        ["2026-12-31 23:59:59", "2027-12-31 23:59:59"]
    );
}

#[test]
fn what_is_refused() {
    use CronError::*;
    let long = "1,".repeat(3_000);
    let cases = [
        ("", Fields),
        ("* * * *", Fields),
        ("* * * * * * *", Fields),
        ("@hourly", Fields),
        ("0 0 * * L5", Field(5)),
        ("0 0 ? * *", Field(3)),
        ("H * * * *", Field(1)),
        ("0 0 * * R", Field(5)),
        ("0 0 * * fri-mon", Field(5)),
        ("0 22-2 * * *", Field(2)),
        ("0-59/0 * * * *", Field(1)),
        ("60 * * * *", Field(1)),
        ("0 24 * * *", Field(2)),
        ("-1 * * * *", Field(1)),
        ("1,,2 * * * *", Field(1)),
        ("0 0 * * 8", Field(5)),
        ("*,5 * * * *", Field(1)),
        ("0 0 * * *#2,1", Field(5)),
        ("0 0 * * 5#6", Field(5)),
        ("0 0 32 * *", Field(3)),
        ("0 0 * 13 *", Field(4)),
        ("* * * * * 60", Field(6)),
        ("\u{663} * * * *", Field(1)),
        ("0 0 30 2 *", Never),
        ("0 0 31 2 *", Never),
        ("0 0 31 4,6 *", Never),
        ("48 14 31 jun sun", Never),
        ("0 0 1 * 5#2", Never),
        (long.as_str(), TooLong),
    ];
    for (text, error) in cases {
        assert_eq!(Cron::parse(text), Err(error), "{text}");
    }
    for text in [
        "*/70 * * * *",
        "0 0 * * SUN-TUE",
        "0 0 0 * *",
        "5/15 * * * *",
        "0 0 * * 7",
    ] {
        assert!(Cron::parse(text).is_ok(), "{text}");
    }
}

#[test]
fn the_end_of_time_is_no_panic() {
    let cron = Cron::parse("* * * * *").unwrap();
    assert_eq!(cron.next_after(DateTime::MAX), None);
    assert_eq!(cron.next_after(date("9999-12-31T23:59:00")), None);
}

proptest! {
    #[test]
    fn any_text_is_refused_or_evaluated(text in "[0-9*/,#l a-z-]{0,40}") {
        if let Ok(cron) = Cron::parse(&text) {
            prop_assert!(cron.next_after(date("2026-01-01T00:00")).is_some());
        }
    }

    /// What the search jumps over does not match, minute by minute.
    #[test]
    fn nothing_is_skipped(
        minute in 0_u8..60, hour in 0_u8..24, day in 1_u8..29, weekday in 0_u8..7,
        start in 0_i64..4_000_000_000, kind in 0_u8..4,
    ) {
        let text = match kind {
            0 => format!("{minute} {hour} {day} * *"),
            1 => format!("{minute} {hour} * * {weekday}"),
            2 => format!("{minute} {hour} {day} * {weekday}"),
            _ => format!("{minute} * * * *"),
        };
        let start = civil(start);
        let next = Cron::parse(&text).unwrap().next_after(start).unwrap();
        let mut at = start.with().second(0).subsec_nanosecond(0).build().unwrap();
        loop {
            at = at.checked_add(1.minute()).unwrap();
            let day_matches = at.day() == day as i8;
            let weekday_matches = at.weekday().to_sunday_zero_offset() == weekday as i8;
            let hit = at.minute() == minute as i8 && match kind {
                0 => at.hour() == hour as i8 && day_matches,
                1 => at.hour() == hour as i8 && weekday_matches,
                2 => at.hour() == hour as i8 && (day_matches || weekday_matches),
                _ => true,
            };
            prop_assert_eq!(hit, at == next, "{} {} {}", text, at, next);
            if hit {
                break;
            }
        }
    }
}
