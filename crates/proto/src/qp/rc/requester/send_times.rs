//! When packets were sent, for controllers that need the round-trip time of every packet.

use crate::Time;
use crate::ids::Psn;
use alloc::boxed::Box;

/// Packets whose time is stored. With more in flight, the ACKs of the others have no round-trip time.
const STORED: usize = 256;

/// Send times of the last packets, by PSN. Only packets that were sent once have one (Karn's algorithm).
#[derive(Debug, Default)]
pub(super) struct SendTimes(Option<Box<[Sent; STORED]>>);

/// A packet and when it was sent, if it was sent once.
type Sent = Option<(Psn, Time)>;

impl SendTimes {
    /// Stores times only if `is_needed`.
    pub(super) fn new(is_needed: bool) -> SendTimes {
        SendTimes(is_needed.then(|| Box::new([None; STORED])))
    }

    /// Packets were sent for the first time.
    #[inline]
    pub(super) fn on_first(&mut self, psn: Psn, packets: u32, now: Time) {
        if let Some(times) = &mut self.0 {
            for psn in (0..packets).map(|n| psn.plus(n)) {
                times[slot(psn)] = Some((psn, now));
            }
        }
    }

    /// Packets were sent again.
    #[inline]
    pub(super) fn forget(&mut self, psn: Psn, packets: u32) {
        if let Some(times) = &mut self.0 {
            for psn in (0..packets).map(|n| psn.plus(n)) {
                times[slot(psn)] = None;
            }
        }
    }

    /// Round-trip time of an acknowledged packet that was sent once.
    #[inline]
    pub(super) fn rtt_ns(&self, acked: Psn, now: Time) -> Option<u64> {
        let (psn, sent_at) = self.0.as_ref()?[slot(acked)]?;
        (psn == acked).then(|| now.since_ns(sent_at))
    }
}

fn slot(psn: Psn) -> usize {
    psn.value() as usize % STORED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packets_that_were_sent_once_have_a_time() {
        let mut times = SendTimes::new(true);
        let first = Psn::new(0xff_fffe);
        times.on_first(first, 4, Time(100));
        assert_eq!(times.rtt_ns(first.plus(3), Time(350)), Some(250));
        times.forget(first.plus(1), 2);
        assert_eq!(times.rtt_ns(first.plus(1), Time(350)), None);
        assert_eq!(
            times.rtt_ns(first.plus(3 + STORED as u32), Time(350)),
            None,
            "another packet of the slot"
        );
        assert_eq!(SendTimes::new(false).rtt_ns(first, Time(350)), None);
    }
}
