//! Pictures: lines over two axes as SVG.

use crate::failure::{Failure, Result};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use std::fmt::Display;
use std::ops::Range;

const WIDTH: u32 = 860;
const HEIGHT: u32 = 340;
/// Colours that people with any kind of sight tell apart (after Okabe and Ito).
const COLOURS: [(u8, u8, u8); 7] = [
    (0, 114, 178),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (230, 159, 0),
    (86, 180, 233),
    (60, 60, 60),
];
const LABELS_X: usize = 8;
const LABELS_Y: usize = 6;

/// A line of a picture.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) label: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// What an axis counts, and so how its numbers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Microseconds.
    Time,
    Seconds,
    Minutes,
    Hours,
    /// Per second.
    Rate,
    Bytes,
    Mebibytes,
    /// The decimal logarithm of 1 / (1 - quantile).
    Nines,
    Number,
}

/// A picture.
#[derive(Debug, Clone)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x: (&'static str, Unit),
    pub(crate) y: (&'static str, Unit),
    /// Every tenfold of x has the same width.
    pub(crate) log_x: bool,
    /// Every tenfold of y has the same height.
    pub(crate) log_y: bool,
    /// The points are marked.
    pub(crate) marks: bool,
    pub(crate) lines: Vec<Line>,
}

/// The colour of line `index`, as CSS writes it.
pub(crate) fn colour(index: usize) -> String {
    let (r, g, b) = COLOURS[index % COLOURS.len()];
    format!("#{r:02x}{g:02x}{b:02x}")
}

fn rgb(index: usize) -> RGBColor {
    let (r, g, b) = COLOURS[index % COLOURS.len()];
    RGBColor(r, g, b)
}

/// A number without zeros at its end.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 || v == v.trunc() => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

impl Unit {
    pub(crate) fn show(self, value: f64) -> String {
        let scaled = |steps: &[(f64, &str)]| {
            let fits = steps.iter().rev().find(|(size, _)| value.abs() >= *size);
            let (size, unit) = fits.or(steps.first()).copied().unwrap_or((1.0, ""));
            format!("{}{unit}", short(value / size))
        };
        match self {
            Unit::Time => scaled(&[(1.0, " µs"), (1e3, " ms"), (1e6, " s")]),
            Unit::Seconds => format!("{} s", short(value)),
            Unit::Minutes => format!("{} min", short(value)),
            Unit::Hours => format!("{} h", short(value)),
            Unit::Rate => scaled(&[(1.0, ""), (1e3, " k"), (1e6, " M")]),
            Unit::Bytes => scaled(&[
                (1.0, " B"),
                (1024.0, " KiB"),
                (1024.0 * 1024.0, " MiB"),
                (1024.0 * 1024.0 * 1024.0, " GiB"),
            ]),
            Unit::Mebibytes => format!("{} MiB", short(value)),
            Unit::Nines => {
                let percent = 100.0 * (1.0 - 10_f64.powf(-value));
                let digits = (value.round() as usize).saturating_sub(2);
                format!("{percent:.digits$} %")
            }
            Unit::Number => short(value),
        }
    }
}

impl Chart {
    /// The picture as an SVG element. None if there is nothing to show.
    pub(crate) fn svg(&self) -> Result<Option<String>> {
        let points = || {
            let all = self.lines.iter().flat_map(|line| &line.points);
            all.copied().filter(|point| self.shows(*point))
        };
        let (xs, ys) = (
            || points().map(|point| point.0),
            || points().map(|point| point.1),
        );
        if points().count() < 2 {
            return Ok(None);
        }
        let mut text = String::new();
        let area = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
        let (x, y) = (range(xs(), false), range(ys(), true));
        match (self.log_x, self.log_y) {
            (false, false) => self.draw(&area, x, y)?,
            (false, true) => self.draw(&area, x, decades(ys()).log_scale())?,
            (true, false) => self.draw(&area, decades(xs()).log_scale(), y)?,
            (true, true) => {
                let (x, y) = (decades(xs()), decades(ys()));
                self.draw(&area, x.log_scale(), y.log_scale())?;
            }
        }
        drop(area);
        Ok(Some(text))
    }

    /// False for what has no place on the axes.
    fn shows(&self, (x, y): (f64, f64)) -> bool {
        let fits = |value: f64, log: bool| value.is_finite() && (!log || value > 0.0);
        fits(x, self.log_x) && fits(y, self.log_y)
    }

    /// Nines have their labels at whole numbers: 90 %, 99 %, 99.9 %.
    fn labels_x(&self) -> usize {
        let all = self.lines.iter().flat_map(|line| &line.points);
        match self.x.1 {
            Unit::Nines => max(all.map(|point| point.0)).floor().clamp(1.0, 9.0) as usize + 1,
            _ => LABELS_X,
        }
    }

