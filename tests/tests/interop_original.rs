//! The original package end to end: `emq-jobmanager`, `emq-scheduler`, `emq-cli` and the client
//! library of eventmq 0.3.13 at our broker. Jobs leave a line in a file; the lines are what counts.

use eventmq_tests::peers::original;
use eventmq_tests::process::Process;
use eventmq_tests::router::{Addresses, Router, Start, Target};
use eventmq_tests::{PATIENCE, eventually, in_both_threadings};
use nix::sys::signal::Signal;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

in_both_threadings!(
    a_thousand_jobs_run_exactly_once,
    cli_shows_and_shuts_down,
    schedules_run,
    job_managers_outlive_a_broker,
    a_job_manager_that_is_asked_to_stop_finishes_its_job,
);

/// The same harness against the original broker: what it counts is what really happens.
#[test]
fn reference_a_thousand_jobs_run_exactly_once() {
    a_thousand_jobs_run_exactly_once(Target::Original);
}

/// How long original processes may take to start, register and get their first HEARTBEAT while
/// everything else on the machine is being tested, too.
const START: Duration = Duration::from_secs(60);

/// The original's programs around one broker, and the file their jobs write to.
struct World {
    addresses: Addresses,
    dir: TempDir,
}

impl World {
    fn new(router: &Router) -> World {
        let dir = tempfile::Builder::new()
            .prefix("emq-interop-")
            .tempdir()
            .expect("a directory");
        World {
            addresses: router.addresses().clone(),
            dir,
        }
    }

    fn trace(&self) -> PathBuf {
        self.dir.path().join("trace")
    }

    /// One of the original's programs with our jobs on its path.
    fn command(&self, program: &str) -> Command {
        let path = original(program).expect("looked for before");
        let mut command = Command::new(path);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("EVENTMQ_") {
                command.env_remove(name);
            }
        }
        command
            .env(
                "PYTHONPATH",
                Path::new(env!("CARGO_MANIFEST_DIR")).join("python"),
            )
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("EVENTMQ_CONFIG_FILE", "/nonexistent")
            .env("EVENTMQ_WORKER_ADDR", &self.addresses.backend)
            .env("EVENTMQ_SCHEDULER_ADDR", &self.addresses.frontend)
            // Nothing listens there: the scheduler works without Redis.
            .env("EVENTMQ_RQ_PORT", "1")
            .env("EMQ_TEST_TRACE", self.trace())
            .current_dir(self.dir.path());
        command
    }

    fn job_manager(&self, name: &str) -> Process {
        let log = self.dir.path().join(format!("{name}.log"));
        Process::start_group(name, &mut self.command("emq-jobmanager"), &log)
            .expect("emq-jobmanager starts")
    }

    fn scheduler(&self) -> Process {
        let log = self.dir.path().join("scheduler.log");
        Process::start_group("emq-scheduler", &mut self.command("emq-scheduler"), &log)
            .expect("emq-scheduler starts")
    }

    /// Starts a run of `python/client.py`.
    fn client(&self, args: &[&str]) -> Process {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/client.py");
        let mut command = self.command("python");
        command.arg(script).arg(&self.addresses.frontend).args(args);
        let log = self.dir.path().join("client.log");
        Process::start_group("client.py", &mut command, &log).expect("python starts")
    }

    /// Runs `python/client.py` to its end.
    fn run_client(&self, args: &[&str]) {
        let mut client = self.client(args);
        let code = client.wait_code(START);
        assert_eq!(code, 0, "client.py {args:?}: {}", client.log_tail());
    }

    /// How often each word was recorded.
    fn runs(&self) -> HashMap<String, usize> {
        let text = std::fs::read_to_string(self.trace()).unwrap_or_default();
        let mut runs = HashMap::new();
        for word in text.lines().filter_map(|line| line.split(' ').next()) {
            *runs.entry(word.to_owned()).or_default() += 1;
        }
        runs
    }

    /// Waits until the broker counts `count` free slots in all.
    fn wait_for_slots(&self, router: &mut Router, count: u64) {
        eventually(&format!("{count} free slots"), START, || {
            let shown = router.admin("ROUTER_SHOW_WORKERS");
            let workers = shown["connected_workers"].as_object().expect("an object");
            let slots: u64 = workers
                .values()
                .filter_map(|w| w["available_slots"].as_u64())
                .sum();
            if slots >= count {
                Ok(())
            } else {
                Err(format!("{slots}: {shown}"))
            }
        });
    }

    /// Feeds `input` to emq-cli and gives what it printed.
    fn cli(&self, input: &str) -> String {
        use std::io::Write;
        let mut command = self.command("emq-cli");
        command
            .args(["-a", &self.addresses.admin])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command
            .stderr(Stdio::piped())
            .spawn()
            .expect("emq-cli starts");
        let mut stdin = child.stdin.take().expect("stdin is a pipe");
        stdin.write_all(input.as_bytes()).expect("emq-cli reads");
        drop(stdin);
        let mut process = Process::adopt("emq-cli", child);
        process.wait(START);
        let mut text = String::new();
        use std::io::Read;
        let child = process.child();
        child
            .stdout
            .take()
            .expect("a pipe")
            .read_to_string(&mut text)
            .expect("UTF-8");
        child
            .stderr
            .take()
            .expect("a pipe")
            .read_to_string(&mut text)
            .expect("UTF-8");
        text
    }
}

