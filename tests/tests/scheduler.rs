//! `emq-scheduler` as a process: at our broker in both threadings and at the original one, with the
//! original client, and alone. Workers are libzmq DEALERs that count what they are handed.

use eventmq_tests::dealer::{Dealer, Frames, show};
use eventmq_tests::peers::{original, workspace};
use eventmq_tests::router::{Router, Start, Target};
use eventmq_tests::scheduler::Scheduler;
use eventmq_tests::{PATIENCE, eventually};
use nix::sys::signal::Signal;
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use zmq::Context;

macro_rules! at_every_broker {
    ($($name:ident),* $(,)?) => {
        eventmq_tests::in_both_threadings!($($name),*);
        mod the_original {
            $(
                #[test]
                fn $name() {
                    super::$name(super::Target::Original);
                }
            )*
        }
    };
}

at_every_broker!(
    runs_carry_queue_and_headers,
    unschedule_ends_interval_and_cron,
    nonsense_is_refused_and_counted,
    schedules_survive_a_kill,
    a_new_broker_gets_the_runs,
    the_end_is_in_good_order,
);

fn call(word: &str) -> String {
    format!(
        r#"["run", {{"callable": "record", "path": "jobs_x", "args": ["{word}"], "kwargs": {{}}, "class_args": [], "class_kwargs": {{}}}}]"#
    )
}

/// A broker with a worker that has many slots, a client, and a directory for the scheduler.
struct World {
    router: Router,
    worker: Dealer,
    client: Dealer,
    dir: TempDir,
    context: Context,
}

impl World {
    fn new(target: Target) -> Option<World> {
        let router = Router::start(target)?;
        let context = Context::new();
        let (worker, client) = peers(&context, &router);
        Some(World {
            router,
            worker,
            client,
            dir: tempfile::tempdir().expect("a directory"),
            context,
        })
    }

    fn scheduler(&self) -> Scheduler {
        self.scheduler_with(&[])
    }

    fn scheduler_with(&self, env: &[(&str, &str)]) -> Scheduler {
        let frontend = &self.router.addresses().frontend;
        let mut scheduler = Scheduler::start(frontend, self.dir.path(), env);
        scheduler.wait_until_registered();
        scheduler
    }

    fn schedule(
        &self,
        command: &str,
        queue: &str,
        headers: &str,
        interval: &str,
        word: &str,
        cron: &str,
    ) {
        self.client
            .send(&[command, "m-1", queue, headers, interval, &call(word), cron]);
    }

    /// The next run of `word`; others are passed over. Its slot comes back.
    fn next_run(&self, word: &str) -> Frames {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let run = self
                .worker
                .receive(left)
                .unwrap_or_else(|| panic!("no run of {word}"));
            assert_eq!(run[2], b"REQUEST", "{}", show(&run));
            self.worker.send(&[&b"READY"[..], b"r"]);
            if run[6] == call(word).as_bytes() {
                return run;
            }
        }
    }

    /// Runs by word until nothing has come for `quiet`.
    fn drain(&self, quiet: Duration) -> HashMap<String, usize> {
        let mut runs = HashMap::new();
        while let Some(run) = self.worker.receive(quiet) {
            self.worker.send(&[&b"READY"[..], b"r"]);
            let text = String::from_utf8(run[6].clone()).expect("UTF-8");
            let word = text.split('"').nth(13).expect("a word").to_owned();
            *runs.entry(word).or_default() += 1;
        }
        runs
    }
}

