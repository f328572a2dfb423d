//! The programs of `engine/examples` do what they say.

use eventmq::jobmanager::{Functions, JobManager, JobManagerConfig};
use eventmq_tests::PATIENCE;
use eventmq_tests::manager::{Client, wait_for_slots};
use eventmq_tests::peers::{our_binary, workspace};
use eventmq_tests::process::Process;
use eventmq_tests::router::{Router, Target};
use serde_json::json;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

/// All that have a test below.
const TESTED: [&str; 5] = [
    "both_sides",
    "client",
    "client_futures",
    "in_process_broker",
    "worker",
];

/// An example that has begun.
struct Running {
    process: Process,
    name: &'static str,
}

impl Running {
    fn start(name: &'static str, args: &[&str], env: &[(&str, &str)]) -> Running {
        let child = Command::new(our_binary(&format!("examples/{name}")))
            .args(args)
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let process = Process::adopt(name, child);
        Running { process, name }
    }

    /// Enter, then everything it prints until it ends well.
    #[track_caller]
    fn end(mut self) -> String {
        if let Some(mut stdin) = self.process.child().stdin.take() {
            // Most do not read.
            let _ = stdin.write_all(b"\n");
        }
        let stdout = self.process.child().stdout.take();
        assert_eq!(self.process.wait_code(PATIENCE), 0, "{}", self.name);
        let mut text = String::new();
        stdout
            .expect("a pipe")
            .read_to_string(&mut text)
            .expect("UTF-8");
        text
    }
}

#[track_caller]
fn says(text: &str, expected: &[&str]) {
    for part in expected {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
}

#[test]
fn each_example_has_a_test() {
    let mut found: Vec<String> = std::fs::read_dir(workspace().join("engine/examples"))
        .expect("the examples")
        .map(|entry| entry.expect("an entry").path())
        .map(|path| {
            path.file_stem()
                .expect("a name")
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    found.sort();
    assert_eq!(found, TESTED);
}

#[test]
fn both_sides() {
    let text = Running::start("both_sides", &[], &[]).end();
    says(&text, &["40 + 2 = 42\n", "too large"]);
}

#[test]
fn client_futures() {
    let text = Running::start("client_futures", &[], &[]).end();
    says(&text, &["1000 jobs accepted\n", "asked for "]);
}

#[test]
fn in_process_broker() {
    let text = Running::start("in_process_broker", &[], &[]).end();
    says(&text, &["frontend: tcp://127.0.0.1:", "jobs_lost: 0\n"]);
}

#[test]
fn client() {
    let router = Router::ours(Target::Inline);
    let add = |(a, b): (i64, i64)| Ok(a + b);
    let manager = JobManager::start(JobManagerConfig {
        brokers: vec![router.addresses().backend.parse().expect("an address")],
        functions: Functions::new().register("tasks", "add", add),
        ..JobManagerConfig::default()
    });
    let env = [("EMQ_BROKER_ADDR", router.addresses().frontend.as_str())];
    let text = Running::start("client", &[], &env).end();
    assert_eq!(text, "handed over: Confirmed\n1 + 2 = 3\n");
    drop(manager.expect("it starts"));
}

#[test]
fn worker() {
    let mut router = Router::ours(Target::Inline);
    let address = router.addresses().backend.clone();
    let worker = Running::start("worker", &[&address], &[]);
    let slots = JobManagerConfig::default().concurrent_jobs as u64;
    wait_for_slots(&mut router, 1, slots);
    let mut client = Client::connect(&router);
    assert_eq!(client.value("sums.add", json!([1, 2])), 3);
    assert_eq!(client.run("sums.half", json!([3])).error(), "OddNumber");
    says(&worker.end(), &["working"]);
}
