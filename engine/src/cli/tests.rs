//! The client against a small administrative server of our own, and what people see.

use super::args::{ShellLine, shell_words};
use super::*;
use crate::addr::Addr;
use crate::admin_api::AdminCommand;
use crate::admin_api::{
    parse_message, push_ack, push_reply, render_counters, render_latency, render_schedulers,
    render_status, render_workers,
};
use crate::frames::{FrameSpan, Message};
use crate::snapshot::*;
use crate::zmtp::{Event, Limits, Peer, PeerConfig, Role, SocketType};
use clap::Parser;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Serves one connection: answers from the snapshots below, noise before each answer.
fn serve(mut stream: impl Read + Write) {
    let config = PeerConfig::new(
        Role::Server,
        SocketType::Router,
        b"",
        &[],
        Limits::default(),
    );
    let mut out = Vec::new();
    let mut peer = Peer::new(&Arc::new(config), &mut out);
    let (mut received, mut spans) = (Vec::new(), Vec::<FrameSpan>::new());
    loop {
        let consumed = match peer.poll(&mut received, &mut spans, &mut out).unwrap() {
            Event::NeedMore { .. } => {
                stream.write_all(&out).unwrap();
                out.clear();
                let mut chunk = [0; 1024];
                match stream.read(&mut chunk) {
                    Ok(0) | Err(_) => return,
                    Ok(len) => received.extend_from_slice(&chunk[..len]),
                }
                continue;
            }
            Event::Message { wire_len, consumed } => {
                let message = Message::new(&received[..wire_len], &spans);
                let request = parse_message(&message).unwrap();
                crate::zmtp::push_ping(&mut out, 0, b"x");
                out = match request.command {
                    AdminCommand::Disconnect => push_ack(out, b"new", request.msgid),
                    command => push_reply(out, b"new", &answer(command)),
                };
                consumed
            }
            Event::Ready { consumed, metadata } => {
                assert_eq!(metadata.socket_type, SocketType::Dealer);
                assert_eq!(metadata.property("X-EventMQ"), Some(b"1".as_slice()));
                assert!(std::str::from_utf8(&metadata.routing_id.unwrap()).is_ok());
                consumed
            }
            Event::Command { consumed } => consumed,
            other => panic!("{other:?}"),
        };
        received.drain(..consumed);
    }
}

fn answer(command: AdminCommand) -> Vec<u8> {
    let w1 = || (10.5, b"w1".to_vec());
    match command {
        AdminCommand::Status => render_status(&StatusSnapshot {
            queues: vec![
                QueueStatus {
                    name: b"default".to_vec(),
                    in_flight: 2,
                    waiting: 1,
                    processed: 3,
                    mean_age_ms: Some(0),
                    max_age_ms: Some(1_234),
                },
                QueueStatus {
                    name: b"a\x1bb".to_vec(),
                    waiting: 7,
                    ..QueueStatus::default()
                },
            ],
            processed_by_worker: vec![(b"w1".to_vec(), 3)],
        }),
        AdminCommand::ShowWorkers => render_workers(&WorkersSnapshot {
            workers: vec![WorkerStatus {
                id: b"w1".to_vec(),
                queues: vec![(10.5, b"default".to_vec()), (2.0, b"b".to_vec())],
                free_slots: 4,
                state: "live",
                ..WorkerStatus::default()
            }],
            queues: vec![
                (b"default".to_vec(), vec![w1()]),
                (b"b".to_vec(), vec![w1(); 10]),
            ],
        }),
        AdminCommand::ShowSchedulers => render_schedulers(&SchedulersSnapshot::default()),
        AdminCommand::Latency => {
            let wait = LatencyFigures {
                count: 5,
                min_us: 7,
                mean_us: 1_500.0,
                max_us: 90_000_000,
                ..LatencyFigures::default()
            };
            render_latency(&LatencyReport {
                cumulative: vec![(
                    b"q".to_vec(),
                    QueueLatency {
                        wait,
                        ..QueueLatency::default()
                    },
                )],
                interval: vec![],
            })
        }
        AdminCommand::Counters => {
            let mut report = CountersReport {
                version: "9",
                ..CountersReport::default()
            };
            report.counters.add(crate::metrics::Counter::JobsDone, 12);
            report.agents.push(AgentReport {
                name: "io-0".into(),
                ..AgentReport::default()
            });
            render_counters(&report)
        }
        AdminCommand::ShowSchedules => unreachable!("not asked of a broker"),
        AdminCommand::Disconnect => unreachable!("answered with ACK"),
    }
}

