use super::*;
use crate::ids::NS_PER_MS;

const CALL: &str = r#"["run", {"callable": "f", "path": "p", "args": [0], "kwargs": {}, "class_args": [], "class_kwargs": {}}]"#;
/// 1 January 2026, 00:00:00 UTC.
const WALL: u64 = 1_767_225_600_000;

fn at(ms: u64) -> Now {
    Now {
        mono_ns: (1_000 + ms) * NS_PER_MS,
        wall_ms: WALL + ms,
    }
}

fn schedule(headers: &str, interval: &str, cron: &str) -> Schedule {
    let body = ["q", headers, interval, CALL, cron];
    Schedule::parse(body.iter().map(|text| text.as_bytes())).unwrap()
}

fn table(misfire: Misfire) -> Timetable {
    Timetable::new(misfire, 10, 100_000)
}

/// Runs due now.
fn due(table: &mut Timetable, now: Now) -> usize {
    table.look_at_clock(now);
    std::iter::from_fn(|| table.take_due(now)).count()
}

#[test]
fn at_once_and_then_at_a_fixed_rate() {
    let mut table = table(Misfire::One);
    table.put(schedule("guarantee", "2", ""), at(0)).unwrap();
    let ran: Vec<u64> = (0..70)
        .map(|n| n * 100)
        .filter(|ms| due(&mut table, at(*ms)) == 1)
        .collect();
    assert_eq!(ran, [0, 2_000, 4_000, 6_000]);
    table.put(schedule("nohaste", "3", ""), at(7_000)).unwrap();
    let ran: Vec<u64> = (70..140)
        .map(|n| n * 100)
        .filter(|ms| due(&mut table, at(*ms)) == 1)
        .collect();
    assert_eq!(ran, [10_000, 13_000]);
    assert_eq!(table.len(), 1);
}

#[test]
fn run_count_counts_the_run_at_once_for_intervals_and_cron() {
    for (interval, cron) in [("1", ""), ("-1", "* * * * * *")] {
        for (headers, expected) in [
            ("run_count:3", vec![0, 1_000, 2_000]),
            ("nohaste,run_count:2", vec![1_000, 2_000]),
            ("run_count:1", vec![0]),
            ("run_count:0", vec![]),
        ] {
            let mut table = table(Misfire::One);
            table.put(schedule(headers, interval, cron), at(0)).unwrap();
            let ran: Vec<u64> = (0..60)
                .map(|n| n * 100)
                .filter(|ms| due(&mut table, at(*ms)) == 1)
                .collect();
            assert_eq!(ran, expected, "{headers} {cron}");
            assert!(table.is_empty() && table.bytes() == 0);
            assert_eq!(table.take_ended(), 1);
        }
    }
}

#[test]
fn missed_due_times() {
    for (interval, cron) in [("1", ""), ("-1", "* * * * * *")] {
        let runs = |misfire, late_ms| {
            let mut table = table(misfire);
            table
                .put(schedule("nohaste", interval, cron), at(0))
                .unwrap();
            let runs = due(&mut table, at(late_ms));
            (runs, table.take_missed())
        };
        assert_eq!(runs(Misfire::One, 10_500), (1, 9), "{cron}");
        assert_eq!(runs(Misfire::All, 10_500), (10, 0), "{cron}");
        // The latest is not late.
        assert_eq!(runs(Misfire::None, 10_500).0, 1, "{cron}");
        let most = CATCH_UP_MAX as usize + 1;
        assert_eq!(runs(Misfire::All, 86_400_000).0, most, "{cron}");
    }
    let mut table = table(Misfire::None);
    table.put(schedule("nohaste", "100", ""), at(0)).unwrap();
    assert_eq!(due(&mut table, at(100_000 + LATE_MS_MAX)), 1);
    assert_eq!(due(&mut table, at(200_001 + LATE_MS_MAX)), 0);
    assert_eq!(table.take_missed(), 1);
    assert_eq!(due(&mut table, at(300_000)), 1);
}

#[test]
fn a_clock_that_is_set_moves_no_interval() {
    let mut table = table(Misfire::One);
    table.put(schedule("nohaste", "60", ""), at(0)).unwrap();
    for jump_ms in [-86_400_000_i64, -10, 10, 86_400_000] {
        let set = |ms: u64| Now {
            wall_ms: (at(ms).wall_ms as i64 + jump_ms) as u64,
            ..at(ms)
        };
        assert_eq!(due(&mut table, set(59_999)), 0);
    }
    assert_eq!(due(&mut table, at(60_000)), 1);
}

