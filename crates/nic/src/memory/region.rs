//! A region, and whether an access is inside it and allowed.

use super::cached_region::CacheUse;
use super::gpu::{self, ReadAhead};
use super::in_flight;
use ferroce_proto::verbs::{Access, MemoryFault};
use ferroce_proto::{LKey, PdId, Qpn, RKey};
use ferroce_shm::{Pages, RegionDescriptor};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Messages to local peers from this length on are sent by rendezvous. For shorter ones, two copies cost less than the record and its
/// acknowledgement.
pub(crate) const MIN_RENDEZVOUS: usize = 32 * 1024;

/// The origin of a remote access: the queue pair that received the request, and the protection domain that applies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) pd: PdId,
    pub(crate) qp: Qpn,
}

/// Where the bytes of a region are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Backing {
    /// In memory that the program promised to keep mapped.
    #[default]
    Mapped,
    /// The same, but changes of buffers in flight are detected: see `in_flight`.
    Watched,
    /// In memory that the program may unmap and map at any time (on-demand paging).
    OnDemand,
    /// In the memory of the GPU with this number, where only the CUDA driver can copy.
    Gpu(u8),
    /// No memory: reads return zeros, writes are discarded.
    Null,
}

/// What an entry of the table stands for.
pub(crate) enum Kind {
    /// A registration, with the numbers of the windows bound to it.
    Memory { windows: Vec<u32> },
    /// A memory window, and the number of the region it is bound to.
    Window { kind: WindowType, region: Option<u32> },
}

/// The two types of memory windows (IBA 10.6.7.2). Type 2 windows are of the kind 2B: tied to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowType {
    /// Bound by a verb, open to every queue pair of its domain, closed by another bind.
    One,
    /// Bound by a work request, open to that queue pair only, closed by invalidation; the program chooses the low eight
    /// bits of its key.
    Two,
}

/// A registration, or a memory window: part of one under a key of its own.
pub(crate) struct Region {
    /// First byte in this process.
    pub(crate) base: usize,
    pub(crate) len: u64,
    /// The address of the first byte in work requests: its virtual address, zero, or an address chosen by the caller.
    pub(crate) iova: u64,
    pub(crate) pd: PdId,
    pub(crate) access: Access,
    pub(crate) lkey: LKey,
    pub(crate) rkey: RKey,
    /// False once the rkey was invalidated.
    pub(crate) remote_open: bool,
    /// The only queue pair through which peers may access it, for windows of type 2.
    pub(crate) only_qp: Option<Qpn>,
    pub(crate) kind: Kind,
    pub(crate) backing: Backing,
    /// Bytes from `base` on that belong to this memory alone, and may therefore be moved into a memfd.
    pub(crate) capacity: usize,
    /// Its entry in the descriptor table that local peers read.
    pub(crate) descriptor: Option<usize>,
    /// Its pages, or of a window those of its region, if local peers can map them.
    pub(crate) pages: Option<Pages>,
    pub(crate) cache_use: CacheUse,
    /// Whether rendezvous sends have offered its pages to local peers.
    pub(crate) lent: AtomicBool,
    /// Keeps the memory alive, if the caller of the registration passed an owner.
    pub(crate) _owner: Option<Arc<dyn Any + Send + Sync>>,
}

/// Bytes of a region for which an access was granted. Valid only while the region's lock is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) backing: Backing,
}

impl Span {
    /// The same bytes, copied by the kernel, which returns an error if they are no longer mapped.
    pub(super) fn checked_by_kernel(self) -> Span {
        let is_mapped = matches!(self.backing, Backing::Mapped | Backing::Watched);
        let backing = if is_mapped { Backing::OnDemand } else { self.backing };
        Span { backing, ..self }
    }

