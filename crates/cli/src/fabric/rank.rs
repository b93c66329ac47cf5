//! `ferroce fabric rank`: which congestion control is best over several scenarios.
//!
//! Each workload of each scenario is one column. A control's cost in a column is its 99th percentile of slowdown, divided by
//! the smallest of the column; its rank is the geometric mean of the costs. So no scenario counts more than another.
//! With several seeds, the figure of a column is the geometric mean over them.

use super::read_scenario;
use crate::failure::Failure;
use crate::table::{Align, Table};
use crate::{print_json, print_text};
use clap::Args;
use ferroce_fabric::report::{Report, report};
use ferroce_fabric::rng::mix;
use ferroce_fabric::scenario::{Mistake, Scenario};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Args)]
pub(crate) struct RankArgs {
    /// The scenarios. Of the runs of a scenario with the same control, the first one counts.
    #[arg(required = true)]
    scenarios: Vec<PathBuf>,
    /// Use this seed instead of the scenarios'.
    #[arg(long)]
    seed: Option<u64>,
    /// Simulate everything with this many seeds: 1, 2, 3, …
    #[arg(long, conflicts_with = "seed", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: Option<u64>,
    /// Simulate this many runs at a time; the results do not depend on it. By default one per core.
    #[arg(long)]
    jobs: Option<NonZero<usize>>,
    /// Print the columns as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  ferroce fabric rank scenarios/incast.toml scenarios/hpcc-hadoop-50.toml  which control is best over both
  ferroce fabric rank --seeds 3 scenarios/*.toml                           over all, each with three seeds
  ferroce fabric rank --json scenarios/*.toml                              what each reached in each, for programs";

/// What a control reached in a column, over all seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Reached {
    mean: f64,
    p99: f64,
    is_finished: bool,
    /// The hash of the run with each seed.
    hashes: Vec<String>,
}

/// A workload of a scenario, and what each control reached there.
#[derive(Debug, Serialize)]
struct Column {
    name: String,
    by_control: Vec<(String, Reached)>,
}

impl Column {
    fn of(&self, control: &str) -> Option<&Reached> {
        self.by_control.iter().find(|(name, _)| name == control).map(|(_, reached)| reached)
    }

    /// The least of those that finished all flows; of all, if none did.
    fn least(&self, of: fn(&Reached) -> f64) -> f64 {
        let any_finished = self.by_control.iter().any(|(_, reached)| reached.is_finished);
        let counted = self.by_control.iter().filter(|(_, reached)| reached.is_finished || !any_finished);
        counted.map(|(_, reached)| of(reached)).fold(f64::INFINITY, f64::min)
    }

    /// Whether a control was run and finished all flows.
    fn is_finished(&self, control: &str) -> bool {
        self.of(control).is_some_and(|reached| reached.is_finished)
    }
}

/// One simulation: a run of a scenario with a seed.
struct Task {
    scenario: usize,
    run: usize,
    seed: Option<u64>,
}

pub(super) fn run(args: &RankArgs) -> Result<(), Failure> {
    let seeds: Vec<Option<u64>> = args.seeds.map_or(vec![args.seed], |count| (1..=count).map(Some).collect());
    let mut scenarios = Vec::new();
    let mut tasks = Vec::new();
    for path in &args.scenarios {
        let (scenario, shown) = read_scenario(path, Scenario::parse_live)?;
        let mistake = |error| Failure::usage(format!("{shown}: {error}"));
        if !scenario.has_workload() {
            eprintln!("{shown}: left out, because it has no [[workload]] to simulate");
        }
        let mut controls = Vec::new();
        for run in (0..scenario.runs()).filter(|_| scenario.has_workload()) {
            let control = scenario.run(run, args.seed, false).map_err(mistake)?.control;
            if !controls.contains(&control) {
                controls.push(control);
                tasks.extend(seeds.iter().map(|&seed| Task { scenario: scenarios.len(), run, seed }));
            }
        }
        scenarios.push(scenario);
    }
    if tasks.is_empty() {
        return Err(Failure::usage("no scenario has a [[workload]] to simulate; add one"));
    }
    let jobs = args.jobs.or_else(|| std::thread::available_parallelism().ok()).map_or(1, NonZero::get);
    let reports = simulate_all(&scenarios, &tasks, jobs)
        .map_err(|(at, error)| Failure::usage(format!("{}: {error}", args.scenarios[at].display())))?;
    let mut columns = Vec::new();
    for (at, path) in args.scenarios.iter().enumerate() {
        let of_scenario = tasks.iter().zip(&reports).filter(|(task, _)| task.scenario == at);
        let reports: Vec<&Report> = of_scenario.map(|(_, report)| report).collect();
        let by_control: Vec<&[&Report]> = reports.chunks(seeds.len()).collect();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        columns.extend(columns_of(&name, &by_control));
    }
    if args.json { print_json(&columns) } else { print_text(&render(columns)) }
}

/// Simulates all tasks, `jobs` at a time. The reports have the order of the tasks; an error names the scenario.
fn simulate_all(
    scenarios: &[Scenario],
    tasks: &[Task],
    jobs: usize,
) -> Result<Vec<Report>, (usize, Mistake)> {
    let bar = ProgressBar::with_draw_target(Some(tasks.len() as u64), ProgressDrawTarget::stderr_with_hz(5));
    let style = ProgressStyle::with_template("{pos} of {len} runs {bar:32} {elapsed}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Result<Report, Mistake>)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(tasks.len()) {
            scope.spawn(|| {
                while let Some((at, task)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    tasks.get(at).map(|task| (at, task))
                } {
                    let simulated =
                        scenarios[task.scenario].run(task.run, task.seed, false).map(|mut run| {
                            run.world.run_until(run.limit_ps);
                            report(&run.name, &run.control, &run.world)
                        });
                    done.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((at, simulated));
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut done = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(at, report)| report.map_err(|error| (tasks[at].scenario, error))).collect()
}

/// The columns of a scenario: one per workload, from the reports of each control with all seeds.
fn columns_of(name: &str, by_control: &[&[&Report]]) -> Vec<Column> {
    let groups = by_control.iter().flat_map(|reports| reports.iter()).flat_map(|report| &report.groups);
    let workloads = groups.map(|group| group.workload).max();
    let column = |workload: u8| {
        let by_control = by_control.iter().filter_map(|reports| {
            let groups =
                reports.iter().map(|report| report.groups.iter().find(|group| group.workload == workload));
            let groups = groups.collect::<Option<Vec<_>>>()?;
            let reached = Reached {
                mean: geometric_mean(groups.iter().map(|group| group.mean_slowdown)),
                p99: geometric_mean(groups.iter().map(|group| group.slowdown.p99)),
                is_finished: reports.iter().all(|report| report.finished as u64 == report.started),
                hashes: reports.iter().map(|report| report.hash.clone()).collect(),
            };
            Some((reports.first()?.control.clone(), reached))
        });
        Column { name: format!("{name}, workload {}", workload + 1), by_control: by_control.collect() }
    };
    (0..=workloads.unwrap_or(0)).map(column).filter(|column| !column.by_control.is_empty()).collect()
}

fn geometric_mean(values: impl Iterator<Item = f64>) -> f64 {
    let logarithms: Vec<f64> = values.map(f64::ln).collect();
    (logarithms.iter().sum::<f64>() / logarithms.len().max(1) as f64).exp()
}

/// One hash over all runs of a control, in the order of the columns and seeds.
fn hash_of(control: &str, columns: &[Column]) -> u64 {
    let hashes = columns.iter().filter_map(|column| column.of(control)).flat_map(|reached| &reached.hashes);
    hashes.fold(0, |all, hash| mix(all ^ u64::from_str_radix(hash, 16).unwrap_or_default()))
}

/// The geometric mean of a control's costs over the columns that have it.
fn cost(control: &str, columns: &[Column], of: fn(&Reached) -> f64) -> f64 {
    geometric_mean(columns.iter().filter_map(|column| Some(of(column.of(control)?) / column.least(of))))
}

/// Splits off the columns that compare something else than controls, such as PFC or loss recovery: fewer than half of the controls
/// of the fullest column ran in them.
fn split(columns: Vec<Column>) -> (Vec<Column>, Vec<Column>) {
    let most = columns.iter().map(|column| column.by_control.len()).max().unwrap_or(0);
    columns.into_iter().partition(|column| 2 * column.by_control.len() >= most)
}

fn render(columns: Vec<Column>) -> String {
    let (columns, left_out) = split(columns);
    let columns = columns.as_slice();
    let mut controls: Vec<&String> = Vec::new();
    for (control, _) in columns.iter().flat_map(|column| &column.by_control) {
        if !controls.contains(&control) {
            controls.push(control);
        }
    }
    // The figures of unfinished columns are too small to be compared.
    let missing = |control: &str| columns.iter().filter(|column| !column.is_finished(control)).count();
    controls.sort_by(|a, b| {
        let key = |control: &str| (missing(control), cost(control, columns, |reached| reached.p99));
        key(a).partial_cmp(&key(b)).unwrap_or(std::cmp::Ordering::Equal)
    });
    let heads: Vec<String> = (1..=columns.len()).map(|number| format!("p99\n{number}")).collect();
    let mut shape = vec![("control", Align::Left), ("p99\ncost", Align::Right), ("mean\ncost", Align::Right)];
    shape.extend(heads.iter().map(|head| (head.as_str(), Align::Right)));
    shape.push(("hash", Align::Left));
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
        cells.push(format!("{:016x}", hash_of(control, columns)));
        table.line(cells);
    }
    let mut text = table.render();
    for (number, column) in (1..).zip(columns) {
        text += &format!("\n{number}: {}", column.name);
    }
    if !left_out.is_empty() {
        let names: Vec<&str> = left_out.iter().map(|column| column.name.as_str()).collect();
        text += &format!("\nleft out, because few controls ran: {}", names.join("; "));
    }
    text += "\ncost: slowdown divided by the least of the column, geometric mean over the columns that have the control";
    text += "\n*: flows were left unfinished, so the figure is too small; –: the scenario has no run with the control. Controls with either are last";
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, p99: &[(&str, f64)]) -> Column {
        let reached = |p99| Reached {
            mean: 1.0,
            p99,
            is_finished: p99 < 100.0,
            hashes: vec![format!("{:016x}", f64::to_bits(p99))],
        };
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
            column("pfc", &[("c", 1.0)]),
        ];
        let a = cost("a", &columns[..2], |reached| reached.p99);
        assert!((a - 8f64.sqrt()).abs() < 1e-12, "{a}");
        let text = render(columns.into());
        let order: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
        let at = |name| order.iter().position(|first| *first == name).expect("a row");
        assert!(at("b") < at("a") && at("a") < at("c") && at("c") < at("d"), "{text}");
        assert!(text.contains("200.00*") && text.contains('–'), "{text}");
        assert!(
            text.contains("left out, because few controls ran: pfc") && !text.contains("3: pfc"),
            "{text}"
        );
    }

    #[test]
    fn seeds_are_averaged_and_jobs_change_nothing() {
        let text = "name = \"x\"\nduration = \"200us\"\nlimit = \"20ms\"\n[topology]\nkind = \"star\"\nhosts = 4\nrate = \"10Gb/s\"\n\
                    delay = \"1us\"\n[[workload]]\nkind = \"poisson\"\ncdf = \"fixed:20kB\"\nload = 0.5\n\
                    [[variant]]\ncontrol = \"fixed\"\n[[variant]]\ncontrol = \"swift\"\n";
        let scenarios = [Scenario::parse(text, std::path::Path::new(".")).expect("good")];
        let task = |at: usize| Task { scenario: 0, run: at / 2, seed: Some(at as u64 % 2) };
        let tasks: Vec<Task> = (0..4).map(task).collect();
        let columns = |jobs| {
            let reports = simulate_all(&scenarios, &tasks, jobs).expect("good");
            let reports: Vec<&Report> = reports.iter().collect();
            columns_of("x", &reports.chunks(2).collect::<Vec<_>>())
        };
        let (one, four) = (columns(1), columns(4));
        assert_eq!(one.len(), 1);
        assert_eq!(one[0].by_control, four[0].by_control);
        let [(name, fixed), (_, swift)] = &one[0].by_control[..] else { panic!("two controls: {one:?}") };
        assert!(name == "fixed" && fixed.hashes.len() == 2 && fixed.hashes[0] != fixed.hashes[1], "{one:?}");
        assert_ne!(hash_of("fixed", &one), hash_of("swift", &one), "{swift:?}");
        assert!((geometric_mean([2.0, 8.0].into_iter()) - 4.0).abs() < 1e-12);
    }
}
