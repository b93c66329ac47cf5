//! The page of a simulation: tables and figures, light and dark, in one file.

use super::plot::{Plot, Series, short};
use super::replay;
use super::{COLUMNS, Outcome, cells};
use crate::report::STYLE;
use crate::svg::escape;
use ferroce_fabric::report::{Quantiles, jain};
use ferroce_fabric::scenario::Scenario;
use std::fmt::Write;

const OWN_STYLE: &str = include_str!("fabric.css");
/// Runs whose rates are drawn one by one.
const RATE_PLOTS: usize = 8;

/// The whole page; `front` comes before the figures.
pub(super) fn html(scenario: &Scenario, outcomes: &[Outcome], front: &str) -> String {
    let mut page = String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    let name = escape(scenario.name());
    let _ = writeln!(page, "<title>{name}</title>\n<style>\n{STYLE}{OWN_STYLE}</style>\n</head>\n<body>");
    let _ = writeln!(page, "<h1>{name}</h1>\n<p class=\"soft\">{}</p>", escape(scenario.about()));
    let topology = scenario.topology();
    let _ = writeln!(
        page,
        "<p class=\"soft\">{} hosts, {} switches, {} links. Made by ferroce fabric.</p>",
        topology.hosts,
        topology.tiers.len(),
        topology.links.len()
    );
    page.push_str(front);
    summary(&mut page, outcomes);
    slowdowns(&mut page, outcomes);
    queues(&mut page, outcomes);
    rates(&mut page, outcomes);
    pauses(&mut page, outcomes);
    replay::draw(&mut page, topology, outcomes);
    page.push_str("</body>\n</html>\n");
    page
}

pub(super) fn figure(page: &mut String, plot: &Plot, caption: &str) {
    match plot.render() {
        Some(svg) => {
            let _ = writeln!(page, "<figure>\n{svg}<figcaption>{}</figcaption>\n</figure>", escape(caption));
        }
        None => page.push_str("<p class=\"soft\">Nothing was recorded.</p>\n"),
    }
}

