//! Capture of streams, and fault injection into them.
//!
//! Faults apply to reads and writes. The fault of the n-th read or write of a socket depends on the seed, on n, and on the number of sockets
//! opened before. A read that finds no bytes does not count.

use super::socket::Closing;
use super::tap::Tap;
use crate::link::capture::Direction;
use crate::link::counters::{RunningCounters, add};
use crate::link::{Capture, FaultConfig, LinkCounters};
use ferroce_os::clock::wall_clock_ns;
use ferroce_os::lock::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Capture and faults of all streams of a NIC.
pub(crate) struct StreamExtras {
    capture: Option<Arc<Capture>>,
    faults: Option<FaultConfig>,
    counters: RunningCounters,
    sockets: AtomicU64,
}

impl StreamExtras {
    pub(crate) fn new(capture: Option<Arc<Capture>>, faults: Option<FaultConfig>) -> StreamExtras {
        StreamExtras { capture, faults, counters: RunningCounters::default(), sockets: AtomicU64::new(0) }
    }

    /// Whether streams are captured.
    pub(crate) fn captures(&self) -> bool {
        self.capture.is_some()
    }

    pub(crate) fn counters(&self) -> LinkCounters {
        let mut counters = self.counters.snapshot();
        counters.capture_errors += self.capture.as_ref().map_or(0, |capture| capture.errors());
        counters
    }

    /// The extras of a new socket; `None` without capture and faults.
    pub(crate) fn for_socket(self: &Arc<Self>) -> Option<Box<SocketExtras>> {
        if self.capture.is_none() && self.faults.is_none() {
            return None;
        }
        let number = self.sockets.fetch_add(1, Ordering::Relaxed);
        let seed = self.faults.unwrap_or_default().seed.wrapping_add(number);
        let rng = |way: u64| Mutex::new(StdRng::seed_from_u64(seed << 1 | way));
        Some(Box::new(SocketExtras {
            all: self.clone(),
            tap: Mutex::new(None),
            reads: rng(0),
            writes: rng(1),
        }))
    }
}

/// The fault of a read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoFault {
    /// No fault.
    None,
    /// At most this many bytes are moved.
    Short(usize),
    /// No bytes are moved; the call must be repeated.
    Stalled,
    /// The connection is reset.
    Reset,
    /// One bit of the read bytes is flipped.
    Damaged(u32),
}

impl IoFault {
    /// The assumed length of a write, from which the length of short writes is drawn.
    pub(crate) const USUAL_WRITE: usize = 4096;

    /// Draws the fault of a call. All random numbers are drawn each time, so that one fault does not shift the others.
    fn draw(rng: &mut StdRng, config: &FaultConfig, len: usize) -> IoFault {
        let mut hits = |probability: f64| rng.random::<f64>() < probability;
        let (is_reset, is_stalled) = (hits(config.reset), hits(config.stall));
        let (is_short, is_damaged) = (hits(config.short), hits(config.corrupt));
        // Draw the order of magnitude first, so that short lengths are as likely as long ones.
        let bits: u32 = rng.random_range(0..usize::BITS - len.max(1).leading_zeros());
        let (most, bit) = (rng.random_range(1..=1usize << bits), rng.random());
        if is_reset {
            IoFault::Reset
        } else if is_stalled {
            IoFault::Stalled
        } else if is_short {
            IoFault::Short(most)
        } else if is_damaged {
            IoFault::Damaged(bit)
        } else {
            IoFault::None
        }
    }
}

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Io {
    Received,
    Sent,
}

/// Capture and faults of one socket.
pub(crate) struct SocketExtras {
    all: Arc<StreamExtras>,
    tap: Mutex<Option<Tap>>,
    reads: Mutex<StdRng>,
    writes: Mutex<StdRng>,
}

impl SocketExtras {
    pub(crate) fn all(&self) -> Arc<StreamExtras> {
        self.all.clone()
    }

