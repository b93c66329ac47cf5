//! An open device, which programs call a context.

use crate::abi::*;
use crate::device::device;
use crate::errno::{Refused, invalid};
use crate::handle::{Handle, Uses, object};
use crate::import::Exports;
use crate::{cm, live, ops};
use ferroce_nic::lock::Mutex;
use ferroce_nic::{Config, EventSource, GidEntry, Nic, Wire, port_gids};
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// The program's pointer to an object that events name.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    Qp(*mut ibv_qp),
    Cq(*mut ibv_cq),
    Srq(*mut ibv_srq),
}

// SAFETY: only an address. It is dereferenced under the lock of the table, and removed under that lock before the object is freed.
unsafe impl Send for Target {}

/// A context.
pub(crate) struct Context {
    pub(crate) nic: Nic,
    pub(crate) uses: Uses,
    /// The objects that receive events: added when an object is made, removed before it is freed.
    pub(crate) targets: Mutex<HashMap<EventSource, Target>>,
    /// The objects that can be imported. An imported context shares them with the original.
    pub(crate) exports: Arc<Exports>,
    _cmd_fd: CmdFd,
}

/// An empty file whose descriptor identifies this context and can be passed to `ibv_import_device`.
struct CmdFd(OwnedFd);

/// Descriptors that contexts own. An imported context must duplicate such a descriptor instead of owning it.
static HELD: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

impl CmdFd {
    fn new(fd: OwnedFd) -> CmdFd {
        HELD.lock().push(fd.as_raw_fd());
        CmdFd(fd)
    }
}

impl Drop for CmdFd {
    fn drop(&mut self) {
        let fd = self.0.as_raw_fd();
        HELD.lock().retain(|held| *held != fd);
    }
}

object!(Context, verbs_context);

impl Context {
    /// Opens the device. All contexts of a process share one NIC.
    pub(crate) fn open() -> Result<*mut ibv_context, Refused> {
        let nic = Nic::shared(|| Ok(Config::from_env()?))?;
        let cmd_fd = memfd_create("ferroce", MemfdFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let exports = Exports::found(nic.clone(), cmd_fd.as_raw_fd())?;
        Self::publish(nic, cmd_fd, exports)
    }

    /// Whether a descriptor belongs to an open context.
    pub(crate) fn owns(fd: RawFd) -> bool {
        HELD.lock().contains(&fd)
    }

    /// Publishes a context to the program.
    pub(crate) fn publish(
        nic: Nic,
        cmd_fd: OwnedFd,
        exports: Arc<Exports>,
    ) -> Result<*mut ibv_context, Refused> {
        let mut abi = verbs_context::zeroed();
        ops::fill(&mut abi, nic.is_watched());
        abi.r#priv = cm::pointer();
        abi.sz = size_of::<verbs_context>();
        abi.context.device = device();
        abi.context.cmd_fd = cmd_fd.as_raw_fd();
        abi.context.async_fd = nic.event_fd().as_raw_fd();
        abi.context.num_comp_vectors = comp_vectors();
        abi.context.abi_compat = VERBS_ABI_IS_EXTENDED;
        let _cmd_fd = CmdFd::new(cmd_fd);
        let context = Context { nic, uses: Uses::default(), targets: Mutex::default(), exports, _cmd_fd };
        let whole = Handle::publish(abi, context);
        // SAFETY: just made; the plain context is a member of it.
        Ok(unsafe { &raw mut (*whole).context })
    }

    /// The context behind a pointer.
    ///
    /// # Safety
    /// NULL, or a context of ours that is open.
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> Result<&'a Context, Refused> {
        if context.is_null() {
            return Err(invalid("the context is NULL"));
        }
        // SAFETY: every context of ours is a member of a `verbs_context`.
        unsafe { Handle::of(verbs_context::around(context)) }
    }

    /// Whether it is an iWARP device.
    pub(crate) fn is_iwarp(&self) -> bool {
        self.nic.wire() == Wire::Iwarp
    }

    /// The GID table of the port.
    pub(crate) fn gids(&self) -> Vec<GidEntry> {
        port_gids(self.nic.wire(), self.nic.gids())
    }

    /// Closes it.
    ///
    /// # Safety
    /// As for [`Context::of`]; the pointer is not used afterwards.
    pub(crate) unsafe fn close(context: *mut ibv_context) -> Result<(), Refused> {
        if context.is_null() {
            return Err(invalid("the context is NULL"));
        }
        live::begin_destroy::<Context>(verbs_context::around(context))?;
        live::leave(verbs_context::around(context).addr());
        // SAFETY: as the caller promises.
        let open = unsafe { Context::of(context)? };
        // The manual allows a program to close a context without destroying its objects. They point to the context, so
        // its memory stays.
        if !open.uses.any() {
            // SAFETY: as the caller promises, and no object of ours points here.
            drop(unsafe { Handle::<Context>::take(verbs_context::around(context)) });
        }
        Ok(())
    }
}

/// One per processor, at most 64, as for hardware. All are equivalent.
fn comp_vectors() -> i32 {
    std::thread::available_parallelism().map_or(1, |n| n.get().min(64) as i32)
}
