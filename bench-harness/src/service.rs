//! How long workers take for a job, and the random numbers of the load.

use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// No job takes longer, whatever the distribution says: a run must end.
const SERVICE_NS_MAX: u64 = 60_000_000_000;
const EXPECTED: &str = "expected none, fixed:TIME, exp:MEAN, lognormal:MEDIAN[:SIGMA], or \
                        pareto:SHORTEST[:ALPHA], times as 200us, 1ms, 0.5s";

/// Distribution of the time that a worker takes for a job.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) enum Service {
    /// Answered in the turn in which it came.
    #[default]
    None,
    /// Always the same.
    Fixed { ns: u64 },
    /// Exponential: what independent short jobs look like.
    Exponential { mean_ns: u64 },
    /// Most near the median, some much longer.
    Lognormal { median_ns: u64, sigma: f64 },
    /// Heavy tail: few jobs take most of the time; below an `alpha` of 2 the variance is infinite.
    Pareto { shortest_ns: u64, alpha: f64 },
}

impl Service {
    /// A time from the distribution.
    pub(crate) fn draw_ns(self, random: &mut Random) -> u64 {
        let ns = match self {
            Service::None => return 0,
            Service::Fixed { ns } => return ns,
            Service::Exponential { mean_ns } => -random.open_unit().ln() * mean_ns as f64,
            Service::Lognormal { median_ns, sigma } => {
                (random.normal() * sigma).exp() * median_ns as f64
            }
            Service::Pareto { shortest_ns, alpha } => {
                random.open_unit().powf(-1.0 / alpha) * shortest_ns as f64
            }
        };
        // A cast of a float saturates.
        (ns as u64).min(SERVICE_NS_MAX)
    }
}

impl FromStr for Service {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no service time; {EXPECTED}");
        let parts: Vec<&str> = text.split(':').collect();
        let shape = |default: f64, index: usize| match parts.get(index) {
            None => Ok(default),
            Some(number) => match number.parse::<f64>() {
                Ok(value) if (0.01..=100.0).contains(&value) => Ok(value),
                _ => Err(format!(
                    "{number:?} in {text:?} must be a number from 0.01 to 100"
                )),
            },
        };
        let (most, service) = match parts[..] {
            ["none"] => (1, Service::None),
            ["fixed", time, ..] => {
                let ns = time_ns(time).ok_or_else(wrong)?;
                (2, Service::Fixed { ns })
            }
            ["exp", time, ..] => {
                let mean_ns = time_ns(time).ok_or_else(wrong)?;
                (2, Service::Exponential { mean_ns })
            }
            ["lognormal", time, ..] => {
                let median_ns = time_ns(time).ok_or_else(wrong)?;
                let sigma = shape(1.0, 2)?;
                (3, Service::Lognormal { median_ns, sigma })
            }
            ["pareto", time, ..] => {
                let shortest_ns = time_ns(time).ok_or_else(wrong)?;
                let alpha = shape(1.5, 2)?;
                (3, Service::Pareto { shortest_ns, alpha })
            }
            _ => return Err(wrong()),
        };
        if parts.len() > most {
            return Err(wrong());
        }
        Ok(service)
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Service::None => f.write_str("none"),
            Service::Fixed { ns } => write!(f, "fixed:{}", Time(*ns)),
            Service::Exponential { mean_ns } => write!(f, "exp:{}", Time(*mean_ns)),
            Service::Lognormal { median_ns, sigma } => {
                write!(f, "lognormal:{}:{sigma}", Time(*median_ns))
            }
            Service::Pareto { shortest_ns, alpha } => {
                write!(f, "pareto:{}:{alpha}", Time(*shortest_ns))
            }
        }
    }
}

impl Serialize for Service {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A time as it is written on the command line.
struct Time(u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}us", self.0 as f64 / 1e3)
    }
}

/// Nanoseconds of `200us`, `1ms`, `0.5s`, `2m`; at most an hour.
pub(crate) fn time_ns(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_ns = match &text[digits.len()..] {
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" => 60e9,
        _ => return None,
    };
    let value: f64 = digits.parse().ok()?;
    let ns = value * unit_ns;
    (0.0..=3_600e9).contains(&ns).then_some(ns as u64)
}

/// SplitMix64: quick, and the same sequence for the same seed, so that a load can be repeated.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// A sequence of its own for each seed.
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number above 0 and up to 1.
    fn open_unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// A number of the standard normal distribution (Box and Muller).
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.open_unit().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.open_unit()).cos()
    }

    /// True in this share of all cases. Costs nothing when it is all or none.
    #[inline]
    pub(crate) fn chance(&mut self, share: f64) -> bool {
        share >= 1.0 || (share > 0.0 && self.open_unit() <= share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(text: &str) -> Vec<u64> {
        let service: Service = text.parse().unwrap();
        let mut random = Random::new(7);
        let mut all: Vec<u64> = (0..20_000).map(|_| service.draw_ns(&mut random)).collect();
        all.sort_unstable();
        all
    }

    fn near(value: f64, expected: f64, tolerance: f64) {
        assert!(
            (value / expected - 1.0).abs() < tolerance,
            "{value} instead of {expected}"
        );
    }

    #[test]
    fn distributions_have_the_figures_they_are_named_by() {
        assert!(draws("fixed:1.5ms").iter().all(|&ns| ns == 1_500_000));
        let exponential = draws("exp:1ms");
        near(exponential.iter().sum::<u64>() as f64 / 2e4, 1e6, 0.05);
        near(exponential[10_000] as f64, 1e6 * 2_f64.ln(), 0.05);
        let lognormal = draws("lognormal:200us:0.5");
        near(lognormal[10_000] as f64, 2e5, 0.05);
        // One standard deviation above the median: the 84th percentile.
        near(lognormal[16_827] as f64, 2e5 * 0.5_f64.exp(), 0.05);
        let pareto = draws("pareto:1ms:2");
        assert!(pareto[0] >= 1_000_000);
        near(pareto[19_800] as f64, 1e7, 0.15);
        assert!(
            draws("pareto:1m:0.01")
                .iter()
                .all(|&ns| ns <= SERVICE_NS_MAX)
        );
    }

    #[test]
    fn service_times_are_written_as_they_are_read() {
        for text in [
            "none",
            "fixed:1ms",
            "exp:200us",
            "lognormal:1s:0.5",
            "pareto:2ms:1.1",
        ] {
            let service: Service = text.parse().unwrap();
            assert_eq!(service.to_string().parse::<Service>().unwrap(), service);
        }
    }

    #[test]
    fn what_is_no_service_time_is_told_what_is() {
        for text in [
            "",
            "fixed",
            "fixed:",
            "fixed:1",
            "fixed:1h",
            "exp:-1ms",
            "exp:1ms:2",
            "pareto:1ms:0",
            "gamma:1ms",
            "none:1ms",
            "fixed:2000m",
            "lognormal:1ms:1:1",
        ] {
            let line = text.parse::<Service>().unwrap_err();
            assert!(line.contains(text), "{text}: {line}");
        }
        assert!(
            "gamma:1ms"
                .parse::<Service>()
                .unwrap_err()
                .contains("exp:MEAN")
        );
    }

    #[test]
    fn shares_are_kept() {
        let mut random = Random::new(1);
        let hits = (0..20_000).filter(|_| random.chance(0.25)).count();
        near(hits as f64, 5_000.0, 0.05);
        assert!((0..100).all(|_| random.chance(1.0) && !random.chance(0.0)));
    }
}
