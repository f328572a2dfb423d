//! Answers as tables. A field that a broker does not send is shown as `-`.

use super::table::Table;
use serde_json::Value;
use std::collections::BTreeSet;

pub(super) const NONE: &str = "-";

/// Figures of a component that is no broker; of a publisher also the subscribers that messages were
/// dropped for.
fn component(answer: &Value) -> String {
    let mut figures = Table::new(&["FIGURE", "VALUE"]);
    for (name, value) in entries(answer) {
        if !value.is_array() {
            figures.row(vec![name.clone(), text(value)]);
        }
    }
    let figures = figures.print("");
    match answer["slow_subscribers"].is_array() {
        true => figures + "\n" + &slow_subscribers(answer),
        false => figures,
    }
}

/// The subscribers that messages were dropped for.
pub(super) fn slow_subscribers(answer: &Value) -> String {
    let mut slow = Table::new(&[
        "SUBSCRIBER",
        "STATE<",
        "DROPPED",
        "WAITING BYTES",
        "SUBSCRIPTIONS",
    ]);
    for entry in answer["slow_subscribers"].as_array().into_iter().flatten() {
        let state = match entry["slow"].as_bool() {
            Some(true) => "slow",
            _ => "reads again",
        };
        let number = |key: &str| text(&entry[key]);
        slow.row(vec![
            number("peer"),
            state.to_owned(),
            number("dropped"),
            number("waiting_bytes"),
            number("subscriptions"),
        ]);
    }
    slow.print("nothing was dropped for a subscriber")
}

/// Jobs by queue and by worker; of a publisher, what it has instead.
pub(super) fn status(answer: &Value) -> String {
    if !answer["component"].is_null() {
        return component(answer);
    }
    const FIGURES: [&str; 5] = [
        "waiting_messages_by_queue",
        "inflight_messages_by_queue",
        "processed_messages_by_queue",
        "latency_messages_by_queue",
        "max_latency_messages_by_queue",
    ];
    let names: BTreeSet<&String> = FIGURES
        .iter()
        .filter_map(|figure| answer[*figure].as_object())
        .flat_map(|map| map.keys())
        .collect();
    let mut queues = Table::new(&[
        "QUEUE",
        "WAITING",
        "IN FLIGHT",
        "PROCESSED",
        "MEAN AGE",
        "OLDEST",
    ]);
    for name in names {
        let figure = |n: usize| answer[FIGURES[n]][name].as_u64();
        let count = |n| figure(n).unwrap_or(0).to_string();
        let age = |n| figure(n).map_or(NONE.to_owned(), |ms| duration_us(ms as f64 * 1e3));
        queues.row(vec![
            name.clone(),
            count(0),
            count(1),
            count(2),
            age(3),
            age(4),
        ]);
    }
    let mut workers = Table::new(&["WORKER", "PROCESSED"]);
    for (id, processed) in entries(&answer["processed_messages_by_worker"]) {
        workers.row(vec![id.clone(), text(processed)]);
    }
    queues.print("no queues") + "\n" + &workers.print("no workers")
}

/// Workers, then who serves each queue.
pub(super) fn workers(answer: &Value) -> String {
    let mut workers = Table::new(&["WORKER", "STATE<", "FREE SLOTS", "QUEUES (WEIGHT)<"]);
    for (id, worker) in entries(&answer["connected_workers"]) {
        let queues = pairs(&worker["queues"], |weight, name| {
            format!("{name} ({weight})")
        });
        let state = text(&worker["state"]);
        workers.row(vec![
            id.clone(),
            state,
            text(&worker["available_slots"]),
            queues,
        ]);
    }
    let mut queues = Table::new(&["QUEUE", "NEXT WORKERS (WEIGHT)<"]);
    for (name, candidates) in entries(&answer["connected_queues"]) {
        queues.row(vec![
            name.clone(),
            pairs(candidates, |weight, id| format!("{id} ({weight})")),
        ]);
    }
    workers.print("no workers") + "\n" + &queues.print("no served queues")
}

/// Schedulers. The time is the broker's own clock: only differences mean something.
pub(super) fn schedulers(answer: &Value) -> String {
    let mut table = Table::new(&["SCHEDULER", "LAST HEARD (BROKER CLOCK, S)"]);
    for (id, scheduler) in entries(&answer["connected_schedulers"]) {
        let heard = scheduler["hb"]
            .as_f64()
            .map_or(NONE.to_owned(), |hb| format!("{hb:.3}"));
        table.row(vec![id.clone(), heard]);
    }
    table.print("no schedulers")
}

