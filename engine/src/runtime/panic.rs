//! A panic in any thread ends the process: never a broker with a dead thread.

use super::log::LogHandle;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest wait for the log writer before the process ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// From now on a panic writes one record and ends the process with exit code 1.
pub fn exit_on_panic(log: LogHandle) {
    let panicking = AtomicBool::new(false);
    std::panic::set_hook(Box::new(move |info| {
        if panicking.swap(true, Ordering::SeqCst) {
            // Another thread is writing the record and will end the process.
            std::thread::sleep(2 * FLUSH_TIMEOUT);
        } else {
            let thread = std::thread::current();
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            tracing::error!(
                thread = thread.name().unwrap_or("unnamed"),
                place,
                "panic, the process ends: {}",
                info.payload_as_str().unwrap_or("no message")
            );
            log.flush(FLUSH_TIMEOUT);
        }
        std::process::exit(1);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::log;
    use std::process::Command;

    /// Set in the process that panics.
    const CHILD: &str = "EMQ_TEST_PANICS";

    #[test]
    fn a_panic_in_any_thread_ends_the_process_with_one_record() {
        if std::env::var_os(CHILD).is_some() {
            let log = log::start(log::Format::Json, tracing::level_filters::LevelFilter::INFO);
            exit_on_panic(log.unwrap());
            let agents = ["io-0", "io-1"].map(|name| {
                let thread = std::thread::Builder::new().name(name.to_owned());
                thread.spawn(|| panic!("no \"way\"\nout")).unwrap()
            });
            agents.into_iter().for_each(|agent| drop(agent.join()));
            unreachable!("the process has ended");
        }
        let name = "runtime::panic::tests::a_panic_in_any_thread_ends_the_process_with_one_record";
        let output = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        let records = String::from_utf8(output.stderr).unwrap();
        assert_eq!(records.lines().count(), 1, "{records}");
        let record: serde_json::Value = serde_json::from_str(&records).unwrap();
        assert_eq!(
            record["message"],
            "panic, the process ends: no \"way\"\nout"
        );
        assert!(record["thread"].as_str().unwrap().starts_with("io-"));
        assert!(record["place"].as_str().unwrap().contains("panic.rs:"));
    }
}