    /// Bytes that are mapped, as the caller guarantees: of a local peer, or of the device.
    pub(crate) fn at(start: usize, len: usize) -> Span {
        Span { start, len, backing: Backing::Mapped }
    }
    /// The first byte.
    pub(crate) fn start(self) -> usize {
        self.start
    }
    /// Number of bytes.
    pub(crate) fn len(self) -> usize {
        self.len
    }
    /// Some of the bytes.
    ///
    /// # Panics
    /// If they do not all belong to the span.
    pub(super) fn part(self, offset: usize, len: usize) -> Span {
        assert!(len <= self.len && offset <= self.len - len, "{len} bytes from {offset} on, of {}", self.len);
        Span { start: self.start + offset, len, ..self }
    }
    /// A span of the same length and backing at another address.
    pub(crate) fn moved_to(self, start: usize) -> Span {
        Span { start, ..self }
    }
}

impl Region {
    /// A registration of memory that stays mapped, zero-based and open to peers.
    pub(crate) fn plain(base: usize, len: u64, pd: PdId, access: Access, lkey: LKey, rkey: RKey) -> Region {
        Region {
            base,
            len,
            iova: 0,
            pd,
            access,
            lkey,
            rkey,
            remote_open: true,
            only_qp: None,
            kind: Kind::Memory { windows: Vec::new() },
            backing: Backing::Mapped,
            capacity: len as usize,
            descriptor: None,
            pages: None,
            cache_use: CacheUse::default(),
            lent: AtomicBool::new(false),
            _owner: None,
        }
    }

    /// An empty region, which grants no access.
    pub(super) fn nowhere() -> Region {
        Region::plain(0, 0, PdId(0), Access::empty(), LKey(0), RKey(0))
    }

    /// A copy with the fields that [`Region::local`] needs.
    pub(super) fn for_local_use(&self) -> Region {
        let plain = Region::plain(self.base, self.len, self.pd, self.access, self.lkey, self.rkey);
        Region { iova: self.iova, backing: self.backing, ..plain }
    }

    /// Whether it is a memory window.
    pub(crate) fn is_window(&self) -> bool {
        matches!(self.kind, Kind::Window { .. })
    }

    /// Whether local peers may access it later: by its own key, by that of a window, or because it is long enough for a message that
    /// they fetch by rendezvous.
    pub(crate) fn may_be_reached(&self) -> bool {
        let min = if self.is_for_messages() { MIN_RENDEZVOUS as u64 } else { 1 };
        matches!(self.backing, Backing::Mapped | Backing::Gpu(_)) && self.len >= min
    }

    /// Whether local peers may only fetch messages sent from it (rendezvous sends), because it has no remote rights.
    pub(crate) fn is_for_messages(&self) -> bool {
        !self.access.intersects(Access::REMOTE | Access::MW_BIND)
    }

    /// Its descriptor for local peers, if they may access it. The descriptor contains the access rights: without remote rights, local peers
    /// may only fetch messages sent from it.
    pub(crate) fn descriptor(&self) -> Option<RegionDescriptor> {
        // Memory of a GPU counts only if local peers can open it: no processor can access it.
        let is_memory = match self.backing {
            Backing::Mapped => self.len > 0,
            Backing::Gpu(_) => self.pages.is_some(),
            Backing::Watched | Backing::OnDemand | Backing::Null => false,
        };
        let is_of_use = self.access.intersects(Access::REMOTE) || self.pages.is_some();
        (is_memory && self.remote_open && is_of_use).then(|| RegionDescriptor {
            rkey: self.rkey,
            access: self.access,
            pd: self.pd,
            iova: self.iova,
            len: self.len,
            base: self.base as u64,
            only_qp: self.only_qp,
            file: self.pages.as_ref().and_then(Pages::descriptor),
        })
    }

    /// The bytes `[addr, addr + len)` of a work request, or the fault. The check cannot overflow: it compares lengths, never end
    /// addresses.
    #[inline(always)] // so are the checks below: a caller that ignores the reason of a fault does not pay for it
    pub(super) fn span(&self, key: u32, addr: u64, len: u64) -> Result<Span, MemoryFault> {
        let outside = MemoryFault::OutOfRange { key, addr, len, start: self.iova, region_len: self.len };
        let offset = addr.checked_sub(self.iova).ok_or(outside)?;
        if offset > self.len || len > self.len - offset {
            return Err(outside);
        }
        Ok(Span { start: self.base + offset as usize, len: len as usize, backing: self.backing })
    }

