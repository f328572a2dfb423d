use super::*;
use crate::frames::OwnedMessage;
use proptest::prelude::*;

fn message(frames: &[&[u8]]) -> OwnedMessage {
    OwnedMessage::from_frames(frames)
}

#[test]
fn every_command_is_read_back_from_its_name() {
    for command in Command::ALL {
        assert_eq!(Command::parse(command.name()), Some(*command));
        assert_eq!(Command::parse(&command.name().to_ascii_lowercase()), None);
    }
    assert_eq!(Command::parse(b"KBAI"), Some(Command::Kbye));
    assert_eq!(Command::parse(b"REQUEST "), None);
    assert_eq!(Command::parse(b""), None);
}

#[test]
fn envelope_rules_in_their_order() {
    let long = [b'x'; 256];
    let cases: [(&[&[u8]], BadEnvelope); 6] = [
        (&[b"", b"eMQP/1.0", b"REQUEST"], BadEnvelope::Frames),
        (&[b"x", b"eMQP/1.0", b"REQUEST", b"m"], BadEnvelope::Frame0),
        (&[b"", b"eMQP/1.1", b"REQUEST", b"m"], BadEnvelope::Version),
        (&[b"", b"eMQP/1.0", b"request", b"m"], BadEnvelope::Command),
        (&[b"", b"eMQP/1.0", b"REQUEST", b""], BadEnvelope::Msgid),
        (&[b"", b"eMQP/1.0", b"REQUEST", &long], BadEnvelope::Msgid),
    ];
    for (frames, expected) in cases {
        assert_eq!(
            Envelope::parse(&message(frames).view()).unwrap_err(),
            expected
        );
    }
    let whole = message(&[b"", b"eMQP/1.0", b"READY", b"m", b"job", b"ok"]);
    let view = whole.view();
    let envelope = Envelope::parse(&view).unwrap();
    assert_eq!(
        (envelope.command, envelope.msgid),
        (Command::Ready, &b"m"[..])
    );
    assert_eq!(
        (envelope.body(0), envelope.body(1)),
        (Some(&b"job"[..]), Some(&b"ok"[..]))
    );
    assert_eq!((envelope.body(2), envelope.body_len()), (None, 2));
}

#[test]
fn headers_by_exact_name_last_duplicate_counts() {
    let parse = RequestHeaders::parse;
    assert_eq!(parse(b"").unwrap(), RequestHeaders::default());
    assert!(parse(b"reply-requested").unwrap().reply_requested);
    assert!(
        !parse(b"xreply-requestedx, guarantee")
            .unwrap()
            .reply_requested
    );
    assert!(parse(b"reply-requested").unwrap().worker_replies);
    assert!(parse(b"xreply-requestedx").unwrap().worker_replies);
    assert!(!parse(b"guarantee").unwrap().worker_replies);
    let all = parse(b"reply-requested,guarantee,retry-count:3,timeout:7,timeout:8,x:y,,delay:1");
    let all = all.unwrap();
    assert!(all.reply_requested && all.guarantee);
    assert_eq!(
        (all.retry_count, all.timeout_secs, all.delay_secs),
        (3, 8, 1)
    );
    for bad in [
        "timeout",
        "timeout:",
        "timeout:x",
        "timeout:-1",
        "retry-count:4294967296",
    ] {
        assert_eq!(parse(bad.as_bytes()), Err(BadHeader), "{bad}");
    }
    assert_eq!(parse(b"timeouts:x").unwrap(), RequestHeaders::default());
}

#[test]
fn inform_queues_of_every_wrong_shape_are_refused() {
    let parse = |text: &str| parse_queues(text.as_bytes());
    assert_eq!(parse("[]").unwrap(), vec![]);
    assert_eq!(
        parse(r#"[[10, "a"], [5.5, "b"], [20, "a"]]"#).unwrap(),
        vec![(20.0, b"a".to_vec()), (5.5, b"b".to_vec())]
    );
    for bad in [
        "",
        "default",
        "5",
        "null",
        "{}",
        "\"abc\"",
        "[[10]]",
        "[10,\"default\"]",
        "[\"default\"]",
        "[[\"10\",\"a\"]]",
        "[[10,5]]",
        "[[10,null]]",
        "[[10,\"a\",\"x\"]]",
        "[[10,[\"a\"]]]",
        "[[true,\"a\"]]",
        "[[null,\"a\"]]",
        "[[NaN,\"a\"]]",
        "[[1e999,\"a\"]]",
        "[[1,\"a\"]] x",
    ] {
        assert_eq!(parse(bad), Err(BadInform::Queues), "{bad}");
    }
    let deep = "[".repeat(100_000);
    assert_eq!(parse(&deep), Err(BadInform::Queues));
    let many = format!("[{}]", vec!["[1,\"a\"]"; 1025].join(","));
    assert_eq!(parse(&many), Err(BadInform::TooLarge));
    let long = format!("[[1,\"{}\"]]", "n".repeat(256));
    assert_eq!(parse(&long), Err(BadInform::TooLarge));
}

#[test]
fn what_of_the_capabilities_is_kept_is_bounded() {
    let long = |name: &str, bytes| [name.as_bytes(), &vec![b'x'; bytes]].concat();
    assert!(Capabilities::parse(&long("instance:", 255)).is_ok());
    let too_long = Capabilities::parse(&long("instance:", 256));
    assert_eq!(too_long, Err(BadInform::Capability));
    let too_large = Capabilities::parse(&long("new:", 1 << 20));
    assert_eq!(too_large, Err(BadInform::TooLarge));
}

#[test]
fn capabilities() {
    let parse = |text: &str| Capabilities::parse(text.as_bytes());
    assert_eq!(parse("").unwrap(), Capabilities::default());
    let all = parse("completions,slots:8,instance:ab,running:1+2,heartbeat:2.5,results,new:x");
    let all = all.unwrap();
    assert!(all.completions && all.results);
    assert_eq!((all.slots, all.heartbeat_secs), (Some(8), Some(3)));
    assert_eq!(all.instance.as_deref(), Some(&b"ab"[..]));
    assert_eq!(all.running, Some(vec![b"1".to_vec(), b"2".to_vec()]));
    assert_eq!(parse("running:").unwrap().running, Some(vec![]));
    for bad in ["slots", "slots:x", "heartbeat:", "heartbeat:x"] {
        assert_eq!(parse(bad), Err(BadInform::Capability), "{bad}");
    }
}

const RUN: &str = r#"["run", {"callable": "add", "path": "jobs", "args": [1, 2], "kwargs": {},
    "class_args": [], "class_kwargs": {}}]"#;