/// `None` when the original is missing (said so already).
fn world(target: Target) -> Option<(Router, World)> {
    original("emq-jobmanager")?;
    let router = Router::start(target)?;
    let world = World::new(&router);
    Some((router, world))
}

fn a_thousand_jobs_run_exactly_once(target: Target) {
    let Some((mut router, world)) = world(target) else {
        return;
    };
    let _first = world.job_manager("first");
    let _second = world.job_manager("second");
    let mut clients = [
        world.client(&["defer", "a", "500"]),
        world.client(&["defer", "b", "500"]),
    ];
    for client in &mut clients {
        assert_eq!(client.wait_code(START), 0, "{}", client.log_tail());
    }
    eventually("1,000 jobs run", START, || {
        let runs = world.runs();
        if runs.len() == 1000 {
            Ok(())
        } else {
            Err(format!("{} of them", runs.len()))
        }
    });
    // All slots are free again: nothing is on its way that could run a second time.
    world.wait_for_slots(&mut router, 8);
    let runs = world.runs();
    for prefix in ["a", "b"] {
        for n in 0..500 {
            let word = format!("{prefix}-{n}");
            assert_eq!(runs.get(&word), Some(&1), "runs of {word}");
        }
    }
    assert_eq!(runs.len(), 1000);
    if target.is_ours() {
        let status = router.admin("STATUS");
        let workers = status["processed_messages_by_worker"]
            .as_object()
            .expect("an object");
        let by_worker: Vec<_> = workers
            .values()
            .filter_map(serde_json::Value::as_u64)
            .collect();
        assert_eq!(by_worker.iter().sum::<u64>(), 1000, "{status}");
        assert_eq!(by_worker.len(), 2, "both job managers worked: {status}");
    }
}

fn cli_shows_and_shuts_down(target: Target) {
    let Some((mut router, world)) = world(target) else {
        return;
    };
    let _manager = world.job_manager("manager");
    let _scheduler = world.scheduler();
    world.wait_for_slots(&mut router, 4);
    eventually("the scheduler registers", START, || {
        let shown = router.admin("ROUTER_SHOW_SCHEDULERS");
        let count = shown["connected_schedulers"]
            .as_object()
            .map_or(0, serde_json::Map::len);
        if count == 1 {
            Ok(())
        } else {
            Err(shown.to_string())
        }
    });
    let text = world.cli("status\nshow_workers\nshow_schedulers\n");
    for part in [
        "inflight_messages_by_queue",
        "'available_slots': 4",
        "'connected_queues': {'default': [[10,",
        "connected_schedulers",
    ] {
        assert!(
            text.contains(part),
            "{part} is not in what emq-cli printed:\n{text}"
        );
    }
    let text = world.cli("shutdown\n");
    assert!(text.contains("ACK"), "emq-cli printed:\n{text}");
    assert_eq!(router.process().wait_code(START), 0);
}