fn peers(context: &Context, router: &Router) -> (Dealer, Dealer) {
    let id = uuid::Uuid::new_v4().to_string();
    let worker = Dealer::connect(context, &router.addresses().backend, Some(id.as_bytes()));
    worker.inform_worker(r#"[[10, "default"], [5, "other"]]"#);
    worker.ready(50);
    let id = uuid::Uuid::new_v4().to_string();
    let client = Dealer::connect(context, &router.addresses().frontend, Some(id.as_bytes()));
    (worker, client)
}

fn runs_carry_queue_and_headers(target: Target) {
    let Some(world) = World::new(target) else {
        return;
    };
    let mut scheduler = world.scheduler();
    // Bugs 31, 34 and 36 of the original: queue, run_count and headers of cron schedules.
    world.schedule(
        "SCHEDULE",
        "other",
        "guarantee,timeout:7,retry-count:2,run_count:3",
        "-1",
        "cron",
        "* * * * * *",
    );
    for _ in 0..3 {
        let run = world.next_run("cron");
        assert_eq!(run[4], b"other");
        assert_eq!(run[5], b"reply-requested,timeout:7,retry-count:2");
    }
    world.schedule(
        "SCHEDULE",
        "default",
        "run_count:2,guarantee-runs",
        "1",
        "interval",
        "",
    );
    let mut msgids = Vec::new();
    for _ in 0..2 {
        let run = world.next_run("interval");
        assert!(
            run[5].starts_with(b"reply-requested,guarantee"),
            "{}",
            show(&run)
        );
        msgids.push(run[3].clone());
    }
    assert_ne!(msgids[0], msgids[1]);
    assert_eq!(scheduler.schedules(), [] as [serde_json::Value; 0]);
    assert_eq!(scheduler.counter("runs_sent"), 5);
    assert_eq!(scheduler.counter("schedules_ended"), 2);
}

fn unschedule_ends_interval_and_cron(target: Target) {
    let Some(world) = World::new(target) else {
        return;
    };
    let mut scheduler = world.scheduler();
    // Bug 30 of the original: cron schedules went on.
    world.schedule("SCHEDULE", "default", "guarantee", "1", "a", "");
    world.schedule("SCHEDULE", "default", "nohaste", "-1", "b", "* * * * * *");
    world.next_run("a");
    world.next_run("b");
    assert_eq!(scheduler.schedules().len(), 2);
    for word in ["a", "b", "never scheduled"] {
        world.schedule("UNSCHEDULE", "x", "guarantee", "-1", word, "");
    }
    eventually("both are gone", PATIENCE, || {
        match scheduler.counter("schedules_unknown") {
            1 => Ok(()),
            n => Err(n.to_string()),
        }
    });
    assert!(scheduler.schedules().is_empty());
    assert_eq!(scheduler.counter("schedules_unscheduled"), 2);
    let sent = scheduler.counter("runs_sent");
    world.drain(Duration::from_millis(2_500));
    assert_eq!(scheduler.counter("runs_sent"), sent);
}

/// Bug 35 of the original: each of these ends its process. Our broker lets only some of them through.
fn nonsense_is_refused_and_counted(target: Target) {
    let Some(world) = World::new(target) else {
        return;
    };
    let mut scheduler = world.scheduler();
    let good = call("good");
    let no_path = good.replace("\"path\"", "\"pfad\"");
    let bodies: [&[&str]; 10] = [
        &["default", "", "-1", &good, "no cron"],
        &["default", "", "-1", &good, "0 0 31 2 *"],
        &["default", "", "-1", &good, ""],
        &["default", "", "0", &good, ""],
        &["default", "", "ten", &good, ""],
        &["default", "run_count:x", "5", &good, ""],
        &["default", "tz:Nowhere", "-1", &good, "* * * * *"],
        &["default", "", "5", "{", ""],
        &["default", "", "5", &no_path, ""],
        &["default", "", "5"],
    ];
    for body in bodies {
        let frames: Vec<&str> = ["SCHEDULE", "m"]
            .into_iter()
            .chain(body.iter().copied())
            .collect();
        world.client.send(&frames);
    }
    world.schedule("SCHEDULE", "default", "run_count:1", "60", "good", "");
    world.next_run("good");
    let counters = ["malformed", "interval", "cron", "headers"]
        .map(|name| scheduler.counter(&format!("schedules_refused_{name}")));
    if target.is_ours() {
        assert_eq!(counters, [0, 1, 3, 1]);
    } else {
        assert_eq!(counters, [3, 2, 3, 2]);
    }
    assert_eq!(scheduler.counter("schedules_taken"), 1);
    assert!(scheduler.process().ended().is_none());
}

fn schedules_survive_a_kill(target: Target) {
    let Some(world) = World::new(target) else {
        return;
    };
    let mut scheduler = world.scheduler();
    world.schedule(
        "SCHEDULE",
        "default",
        "guarantee,run_count:4",
        "1",
        "few",
        "",
    );
    world.schedule(
        "SCHEDULE",
        "other",
        "nohaste,tz:Europe/Berlin",
        "-1",
        "cron",
        "0 0 1 1 *",
    );
    world.next_run("few");
    world.next_run("few");
    let before = scheduler.schedules();
    assert_eq!(before.len(), 2);
    scheduler.process().signal(Signal::SIGKILL);
    scheduler.process().wait(PATIENCE);
    let mut scheduler = world.scheduler();
    assert_eq!(scheduler.counter("schedules_restored"), 2);
    // Two runs are left, never three: what was missed meanwhile is one run.
    let runs = world.drain(Duration::from_millis(3_500));
    assert!(
        runs.get("few").is_some_and(|n| (1..=2).contains(n)),
        "{runs:?}"
    );
    let after = scheduler.schedules();
    assert_eq!(after.len(), 1, "{after:?}");
    let cron = before
        .iter()
        .find(|shown| shown["interval"].is_null())
        .expect("the cron one");
    for key in [
        "id", "call", "queue", "headers", "cron", "timezone", "next_run",
    ] {
        assert_eq!(after[0][key], cron[key]);
    }
    assert_eq!(
        (&cron["cron"], &cron["timezone"]),
        (&"0 0 1 1 *".into(), &"Europe/Berlin".into())
    );
}

fn a_new_broker_gets_the_runs(target: Target) {
    let Some(mut world) = World::new(target) else {
        return;
    };
    let mut scheduler = world.scheduler();
    world.schedule("SCHEDULE", "default", "guarantee", "1", "on", "");
    world.next_run("on");
    world.router.process().signal(Signal::SIGKILL);
    world.router.process().wait(PATIENCE);
    let addresses = world.router.addresses().clone();
    world.router = Start::new(target)
        .at(&addresses)
        .start()
        .expect("there before");
    (world.worker, world.client) = peers(&world.context, &world.router);
    eventually("it is registered again", PATIENCE, || {
        match scheduler.counter("scheduler_registrations") {
            n if n >= 2 => Ok(()),
            n => Err(n.to_string()),
        }
    });
    world.next_run("on");
    world.next_run("on");
}

fn the_end_is_in_good_order(target: Target) {
    let Some(mut world) = World::new(target) else {
        return;
    };
    let mut scheduler = world.scheduler();
    world.schedule("SCHEDULE", "default", "guarantee", "1", "x", "");
    world.next_run("x");
    scheduler.process().signal(Signal::SIGTERM);
    assert_eq!(scheduler.process().wait_code(PATIENCE), 0);
    let log = scheduler.process().log_tail();
    assert!(log.contains("emq-scheduler ends"), "{log}");
    // KBYE: it is gone at once, not after some seconds of silence.
    let shown = world.router.admin("ROUTER_SHOW_SCHEDULERS");
    assert_eq!(shown["connected_schedulers"], serde_json::json!({}));
    // And by its administrative socket.
    let scheduler = &mut world.scheduler();
    let admin = Dealer::connect(&world.context, scheduler.admin_addr(), Some(b"admin"));
    admin.send(&["DISCONNECT", "bye"]);
    let ack = admin.expect("ACK");
    assert_eq!(ack[4], b"bye");
    assert_eq!(scheduler.process().wait_code(PATIENCE), 0);
}

#[test]
fn the_originals_client_makes_and_ends_schedules() {
    let Some(python) = original("python") else {
        return;
    };
    for target in [Target::Inline, Target::Original] {
        let Some(world) = World::new(target) else {
            return;
        };
        let mut scheduler = world.scheduler();
        let client = |args: &[&str]| {
            let script = workspace().join("tests/python/client.py");
            let status = Command::new(&python)
                .arg(script)
                .arg(&world.router.addresses().frontend)
                .args(args)
                .env("PYTHONPATH", workspace().join("tests/python"))
                .env("PYTHONDONTWRITEBYTECODE", "1")
                .env("EVENTMQ_CONFIG_FILE", "/nonexistent")
                .current_dir(world.dir.path())
                .status();
            assert!(status.expect("python runs").success(), "{args:?}");
        };
        client(&["schedule", "by interval", "1"]);
        client(&["cron", "by cron", "* * * * * *"]);
        for word in ["by interval", "by interval", "by cron", "by cron"] {
            let run = world.next_run(word);
            assert_eq!(run[5], b"reply-requested");
        }
        client(&["unschedule", "by interval"]);
        client(&["unschedule", "by cron"]);
        eventually("no schedule is left", PATIENCE, || {
            let left = scheduler.schedules();
            if left.is_empty() {
                Ok(())
            } else {
                Err(format!("{left:?}"))
            }
        });
    }
}

/// What the broker refuses is said and counted, and the schedule goes on.
#[test]
fn a_refused_run_is_said_and_counted() {
    let router = Start::new(Target::Inline)
        .env("EVENTMQ_MAX_QUEUES", "1")
        .start()
        .expect("ours");
    let dir = tempfile::tempdir().expect("a directory");
    let mut scheduler = Scheduler::start(&router.addresses().frontend, dir.path(), &[]);
    scheduler.wait_until_registered();
    let context = Context::new();
    let client = Dealer::connect(&context, &router.addresses().frontend, Some(b"client"));
    for queue in ["default", "one too many"] {
        client.send(&["SCHEDULE", "m", queue, "", "1", &call(queue), ""]);
    }
    eventually("runs are refused and others taken", PATIENCE, || {
        let (refused, taken) = (
            scheduler.counter("runs_rejected"),
            scheduler.counter("runs_accepted"),
        );
        if refused >= 2 && taken >= 2 {
            Ok(())
        } else {
            Err(format!("{refused} {taken}"))
        }
    });
    let log = scheduler.process().log_tail();
    assert!(
        log.contains("too-many-queues") && log.contains("jobs_x.record"),
        "{log}"
    );
}

#[test]
fn one_process_per_file_and_a_store_that_cannot_be_opened() {
    let dir = tempfile::tempdir().expect("a directory");
    let nobody = "tcp://127.0.0.1:1";
    let _first = Scheduler::start(nobody, dir.path(), &[]);
    let output = Scheduler::command(nobody, dir.path(), &[])
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("in use by another process"), "{text}");
    let file = dir.path().join("file");
    std::fs::write(&file, "x").expect("a file");
    let state = file.to_str().expect("UTF-8");
    let output = Scheduler::command(nobody, dir.path(), &[("EVENTMQ_STATE_DIR", state)]).output();
    assert_eq!(output.expect("it runs").status.code(), Some(1));
}