#[test]
fn a_clock_set_back_repeats_no_cron_run() {
    let back = |ms: u64, by_ms: u64| Now {
        wall_ms: at(ms).wall_ms - by_ms,
        ..at(ms)
    };
    let mut table = table(Misfire::One);
    table
        .put(schedule("nohaste", "-1", "0 * * * *"), at(0))
        .unwrap();
    assert_eq!(due(&mut table, at(3_600_000)), 1);
    // Back by an hour: the same full hour comes again and has been served.
    assert_eq!(due(&mut table, back(3_700_000, 3_600_000)), 0);
    assert_eq!(due(&mut table, back(7_200_000, 3_600_000)), 0);
    assert_eq!(due(&mut table, back(10_800_000, 3_600_000)), 1);
    // Back by a day: the clock was wrong, and the due times are those of the right one.
    let day = 86_400_000 + 3_600_000;
    assert_eq!(due(&mut table, back(10_900_000, day)), 0);
    assert_eq!(due(&mut table, back(14_400_000, day)), 1);
    // Forward over many: one run, not a burst.
    assert_eq!(
        due(
            &mut table,
            Now {
                wall_ms: WALL + 10 * 86_400_000 + 5,
                ..at(14_500_000)
            }
        ),
        1
    );
}

#[test]
fn the_next_look_is_in_time() {
    let mut table = table(Misfire::One);
    assert_eq!(table.deadline(at(0)), None);
    table.put(schedule("nohaste", "60", ""), at(0)).unwrap();
    assert_eq!(table.deadline(at(1)), Some(at(60_000).mono_ns));
    table
        .put(schedule("nohaste", "-1", "0 * * * *"), at(0))
        .unwrap();
    // A clock set forward is noticed within a second.
    assert_eq!(table.deadline(at(0)), Some(at(1_000).mono_ns));
    assert_eq!(table.deadline(at(3_599_900)), Some(at(3_600_000).mono_ns));
    table.put(schedule("", "60", ""), at(0)).unwrap();
    assert_eq!(table.deadline(at(0)), Some(at(0).mono_ns));
}

#[test]
fn the_limits_hold_and_a_replaced_schedule_gives_its_place() {
    let mut table = Timetable::new(Misfire::One, 2, 100_000);
    let other = |n: u32, queue: &str| {
        let call = CALL.replace("[0]", &format!("[{n}]"));
        let body = [queue, "nohaste", "60", &call, ""];
        Schedule::parse(body.iter().map(|text| text.as_bytes())).unwrap()
    };
    table.put(other(1, "a"), at(0)).unwrap();
    table.put(other(2, "a"), at(0)).unwrap();
    assert_eq!(table.put(other(3, "a"), at(0)), Err(Refusal::Full));
    table.put(other(2, "b"), at(0)).unwrap();
    assert_eq!(table.len(), 2);
    table.configure(Misfire::One, 10, table.bytes() + 10);
    assert_eq!(table.put(other(3, "a"), at(0)), Err(Refusal::Full));
    assert!(table.remove(other(1, "a").identity));
    assert!(!table.remove(other(1, "a").identity));
    table.put(other(3, "a"), at(0)).unwrap();
    let shown: Vec<_> = table.shown(None).collect();
    assert_eq!(shown.len(), 2);
    let rest: Vec<_> = table.shown(Some(shown[0].schedule.identity)).collect();
    assert_eq!(rest, [shown[1].clone()]);
}

#[test]
fn a_stored_schedule_goes_on_where_it_was() {
    let mut before = table(Misfire::One);
    let stored = schedule("run_count:3", "60", "");
    let identity = stored.identity;
    before.put(stored, at(0)).unwrap();
    assert_eq!(due(&mut before, at(0)), 1);
    let record = before.record(identity, at(0)).unwrap();
    // Two left, the run at once is not repeated, the due time is the old one.
    let mut after = table(Misfire::One);
    let new = |ms: u64| Now {
        wall_ms: at(ms).wall_ms,
        mono_ns: (5 + ms) * NS_PER_MS,
    };
    after.restore(&record, new(20_000)).unwrap();
    assert_eq!(due(&mut after, new(59_999)), 0);
    assert_eq!(due(&mut after, new(60_000)), 1);
    assert_eq!(due(&mut after, new(120_000)), 1);
    assert!(after.is_empty());
    // Due while nothing ran.
    let mut late = table(Misfire::One);
    late.restore(&record, new(1_000_000)).unwrap();
    assert_eq!(due(&mut late, new(1_000_000)), 1);
    // As 0.3.13 has stored it: one interval from now.
    let mut original = table(Misfire::One);
    original
        .restore(
            &Record {
                timing: None,
                ..record
            },
            new(0),
        )
        .unwrap();
    assert_eq!(due(&mut original, new(59_999)), 0);
    assert_eq!(due(&mut original, new(60_000)), 1);
}
