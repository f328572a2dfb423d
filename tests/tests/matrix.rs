//! Every component with every other: {our, original} broker × {our, original} job manager ×
//! {our, original} scheduler, and in each of these worlds both clients, ours and the original.
//! Jobs leave a line in a file; the lines are what counts: each job once, schedules again and again
//! until they are ended.
//!
//! The original's broker confirms only what it can hand out at once and sends no results, so there
//! our client is not asked for either.

use eventmq::client::{Accepted, Client, ClientConfig, Request, Schedule, SendError};
use eventmq_tests::eventually;
use eventmq_tests::manager::{Manager, StartManager, wait_for_slots};
use eventmq_tests::peers::original;
use eventmq_tests::process::Process;
use eventmq_tests::router::{Router, Target};
use eventmq_tests::scheduler::Scheduler;
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// How long Python may take to start while everything else is being tested, too.
const START: Duration = Duration::from_secs(60);
/// Jobs of each client.
const JOBS: usize = 100;
const SLOTS: u64 = 4;

/// Whose component it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    Ours,
    Original,
}

macro_rules! worlds {
    ($($name:ident: $router:ident, $manager:ident, $scheduler:ident;)*) => {$(
        #[test]
        fn $name() {
            all_work_together(Target::$router, Whose::$manager, Whose::$scheduler);
        }
    )*};
}

// Broker, job manager, scheduler. Our broker in either threading.
worlds! {
    ours_ours_ours: Inline, Ours, Ours;
    ours_ours_original: Dedicated, Ours, Original;
    ours_original_ours: Dedicated, Original, Ours;
    ours_original_original: Inline, Original, Original;
    original_ours_ours: Original, Ours, Ours;
    original_ours_original: Original, Ours, Original;
    original_original_ours: Original, Original, Ours;
    original_original_original: Original, Original, Original;
}

/// What must live as long as the world.
struct World {
    router: Router,
    manager: Manager,
    dir: TempDir,
}

impl World {
    /// How often each word was recorded.
    fn runs(&self) -> HashMap<String, usize> {
        let mut runs = HashMap::new();
        for word in self.manager.trace() {
            *runs.entry(word).or_default() += 1;
        }
        runs
    }

    fn count(&self, word: &str) -> usize {
        self.runs().get(word).copied().unwrap_or(0)
    }

    /// The original's scheduler; it works without Redis, because nothing listens there.
    fn original_scheduler(&self) -> Process {
        let program = original("emq-scheduler").expect("looked for before");
        let mut command = Command::new(program);
        command
            .env("EVENTMQ_CONFIG_FILE", "/nonexistent")
            .env("EVENTMQ_SCHEDULER_ADDR", &self.router.addresses().frontend)
            .env("EVENTMQ_RQ_PORT", "1")
            .current_dir(self.dir.path());
        let log = self.dir.path().join("scheduler.log");
        Process::start_group("emq-scheduler", &mut command, &log).expect("emq-scheduler starts")
    }

    /// The original's client library, to its end.
    #[track_caller]
    fn original_client(&self, args: &[&str]) {
        let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
        let mut command = Command::new(original("python").expect("looked for before"));
        command
            .arg(python.join("client.py"))
            .arg(&self.router.addresses().frontend)
            .args(args)
            .env("PYTHONPATH", &python)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("EVENTMQ_CONFIG_FILE", "/nonexistent")
            .current_dir(self.dir.path());
        let log = self.dir.path().join("client.log");
        let mut client = Process::start_group("client.py", &mut command, &log).expect("starts");
        assert_eq!(client.wait_code(START), 0, "{}", client.log_tail());
    }

    fn our_client(&self) -> Client {
        let config = ClientConfig::new(&self.router.addresses().frontend)
            .expect("an address")
            .accept_timeout(START)
            .result_timeout(START);
        Client::start_with(config).expect("a client")
    }
}

fn record(word: &str) -> Request {
    Request::new("jobs_x.record").arg(word)
}