    /// The connection is established.
    pub(crate) fn start(&self, local: SocketAddr, peer: SocketAddr, is_initiator: bool) {
        if let Some(capture) = &self.all.capture {
            *self.tap.lock() = Some(Tap::new(capture.clone(), local, peer, is_initiator));
        }
    }

    /// Whether faults are injected.
    pub(crate) fn has_faults(&self) -> bool {
        self.all.faults.is_some()
    }

    /// The fault of the next read or write of `len` bytes.
    pub(crate) fn next_fault(&self, io: Io, len: usize) -> IoFault {
        let Some(faults) = &self.all.faults else { return IoFault::None };
        let rng = match io {
            Io::Received => &self.reads,
            Io::Sent => &self.writes,
        };
        let fault = IoFault::draw(&mut rng.lock(), faults, len);
        let counters = &self.all.counters;
        match fault {
            IoFault::Short(_) => add(&counters.injected_shorts, 1),
            IoFault::Stalled => add(&counters.injected_stalls, 1),
            IoFault::Reset => add(&counters.injected_resets, 1),
            IoFault::None | IoFault::Damaged(_) => {}
        }
        fault
    }

    /// Flips a bit, if the fault is [`IoFault::Damaged`].
    pub(crate) fn damage(&self, fault: &IoFault, bytes: &mut [u8]) {
        if let (IoFault::Damaged(bit), false) = (fault, bytes.is_empty()) {
            let bit = *bit as usize % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            add(&self.all.counters.injected_corruptions, 1);
        }
    }

    /// The current time for the capture. Read it before a call that sends: when the call returns, a receiver on this host may have recorded
    /// the bytes already.
    pub(crate) fn time_ns(&self) -> u64 {
        if self.all.captures() { wall_clock_ns() } else { 0 }
    }

    /// Records that the first `count` of these bytes crossed the socket at this time. A count of 0 received bytes means that the peer closed
    /// the stream.
    pub(crate) fn record(&self, io: Io, pieces: &[&[u8]], count: usize, time_ns: u64) {
        let mut tap = self.tap.lock();
        let Some(tap) = tap.as_mut() else { return };
        tap.set_time(time_ns);
        match io {
            Io::Received if count == 0 => tap.close(Direction::Received, Closing::AfterData),
            Io::Received => tap.add(Direction::Received, pieces, count),
            Io::Sent => tap.add(Direction::Sent, pieces, count),
        }
    }

    pub(crate) fn record_close(&self, how: Closing) {
        if let Some(tap) = self.tap.lock().as_mut() {
            tap.set_time(wall_clock_ns());
            tap.close(Direction::Sent, how);
        }
    }
}

impl fmt::Debug for SocketExtras {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SocketExtras").finish_non_exhaustive()
    }
}

impl fmt::Debug for StreamExtras {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamExtras").field("faults", &self.faults).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_repeat_with_the_seed_and_no_fault_shifts_another() {
        let all: FaultConfig = "short=20%,stall=10%,reset=1%,corrupt=10%,seed=7".parse().unwrap();
        let only: FaultConfig = "short=20%,seed=7".parse().unwrap();
        let draw = |config: &FaultConfig| {
            let mut rng = StdRng::seed_from_u64(config.seed);
            (0..1000).map(|_| IoFault::draw(&mut rng, config, 100)).collect::<Vec<_>>()
        };
        assert_eq!(draw(&all), draw(&all));
        let shorts =
            |drawn: &[IoFault]| drawn.iter().filter(|fault| matches!(fault, IoFault::Short(_))).count();
        assert!((100..300).contains(&shorts(&draw(&only))));
        for (of_all, of_only) in draw(&all).into_iter().zip(draw(&only)) {
            match of_all {
                IoFault::Short(most) => assert!(of_all == of_only && (1..=64).contains(&most)),
                IoFault::None | IoFault::Damaged(_) => assert_eq!(of_only, IoFault::None),
                IoFault::Stalled | IoFault::Reset => {}
            }
        }
    }
}
