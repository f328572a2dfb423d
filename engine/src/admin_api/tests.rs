//! Exact bytes of the answers, and arbitrary names in them.

use super::*;
use crate::frames::OwnedMessage;
use crate::metrics::Counters;
use crate::snapshot::*;
use proptest::prelude::*;

fn text(json: Vec<u8>) -> String {
    String::from_utf8(json).unwrap()
}

#[test]
fn status_of_a_fresh_broker_is_that_of_the_original() {
    assert_eq!(
        text(render_status(&StatusSnapshot::default())),
        "{\"inflight_messages_by_queue\": {}, \"latency_messages_by_queue\": {}, \
         \"max_latency_messages_by_queue\": {}, \"waiting_messages_by_queue\": {}, \
         \"processed_messages_by_queue\": {}, \"processed_messages_by_worker\": {}}"
    );
}

#[test]
fn status_shows_what_a_queue_has() {
    let status = StatusSnapshot {
        queues: vec![
            QueueStatus {
                name: b"default".to_vec(),
                in_flight: 2,
                waiting: 0,
                processed: 3,
                mean_age_ms: Some(0),
                max_age_ms: Some(17),
            },
            QueueStatus {
                name: "k\u{fc}".into(),
                waiting: 1,
                mean_age_ms: Some(5),
                max_age_ms: Some(5),
                ..QueueStatus::default()
            },
            QueueStatus {
                name: b"\xff".to_vec(),
                processed: 1,
                ..QueueStatus::default()
            },
        ],
        processed_by_worker: vec![(b"w1".to_vec(), 4), (b"w2".to_vec(), 0)],
    };
    assert_eq!(
        text(render_status(&status)),
        "{\"inflight_messages_by_queue\": {\"default\": 2}, \
         \"latency_messages_by_queue\": {\"default\": 0, \"k\\u00fc\": 5}, \
         \"max_latency_messages_by_queue\": {\"default\": 17, \"k\\u00fc\": 5}, \
         \"waiting_messages_by_queue\": {\"k\\u00fc\": 1}, \
         \"processed_messages_by_queue\": {\"default\": 3, \"0xff\": 1}, \
         \"processed_messages_by_worker\": {\"w1\": 4, \"w2\": 0}}"
    );
}

fn two_workers() -> WorkersSnapshot {
    WorkersSnapshot {
        workers: vec![
            WorkerStatus {
                id: b"w1".to_vec(),
                queues: vec![(10.0, b"default".to_vec()), (10.5, b"b".to_vec())],
                last_seen_secs: 816.191509172,
                free_slots: 3,
                in_flight: 1,
                state: "live",
            },
            WorkerStatus {
                id: b"\0\x80".to_vec(),
                state: "grace",
                ..WorkerStatus::default()
            },
        ],
        queues: vec![
            (b"b".to_vec(), vec![(10.5, b"w1".to_vec())]),
            (
                b"default".to_vec(),
                vec![(10.0, b"w1".to_vec()), (5.0, b"w3".to_vec())],
            ),
        ],
    }
}

#[test]
fn workers_and_their_queues() {
    assert_eq!(
        text(render_workers(&WorkersSnapshot::default())),
        "{\"connected_workers\": {}, \"connected_queues\": {}}"
    );
    assert_eq!(
        text(render_workers(&two_workers())),
        "{\"connected_workers\": {\"w1\": {\"queues\": [[10, \"default\"], [10.5, \"b\"]], \
         \"hb\": 816.191509172, \"available_slots\": 3, \"state\": \"live\"}, \
         \"0x0080\": {\"queues\": [], \"hb\": 0.0, \"available_slots\": 0, \"state\": \"grace\"}}, \
         \"connected_queues\": {\"b\": [[10.5, \"w1\"]], \
         \"default\": [[10, \"w1\"], [5, \"w3\"]]}}"
    );
}

#[test]
fn schedulers() {
    assert_eq!(
        text(render_schedulers(&SchedulersSnapshot::default())),
        "{\"connected_schedulers\": {}}"
    );
    let snapshot = SchedulersSnapshot {
        schedulers: vec![(b"s1".to_vec(), 817.300741294), (b"s2".to_vec(), 2.0)],
    };
    assert_eq!(
        text(render_schedulers(&snapshot)),
        "{\"connected_schedulers\": {\"s1\": {\"hb\": 817.300741294}, \"s2\": {\"hb\": 2.0}}}"
    );
}

