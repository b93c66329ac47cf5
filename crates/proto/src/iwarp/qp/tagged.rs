//! Tagged segments: WRITEs of the peer, and the responses to our READs.

use super::super::reader::Piece;
use super::super::wire::{DdpBuffer, TerminateCode};
use super::StreamQp;
use super::receive::{Stop, quote};
use super::requests::sink_stag;
use super::terminate::write_code;
use super::transmit::RTR_STAG;
use crate::Time;
use crate::ids::RKey;
use crate::qp::{HostServices, Placement, Reason, RefusalReason, io};
use crate::verbs::{Access, EventKind, MemoryFault, SendOp, WcStatus};

/// Lengths of the peer's WRITEs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    /// Bytes of the current message.
    current: u64,
    /// Bytes of the last whole message, for the completion of immediate data behind it. 0 after a message that took a receive.
    pub(super) last: u64,
}

impl StreamQp {
    /// A piece of a WRITE. Each segment is checked by itself, before its first byte is placed.
    pub(super) fn on_write<H: HostServices>(
        &mut self,
        piece: &Piece<'_>,
        now: Time,
        host: &mut H,
    ) -> Result<(), Stop> {
        let DdpBuffer::Tagged { stag, to } = piece.header.buffer else { return Ok(()) };
        let len = u64::from(piece.segment_len);
        if piece.offset == 0 && len > 0 {
            if to.checked_add(len - 1).is_none() {
                let why = format_args!("a WRITE of {len} bytes at {to:#x} exceeds the address space");
                return Err(self.invalid(TerminateCode::TAGGED_WRAP, &piece.header, why, host));
            }
            let granted = io!(self, now, host).check_remote(stag, to, len, Access::REMOTE_WRITE);
            granted.map_err(|fault| self.refuse_write(piece, fault, host))?;
        }
        if !piece.data.is_empty() {
            let addr = to.wrapping_add(piece.offset.into());
            let written = host.write_remote(self.id.pd, stag, addr, piece.data, Placement::Last);
            written.map_err(|fault| self.refuse_write(piece, fault, host))?;
        }
        if piece.is_end {
            self.written.current += len;
            if piece.header.last {
                self.written = Written { current: 0, last: self.written.current };
            }
        }
        Ok(())
    }

    #[cold]
    fn refuse_write<H: HostServices>(&self, piece: &Piece<'_>, fault: MemoryFault, host: &mut H) -> Stop {
        let why = format_args!("QP {}: WRITE refused: {fault}", self.id.qpn);
        host.refused(RefusalReason::from(&fault), why);
        let quoted = Some(quote(&piece.header, piece.segment_len, None));
        Stop { code: write_code(&fault), quoted, event: Some(EventKind::QpAccessErr) }
    }

    /// A piece of a READ response. Responses arrive in the order of the requests and fill the buffer from its start.
    pub(super) fn on_read_response<H: HostServices>(
        &mut self,
        piece: &Piece<'_>,
        now: Time,
        host: &mut H,
    ) -> Result<(), Stop> {
        let DdpBuffer::Tagged { stag, to } = piece.header.buffer else { return Ok(()) };
        if self.rtr_awaited {
            return self.on_rtr_response(piece, stag, host);
        }
        let front = self.awaited.front().map(|awaited| awaited.number);
        let read = front.and_then(|number| self.sq.get(number).map(|wqe| (number, *wqe)));
        let Some((number, wqe)) = read.filter(|(_, wqe)| matches!(wqe.op, SendOp::Read { .. })) else {
            let why = format_args!("a READ response without a READ");
            return Err(self.invalid(TerminateCode::TAGGED_STAG, &piece.header, why, host));
        };
        if piece.offset == 0 {
            self.check_read_response(piece, stag, to, number, wqe.len).map_err(|code| {
                let (len, placed) = (piece.segment_len, self.placed);
                let why = format_args!(
                    "a READ response of {len} bytes for STag {stag} at {to:#x} does not continue the READ of {} bytes after {placed}",
                    wqe.len
                );
                let stop = self.invalid(code, &piece.header, why, host);
                self.complete_failed(number, WcStatus::BadRespErr, Reason::BadResponse, now, host);
                stop
            })?;
        }
        let offset = u64::from(self.placed) + u64::from(piece.offset);
        if !piece.data.is_empty()
            && let Err(fault) =
                host.scatter(self.id.pd, self.sq.sges(number), offset, piece.data, Placement::Last)
        {
            return Err(self.unplaceable(number, &fault, now, host));
        }
        if piece.is_end {
            self.placed += piece.segment_len;
            if piece.header.last {
                self.on_response_placed(now, host);
            }
        }
        Ok(())
    }

    /// Whether a segment continues the response to the oldest READ, of `len` bytes.
    fn check_read_response(
        &self,
        piece: &Piece<'_>,
        stag: RKey,
        to: u64,
        number: u64,
        len: u32,
    ) -> Result<(), TerminateCode> {
        if stag != sink_stag(number) {
            return Err(TerminateCode::TAGGED_STAG);
        }
        let left = len - self.placed;
        let fits = if piece.header.last { piece.segment_len == left } else { piece.segment_len < left };
        if to == u64::from(self.placed) && fits { Ok(()) } else { Err(TerminateCode::TAGGED_BOUNDS) }
    }

    fn on_rtr_response<H: HostServices>(
        &mut self,
        piece: &Piece<'_>,
        stag: RKey,
        host: &mut H,
    ) -> Result<(), Stop> {
        if stag != RTR_STAG || piece.segment_len > 0 || !piece.header.last {
            let why = format_args!("the response to the empty READ is not empty");
            return Err(self.invalid(TerminateCode::TAGGED_STAG, &piece.header, why, host));
        }
        self.rtr_awaited = false;
        Ok(())
    }
}
