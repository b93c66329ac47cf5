//! Why a work request failed, as a number that fits a completion's `vendor_err`.

/// One cause per number. [`super::Events::explain`] receives the sentence with the actual values; this number is
/// available from the completion alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum Reason {
    /// A scatter/gather entry that this QP may not access.
    LocalMemory = 1,
    /// The message is longer than its receive.
    ReceiveTooSmall = 2,
    /// No acknowledgement after every retry.
    RetriesUsedUp = 3,
    /// The peer sent RNR NAKs until the retries were exhausted.
    RnrRetriesUsedUp = 4,
    /// The peer refused the request as invalid.
    PeerSaysInvalid = 5,
    /// The peer refused the access.
    PeerRefusesAccess = 6,
    /// The peer could not complete the request.
    PeerFailed = 7,
    /// A response that does not fit its request.
    BadResponse = 8,
    /// The QP was in, or entered, the error state.
    Flushed = 9,
    /// A READ or atomic on a QP with `max_rd_atomic` 0.
    NoReadResources = 10,
    /// The buffer of an atomic is not 8 bytes.
    AtomicLength = 11,
    /// A datagram larger than the path MTU.
    ExceedsMtu = 12,
    /// A key that cannot be invalidated.
    InvalidateRefused = 13,
    /// The peer refused the request as an invalid reliable-datagram request.
    PeerSaysInvalidRd = 14,
    /// A memory window that cannot be bound that way.
    BindRefused = 15,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Reason; 15] = [
        Reason::LocalMemory,
        Reason::ReceiveTooSmall,
        Reason::RetriesUsedUp,
        Reason::RnrRetriesUsedUp,
        Reason::PeerSaysInvalid,
        Reason::PeerRefusesAccess,
        Reason::PeerFailed,
        Reason::BadResponse,
        Reason::Flushed,
        Reason::NoReadResources,
        Reason::AtomicLength,
        Reason::ExceedsMtu,
        Reason::InvalidateRefused,
        Reason::PeerSaysInvalidRd,
        Reason::BindRefused,
    ];

    /// The reason with that number.
    pub fn from_code(code: u32) -> Option<Reason> {
        Reason::ALL.into_iter().find(|r| *r as u32 == code)
    }

    /// One sentence: the cause and what to check next.
    pub const fn text(self) -> &'static str {
        match self {
            Reason::LocalMemory => {
                "a scatter/gather entry is outside its region, lacks LOCAL_WRITE, or has a stale lkey"
            }
            Reason::ReceiveTooSmall => "the message is longer than the receive buffer it met",
            Reason::RetriesUsedUp => {
                "no acknowledgement after all retries: the peer is gone, unreachable, or its QP is not ready"
            }
            Reason::RnrRetriesUsedUp => {
                "the peer never had a receive posted: post receives earlier or raise rnr_retry"
            }
            Reason::PeerSaysInvalid => {
                "the peer found the request invalid: too long, unsupported, or too many READs outstanding"
            }
            Reason::PeerRefusesAccess => {
                "the peer refused access: wrong rkey, range, protection domain or rights"
            }
            Reason::PeerFailed => {
                "the peer could not place the message: its receive buffer's memory is not usable"
            }
            Reason::BadResponse => "the peer's response does not fit the request",
            Reason::Flushed => {
                "the queue pair was in the error state: look at the first failed completion before this one"
            }
            Reason::NoReadResources => "max_rd_atomic is 0: the QP was not set up for READ or atomics",
            Reason::AtomicLength => "the local buffer of an atomic must be exactly 8 bytes",
            Reason::ExceedsMtu => "a datagram must fit the path MTU",
            Reason::InvalidateRefused => "the key cannot be invalidated from this QP",
            Reason::PeerSaysInvalidRd => "the peer found the reliable-datagram request invalid",
            Reason::BindRefused => {
                "the window cannot be bound: the region lacks MW_BIND or LOCAL_WRITE, the range is outside it, or the window is still bound"
            }
        }
    }
}