#[test]
fn latency_by_queue() {
    assert_eq!(
        text(render_latency(&LatencyReport::default())),
        "{\"cumulative\": {}, \"interval\": {}}"
    );
    let wait = LatencyFigures {
        count: 3,
        min_us: 1,
        mean_us: 123.456,
        p50_us: 2,
        p90_us: 3,
        p99_us: 4,
        p999_us: 5,
        max_us: 6,
    };
    let nothing = LatencyFigures {
        mean_us: f64::NAN,
        ..LatencyFigures::default()
    };
    let latency = LatencyReport {
        cumulative: vec![],
        interval: vec![(
            b"(other)".to_vec(),
            QueueLatency {
                wait,
                service: nothing,
                total: LatencyFigures::default(),
            },
        )],
    };
    assert_eq!(
        text(render_latency(&latency)),
        "{\"cumulative\": {}, \"interval\": {\"(other)\": {\
         \"wait\": {\"count\": 3, \"min_us\": 1, \"mean_us\": 123.5, \"p50_us\": 2, \
         \"p90_us\": 3, \"p99_us\": 4, \"p999_us\": 5, \"max_us\": 6}, \
         \"service\": {\"count\": 0, \"min_us\": 0, \"mean_us\": null, \"p50_us\": 0, \
         \"p90_us\": 0, \"p99_us\": 0, \"p999_us\": 0, \"max_us\": 0}, \
         \"total\": {\"count\": 0, \"min_us\": 0, \"mean_us\": 0.0, \"p50_us\": 0, \
         \"p90_us\": 0, \"p99_us\": 0, \"p999_us\": 0, \"max_us\": 0}}}}"
    );
}

#[test]
fn counters_show_everything_else() {
    let mut counters = Counters::default();
    counters.add(Counter::JobsDone, 7);
    let report = CountersReport {
        version: "1.2.3",
        uptime_secs: 12.34567,
        threading: "dedicated",
        counters,
        figures: BrokerFigures {
            jobs_waiting: 5,
            draining: true,
            ..BrokerFigures::default()
        },
        connections: [1, 2, 3],
        memory: MemoryReport {
            limit_bytes: 100,
            ..MemoryReport::default()
        },
        agents: vec![AgentReport {
            name: "io-0".into(),
            core: Some(2),
            ..AgentReport::default()
        }],
        rings: vec![RingReport {
            name: "io-0 > dispatch".into(),
            ..RingReport::default()
        }],
    };
    let json = text(render_counters(&report));
    for part in [
        "{\"version\": \"1.2.3\", \"uptime_secs\": 12.346, \"threading\": \"dedicated\", \
         \"counters\": {\"connections_accepted\": 0, ",
        "\"jobs_done\": 7, ",
        "}, \"figures\": {\"jobs_waiting\": 5, \"jobs_in_flight\": 0, \"job_bytes\": 0, \
         \"queues\": 0, \"workers\": 0, \"schedulers\": 0, \"input_paused\": false, \
         \"draining\": true}, \"connections\": {\"frontend\": 1, \"backend\": 2, \
         \"administrative\": 3}, \"memory\": {\"limit_bytes\": 100, \"job_bytes\": 0, ",
        "\"agents\": [{\"name\": \"io-0\", \"core\": 2, \"connections\": 0, ",
        "\"rings\": [{\"name\": \"io-0 > dispatch\", \"items\": 0, ",
    ] {
        assert!(json.contains(part), "{part}\nnot in\n{json}");
    }
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    for counter in Counter::ALL {
        assert!(
            value["counters"][counter.name()].is_u64(),
            "{}",
            counter.name()
        );
    }
}

#[test]
fn requests_are_read_exactly() {
    let read = |frames: &[&[u8]]| {
        let message = OwnedMessage::from_frames(frames);
        parse_message(&message.view()).map(|request| (request.command, request.msgid.to_vec()))
    };
    let long = [b'x'; 256];
    for command in AdminCommand::ALL {
        let name = command.name();
        assert_eq!(parse(name), Some(command));
        assert_eq!(parse(&name.to_ascii_lowercase()), None);
        assert_eq!(
            read(&[b"", b"eMQP/1.0", name, b"id"]),
            Ok((command, b"id".to_vec()))
        );
    }
    assert_eq!(
        read(&[b"", b"eMQP/1.0", b"STATUS", b"id", b"\xff", b""]),
        Ok((AdminCommand::Status, b"id".to_vec()))
    );
    for (frames, counter) in [
        (
            &[b"" as &[u8], b"eMQP/1.0", b"STATUS"][..],
            Counter::IgnoredFrames,
        ),
        (
            &[b"x", b"eMQP/1.0", b"STATUS", b"id"],
            Counter::IgnoredFrame0,
        ),
        (
            &[b"", b"eMQP/1.1", b"STATUS", b"id"],
            Counter::IgnoredVersion,
        ),
        (&[b"", b"eMQP/1.0", b"STATUS", b""], Counter::IgnoredMsgid),
        (&[b"", b"eMQP/1.0", b"STATUS", &long], Counter::IgnoredMsgid),
        (
            &[b"", b"eMQP/1.0", b"status", b"id"],
            Counter::IgnoredCommand,
        ),
        (
            &[b"", b"eMQP/1.0", b"HELLO", b"id"],
            Counter::IgnoredCommand,
        ),
        (
            &[b"", b"eMQP/1.0", b"REQUEST", b"id", b"q", b"", b"{}"],
            Counter::IgnoredRole,
        ),
    ] {
        assert_eq!(read(frames), Err(counter), "{frames:?}");
    }
}

