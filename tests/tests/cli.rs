//! `emq-cli` for scripts: what it prints, and how it ends, against brokers and others.

use eventmq_tests::dealer::Dealer;
use eventmq_tests::peers::our_binary;
use eventmq_tests::process::Process;
use eventmq_tests::publisher::Publisher;
use eventmq_tests::raw;
use eventmq_tests::router::{Router, Target};
use eventmq_tests::scheduler::Scheduler;
use eventmq_tests::{PATIENCE, eventually};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};

fn cli(words: &[&str]) -> Command {
    let mut command = Command::new(our_binary("emq-cli"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("EVENTMQ_") {
            command.env_remove(name);
        }
    }
    command.args(words);
    command
}

/// Exit code, standard output, standard error.
type Ended = (Option<i32>, String, String);

fn run(command: &mut Command, input: &str) -> Ended {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("emq-cli starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().expect("emq-cli ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn at(addr: &str, words: &[&str]) -> Ended {
    let words = [&["--addr", addr, "--timeout", "20"], words].concat();
    run(&mut cli(&words), "")
}

#[test]
fn json_is_what_programs_expect() {
    let router = Router::ours(Target::Inline);
    let admin = &router.addresses().admin;
    let fresh = "{\"inflight_messages_by_queue\": {}, \"latency_messages_by_queue\": {}, \
                 \"max_latency_messages_by_queue\": {}, \"waiting_messages_by_queue\": {}, \
                 \"processed_messages_by_queue\": {}, \"processed_messages_by_worker\": {}}\n";
    for (words, expected) in [
        (&["status"][..], fresh),
        (
            &["show-workers"],
            "{\"connected_workers\": {}, \"connected_queues\": {}}\n",
        ),
        (&["show_schedulers"], "{\"connected_schedulers\": {}}\n"),
        (&["latency"], "{\"cumulative\": {}, \"interval\": {}}\n"),
        (&["watch", "--count", "1", "status"], fresh),
        (&["shutdown"], "{\"acknowledged\": true}\n"),
    ] {
        let (code, out, errors) = at(admin, &[words, &["--json"]].concat());
        assert_eq!((code, errors.as_str()), (Some(0), ""), "{words:?}");
        assert_eq!(out, expected, "{words:?}");
    }
}

#[test]
fn lines_of_standard_input_are_commands() {
    let router = Router::ours(Target::Inline);
    let admin = &router.addresses().admin;
    let lines = "# remarks are left out\n\nstatus\nshow_workers --json\nquit\nnever reached\n";
    let (code, out, errors) = run(&mut cli(&["--addr", admin]), lines);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert_eq!(
        out,
        "no queues\n\nno workers\n{\"connected_workers\": {}, \"connected_queues\": {}}\n"
    );
    let (code, out, errors) = run(&mut cli(&["--addr", admin]), "nope\nshow_schedulers");
    assert_eq!((code, out.as_str()), (Some(1), "no schedulers\n"));
    assert_eq!(
        errors,
        "emq-cli: unrecognized subcommand 'nope'\nemq-cli: 1 commands were not answered\n"
    );
}

/// Takes connections and does `act` with each.
fn server(act: fn(TcpStream)) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = format!("tcp://{}", listener.local_addr().unwrap());
    // Ends with the process of the test.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || act(stream));
        }
    });
    addr
}

