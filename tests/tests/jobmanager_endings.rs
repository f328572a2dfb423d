//! `emq-jobmanager` and the ways in which jobs end: each has one answer, and afterwards everything
//! is as before.

use eventmq_tests::manager::{Client, Manager, StartManager, call, wait_for_slots};
use eventmq_tests::router::{Router, Target};
use eventmq_tests::{PATIENCE, eventually};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Duration;

fn world(start: impl FnOnce(StartManager) -> StartManager) -> (Router, Manager, Client) {
    let router = Router::ours(Target::Inline);
    let manager = start(StartManager::ours(&router)).start();
    let client = Client::connect(&router);
    (router, manager, client)
}

#[test]
fn every_ending_is_told() {
    let (mut router, mut manager, mut client) = world(|start| start);
    for (name, args, value) in [
        ("jobs_y.add", json!([1, 2]), json!(3)),
        ("jobs_y.nothing", json!([]), Value::Null),
        ("jobs_y.result_unicode", json!([]), json!("\u{e9}\u{2603}")),
        ("jobs_y.chatty", json!([]), json!("done")),
        ("jobs_y.reads_stdin", json!([]), json!("")),
        ("jobs_y.forks", json!([]), json!("forked")),
    ] {
        assert_eq!(client.value(name, args), value, "{name}");
    }
    let object = json!(["run", {"path": "jobs_y:Counter", "callable": "after", "args": [3],
                                "class_args": [10], "class_kwargs": {"step": 2}}]);
    let ended = client.run_with("", object.to_string().as_bytes());
    assert_eq!(
        (ended.status.as_str(), &ended.result["value"]),
        ("ok", &json!(16))
    );

    for (name, args, kind, message) in [
        (
            "jobs_y.fail",
            json!(["kaboom \u{e9}"]),
            "ValueError",
            "kaboom \u{e9}",
        ),
        (
            "jobs_y.evil",
            json!([]),
            "Evil",
            "(the exception has no text)",
        ),
        (
            "jobs_y.deep",
            json!([]),
            "RecursionError",
            "maximum recursion depth exceeded",
        ),
        ("jobs_y.leave_by_exception", json!([4]), "SystemExit", "4"),
        (
            "jobs_y.result_set",
            json!([]),
            "TypeError",
            "set is not JSON serializable",
        ),
        (
            "jobs_y.result_generator",
            json!([]),
            "TypeError",
            "generator is not JSON serializable",
        ),
        (
            "jobs_y.result_nan",
            json!([]),
            "ValueError",
            "not JSON compliant",
        ),
        (
            "no_such_module.f",
            json!([]),
            "ModuleNotFoundError",
            "No module named 'no_such_module'",
        ),
        (
            "jobs_y.no_such_function",
            json!([]),
            "AttributeError",
            "'no_such_function'",
        ),
        (
            "jobs_y.add",
            json!([]),
            "TypeError",
            "missing 2 required positional arguments",
        ),
        (
            "exec.echo",
            json!(["x"]),
            "CommandNotAllowed",
            "exec_allowed",
        ),
    ] {
        let ended = client.run(name, args);
        assert_eq!(
            (ended.status.as_str(), ended.error()),
            ("error", kind),
            "{name}: {ended:?}"
        );
        assert!(ended.message().contains(message), "{name}: {ended:?}");
        // As 0.3.13 answers.
        assert_eq!(ended.result["value"], ended.result["error"]["message"]);
        assert!(ended.result["error"]["traceback"].is_string(), "{ended:?}");
    }
    for (name, args, how) in [
        ("jobs_y.leave", json!([3]), "exit code 3"),
        ("jobs_y.leave", json!([0]), "exit code 0"),
        ("jobs_y.signal_self", json!([9]), "SIGKILL"),
        ("jobs_y.signal_self", json!([11]), "SIGSEGV"),
        ("jobs_y.signal_self", json!([15]), "SIGTERM"),
        ("jobs_y.closes_everything", json!([]), "closed its channel"),
        ("jobs_y.writes_nonsense", json!([]), "killed"),
    ] {
        let ended = client.run(name, args);
        assert_eq!(
            (ended.status.as_str(), ended.error()),
            ("lost", "ProcessDied"),
            "{name}: {ended:?}"
        );
        assert!(ended.message().contains(how), "{name}: {ended:?}");
    }
    for name in ["jobs_y.sleep", "jobs_y.stuck_in_c"] {
        let ended = client.run_with(
            "timeout:1",
            call(name, json!([1000])).to_string().as_bytes(),
        );
        assert_eq!(
            (ended.status.as_str(), ended.error()),
            ("timeout", "TimeoutError"),
            "{ended:?}"
        );
        assert_eq!(ended.result["value"], "TimeoutError");
    }
    wait_for_slots(&mut router, 1, 4);
    assert_eq!(manager.terminate(), 0);
}

