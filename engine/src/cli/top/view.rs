//! The model as lines of text. The first lines say what matters: the screen cuts off the rest.

use super::model::Model;
use crate::cli::show::{NONE, duration_us, entries, text};
use crate::cli::table::{Table, harmless};
use serde_json::Value;

/// The whole view.
pub(super) fn lines(addr: &str, model: &Model) -> Vec<String> {
    let mut lines = Vec::new();
    let Some(last) = &model.last else {
        lines.push(format!("{addr}   q quits"));
        lines.push(harmless(model.error.as_deref().unwrap_or("asking")));
        return lines;
    };
    let counters = &last.counters;
    let about = match counters.is_null() {
        true => String::new(),
        false => format!(
            "version {}, {}, up {}   ",
            text(&counters["version"]),
            text(&counters["threading"]),
            duration_us(counters["uptime_secs"].as_f64().unwrap_or(0.0) * 1e6),
        ),
    };
    lines.push(format!("{addr}   {about}q quits"));
    if let Some(error) = &model.error {
        lines.push(harmless(error));
    }
    match last.status["component"].as_str() {
        None => broker(model, &mut lines),
        Some("emq-pubsub") => publisher(model, &mut lines),
        Some(_) => {
            lines.push(String::new());
            let status = crate::cli::show::status(&last.status);
            lines.extend(status.lines().map(str::to_owned));
        }
    }
    lines
}

fn broker(model: &Model, lines: &mut Vec<String>) {
    let Some(last) = &model.last else { return };
    let sum = |figure: &str| -> u64 {
        entries(&last.status[figure])
            .filter_map(|(_, n)| n.as_u64())
            .sum()
    };
    let figures = &last.counters["figures"];
    let mut jobs = format!(
        "jobs: {} waiting, {} in flight",
        sum("waiting_messages_by_queue"),
        sum("inflight_messages_by_queue"),
    );
    if !last.workers.is_null() {
        let workers = &last.workers["connected_workers"];
        let free: u64 = entries(workers)
            .filter_map(|(_, worker)| worker["available_slots"].as_u64())
            .sum();
        let count = entries(workers).count();
        jobs += &format!("   workers: {count}, {free} free slots");
        jobs += &format!("   schedulers: {}", text(&figures["schedulers"]));
    }
    for (flag, words) in [("input_paused", "INPUT PAUSED"), ("draining", "DRAINING")] {
        if figures[flag] == Value::Bool(true) {
            jobs += &format!("   {words}");
        }
    }
    lines.push(jobs);
    if !last.counters.is_null() {
        connections(model, lines);
        let rejected: Vec<&str> = entries(&last.counters["counters"])
            .map(|(name, _)| name.as_str())
            .filter(|name| name.starts_with("rejected_"))
            .collect();
        lines.push(format!(
            "per second: {} accepted, {} handed out, {} done, {} failed, {} lost, {} rejected",
            rate(model.counter_rate(&["requests_accepted"])),
            rate(model.counter_rate(&["jobs_handed_out"])),
            rate(model.counter_rate(&["jobs_done"])),
            rate(model.counter_rate(&["jobs_failed", "jobs_timed_out"])),
            rate(model.counter_rate(&["jobs_lost", "jobs_unknown"])),
            rate(model.counter_rate(&rejected)),
        ));
    }
    lines.push(String::new());
    queues(model, lines);
}

fn queues(model: &Model, lines: &mut Vec<String>) {
    let Some(last) = &model.last else { return };
    let mut table = Table::new(&[
        "QUEUE",
        "WAITING",
        "IN FLIGHT",
        "HANDED OUT/S",
        "WAIT P50",
        "P99",
        "SERVICE P50",
        "P99",
        "TOTAL P50",
        "P99",
    ]);
    let status = &last.status;
    let mut names: Vec<&String> = [
        "waiting_messages_by_queue",
        "inflight_messages_by_queue",
        "processed_messages_by_queue",
    ]
    .iter()
    .flat_map(|figure| entries(&status[*figure]).map(|(name, _)| name))
    .collect();
    names.sort();
    names.dedup();
    let figure = |figure: &str, name: &str| status[figure][name].as_u64().unwrap_or(0);
    // The fullest first: the screen may not show all.
    names.sort_by_key(|name| {
        let waiting = figure("waiting_messages_by_queue", name);
        (
            std::cmp::Reverse(waiting),
            std::cmp::Reverse(figure("inflight_messages_by_queue", name)),
        )
    });
    for name in names {
        let processed = model
            .rate(|sample| sample.status["processed_messages_by_queue"][name.as_str()].as_u64());
        let latency = &last.latency["interval"][name.as_str()];
        let mut cells = vec![
            name.clone(),
            figure("waiting_messages_by_queue", name).to_string(),
            figure("inflight_messages_by_queue", name).to_string(),
            rate(processed),
        ];
        for time in ["wait", "service", "total"] {
            for key in ["p50_us", "p99_us"] {
                let shown = latency[time]["count"].as_u64().unwrap_or(0) > 0;
                let value = latency[time][key].as_f64().filter(|_| shown);
                cells.push(value.map_or(NONE.to_owned(), duration_us));
            }
        }
        table.row(cells);
    }
    lines.extend(table.print("no queues").lines().map(str::to_owned));
}

