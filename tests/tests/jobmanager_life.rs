//! `emq-jobmanager` as a process among brokers: registration, settings, signals, restarts.

use eventmq_tests::manager::{Client, Manager, StartManager, call, wait_for_slots};
use eventmq_tests::peers::original;
use eventmq_tests::process::Process;
use eventmq_tests::router::{Router, Start, Target};
use eventmq_tests::{PATIENCE, eventually, in_both_threadings};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

in_both_threadings!(
    a_job_manager_that_is_asked_to_stop_finishes_its_jobs,
    it_outlives_its_broker,
    rolling_restart_of_job_managers_and_broker,
);

fn message(name: &str, args: Value) -> Vec<u8> {
    call(name, args).to_string().into_bytes()
}

/// Waits until jobs have recorded these words, in any order.
#[track_caller]
fn wait_for_trace(manager: &Manager, words: &[&str]) {
    eventually("jobs record", 3 * PATIENCE, || {
        let mut trace = manager.trace();
        trace.sort();
        if trace == words {
            Ok(())
        } else {
            Err(format!("{trace:?}"))
        }
    });
}

fn a_job_manager_that_is_asked_to_stop_finishes_its_jobs(target: Target) {
    let mut router = Router::ours(target);
    let mut manager = StartManager::ours(&router)
        .set("concurrent_jobs", "2")
        .start();
    let mut client = Client::connect(&router);
    let jobs: Vec<String> = ["a", "b", "c"]
        .map(|word| client.send("reply-requested", &message("jobs_x.slow", json!([word, 2]))))
        .into();
    let in_flight = |router: &mut Router| {
        let status = router.admin("STATUS");
        status["inflight_messages_by_queue"]["default"]
            .as_u64()
            .unwrap_or(0)
    };
    eventually("two jobs run", 2 * PATIENCE, || {
        match in_flight(&mut router) {
            2 => Ok(()),
            other => Err(other.to_string()),
        }
    });
    assert_eq!(manager.terminate(), 0);
    client.receive_until("two ends", PATIENCE, |client| client.ended.len() == 2);
    for job in &jobs[..2] {
        assert_eq!(client.ended[job][0].status, "ok");
    }
    // The third was never started: another one runs it, once.
    let mut other = StartManager::ours(&router).start();
    client.receive_until("the third", 2 * PATIENCE, |client| client.ended.len() == 3);
    assert_eq!(client.ended[&jobs[2]].len(), 1);
    assert_eq!(
        (manager.trace().len(), other.trace()),
        (2, vec!["c".to_owned()])
    );
    assert_eq!(other.terminate(), 0);
}

#[test]
fn jobs_that_do_not_end_are_killed_after_the_grace_period() {
    let router = Router::ours(Target::Inline);
    let mut manager = StartManager::ours(&router)
        .set("kill_grace_period", "1")
        .start();
    let mut client = Client::connect(&router);
    let stuck = client.send(
        "reply-requested",
        &message("jobs_y.stuck_in_c", json!(["stuck"])),
    );
    wait_for_trace(&manager, &["stuck"]);
    assert_eq!(manager.terminate(), 0);
    client.receive_until("its end", PATIENCE, |client| {
        client.ended.contains_key(&stuck)
    });
    let ended = &client.ended[&stuck][0];
    assert_eq!(
        (ended.status.as_str(), ended.error()),
        ("lost", "JobLost"),
        "{ended:?}"
    );
}

#[test]
fn a_second_signal_ends_at_once() {
    let router = Router::ours(Target::Inline);
    let mut manager = StartManager::ours(&router).start();
    let mut client = Client::connect(&router);
    client.send("", &message("jobs_y.with_child", json!(["begun", 1000])));
    wait_for_trace(&manager, &["begun"]);
    manager.process().signal(Signal::SIGINT);
    eventually("it says that it ends", PATIENCE, || {
        let log = manager.log();
        if log.contains("asked to end") {
            Ok(())
        } else {
            Err(log)
        }
    });
    manager.process().signal(Signal::SIGTERM);
    assert_eq!(manager.process().wait_code(PATIENCE), 1);
    manager.expect_no_offspring();
}

