//! FPDUs: how MPA frames segments in the stream (RFC 5044, 4).

use super::{DdpHeader, MAX_BODY, MpaFrame};
use crate::qp::TxPayload;

/// Bytes of the ULPDU length field.
pub const LENGTH_LEN: usize = 2;
/// Bytes of the CRC field.
pub const CRC_LEN: usize = 4;
/// Longest header of an FPDU, with the body of a message without payload.
pub const MAX_HEAD: usize = LENGTH_LEN + DdpHeader::UNTAGGED_LEN + MAX_BODY;
/// Smallest TCP segment that every network carries.
const MIN_SEGMENT: usize = 536;

/// The longest ULPDU whose FPDU fits a TCP segment (RFC 5044, 4.5).
pub fn largest_ulpdu(segment_len: usize) -> u16 {
    let segment_len = segment_len.max(MIN_SEGMENT);
    u16::try_from(segment_len - segment_len % 4 - LENGTH_LEN - CRC_LEN).unwrap_or(u16::MAX)
}

/// Longest trailer: pad and CRC.
pub const MAX_TRAILER: usize = 3 + CRC_LEN;

/// Zero bytes behind a ULPDU of this length.
pub const fn pad_len(ulpdu_len: usize) -> usize {
    (LENGTH_LEN + ulpdu_len).wrapping_neg() & 3
}

/// Length of the frame at the start of `bytes`: an FPDU, or the request or reply before the first one. `None` if that needs more bytes.
pub fn frame_len(bytes: &[u8], is_negotiated: bool) -> Option<usize> {
    let number = |at: usize| Some(usize::from(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?])));
    if is_negotiated {
        let len = number(0)?;
        Some(LENGTH_LEN + len + pad_len(len) + CRC_LEN)
    } else {
        Some(MpaFrame::HEADER_LEN + number(MpaFrame::HEADER_LEN - 2)?)
    }
}

/// An FPDU to send, in pieces: header bytes, a description of the payload, and the trailer that follows from them.
#[derive(Clone, Copy, Debug)]
pub struct Fpdu<'a> {
    /// ULPDU length, DDP header and body.
    pub header: &'a [u8],
    /// The payload. The host reads it, so it can pass references to the kernel.
    pub payload: TxPayload<'a>,
    /// Whether the trailer has a CRC. Otherwise that field is zero.
    pub has_crc: bool,
    /// Whether the message ends with it.
    pub ends_message: bool,
}

impl Fpdu<'_> {
    /// Bytes in the stream.
    pub fn encoded_len(&self) -> usize {
        self.header.len() + self.payload.len() + self.trailer_len()
    }

    /// Bytes of pad and CRC.
    pub fn trailer_len(&self) -> usize {
        pad_len(self.header.len() - LENGTH_LEN + self.payload.len()) + CRC_LEN
    }

    /// Pad and CRC. `payload_crc` continues the CRC-32C of the header over the payload; it is called only if the FPDU has a CRC.
    pub fn trailer(
        &self,
        crc: ferroce_crc::Crc32c,
        payload_crc: impl FnOnce(u32) -> u32,
    ) -> ([u8; MAX_TRAILER], usize) {
        let (mut out, len) = ([0; MAX_TRAILER], self.trailer_len());
        if self.has_crc {
            let pad = len - CRC_LEN;
            let sum = crc.update(payload_crc(crc.update(0, self.header)), &out[..pad]);
            out[pad..len].copy_from_slice(&sum.to_le_bytes());
        }
        (out, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_fpdu_fits_a_segment_and_a_larger_one_does_not() {
        let fpdu_len = |ulpdu: usize| LENGTH_LEN + ulpdu + pad_len(ulpdu) + CRC_LEN;
        for segment_len in MIN_SEGMENT..10_000 {
            let ulpdu = usize::from(largest_ulpdu(segment_len));
            assert!(fpdu_len(ulpdu) <= segment_len && fpdu_len(ulpdu + 1) > segment_len, "{segment_len}");
        }
        assert_eq!((largest_ulpdu(0), largest_ulpdu(100_000)), (530, u16::MAX));
    }
}
