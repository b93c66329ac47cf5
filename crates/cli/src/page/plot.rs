//! Line plots with a linear or logarithmic axis each, as inline SVG with a table behind. Colours come from the style sheet, so that light and
//! dark mode are one picture.

use super::{begin_figure, details, end_figure, escape, table};
use crate::sizes::tick;
use crate::svg::{LogScale, line, round_range, text};
use std::collections::BTreeMap;
use std::fmt::Write;

/// One line of a plot.
pub(crate) struct Series {
    /// Its name in the legend.
    pub(crate) name: String,
    /// Style class: colour and dashes.
    pub(crate) class: String,
    /// Shape of its points, which identifies the line without its colour; none for lines of many points.
    pub(crate) marker: Option<Marker>,
    /// Horizontal and vertical value, and the words shown under the pointer.
    pub(crate) points: Vec<(f64, f64, String)>,
}

impl Series {
    /// A line of many points, in the `n`-th colour.
    pub(crate) fn line(
        name: impl Into<String>,
        n: usize,
        points: impl Iterator<Item = (f64, f64)>,
    ) -> Series {
        let points = points.map(|(x, y)| (x, y, String::new())).collect();
        Series { name: name.into(), class: format!("c{}", n % COLOURS), marker: None, points }
    }
}

/// Shape of a point.
#[derive(Clone, Copy)]
pub(crate) enum Marker {
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

/// An axis.
pub(crate) struct Axis {
    /// What it shows.
    pub(crate) title: &'static str,
    /// Logarithmic; else it begins at zero.
    pub(crate) is_log: bool,
    /// How its values are written.
    pub(crate) label: fn(f64) -> String,
    /// The values of the points are its only ticks.
    pub(crate) ticks_are_points: bool,
}

impl Axis {
    /// An axis of plain numbers.
    pub(crate) fn new(title: &'static str, is_log: bool) -> Axis {
        Axis { title, is_log, label: tick, ticks_are_points: false }
    }
}

/// A plot.
pub(crate) struct Plot {
    /// The text for screen readers.
    pub(crate) description: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) series: Vec<Series>,
}

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 770.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 306.0;
const LEGEND: f64 = RIGHT + 20.0;
const LEGEND_LINE: f64 = 22.0;
/// Most names in the legend.
const LEGEND_LINES: usize = 12;
/// Colours of the style sheet.
const COLOURS: usize = 10;
/// Cells of the table behind a plot.
const MAX_CELLS: usize = 3000;

/// An axis in the picture.
enum Scale {
    Log(LogScale),
    /// From zero up to this value.
    Linear(f64, f64, f64),
}

impl Scale {
    fn new(axis: &Axis, values: &[f64], from: f64, to: f64) -> Option<Scale> {
        if !axis.is_log {
            let high = values.iter().copied().reduce(f64::max)?;
            let (_, high) = round_range([high.max(1e-9)].into_iter())?;
            return Some(Scale::Linear(high, from, to));
        }
        let (low, high) = match (axis.ticks_are_points, values) {
            // The points do not touch the ends.
            (true, [first, .., last]) => (first / 1.4, last * 1.4),
            _ => round_range(values.iter().copied())?,
        };
        Some(Scale::Log(LogScale::new(low, high, from, to)))
    }

    fn at(&self, value: f64) -> f64 {
        match self {
            Scale::Log(scale) => scale.at(value),
            Scale::Linear(high, from, to) => from + value / high * (to - from),
        }
    }

    /// Values with a line; true for those with a label.
    fn ticks(&self) -> Vec<(f64, bool)> {
        match self {
            Scale::Log(scale) => scale.ticks(),
            Scale::Linear(high, ..) => (0..=4).map(|n| (high * f64::from(n) / 4.0, true)).collect(),
        }
    }
}

