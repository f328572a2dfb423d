//! The job manager inside another program: functions of that program as jobs.

use eventmq::jobmanager::{
    CommandConfig, FunctionError, Functions, JobManager, JobManagerConfig, JobManagerError,
    PythonConfig,
};
use eventmq::metrics::Counter;
use eventmq_tests::manager::{Client, call, wait_for_slots};
use eventmq_tests::router::{Router, Target};
use serde_json::json;
use std::time::Duration;

fn functions() -> Functions {
    Functions::new()
        .register("sums", "add", |(a, b): (i64, i64)| Ok(a + b))
        .register("sums", "small", |(n,): (i64,)| Ok(i8::try_from(n)?))
        .register("bad", "panics", |(): ()| -> Result<(), FunctionError> {
            panic!("no way out")
        })
        .register("bad", "nan", |(): ()| Ok(f64::NAN))
        .register("slow", "sleep", |(ms,): (u64,)| {
            std::thread::sleep(Duration::from_millis(ms));
            Ok(ms)
        })
        .register_raw("raw", "context", |context| {
            Ok(json!([context.args, context.kwargs, context.is_over()]))
        })
}

/// What a declared job may say of its failure.
#[derive(Debug)]
struct Negative(f64);

impl std::fmt::Display for Negative {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} has no root", self.0)
    }
}

eventmq::job! {
    /// Declared once, asked for by a client that knows its types, or by any other.
    ROOT in "sums" = fn root(number: f64, digits: u32) -> Result<(f64, String), Negative> {
        match number {
            number if number < 0.0 => Err(Negative(number)),
            number => Ok((number.sqrt(), format!("{:.*}", digits as usize, number.sqrt()))),
        }
    }

    /// Its result is no JSON.
    NAN in "sums" = fn nan() -> Result<f64, String> {
        Ok(f64::NAN)
    }
}

#[test]
fn declared_jobs_are_the_same_on_both_sides() {
    let router = Router::ours(Target::Inline);
    let config = JobManagerConfig {
        functions: functions().job(ROOT).job(NAN),
        ..config(&router)
    };
    let manager = JobManager::start(config).expect("it starts");
    let client = eventmq::client::Client::connect(&router.addresses().frontend).expect("a client");
    assert_eq!(
        client.call(ROOT.with((2.25, 2))),
        Ok((1.5, "1.50".to_owned()))
    );
    let failed = client.call(ROOT.with((-1.0, 0))).unwrap_err().to_string();
    assert!(
        failed.contains("Negative") && failed.contains("-1 has no root"),
        "{failed}"
    );
    let failed = client.call(NAN.with(())).unwrap_err().to_string();
    assert!(failed.contains("ResultError"), "{failed}");
    // A client that knows nothing of it: by name, and with what does not fit.
    let mut plain = Client::connect(&router);
    let message = json!(["run", {"path": "sums", "callable": "root", "args": [4],
                                 "kwargs": {"digits": 1}}]);
    let ended = plain.run_with("", message.to_string().as_bytes());
    assert_eq!(ended.result, json!({"value": [2.0, "2.0"]}));
    for args in [
        json!([]),
        json!([1]),
        json!([1, 2, 3]),
        json!(["x", 1]),
        json!([1, -1]),
    ] {
        assert_eq!(plain.run("sums.root", args).error(), "ArgumentError");
    }
    assert_eq!(plain.value("sums.add", json!([1, 2])), 3);
    drop(manager);
}

fn config(router: &Router) -> JobManagerConfig {
    JobManagerConfig {
        brokers: vec![router.addresses().backend.parse().expect("an address")],
        concurrent_jobs: 2,
        functions: functions(),
        ..JobManagerConfig::default()
    }
}

#[test]
fn functions_are_jobs() {
    let mut router = Router::ours(Target::Inline);
    let manager = JobManager::start(config(&router)).expect("it starts");
    let mut client = Client::connect(&router);
    assert_eq!(client.value("sums.add", json!([40, 2])), 42);
    assert_eq!(client.value("bad.nan", json!([])), json!(null));
    let message = json!(["run", {"path": "raw", "callable": "context", "args": [1],
                                 "kwargs": {"k": "v"}}]);
    let ended = client.run_with("", message.to_string().as_bytes());
    assert_eq!(ended.result["value"], json!([[1], {"k": "v"}, false]));
    for (name, args, kind) in [
        ("sums.small", json!([1000]), "TryFromIntError"),
        ("sums.add", json!([1]), "ArgumentError"),
        ("sums.add", json!(["x", 1]), "ArgumentError"),
        ("bad.panics", json!([]), "Panic"),
        ("sums.nothing", json!([]), "NotRegistered"),
        ("exec.sh", json!([]), "CommandNotAllowed"),
    ] {
        let ended = client.run(name, args);
        assert_eq!(
            (ended.status.as_str(), ended.error()),
            ("error", kind),
            "{name}: {ended:?}"
        );
    }
    assert_eq!(client.run_with("", b"nonsense").status, "error");
    // A late one ends in time, and its slot can be used at once, although its thread cannot.
    for _ in 0..2 {
        let late = call("slow.sleep", json!([3000])).to_string();
        assert_eq!(
            client.run_with("timeout:1", late.as_bytes()).status,
            "timeout"
        );
    }
    assert_eq!(client.value("sums.add", json!([1, 2])), 3);
    wait_for_slots(&mut router, 1, 2);
    // A running one is finished first.
    let running = client.send(
        "reply-requested",
        call("slow.sleep", json!([500])).to_string().as_bytes(),
    );
    client.receive_until("accepted", eventmq_tests::PATIENCE, |client| {
        client.accepted.contains_key(&running)
    });
    wait_for_slots(&mut router, 1, 1);
    manager.shutdown();
    let counters = manager.wait().expect("it ends in order");
    client.receive_until("its end", eventmq_tests::PATIENCE, |client| {
        client.ended.contains_key(&running)
    });
    assert_eq!(client.ended[&running][0].status, "ok");
    assert_eq!(counters.get(Counter::JobsTimedOut), 2);
    assert_eq!(counters.get(Counter::JobsFailed), 7);
}

#[test]
fn processes_need_a_program_that_can_start_them() {
    let router = Router::ours(Target::Inline);
    for config in [
        JobManagerConfig {
            python: Some(PythonConfig::default()),
            ..config(&router)
        },
        JobManagerConfig {
            commands: CommandConfig {
                allowed: vec!["/bin/sh".into()],
                ..CommandConfig::default()
            },
            ..config(&router)
        },
    ] {
        let error = JobManager::start(config).expect_err("this program is no job manager");
        assert!(matches!(error, JobManagerError::Config(_)), "{error}");
    }
}

#[test]
fn dropping_ends_it() {
    let mut router = Router::ours(Target::Inline);
    let manager = JobManager::start(config(&router)).expect("it starts");
    wait_for_slots(&mut router, 1, 2);
    drop(manager);
    wait_for_slots(&mut router, 0, 0);
}
