//! Checks that the bytes arrive. The last message of each lane differs from all before it, and is verified. So a path
//! that loses data silently yields no figures.

use super::super::super::control::Control;
use super::super::super::handshake::Report;
use super::super::super::test::Operation;
use super::super::pattern;
use super::super::station::Station;
use super::Phase;
use super::traffic::{Step, Traffic};
use crate::failure::Failure;
use std::time::Duration;

/// Unreliable messages may be lost: the last one is sent this often, with pauses for the receiver.
const UNRELIABLE_TRIES: u32 = 16;
const PAUSE: Duration = Duration::from_millis(2);
/// Bytes that the first packet of any message holds. The other packets of an unreliable message may be lost.
const FIRST_PACKET: usize = 256;

/// Client: sends the last message of each lane; for READs, fetches the server's bytes again and verifies them.
/// Returns the number of operations.
pub(super) fn prove(traffic: &mut Traffic<'_>, control: &mut Control) -> Result<u64, Failure> {
    let station = traffic.station;
    match station.params.test.operation() {
        Operation::Atomic => return Ok(0),
        Operation::Read => {
            let nothing = vec![0; station.params.size as usize];
            for n in 0..station.lanes.len() {
                station.region.write(station.layout.incoming(n), &nothing)?;
            }
            let done = post_one_each(traffic, control)?;
            (0..station.lanes.len()).try_for_each(|n| {
                let expected = station.message(n, false);
                pattern::check(&station.region, station.layout.incoming(n), &expected, "what a READ brought")
            })?;
            return Ok(done);
        }
        _ => {}
    }
    for n in 0..station.lanes.len() {
        let last = station.message(n, true);
        station.region.write(station.layout.outgoing(n), &last)?;
    }
    let mut done = post_one_each(traffic, control)?;
    for _ in 1..if station.is_reliable() { 1 } else { UNRELIABLE_TRIES } {
        std::thread::sleep(PAUSE);
        done += post_one_each(traffic, control)?;
    }
    Ok(done)
}

fn post_one_each(traffic: &mut Traffic<'_>, control: &mut Control) -> Result<u64, Failure> {
    traffic.sender.start(Some(0), Phase::Unmeasured);
    for n in 0..traffic.station.lanes.len() {
        let message = if traffic.station.is_inline() { traffic.station.message(n, true) } else { Vec::new() };
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

/// Server: verifies the last message of each lane. `proved` marks the lanes on which one has certainly arrived.
pub(super) fn check(station: &Station, proved: &[bool]) -> Result<(), Failure> {
    if !matches!(station.params.test.operation(), Operation::Send | Operation::Write) {
        return Ok(());
    }
    if !station.is_reliable() {
        (0..station.lanes.len()).filter(|n| !proved[*n]).try_for_each(|n| admit_loss(station, n))?;
    }
    compare(station, true)
}

/// Fails if the bytes are still those of an earlier message, or zeros: then no copy of the last message arrived, and
/// there is no proof. [`compare`] checks all other bytes.
fn admit_loss(station: &Station, lane: usize) -> Result<(), Failure> {
    let len = FIRST_PACKET.min(station.params.size as usize);
    let mut found = vec![0; len];
    station.region.read(station.layout.incoming(lane), &mut found)?;
    if !is_from_before(&found, &station.message(lane, false)[..len], &station.message(lane, true)[..len]) {
        return Ok(());
    }
    Err(Failure::new(format!("the last message was sent {UNRELIABLE_TRIES} times, and no copy arrived"))
        .advise(
            "Unreliable messages are lost where they come faster than they are taken: try smaller ones; if a machine \
             with nothing else to do loses them all, please report it",
        ))
}

/// Whether these bytes are from a message before the last, or zeros.
fn is_from_before(found: &[u8], earlier: &[u8], last: &[u8]) -> bool {
    found != last && (found == earlier || found.iter().all(|byte| *byte == 0))
}

/// Client: verifies a message that the server sent.
pub(super) fn check_returned(station: &Station, report: &Report) -> Result<(), Failure> {
    let carries = matches!(station.params.test.operation(), Operation::Send | Operation::Write);
    if report.sent == 0 || !carries || !station.is_reliable() {
        return Ok(());
    }
    compare(station, false)
}

fn compare(station: &Station, last: bool) -> Result<(), Failure> {
    (0..station.lanes.len()).try_for_each(|n| {
        let mut expected = station.message(n, last);
        if !station.is_reliable() {
            expected.truncate(FIRST_PACKET);
        }
        pattern::check(&station.region, station.layout.incoming(n), &expected, "a message")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_and_corruption_are_distinguished() {
        let [earlier, last] = [1, 2].map(|seed| pattern::bytes(seed, FIRST_PACKET));
        assert!(is_from_before(&earlier, &earlier, &last));
        assert!(is_from_before(&[0; FIRST_PACKET], &earlier, &last));
        assert!(!is_from_before(&last, &earlier, &last), "it arrived");
        let mut damaged = earlier.clone();
        damaged[FIRST_PACKET - 1] ^= 1;
        assert!(!is_from_before(&damaged, &earlier, &last), "a wrong byte is no loss");
        let torn = [&last[..8], &earlier[8..]].concat();
        assert!(!is_from_before(&torn, &earlier, &last), "nor is half a packet");
    }
}
