//! The log: records through a bounded queue to a writer thread, so that a blocked or slow standard
//! error never blocks who logs. What finds the queue full is dropped and counted, and the writer
//! reports the number once it gets on.

use crossbeam::channel::{Receiver, Sender, TrySendError, bounded};
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::SetGlobalDefaultError;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, Registry, reload};

/// Records waiting for the writer.
const QUEUE_RECORDS_MAX: usize = 2_048;
/// Longest record; the rest is cut off. With the queue: at most 16 MiB wait.
const RECORD_BYTES_MAX: usize = 8 * 1_024;
/// Shortest time between two reports of dropped records.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Form of the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One readable line.
    Human,
    /// One JSON object on one line.
    Json,
}

/// What remains in hand of a started log: its level, its count of drops, and flushing.
#[derive(Debug, Clone)]
pub struct LogHandle {
    queue: Queue,
    level: reload::Handle<LevelFilter, Registry>,
}

#[derive(Debug, Clone)]
struct Queue {
    sender: Sender<Item>,
    dropped: Arc<AtomicU64>,
}

enum Item {
    Record(Vec<u8>),
    /// Answered when everything before it has been written.
    Flush(Sender<()>),
}

/// The log of this process, once started.
static STARTED: OnceLock<LogHandle> = OnceLock::new();

/// Records that the log of this process has dropped since start (`log_records_dropped`).
pub fn records_dropped() -> u64 {
    STARTED.get().map_or(0, LogHandle::dropped)
}

/// Starts the log of this process on standard error.
///
/// # Errors
/// If there is a log already or the thread cannot be started.
pub fn start(format: Format, level: LevelFilter) -> io::Result<LogHandle> {
    let (subscriber, handle) = build(format, level, io::stderr())?;
    tracing::subscriber::set_global_default(subscriber)
        .map_err(|error: SetGlobalDefaultError| io::Error::other(error))?;
    // The first and only one: a second subscriber has just been refused.
    let _ = STARTED.set(handle.clone());
    Ok(handle)
}

/// A log that ends in `sink`, and its writer thread. The thread ends with the last handle and
/// subscriber.
///
/// # Errors
/// If the thread cannot be started.
pub fn build<W: Write + Send + 'static>(
    format: Format,
    level: LevelFilter,
    sink: W,
) -> io::Result<(impl tracing::Subscriber + Send + Sync, LogHandle)> {
    let (sender, receiver) = bounded(QUEUE_RECORDS_MAX);
    let queue = Queue {
        sender,
        dropped: Arc::default(),
    };
    let (filter, level) = reload::Layer::new(level);
    let layer = fmt::layer()
        .with_writer(queue.clone())
        .with_ansi(false)
        .with_target(false);
    let layer = match format {
        Format::Human => layer.boxed(),
        Format::Json => layer
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .boxed(),
    };
    let dropped = Arc::clone(&queue.dropped);
    thread::Builder::new()
        .name("emq-log".to_owned())
        .spawn(move || write_records(&receiver, &dropped, format, sink))?;
    let subscriber = tracing_subscriber::registry().with(layer.with_filter(filter));
    Ok((subscriber, LogHandle { queue, level }))
}

impl LogHandle {
    /// Records dropped since start (`log_records_dropped`).
    pub fn dropped(&self) -> u64 {
        self.queue.dropped.load(Ordering::Relaxed)
    }

    /// Changes the level.
    pub fn set_level(&self, level: LevelFilter) {
        // It fails only when the subscriber is gone, and then nothing is logged anyway.
        let _ = self.level.reload(level);
    }

    /// Waits until what was logged before is written, at most `timeout`; false if it is not.
    pub fn flush(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let (done, written) = bounded(1);
        self.queue
            .sender
            .send_timeout(Item::Flush(done), timeout)
            .is_ok()
            && written.recv_deadline(deadline).is_ok()
    }
}

