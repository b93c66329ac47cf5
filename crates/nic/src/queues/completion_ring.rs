//! The completions that wait in a completion queue.
//!
//! The length of the ring is a power of two, so a mask finds a slot. `VecDeque` compares with its capacity at every step, which costs 24
//! instructions per completion.

use ferroce_proto::verbs::Completion;

/// A ring of completions. The caller limits their number to the depth.
pub(super) struct CompletionRing {
    /// Its length grows during the first lap, so that a deep queue takes memory only as it is used. Only
    /// [`Self::reserve`] reallocates it.
    slots: Vec<Completion>,
    mask: usize,
    /// The position of the oldest one. The slot of a position is its low bits.
    head: usize,
    len: usize,
}

impl CompletionRing {
    pub(super) fn new(depth: usize) -> CompletionRing {
        let slots = depth.next_power_of_two();
        CompletionRing { slots: Vec::with_capacity(slots), mask: slots - 1, head: 0, len: 0 }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn slot(&self, index: usize) -> usize {
        self.head.wrapping_add(index) & self.mask
    }

    /// Adds a completion behind the others.
    #[inline(always)] // the completion is built in its slot
    pub(super) fn push(&mut self, completion: Completion) {
        let slot = self.slot(self.len);
        if slot == self.slots.len() {
            self.use_further_slot();
        }
        self.slots[slot] = completion;
        self.len += 1;
    }

    #[cold]
    #[inline(never)]
    fn use_further_slot(&mut self) {
        self.slots.push(Completion::default());
    }

    /// Takes the oldest `n`, of at least as many.
    #[inline(always)] // the completion is copied from its slot
    pub(super) fn take(&mut self, n: usize, mut each: impl FnMut(usize, Completion)) {
        debug_assert!(n <= self.len);
        for index in 0..n {
            each(index, self.slots[self.slot(index)]);
        }
        self.head = self.head.wrapping_add(n);
        self.len -= n;
    }

    /// The completion behind `index` others.
    pub(super) fn get(&self, index: usize) -> Option<&Completion> {
        (index < self.len).then(|| &self.slots[self.slot(index)])
    }

    /// The completions, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Completion> {
        (0..self.len).map(|index| &self.slots[self.slot(index)])
    }

    /// Removes the completion behind `index` others. The others keep their order.
    pub(super) fn remove(&mut self, index: usize) {
        debug_assert!(index < self.len);
        for index in (0..index).rev() {
            let (from, to) = (self.slot(index), self.slot(index + 1));
            self.slots[to] = self.slots[from];
        }
        self.take(1, |_, _| ());
    }

    /// Removes all completions for which `keeps` returns `false`. The others keep their order.
    pub(super) fn retain(&mut self, keeps: impl Fn(&Completion) -> bool) {
        let mut kept = 0;
        for index in 0..self.len {
            let (from, to) = (self.slot(index), self.slot(kept));
            if keeps(&self.slots[from]) {
                self.slots[to] = self.slots[from];
                kept += 1;
            }
        }
        self.len = kept;
    }

    /// Makes sure that `depth` completions fit.
    pub(super) fn reserve(&mut self, depth: usize) {
        if depth > self.mask + 1 {
            let mut larger = CompletionRing::new(depth);
            self.iter().for_each(|completion| larger.push(*completion));
            *self = larger;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn numbered(wr_id: u64) -> Completion {
        Completion { wr_id, ..Completion::default() }
    }

    fn numbers<'a>(completions: impl Iterator<Item = &'a Completion>) -> Vec<u64> {
        completions.map(|completion| completion.wr_id).collect()
    }

    #[test]
    fn it_holds_what_a_deque_holds() {
        const DEPTH: usize = 5;
        let (mut ring, mut model, mut depth) = (CompletionRing::new(DEPTH), VecDeque::new(), DEPTH);
        let mut random = 1_u64;
        for step in 0..4000_u64 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (kind, n) = (random >> 60, (random >> 32) as usize % (model.len() + 1));
            match kind {
                0..=9 if model.len() < depth => {
                    ring.push(numbered(step));
                    model.push_back(numbered(step));
                }
                10..=11 => {
                    let mut taken = Vec::new();
                    ring.take(n, |index, completion| taken.push((index, completion.wr_id)));
                    let expected = model.drain(..n).enumerate().map(|(index, c)| (index, c.wr_id));
                    assert_eq!(taken, expected.collect::<Vec<_>>());
                }
                12 | 13 if n < model.len() => {
                    ring.remove(n);
                    model.remove(n);
                }
                14 => {
                    ring.retain(|completion| completion.wr_id % 3 > 0);
                    model.retain(|completion| completion.wr_id % 3 > 0);
                }
                15 if step % 8 == 0 && depth < 40 => {
                    depth += n;
                    ring.reserve(depth);
                }
                _ => {}
            }
            assert_eq!(numbers(ring.iter()), numbers(model.iter()), "step {step}");
            assert_eq!((ring.len(), ring.get(n)), (model.len(), model.get(n)));
        }
        assert!(depth > 16, "it grew");
    }

    #[test]
    fn a_deep_ring_uses_memory_only_as_it_fills() {
        let mut ring = CompletionRing::new(1 << 20);
        (0..3).for_each(|number| ring.push(numbered(number)));
        assert_eq!(ring.slots.len(), 3);
    }
}
