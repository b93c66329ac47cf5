//! Options of ids.

use crate::abi::*;
use crate::guard::{self, Refused, check, invalid, refused};
use crate::id::{Id, ask};
use ferroce_bridge::cm::Setting;
use std::ffi::{c_int, c_void};

/// A path record as <infiniband/sa.h> packs it. On RoCE a program can only choose the traffic class.
#[derive(Clone, Copy)]
#[repr(C)]
struct PathData {
    flags: u32,
    reserved: u32,
    service_id: u64,
    gids: [[u8; 16]; 2],
    lids: [u16; 2],
    flow_label_hop_limit: u32,
    traffic_class: u8,
    rest: [u8; 15],
}
layout!(PathData, 72, gids = 16, traffic_class = 56);

/// The flags of the path that a program must set: the primary path of both directions.
const PATH_NEEDED: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 5;

/// Reads a value, which must have the size of the option.
///
/// # Safety
/// `value` is NULL, or has `len` readable bytes.
unsafe fn value<T: Copy>(value: *const c_void, len: usize) -> Result<T, Refused> {
    if value.is_null() || len != size_of::<T>() {
        return Err(invalid("the value has not the size of the option"));
    }
    // SAFETY: as the caller promises; it need not be aligned.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

/// Sets a route from the program. The event of a route resolution follows.
///
/// # Safety
/// `paths` is NULL, or has `len` readable bytes.
pub(crate) unsafe fn set_path(id: &Id, paths: *const c_void, len: usize) -> Result<(), Refused> {
    let size = size_of::<PathData>();
    if paths.is_null() || len == 0 || !len.is_multiple_of(size) {
        return Err(invalid("the value is not a list of paths"));
    }
    let all = (0..len / size).map(|at| {
        // SAFETY: `at` is below the number of paths in `len` bytes; they need not be aligned.
        unsafe { paths.cast::<PathData>().add(at).read_unaligned() }
    });
    let path = all.into_iter().find(|path| path.flags & PATH_NEEDED == PATH_NEEDED);
    let path = path.ok_or(invalid("no path is the primary one in both directions"))?;
    if path.traffic_class != 0 {
        id.set(Setting::Tos, path.traffic_class.into())?;
    }
    check(ask!(id, resolve_route()))
}

unsafe fn set_own(id: &Id, option: c_int, value_ptr: *const c_void, len: usize) -> Result<(), Refused> {
    let is_bound = id.standing().local.version != 0;
    // SAFETY: the caller passes `len` bytes of the program.
    unsafe {
        match option {
            RDMA_OPTION_ID_TOS => id.set(Setting::Tos, value::<u8>(value_ptr, len)?.into()),
            RDMA_OPTION_ID_REUSEADDR | RDMA_OPTION_ID_AFONLY => {
                let truth = u32::from(value::<c_int>(value_ptr, len)? != 0);
                if is_bound {
                    return Err(invalid("the id is bound, so this comes too late"));
                }
                let is_reuse = option == RDMA_OPTION_ID_REUSEADDR;
                id.set(if is_reuse { Setting::ReuseAddress } else { Setting::AfOnly }, truth)
            }
            RDMA_OPTION_ID_ACK_TIMEOUT => {
                let exponent = value::<u8>(value_ptr, len)?;
                if !matches!(id.qp_type(), IBV_QPT_RC | IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV) || exponent > 31
                {
                    return Err(invalid("no such timer, or no acknowledgements to wait for"));
                }
                id.set(Setting::AckTimeout, exponent.into())
            }
            _ => Err(refused(libc::ENOSYS, "no such option")),
        }
    }
}

pub(crate) unsafe extern "C" fn set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    guard::minus_one("rdma_set_option", || {
        // SAFETY: an id of ours, and `len` bytes of the program.
        unsafe {
            let id = Id::of(id)?;
            match (level, option) {
                (RDMA_OPTION_ID, option) => set_own(id, option, value, len),
                (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => set_path(id, value, len),
                _ => Err(refused(libc::ENOSYS, "no such option")),
            }
        }
    })
}
