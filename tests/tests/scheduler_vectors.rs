//! Cron times and identities of schedules against the real thing: croniter 1.0.5 and the
//! original's scheduler make what they make of random input, and ours must say the same.
//!
//! `EMQ_FUZZ_SEED` chooses the input, `EMQ_FUZZ_ITERS` how much of it.

use eventmq::scheduler::cron::Cron;
use eventmq::scheduler::identity::Identity;
use eventmq::scheduler::zone::Zone;
use eventmq_tests::peers::{original, workspace};
use std::process::Command;

fn number(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().expect("a number"))
}

/// What `script` prints for the seed, or `None` without the original; and the seed.
fn vectors(script: &str, iterations: u64) -> Option<(String, u64)> {
    let python = original("python")?;
    let seed = number("EMQ_FUZZ_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now();
        now.duration_since(std::time::UNIX_EPOCH)
            .expect("a time after 1970")
            .as_secs()
    });
    let count = number("EMQ_FUZZ_ITERS")
        .unwrap_or(iterations)
        .min(iterations * 10);
    let output = Command::new(python)
        .arg(workspace().join("tests/python").join(script))
        .args([seed.to_string(), count.to_string()])
        .output()
        .expect("python runs");
    assert!(
        output.status.success(),
        "{script}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(text.lines().count() as u64, count);
    Some((text, seed))
}

#[test]
fn cron_times_are_those_of_croniter() {
    let Some((text, seed)) = vectors("cron_vectors.py", 5_000) else {
        return;
    };
    let utc = Zone::utc();
    let mut accepted = 0;
    for line in text.lines() {
        let parts: Vec<&str> = line.split('\t').collect();
        let mut at: u64 = parts[1].parse().expect("a start");
        let found: Vec<String> = match Cron::parse(parts[0]) {
            Err(_) => vec!["refused".to_owned()],
            Ok(cron) => (2..parts.len())
                .map(|_| {
                    at = utc.next_after(&cron, at * 1000).expect("a next time") / 1000;
                    at.to_string()
                })
                .collect(),
        };
        assert_eq!(found, parts[2..], "{line:?}, EMQ_FUZZ_SEED={seed}");
        accepted += usize::from(parts.len() == 5);
    }
    assert!(accepted * 2 > text.lines().count(), "{accepted} accepted");
}

#[test]
fn identities_are_those_of_the_original() {
    let Some((text, seed)) = vectors("identity_vectors.py", 5_000) else {
        return;
    };
    for line in text.lines() {
        let (message, expected) = line.split_once('\t').expect("two parts");
        let found = Identity::of_message(message).map(|(identity, _)| identity.to_string());
        assert_eq!(
            found.as_deref(),
            Ok(expected),
            "{message:?}, EMQ_FUZZ_SEED={seed}"
        );
    }
}
