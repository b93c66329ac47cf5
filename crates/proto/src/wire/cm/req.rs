//! REQ: the offer of a connection (IBA 12.6.5).

use super::CommId;
use super::layout::{Cursor, Layout};
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
    /// What the receiver should use as its transport timer exponent, 5 bits.
    pub local_ack_timeout: u8,
}

impl CmPath {
    fn walk_at(&mut self, at: usize, c: &mut impl Cursor) {
        c.half(at, &mut self.local_lid);
        c.half(at + 2, &mut self.remote_lid);
        c.gid(at + 4, &mut self.local_gid);
        c.gid(at + 20, &mut self.remote_gid);
        c.flow_label(at + 36, &mut self.flow_label);
        c.bits(at + 39, 2, 6, &mut self.packet_rate);
        c.byte(at + 40, &mut self.traffic_class);
        c.byte(at + 41, &mut self.hop_limit);
        c.bits(at + 42, 0, 4, &mut self.sl);
        c.flag(at + 42, 4, &mut self.subnet_local);
        c.bits(at + 43, 0, 5, &mut self.local_ack_timeout);
    }
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

/// Offer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Req {
    /// Id that the sender gave the connection.
    pub local_comm_id: CommId,
    /// Vendor of the options in the MAD's attribute modifier (enhanced connection establishment), 24 bits.
    pub vendor_id: u32,
    /// What the sender wants to talk to.
    pub service_id: u64,
    /// GUID of the sender's adapter.
    pub local_ca_guid: u64,
    /// Queue key, of no use for connections.
    pub local_qkey: Qkey,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// READs and atomics that the sender can answer at a time.
    pub responder_resources: u8,
    /// End-to-end context of the sender, 24 bits (reliable datagrams).
    pub local_eecn: u32,
    /// READs and atomics that the sender will have outstanding.
    pub initiator_depth: u8,
    /// End-to-end context of the receiver, 24 bits.
    pub remote_eecn: u32,
    /// How long the sender waits for the answer: 4.096 us * 2^n, 5 bits.
    pub remote_cm_response_timeout: u8,
    /// Transport service: 0 RC, 1 UC, 2 RD, 3 another one.
    pub transport_service: u8,
    /// Whether the sender has end-to-end flow control.
    pub flow_control: bool,
    /// The sequence number that the sender wants to receive first: the receiver begins to send with it (12.7.31).
    pub starting_psn: Psn,
    /// How long the receiver of a REP should wait for the RTU: 4.096 us * 2^n, 5 bits.
    pub local_cm_response_timeout: u8,
    /// How often the receiver should repeat requests, 3 bits.
    pub retry_count: u8,
    /// Partition.
    pub pkey: PKey,
    /// Path MTU, as the verbs number it, 4 bits.
    pub path_mtu: u8,
    /// Whether the sender's end-to-end context has a reliable datagram channel.
    pub rdc_exists: bool,
    /// How often the receiver should repeat requests after RNR NAKs, 3 bits.
    pub rnr_retry_count: u8,
    /// How often each message is repeated, 4 bits.
    pub max_cm_retries: u8,
    /// Whether the sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// Transport behind `transport_service` 3: 1 is XRC. 3 bits.
    pub extended_transport: u8,
    /// Primary path.
    pub primary: CmPath,
    /// Alternate path; zeros if there is none.
    pub alternate: CmPath,
    /// What the program sent along.
    pub private_data: [u8; Req::PRIVATE_LEN],
}

impl Default for Req {
    fn default() -> Self {
        Req {
            local_comm_id: CommId::NONE,
            vendor_id: 0,
            service_id: 0,
            local_ca_guid: 0,
            local_qkey: Qkey(0),
            local_qpn: Qpn::new(0),
            responder_resources: 0,
            local_eecn: 0,
            initiator_depth: 0,
            remote_eecn: 0,
            remote_cm_response_timeout: 0,
            transport_service: 0,
            flow_control: false,
            starting_psn: Psn::new(0),
            local_cm_response_timeout: 0,
            retry_count: 0,
            pkey: PKey(0),
            path_mtu: 0,
            rdc_exists: false,
            rnr_retry_count: 0,
            max_cm_retries: 0,
            srq: false,
            extended_transport: 0,
            primary: CmPath::default(),
            alternate: CmPath::default(),
            private_data: [0; Req::PRIVATE_LEN],
        }
    }
}

impl Req {
    /// Bytes of private data.
    pub const PRIVATE_LEN: usize = 92;

    /// The transport service that the sender requests, if it is known.
    pub fn transport(&self) -> Option<CmTransport> {
        match (self.transport_service, self.extended_transport) {
            (0, _) => Some(CmTransport::Rc),
            (1, _) => Some(CmTransport::Uc),
            (3, 1) => Some(CmTransport::Xrc),
            _ => None,
        }
    }

    /// Asks for this transport service.
    pub fn set_transport(&mut self, transport: CmTransport) {
        (self.transport_service, self.extended_transport) = match transport {
            CmTransport::Rc => (0, 0),
            CmTransport::Uc => (1, 0),
            CmTransport::Xrc => (3, 1),
        };
    }
}

impl Layout for Req {
    fn walk(&mut self, c: &mut impl Cursor) {
        c.comm_id(0, &mut self.local_comm_id);
        c.three(5, &mut self.vendor_id);
        c.double(8, &mut self.service_id);
        c.double(16, &mut self.local_ca_guid);
        c.qkey(28, &mut self.local_qkey);
        c.qpn(32, &mut self.local_qpn);
        c.byte(35, &mut self.responder_resources);
        c.three(36, &mut self.local_eecn);
        c.byte(39, &mut self.initiator_depth);
        c.three(40, &mut self.remote_eecn);
        c.bits(43, 0, 5, &mut self.remote_cm_response_timeout);
        c.bits(43, 5, 2, &mut self.transport_service);
        c.flag(43, 7, &mut self.flow_control);
        c.psn(44, &mut self.starting_psn);
        c.bits(47, 0, 5, &mut self.local_cm_response_timeout);
        c.bits(47, 5, 3, &mut self.retry_count);
        c.pkey(48, &mut self.pkey);
        c.bits(50, 0, 4, &mut self.path_mtu);
        c.flag(50, 4, &mut self.rdc_exists);
        c.bits(50, 5, 3, &mut self.rnr_retry_count);
        c.bits(51, 0, 4, &mut self.max_cm_retries);
        c.flag(51, 4, &mut self.srq);
        c.bits(51, 5, 3, &mut self.extended_transport);
        self.primary.walk_at(52, c);
        self.alternate.walk_at(96, c);
        c.bytes(140, &mut self.private_data);
    }
}
