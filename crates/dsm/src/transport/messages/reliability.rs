//! One direction of a connection over datagrams, without I/O: sequence numbers, a send window, acknowledgements,
//! retransmission.
//!
//! Every datagram acknowledges those of the other direction. A request is answered by a reply, and a reply is often followed by
//! the next request, so few acknowledgements need a datagram of their own: those of a gap or a duplicate, which must not
//! wait, those of many datagrams, and those that a timer finds.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Maximum number of datagrams in flight; together they fit into a default receive buffer.
const IN_FLIGHT: usize = 16;
/// First and longest wait for an acknowledgement.
const WAIT: Duration = Duration::from_millis(10);
const MAX_WAIT: Duration = Duration::from_millis(320);
/// Timeouts in a row after which the other side is lost: about ten seconds. As the heartbeats of the [meeting](crate::meet), they are counted, not
/// timed: a job that was stopped and continued as a whole has missed one.
pub(super) const MAX_UNANSWERED: u32 = 36;
/// Datagrams that may arrive in order before they are acknowledged immediately. Less than half a send window.
const UNACKNOWLEDGED: u32 = 6;
/// Duplicate acknowledgements after which the next datagram counts as lost.
const REPEATS: u32 = 2;

/// The sender to one process.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Number of the first datagram in `waiting`.
    first: u64,
    /// Not acknowledged yet, the first `in_flight` of them sent.
    waiting: VecDeque<Vec<u8>>,
    in_flight: usize,
    repeats: u32,
    wait: Duration,
    deadline: Instant,
    /// Timeouts since the last acknowledgement.
    unanswered: u32,
}

impl Outgoing {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            first: 0,
            waiting: VecDeque::new(),
            in_flight: 0,
            repeats: 0,
            wait: WAIT,
            deadline: now,
            unanswered: 0,
        }
    }

    pub(super) fn push(&mut self, message: Vec<u8>) {
        self.waiting.push_back(message);
    }

    /// The next datagram that may be sent, and its number.
    pub(super) fn poll(&mut self, now: Instant) -> Option<(u64, &[u8])> {
        if self.in_flight >= IN_FLIGHT || self.in_flight >= self.waiting.len() {
            return None;
        }
        if self.in_flight == 0 {
            self.unanswered = 0;
            self.wait = WAIT;
            self.deadline = now + self.wait;
        }
        let number = self.first + self.in_flight as u64;
        self.in_flight += 1;
        Some((number, &self.waiting[self.in_flight - 1]))
    }

    /// Handles an acknowledgement of all datagrams before `next`. Returns the datagram to retransmit. One that came with
    /// a message (`piggybacked`) does not indicate a gap.
    pub(super) fn acknowledge(&mut self, next: u64, piggybacked: bool, now: Instant) -> Option<(u64, &[u8])> {
        let arrived = next.saturating_sub(self.first);
        if arrived > self.in_flight as u64 {
            return None;
        }
        if arrived > 0 {
            self.waiting.drain(..arrived as usize);
            self.in_flight -= arrived as usize;
            self.first = next;
            (self.repeats, self.wait, self.unanswered) = (0, WAIT, 0);
            self.deadline = now + self.wait;
            return None;
        }
        if next == self.first && self.in_flight > 0 && !piggybacked {
            self.repeats += 1;
            if self.repeats == REPEATS {
                return Some((self.first, &self.waiting[0]));
            }
        }
        None
    }

    /// The datagram to retransmit because of a timeout.
    pub(super) fn expire(&mut self, now: Instant) -> Option<(u64, &[u8])> {
        if self.in_flight == 0 || now < self.deadline {
            return None;
        }
        self.wait = (self.wait * 2).min(MAX_WAIT);
        self.deadline = now + self.wait;
        self.repeats = 0;
        self.unanswered += 1;
        Some((self.first, &self.waiting[0]))
    }

    /// Whether the other side is lost: too many timeouts in a row.
    pub(super) fn is_lost(&self) -> bool {
        self.unanswered >= MAX_UNANSWERED
    }
}

/// The receiver from one process.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    early: BTreeMap<u64, Vec<u8>>,
}

/// What a receiver has to acknowledge. Every datagram that any thread sends carries it.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    next: AtomicU64,
    unacknowledged: AtomicU32,
}

impl Arrived {
    /// The number to acknowledge: all datagrams before it arrived.
    pub(super) fn acknowledge(&self) -> u64 {
        self.unacknowledged.store(0, Ordering::Relaxed);
        self.next.load(Ordering::Acquire)
    }