fn schedules_run(target: Target) {
    let Some((mut router, world)) = world(target) else {
        return;
    };
    let _manager = world.job_manager("manager");
    let _scheduler = world.scheduler();
    world.wait_for_slots(&mut router, 4);
    eventually("the scheduler registers", START, || {
        let shown = router.admin("ROUTER_SHOW_SCHEDULERS");
        let count = shown["connected_schedulers"]
            .as_object()
            .map_or(0, serde_json::Map::len);
        if count == 1 {
            Ok(())
        } else {
            Err(shown.to_string())
        }
    });
    world.run_client(&["schedule", "tick", "1"]);
    // Six fields: the last one is seconds.
    world.run_client(&["cron", "tock", "* * * * * */1"]);
    eventually("both schedules run three times", START, || {
        let runs = world.runs();
        let (tick, tock) = (runs.get("tick"), runs.get("tock"));
        if tick >= Some(&3) && tock >= Some(&3) {
            Ok(())
        } else {
            Err(format!("{runs:?}"))
        }
    });
    world.run_client(&["unschedule", "tick"]);
    // `tock` goes on and shows that time passes; a run of `tick` may have been on its way.
    eventually("tick ends", START, || {
        let before = world.runs();
        std::thread::sleep(Duration::from_millis(2500));
        let after = world.runs();
        let stopped = before["tick"] == after["tick"] && before["tock"] < after["tock"];
        if stopped {
            Ok(())
        } else {
            Err(format!("{before:?}, then {after:?}"))
        }
    });
}

fn job_managers_outlive_a_broker(target: Target) {
    let Some((mut router, world)) = world(target) else {
        return;
    };
    let _first = world.job_manager("first");
    let _second = world.job_manager("second");
    world.wait_for_slots(&mut router, 8);
    world.run_client(&["defer", "before", "20"]);
    eventually("20 jobs run", START, || {
        let runs = world.runs();
        if runs.len() == 20 {
            Ok(())
        } else {
            Err(format!("{runs:?}"))
        }
    });
    router.process().signal(Signal::SIGKILL);
    router.process().wait(PATIENCE);
    let killed = Instant::now();
    let mut router = Start::new(target)
        .at(router.addresses())
        .start()
        .expect("ours is never missing");
    // What is told to a worker that the broker does not know brings it back in about 5 s; without
    // it that takes 13 s. Ten times as much is granted on a busy machine.
    let patience = Duration::from_secs(50);
    world.run_client(&["defer", "after", "20"]);
    eventually("20 jobs run after the restart", patience, || {
        let runs = world.runs();
        if runs.len() == 40 {
            Ok(())
        } else {
            Err(format!("{runs:?}"))
        }
    });
    let jobs = killed.elapsed();
    eventually("both job managers work again", patience, || {
        let shown = router.admin("ROUTER_SHOW_WORKERS");
        let count = shown["connected_workers"]
            .as_object()
            .map_or(0, serde_json::Map::len);
        if count == 2 {
            Ok(())
        } else {
            Err(shown.to_string())
        }
    });
    let all = killed.elapsed();
    eprintln!(
        "{}: jobs run {jobs:.1?} after the kill, both back after {all:.1?}",
        target.name()
    );
    assert!(all < patience, "{all:?}");
    assert!(world.runs().values().all(|n| *n == 1), "{:?}", world.runs());
}

fn a_job_manager_that_is_asked_to_stop_finishes_its_job(target: Target) {
    let Some((mut router, world)) = world(target) else {
        return;
    };
    let mut manager = world.job_manager("manager");
    world.wait_for_slots(&mut router, 4);
    let context = zmq::Context::new();
    let client = eventmq_tests::dealer::Dealer::connect(
        &context,
        &world.addresses.frontend,
        Some(b"client"),
    );
    let job = r#"["run", {"callable": "slow", "path": "jobs_x", "args": ["late", 2], "kwargs": {}, "class_args": [], "class_kwargs": {}}]"#;
    client.send(&["REQUEST", "job-1", "default", "reply-requested", job]);
    client.expect("REPLY");
    eventually("the job is handed out", PATIENCE, || {
        let status = router.admin("STATUS");
        let count = status["inflight_messages_by_queue"]["default"].as_u64();
        if count == Some(1) {
            Ok(())
        } else {
            Err(status.to_string())
        }
    });
    manager.signal(Signal::SIGTERM);
    // It said KBYE before the result: the result still reaches the client.
    let reply = client.expect("REPLY");
    assert_eq!(
        reply[4],
        br#"{"value": "late"}"#,
        "{}",
        eventmq_tests::dealer::show(&reply)
    );
    assert_eq!(manager.wait_code(START), 0);
    assert_eq!(world.runs().get("late"), Some(&1));
}