/// Ours confirms, the original's says nothing.
#[track_caller]
fn check(accepted: Result<Accepted, SendError>, ours: bool) {
    let expected = match ours {
        true => Accepted::Confirmed,
        false => Accepted::Unconfirmed,
    };
    assert_eq!(accepted, Ok(expected));
}

fn all_work_together(target: Target, manager: Whose, scheduler: Whose) {
    // Its client is in every world.
    if original("emq-router").is_none() {
        return;
    }
    let mut router = Router::start(target).expect("looked for before");
    let start = StartManager::ours(&router).set("concurrent_jobs", &SLOTS.to_string());
    let start = match manager {
        Whose::Ours => start,
        Whose::Original => start.original(),
    };
    let manager = start.start();
    let dir = tempfile::tempdir().expect("a directory");
    wait_for_slots(&mut router, 1, SLOTS);
    let ours = target.is_ours();
    let mut world = World {
        router,
        manager,
        dir,
    };

    // Jobs: each runs once, whoever sent it.
    world.original_client(&["defer", "theirs", &JOBS.to_string()]);
    let client = world.our_client();
    for n in 0..JOBS {
        check(client.defer_job(record(&format!("mine-{n}"))), ours);
    }
    if ours {
        let value = client.call(record("asked").returns::<String>());
        assert_eq!(value.as_deref(), Ok("asked"));
    }
    let expected = 2 * JOBS + usize::from(ours);
    eventually("all jobs have run", START, || match world.runs().len() {
        runs if runs == expected => Ok(()),
        runs => Err(format!("{runs} of {expected}")),
    });
    // All slots are free again: nothing is under way that could run a second time.
    wait_for_slots(&mut world.router, 1, SLOTS);
    let runs = world.runs();
    for n in 0..JOBS {
        for whose in ["theirs", "mine"] {
            assert_eq!(runs.get(&format!("{whose}-{n}")), Some(&1));
        }
    }

    // Schedules: they run again and again, until whoever made them ends them.
    let frontend = world.router.addresses().frontend.clone();
    let _scheduler: Box<dyn std::any::Any> = match scheduler {
        Whose::Ours => {
            let mut scheduler = Scheduler::start(&frontend, world.dir.path(), &[]);
            scheduler.wait_until_registered();
            Box::new(scheduler)
        }
        Whose::Original => Box::new(world.original_scheduler()),
    };
    eventually("the scheduler is registered", START, || {
        let shown = world.router.admin("ROUTER_SHOW_SCHEDULERS");
        match shown["connected_schedulers"]
            .as_object()
            .map_or(0, |s| s.len())
        {
            1 => Ok(()),
            _ => Err(shown.to_string()),
        }
    });
    world.original_client(&["schedule", "their-tick", "1"]);
    check(
        client.schedule(Schedule::every(1, &record("my-tick"))),
        ours,
    );
    for word in ["their-tick", "my-tick"] {
        eventually(&format!("{word} runs three times"), START, || {
            match world.count(word) {
                runs if runs >= 3 => Ok(()),
                runs => Err(runs.to_string()),
            }
        });
    }
    world.original_client(&["unschedule", "their-tick"]);
    // Ours goes on and tells that time passes; a run may have been on its way.
    let stops = |word: &str, other: &str| {
        eventually(&format!("{word} ends"), START, || {
            let before = world.count(word);
            let others = world.count(other);
            eventually(&format!("{other} goes on"), START, || {
                match world.count(other) {
                    runs if runs >= others + 3 => Ok(()),
                    runs => Err(format!("{others}, then {runs}")),
                }
            });
            match world.count(word) {
                after if after == before => Ok(()),
                after => Err(format!("{before}, then {after}")),
            }
        });
    };
    stops("their-tick", "my-tick");
    world.original_client(&["schedule", "late-tick", "1"]);
    check(client.unschedule(&record("my-tick")), ours);
    stops("my-tick", "late-tick");
}
