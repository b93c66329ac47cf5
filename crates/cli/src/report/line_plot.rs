//! Line plots against message size, both axes logarithmic, as inline SVG. Colours come from the page's style sheet,
//! so that light and dark mode are one picture.

use crate::sizes::format_size;
use crate::svg::{self, LogScale, escape, line, round_range, text};
use std::fmt::Write;

/// One line of a plot.
pub(super) struct Series {
    /// Its name in the legend.
    pub(super) name: &'static str,
    /// Style class: colour and dashes.
    pub(super) class: &'static str,
    /// Shape of its points, so that colour is not needed to tell lines apart.
    pub(super) marker: Marker,
    /// Message size, value, and the words shown under the pointer.
    pub(super) points: Vec<(u64, f64, String)>,
}

/// Shape of a point.
#[derive(Clone, Copy)]
pub(super) enum Marker {
    /// A disc.
    Circle,
    /// A square.
    Square,
    /// Point up.
    Triangle,
    /// Point down.
    Wedge,
    /// A square on its corner.
    Diamond,
    /// A ring.
    Ring,
    /// A cross.
    Cross,
}

/// A plot.
pub(super) struct Plot {
    /// Said to those who cannot see it.
    pub(super) description: &'static str,
    /// What the vertical axis shows.
    pub(super) axis: &'static str,
    /// How its values are written.
    pub(super) label: fn(f64) -> String,
    /// Its lines.
    pub(super) series: Vec<Series>,
}

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 770.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 384.0;
const LEGEND: f64 = 796.0;
const LEGEND_LINE: f64 = 26.0;

impl Plot {
    /// The picture; none if there is nothing to show.
    pub(super) fn render(&self) -> Option<String> {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let (low, high) = round_range(points().map(|(_, value, _)| *value))?;
        let mut sizes: Vec<u64> = points().map(|(size, ..)| *size).filter(|size| *size > 0).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let (first, last) = (*sizes.first()? as f64, *sizes.last()? as f64);
        let y = LogScale::new(low, high, BOTTOM, TOP);
        let x = LogScale::new(first / 1.4, last * 1.4, LEFT, RIGHT);
        let mut svg = String::new();
        svg::begin(&mut svg, WIDTH, HEIGHT, self.description);
        self.draw_axes(&mut svg, &x, &y, &sizes);
        for series in &self.series {
            draw_series(&mut svg, series, &x, &y);
        }
        self.draw_legend(&mut svg);
        svg::end(&mut svg);
        Some(svg)
    }

    fn draw_axes(&self, svg: &mut String, x: &LogScale, y: &LogScale, sizes: &[u64]) {
        for (value, labelled) in y.ticks() {
            let at = y.at(value);
            let class = if labelled { "grid" } else { "grid minor" };
            line(svg, class, (LEFT, at), (RIGHT, at));
            if labelled {
                text(svg, "tick end", (LEFT - 8.0, at + 4.0), &(self.label)(value));
            }
        }
        for &size in sizes {
            let at = x.at(size as f64);
            line(svg, "grid minor", (at, TOP), (at, BOTTOM));
            text(svg, "tick middle", (at, BOTTOM + 20.0), &format_size(size));
        }
        line(svg, "axis", (LEFT, BOTTOM), (RIGHT, BOTTOM));
        text(svg, "axis-title", (LEFT - 66.0, TOP - 16.0), self.axis);
        text(svg, "axis-title middle", ((LEFT + RIGHT) / 2.0, BOTTOM + 44.0), "message size");
    }

    fn draw_legend(&self, svg: &mut String) {
        let shown = self.series.iter().filter(|series| !series.points.is_empty());
        for (n, series) in shown.enumerate() {
            let at = TOP + 10.0 + n as f64 * LEGEND_LINE;
            let _ = write!(svg, "<g class=\"series {}\">", series.class);
            line(svg, "line", (LEGEND, at), (LEGEND + 30.0, at));
            svg.push_str(&series.marker.draw(LEGEND + 15.0, at));
            svg.push_str("</g>");
            text(svg, "legend", (LEGEND + 38.0, at + 4.5), series.name);
        }
    }
}

