//! The page itself.

use super::chart::{Chart, Line, Unit, colour};
use super::data::{Run, Series, Soak, Source};
use crate::environment::Environment;
use crate::failure::Result;
use crate::progress::thousands;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:920px;margin:2em auto;\
padding:0 1em;color:#222;background:#fff}h1{font-size:1.6em}h2{margin-top:2em;font-size:1.2em;\
border-bottom:1px solid #ddd}table{border-collapse:collapse;margin:1em 0;font-size:14px}\
th,td{padding:.25em .8em;text-align:right;border-bottom:1px solid #eee}\
th:first-child,td:first-child{text-align:left}td{white-space:nowrap}td:first-child{white-space:normal;\
overflow-wrap:anywhere;min-width:9em}td.l{text-align:left;\
white-space:normal;overflow-wrap:anywhere}\
svg{max-width:100%;height:auto}.k{display:inline-block;margin-right:1.4em}\
.k i{display:inline-block;width:1.6em;height:.35em;margin-right:.5em;vertical-align:middle}\
.n{color:#666;font-size:13px}.bad{color:#b00020;font-weight:600}.scroll{overflow-x:auto}";

const MEBIBYTE: f64 = 1024.0 * 1024.0;
/// Rates that lie further apart than this are shown on a logarithmic axis.
const RATES_APART_MIN: f64 = 20.0;

/// Text for HTML: what stands in result files is not trusted to be harmless.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

/// A target of a file, with the name it has on the page.
struct Shown<'a> {
    label: String,
    series: &'a Series,
}

/// Builds the page.
pub(super) fn page(title: &str, sources: &[Source], made_by: &Environment) -> Result<String> {
    let mut out = String::new();
    let mut put = |text: &str| out.push_str(text);
    put("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">");
    put("<meta name=\"viewport\" content=\"width=device-width\">");
    put(&format!(
        "<title>{0}</title><style>{STYLE}</style></head><body><h1>{0}</h1>",
        escape(title)
    ));
    let shown = all_series(sources);
    if !shown.is_empty() {
        put("<h2>Summary</h2>");
        put(&summary(&shown));
        put(&ratios_to_first(&shown));
        for chart in run_charts(&shown) {
            put(&figure(&chart)?);
        }
    }
    for source in sources.iter().filter(|source| !source.steps.is_empty()) {
        put(&rates(source)?);
    }
    for source in sources.iter().filter(|source| !source.ratios.is_empty()) {
        put(&comparison(source)?);
    }
    for source in sources {
        if let Some(soak) = &source.soak {
            put(&soak_section(&source.name, soak));
        }
    }
    put("<h2>Where and with what</h2>");
    for source in sources {
        put(&origin(source));
    }
    put(&format!(
        "<p class=\"n\">Made by emq-bench {}. Absolute figures differ between machines and minutes; \
         compare only what was measured side by side.</p></body></html>\n",
        escape(made_by.version())
    ));
    Ok(out)
}

fn all_series(sources: &[Source]) -> Vec<Shown<'_>> {
    let with_runs = || sources.iter().filter(|source| !source.series.is_empty());
    let several = with_runs().count() > 1;
    with_runs()
        .flat_map(|source| {
            source.series.iter().map(move |series| Shown {
                label: match several {
                    true => format!("{} ({})", series.target, source.name),
                    false => series.target.clone(),
                },
                series,
            })
        })
        .collect()
}

fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut text = "<div class=\"scroll\"><table><tr>".to_owned();
    for cell in head {
        let _ = write!(text, "<th>{}</th>", escape(cell));
    }
    text.push_str("</tr>");
    for row in rows {
        text.push_str("<tr>");
        for cell in row {
            let _ = write!(text, "<td>{}</td>", escape(cell));
        }
        text.push_str("</tr>");
    }
    text + "</table></div>"
}

fn cpu_us(run: &Run) -> Option<f64> {
    run.cpu.as_ref().map(|cpu| cpu.us_per_job)
}

fn memory(run: &Run) -> Option<f64> {
    run.resident.as_ref().map(|resident| resident.max as f64)
}

