//! A region, and whether an access is inside it and allowed.

use ferroce_proto::verbs::{Access, MemoryFault};
use ferroce_proto::{LKey, PdId, RKey};
use std::any::Any;
use std::sync::Arc;

/// A registration.
pub(crate) struct Region {
    /// First byte in this process.
    pub(crate) base: usize,
    pub(crate) len: u64,
    /// First byte as work requests name it: the address itself, zero, or what the caller chose.
    pub(crate) iova: u64,
    pub(crate) pd: PdId,
    pub(crate) access: Access,
    pub(crate) lkey: LKey,
    pub(crate) rkey: RKey,
    /// False once the rkey was invalidated.
    pub(crate) remote_open: bool,
    /// What keeps the memory alive, if the NIC was given that.
    pub(crate) _owner: Option<Arc<dyn Any + Send + Sync>>,
}

/// Bytes of a region that an access was granted on. Only good while the region's lock is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(super) start: usize,
    pub(super) len: usize,
}

impl Region {
    /// Bytes `[addr, addr + len)` as work requests name them, or why not. Cannot wrap: lengths are compared, never
    /// end addresses.
    fn span(&self, key: u32, addr: u64, len: u64) -> Result<Span, MemoryFault> {
        let outside = MemoryFault::OutOfRange { key, addr, len, start: self.iova, region_len: self.len };
        let offset = addr.checked_sub(self.iova).ok_or(outside)?;
        if offset > self.len || len > self.len - offset {
            return Err(outside);
        }
        Ok(Span { start: self.base + offset as usize, len: len as usize })
    }

    fn check_pd(&self, key: u32, pd: PdId) -> Result<(), MemoryFault> {
        if self.pd == pd { Ok(()) } else { Err(MemoryFault::WrongPd { key, region: self.pd, qp: pd }) }
    }

    fn check_access(&self, key: u32, need: Access) -> Result<(), MemoryFault> {
        if self.access.contains(need) {
            Ok(())
        } else {
            Err(MemoryFault::Denied { key, need, have: self.access })
        }
    }

    /// Access by a local work request.
    pub(crate) fn local(&self, pd: PdId, addr: u64, len: u64, need: Access) -> Result<Span, MemoryFault> {
        let key = self.lkey.0;
        self.check_pd(key, pd)?;
        let span = self.span(key, addr, len)?;
        self.check_access(key, need)?;
        Ok(span)
    }

    /// Access by the peer.
    pub(crate) fn remote(&self, pd: PdId, addr: u64, len: u64, need: Access) -> Result<Span, MemoryFault> {
        let key = self.rkey.0;
        if !self.remote_open {
            return Err(MemoryFault::NoSuchKey { key });
        }
        self.check_pd(key, pd)?;
        let span = self.span(key, addr, len)?;
        self.check_access(key, need)?;
        Ok(span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(iova: u64, len: u64) -> Region {
        Region {
            base: 0x1000,
            len,
            iova,
            pd: PdId(1),
            access: Access::REMOTE_READ,
            lkey: LKey(1),
            rkey: RKey(2),
            remote_open: true,
            _owner: None,
        }
    }

    #[test]
    fn containment_does_not_wrap() {
        let r = region(u64::MAX - 15, 16);
        let ok = |addr, len| r.remote(PdId(1), addr, len, Access::REMOTE_READ).is_ok();
        assert!(ok(u64::MAX - 15, 16));
        assert!(!ok(u64::MAX - 15, 17));
        assert!(!ok(u64::MAX - 7, 9));
        assert!(!ok(u64::MAX - 7, u64::MAX));
        assert!(!ok(0, 1));
        let zero = region(0, 16);
        assert!(zero.remote(PdId(1), 16, 0, Access::empty()).is_ok());
        assert!(zero.remote(PdId(1), 17, 0, Access::empty()).is_err());
    }

    #[test]
    fn domain_and_rights_are_checked() {
        let r = region(0, 16);
        assert!(matches!(
            r.remote(PdId(2), 0, 1, Access::REMOTE_READ),
            Err(MemoryFault::WrongPd { region: PdId(1), qp: PdId(2), .. })
        ));
        assert!(matches!(r.remote(PdId(1), 0, 1, Access::REMOTE_WRITE), Err(MemoryFault::Denied { .. })));
    }
}