#[test]
fn what_is_no_job_is_answered_and_hurts_nobody() {
    let (mut router, mut manager, mut client) = world(|start| start.set("concurrent_jobs", "1"));
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for message in [
        &b""[..],
        b"nonsense",
        b"\xff\xfe",
        b"5",
        b"[]",
        b"[\"run\"]",
        b"[\"run\", 5]",
        b"[\"run\", {}]",
        b"[\"run\", {\"path\": 5, \"callable\": []}]",
        b"[\"run\", {\"path\": \"jobs_y\", \"callable\": \"add\", \"args\": 5}]",
        b"[\"run\", {\"path\": \"exec\", \"callable\": \"sh\", \"args\": {}}]",
        b"[\"run\", {\"path\": \"\", \"callable\": \"\"}]",
        deep.as_bytes(),
    ] {
        let ended = client.run_with("", message);
        assert_eq!(
            ended.status,
            "error",
            "{}: {ended:?}",
            message.escape_ascii()
        );
    }
    // What serde does not read, Python may.
    let nan = br#"["zzz", {"path": "jobs_y", "callable": "length", "args": ["abc"], "x": NaN}]"#;
    assert_eq!(client.run_with("", nan).result["value"], 3);
    wait_for_slots(&mut router, 1, 1);
    assert_eq!(manager.terminate(), 0);
}

#[test]
fn arguments_and_results_of_60_mib() {
    let (_router, mut manager, mut client) = world(|start| start.set("concurrent_jobs", "2"));
    let large = 60 << 20;
    assert_eq!(
        client.value("jobs_y.length", json!(["x".repeat(large)])),
        large
    );
    let back = client.value("jobs_y.result_text", json!([large]));
    assert_eq!(back.as_str().map(str::len), Some(large));
    let ended = client.run("jobs_y.result_text", json!([70 << 20]));
    assert_eq!(
        (ended.status.as_str(), ended.error()),
        ("error", "ResultTooLarge")
    );
    assert_eq!(client.value("jobs_y.add", json!([1, 2])), 3);
    assert_eq!(manager.terminate(), 0);
}

#[test]
fn a_timeout_is_answered_when_nothing_of_the_job_is_left() {
    let (_router, mut manager, mut client) = world(|start| {
        start
            .set("concurrent_jobs", "1")
            .set("exec_allowed", "/bin/sh")
    });
    let message = call("jobs_y.with_child", json!(["begun", 1000])).to_string();
    let ended = client.run_with("timeout:1", message.as_bytes());
    assert_eq!(ended.status, "timeout");
    assert_eq!(manager.trace(), ["begun"]);
    let sleeping = |manager: &Manager| {
        let names = manager.offspring().into_iter().map(|(_, name)| name);
        names.filter(|name| name == "sleep").count()
    };
    assert_eq!(sleeping(&manager), 0, "{:?}", manager.offspring());
    let message = call("exec.sh", json!(["-c", "sleep 1000 & sleep 1000"])).to_string();
    assert_eq!(
        client.run_with("timeout:1", message.as_bytes()).status,
        "timeout"
    );
    assert_eq!(sleeping(&manager), 0, "{:?}", manager.offspring());
    assert_eq!(manager.terminate(), 0);
}