fn schedule(body: &[&str]) -> Result<(), BadSchedule> {
    let mut frames: Vec<&[u8]> = vec![b"", b"eMQP/1.0", b"SCHEDULE", b"m"];
    frames.extend(body.iter().map(|text| text.as_bytes()));
    let message = message(&frames);
    check_schedule(&Envelope::parse(&message.view()).unwrap())
}

#[test]
fn schedules_that_would_kill_the_originals_scheduler_are_refused() {
    assert_eq!(schedule(&["q", "guarantee", "5", RUN, ""]), Ok(()));
    assert_eq!(
        schedule(&["q", "nohaste,run_count:3", "-1", RUN, "* * * * *"]),
        Ok(())
    );
    let missing = RUN.replace("\"path\": \"jobs\", ", "");
    let bad: [&[&str]; 9] = [
        &["q", "", "5", RUN],
        &["q", "", "", RUN, ""],
        &["q", "", "1.5", RUN, ""],
        &["q", "", "--1", RUN, ""],
        &["q", "run_count:x", "5", RUN, ""],
        &["q", "xrun_count:1", "5", RUN, ""],
        &["q", "", "5", "{}", ""],
        &["q", "", "5", &missing, ""],
        &["q", "", "5", "[\"run\"]", ""],
    ];
    for body in bad {
        assert_eq!(schedule(body), Err(BadSchedule::Malformed), "{body:?}");
    }
    let frames: [&[u8]; 9] = [
        b"",
        b"eMQP/1.0",
        b"SCHEDULE",
        b"\xff",
        b"q",
        b"",
        b"5",
        RUN.as_bytes(),
        b"",
    ];
    let message = message(&frames);
    let envelope = Envelope::parse(&message.view()).map(|e| check_schedule(&e));
    assert_eq!(envelope, Ok(Err(BadSchedule::Malformed)));
}

#[test]
fn msgids_count_up_and_keep_their_form() {
    let mut text = first_msgid([u64::MAX, u64::MAX]);
    assert_eq!(&text, b"ffffffff-ffff-4fff-bfff-ffffffffffff");
    advance_msgid(&mut text);
    assert_eq!(&text, b"ffffffff-ffff-4fff-bfff-000000000000");
    for _ in 0..0x1a {
        advance_msgid(&mut text);
    }
    assert_eq!(&text, b"ffffffff-ffff-4fff-bfff-00000000001a");
}

#[test]
fn heartbeat_time_is_seconds_with_a_fraction() {
    let mut out = Vec::new();
    push_heartbeat_time(&mut out, 1_796_071_206_028);
    assert_eq!(out, b"1796071206.028");
}

#[test]
fn words_are_read_back() {
    for word in [
        "ok",
        "error",
        "timeout",
        "lost",
        "cancelled",
        "dead",
        "refused",
    ] {
        assert_eq!(
            JobStatus::parse(word.as_bytes()).unwrap().word(),
            word.as_bytes()
        );
    }
    assert_eq!(
        RejectReason::parse(b"queue-full"),
        Some(RejectReason::QueueFull)
    );
    assert_eq!(RejectReason::parse(b"other"), None);
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(frames in prop::collection::vec(
        prop::collection::vec(any::<u8>(), 0..40), 0..9)) {
        let message = OwnedMessage::from_frames(&frames);
        if let Ok(envelope) = Envelope::parse(&message.view()) {
            let _ = check_schedule(&envelope);
        }
        for frame in &frames {
            let _ = RequestHeaders::parse(frame);
            let _ = Capabilities::parse(frame);
            let _ = parse_queues(frame);
        }
    }
}
