//! SEND ping-pong.

use super::super::control::Control;
use super::super::handshake::{self, Report};
use super::super::measure::{Budget, time_round_trips};
use super::super::stats::Histogram;
use super::ping::{LastByte, Ping};
use super::station::Station;
use super::wait::{WaitOutcome, Waiter};
use super::{broken, refused};
use crate::failure::Failure;
use ferroce::{Completion, Outcome, WcOpcode};

/// Receives are reposted in groups of this size, after the answer was sent.
const GIVE_BACK: u32 = 16;
/// Unreliable messages that may be lost in a row before the path counts as broken.
const LOST_IN_A_ROW: u32 = 10;

/// Receives messages.
struct Inbox<'a> {
    station: &'a Station,
    waiter: Waiter,
    completions: [Completion; 16],
    received: u64,
    owed: u32,
}

impl<'a> Inbox<'a> {
    fn new(station: &'a Station) -> Inbox<'a> {
        let completions = [Completion::default(); 16];
        Inbox { station, waiter: Waiter::new(station), completions, received: 0, owed: 0 }
    }

    /// Waits for messages. Returns how many arrived, or why none did. Several can arrive only after an unreliable message
    /// was counted as lost.
    #[inline]
    fn wait(&mut self, control: &Control) -> Result<Result<u32, WaitOutcome>, Failure> {
        loop {
            let n = self.station.cq.poll(&mut self.completions).map_err(refused)?;
            let mut came = 0;
            for completion in &self.completions[..n] {
                let done = completion.ok().map_err(broken)?;
                came += u32::from(done.opcode == WcOpcode::Recv);
            }
            if came > 0 {
                self.received += u64::from(came);
                self.owed += came;
                return Ok(Ok(came));
            }
            match self.waiter.after_poll(n, self.received, &self.station.cq, control)? {
                WaitOutcome::PollAgain => {}
                other => return Ok(Err(other)),
            }
        }
    }

    #[inline]
    fn give_back(&mut self) -> Result<(), Failure> {
        if self.owed >= GIVE_BACK {
            self.station.lanes[0].post_receives(0, std::mem::take(&mut self.owed))?;
        }
        Ok(())
    }
}

/// Client.
pub(super) fn run(station: &Station, control: &mut Control, budget: Budget) -> Result<Histogram, Failure> {
    let (mut ping, mut inbox, last) = (Ping::new(station), Inbox::new(station), LastByte::new(station));
    let mut count = 0u8;
    let histogram = time_round_trips(budget, || {
        count = count.wrapping_add(1);
        ping.post(count)?;
        inbox.give_back()?;
        let mut lost = 0;
        loop {
            match inbox.wait(control)? {
                Ok(_) if last.load()? == count => return Ok(()),
                Ok(_) if station.is_reliable() => {
                    return Err(Failure::new("an answer is not the message that was sent"));
                }
                // The answer to a message that counted as lost.
                Ok(_) => {}
                Err(WaitOutcome::ControlReady) => return Err(handshake::interrupted(control)),
                Err(_) if station.is_reliable() => return Err(silent()),
                Err(_) => {
                    lost += 1;
                    if lost > LOST_IN_A_ROW {
                        return Err(silent());
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
pub(super) fn serve(station: &Station, control: &mut Control) -> Result<Report, Failure> {
    let (mut pong, mut inbox, last) = (Ping::new(station), Inbox::new(station), LastByte::new(station));
    loop {
        match inbox.wait(control)? {
            Ok(_) => {
                pong.post(last.load()?)?;
                inbox.give_back()?;
            }
            Err(WaitOutcome::ControlReady) => break,
            Err(_) => {}
        }
    }
    handshake::await_stop(control)?;
    Ok(Report { received: inbox.received, ..Report::default() })
}

/// No answer arrives, and no error was reported.
pub(super) fn silent() -> Failure {
    Failure::new("the other side stopped answering over RDMA, although its process runs")
        .advise("A firewall between the machines may drop UDP port 4791, or over iWARP the TCP connection")
}
