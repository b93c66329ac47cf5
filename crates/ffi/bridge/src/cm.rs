//! The table through which librdmacm reaches the connection manager inside libibverbs.
//!
//! All state of the NIC is in libibverbs. It stores a pointer to its table in the `priv` field of a `verbs_context`, which no
//! program reads. So it exports no symbol that rdma-core lacks. All types here are plain C types. If the two libraries come
//! from incompatible builds, their versions differ.
//!
//! Functions return 0 or an error number, and log the reason (`FERROCE_LOG`). They do not panic.

use crate::address::Address;
use crate::verbs::{ibv_ah_attr, ibv_context, ibv_qp_attr, verbs_context, zeroed};
use std::ffi::{c_int, c_void};

/// The first word of the table. In rdma-core this word is a pointer, which has zeros at one end. The last byte is the version, which grows
/// when a structure of this file changes.
pub const MAGIC: u64 = u64::from_be_bytes(*b"ferroce\x02");

/// The maximum length of private data in librdmacm, which stores the length in one byte.
pub const PRIVATE_DATA: usize = 255;

/// An event channel inside libibverbs.
pub type Channel = c_void;
/// An id inside libibverbs.
pub type Id = c_void;

/// Parameters of a connection, in requests, replies and events.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Parameters {
    /// The queue pair: ours in a call, the peer's in an event.
    pub qpn: u32,
    /// READs and atomics to answer at a time.
    pub responder_resources: u8,
    /// READs and atomics to have outstanding.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: u8,
    /// Maximum number of retries.
    pub retry_count: u8,
    /// Maximum number of retries after RNR NAKs.
    pub rnr_retry: u8,
    /// Whether the queue pair has a shared receive queue.
    pub srq: u8,
    /// Vendor and options of enhanced connection establishment.
    pub ece: [u32; 2],
    /// Length of the private data.
    pub private_len: u32,
    /// The private data.
    pub private: [u8; PRIVATE_DATA],
}

/// The error for private data that exceeds every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrivateDataTooLong;

impl Parameters {
    /// The private data as a slice.
    pub fn private_data(&self) -> &[u8] {
        &self.private[..PRIVATE_DATA.min(self.private_len as usize)]
    }

    /// Sets the private data of a peer. iWARP allows more than [`PRIVATE_DATA`] bytes; the rest is cut off.
    pub fn set_received(&mut self, data: &[u8]) {
        let len = data.len().min(PRIVATE_DATA);
        self.private[..len].copy_from_slice(&data[..len]);
        self.private_len = len as u32;
    }

    /// Sets the private data.
    pub fn set_private_data(&mut self, data: &[u8]) -> Result<(), PrivateDataTooLong> {
        self.private.get_mut(..data.len()).ok_or(PrivateDataTooLong)?.copy_from_slice(data);
        self.private_len = data.len() as u32;
        Ok(())
    }
}

/// An event.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Event {
    /// The type, as numbered in <rdma/rdma_cma.h>.
    pub kind: u32,
    /// 0, a negative error number, or the reason of a reject.
    pub status: i32,
    /// The program's cookie of the id that the event counts for: for a connection request, that of the listener.
    pub cookie: u64,
    /// The new id of a connection request, which the receiver owns.
    pub request_id: *mut Id,
    /// Parameters of the connection.
    pub parameters: Parameters,
    /// Whether the following fields are valid: the address of a datagram service or a group.
    pub is_datagram: u32,
    /// Destination queue pair.
    pub qpn: u32,
    /// Destination Q_Key.
    pub qkey: u32,
    /// Destination address.
    pub ah_attr: ibv_ah_attr,
}

zeroed!(Parameters, Event);

// A new size needs a new version, or a librdmacm of another build would write past the end of its event.
const _: () =
    assert!(MAGIC.to_be_bytes()[7] == 2 && size_of::<Parameters>() == 280 && size_of::<Event>() == 352);

/// The state of an id.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Standing {
    /// Local address and port.
    pub local: Address,
    /// Address and port of the peer.
    pub peer: Address,
    /// Whether the following fields are valid: the route to the peer.
    pub has_path: u32,
    /// Local GID.
    pub sgid: [u8; 16],
    /// GID of the peer.
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

/// Options of an id, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Setting {
    /// Traffic class.
    Tos = 0,
    /// Whether a port may be shared.
    ReuseAddress = 1,
    /// Whether the IPv6 wildcard address excludes IPv4.
    AfOnly = 2,
    /// Transport timer exponent.
    AckTimeout = 3,
    /// Whether an id of the IB port space uses datagram services.
    Datagrams = 4,
    /// Whether connection requests to a listener carry all of their private data.
    FullPrivateData = 5,
    /// Number of the port space that its port belongs to; 0 for its own.
    PortSpace = 6,
}

