//! The one device, opened on first use and kept, as the real library keeps its devices.

use crate::abi::*;
use crate::guard::{Refused, check, made, refused};
use crate::verbs::*;
use ferroce_bridge::cm::{Table, table_of};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The device of one process.
pub(crate) struct Device {
    pub(crate) context: *mut ibv_context,
    pub(crate) table: &'static Table,
    /// The wire is iWARP: the connection itself sets up the queue pair.
    pub(crate) is_iwarp: bool,
    /// The default protection domain of queue pairs.
    pub(crate) pd: *mut ibv_pd,
    /// READs and atomics that a queue pair can answer at a time.
    pub(crate) max_responder_resources: u8,
    /// READs and atomics that it can have outstanding.
    pub(crate) max_initiator_depth: u8,
    xrcd: OnceLock<Shared<ibv_xrcd>>,
    process: libc::pid_t,
}

/// An object of libibverbs that all ids share.
struct Shared<T>(*mut T);

// SAFETY: the verbs allow all threads to use an object of libibverbs.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

/// The device of this process; after a fork, until the child opens its own, that of the parent. There is no lock, since a
/// child could inherit it locked.
static CURRENT: AtomicPtr<Device> = AtomicPtr::new(ptr::null_mut());

/// The device if this process has opened it.
fn current() -> Option<&'static Device> {
    // SAFETY: the pointer is NULL or leads to a box that is never freed.
    let device = unsafe { CURRENT.load(Ordering::Acquire).as_ref()? };
    // SAFETY: a plain system call.
    (device.process == unsafe { libc::getpid() }).then_some(device)
}

/// The device, opened if necessary. A forked child opens its own.
pub(crate) fn device() -> Result<&'static Device, Refused> {
    if let Some(device) = current() {
        return Ok(device);
    }
    let before = CURRENT.load(Ordering::Acquire);
    let fresh = Box::into_raw(Box::new(open()?));
    match CURRENT.compare_exchange(before, fresh, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: never freed from here on.
        Ok(_) => Ok(unsafe { &*fresh }),
        Err(_) => {
            // Another thread was faster.
            // SAFETY: the pointer was not published.
            let unused = unsafe { Box::from_raw(fresh) };
            // SAFETY: `open` has just made them, and no other object depends on them.
            unsafe {
                ibv_dealloc_pd(unused.pd);
                ibv_close_device(unused.context);
            }
            device()
        }
    }
}

fn open() -> Result<Device, Refused> {
    let context = open_first()?;
    // SAFETY: just opened.
    let Some(table) = (unsafe { table_of(context) }) else {
        // SAFETY: just opened, and not used afterwards.
        unsafe { ibv_close_device(context) };
        return Err(refused(
            libc::ENODEV,
            "the libibverbs.so.1 that is loaded is not ferroce's; start the program with `ferroce run`",
        ));
    };
    let mut attr = ibv_device_attr::zeroed();
    // SAFETY: an open context, and a variable for the attributes.
    check(unsafe { ibv_query_device(context, &mut attr) })?;
    // SAFETY: an open context.
    let pd = made(unsafe { ibv_alloc_pd(context) })?;
    let depth = |most: i32| u8::try_from(most).unwrap_or(u8::MAX);
    Ok(Device {
        context,
        table,
        // SAFETY: an open context has its device.
        is_iwarp: unsafe { (*(*context).device).transport_type } == IBV_TRANSPORT_IWARP,
        pd,
        max_responder_resources: depth(attr.max_qp_rd_atom),
        max_initiator_depth: depth(attr.max_qp_init_rd_atom),
        xrcd: OnceLock::new(),
        // SAFETY: a plain system call.
        process: unsafe { libc::getpid() },
    })
}

fn open_first() -> Result<*mut ibv_context, Refused> {
    let none = refused(libc::ENODEV, "there is no device, or it cannot be opened");
    // SAFETY: the list is read up to its end, which is NULL, and freed after its use.
    unsafe {
        // A system without RDMA may report several numbers.
        let list = made(ibv_get_device_list(ptr::null_mut())).map_err(|_| none)?;
        let context = if (*list).is_null() { ptr::null_mut() } else { ibv_open_device(*list) };
        ibv_free_device_list(list);
        if context.is_null() { Err(none) } else { Ok(context) }
    }
}

impl Device {
    /// The first GID of its port; zeros if it has none.
    pub(crate) fn gid(&self) -> ibv_gid {
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: an open context, and a variable for the result, which a failed call does not change.
        unsafe { ibv_query_gid(self.context, 1, 0, &mut gid) };
        gid
    }

    /// The default domain of XRC connections.
    pub(crate) fn xrcd(&self) -> Result<*mut ibv_xrcd, Refused> {
        if let Some(xrcd) = self.xrcd.get() {
            return Ok(xrcd.0);
        }
        let mut attr = ibv_xrcd_init_attr {
            comp_mask: IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
            fd: -1,
            oflags: libc::O_CREAT,
        };
        // SAFETY: an open context, and attributes.
        let fresh = made(unsafe { open_xrcd(self.context, &mut attr) })?;
        let kept = self.xrcd.get_or_init(|| Shared(fresh)).0;
        if kept != fresh {
            // SAFETY: the pointer was not published.
            unsafe { close_xrcd(fresh) };
        }
        Ok(kept)
    }
}

/// Logs why a call was refused, if `FERROCE_LOG` requests it.
pub(crate) fn say(name: &str, why: &str) {
    let text = format!("{name}: {why}");
    match current() {
        // SAFETY: a text and its length.
        Some(device) => unsafe { (device.table.say)(text.as_ptr(), text.len()) },
        // Without a NIC the log level is unknown. The reason is printed if the variable is set.
        None if ferroce_os::env::var_os("FERROCE_LOG").is_some_and(|value| !value.is_empty()) => {
            eprintln!("ferroce[{}] refused: {text}", std::process::id());
        }
        None => {}
    }
}

/// Moves the device to its fatal state.
pub(crate) fn fail() {
    if let Some(device) = current() {
        // SAFETY: a function of the table.
        unsafe { (device.table.fail)() };
    }
}
