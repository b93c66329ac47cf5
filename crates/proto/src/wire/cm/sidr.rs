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
    /// The service id has no listener.
    pub const UNSUPPORTED: SidrStatus = SidrStatus(1);
    /// The program refused.
    pub const REJECT: SidrStatus = SidrStatus(2);
    /// No queue pair available.
    pub const NO_QP: SidrStatus = SidrStatus(3);
}

message! {
    /// Which queue pair serves this service id?
    pub struct SidrReq, private data from 16 {
        /// Id of the request, which the reply repeats.
        request_id: CommId = comm_id(0),
        /// Partition.
        pkey: PKey = pkey(4),
        /// The requested service.
        service_id: u64 = double(8),
    }
}

message! {
    /// The queue pair and its Q_Key, or a refusal.
    pub struct SidrRep, private data from 96 {
        /// Id of the request.
        request_id: CommId = comm_id(0),
        /// Outcome.
        status: SidrStatus = status(4),
        /// Valid bytes of `info`.
        info_len: u8 = byte(5),
        /// The queue pair.
        qpn: Qpn = qpn(8),
        /// Service id of the request.
        service_id: u64 = double(12),
        /// Key of the queue pair.
        qkey: Qkey = qkey(20),
        /// Additional information.
        info: [u8; SidrRep::INFO_LEN] = bytes(24),
    }
}

impl SidrRep {
    /// Bytes of additional information.
    pub const INFO_LEN: usize = 72;
}
