//! The receive queue, and the receive that holds the current message.

use crate::verbs::{QpCap, RecvWr, Sge};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// A receive taken from its own or a shared queue. The SGEs are stored in a reused vector.
#[derive(Clone, Debug, Default)]
pub struct RecvWqe {
    /// The application's work request id.
    pub wr_id: u64,
    /// The scatter list.
    pub sges: Vec<Sge>,
}

impl RecvWqe {
    /// Its capacity in bytes.
    pub fn capacity(&self) -> u64 {
        capacity(&self.sges)
    }

    /// Copies a posted request.
    pub fn assign(&mut self, wr_id: u64, sges: &[Sge]) {
        self.wr_id = wr_id;
        self.sges.clear();
        self.sges.extend_from_slice(sges);
    }
}

/// Capacity of these SGEs in bytes.
#[inline]
pub(crate) fn capacity(sges: &[Sge]) -> u64 {
    match sges {
        [only] => u64::from(only.len),
        _ => sges.iter().map(|s| u64::from(s.len)).sum(),
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    wr_id: u64,
    sge_count: u8,
}

/// A ring of posted receives; also the base of a shared receive queue.
#[derive(Debug)]
pub struct RecvQueue {
    ring: Box<[Entry]>,
    sges: Box<[Sge]>,
    stride: usize,
    head: usize,
    len: usize,
}

impl RecvQueue {
    /// Creates a queue of `depth` requests with up to `max_sge` SGEs each.
    pub fn new(depth: u32, max_sge: u32) -> Self {
        let (depth, stride) = (depth as usize, max_sge as usize);
        RecvQueue {
            ring: vec![Entry::default(); depth].into(),
            sges: vec![Sge::default(); depth * stride].into(),
            stride,
            head: 0,
            len: 0,
        }
    }

    pub(crate) fn for_qp(cap: &QpCap, shared: bool) -> Self {
        if shared { RecvQueue::new(0, 0) } else { RecvQueue::new(cap.max_recv_wr, cap.max_recv_sge) }
    }

    /// Posted requests.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether no request is posted.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Depth of the queue.
    pub fn depth(&self) -> usize {
        self.ring.len()
    }
    /// Maximum SGEs per request.
    pub fn max_sge(&self) -> usize {
        self.stride
    }
    pub(crate) fn memory_footprint(&self) -> usize {
        size_of_val(&*self.ring) + size_of_val(&*self.sges)
    }
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Ring index of a position that exceeds the ring at most once: no division is needed.
    #[inline]
    fn wrap(&self, index: usize) -> usize {
        if index >= self.ring.len() { index - self.ring.len() } else { index }
    }

    /// Adds a request. Returns whether it fit; a full queue or too many SGEs refuse it.
    #[must_use]
    #[inline]
    pub fn push(&mut self, wr: &RecvWr<'_>) -> bool {
        if self.len == self.ring.len() || wr.sges.len() > self.stride {
            return false;
        }
        let slot = self.wrap(self.head + self.len);
        self.ring[slot] = Entry { wr_id: wr.wr_id, sge_count: wr.sges.len() as u8 };
        let start = slot * self.stride;
        match wr.sges {
            [only] => self.sges[start] = *only,
            sges => self.sges[start..start + sges.len()].copy_from_slice(sges),
        }
        self.len += 1;
        true
    }

    /// The oldest request, borrowed from the ring.
    #[inline(always)]
    pub(crate) fn oldest(&self) -> Option<(u64, &[Sge])> {
        let entry = self.ring.get(self.head).filter(|_| self.len > 0)?;
        let start = self.head * self.stride;
        Some((entry.wr_id, &self.sges[start..start + usize::from(entry.sge_count)]))
    }

    /// Removes the oldest request, which the caller has read.
    #[inline]
    pub(crate) fn forget_oldest(&mut self) {
        debug_assert!(self.len > 0);
        self.head = self.wrap(self.head + 1);
        self.len -= 1;
    }

    /// Moves the oldest request to `into`. Returns whether there was one.
    #[must_use]
    pub fn pop(&mut self, into: &mut RecvWqe) -> bool {
        let Some((wr_id, sges)) = self.oldest() else { return false };
        into.assign(wr_id, sges);
        self.forget_oldest();
        true
    }

    /// Resizes the queue to `depth` and keeps the posted requests. Returns whether they fit.
    #[must_use]
    pub fn resize(&mut self, depth: u32) -> bool {
        if (depth as usize) < self.len {
            return false;
        }
        let mut larger = RecvQueue::new(depth, self.stride as u32);
        let mut wqe = RecvWqe::default();
        while self.pop(&mut wqe) {
            let kept = larger.push(&RecvWr { wr_id: wqe.wr_id, sges: &wqe.sges });
            debug_assert!(kept);
        }
        *self = larger;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_across_wrap_and_resize() {
        let mut q = RecvQueue::new(2, 1);
        let mut got = RecvWqe::default();
        for round in 0..5u64 {
            assert!(q.push(&RecvWr { wr_id: 2 * round, sges: &[] }));
            assert!(q.push(&RecvWr { wr_id: 2 * round + 1, sges: &[Sge::default()] }));
            assert!(!q.push(&RecvWr { wr_id: 99, sges: &[] }));
            assert!(q.pop(&mut got) && got.wr_id == 2 * round && got.sges.is_empty());
            if round == 3 {
                assert!(q.resize(4) && !q.resize(0));
                assert!(q.pop(&mut got) && got.wr_id == 7);
                assert_eq!(q.depth(), 4);
                break;
            }
            assert!(q.pop(&mut got) && got.wr_id == 2 * round + 1 && got.sges.len() == 1);
        }
    }
}
