//! Counters of a queue pair.

/// Counters of one queue pair; they never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpCounters {
    /// Packets sent, of any kind.
    pub tx_packets: u64,
    /// Payload bytes sent, including retransmissions.
    pub tx_bytes: u64,
    /// One-sided operations that the host executed directly, without a packet.
    pub performed: u64,
    /// Packets received by this QP.
    pub rx_packets: u64,
    /// Payload bytes received.
    pub rx_bytes: u64,
    /// Packets retransmitted.
    pub retransmitted: u64,
    /// Transport timer expirations.
    pub timeouts: u64,
    /// Probes for a lost tail, before the transport timer.
    pub probes: u64,
    /// Sequence NAKs received.
    pub naks_received: u64,
    /// Sequence and error NAKs sent.
    pub naks_sent: u64,
    /// RNR NAKs received.
    pub rnr_received: u64,
    /// RNR NAKs sent.
    pub rnr_sent: u64,
    /// Acknowledgements sent.
    pub acks_sent: u64,
    /// Duplicate requests received.
    pub duplicates: u64,
    /// Out-of-order requests received.
    pub out_of_order: u64,
    /// Packets received that a switch had marked (ECN, congestion experienced).
    pub ecn_marked: u64,
    /// Congestion notifications (CNPs) sent for them.
    pub cnps_sent: u64,
    /// Congestion notifications received from the peer.
    pub cnps_received: u64,
}
