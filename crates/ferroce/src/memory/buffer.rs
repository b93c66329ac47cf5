//! Message buffers.

use super::raw::Exclusive;
use crate::error::Error;
use crate::macros::debug;
use crate::pd::Pd;
use ferroce_proto::qp::MAX_MESSAGE;
use ferroce_proto::verbs::Sge;
use std::ops::{Deref, DerefMut};

/// Headroom in front of the message in bytes. The 40-byte GRH of a datagram ends where the message begins, which is aligned.
const HEADROOM: usize = 64;
/// Bytes of a global route header.
const GRH_LEN: usize = 40;

/// The memory of one message. `send` and `recv` take it by value, and the completion returns it, so the program and the NIC
/// never own it at the same time.
///
/// A buffer behaves as a slice of [`len`](Buffer::set_len) bytes of its capacity. A send transmits those bytes. A receive uses
/// the whole capacity and sets the length to that of the message.
pub struct Buffer {
    // Boxed, because buffers are moved often: when posted, when completed, and through errors.
    memory: Box<Exclusive>,
    capacity: usize,
    len: usize,
    /// Whether the headroom contains the GRH of the last received datagram.
    has_grh: bool,
}

impl Buffer {
    pub(crate) fn new(pd: &Pd, capacity: usize) -> Result<Self, Error> {
        let (value, limit) = (capacity as u64, MAX_MESSAGE.into());
        if value > limit {
            return Err(Error::in_call("buffer")(ferroce_nic::Error::Limit {
                what: "capacity",
                value,
                limit,
            }));
        }
        let memory = Box::new(Exclusive::new(&pd.nic, capacity + HEADROOM)?);
        Ok(Buffer { memory, capacity, len: capacity, has_grh: false })
    }

    /// Capacity in bytes.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Sets the length of the message, at most the capacity.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(self.capacity);
    }

    /// Copies a message in and sets the length.
    pub fn set(&mut self, message: &[u8]) -> Result<(), Error> {
        if message.len() > self.capacity {
            return Err(Error::Range { start: 0, end: message.len() as u64, len: self.capacity as u64 });
        }
        self.len = message.len();
        self.copy_from_slice(message);
        Ok(())
    }

    /// The global route header of the last received datagram: 40 bytes, of which IPv4 uses the last 20.
    pub fn grh(&self) -> Option<&[u8]> {
        self.has_grh.then(|| self.memory.bytes(HEADROOM - GRH_LEN, GRH_LEN))
    }

    pub(crate) fn outgoing(&self) -> Sge {
        self.memory.sge(HEADROOM, self.len as u32)
    }

    pub(crate) fn incoming(&self, datagram: bool) -> Sge {
        let head = if datagram { GRH_LEN } else { 0 };
        self.memory.sge(HEADROOM - head, (self.capacity + head) as u32)
    }

    /// Sets the length after a receive of `byte_len` bytes, including the header of a datagram.
    pub(crate) fn received(&mut self, byte_len: u32, datagram: bool) {
        let head = if datagram { GRH_LEN } else { 0 };
        self.has_grh = datagram;
        self.set_len((byte_len as usize).saturating_sub(head));
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.memory.bytes(HEADROOM, self.len)
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut(HEADROOM, self.len)
    }
}

debug!(Buffer, |this| "Buffer({} of {} bytes)", this.len, this.capacity);
