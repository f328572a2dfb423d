//! Whole loads: sources, precedence, errors, printing.

use super::*;
use std::ffi::OsString;
use std::path::PathBuf;

struct Case {
    dir: tempfile::TempDir,
    sources: Sources,
}

impl Case {
    fn new(file: &str) -> Case {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("emq.conf");
        std::fs::write(&path, file).unwrap();
        Case {
            dir,
            sources: Sources {
                config_file: Some(path),
                ..Sources::default()
            },
        }
    }

    fn env(mut self, name: &str, value: &str) -> Case {
        self.sources
            .environment
            .push((OsString::from(name), OsString::from(value)));
        self
    }

    fn arg(mut self, key: Key, value: &str) -> Case {
        self.sources.command_line.push((key, value.to_owned()));
        self
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("emq.conf")
    }

    fn load(&self) -> Settings {
        Settings::load(Component::Router, &self.sources).unwrap()
    }

    /// Errors with the path of the file as `FILE`.
    fn errors(&self) -> Vec<String> {
        let errors = Settings::load(Component::Router, &self.sources).unwrap_err();
        errors
            .iter()
            .map(|error| self.named(&error.to_string()))
            .collect()
    }

    fn warnings(&self) -> Vec<String> {
        self.load()
            .warnings()
            .iter()
            .map(|warning| self.named(warning))
            .collect()
    }

    fn named(&self, text: &str) -> String {
        text.replace(&self.path().display().to_string(), "FILE")
    }
}

fn defaults() -> Settings {
    Case::new("").load()
}

#[test]
fn defaults_are_those_of_the_documents() {
    let router = RouterSettings::new(&defaults());
    assert_eq!(router.frontend_addr.to_string(), "tcp://127.0.0.1:47291");
    assert_eq!(router.backend_addr.to_string(), "tcp://127.0.0.1:47290");
    assert_eq!(
        router.administrative_addr.to_string(),
        "tcp://127.0.0.1:47293"
    );
    assert_eq!(
        (router.hwm, router.max_queues, router.max_slots_per_worker),
        (10_000, 10_000, 10_000)
    );
    assert_eq!(
        (router.heartbeat_interval_ms, router.heartbeat_timeout_ms),
        (3_000, 5_000)
    );
    assert_eq!(
        (router.reconnect_grace_ms, router.queue_grace_ms),
        (1_000, 10_000)
    );
    assert_eq!(
        (router.late_reply_window_ms, router.drain_timeout_ms),
        (300_000, 30_000)
    );
    assert_eq!(router.queues, [(10.0, "default".to_owned())]);
    assert_eq!(router.max_memory, MemoryLimit::Share(5_000));
    assert_eq!(
        (router.threading, router.idle),
        (Threading::Auto, Idle::Park)
    );
    assert_eq!(
        (router.log_format, router.log_level),
        (LogFormat::Human, LogLevel::Info)
    );
    assert!(router.disconnect_unknown && !router.disable_heartbeats);
    assert_eq!(
        (&router.io_cores, router.dispatch_core, &router.state_dir),
        (&None, None, &None)
    );
}

#[test]
fn stronger_sources_win() {
    let file = "[router]\nhwm = 3\n[global]\nhwm = 2\nmax_queues = 2\nqueue_grace = 2\n\
                [DEFAULT]\nhwm = 1\nmax_queues = 1\nqueue_grace = 1\nio_threads = 1\n\
                [jobmanager]\nhwm = 99\n";
    let case = Case::new(file);
    let settings = case.load();
    let texts = |s: &Settings| {
        [Key::Hwm, Key::MaxQueues, Key::QueueGrace, Key::IoThreads].map(|key| s.text(key))
    };
    assert_eq!(texts(&settings), ["3", "2", "2", "1"]);
    assert_eq!(*settings.origin(Key::Hwm), Origin::File(case.path(), 2));
    let case = case
        .env("EVENTMQ_HWM", "4")
        .env("EVENTMQ_MAX_QUEUES", " 5 ");
    assert_eq!(texts(&case.load()), ["4", "5", "2", "1"]);
    assert_eq!(*case.load().origin(Key::Hwm), Origin::Environment);
    let case = case.arg(Key::Hwm, "6");
    assert_eq!(texts(&case.load()), ["6", "5", "2", "1"]);
    assert_eq!(*case.load().origin(Key::Hwm), Origin::CommandLine);
}

