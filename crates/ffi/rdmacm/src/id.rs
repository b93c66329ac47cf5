//! Ids: a connection, a listener or a datagram service of a program.

use crate::abi::*;
use crate::address::gid_of;
use crate::channel;
use crate::device::{Device, device};
use crate::event;
use crate::guard::{self, Refused, check, invalid};
use crate::ib::Names;
use crate::multicast::Group;
use ferroce_bridge::cm::{self, Setting, Standing};
use ferroce_os::log;
use parking_lot::{Condvar, Mutex};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

/// How long a program may take to acknowledge before `--explain` reports it.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// The allocation behind a pointer. Programs access the structure at any time, hence the cell.
#[repr(C)]
pub(crate) struct Id {
    abi: UnsafeCell<rdma_cm_id>,
    nic: AtomicPtr<cm::Id>,
    pub(crate) device: &'static Device,
    pub(crate) state: Mutex<State>,
    changed: Condvar,
}

/// State that the C structure has no field for.
#[derive(Default)]
pub(crate) struct State {
    /// Events that the program has acknowledged.
    acknowledged: u32,
    /// The id is complete. Another thread may receive events of a connection request's id before that.
    is_ready: bool,
    /// Whether the id is synchronous: each call waits for its event.
    pub(crate) is_sync: bool,
    /// The queue pair could not be set up. Later messages of the peer about the connection are ignored.
    pub(crate) has_failed: bool,
    /// The program was informed that the connection has ended or failed. No event about it follows.
    pub(crate) has_ended: bool,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) local_ece: [u32; 2],
    pub(crate) remote_ece: [u32; 2],
    pub(crate) groups: Vec<Group>,
    /// The AF_IB addresses, if it is bound to a service instead of an IP address.
    pub(crate) ib: Option<Names>,
    /// The attributes of the queue pairs of a listener's connections.
    pub(crate) qp_attr: Option<QpAttr>,
    /// A header in front of the program's private data when it connects.
    pub(crate) connect: Vec<u8>,
    path: Option<Box<ibv_sa_path_rec>>,
}

/// Attributes for future connections. The program keeps the objects that they point to.
pub(crate) struct QpAttr(pub(crate) ibv_qp_init_attr);

// SAFETY: only addresses; objects of libibverbs may be used by all threads.
unsafe impl Send for QpAttr {}

/// Calls a function of the CM table for an id.
macro_rules! ask {
    ($id:expr, $function:ident($($argument:expr),*)) => {
        // SAFETY: the NIC's half of the id, numbers, and pointers that are valid during the call.
        unsafe { ($id.device.table.$function)($id.nic() $(, $argument)*) }
    };
}
pub(crate) use ask;

impl Id {
    /// An unpublished id, whose events go to `channel`.
    pub(crate) fn new(
        device: &'static Device,
        channel: *mut rdma_event_channel,
        context: *mut c_void,
        ps: u32,
        qp_type: u32,
    ) -> Box<Id> {
        let mut abi = rdma_cm_id::zeroed();
        (abi.channel, abi.context, abi.ps, abi.qp_type) = (channel, context, ps, qp_type);
        Box::new(Id {
            abi: UnsafeCell::new(abi),
            nic: AtomicPtr::new(ptr::null_mut()),
            device,
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// The id behind a program's pointer; NULL is refused.
    ///
    /// # Safety
    /// NULL, or an id that was made here, and that is not destroyed while the result is used.
    pub(crate) unsafe fn of<'a>(id: *mut rdma_cm_id) -> Result<&'a Id, Refused> {
        // SAFETY: as the caller promises; the structure is the first member of the allocation.
        unsafe { id.cast::<Id>().as_ref() }.ok_or(invalid("the id is NULL"))
    }

    /// The structure, as the program has it.
    pub(crate) fn abi(&self) -> *mut rdma_cm_id {
        self.abi.get()
    }

    /// The program's queue pair, or NULL.
    pub(crate) fn qp(&self) -> *mut ibv_qp {
        // SAFETY: a field of our structure; the manual forbids a program to change it while a call runs.
        unsafe { (*self.abi()).qp }
    }

    /// The type that its queue pair has or will have.
    pub(crate) fn qp_type(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.abi()).qp_type }
    }

    /// Whether it is for datagrams.
    pub(crate) fn is_datagram(&self) -> bool {
        self.qp_type() == IBV_QPT_UD
    }

    /// The NIC's half.
    pub(crate) fn nic(&self) -> *mut cm::Id {
        self.nic.load(Ordering::Acquire)
    }

    /// Sets the NIC's half.
    pub(crate) fn set_nic(&self, nic: *mut cm::Id) {
        self.nic.store(nic, Ordering::Release);
    }

    /// Marks it as complete: other threads may deliver its events.
    pub(crate) fn set_ready(&self) {
        self.state.lock().is_ready = true;
        self.changed.notify_all();
    }

    /// Waits until it is complete.
    pub(crate) fn wait_ready(&self) {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| !state.is_ready);
    }

    /// Counts an event that the program has acknowledged.
    pub(crate) fn acknowledge(&self) {
        // The lock is held while notifying: the waiter frees the id.
        let mut state = self.state.lock();
        state.acknowledged += 1;
        self.changed.notify_all();
    }

