//! Answers, made piece by piece so that a large one need not hold up the thread it is made on.

use super::json::{Name, Weight, push, push_comma, push_key};
use crate::ids::Socket;
use crate::metrics::Counters;
use crate::snapshot::{
    CountersReport, LatencyReport, QueueLatency, QueueStatus, SchedulersSnapshot, StatusSnapshot,
    WorkersSnapshot,
};
use serde::Serialize;
use serde::ser::{SerializeMap, SerializeSeq, Serializer};

/// What an answer is made from.
#[derive(Debug, Clone)]
pub enum Answer {
    /// STATUS.
    Status(StatusSnapshot),
    /// ROUTER_SHOW_WORKERS.
    Workers(WorkersSnapshot),
    /// ROUTER_SHOW_SCHEDULERS.
    Schedulers(SchedulersSnapshot),
    /// LATENCY.
    Latency(LatencyReport),
    /// COUNTERS.
    Counters(Box<CountersReport>),
}

/// An answer in the making: call [`Rendering::step`] until it is true, then
/// [`Rendering::finish`].
#[derive(Debug)]
pub struct Rendering {
    answer: Answer,
    cursor: Cursor,
    out: Vec<u8>,
}

/// Where an answer goes on: an object of the answer, an entry in it, an element of the entry.
#[derive(Debug, Clone, Copy, Default)]
struct Cursor {
    object: usize,
    entry: usize,
    element: usize,
}

impl Cursor {
    fn next_object(&mut self) {
        *self = Cursor {
            object: self.object + 1,
            ..Cursor::default()
        };
    }
}

impl Rendering {
    /// Begins an answer.
    pub fn new(answer: Answer) -> Rendering {
        Rendering {
            answer,
            cursor: Cursor::default(),
            out: Vec::new(),
        }
    }

    /// Goes on for about `bytes_max` bytes (at least one piece, which is one queue, worker or
    /// object of figures); true when the answer is complete.
    pub fn step(&mut self, bytes_max: usize) -> bool {
        let until = self.out.len().saturating_add(bytes_max);
        loop {
            if self.piece() {
                return true;
            }
            if self.out.len() >= until {
                return false;
            }
        }
    }

    /// Bytes made so far.
    pub fn made_bytes(&self) -> usize {
        self.out.len()
    }

    /// The JSON, complete if the last step said so.
    pub fn finish(self) -> Vec<u8> {
        self.out
    }

    fn piece(&mut self) -> bool {
        let (cursor, out) = (&mut self.cursor, &mut self.out);
        match &self.answer {
            Answer::Status(status) => status_piece(status, cursor, out),
            Answer::Workers(workers) => workers_piece(workers, cursor, out),
            Answer::Schedulers(schedulers) => schedulers_piece(schedulers, cursor, out),
            Answer::Latency(latency) => latency_piece(latency, cursor, out),
            Answer::Counters(report) => counters_piece(report, out),
        }
    }
}

/// The whole answer to STATUS.
pub fn render_status(status: &StatusSnapshot) -> Vec<u8> {
    whole(|cursor, out| status_piece(status, cursor, out))
}

/// The whole answer to ROUTER_SHOW_WORKERS.
pub fn render_workers(workers: &WorkersSnapshot) -> Vec<u8> {
    whole(|cursor, out| workers_piece(workers, cursor, out))
}

/// The whole answer to ROUTER_SHOW_SCHEDULERS.
pub fn render_schedulers(schedulers: &SchedulersSnapshot) -> Vec<u8> {
    whole(|cursor, out| schedulers_piece(schedulers, cursor, out))
}

/// The whole answer to LATENCY.
pub fn render_latency(latency: &LatencyReport) -> Vec<u8> {
    whole(|cursor, out| latency_piece(latency, cursor, out))
}

/// The whole answer to COUNTERS.
pub fn render_counters(report: &CountersReport) -> Vec<u8> {
    whole(|_, out| counters_piece(report, out))
}

fn whole(mut piece: impl FnMut(&mut Cursor, &mut Vec<u8>) -> bool) -> Vec<u8> {
    let (mut cursor, mut out) = (Cursor::default(), Vec::new());
    while !piece(&mut cursor, &mut out) {}
    out
}

/// Begins object `name` of the answer if the cursor stands at its start.
fn begin(name: &str, cursor: &Cursor, out: &mut Vec<u8>) {
    if cursor.entry == 0 && cursor.element == 0 {
        if out.is_empty() {
            out.push(b'{');
        }
        push_key(out, name.as_bytes());
        out.push(b'{');
    }
}

/// Ends an object of the answer, and the answer after object number `last`; true then.
fn end(last: usize, cursor: &mut Cursor, out: &mut Vec<u8>) -> bool {
    out.push(b'}');
    cursor.next_object();
    let done = cursor.object > last;
    if done {
        out.push(b'}');
    }
    done
}

