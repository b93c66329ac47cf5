//! The page of a simulation: tables and figures, light and dark, in one file.

use super::replay;
use super::{COLUMNS, Outcome, cells};
use crate::page::{self, Axis, Plot, Series, escape};
use crate::sizes::short;
use ferroce_fabric::report::{GroupReport, Quantiles, jain};
use ferroce_fabric::scenario::Scenario;
use std::fmt::Write;

const OWN_STYLE: &str = include_str!("fabric.css");
/// Runs whose rates are drawn one by one.
const RATE_PLOTS: usize = 8;

/// The whole page; `front` comes before the figures.
pub(super) fn html(scenario: &Scenario, outcomes: &[Outcome], front: &str) -> String {
    let mut page = page::begin(scenario.name(), OWN_STYLE);
    let _ = writeln!(page, "<h1>{}</h1>", escape(scenario.name()));
    page::note(&mut page, scenario.about());
    let topology = scenario.topology();
    let (hosts, switches, links) = (topology.hosts, topology.tiers.len(), topology.links.len());
    let size = format!("{hosts} hosts, {switches} switches, {links} links. Made by ferroce fabric.");
    page::note(&mut page, &size);
    page.push_str(front);
    summary(&mut page, outcomes);
    slowdowns(&mut page, outcomes);
    queues(&mut page, outcomes);
    rates(&mut page, outcomes);
    pauses(&mut page, outcomes);
    replay::draw(&mut page, topology, outcomes);
    page::end(page)
}

fn summary(page: &mut String, outcomes: &[Outcome]) {
    page::table(page, "Summary of all runs", COLUMNS.map(|(heading, _)| heading), outcomes.iter().map(cells));
    page::note(
        page,
        "Slowdown: completion time divided by that in an empty network. flows: finished of started. Slowdowns and times are those of the first \
         workload.",
    );
}

