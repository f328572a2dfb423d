//! The program as a user starts it.

use serde_json::Value;
use std::process::{Command, Output};

fn emq_bench(arguments: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_emq-bench"))
        .args(arguments)
        .output();
    output.expect("emq-bench starts")
}

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn floor_is_measured_and_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("result.json");
    let json = file.to_str().unwrap();
    let output = emq_bench(&[
        "run",
        "--target",
        "floor",
        "--alternate",
        "2",
        "--jobs",
        "100000",
        "--warmup-jobs",
        "1000",
        "--json",
        json,
    ]);
    assert!(output.status.success(), "{}", error_of(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("broker CPU:") && text.contains("x floor"),
        "{text}"
    );
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    for run in runs {
        assert!(run["jobs"].as_u64().unwrap() > 0, "{run}");
        assert!(run["cpu"]["us_per_job"].as_f64().unwrap() > 0.0, "{run}");
        assert!(run["latency"]["p50_us"].as_f64().unwrap() > 0.0, "{run}");
    }
    assert_eq!(report["summary"][0]["to_floor"]["median"], 1.0);
    assert!(
        report["environment"]["command_line"]
            .as_array()
            .unwrap()
            .len()
            > 4
    );
}

#[test]
fn several_generator_threads_share_the_work() {
    let output = emq_bench(&[
        "run",
        "--target",
        "floor",
        "--jobs",
        "3000",
        "--warmup-jobs",
        "7",
        "--clients",
        "3",
        "--workers",
        "5",
        "--generator-threads",
        "3",
        "--payload",
        "300",
        "--quiet",
    ]);
    assert!(output.status.success(), "{}", error_of(&output));
}

#[test]
fn unreachable_broker_is_one_line_and_exit_1() {
    let output = emq_bench(&[
        "run",
        "--frontend",
        "tcp://127.0.0.1:1",
        "--backend",
        "tcp://127.0.0.1:1",
    ]);
    assert_eq!(output.status.code(), Some(1));
    let line = error_of(&output);
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(
        line.contains("tcp://127.0.0.1:1") && line.contains("listening there?"),
        "{line}"
    );
}

#[test]
fn impossible_options_are_one_line_and_exit_2() {
    for arguments in [
        &["run", "--clients", "0", "--target", "floor"][..],
        &["run", "--workers", "0", "--target", "floor"],
        &["run", "--generator-threads", "5", "--target", "floor"],
        &["fill", "--target", "floor"],
        &["run", "--target", "floor@/nonexistent/emq-bench"],
    ] {
        let output = emq_bench(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(error_of(&output).lines().count(), 1, "{arguments:?}");
    }
}

#[test]
fn our_broker_answers_every_job_in_both_threadings() {
    for how in [&["--in-process"][..], &[]] {
        let mut arguments = vec![
            "run",
            "--target",
            "ours-inline,ours-dedicated",
            "--jobs",
            "5000",
            "--warmup-jobs",
            "1000",
            "--quiet",
        ];
        arguments.extend(how);
        let output = emq_bench(&arguments);
        assert!(output.status.success(), "{how:?}: {}", error_of(&output));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("ours-dedicated: "), "{text}");
    }
}

#[test]
fn waiting_jobs_come_back_in_order() {
    let output = emq_bench(&[
        "fill",
        "--jobs",
        "20000",
        "--target",
        "ours-inline",
        "--quiet",
    ]);
    assert!(output.status.success(), "{}", error_of(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("20,000 waiting jobs of 192 bytes"), "{text}");
}

#[test]
fn idle_connections_and_workers_stay_connected() {
    let output = emq_bench(&[
        "idle",
        "--target",
        "ours-inline",
        "--connections",
        "30",
        "--workers",
        "10",
        "--duration",
        "0.5",
    ]);
    assert!(output.status.success(), "{}", error_of(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("30 idle connections, 10 workers"));
}
