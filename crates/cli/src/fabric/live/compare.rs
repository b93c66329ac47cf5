//! Compares a live run with the simulation of the same scenario: goodput of each sender, and the queue.

use crate::fabric::Outcome;
use crate::page::{self, Axis, Plot, Series};
use crate::table::{Align, Table};
use ferroce_fabric::report::jain;
use ferroce_fabric::workload::Flow;
use ferroce_fabric::world::Samples;
use serde::Serialize;

/// A host that sends at least this share of the busiest one's bytes is a sender. The rest is ACKs and connection set-up.
const SENDER_SHARE: f64 = 0.05;
/// Share of the time in which all senders send that is compared: neither the start nor the end.
const WINDOW: std::ops::Range<f64> = 0.2..0.9;
/// Points of a plot.
const POINTS: usize = 200;

/// One side of the comparison.
#[derive(Clone, Debug, Serialize)]
struct Side {
    /// Mean goodput of each sender, in Mb/s.
    mbps: Vec<f64>,
    jain: Option<f64>,
    /// Mean of the longest queue, in kB.
    queue_kb: f64,
    /// Length of the time that was compared, in milliseconds.
    window_ms: f64,
}

/// Live and simulated.
#[derive(Serialize)]
pub(super) struct Comparison {
    name: String,
    senders: Vec<u32>,
    live: Side,
    simulated: Side,
    /// How far the live goodput of all senders is from the simulated one, in percent.
    goodput_difference_percent: f64,
    #[serde(skip)]
    plots: [Plot; 2],
}

/// Removes the time before the first sender sends at a tenth of the highest rate, so that time 0 is the same as in a simulation.
pub(super) fn align(samples: &mut Samples) {
    let highest = samples.rates.iter().flatten().copied().max().unwrap_or(0);
    let begins = |at: &usize| samples.rates.iter().any(|rates| rates[*at] * 10 > highest);
    let Some(first) = (0..samples.times.len()).find(begins).filter(|_| highest > 0) else { return };
    let start = samples.times[first].saturating_sub(samples.interval_ps());
    samples.times.drain(..first);
    samples.times.iter_mut().for_each(|time| *time -= start);
    samples.rates.iter_mut().for_each(|rates| drop(rates.drain(..first)));
    for class in &mut samples.classes {
        class.longest.drain(..first);
        class.mean.drain(..first);
    }
    samples.frames.drain(..first.min(samples.frames.len()));
    samples.frames.iter_mut().for_each(|frame| frame.time_ps = frame.time_ps.saturating_sub(start));
}

/// Compares; none if no host of the live run sent anything. `flows` are those of the simulation.
pub(super) fn of(hosts: usize, live: &Outcome, simulated: &Outcome, flows: &[Flow]) -> Option<Comparison> {
    let mut by_host = vec![vec![0; simulated.samples.times.len()]; hosts];
    for (flow, rates) in flows.iter().zip(&simulated.samples.rates) {
        by_host[flow.from as usize].iter_mut().zip(rates).for_each(|(sum, rate)| *sum += rate);
    }
    let totals: Vec<u64> = live.samples.rates.iter().map(|rates| rates.iter().sum()).collect();
    let most = totals.iter().copied().max().unwrap_or(0);
    let sends = |host: &usize| most > 0 && totals[*host] as f64 >= SENDER_SHARE * most as f64;
    let senders: Vec<usize> = (0..totals.len()).filter(sends).collect();
    let (Some(measured), Some(expected)) =
        (side(&live.samples, &live.samples.rates, &senders), side(&simulated.samples, &by_host, &senders))
    else {
        return None;
    };
    let total = |side: &Side| side.mbps.iter().sum::<f64>();
    let difference = 100.0 * (total(&measured) / total(&expected) - 1.0);
    let plots =
        [goodput_plot(live, &live.samples.rates, simulated, &by_host, &senders), queue_plot(live, simulated)];
    Some(Comparison {
        name: live.report.name.clone(),
        senders: senders.iter().map(|host| *host as u32).collect(),
        live: measured,
        simulated: expected,
        goodput_difference_percent: difference,
        plots,
    })
}

/// The means over the time in which all senders send; none if there is no such time.
fn side(samples: &Samples, rates: &[Vec<u64>], senders: &[usize]) -> Option<Side> {
    let senders: Vec<&Vec<u64>> = senders.iter().filter_map(|host| rates.get(*host)).collect();
    let first = senders.iter().filter_map(|rates| rates.iter().position(|rate| *rate > 0)).max()?;
    let last = senders.iter().filter_map(|rates| rates.iter().rposition(|rate| *rate > 0)).min()?;
    let length = last.checked_sub(first)? as f64;
    let range = first + (length * WINDOW.start) as usize..first + (length * WINDOW.end) as usize;
    if range.is_empty() {
        return None;
    }
    let seconds = range.len() as f64 * samples.interval_ps() as f64 / 1e12;
    let mbps: Vec<f64> = senders
        .iter()
        .map(|rates| rates[range.clone()].iter().sum::<u64>() as f64 * 8.0 / 1e6 / seconds)
        .collect();
    let longest = |at: usize| samples.classes.iter().map(|class| class.longest[at]).max().unwrap_or(0);
    let queue_kb = range.clone().map(|at| f64::from(longest(at))).sum::<f64>() / range.len() as f64 / 1e3;
    Some(Side { jain: jain(&mbps), mbps, queue_kb, window_ms: 1e3 * seconds })
}

