//! Service resolution for datagrams: which queue pair serves this service id? (IBA 12.11)

use super::CommId;
use super::layout::{Cursor, Layout};
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

/// Which queue pair serves this service id?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrReq {
    /// Comes back with the answer.
    pub request_id: CommId,
    /// Partition.
    pub pkey: PKey,
    /// What the sender wants to talk to.
    pub service_id: u64,
    /// What the program sent along.
    pub private_data: [u8; SidrReq::PRIVATE_LEN],
}

impl Default for SidrReq {
    fn default() -> Self {
        SidrReq {
            request_id: CommId::NONE,
            pkey: PKey(0),
            service_id: 0,
            private_data: [0; SidrReq::PRIVATE_LEN],
        }
    }
}

impl SidrReq {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 216;
}

impl Layout for SidrReq {
    fn walk(&mut self, c: &mut impl Cursor) {
        c.comm_id(0, &mut self.request_id);
        c.pkey(4, &mut self.pkey);
        c.double(8, &mut self.service_id);
        c.bytes(16, &mut self.private_data);
    }
}

/// This one does, with this key; or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SidrRep {
    /// Id of the question.
    pub request_id: CommId,
    /// Outcome.
    pub status: SidrStatus,
    /// Bytes of `info` that count.
    pub info_len: u8,
    /// The queue pair.
    pub qpn: Qpn,
    /// Service id of the question.
    pub service_id: u64,
    /// Key of the queue pair.
    pub qkey: Qkey,
    /// More about the outcome.
    pub info: [u8; SidrRep::INFO_LEN],
    /// What the program sent along.
    pub private_data: [u8; SidrRep::PRIVATE_LEN],
}

impl Default for SidrRep {
    fn default() -> Self {
        SidrRep {
            request_id: CommId::NONE,
            status: SidrStatus::SUCCESS,
            info_len: 0,
            qpn: Qpn::new(0),
            service_id: 0,
            qkey: Qkey(0),
            info: [0; SidrRep::INFO_LEN],
            private_data: [0; SidrRep::PRIVATE_LEN],
        }
    }
}

impl SidrRep {
    /// Bytes of additional information.
    pub const INFO_LEN: usize = 72;
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 136;
}

impl Layout for SidrRep {
    fn walk(&mut self, c: &mut impl Cursor) {
        c.comm_id(0, &mut self.request_id);
        c.byte(4, &mut self.status.0);
        c.byte(5, &mut self.info_len);
        c.qpn(8, &mut self.qpn);
        c.double(12, &mut self.service_id);
        c.qkey(20, &mut self.qkey);
        c.bytes(24, &mut self.info);
        c.bytes(96, &mut self.private_data);
    }
}
