//! Weighted LRU slots.

use super::rig::Rig;

const DEFAULT: &str = r#"[[10, "default"]]"#;

/// Sends REQUESTs and tells which worker got each, by its letter; `-` = it waits.
fn picks(rig: &mut Rig, workers: &[(char, crate::ids::ConnId)], queue: &str, n: usize) -> String {
    let client = rig.client(&format!("picker{}", rig.now.mono_ns));
    rig.now.mono_ns += 1;
    (0..n)
        .map(|at| {
            rig.request(client, &format!("p{at}"), queue);
            let got = workers.iter().find(|(_, conn)| !rig.jobs(*conn).is_empty());
            got.map_or('-', |(letter, _)| *letter)
        })
        .collect()
}

#[test]
fn equal_weights_take_turns() {
    let mut rig = Rig::new();
    let workers = ['A', 'B', 'C'].map(|id| (id, rig.worker(&id.to_string(), DEFAULT, 2)));
    assert_eq!(picks(&mut rig, &workers, "default", 7), "ABCABC-");
}

#[test]
fn ready_moves_nobody() {
    let mut rig = Rig::new();
    let workers = ['A', 'B'].map(|id| (id, rig.worker(&id.to_string(), DEFAULT, 1)));
    assert_eq!(picks(&mut rig, &workers, "default", 1), "A");
    rig.ready(workers[0].1);
    assert_eq!(picks(&mut rig, &workers, "default", 2), "BA");
}

