//! One of our schedulers as a process, with an administrative address and a state of its own.

use crate::PATIENCE;
use crate::dealer::{Dealer, VERSION, admin, show};
use crate::peers;
use crate::process::{Process, start_listening};
use crate::router::find_number;
use std::path::Path;
use std::process::Command;
use zmq::Context;

/// A running `emq-scheduler`; killed when dropped.
#[derive(Debug)]
pub struct Scheduler {
    process: Process,
    admin: String,
}

impl Scheduler {
    /// The command for one that works for the broker at `frontend` and keeps its state in `dir`.
    pub fn command(frontend: &str, dir: &Path, env: &[(&str, &str)]) -> Command {
        let mut command = Command::new(peers::our_binary("emq-scheduler"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("EVENTMQ_") {
                command.env_remove(name);
            }
        }
        command
            .env("EVENTMQ_CONFIG_FILE", "/dev/null")
            .env("EVENTMQ_SCHEDULER_ADDR", frontend)
            .env("EVENTMQ_SCHEDULER_ADMINISTRATIVE_ADDR", "tcp://127.0.0.1:0")
            .env("EVENTMQ_STATE_DIR", dir.join("state"))
            .envs(env.iter().copied())
            .arg("--print-addresses")
            .current_dir(dir);
        command
    }

    /// Starts one.
    ///
    /// # Panics
    ///
    /// If it does not come up.
    #[track_caller]
    pub fn start(frontend: &str, dir: &Path, env: &[(&str, &str)]) -> Scheduler {
        let mut command = Scheduler::command(frontend, dir, env);
        let log = dir.join("scheduler.log");
        let (process, addresses) = start_listening("emq-scheduler", &mut command, &log, 1)
            .unwrap_or_else(|e| panic!("emq-scheduler did not come up: {e}"));
        Scheduler {
            process,
            admin: addresses["administrative"].clone(),
        }
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Its administrative address.
    pub fn admin_addr(&self) -> &str {
        &self.admin
    }

    /// An administrative request and its answer.
    ///
    /// # Panics
    ///
    /// If it is not answered.
    #[track_caller]
    pub fn admin(&mut self, command: &str) -> serde_json::Value {
        let json = admin(&Context::new(), &self.admin, command)
            .unwrap_or_else(|e| panic!("{e}; it logged:\n{}", self.process.log_tail()));
        serde_json::from_slice(&json)
            .unwrap_or_else(|e| panic!("{command}: {}: {e}", show(&[json])))
    }

    /// One counter of COUNTERS.
    #[track_caller]
    pub fn counter(&mut self, name: &str) -> u64 {
        find_number(&self.admin("COUNTERS"), name).unwrap_or_else(|| panic!("no counter {name}"))
    }

    /// Waits until the broker has it registered.
    ///
    /// # Panics
    ///
    /// If that does not happen.
    #[track_caller]
    pub fn wait_until_registered(&mut self) {
        crate::eventually("the scheduler is registered", PATIENCE, || {
            let status = self.admin("STATUS");
            if status["registered"] == true {
                Ok(())
            } else {
                Err(status.to_string())
            }
        });
    }

    /// Its schedules, as SCHEDULER_SHOW_SCHEDULES shows them, from all pages.
    #[track_caller]
    pub fn schedules(&mut self) -> Vec<serde_json::Value> {
        let context = Context::new();
        let dealer = Dealer::connect(&context, &self.admin, Some(b"pages"));
        let mut after = String::new();
        let mut all = Vec::new();
        loop {
            dealer.send(&["SCHEDULER_SHOW_SCHEDULES", "page", &after]);
            let reply = dealer.expect("REPLY");
            assert_eq!(reply[1], VERSION);
            let page: serde_json::Value =
                serde_json::from_slice(&reply[4]).expect("an answer in JSON");
            all.extend(page["schedules"].as_array().expect("a list").clone());
            match page["next"].as_str() {
                Some(next) => next.clone_into(&mut after),
                None => return all,
            }
        }
    }
}
