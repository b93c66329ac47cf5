//! The XRC shared receive queues of this process that local peers may name in one-sided operations, with their protection domains.
//!
//! A descriptor has two words: the number of the queue, and its protection domain. The first word is zero while the second changes. So a
//! reader that finds the first word unchanged afterwards has read a consistent descriptor.

use super::segment::{SRQ_DESCRIPTORS, ShmSegment};
use ferroce_proto::{PdId, Srqn};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Number of indices to probe for a descriptor, starting at the one that the queue's number selects.
const PROBES: usize = 8;
const OPEN: u64 = 1 << 63;

fn probes(number: Srqn) -> impl Iterator<Item = usize> {
    (0..PROBES).map(move |step| (number.value() as usize + step) % SRQ_DESCRIPTORS)
}

fn first_word(number: Srqn, domain: u32) -> u64 {
    OPEN | u64::from(number.value()) << 32 | u64::from(domain)
}

/// The protection domain of the queue that a local peer publishes under this number in this XRC domain.
pub(crate) fn find_srq(segment: &ShmSegment, number: Srqn, domain: u32) -> Option<PdId> {
    let word = first_word(number, domain);
    probes(number).find_map(|index| {
        let (first, second) = segment.srq_descriptor(index);
        let is_it = first.load(Ordering::Acquire) == word;
        let pd = PdId(second.load(Ordering::Acquire) as u32);
        (is_it && first.load(Ordering::Relaxed) == word).then_some(pd)
    })
}

/// The owner's side of the table. Callers that change it hold a lock: there is one writer at a time.
pub struct SrqDescriptors {
    segment: Arc<ShmSegment>,
}

impl SrqDescriptors {
    pub(crate) fn new(segment: Arc<ShmSegment>) -> SrqDescriptors {
        SrqDescriptors { segment }
    }

    /// Publishes a queue. If all its indices are taken, operations that name it use packets.
    pub fn publish(&self, number: Srqn, domain: u32, pd: PdId) {
        let free = |index: &usize| self.segment.srq_descriptor(*index).0.load(Ordering::Relaxed) == 0;
        if let Some(index) = probes(number).find(free) {
            let (first, second) = self.segment.srq_descriptor(index);
            second.store(pd.0.into(), Ordering::Release);
            first.store(first_word(number, domain), Ordering::Release);
        }
    }

    /// Withdraws a queue.
    pub fn withdraw(&self, number: Srqn, domain: u32) {
        let word = first_word(number, domain);
        for (first, _) in probes(number).map(|index| self.segment.srq_descriptor(index)) {
            if first.load(Ordering::Relaxed) == word {
                first.store(0, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::Registry;

    #[test]
    fn a_queue_is_found_in_its_domain_until_it_is_withdrawn() {
        let base = std::env::temp_dir().join(format!("ferroce-srqs-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        let registry = Arc::new(Registry::open(&base).unwrap());
        let segment = Arc::new(ShmSegment::create(&registry, &[], None).unwrap());
        let table = SrqDescriptors::new(segment.clone());
        let theirs = ShmSegment::open(registry.directory(), registry.slot()).unwrap();
        // All of them select the same index, and there is one more than fits.
        let numbers: Vec<Srqn> =
            (0..=PROBES).map(|lap| Srqn::new((3 + lap * SRQ_DESCRIPTORS) as u32)).collect();
        for (pd, &number) in numbers.iter().enumerate() {
            table.publish(number, 7, PdId(pd as u32));
        }
        let found = |number: Srqn, domain| find_srq(&theirs, number, domain);
        for (pd, &number) in numbers[..PROBES].iter().enumerate() {
            assert_eq!(found(number, 7), Some(PdId(pd as u32)));
            assert_eq!(found(number, 8), None, "of another XRC domain");
        }
        assert_eq!(found(numbers[PROBES], 7), None, "no room");
        table.withdraw(numbers[2], 8);
        assert!(found(numbers[2], 7).is_some());
        table.withdraw(numbers[2], 7);
        assert_eq!(found(numbers[2], 7), None);
        table.publish(numbers[PROBES], 7, PdId(99));
        assert_eq!((found(numbers[PROBES], 7), found(numbers[1], 7)), (Some(PdId(99)), Some(PdId(1))));
        drop((table, segment, registry));
        std::fs::remove_dir_all(base).unwrap();
    }
}