#[test]
fn sighup_replaces_processes_and_takes_settings_without_losing_a_job() {
    let mut router = Router::ours(Target::Inline);
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("emq.conf");
    std::fs::write(&file, "[jobmanager]\nconcurrent_jobs = 3\n").expect("written");
    std::fs::write(dir.path().join("version.py"), "def get():\n    return 1\n").expect("written");
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
    let path = format!("{}:{}", dir.path().display(), python.display());
    let mut manager = StartManager::ours(&router)
        .args(&["-C", file.to_str().expect("UTF-8")])
        .env("PYTHONPATH", &path)
        .start();
    let mut client = Client::connect(&router);
    assert_eq!(client.value("version.get", json!([])), 1);
    std::fs::write(dir.path().join("version.py"), "def get():\n    return 2\n").expect("written");
    std::fs::write(
        &file,
        "[jobmanager]\nconcurrent_jobs = 3\nqueues = [[5, \"other\"], [10, \"default\"]]\n",
    )
    .expect("written");
    manager.process().signal(Signal::SIGHUP);
    let mut sent = 0;
    let end = Instant::now() + 3 * PATIENCE;
    // Under load until three processes of the new kind answer in turn.
    let mut news = 0;
    while news < 12 {
        assert!(
            Instant::now() < end,
            "the processes are not replaced: {}",
            manager.log()
        );
        sent += 1;
        news = if client.value("version.get", json!([])) == 2 {
            news + 1
        } else {
            0
        };
    }
    assert!(sent >= 12);
    eventually("the other queue is served", PATIENCE, || {
        let shown = router.admin("ROUTER_SHOW_WORKERS");
        if shown["connected_queues"]["other"].is_array() {
            Ok(())
        } else {
            Err(shown.to_string())
        }
    });
    let other = client.send_to(
        "other",
        "reply-requested",
        &message("version.get", json!([])),
    );
    client.receive_until("its end", PATIENCE, |client| {
        client.ended.contains_key(&other)
    });
    // Wrong settings change nothing.
    std::fs::write(&file, "[jobmanager]\nmax_job_count = none\n").expect("written");
    manager.process().signal(Signal::SIGHUP);
    eventually("it says why", PATIENCE, || {
        let log = manager.log();
        if log.contains("settings not reloaded") {
            Ok(())
        } else {
            Err(log)
        }
    });
    assert_eq!(client.value("version.get", json!([])), 2);
    assert!(
        client
            .ended
            .values()
            .all(|ends| ends.len() == 1 && ends[0].status == "ok")
    );
    wait_for_slots(&mut router, 1, 3);
    assert_eq!(manager.terminate(), 0);
}

fn it_outlives_its_broker(target: Target) {
    let mut router = Router::ours(target);
    let addresses = router.addresses().clone();
    let mut manager = StartManager::ours(&router).start();
    let mut client = Client::connect(&router);
    assert_eq!(client.value("jobs_y.add", json!([1, 2])), 3);
    client.send("", &message("jobs_y.record_and_sleep", json!(["slow", 3])));
    wait_for_trace(&manager, &["slow"]);
    router.process().signal(Signal::SIGKILL);
    router.process().wait(PATIENCE);
    let mut router = Start::new(target)
        .at(&addresses)
        .start()
        .expect("ours is never missing");
    // One slot is in use by a job of the earlier broker at first.
    wait_for_slots(&mut router, 1, 4);
    assert_eq!(manager.trace(), ["slow"]);
    let mut client = Client::connect(&router);
    assert_eq!(client.value("jobs_y.add", json!([1, 2])), 3);
    wait_for_slots(&mut router, 1, 4);
    assert_eq!(manager.terminate(), 0);
}

#[test]
fn the_next_broker_is_used_when_one_is_gone() {
    let mut first = Router::ours(Target::Inline);
    let mut second = Router::ours(Target::Inline);
    let backends = [
        first.addresses().backend.clone(),
        second.addresses().backend.clone(),
    ];
    let mut manager = StartManager::at(&[&backends[0], &backends[1]]).start();
    wait_for_slots(&mut first, 1, 4);
    assert_eq!(
        Client::connect(&first).value("jobs_y.add", json!([1, 2])),
        3
    );
    wait_for_slots(&mut second, 0, 0);
    first.process().signal(Signal::SIGKILL);
    first.process().wait(PATIENCE);
    wait_for_slots(&mut second, 1, 4);
    assert_eq!(
        Client::connect(&second).value("jobs_y.add", json!([1, 2])),
        3
    );
    // Back again: it is used when the second one leaves in order.
    let mut first = Start::new(Target::Inline)
        .at(first.addresses())
        .start()
        .expect("ours");
    wait_for_slots(&mut first, 0, 0);
    second.process().signal(Signal::SIGTERM);
    assert_eq!(second.process().wait_code(PATIENCE), 0);
    wait_for_slots(&mut first, 1, 4);
    assert_eq!(
        Client::connect(&first).value("jobs_y.add", json!([1, 2])),
        3
    );
    assert_eq!(manager.terminate(), 0);
}

