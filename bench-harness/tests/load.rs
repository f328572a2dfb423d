//! The commands that put a load on a broker, briefly.

mod common;

use common::{emq_bench, error_of, json, printed};
use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};

const QUICK: &str = "--duration 0.3 --warmup 0.1 --quiet";

#[test]
fn mixed_jobs_on_several_queues_are_all_accounted_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.json");
    printed(&format!(
        "run --queues 7 --workers 5 --reply-share 0.5 --guarantee-share 0.2 --fail-share 0.1 \
         --service exp:200us --generator-threads 2 {QUICK} --json {}",
        file.display()
    ));
    let report = json(&file);
    let run = &report["runs"][0];
    let (jobs, ends) = (run["jobs"].as_f64().unwrap(), &run["ends"]);
    let share = |name: &str| ends[name].as_f64().unwrap() / jobs;
    assert!((0.3..0.7).contains(&share("without_result")), "{ends}");
    assert!((0.1..0.3).contains(&share("guaranteed")), "{ends}");
    // Of those that have a result.
    assert!((0.02..0.1).contains(&share("failed")), "{ends}");
    for stage in ["accept", "hand_out", "finish"] {
        assert!(
            run["stages"][stage]["count"].as_u64().unwrap() > 0,
            "{stage}"
        );
    }
    // A worker took at least its service time for half of the jobs, more or less.
    assert!(run["stages"]["finish"]["p50_us"].as_f64().unwrap() > 100.0);
    let view = &run["broker_view"];
    assert!(view["counters"]["requests_accepted"].as_u64().unwrap() > 0);
    let counts = view["differences"].as_array().unwrap();
    let about_counts = |line: &&serde_json::Value| line.as_str().unwrap().contains("broker counts");
    assert!(counts.iter().find(about_counts).is_none(), "{counts:?}");
    assert!(!run["timeline"].as_array().unwrap().is_empty());
    assert!(run["curve"].as_array().unwrap().len() > 10);
    assert!(run["resident"]["max"].as_u64().unwrap() > 1_000_000);
    assert!(run["cpu"]["voluntary_switches_per_1k"].is_number());
}

#[test]
fn workers_without_results_carry_a_closed_loop() {
    let text = printed(&format!(
        "run --reply-share 0 --target ours-dedicated {QUICK}"
    ));
    assert!(text.contains("without a result"), "{text}");
    assert!(text.contains("the broker's own view"), "{text}");
}

#[test]
fn rates_are_kept_and_tabled() {
    let folder = tempfile::tempdir().unwrap();
    let (file, log) = (
        folder.path().join("rate.json"),
        folder.path().join("rate.hlog"),
    );
    let text = printed(&format!(
        "rate --from 500 --to 1500 --step 500 {QUICK} --json {} --hlog {}",
        file.display(),
        log.display()
    ));
    assert!(
        text.contains("offered/s") && text.contains("knee"),
        "{text}"
    );
    let report = json(&file);
    let steps = report["steps"].as_array().unwrap();
    let rates: Vec<f64> = steps
        .iter()
        .map(|step| step["rate"].as_f64().unwrap())
        .collect();
    assert_eq!(rates, [500.0, 1000.0, 1500.0]);
    for step in steps {
        assert!(step["measured"]["latency"]["count"].as_u64().unwrap() > 50);
    }
    let log = std::fs::read_to_string(log).unwrap();
    assert!(
        log.contains("Tag=ours-inline@1000.total"),
        "tags name rate and part"
    );
}

#[test]
fn soak_with_faults_accounts_for_every_job() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("soak.json");
    let text = printed(&format!(
        "soak --minutes 0.05 --quiet --generator-threads 2 --service fixed:1ms --json {} \
         --fault kill-worker:300ms,stop-reading:400ms:200ms,client-restart:500ms,\
         reconnect-storm:700ms:10",
        file.display()
    ));
    assert!(text.contains("every job is accounted for"), "{text}");
    let report = json(&file);
    let happened = &report["happened"];
    for what in [
        "workers_killed",
        "clients_paused",
        "clients_restarted",
        "storms",
    ] {
        assert!(happened[what].as_u64().unwrap() > 0, "{what}: {happened}");
    }
    assert_eq!(report["account"]["incidents"], serde_json::json!({}));
    assert_eq!(report["failures"], serde_json::json!([]));
    assert!(report["account"]["abandoned"].as_u64().unwrap() > 0);
    assert!(report["counters"]["requests_accepted"].as_u64().unwrap() > 100);
    assert!(report["runs"][0]["cpu"]["us_per_job"].as_f64().unwrap() > 0.0);
}