    /// Waits until the program has acknowledged all delivered events.
    pub(crate) fn wait_acknowledged(&self, handed_out: u32) {
        let mut state = self.state.lock();
        while state.acknowledged < handed_out {
            if !log::explains() {
                self.changed.wait(&mut state);
            } else if self.changed.wait_for(&mut state, MAX_WAIT).timed_out() {
                log::stall(format_args!(
                    "rdma_destroy_id waits: {} events of the id are not acknowledged; call rdma_ack_cm_event for each event that was read",
                    handed_out - state.acknowledged
                ));
            }
        }
    }

    /// Reads its state from the NIC.
    pub(crate) fn standing(&self) -> Standing {
        let mut standing = Standing::default();
        ask!(self, query_id(&mut standing));
        standing
    }

    /// Sets an option in the NIC.
    pub(crate) fn set(&self, setting: Setting, value: u32) -> Result<(), Refused> {
        check(ask!(self, set(setting as u32, value)))
    }

    /// Publishes the addresses to the program. Once the local address is one of the device, publishes the device, too.
    pub(crate) fn show_addresses(&self) {
        let standing = self.standing();
        let is_bound = standing.local.to_socket().is_some_and(|local| !local.ip().is_unspecified());
        // SAFETY: the id's own structure.
        let abi = unsafe { &mut *self.abi() };
        let addr = &mut abi.route.addr;
        let names = self.state.lock().ib;
        match names {
            Some(names) => {
                addr.src = names.local.write();
                names.peer.inspect(|peer| addr.dst = peer.write());
            }
            None => {
                addr.src = standing.local.write().0;
                if standing.peer.version != 0 {
                    addr.dst = standing.peer.write().0;
                }
            }
        }
        if is_bound && abi.verbs.is_null() {
            (abi.verbs, abi.port_num) = (self.device.context, 1);
            if abi.pd.is_null() {
                abi.pd = self.device.pd;
            }
        }
        if self.device.is_iwarp {
            // As in the kernel, the GID is that of the port, and there is no partition.
            if is_bound {
                addr.ibaddr.sgid = self.device.gid();
            }
            return;
        }
        addr.ibaddr.pkey = 0xffff;
        if standing.has_path != 0 {
            addr.ibaddr.sgid.raw = standing.sgid;
            addr.ibaddr.dgid.raw = standing.dgid;
        } else if let Some(local) = standing.local.to_socket().filter(|_| is_bound) {
            addr.ibaddr.sgid = gid_of(local.ip());
        }
    }

    /// Publishes the route to the peer. The kernel has no path records for iWARP.
    pub(crate) fn show_path(&self) {
        let standing = self.standing();
        if standing.has_path == 0 || self.device.is_iwarp {
            return;
        }
        let path = Box::new(crate::route::path_record(&standing));
        let mut state = self.state.lock();
        let path = state.path.insert(path);
        // SAFETY: the id's own structure; the record lives as long as the id does.
        let route = unsafe { &mut (*self.abi()).route };
        (route.path_rec, route.num_paths) = (&raw mut **path, 1);
    }
}

/// Creates an id. Without a channel it gets a channel of its own, and its calls are synchronous.
pub(crate) fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: u32,
    qp_type: u32,
) -> Result<*mut rdma_cm_id, Refused> {
    let device = device()?;
    let is_sync = channel.is_null();
    let channel = if is_sync { channel::create(device)? } else { channel };
    let id = Id::new(device, channel, context, ps, qp_type);
    id.state.lock().is_sync = is_sync;
    let mut nic = ptr::null_mut();
    let cookie = ptr::from_ref::<Id>(&id).expose_provenance() as u64;
    // SAFETY: the open device, a channel, and a variable for the id.
    let made = check(unsafe {
        (device.table.create_id)(device.context, channel::nic(channel), ps, cookie, &mut nic)
    });
    if let Err(refused) = made {
        if is_sync {
            // SAFETY: made above and not published.
            unsafe { channel::destroy(channel) };
        }
        return Err(refused);
    }
    id.set_nic(nic);
    ask!(id, set(Setting::Datagrams as u32, (qp_type == IBV_QPT_UD).into()));
    id.set_ready();
    Ok(Box::into_raw(id).cast())
}

/// Destroys an id: closes the connection in the NIC, waits for the program's acknowledgements, and frees the id.
///
/// # Safety
/// As for [`Id::of`]; the program does not use it afterwards.
pub(crate) unsafe fn destroy(id: *mut rdma_cm_id) -> Result<(), Refused> {
    // SAFETY: as the caller promises.
    let own = unsafe { Id::of(id)? };
    let handed_out = ask!(own, close_id());
    // SAFETY: the event that a call waited for, if any, belongs to this id, which the program destroys.
    unsafe { event::acknowledge_own(own) };
    own.wait_acknowledged(handed_out);
    // SAFETY: no event leads to it, and the program destroys it, so this is the last use.
    let own = unsafe { Box::from_raw(id.cast::<Id>()) };
    ask!(own, free_id());
    if own.state.lock().is_sync {
        // SAFETY: as above.
        unsafe { channel::destroy((*own.abi()).channel) };
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: u32,
) -> c_int {
    guard::minus_one("rdma_create_id", || {
        // SAFETY: NULL, or memory for the id.
        let place = unsafe { id.as_mut() }.ok_or(invalid("id is NULL"))?;
        let qp_type = if matches!(ps, RDMA_PS_UDP | RDMA_PS_IPOIB) { IBV_QPT_UD } else { IBV_QPT_RC };
        *place = create(channel, context, ps, qp_type)?;
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: what the call demands of the program.
    guard::minus_one("rdma_destroy_id", || unsafe { destroy(id) })
}
