//! `emq-router` and `emq-cli` as processes: settings, signals, exit codes.
#![cfg(all(feature = "broker", feature = "cli"))]

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(30);

fn program(path: &str) -> Command {
    let mut command = Command::new(path);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("EVENTMQ_") || name == "NOTIFY_SOCKET" {
            command.env_remove(&*name);
        }
    }
    command
}

fn router() -> Command {
    program(env!("CARGO_BIN_EXE_emq-router"))
}

fn texts(output: &Output) -> (Option<i32>, &str, &str) {
    let text = |bytes| std::str::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}

#[test]
fn settings_errors_are_single_lines_and_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("emq.conf");
    write(&file, "[global]\n\n[router]\nheartbeat_timeout = soon\n");
    let expected = "heartbeat_timeout = \"soon\": expected seconds from 0.1 to 86400, decimals \
                    allowed\n";
    for flags in [&[][..], &["--check-config"], &["--print-config"]] {
        let output = router().arg("-C").arg(&file).args(flags).output().unwrap();
        let error = format!("emq-router: {}:4: {expected}", file.display());
        assert_eq!(texts(&output), (Some(2), "", error.as_str()), "{flags:?}");
    }
    let output = router()
        .env("EVENTMQ_HWM", "x")
        .arg("--check-config")
        .output()
        .unwrap();
    let error = "emq-router: environment: EVENTMQ_HWM = \"x\": expected a whole number from 0 to \
                 1000000000\n";
    assert_eq!(texts(&output), (Some(2), "", error));
    let output = router()
        .args(["--idle", "sleep", "--check-config"])
        .output()
        .unwrap();
    let error = "emq-router: command line: --idle = \"sleep\": expected park or spin\n";
    assert_eq!(texts(&output), (Some(2), "", error));
    let output = router()
        .args(["-C", "/nonexistent/emq.conf"])
        .output()
        .unwrap();
    let error = "emq-router: /nonexistent/emq.conf: cannot read the settings file named by -C: No \
                 such file or directory (os error 2)\n";
    assert_eq!(texts(&output), (Some(2), "", error));
    assert_eq!(
        router().arg("--nonsense").output().unwrap().status.code(),
        Some(2)
    );
}

#[test]
fn printed_settings_are_a_file_with_the_same_settings() {
    let dir = tempfile::tempdir().unwrap();
    let (file, again) = (dir.path().join("emq.conf"), dir.path().join("again.conf"));
    write(
        &file,
        "[global]\nhwm = 1\nmax_queues = 2\n[router]\nqueue_grace = 0.5\nnope = 1\n",
    );
    let output = router()
        .arg("--print-config")
        .env("EVENTMQ_CONFIG_FILE", &file)
        .env("EVENTMQ_HWM", "7")
        .env("EVENTMQ_THREADING", "inline")
        .args([
            "--threading",
            "dedicated",
            "--queues",
            "[[2.5, \"\u{e9}\"]]",
        ])
        .output()
        .unwrap();
    let (code, printed, warnings) = texts(&output);
    let shown = file.display();
    assert_eq!(code, Some(0));
    assert_eq!(
        warnings,
        format!("emq-router: warning: {shown}:6: unknown setting nope in [router]\n")
    );
    for line in [
        "# environment\nhwm = 7\n",
        "# command line\nthreading = dedicated\n",
        "# command line\nqueues = [[2.5, \"\u{e9}\"]]\n",
        &format!("# {shown}:3\nmax_queues = 2\n"),
        &format!("# {shown}:5\nqueue_grace = 0.5\n"),
        "# default\nheartbeat_interval = 3\n",
    ] {
        assert!(printed.contains(line), "{line}\nnot in\n{printed}");
    }
    write(&again, printed);
    let output = router()
        .arg("--print-config")
        .arg("-C")
        .arg(&again)
        .output()
        .unwrap();
    let values = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let (code, second, warnings) = texts(&output);
    assert_eq!((code, warnings), (Some(0), ""));
    assert_eq!(values(second), values(printed));
}

/// A running broker; killed if a test ends early.
struct Router {
    child: Child,
    /// Lines of its log.
    log: Receiver<String>,
    admin: String,
}

impl Router {
    fn start(command: &mut Command) -> Router {
        let mut child = command
            .env("EVENTMQ_FRONTEND_ADDR", "tcp://127.0.0.1:0")
            .env("EVENTMQ_BACKEND_ADDR", "tcp://127.0.0.1:0")
            .env("EVENTMQ_ADMINISTRATIVE_ADDR", "tcp://127.0.0.1:0")
            .arg("--print-addresses")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = lines(child.stderr.take().unwrap());
        let addresses = lines(child.stdout.take().unwrap());
        let mut router = Router {
            child,
            log,
            admin: String::new(),
        };
        for name in ["frontend", "backend", "administrative"] {
            let line = addresses.recv_timeout(LONG).unwrap();
            router.admin = line
                .strip_prefix(&format!("listening {name} "))
                .unwrap()
                .to_owned();
        }
        router
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn cli(&self, words: &[&str]) -> Output {
        let mut cli = program(env!("CARGO_BIN_EXE_emq-cli"));
        cli.args(["--timeout", "20", "--addr", &self.admin])
            .args(words)
            .output()
            .unwrap()
    }

    fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + LONG;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the broker does not end");
    }

    /// Waits for a record with all of `words`.
    fn logged(&self, words: &[&str]) -> String {
        let deadline = Instant::now() + LONG;
        let mut seen = String::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.log.recv_timeout(left) {
                Ok(line) if words.iter().all(|word| line.contains(word)) => return line,
                Ok(line) => seen = seen + &line + "\n",
                Err(error) => panic!("{words:?}: {error}; logged:\n{seen}"),
            }
        }
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            // Goes on reading when nobody listens, so that the broker's pipe never fills.
            let _ = sender.send(line);
        }
    });
    receiver
}