fn with_server<T>(test: impl FnOnce(Addr) -> T) -> T {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = format!("tcp://{}", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    let server: JoinHandle<()> = std::thread::spawn(move || serve(listener.accept().unwrap().0));
    let result = test(addr);
    server.join().unwrap();
    result
}

fn try_cli(addr: &Addr, words: &[&str]) -> Result<String, CliError> {
    let addr = addr.to_string();
    let words = ["emq-cli", "--addr", &addr]
        .into_iter()
        .chain(words.iter().copied());
    let args = Args::try_parse_from(words).unwrap();
    let mut out = Vec::new();
    run(&args, &mut out).map(|()| String::from_utf8(out).unwrap())
}

fn cli(words: &[&str]) -> String {
    with_server(|addr| try_cli(&addr, words).unwrap())
}

#[test]
fn status_is_a_table() {
    assert_eq!(
        cli(&["status"]),
        "QUEUE     WAITING  IN FLIGHT  PROCESSED  MEAN AGE  OLDEST\n\
         a\\u{1b}b        7          0          0         -       -\n\
         default         1          2          3      0 us  1.23 s\n\
         \n\
         WORKER  PROCESSED\n\
         w1              3\n"
    );
}

#[test]
fn json_is_the_answer_as_it_came() {
    let expected = String::from_utf8(answer(AdminCommand::Status)).unwrap() + "\n";
    assert_eq!(cli(&["status", "--json"]), expected);
    assert_eq!(cli(&["--json", "shutdown"]), "{\"acknowledged\": true}\n");
}

#[test]
fn workers_and_queues_are_tables() {
    assert_eq!(
        cli(&["show-workers"]),
        "WORKER  STATE  FREE SLOTS  QUEUES (WEIGHT)\n\
         w1      live            4  default (10.5), b (2)\n\
         \n\
         QUEUE    NEXT WORKERS (WEIGHT)\n\
         b        w1 (10.5), w1 (10.5), w1 (10.5), w1 (10.5), w1 (10.5), w1 (10.5), w1 (10.5), \
         w1 (10.5), and 2 more\n\
         default  w1 (10.5)\n"
    );
    assert_eq!(cli(&["show-schedulers"]), "no schedulers\n");
}

#[test]
fn latency_is_a_table() {
    assert_eq!(
        cli(&["latency"]),
        "QUEUE  TIME  COUNT   MIN     MEAN   P50   P90   P99  P99.9      MAX\n\
         q      wait      5  7 us  1.50 ms  0 us  0 us  0 us   0 us  1.5 min\n"
    );
    assert_eq!(cli(&["latency", "--interval"]), "no jobs yet\n");
}

#[test]
fn counters_leave_out_zeros() {
    let some = cli(&["counters"]);
    assert!(some.contains("jobs_done     12\n"), "{some}");
    assert!(
        !some.contains("jobs_lost") && some.contains("io-0"),
        "{some}"
    );
    assert!(cli(&["counters", "--all"]).contains("jobs_lost"));
}

#[test]
fn shutdown_waits_for_the_ack() {
    let text = cli(&["shutdown"]);
    assert!(
        text.ends_with(": acknowledged, it is shutting down\n"),
        "{text}"
    );
}

#[test]
fn unix_sockets_work_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("admin");
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || serve(listener.accept().unwrap().0));
    let addr = Addr::Ipc(path);
    assert_eq!(
        try_cli(&addr, &["show-schedulers"]).unwrap(),
        "no schedulers\n"
    );
    server.join().unwrap();
}

/// The error of `status` against a server that does `act` with its one connection.
fn error_with(act: impl FnOnce(TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr: Addr = format!("tcp://{}", listener.local_addr().unwrap())
        .parse()
        .unwrap();
    let server = std::thread::spawn(move || act(listener.accept().unwrap().0));
    let error = try_cli(&addr, &["status", "--timeout", "0.3"])
        .unwrap_err()
        .to_string();
    server.join().unwrap();
    assert_eq!(error.lines().count(), 1, "{error}");
    error.replace(&addr.to_string(), "ADDR")
}

fn read_to_end(mut stream: TcpStream) {
    let _ = stream.read_to_end(&mut Vec::new());
}

#[test]
fn an_address_without_a_broker_is_one_clear_line() {
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let addr: Addr = format!("tcp://{free}").parse().unwrap();
    let error = try_cli(&addr, &["status"]).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("{addr}: cannot connect: ")),
        "{error}"
    );

    let http = error_with(|mut stream| {
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
            .unwrap();
        read_to_end(stream);
    });
    assert!(
        http.starts_with("ADDR: no EventMQ broker: not ZMTP"),
        "{http}"
    );
    assert_eq!(
        error_with(read_to_end),
        "ADDR: no EventMQ broker: no ZMTP handshake within 0.3 s"
    );
    let closed = error_with(|mut stream| {
        // Read first: unread bytes would turn the close into a reset.
        let _ = stream.read_exact(&mut [0; 64]);
    });
    assert_eq!(
        closed,
        "ADDR: no EventMQ broker: the connection ended during the handshake: closed by the other \
         side"
    );
}

