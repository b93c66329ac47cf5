//! The table through which librdmacm reaches the connection manager inside libibverbs.
//!
//! All state of the NIC lives in libibverbs. It puts a pointer to its table where a `verbs_context` has `priv`, which no
//! program reads; so no symbol is needed that the real library does not have. Everything here is plain: the two libraries
//! may come from different builds, and then the version must tell.
//!
//! Functions answer 0 or an error number, and have said why to whoever asked for it (`FERROCE_LOG`). They do not panic.

use crate::address::Address;
use crate::verbs::{ibv_ah_attr, ibv_context, ibv_qp_attr, verbs_context};
use std::ffi::{c_int, c_void};
use std::mem::offset_of;

/// The first word of the table. A real library has a pointer there, which has zeros at one end.
pub const MAGIC: u64 = u64::from_be_bytes(*b"ferroce\x01");

/// Most bytes that a message has for programs.
pub const PRIVATE_DATA: usize = 224;

/// An event channel inside libibverbs.
pub type Channel = c_void;
/// An id inside libibverbs.
pub type Id = c_void;

/// Parameters of a connection, as offered, taken and told.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Parameters {
    /// The queue pair: ours when given, the peer's when told.
    pub qpn: u32,
    /// READs and atomics to answer at a time.
    pub responder_resources: u8,
    /// READs and atomics to have outstanding.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: u8,
    /// How often requests are repeated.
    pub retry_count: u8,
    /// How often after RNR NAKs.
    pub rnr_retry: u8,
    /// Whether the queue pair has a shared receive queue.
    pub srq: u8,
    /// Vendor and options of enhanced connection establishment.
    pub ece: [u32; 2],
    /// How many bytes of private data there are.
    pub private_len: u32,
    /// Those bytes.
    pub private: [u8; PRIVATE_DATA],
}

impl Default for Parameters {
    fn default() -> Self {
        Parameters {
            qpn: 0,
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: 0,
            retry_count: 0,
            rnr_retry: 0,
            srq: 0,
            ece: [0; 2],
            private_len: 0,
            private: [0; PRIVATE_DATA],
        }
    }
}

impl Parameters {
    /// The bytes for the other program.
    pub fn private_data(&self) -> &[u8] {
        &self.private[..PRIVATE_DATA.min(self.private_len as usize)]
    }

    /// Sets them; `false` if no message has so much room.
    pub fn set_private_data(&mut self, data: &[u8]) -> bool {
        let Some(place) = self.private.get_mut(..data.len()) else { return false };
        place.copy_from_slice(data);
        self.private_len = data.len() as u32;
        true
    }
}

/// An event.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Event {
    /// As <rdma/rdma_cma.h> numbers them.
    pub kind: u32,
    /// 0, a negative error number, or the reason of a refusal.
    pub status: i32,
    /// The program's number of the id that the event counts for: for an offer, that of the listener.
    pub cookie: u64,
    /// The new id of an offer, which the receiver owns.
    pub offer: *mut Id,
    /// Parameters of the connection.
    pub parameters: Parameters,
    /// Whether what follows is there: how to reach a datagram service or a group.
    pub is_datagram: u32,
    /// To which queue pair.
    pub qpn: u32,
    /// With which key.
    pub qkey: u32,
    /// Where to.
    pub ah_attr: ibv_ah_attr,
}

impl Default for Event {
    fn default() -> Self {
        Event {
            kind: 0,
            status: 0,
            cookie: 0,
            offer: std::ptr::null_mut(),
            parameters: Parameters::default(),
            is_datagram: 0,
            qpn: 0,
            qkey: 0,
            ah_attr: ibv_ah_attr::default(),
        }
    }
}

/// What is known of an id.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Standing {
    /// Address and port here.
    pub local: Address,
    /// Those of the peer.
    pub peer: Address,
    /// Whether the rest is there: the way to the peer.
    pub has_path: u32,
    /// Our address as a GID.
    pub sgid: [u8; 16],
    /// The peer's.
    pub dgid: [u8; 16],
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Service level.
    pub sl: u8,
    /// Path MTU, as the verbs number it.
    pub mtu: u8,
    /// Transport timer exponent.
    pub ack_timeout: u8,
}

/// Settings of an id, by their number here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Setting {
    /// Traffic class.
    Tos = 0,
    /// Whether a port may be shared.
    ReuseAddress = 1,
    /// Whether all IPv6 addresses leave IPv4 alone.
    AfOnly = 2,
    /// Transport timer exponent.
    AckTimeout = 3,
    /// Whether an id of the port space for both asks for datagram services.
    Datagrams = 4,
    /// Whether offers to a listener come with all of their private data.
    WholeOffers = 5,
    /// Number of the port space that its port is taken from; 0 for its own.
    PortSpace = 6,
}

