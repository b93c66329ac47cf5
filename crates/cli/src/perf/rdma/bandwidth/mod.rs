//! Many messages in flight: bandwidth and message rate.
//!
//! All messages of a queue pair use the same source bytes and the same target bytes, as all writes of the TCP stream do. So
//! the caches treat both alike.
//!
//! | file | question |
//! |---|---|
//! | `sender` | what is posted, and which of it makes a completion? |
//! | `receiver` | what arrived, and which receives are reposted? |
//! | `traffic` | how do the two share a completion queue, and when are they done? |
//! | `verification` | did the bytes arrive? |

mod receiver;
mod sender;
mod traffic;
mod verification;

use super::super::control::Control;
use super::super::handshake::Report;
use super::super::measure::{Budget, Limit};
use super::super::stats::Bandwidth;
use super::super::test::Operation;
use super::context::TestContext;
use super::like_perftest;
use crate::failure::Failure;
use std::time::{Duration, Instant};
use traffic::Traffic;

/// Whether messages count. SENDs that do not count carry immediate data, by which the receiver recognises them. iWARP has no immediate
/// data: there the receiver counts all SENDs, and the sender subtracts those.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Warm-up, and the check of the last message.
    Unmeasured,
    Measured,
}

/// Client.
pub(super) fn run(
    context: &TestContext,
    control: &mut Control,
    budget: Budget,
) -> Result<Bandwidth, Failure> {
    let mut traffic = Traffic::new(context);
    if context.params.like_perftest {
        let bandwidth = like_perftest::stream(context, budget)?;
        verification::send_last(&mut traffic, control)?;
        traffic.stop(control)?;
        return Ok(bandwidth);
    }
    let warm_up = traffic.stream(Limit::Time(budget.warm_up), Phase::Unmeasured, control)?;
    traffic.drain_in_flight(control)?;
    let start = Instant::now();
    let sent = traffic.stream(budget.limit, Phase::Measured, control)?;
    let elapsed = start.elapsed();
    traffic.drain_in_flight(control)?;
    let last = verification::send_last(&mut traffic, control)?;
    let report = traffic.stop(control)?;
    verification::check_returned(context, &report)?;
    let arrived = arrived(context, &report, sent, warm_up + last)?;
    let bandwidth = forward(context, sent, arrived, elapsed, &report);
    if !context.params.bidirectional {
        return Ok(bandwidth);
    }
    Ok(bandwidth.with_reverse(report.sent, report.elapsed_ns))
}

/// Server: receives, or serves its memory, until the client stops; sends as well if requested.
pub(super) fn serve(context: &TestContext, control: &mut Control) -> Result<Report, Failure> {
    if context.params.like_perftest {
        control.wait_readable();
    }
    let mut traffic = Traffic::new(context);
    let report = traffic.serve(control)?;
    verification::check(context, &traffic.receiver.last_arrived)?;
    Ok(report)
}

/// How many of the measured messages arrived.
fn arrived(context: &TestContext, report: &Report, sent: u64, unmeasured: u64) -> Result<u64, Failure> {
    let arrived = match (context.params.test.operation(), context.is_reliable()) {
        (Operation::Send, _) if !context.is_iwarp() => report.received,
        (Operation::Send | Operation::Atomic, _) => report.received.saturating_sub(unmeasured),
        (_, true) => sent,
        // The server counts the bytes of all messages that were packets; losses affect all of them alike. Operations
        // done directly in its memory cannot be lost, and only this side counts them.
        (_, false) => {
            let direct: u64 = context.qps.iter().map(|qp| qp.queue_pair.counters().performed).sum();
            let share = (report.received + direct) as f64 / (sent + unmeasured) as f64;
            (sent as f64 * share.min(1.0)).round() as u64
        }
    };
    if context.is_reliable() && arrived != sent {
        return Err(Failure::new(format!("{sent} messages were acknowledged, but {arrived} arrived")));
    }
    if arrived == 0 {
        return Err(Failure::new(format!("none of {sent} messages arrived whole"))
            .advise("An unreliable message is lost with any one of its packets; try a smaller size"));
    }
    Ok(arrived.min(sent))
}

fn forward(context: &TestContext, sent: u64, arrived: u64, elapsed: Duration, report: &Report) -> Bandwidth {
    let size = context.params.size;
    if context.is_reliable() {
        return Bandwidth::new(sent, sent * size, elapsed.as_nanos() as u64);
    }
    // Without acknowledgements, only messages that arrived count, over the longer of the times to send and to receive.
    let elapsed_ns = (elapsed.as_nanos() as u64).max(report.receiving_ns);
    Bandwidth { lost: Some(sent - arrived), ..Bandwidth::new(arrived, arrived * size, elapsed_ns) }
}