#[test]
fn a_silent_broker_is_one_clear_line() {
    let error = error_with(|stream| {
        // A frontend: it takes the connection and ignores administrative commands.
        let config = PeerConfig::new(
            Role::Server,
            SocketType::Router,
            b"",
            &[],
            Limits::default(),
        );
        let mut out = Vec::new();
        let mut peer = Peer::new(&Arc::new(config), &mut out);
        let (mut stream, mut received, mut spans) = (stream, Vec::new(), Vec::new());
        let mut chunk = [0; 1024];
        loop {
            match peer.poll(&mut received, &mut spans, &mut out).unwrap() {
                Event::NeedMore { .. } => {
                    stream.write_all(&out).unwrap();
                    out.clear();
                    match stream.read(&mut chunk) {
                        Ok(0) | Err(_) => return,
                        Ok(len) => received.extend_from_slice(&chunk[..len]),
                    }
                }
                Event::Ready { consumed, .. }
                | Event::Command { consumed }
                | Event::Message { consumed, .. } => drop(received.drain(..consumed)),
                other => panic!("{other:?}"),
            }
        }
    });
    assert_eq!(
        error,
        "ADDR: no answer to STATUS within 0.3 s (is it the administrative address, and does the \
         broker know this command?)"
    );
}

#[test]
fn the_command_line_is_checked() {
    for words in [
        &["emq-cli", "nonsense"][..],
        &["emq-cli", "ping", "--count", "0"],
        &["emq-cli", "watch"],
        &["emq-cli", "watch", "shutdown"],
        &["emq-cli", "--addr", "47293", "status"],
        &["emq-cli", "status", "--timeout", "0"],
        &["emq-cli", "status", "--timeout", "NaN"],
    ] {
        assert_eq!(
            Args::try_parse_from(words).unwrap_err().exit_code(),
            2,
            "{words:?}"
        );
    }
    let args = Args::try_parse_from(["emq-cli", "latency", "-a", "tcp://h:1"]).unwrap();
    assert_eq!(args.options.addr.unwrap().to_string(), "tcp://h:1");
    Args::command().debug_assert();
    ShellLine::command().debug_assert();
}

#[test]
fn commands_of_earlier_versions_are_understood() {
    let words = shell_words();
    for word in [
        "connect",
        "disconnect",
        "status",
        "show_workers",
        "show_schedulers",
        "shutdown",
        "quit",
    ] {
        assert!(words.iter().any(|known| known == word), "{word}: {words:?}");
        ShellLine::try_parse_from([word]).unwrap();
    }
    let args = Args::try_parse_from(["emq-cli", "show_workers"]);
    assert!(args.is_ok());
}

#[test]
fn ping_tells_times_and_what_failed() {
    let text = cli(&["ping", "--count", "2", "--interval", "0.01"]);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[0].contains(": seq 1, ") && lines[0].ends_with(" ms"));
    assert!(lines[2].starts_with("2 asked, 2 answered, min "), "{text}");
    let json = cli(&["ping", "--count", "1", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value["seq"], 1);
    assert!(value["time_us"].is_u64());

    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr: Addr = format!("tcp://{}", free.local_addr().unwrap())
        .parse()
        .unwrap();
    drop(free);
    let words = ["ping", "--count", "2", "--interval", "0.01"];
    let error = try_cli(&addr, &words).unwrap_err().to_string();
    assert_eq!(error, "2 of 2 not answered");
}

#[test]
fn watch_asks_again_and_again() {
    let text = cli(&["watch", "--interval", "0.01", "--count", "3", "latency"]);
    assert_eq!(text.matches("no jobs yet\n").count(), 3, "{text}");
    let json = cli(&[
        "watch",
        "--interval",
        "0.01",
        "--count",
        "2",
        "--json",
        "status",
    ]);
    assert_eq!(json.lines().count(), 2, "{json}");
    for line in json.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    let names: Vec<_> = Args::command()
        .get_subcommands()
        .map(|sub| sub.get_name().to_owned())
        .collect();
    for shell in ["bash", "zsh", "fish"] {
        let text = String::from_utf8(completions(shell.parse().unwrap())).unwrap();
        assert!(names.iter().all(|name| text.contains(name)), "{shell}");
    }
    let text = String::from_utf8(manual().unwrap()).unwrap();
    for name in &names {
        assert!(text.contains(&name.replace('-', "\\-")), "{name}\n{text}");
    }
    let dir = tempfile::tempdir().unwrap();
    let addr: Addr = "tcp://h:1".parse().unwrap();
    let path = dir.path().to_str().unwrap();
    try_cli(&addr, &["man", "--dir", path]).unwrap();
    for name in names {
        let page = dir.path().join(format!("emq-cli-{name}.1"));
        assert!(page.exists(), "{}", page.display());
    }
}

/// Something answers like a broker, but not with what a broker answers.
#[test]
fn foreign_json_is_refused_in_one_line() {
    let addr = Addr::Ipc("/run/foreign".into());
    for json in ["[1,2]", "3", "null", "\"x\"", "", "{", "[{}]", "{} {}"] {
        let error = client::read(&addr, json).unwrap_err().to_string();
        assert!(
            error.starts_with("ipc:///run/foreign: unexpected answer: "),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    assert!(client::read(&addr, "{\"a\": 1}").is_ok());
}
