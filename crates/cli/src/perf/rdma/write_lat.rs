//! WRITE ping-pong. A WRITE raises no event at the target: each side polls the last byte of its memory, and drives
//! its NIC in between.

use super::super::control::Control;
use super::super::handshake::{self, Report};
use super::super::measure::{Budget, time_round_trips};
use super::super::stats::Histogram;
use super::context::TestContext;
use super::ping::{LastByte, Ping};
use super::send_lat::unresponsive;
use super::wait::{WaitOutcome, Waiter};
use super::{broken, refused};
use crate::failure::Failure;
use ferroce::{Completion, Outcome};

/// Unreliable messages that may be lost in a row before the path counts as broken.
const MAX_CONSECUTIVE_LOSSES: u32 = 10;

struct Watch<'a> {
    context: &'a TestContext,
    last: LastByte<'a>,
    waiter: Waiter,
    completions: [Completion; 16],
    seen: u64,
}

impl<'a> Watch<'a> {
    fn new(context: &'a TestContext) -> Watch<'a> {
        let (last, waiter) = (LastByte::new(context), Waiter::new(context));
        Watch { context, last, waiter, completions: [Completion::default(); 16], seen: 0 }
    }

    /// Waits until the last byte has this value. Returns [`WaitOutcome::PollAgain`] when it has, else why the wait ended.
    #[inline]
    fn wait(&mut self, count: u8, control: &Control) -> Result<WaitOutcome, Failure> {
        while self.last.load()? != count {
            let n = self.context.cq.poll(&mut self.completions).map_err(refused)?;
            for completion in &self.completions[..n] {
                completion.ok().map_err(broken)?;
            }
            match self.waiter.after_poll(n, self.seen, &self.context.cq, control)? {
                WaitOutcome::PollAgain => {}
                other => return Ok(other),
            }
        }
        self.seen += 1;
        Ok(WaitOutcome::PollAgain)
    }
}

/// Client.
pub(super) fn run(
    context: &TestContext,
    control: &mut Control,
    budget: Budget,
) -> Result<Histogram, Failure> {
    let (mut ping, mut watch) = (Ping::new(context), Watch::new(context));
    let mut count = 0u8;
    let histogram = time_round_trips(budget, || {
        count = count.wrapping_add(1);
        ping.post(count)?;
        for _ in 0..MAX_CONSECUTIVE_LOSSES {
            match watch.wait(count, control)? {
                WaitOutcome::PollAgain => return Ok(()),
                WaitOutcome::ControlReady => return Err(handshake::interrupted(control)),
                WaitOutcome::TimedOut if context.is_reliable() => return Err(unresponsive()),
                WaitOutcome::TimedOut => ping.post(count)?,
            }
        }
        Err(unresponsive())
    })?;
    let report = handshake::stop(control)?;
    if report.received == 0 {
        return Err(Failure::new("no WRITE arrived at the server"));
    }
    Ok(histogram)
}

/// Server: writes back each count that it sees.
pub(super) fn serve(context: &TestContext, control: &mut Control) -> Result<Report, Failure> {
    let (mut pong, mut watch) = (Ping::new(context), Watch::new(context));
    let mut count = 1u8;
    loop {
        match watch.wait(count, control)? {
            WaitOutcome::PollAgain => {
                pong.post(count)?;
                count = count.wrapping_add(1);
            }
            WaitOutcome::ControlReady => break,
            // Either the message to us was lost, and the client resends it, or our answer was.
            WaitOutcome::TimedOut if !context.is_reliable() && watch.seen > 0 => {
                pong.post(count.wrapping_sub(1))?
            }
            WaitOutcome::TimedOut => {}
        }
    }
    handshake::await_stop(control)?;
    Ok(Report { received: watch.seen, ..Report::default() })
}
