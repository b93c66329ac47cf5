//! REP: the answer that accepts a REQ (IBA 12.6.8).

use super::CommId;
use super::layout::message;
use crate::ids::{Psn, Qkey, Qpn};

message! {
    /// Answer that accepts a REQ.
    pub struct Rep, private data from 36 {
        /// Id that the sender gave the connection.
        local_comm_id: CommId = comm_id(0),
        /// Id of the REQ.
        remote_comm_id: CommId = comm_id(4),
        /// Queue key, unused for connections.
        local_qkey: Qkey = qkey(8),
        /// The sender's queue pair.
        local_qpn: Qpn = qpn(12),
        /// Vendor of the options in the MAD's attribute modifier, 24 bits, spread over three reserved bytes.
        vendor_id: u32 = spread(15),
        /// End-to-end context of the sender, 24 bits.
        local_eecn: u32 = three(16),
        /// The first sequence number that the sender expects: the receiver starts sending with it (12.7.31).
        starting_psn: Psn = psn(20),
        /// READs and atomics that the sender can answer at a time.
        responder_resources: u8 = byte(24),
        /// READs and atomics that the sender will have outstanding.
        initiator_depth: u8 = byte(25),
        /// How long the sender's adapter takes to acknowledge: 4.096 us * 2^n, 5 bits.
        target_ack_delay: u8 = bits(26, 0, 5),
        /// Whether the alternate path is accepted, 2 bits.
        failover_accepted: u8 = bits(26, 5, 2),
        /// Whether the sender has end-to-end flow control.
        flow_control: bool = flag(26, 7),
        /// How often the receiver should repeat requests after RNR NAKs, 3 bits.
        rnr_retry_count: u8 = bits(27, 0, 3),
        /// Whether the sender's queue pair has a shared receive queue.
        srq: bool = flag(27, 3),
        /// GUID of the sender's adapter.
        local_ca_guid: u64 = double(28),
    }
}
