//! What a queue pair counts.

/// Counters of one queue pair; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCounters {
    /// Packets sent, of any kind.
    pub tx_packets: u64,
    /// Payload bytes sent, repeats included.
    pub tx_bytes: u64,
    /// One-sided operations that the host did at once, without a packet.
    pub performed: u64,
    /// Packets received and meant for this QP.
    pub rx_packets: u64,
    /// Payload bytes received.
    pub rx_bytes: u64,
    /// Packets sent again.
    pub retransmitted: u64,
    /// Times the transport timer ran out.
    pub timeouts: u64,
    /// Early probes for a lost tail, before the timer.
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
    /// Requests that came again.
    pub duplicates: u64,
    /// Requests that came too early.
    pub out_of_order: u64,
}
