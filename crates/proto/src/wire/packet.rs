//! A packet as it arrives: headers and payload.

use super::{Headers, Malformed, Opcode};

/// A parsed packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Transport headers.
    pub headers: Headers,
    /// The bytes behind the headers, without pad and ICRC.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads a packet from its BTH up to and including the pad; the ICRC is already cut off.
    ///
    /// The queue pair checks whether this opcode may carry this much payload, because the answer is a NAK (IBA 9.7.4.1).
    /// This parser refuses only packets that are invalid for every queue pair.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        Packet::parse_from(bytes, |_| true)
    }

    /// Parses a packet like [`Packet::parse`]. `extends` returns whether the sender extends packets with this opcode.
    #[inline]
    pub fn parse_from(
        bytes: &'a [u8],
        extends: impl FnOnce(Opcode) -> bool,
    ) -> Result<Packet<'a>, Malformed> {
        let headers = Headers::parse(bytes, extends)?;
        let padded = &bytes[headers.encoded_len()..];
        if !padded.len().is_multiple_of(4) {
            return Err(Malformed::Unaligned { len: padded.len() });
        }
        let pad = headers.bth.pad;
        let Some(len) = padded.len().checked_sub(usize::from(pad)) else {
            return Err(Malformed::BadPad { pad, have: padded.len() });
        };
        Ok(Packet { headers, payload: &padded[..len] })
    }
}
