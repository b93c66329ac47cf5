//! REJ refuses a message (IBA 12.6.7). MRA delays the answer to one (IBA 12.6.6).

use super::CommId;
use super::layout::message;
use core::fmt;

/// Which message a REJ or MRA is about; the numbers are those on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RejectedMessage {
    /// The REQ.
    #[default]
    Req = 0,
    /// The REP.
    Rep = 1,
    /// No message in particular; in an MRA, a LAP.
    Other = 2,
    /// A number that is not in use.
    Reserved = 3,
}

/// Why a connection was refused, as the number on the wire. Programs see it as the status of the event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RejectReason(pub u16);

impl RejectReason {
    /// The peer has no queue pair left.
    pub const NO_QP: RejectReason = RejectReason(1);
    /// The peer has no resources left.
    pub const NO_RESOURCES: RejectReason = RejectReason(3);
    /// The peer waited too long.
    pub const TIMEOUT: RejectReason = RejectReason(4);
    /// The peer does not support the request.
    pub const UNSUPPORTED: RejectReason = RejectReason(5);
    /// The peer has no such communication id.
    pub const INVALID_COMM_ID: RejectReason = RejectReason(6);
    /// The service id has no listener.
    pub const INVALID_SERVICE_ID: RejectReason = RejectReason(8);
    /// The peer does not support the transport service.
    pub const INVALID_TRANSPORT: RejectReason = RejectReason(9);
    /// The queue pair still belongs to an older connection.
    pub const STALE_CONNECTION: RejectReason = RejectReason(10);
    /// The path MTU is larger than the peer supports.
    pub const INVALID_MTU: RejectReason = RejectReason(26);
    /// The application rejected the connection; its private data may contain the reason.
    pub const CONSUMER: RejectReason = RejectReason(28);
    /// The communication id is in use.
    pub const DUPLICATE_COMM_ID: RejectReason = RejectReason(30);
    /// The peer does not support the vendor's options.
    pub const VENDOR_OPTION: RejectReason = RejectReason(35);

    /// What the number means, in words.
    pub const fn text(self) -> &'static str {
        const TEXTS: [&str; 36] = [
            "no reason given",
            "no queue pair available",
            "no end-to-end context available",
            "no resources",
            "time-out",
            "unsupported request",
            "invalid communication id",
            "invalid communication instance",
            "nobody listens to this service id: check port and port space, and that the server runs",
            "invalid transport service type",
            "stale connection",
            "no reliable datagram channel",
            "primary remote GID refused",
            "primary remote LID refused",
            "invalid primary service level",
            "invalid primary traffic class",
            "invalid primary hop limit",
            "primary packet rate refused",
            "alternate remote GID refused",
            "alternate remote LID refused",
            "invalid alternate service level",
            "invalid alternate traffic class",
            "invalid alternate hop limit",
            "alternate packet rate refused",
            "talk to another communication manager",
            "talk to another port",
            "path MTU refused",
            "not enough responder resources",
            "the program refused",
            "RNR retry count refused",
            "communication id in use already",
            "unsupported class version",
            "invalid primary flow label",
            "invalid alternate flow label",
            "reason 34",
            "vendor option not supported",
        ];
        if (self.0 as usize) < TEXTS.len() { TEXTS[self.0 as usize] } else { "unknown reason" }
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0, self.text())
    }
}

message! {
    /// Refusal of a message.
    pub struct Rej, private data from 84 {
        /// Id that the sender gave the connection; zero for none.
        local_comm_id: CommId = comm_id(0),
        /// Id of the receiver.
        remote_comm_id: CommId = comm_id(4),
        /// Which message is refused.
        rejected: RejectedMessage = rejected(8),
        /// Valid bytes of `ari`, 7 bits.
        ari_len: u8 = bits(9, 0, 7),
        /// Why.
        reason: RejectReason = reason(10),
        /// Additional reject information; its meaning follows from the reason.
        ari: [u8; Rej::ARI_LEN] = bytes(12),
    }
}

impl Rej {
    /// Bytes of additional reject information.
    pub const ARI_LEN: usize = 72;
}

message! {
    /// The message arrived; its answer takes longer.
    pub struct Mra, private data from 10 {
        /// Id that the sender gave the connection.
        local_comm_id: CommId = comm_id(0),
        /// Id of the receiver.
        remote_comm_id: CommId = comm_id(4),
        /// Which message arrived.
        received: RejectedMessage = rejected(8),
        /// How long to wait from the arrival of the MRA: 4.096 us * 2^n, 5 bits.
        service_timeout: u8 = bits(9, 0, 5),
    }
}
