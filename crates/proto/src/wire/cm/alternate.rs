//! LAP loads an alternate path, APR answers (IBA 12.8). RoCE has no path migration, but peers may ask.

use super::CommId;
use super::layout::{Cursor, Layout};
use crate::ids::{Gid, Qpn};

/// Load this alternate path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lap {
    /// Id that the sender gave the connection.
    pub local_comm_id: CommId,
    /// Id of the receiver.
    pub remote_comm_id: CommId,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// How long the sender waits for the answer: 4.096 us * 2^n, 5 bits.
    pub remote_cm_response_timeout: u8,
    /// LID of the sender.
    pub local_lid: u16,
    /// LID of the receiver.
    pub remote_lid: u16,
    /// GID of the sender.
    pub local_gid: Gid,
    /// GID of the receiver.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Packet rate, as the verbs number it, 6 bits.
    pub packet_rate: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Whether the path stays within the subnet.
    pub subnet_local: bool,
    /// Transport timer exponent, 5 bits.
    pub local_ack_timeout: u8,
    /// What the program sent along.
    pub private_data: [u8; Lap::PRIVATE_LEN],
}

impl Default for Lap {
    fn default() -> Self {
        Lap {
            local_comm_id: CommId::NONE,
            remote_comm_id: CommId::NONE,
            remote_qpn: Qpn::new(0),
            remote_cm_response_timeout: 0,
            local_lid: 0,
            remote_lid: 0,
            local_gid: Gid::ZERO,
            remote_gid: Gid::ZERO,
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 0,
            packet_rate: 0,
            sl: 0,
            subnet_local: false,
            local_ack_timeout: 0,
            private_data: [0; Lap::PRIVATE_LEN],
        }
    }
}

impl Lap {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 168;
}

impl Layout for Lap {
    fn walk(&mut self, c: &mut impl Cursor) {
        c.comm_id(0, &mut self.local_comm_id);
        c.comm_id(4, &mut self.remote_comm_id);
        c.qpn(12, &mut self.remote_qpn);
        c.bits(15, 0, 5, &mut self.remote_cm_response_timeout);
        c.half(20, &mut self.local_lid);
        c.half(22, &mut self.remote_lid);
        c.gid(24, &mut self.local_gid);
        c.gid(40, &mut self.remote_gid);
        c.flow_label(56, &mut self.flow_label);
        c.byte(59, &mut self.traffic_class);
        c.byte(60, &mut self.hop_limit);
        c.bits(61, 2, 6, &mut self.packet_rate);
        c.bits(62, 0, 4, &mut self.sl);
        c.flag(62, 4, &mut self.subnet_local);
        c.bits(63, 0, 5, &mut self.local_ack_timeout);
        c.bytes(64, &mut self.private_data);
    }
}

/// What became of the alternate path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apr {
    /// Id that the sender gave the connection.
    pub local_comm_id: CommId,
    /// Id of the receiver.
    pub remote_comm_id: CommId,
    /// Bytes of `info` that count.
    pub info_len: u8,
    /// Outcome; 0 is success.
    pub status: u8,
    /// More about the outcome.
    pub info: [u8; Apr::INFO_LEN],
    /// What the program sent along.
    pub private_data: [u8; Apr::PRIVATE_LEN],
}

impl Default for Apr {
    fn default() -> Self {
        Apr {
            local_comm_id: CommId::NONE,
            remote_comm_id: CommId::NONE,
            info_len: 0,
            status: 0,
            info: [0; Apr::INFO_LEN],
            private_data: [0; Apr::PRIVATE_LEN],
        }
    }
}

impl Apr {
    /// Bytes of additional information.
    pub const INFO_LEN: usize = 72;
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 148;
    /// Status: alternate paths are not supported.
    pub const UNSUPPORTED: u8 = 2;
}

impl Layout for Apr {
    fn walk(&mut self, c: &mut impl Cursor) {
        c.comm_id(0, &mut self.local_comm_id);
        c.comm_id(4, &mut self.remote_comm_id);
        c.byte(8, &mut self.info_len);
        c.byte(9, &mut self.status);
        c.bytes(12, &mut self.info);
        c.bytes(84, &mut self.private_data);
    }
}