#[test]
fn commands_have_their_output_and_bounds() {
    let (_router, mut manager, mut client) = world(|start| {
        start
            .set("exec_allowed", "/bin/sh,/bin/echo")
            .set("exec_output_bytes", "1K")
    });
    let output = client.value("exec.echo", json!(["a b", 1, "$HOME", "*"]));
    assert_eq!(output["stdout"], "a b 1 $HOME *\n");
    assert_eq!(
        (&output["code"], &output["truncated"]),
        (&json!(0), &json!(false))
    );
    let output = client.value("exec./bin/sh", json!(["-c", "yes | head -c 300000; cat"]));
    assert_eq!(output["stdout"].as_str().map(str::len), Some(1024));
    assert_eq!(output["truncated"], true);
    let ended = client.run("exec.sh", json!(["-c", "echo out; echo err >&2; exit 3"]));
    assert_eq!(
        (ended.status.as_str(), ended.error()),
        ("error", "CommandFailed")
    );
    assert_eq!(ended.result["value"]["code"], 3);
    assert_eq!(ended.result["value"]["stderr"], "err\n");
    let ended = client.run("exec.sh", json!(["-c", "kill -9 $$"]));
    assert_eq!(
        (ended.status.as_str(), ended.error()),
        ("lost", "ProcessDied")
    );
    for name in ["cat", "/bin/../bin/sh", "bin/sh", "", "/bin", "sh -c true"] {
        let message = json!(["run", {"path": "exec", "callable": name, "args": []}]);
        let ended = client.run_with("", message.to_string().as_bytes());
        assert_eq!(ended.error(), "CommandNotAllowed", "{name}");
    }
    assert_eq!(manager.terminate(), 0);
}

#[test]
fn functions_around_jobs() {
    let (mut router, mut manager, mut client) = world(|start| {
        start
            .set("concurrent_jobs", "1")
            .set("subprocess_setup_func", "jobs_y.set_up")
            .set("job_entry_func", "jobs_y.before")
            .set("job_exit_func", "jobs_y.after")
    });
    assert_eq!(client.value("jobs_y.was_set_up", json!([])), true);
    assert_eq!(client.run("jobs_y.fail", json!(["x"])).status, "error");
    assert_eq!(client.value("jobs_y.was_set_up", json!([])), true);
    assert_eq!(manager.trace(), ["before", "after"].repeat(3));
    wait_for_slots(&mut router, 1, 1);
    assert_eq!(manager.terminate(), 0);

    // The older pair of settings.
    let (_router, mut manager, mut client) = world(|start| {
        start
            .set("setup_path", "jobs_y")
            .set("setup_callable", "set_up")
    });
    assert_eq!(client.value("jobs_y.was_set_up", json!([])), true);
    assert_eq!(manager.terminate(), 0);
}

#[test]
fn functions_around_jobs_that_fail_cost_no_slot() {
    for (setting, function, status, logged) in [
        ("job_entry_func", "jobs_y.before_fails", "error", ""),
        ("job_entry_func", "no_such_module.f", "error", ""),
        ("job_entry_func", "nodot", "error", ""),
        (
            "job_exit_func",
            "jobs_y.before_fails",
            "ok",
            "job_exit_func failed: KeyError",
        ),
        ("job_exit_func", "no_such_module.f", "error", ""),
        (
            "subprocess_setup_func",
            "jobs_y.set_up_fails",
            "ok",
            "the setup fails",
        ),
        (
            "subprocess_setup_func",
            "no_such_module.f",
            "ok",
            "No module named 'no_such_module'",
        ),
    ] {
        let (mut router, mut manager, mut client) =
            world(|start| start.set("concurrent_jobs", "1").set(setting, function));
        for _ in 0..3 {
            let ended = client.run("jobs_y.add", json!([1, 2]));
            assert_eq!(ended.status, status, "{setting} {function}: {ended:?}");
        }
        wait_for_slots(&mut router, 1, 1);
        eventually("the log says why", PATIENCE, || {
            let log = manager.log();
            if log.contains(logged) {
                Ok(())
            } else {
                Err(log)
            }
        });
        assert_eq!(manager.terminate(), 0);
    }
}

#[test]
fn processes_are_replaced_after_max_job_count() {
    let (mut router, mut manager, mut client) =
        world(|start| start.set("concurrent_jobs", "2").set("max_job_count", "5"));
    let mut jobs: HashMap<Value, usize> = HashMap::new();
    for _ in 0..60 {
        *jobs
            .entry(client.value("jobs_y.process_id", json!([])))
            .or_default() += 1;
    }
    assert!(
        jobs.len() >= 12 && jobs.values().all(|count| *count <= 5),
        "{jobs:?}"
    );
    wait_for_slots(&mut router, 1, 2);
    assert_eq!(manager.terminate(), 0);
}

