//! READ and fetch-and-add, one at a time: the whole operation, from posting to completion.

use super::super::control::Control;
use super::super::handshake::{self, Report};
use super::super::measure::{Budget, time_round_trips};
use super::super::stats::Histogram;
use super::super::test::Operation;
use super::send_lat::silent;
use super::station::Station;
use super::wait::{WaitOutcome, Waiter};
use super::{broken, pattern, refused};
use crate::failure::Failure;
use ferroce::{Completion, Outcome};

/// Client.
pub(super) fn run(station: &Station, control: &mut Control, budget: Budget) -> Result<Histogram, Failure> {
    let mut waiter = Waiter::new(station);
    let mut operations = 0;
    let histogram = time_round_trips(budget, || {
        operations += 1;
        once(station, &mut waiter, operations, control)
    })?;
    if station.params.test.operation() == Operation::Read {
        let nothing = vec![0; station.params.size as usize];
        station.region.write(station.layout.incoming(0), &nothing)?;
        operations += 1;
        once(station, &mut waiter, operations, control)?;
        let expected = station.message(0, false);
        pattern::check(&station.region, station.layout.incoming(0), &expected, "what a READ brought")?;
    }
    let report = handshake::stop(control)?;
    if station.params.test.operation() == Operation::Atomic && report.received != operations {
        return Err(Failure::new(format!(
            "{operations} atomics completed, but the server's memory counts {}",
            report.received
        )));
    }
    Ok(histogram)
}

#[inline]
fn once(station: &Station, waiter: &mut Waiter, number: u64, control: &mut Control) -> Result<(), Failure> {
    let lane = &station.lanes[0];
    lane.qp.post_send(&[lane.request(0, true)])?;
    let mut completions = [Completion::default(); 4];
    loop {
        let n = station.cq.poll(&mut completions).map_err(refused)?;
        for completion in &completions[..n] {
            completion.ok().map_err(broken)?;
        }
        if n > 0 {
            return Ok(());
        }
        match waiter.after_poll(0, number, &station.cq, control)? {
            WaitOutcome::PollAgain => {}
            WaitOutcome::ControlReady => return Err(handshake::interrupted(control)),
            WaitOutcome::TimedOut => return Err(silent()),
        }
    }
}

/// Server: only drives its NIC.
pub(super) fn serve(station: &Station, control: &mut Control) -> Result<Report, Failure> {
    attend(station, control)?;
    handshake::await_stop(control)?;
    let word = station.layout.incoming(0) as usize;
    let received = match station.params.test.operation() {
        Operation::Atomic => station.region.host().load_u64(word).map_err(refused)?,
        _ => 0,
    };
    Ok(Report { received, ..Report::default() })
}

/// Drives the NIC until the client sends a message. With events it sleeps instead, and the NIC's own thread drives.
pub(super) fn attend(station: &Station, control: &Control) -> Result<(), Failure> {
    let mut waiter = Waiter::new(station);
    let mut completions = [Completion::default(); 4];
    loop {
        let n = station.cq.poll(&mut completions).map_err(refused)?;
        for completion in &completions[..n] {
            completion.ok().map_err(broken)?;
        }
        if waiter.after_poll(n, 0, &station.cq, control)? == WaitOutcome::ControlReady {
            return Ok(());
        }
    }
}