fn status_piece(status: &StatusSnapshot, cursor: &mut Cursor, out: &mut Vec<u8>) -> bool {
    type Figure = fn(&QueueStatus) -> Option<u64>;
    fn some(value: u64) -> Option<u64> {
        (value != 0).then_some(value)
    }
    const BY_QUEUE: [(&str, Figure); 5] = [
        ("inflight_messages_by_queue", |queue| some(queue.in_flight)),
        ("latency_messages_by_queue", |queue| queue.mean_age_ms),
        ("max_latency_messages_by_queue", |queue| queue.max_age_ms),
        ("waiting_messages_by_queue", |queue| some(queue.waiting)),
        ("processed_messages_by_queue", |queue| some(queue.processed)),
    ];
    let Some((name, figure)) = BY_QUEUE.get(cursor.object) else {
        begin("processed_messages_by_worker", cursor, out);
        let Some((id, processed)) = status.processed_by_worker.get(cursor.entry) else {
            return end(BY_QUEUE.len(), cursor, out);
        };
        push_key(out, id);
        push(out, processed);
        cursor.entry += 1;
        return false;
    };
    begin(name, cursor, out);
    let Some(queue) = status.queues.get(cursor.entry) else {
        return end(BY_QUEUE.len(), cursor, out);
    };
    if let Some(value) = figure(queue) {
        push_key(out, &queue.name);
        push(out, &value);
    }
    cursor.entry += 1;
    false
}

fn workers_piece(workers: &WorkersSnapshot, cursor: &mut Cursor, out: &mut Vec<u8>) -> bool {
    if cursor.object == 0 {
        begin("connected_workers", cursor, out);
        let Some(worker) = workers.workers.get(cursor.entry) else {
            return end(1, cursor, out);
        };
        push_key(out, &worker.id);
        out.extend_from_slice(b"{\"queues\": ");
        push(out, &Weighted(&worker.queues));
        out.extend_from_slice(b", \"hb\": ");
        push(out, &worker.last_seen_secs);
        out.extend_from_slice(b", \"available_slots\": ");
        push(out, &worker.free_slots);
        out.extend_from_slice(b", \"state\": ");
        push(out, worker.state);
        out.push(b'}');
        cursor.entry += 1;
        return false;
    }
    begin("connected_queues", cursor, out);
    let Some((name, candidates)) = workers.queues.get(cursor.entry) else {
        return end(1, cursor, out);
    };
    if cursor.element == 0 {
        push_key(out, name);
        out.push(b'[');
    }
    // A queue may have as many workers as the broker: a piece holds some of them.
    let until = candidates.len().min(cursor.element + 256);
    for (weight, id) in &candidates[cursor.element..until] {
        push_comma(out);
        push(out, &(Weight(*weight), Name(id)));
    }
    cursor.element = until;
    if until == candidates.len() {
        out.push(b']');
        *cursor = Cursor {
            entry: cursor.entry + 1,
            element: 0,
            ..*cursor
        };
    }
    false
}

fn schedulers_piece(snapshot: &SchedulersSnapshot, cursor: &mut Cursor, out: &mut Vec<u8>) -> bool {
    begin("connected_schedulers", cursor, out);
    let Some((id, last_seen_secs)) = snapshot.schedulers.get(cursor.entry) else {
        return end(0, cursor, out);
    };
    push_key(out, id);
    out.extend_from_slice(b"{\"hb\": ");
    push(out, last_seen_secs);
    out.push(b'}');
    cursor.entry += 1;
    false
}

fn latency_piece(latency: &LatencyReport, cursor: &mut Cursor, out: &mut Vec<u8>) -> bool {
    let (name, queues): (&str, &[(Vec<u8>, QueueLatency)]) = match cursor.object {
        0 => ("cumulative", &latency.cumulative),
        _ => ("interval", &latency.interval),
    };
    begin(name, cursor, out);
    let Some((queue, figures)) = queues.get(cursor.entry) else {
        return end(1, cursor, out);
    };
    push_key(out, queue);
    push(out, figures);
    cursor.entry += 1;
    false
}

/// COUNTERS is small whatever the load: one piece.
fn counters_piece(report: &CountersReport, out: &mut Vec<u8>) -> bool {
    push(out, &CountersJson(report));
    true
}

struct Weighted<'a>(&'a [(f64, Vec<u8>)]);

impl Serialize for Weighted<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for (weight, name) in self.0 {
            list.serialize_element(&(Weight(*weight), Name(name)))?;
        }
        list.end()
    }
}

struct CountersJson<'a>(&'a CountersReport);

impl Serialize for CountersJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let report = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("version", report.version)?;
        map.serialize_entry("uptime_secs", &((report.uptime_secs * 1e3).round() / 1e3))?;
        map.serialize_entry("threading", report.threading)?;
        map.serialize_entry("counters", &CounterMap(&report.counters))?;
        map.serialize_entry("figures", &Figures(report))?;
        map.serialize_entry("connections", &Connections(&report.connections))?;
        map.serialize_entry("memory", &report.memory)?;
        map.serialize_entry("agents", &report.agents)?;
        map.serialize_entry("rings", &report.rings)?;
        map.end()
    }
}

struct CounterMap<'a>(&'a Counters);

impl Serialize for CounterMap<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(
            self.0
                .iter()
                .map(|(counter, value)| (counter.name(), value)),
        )
    }
}

struct Connections<'a>(&'a [u64; 3]);

impl Serialize for Connections<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(Socket::ALL.iter().map(|s| (s.name(), self.0[*s as usize])))
    }
}

struct Figures<'a>(&'a CountersReport);

impl Serialize for Figures<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let figures = &self.0.figures;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("jobs_waiting", &figures.jobs_waiting)?;
        map.serialize_entry("jobs_in_flight", &figures.jobs_in_flight)?;
        map.serialize_entry("job_bytes", &figures.job_bytes)?;
        map.serialize_entry("queues", &figures.queues)?;
        map.serialize_entry("workers", &figures.workers)?;
        map.serialize_entry("schedulers", &figures.schedulers)?;
        map.serialize_entry("input_paused", &figures.input_paused)?;
        map.serialize_entry("draining", &figures.draining)?;
        map.end()
    }
}
