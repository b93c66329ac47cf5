//! Why a work request failed, as a number that fits a completion's `vendor_err`.

use crate::listed::listed;

listed! {
    /// One cause per number. [`super::Events::explain`] receives the sentence with the actual values; this number is
    /// available from the completion alone.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u32)]
    #[non_exhaustive]
    pub enum Reason {
        /// A scatter/gather entry that this QP may not access.
        LocalMemory = 1 => "a scatter/gather entry is outside its region, lacks LOCAL_WRITE, or has a stale lkey",
        /// The message is longer than its receive.
        ReceiveTooSmall = 2 => "the message is longer than the receive buffer it met",
        /// No acknowledgement after every retry.
        RetriesUsedUp = 3 => "no acknowledgement after all retries: the peer is gone, unreachable, or its QP is not ready",
        /// The peer sent RNR NAKs until the retries were exhausted.
        RnrRetriesUsedUp = 4 => "the peer never had a receive posted: post receives earlier or raise rnr_retry",
        /// The peer refused the request as invalid.
        PeerSaysInvalid = 5 => "the peer found the request invalid: too long, unsupported, or too many READs outstanding",
        /// The peer refused the access.
        PeerRefusesAccess = 6 => "the peer refused access: wrong rkey, range, protection domain or rights",
        /// The peer could not complete the request.
        PeerFailed = 7 => "the peer could not place the message: its receive buffer's memory is not usable",
        /// A response that does not fit its request.
        BadResponse = 8 => "the peer's response does not fit the request",
        /// The QP was in, or entered, the error state.
        Flushed = 9 => "the queue pair was in the error state: look at the first failed completion before this one",
        /// A READ or atomic on a QP with `max_rd_atomic` 0.
        NoReadResources = 10 => "max_rd_atomic is 0: the QP was not set up for READ or atomics",
        /// The buffer of an atomic is not 8 bytes.
        AtomicLength = 11 => "the local buffer of an atomic must be exactly 8 bytes",
        /// A datagram larger than the path MTU.
        ExceedsMtu = 12 => "a datagram must fit the path MTU",
        /// A key that cannot be invalidated.
        InvalidateRefused = 13 => "the key cannot be invalidated from this QP",
        /// The peer refused the request as an invalid reliable-datagram request.
        PeerSaysInvalidRd = 14 => "the peer found the reliable-datagram request invalid",
        /// A memory window that cannot be bound that way.
        BindRefused = 15 => "the window cannot be bound: the region lacks MW_BIND or LOCAL_WRITE, the range is empty or outside it, or the window is still bound",
    }
    /// One sentence: the cause and what to check next.
    fn text
}

impl Reason {
    /// The reason with that number.
    pub fn from_code(code: u32) -> Option<Reason> {
        Reason::ALL.into_iter().find(|r| *r as u32 == code)
    }
}
