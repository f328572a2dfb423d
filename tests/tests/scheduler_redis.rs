//! `emq-scheduler` with its schedules in Redis: the layout of the original, what the original has
//! stored, a server that goes away, and two schedulers on one server.

use eventmq_tests::dealer::{Dealer, Frames, show};
use eventmq_tests::peers::{original, workspace};
use eventmq_tests::process::Process;
use eventmq_tests::redis::Redis;
use eventmq_tests::router::{Router, Target};
use eventmq_tests::scheduler::Scheduler;
use eventmq_tests::{PATIENCE, eventually};
use nix::sys::signal::Signal;
use std::cell::Cell;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use zmq::Context;

fn call(word: &str) -> String {
    format!(
        r#"["run", {{"callable": "record", "path": "jobs_x", "args": ["{word}"], "kwargs": {{}}, "class_args": [], "class_kwargs": {{}}}}]"#
    )
}

struct World {
    redis: Redis,
    router: Router,
    worker: Dealer,
    client: Dealer,
    dirs: [TempDir; 2],
    received: Cell<u64>,
}

impl World {
    fn new(target: Target) -> Option<World> {
        let redis = Redis::start()?;
        let router = Router::start(target)?;
        let context = Context::new();
        let worker = Dealer::connect(&context, &router.addresses().backend, Some(b"worker"));
        worker.inform_worker(r#"[[10, "default"]]"#);
        worker.ready(500);
        let client = Dealer::connect(&context, &router.addresses().frontend, Some(b"client"));
        let dirs = [0, 1].map(|_| tempfile::tempdir().expect("a directory"));
        Some(World {
            redis,
            router,
            worker,
            client,
            dirs,
            received: Cell::new(0),
        })
    }

    fn scheduler(&self, n: usize) -> Scheduler {
        let port = self.redis.port().to_string();
        let env = [
            ("EVENTMQ_SCHEDULE_STORE", "redis"),
            ("EVENTMQ_RQ_HOST", "127.0.0.1"),
            ("EVENTMQ_RQ_PORT", port.as_str()),
        ];
        let frontend = &self.router.addresses().frontend;
        let mut scheduler = Scheduler::start(frontend, self.dirs[n].path(), &env);
        scheduler.wait_until_registered();
        scheduler
    }

    fn schedule(&self, command: &str, headers: &str, interval: &str, word: &str, cron: &str) {
        self.client.send(&[
            command,
            "m",
            "default",
            headers,
            interval,
            &call(word),
            cron,
        ]);
    }

    /// The next message for the worker, which says meanwhile that it lives. A run gives its slot
    /// back and is counted.
    fn receive(&self, patience: Duration) -> Option<Frames> {
        let end = Instant::now() + patience;
        loop {
            self.worker.send(&["HEARTBEAT", "h", "1.0"]);
            let left = end.saturating_duration_since(Instant::now());
            if let Some(run) = self.worker.receive(left.min(Duration::from_secs(1))) {
                assert_eq!(run[2], b"REQUEST", "{}", show(&run));
                self.worker.send(&["READY", "r"]);
                self.received.set(self.received.get() + 1);
                return Some(run);
            }
            if left.is_zero() {
                return None;
            }
        }
    }

    fn next_run(&self, word: &str) {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let run = self
                .receive(left)
                .unwrap_or_else(|| panic!("no run of {word}"));
            if run[6] == call(word).as_bytes() {
                return;
            }
        }
    }

    fn wait_for_list(&self, len: usize) -> Vec<String> {
        eventually("the list has its length", PATIENCE, || {
            let list = self.redis.ask(&["LRANGE", "interval_jobs", "0", "-1"]);
            if list.len() == len {
                Ok(list)
            } else {
                Err(format!("{list:?}"))
            }
        })
    }
}

