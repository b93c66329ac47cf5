//! Messages on iWARP: a SEND of four bytes behind the WRITE, as in rdma-core's rsockets, since not every iWARP peer supports
//! immediate data. The number has the byte order of the sender's processor, as in rdma-core.

use std::ffi::c_int;

use super::calls::{ACCESS_LOCAL_WRITE, Entry};
use super::errno::Outcome;
use super::memory::Registered;
use super::settings::Sizing;
use super::wire::Message;
use crate::abi::{IBV_TRANSPORT_IWARP, ibv_pd, rdma_cm_id};

/// Bytes of a message.
pub(crate) const MESSAGE_LEN: usize = 4;
/// Receives beyond the credits of the peer. iWARP does not repeat a SEND without a posted receive: it ends the connection. A peer without
/// credits may still grant credits and end the stream.
const CONTROL_RECEIVES: u32 = 8;

/// Whether messages to and from the id's peers are SENDs.
///
/// # Safety
/// The id is bound to a device.
pub(crate) unsafe fn are_sent(id: *mut rdma_cm_id) -> bool {
    // SAFETY: what the caller promises.
    unsafe { (*(*(*id).verbs).device).transport_type == IBV_TRANSPORT_IWARP }
}

/// The number of receives that a stream posts if messages are SENDs.
pub(crate) fn receives(sizes: &Sizing) -> u32 {
    u32::from(sizes.recv_queue) + CONTROL_RECEIVES + u32::from(sizes.mappings)
}

/// The memory of posted receives.
pub(crate) struct Slots {
    memory: Registered,
    count: u32,
    next: u32,
}

impl Slots {
    /// # Safety
    /// The domain outlives the value.
    pub(crate) unsafe fn new(pd: *mut ibv_pd, count: u32) -> Outcome<Slots> {
        let access: c_int = ACCESS_LOCAL_WRITE;
        // SAFETY: what the caller promises.
        let memory = unsafe { Registered::new(pd, count as usize * MESSAGE_LEN, access)? };
        Ok(Slots { memory, count, next: 0 })
    }

    /// The slot of the next receive, and its memory. Receives complete in the order of posting, so the slot is free.
    pub(crate) fn take(&mut self) -> (u32, Entry) {
        let slot = self.next;
        self.next = (slot + 1) % self.count;
        let addr = self.memory.addr() + u64::from(slot) * MESSAGE_LEN as u64;
        (slot, Entry { addr, length: MESSAGE_LEN as u32, lkey: self.memory.lkey() })
    }

    /// The message in a slot.
    pub(crate) fn message(&self, slot: u32) -> Message {
        let at = (slot % self.count) as usize * MESSAGE_LEN;
        Message::from_u32(u32::from_ne_bytes(self.memory.bytes(at)))
    }
}
