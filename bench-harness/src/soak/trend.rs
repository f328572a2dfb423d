//! Does a figure grow? A line through its points.

use crate::measure::Point;
use serde::Serialize;

/// The least-squares line through the points of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Trend {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Slope, and its standard error, each per hour.
    pub(crate) per_hour: f64,
    pub(crate) error_per_hour: f64,
}

impl Trend {
    /// The trend of `value` without the first part of the time. None for fewer than three points.
    pub(crate) fn of(
        points: &[Point],
        settling_share: f64,
        value: impl Fn(&Point) -> Option<u64>,
    ) -> Option<Trend> {
        let from = points.last()?.at_secs * settling_share;
        let known: Vec<(f64, u64)> = points
            .iter()
            .filter(|point| point.at_secs >= from)
            .filter_map(|point| Some((point.at_secs / 3_600.0, value(point)?)))
            .collect();
        if known.len() < 3 {
            return None;
        }
        let count = known.len() as f64;
        let mean_x = known.iter().map(|(x, _)| x).sum::<f64>() / count;
        let mean_y = known.iter().map(|(_, y)| *y as f64).sum::<f64>() / count;
        let square = |x: f64| x * x;
        let spread: f64 = known.iter().map(|(x, _)| square(x - mean_x)).sum();
        let product: f64 = known
            .iter()
            .map(|(x, y)| (x - mean_x) * (*y as f64 - mean_y))
            .sum();
        let slope = product / spread;
        let residue: f64 = known
            .iter()
            .map(|(x, y)| square(*y as f64 - mean_y - slope * (x - mean_x)))
            .sum();
        Some(Trend {
            first: known[0].1,
            last: known[known.len() - 1].1,
            per_hour: slope,
            error_per_hour: (residue / (count - 2.0) / spread).sqrt(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(value: impl Fn(u64) -> u64) -> Vec<Point> {
        let point = |second| Point {
            at_secs: second as f64,
            jobs_per_sec: 0.0,
            p50_us: 0.0,
            p99_us: 0.0,
            resident_bytes: Some(value(second)),
            open_files: None,
        };
        (1..=100).map(point).collect()
    }

    #[test]
    fn slope_is_that_of_the_line_after_the_beginning() {
        // Jumps in the first seconds, then 10 bytes a second.
        let points = points(|second| if second < 15 { 0 } else { 1_000 + 10 * second });
        let trend = Trend::of(&points, 0.2, |point| point.resident_bytes).unwrap();
        assert!((trend.per_hour - 36_000.0).abs() < 1e-3, "{trend:?}");
        assert!(trend.error_per_hour < 1e-3);
        assert_eq!((trend.first, trend.last), (1_200, 2_000));
        assert_eq!(Trend::of(&points, 0.2, |point| point.open_files), None);
    }

    #[test]
    fn noise_has_a_slope_within_its_error() {
        let points = points(|second| 1_000 + second * 7_919 % 13);
        let trend = Trend::of(&points, 0.2, |point| point.resident_bytes).unwrap();
        assert!(
            trend.per_hour.abs() < 3.0 * trend.error_per_hour,
            "{trend:?}"
        );
    }
}