#[test]
fn a_broker_answers_and_ends_on_sigterm() {
    for threading in ["inline", "dedicated"] {
        for signal in [Signal::TERM, Signal::INT] {
            let mut router = Router::start(router().args(["--threading", threading]));
            let output = router.cli(&["counters", "--json"]);
            let (code, json, errors) = texts(&output);
            assert_eq!((code, errors), (Some(0), ""));
            assert!(
                json.contains(&format!("\"threading\": \"{threading}\"")),
                "{json}"
            );
            let output = router.cli(&["status"]);
            assert_eq!(texts(&output), (Some(0), "no queues\n\nno workers\n", ""));
            let begun = Instant::now();
            router.signal(signal);
            assert_eq!(router.wait().code(), Some(0), "{threading} {signal:?}");
            // An idle broker has nothing to wait for but its accept window and open peers.
            assert!(
                begun.elapsed() < Duration::from_secs(8),
                "{threading} {signal:?}"
            );
            router.logged(&["emq-router ends", "jobs_abandoned=0"]);
        }
    }
}

#[test]
fn the_administrative_disconnect_ends_it_too() {
    for threading in ["inline", "dedicated"] {
        let mut router = Router::start(router().args(["--threading", threading]));
        assert_eq!(router.cli(&["shutdown"]).status.code(), Some(0));
        assert_eq!(router.wait().code(), Some(0), "{threading}");
    }
}

#[test]
fn sighup_reloads_all_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("emq.conf");
    write(&file, "[router]\nhwm = 5\n");
    let mut router = Router::start(router().arg("-C").arg(&file));
    write(
        &file,
        "[router]\nhwm = 6\nio_threads = 3\nlog_level = debug\n",
    );
    router.signal(Signal::HUP);
    router.logged(&[
        "INFO",
        "setting changed",
        "name=\"hwm\" old=\"5\" new=\"6\"",
    ]);
    router.logged(&[
        "WARN",
        "setting needs a restart",
        "name=\"io_threads\" old=\"2\" new=\"3\"",
    ]);
    router.logged(&["settings reloaded"]);
    write(&file, "[router]\nhwm = 7\nmax_queues = few\n");
    router.signal(Signal::HUP);
    router.logged(&["ERROR", ":3: max_queues = \"few\": expected a whole number"]);
    router.logged(&["ERROR", "settings not reloaded"]);
    write(&file, "[router]\nhwm = 8\nio_threads = 3\n");
    router.signal(Signal::HUP);
    router.logged(&["setting changed", "name=\"hwm\" old=\"6\" new=\"8\""]);
    router.logged(&[
        "setting needs a restart",
        "name=\"io_threads\" old=\"2\" new=\"3\"",
    ]);
    // The address was given by the environment; a taken one leaves everything as it was.
    assert_eq!(router.cli(&["status"]).status.code(), Some(0));
    router.signal(Signal::TERM);
    assert_eq!(router.wait().code(), Some(0));
}

#[test]
fn an_address_in_use_is_one_record_and_exit_code_1() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = format!("tcp://{}", taken.local_addr().unwrap());
    let output = router()
        .args(["--frontend-addr", &addr, "--log-level", "error"])
        .args([
            "--backend-addr",
            "tcp://127.0.0.1:0",
            "--administrative-addr",
            "tcp://127.0.0.1:0",
        ])
        .output()
        .unwrap();
    let (code, _, log) = texts(&output);
    assert_eq!((code, log.lines().count()), (Some(1), 1), "{log}");
    assert!(log.contains("ERROR") && log.contains(&addr), "{log}");
}

#[test]
fn a_core_that_does_not_exist_is_one_record_and_exit_code_2() {
    let output = router()
        .args([
            "--threading",
            "dedicated",
            "--dispatch-core",
            "1000",
            "--log-level",
            "error",
        ])
        .args([
            "--frontend-addr",
            "tcp://127.0.0.1:0",
            "--backend-addr",
            "tcp://127.0.0.1:0",
        ])
        .args(["--administrative-addr", "tcp://127.0.0.1:0"])
        .output()
        .unwrap();
    let (code, _, log) = texts(&output);
    assert_eq!((code, log.lines().count()), (Some(2), 1), "{log}");
    assert!(
        log.contains("dispatch_core: core 1000 does not exist"),
        "{log}"
    );
}

#[test]
fn systemd_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    let next = || {
        let mut bytes = [0; 512];
        let len = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..len].to_vec()).unwrap()
    };
    let mut router = Router::start(router().env("NOTIFY_SOCKET", &path));
    assert_eq!(next(), "READY=1\nSTATUS=serving\n");
    router.signal(Signal::HUP);
    assert!(next().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert_eq!(next(), "READY=1\nSTATUS=serving\n");
    router.signal(Signal::TERM);
    assert_eq!(next(), "STOPPING=1\nSTATUS=draining\n");
    assert_eq!(router.wait().code(), Some(0));
}

#[test]
fn json_records_are_objects_on_lines() {
    let mut router = Router::start(router().args(["--log-format", "json"]));
    router.signal(Signal::TERM);
    assert_eq!(router.wait().code(), Some(0));
    let log: Vec<_> = router.log.iter().collect();
    assert!(log.len() >= 3, "{log:?}");
    for line in log {
        let record: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert!(
            record["message"].is_string() && record["level"].is_string(),
            "{line}"
        );
    }
}
