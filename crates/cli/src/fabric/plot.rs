//! Line plots with a linear or logarithmic axis each, as inline SVG. Colours come from the page's style sheet.

use crate::svg::{self, LogScale, line, round_range, text};
use std::fmt::Write;

/// A line of a plot.
pub(super) struct Series {
    pub(super) name: String,
    /// Number of its colour.
    pub(super) colour: usize,
    pub(super) points: Vec<(f64, f64)>,
}

/// A plot.
pub(super) struct Plot {
    pub(super) description: String,
    pub(super) x_title: &'static str,
    pub(super) y_title: &'static str,
    pub(super) log_x: bool,
    pub(super) log_y: bool,
    pub(super) series: Vec<Series>,
}

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 770.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 280.0;
/// Colours of the style sheet.
pub(super) const COLOURS: usize = 10;
/// Names that the legend has room for.
const LEGEND_LINES: usize = 12;

/// An axis of either kind.
enum Scale {
    Log(LogScale),
    Linear { low: f64, high: f64, from: f64, to: f64 },
}

impl Scale {
    fn new(log: bool, values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Option<Scale> {
        if log {
            let (low, high) = round_range(values)?;
            return Some(Scale::Log(LogScale::new(low, high, from, to)));
        }
        let high = values.filter(|value| value.is_finite()).reduce(f64::max)?;
        let (_, high) = round_range([high.max(1e-9)].into_iter())?;
        Some(Scale::Linear { low: 0.0, high, from, to })
    }

    fn at(&self, value: f64) -> f64 {
        match self {
            Scale::Log(scale) => scale.at(value),
            Scale::Linear { low, high, from, to } => from + (value - low) / (high - low) * (to - from),
        }
    }

    fn ticks(&self) -> Vec<f64> {
        match self {
            Scale::Log(scale) => {
                scale.ticks().into_iter().filter(|(_, label)| *label).map(|(at, _)| at).collect()
            }
            Scale::Linear { high, .. } => (0..=4).map(|n| high * f64::from(n) / 4.0).collect(),
        }
    }
}

impl Plot {
    /// The picture; none if there is nothing to show.
    pub(super) fn render(&self) -> Option<String> {
        let good = |(x, y): &(f64, f64)| {
            x.is_finite() && y.is_finite() && (!self.log_x || *x > 0.0) && (!self.log_y || *y > 0.0)
        };
        let points = self.series.iter().flat_map(|series| &series.points).filter(|point| good(point));
        let x = Scale::new(self.log_x, points.clone().map(|point| point.0), LEFT, RIGHT)?;
        let y = Scale::new(self.log_y, points.map(|point| point.1), BOTTOM, TOP)?;
        let mut svg = String::new();
        svg::begin(&mut svg, WIDTH, HEIGHT, &self.description);
        for tick in y.ticks() {
            line(&mut svg, "grid", (LEFT, y.at(tick)), (RIGHT, y.at(tick)));
            text(&mut svg, "tick end", (LEFT - 8.0, y.at(tick) + 4.0), &short(tick));
        }
        for tick in x.ticks() {
            line(&mut svg, "grid minor", (x.at(tick), TOP), (x.at(tick), BOTTOM));
            text(&mut svg, "tick middle", (x.at(tick), BOTTOM + 18.0), &short(tick));
        }
        line(&mut svg, "axis", (LEFT, BOTTOM), (RIGHT, BOTTOM));
        text(&mut svg, "axis-title", (4.0, TOP - 14.0), self.y_title);
        text(&mut svg, "axis-title middle", ((LEFT + RIGHT) / 2.0, BOTTOM + 38.0), self.x_title);
        for series in &self.series {
            let path: Vec<String> = series
                .points
                .iter()
                .filter(|point| good(point))
                .map(|point| format!("{:.1},{:.1}", x.at(point.0), y.at(point.1)))
                .collect();
            let _ = writeln!(
                svg,
                "<g class=\"series c{}\"><title>{}</title><polyline class=\"line\" points=\"{}\"/></g>",
                series.colour % COLOURS,
                svg::escape(&series.name),
                path.join(" ")
            );
        }
        self.draw_legend(&mut svg);
        svg::end(&mut svg);
        Some(svg)
    }

    fn draw_legend(&self, svg: &mut String) {
        for (n, series) in self.series.iter().take(LEGEND_LINES).enumerate() {
            let at = TOP + 8.0 + n as f64 * 21.0;
            let _ = write!(svg, "<g class=\"series c{}\">", series.colour % COLOURS);
            line(svg, "line", (RIGHT + 16.0, at), (RIGHT + 40.0, at));
            svg.push_str("</g>");
            text(svg, "legend", (RIGHT + 46.0, at + 4.5), &series.name);
        }
        if self.series.len() > LEGEND_LINES {
            let at = TOP + 12.0 + LEGEND_LINES as f64 * 21.0;
            text(
                svg,
                "legend",
                (RIGHT + 46.0, at),
                &format!("and {} more", self.series.len() - LEGEND_LINES),
            );
        }
    }
}

/// A number with at most three digits and a prefix.
pub(super) fn short(value: f64) -> String {
    let (scaled, prefix) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = if scaled.abs() >= 100.0 || scaled == scaled.trunc() { 0 } else { 2 };
    let number = format!("{scaled:.digits$}");
    let number = if digits > 0 { number.trim_end_matches('0').trim_end_matches('.') } else { &number };
    format!("{number}{prefix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_empty_plots_are_none() {
        let found = [0.0, 0.25, 12.5, 100.0, 1500.0, 2e6, 3.25e9].map(short);
        assert_eq!(found, ["0", "0.25", "12.5", "100", "1.5k", "2M", "3.25G"]);
        let plot = |points| Plot {
            description: String::new(),
            x_title: "x",
            y_title: "y",
            log_x: false,
            log_y: true,
            series: vec![Series { name: "<a>".into(), colour: 3, points }],
        };
        assert_eq!(plot(vec![(1.0, 0.0), (f64::NAN, 1.0)]).render(), None);
        let svg = plot(vec![(1.0, 2.0), (2.0, 50.0)]).render().expect("a picture");
        assert!(svg.contains("&lt;a&gt;") && svg.contains("c3") && !svg.contains("NaN"));
    }
}
