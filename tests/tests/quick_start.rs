//! README's quick start with Python, as it stands there, run by a shell. Only what takes minutes or
//! is taken is changed: what was built and installed for the tests is used, and ports are free ones.

use eventmq_tests::PATIENCE;
use eventmq_tests::peers::{directory, original, our_binary, workspace};
use eventmq_tests::process::{Process, free_port};
use std::process::Command;

const HEADING: &str = "\n## Quick start with Python\n";

/// The shell code of a section, blocks one behind the other.
fn shell_code(section: &str) -> String {
    let mut code = String::new();
    let mut inside = false;
    for line in section.lines() {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            line if inside => {
                code.push_str(line);
                code.push('\n');
            }
            _ => {}
        }
    }
    code
}

/// Replaces exactly one occurrence.
#[track_caller]
fn replace(code: &mut String, from: &str, to: &str) {
    assert_eq!(code.matches(from).count(), 1, "{from:?} in:\n{code}");
    *code = code.replace(from, to);
}

#[test]
fn the_python_quick_start_works_as_written() {
    if original("python").is_none() {
        return;
    }
    let readme = std::fs::read_to_string(workspace().join("README.md")).expect("README.md");
    let section = readme.split(HEADING).nth(1).expect("the section");
    let section = section.split("\n## ").next().expect("its text");
    let mut code = shell_code(section);

    let bin = our_binary("emq-router");
    let bin = bin.parent().expect("a directory").display().to_string();
    replace(&mut code, "cargo build --release -p eventmq --bins\n", "");
    replace(&mut code, "$PWD/target/release", &bin);
    replace(&mut code, "cd \"$(mktemp -d)\"\n", "cd \"$PLACE\"\n");
    let venv = directory().join("venv").display().to_string();
    replace(
        &mut code,
        "python3 -m venv venv\n",
        &format!("ln -s '{venv}' venv\n"),
    );
    let pip: Vec<_> = code
        .lines()
        .filter(|line| line.starts_with("venv/bin/pip install"))
        .collect();
    assert_eq!(pip.len(), 2);
    let installs: Vec<String> = pip.iter().map(|line| format!("{line}\n")).collect();
    for line in &installs {
        replace(&mut code, line, "");
    }

    let place = tempfile::tempdir().expect("a directory");
    let mut command = Command::new("bash");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("EVENTMQ_") {
            command.env_remove(name);
        }
    }
    for (port, settings) in [
        (47290, &["BACKEND_ADDR", "WORKER_ADDR"][..]),
        (47291, &["FRONTEND_ADDR", "SCHEDULER_ADDR"]),
        (47293, &["ADMINISTRATIVE_ADDR"]),
        (47296, &["SCHEDULER_ADMINISTRATIVE_ADDR"]),
        (47297, &["PUBLISHER_ADMINISTRATIVE_ADDR"]),
        (47298, &["PUBLISHER_INCOMING_ADDR"]),
        (47299, &["PUBLISHER_OUTGOING_ADDR"]),
    ] {
        let free = free_port();
        code = code.replace(&port.to_string(), &free.to_string());
        for setting in settings {
            command.env(
                format!("EVENTMQ_{setting}"),
                format!("tcp://127.0.0.1:{free}"),
            );
        }
    }
    command
        .args(["-euc", &code])
        .env("PLACE", place.path())
        .env("EVENTMQ_CONFIG_FILE", "/dev/null")
        .current_dir(workspace());
    let log = place.path().join("everything.log");
    let mut shell = Process::start_group("README", &mut command, &log).expect("bash starts");
    let code = shell.wait_code(6 * PATIENCE);
    let said = std::fs::read_to_string(&log).expect("what it printed");
    assert_eq!(code, 0, "{said}");
    for expected in [
        "0 + 1 = 1\n",
        "4 + 1 = 5\n",
        "accepted b'job-1'",
        "result b'{\"value\": 42}'",
        "20 + 22 = 42\n",
        "0 3 * * * (Europe/Berlin)",
        "every 1 s",
        "news.today",
        "hello",
    ] {
        assert!(said.contains(expected), "no {expected:?} in:\n{said}");
    }
    assert_eq!(said.matches("it is shutting down").count(), 3, "{said}");
}