/// The transport of a connection, as a type of queue pair (`IBV_QPT_*`).
pub type Transport = u32;

/// The table.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Table {
    /// [`MAGIC`].
    pub magic: u64,
    /// Size of the table, which grows at its end.
    pub size: usize,
    /// Logs why a call was refused.
    pub say: unsafe extern "C" fn(text: *const u8, len: usize),
    /// Reports an internal error: the device enters its fatal state.
    pub fail: unsafe extern "C" fn(),

    /// Makes an event channel; its descriptor is readable while an event waits.
    pub create_channel: unsafe extern "C" fn(*mut ibv_context, *mut *mut Channel, *mut c_int) -> c_int,
    /// Destroys an event channel.
    pub destroy_channel: unsafe extern "C" fn(*mut Channel),
    /// Waits for an event, unless the descriptor is non-blocking. The id of a connection request gets the given
    /// cookie; later events of it that other threads receive have that cookie, too.
    pub next_event: unsafe extern "C" fn(*mut Channel, request_cookie: u64, *mut Event) -> c_int,

    /// Makes an id in a port space.
    pub create_id:
        unsafe extern "C" fn(*mut ibv_context, *mut Channel, space: u32, cookie: u64, *mut *mut Id) -> c_int,
    /// Closes an id. Returns the number of its events that were delivered; no further events follow.
    pub close_id: unsafe extern "C" fn(*mut Id) -> u32,
    /// Frees an id.
    pub free_id: unsafe extern "C" fn(*mut Id),
    /// Moves the events of an id to another channel. Returns the number that was delivered before.
    pub migrate_id: unsafe extern "C" fn(*mut Id, *mut Channel) -> u32,
    /// Reads the state of an id.
    pub query_id: unsafe extern "C" fn(*mut Id, *mut Standing),
    /// Sets an option.
    pub set: unsafe extern "C" fn(*mut Id, setting: u32, value: u32) -> c_int,

    /// Binds an id.
    pub bind: unsafe extern "C" fn(*mut Id, *const Address) -> c_int,
    /// Listens.
    pub listen: unsafe extern "C" fn(*mut Id, backlog: c_int) -> c_int,
    /// Resolves the local address for a destination; the source may be NULL.
    pub resolve_addr: unsafe extern "C" fn(*mut Id, source: *const Address, to: *const Address) -> c_int,
    /// Resolves the route.
    pub resolve_route: unsafe extern "C" fn(*mut Id) -> c_int,
    /// Attributes that move the id's queue pair to the state in `attr`, and their mask.
    pub qp_attributes: unsafe extern "C" fn(*mut Id, attr: *mut ibv_qp_attr, mask: *mut c_int) -> c_int,

    /// Sends a connection request.
    pub connect: unsafe extern "C" fn(*mut Id, Transport, *const Parameters) -> c_int,
    /// Accepts a connection request.
    pub accept: unsafe extern "C" fn(*mut Id, *const Parameters) -> c_int,
    /// Rejects a connection request.
    pub reject: unsafe extern "C" fn(*mut Id, reason: u32, *const Parameters) -> c_int,
    /// Confirms to the peer that the queue pair is ready.
    pub establish: unsafe extern "C" fn(*mut Id) -> c_int,
    /// Reports that data arrived before the peer's RTU.
    pub notify_established: unsafe extern "C" fn(*mut Id) -> c_int,
    /// Disconnects.
    pub disconnect: unsafe extern "C" fn(*mut Id) -> c_int,
    /// Joins a multicast group; an event follows.
    pub join: unsafe extern "C" fn(*mut Id, group: *const Address) -> c_int,
}

/// The table of a context; `None` if it is not one of ours.
///
/// # Safety
/// An open context of the loaded libibverbs.
pub unsafe fn table_of(context: *mut ibv_context) -> Option<&'static Table> {
    // SAFETY: in every libibverbs of the last ten years, a context with this value of `abi_compat` is the tail of a
    // `verbs_context`; the table is static.
    unsafe {
        if (*context).abi_compat.addr() != usize::MAX {
            return None;
        }
        let table = (*verbs_context::around(context)).r#priv.cast::<Table>();
        // In a foreign library only the first word is read.
        if table.is_null() || (*table).magic != MAGIC || (*table).size < size_of::<Table>() {
            return None;
        }
        Some(&*table)
    }
}
