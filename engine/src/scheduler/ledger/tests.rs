use super::*;
use crate::ids::NS_PER_MS;
use crate::scheduler::schedule::Schedule;
use crate::scheduler::timetable::Misfire;

fn at(ms: u64) -> Now {
    Now {
        mono_ns: (1_000 + ms) * NS_PER_MS,
        wall_ms: 1_767_225_600_000 + ms,
    }
}

/// A schedule of its own for every `n`.
fn schedule(n: usize, headers: &str, secs: u32) -> Schedule {
    let call = format!(
        r#"["run", {{"callable": "f", "path": "p", "args": [{n}], "kwargs": {{}}, "class_args": [], "class_kwargs": {{}}}}]"#
    );
    let secs = secs.to_string();
    let body = ["q", headers, &secs, &call, ""];
    Schedule::parse(body.iter().map(|text| text.as_bytes())).unwrap()
}

/// The identities that a write keeps or deletes.
fn written(batch: &Batch) -> BTreeSet<Identity> {
    let put = batch.put.iter().map(|record| record.identity);
    put.chain(batch.delete.iter().copied()).collect()
}

/// All due runs, handed to the ledger.
fn hand_over(ledger: &mut Ledger, table: &mut Timetable, now: Now) -> usize {
    let mut runs = 0;
    while let Some(run) = table.take_due(now) {
        assert_eq!(ledger.run(run), None, "it waits for the store");
        runs += 1;
    }
    runs
}

/// Writes until nothing is left; every write is checked.
fn write_all(ledger: &mut Ledger, table: &mut Timetable, now: Now) -> (usize, usize) {
    let (mut writes, mut runs) = (0, 0);
    while let Some(request) = ledger.request(table, now) {
        let Request::Write(batch) = request else {
            panic!("{request:?}");
        };
        let state = written(&batch);
        for (identity, due_ms) in &batch.fires {
            assert!(
                state.contains(identity),
                "{identity} at {due_ms} goes without its state"
            );
        }
        let changes = batch.put.len() + batch.delete.len();
        assert_eq!(changes, state.len(), "one change a schedule");
        assert!(changes <= CHANGES_PER_WRITE.max(batch.fires.len()));
        runs += ledger.written(&[]).0.len();
        writes += 1;
    }
    assert!(!table.has_changed());
    (writes, runs)
}

#[test]
fn a_run_never_goes_before_its_state_however_much_else_has_changed() {
    let now = at(0);
    for (quiet, due) in [
        (0, 1),
        (CHANGES_PER_WRITE, 1),
        (CHANGES_PER_WRITE * 3, 7),
        (CHANGES_PER_WRITE - 1, CHANGES_PER_WRITE),
        (CHANGES_PER_WRITE * 2, CHANGES_PER_WRITE * 2 + 1),
    ] {
        let mut table = Timetable::new(Misfire::One, usize::MAX, usize::MAX);
        let mut ledger = Ledger::new(StoreKind::Own);
        assert_eq!(ledger.request(&mut table, now), Some(Request::Load));
        ledger.loaded();
        // Identities are hashes: those that are due lie anywhere between the others. Some of them
        // end with this run.
        for n in 0..quiet {
            table.put(schedule(n, "nohaste", 3_600), now).unwrap();
        }
        for n in quiet..quiet + due {
            let headers = if n % 3 == 0 { "run_count:1" } else { "" };
            table.put(schedule(n, headers, 60), now).unwrap();
        }
        assert_eq!(hand_over(&mut ledger, &mut table, now), due);
        assert_eq!(write_all(&mut ledger, &mut table, now).1, due);
        // Once more, with what is left and with other changes in between.
        let later = at(60_000);
        for n in 0..quiet {
            table
                .put(schedule(n, "nohaste,timeout:9", 3_600), later)
                .unwrap();
        }
        let again = hand_over(&mut ledger, &mut table, later);
        assert_eq!(write_all(&mut ledger, &mut table, later).1, again);
    }
}

#[test]
fn a_write_that_failed_is_written_again_with_everything_in_it() {
    let now = at(0);
    let mut table = Timetable::new(Misfire::One, usize::MAX, usize::MAX);
    let mut ledger = Ledger::new(StoreKind::Own);
    ledger.loaded();
    let count = CHANGES_PER_WRITE + 500;
    for n in 0..count {
        table.put(schedule(n, "", 60), now).unwrap();
    }
    hand_over(&mut ledger, &mut table, now);
    let Some(Request::Write(batch)) = ledger.request(&mut table, now) else {
        panic!("a write");
    };
    assert_eq!((batch.fires.len(), batch.put.len()), (count, count));
    assert_eq!(
        ledger.failed(&mut table, now).len(),
        count,
        "they go without the store"
    );
    let later = at(RETRY_NS.1 / NS_PER_MS);
    let mut stored = BTreeSet::new();
    while let Some(Request::Write(batch)) = ledger.request(&mut table, later) {
        assert!(batch.fires.is_empty());
        stored.extend(written(&batch));
        ledger.written(&[]);
    }
    assert_eq!(stored.len(), count);
}
