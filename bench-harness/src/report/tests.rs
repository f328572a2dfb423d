use super::*;

fn run(target: &str, round: usize, us_per_job: f64) -> Measured {
    Measured {
        target: target.to_owned(),
        round,
        jobs: 200_000,
        seconds: 1.0,
        jobs_per_sec: 2e5,
        cpu: Some(Cpu {
            us_per_job,
            ..Cpu::default()
        }),
        generator_us_per_job: 1.0,
        generator_busy: 0.5,
        allocations: Some(50),
        ..Measured::default()
    }
}

#[test]
fn ratios_compare_runs_of_the_same_round() {
    // The second round was measured on a machine twice as slow: the ratio does not see it.
    let runs = [
        run("floor", 0, 1.0),
        run("ours", 0, 2.0),
        run("floor", 1, 2.0),
        run("ours", 1, 4.4),
    ];
    let summary = summarise(&runs);
    assert_eq!(summary.len(), 2);
    let ratio = summary[1].to_floor.unwrap();
    assert!(
        (ratio.min - 2.0).abs() < 1e-9 && (ratio.max - 2.2).abs() < 1e-9,
        "{ratio:?}"
    );
    assert!((ratio.median - 2.1).abs() < 1e-9, "{ratio:?}");
    assert_eq!(summary[1].to_libzmq, None);
}

#[test]
fn allocations_are_per_100_000_jobs() {
    let spread = summarise(&[run("ours", 0, 1.0)])[0]
        .allocations_per_100k
        .unwrap();
    assert_eq!((spread.median, spread.min, spread.max), (25.0, 25.0, 25.0));
}

#[test]
fn columns_are_aligned_by_characters() {
    let rows = [
        vec!["µ".to_owned(), "b".to_owned()],
        vec!["long".to_owned(), "c".to_owned()],
    ];
    assert_eq!(align(&rows), "µ     b\nlong  c\n");
}
