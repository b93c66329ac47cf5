//! LAP loads an alternate path, APR answers it (IBA 12.8). RoCE has no path migration, but peers may send a LAP.

use super::CommId;
use super::layout::message;
use crate::ids::{Gid, Qpn};

message! {
    /// Load this alternate path.
    pub struct Lap, private data from 64 {
        /// Id that the sender gave the connection.
        local_comm_id: CommId = comm_id(0),
        /// Id of the receiver.
        remote_comm_id: CommId = comm_id(4),
        /// The receiver's queue pair.
        remote_qpn: Qpn = qpn(12),
        /// How long the sender waits for the answer: 4.096 us * 2^n, 5 bits.
        remote_cm_response_timeout: u8 = bits(15, 0, 5),
        /// LID of the sender.
        local_lid: u16 = half(20),
        /// LID of the receiver.
        remote_lid: u16 = half(22),
        /// GID of the sender.
        local_gid: Gid = gid(24),
        /// GID of the receiver.
        remote_gid: Gid = gid(40),
        /// Flow label, 20 bits.
        flow_label: u32 = flow_label(56),
        /// Traffic class.
        traffic_class: u8 = byte(59),
        /// Hop limit.
        hop_limit: u8 = byte(60),
        /// Packet rate, as the verbs number it, 6 bits.
        packet_rate: u8 = bits(61, 2, 6),
        /// Service level, 4 bits.
        sl: u8 = bits(62, 0, 4),
        /// Whether the path stays within the subnet.
        subnet_local: bool = flag(62, 4),
        /// Transport timer exponent, 5 bits.
        local_ack_timeout: u8 = bits(63, 0, 5),
    }
}

message! {
    /// Answer to a LAP.
    pub struct Apr, private data from 84 {
        /// Id that the sender gave the connection.
        local_comm_id: CommId = comm_id(0),
        /// Id of the receiver.
        remote_comm_id: CommId = comm_id(4),
        /// Valid bytes of `info`.
        info_len: u8 = byte(8),
        /// Outcome; 0 is success.
        status: u8 = byte(9),
        /// Additional information.
        info: [u8; Apr::INFO_LEN] = bytes(12),
    }
}

impl Apr {
    /// Bytes of additional information.
    pub const INFO_LEN: usize = 72;
    /// Status: alternate paths are not supported.
    pub const UNSUPPORTED: u8 = 2;
}