#[test]
fn comparison_fails_above_its_bound_and_only_then() {
    let line = |bound: &str| {
        format!("compare floor ours-inline --pairs 2 --metric time --max-ratio {bound} {QUICK}")
    };
    let text = printed(&line("1000"));
    assert!(
        text.contains("time per job") && text.contains("sign test"),
        "{text}"
    );
    let output = emq_bench(&line("0.000001"));
    assert_eq!(output.status.code(), Some(3));
    assert!(error_of(&output).contains("is above 0.000001"));
}

#[cfg(feature = "libzmq")]
#[test]
fn libzmq_sockets_carry_the_load() {
    let text = printed(&format!(
        "run --transport zmq --target ours-inline,libzmq --generator-threads 2 {QUICK}"
    ));
    assert!(text.contains("libzmq: "), "{text}");
    printed("soak --transport zmq --minutes 0.03 --quiet --fault kill-worker:400ms");
}

#[cfg(not(feature = "libzmq"))]
#[test]
fn missing_libzmq_is_said() {
    let output = emq_bench("run --transport zmq");
    assert_eq!(output.status.code(), Some(2));
    assert!(error_of(&output).contains("--features libzmq"));
}

#[test]
fn report_is_one_page_of_several_results() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    for target in ["floor", "ours-inline"] {
        let file = path(&format!("{target}.json"));
        printed(&format!("run --target {target} {QUICK} --json {file}"));
    }
    let page = path("page.html");
    printed(&format!(
        "report {} {} -o {page} --title Both",
        path("floor.json"),
        path("ours-inline.json")
    ));
    let text = std::fs::read_to_string(page).unwrap();
    assert!(text.starts_with("<!doctype html>") && text.contains("<h1>Both</h1>"));
    assert!(text.contains("divided by floor (floor)"));
    assert_eq!(
        text.matches("<svg").count(),
        4,
        "percentiles, rate, p99 and memory over time"
    );
}

#[test]
fn recorded_results_can_be_shown() {
    let results = concat!(env!("CARGO_MANIFEST_DIR"), "/../perf/results");
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    printed(&format!(
        "report {results}/J120.json {results}/L1.json -o {}",
        page.display()
    ));
    let text = std::fs::read_to_string(page).unwrap();
    assert!(text.contains("ours-inline (J120)") && text.contains("ours-inline (L1)"));
}

/// Starts it with `--json` and sends SIGINT when it has said something of its progress.
fn interrupted(line: &str, file: &std::path::Path) -> std::process::Output {
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_emq-bench"))
        .args(line.split_whitespace())
        .arg("--json")
        .arg(file)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut first = String::new();
    said.read_line(&mut first).unwrap();
    assert!(first.contains("jobs/s"), "{first}");
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    let patience = Instant::now() + eventmq_tests::PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > patience {
            // A second signal ends it at once.
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
            panic!("{line} goes on after SIGINT");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut output = child.wait_with_output().unwrap();
    said.read_to_end(&mut output.stderr).unwrap();
    output
}

#[test]
fn signal_ends_a_soak_with_its_account() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("soak.json");
    let output = interrupted("soak --minutes 60 --service fixed:5ms", &file);
    assert!(output.status.success(), "{}", error_of(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("ended by a signal after"), "{text}");
    assert!(text.contains("every job is accounted for"), "{text}");
    let report = json(&file);
    assert!(report["minutes"].as_f64().unwrap() < 10.0);
    assert!(report["account"]["ended"].as_u64().unwrap() > 0);
}

#[test]
fn signal_ends_a_run_without_a_result() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.json");
    let output = interrupted("run --duration 500 --service fixed:5ms", &file);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error_of(&output).contains("ended by a signal"),
        "{}",
        error_of(&output)
    );
}

#[test]
fn a_busy_and_full_broker_tells_its_status() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("status.json");
    let asked = ["STATUS", "ROUTER_SHOW_WORKERS", "LATENCY", "COUNTERS"];
    let text = printed(&format!(
        "status --workers 20 --queues 10 --waiting 5000 --count 5 --interval-ms 10 --quiet \
         --command {} --json {}",
        asked.join(","),
        file.display()
    ));
    assert!(
        text.contains("ours-inline") && text.contains("ours-dedicated"),
        "{text}"
    );
    let report = json(&file);
    let found = report["found"].as_array().unwrap();
    assert_eq!(found.len(), 2 * asked.len());
    for one in found {
        assert_eq!(one["latency"]["count"], 5, "{one}");
        assert!(one["bytes"].as_u64().unwrap() > 100, "{one}");
        assert!(one["jobs_per_sec"].as_f64().unwrap() > 0.0, "{one}");
    }
    let refused = emq_bench("status --target libzmq");
    assert_eq!(refused.status.code(), Some(2));
    assert!(error_of(&refused).contains("ours-inline"));
}
