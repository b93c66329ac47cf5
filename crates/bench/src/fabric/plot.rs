//! The ratios as a picture: a bar for each row, on a logarithmic scale, and a stroke at its goal.
//!
//! The picture is readable without colours: a bar that ends before its stroke has not reached its goal.

use ferroce_cli::svg::{self, LogScale, line, rectangle, text};

use super::verdict::Verdict;

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 560.0;
const RIGHT: f64 = 900.0;
/// Right end of the numbers.
const NUMBERS: f64 = 990.0;
const TOP: f64 = 44.0;
const LINE: f64 = 30.0;
const BAR: f64 = 16.0;
/// Ends of the scale. A ratio beyond them is drawn at the end, with its true number.
const LEAST: f64 = 0.1;
const MOST: f64 = 10.0;
const MARKS: [f64; 7] = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0];

/// The picture of docs/figures/fabric-figures.md.
pub(crate) fn picture(verdicts: &[Verdict]) -> String {
    let bottom = TOP + LINE * verdicts.len() as f64;
    let mut svg = svg::begin_file(
        WIDTH,
        bottom + 34.0,
        "How many times as good as its peer each test is, and its goal",
    );
    text(&mut svg, "", (LEFT, 20.0), "how many times as good as the peer; the stroke is the goal");
    for mark in MARKS {
        let x = x_of(mark);
        line(&mut svg, if mark == 1.0 { "axis" } else { "grid" }, (x, TOP), (x, bottom));
        text(&mut svg, "middle", (x, bottom + 18.0), &mark.to_string());
    }
    for (at, verdict) in verdicts.iter().enumerate() {
        draw(&mut svg, verdict, TOP + LINE * at as f64 + (LINE - BAR) / 2.0);
    }
    svg::end(&mut svg);
    svg
}

fn draw(svg: &mut String, verdict: &Verdict, y: f64) {
    let row = verdict.row;
    let name = format!("{} / {}", row.ours.name, row.peer.name);
    let baseline = y + BAR - 3.0;
    text(svg, "end", (LEFT - 10.0, baseline), &name);
    let (end, number) = match &verdict.figures {
        Ok(figures) => (x_of(figures.ratio), format!("{:.2}", figures.ratio)),
        Err(_) => (LEFT, "could not run".to_owned()),
    };
    let colour = match verdict.reached() {
        Some(true) => "#2f7d5b",
        Some(false) => "#c8792b",
        None => "#8a8a8a",
    };
    rectangle(svg, colour, (LEFT, y), (end - LEFT, BAR), &name);
    if let Some(goal) = row.goal.map(x_of) {
        line(svg, "goal", (goal, y - 4.0), (goal, y + BAR + 4.0));
    }
    text(svg, "end", (NUMBERS, baseline), &number);
}

/// The horizontal position of a ratio.
fn x_of(ratio: f64) -> f64 {
    LogScale::new(LEAST, MOST, LEFT, RIGHT).at(ratio.clamp(LEAST, MOST))
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
        assert_eq!((svg.matches("class=\"goal\"").count(), rows - goals), (goals, 5));
        assert_eq!(svg.matches("<rect x=").count(), rows);
        assert!(svg.contains(">1.10</text>") && svg.contains(">could not run</text>"), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("\"-"), "{svg}");
    }

    #[test]
    fn every_ratio_is_inside_the_scale() {
        assert_eq!([x_of(0.0), x_of(LEAST), x_of(MOST), x_of(1e6)], [LEFT, LEFT, RIGHT, RIGHT]);
        assert_eq!(x_of(1.0), (LEFT + RIGHT) / 2.0);
    }
}