fn draw_series(svg: &mut String, series: &Series, x: &LogScale, y: &LogScale) {
    let places: Vec<(f64, f64, &str)> = series
        .points
        .iter()
        .filter(|(size, value, _)| *size > 0 && value.is_finite() && *value > 0.0)
        .map(|(size, value, words)| (x.at(*size as f64), y.at(*value), words.as_str()))
        .collect();
    let path: Vec<String> = places.iter().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(svg, "<g class=\"series {}\">", series.class);
    if path.len() > 1 {
        let _ = writeln!(svg, "<polyline class=\"line\" points=\"{}\"/>", path.join(" "));
    }
    for (x, y, words) in places {
        // The invisible disc makes a point easy to hit with the pointer.
        let _ = writeln!(
            svg,
            "<g><title>{}</title><circle class=\"hit\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"10\"/>{}</g>",
            escape(words),
            series.marker.draw(x, y)
        );
    }
    svg.push_str("</g>\n");
}

impl Marker {
    fn draw(self, x: f64, y: f64) -> String {
        let polygon = |corners: &[(f64, f64)]| {
            let corners: Vec<String> =
                corners.iter().map(|(dx, dy)| format!("{:.1},{:.1}", x + dx, y + dy)).collect();
            format!("<polygon class=\"mark\" points=\"{}\"/>", corners.join(" "))
        };
        match self {
            Marker::Circle => format!("<circle class=\"mark\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>"),
            Marker::Ring => format!("<circle class=\"mark open\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>"),
            Marker::Square => polygon(&[(-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)]),
            Marker::Triangle => polygon(&[(0.0, -5.0), (4.6, 3.4), (-4.6, 3.4)]),
            Marker::Wedge => polygon(&[(0.0, 5.0), (4.6, -3.4), (-4.6, -3.4)]),
            Marker::Diamond => polygon(&[(0.0, -6.0), (5.0, 0.0), (0.0, 6.0), (-5.0, 0.0)]),
            Marker::Cross => {
                let arm = 4.0;
                format!("<path class=\"mark open\" d=\"M{:.1} {:.1}l8 8m0 -8l-8 8\"/>", x - arm, y - arm)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: Vec<(u64, f64, String)>) -> Plot {
        let series = Series { name: "a <b>", class: "send", marker: Marker::Circle, points };
        Plot { description: "test", axis: "time", label: |value| format!("{value}"), series: vec![series] }
    }

    #[test]
    fn nothing_to_show_is_no_picture() {
        assert_eq!(plot(Vec::new()).render(), None);
        assert_eq!(plot(vec![(8, f64::NAN, String::new()), (8, 0.0, String::new())]).render(), None);
    }

    #[test]
    fn points_lie_inside_the_axes() {
        let svg = plot(vec![(2, 1.0, "x & y".into()), (64, 30.0, "z".into()), (8 << 20, 4000.0, "w".into())]);
        let svg = svg.render().expect("a picture");
        assert!(svg.contains("a &lt;b&gt;") && svg.contains("x &amp; y"));
        let line = svg.lines().find(|line| line.contains("polyline")).expect("a line");
        let numbers = line.split('"').nth(3).expect("points");
        for point in numbers.split(' ') {
            let (x, y) = point.split_once(',').expect("a pair");
            let (x, y) = (x.parse::<f64>().expect("x"), y.parse::<f64>().expect("y"));
            assert!((LEFT..=RIGHT).contains(&x) && (TOP..=BOTTOM).contains(&y), "{point}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn a_single_point_has_no_line() {
        let svg = plot(vec![(8, 3.0, "one".into())]).render().expect("a picture");
        assert!(!svg.contains("polyline") && svg.contains("<title>one</title>"));
    }
}