#[test]
fn all_brokers_at_once_share_the_slots() {
    let mut routers = [Router::ours(Target::Inline), Router::ours(Target::Inline)];
    let backends = [0, 1].map(|n: usize| routers[n].addresses().backend.clone());
    let start = |jobs: &str| {
        StartManager::at(&[&backends[0], &backends[1]])
            .set("worker_addr_mode", "all")
            .set("concurrent_jobs", jobs)
            .start()
    };
    let mut manager = start("4");
    for router in &mut routers {
        wait_for_slots(router, 1, 2);
    }
    // All the work comes to one of them: it gets what the other does not use.
    let mut client = Client::connect(&routers[0]);
    let sleep = message("jobs_y.sleep", json!([2]));
    (0..9).for_each(|_| drop(client.send("reply-requested", &sleep)));
    eventually("three at a time", 2 * PATIENCE, || {
        let status = routers[0].admin("STATUS");
        let count = status["inflight_messages_by_queue"]["default"].as_u64();
        if count == Some(3) {
            Ok(())
        } else {
            Err(status.to_string())
        }
    });
    assert_eq!(
        Client::connect(&routers[1]).value("jobs_y.add", json!([1, 2])),
        3
    );
    client.receive_until("all end", 3 * PATIENCE, |client| client.ended.len() == 9);
    assert_eq!(manager.terminate(), 0);
    // A single slot goes round.
    let mut manager = start("1");
    for _ in 0..2 {
        for router in &routers {
            assert_eq!(
                Client::connect(router).value("jobs_y.add", json!([1, 2])),
                3
            );
        }
    }
    assert_eq!(manager.terminate(), 0);
}

fn rolling_restart_of_job_managers_and_broker(target: Target) {
    let mut router = Router::ours(target);
    let addresses = router.addresses().clone();
    let start = || {
        StartManager::at(&[&addresses.backend])
            .set("concurrent_jobs", "2")
            .start()
    };
    let mut managers: Vec<Manager> = (0..4).map(|_| start()).collect();
    let mut client = Client::at(&addresses.frontend);
    // Load: there are always some that wait.
    let feed = |client: &mut Client, count: usize| {
        for n in 0..count {
            let job = message("jobs_y.sleep", json!([0.02 * (n % 5) as f64]));
            client.send("reply-requested", &job);
            client.receive(Duration::ZERO);
        }
    };
    feed(&mut client, 60);
    client.receive_until("it runs", 3 * PATIENCE, |client| client.ended.len() > 5);
    for manager in &mut managers {
        feed(&mut client, 40);
        assert_eq!(manager.terminate(), 0);
        let before = client.ended.len();
        *manager = start();
        client.receive_until("it goes on", 3 * PATIENCE, |client| {
            client.ended.len() > before
        });
    }
    feed(&mut client, 100);
    router.process().signal(Signal::SIGTERM);
    feed(&mut client, 50);
    assert_eq!(router.process().wait_code(3 * PATIENCE), 0);
    let mut router = Start::new(target)
        .at(&addresses)
        .start()
        .expect("ours is never missing");
    feed(&mut client, 50);
    client.receive_until("every accepted job has ended", 5 * PATIENCE, |client| {
        client
            .accepted
            .keys()
            .all(|id| client.ended.contains_key(id))
            && client.accepted.len() + client.rejected.len() >= 420
    });
    for (id, ends) in &client.ended {
        assert_eq!(ends.len(), 1, "{id}: {ends:?}");
        // Only what waited in the broker that was stopped may have been given up by it.
        let given_up = ends[0].error() == "BrokerStopped";
        assert!(ends[0].status == "ok" || given_up, "{id}: {ends:?}");
    }
    wait_for_slots(&mut router, 4, 8);
    managers
        .iter_mut()
        .for_each(|manager| assert_eq!(manager.terminate(), 0));
}

