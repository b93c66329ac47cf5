//! SEND ping-pong.

use super::super::control::Control;
use super::super::handshake::{self, Report};
use super::super::measure::{Budget, time_round_trips};
use super::super::stats::Histogram;
use super::context::TestContext;
use super::ping::{LastByte, Ping};
use super::wait::{WaitOutcome, Waiter};
use super::{broken, refused};
use crate::failure::Failure;
use ferroce::{Completion, Outcome, WcOpcode};

/// Receives are reposted in groups of this size, after the answer was sent.
const REPOST_BATCH: u32 = 16;
/// Unreliable messages that may be lost in a row before the path counts as broken.
const MAX_CONSECUTIVE_LOSSES: u32 = 10;

/// Receives messages.
struct Inbox<'a> {
    context: &'a TestContext,
    waiter: Waiter,
    completions: [Completion; 16],
    received: u64,
    to_repost: u32,
}

impl<'a> Inbox<'a> {
    fn new(context: &'a TestContext) -> Inbox<'a> {
        let completions = [Completion::default(); 16];
        Inbox { context, waiter: Waiter::new(context), completions, received: 0, to_repost: 0 }
    }

    /// Waits for messages. Returns how many arrived, or why none did. Several can arrive only after an unreliable message
    /// was counted as lost.
    #[inline]
    fn wait(&mut self, control: &Control) -> Result<Result<u32, WaitOutcome>, Failure> {
        loop {
            let n = self.context.cq.poll(&mut self.completions).map_err(refused)?;
            let mut arrived = 0;
            for completion in &self.completions[..n] {
                let done = completion.ok().map_err(broken)?;
                arrived += u32::from(done.opcode == WcOpcode::Recv);
            }
            if arrived > 0 {
                self.received += u64::from(arrived);
                self.to_repost += arrived;
                return Ok(Ok(arrived));
            }
            match self.waiter.after_poll(n, self.received, &self.context.cq, control)? {
                WaitOutcome::PollAgain => {}
                other => return Ok(Err(other)),
            }
        }
    }

    #[inline]
    fn repost(&mut self) -> Result<(), Failure> {
        if self.to_repost >= REPOST_BATCH {
            self.context.qps[0].post_receives(0, std::mem::take(&mut self.to_repost))?;
        }
        Ok(())
    }
}

/// Client.
pub(super) fn run(
    context: &TestContext,
    control: &mut Control,
    budget: Budget,
) -> Result<Histogram, Failure> {
    let (mut ping, mut inbox, last) = (Ping::new(context), Inbox::new(context), LastByte::new(context));
    let mut count = 0u8;
    let histogram = time_round_trips(budget, || {
        count = count.wrapping_add(1);
        ping.post(count)?;
        inbox.repost()?;
        let mut lost = 0;
        loop {
            match inbox.wait(control)? {
                Ok(_) if last.load()? == count => return Ok(()),
                Ok(_) if context.is_reliable() => {
                    return Err(Failure::new("an answer is not the message that was sent"));
                }
                // The answer to a message that counted as lost.
                Ok(_) => {}
                Err(WaitOutcome::ControlReady) => return Err(handshake::interrupted(control)),
                Err(_) if context.is_reliable() => return Err(unresponsive()),
                Err(_) => {
                    lost += 1;
                    if lost > MAX_CONSECUTIVE_LOSSES {
                        return Err(unresponsive());
                    }
                    ping.post(count)?;
                }
            }
        }
    })?;
    let report = handshake::stop(control)?;
    if report.received == 0 {
        return Err(Failure::new("the server received nothing"));
    }
    Ok(histogram)
}

/// Server: returns every message with its own count.
pub(super) fn serve(context: &TestContext, control: &mut Control) -> Result<Report, Failure> {
    let (mut pong, mut inbox, last) = (Ping::new(context), Inbox::new(context), LastByte::new(context));
    loop {
        match inbox.wait(control)? {
            Ok(_) => {
                pong.post(last.load()?)?;
                inbox.repost()?;
            }
            Err(WaitOutcome::ControlReady) => break,
            Err(_) => {}
        }
    }
    handshake::await_stop(control)?;
    Ok(Report { received: inbox.received, ..Report::default() })
}

/// No answer arrives, and no error was reported.
pub(super) fn unresponsive() -> Failure {
    Failure::new("the other side stopped answering over RDMA, although its process runs")
        .advise("A firewall between the machines may drop UDP port 4791, or over iWARP the TCP connection")
}
