//! Everything on this machine in one run: RDMA and sockets.

mod figures;
mod headlines;
mod loss;
mod peer;
mod plan;
mod qps;
mod results;
mod text;

pub(crate) use figures::{HEADINGS, ROWS, Row, microseconds, rate};
pub(crate) use headlines::Headline;
pub(crate) use loss::run as run_loss;
pub(crate) use peer::run_peer;
pub(crate) use qps::run as run_qps;
#[cfg(test)]
pub(crate) use results::examples;
pub(crate) use results::{Cell, Results};

use super::measure::Measurement;
use super::options::SuiteArgs;
use super::params::Params;
use super::progress::Progress;
use super::rdma::try_device;
use super::stats::{Bandwidth, Histogram};
use super::test::Test;
use crate::failure::Failure;
use crate::machine::ProcessorTime;
use crate::report;
use crate::wire::WireChoice;
use peer::Peer;
use plan::Plan;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Instant;

/// Runs the suite, prints its results and writes its report.
pub(crate) fn run(args: &SuiteArgs) -> Result<(), Failure> {
    args.faults.apply_here()?;
    let wire = args.wire.choice()?;
    let plan = if args.quick { Plan::quick(wire) } else { Plan::full(wire) };
    // Checks first what would make a minute of measurements worthless.
    try_device(wire)?;
    if !args.no_report {
        try_report(&args.report).map_err(|error| no_report(&args.report, error))?;
    }
    let (mut results, start) =
        (Results::new(&plan, args.quick, args.faults.or_environment()?), Instant::now());
    if !results.machine.optimised {
        eprintln!(
            "ferroce perf: built without optimisation; use `cargo run --release -- perf` for figures that count."
        );
    }
    measure(&plan, &mut results);
    results.duration_s = start.elapsed().as_secs_f64();
    results.headlines = headlines::of(&results);
    if args.json {
        crate::print_json(&results)?;
    } else {
        crate::print_text(&text::render(&results))?;
    }
    if !args.no_report {
        std::fs::write(&args.report, report::html(&results))
            .map_err(|error| no_report(&args.report, error))?;
        eprintln!("\nReport with plots: {}", args.report.display());
    }
    results.first_error().map_or(Ok(()), Err)
}

/// Checks that the report can be written. Creates no empty report, and does not change an older one.
fn try_report(path: &Path) -> io::Result<()> {
    match File::options().write(true).create_new(true).open(path) {
        Ok(_) => std::fs::remove_file(path),
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        Err(_) if path.is_file() || path.is_dir() => File::options().write(true).open(path).map(drop),
        // A pipe must not be opened and closed again: its reader would see the end.
        Err(_) => Ok(()),
    }
}

fn no_report(path: &Path, error: io::Error) -> Failure {
    Failure::io(format!("cannot write the report {}", path.display()), error)
        .advise("Choose another place with --report, or none with --no-report")
}

fn measure(plan: &Plan, results: &mut Results) {
    // Loss and very many queue pairs are one step each, in addition to the measurements.
    let (progress, before) = (Progress::new(plan.measurements() + 2), ProcessorTime::now());
    let mut peer = Peer::default();
    for size in plan::SIZES {
        let mut row: Vec<Collected> = plan.tests(size).into_iter().map(Collected::new).collect();
        // Round by round, so that compared figures are measured within a second or two.
        let rounds: Vec<u32> = row.iter().map(|collected| plan.rounds(collected.test, size)).collect();
        for round in 0..rounds.iter().copied().max().unwrap_or(0) {
            for (collected, _) in row.iter_mut().zip(&rounds).filter(|(_, rounds)| round < **rounds) {
                progress.step(size, &collected.test.name());
                if collected.error.is_none() {
                    collected.add(peer.run(&params(plan.wire, collected.test, size), plan.budget));
                }
            }
        }
        results.cells.extend(row.into_iter().map(|collected| collected.into_cell(size)));
        progress.size_done(size);
    }
    if results.faults.is_none() && plan.wire == WireChoice::Roce {
        progress.step(loss::SIZE, "loss");
        results.loss = results.keep("loss", loss::measure(plan.rounds, plan.loss_budget()));
    }
    progress.step(0, "qps");
    peer.leave();
    results.connections = results.keep("qps", qps::measure(plan.wire, plan.queue_pairs));
    results.stolen = before.zip(ProcessorTime::now()).and_then(|(before, after)| after.stolen_since(before));
    progress.finish();
}

