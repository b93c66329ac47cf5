//! Memory windows.

use crate::abi::*;
use crate::errno::{Refused, invalid};
use crate::guard;
use crate::handle::{Handle, Use, object};
use crate::mr::{MrObject, access};
use crate::pd::PdObject;
use crate::qp::QpObject;
use crate::watched::LiveObject;
use ferroce_nic::{MemoryWindow, WindowType};
use ferroce_proto::verbs::{MwBind, SendFlags};
use ferroce_proto::{LKey, RKey};
use std::ffi::c_int;

/// A memory window. Dropping it invalidates a bound window.
pub(crate) struct MwObject {
    pub(crate) window: MemoryWindow,
    _pd: Use,
}

object!(MwObject, ibv_mw, "ibv_dealloc_mw");

pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: u32) -> *mut ibv_mw {
    guard::pointer("ibv_alloc_mw", || {
        // SAFETY: a domain of ours.
        let (domain, context) = unsafe { PdObject::of(pd)? };
        let kind = match mw_type {
            IBV_MW_TYPE_1 => WindowType::One,
            IBV_MW_TYPE_2 => WindowType::Two,
            _ => return Err(invalid("no such type of memory window")),
        };
        let window = domain.pd.alloc_window(kind)?;
        let (rkey, handle) = (window.rkey().0, window.number());
        let abi = ibv_mw { context, pd, rkey, handle, r#type: mw_type };
        Ok(Handle::publish(abi, MwObject { window, _pd: domain.uses.hold() }))
    })
}

/// The verb that binds a window of type 1. Work requests that bind a window of type 2 are reported under this name, too.
const BIND: &str = "ibv_bind_mw";

/// The region of a bind; `None` unbinds the window.
unsafe fn region<'a>(info: &ibv_mw_bind_info) -> Result<Option<LiveObject<'a, MrObject>>, Refused> {
    if info.mr.is_null() {
        return match (info.addr, info.length) {
            (0, 0) => Ok(None),
            _ => Err(invalid("bytes to bind, but no region")),
        };
    }
    // SAFETY: as the caller promises, a region of ours.
    unsafe { LiveObject::of(BIND, info.mr) }.map(Some)
}

/// Binds a window of type 1, and stores the new rkey in its structure.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    guard::number(BIND, || {
        // SAFETY: objects of ours, and the program's attributes.
        let (qp, object, bind) = unsafe {
            (
                QpObject::live(BIND, qp)?,
                LiveObject::<MwObject>::of(BIND, mw)?,
                bind.as_ref().ok_or(invalid("mw_bind is NULL"))?,
            )
        };
        let flags = SendFlags::from_bits(bind.send_flags)
            .ok_or(invalid("send_flags that the device does not know"))?;
        let info = &bind.bind_info;
        // SAFETY: a region of ours, or NULL.
        let region = unsafe { region(info)? };
        let region = region.as_ref().map(|mr| mr.region.lock());
        // SAFETY: the window's own structure.
        let old = RKey(unsafe { (*mw).rkey });
        let rights = access(info.mw_access_flags)?;
        let key = qp.qp.bind_window(
            bind.wr_id,
            flags,
            &object.window,
            old,
            region.as_deref(),
            info.addr,
            info.length,
            rights,
        )?;
        // SAFETY: as above.
        unsafe { (*mw).rkey = key.0 };
        Ok(())
    })
}

/// The bind of a work request; the program chooses the new rkey.
///
/// # Safety
/// The pointers are NULL or of ours.
pub(crate) unsafe fn bind(mw: *mut ibv_mw, rkey: u32, info: &ibv_mw_bind_info) -> Result<MwBind, Refused> {
    // SAFETY: as the caller promises.
    let (object, region) = unsafe { (LiveObject::<MwObject>::of(BIND, mw)?, region(info)?) };
    if object.window.kind() != WindowType::Two {
        return Err(invalid("a window of type 1 is bound with ibv_bind_mw"));
    }
    let lkey = region.map_or(LKey(0), |mr| mr.region.lock().lkey());
    Ok(MwBind {
        window: object.window.number(),
        rkey: RKey(rkey),
        lkey,
        addr: info.addr,
        len: info.length,
        access: access(info.mw_access_flags)?,
    })
}