#[test]
fn the_layout_is_that_of_the_original() {
    let Some(world) = World::new(Target::Inline) else {
        return;
    };
    let mut scheduler = world.scheduler(0);
    // Bug 33 of the original: each further SCHEDULE lengthened the list.
    for _ in 0..3 {
        world.schedule("SCHEDULE", "guarantee,run_count:9", "60", "a", "");
        world.next_run("a");
    }
    world.schedule("SCHEDULE", "nohaste", "-1", "b", "0 0 1 1 *");
    let list = world.wait_for_list(2);
    // Bug 37: the run at once counts in what is stored.
    let stored = |headers: &str, interval: &str, word: &str, cron: &str| {
        let message = serde_json::Value::String(call(word)).to_string();
        format!(r#"["default", "{headers}", "{interval}", {message}, "{cron}"]"#)
    };
    let mut bodies: Vec<String> = list
        .iter()
        .flat_map(|id| world.redis.ask(&["GET", id]))
        .collect();
    bodies.sort();
    assert_eq!(
        bodies,
        [
            stored("guarantee,run_count:8", "60", "a", ""),
            stored("nohaste", "-1", "b", "0 0 1 1 *"),
        ]
    );
    let mut shown: Vec<_> = scheduler
        .schedules()
        .iter()
        .map(|s| s["id"].clone())
        .collect();
    shown.sort_by_key(ToString::to_string);
    let mut ids = list.clone();
    ids.sort();
    assert_eq!(shown, ids);
    for word in ["a", "b"] {
        world.schedule("UNSCHEDULE", "", "-1", word, "");
    }
    world.wait_for_list(0);
    for id in &list {
        assert!(world.redis.ask(&["GET", id]).is_empty());
    }
    assert!(
        world
            .redis
            .ask(&["HKEYS", "eventmq:scheduler:timing"])
            .is_empty()
    );
}

#[test]
fn what_the_original_has_stored_is_taken_over() {
    let Some(program) = original("emq-scheduler") else {
        return;
    };
    let Some(mut world) = World::new(Target::Original) else {
        return;
    };
    let mut command = Command::new(program);
    command
        .env("EVENTMQ_CONFIG_FILE", "/nonexistent")
        .env("EVENTMQ_SCHEDULER_ADDR", &world.router.addresses().frontend)
        .env("EVENTMQ_RQ_HOST", "127.0.0.1")
        .env("EVENTMQ_RQ_PORT", world.redis.port().to_string())
        .env("PYTHONPATH", workspace().join("tests/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(world.dirs[1].path());
    let log = world.dirs[1].path().join("original.log");
    let mut theirs = Process::start_group("the original emq-scheduler", &mut command, &log)
        .expect("python starts");
    eventually(
        "the original is registered",
        Duration::from_secs(60),
        || {
            let shown = world.router.admin("ROUTER_SHOW_SCHEDULERS").to_string();
            if shown.contains("hb") {
                Ok(())
            } else {
                Err(shown)
            }
        },
    );
    // A second time, so that its list has the hash twice.
    for _ in 0..2 {
        world.schedule("SCHEDULE", "guarantee", "1", "interval \u{e9}", "");
    }
    world.schedule("SCHEDULE", "nohaste,run_count:2", "1", "twice", "");
    world.schedule("SCHEDULE", "guarantee", "-1", "cron", "* * * * * *");
    eventually("it has stored them", Duration::from_secs(60), || {
        let list = world.redis.ask(&["LRANGE", "interval_jobs", "0", "-1"]);
        if list.len() >= 4 {
            Ok(())
        } else {
            Err(format!("{list:?}"))
        }
    });
    theirs.signal(Signal::SIGKILL);
    theirs.wait(PATIENCE);
    while world.receive(Duration::from_millis(300)).is_some() {}
    let mut ours = world.scheduler(0);
    let restored = ours.counter("schedules_restored");
    assert!(restored >= 2, "{restored}");
    assert!(ours.counter("store_folded") >= 1);
    for word in ["interval \u{e9}", "cron", "interval \u{e9}", "cron"] {
        world.next_run(word);
    }
    let list = world.redis.ask(&["LRANGE", "interval_jobs", "0", "-1"]);
    let mut once = list.clone();
    once.sort();
    once.dedup();
    assert_eq!(list.len(), once.len(), "{list:?}");
}

#[test]
fn a_store_that_is_away_is_said_and_written_back_to() {
    let Some(mut world) = World::new(Target::Inline) else {
        return;
    };
    world.redis.stop();
    let mut scheduler = world.scheduler(0);
    world.schedule("SCHEDULE", "guarantee", "1", "a", "");
    world.next_run("a");
    world.next_run("a");
    assert_eq!(scheduler.admin("STATUS")["store"], "away");
    assert!(
        scheduler
            .process()
            .log_tail()
            .contains("going on in memory")
    );
    world.redis.start_again();
    let list = world.wait_for_list(1);
    assert_eq!(scheduler.schedules()[0]["id"], list[0].as_str());
    world.next_run("a");
    // Away again, with a change meanwhile.
    world.redis.stop();
    world.schedule("UNSCHEDULE", "guarantee", "1", "a", "");
    world.schedule("SCHEDULE", "nohaste", "60", "b", "");
    eventually("the store is away", PATIENCE, || {
        match scheduler.admin("STATUS")["store"].as_str() {
            Some("away") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    world.redis.start_again();
    eventually("b alone is stored", PATIENCE * 2, || {
        let list = world.redis.ask(&["LRANGE", "interval_jobs", "0", "-1"]);
        let shown = scheduler.schedules();
        if list.len() == 1 && shown.len() == 1 && shown[0]["id"] == list[0].as_str() {
            Ok(())
        } else {
            Err(format!("{list:?} {shown:?}"))
        }
    });
}

#[test]
fn two_schedulers_fire_once_and_one_takes_over() {
    let Some(world) = World::new(Target::Inline) else {
        return;
    };
    let mut first = world.scheduler(0);
    eventually("the first one serves", PATIENCE, || {
        match first.admin("STATUS")["serves"].as_bool() {
            Some(true) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    let mut second = world.scheduler(1);
    // The broker gives it to the newest one, which stands by: the other one serves it.
    world.schedule("SCHEDULE", "guarantee", "-1", "a", "* * * * * *");
    for _ in 0..4 {
        world.next_run("a");
    }
    eventually("the first one has it", PATIENCE, || {
        match first.counter("runs_sent") {
            n if n >= 2 => Ok(()),
            n => Err(n.to_string()),
        }
    });
    assert_eq!(second.admin("STATUS")["serves"], false);
    first.process().signal(Signal::SIGKILL);
    let killed = Instant::now();
    first.process().wait(PATIENCE);
    eventually("the second one serves", PATIENCE, || {
        world.worker.send(&["HEARTBEAT", "h", "1.0"]);
        match second.admin("STATUS")["serves"].as_bool() {
            Some(true) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    eprintln!("taken over after {:.1?}", killed.elapsed());
    for _ in 0..3 {
        world.next_run("a");
    }
    // In good order the lease is given up at once.
    let third = world.scheduler(0);
    drop(third);
    world.schedule("UNSCHEDULE", "", "-1", "a", "");
    world.wait_for_list(0);
    while world.receive(Duration::from_millis(500)).is_some() {}
    // No due time is claimed twice, so a run sent twice would be one too many.
    let claims = world.redis.ask(&["KEYS", "eventmq:scheduler:fire:*"]).len() as u64;
    let received = world.received.get();
    assert!(
        received >= 7 && received <= claims,
        "{received} of {claims}"
    );
}

#[test]
fn a_server_that_refuses_ends_the_start_if_that_is_wanted() {
    let Some(redis) = Redis::start() else { return };
    redis.ask(&["CONFIG", "SET", "requirepass", "secret"]);
    let port = redis.port().to_string();
    let dir = tempfile::tempdir().expect("a directory");
    let env = |password, kill| {
        [
            ("EVENTMQ_SCHEDULE_STORE", "redis"),
            ("EVENTMQ_RQ_HOST", "127.0.0.1"),
            ("EVENTMQ_RQ_PORT", port.as_str()),
            ("EVENTMQ_RQ_PASSWORD", password),
            ("EVENTMQ_REDIS_STARTUP_ERROR_HARD_KILL", kill),
        ]
    };
    let nobody = "tcp://127.0.0.1:1";
    let mut refused = Scheduler::command(nobody, dir.path(), &env("wrong", "true"));
    let output = refused.output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.contains("refuses this scheduler") && !text.contains("wrong"),
        "{text}"
    );
    for env in [env("wrong", "false"), env("secret", "true")] {
        let mut scheduler = Scheduler::start(nobody, dir.path(), &env);
        assert!(scheduler.process().ended().is_none());
    }
}