#[test]
fn a_bad_value_is_one_line_that_says_all() {
    for (file, line) in [
        (
            "[router]\nhwm = many\n",
            "FILE:2: hwm = \"many\": expected a whole number from 0 to 1000000000",
        ),
        (
            "# c\n[global]\n\nheartbeat_interval: 0\n",
            "FILE:4: heartbeat_interval = \"0\": expected seconds from 0.1 to 86400, decimals \
             allowed",
        ),
        (
            "[router]\nfrontend_addr = 47291\n",
            "FILE:2: frontend_addr = \"47291\": expected tcp://HOST:PORT or ipc://PATH",
        ),
        (
            "[router]\nthreading = both\n",
            "FILE:2: threading = \"both\": expected auto, dedicated or inline",
        ),
        (
            "[router]\nclient_buffer_bytes = 1X\n",
            "FILE:2: client_buffer_bytes = \"1X\": expected bytes from 0 to 1024G, with an \
             optional suffix K, M or G",
        ),
        (
            "[router]\ndisconnect_unknown = maybe\n",
            "FILE:2: disconnect_unknown = \"maybe\": expected true or false (also yes/no, \
             on/off, 1/0)",
        ),
        (
            "[router]\nhwm = 1\n  2\n",
            "FILE:2: hwm = \"1\\n2\": expected a whole number from 0 to 1000000000",
        ),
        ("[router]\nhwm\n", "FILE:2: expected NAME = VALUE"),
        (
            "hwm = 1\n",
            "FILE:1: expected a [SECTION] before the first NAME = VALUE",
        ),
        (
            "[router]\nhwm = 1\nHWM = 2\n",
            "FILE:3: \"hwm\" is given twice in [router], first in line 2",
        ),
    ] {
        assert_eq!(Case::new(file).errors(), [line], "{file:?}");
    }
    assert_eq!(
        Case::new("").env("EVENTMQ_QUEUES", "[10]").errors(),
        [
            "environment: EVENTMQ_QUEUES = \"[10]\": expected JSON [[weight, \"name\"], ...] with \
          finite weights, 1 to 1024 queues and names of 1 to 255 bytes"
        ]
    );
    assert_eq!(
        Case::new("").arg(Key::MaxMemory, "150%").errors(),
        [
            "command line: --max-memory = \"150%\": expected bytes (from 1M) with an optional \
          suffix K, M or G, or a percentage from 0.01% to 100%"
        ]
    );
}

#[test]
fn every_bad_value_is_reported_also_overridden_ones() {
    let case = Case::new("[router]\nhwm = a\n[global]\nhwm = b\nmax_queues = c\n")
        .env("EVENTMQ_HWM", "d")
        .arg(Key::Hwm, "5");
    let places: Vec<String> = case
        .errors()
        .iter()
        .map(|line| line.split(": expected").next().unwrap().to_owned())
        .collect();
    assert_eq!(
        places,
        [
            "FILE:2: hwm = \"a\"",
            "FILE:4: hwm = \"b\"",
            "FILE:5: max_queues = \"c\"",
            "environment: EVENTMQ_HWM = \"d\"",
        ]
    );
}

#[test]
fn unknown_and_useless_settings_are_warnings() {
    let file = "[router]\nhvm = 1\nconcurrent_jobs = x\n[rooter]\nhwm = x\n[global]\n\
                concurrent_jobs = x\nconfig_file = y\n[jobmanager]\nnope = 1\n";
    let case = Case::new(file)
        .env("EVENTMQ_HVM", "1")
        .env("EVENTMQ_RQ_PORT", "x")
        .env("X", "y");
    assert_eq!(
        case.warnings(),
        [
            "FILE:4: unknown section [rooter]",
            "FILE:8: config_file has no effect in a file",
            "FILE:2: unknown setting hvm in [router]",
            "FILE:3: concurrent_jobs has no effect in [router]",
            "FILE:10: unknown setting nope in [jobmanager]",
            "environment: unknown setting EVENTMQ_HVM",
        ]
    );
    assert_eq!(case.load().text(Key::Hwm), "10000");
}

