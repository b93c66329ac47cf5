//! Service resolution for datagrams: which queue pair serves this service id? (IBA 12.11)

use super::CommId;
use super::layout::message;
use crate::ids::{PKey, Qkey, Qpn};

/// Outcome of a service resolution, as the number on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// Queue pair and key are valid.
    pub const SUCCESS: SidrStatus = SidrStatus(0);
    /// Nobody listens to that service id.
    pub const UNSUPPORTED: SidrStatus = SidrStatus(1);
    /// The program refused.
    pub const REJECT: SidrStatus = SidrStatus(2);
    /// No queue pair available.
    pub const NO_QP: SidrStatus = SidrStatus(3);
}

message! {
    /// Which queue pair serves this service id?
    pub struct SidrReq, private data from 16 {
        /// Comes back with the answer.
        request_id: CommId = comm_id(0),
        /// Partition.
        pkey: PKey = pkey(4),
        /// What the sender wants to talk to.
        service_id: u64 = double(8),
    }
}

message! {
    /// This one does, with this key; or none.
    pub struct SidrRep, private data from 96 {
        /// Id of the question.
        request_id: CommId = comm_id(0),
        /// Outcome.
        status: SidrStatus = status(4),
        /// Bytes of `info` that count.
        info_len: u8 = byte(5),
        /// The queue pair.
        qpn: Qpn = qpn(8),
        /// Service id of the question.
        service_id: u64 = double(12),
        /// Key of the queue pair.
        qkey: Qkey = qkey(20),
        /// More about the outcome.
        info: [u8; SidrRep::INFO_LEN] = bytes(24),
    }
}

impl SidrRep {
    /// Bytes of additional information.
    pub const INFO_LEN: usize = 72;
}