/// A line for each run, and the points of each.
fn by_run<'a, P: Iterator<Item = (f64, f64)>>(
    outcomes: &'a [Outcome],
    points: impl Fn(&'a Outcome) -> P,
) -> Vec<Series> {
    let line = |(n, outcome): (usize, &'a Outcome)| Series::line(name(outcome), n, points(outcome));
    outcomes.iter().enumerate().map(line).collect()
}

fn name(outcome: &Outcome) -> &str {
    &outcome.report.name
}

/// A plot over the simulated time.
fn over_time(description: String, y: &'static str, series: Vec<Series>) -> Plot {
    Plot { description, x: Axis::new("time in µs", false), y: Axis::new(y, false), series }
}

/// The time of a sample on the axis.
fn us(time_ps: u64) -> f64 {
    time_ps as f64 / 1e6
}

fn slowdowns(page: &mut String, outcomes: &[Outcome]) {
    page.push_str("<h2>Slowdown against flow size</h2>\n");
    let quantiles = |q: &Quantiles| [q.p50, q.p95, q.p99];
    for (part, quantile) in ["median", "95th percentile", "99th percentile"].into_iter().enumerate() {
        let series = by_run(outcomes, |outcome| {
            let sizes =
                outcome.report.groups.first().map(|group| group.by_size.as_slice()).unwrap_or_default();
            sizes.iter().map(move |size| (size.bytes as f64, quantiles(&size.slowdown)[part]))
        });
        let plot = Plot {
            description: format!("Slowdown against flow size, {quantile}"),
            x: Axis::new("flow size in bytes", true),
            y: Axis::new("slowdown", true),
            series,
        };
        plot.draw(
            page,
            &format!("{quantile}; 20 groups of 5 % of the flows of the first workload, by size."),
        );
    }
    let headings =
        ["run", "workload", "flows", "p99 below 3 kB", "p99 below 100 kB", "p99 above 1 MB", "mean slowdown"];
    let groups =
        outcomes.iter().flat_map(|outcome| outcome.report.groups.iter().map(move |group| (outcome, group)));
    let row = |(outcome, group): (&Outcome, &GroupReport)| {
        let class =
            |n: usize| group.by_class[n].map_or("–".into(), |class| format!("{:.2}", class.slowdown.p99));
        let mean = format!("{:.2}", group.mean_slowdown);
        let (workload, flows) = ((group.workload + 1).to_string(), group.flows.to_string());
        [name(outcome).to_owned(), workload, flows, class(0), class(1), class(2), mean]
    };
    page::table(page, "Slowdown of each workload", headings, groups.map(row));
}

fn queues(page: &mut String, outcomes: &[Outcome]) {
    page.push_str("<h2>Queues over time</h2>\n");
    let series = by_run(outcomes, |outcome| {
        let samples = &outcome.samples;
        let longest = |at: usize| samples.classes.iter().map(|class| class.longest[at]).max().unwrap_or(0);
        samples.times.iter().enumerate().map(move |(at, time)| (us(*time), f64::from(longest(at))))
    });
    over_time("The longest queue over time".into(), "bytes", series)
        .draw(page, "The longest queue of all switch ports at each sample.");
    let headings = ["run", "links", "number", "queue p50", "p95", "p99", "longest"];
    let queues =
        outcomes.iter().flat_map(|outcome| outcome.report.queues.iter().map(move |queue| (outcome, queue)));
    let rows = queues.filter(|(_, queue)| !queue.links.starts_with("host")).map(|(outcome, queue)| {
        let bytes = &queue.bytes;
        let [p50, p95, p99, longest] = [bytes.p50, bytes.p95, bytes.p99, f64::from(queue.longest)].map(short);
        [name(outcome).to_owned(), queue.links.clone(), queue.count.to_string(), p50, p95, p99, longest]
    });
    page::table(page, "Queues of each tier of links", headings, rows);
    page::note(page, "Bytes. Percentiles are rounded up to powers of two.");
}

fn rates(page: &mut String, outcomes: &[Outcome]) {
    page.push_str("<h2>Rates of the first flows</h2>\n");
    for outcome in outcomes.iter().take(RATE_PLOTS) {
        let samples = &outcome.samples;
        let gigabits = |bytes: u64| bytes as f64 * 8000.0 / samples.interval_ps() as f64;
        let series = samples.rates.iter().enumerate().map(|(flow, rates)| {
            let points = samples.times.iter().zip(rates).map(|(time, bytes)| (us(*time), gigabits(*bytes)));
            Series::line(format!("flow {flow}"), flow, points)
        });
        over_time(format!("Rates over time, {}", name(outcome)), "Gb/s", series.collect())
            .draw(page, &format!("{}: acknowledged payload per sample, at most 64 flows.", name(outcome)));
    }
    page.push_str("<h2>Fairness over time</h2>\n");
    let series = by_run(outcomes, |outcome| {
        let samples = &outcome.samples;
        samples.times.iter().enumerate().filter_map(move |(at, time)| {
            let active: Vec<f64> =
                samples.rates.iter().map(|rates| rates[at] as f64).filter(|r| *r > 0.0).collect();
            jain(&active).map(|jain| (us(*time), jain))
        })
    });
    over_time("Jain's fairness index over time".into(), "Jain's index", series)
        .draw(page, "Over the tracked flows that received something in the sample.");
}

fn pauses(page: &mut String, outcomes: &[Outcome]) {
    page.push_str("<h2>Pauses by PFC</h2>\n");
    let tiers = outcomes.first().map(|outcome| outcome.report.queues.as_slice()).unwrap_or_default();
    let tiers = tiers.iter().map(|queue| queue.links.as_str());
    let headings = ["run", "pause frames"].into_iter().chain(tiers).chain(["headroom drops"]);
    let rows = outcomes.iter().map(|outcome| {
        let counters = &outcome.report.counters;
        let paused = outcome.report.queues.iter().map(|queue| format!("{:.3} %", 100.0 * queue.paused));
        [name(outcome).to_owned(), counters.pauses.to_string()]
            .into_iter()
            .chain(paused)
            .chain([counters.headroom_drops.to_string()])
    });
    page::table(page, "Pauses", headings, rows);
    page::note(page, "Share of time for which a link of the tier was paused.");
}