fn summary(shown: &[Shown<'_>]) -> String {
    let head = [
        "target",
        "runs",
        "jobs/s",
        "CPU µs/job",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "p99.99",
        "max",
        "memory",
    ];
    let row = |shown: &Shown<'_>| {
        let cell = |figure: &dyn Fn(&Run) -> Option<f64>, show: &dyn Fn(f64) -> String| {
            shown
                .series
                .median(figure)
                .map_or_else(|| "-".to_owned(), show)
        };
        let time = |us| Unit::Time.show(us);
        vec![
            shown.label.clone(),
            shown.series.runs.len().to_string(),
            cell(&|run| Some(run.jobs_per_sec), &|rate| {
                thousands(rate as u64)
            }),
            cell(&cpu_us, &|us| format!("{us:.3}")),
            cell(&|run| Some(run.latency.p50_us), &time),
            cell(&|run| Some(run.latency.p90_us), &time),
            cell(&|run| Some(run.latency.p99_us), &time),
            cell(&|run| Some(run.latency.p999_us), &time),
            cell(&|run| run.latency.p9999_us, &time),
            cell(&|run| Some(run.latency.max_us), &time),
            cell(&memory, &|bytes| Unit::Bytes.show(bytes)),
        ]
    };
    let rows: Vec<Vec<String>> = shown.iter().map(row).collect();
    let jobs: u64 = shown
        .iter()
        .flat_map(|shown| &shown.series.runs)
        .map(|run| run.jobs)
        .sum();
    table(&head, &rows)
        + &format!(
            "<p class=\"n\">Medians over the runs of a target; {} jobs in all. Memory: resident, at \
             most. Pictures show the run with the median p99.</p>",
            thousands(jobs)
        )
}

/// Each target's figures divided by those of the first one: run by run of the same round if the
/// two have the same rounds.
fn ratios_to_first(shown: &[Shown<'_>]) -> String {
    let [first, others @ ..] = shown else {
        return String::new();
    };
    if others.is_empty() {
        return String::new();
    }
    let row = |other: &Shown<'_>| {
        let ratio = |figure: &dyn Fn(&Run) -> Option<f64>| {
            let pairs = other.series.runs.iter().filter_map(|run| {
                let same = |reference: &&Run| reference.round == run.round;
                let reference = first.series.runs.iter().find(same)?;
                Some(figure(run)? / figure(reference)?)
            });
            crate::report::Spread::of(pairs.filter(|ratio| ratio.is_finite()))
                .map_or_else(|| "-".to_owned(), |spread| spread.show(2))
        };
        vec![
            other.label.clone(),
            ratio(&|run| Some(run.jobs_per_sec)),
            ratio(&cpu_us),
            ratio(&|run| Some(run.latency.p50_us)),
            ratio(&|run| Some(run.latency.p99_us)),
            ratio(&memory),
        ]
    };
    let rows: Vec<Vec<String>> = others.iter().map(row).collect();
    let title = format!("divided by {}", first.label);
    let head = [title.as_str(), "jobs/s", "CPU/job", "p50", "p99", "memory"];
    table(&head, &rows) + "<p class=\"n\">Ratios of runs of the same round: median (min-max).</p>"
}

fn run_charts(shown: &[Shown<'_>]) -> Vec<Chart> {
    let lines = |points: &dyn Fn(&Run) -> Vec<(f64, f64)>| -> Vec<Line> {
        let line = |shown: &Shown<'_>| Line {
            label: shown.label.clone(),
            points: points(shown.series.typical()),
        };
        shown.iter().map(line).collect()
    };
    let (unit, unit_secs) = time_unit(shown);
    let over_time = |value: fn(&crate::measure::Point) -> Option<f64>| {
        lines(&|run| {
            let points = run.timeline.iter();
            points
                .filter_map(|point| Some((point.at_secs / unit_secs, value(point)?)))
                .collect()
        })
    };
    let time = ("time", unit);
    vec![
        Chart {
            title: "Latency by percentile".to_owned(),
            x: ("percentile", Unit::Nines),
            y: ("REQUEST to end", Unit::Time),
            log_x: false,
            log_y: true,
            marks: false,
            lines: lines(&|run| percentile_points(&run.curve)),
        },
        Chart {
            title: "Throughput over time".to_owned(),
            x: time,
            y: ("jobs per second", Unit::Rate),
            log_x: false,
            log_y: false,
            marks: false,
            lines: over_time(|point| Some(point.jobs_per_sec)),
        },
        Chart {
            title: "p99 of the latency over time".to_owned(),
            x: time,
            y: ("p99", Unit::Time),
            log_x: false,
            log_y: true,
            marks: false,
            lines: over_time(|point| Some(point.p99_us)),
        },
        Chart {
            title: "Resident memory of the broker over time".to_owned(),
            x: time,
            y: ("resident", Unit::Mebibytes),
            log_x: false,
            log_y: false,
            marks: false,
            lines: over_time(|point| point.resident_bytes.map(|bytes| bytes as f64 / MEBIBYTE)),
        },
    ]
}

