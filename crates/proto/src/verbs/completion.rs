//! Work completions.

use crate::ids::{Qpn, RKey};
use bitflags::bitflags;

/// How a work request ended; the numbers are those of the verbs ABI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum WcStatus {
    /// Done.
    #[default]
    Success = 0,
    /// The message does not fit the posted buffer, or is larger than the transport allows.
    LocLenErr = 1,
    /// The QP does not allow the work request.
    LocQpOpErr = 2,
    /// Local EE context error (reliable datagram, which no device implements).
    LocEecOpErr = 3,
    /// A scatter/gather entry that this QP may not access.
    LocProtErr = 4,
    /// The QP entered the error state before this request was done.
    WrFlushErr = 5,
    /// A memory window could not be bound.
    MwBindErr = 6,
    /// The peer sent an invalid response.
    BadRespErr = 7,
    /// A protection error on a local buffer while the peer's WRITE with immediate was received.
    LocAccessErr = 8,
    /// The peer found the request invalid.
    RemInvReqErr = 9,
    /// The peer refused access: key, range or right.
    RemAccessErr = 10,
    /// The peer could not finish the operation.
    RemOpErr = 11,
    /// No answer after all retries.
    RetryExcErr = 12,
    /// The peer never had a receive posted.
    RnrRetryExcErr = 13,
    /// Reliable datagram domain violation.
    LocRddViolErr = 14,
    /// Invalid reliable datagram request.
    RemInvRdReqErr = 15,
    /// The peer aborted the operation.
    RemAbortErr = 16,
    /// Invalid EE context number.
    InvEecnErr = 17,
    /// Invalid EE context state.
    InvEecStateErr = 18,
    /// The device failed.
    FatalErr = 19,
    /// A response took too long (reliable datagram).
    RespTimeoutErr = 20,
    /// Anything else.
    GeneralErr = 21,
}

/// What kind of work completed; the numbers are those of the verbs ABI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum WcOpcode {
    /// SEND.
    #[default]
    Send = 0,
    /// RDMA WRITE.
    RdmaWrite = 1,
    /// RDMA READ.
    RdmaRead = 2,
    /// Compare and swap.
    CompSwap = 3,
    /// Fetch and add.
    FetchAdd = 4,
    /// Memory window bind.
    BindMw = 5,
    /// Local invalidate.
    LocalInv = 6,
    /// Flush.
    Flush = 8,
    /// Atomic write.
    AtomicWrite = 9,
    /// A SEND was received.
    Recv = 128,
    /// A WRITE with immediate was received.
    RecvRdmaWithImm = 129,
}

bitflags! {
    /// Flags of a completion; the bit values are those of the verbs ABI.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct WcFlags: u32 {
        /// The first 40 bytes of the buffer are a GRH (datagrams).
        const GRH = 1;
        /// `imm` is valid.
        const WITH_IMM = 1 << 1;
        /// `invalidated` is valid.
        const WITH_INV = 1 << 3;
    }
}

/// A work completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// Work request id of the program.
    pub wr_id: u64,
    /// How it ended. Unless `Success`, only `wr_id`, `status`, `qpn` and `vendor_err` are valid.
    pub status: WcStatus,
    /// Its operation.
    pub opcode: WcOpcode,
    /// Bytes received, or transferred by a READ or atomic.
    pub byte_len: u32,
    /// Immediate data, in host order; see `flags`.
    pub imm: u32,
    /// The key that the peer's SEND invalidated; see `flags`.
    pub invalidated: RKey,
    /// The local QP.
    pub qpn: Qpn,
    /// The sender's QP (datagrams).
    pub src_qpn: Qpn,
    /// Which optional fields are valid.
    pub flags: WcFlags,
    /// Why, for a status that is not `Success`: see [`crate::qp::Reason`].
    pub vendor_err: u32,
    /// Service level; for datagrams the network type of the packet (1 = IPv6, 2 = IPv4), as RoCE NICs report it.
    pub sl: u8,
    /// Whether the message requested a solicited event.
    pub solicited: bool,
}
