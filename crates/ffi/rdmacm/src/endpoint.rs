//! Endpoints: an id with all its objects, in one call.

use crate::abi::*;
use crate::guard::{self, Refused, invalid};
use crate::id::{self, Id, QpAttr};
use crate::{address, event, options, qp, route, srq};
use std::ffi::c_int;

/// Prepares the passive end: binds it, and stores the attributes for the queue pairs of its connections.
fn passive(
    id: &Id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: Option<&ibv_qp_init_attr>,
) -> Result<(), Refused> {
    // SAFETY: an address that `rdma_getaddrinfo` or the program made.
    unsafe { address::read_name(res.ai_src_addr)? }.bind(id)?;
    if !pd.is_null() {
        // SAFETY: the id's own structure.
        unsafe { (*id.abi()).pd = pd };
    }
    let attr = attr.map(|attr| QpAttr(ibv_qp_init_attr { qp_type: res.ai_qp_type as u32, ..*attr }));
    id.state.lock().qp_attr = attr;
    Ok(())
}

/// Prepares the active end: resolves the route to its destination, and creates its queue pair.
fn active(
    id: &Id,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: Option<&mut ibv_qp_init_attr>,
) -> Result<(), Refused> {
    // SAFETY: addresses that `rdma_getaddrinfo` or the program made.
    let (source, to) =
        unsafe { (address::read_optional(res.ai_src_addr)?, address::read_name(res.ai_dst_addr)?) };
    to.resolve(id, source)?;
    match res.ai_route_len {
        0 => route::resolve(id)?,
        // SAFETY: the route has `ai_route_len` bytes.
        len => unsafe {
            options::set_path(id, res.ai_route, len)?;
            event::complete(id)?;
        },
    }
    if let Some(attr) = attr {
        attr.qp_type = res.ai_qp_type as u32;
        qp::create_plain(id, pd, attr)?;
    }
    if res.ai_connect_len != 0 && !res.ai_connect.is_null() {
        // SAFETY: the data has `ai_connect_len` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(res.ai_connect.cast::<u8>(), res.ai_connect_len) };
        id.state.lock().connect = bytes.to_vec();
    }
    Ok(())
}

/// Destroys an endpoint with all its objects.
///
/// # Safety
/// As for [`id::destroy`].
unsafe fn destroy(id: *mut rdma_cm_id) -> Result<(), Refused> {
    // SAFETY: as the caller promises.
    unsafe {
        let own = Id::of(id)?;
        if !own.qp().is_null() {
            qp::destroy(own);
        }
        if !(*id).srq.is_null() {
            srq::destroy(own);
        }
        id::destroy(id)
    }
}

pub(crate) unsafe extern "C" fn create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    guard::minus_one("rdma_create_ep", || {
        // SAFETY: each is NULL, or memory for the id, the program's addresses and its attributes.
        let (place, res, attr) = unsafe { (id.as_mut(), res.as_ref(), attr.as_mut()) };
        let (Some(place), Some(res)) = (place, res) else { return Err(invalid("id or res is NULL")) };
        let made = id::create(
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            res.ai_port_space as u32,
            res.ai_qp_type as u32,
        )?;
        // SAFETY: just made.
        let own = unsafe { Id::of(made)? };
        let built = match res.ai_flags & RAI_PASSIVE {
            0 => active(own, res, pd, attr),
            _ => passive(own, res, pd, attr.as_deref()),
        };
        if let Err(refused) = built {
            // SAFETY: just made and not published.
            let _ = unsafe { destroy(made) };
            return Err(refused);
        }
        *place = made;
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn destroy_ep(id: *mut rdma_cm_id) {
    // SAFETY: what the call demands of the program.
    guard::quiet("rdma_destroy_ep", || unsafe { destroy(id) });
}
