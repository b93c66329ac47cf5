//! Memory that payloads may be put into before anybody has looked at them.
//!
//! A link that knows what comes next lets the kernel copy payloads straight to where they belong (see `link/forecast`).
//! From the check of key, range and rights until the link is done with the bytes, a [`Landing`] exists. Whatever ends the
//! right to write there (deregistration, re-registration, invalidation, an error or the end of the queue pair) waits for it
//! before the program hears of that: [`RegionTable::wait_for_landing`]. That is a lock of its own, not the region's, so
//! that an invalidation among the packets that landed does not wait for itself. It may be waited for under the lock of a
//! queue pair: while a landing exists, only such locks are taken under which nobody waits for one.
//!
//! The `unsafe` of placing is here, behind calls that check their bounds.

use super::access::region;
use super::region::{Backing, Kind, Peer};
use super::table::RegionTable;
use ferroce_proto::qp::Target;
use ferroce_proto::verbs::Access;
use ferroce_proto::wire::Icrc;
use parking_lot::MutexGuard;
use std::ops::Range;

/// Bytes of a region that may be written to as long as this exists.
pub(crate) struct Landing<'a> {
    start: usize,
    len: usize,
    _stays: MutexGuard<'a, ()>,
}

impl RegionTable {
    /// `len` bytes from `target` on, if the same access would be granted now.
    /// Only plain registered memory: the kernel must not fault where a region may have holes, and windows close by rules
    /// of their own.
    pub(crate) fn land(&self, peer: Peer, target: Target, len: u64) -> Option<Landing<'_>> {
        // First: whoever takes the region away after the check finds the lock held.
        let stays = self.landings.lock();
        let span = match target {
            Target::Remote { rkey, addr } => {
                let held = self.by_rkey(rkey).ok()?;
                let Kind::Memory { .. } = region(&held).kind else { return None };
                region(&held).remote(peer, addr, len, Access::REMOTE_WRITE).ok()?
            }
            Target::Local { lkey, addr } => {
                region(&self.by_lkey(lkey).ok()?).local(peer.pd, addr, len, Access::LOCAL_WRITE).ok()?
            }
        };
        let Backing::Mapped = span.backing else { return None };
        Some(Landing { start: span.start, len: span.len, _stays: stays })
    }
}

impl Landing<'_> {
    fn at(&self, range: &Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} bytes", self.len);
        (self.start + range.start) as *mut u8
    }

    /// Where the kernel may put bytes. Good as long as the landing exists.
    pub(crate) fn piece(&mut self, range: Range<usize>) -> libc::iovec {
        libc::iovec { iov_base: self.at(&range).cast(), iov_len: range.len() }
    }

    /// Continues a checksum over bytes that were put here.
    pub(crate) fn update(&self, icrc: &mut Icrc, range: Range<usize>) {
        // SAFETY: inside the registration, which stays mapped while `_stays` is held. The application may write to these
        // bytes meanwhile, though it has no business to: the peer writes there. The slice lives for this call, which
        // reads each byte once and does nothing with it but arithmetic, so such a race gives a wrong checksum, which
        // is what it deserves, and no more.
        icrc.update(unsafe { std::slice::from_raw_parts(self.at(&range), range.len()) });
    }

    /// Takes bytes back that do not belong here. What was under them is lost; zeros are put there, since they may be meant
    /// for another connection and this one's peer may be able to read them.
    pub(crate) fn take_back(&mut self, start: usize, out: &mut [u8]) {
        let place = self.at(&(start..start + out.len()));
        // SAFETY: inside the registration, which stays mapped while `_stays` is held; `out` is not registered memory,
        // as in `copy::read`.
        unsafe {
            std::ptr::copy_nonoverlapping(place, out.as_mut_ptr(), out.len());
            std::ptr::write_bytes(place, 0, out.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Region;
    use super::*;
    use ferroce_proto::{LKey, PdId, Qpn, RKey};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    const PEER: Peer = Peer { pd: PdId(1), qp: Qpn::GSI };

    fn table(memory: &mut [u8]) -> (RegionTable, u32, LKey, RKey) {
        let table = RegionTable::new();
        let (base, len) = (memory.as_mut_ptr() as usize, memory.len() as u64);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let make = |lkey, rkey| Region {
            base,
            len,
            iova: 0,
            pd: PdId(1),
            access,
            lkey,
            rkey,
            remote_open: true,
            only_qp: None,
            kind: Kind::Memory { windows: Vec::new() },
            backing: Backing::Mapped,
            _owner: None,
        };
        let (number, lkey, rkey) = table.insert(make).unwrap();
        (table, number, lkey, rkey)
    }

    #[test]
    fn only_what_an_access_would_get_is_lent() {
        let mut memory = vec![7u8; 64];
        let (table, _, lkey, rkey) = table(&mut memory);
        let remote = |addr| Target::Remote { rkey, addr };
        assert!(table.land(PEER, remote(0), 64).is_some());
        assert!(table.land(PEER, remote(1), 64).is_none());
        assert!(table.land(Peer { pd: PdId(2), ..PEER }, remote(0), 8).is_none());
        let mut landing = table.land(PEER, Target::Local { lkey, addr: 8 }, 16).unwrap();
        let mut out = [0; 4];
        landing.take_back(12, &mut out);
        assert_eq!(out, [7; 4]);
        drop(landing);
        assert!(memory[20..24] == [0; 4] && memory[..20] == [7; 20] && memory[24..] == [7; 40]);
        table.invalidate(PEER, rkey).unwrap();
        assert!(table.land(PEER, remote(0), 8).is_none());
    }

    #[test]
    #[should_panic(expected = "of 16 bytes")]
    fn nothing_outside_is_touched() {
        let mut memory = vec![0u8; 64];
        let (table, _, lkey, _) = table(&mut memory);
        let mut landing = table.land(PEER, Target::Local { lkey, addr: 0 }, 16).unwrap();
        landing.piece(8..17);
    }

    #[test]
    fn deregistration_waits_for_a_landing() {
        let mut memory = vec![0u8; 64];
        let (table, number, lkey, _) = table(&mut memory);
        let table = Arc::new(table);
        let landing = table.land(PEER, Target::Local { lkey, addr: 0 }, 16).unwrap();
        let gone = Arc::new(AtomicBool::new(false));
        let dereg = std::thread::spawn({
            let (table, gone) = (table.clone(), gone.clone());
            move || {
                table.remove(number);
                gone.store(true, Ordering::SeqCst);
            }
        });
        // Once the key is refused, the deregistration can only be waiting for us.
        while table.by_lkey(lkey).is_ok() {
            std::thread::yield_now();
        }
        assert!(!gone.load(Ordering::SeqCst));
        drop(landing);
        dereg.join().unwrap();
        assert!(gone.load(Ordering::SeqCst));
    }
}