#[test]
fn nothing_outlives_a_job_manager_that_is_killed() {
    let (_router, mut manager, mut client) = world(|start| {
        start
            .set("concurrent_jobs", "4")
            .set("exec_allowed", "/bin/sh")
    });
    client.send(
        "",
        call("jobs_y.stuck_in_c", json!(["stuck"]))
            .to_string()
            .as_bytes(),
    );
    client.send(
        "",
        call("jobs_y.with_child", json!(["child", 1000]))
            .to_string()
            .as_bytes(),
    );
    let script = "trap '' TERM HUP INT; sleep 1000 & echo shell 0 >> trace; sleep 1000";
    client.send(
        "",
        call("exec.sh", json!(["-c", script]))
            .to_string()
            .as_bytes(),
    );
    eventually("all three run", 2 * PATIENCE, || {
        let mut trace = manager.trace();
        trace.sort();
        if trace == ["child", "shell", "stuck"] {
            Ok(())
        } else {
            Err(format!("{trace:?}"))
        }
    });
    let names: Vec<String> = manager
        .offspring()
        .into_iter()
        .map(|(_, name)| name)
        .collect();
    assert!(
        names.iter().filter(|name| *name == "sleep").count() >= 3,
        "{names:?}"
    );
    // Only the job manager itself: its group would take some of them along.
    manager.process().signal(Signal::SIGKILL);
    manager.process().wait(PATIENCE);
    manager.expect_no_offspring();
}

#[test]
fn many_jobs_of_every_ending() {
    jobs_of_every_ending(400);
}

#[test]
#[ignore = "long"]
fn ten_thousand_jobs_of_every_ending() {
    jobs_of_every_ending(10_000);
}

/// Every job has exactly one outcome, all slots are free at the end, no process is left over.
fn jobs_of_every_ending(count: usize) {
    let (mut router, mut manager, mut client) = world(|start| start.set("max_job_count", "50"));
    const TIMES_OUT: usize = 4;
    let endings = [
        ("jobs_y.add", json!([1, 2]), "", "ok"),
        ("jobs_y.fail", json!(["x"]), "", "error"),
        ("jobs_y.leave", json!([1]), "", "lost"),
        ("jobs_y.signal_self", json!([9]), "", "lost"),
        (
            "jobs_y.stuck_in_c",
            json!(["stuck"]),
            "timeout:1",
            "timeout",
        ),
        ("jobs_y.result_set", json!([]), "", "error"),
        ("no_such_module.f", json!([]), "", "error"),
    ];
    let mut expected = HashMap::new();
    for n in 0..count {
        // Time-outs take a second each: one round in ten has one, the others a job that returns.
        let which = n % endings.len();
        let round = n / endings.len();
        let which = if which == TIMES_OUT && !round.is_multiple_of(10) {
            0
        } else {
            which
        };
        let (name, args, headers, status) = &endings[which];
        let headers = match *headers {
            "" => "reply-requested".to_owned(),
            more => format!("reply-requested,{more}"),
        };
        let id = client.send(&headers, call(name, args.clone()).to_string().as_bytes());
        expected.insert(id, *status);
        while client.receive(Duration::ZERO) {}
    }
    let patience = Duration::from_secs(120 + count as u64 / 10);
    client.receive_until("every job ends", patience, |client| {
        client.ended.len() == count
    });
    // Nothing comes twice: this one ends behind all of them.
    assert_eq!(client.value("jobs_y.add", json!([1, 2])), 3);
    for (id, status) in expected {
        let ends: Vec<&str> = client.ended[&id]
            .iter()
            .map(|end| end.status.as_str())
            .collect();
        assert_eq!(ends, [status], "{id}");
    }
    wait_for_slots(&mut router, 1, 4);
    // Beside the keeper one for each slot, and successors of those that are nearly used up.
    eventually("as many processes as before", PATIENCE, || {
        let left = manager.offspring();
        if (5..=9).contains(&left.len()) {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    });
    assert_eq!(manager.terminate(), 0);
}
