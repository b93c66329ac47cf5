//! `ferroce fabric rank`: which congestion control is best over several scenarios.
//!
//! Each workload of each scenario is one column. A control's cost in a column is its 99th percentile of slowdown, divided by
//! the smallest of the column; its rank is the geometric mean of the costs. So no scenario counts more than another.

use super::simulate_run;
use crate::failure::Failure;
use crate::print_text;
use crate::table::{Align, Table};
use clap::Args;
use ferroce_fabric::report::{GroupReport, Report};
use ferroce_fabric::scenario::Scenario;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub(crate) struct RankArgs {
    /// The scenarios. Of the runs of a scenario with the same control, the first one counts.
    #[arg(required = true)]
    scenarios: Vec<PathBuf>,
    /// Use this seed instead of the scenarios'.
    #[arg(long)]
    seed: Option<u64>,
}

/// What a control reached in a column.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Reached {
    mean: f64,
    p99: f64,
    is_finished: bool,
}

/// A workload of a scenario, and what each control reached there.
#[derive(Debug)]
struct Column {
    name: String,
    by_control: Vec<(String, Reached)>,
}

impl Column {
    fn of(&self, control: &str) -> Option<Reached> {
        self.by_control.iter().find(|(name, _)| name == control).map(|(_, reached)| *reached)
    }

    fn least(&self, of: fn(&Reached) -> f64) -> f64 {
        self.by_control.iter().map(|(_, reached)| of(reached)).fold(f64::INFINITY, f64::min)
    }
}

pub(super) fn run(args: &RankArgs) -> Result<(), Failure> {
    let mut columns = Vec::new();
    for path in &args.scenarios {
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::io(format!("cannot read the scenario {shown}"), error))?;
        let mistake = |error| Failure::usage(format!("{shown}: {error}"));
        let scenario = Scenario::parse(&text, path.parent().unwrap_or(Path::new("."))).map_err(mistake)?;
        let mut reports: Vec<Report> = Vec::new();
        for at in 0..scenario.runs() {
            let run = scenario.run(at, args.seed, false).map_err(mistake)?;
            if !reports.iter().any(|report| report.control == run.control) {
                reports.push(simulate_run(run, None::<&mut Vec<u8>>, false)?.report);
            }
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        columns.extend(columns_of(&name, &reports));
    }
    print_text(&render(&columns))
}

fn columns_of(name: &str, reports: &[Report]) -> Vec<Column> {
    let workloads = reports.iter().flat_map(|report| &report.groups).map(|group| group.workload).max();
    let reached = |report: &Report, group: &GroupReport| Reached {
        mean: group.mean_slowdown,
        p99: group.slowdown.p99,
        is_finished: report.finished as u64 == report.started,
    };
    let column = |workload: u8| {
        let by_control = reports.iter().filter_map(|report| {
            let group = report.groups.iter().find(|group| group.workload == workload)?;
            Some((report.control.clone(), reached(report, group)))
        });
        Column { name: format!("{name}, workload {}", workload + 1), by_control: by_control.collect() }
    };
    (0..=workloads.unwrap_or(0)).map(column).filter(|column| !column.by_control.is_empty()).collect()
}

/// The geometric mean of a control's costs over the columns that have it.
fn cost(control: &str, columns: &[Column], of: fn(&Reached) -> f64) -> f64 {
    let costs: Vec<f64> = columns
        .iter()
        .filter_map(|column| Some((of(&column.of(control)?) / column.least(of)).ln()))
        .collect();
    (costs.iter().sum::<f64>() / costs.len().max(1) as f64).exp()
}

fn render(columns: &[Column]) -> String {
    let mut controls: Vec<&String> = Vec::new();
    for (control, _) in columns.iter().flat_map(|column| &column.by_control) {
        if !controls.contains(&control) {
            controls.push(control);
        }
    }
    let missing = |control: &str| columns.iter().filter(|column| column.of(control).is_none()).count();
    controls.sort_by(|a, b| {
        let key = |control: &str| (missing(control), cost(control, columns, |reached| reached.p99));
        key(a).partial_cmp(&key(b)).unwrap_or(std::cmp::Ordering::Equal)
    });
    let heads: Vec<String> = (1..=columns.len()).map(|number| format!("p99\n{number}")).collect();
    let mut shape = vec![("control", Align::Left), ("p99\ncost", Align::Right), ("mean\ncost", Align::Right)];
    shape.extend(heads.iter().map(|head| (head.as_str(), Align::Right)));
    let mut table = Table::new(&shape);
    for control in controls {
        let mut cells = vec![
            control.clone(),
            format!("{:.2}", cost(control, columns, |reached| reached.p99)),
            format!("{:.2}", cost(control, columns, |reached| reached.mean)),
        ];
        cells.extend(columns.iter().map(|column| match column.of(control) {
            None => String::from("–"),
            Some(reached) => format!("{:.2}{}", reached.p99, if reached.is_finished { "" } else { "*" }),
        }));
        table.line(cells);
    }
    let mut text = table.render();
    for (number, column) in (1..).zip(columns) {
        text += &format!("\n{number}: {}", column.name);
    }
    text += "\ncost: slowdown divided by the least of the column, geometric mean over the columns that have the control";
    text += "\n*: flows were left unfinished, so the figure is too small; –: the scenario has no run with the control";
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, p99: &[(&str, f64)]) -> Column {
        let reached = |p99| Reached { mean: 1.0, p99, is_finished: p99 < 100.0 };
        Column {
            name: name.into(),
            by_control: p99.iter().map(|(name, p99)| ((*name).into(), reached(*p99))).collect(),
        }
    }

    #[test]
    fn the_least_product_of_costs_is_first_and_what_was_not_run_everywhere_is_last() {
        let columns = [
            column("x", &[("a", 2.0), ("b", 4.0), ("c", 2.0)]),
            column("y", &[("a", 32.0), ("b", 4.0), ("d", 200.0)]),
        ];
        let found = cost("a", &columns, |reached| reached.p99);
        assert!((found - 8f64.sqrt()).abs() < 1e-9, "{found}");
        let text = render(&columns);
        let order: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
        let at = |name| order.iter().position(|first| *first == name).expect("a row");
        assert!(at("b") < at("a") && at("a") < at("c") && at("c") < at("d"), "{text}");
        assert!(text.contains("200.00*") && text.contains('–'), "{text}");
    }
}
