//! What a message costs must not depend on how much the peers have put into the tables before:
//! else a flood of it stops everybody. Counted in looks at table entries (`broker::steps`).

use super::rig::Rig;
use crate::broker::steps;
use crate::ids::ConnId;
use crate::metrics::Counter;

const DEFAULT: &str = r#"[[10, "default"]]"#;
const FEW: usize = 32;
const MANY: usize = 2_048;
/// Repetitions of the message that is measured.
const TIMES: usize = 8;

/// A worker with `n` jobs in flight that have one msgid, and the client that asked for them.
fn busy(n: usize, capabilities: &str, headers: &str) -> (Rig, ConnId, ConnId) {
    let mut rig = Rig::new();
    rig.checks = false;
    let worker = rig.worker_with("w", DEFAULT, capabilities, n);
    let client = rig.client("c");
    for _ in 0..n {
        rig.request_with(client, "same", "default", headers);
    }
    assert_eq!(rig.slots("w"), Some((0, n as u64, "live")));
    (rig, worker, client)
}

/// Steps that `message` takes, when given `n` things as `setup` makes them.
fn steps_with<T>(
    n: usize,
    setup: impl Fn(usize) -> (Rig, T),
    message: impl Fn(&mut Rig, &T),
) -> u64 {
    let (mut rig, state) = setup(n);
    rig.checks = false;
    let before = steps::taken();
    for _ in 0..TIMES {
        message(&mut rig, &state);
    }
    let taken = steps::taken() - before;
    rig.broker.check_invariants();
    taken
}

/// The same message with few and with many things takes the same number of steps.
fn assert_flat<T>(what: &str, setup: impl Fn(usize) -> (Rig, T), message: impl Fn(&mut Rig, &T)) {
    let few = steps_with(FEW, &setup, &message);
    let many = steps_with(MANY, &setup, &message);
    println!("{what}: {few} steps with {FEW}, {many} with {MANY}");
    assert!(few > 0, "{what}: nothing was counted");
    assert!(many <= few + few / 2, "{what}: {few} steps became {many}");
}

#[test]
fn ends_of_jobs_do_not_pass_other_jobs() {
    let owing = |n| {
        let (rig, worker, _) = busy(n, "", "reply-requested");
        (rig, worker)
    };
    assert_flat("READY, all jobs owe a REPLY", owing, |rig, worker| {
        rig.ready(*worker);
    });
    assert_flat("REPLY of an unknown job", owing, |rig, worker| {
        rig.reply(*worker, "other");
    });
    assert_flat("REPLY of one of many equal msgids", owing, |rig, worker| {
        rig.reply(*worker, "same");
    });
    let plain = |n| {
        let (rig, worker, _) = busy(n, "", "");
        (rig, worker)
    };
    assert_flat("READY, no job owes a REPLY", plain, |rig, worker| {
        rig.ready(*worker);
    });
    let replied = |n| {
        let (mut rig, worker, _) = busy(n, "completions", "reply-requested");
        for _ in 0..n {
            rig.reply(worker, "same");
        }
        (rig, worker)
    };
    assert_flat("REPLY, all have been replied to", replied, |rig, worker| {
        rig.reply(*worker, "same");
    });
    assert_flat("READY, all have been replied to", replied, |rig, worker| {
        rig.done(*worker, "same", "ok");
    });
    let half = |n| {
        let (mut rig, worker, _) = busy(n, "completions", "reply-requested");
        for _ in 0..n / 2 {
            rig.reply(worker, "same");
        }
        (rig, worker)
    };
    assert_flat("REPLY, half have been replied to", half, |rig, worker| {
        rig.reply(*worker, "same");
    });
    assert_flat("READY, half have been replied to", half, |rig, worker| {
        rig.done(*worker, "same", "ok");
    });
    assert_flat("READY `refused`", half, |rig, worker| {
        rig.done(*worker, "same", "refused");
    });
    assert_flat("REPLY and READY in turn", half, |rig, worker| {
        rig.reply(*worker, "same");
        rig.done(*worker, "same", "ok");
    });
}

