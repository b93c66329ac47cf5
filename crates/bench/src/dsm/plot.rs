//! The picture of docs/figures/dsm-figures.md: a group of bars per program, one bar per transport, as multiples of `local`.

use ferroce_cli::svg::{self, LogScale, legend, line, rectangle, text};
use xtask::dsm::TRANSPORTS;

use super::Comparison;

const COLOURS: [&str; 4] = ["#5b6570", "#0067b1", "#00805c", "#c74a00"];
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 56.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 340.0;
/// The lower end of the axis. Smaller values are drawn there.
const LEAST: f64 = 0.5;

/// The picture. The axis is logarithmic and begins at half.
pub(super) fn bars(comparisons: &[Comparison]) -> String {
    let multiples = |row: &Comparison| -> Vec<Option<f64>> {
        let base = row.best_s("local");
        row.times.iter().map(|(_, times)| Some(times.as_ref()?.best_s / base?)).collect()
    };
    let all: Vec<(&str, Vec<Option<f64>>)> =
        comparisons.iter().map(|row| (row.program, multiples(row))).collect();
    let largest =
        all.iter().flat_map(|(_, row)| row.iter().flatten()).fold(2.0_f64, |most, &next| most.max(next));
    let most = 10.0_f64.powf(largest.log10().ceil());
    let scale = LogScale::new(LEAST, most, BOTTOM, TOP);
    let mut svg =
        svg::begin_file(WIDTH, HEIGHT, "Time of each program over each transport, as a multiple of local");
    grid(&mut svg, most, &scale);
    let group = (WIDTH - LEFT - 10.0) / all.len().max(1) as f64;
    for (at, (program, row)) in all.iter().enumerate() {
        let x = LEFT + group * at as f64 + group * 0.1;
        let wide = group * 0.8 / TRANSPORTS.len() as f64;
        for (bar, (multiple, transport)) in row.iter().zip(TRANSPORTS).enumerate() {
            let Some(multiple) = multiple else { continue };
            let y = scale.at(multiple.max(LEAST));
            let title = format!("{program} {transport}: {multiple:.2}");
            let size = (wide - 1.0, BOTTOM - y);
            rectangle(&mut svg, COLOURS[bar % COLOURS.len()], (x + wide * bar as f64, y), size, &title);
        }
        text(&mut svg, "middle", (x + group * 0.4, BOTTOM + 18.0), program);
    }
    legend(&mut svg, (LEFT, 21.0), TRANSPORTS.into_iter().zip(COLOURS));
    svg::end(&mut svg);
    svg
}

fn grid(svg: &mut String, most: f64, scale: &LogScale) {
    let mut multiple = 1.0;
    while multiple <= most {
        let y = scale.at(multiple);
        line(svg, "grid", (LEFT, y), (WIDTH - 10.0, y));
        text(svg, "end", (LEFT - 8.0, y + 4.0), &format!("{multiple:.0} ×"));
        multiple *= 10.0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::examples;
    use super::*;

    #[test]
    fn bars_stay_inside_and_missing_ones_are_left_out() {
        let svg = bars(&examples());
        assert_eq!(svg.matches("<rect x=").count(), 7 + TRANSPORTS.len(), "bars, and squares of the legend");
        assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("<x>") && !svg.contains("\"-"));
    }

    #[test]
    fn no_figures_give_an_empty_plot() {
        assert!(bars(&[]).ends_with("</svg>\n"));
    }
}