/// The defaults, except that bandwidth tests post lists of work requests, as a program does for a high rate; TCP
/// merges small writes by itself.
fn params(wire: WireChoice, test: Test, size: u64) -> Params {
    let params = Params::of_size(test, size);
    let wire = if test.is_baseline() { params.wire } else { wire };
    let post_list = if test.is_baseline() { 1 } else { (params.tx_depth / 8).max(1) };
    Params { wire, post_list, ..params }
}

/// The rounds of one test at one size.
struct Collected {
    test: Test,
    round_trips: Option<Histogram>,
    transfers: Vec<Bandwidth>,
    /// The figure of each round.
    rounds: Vec<f64>,
    error: Option<String>,
}

impl Collected {
    fn new(test: Test) -> Collected {
        Collected { test, round_trips: None, transfers: Vec::new(), rounds: Vec::new(), error: None }
    }

    fn add(&mut self, outcome: Result<Measurement, Failure>) {
        match outcome {
            Ok(Measurement::Bandwidth(transfer)) => {
                self.rounds.push(transfer.gigabytes_per_s);
                self.transfers.push(transfer);
            }
            Ok(Measurement::Latency(round)) => {
                self.rounds.push(round.quantile_ns(0.5));
                match &mut self.round_trips {
                    Some(all) => all.merge(&round),
                    None => self.round_trips = Some(round),
                }
            }
            Err(failure) => self.error = Some(failure.what().to_owned()),
        }
    }

    fn into_cell(self, size: u64) -> Cell {
        let per = self.test.messages_per_round_trip();
        Cell {
            test: self.test,
            size,
            latency: self.round_trips.and_then(|all| all.summary(per)),
            bandwidth: Bandwidth::median(self.transfers),
            spread: spread(self.rounds),
            error: self.error,
        }
    }
}

/// The range of some figures, divided by the middle one. `None` for fewer than two.
fn spread(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let [least, .., most] = figures[..] else { return None };
    Some((most - least) / figures[figures.len() / 2]).filter(|spread| spread.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noisy_figures_reach_no_goal() {
        let mut results = examples::results();
        let verdicts =
            |results: &Results| headlines::of(results).iter().map(Headline::verdict).collect::<Vec<_>>();
        assert!(verdicts(&results).iter().all(|verdict| *verdict == "reached"));
        assert_eq!((spread(vec![3.0, 1.0, 2.0]), spread(vec![1.0])), (Some(1.0), None));
        for cell in results.cells.iter_mut().filter(|cell| cell.test == Test::TcpBw) {
            cell.spread = spread(vec![1.0, 2.0, 3.0]);
        }
        for latency in results
            .cells
            .iter_mut()
            .filter(|cell| cell.test == Test::UdpLat)
            .flat_map(|cell| &mut cell.latency)
        {
            latency.p99_ns = Some(28e6);
        }
        let verdicts = verdicts(&results);
        assert_eq!(verdicts[..3], ["too noisy to decide", "reached", "too noisy to decide"], "{verdicts:?}");
        let page = crate::report::html(&Results { headlines: headlines::of(&results), ..results });
        assert!(page.contains("too noisy to decide"));
    }

    #[test]
    fn trying_the_report_changes_nothing() {
        let folder = std::env::temp_dir().join(format!("ferroce-report-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let report = folder.join("r.html");
        try_report(&report).expect("a new file can be written here");
        assert!(!report.exists());
        std::fs::write(&report, "older").expect("our own folder");
        try_report(&report).expect("the older one can be replaced");
        assert_eq!(std::fs::read_to_string(&report).expect("still there"), "older");
        assert!(try_report(&folder).is_err(), "a folder is no report");
        assert!(try_report(&folder.join("nowhere").join("r.html")).is_err());
        std::fs::remove_dir_all(&folder).expect("our own folder");
    }
}
