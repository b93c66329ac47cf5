//! REQ: the offer of a connection (IBA 12.6.5).

use super::CommId;
use super::layout::message;
use crate::ids::{Gid, PKey, Psn, Qkey, Qpn};

/// A path as REQ carries it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmPath {
    /// LID of the sender; 0xffff where there are none.
    pub local_lid: u16,
    /// LID of the receiver.
    pub remote_lid: u16,
    /// GID of the sender.
    pub local_gid: Gid,
    /// GID of the receiver.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Packet rate, as the verbs number it, 6 bits.
    pub packet_rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Whether the path stays within the subnet.
    pub subnet_local: bool,
    /// Transport timer exponent for the receiver, 5 bits.
    pub local_ack_timeout: u8,
}

/// Transport service of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CmTransport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Extended reliable connection.
    Xrc,
}

message! {
    /// Offer of a connection.
    pub struct Req, private data from 140 {
        /// Id that the sender gave the connection.
        local_comm_id: CommId = comm_id(0),
        /// Vendor of the options in the MAD's attribute modifier (enhanced connection establishment), 24 bits.
        vendor_id: u32 = three(5),
        /// The requested service.
        service_id: u64 = double(8),
        /// GUID of the sender's adapter.
        local_ca_guid: u64 = double(16),
        /// Queue key, unused for connections.
        local_qkey: Qkey = qkey(28),
        /// The sender's queue pair.
        local_qpn: Qpn = qpn(32),
        /// READs and atomics that the sender can answer at a time.
        responder_resources: u8 = byte(35),
        /// End-to-end context of the sender, 24 bits (reliable datagrams).
        local_eecn: u32 = three(36),
        /// READs and atomics that the sender will have outstanding.
        initiator_depth: u8 = byte(39),
        /// End-to-end context of the receiver, 24 bits.
        remote_eecn: u32 = three(40),
        /// How long the sender waits for the answer: 4.096 us * 2^n, 5 bits.
        remote_cm_response_timeout: u8 = bits(43, 0, 5),
        /// Transport service: 0 RC, 1 UC, 2 RD, 3 another one.
        transport_service: u8 = bits(43, 5, 2),
        /// Whether the sender has end-to-end flow control.
        flow_control: bool = flag(43, 7),
        /// The first sequence number that the sender expects: the receiver starts sending with it (12.7.31).
        starting_psn: Psn = psn(44),
        /// How long the receiver of a REP should wait for the RTU: 4.096 us * 2^n, 5 bits.
        local_cm_response_timeout: u8 = bits(47, 0, 5),
        /// How often the receiver should repeat requests, 3 bits.
        retry_count: u8 = bits(47, 5, 3),
        /// Partition.
        pkey: PKey = pkey(48),
        /// Path MTU, as the verbs number it, 4 bits.
        path_mtu: u8 = bits(50, 0, 4),
        /// Whether the sender's end-to-end context has a reliable datagram channel.
        rdc_exists: bool = flag(50, 4),
        /// How often the receiver should repeat requests after RNR NAKs, 3 bits.
        rnr_retry_count: u8 = bits(50, 5, 3),
        /// How often each message is repeated, 4 bits.
        max_cm_retries: u8 = bits(51, 0, 4),
        /// Whether the sender's queue pair has a shared receive queue.
        srq: bool = flag(51, 4),
        /// Transport behind `transport_service` 3: 1 is XRC. 3 bits.
        extended_transport: u8 = bits(51, 5, 3),
        /// Primary path.
        primary: CmPath = path(52),
        /// Alternate path; zeros if there is none.
        alternate: CmPath = path(96),
    }
}

impl Req {
    /// The transport service that the sender requests, if it is known.
    pub fn transport(&self) -> Option<CmTransport> {
        match (self.transport_service, self.extended_transport) {
            (0, _) => Some(CmTransport::Rc),
            (1, _) => Some(CmTransport::Uc),
            (3, 1) => Some(CmTransport::Xrc),
            _ => None,
        }
    }

    /// Requests this transport service.
    pub fn set_transport(&mut self, transport: CmTransport) {
        (self.transport_service, self.extended_transport) = match transport {
            CmTransport::Rc => (0, 0),
            CmTransport::Uc => (1, 0),
            CmTransport::Xrc => (3, 1),
        };
    }
}