/// Transports that connections can be of, as queue pairs number them.
pub type Transport = u32;

/// The table.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Table {
    /// [`MAGIC`].
    pub magic: u64,
    /// Size of the table, which grows at its end.
    pub size: usize,
    /// Says why a call was refused, to whoever asked for it.
    pub say: unsafe extern "C" fn(text: *const u8, len: usize),
    /// An error inside: the device is said to have failed.
    pub fail: unsafe extern "C" fn(),

    /// Makes an event channel; its descriptor is readable while an event waits.
    pub create_channel: unsafe extern "C" fn(*mut ibv_context, *mut *mut Channel, *mut c_int) -> c_int,
    /// Ends it.
    pub destroy_channel: unsafe extern "C" fn(*mut Channel),
    /// Waits for an event, unless the descriptor is non-blocking. An offer's id has the given cookie from then on; events
    /// of it that another thread gets have that one, too.
    pub next_event: unsafe extern "C" fn(*mut Channel, offer_cookie: u64, *mut Event) -> c_int,

    /// Makes an id in a port space.
    pub create_id:
        unsafe extern "C" fn(*mut ibv_context, *mut Channel, space: u32, cookie: u64, *mut *mut Id) -> c_int,
    /// The program is done with it. Returns how many events of it were handed out; there will be no more.
    pub close_id: unsafe extern "C" fn(*mut Id) -> u32,
    /// Forgets it.
    pub free_id: unsafe extern "C" fn(*mut Id),
    /// Its events go elsewhere from now on. Returns how many were handed out before.
    pub migrate_id: unsafe extern "C" fn(*mut Id, *mut Channel) -> u32,
    /// What is known of it.
    pub query_id: unsafe extern "C" fn(*mut Id, *mut Standing),
    /// Changes a setting.
    pub set: unsafe extern "C" fn(*mut Id, setting: u32, value: u32) -> c_int,

    /// Binds it.
    pub bind: unsafe extern "C" fn(*mut Id, *const Address) -> c_int,
    /// Listens.
    pub listen: unsafe extern "C" fn(*mut Id, backlog: c_int) -> c_int,
    /// Finds the address from which the destination is reached; the source may be none.
    pub resolve_addr: unsafe extern "C" fn(*mut Id, source: *const Address, to: *const Address) -> c_int,
    /// Fixes the way.
    pub resolve_route: unsafe extern "C" fn(*mut Id) -> c_int,
    /// Attributes that take the id's queue pair to the state that `attr` names, and their mask.
    pub qp_attributes: unsafe extern "C" fn(*mut Id, attr: *mut ibv_qp_attr, mask: *mut c_int) -> c_int,

    /// Offers a connection.
    pub connect: unsafe extern "C" fn(*mut Id, Transport, *const Parameters) -> c_int,
    /// Takes one.
    pub accept: unsafe extern "C" fn(*mut Id, *const Parameters) -> c_int,
    /// Refuses one.
    pub reject: unsafe extern "C" fn(*mut Id, reason: u32, *const Parameters) -> c_int,
    /// Tells the peer that the queue pair is ready.
    pub establish: unsafe extern "C" fn(*mut Id) -> c_int,
    /// Data came before the peer's last message.
    pub notify_established: unsafe extern "C" fn(*mut Id) -> c_int,
    /// Ends a connection.
    pub disconnect: unsafe extern "C" fn(*mut Id) -> c_int,
    /// Joins a group: an event follows.
    pub join: unsafe extern "C" fn(*mut Id, group: *const Address) -> c_int,
}

/// The table of a context; `None` if it is not one of ours.
///
/// # Safety
/// An open context of whatever libibverbs is loaded.
pub unsafe fn table_of(context: *mut ibv_context) -> Option<&'static Table> {
    let whole = context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>();
    // SAFETY: every context of the last ten years is the tail of a `verbs_context` and says so; the table is static.
    unsafe {
        if (*context).abi_compat.addr() != usize::MAX {
            return None;
        }
        let table = (*whole).r#priv.cast::<Table>();
        // Of a foreign library only the first word is looked at.
        if table.is_null() || (*table).magic != MAGIC || (*table).size < size_of::<Table>() {
            return None;
        }
        Some(&*table)
    }
}
