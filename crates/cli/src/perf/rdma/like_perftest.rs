//! The same calls as perftest's programs, in the same order, so that both can be compared call for call.
//!
//! It checks neither the clock nor the control channel meanwhile: a lost peer ends in a completion with an error.

use super::super::control::Control;
use super::super::handshake::{self, Report};
use super::super::measure::{Budget, Limit};
use super::super::params::Params;
use super::super::stats::{Bandwidth, Histogram};
use super::super::test::Test;
use super::context::TestContext;
use super::wait::{WaitOutcome, Waiter};
use super::{broken, pattern, refused};
use crate::failure::Failure;
use ferroce::{Completion, Cq, Outcome, Sge};
use std::ops::Range;
use std::time::Instant;

/// Depth of the receive queue of a SEND test.
pub(super) const RECEIVES: u32 = 512;
/// Hop limit of the packets.
pub(super) const HOP_LIMIT: u8 = 255;

/// Small messages of a bandwidth test use one cache line of a page after the other.
const PAGE: u64 = 4096;
const CACHE_LINE: u64 = 64;
/// Messages per completion, and up to which size.
const CQ_MODERATION: u32 = 100;
const LARGEST_MODERATED: u64 = 8192;
/// Completions that a bandwidth test polls for.
const POLL_BATCH: usize = 16;

/// The offsets of the messages, if they vary.
pub(super) fn offsets(params: &Params) -> Option<Range<u64>> {
    let varies = params.like_perftest && params.test != Test::SendLat && params.size <= PAGE / 2;
    varies.then_some(0..PAGE)
}

fn messages(budget: Budget) -> u64 {
    match budget.limit {
        Limit::Messages(count) => count,
        // The command line refuses it.
        Limit::Time(_) => 1,
    }
}

/// The state that perftest keeps for each queue pair while it posts.
struct PostState {
    posted: u64,
    completed: u64,
    /// Offset of the next message's bytes, on both sides.
    offset: u64,
    signalled: bool,
}

/// Client of write-bw and read-bw. It counts as perftest does, per queue pair and request by request, divisions
/// included. Otherwise a difference between the programs would be taken for one between the libraries.
pub(super) fn stream(context: &TestContext, budget: Budget) -> Result<Bandwidth, Failure> {
    let params = &context.params;
    let (count, depth) = (messages(budget), u64::from(params.tx_depth));
    let usual = if params.size > LARGEST_MODERATED { 1 } else { CQ_MODERATION.min(params.tx_depth) };
    let moderation = u64::from(params.cq_moderation.unwrap_or(usual));
    let (step, end) = match offsets(params) {
        Some(offsets) => (params.size.next_multiple_of(CACHE_LINE), offsets.end),
        None => (0, u64::MAX),
    };
    let start_of =
        |_| PostState { posted: 0, completed: 0, offset: 0, signalled: moderation == 1 || count == 1 };
    let mut states: Vec<PostState> = context.qps.iter().map(start_of).collect();
    let all = count * context.qps.len() as u64;
    let (mut posted, mut completed) = (0, 0);
    let mut sges = [Sge::default(); 1];
    let mut completions = [Completion::default(); POLL_BATCH];
    let start = Instant::now();
    while posted < all || completed < all {
        for (qp, state) in context.qps.iter().zip(&mut states) {
            while state.posted < count && state.posted - state.completed < depth {
                if moderation > 1 && state.posted % moderation == 0 && state.posted != count - 1 {
                    state.signalled = false;
                }
                qp.queue_pair.post_send(&[qp.request_at(state.offset, &mut sges, state.signalled)])?;
                state.offset = if state.offset + 2 * step > end { 0 } else { state.offset + step };
                state.posted += 1;
                posted += 1;
                if state.posted % moderation == moderation - 1 || state.posted == count - 1 {
                    state.signalled = true;
                }
            }
        }
        let found = context.cq.poll(&mut completions).map_err(refused)?;
        for completion in &completions[..found] {
            completion.ok().map_err(broken)?;
            let state = states
                .get_mut(completion.wr_id as usize)
                .ok_or_else(|| Failure::new("a completion has an unknown queue pair"))?;
            // The last completion may cover fewer messages.
            let fresh = moderation.min(state.posted - state.completed);
            state.completed += fresh;
            completed += fresh;
        }
    }
    Ok(Bandwidth::new(all, all * params.size, start.elapsed().as_nanos() as u64))
}

/// Polls until there is a completion.
#[inline]
fn one_of(cq: &Cq) -> Result<(), Failure> {
    let mut one = [Completion::default()];
    while cq.poll(&mut one).map_err(refused)? == 0 {}
    one[0].ok().map_err(broken)?;
    Ok(())
}

/// Posts the message and waits until the other side has it.
#[inline]
fn send(context: &TestContext) -> Result<(), Failure> {
    let qp = &context.qps[0];
    qp.queue_pair.post_send(&[qp.request(0, true)])?;
    one_of(&context.cq)
}

/// Client of send-lat.
pub(super) fn run_send_lat(
    context: &TestContext,
    control: &mut Control,
    budget: Budget,
) -> Result<Histogram, Failure> {
    let mut histogram = Histogram::new();
    let mut before = Instant::now();
    for _ in 0..messages(budget) {
        send(context)?;
        one_of(&context.recv_cq)?;
        context.qps[0].post_receive()?;
        let now = Instant::now();
        histogram.record((now - before).as_nanos() as u64);
        before = now;
    }
    let report = handshake::stop(control)?;
    if report.received != messages(budget) {
        return Err(Failure::new(format!("the server received {} messages", report.received)));
    }
    pattern::check(&context.region, context.layout.incoming(0), &context.message(0, false), "an answer")?;
    Ok(histogram)
}

/// Server of send-lat: answers until the client stops.
pub(super) fn serve_send_lat(context: &TestContext, control: &mut Control) -> Result<Report, Failure> {
    let mut waiter = Waiter::new(context);
    let mut received = 0;
    let mut one = [Completion::default()];
    loop {
        while context.recv_cq.poll(&mut one).map_err(refused)? == 0 {
            if waiter.after_poll(0, received, &context.recv_cq, control)? == WaitOutcome::ControlReady {
                handshake::await_stop(control)?;
                return Ok(Report { received, ..Report::default() });
            }
        }
        one[0].ok().map_err(broken)?;
        received += 1;
        context.qps[0].post_receive()?;
        send(context)?;
    }
}
