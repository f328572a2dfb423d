//! Loads on routers that run as programs of their own: ours and EventMQ 0.3.13.

mod common;

use common::{json, printed};
use eventmq_tests::peers::our_binary;
use eventmq_tests::router::{Start, Target};

#[test]
fn emq_router_is_started_measured_and_asked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.json");
    let text = printed(&format!(
        "run --router {} --duration 0.3 --warmup 0.1 --quiet --json {}",
        our_binary("emq-router").display(),
        file.display()
    ));
    assert!(text.starts_with("router@"), "{text}");
    let report = json(&file);
    let run = &report["runs"][0];
    assert!(run["cpu"]["us_per_job"].as_f64().unwrap() > 0.0);
    let latency = &run["broker_view"]["latency"];
    assert!(latency["total"]["count"].as_u64().unwrap() > 0, "{latency}");
}

#[test]
fn original_router_is_measured_by_address() {
    let Some(mut router) = Start::new(Target::Original).start() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.json");
    let addresses = router.addresses().clone();
    for load in ["J120", "L1"] {
        printed(&format!(
            "run --workload {load} --frontend {} --backend {} --admin {} --pid {} --duration 0.5 \
             --warmup 0.1 --quiet --json {}",
            addresses.frontend,
            addresses.backend,
            addresses.admin,
            router.process().pid(),
            file.display()
        ));
        let report = json(&file);
        let run = &report["runs"][0];
        let jobs = run["jobs"].as_u64().unwrap();
        // It gives no results: a job ends when its worker has done it.
        assert!(
            jobs > 0 && run["ends"]["without_result"].as_u64().unwrap() > 0,
            "{run}"
        );
        assert!(run["stages"]["finish"]["count"].as_u64().unwrap() > 0);
        assert!(run["broker_view"]["status"].is_object());
    }
}
