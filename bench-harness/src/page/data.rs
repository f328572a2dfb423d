//! Result files as the page needs them. What older files do not have is left out of the page.

use crate::failure::{Failure, Result};
use crate::measure::Point;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// A result file.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// Name of the file without folder and ending.
    pub(crate) name: String,
    pub(crate) environment: BTreeMap<String, Value>,
    /// What was asked for, as far as it is said.
    pub(crate) workload: BTreeMap<String, Value>,
    /// Runs by target, in the order of the first ones.
    pub(crate) series: Vec<Series>,
    pub(crate) steps: Vec<Step>,
    pub(crate) knee_per_sec: Option<f64>,
    /// Of `soak`.
    pub(crate) soak: Option<Soak>,
    /// Of `compare`.
    pub(crate) ratios: Vec<Ratio>,
}

/// The runs of one target.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) target: String,
    pub(crate) runs: Vec<Run>,
}

/// Percentiles in µs.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Latency {
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    /// Older results have none.
    pub(crate) p9999_us: Option<f64>,
    pub(crate) max_us: f64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Cpu {
    pub(crate) us_per_job: f64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Resident {
    pub(crate) max: u64,
}

/// One run.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Run {
    pub(crate) target: String,
    #[serde(default)]
    pub(crate) round: usize,
    pub(crate) jobs: u64,
    pub(crate) jobs_per_sec: f64,
    #[serde(default)]
    pub(crate) latency: Latency,
    pub(crate) cpu: Option<Cpu>,
    pub(crate) resident: Option<Resident>,
    #[serde(default)]
    pub(crate) timeline: Vec<Point>,
    #[serde(default)]
    pub(crate) curve: Vec<(f64, f64)>,
}

/// One rate of `rate`.
#[derive(Debug, Deserialize)]
pub(crate) struct Step {
    pub(crate) rate: f64,
    pub(crate) verdict: String,
    pub(crate) measured: Run,
}

/// What `soak` says besides its run.
#[derive(Debug, Deserialize)]
pub(crate) struct Soak {
    pub(crate) minutes: f64,
    pub(crate) faults: Vec<String>,
    pub(crate) happened: BTreeMap<String, u64>,
    pub(crate) account: BTreeMap<String, Value>,
    pub(crate) failures: Vec<String>,
}

/// A ratio of `compare`.
#[derive(Debug, Deserialize)]
pub(crate) struct Ratio {
    pub(crate) metric: String,
    pub(crate) ratios: Vec<f64>,
    pub(crate) spread: Spread,
    pub(crate) interval: Option<(f64, f64)>,
    pub(crate) chance: f64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Series {
    /// Median over the rounds of a figure that all runs have.
    pub(crate) fn median(&self, figure: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        let values = self.runs.iter().map(figure).collect::<Option<Vec<f64>>>()?;
        crate::report::Spread::of(values.into_iter()).map(|spread| spread.median)
    }

    /// The run that stands for all in pictures: that with the median 99th percentile.
    pub(crate) fn typical(&self) -> &Run {
        let mut order: Vec<&Run> = self.runs.iter().collect();
        order.sort_by(|a, b| a.latency.p99_us.total_cmp(&b.latency.p99_us));
        order[order.len() / 2]
    }
}

/// Reads a result file.
pub(crate) fn read(path: &Path) -> Result<Source> {
    let shown = path.display();
    let bytes = std::fs::read(path)
        .map_err(|error| Failure::run(format!("cannot read {shown}: {error}")))?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|error| {
        Failure::run(format!(
            "{shown} is no JSON: {error}; give files that emq-bench has written with --json"
        ))
    })?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    parse(&name, &value).map_err(|what| Failure::run(format!("{shown}: {what}")))
}

/// Understands a result file.
pub(crate) fn parse(name: &str, value: &Value) -> std::result::Result<Source, String> {
    let part = |of: &Value, key: &str| {
        let object = of.get(key).and_then(Value::as_object);
        object
            .into_iter()
            .flatten()
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    };
    let mut source = Source {
        name: name.to_owned(),
        environment: part(value, "environment"),
        workload: part(value, "workload"),
        ..Source::default()
    };
    let wrong = |what: &str, error: serde_json::Error| {
        format!("{what} is not as emq-bench writes it: {error}")
    };
    match (value.get("runs"), value.get("steps")) {
        (Some(runs), _) => {
            let runs: Vec<Run> =
                Deserialize::deserialize(runs).map_err(|error| wrong("runs", error))?;
            source.series = by_target(runs);
        }
        (None, Some(steps)) => {
            source.steps =
                Deserialize::deserialize(steps).map_err(|error| wrong("steps", error))?;
            source.knee_per_sec = value.get("knee_per_sec").and_then(Value::as_f64);
        }
        (None, None) => {
            return Err(
                "has neither runs nor steps; give results of emq-bench run, rate, soak or compare"
                    .to_owned(),
            );
        }
    }
    if source.series.is_empty() && source.steps.is_empty() {
        return Err("has no run in it".to_owned());
    }
    if value.get("account").is_some() {
        let soak = Deserialize::deserialize(value).map_err(|error| wrong("account", error))?;
        source.soak = Some(soak);
    }
    if let Some(ratios) = value.get("ratios") {
        source.ratios = Deserialize::deserialize(ratios).map_err(|error| wrong("ratios", error))?;
    }
    Ok(source)
}

fn by_target(runs: Vec<Run>) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for run in runs {
        match all.iter_mut().find(|series| series.target == run.target) {
            Some(series) => series.runs.push(run),
            None => all.push(Series {
                target: run.target.clone(),
                runs: vec![run],
            }),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(target: &str, p99_us: f64) -> Value {
        json!({"target": target, "jobs": 10, "jobs_per_sec": 5.0, "latency": {"p99_us": p99_us}})
    }

    #[test]
    fn runs_are_grouped_by_target() {
        let value = json!({"runs": [run("a", 3.0), run("b", 1.0), run("a", 1.0), run("a", 2.0)]});
        let source = parse("x", &value).unwrap();
        let names: Vec<&str> = source.series.iter().map(|s| s.target.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        let typical = source.series[0].typical().latency.p99_us;
        assert!((typical - 2.0).abs() < 1e-9);
        assert_eq!(
            source.series[0].median(|run| Some(run.latency.p99_us)),
            Some(2.0)
        );
        assert_eq!(
            source.series[0].median(|run| Some(run.cpu.as_ref()?.us_per_job)),
            None
        );
    }

    #[test]
    fn other_files_are_refused_and_told_apart() {
        let refused = |value: Value| parse("x", &value).unwrap_err();
        assert!(refused(json!({"fill": 1})).contains("neither runs nor steps"));
        assert!(refused(json!({"runs": []})).contains("no run"));
        assert!(refused(json!({"runs": [{"target": 5}]})).contains("runs is not as"));
        let line = read(Path::new("/nonexistent.json"))
            .unwrap_err()
            .to_string();
        assert!(line.contains("/nonexistent.json"), "{line}");
    }
}
