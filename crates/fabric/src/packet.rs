//! Packets in the network: fixed-size records without payload, in a slab.

use ferroce_proto::cc::{Hop, MAX_HOPS};

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Data of a flow.
    Data,
    /// A positive acknowledgement.
    Ack,
    /// A report of a gap.
    Nack,
    /// A congestion notification packet.
    Cnp,
    /// A packet of an external host.
    External,
}

/// A packet.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// When the data packet left the sender, in picoseconds. An ACK keeps it.
    pub sent_ps: u64,
    /// The flow.
    pub flow: u32,
    /// Data: number of the packet in its flow. ACK: the next packet that the receiver expects.
    pub seq: u32,
    /// ACK: the data packet that caused it. Over queue pairs: index of its headers.
    pub cause: u32,
    /// The destination host.
    pub to: u32,
    /// Input of the hash that chooses between equal paths.
    pub entropy: u32,
    /// The port that it arrives at next.
    pub port: u32,
    /// Index of its telemetry, or [`NONE`].
    pub telemetry: u32,
    /// Bytes on the wire.
    pub bytes: u32,
    /// What it is.
    pub kind: Kind,
    /// Traffic class.
    pub priority: u8,
    /// Switches may mark it.
    pub ect: bool,
    /// A switch marked it; an ACK echoes the mark.
    pub ce: bool,
    /// It is a retransmission.
    pub again: bool,
}

/// No index.
pub const NONE: u32 = u32::MAX;

/// Telemetry of one packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stamps {
    hops: [Hop; MAX_HOPS],
    len: u8,
}

impl Stamps {
    /// Adds a hop; a path longer than [`MAX_HOPS`] keeps the first ones.
    pub fn push(&mut self, hop: Hop) {
        if let Some(slot) = self.hops.get_mut(usize::from(self.len)) {
            *slot = hop;
            self.len += 1;
        }
    }

    /// The hops so far.
    pub fn as_slice(&self) -> &[Hop] {
        &self.hops[..usize::from(self.len)]
    }
}

/// Records by index. The index of a removed record is reused.
#[derive(Debug)]
pub struct Slab<T> {
    records: Vec<T>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { records: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// Stores a record.
    #[inline]
    pub fn insert(&mut self, record: T) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.records[at as usize] = record;
                at
            }
            None => {
                self.records.push(record);
                (self.records.len() - 1) as u32
            }
        }
    }

    /// Frees a record.
    #[inline]
    pub fn remove(&mut self, at: u32) {
        self.free.push(at);
    }

    /// Records in use.
    pub fn len(&self) -> usize {
        self.records.len() - self.free.len()
    }

    /// Whether none is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    #[inline]
    fn index(&self, at: u32) -> &T {
        &self.records[at as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.records[at as usize]
    }
}
