//! XRC domains. The inode of a file can identify a domain: processes that open the same file then share it.

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Refused, invalid, unsupported};
use crate::guard;
use crate::handle::{Handle, Use, Uses, object};
use crate::import::file_of;
use ferroce_nic::{XrcDomain, XrcKey};
use std::ffi::c_int;
use std::sync::Arc;

/// An XRC domain, from one `ibv_open_xrcd`.
pub(crate) struct XrcdObject {
    pub(crate) domain: Arc<XrcDomain>,
    pub(crate) uses: Uses,
    _context: Use,
}

object!(
    XrcdObject,
    ibv_xrcd,
    "ibv_close_xrcd",
    "queue pairs or shared receive queues still belong to the XRC domain"
);

impl XrcdObject {
    /// The domain behind a pointer. Refuses a domain of another context.
    ///
    /// # Safety
    /// NULL, or a domain of ours.
    pub(crate) unsafe fn of<'a>(
        xrcd: *mut ibv_xrcd,
        context: *mut ibv_context,
    ) -> Result<&'a XrcdObject, Refused> {
        // SAFETY: as the caller promises.
        let object = unsafe { Handle::<XrcdObject>::of(xrcd)? };
        // SAFETY: not NULL after `of` has succeeded.
        if unsafe { (*xrcd).context } != context {
            return Err(invalid("the XRC domain belongs to another context"));
        }
        Ok(object)
    }
}

pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    guard::pointer("ibv_open_xrcd", || {
        // SAFETY: a context of ours, and the program's attributes.
        let (owner, attr) =
            unsafe { (Context::of(context)?, attr.as_ref().ok_or(invalid("xrcd_init_attr is NULL"))?) };
        let needed = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        if attr.comp_mask & !needed != 0 {
            return Err(unsupported("comp_mask asks for something that the device does not have"));
        }
        if attr.comp_mask != needed {
            return Err(invalid("comp_mask must name fd and oflags"));
        }
        let domain = match attr.fd {
            // Without a file the domain is always new, with or without O_CREAT, as in the kernel.
            -1 => owner.nic.alloc_xrc_domain()?,
            fd => of_file(owner, fd, attr.oflags)?,
        };
        let object = XrcdObject { domain, uses: Uses::default(), _context: owner.uses.hold() };
        Ok(Handle::publish(ibv_xrcd { context }, object))
    })
}

/// The kernel returns EAGAIN, too. The program may then create the domain with O_CREAT.
pub(crate) const NO_DOMAIN: Refused =
    Refused::Errno(libc::EAGAIN, "no process has a domain of this file open");

/// The domain of a file: an existing or a new one, depending on the flags.
fn of_file(owner: &Context, fd: c_int, oflags: c_int) -> Result<Arc<XrcDomain>, Refused> {
    let key: XrcKey = file_of(fd)?;
    let (domain, is_new) = match oflags & libc::O_CREAT {
        0 => (owner.nic.find_xrc_domain(key).ok_or(NO_DOMAIN)?, false),
        _ => owner.nic.open_xrc_domain(key)?,
    };
    if !is_new && oflags & libc::O_EXCL != 0 {
        return Err(invalid("O_EXCL, but there is a domain of this file"));
    }
    Ok(domain)
}
