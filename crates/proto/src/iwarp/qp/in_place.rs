//! Payload of a WRITE that the host receives straight into its region, so that it is not copied in user space.

use super::super::reader::{Item, Pending};
use super::super::wire::{DdpBuffer, DdpHeader, LENGTH_LEN, RdmapOpcode};
use super::{StreamHost, StreamQp};
use crate::Time;
use crate::ids::{PdId, RKey};
use crate::verbs::{Access, QpState};

/// Shorter payload is received together with the bytes behind it, and copied.
const SHORTEST: u32 = 8 * 1024;
/// Bytes at the end of a segment that are copied: programs poll on the last one, and a system call promises no order.
const COPIED: u32 = 64;

/// Payload that the stream continues with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InPlace {
    /// Protection domain of the queue pair.
    pub pd: PdId,
    /// Key of the region.
    pub rkey: RKey,
    /// Address of the first byte.
    pub addr: u64,
    /// Bytes that the segment still has. Rights are needed on all of them.
    pub len: u32,
    /// How many of them may be received in place.
    pub most: u32,
    /// Bytes of the stream from there to where payload of the next WRITE would begin.
    pub following_len: usize,
}

impl StreamQp {
    /// The payload that the stream continues with, if the host may receive it in place.
    pub fn in_place(&self) -> Option<InPlace> {
        let Pending { header, offset, len, trailer_len } = self.reader.pending()?;
        let DdpBuffer::Tagged { stag, to } = header.buffer else { return None };
        let addr = to.checked_add(offset.into())?;
        // The first FPDU may have to prove a key before anything is placed. A CRC must cover the received bytes before the program
        // can change them.
        let may_place = matches!(self.attr.state, QpState::Rts | QpState::Sqd)
            && self.attr.access.contains(Access::REMOTE_WRITE)
            && self.confirmation.is_none()
            && !self.has_crc();
        let is_long_write = header.opcode == RdmapOpcode::Write && len >= SHORTEST;
        (may_place && is_long_write).then(|| InPlace {
            pd: self.id.pd,
            rkey: stag,
            addr,
            len,
            most: len - COPIED,
            following_len: COPIED as usize + trailer_len + LENGTH_LEN + DdpHeader::TAGGED_LEN,
        })
    }

    /// Takes payload that was received in place, at most as much as [`Self::in_place`] allows.
    pub fn received_in_place<H: StreamHost>(&mut self, len: u32, now: Time, host: &mut H) {
        if let Some(piece) = self.reader.skip(len) {
            self.counters.rx_bytes += u64::from(len);
            let outcome = self.on_item(&Item::Payload(piece), now, host);
            self.end_if_refused(outcome, now, host);
        }
    }
}