#[test]
fn registering_again_does_not_pass_jobs_that_stay() {
    for capabilities in ["", "instance:a", "completions,instance:a"] {
        let setup = |n| {
            let (mut rig, worker, _) = busy(n, capabilities, "reply-requested");
            rig.reply(worker, "same");
            (rig, worker)
        };
        let what = format!("INFORM with {capabilities:?}");
        assert_flat(&what, setup, |rig, worker| {
            rig.inform(*worker, DEFAULT, capabilities);
        });
    }
    // Jobs of an earlier connection that the same process still runs.
    let setup = |n| {
        let (mut rig, worker, _) = busy(n, "instance:a", "reply-requested");
        rig.lose(worker, 0);
        (rig, worker)
    };
    let reconnected = |n| {
        let (mut rig, _) = setup(n);
        let worker = rig.open(crate::ids::Socket::Backend, "w");
        rig.inform(worker, DEFAULT, "instance:a");
        assert_eq!(rig.slots("w"), Some((0, n as u64, "live")));
        (rig, worker)
    };
    assert_flat("INFORM of the same process", reconnected, |rig, worker| {
        rig.inform(*worker, DEFAULT, "instance:a");
    });
}

#[test]
fn jobs_that_come_back_do_not_pass_each_other() {
    let setup = |n| {
        let (mut rig, worker, _) = busy(n, "", "reply-requested");
        rig.lost(worker);
        let wires = rig.wires(worker);
        (rig, (worker, wires))
    };
    let sent = std::cell::Cell::new(0);
    assert_flat(
        "a message that was not sent",
        setup,
        |rig, (worker, wires)| {
            let at = wires.len() - 1 - sent.get() % TIMES;
            sent.set(sent.get() + 1);
            rig.unsent(*worker, &wires[at]);
        },
    );
}

/// A worker among `n` others, each with a list of queues of its own kind: the same names, other
/// weights.
fn among_others(n: usize, queues: usize) -> (Rig, ConnId) {
    let mut rig = Rig::new();
    rig.checks = false;
    for at in 0..=n {
        rig.worker(&format!("w{at}"), &list(queues, at), 1);
    }
    let conn = rig.worker("last", &list(queues, n + 1), 1);
    (rig, conn)
}

fn list(queues: usize, weight: usize) -> String {
    let pairs: Vec<String> = (0..queues)
        .map(|queue| format!("[{}, \"q{queue}\"]", weight + 1))
        .collect();
    format!("[{}]", pairs.join(","))
}

#[test]
fn registering_does_not_pass_the_lists_of_other_workers() {
    for queues in [4, 40] {
        let setup = |n: usize| among_others(n / 8, queues);
        let weight = std::cell::Cell::new(1_000_000);
        assert_flat(&format!("INFORM, {queues} queues"), setup, |rig, conn| {
            weight.set(weight.get() + 1);
            rig.inform(*conn, &list(queues, weight.get()), "");
        });
        assert_flat(
            &format!("KBYE, INFORM, {queues} queues"),
            setup,
            |rig, conn| {
                rig.send(*conn, &["KBYE", "k"]);
                rig.inform(*conn, &list(queues, 7), "");
            },
        );
    }
}

#[test]
fn a_reply_nobody_waits_for_is_still_counted() {
    let (mut rig, worker, client) = busy(3, "completions", "reply-requested");
    rig.got(client);
    for _ in 0..4 {
        rig.reply(worker, "same");
    }
    assert_eq!(rig.got(client).len(), 3, "each job is answered once");
    assert_eq!(rig.count(Counter::RepliesUnknown), 1);
}

#[test]
fn a_worker_that_leaves_again_and_again_has_one_timer_for_it() {
    let mut rig = Rig::with(|config| config.kill_grace_period_ms = 2_000);
    let worker = rig.worker("w", DEFAULT, 1);
    let client = rig.client("c");
    rig.ask(client, "a", "default");
    let leave = |rig: &mut Rig| {
        rig.send(worker, &["KBYE", "k"]);
        rig.inform(worker, DEFAULT, "");
    };
    leave(&mut rig);
    let timers = rig.broker.timers.len();
    for _ in 0..100 {
        leave(&mut rig);
    }
    assert_eq!(rig.broker.timers.len(), timers);
    // The time counts from the last KBYE.
    rig.sleep(1_500);
    rig.send(worker, &["KBYE", "k"]);
    rig.sleep(1_900);
    assert_eq!(rig.count(Counter::JobsUnknown), 0);
    rig.sleep(200);
    assert_eq!((rig.slots("w"), rig.count(Counter::JobsUnknown)), (None, 1));
}