    fn draw<X, Y>(&self, area: &DrawingArea<SVGBackend<'_>, Shift>, x: X, y: Y) -> Result<()>
    where
        X: AsRangedCoord<Value = f64>,
        X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(42)
            .y_label_area_size(72)
            .build_cartesian_2d(x, y)
            .map_err(|error| self.failure(&error))?;
        chart
            .configure_mesh()
            .x_desc(self.x.0)
            .y_desc(self.y.0)
            .x_labels(self.labels_x())
            .y_labels(LABELS_Y)
            .x_label_formatter(&|value| self.x.1.show(*value))
            .y_label_formatter(&|value| self.y.1.show(*value))
            .label_style(("sans-serif", 13))
            .axis_desc_style(("sans-serif", 14))
            .light_line_style(RGBColor(240, 240, 240))
            .bold_line_style(RGBColor(220, 220, 220))
            .draw()
            .map_err(|error| self.failure(&error))?;
        for (index, line) in self.lines.iter().enumerate() {
            let shown = |point: &(f64, f64)| self.shows(*point);
            let points = || line.points.iter().copied().filter(shown);
            chart
                .draw_series(LineSeries::new(points(), rgb(index).stroke_width(2)))
                .map_err(|error| self.failure(&error))?;
            if self.marks {
                let marks = points().map(|point| Circle::new(point, 3, rgb(index).filled()));
                chart
                    .draw_series(marks)
                    .map_err(|error| self.failure(&error))?;
            }
        }
        area.present().map_err(|error| self.failure(&error))
    }

    fn failure(&self, error: &dyn Display) -> Failure {
        Failure::run(format!("cannot draw {:?}: {error}", self.title))
    }
}

fn min(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::INFINITY, f64::min)
}

fn max(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::NEG_INFINITY, f64::max)
}

/// Whole tenfolds around all values.
fn decades(values: impl Iterator<Item = f64> + Clone) -> Range<f64> {
    let low = 10_f64.powf(min(values.clone()).log10().floor());
    let high = 10_f64.powf(max(values).log10().ceil());
    low..high.max(low * 10.0)
}

/// From the lowest to the highest value, or from 0 to a little above the highest.
fn range(values: impl Iterator<Item = f64> + Clone, from_zero: bool) -> Range<f64> {
    let (low, high) = (min(values.clone()), max(values));
    match (from_zero, high > low) {
        (true, _) if high > 0.0 => 0.0..high * 1.08,
        (false, true) => low..high,
        _ => low - 0.5..low + 0.5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_with_their_units() {
        assert_eq!(Unit::Time.show(0.5), "0.5 µs");
        assert_eq!(Unit::Time.show(1_500.0), "1.5 ms");
        assert_eq!(Unit::Time.show(2e6), "2 s");
        assert_eq!(Unit::Rate.show(2_450_000.0), "2.45 M");
        assert_eq!(Unit::Bytes.show(8.0 * 1024.0 * 1024.0), "8 MiB");
        let nines: Vec<String> = (0..5).map(|n| Unit::Nines.show(f64::from(n))).collect();
        assert_eq!(nines, ["0 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
        assert_eq!(Unit::Seconds.show(0.5), "0.5 s");
        assert_eq!(Unit::Minutes.show(30.0), "30 min");
        assert_eq!(Unit::Number.show(0.125), "0.125");
    }

    fn chart(points: Vec<(f64, f64)>, log_y: bool) -> Chart {
        Chart {
            title: "t".to_owned(),
            x: ("time", Unit::Seconds),
            y: ("latency", Unit::Time),
            log_x: false,
            log_y,
            marks: true,
            lines: vec![Line {
                label: "l".to_owned(),
                points,
            }],
        }
    }

    #[test]
    fn lines_are_drawn_in_both_scales() {
        for log_y in [false, true] {
            let svg = chart(vec![(0.0, 1.0), (1.0, 1_000.0)], log_y)
                .svg()
                .unwrap();
            let svg = svg.unwrap();
            assert!(
                svg.starts_with("<svg") && svg.contains("<polyline"),
                "{svg}"
            );
            assert!(svg.contains("latency") && svg.contains("ms"), "{svg}");
        }
    }

    #[test]
    fn values_that_cannot_be_shown_are_left_out() {
        assert!(
            chart(vec![(0.0, 0.0), (1.0, 0.0)], true)
                .svg()
                .unwrap()
                .is_none()
        );
        assert!(chart(Vec::new(), false).svg().unwrap().is_none());
        // All the same, and one that is no number.
        let flat = vec![(0.0, 5.0), (0.0, 5.0), (1.0, f64::NAN)];
        assert!(chart(flat, true).svg().unwrap().is_some());
        assert!(
            chart(vec![(0.0, 0.0), (1.0, 0.0)], false)
                .svg()
                .unwrap()
                .is_some()
        );
    }
}