#[test]
fn a_joining_worker_goes_behind_its_weight_class() {
    let mut rig = Rig::new();
    let mut workers = ['A', 'B']
        .map(|id| (id, rig.worker(&id.to_string(), DEFAULT, 3)))
        .to_vec();
    assert_eq!(picks(&mut rig, &workers, "default", 1), "A");
    workers.push(('C', rig.worker("C", DEFAULT, 1)));
    workers.push(('H', rig.worker("H", r#"[[11, "default"]]"#, 1)));
    assert_eq!(picks(&mut rig, &workers, "default", 4), "HBAC");
}

#[test]
fn higher_weight_first_each_time_anew() {
    let mut rig = Rig::new();
    let workers = [
        ('L', rig.worker("L", DEFAULT, 2)),
        ('H', rig.worker("H", r#"[[20, "default"]]"#, 3)),
    ];
    assert_eq!(picks(&mut rig, &workers, "default", 4), "HHHL");
    rig.ready(workers[1].1);
    assert_eq!(picks(&mut rig, &workers, "default", 2), "HL");
}

#[test]
fn every_queue_keeps_its_own_order_and_slots_are_shared() {
    let mut rig = Rig::new();
    let both = r#"[[10, "a"], [10, "b"]]"#;
    let workers = ['A', 'B'].map(|id| (id, rig.worker(&id.to_string(), both, 3)));
    assert_eq!(picks(&mut rig, &workers, "a", 1), "A");
    assert_eq!(picks(&mut rig, &workers, "b", 1), "A");
    assert_eq!(picks(&mut rig, &workers, "a", 2), "BA");
    assert_eq!(picks(&mut rig, &workers, "b", 3), "BB-");
}

#[test]
fn a_hand_out_on_ready_is_a_use() {
    let mut rig = Rig::new();
    let workers = ['A', 'B'].map(|id| (id, rig.worker(&id.to_string(), DEFAULT, 0)));
    let client = rig.client("c");
    rig.request(client, "w0", "default");
    rig.ready(workers[0].1);
    assert_eq!(rig.jobs(workers[0].1), ["w0"]);
    rig.ready(workers[0].1);
    rig.ready(workers[1].1);
    assert_eq!(picks(&mut rig, &workers, "default", 3), "BA-");
}

#[test]
fn ready_serves_the_highest_weight_then_the_oldest_job() {
    let mut rig = Rig::new();
    let a = rig.worker("A", r#"[[5, "lo"], [50, "hi"], [50, "hi2"]]"#, 0);
    let client = rig.client("c");
    for (msgid, queue) in [
        ("l1", "lo"),
        ("h1", "hi2"),
        ("h2", "hi"),
        ("h3", "hi2"),
        ("l2", "lo"),
    ] {
        rig.request(client, msgid, queue);
    }
    for _ in 0..6 {
        rig.ready(a);
    }
    assert_eq!(rig.jobs(a), ["h1", "h2", "h3", "l1", "l2"]);
    assert_eq!(
        rig.slots("A"),
        Some((1, 0, "live")),
        "READYs end the oldest jobs"
    );
}

#[test]
fn jobs_of_unserved_queues_merge_with_the_default_queue_by_age() {
    let mut rig = Rig::new();
    let client = rig.client("c");
    for (msgid, queue) in [
        ("a", "x"),
        ("b", "default"),
        ("c", "y"),
        ("d", "x"),
        ("e", ""),
    ] {
        rig.request(client, msgid, queue);
    }
    assert_eq!(
        (rig.queue("x").0, rig.queue("y").0, rig.queue("default").0),
        (2, 1, 2)
    );
    let w = rig.worker("W", DEFAULT, 2);
    assert_eq!(rig.jobs(w), ["a", "b"]);
    // A worker of its own queue that comes first gets it.
    let x = rig.worker("X", r#"[[1, "x"]]"#, 2);
    assert_eq!(rig.jobs(x), ["d"]);
    for _ in 0..3 {
        rig.ready(w);
    }
    assert_eq!(rig.jobs(w), ["c", "e"]);
    // Accepted while its queue is served: bound to it, even when its worker has left.
    rig.request(client, "f", "x");
    rig.request(client, "g", "x");
    assert_eq!(rig.jobs(x), ["f"]);
    rig.send(x, &["KBYE", "k"]);
    assert!(rig.jobs(w).is_empty());
    assert_eq!(rig.queue("x").0, 1);
    rig.sleep_alive(9_000, &[w]);
    rig.request(client, "h", "x");
    assert!(rig.jobs(w).is_empty(), "still served for queue_grace");
    rig.sleep_alive(2_000, &[w]);
    rig.request(client, "i", "x");
    assert_eq!(rig.jobs(w), ["i"]);
    let x = rig.worker("X2", r#"[[1, "x"]]"#, 3);
    assert_eq!(rig.jobs(x), ["g", "h"]);
}

#[test]
fn empty_unserved_queues_are_forgotten() {
    let mut rig = Rig::new();
    let client = rig.client("c");
    rig.request(client, "a", "x");
    let x = rig.worker("X", r#"[[1, "x"], [1, "y"]]"#, 2);
    assert_eq!(rig.jobs(x), ["a"]);
    assert_eq!(rig.broker.figures().queues, 3);
    rig.lose(x, 0);
    rig.sleep(1_100);
    assert_eq!(rig.broker.figures().workers, 0);
    rig.sleep(9_000);
    assert_eq!(rig.broker.figures().queues, 3);
    rig.sleep(2_000);
    assert_eq!(rig.broker.figures().queues, 1);
}

#[test]
fn workers_of_many_queues_find_the_right_one() {
    let mut rig = Rig::new();
    let list = |step: usize| {
        let queues: Vec<_> = (0..40)
            .map(|q| format!("[{}, \"q{q}\"]", (q * step) % 7))
            .collect();
        format!("[{}]", queues.join(", "))
    };
    let (a, b) = (rig.worker("A", &list(1), 0), rig.worker("B", &list(3), 0));
    let client = rig.client("c");
    let mut jobs = Vec::new();
    for at in 0..200_usize {
        let queue = (at * 17) % 40;
        rig.request(client, &at.to_string(), &format!("q{queue}"));
        jobs.push((at, queue));
    }
    for turn in 0..200 {
        let (conn, step) = if turn % 3 == 0 { (b, 3) } else { (a, 1) };
        rig.ready(conn);
        let best = jobs
            .iter()
            .min_by_key(|(at, queue)| (7 - (queue * step) % 7, *at))
            .copied();
        let (at, _) = best.expect("a job is left");
        assert_eq!(rig.jobs(conn), [at.to_string()]);
        jobs.retain(|(other, _)| *other != at);
    }
}

#[test]
fn a_copy_of_the_workers_shares_their_queue_lists_and_shows_one_moment() {
    let mut rig = Rig::new();
    let names: Vec<_> = (0..40).map(|n| format!("[10, \"q{n:02}\"]")).collect();
    let all = format!("[{}]", names.join(", "));
    for n in 0..30 {
        rig.worker(&format!("w{n:02}"), &all, 2);
    }
    rig.worker("high", r#"[[20, "q07"]]"#, 1);
    let c1 = rig.client("c1");
    for n in 0..3 {
        rig.request(c1, &format!("j{n}"), "q07");
    }
    let copy = rig.broker.workers_copy();
    assert_eq!(copy.lists(), 2);
    let shown = rig.broker.workers(rig.now);
    let order: Vec<_> = shown.queues[7].1.iter().map(|(_, id)| id.clone()).collect();
    assert_eq!(order[..2], [b"high".to_vec(), b"w02".to_vec()]);
    assert_eq!(order[29..], [b"w00".to_vec(), b"w01".to_vec()]);
    assert_eq!(shown.queues[8].1[0].1, b"w00");
    assert_eq!((shown.workers.len(), shown.queues.len()), (31, 40));
    assert_eq!(shown.workers[1].queues[39], (10.0, b"q39".to_vec()));
    // What happens later does not show in a copy taken before.
    let late = rig.worker("late", r#"[[30, "q07"]]"#, 0);
    rig.request(c1, "j3", "q08");
    rig.send(late, &["KBYE", "bye"]);
    assert_eq!(format!("{:?}", copy.resolve()), format!("{shown:?}"));
}