    /// Whether an acknowledgement is due, after a while without one.
    pub(super) fn is_overdue(&self) -> bool {
        self.unacknowledged.load(Ordering::Relaxed) > 0
    }

    fn advance(&self) -> u64 {
        self.unacknowledged.fetch_add(1, Ordering::Relaxed);
        self.next.fetch_add(1, Ordering::AcqRel) + 1
    }
}

impl Incoming {
    /// Handles a datagram; delivers complete messages in order. Returns whether to acknowledge immediately.
    pub(super) fn take(
        &mut self,
        arrived: &Arrived,
        number: u64,
        message: &[u8],
        mut each: impl FnMut(&[u8]),
    ) -> bool {
        let next = arrived.next.load(Ordering::Acquire);
        if number != next {
            if number > next && number - next < IN_FLIGHT as u64 {
                self.early.insert(number, message.to_vec());
            }
            return true;
        }
        // Counted before it is delivered: its reply, which carries the acknowledgement, may be sent during the delivery.
        let mut next = arrived.advance();
        each(message);
        while let Some(message) = self.early.remove(&next) {
            next = arrived.advance();
            each(&message);
        }
        arrived.unacknowledged.load(Ordering::Relaxed) >= UNACKNOWLEDGED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_arrives_once_and_in_order_whatever_is_lost() {
        for seed in 1..200u64 {
            let mut state = seed;
            let mut random = |below: u64| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 33) % below
            };
            let mut now = Instant::now();
            let (mut outgoing, mut incoming) = (Outgoing::new(now), Incoming::default());
            let arrived = Arrived::default();
            (0..100u8).for_each(|number| outgoing.push(vec![number]));
            let mut wire: Vec<(u64, Vec<u8>)> = Vec::new();
            let mut got = Vec::new();
            while got.len() < 100 {
                while let Some((number, message)) = outgoing.poll(now) {
                    wire.push((number, message.to_vec()));
                }
                let mut acknowledge = wire.is_empty() && arrived.is_overdue();
                let mut piggybacked = random(2) == 0;
                if wire.is_empty() {
                    now += MAX_WAIT;
                    wire.extend(outgoing.expire(now).map(|(number, message)| (number, message.to_vec())));
                } else {
                    let (number, message) = wire.swap_remove(random(wire.len() as u64) as usize);
                    if random(4) == 0 {
                        continue;
                    }
                    let immediately =
                        incoming.take(&arrived, number, &message, |message| got.push(message[0]));
                    acknowledge |= immediately || piggybacked;
                    piggybacked &= !immediately;
                }
                if acknowledge {
                    let next = arrived.acknowledge();
                    if random(4) > 0 {
                        let again = outgoing.acknowledge(next, piggybacked, now);
                        wire.extend(again.map(|(number, message)| (number, message.to_vec())));
                    }
                }
            }
            assert!(got.iter().copied().eq(0..100), "seed {seed}: {got:?}");
        }
    }

    #[test]
    fn a_job_that_was_stopped_for_an_hour_continues_and_a_dead_process_is_lost() {
        let mut now = Instant::now();
        let mut outgoing = Outgoing::new(now);
        outgoing.push(vec![0]);
        outgoing.push(vec![1]);
        assert!(outgoing.poll(now).is_some() && outgoing.poll(now).is_some());
        now += Duration::from_secs(3600);
        assert!(outgoing.expire(now).is_some() && !outgoing.is_lost());
        outgoing.acknowledge(1, false, now);
        let start = now;
        while !outgoing.is_lost() {
            now += WAIT;
            outgoing.expire(now);
        }
        let elapsed = now - start;
        assert!((9..12).contains(&elapsed.as_secs()), "{elapsed:?} of virtual time");
    }

    #[test]
    fn replies_carry_the_acknowledgements() {
        let mut incoming = Incoming::default();
        let arrived = Arrived::default();
        for number in 0..50 {
            assert!(!incoming.take(&arrived, number, b"request", |_| ()));
            assert_eq!(arrived.acknowledge(), number + 1, "the reply carries it");
        }
        assert!(!arrived.is_overdue());
        let immediately: Vec<u64> =
            (50..62).filter(|&number| incoming.take(&arrived, number, b"", |_| ())).collect();
        assert_eq!(immediately.first(), Some(&55), "many datagrams are acknowledged without a reply");
        assert!(arrived.is_overdue());
        assert!(incoming.take(&arrived, 70, b"", |_| ()), "a gap is reported immediately");
        assert!(incoming.take(&arrived, 3, b"", |_| ()), "so is a duplicate");
    }
}
