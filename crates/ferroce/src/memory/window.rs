//! Memory windows: a part of a region under a key of its own.

use super::{Region, RemoteRegion, resolve};
use crate::error::Error;
use crate::macros::debug;
use crate::pd::Pd;
use ferroce_nic::lock::Mutex;
use ferroce_nic::{WindowType, next_rkey};
use ferroce_proto::RKey;
use ferroce_proto::verbs::{Access, SendFlags, SendOp, SendWr};
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

/// Type 1: any queue pair of the protection domain can be used to access the window. Each bind replaces the previous one.
#[derive(Clone)]
pub enum Type1 {}
/// Type 2: only the queue pair that bound the window can be used to access it. It is invalidated before the next bind, by
/// either side.
#[derive(Clone)]
pub enum Type2 {}

/// The type of a memory window, as a type.
pub trait WindowKind: sealed::Sealed + Clone + Send + Sync + 'static {
    /// 1 or 2.
    const NUMBER: u8;
}

impl WindowKind for Type1 {
    const NUMBER: u8 = 1;
}
impl WindowKind for Type2 {
    const NUMBER: u8 = 2;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Type1 {}
    impl Sealed for super::Type2 {}
}

/// A memory window, made by [`Pd::alloc_window`]. It opens a part of a [`Region`] to peers after
/// [`bind_window`](crate::SendHalf::bind_window). Cheap to clone; dropping the last clone closes the window.
///
/// A window does not keep its region alive: dropping the last clone of the region closes the window too.
#[derive(Clone)]
pub struct MemoryWindow<K: WindowKind> {
    inner: Arc<Inner>,
    kind: PhantomData<K>,
}

struct Inner {
    nic: ferroce_nic::MemoryWindow,
    /// Key of the last posted bind. It becomes the key of the window when the bind completes.
    posted: Mutex<RKey>,
    pd: Pd,
}

impl Pd {
    /// Allocates a memory window that is not bound yet: `pd.alloc_window::<Type1>()` or `pd.alloc_window::<Type2>()`.
    pub fn alloc_window<K: WindowKind>(&self) -> Result<MemoryWindow<K>, Error> {
        let kind = if K::NUMBER == 1 { WindowType::One } else { WindowType::Two };
        let nic = self.nic.alloc_window(kind).map_err(Error::in_call("alloc_mw"))?;
        let posted = Mutex::new(nic.rkey());
        Ok(MemoryWindow { inner: Arc::new(Inner { nic, posted, pd: self.clone() }), kind: PhantomData })
    }
}

impl<K: WindowKind> MemoryWindow<K> {
    /// Its current key. A posted bind changes it on completion.
    pub fn rkey(&self) -> RKey {
        self.inner.nic.rkey()
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// Posts a bind to `target`, or an unbind if there is none. Returns the description of the window for peers.
    pub(crate) fn post_bind(
        &self,
        qp: &ferroce_nic::Qp,
        wr_id: u64,
        target: Option<(&Region, u64, u64)>,
        access: Access,
    ) -> Result<RemoteRegion, Error> {
        let call = Error::in_call("bind_mw");
        let (region, offset, len) =
            target.map_or((None, 0, 0), |(region, offset, len)| (Some(region), offset, len));
        let addr = region.map_or(0, |region| region.remote().addr + offset);
        let window = &self.inner.nic;
        let mut posted = self.inner.posted.lock();
        let rkey = match region {
            Some(region) if K::NUMBER == 2 => {
                let rkey = next_rkey(*posted);
                let op = SendOp::BindMw(window.bind(rkey, region.nic(), addr, len, access));
                qp.post_send(&[SendWr { op, ..crate::wr::local_inv(wr_id, rkey) }])
                    .map_err(Error::in_post("bind_mw"))?;
                rkey
            }
            _ => {
                let region = region.map(Region::nic);
                qp.bind_window(wr_id, SendFlags::empty(), window, *posted, region, addr, len, access)
                    .map_err(call)?
            }
        };
        *posted = rkey;
        let addr = if access.contains(Access::ZERO_BASED) { 0 } else { addr };
        Ok(RemoteRegion { addr, len, rkey })
    }

    /// Checks the range of a bind.
    pub(crate) fn target(
        region: &Region,
        range: impl RangeBounds<u64>,
    ) -> Result<(&Region, u64, u64), Error> {
        let (offset, len) = resolve(range, region.len() as u64)?;
        if len == 0 {
            return Err(Error::invalid("bind_mw", "length", "a bind opens at least one byte"));
        }
        Ok((region, offset, len))
    }

    /// Key of the last posted bind.
    pub(crate) fn posted_rkey(&self) -> RKey {
        *self.inner.posted.lock()
    }
}

debug!(MemoryWindow<K> where K: WindowKind, |this| "MemoryWindow(type {}, rkey {})", K::NUMBER, this.rkey());
