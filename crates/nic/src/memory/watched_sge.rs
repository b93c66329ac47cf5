//! One scatter/gather entry of a request in flight: its pages, and the checksums of the bytes that share a page with other data.

use super::access::region;
use super::in_flight::PostedTo;
use super::on_demand;
use super::protected::{Owner, Protected};
use super::region::{Backing, Span};
use super::table::{Held, RegionTable};
use ferroce_os::memory::page_len;
use ferroce_proto::PdId;
use ferroce_proto::verbs::{Access, Sge};
use smallvec::SmallVec;
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;

/// Most bytes of one scatter/gather entry that are checksummed if its pages cannot be protected.
pub(super) const MAX_SUMMED: usize = 1 << 20;
/// Bytes per checksum: the precision with which a change is located.
pub(super) const SUMMED_TOGETHER: usize = 256;

pub(super) type HeldRegions<'a> = SmallVec<[Held<'a>; 1]>;

impl RegionTable {
    /// The bytes of those entries that can be watched, with their regions. The post reports errors of the other entries.
    pub(super) fn watched<'a>(
        &'a self,
        pd: PdId,
        sges: &'a [Sge],
    ) -> impl Iterator<Item = (Held<'a>, WatchedSge)> + 'a {
        sges.iter().filter_map(move |sge| {
            let held = self.by_lkey(sge.lkey).ok()?;
            let span = region(&held).local(pd, sge.addr, u64::from(sge.len), Access::empty()).ok()?;
            let is_writable = region(&held).access.contains(Access::LOCAL_WRITE);
            let bytes = span.start..span.start + span.len;
            let part = WatchedSge { bytes, lkey: sge.lkey.0, is_writable, ..WatchedSge::default() };
            (span.backing == Backing::Watched && span.len > 0).then_some((held, part))
        })
    }
}

/// One scatter/gather entry of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct WatchedSge {
    pub(super) bytes: Range<usize>,
    /// The key of its region.
    pub(super) lkey: u32,
    /// The registration has checked that its pages are writable.
    pub(super) is_writable: bool,
    /// The pages that are protected.
    pub(super) pages: Option<Protected>,
    /// Checksums of the bytes outside these pages.
    pub(super) sums: Vec<u32>,
    /// It is in the list of scatter targets.
    pub(super) is_listed: bool,
}

impl WatchedSge {
    /// The pages that lie wholly inside.
    pub(super) fn whole_pages(&self) -> Option<Range<usize>> {
        let page = page_len();
        let pages = self.bytes.start.checked_next_multiple_of(page)?..self.bytes.end & !(page - 1);
        (!pages.is_empty()).then_some(pages)
    }

    /// Protects these pages for a request, if that is possible.
    pub(super) fn protect(&mut self, queue: PostedTo, name: &'static str, wr_id: u64) {
        let owner = Owner { queue, name, wr_id, bytes: self.bytes.clone() };
        let pages = self.whole_pages().filter(|_| self.is_writable);
        self.pages = pages.and_then(|pages| Protected::new(pages, owner));
    }

    pub(super) fn without_sums(&self) -> WatchedSge {
        WatchedSge { sums: Vec::new(), ..self.clone() }
    }

    /// The bytes that are summed.
    pub(super) fn summed(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let Range { start, end } = self.bytes;
        match &self.pages {
            Some(Protected { pages, .. }) => [start..pages.start, pages.end..end],
            None => [start..end.min(start + MAX_SUMMED), end..end],
        }
        .into_iter()
    }

    /// The checksums of the current bytes; `None` if the program has unmapped them.
    pub(super) fn sums_now(&self) -> Option<Vec<u32>> {
        let mut block = [0; 64 * SUMMED_TOGETHER];
        let mut sums = Vec::new();
        for range in self.summed() {
            for start in range.clone().step_by(block.len()) {
                let len = block.len().min(range.end - start);
                // The kernel copies, because the program may have unmapped them.
                let span = Span { start, len, backing: Backing::OnDemand };
                on_demand::read(span, &mut block[..len]).ok()?;
                sums.extend(block[..len].chunks(SUMMED_TOGETHER).map(|bytes| {
                    let mut hasher = DefaultHasher::new();
                    hasher.write(bytes);
                    hasher.finish() as u32
                }));
            }
        }
        Some(sums)
    }

    /// The first bytes whose checksum differs.
    pub(super) fn first_change(&self) -> Option<Range<usize>> {
        let now = (!self.sums.is_empty()).then(|| self.sums_now()).flatten()?;
        let pieces = self.summed().flat_map(|range| {
            let end = range.end;
            range.step_by(SUMMED_TOGETHER).map(move |start| start..end.min(start + SUMMED_TOGETHER))
        });
        pieces.zip(self.sums.iter().zip(&now)).find(|(_, (then, now))| then != now).map(|(piece, _)| piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_found_where_it_is() {
        let mut memory = vec![0u8; 3 * SUMMED_TOGETHER + 10];
        let start = memory.as_mut_ptr() as usize;
        let mut part = WatchedSge { bytes: start..start + memory.len(), ..WatchedSge::default() };
        part.sums = part.sums_now().expect("mapped memory");
        assert_eq!((part.sums.len(), part.first_change()), (4, None));
        memory[2 * SUMMED_TOGETHER + 3] = 1;
        let from = start + 2 * SUMMED_TOGETHER;
        assert_eq!(part.first_change(), Some(from..from + SUMMED_TOGETHER));
    }
}