fn summary(page: &mut String, outcomes: &[Outcome]) {
    page.push_str("<div class=\"wide\"><table>\n<thead><tr>");
    for (heading, _) in COLUMNS {
        let _ = write!(page, "<th scope=\"col\">{}</th>", escape(heading.trim()).replace('\n', " "));
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for outcome in outcomes {
        page.push_str("<tr>");
        for (n, cell) in cells(outcome).iter().enumerate() {
            let class = if n == 0 { " class=\"name\"" } else { "" };
            let _ = write!(page, "<td{class}>{}</td>", escape(cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n<p class=\"soft\">Slowdown: completion time divided by that in an empty network. \
        flows: finished of started. Slowdowns and times are those of the first workload.</p>\n");
}

fn slowdowns(page: &mut String, outcomes: &[Outcome]) {
    page.push_str("<h2>Slowdown against flow size</h2>\n");
    let quantiles = |q: &Quantiles| [q.p50, q.p95, q.p99];
    for (part, name) in ["median", "95th percentile", "99th percentile"].into_iter().enumerate() {
        let series = outcomes.iter().enumerate().map(|(colour, outcome)| {
            let sizes =
                outcome.report.groups.first().map(|group| group.by_size.as_slice()).unwrap_or_default();
            let points =
                sizes.iter().map(|size| (size.bytes as f64, quantiles(&size.slowdown)[part])).collect();
            Series { name: outcome.report.name.clone(), colour, points }
        });
        let plot = Plot {
            description: format!("Slowdown against flow size, {name}"),
            x_title: "flow size in bytes",
            y_title: "slowdown",
            log_x: true,
            log_y: true,
            series: series.collect(),
        };
        figure(
            page,
            &plot,
            &format!("{name}; 20 groups of 5 % of the flows of the first workload, by size."),
        );
    }
    page.push_str(
        "<div class=\"wide\"><table>\n<thead><tr><th class=\"name\">run</th><th>workload</th><th>flows</th>",
    );
    page.push_str("<th>p99 below 3 kB</th><th>p99 below 100 kB</th><th>p99 above 1 MB</th><th>mean slowdown</th></tr></thead>\n<tbody>\n");
    for outcome in outcomes {
        for group in &outcome.report.groups {
            let class = |n: usize| {
                group.by_class[n].map_or("–".into(), |class| format!("{:.2}", class.slowdown.p99))
            };
            let _ = writeln!(
                page,
                "<tr><td class=\"name\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.2}</td></tr>",
                escape(&outcome.report.name),
                group.workload + 1,
                group.flows,
                class(0),
                class(1),
                class(2),
                group.mean_slowdown
            );
        }
    }
    page.push_str("</tbody></table></div>\n");
}

fn queues(page: &mut String, outcomes: &[Outcome]) {
    page.push_str("<h2>Queues over time</h2>\n");
    let series = outcomes.iter().enumerate().map(|(colour, outcome)| {
        let samples = &outcome.samples;
        let longest = |at: usize| samples.classes.iter().map(|class| class.longest[at]).max().unwrap_or(0);
        let points = samples.times.iter().enumerate();
        let points = points.map(|(at, time)| (*time as f64 / 1e6, f64::from(longest(at)))).collect();
        Series { name: outcome.report.name.clone(), colour, points }
    });
    let plot = Plot {
        description: "The longest queue over time".into(),
        x_title: "time in µs",
        y_title: "bytes",
        log_x: false,
        log_y: false,
        series: series.collect(),
    };
    figure(page, &plot, "The longest queue of all switch ports at each sample.");
    page.push_str("<div class=\"wide\"><table>\n<thead><tr><th class=\"name\">run</th><th class=\"name\">links</th><th>number</th>");
    page.push_str("<th>queue p50</th><th>p95</th><th>p99</th><th>longest</th></tr></thead>\n<tbody>\n");
    for outcome in outcomes {
        for queue in outcome.report.queues.iter().filter(|queue| !queue.links.starts_with("host")) {
            let _ = writeln!(
                page,
                "<tr><td class=\"name\">{}</td><td class=\"name\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                escape(&outcome.report.name),
                escape(&queue.links),
                queue.count,
                short(queue.bytes.p50),
                short(queue.bytes.p95),
                short(queue.bytes.p99),
                short(f64::from(queue.longest))
            );
        }
    }
    page.push_str(
        "</tbody></table></div>\n<p class=\"soft\">Bytes. Percentiles are rounded up to powers of two.</p>\n",
    );
}

fn rates(page: &mut String, outcomes: &[Outcome]) {
    page.push_str("<h2>Rates of the first flows</h2>\n");
    for outcome in outcomes.iter().take(RATE_PLOTS) {
        let samples = &outcome.samples;
        let gigabits = |bytes: u64| bytes as f64 * 8000.0 / samples.interval_ps() as f64;
        let series = samples.rates.iter().enumerate().map(|(flow, rates)| {
            let points = samples.times.iter().zip(rates);
            let points = points.map(|(time, bytes)| (*time as f64 / 1e6, gigabits(*bytes))).collect();
            Series { name: format!("flow {flow}"), colour: flow, points }
        });
        let plot = Plot {
            description: format!("Rates over time, {}", outcome.report.name),
            x_title: "time in µs",
            y_title: "Gb/s",
            log_x: false,
            log_y: false,
            series: series.collect(),
        };
        figure(
            page,
            &plot,
            &format!("{}: acknowledged payload per sample, at most 64 flows.", outcome.report.name),
        );
    }
    page.push_str("<h2>Fairness over time</h2>\n");
    let series = outcomes.iter().enumerate().map(|(colour, outcome)| {
        let samples = &outcome.samples;
        let points = samples.times.iter().enumerate().filter_map(|(at, time)| {
            let active: Vec<f64> =
                samples.rates.iter().map(|rates| rates[at] as f64).filter(|r| *r > 0.0).collect();
            jain(&active).map(|jain| (*time as f64 / 1e6, jain))
        });
        Series { name: outcome.report.name.clone(), colour, points: points.collect() }
    });
    let plot = Plot {
        description: "Jain's fairness index over time".into(),
        x_title: "time in µs",
        y_title: "Jain's index",
        log_x: false,
        log_y: false,
        series: series.collect(),
    };
    figure(page, &plot, "Over the tracked flows that received something in the sample.");
}

fn pauses(page: &mut String, outcomes: &[Outcome]) {
    page.push_str("<h2>Pauses by PFC</h2>\n<div class=\"wide\"><table>\n<thead><tr><th class=\"name\">run</th><th>pause frames</th>");
    let classes: Vec<&str> = outcomes
        .first()
        .map(|o| o.report.queues.iter().map(|q| q.links.as_str()).collect())
        .unwrap_or_default();
    for class in &classes {
        let _ = write!(page, "<th>{}</th>", escape(class));
    }
    page.push_str("<th>headroom drops</th></tr></thead>\n<tbody>\n");
    for outcome in outcomes {
        let counters = &outcome.report.counters;
        let _ = write!(
            page,
            "<tr><td class=\"name\">{}</td><td>{}</td>",
            escape(&outcome.report.name),
            counters.pauses
        );
        for queue in &outcome.report.queues {
            let _ = write!(page, "<td>{:.3} %</td>", 100.0 * queue.paused);
        }
        let _ = writeln!(page, "<td>{}</td></tr>", counters.headroom_drops);
    }
    page.push_str("</tbody></table></div>\n<p class=\"soft\">Share of time for which a link of the tier was paused.</p>\n");
}