/// The three distributions of every queue.
pub(super) fn latency(answer: &Value, interval: bool) -> String {
    let mut table = Table::new(&[
        "QUEUE", "TIME<", "COUNT", "MIN", "MEAN", "P50", "P90", "P99", "P99.9", "MAX",
    ]);
    let part = if interval { "interval" } else { "cumulative" };
    for (queue, figures) in entries(&answer[part]) {
        for time in ["wait", "service", "total"] {
            let figures = &figures[time];
            if figures["count"].as_u64().unwrap_or(0) == 0 {
                continue;
            }
            let mut cells = vec![queue.clone(), time.to_owned(), text(&figures["count"])];
            for key in [
                "min_us", "mean_us", "p50_us", "p90_us", "p99_us", "p999_us", "max_us",
            ] {
                cells.push(figures[key].as_f64().map_or(NONE.to_owned(), duration_us));
            }
            table.row(cells);
        }
    }
    table.print("no jobs yet")
}

/// Counters, then the rest of the report.
pub(super) fn counters(answer: &Value, all: bool) -> String {
    let mut head = Table::new(&["BROKER", "<"]);
    for key in ["version", "threading", "uptime_secs"] {
        head.row(vec![key.to_owned(), text(&answer[key])]);
    }
    let mut out = head.print("");
    for (key, heading) in [
        ("figures", &["FIGURE", "VALUE"] as &'static [&'static str]),
        ("connections", &["CONNECTIONS", "OPEN"]),
        ("memory", &["MEMORY", "VALUE"]),
        ("counters", &["COUNTER", "VALUE"]),
    ] {
        let mut table = Table::new(heading);
        for (name, value) in entries(&answer[key]) {
            if key != "counters" || all || value.as_u64() != Some(0) {
                table.row(vec![name.clone(), text(value)]);
            }
        }
        out += "\n";
        out += &table.print("all counters are 0");
    }
    let mut agents = Table::new(&[
        "AGENT",
        "CORE",
        "CONNECTIONS",
        "TURNS BUSY",
        "IDLE",
        "SLEEPS",
        "BUSY MS",
        "IDLE MS",
        "HELD BACK MS",
    ]);
    for agent in answer["agents"].as_array().into_iter().flatten() {
        let keys = [
            "name",
            "core",
            "connections",
            "turns_busy",
            "turns_idle",
            "sleeps",
            "busy_ms",
            "idle_ms",
            "back_pressure_ms",
        ];
        agents.row(keys.iter().map(|key| text(&agent[*key])).collect());
    }
    let mut rings = Table::new(&["RING", "ITEMS", "AT MOST", "BYTES", "AT MOST", "REFUSED"]);
    for ring in answer["rings"].as_array().into_iter().flatten() {
        let keys = [
            "name",
            "items",
            "items_max",
            "bytes",
            "bytes_max",
            "offers_failed",
        ];
        rings.row(keys.iter().map(|key| text(&ring[*key])).collect());
    }
    out + "\n" + &agents.print("no agents") + "\n" + &rings.print("no rings")
}

pub(super) fn entries(map: &Value) -> impl Iterator<Item = (&String, &Value)> {
    map.as_object().into_iter().flatten()
}

pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => NONE.to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// `[[weight, name], ...]`, the first few.
fn pairs(list: &Value, show: impl Fn(String, String) -> String) -> String {
    const SHOWN_MAX: usize = 8;
    let Some(list) = list.as_array() else {
        return NONE.to_owned();
    };
    let mut shown: Vec<String> = list
        .iter()
        .take(SHOWN_MAX)
        .map(|pair| show(text(&pair[0]), text(&pair[1])))
        .collect();
    if list.len() > SHOWN_MAX {
        shown.push(format!("and {} more", list.len() - SHOWN_MAX));
    }
    shown.join(", ")
}

/// Microseconds in the unit that reads best.
pub(super) fn duration_us(us: f64) -> String {
    match us {
        us if us < 1e3 => format!("{us:.0} us"),
        us if us < 1e6 => format!("{:.2} ms", us / 1e3),
        us if us < 6e7 => format!("{:.2} s", us / 1e6),
        us => format!("{:.1} min", us / 6e7),
    }
}