impl Plot {
    /// Adds the plot and the table behind it to a page; a sentence if there is nothing to show.
    pub(crate) fn draw(&self, page: &mut String, caption: &str) {
        let values = |of: fn((f64, f64)) -> f64| {
            let mut values: Vec<f64> = self
                .series
                .iter()
                .flat_map(|series| self.points(series))
                .map(|(x, y, _)| of((x, y)))
                .collect();
            values.sort_by(f64::total_cmp);
            values.dedup();
            values
        };
        let (positions, heights) = (values(|point| point.0), values(|point| point.1));
        let scales =
            (Scale::new(&self.x, &positions, LEFT, RIGHT), Scale::new(&self.y, &heights, BOTTOM, TOP));
        let (Some(x), Some(y)) = scales else {
            return page.push_str("<p class=\"failed\">Nothing was measured.</p>\n");
        };
        begin_figure(page, "", (WIDTH, HEIGHT), &self.description);
        self.draw_axes(page, (&x, &y), &positions);
        for series in &self.series {
            self.draw_series(page, series, (&x, &y));
        }
        self.draw_legend(page);
        end_figure(page, caption);
        self.tabulate(page, positions.len());
    }

    /// The points that the axes can show.
    fn points<'a>(&self, series: &'a Series) -> impl Iterator<Item = (f64, f64, &'a str)> {
        let (log_x, log_y) = (self.x.is_log, self.y.is_log);
        let fits = |value: f64, log: bool| value.is_finite() && (!log || value > 0.0);
        series
            .points
            .iter()
            .filter(move |(x, y, _)| fits(*x, log_x) && fits(*y, log_y))
            .map(|(x, y, words)| (*x, *y, words.as_str()))
    }

    fn draw_axes(&self, svg: &mut String, (x, y): (&Scale, &Scale), positions: &[f64]) {
        for (value, labelled) in y.ticks() {
            let at = y.at(value);
            line(svg, if labelled { "grid" } else { "grid minor" }, (LEFT, at), (RIGHT, at));
            if labelled {
                text(svg, "tick end", (LEFT - 8.0, at + 4.0), &(self.y.label)(value));
            }
        }
        let ticks = match self.x.ticks_are_points {
            true => positions.to_vec(),
            false => {
                x.ticks().into_iter().filter(|(_, labelled)| *labelled).map(|(value, _)| value).collect()
            }
        };
        for value in ticks {
            line(svg, "grid minor", (x.at(value), TOP), (x.at(value), BOTTOM));
            text(svg, "tick middle", (x.at(value), BOTTOM + 20.0), &(self.x.label)(value));
        }
        line(svg, "axis", (LEFT, BOTTOM), (RIGHT, BOTTOM));
        text(svg, "axis-title", (4.0, TOP - 16.0), self.y.title);
        text(svg, "axis-title middle", ((LEFT + RIGHT) / 2.0, BOTTOM + 44.0), self.x.title);
    }

    fn draw_series(&self, svg: &mut String, series: &Series, (x, y): (&Scale, &Scale)) {
        let positions: Vec<(f64, f64, &str)> =
            self.points(series).map(|(at, value, words)| (x.at(at), y.at(value), words)).collect();
        let _ = writeln!(svg, "<g class=\"series {}\"><title>{}</title>", series.class, escape(&series.name));
        if positions.len() > 1 {
            let path: Vec<String> = positions.iter().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
            let _ = writeln!(svg, "<polyline class=\"line\" points=\"{}\"/>", path.join(" "));
        }
        for (x, y, words) in positions {
            let Some(marker) = series.marker else { break };
            // The invisible disc makes a point easy to hit with the pointer.
            let _ = writeln!(
                svg,
                "<g><title>{}</title><circle class=\"hit\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"10\"/>{}</g>",
                escape(words),
                marker.draw(x, y)
            );
        }
        svg.push_str("</g>\n");
    }

    fn draw_legend(&self, svg: &mut String) {
        let shown: Vec<&Series> = self.series.iter().filter(|series| !series.points.is_empty()).collect();
        let left_out = shown.len().saturating_sub(LEGEND_LINES);
        for (n, series) in shown.iter().take(LEGEND_LINES).enumerate() {
            let at = TOP + 8.0 + n as f64 * LEGEND_LINE;
            let _ = write!(svg, "<g class=\"series {}\">", series.class);
            line(svg, "line", (LEGEND, at), (LEGEND + 30.0, at));
            svg.push_str(&series.marker.map_or(String::new(), |marker| marker.draw(LEGEND + 15.0, at)));
            svg.push_str("</g>");
            text(svg, "legend", (LEGEND + 38.0, at + 4.5), &series.name);
        }
        if left_out > 0 {
            let at = TOP + 12.0 + LEGEND_LINES as f64 * LEGEND_LINE;
            text(svg, "legend", (LEGEND + 38.0, at), &format!("and {left_out} more"));
        }
    }

    /// Adds a table with a row for each value of the horizontal axis, or for every n-th if there are many.
    fn tabulate(&self, page: &mut String, positions: usize) {
        let every = (positions * self.series.len()).div_ceil(MAX_CELLS).max(1);
        let mut rows: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for (column, series) in self.series.iter().enumerate() {
            for (x, y, _) in self.points(series) {
                // The bits of positive numbers have the order of the numbers.
                let row = rows.entry((x + 0.0).to_bits()).or_insert_with(|| {
                    std::iter::once((self.x.label)(x))
                        .chain(self.series.iter().map(|_| String::new()))
                        .collect()
                });
                row[column + 1] = (self.y.label)(y);
            }
        }
        let summary = match every {
            1 => "The figures as a table".to_owned(),
            _ => format!("The figures as a table: one of {every} rows"),
        };
        let headings =
            std::iter::once(self.x.title).chain(self.series.iter().map(|series| series.name.as_str()));
        details(page, &summary, |page| {
            table(page, &self.description, headings, rows.into_values().step_by(every))
        });
    }
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
                format!("<path class=\"mark open\" d=\"M{:.1} {:.1}l8 8m0 -8l-8 8\"/>", x - 4.0, y - 4.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draw(points: &[(f64, f64, &str)]) -> String {
        let points = points.iter().map(|(x, y, words)| (*x, *y, (*words).to_owned())).collect();
        let series =
            vec![Series { name: "a <b>".into(), class: "send".into(), marker: Some(Marker::Circle), points }];
        let plot = Plot {
            description: "test".into(),
            x: Axis::new("size", true),
            y: Axis::new("time", true),
            series,
        };
        let mut page = String::new();
        plot.draw(&mut page, "caption");
        page
    }

    #[test]
    fn nothing_to_show_is_no_picture() {
        for points in [&[][..], &[(8.0, f64::NAN, ""), (8.0, 0.0, "")]] {
            let page = draw(points);
            assert!(page.contains("Nothing was measured") && !page.contains("<svg"), "{page}");
        }
    }

    #[test]
    fn points_lie_inside_the_axes_and_in_the_table() {
        let page = draw(&[(2.0, 1.0, "x & y"), (64.0, 30.0, "z"), (8e6, 4000.0, "w")]);
        assert!(page.contains("a &lt;b&gt;") && page.contains("x &amp; y"));
        let line = page.lines().find(|line| line.contains("polyline")).expect("a line");
        let numbers = line.split('"').nth(3).expect("points");
        for point in numbers.split(' ') {
            let (x, y) = point.split_once(',').expect("a pair");
            let (x, y) = (x.parse::<f64>().expect("x"), y.parse::<f64>().expect("y"));
            assert!((LEFT..=RIGHT).contains(&x) && (TOP..=BOTTOM).contains(&y), "{point}");
        }
        assert!(
            page.contains("<tr><td>2</td><td>1</td></tr>")
                && page.contains("<tr><td>8M</td><td>4k</td></tr>"),
            "{page}"
        );
        assert!(!page.contains("NaN") && !page.contains("inf"));
    }

    #[test]
    fn a_single_point_has_no_line() {
        let page = draw(&[(8.0, 3.0, "one")]);
        assert!(!page.contains("polyline") && page.contains("<title>one</title>"));
    }

    #[test]
    fn a_long_table_is_thinned_and_reports_it() {
        let series = (0..3)
            .map(|n| Series::line(format!("s{n}"), n, (0..4000).map(|x| (f64::from(x), 1.0))))
            .collect();
        let plot =
            Plot { description: String::new(), x: Axis::new("x", false), y: Axis::new("y", false), series };
        let mut page = String::new();
        plot.draw(&mut page, "");
        assert!(
            page.contains("one of 4 rows") && page.matches("<tr>").count() == 1001,
            "{}",
            page.matches("<tr>").count()
        );
    }
}
