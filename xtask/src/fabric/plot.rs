//! The ratios as a picture: a bar for each row, on a logarithmic scale, and a stroke where its goal lies.
//!
//! Colour is not needed to read it: a bar that ends before its stroke has not reached its goal, and the number says so too.

use std::fmt::Write;

use super::verdict::Verdict;

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 560.0;
const RIGHT: f64 = 900.0;
/// Where the numbers end.
const NUMBERS: f64 = 990.0;
const TOP: f64 = 44.0;
const LINE: f64 = 30.0;
const BAR: f64 = 16.0;
/// Ends of the scale; what lies beyond is drawn at the end, with its true number.
const LEAST: f64 = 0.1;
const MOST: f64 = 10.0;
const MARKS: [f64; 7] = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];

/// The file.
pub(crate) fn picture(verdicts: &[Verdict]) -> String {
    let bottom = TOP + LINE * verdicts.len() as f64;
    let height = bottom + 34.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"13\" role=\"img\" \
         aria-label=\"How many times as good as its peer each test is, and its goal\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    let title = "how many times as good as the peer; the stroke is the goal";
    let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"20\" fill=\"#222222\">{title}</text>");
    for mark in MARKS {
        let (x, colour) = (place(mark), if mark == 1.0 { "#777777" } else { "#dddddd" });
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"{colour}\"/>"
        );
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#222222\">{mark}</text>",
            bottom + 18.0
        );
    }
    for (at, verdict) in verdicts.iter().enumerate() {
        draw(&mut svg, verdict, TOP + LINE * at as f64 + (LINE - BAR) / 2.0);
    }
    svg + "</svg>\n"
}

fn draw(svg: &mut String, verdict: &Verdict, y: f64) {
    let row = verdict.row;
    let words = escape(&format!("{} / {}", row.ours.name, row.peer.name));
    let baseline = y + BAR - 3.0;
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{baseline:.1}\" text-anchor=\"end\" fill=\"#222222\">{words}</text>",
        LEFT - 10.0
    );
    let (end, number) = match &verdict.figures {
        Ok(figures) => (place(figures.ratio), format!("{:.2}", figures.ratio)),
        Err(_) => (LEFT, "could not run".to_owned()),
    };
    let colour = match verdict.reached() {
        Some(true) => "#2f7d5b",
        Some(false) => "#c8792b",
        None => "#8a8a8a",
    };
    let _ = writeln!(
        svg,
        "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>",
        end - LEFT
    );
    if let Some(goal) = row.goal.map(place) {
        let _ = writeln!(
            svg,
            "<line x1=\"{goal:.1}\" y1=\"{:.1}\" x2=\"{goal:.1}\" y2=\"{:.1}\" stroke=\"#000000\" stroke-width=\"3\"/>",
            y - 4.0,
            y + BAR + 4.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{NUMBERS}\" y=\"{baseline:.1}\" text-anchor=\"end\" fill=\"#222222\">{number}</text>"
    );
}

/// Where a ratio lies.
fn place(ratio: f64) -> f64 {
    let share = (ratio.clamp(LEAST, MOST) / LEAST).log10() / (MOST / LEAST).log10();
    LEFT + share * (RIGHT - LEFT)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::verdict;
    use super::*;

    #[test]
    fn every_row_has_a_bar_a_number_and_its_goal() {
        let svg = picture(&verdict::example());
        let rows = verdict::example().len();
        let goals = verdict::example().iter().filter(|verdict| verdict.row.goal.is_some()).count();
        assert_eq!((svg.matches("stroke-width=\"3\"").count(), rows - goals), (goals, 2));
        assert_eq!(svg.matches("<rect x=").count(), rows);
        assert!(svg.contains(">1.10</text>") && svg.contains(">could not run</text>"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("\"-"), "{svg}");
    }

    #[test]
    fn the_scale_holds_whatever_comes() {
        assert_eq!([place(0.0), place(LEAST), place(MOST), place(1e6)], [LEFT, LEFT, RIGHT, RIGHT]);
        assert_eq!(place(1.0), (LEFT + RIGHT) / 2.0);
    }
}
