//! Buffers that the library allocates for the program.

use crate::abi::ibv_pd;
use crate::errno::{Refused, invalid};
use crate::handle::{Handle, Use, Uses, object};
use crate::pd::PdObject;
use crate::{errno, guard};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_int, c_void};

/// Opaque to programs, which hold a pointer to it.
#[repr(C)]
pub(crate) struct ibv_buf {
    pd: *mut ibv_pd,
}

/// A buffer.
pub(crate) struct BufObject {
    start: *mut u8,
    layout: Layout,
    pub(crate) uses: Uses,
    _pd: Use,
}

object!(BufObject, ibv_buf, "ibv_free_buf", "memory regions");

/// The alignment of buffers, which begin at a page as the manual demands.
const PAGE: usize = 4096;

impl BufObject {
    /// The buffer behind a pointer. It must belong to this domain and contain these bytes.
    ///
    /// # Safety
    /// NULL, or a buffer of ours.
    pub(crate) unsafe fn holding<'a>(
        buf: *mut ibv_buf,
        pd: *mut ibv_pd,
        addr: usize,
        length: usize,
    ) -> Result<&'a BufObject, Refused> {
        // SAFETY: as the caller promises.
        let object = unsafe { Handle::<BufObject>::of(buf)? };
        // SAFETY: the buffer's own structure.
        if unsafe { (*buf).pd } != pd {
            return Err(invalid("the buffer was allocated in another protection domain"));
        }
        let offset = addr.checked_sub(object.start.addr());
        let size = object.layout.size();
        match offset.is_some_and(|offset| offset <= size && length <= size - offset) {
            true => Ok(object),
            false => Err(invalid("addr and length exceed the buffer")),
        }
    }
}

impl Drop for BufObject {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start, self.layout) };
    }
}

pub(crate) unsafe extern "C" fn alloc_buf(
    pd: *mut ibv_pd,
    size: usize,
    out: *mut *mut ibv_buf,
) -> *mut c_void {
    guard::pointer("ibv_alloc_buf", || {
        // SAFETY: a domain of ours.
        let (domain, _) = unsafe { PdObject::of(pd)? };
        // SAFETY: the program provides memory for the handle.
        let out = unsafe { out.as_mut() }.ok_or(invalid("buf is NULL"))?;
        let layout = Layout::from_size_align(size, PAGE).ok().filter(|_| size > 0);
        let layout = layout.ok_or(invalid("a buffer has at least one byte, and fits the address space"))?;
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            return Err(Refused::Errno(libc::ENOMEM, "no memory for the buffer"));
        }
        let object = BufObject { start, layout, uses: Uses::default(), _pd: domain.uses.hold() };
        *out = Handle::publish(ibv_buf { pd }, object);
        Ok(start.cast())
    })
}

pub(crate) unsafe extern "C" fn free_buf(buf: *mut ibv_buf) {
    // SAFETY: a buffer of ours. It stays while a region lies on it.
    unsafe { crate::handle::destroy::<BufObject>(buf) };
}

/// No buffer is a dma-buf.
pub(crate) extern "C" fn export_buf_dmabuf_fd(_buf: *mut ibv_buf) -> c_int {
    errno::set(libc::ENODATA);
    -1
}
