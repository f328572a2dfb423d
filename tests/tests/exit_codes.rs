//! Exit codes of `emq-router`, and what it says with them: 2 for settings and usage, 1 at run time.

use eventmq_tests::PATIENCE;
use eventmq_tests::process::Process;
use eventmq_tests::router::{Addresses, Router, Start, Target};
use std::path::Path;
use std::process::{Output, Stdio};

fn with_file(target: Target, dir: &Path, text: &str) -> Start {
    let file = dir.join("eventmq.conf");
    std::fs::write(&file, text).expect("writes the settings");
    Start::new(target)
        .arg("-C")
        .arg(file.to_str().expect("UTF-8"))
}

/// Runs `emq-router` to its end.
fn run(start: &Start, addresses: &Addresses, dir: &Path) -> Output {
    let mut command = start.command(addresses, dir).expect("ours");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut process = Process::adopt("emq-router", command.spawn().expect("starts"));
    let status = process.wait(PATIENCE);
    let mut output = Output {
        status,
        stdout: Vec::new(),
        stderr: Vec::new(),
    };
    use std::io::Read;
    let child = process.child();
    child
        .stdout
        .take()
        .expect("a pipe")
        .read_to_end(&mut output.stdout)
        .expect("reads");
    child
        .stderr
        .take()
        .expect("a pipe")
        .read_to_end(&mut output.stderr)
        .expect("reads");
    output
}

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!(
        "{}{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err)
    )
}

#[test]
fn bad_settings_exit_2_and_name_the_place() {
    let dir = tempfile::tempdir().expect("a directory");
    let addresses = Addresses::any();
    let from_file = |body: &str| {
        let start = with_file(Target::Inline, dir.path(), body);
        run(&start, &addresses, dir.path())
    };
    let output = from_file("[router]\nhwm = many\n");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    for part in ["eventmq.conf", "2", "hwm", "many"] {
        assert!(text(&output).contains(part), "{part}: {}", text(&output));
    }
    let output = from_file("[router\n");
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));

    let start = Start::new(Target::Inline).env("EVENTMQ_HWM", "-3");
    let output = run(&start, &addresses, dir.path());
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(
        text(&output).to_lowercase().contains("hwm"),
        "{}",
        text(&output)
    );

    let start = Start::new(Target::Inline)
        .arg("-C")
        .arg("/nonexistent/eventmq.conf");
    let output = run(&start, &addresses, dir.path());
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));

    let start = Start::new(Target::Inline).arg("--no-such-option");
    let output = run(&start, &addresses, dir.path());
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
}

#[test]
fn check_config_says_and_exits() {
    let dir = tempfile::tempdir().expect("a directory");
    let addresses = Addresses::any();
    let good = with_file(Target::Inline, dir.path(), "[router]\nhwm = 7\n").arg("--check-config");
    let output = run(&good, &addresses, dir.path());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let print = with_file(Target::Inline, dir.path(), "[router]\nhwm = 7\n").arg("--print-config");
    let output = run(&print, &addresses, dir.path());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(
        text(&output)
            .lines()
            .any(|l| l.contains("hwm") && l.contains('7')),
        "{}",
        text(&output)
    );
    let bad = with_file(Target::Inline, dir.path(), "[router]\nhwm = x\n").arg("--check-config");
    let output = run(&bad, &addresses, dir.path());
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
}

#[test]
fn an_address_in_use_exits_1() {
    let dir = tempfile::tempdir().expect("a directory");
    let router = Router::ours(Target::Inline);
    for target in Target::OURS {
        let output = run(&Start::new(target), router.addresses(), dir.path());
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        let address = Router::tcp(&router.addresses().frontend);
        let text = text(&output);
        let any = [&router.addresses().backend, &router.addresses().admin].map(|a| Router::tcp(a));
        assert!(
            text.contains(address) || any.iter().any(|a| text.contains(a)),
            "{text}"
        );
    }
}

#[test]
fn help_and_version_exit_0() {
    let dir = tempfile::tempdir().expect("a directory");
    for arg in ["--help", "--version"] {
        let output = run(
            &Start::new(Target::Inline).arg(arg),
            &Addresses::any(),
            dir.path(),
        );
        assert_eq!(output.status.code(), Some(0), "{arg}: {}", text(&output));
        assert!(!output.stdout.is_empty(), "{arg} prints nothing");
    }
}
