//! Memory windows, as programs hold them.

use super::pd::Pd;
use super::qp::Qp;
use super::region::MemoryRegion;
use crate::error::Error;
use crate::memory::{MAX_MW, WindowType};
use ferroce_proto::RKey;
use ferroce_proto::verbs::{Access, MwBind, Payload, SendFlags, SendOp, SendWr};
use std::sync::Arc;

/// A memory window: part of a region with its own key. Dropping it deallocates it.
pub struct MemoryWindow {
    pd: Arc<Pd>,
    number: u32,
    kind: WindowType,
}

impl Pd {
    /// Allocates an unbound memory window.
    pub fn alloc_window(self: &Arc<Self>, kind: WindowType) -> Result<MemoryWindow, Error> {
        self.nic.alive()?;
        let (number, _) = self
            .nic
            .engine
            .device
            .regions
            .add_window(self.id, kind)
            .ok_or(Error::Exhausted { what: "memory windows", limit: MAX_MW as u64 })?;
        Ok(MemoryWindow { pd: self.clone(), number, kind })
    }
}

impl MemoryWindow {
    /// Its number within the device, as in [`MwBind::window`].
    pub fn number(&self) -> u32 {
        self.number
    }
    /// Its type.
    pub fn kind(&self) -> WindowType {
        self.kind
    }
    /// Its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
    /// Its current key. A bind changes the key when it completes, not when it is posted.
    pub fn rkey(&self) -> RKey {
        self.pd.nic.engine.device.regions.window_key(self.number).unwrap_or_default()
    }

    /// The bind parameters of a work request: `len` bytes of `region` from `addr` on, an address of the region. The low eight bits of `rkey`
    /// become those of the window's key.
    pub fn bind(&self, rkey: RKey, region: &MemoryRegion, addr: u64, len: u64, access: Access) -> MwBind {
        MwBind { window: self.number, rkey, lkey: region.lkey(), addr, len, access }
    }
}

/// The next key: increments the low eight bits, which belong to the program.
pub fn next_rkey(RKey(key): RKey) -> RKey {
    RKey(key & !0xff | key.wrapping_add(1) & 0xff)
}

impl Qp {
    /// Binds a window of type 1: posts the request, and returns the key that the window has once the request completes. `old` is its
    /// current key. A length of 0 unbinds the window and needs no region.
    #[allow(clippy::too_many_arguments)] // the fields of the verb
    pub fn bind_window(
        &self,
        wr_id: u64,
        flags: SendFlags,
        window: &MemoryWindow,
        old: RKey,
        region: Option<&MemoryRegion>,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<RKey, Error> {
        if window.kind != WindowType::One {
            return Err(Error::Invalid {
                attribute: "mw",
                why: "a window of type 2 is bound by a work request",
            });
        }
        check_bind(&window.pd, self.pd(), region, addr, len, access)?;
        let rkey = next_rkey(old);
        let lkey = region.map(MemoryRegion::lkey).unwrap_or_default();
        let op = SendOp::BindMw(MwBind { window: window.number, rkey, lkey, addr, len, access });
        let wr = SendWr { wr_id, op, flags, payload: Payload::Sges(&[]), ud: None, srq: None };
        self.post_send(&[wr]).map_err(|(_, error)| error)?;
        Ok(rkey)
    }
}

/// The checks of a bind that are made before it is posted.
fn check_bind(
    window: &Arc<Pd>,
    qp: &Arc<Pd>,
    region: Option<&MemoryRegion>,
    addr: u64,
    len: u64,
    access: Access,
) -> Result<(), Error> {
    let pds = [window.id(), qp.id(), region.map_or(qp, MemoryRegion::pd).id()];
    if pds.iter().any(|pd| *pd != pds[0]) {
        return Err(Error::Invalid {
            attribute: "pd",
            why: "window, region and queue pair are not in one protection domain",
        });
    }
    // LOCAL_WRITE has no effect for a window, but programs often pass the flags of their region.
    let granted = Access::REMOTE | Access::ZERO_BASED | Access::LOCAL_WRITE;
    if !granted.contains(access) {
        return Err(Error::Invalid {
            attribute: "mw_access_flags",
            why: "a window grants remote access only",
        });
    }
    let is_inside = match region {
        _ if len == 0 => true,
        None => false,
        Some(region) => {
            let size = region.len() as u64;
            addr.checked_sub(region.iova()).is_some_and(|at| at <= size && len <= size - at)
        }
    };
    match is_inside {
        true => Ok(()),
        false => Err(Error::Invalid { attribute: "addr", why: "the bytes are not all inside a region" }),
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        if self.pd.nic.alive().is_ok() {
            self.pd.nic.engine.device.regions.remove_window(self.number);
        }
    }
}
