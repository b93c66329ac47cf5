//! REP: the offer is taken (IBA 12.6.8).

use super::CommId;
use super::layout::{Cursor, Layout};
use crate::ids::{Psn, Qkey, Qpn};

/// Answer that takes the offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rep {
    /// Id that the sender gave the connection.
    pub local_comm_id: CommId,
    /// Id of the REQ.
    pub remote_comm_id: CommId,
    /// Queue key, of no use for connections.
    pub local_qkey: Qkey,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// Vendor of the options in the MAD's attribute modifier, 24 bits, spread over three reserved bytes.
    pub vendor_id: u32,
    /// End-to-end context of the sender, 24 bits.
    pub local_eecn: u32,
    /// The sequence number that the sender wants to receive first: the receiver begins to send with it (12.7.31).
    pub starting_psn: Psn,
    /// READs and atomics that the sender can answer at a time.
    pub responder_resources: u8,
    /// READs and atomics that the sender will have outstanding.
    pub initiator_depth: u8,
    /// How long the sender's adapter takes to acknowledge: 4.096 us * 2^n, 5 bits.
    pub target_ack_delay: u8,
    /// What became of the alternate path, 2 bits.
    pub failover_accepted: u8,
    /// Whether the sender has end-to-end flow control.
    pub flow_control: bool,
    /// How often the receiver should repeat requests after RNR NAKs, 3 bits.
    pub rnr_retry_count: u8,
    /// Whether the sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// GUID of the sender's adapter.
    pub local_ca_guid: u64,
    /// What the program sent along.
    pub private_data: [u8; Rep::PRIVATE_LEN],
}

impl Default for Rep {
    fn default() -> Self {
        Rep {
            local_comm_id: CommId::NONE,
            remote_comm_id: CommId::NONE,
            local_qkey: Qkey(0),
            local_qpn: Qpn::new(0),
            vendor_id: 0,
            local_eecn: 0,
            starting_psn: Psn::new(0),
            responder_resources: 0,
            initiator_depth: 0,
            target_ack_delay: 0,
            failover_accepted: 0,
            flow_control: false,
            rnr_retry_count: 0,
            srq: false,
            local_ca_guid: 0,
            private_data: [0; Rep::PRIVATE_LEN],
        }
    }
}

impl Rep {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 196;
}

impl Layout for Rep {
    fn walk(&mut self, c: &mut impl Cursor) {
        c.comm_id(0, &mut self.local_comm_id);
        c.comm_id(4, &mut self.remote_comm_id);
        c.qkey(8, &mut self.local_qkey);
        c.qpn(12, &mut self.local_qpn);
        let [_, mut high, mut middle, mut low] = self.vendor_id.to_be_bytes();
        c.byte(15, &mut high);
        c.byte(19, &mut middle);
        c.byte(23, &mut low);
        self.vendor_id = u32::from_be_bytes([0, high, middle, low]);
        c.three(16, &mut self.local_eecn);
        c.psn(20, &mut self.starting_psn);
        c.byte(24, &mut self.responder_resources);
        c.byte(25, &mut self.initiator_depth);
        c.bits(26, 0, 5, &mut self.target_ack_delay);
        c.bits(26, 5, 2, &mut self.failover_accepted);
        c.flag(26, 7, &mut self.flow_control);
        c.bits(27, 0, 3, &mut self.rnr_retry_count);
        c.flag(27, 3, &mut self.srq);
        c.double(28, &mut self.local_ca_guid);
        c.bytes(36, &mut self.private_data);
    }
}
