//! Advice on on-demand paging: which pages to prefetch.

use crate::abi::*;
use crate::errno::{Refused, invalid};
use crate::guard;
use crate::pd::PdObject;
use ferroce_nic::{Error, Prefetch};
use ferroce_proto::verbs::{MemoryFault, Sge};
use std::ffi::c_int;

pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: u32,
    flags: u32,
    list: *mut Sge,
    count: u32,
) -> c_int {
    guard::number("ibv_advise_mr", || {
        // SAFETY: a domain of ours.
        let (domain, _) = unsafe { PdObject::of(pd)? };
        let how = match advice {
            IBV_ADVISE_MR_ADVICE_PREFETCH => Prefetch::Read,
            IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => Prefetch::Write,
            IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => Prefetch::NoFault,
            _ => return Err(Refused::Errno(libc::ENOTSUP, "advice that the device does not know")),
        };
        if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 {
            return Err(invalid("flags that are not known"));
        }
        if count == 0 || list.is_null() {
            return Err(invalid("sg_list is empty"));
        }
        // SAFETY: the program's list.
        let sges = unsafe { std::slice::from_raw_parts(list, count as usize) };
        let outcome = domain.pd.prefetch(sges, how, flags & IBV_ADVISE_MR_FLAG_FLUSH != 0);
        outcome.map_err(refusal)
    })
}

/// The manual page and Linux's mlx5 driver define an error for each kind of invalid memory. A region without on-demand paging
/// gets the same error as an unknown key.
fn refusal(error: Error) -> Refused {
    match error {
        Error::Memory(MemoryFault::WrongPd { .. }) => {
            Refused::Errno(libc::EPERM, "the region belongs to another protection domain")
        }
        Error::Memory(MemoryFault::Denied { .. }) => {
            Refused::Errno(libc::EPERM, "the region is not writable")
        }
        Error::Memory(MemoryFault::NotOnDemand { .. }) => {
            Refused::Errno(libc::ENOENT, "the region was not registered with ON_DEMAND")
        }
        Error::Memory(MemoryFault::NoSuchKey { .. } | MemoryFault::StaleKey { .. }) => {
            Refused::Errno(libc::ENOENT, "no region has this lkey")
        }
        other => other.into(),
    }
}
