//! What is shown while a run goes on: a bar with the live rate on a terminal, else a plain line
//! every few seconds, later every minute. Both go to standard error.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

const PLAIN_SECS: u64 = 5;
/// After the first minute, so that a soak of days does not fill a log.
const PLAIN_LATER_SECS: u64 = 60;
const LIVE_MS: u64 = 200;

/// The progress of one run.
#[derive(Debug)]
pub(crate) struct Progress {
    title: String,
    bar: Option<ProgressBar>,
    quiet: bool,
    begun: Instant,
    last: Instant,
    last_jobs: u64,
}

impl Progress {
    pub(crate) fn new(title: String, quiet: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let style = ProgressStyle::with_template("{spinner} {prefix} [{elapsed}] {msg}");
            let bar = ProgressBar::new_spinner().with_prefix(title.clone());
            if let Ok(style) = style {
                bar.set_style(style);
            }
            bar
        });
        Progress {
            title,
            bar,
            quiet,
            begun: Instant::now(),
            last: Instant::now(),
            last_jobs: 0,
        }
    }

    /// `jobs` have been finished so far, lately with this 99th percentile of the latency.
    pub(crate) fn show(&mut self, what: &str, jobs: u64, p99_us: Option<u64>) {
        let every = match self.bar {
            Some(_) => Duration::from_millis(LIVE_MS),
            None if self.begun.elapsed().as_secs() < PLAIN_LATER_SECS => {
                Duration::from_secs(PLAIN_SECS)
            }
            None => Duration::from_secs(PLAIN_LATER_SECS),
        };
        let elapsed = self.last.elapsed();
        if self.quiet || elapsed < every {
            return;
        }
        let rate = (jobs - self.last_jobs) as f64 / elapsed.as_secs_f64();
        let p99 = p99_us.map_or_else(String::new, |us| format!(", p99 {} µs", thousands(us)));
        let text = format!(
            "{what}: {} jobs, {} jobs/s{p99}",
            thousands(jobs),
            thousands(rate as u64)
        );
        match &self.bar {
            Some(bar) => {
                bar.set_message(text);
                bar.tick();
            }
            None => eprintln!("{}: {text}", self.title),
        }
        (self.last, self.last_jobs) = (Instant::now(), jobs);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A number with its thousands set apart.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::thousands;

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(thousands),
            ["0", "999", "1,000", "1,234,567"].map(str::to_owned)
        );
    }
}