#[test]
fn answers_have_five_frames() {
    let frames = |wire: Vec<u8>| {
        let mut spans = Vec::new();
        assert_eq!(
            crate::frames::split_wire(&wire, &mut spans),
            Some(wire.len())
        );
        Message::new(&wire, &spans)
            .frames()
            .map(<[u8]>::to_vec)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        frames(push_reply(Vec::new(), b"new", b"{}")),
        [b"" as &[u8], b"eMQP/1.0", b"REPLY", b"new", b"{}"]
    );
    assert_eq!(
        frames(push_ack(Vec::new(), b"new", b"old")),
        [b"" as &[u8], b"eMQP/1.0", b"ACK", b"new", b"old"]
    );
}

#[test]
fn a_large_answer_comes_in_small_slices() {
    let many = |n: usize| (0..n).map(|i| format!("worker-{i:06}").into_bytes());
    let snapshot = WorkersSnapshot {
        workers: many(3_000)
            .map(|id| WorkerStatus {
                id,
                state: "live",
                ..WorkerStatus::default()
            })
            .collect(),
        queues: vec![
            (b"a".to_vec(), many(3_000).map(|id| (1.0, id)).collect()),
            (b"b".to_vec(), vec![]),
        ],
    };
    let expected = render_workers(&snapshot);
    let mut rendering = Rendering::new(Answer::Workers(snapshot));
    let mut steps = 0;
    let mut before = 0;
    while !rendering.step(4_096) {
        assert!(
            rendering.made_bytes() - before < 16_384,
            "one slice is too large"
        );
        before = rendering.made_bytes();
        steps += 1;
    }
    assert!(steps > 10);
    assert_eq!(rendering.finish(), expected);
}

fn arbitrary_name() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..12),
        "\\PC{0,8}".prop_map(String::into_bytes)
    ]
}

fn arbitrary_weight() -> impl Strategy<Value = f64> {
    prop_oneof![any::<f64>(), (-50_i32..50).prop_map(f64::from)]
}

proptest! {
    #[test]
    fn arbitrary_names_and_figures_give_valid_ascii_json(
        names in proptest::collection::vec((arbitrary_name(), any::<u64>(), any::<f64>()), 0..6),
        weights in proptest::collection::vec((arbitrary_weight(), arbitrary_name()), 0..6),
        budget in 1_usize..64,
    ) {
        let status = StatusSnapshot {
            queues: names
                .iter()
                .map(|(name, n, _)| QueueStatus {
                    name: name.clone(),
                    in_flight: *n,
                    waiting: n & 1,
                    processed: n >> 1,
                    mean_age_ms: n.checked_sub(7),
                    max_age_ms: n.checked_sub(9),
                })
                .collect(),
            processed_by_worker: names.iter().map(|(id, n, _)| (id.clone(), *n)).collect(),
        };
        let workers = WorkersSnapshot {
            workers: names
                .iter()
                .map(|(id, n, secs)| WorkerStatus {
                    id: id.clone(),
                    queues: weights.clone(),
                    last_seen_secs: *secs,
                    free_slots: *n,
                    in_flight: *n,
                    state: "live",
                })
                .collect(),
            queues: names.iter().map(|(name, _, _)| (name.clone(), weights.clone())).collect(),
        };
        let schedulers = SchedulersSnapshot {
            schedulers: names.iter().map(|(id, _, secs)| (id.clone(), *secs)).collect(),
        };
        let latency = LatencyReport {
            cumulative: names
                .iter()
                .map(|(name, n, mean)| {
                    let wait = LatencyFigures { count: *n, mean_us: *mean, ..LatencyFigures::default() };
                    (name.clone(), QueueLatency { wait, ..QueueLatency::default() })
                })
                .collect(),
            interval: vec![],
        };
        for (bytes, answer) in [
            (render_status(&status), Answer::Status(status)),
            (render_workers(&workers), Answer::Workers(workers)),
            (render_schedulers(&schedulers), Answer::Schedulers(schedulers)),
            (render_latency(&latency), Answer::Latency(latency)),
        ] {
            prop_assert!(bytes.iter().all(|b| matches!(b, b' '..=b'~')));
            let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            prop_assert!(value.is_object());
            let mut rendering = Rendering::new(answer);
            while !rendering.step(budget) {}
            prop_assert_eq!(rendering.finish(), bytes);
        }
    }
}
