//! `emq-cli` in a terminal: the shell, and `top`, which leaves the terminal as it found it.

use eventmq_tests::peers::our_binary;
use eventmq_tests::publisher::Publisher;
use eventmq_tests::router::{Router, Target};
use nix::sys::signal::Signal;
use nix::sys::wait::WaitStatus;
use rexpect::session::{PtySession, spawn_command};
use std::path::Path;
use std::process::Command;

const PATIENCE_MS: u64 = 30_000;

/// A command in a terminal of its own, with nothing of the caller's environment that matters.
fn in_terminal(mut command: Command, home: &Path) -> PtySession {
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("EVENTMQ_") || name.starts_with("XDG_") || name == "STATE_DIRECTORY" {
            command.env_remove(&*name);
        }
    }
    command
        .env("HOME", home)
        .env("TERM", "xterm")
        .current_dir(home);
    spawn_command(command, Some(PATIENCE_MS)).expect("a terminal")
}

fn shell(addr: &str, home: &Path) -> PtySession {
    let mut command = Command::new(our_binary("emq-cli"));
    command.args(["--addr", addr, "--timeout", "20"]);
    in_terminal(command, home)
}

#[track_caller]
fn expect(session: &mut PtySession, text: &str) {
    if let Err(error) = session.exp_string(text) {
        panic!("{text:?} does not come: {error}");
    }
}

/// Types a line at the prompt; `answer` comes, and then the prompt again.
#[track_caller]
fn say(session: &mut PtySession, line: &str, answer: &str, prompt: &str) {
    session.send_line(line).unwrap();
    // What was typed comes back first.
    expect(session, line);
    if !answer.is_empty() {
        expect(session, answer);
    }
    expect(session, prompt);
}

