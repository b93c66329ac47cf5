//! Checks that the bytes arrive. The last message of each queue pair differs from all earlier ones, and is verified. So a path that
//! loses data silently yields no figures.

use super::super::super::control::Control;
use super::super::super::handshake::Report;
use super::super::super::test::Operation;
use super::super::context::TestContext;
use super::super::pattern;
use super::Phase;
use super::traffic::{Step, Traffic};
use crate::failure::Failure;
use std::time::Duration;

/// Unreliable messages may be lost: the last one is sent this often, with pauses for the receiver.
const UNRELIABLE_TRIES: u32 = 16;
const PAUSE: Duration = Duration::from_millis(2);
/// Bytes that the first packet of any message holds. The other packets of an unreliable message may be lost.
const FIRST_PACKET: usize = 256;

/// Client: sends the last message of each queue pair, or READs the server's bytes once more and verifies them. Returns the number of
/// operations.
pub(super) fn send_last(traffic: &mut Traffic<'_>, control: &mut Control) -> Result<u64, Failure> {
    let context = traffic.context;
    match context.params.test.operation() {
        Operation::Atomic => return Ok(0),
        Operation::Read => {
            let nothing = vec![0; context.params.size as usize];
            for n in 0..context.qps.len() {
                context.region.write(context.layout.incoming(n), &nothing)?;
            }
            let done = post_one_each(traffic, control)?;
            (0..context.qps.len()).try_for_each(|n| {
                let expected = context.message(n, false);
                pattern::check(&context.region, context.layout.incoming(n), &expected, "the data of a READ")
            })?;
            return Ok(done);
        }
        _ => {}
    }
    for n in 0..context.qps.len() {
        let last = context.message(n, true);
        context.region.write(context.layout.outgoing(n), &last)?;
    }
    let mut done = post_one_each(traffic, control)?;
    for _ in 1..if context.is_reliable() { 1 } else { UNRELIABLE_TRIES } {
        std::thread::sleep(PAUSE);
        done += post_one_each(traffic, control)?;
    }
    Ok(done)
}

fn post_one_each(traffic: &mut Traffic<'_>, control: &mut Control) -> Result<u64, Failure> {
    traffic.sender.start(Some(0), Phase::Unmeasured);
    for n in 0..traffic.context.qps.len() {
        let message = if traffic.context.is_inline() { traffic.context.message(n, true) } else { Vec::new() };
        while !traffic.sender.has_credit(n) {
            let found = traffic.poll()?;
            traffic.wait(found, control)?;
        }
        traffic.sender.post_one(n, &message)?;
    }
    while traffic.step(control)? == Step::Running {}
    traffic.confirm(control)?;
    Ok(traffic.sender.done)
}

/// Server: verifies the last message of each queue pair. `arrived` marks the queue pairs on which one arrived whole.
pub(super) fn check(context: &TestContext, arrived: &[bool]) -> Result<(), Failure> {
    if !matches!(context.params.test.operation(), Operation::Send | Operation::Write) {
        return Ok(());
    }
    if !context.is_reliable() {
        (0..context.qps.len()).filter(|n| !arrived[*n]).try_for_each(|n| check_arrival(context, n))?;
    }
    compare(context, true)
}

/// Fails if the bytes are still those of an earlier message, or zeros: then no copy of the last message arrived. [`compare`] checks all
/// other bytes.
fn check_arrival(context: &TestContext, qp: usize) -> Result<(), Failure> {
    let len = FIRST_PACKET.min(context.params.size as usize);
    let mut found = vec![0; len];
    context.region.read(context.layout.incoming(qp), &mut found)?;
    if !is_earlier_message(&found, &context.message(qp, false)[..len], &context.message(qp, true)[..len]) {
        return Ok(());
    }
    Err(Failure::new(format!("the last message was sent {UNRELIABLE_TRIES} times, and no copy arrived"))
        .advise(
            "Unreliable messages are lost if they arrive faster than the receiver polls: try smaller ones; if an idle \
             machine loses all of them, please report it",
        ))
}

/// Whether these bytes are from a message before the last, or zeros.
fn is_earlier_message(found: &[u8], earlier: &[u8], last: &[u8]) -> bool {
    found != last && (found == earlier || found.iter().all(|byte| *byte == 0))
}

/// Client: verifies a message that the server sent.
pub(super) fn check_returned(context: &TestContext, report: &Report) -> Result<(), Failure> {
    let carries = matches!(context.params.test.operation(), Operation::Send | Operation::Write);
    if report.sent == 0 || !carries || !context.is_reliable() {
        return Ok(());
    }
    compare(context, false)
}

fn compare(context: &TestContext, last: bool) -> Result<(), Failure> {
    (0..context.qps.len()).try_for_each(|n| {
        let mut expected = context.message(n, last);
        if !context.is_reliable() {
            expected.truncate(FIRST_PACKET);
        }
        pattern::check(&context.region, context.layout.incoming(n), &expected, "a message")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_and_corruption_are_distinguished() {
        let [earlier, last] = [1, 2].map(|seed| pattern::bytes(seed, FIRST_PACKET));
        assert!(is_earlier_message(&earlier, &earlier, &last));
        assert!(is_earlier_message(&[0; FIRST_PACKET], &earlier, &last));
        assert!(!is_earlier_message(&last, &earlier, &last), "it arrived");
        let mut damaged = earlier.clone();
        damaged[FIRST_PACKET - 1] ^= 1;
        assert!(!is_earlier_message(&damaged, &earlier, &last), "a wrong byte is no loss");
        let torn = [&last[..8], &earlier[8..]].concat();
        assert!(!is_earlier_message(&torn, &earlier, &last), "nor is half a packet");
    }
}