    /// The position of a span in a message of `reader`, of which `rest` bytes are left.
    pub(super) fn ahead(&self, span: Span, reader: usize, rest: u64, is_first: bool) -> ReadAhead {
        let in_region = self.len - (span.start - self.base) as u64;
        ReadAhead { reader, behind: (rest.min(in_region) as usize).saturating_sub(span.len), is_first }
    }

    /// Waits for copies of its GPU, if it is on one. Afterwards the memory belongs to the program.
    pub(super) fn settle(&self) {
        if let Backing::Gpu(gpu) = self.backing {
            gpu::settle(gpu);
        }
    }

    /// Ends the watch on its memory, because the region is deregistered or changed: see `in_flight`.
    pub(super) fn end_watch(&self) {
        if self.backing == Backing::Watched {
            in_flight::forget_region(self.lkey, &(self.base..self.base + self.len as usize));
        }
    }

    #[inline(always)]
    pub(super) fn check_pd(&self, key: u32, pd: PdId) -> Result<(), MemoryFault> {
        if self.pd == pd { Ok(()) } else { Err(MemoryFault::WrongPd { key, region: self.pd, qp: pd }) }
    }

    #[inline(always)]
    pub(super) fn check_access(&self, key: u32, need: Access) -> Result<(), MemoryFault> {
        if self.access.contains(need) {
            Ok(())
        } else {
            Err(MemoryFault::Denied { key, need, have: self.access })
        }
    }

    /// Access by a local work request.
    #[inline(always)]
    pub(crate) fn local(&self, pd: PdId, addr: u64, len: u64, need: Access) -> Result<Span, MemoryFault> {
        let key = self.lkey.0;
        self.check_pd(key, pd)?;
        let span = self.span(key, addr, len)?;
        self.check_access(key, need)?;
        Ok(span)
    }

    /// Access by the peer.
    #[inline(always)]
    pub(crate) fn remote(&self, peer: Peer, addr: u64, len: u64, need: Access) -> Result<Span, MemoryFault> {
        let key = self.rkey.0;
        if !self.remote_open {
            return Err(MemoryFault::StaleKey { key });
        }
        self.check_pd(key, peer.pd)?;
        if let Some(bound) = self.only_qp
            && bound != peer.qp
        {
            return Err(MemoryFault::WrongQp { key, bound, qp: peer.qp });
        }
        let span = self.span(key, addr, len)?;
        self.check_access(key, need)?;
        Ok(span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(iova: u64, len: u64) -> Region {
        Region { iova, ..Region::plain(0x1000, len, PdId(1), Access::REMOTE_READ, LKey(1), RKey(2)) }
    }

    const PEER: Peer = Peer { pd: PdId(1), qp: Qpn::GSI };

    #[test]
    fn containment_does_not_wrap() {
        let r = region(u64::MAX - 15, 16);
        let ok = |addr, len| r.remote(PEER, addr, len, Access::REMOTE_READ).is_ok();
        assert!(ok(u64::MAX - 15, 16));
        assert!(!ok(u64::MAX - 15, 17));
        assert!(!ok(u64::MAX - 7, 9));
        assert!(!ok(u64::MAX - 7, u64::MAX));
        assert!(!ok(0, 1));
        let zero = region(0, 16);
        assert!(zero.remote(PEER, 16, 0, Access::empty()).is_ok());
        assert!(zero.remote(PEER, 17, 0, Access::empty()).is_err());
    }

    #[test]
    fn domain_and_rights_are_checked() {
        let r = region(0, 16);
        assert!(matches!(
            r.remote(Peer { pd: PdId(2), ..PEER }, 0, 1, Access::REMOTE_READ),
            Err(MemoryFault::WrongPd { region: PdId(1), qp: PdId(2), .. })
        ));
        assert!(matches!(r.remote(PEER, 0, 1, Access::REMOTE_WRITE), Err(MemoryFault::Denied { .. })));
        let window = Region { only_qp: Some(Qpn::new(77)), ..region(0, 16) };
        assert!(matches!(window.remote(PEER, 0, 1, Access::REMOTE_READ), Err(MemoryFault::WrongQp { .. })));
    }
}