#[test]
fn the_original_broker_and_client() {
    if original("emq-router").is_none() {
        return;
    }
    let mut router = Router::start(Target::Original).expect("looked for before");
    let mut manager = StartManager::ours(&router)
        .args(&["-J", "3", "-n", "worker-one", "-Q", "default", "second"])
        .start();
    wait_for_slots(&mut router, 1, 3);
    let shown = router.admin("ROUTER_SHOW_WORKERS");
    let workers = shown["connected_workers"].as_object().expect("an object");
    assert!(
        workers.keys().all(|id| id.starts_with("worker-one:")),
        "{shown}"
    );
    assert_eq!(
        shown["connected_queues"]["second"].as_array().map(Vec::len),
        Some(1),
        "{shown}"
    );
    let mut command = Command::new(original("python").expect("looked for before"));
    command
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("python/client.py"))
        .arg(&router.addresses().frontend)
        .args(["defer", "word", "300"])
        .env(
            "PYTHONPATH",
            Path::new(env!("CARGO_MANIFEST_DIR")).join("python"),
        )
        .current_dir(manager.dir());
    let mut client = Process::start_group("client.py", &mut command, &manager.dir().join("client"))
        .expect("python starts");
    assert_eq!(client.wait_code(3 * PATIENCE), 0, "{}", client.log_tail());
    eventually("300 jobs run", 3 * PATIENCE, || {
        let mut trace = manager.trace();
        trace.sort();
        trace.dedup();
        if trace.len() == 300 {
            Ok(())
        } else {
            Err(trace.len().to_string())
        }
    });
    assert_eq!(manager.trace().len(), 300, "each once");
    // What ends the original's job manager's connection: here it is answered.
    let mut poison = Client::connect(&router);
    poison.send("", b"nonsense");
    poison.send("timeout:x", &message("jobs_x.record", json!(["never"])));
    poison.send("", &message("jobs_x.record", json!(["behind"])));
    eventually("the job behind runs", 2 * PATIENCE, || {
        if manager.trace().iter().any(|word| word == "behind") {
            Ok(())
        } else {
            Err(manager.log())
        }
    });
    wait_for_slots(&mut router, 1, 3);
    // The broker comes back: registered again under another id, without the 13 s of the original.
    let addresses = router.addresses().clone();
    router.process().signal(Signal::SIGKILL);
    router.process().wait(PATIENCE);
    drop(router);
    let mut router = Start::new(Target::Original)
        .at(&addresses)
        .start()
        .expect("the original");
    wait_for_slots(&mut router, 1, 3);
    assert_eq!(manager.terminate(), 0);
    eventually("the original has heard of it", PATIENCE, || {
        let shown = router.admin("ROUTER_SHOW_WORKERS");
        match shown["connected_workers"]
            .as_object()
            .map_or(0, serde_json::Map::len)
        {
            0 => Ok(()),
            _ => Err(shown.to_string()),
        }
    });
}

#[test]
fn it_costs_nothing_to_wait() {
    let mut router = Router::ours(Target::Inline);
    let mut manager = StartManager::ours(&router).start();
    wait_for_slots(&mut router, 1, 4);
    let ticks = |manager: &mut Manager| -> u64 {
        let pid = manager.process().pid();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
        let (_, rest) = stat.rsplit_once(')').expect("a name");
        let words: Vec<&str> = rest.split_whitespace().collect();
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        number(11) + number(12)
    };
    let before = ticks(&mut manager);
    std::thread::sleep(Duration::from_secs(3));
    // Ticks of 10 ms; one or two heartbeats were sent.
    let used = ticks(&mut manager) - before;
    assert!(used <= 3, "{used} ticks in 3 s");
    assert_eq!(manager.terminate(), 0);
}

fn output(start: &StartManager) -> (i32, String, String) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = start.command(dir.path(), "none").expect("ours");
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.code().unwrap_or(-1), text(stdout), text(stderr))
}

#[test]
fn command_line_and_settings() {
    let start = || StartManager::at(&["tcp://127.0.0.1:1"]);
    let (code, stdout, _) = output(&start().args(&["--version"]));
    assert!(
        code == 0 && stdout.starts_with("emq-jobmanager "),
        "{stdout}"
    );
    let (code, stdout, _) = output(&start().args(&["-J", "7", "-Q", "a", "b", "--print-config"]));
    assert_eq!(code, 0);
    for line in [
        "concurrent_jobs = 7",
        "queues = [[10, \"a\"], [10, \"b\"]]",
        "python = python3",
    ] {
        assert!(stdout.contains(line), "{stdout}");
    }
    // The command line wins over the environment.
    let (_, stdout, _) =
        output(
            &start()
                .set("concurrent_jobs", "1")
                .args(&["-J", "3", "--print-config"]),
        );
    assert!(stdout.contains("concurrent_jobs = 3"), "{stdout}");
    for (start, error) in [
        (
            start().set("concurrent_jobs", "none"),
            "expected a whole number from 1 to 10000",
        ),
        (start().set("exec_allowed", "sh"), "expected absolute paths"),
        (
            start().args(&["-B", "nowhere"]),
            "expected 1 to 16 different addresses",
        ),
    ] {
        let (code, _, stderr) = output(&start.args(&["--check-config"]));
        assert_eq!((code, stderr.lines().count()), (2, 1), "{stderr}");
        assert!(stderr.contains(error), "{stderr}");
    }
    for (start, error) in [
        (
            start().set("python", "/no/such/python"),
            "there is no such program",
        ),
        (
            start().set("python", "no-such-python"),
            "there is no such program",
        ),
        (start().args(&["-n", &"x".repeat(201)]), "at most 200"),
    ] {
        let (code, _, stderr) = output(&start);
        assert!(code == 2 && stderr.contains(error), "{code}: {stderr}");
    }
}
