//! Queue pair attributes: those of creation, and those that `modify` sets and `query` returns.

use super::{Access, AddressVector, Mtu};
use crate::ids::{Psn, Qkey, Qpn};
use bitflags::bitflags;

/// Transport service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection, the end that sends (IBA annex A14).
    XrcIni,
    /// Extended reliable connection, the end that receives, into the shared queue that each request names.
    XrcTgt,
}

impl Transport {
    /// All of them.
    pub const ALL: [Transport; 5] =
        [Transport::Rc, Transport::Uc, Transport::Ud, Transport::XrcIni, Transport::XrcTgt];

    /// Whether it is one end of an extended reliable connection.
    pub const fn is_xrc(self) -> bool {
        matches!(self, Transport::XrcIni | Transport::XrcTgt)
    }
    /// Whether sends may be posted to it, in the right state.
    pub const fn sends(self) -> bool {
        !matches!(self, Transport::XrcTgt)
    }
    /// Whether it has a receive queue, its own or a shared one.
    pub const fn receives(self) -> bool {
        !self.is_xrc()
    }
}

/// States of a queue pair (IBA 10.3.1); the numbers are those of the verbs ABI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpState {
    /// Just created: nothing may be posted.
    #[default]
    Reset = 0,
    /// Receives may be posted; they wait.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue draining or drained.
    Sqd = 4,
    /// Send queue stopped by an error (UC and UD only); receives go on.
    Sqe = 5,
    /// Everything outstanding is flushed.
    Err = 6,
}

impl QpState {
    /// All states, in the order of their numbers.
    pub const ALL: [QpState; 7] =
        [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Err];
}

/// Path migration state. Automatic migration does not exist on RoCE; the attribute is kept for `query`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MigState {
    /// Migrated.
    #[default]
    Migrated = 0,
    /// Rearm.
    Rearm = 1,
    /// Armed.
    Armed = 2,
}

/// Sizes of a queue pair's queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QpCap {
    /// Most send work requests outstanding.
    pub max_send_wr: u32,
    /// Most receive work requests outstanding.
    pub max_recv_wr: u32,
    /// Most scatter/gather entries of a send.
    pub max_send_sge: u32,
    /// Most scatter/gather entries of a receive.
    pub max_recv_sge: u32,
    /// Most bytes that can be sent inline.
    pub max_inline_data: u32,
}

bitflags! {
    /// Which fields of a [`QpAttr`] are valid; the bit values are those of the verbs ABI.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AttrMask: u32 {
        /// `state`.
        const STATE = 1;
        /// `cur_state`.
        const CUR_STATE = 1 << 1;
        /// `en_sqd_async_notify`.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `access`.
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        const PKEY_INDEX = 1 << 4;
        /// `port`.
        const PORT = 1 << 5;
        /// `qkey`.
        const QKEY = 1 << 6;
        /// `av`.
        const AV = 1 << 7;
        /// `path_mtu`.
        const PATH_MTU = 1 << 8;
        /// `timeout`.
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`.
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// `alt_av`, `alt_pkey_index`, `alt_port`, `alt_timeout`.
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `path_mig_state`.
        const PATH_MIG_STATE = 1 << 18;
        /// `cap`.
        const CAP = 1 << 19;
        /// `dest_qpn`.
        const DEST_QPN = 1 << 20;
        /// `rate_limit`.
        const RATE_LIMIT = 1 << 25;
    }
}

/// Attributes of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QpAttr {
    /// State to move to.
    pub state: QpState,
    /// State that the caller expects the QP to be in.
    pub cur_state: QpState,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// Path migration state.
    pub path_mig_state: MigState,
    /// Queue key (datagram QPs).
    pub qkey: Qkey,
    /// First sequence number expected.
    pub rq_psn: Psn,
    /// First sequence number sent.
    pub sq_psn: Psn,
    /// The peer's QP.
    pub dest_qpn: Qpn,
    /// Rights of the peer through this QP.
    pub access: Access,
    /// Queue sizes.
    pub cap: QpCap,
    /// Primary path.
    pub av: AddressVector,
    /// Alternate path.
    pub alt_av: AddressVector,
    /// Index into the P_Key table.
    pub pkey_index: u16,
    /// Same for the alternate path.
    pub alt_pkey_index: u16,
    /// Whether reaching the drained state raises an event.
    pub en_sqd_async_notify: bool,
    /// Whether the send queue is still draining (`query` only).
    pub sq_draining: bool,
    /// READs and atomics this QP may have outstanding.
    pub max_rd_atomic: u8,
    /// READs and atomics the peer may have outstanding here.
    pub max_dest_rd_atomic: u8,
    /// RNR NAK timer code advertised to the peer, 5 bits.
    pub min_rnr_timer: u8,
    /// Port, always 1.
    pub port: u8,
    /// Transport timer exponent: 4.096 us * 2^n, 0 means never (C9-140). Stored as the exponent, because `query` must
    /// return the same number.
    pub timeout: u8,
    /// How often a request is repeated without an answer, 3 bits.
    pub retry_cnt: u8,
    /// How often it is repeated after RNR NAKs, 3 bits; 7 means without limit.
    pub rnr_retry: u8,
    /// Port of the alternate path.
    pub alt_port: u8,
    /// Timer exponent of the alternate path.
    pub alt_timeout: u8,
    /// Packet pacing in kb/s, 0 for none.
    pub rate_limit: u32,
}