#[track_caller]
fn ends_with_code(session: &mut PtySession, code: i32) {
    session.exp_eof().expect("the end");
    match session.process().wait().expect("a status") {
        WaitStatus::Exited(_, got) => assert_eq!(got, code),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_shell_takes_the_commands_of_earlier_versions() {
    let mut router = Router::ours(Target::Inline);
    let admin = router.addresses().admin.clone();
    let home = tempfile::tempdir().unwrap();
    let prompt = format!("{admin}> ");
    let mut shell_1 = shell(&admin, home.path());
    expect(&mut shell_1, &prompt);
    say(&mut shell_1, "status", "no workers", &prompt);
    say(&mut shell_1, "show_workers", "no served queues", &prompt);
    say(&mut shell_1, "show_schedulers", "no schedulers", &prompt);
    // Completion finishes the word.
    shell_1.send("show_sch\t\r").unwrap();
    shell_1.flush().unwrap();
    expect(&mut shell_1, "no schedulers");
    expect(&mut shell_1, &prompt);
    let away = "(not connected)> ";
    for (line, answer, then) in [
        ("latency --json", "{\"cumulative\": {", prompt.as_str()),
        ("nonsense", "unrecognized subcommand 'nonsense'", &prompt),
        ("status --timeout", "a value is required", &prompt),
        ("status 'open", "a quote is not closed", &prompt),
        ("help", "show-workers", &prompt),
        ("# a remark", "", &prompt),
        ("disconnect", "", away),
        ("status", "not connected: connect ADDRESS comes first", away),
        ("connect", "", &prompt),
        ("connect tcp://127.0.0.1:1", "cannot connect", away),
        (&format!("connect {admin}"), "", &prompt),
    ] {
        say(&mut shell_1, line, answer, then);
    }
    shell_1.send_line("quit").unwrap();
    ends_with_code(&mut shell_1, 0);

    // The history is kept for the next time, for its owner alone.
    let file = home.path().join(".local/state/eventmq/emq-cli-history");
    let history = std::fs::read_to_string(&file).expect("the history");
    assert!(history.contains("show_schedulers"), "{history}");
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
    let mut shell_2 = shell(&admin, home.path());
    expect(&mut shell_2, &prompt);
    // Twice up: quit, and the connect before it.
    shell_2.send("\x1b[A\x1b[A").unwrap();
    shell_2.flush().unwrap();
    expect(&mut shell_2, &format!("connect {admin}"));
    shell_2.send("\r").unwrap();
    shell_2.flush().unwrap();
    expect(&mut shell_2, &prompt);
    // Ctrl-C leaves the line, not the shell.
    shell_2.send("half a line\x03").unwrap();
    shell_2.flush().unwrap();
    expect(&mut shell_2, &prompt);
    say(&mut shell_2, "shutdown", "acknowledged", "> ");
    assert_eq!(router.process().wait_code(eventmq_tests::PATIENCE), 0);
    say(&mut shell_2, "status", "emq-cli: ", "(not connected)> ");
    // Ctrl-D ends it.
    shell_2.send("\x04").unwrap();
    shell_2.flush().unwrap();
    ends_with_code(&mut shell_2, 0);
}

#[test]
fn ctrl_c_ends_a_watch_and_not_the_shell() {
    let router = Router::ours(Target::Inline);
    let admin = router.addresses().admin.clone();
    let home = tempfile::tempdir().unwrap();
    let mut session = shell(&admin, home.path());
    let prompt = format!("{admin}> ");
    expect(&mut session, &prompt);
    session.send_line("watch --interval 0.2 status").unwrap();
    expect(&mut session, "status every 0.2 s");
    expect(&mut session, "status every 0.2 s");
    session.send("\x03").unwrap();
    session.flush().unwrap();
    expect(&mut session, &prompt);
    session.send_line("quit").unwrap();
    ends_with_code(&mut session, 0);
}

/// `top` between two looks at the terminal's settings.
fn top(addr: &str, home: &Path) -> PtySession {
    let script = "stty rows 30 cols 120; stty -g; \"$0\" \"$@\"; echo \"code $?\"; stty -g";
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .arg(our_binary("emq-cli"))
        .args(["--addr", addr, "--timeout", "20"])
        .args(["top", "--interval", "0.1"]);
    in_terminal(command, home)
}

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";
const SHOW_CURSOR: &str = "\x1b[?25h";

#[test]
fn top_leaves_the_terminal_as_it_found_it() {
    let router = Router::ours(Target::Inline);
    let home = tempfile::tempdir().unwrap();
    for key in ["q", "\x1b", "\x03"] {
        let mut session = top(&router.addresses().admin, home.path());
        let before = session.read_line().unwrap();
        expect(&mut session, ENTER);
        expect(&mut session, "jobs: 0 waiting, 0 in flight");
        expect(&mut session, "per second: 0 accepted");
        session.send(key).unwrap();
        session.flush().unwrap();
        expect(&mut session, SHOW_CURSOR);
        expect(&mut session, LEAVE);
        let (_, code) = session.exp_regex("code [0-9]+").unwrap();
        assert_eq!(code, "code 0");
        session.read_line().unwrap();
        assert_eq!(session.read_line().unwrap(), before, "{key:?}");
        session.exp_eof().unwrap();
    }
}

#[test]
fn top_gives_the_terminal_back_when_it_is_told_to_end() {
    let router = Router::ours(Target::Inline);
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(our_binary("emq-cli"));
    command.args(["--addr", &router.addresses().admin, "top"]);
    let mut session = in_terminal(command, home.path());
    expect(&mut session, ENTER);
    session.process_mut().signal(Signal::SIGTERM).unwrap();
    expect(&mut session, LEAVE);
    session.exp_eof().unwrap();
    match session.process().wait().unwrap() {
        WaitStatus::Signaled(_, Signal::SIGTERM, _) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn top_goes_on_over_the_end_of_a_broker() {
    let mut router = Router::ours(Target::Inline);
    let addresses = router.addresses().clone();
    let home = tempfile::tempdir().unwrap();
    let mut session = top(&addresses.admin, home.path());
    expect(&mut session, "jobs: 0 waiting");
    router.process().signal(Signal::SIGKILL);
    router.process().wait(eventmq_tests::PATIENCE);
    expect(&mut session, "cannot connect");
    session.send("q").unwrap();
    session.flush().unwrap();
    expect(&mut session, LEAVE);
    expect(&mut session, "code 0");
}

#[test]
fn top_shows_a_publisher_too() {
    let publisher = Publisher::ours(&[]);
    let home = tempfile::tempdir().unwrap();
    let mut session = top(&publisher.admin, home.path());
    expect(
        &mut session,
        "publishers: 0   subscribers: 0, 0 do not read",
    );
    session.send("q").unwrap();
    session.flush().unwrap();
    expect(&mut session, LEAVE);
}
