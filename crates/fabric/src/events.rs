//! The event queue: a radix heap, keyed by time in picoseconds.
//!
//! Simulated time never goes back, so buckets are relative to the time of the last event that was taken. Bucket 0 holds
//! the events of that time. Bucket n holds the events whose time differs from it in bit n − 1 and in no higher bit. When
//! bucket 0 is empty, the first other bucket is spread over the lower ones. Events of equal time leave in the order of
//! insertion: they are always in one bucket, and spreading keeps their order.

/// Bucket 0 and one per bit.
const BUCKETS: usize = 65;

/// Events by time.
#[derive(Debug)]
pub struct EventQueue<T> {
    buckets: Vec<Vec<(u64, T)>>,
    /// Events of bucket 0 that were taken.
    taken: usize,
    last: u64,
    len: usize,
    /// Buckets 1…64 with events.
    occupied: u64,
}

impl<T: Copy> Default for EventQueue<T> {
    fn default() -> Self {
        EventQueue {
            buckets: (0..BUCKETS).map(|_| Vec::new()).collect(),
            taken: 0,
            last: 0,
            len: 0,
            occupied: 0,
        }
    }
}

impl<T: Copy> EventQueue<T> {
    /// Number of events.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The time of the next event.
    pub fn next_time(&self) -> Option<u64> {
        if let Some((time, _)) = self.buckets[0].get(self.taken) {
            return Some(*time);
        }
        let first = (self.occupied != 0).then(|| self.occupied.trailing_zeros() as usize + 1)?;
        self.buckets[first].iter().map(|(time, _)| *time).min()
    }

    /// Adds an event. A time in the past is replaced by the time of the last event that was taken.
    #[inline]
    pub fn push(&mut self, time: u64, event: T) {
        let time = time.max(self.last);
        let bucket = (64 - (time ^ self.last).leading_zeros()) as usize;
        self.buckets[bucket].push((time, event));
        if bucket > 0 {
            self.occupied |= 1 << (bucket - 1);
        }
        self.len += 1;
    }

    /// Takes the next event, unless its time is after `until`.
    #[inline]
    pub fn pop(&mut self, until: u64) -> Option<(u64, T)> {
        if self.taken == self.buckets[0].len() && !self.refill(until) {
            return None;
        }
        let next = self.buckets[0][self.taken];
        if next.0 > until {
            return None;
        }
        self.taken += 1;
        self.len -= 1;
        Some(next)
    }

    /// Spreads the first bucket that has events. Returns `false` if no event is due by `until`.
    fn refill(&mut self, until: u64) -> bool {
        if self.occupied == 0 {
            return false;
        }
        let from = self.occupied.trailing_zeros() as usize + 1;
        let mut events = std::mem::take(&mut self.buckets[from]);
        let first = events.iter().map(|(time, _)| *time).min().unwrap_or(self.last);
        if first > until {
            self.buckets[from] = events;
            return false;
        }
        self.buckets[0].clear();
        self.taken = 0;
        self.occupied &= self.occupied - 1;
        self.last = first;
        for &(time, event) in &events {
            let bucket = (64 - (time ^ first).leading_zeros()) as usize;
            self.buckets[bucket].push((time, event));
            if bucket > 0 {
                self.occupied |= 1 << (bucket - 1);
            }
        }
        events.clear();
        self.buckets[from] = events; // keeps its memory
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Pcg32;

    #[test]
    fn events_leave_by_time_and_then_by_arrival() {
        let mut rng = Pcg32::new(7, 1);
        let mut queue = EventQueue::default();
        let mut expected: Vec<(u64, u32)> = Vec::new();
        let (mut now, mut number) = (0, 0);
        for _ in 0..20_000 {
            for _ in 0..rng.below(3) {
                let bits = rng.below(20);
                let time = now + u64::from(rng.below(1 << bits));
                queue.push(time, number);
                expected.push((time, number));
                number += 1;
            }
            if let Some((time, event)) = queue.pop(u64::MAX) {
                assert!(time >= now);
                now = time;
                let at = (0..expected.len()).min_by_key(|at| expected[*at]).expect("not empty");
                assert_eq!(expected.swap_remove(at), (time, event));
            }
        }
        assert_eq!(queue.len(), expected.len());
    }

    #[test]
    fn later_events_stay() {
        let mut queue = EventQueue::default();
        queue.push(100, 'a');
        assert_eq!((queue.pop(99), queue.len()), (None, 1));
        queue.push(50, 'b');
        assert_eq!((queue.pop(99), queue.pop(99), queue.pop(100)), (Some((50, 'b')), None, Some((100, 'a'))));
        assert!(queue.is_empty());
    }
}