/// Whatever is on the other side, every command ends in time with code 1 and one line.
#[test]
fn dead_hanging_and_foreign_servers_are_exit_code_1() {
    let dead = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("tcp://{}", listener.local_addr().unwrap())
    };
    let hanging = server(|mut stream| {
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let foreign = server(|mut stream| {
        let _ = stream.write_all(b"220 mail.example ESMTP\r\n");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    // Speaks ZMTP and never answers.
    let silent = server(|mut stream| {
        let _ = stream.write_all(&raw::greeting());
        let _ = stream.write_all(&raw::ready_command(&[("Socket-Type", b"ROUTER")]));
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let commands: &[&[&str]] = &[
        &["status"],
        &["show-workers"],
        &["latency"],
        &["counters"],
        &["shutdown"],
        &["ping", "--count", "1"],
        &["watch", "--count", "1", "status"],
        &["publish", "t", "m"],
        &["send", "m.f"],
        &["send", "m.f", "--wait=0.5"],
        &["schedule", "m.f", "--every", "5"],
        &["unschedule", "m.f"],
        &["subscribe", "--wait", "0.5"],
    ];
    for (addr, says) in [
        (&dead, "cannot connect"),
        (&hanging, "no ZMTP handshake within 0.5 s"),
        (&foreign, "not ZMTP"),
        (&silent, ""),
    ] {
        for words in commands {
            let words = [&["--addr", addr, "--timeout", "0.5"], *words].concat();
            let (code, out, errors) = run(&mut cli(&words), "");
            // ZMTP 3.0 has nothing to ask whether a message was read, and a broker without our
            // extensions says nothing of a job; but it sends no results.
            let jobs = ["send", "schedule", "unschedule"]
                .iter()
                .any(|w| words.contains(w));
            let sent = addr == &silent
                && (words.contains(&"publish") || (jobs && !words.contains(&"--wait=0.5")));
            assert_eq!(code, Some(i32::from(!sent)), "{words:?}: {errors}");
            assert_eq!(errors.lines().count(), usize::from(!sent), "{errors}");
            let all = out + &errors;
            // The client library has its own words, and goes on trying.
            assert!(jobs || all.contains(says), "{words:?}: {all}");
        }
    }
    let (code, _, errors) = at(&dead, &["top"]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("top needs a terminal"), "{errors}");
    for words in [
        &["nonsense"][..],
        &["status", "extra"],
        &["--timeout", "x", "status"],
    ] {
        let (code, out, _) = run(&mut cli(words), "");
        assert_eq!((code, out.as_str()), (Some(2), ""), "{words:?}");
    }
    let bad = cli(&["status"])
        .env("EVENTMQ_ADMINISTRATIVE_ADDR", "nowhere")
        .output()
        .unwrap();
    assert_eq!(bad.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&bad.stderr).contains("EVENTMQ_ADMINISTRATIVE_ADDR"),
        "{bad:?}"
    );
}

/// A subscriber whose output is a file.
fn subscriber(addr: &str, words: &[&str], dir: &Path) -> Process {
    let out = std::fs::File::create(dir.join("out")).unwrap();
    let words = [&["--addr", addr, "subscribe"], words].concat();
    let mut command = cli(&words);
    command.stdout(out);
    Process::start("emq-cli subscribe", &mut command, &dir.join("err")).unwrap()
}

#[test]
fn publish_and_subscribe_from_the_command_line() {
    let mut publisher = Publisher::ours(&[]);
    let dir = tempfile::tempdir().unwrap();
    let (incoming, outgoing) = (publisher.incoming.clone(), publisher.outgoing.clone());
    let mut sub = subscriber(&outgoing, &["news", "x", "--count", "3"], dir.path());
    publisher.wait_for("subscriptions", |n| n == 2);
    for (topic, text) in [
        ("news-1", "one"),
        ("other", "not asked for"),
        ("x", "a\x1b[2Jb\u{e9}"),
        ("news-2", ""),
    ] {
        let (code, out, errors) = at(&incoming, &["publish", topic, text]);
        assert_eq!((code, errors.as_str()), (Some(0), ""));
        assert_eq!(out, format!("{incoming}: published\n"));
    }
    assert_eq!(sub.wait_code(PATIENCE), 0);
    let text = std::fs::read_to_string(dir.path().join("out")).unwrap();
    assert_eq!(text, "news-1 one\nx a\\u{1b}[2Jb\u{e9}\nnews-2 \n");

    let mut sub = subscriber(&outgoing, &["--count", "1", "--json"], dir.path());
    publisher.wait_for("subscriptions", |n| n == 1);
    let (code, out, _) = at(&incoming, &["publish", "t", "\u{e9}", "--json"]);
    assert_eq!(code, Some(0));
    assert_eq!(out, "{\"published\":true,\"read\":true}\n");
    assert_eq!(sub.wait_code(PATIENCE), 0);
    let text = std::fs::read_to_string(dir.path().join("out")).unwrap();
    assert_eq!(text, "{\"topic\": \"t\", \"message\": \"\\u00e9\"}\n");

    let (code, out, errors) = at(&outgoing, &["subscribe", "--wait", "0.1"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(errors.contains("no message within 0.1 s"), "{errors}");
    let (code, out, _) = at(&publisher.admin, &["status"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("emq-pubsub") && out.contains("publishes_received"));
    let (code, ..) = at(&publisher.admin, &["shutdown"]);
    assert_eq!(code, Some(0));
    assert_eq!(publisher.process().wait_code(PATIENCE), 0);
}

#[test]
fn ours_publishes_and_subscribes_at_the_originals_publisher() {
    let Some(mut publisher) = Publisher::original() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let outgoing = publisher.outgoing.clone();
    let mut sub = subscriber(&outgoing, &["t", "--count", "1", "--json"], dir.path());
    // It does not tell its subscriptions: publish until one has come.
    eventually("a message", PATIENCE, || {
        let (code, _, errors) = at(&publisher.incoming, &["publish", "topic", "text"]);
        assert_eq!((code, errors.as_str()), (Some(0), ""));
        sub.ended().map(drop).ok_or_else(|| "none yet".to_owned())
    });
    assert_eq!(sub.wait_code(PATIENCE), 0);
    let text = std::fs::read_to_string(dir.path().join("out")).unwrap();
    assert_eq!(text, "{\"topic\": \"topic\", \"message\": \"text\"}\n");
    assert_eq!(publisher.process().ended(), None);
}

#[test]
fn the_originals_router_answers_too() {
    let Some(router) = Router::start(Target::Original) else {
        return;
    };
    let admin = &router.addresses().admin;
    let lines = "status\nshow_workers\nshow_schedulers\nping --count 1\nshutdown\n";
    let (code, out, errors) = run(&mut cli(&["--addr", admin, "--timeout", "20"]), lines);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    for part in [
        "no queues",
        "no served queues",
        "no schedulers",
        "seq 1",
        "acknowledged",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
}

/// Starts `emq-cli` and lets it run.
fn start(addr: &str, words: &[&str]) -> std::process::Child {
    let words = [&["--addr", addr, "--timeout", "20"], words].concat();
    cli(&words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("emq-cli starts")
}

fn end(child: std::process::Child) -> Ended {
    let output = child.wait_with_output().expect("emq-cli ends");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn jobs_are_sent_and_their_results_printed() {
    let router = Router::ours(Target::Inline);
    let frontend = router.addresses().frontend.clone();
    let context = zmq::Context::new();
    let worker = Dealer::connect(&context, &router.addresses().backend, Some(b"w1"));
    worker.inform_worker(r#"[[10, "default"], [5, "email"]]"#);
    worker.ready(4);
    let (code, out, errors) = at(
        &frontend,
        &[
            "send",
            "jobs_x.add",
            "1",
            "two",
            "-3",
            "--kwarg",
            "b=[4]",
            "-q",
            "email",
            "--retry-count",
            "2",
            "--job-timeout",
            "7",
        ],
    );
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert_eq!(out, format!("{frontend}: accepted\n"));
    let request = worker.expect("REQUEST");
    let text = |frame: usize| String::from_utf8_lossy(&request[frame]).into_owned();
    assert_eq!(text(4), "email");
    assert!(text(5).contains("retry-count:2") && text(5).contains("timeout:7"));
    assert_eq!(
        text(6),
        "[\"run\", {\"callable\": \"add\", \"path\": \"jobs_x\", \"args\": [1, \"two\", -3], \
         \"kwargs\": {\"b\": [4]}, \"class_args\": [], \"class_kwargs\": {}}]"
    );

    for (result, status, code, shown) in [
        (
            "{\"value\": [3, \"\\u001b\"]}",
            "ok",
            0,
            "[3,\"\\u001b\"]\n",
        ),
        (
            "{\"value\": null, \"error\": {\"type\": \"ValueError\", \"message\": \"no\\u001b\"}}",
            "error",
            1,
            "",
        ),
    ] {
        let child = start(&frontend, &["send", "jobs_x.add", "--wait=20"]);
        let request = worker.expect("REQUEST");
        let reply: [&[u8]; 5] = [
            b"REPLY",
            b"r",
            result.as_bytes(),
            &request[3],
            status.as_bytes(),
        ];
        worker.send(&reply);
        let (ended, out, errors) = end(child);
        assert_eq!((ended, out.as_str()), (Some(code), shown), "{errors}");
        if code == 1 {
            assert!(
                errors.contains("ValueError") && !errors.contains('\u{1b}'),
                "{errors}"
            );
        }
    }
    // A result that does not come, and a refusal.
    let (code, _, errors) = at(&frontend, &["send", "m.f", "--wait=0.5", "--timeout", "1"]);
    assert_eq!(code, Some(1), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    let (code, _, errors) = at(&frontend, &["send", "m.f", "--header-that-is-none"]);
    assert_eq!(code, Some(2), "{errors}");
    let long = "q".repeat(256);
    let (code, _, errors) = at(&frontend, &["send", "m.f", "--queue", &long]);
    assert_eq!(code, Some(1), "{errors}");
}

#[test]
fn schedules_go_to_the_scheduler() {
    let router = Router::ours(Target::Inline);
    let frontend = router.addresses().frontend.clone();
    let (code, _, errors) = at(&frontend, &["schedule", "m.f", "--every", "10"]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("no-scheduler"), "{errors}");
    let context = zmq::Context::new();
    let scheduler = Dealer::connect(&context, &frontend, Some(b"s1"));
    scheduler.send(&["INFORM", "i", "", "scheduler"]);
    scheduler.expect("ACK");
    let message = "[\"run\", {\"callable\": \"f\", \"path\": \"m\", \"args\": [1], \
                   \"kwargs\": {}, \"class_args\": [], \"class_kwargs\": {}}]";
    for (words, command, expected) in [
        (
            &["schedule", "m.f", "1", "--every", "10"][..],
            "SCHEDULE",
            ["default", "guarantee", "10", message, ""],
        ),
        (
            &[
                "schedule",
                "m.f",
                "1",
                "--cron",
                "* * * * *",
                "-q",
                "q2",
                "--nohaste",
            ],
            "SCHEDULE",
            ["q2", "guarantee,nohaste", "-1", message, "* * * * *"],
        ),
        (
            &["unschedule", "m.f", "1"],
            "UNSCHEDULE",
            ["default", "guarantee", "-1", message, ""],
        ),
    ] {
        let (code, out, errors) = at(&frontend, words);
        assert_eq!((code, errors.as_str()), (Some(0), ""), "{words:?}");
        assert_eq!(out, format!("{frontend}: accepted\n"));
        let got = scheduler.expect(command);
        let got: Vec<_> = got[4..]
            .iter()
            .map(|f| String::from_utf8_lossy(f))
            .collect();
        let headers = |text: &str| {
            let mut all: Vec<_> = text.split(',').map(str::to_owned).collect();
            all.sort();
            all
        };
        assert_eq!(headers(&got[1]), headers(expected[1]), "{words:?}");
        assert_eq!(
            (&got[0], &got[2..]),
            (
                &expected[0].into(),
                &expected[2..]
                    .iter()
                    .map(|t| (*t).into())
                    .collect::<Vec<_>>()[..]
            )
        );
    }
    for words in [
        &["schedule", "m.f"][..],
        &["schedule", "m.f", "--every", "0"],
    ] {
        let (code, ..) = at(&frontend, words);
        assert_eq!(code, Some(2), "{words:?}");
    }
}

#[test]
fn the_schedules_of_a_scheduler_are_shown() {
    /// More than one page.
    const COUNT: usize = 1_003;
    let router = Router::ours(Target::Inline);
    let frontend = router.addresses().frontend.clone();
    let dir = tempfile::tempdir().expect("a directory");
    let mut scheduler = Scheduler::start(&frontend, dir.path(), &[]);
    scheduler.wait_until_registered();
    let admin = scheduler.admin_addr().to_owned();
    assert_eq!(
        at(&admin, &["schedules"]),
        (Some(0), "no schedules\n".to_owned(), String::new())
    );
    let cron = [
        "schedule",
        "m.night",
        "--cron",
        "0 3 * * *",
        "-q",
        "q2",
        "--nohaste",
    ];
    let (code, _, errors) = at(
        &frontend,
        &[&cron[..], &["--time-zone", "Europe/Berlin"]].concat(),
    );
    assert_eq!(code, Some(0), "{errors}");
    let lines: String = (1..COUNT)
        .map(|n| format!("schedule m.f {n} --every 3600 --nohaste --addr {frontend}\n"))
        .collect();
    let (code, _, errors) = run(&mut cli(&["--addr", &admin, "--timeout", "20"]), &lines);
    assert_eq!(code, Some(0), "{errors}");
    eventually("all schedules are taken", PATIENCE, || {
        match scheduler.schedules().len() {
            COUNT => Ok(()),
            other => Err(other.to_string()),
        }
    });

    let (code, out, errors) = at(&admin, &["schedules"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let rows: Vec<_> = out
        .lines()
        .filter(|line| !line.starts_with("CALL"))
        .collect();
    assert_eq!(rows.len(), COUNT);
    let night: Vec<_> = rows
        .iter()
        .filter(|row| row.starts_with("m.night "))
        .collect();
    assert_eq!(night.len(), 1, "{night:?}");
    for part in ["q2", "0 3 * * * (Europe/Berlin)", " 03:00:00 CE", "(in "] {
        assert!(night[0].contains(part), "{night:?}");
    }
    assert_eq!(
        rows.iter()
            .filter(|row| row.contains("every 3600 s"))
            .count(),
        COUNT - 1
    );

    // One page a line; a limit cuts.
    for (limit, lines, shown) in [
        (None, 2, COUNT),
        (Some("1000"), 1, 1_000),
        (Some("7"), 1, 7),
    ] {
        let limit: Vec<_> = limit.iter().flat_map(|n| ["--limit", n]).collect();
        let (code, out, errors) = at(&admin, &[&["schedules", "--json"][..], &limit].concat());
        assert_eq!((code, errors.as_str()), (Some(0), ""));
        let pages: Vec<serde_json::Value> = out
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        let all = pages
            .iter()
            .map(|page| page["schedules"].as_array().unwrap().len());
        assert_eq!((pages.len(), all.sum::<usize>()), (lines, shown));
    }
    let mut ask = cli(&["schedules", "--limit", "1"]);
    let (code, out, _) = run(ask.env("EVENTMQ_SCHEDULER_ADMINISTRATIVE_ADDR", &admin), "");
    assert_eq!((code, out.lines().count()), (Some(0), 2));
    // A broker has none.
    let words = [
        "--addr",
        &router.addresses().admin,
        "--timeout",
        "0.3",
        "schedules",
    ];
    let (code, _, errors) = run(&mut cli(&words), "");
    assert_eq!(code, Some(1));
    assert!(errors.contains("SCHEDULER_SHOW_SCHEDULES"), "{errors}");
}

#[test]
fn jobs_for_the_originals_router_are_sent_unconfirmed() {
    let Some(router) = Router::start(Target::Original) else {
        return;
    };
    let frontend = router.addresses().frontend.clone();
    let context = zmq::Context::new();
    let worker = Dealer::connect(&context, &router.addresses().backend, Some(b"w1"));
    worker.inform_worker(r#"[[10, "default"]]"#);
    worker.ready(1);
    let (code, out, errors) = at(&frontend, &["send", "m.f", "1"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(out.starts_with(&frontend), "{out}");
    let request = worker.expect("REQUEST");
    assert!(String::from_utf8_lossy(&request[6]).contains("\"args\": [1]"));
    let (code, _, errors) = at(&frontend, &["send", "m.f", "--wait=1"]);
    assert_eq!(code, Some(1));
    assert!(errors.contains("sends no results"), "{errors}");
}