/// What the axis of time counts, and its length in seconds.
fn time_unit(shown: &[Shown<'_>]) -> (Unit, f64) {
    let ends = shown
        .iter()
        .filter_map(|shown| shown.series.typical().timeline.last());
    let longest = ends.map(|point| point.at_secs).fold(0.0, f64::max);
    match longest {
        secs if secs > 3.0 * 3_600.0 => (Unit::Hours, 3_600.0),
        secs if secs > 3.0 * 60.0 => (Unit::Minutes, 60.0),
        _ => (Unit::Seconds, 1.0),
    }
}

/// The curve up to the last quantile below 1: the maximum stands at infinity.
fn percentile_points(curve: &[(f64, f64)]) -> Vec<(f64, f64)> {
    curve
        .iter()
        .filter(|(quantile, _)| *quantile < 1.0)
        .map(|(quantile, us)| (-(1.0 - quantile).log10(), *us))
        .collect()
}

/// Title, legend and picture; nothing if there is nothing to show.
fn figure(chart: &Chart) -> Result<String> {
    let Some(svg) = chart.svg()? else {
        return Ok(String::new());
    };
    let mut text = format!("<h2>{}</h2><p>", escape(&chart.title));
    for (index, line) in chart.lines.iter().enumerate() {
        let _ = write!(
            text,
            "<span class=\"k\"><i style=\"background:{}\"></i>{}</span>",
            colour(index),
            escape(&line.label)
        );
    }
    Ok(text + "</p>" + &svg)
}

fn rates(source: &Source) -> Result<String> {
    let line = |label: &str, value: &dyn Fn(&Run) -> f64| Line {
        label: label.to_owned(),
        points: source
            .steps
            .iter()
            .map(|step| (step.rate, value(&step.measured)))
            .collect(),
    };
    let ends = source.steps.first().zip(source.steps.last());
    let log_x = ends.is_some_and(|(first, last)| last.rate > RATES_APART_MIN * first.rate);
    let chart = Chart {
        title: format!("Latency by rate ({})", source.name),
        x: ("offered jobs per second", Unit::Rate),
        y: ("latency from when a job was due", Unit::Time),
        log_x,
        log_y: true,
        marks: true,
        lines: vec![
            line("p50", &|run| run.latency.p50_us),
            line("p99", &|run| run.latency.p99_us),
            line("p99.9", &|run| run.latency.p999_us),
        ],
    };
    let rows: Vec<Vec<String>> = source
        .steps
        .iter()
        .map(|step| {
            let (run, l) = (&step.measured, &step.measured.latency);
            let time = |us| Unit::Time.show(us);
            vec![
                thousands(step.rate as u64),
                thousands(run.jobs_per_sec as u64),
                time(l.p50_us),
                time(l.p90_us),
                time(l.p99_us),
                time(l.p999_us),
                time(l.max_us),
                cpu_us(run).map_or_else(|| "-".to_owned(), |us| format!("{us:.2}")),
                step.verdict.clone(),
            ]
        })
        .collect();
    let head = [
        "offered/s",
        "done/s",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max",
        "CPU µs/job",
        "",
    ];
    let knee = source.knee_per_sec.map_or_else(
        || "No knee between the lowest and the highest rate.".to_owned(),
        |rate| format!("The knee is behind {} jobs/s.", thousands(rate as u64)),
    );
    Ok(figure(&chart)? + &format!("<p>{knee}</p>") + &table(&head, &rows))
}

fn comparison(source: &Source) -> Result<String> {
    let chart = Chart {
        title: format!("Ratios pair by pair ({})", source.name),
        x: ("pair", Unit::Number),
        y: ("B / A", Unit::Number),
        log_x: false,
        log_y: false,
        marks: true,
        lines: source
            .ratios
            .iter()
            .map(|ratio| Line {
                label: ratio.metric.clone(),
                points: (1..)
                    .map(f64::from)
                    .zip(ratio.ratios.iter().copied())
                    .collect(),
            })
            .collect(),
    };
    let rows: Vec<Vec<String>> = source
        .ratios
        .iter()
        .map(|ratio| {
            let spread = &ratio.spread;
            vec![
                ratio.metric.clone(),
                format!("{:.3}", spread.median),
                format!("{:.3}-{:.3}", spread.min, spread.max),
                ratio.interval.map_or_else(
                    || "-".to_owned(),
                    |(low, high)| format!("{low:.3}-{high:.3}"),
                ),
                format!("{:.4}", ratio.chance),
            ]
        })
        .collect();
    let head = ["B / A", "median", "min-max", "95 % interval", "sign test p"];
    Ok(figure(&chart)? + &table(&head, &rows))
}

fn soak_section(name: &str, soak: &Soak) -> String {
    let mut text = format!(
        "<h2>Soak of {} minutes ({})</h2>",
        soak.minutes,
        escape(name)
    );
    let faults = match soak.faults.is_empty() {
        true => "none".to_owned(),
        false => soak.faults.join(", "),
    };
    let _ = write!(text, "<p>Faults: {}</p>", escape(&faults));
    if soak.failures.is_empty() {
        text.push_str(
            "<p>Every job is accounted for: none lost, unanswered or answered twice.</p>",
        );
    }
    for failure in &soak.failures {
        let _ = write!(text, "<p class=\"bad\">Failed: {}</p>", escape(failure));
    }
    let counts = |map: BTreeMap<String, u64>| {
        map.into_iter()
            .map(|(key, value)| vec![key.replace('_', " "), thousands(value)])
            .collect::<Vec<_>>()
    };
    let account = soak
        .account
        .iter()
        .filter_map(|(key, value)| Some((key.clone(), value.as_u64()?)))
        .collect();
    text + &table(&["jobs", ""], &counts(account))
        + &table(&["what went wrong", ""], &counts(soak.happened.clone()))
}

fn origin(source: &Source) -> String {
    let plain = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Array(list) => list
            .iter()
            .map(|entry| {
                entry
                    .as_str()
                    .map_or_else(|| entry.to_string(), str::to_owned)
            })
            .collect::<Vec<_>>()
            .join(" "),
        other => other.to_string(),
    };
    let mut text = format!("<h3>{}</h3><table>", escape(&source.name));
    for (key, value) in source.environment.iter().chain(&source.workload) {
        let _ = write!(
            text,
            "<tr><td>{}</td><td class=\"l\">{}</td></tr>",
            escape(&key.replace('_', " ")),
            escape(&plain(value))
        );
    }
    text + "</table>"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::data::parse;
    use serde_json::json;

    fn source(name: &str, rate: f64) -> Source {
        let curve: Vec<(f64, f64)> = (0..10).map(|n| (1.0 - 0.5_f64.powi(n), 100.0)).collect();
        let point = |at: f64| {
            json!({"at_secs": at, "jobs_per_sec": rate, "p50_us": 1.0, "p99_us": 2.0,
                   "resident_bytes": 8_000_000, "open_files": 9})
        };
        let run = json!({
            "target": "<script>", "jobs": 1_000, "jobs_per_sec": rate, "round": 0,
            "latency": {"p50_us": 300.0, "p99_us": 900.0}, "cpu": {"us_per_job": 0.5},
            "curve": curve, "timeline": [point(1.0), point(2.0)]
        });
        let value = json!({"runs": [run], "environment": {"commit": "abc", "cores": 2}});
        parse(name, &value).unwrap()
    }

    fn built(sources: &[Source]) -> String {
        page("A & B", sources, &Environment::now()).unwrap()
    }

    #[test]
    fn page_stands_alone_and_escapes_what_it_shows() {
        let text = built(&[source("one", 1_000.0)]);
        assert!(text.contains("<h1>A &amp; B</h1>"));
        assert!(text.contains("&lt;script&gt;") && !text.contains("<script"));
        assert!(
            !text.contains("src=") && !text.contains("href="),
            "nothing from elsewhere"
        );
        assert_eq!(text.matches("<svg").count(), 4);
        assert!(text.contains("abc") && text.contains("1,000"));
        assert!(!text.contains("divided by"));
    }

    #[test]
    fn several_results_are_compared_with_the_first() {
        let text = built(&[source("one", 1_000.0), source("two", 1_500.0)]);
        assert!(text.contains("divided by &lt;script&gt; (one)"), "{text}");
        assert!(text.contains("1.50 (1.50-1.50)"), "{text}");
    }

    #[test]
    fn rates_soaks_and_comparisons_have_their_parts() {
        let run = json!({"target": "t", "jobs": 1, "jobs_per_sec": 5.0});
        let step = |rate: f64| {
            let mut run = run.clone();
            run["latency"] = json!({"p50_us": 5.0, "p99_us": rate, "p999_us": rate});
            json!({"rate": rate, "verdict": "good", "measured": run})
        };
        let rate = json!({"steps": [step(10.0), step(20.0)], "knee_per_sec": 10.0});
        let soak = json!({
            "runs": [run], "minutes": 30.0, "faults": ["kill-worker:5000ms"],
            "happened": {"workers_killed": 7}, "account": {"ended": 5, "noted": []},
            "failures": ["2 times unanswered, first m-1"]
        });
        let compare = json!({"runs": [run], "ratios": [{
            "metric": "cpu", "ratios": [0.9, 0.8], "chance": 0.5, "interval": null,
            "spread": {"median": 0.85, "min": 0.8, "max": 0.9}
        }]});
        let sources = [("r", rate), ("s", soak), ("c", compare)]
            .map(|(name, value)| parse(name, &value).unwrap());
        let text = built(&sources);
        for part in [
            "Latency by rate (r)",
            "The knee is behind 10 jobs/s",
            "Soak of 30 minutes (s)",
            "workers killed",
            "Failed: 2 times unanswered",
            "Ratios pair by pair (c)",
            "0.850",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
