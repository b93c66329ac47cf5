//! The picture of docs/figures/dsm-figures.md: a group of bars per program, one bar per transport, as multiples of `local`.

use std::fmt::Write;

use super::figures::Comparison;
use super::matrix::TRANSPORTS;

const COLOURS: [&str; 4] = ["#5b6570", "#0067b1", "#00805c", "#c74a00"];
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 56.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 340.0;

/// Where a multiple stands; the axis is logarithmic and begins at half.
fn height_of(multiple: f64, most: f64) -> f64 {
    let share = (multiple / 0.5).log10() / (most / 0.5).log10();
    BOTTOM - share.clamp(0.0, 1.0) * (BOTTOM - TOP)
}

/// The picture. White below it, because pages of documentation may be dark.
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
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    grid(&mut svg, most);
    let group = (WIDTH - LEFT - 10.0) / all.len().max(1) as f64;
    for (at, (program, row)) in all.iter().enumerate() {
        let x = LEFT + group * at as f64 + group * 0.1;
        let wide = group * 0.8 / TRANSPORTS.len() as f64;
        for ((bar, multiple), transport) in row.iter().enumerate().zip(TRANSPORTS) {
            let Some(multiple) = multiple else { continue };
            let y = height_of(*multiple, most);
            let _ = writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"><title>{} {transport}: \
                 {multiple:.2}</title></rect>",
                x + wide * bar as f64,
                wide - 1.0,
                BOTTOM - y,
                COLOURS[bar % COLOURS.len()],
                plain(program)
            );
        }
        label(&mut svg, (x + group * 0.4, BOTTOM + 18.0), "middle", program);
    }
    for (at, (transport, colour)) in TRANSPORTS.iter().zip(COLOURS).enumerate() {
        let x = LEFT + 110.0 * at as f64;
        let _ = writeln!(svg, "<rect x=\"{x:.1}\" y=\"10\" width=\"12\" height=\"12\" fill=\"{colour}\"/>");
        label(&mut svg, (x + 18.0, 21.0), "start", transport);
    }
    svg + "</svg>\n"
}

fn grid(svg: &mut String, most: f64) {
    let mut line = 1.0;
    while line <= most {
        let y = height_of(line, most);
        let _ = writeln!(svg, "<path d=\"M{LEFT} {y:.1}H{:.0}\" stroke=\"#d5dae0\"/>", WIDTH - 10.0);
        label(svg, (LEFT - 8.0, y + 4.0), "end", &format!("{line:.0} ×"));
        line *= 10.0;
    }
}

fn label(svg: &mut String, at: (f64, f64), anchor: &str, words: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" fill=\"#1b1f24\">{}</text>",
        at.0,
        at.1,
        plain(words)
    );
}

/// Names of programs are letters; anything else would only be a mistake of ours.
fn plain(words: &str) -> String {
    words.chars().filter(|c| c.is_alphanumeric() || " ×-".contains(*c)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::examples;
    use super::*;

    #[test]
    fn bars_stay_inside_and_missing_ones_are_left_out() {
        let svg = bars(&examples());
        assert_eq!(svg.matches("<title>").count(), 7);
        assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("<x>"));
        assert!((TOP..=BOTTOM).contains(&height_of(100.0, 100.0)));
        assert!((TOP..=BOTTOM).contains(&height_of(0.01, 100.0)));
    }

    #[test]
    fn nothing_is_an_empty_picture() {
        assert!(bars(&[]).ends_with("</svg>\n"));
    }
}
