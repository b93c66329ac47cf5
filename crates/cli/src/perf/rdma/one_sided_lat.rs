//! READ and fetch-and-add, one at a time: the whole operation, from posting to completion.

use super::super::control::Control;
use super::super::handshake::{self, Report};
use super::super::measure::{Budget, time_round_trips};
use super::super::stats::Histogram;
use super::super::test::Operation;
use super::context::TestContext;
use super::send_lat::unresponsive;
use super::wait::{WaitOutcome, Waiter};
use super::{broken, pattern, refused};
use crate::failure::Failure;
use ferroce::{Completion, Outcome};

/// Client.
pub(super) fn run(
    context: &TestContext,
    control: &mut Control,
    budget: Budget,
) -> Result<Histogram, Failure> {
    let mut waiter = Waiter::new(context);
    let mut operations = 0;
    let histogram = time_round_trips(budget, || {
        operations += 1;
        once(context, &mut waiter, operations, control)
    })?;
    if context.params.test.operation() == Operation::Read {
        let nothing = vec![0; context.params.size as usize];
        context.region.write(context.layout.incoming(0), &nothing)?;
        operations += 1;
        once(context, &mut waiter, operations, control)?;
        let expected = context.message(0, false);
        pattern::check(&context.region, context.layout.incoming(0), &expected, "the data of a READ")?;
    }
    let report = handshake::stop(control)?;
    if context.params.test.operation() == Operation::Atomic && report.received != operations {
        return Err(Failure::new(format!(
            "{operations} atomics completed, but the server's memory counts {}",
            report.received
        )));
    }
    Ok(histogram)
}

#[inline]
fn once(
    context: &TestContext,
    waiter: &mut Waiter,
    number: u64,
    control: &mut Control,
) -> Result<(), Failure> {
    let qp = &context.qps[0];
    qp.queue_pair.post_send(&[qp.request(0, true)])?;
    let mut completions = [Completion::default(); 4];
    loop {
        let n = context.cq.poll(&mut completions).map_err(refused)?;
        for completion in &completions[..n] {
            completion.ok().map_err(broken)?;
        }
        if n > 0 {
            return Ok(());
        }
        match waiter.after_poll(0, number, &context.cq, control)? {
            WaitOutcome::PollAgain => {}
            WaitOutcome::ControlReady => return Err(handshake::interrupted(control)),
            WaitOutcome::TimedOut => return Err(unresponsive()),
        }
    }
}

/// Server: only drives its NIC.
pub(super) fn serve(context: &TestContext, control: &mut Control) -> Result<Report, Failure> {
    drive_until_readable(context, control)?;
    handshake::await_stop(control)?;
    let word = context.layout.incoming(0) as usize;
    let received = match context.params.test.operation() {
        Operation::Atomic => context.region.host().load_u64(word).map_err(refused)?,
        _ => 0,
    };
    Ok(Report { received, ..Report::default() })
}

/// Drives the NIC until the client sends a message. With events it sleeps instead, and the NIC's own thread drives.
pub(super) fn drive_until_readable(context: &TestContext, control: &Control) -> Result<(), Failure> {
    let mut waiter = Waiter::new(context);
    let mut completions = [Completion::default(); 4];
    loop {
        let n = context.cq.poll(&mut completions).map_err(refused)?;
        for completion in &completions[..n] {
            completion.ok().map_err(broken)?;
        }
        if waiter.after_poll(n, 0, &context.cq, control)? == WaitOutcome::ControlReady {
            return Ok(());
        }
    }
}
