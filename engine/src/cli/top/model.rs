//! What is shown: the latest answers, and rates between two of them.

use serde_json::Value;
use std::time::Instant;

/// The answers of one look; null where there is none.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) status: Value,
    pub(super) counters: Value,
    pub(super) latency: Value,
    pub(super) workers: Value,
    pub(super) error: Option<String>,
}

impl Sample {
    pub(super) fn new(status: Value) -> Sample {
        Sample {
            at: Instant::now(),
            status,
            counters: Value::Null,
            latency: Value::Null,
            workers: Value::Null,
            error: None,
        }
    }

    pub(super) fn failed(error: String) -> Sample {
        Sample {
            error: Some(error),
            ..Sample::new(Value::Null)
        }
    }
}

/// The last two good looks, and what went wrong since.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) last: Option<Sample>,
    before: Option<Sample>,
    pub(super) error: Option<String>,
}

impl Model {
    /// Takes note of a look.
    pub(super) fn take(&mut self, sample: Sample) {
        if sample.error.is_some() {
            self.error = sample.error;
            return;
        }
        self.error = None;
        self.before = self.last.replace(sample);
    }

    /// Growth per second of a number between the last two looks; `None` without two, and when it
    /// went back: then another process has taken over.
    pub(super) fn rate(&self, number: impl Fn(&Sample) -> Option<u64>) -> Option<f64> {
        let (before, last) = (self.before.as_ref()?, self.last.as_ref()?);
        let grown = number(last)?.checked_sub(number(before)?)?;
        let secs = last.at.duration_since(before.at).as_secs_f64();
        (secs > 0.0).then(|| grown as f64 / secs)
    }

    /// Growth per second of counters together.
    pub(super) fn counter_rate(&self, names: &[&str]) -> Option<f64> {
        self.rate(|sample| {
            let counters = sample.counters["counters"].as_object()?;
            names.iter().map(|name| counters.get(*name)?.as_u64()).sum()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    #[test]
    fn rates_are_growth_over_time_and_restarts_have_none() {
        let mut model = Model::default();
        let start = Instant::now();
        let look = |secs: u64, count: u64| Sample {
            at: start + Duration::from_secs(secs),
            counters: json!({"counters": {"a": count, "b": 1}}),
            ..Sample::new(json!({}))
        };
        model.take(look(0, 10));
        assert_eq!(model.counter_rate(&["a"]), None);
        model.take(look(2, 30));
        assert_eq!(model.counter_rate(&["a", "b"]), Some(10.0));
        assert_eq!(model.counter_rate(&["unknown"]), None);
        model.take(Sample::failed("gone".to_owned()));
        assert_eq!(model.error.as_deref(), Some("gone"));
        assert_eq!(model.counter_rate(&["a"]), Some(10.0));
        model.take(look(3, 0));
        assert_eq!((model.counter_rate(&["a"]), &model.error), (None, &None));
    }
}