fn publisher(model: &Model, lines: &mut Vec<String>) {
    let Some(last) = &model.last else { return };
    let number = |key: &str| text(&last.status[key]);
    lines.push(format!(
        "publishers: {}   subscribers: {}, {} do not read   subscriptions: {} to {} prefixes",
        number("publishers"),
        number("subscribers"),
        number("slow"),
        number("subscriptions"),
        number("prefixes"),
    ));
    connections(model, lines);
    lines.push(format!(
        "per second: {} published, {} sent, {} dropped, {} unheard",
        rate(model.counter_rate(&["publishes_received"])),
        rate(model.counter_rate(&["published_sent"])),
        rate(model.counter_rate(&["published_dropped_slow", "published_dropped_memory"])),
        rate(model.counter_rate(&["publishes_unheard"])),
    ));
    lines.push(String::new());
    let table = crate::cli::show::slow_subscribers(&last.status);
    lines.extend(table.lines().map(str::to_owned));
}

fn connections(model: &Model, lines: &mut Vec<String>) {
    let Some(last) = &model.last else { return };
    let open: Vec<String> = entries(&last.counters["connections"])
        .map(|(name, n)| format!("{} {name}", text(n)))
        .collect();
    let memory = &last.counters["memory"];
    lines.push(format!(
        "connections: {}   resident: {}   in: {}/s, out: {}/s",
        open.join(", "),
        bytes(memory["resident_bytes"].as_f64()),
        bytes(model.counter_rate(&["bytes_received"])),
        bytes(model.counter_rate(&["bytes_sent"])),
    ));
}

fn rate(per_second: Option<f64>) -> String {
    match per_second {
        None => NONE.to_owned(),
        Some(n) if n == 0.0 || n >= 10.0 => format!("{n:.0}"),
        Some(n) => format!("{n:.1}"),
    }
}

fn bytes(count: Option<f64>) -> String {
    match count {
        None => NONE.to_owned(),
        Some(n) if n < 1024.0 => format!("{n:.0} B"),
        Some(n) if n < 1024.0 * 1024.0 => format!("{:.1} KiB", n / 1024.0),
        Some(n) if n < 1024.0 * 1024.0 * 1024.0 => format!("{:.1} MiB", n / (1024.0 * 1024.0)),
        Some(n) => format!("{:.1} GiB", n / (1024.0 * 1024.0 * 1024.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::Sample;
    use super::*;
    use serde_json::json;

    #[test]
    fn a_broker_as_people_see_it() {
        let mut model = Model::default();
        assert_eq!(
            lines("tcp://h:1", &model),
            ["tcp://h:1   q quits", "asking"]
        );
        let status = json!({
            "waiting_messages_by_queue": {"a\u{1b}[2J": 2, "b": 30},
            "inflight_messages_by_queue": {"b": 1},
            "processed_messages_by_queue": {"b": 7},
        });
        let mut sample = Sample::new(status);
        sample.counters = json!({
            "version": "1", "threading": "inline", "uptime_secs": 90.0,
            "counters": {"rejected_malformed": 0}, "connections": {"frontend": 3},
            "memory": {"resident_bytes": 3_000_000},
            "figures": {"schedulers": 0, "draining": true},
        });
        sample.workers = json!({"connected_workers": {"w": {"available_slots": 4}}});
        let figures = json!({"count": 9, "p50_us": 10, "p99_us": 2500});
        let nothing = json!({"count": 0, "p50_us": 0, "p99_us": 0});
        sample.latency =
            json!({"interval": {"b": {"wait": figures, "service": nothing, "total": nothing}}});
        model.take(sample);
        model.take(Sample::failed("gone\u{7}".to_owned()));
        let text = lines("tcp://h:1", &model).join("\n");
        let expected = "\
tcp://h:1   version 1, inline, up 1.5 min   q quits
gone\\u{7}
jobs: 32 waiting, 1 in flight   workers: 1, 4 free slots   schedulers: 0   DRAINING
connections: 3 frontend   resident: 2.9 MiB   in: -/s, out: -/s
per second: - accepted, - handed out, - done, - failed, - lost, - rejected

QUEUE       WAITING  IN FLIGHT  HANDED OUT/S  WAIT P50      P99  SERVICE P50  P99  TOTAL P50  P99
b                30          1             -     10 us  2.50 ms            -    -          -    -
a\\u{1b}[2J        2          0             -         -        -            -    -          -    -";
        assert_eq!(text, expected);
    }
}