impl Queue {
    fn offer(&self, record: &[u8]) {
        let record = match record.get(..RECORD_BYTES_MAX) {
            None => record.to_vec(),
            Some(head) => {
                let mut cut = String::from_utf8_lossy(head).into_owned().into_bytes();
                cut.extend_from_slice(b"...\n");
                cut
            }
        };
        match self.sender.try_send(Item::Record(record)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// The formatter writes each record with one call.
struct RecordWriter<'a>(&'a Queue);

impl Write for RecordWriter<'_> {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        self.0.offer(record);
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Queue {
    type Writer = RecordWriter<'a>;

    fn make_writer(&'a self) -> RecordWriter<'a> {
        RecordWriter(self)
    }
}

fn write_records<W: Write>(
    items: &Receiver<Item>,
    dropped: &AtomicU64,
    format: Format,
    mut sink: W,
) {
    let mut reported = 0;
    let mut next_report = Instant::now();
    for item in items {
        match item {
            // A record that cannot be written is as good as dropped; the next one is tried again.
            Item::Record(record) => {
                if sink.write_all(&record).is_err() {
                    dropped.fetch_add(1, Ordering::Relaxed);
                }
            }
            Item::Flush(done) => {
                let _ = sink.flush();
                // Whoever asked may have given up.
                let _ = done.try_send(());
            }
        }
        let total = dropped.load(Ordering::Relaxed);
        if total > reported && Instant::now() >= next_report {
            if sink.write_all(&report(format, total - reported)).is_ok() {
                reported = total;
            }
            next_report = Instant::now() + REPORT_INTERVAL;
        }
    }
}

/// The record about dropped records, made by hand: logging it would need room in the queue.
fn report(format: Format, records: u64) -> Vec<u8> {
    let mut time = String::new();
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    let message = "log records dropped: the log writer was behind";
    match format {
        Format::Human => format!("{time}  WARN {message} records={records}\n"),
        Format::Json => format!(
            "{{\"timestamp\":\"{time}\",\"level\":\"WARN\",\"message\":\"{message}\",\
             \"records\":{records}}}\n"
        ),
    }
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Condvar, Mutex};

    /// A sink that can be blocked and read.
    #[derive(Clone, Default)]
    struct Sink(Arc<(Mutex<SinkState>, Condvar)>);

    #[derive(Default)]
    struct SinkState {
        text: Vec<u8>,
        blocked: bool,
    }

    impl Sink {
        fn block(&self, blocked: bool) {
            self.0.0.lock().unwrap().blocked = blocked;
            self.0.1.notify_all();
        }

        fn text(&self) -> String {
            String::from_utf8(self.0.0.lock().unwrap().text.clone()).unwrap()
        }
    }

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut state = self
                .0
                .1
                .wait_while(self.0.0.lock().unwrap(), |s| s.blocked)
                .unwrap();
            state.text.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn human_records_are_lines_and_the_level_can_change() {
        let sink = Sink::default();
        let (subscriber, log) = build(Format::Human, LevelFilter::INFO, sink.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(peer = "a\nb", "first");
            tracing::debug!("hidden");
            log.set_level(LevelFilter::DEBUG);
            tracing::debug!("second");
        });
        assert!(log.flush(LONG));
        let text = sink.text();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].ends_with("INFO first peer=\"a\\nb\""), "{text}");
        assert!(lines[1].ends_with("DEBUG second"), "{text}");
    }

    #[test]
    fn json_records_are_objects() {
        let sink = Sink::default();
        let (subscriber, log) = build(Format::Json, LevelFilter::INFO, sink.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || tracing::warn!(jobs = 3, "x \"y\""));
        assert!(log.flush(LONG));
        let value: serde_json::Value = serde_json::from_str(sink.text().trim_end()).unwrap();
        assert_eq!(
            (&value["level"], &value["message"]),
            (&"WARN".into(), &"x \"y\"".into())
        );
        assert_eq!(value["jobs"], 3);
        assert!(value["timestamp"].is_string());
        let report: serde_json::Value = serde_json::from_slice(&report(Format::Json, 7)).unwrap();
        assert_eq!(
            (&report["level"], &report["records"]),
            (&"WARN".into(), &7.into())
        );
    }

    #[test]
    fn a_blocked_sink_blocks_nobody_and_drops_are_counted_and_reported() {
        let sink = Sink::default();
        let (subscriber, log) = build(Format::Human, LevelFilter::INFO, sink.clone()).unwrap();
        sink.block(true);
        let records = QUEUE_RECORDS_MAX + 500;
        let begun = Instant::now();
        tracing::subscriber::with_default(subscriber, || {
            for n in 0..records {
                tracing::info!(n, "record");
            }
        });
        assert!(begun.elapsed() < LONG, "logging was blocked");
        // The writer may hold one record that it took out of the queue.
        let dropped = log.dropped();
        assert!((499..=500).contains(&dropped), "{dropped}");
        assert!(!log.flush(Duration::from_millis(20)));
        sink.block(false);
        assert!(log.flush(LONG));
        let text = sink.text();
        let reports: Vec<_> = text
            .lines()
            .filter(|line| line.contains(" WARN "))
            .collect();
        assert_eq!(reports.len(), 1, "{reports:?}");
        assert!(
            reports[0].ends_with(&format!("behind records={dropped}")),
            "{reports:?}"
        );
        assert_eq!(text.lines().count() as u64, records as u64 - dropped + 1);
    }

    #[test]
    fn long_records_are_cut() {
        let sink = Sink::default();
        let (subscriber, log) = build(Format::Human, LevelFilter::INFO, sink.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!("{}", "\u{e9}".repeat(RECORD_BYTES_MAX));
            tracing::info!("next");
        });
        assert!(log.flush(LONG));
        let text = sink.text();
        assert!(text.len() < RECORD_BYTES_MAX + 200);
        assert_eq!(text.lines().count(), 2);
    }
}
