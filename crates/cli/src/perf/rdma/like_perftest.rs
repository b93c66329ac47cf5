//! The same calls as perftest's programs, in the same order, so that both can be compared call for call.
//!
//! It checks neither the clock nor the control channel meanwhile: a lost peer ends in a completion with an error.

use super::super::control::Control;
use super::super::handshake::{self, Report};
use super::super::measure::{Budget, Limit};
use super::super::params::Params;
use super::super::stats::{Bandwidth, Histogram};
use super::super::test::Test;
use super::station::Station;
use super::wait::{WaitOutcome, Waiter};
use super::{broken, pattern, refused};
use crate::failure::Failure;
use ferroce::{Completion, Cq, Outcome, Sge};
use std::ops::Range;
use std::time::Instant;

/// Receives that wait in a SEND test.
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
pub(super) fn walk(params: &Params) -> Option<Range<u64>> {
    let walks = params.like_perftest && params.test != Test::SendLat && params.size <= PAGE / 2;
    walks.then_some(0..PAGE)
}

fn messages(budget: Budget) -> u64 {
    match budget.limit {
        Limit::Messages(count) => count,
        // The command line refuses it.
        Limit::Time(_) => 1,
    }
}

/// The state that perftest keeps for each queue pair while it posts.
struct Course {
    posted: u64,
    completed: u64,
    /// Offset of the next message's bytes, on both sides.
    offset: u64,
    signalled: bool,
}

/// Client of write-bw and read-bw. It counts as perftest does, per queue pair and request by request, divisions
/// included. Otherwise the difference between the two programs would look like one between the two libraries.
pub(super) fn stream(station: &Station, budget: Budget) -> Result<Bandwidth, Failure> {
    let params = &station.params;
    let (count, depth) = (messages(budget), u64::from(params.tx_depth));
    let usual = if params.size > LARGEST_MODERATED { 1 } else { CQ_MODERATION.min(params.tx_depth) };
    let moderation = u64::from(params.cq_moderation.unwrap_or(usual));
    let (step, end) = match walk(params) {
        Some(walk) => (params.size.next_multiple_of(CACHE_LINE), walk.end),
        None => (0, u64::MAX),
    };
    let start_of =
        |_| Course { posted: 0, completed: 0, offset: 0, signalled: moderation == 1 || count == 1 };
    let mut courses: Vec<Course> = station.lanes.iter().map(start_of).collect();
    let all = count * station.lanes.len() as u64;
    let (mut posted, mut completed) = (0, 0);
    let mut sges = [Sge::default(); 1];
    let mut completions = [Completion::default(); POLL_BATCH];
    let start = Instant::now();
    while posted < all || completed < all {
        for (lane, course) in station.lanes.iter().zip(&mut courses) {
            while course.posted < count && course.posted - course.completed < depth {
                if moderation > 1 && course.posted % moderation == 0 && course.posted != count - 1 {
                    course.signalled = false;
                }
                lane.qp.post_send(&[lane.request_at(course.offset, &mut sges, course.signalled)])?;
                course.offset = if course.offset + 2 * step > end { 0 } else { course.offset + step };
                course.posted += 1;
                posted += 1;
                if course.posted % moderation == moderation - 1 || course.posted == count - 1 {
                    course.signalled = true;
                }
            }
        }
        let found = station.cq.poll(&mut completions).map_err(refused)?;
        for completion in &completions[..found] {
            completion.ok().map_err(broken)?;
            let course = courses
                .get_mut(completion.wr_id as usize)
                .ok_or_else(|| Failure::new("a completion has an unknown queue pair"))?;
            // The last completion may cover fewer messages.
            let fresh = moderation.min(course.posted - course.completed);
            course.completed += fresh;
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
fn send(station: &Station) -> Result<(), Failure> {
    let lane = &station.lanes[0];
    lane.qp.post_send(&[lane.request(0, true)])?;
    one_of(&station.cq)
}

/// Client of send-lat.
pub(super) fn run_send_lat(
    station: &Station,
    control: &mut Control,
    budget: Budget,
) -> Result<Histogram, Failure> {
    let mut histogram = Histogram::new();
    let mut before = Instant::now();
    for _ in 0..messages(budget) {
        send(station)?;
        one_of(&station.recv_cq)?;
        station.lanes[0].post_receive()?;
        let now = Instant::now();
        histogram.record((now - before).as_nanos() as u64);
        before = now;
    }
    let report = handshake::stop(control)?;
    if report.received != messages(budget) {
        return Err(Failure::new(format!("the server received {} messages", report.received)));
    }
    pattern::check(&station.region, station.layout.incoming(0), &station.message(0, false), "an answer")?;
    Ok(histogram)
}

/// Server of send-lat: answers until the client stops.
pub(super) fn serve_send_lat(station: &Station, control: &mut Control) -> Result<Report, Failure> {
    let mut waiter = Waiter::new(station);
    let mut received = 0;
    let mut one = [Completion::default()];
    loop {
        while station.recv_cq.poll(&mut one).map_err(refused)? == 0 {
            if waiter.after_poll(0, received, &station.recv_cq, control)? == WaitOutcome::ControlReady {
                handshake::await_stop(control)?;
                return Ok(Report { received, ..Report::default() });
            }
        }
        one[0].ok().map_err(broken)?;
        received += 1;
        station.lanes[0].post_receive()?;
        send(station)?;
    }
}
