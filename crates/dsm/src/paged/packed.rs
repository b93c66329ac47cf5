//! Parcels: changes of pages in which many single words changed. A WRITE per word would take hundreds. At a barrier
//! they go home as one parcel instead, which the home applies once all processes have arrived. The home is in the
//! barrier anyway, so no extra thread is needed.
//!
//! A parcel has the number of the barrier and the length, then per page its number, a bit for each word, and the
//! changed words.

use super::Core;
use super::layout::PARCEL;
use crate::PAGE;
use crate::coherence::WORD;
use crate::error::Error;
use crate::map::Mapping;
use crate::transport::Op;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// A page with at least this many changed ranges goes into a parcel.
pub(super) const SCATTERED: usize = 32;
const HEADER: usize = 16;
const WORDS: usize = PAGE / WORD;
const BITS: usize = WORDS / 8;

/// Parcels of one barrier, by home, without their headers.
#[derive(Default)]
pub(super) struct Parcels(BTreeMap<u32, Vec<u8>>);

impl Parcels {
    /// Adds a page with these changed ranges. Returns whether it fits.
    pub(super) fn add(&mut self, home: u32, page: usize, now: &[u8], ranges: &[Range<usize>]) -> bool {
        let parcel = self.0.entry(home).or_default();
        let bytes: usize = ranges.iter().map(ExactSizeIterator::len).sum();
        if HEADER + parcel.len() + 8 + BITS + bytes > PARCEL {
            return false;
        }
        let mut bits = [0u8; BITS];
        for word in ranges.iter().flat_map(|range| range.start / WORD..range.end / WORD) {
            bits[word / 8] |= 1 << (word % 8);
        }
        parcel.extend((page as u64).to_ne_bytes());
        parcel.extend(bits);
        ranges.iter().for_each(|range| parcel.extend(&now[range.clone()]));
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Core {
    /// The writes that send the parcels home. Their bytes stay in our mapping until the next barrier.
    pub(super) fn send_parcels(&self, epoch: u64, parcels: &Parcels, ops: &mut Vec<(u32, Op)>) {
        for (&home, bytes) in &parcels.0 {
            let local = self.layout.parcel_stage(home);
            self.mapping.long(local).store(epoch, Ordering::Release);
            self.mapping.long(local + 8).store(bytes.len() as u64, Ordering::Release);
            self.mapping.write(local + HEADER, bytes);
            let remote = self.layout.parcel(self.rank);
            ops.push((home, Op::Write { remote, local, len: HEADER + bytes.len() }));
        }
    }

    /// Applies the parcels of this barrier.
    pub(super) fn open_parcels(&self, epoch: u64) -> Result<(), Error> {
        for rank in 0..self.size {
            let at = self.layout.parcel(rank);
            if self.mapping.long(at).load(Ordering::Acquire) != epoch {
                continue;
            }
            let len = self.mapping.long(at + 8).load(Ordering::Acquire) as usize;
            let mut bytes = vec![0; len.min(PARCEL - HEADER)];
            self.mapping.read(at + HEADER, &mut bytes);
            let heap = self.layout.len();
            open(&bytes, &self.mapping, heap)
                .ok_or_else(|| Error::Transport(format!("process {rank} sent a malformed parcel")))?;
        }
        Ok(())
    }
}

/// Writes the words of a parcel to their pages. Returns `None` if the parcel is malformed.
fn open(mut bytes: &[u8], mapping: &Mapping, heap: usize) -> Option<()> {
    while !bytes.is_empty() {
        let (page, rest) = bytes.split_first_chunk::<8>()?;
        let (bits, mut words) = rest.split_first_chunk::<BITS>()?;
        let page = usize::try_from(u64::from_ne_bytes(*page)).ok()?;
        if page >= (mapping.len() - heap) / PAGE {
            return None;
        }
        for word in (0..WORDS).filter(|word| bits[word / 8] >> (word % 8) & 1 != 0) {
            let (value, rest) = words.split_first_chunk::<WORD>()?;
            mapping
                .word(heap + page * PAGE + word * WORD)
                .store(u32::from_ne_bytes(*value), Ordering::Relaxed);
            words = rest;
        }
        bytes = words;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::anonymous_file;

    #[test]
    fn words_arrive_where_they_belong_and_adjacent_words_stay() {
        let file = anonymous_file(c"test", 4 * PAGE).expect("memory");
        let mapping = Mapping::anywhere(&file, 0, 4 * PAGE).expect("a mapping");
        let heap = PAGE;
        mapping.write(heap, &[7; 3 * PAGE]);
        let now = [1u8; PAGE];
        let ranges: Vec<Range<usize>> = (0..PAGE).step_by(8).map(|at| at..at + 4).collect();
        let mut parcels = Parcels::default();
        assert!(parcels.is_empty());
        assert!(parcels.add(3, 0, &now, &ranges) && parcels.add(3, 2, &now, &[4..12, 4088..4096]));
        let parcel = &parcels.0[&3];
        assert_eq!(open(parcel, &mapping, heap), Some(()));
        let mut all = vec![0; 3 * PAGE];
        mapping.read(heap, &mut all);
        let expected = |at: usize| match at / PAGE {
            0 => at % 8 < 4,
            2 => (4..12).contains(&(at % PAGE)) || at % PAGE >= 4088,
            _ => false,
        };
        assert!((0..3 * PAGE).all(|at| all[at] == if expected(at) { 1 } else { 7 }));
        assert_eq!(open(&parcel[..parcel.len() - 1], &mapping, heap), None, "cut off");
        assert_eq!(open(&[0xff; 200], &mapping, heap), None, "no such page");
    }

    #[test]
    fn a_full_parcel_takes_no_more() {
        let mut parcels = Parcels::default();
        let now = [1u8; PAGE];
        let added =
            (0..1000).take_while(|&page| parcels.add(0, page, &now, &[0..PAGE / 2, 2052..PAGE])).count();
        assert!(added > 100 && added < 1000, "{added}");
        assert!(parcels.0[&0].len() + HEADER <= PARCEL);
    }
}