#[test]
fn a_missing_file_counts_by_who_named_it() {
    let mut sources = Sources {
        config_file: Some(PathBuf::from("/nonexistent/emq.conf")),
        ..Sources::default()
    };
    let errors = Settings::load(Component::Router, &sources).unwrap_err();
    assert_eq!(
        errors
            .iter()
            .map(SettingsError::to_string)
            .collect::<Vec<_>>(),
        [
            "/nonexistent/emq.conf: cannot read the settings file named by -C: No such file or \
          directory (os error 2)"
        ]
    );
    sources.config_file = None;
    sources.environment = vec![(
        "EVENTMQ_CONFIG_FILE".into(),
        "/nonexistent/other.conf".into(),
    )];
    let settings = Settings::load(Component::Router, &sources).unwrap();
    assert_eq!(
        settings.warnings(),
        [
            "/nonexistent/other.conf: cannot read the settings file named by EVENTMQ_CONFIG_FILE: \
          No such file or directory (os error 2)"
        ]
    );
    assert_eq!(settings.text(Key::ConfigFile), "/nonexistent/other.conf");
}

#[test]
fn the_file_of_the_command_line_beats_that_of_the_environment() {
    let case = Case::new("[router]\nhwm = 7\n").env("EVENTMQ_CONFIG_FILE", "/nonexistent/x");
    assert_eq!(case.load().text(Key::Hwm), "7");
    assert!(case.warnings().is_empty());
}

#[test]
fn values_that_do_not_fit_together_are_errors() {
    assert_eq!(
        Case::new("[router]\nclient_buffer_bytes = 32M\n").errors(),
        [
            "FILE:2: client_buffer_bytes = \"32M\": expected at most client_result_bytes (16M, \
          default)"
        ]
    );
    assert_eq!(
        Case::new("[router]\nclient_result_bytes = 0\n").errors(),
        [
            "FILE:2: client_result_bytes = \"0\": expected at least client_buffer_bytes (1M, \
          default)"
        ]
    );
    assert_eq!(
        Case::new("[router]\nfrontend_addr = tcp://127.0.0.1:47290\n").errors(),
        [
            "FILE:2: frontend_addr = \"tcp://127.0.0.1:47290\": expected an address other than that \
          of backend_addr (tcp://127.0.0.1:47290, default)"
        ]
    );
    let free = "[router]\nfrontend_addr = tcp://127.0.0.1:0\nbackend_addr = tcp://127.0.0.1:0\n";
    assert!(Case::new(free).warnings().is_empty());
}

#[test]
fn printed_settings_read_back_the_same() {
    let case = Case::new(
        "[router]\nqueues = [[10, \"a\"],\n  [0.1, \"\u{e9} %(x)s \\n\"]]\nmax_memory = 12.5%\n\
         io_cores = 3-5\nqueue_grace = 0.25\nclient_result_bytes = 2000001\nsuper_debug = t\nhwm = 0\n\
         default_queue_name = # x ; y = z\n",
    )
    .env("EVENTMQ_BACKEND_ADDR", "ipc:///tmp/back end")
    .arg(Key::Threading, "Inline");
    let first = case.load();
    let again = Case::new(&first.print()).load();
    assert!(again.warnings().is_empty(), "{:?}", again.warnings());
    for key in first.keys().filter(|key| *key != Key::ConfigFile) {
        assert_eq!(first.value(key), again.value(key), "{}", key.name());
    }
    assert_eq!(RouterSettings::new(&first), RouterSettings::new(&again));
    let printed = case.named(&first.print());
    for line in [
        "# FILE:2\nqueues = [[10, \"a\"], [0.1, \"\u{e9} %(x)s \\n\"]]\n",
        "# environment\nbackend_addr = ipc:///tmp/back end\n",
        "# command line\nthreading = inline\n",
        "# default\nmax_queues = 10000\n",
    ] {
        assert!(printed.contains(line), "{line}\nnot in\n{printed}");
    }
}

#[test]
fn defaults_read_back_for_every_component() {
    for component in Component::ALL {
        let sources = Sources {
            config_file: Some("/dev/null".into()),
            ..Sources::default()
        };
        let first = Settings::load(component, &sources).unwrap();
        let case = Case::new(&first.print());
        let again = Settings::load(component, &case.sources).unwrap();
        assert!(again.warnings().is_empty(), "{:?}", again.warnings());
        for key in first.keys().filter(|key| *key != Key::ConfigFile) {
            assert_eq!(first.value(key), again.value(key), "{}", key.name());
        }
    }
}

