//! What the broker itself says about the jobs of a run, next to what their clients and workers
//! saw, and where the two differ.

use crate::admin::Admin;
use crate::failure::Result;
use crate::measure::Latency;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// A latency that differs by more than this share, and by more than [`APART_US_MIN`], is pointed
/// out.
const APART_SHARE_MAX: f64 = 0.5;
const APART_US_MIN: f64 = 1_000.0;

/// Counters, latencies and totals of STATUS at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Look {
    counters: BTreeMap<String, u64>,
    latency: Value,
    /// Sums over all queues, and over all workers, of the maps of STATUS.
    status: BTreeMap<String, u64>,
}

/// What the broker says about one run.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct BrokerView {
    /// Counters that have changed between the beginning of the run and its end, by how much.
    pub(crate) counters: BTreeMap<String, u64>,
    /// STATUS after the last job, summed up.
    pub(crate) status: BTreeMap<String, u64>,
    /// LATENCY of all queues since the broker's start: waiting, in service, in all. None if the
    /// broker has none.
    pub(crate) latency: Option<Value>,
    /// Where it differs from what the clients and workers of the run saw.
    pub(crate) differences: Vec<String>,
}

/// What the generator saw, for comparison.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen<'a> {
    /// Acceptances, and results of lost jobs, from the first job to the last.
    pub(crate) accepted: u64,
    pub(crate) lost: u64,
    /// From hand-out to the end, and from first to last, in the window.
    pub(crate) finish: Option<&'a Latency>,
    pub(crate) total: &'a Latency,
}

impl Look {
    /// Asks for all of it. What the broker does not know (EventMQ 0.3.13 answers STATUS only) is
    /// left out.
    pub(crate) fn take(admin: &mut Admin, all: bool) -> Result<Self> {
        let status = admin.ask("STATUS")?;
        let mut look = Look {
            status: sums(&status),
            ..Look::default()
        };
        if all {
            look.counters = numbers(&admin.ask("COUNTERS")?["counters"]);
            look.latency = admin.ask("LATENCY")?["cumulative"]["(all)"].take();
        }
        Ok(look)
    }
}

impl Look {
    /// The counters that have changed since `earlier`, by how much.
    pub(crate) fn since(&self, earlier: &Look) -> BTreeMap<String, u64> {
        let change = |(name, value): (&String, &u64)| {
            let before = earlier.counters.get(name).copied().unwrap_or(0);
            let change = value.saturating_sub(before);
            (change > 0).then(|| (name.clone(), change))
        };
        self.counters.iter().filter_map(change).collect()
    }
}

fn numbers(object: &Value) -> BTreeMap<String, u64> {
    let entries = object.as_object().into_iter().flatten();
    entries
        .filter_map(|(name, value)| Some((name.clone(), value.as_u64()?)))
        .collect()
}

fn sums(status: &Value) -> BTreeMap<String, u64> {
    let maps = status.as_object().into_iter().flatten();
    maps.map(|(name, map)| (name.clone(), numbers(map).values().sum()))
        .collect()
}

impl BrokerView {
    /// What lies between two looks, compared with what was `seen` meanwhile.
    pub(crate) fn between(before: &Look, after: &Look, seen: &Seen<'_>) -> Self {
        let mut view = BrokerView {
            counters: after.since(before),
            status: after.status.clone(),
            latency: (!after.latency.is_null()).then(|| after.latency.clone()),
            differences: Vec::new(),
        };
        if !after.counters.is_empty() {
            view.compare_counts(seen);
        }
        // Jobs of the time before the run are in the broker's latencies as well.
        if before.latency.is_null() {
            view.compare_latencies(seen);
        }
        view
    }

    fn compare_counts(&mut self, seen: &Seen<'_>) {
        let pairs = [
            (
                "requests_accepted",
                seen.accepted,
                "acceptances at the clients",
            ),
            (
                "jobs_lost",
                seen.lost,
                "results of lost jobs at the clients",
            ),
        ];
        for (counter, count, what) in pairs {
            let own = self.counters.get(counter).copied().unwrap_or(0);
            if own != count {
                self.differences
                    .push(format!("the broker counts {own} {counter}, {count} {what}"));
            }
        }
        for name in ["waiting_messages_by_queue", "inflight_messages_by_queue"] {
            let left = self.status.get(name).copied().unwrap_or(0);
            if left > 0 {
                self.differences.push(format!(
                    "all jobs have ended, but STATUS has {left} in {name}"
                ));
            }
        }
    }

    fn compare_latencies(&mut self, seen: &Seen<'_>) {
        let Some(latency) = self.latency.clone() else {
            return;
        };
        let pairs = [
            ("service", "hand-out to end", seen.finish),
            ("total", "REQUEST to end", Some(seen.total)),
        ];
        for (name, what, seen) in pairs {
            let Some(seen) = seen else { continue };
            for (percentile, at) in [("p50_us", seen.p50_us), ("p99_us", seen.p99_us)] {
                let own = latency[name][percentile].as_f64().unwrap_or(0.0);
                if at - own > APART_US_MIN && at > own * (1.0 + APART_SHARE_MAX) {
                    self.differences.push(format!(
                        "{what}, {percentile}: {at:.0} for the clients, {own:.0} for the broker; \
                         the rest is the way, and the generator's own delay"
                    ));
                } else if own - at > APART_US_MIN && own > at * (1.0 + APART_SHARE_MAX) {
                    self.differences.push(format!(
                        "{what}, {percentile}: {at:.0} for the clients, {own:.0} for the broker, \
                         which also counts the warm-up"
                    ));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn look(accepted: u64, waiting: u64, latency: Value) -> Look {
        Look {
            counters: numbers(&json!({"requests_accepted": accepted, "jobs_lost": 3, "x": "text"})),
            latency,
            status: sums(&json!({"waiting_messages_by_queue": {"a": waiting, "b": 1}})),
        }
    }

    fn seen(accepted: u64, p50_us: f64) -> Vec<String> {
        let latency = Latency {
            p50_us,
            ..Latency::default()
        };
        let seen = Seen {
            accepted,
            lost: 0,
            finish: None,
            total: &latency,
        };
        let broker = json!({"total": {"p50_us": 400, "p99_us": 0}, "service": {}});
        let view = BrokerView::between(&look(5, 0, Value::Null), &look(15, 0, broker), &seen);
        assert_eq!(
            view.counters,
            BTreeMap::from([("requests_accepted".to_owned(), 10)])
        );
        view.differences
    }

    #[test]
    fn what_both_sides_agree_on_is_no_difference() {
        let differences = seen(10, 600.0);
        // One job waits in queue b.
        assert_eq!(differences.len(), 1, "{differences:?}");
        assert!(differences[0].contains("1 in waiting_messages_by_queue"));
    }

    #[test]
    fn other_counts_and_much_longer_times_are_pointed_out() {
        let differences = seen(11, 5_000.0);
        assert_eq!(differences.len(), 3, "{differences:?}");
        assert!(differences[0].contains("10 requests_accepted, 11"));
        assert!(differences[2].contains("5000 for the clients, 400 for the broker"));
    }
}