fn goodput_plot(
    live: &Outcome,
    measured: &[Vec<u64>],
    simulated: &Outcome,
    expected: &[Vec<u64>],
    senders: &[usize],
) -> Plot {
    let line = |name: &str, colour: usize, samples: &Samples, rates: &[Vec<u64>]| {
        let rate = |at: usize| {
            senders.iter().filter_map(|host| rates.get(*host)).map(|rates| rates[at] as f64).sum::<f64>()
        };
        let scale = 8.0 * 1e6 / samples.interval_ps() as f64;
        Series::line(name, colour, means(samples, |at| rate(at) * scale).into_iter())
    };
    Plot {
        description: "Goodput of all senders, live and simulated".into(),
        x: Axis::new("time in ms", false),
        y: Axis::new("Mb/s", false),
        series: vec![
            line("live", 0, &live.samples, measured),
            line("simulated", 1, &simulated.samples, expected),
        ],
    }
}

fn queue_plot(live: &Outcome, simulated: &Outcome) -> Plot {
    let line = |name: &str, colour: usize, samples: &Samples| {
        let longest = |at: usize| samples.classes.iter().map(|class| class.longest[at]).max().unwrap_or(0);
        Series::line(name, colour, means(samples, |at| f64::from(longest(at)) / 1e3).into_iter())
    };
    Plot {
        description: "The longest queue, live and simulated".into(),
        x: Axis::new("time in ms", false),
        y: Axis::new("kB", false),
        series: vec![line("live", 0, &live.samples), line("simulated", 1, &simulated.samples)],
    }
}

/// Means of adjacent samples, so that a line has few points; time in milliseconds.
fn means(samples: &Samples, value: impl Fn(usize) -> f64) -> Vec<(f64, f64)> {
    let count = samples.times.len();
    let step = count.div_ceil(POINTS).max(1);
    let starts = (0..count).step_by(step);
    starts
        .map(|from| {
            let to = (from + step).min(count);
            let mean = (from..to).map(&value).sum::<f64>() / (to - from) as f64;
            (samples.times[from] as f64 / 1e9, mean)
        })
        .collect()
}

impl Comparison {
    fn rows(&self) -> Vec<[String; 4]> {
        let row = |what: String, live: f64, simulated: f64, digits: usize| {
            let difference = if simulated > 0.0 {
                format!("{:+.1} %", 100.0 * (live / simulated - 1.0))
            } else {
                "–".into()
            };
            [what, format!("{live:.digits$}"), format!("{simulated:.digits$}"), difference]
        };
        let (live, simulated) = (&self.live, &self.simulated);
        let sum = |side: &Side| side.mbps.iter().sum::<f64>();
        let mut rows = vec![row("goodput Mb/s".into(), sum(live), sum(simulated), 1)];
        for (host, (a, b)) in self.senders.iter().zip(live.mbps.iter().zip(&simulated.mbps)) {
            rows.push(row(format!("  of h{host}"), *a, *b, 1));
        }
        let jain = |side: &Side| side.jain.unwrap_or_default();
        rows.push(row("Jain's index".into(), jain(live), jain(simulated), 3));
        rows.push(row("mean queue kB".into(), live.queue_kb, simulated.queue_kb, 1));
        rows
    }

    /// For the terminal.
    pub(super) fn table(&self) -> String {
        let heads = ["", "live", "simulated", "difference"];
        let mut table =
            Table::new(&heads.map(|head| (head, if head.is_empty() { Align::Left } else { Align::Right })));
        self.rows().into_iter().for_each(|row| table.line(row));
        format!(
            "{}\nCompared: {:.0} ms live, {:.0} ms simulated, in which all senders send.\n",
            table.render(),
            self.live.window_ms,
            self.simulated.window_ms
        )
    }

    /// For the page.
    pub(super) fn draw(&self, page: &mut String) {
        page.push_str("<h2>Live and simulated</h2>\n");
        page::table(page, "Live and simulated", ["", "live", "simulated", "difference"], self.rows());
        let caption = "Payload that arrived, of all senders. Live time begins when the first sender sends.";
        self.plots[0].draw(page, caption);
        self.plots[1].draw(page, "The longest queue of all switch ports at each sample.");
    }
}