#[test]
fn secrets_are_never_shown() {
    for file in [
        "[scheduler]\nrq_password = hunter2\n",
        "[scheduler]\nrq_password = hun\n ter2\n",
    ] {
        let case = Case::new(file);
        let text = match Settings::load(Component::Scheduler, &case.sources) {
            Ok(settings) => {
                assert_eq!(
                    settings.value(Key::RqPassword),
                    &Value::Text("hunter2".into())
                );
                let changed = defaults_of_scheduler().changes(&settings);
                assert_eq!(changed.len(), 1);
                format!("{} {changed:?}", settings.print())
            }
            Err(errors) => errors[0].to_string(),
        };
        assert!(text.contains("(hidden)") && !text.contains("hun"), "{text}");
    }
}

fn defaults_of_scheduler() -> Settings {
    let sources = Sources {
        config_file: Some("/dev/null".into()),
        ..Sources::default()
    };
    Settings::load(Component::Scheduler, &sources).unwrap()
}

#[test]
fn a_reload_knows_what_changed_and_when_it_counts() {
    let new = Case::new(
        "[router]\nhwm = 5\nio_threads = 3\nhandshake_timeout = 2\nwal = /x\n\
                         concurrent_jobs = 9\nmax_queues = 10000\n",
    )
    .load();
    let changes: Vec<_> = defaults()
        .changes(&new)
        .into_iter()
        .map(|c| (c.key, c.old, c.new, c.applies))
        .collect();
    let change =
        |key, old: &str, new: &str, applies| (key, old.to_owned(), new.to_owned(), applies);
    assert_eq!(
        changes,
        [
            change(Key::Hwm, "10000", "5", Applies::Now),
            change(Key::HandshakeTimeout, "10", "2", Applies::NewConnections),
            change(Key::IoThreads, "2", "3", Applies::Restart),
            change(Key::Wal, "/var/log/eventmq/wal.log", "/x", Applies::Never),
        ]
    );
    assert!(new.changes(&new).is_empty());
    let taken = new.without_restart(&defaults());
    assert_eq!(
        [taken.text(Key::Hwm), taken.text(Key::IoThreads)],
        ["5", "2"]
    );
    let waiting: Vec<_> = taken.changes(&new).into_iter().map(|c| c.key).collect();
    assert_eq!(waiting, [Key::IoThreads]);
}

#[test]
fn super_debug_counts_unless_a_level_is_given() {
    let level = |file: &str| Case::new(file).load().log_level();
    assert_eq!(level("[global]\nsuper_debug = t\n"), LogLevel::Debug);
    assert_eq!(
        level("[global]\nsuper_debug = t\nlog_level = info\n"),
        LogLevel::Info
    );
}

#[test]
fn the_state_directory_follows_the_environment() {
    let dir = |pairs: &'static [(&str, &str)]| {
        state_dir(|name| {
            pairs
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).as_ref())
        })
    };
    let home: &[_] = &[("HOME", "/home/u")];
    assert_eq!(
        dir(home),
        Some(PathBuf::from("/home/u/.local/state/eventmq"))
    );
    let relative: &[_] = &[
        ("HOME", "/h"),
        ("XDG_STATE_HOME", "x"),
        ("STATE_DIRECTORY", ""),
    ];
    assert_eq!(
        dir(relative),
        Some(PathBuf::from("/h/.local/state/eventmq"))
    );
    let xdg: &[_] = &[("HOME", "/h"), ("XDG_STATE_HOME", "/x")];
    assert_eq!(dir(xdg), Some(PathBuf::from("/x/eventmq")));
    let systemd: &[_] = &[
        ("HOME", "/h"),
        ("XDG_STATE_HOME", "/x"),
        ("STATE_DIRECTORY", "/a:/b"),
    ];
    assert_eq!(dir(systemd), Some(PathBuf::from("/a")));
    assert_eq!(dir(&[]), None);
}

#[test]
fn settings_document_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/settings.md");
    let text = settings_markdown();
    if std::env::var_os("EVENTMQ_UPDATE_DOCS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let current = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        current == text,
        "docs/settings.md is stale; its head says how to write it anew"
    );
}