#[test]
fn the_command_line() {
    let run = |args: &[&str], env: &[(&str, &str)]| {
        let mut command = Scheduler::command("tcp://127.0.0.1:1", Path::new("/"), env);
        let output = command.args(args).output().expect("it runs");
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let (code, out, _) = run(&["--preview", "0 0 29 2 *", "--count", "2"], &[]);
    assert_eq!((code, out.lines().count()), (Some(0), 2));
    assert!(out.contains("-02-29 00:00:00 UTC"), "{out}");
    let (code, _, err) = run(&["--preview", "0 0 31 2 *"], &[]);
    assert_eq!(code, Some(2));
    assert!(err.contains("no such date exists"), "{err}");
    assert_eq!(run(&["--check-config"], &[]).0, Some(0));
    let (code, _, err) = run(&["--check-config"], &[("EVENTMQ_MISFIRE", "two")]);
    assert_eq!(code, Some(2));
    assert!(err.contains("EVENTMQ_MISFIRE = \"two\""), "{err}");
    let (code, out, _) = run(&["--print-config", "--misfire", "all"], &[]);
    assert_eq!(code, Some(0));
    assert!(out.contains("misfire = all"), "{out}");
    assert!(run(&["--help"], &[]).1.contains("--preview"));
    // The original's settings are accepted.
    let old = [
        ("EVENTMQ_RQ_HOST", "redis.example"),
        ("EVENTMQ_REDIS_CLIENT_CLASS", "redis.StrictRedis"),
        ("EVENTMQ_REDIS_CLIENT_CLASS_KWARGS", "{}"),
        ("EVENTMQ_REDIS_STARTUP_ERROR_HARD_KILL", "false"),
        ("EVENTMQ_RECONNECT_TIMEOUT", "5"),
        ("EVENTMQ_HEARTBEAT_LIVENESS", "3"),
    ];
    assert_eq!(run(&["--check-config"], &old).0, Some(0));
}
