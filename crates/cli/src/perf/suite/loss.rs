//! Bandwidth with lost packets and without, measured alternately.

use super::super::measure::{Budget, Limit, Measurement};
use super::super::options::LossArgs;
use super::super::params::Params;
use super::super::rdma::Network;
use super::super::stats::Bandwidth;
use super::super::test::Test;
use super::peer::Peer;
use crate::failure::Failure;
use crate::faults::{FAULTS_VARIABLE, FaultArgs};
use crate::sizes::format_size;
use crate::wire::WireChoice;
use serde::Serialize;
use std::time::Duration;

/// Message size of the suite's comparison.
pub(super) const SIZE: u64 = 1 << 20;
/// The default faults; the same packets each time.
const ONE_PERCENT: &str = "loss=1%,seed=1";

/// The result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Loss {
    /// Faults injected into the packets of both sides.
    pub(crate) faults: String,
    /// Bytes per message.
    pub(crate) size: u64,
    /// Without faults.
    pub(crate) without: Bandwidth,
    /// With faults.
    pub(crate) with: Bandwidth,
    /// The second divided by the first.
    pub(crate) ratio: f64,
}

impl Loss {
    /// From the two measurements.
    pub(crate) fn new(faults: String, size: u64, without: Bandwidth, with: Bandwidth) -> Loss {
        Loss { ratio: with.gigabytes_per_s / without.gigabytes_per_s, faults, size, without, with }
    }
}

/// Runs `ferroce perf loss`.
pub(crate) fn run(args: &LossArgs) -> Result<(), Failure> {
    if args.wire.choice()? == WireChoice::Iwarp {
        return Err(Failure::usage(
            "TCP repairs lost packets before iWARP sees them, so `perf loss` measures RoCE only",
        )
        .advise(
            "Lose packets below TCP instead, for example with `tc qdisc add dev lo root netem loss 1%`",
        ));
    }
    // The side without faults would have them, too.
    if let Some(exported) = FaultArgs::default().or_environment()? {
        return Err(Failure::usage(format!(
            "{FAULTS_VARIABLE}={exported} is set, and `perf loss` compares with a run without faults"
        ))
        .advise(format!("Unset {FAULTS_VARIABLE}, and use options such as --loss 1%")));
    }
    let faults = args.faults.to_variable()?.unwrap_or(ONE_PERCENT.into());
    let budget = Budget {
        warm_up: Duration::from_millis(20),
        limit: Limit::Time(Duration::from_secs(args.duration) / ROUNDS),
    };
    let params = Params::of_size(Test::WriteBw, args.size);
    params.check().map_err(Failure::usage)?;
    let loss = compare(&faults, &params, ROUNDS, budget)?;
    if args.json {
        return crate::print_json(&loss);
    }
    crate::print_text(&format!(
        "RC write at {}: {:.2} GB/s without faults, {:.2} GB/s with {}: {:.2} of it is left",
        format_size(loss.size),
        loss.without.gigabytes_per_s,
        loss.with.gigabytes_per_s,
        loss.faults,
        loss.ratio
    ))
}

/// Rounds of `ferroce perf loss`.
const ROUNDS: u32 = 4;

/// The suite's comparison.
pub(super) fn measure(rounds: u32, budget: Budget) -> Result<Loss, Failure> {
    compare(ONE_PERCENT, &Params::of_size(Test::WriteBw, SIZE), rounds, budget)
}

/// Both sides of the comparison send the packets that two hosts would exchange.
fn compare(faults: &str, params: &Params, rounds: u32, budget: Budget) -> Result<Loss, Failure> {
    let (mut clean, mut faulty) = (Peer::on(Network::PathMtu), Peer::on(Network::Faults(faults.to_owned())));
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        without.push(transfer(&mut clean, params, budget)?);
        with.push(transfer(&mut faulty, params, budget)?);
    }
    clean.leave();
    faulty.leave();
    let nothing = || Failure::new("nothing was measured");
    let without = Bandwidth::median(without).ok_or_else(nothing)?;
    let with = Bandwidth::median(with).ok_or_else(nothing)?;
    Ok(Loss::new(faults.to_owned(), params.size, without, with))
}

fn transfer(peer: &mut Peer, params: &Params, budget: Budget) -> Result<Bandwidth, Failure> {
    match peer.run(params, budget)? {
        Measurement::Bandwidth(bandwidth) => Ok(bandwidth),
        Measurement::Latency(_) => Err(Failure::new("a bandwidth test measured latencies")),
    }
}
