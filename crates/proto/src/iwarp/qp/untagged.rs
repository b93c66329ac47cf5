//! Untagged messages that take a receive: SENDs and immediate data.

use super::super::reader::Piece;
use super::super::wire::{DdpBuffer, DdpHeader, ImmediateData, TerminateCode};
use super::StreamQp;
use super::receive::{SendProgress, Stop, quote};
use crate::Time;
use crate::ids::RKey;
use crate::qp::{HostServices, MessagePart, Placement, Reason, Refusal, RefusalReason, io};
use crate::verbs::{EventKind, MemoryFault, WcStatus};
use crate::wire::Operation;

/// A piece of a SEND, or immediate data, as the checks of [`crate::qp`] read it.
struct Part<'a> {
    operation: Operation,
    data: &'a [u8],
    placement: Placement,
    solicited: bool,
    invalidate: Option<RKey>,
    imm: Option<u32>,
}

impl MessagePart for Part<'_> {
    fn operation(&self) -> Operation {
        self.operation
    }
    fn payload(&self) -> &[u8] {
        self.data
    }
    fn placement(&self) -> Placement {
        self.placement
    }
    fn solicited(&self) -> bool {
        self.solicited
    }
    fn ieth(&self) -> Option<RKey> {
        self.invalidate
    }
    fn imm(&self) -> Option<u32> {
        self.imm
    }
}

impl StreamQp {
    /// A piece of a SEND.
    pub(super) fn on_send<H: HostServices>(
        &mut self,
        piece: &Piece<'_>,
        now: Time,
        host: &mut H,
    ) -> Result<(), Stop> {
        let header = &piece.header;
        let DdpBuffer::Untagged { invalidate, offset, .. } = header.buffer else { return Ok(()) };
        if piece.offset == 0 {
            self.check_segment(piece, offset, host)?;
        }
        let (is_first, is_last) = (offset == 0 && piece.offset == 0, piece.is_end && header.last);
        let part = Part {
            operation: match (is_first, is_last) {
                (true, true) => Operation::SendOnly,
                (true, false) => Operation::SendFirst,
                (false, false) => Operation::SendMiddle,
                (false, true) => Operation::SendLast,
            },
            data: piece.data,
            placement: Placement::of(header.last && piece.has_last_byte()),
            solicited: header.opcode.solicits(),
            invalidate: header.opcode.invalidates().then_some(invalidate),
            imm: None,
        };
        let accepted = self.inbound.accept_send(&part, &mut self.rq, &mut io!(self, now, host));
        accepted.map_err(|refusal| self.refuse_send(piece, refusal, now, host))?;
        if piece.is_end {
            self.receiving.len += piece.segment_len;
        }
        if is_last {
            self.receiving = SendProgress::default();
            self.written.last = 0;
            self.advance_msn(header.opcode);
        }
        Ok(())
    }

    /// Checks the header of a segment against the message so far.
    fn check_segment<H: HostServices>(
        &mut self,
        piece: &Piece<'_>,
        offset: u32,
        host: &mut H,
    ) -> Result<(), Stop> {
        let header = &piece.header;
        self.check_msn(header, host)?;
        let SendProgress { opcode, len } = self.receiving;
        if offset != len || (offset == 0) != opcode.is_none() {
            let why = format_args!("a segment of a SEND has offset {offset}, the message stands at {len}");
            return Err(self.invalid(TerminateCode::UNTAGGED_OFFSET, header, why, host));
        }
        if len.checked_add(piece.segment_len).is_none() {
            let why = format_args!("a SEND is longer than 2^32 - 1 bytes");
            return Err(self.invalid(TerminateCode::UNTAGGED_TOO_LONG, header, why, host));
        }
        if opcode.is_some_and(|opcode| opcode != header.opcode) {
            let why = format_args!("a {} inside another message", header.opcode.name());
            return Err(self.invalid(TerminateCode::RDMAP_OPCODE, header, why, host));
        }
        self.receiving.opcode = Some(header.opcode);
        Ok(())
    }

    /// Immediate data: takes a receive, whose completion reports the length of the WRITE before it, or 0 if there is none.
    pub(super) fn on_immediate<H: HostServices>(
        &mut self,
        header: &DdpHeader,
        imm: ImmediateData,
        now: Time,
        host: &mut H,
    ) -> Result<(), Stop> {
        if self.receiving.opcode.is_some() {
            let why = format_args!("immediate data inside a SEND");
            return Err(self.invalid(TerminateCode::RDMAP_OPCODE, header, why, host));
        }
        let part = Part {
            operation: Operation::WriteOnlyImm,
            data: &[],
            placement: Placement::Last,
            solicited: header.opcode.solicits(),
            invalidate: None,
            imm: Some(imm.0),
        };
        let len = core::mem::take(&mut self.written.last);
        let accepted = self.inbound.accept_immediate(&part, len, &mut self.rq, &mut io!(self, now, host));
        accepted.map_err(|refusal| {
            let piece = Piece { header: *header, segment_len: 0, offset: 0, data: &[], is_end: true };
            self.refuse_send(&piece, refusal, now, host)
        })
    }

    #[cold]
    fn refuse_send<H: HostServices>(
        &mut self,
        piece: &Piece<'_>,
        refusal: Refusal,
        now: Time,
        host: &mut H,
    ) -> Stop {
        let qpn = self.id.qpn;
        let (code, failed, event) = match refusal {
            Refusal::TooLong { capacity, needed } => {
                let why = format_args!(
                    "QP {qpn}: a message of at least {needed} bytes exceeds the receive of {capacity} bytes"
                );
                host.refused(RefusalReason::ReceiveTooSmall, why);
                let failed = (WcStatus::LocLenErr, Reason::ReceiveTooSmall);
                (TerminateCode::UNTAGGED_TOO_LONG, Some(failed), None)
            }
            Refusal::Local(fault) => {
                let why = format_args!("QP {qpn}: a message cannot be placed into its receive: {fault}");
                host.refused(RefusalReason::ReceiveMemory, why);
                (TerminateCode::DDP_LOCAL, Some((WcStatus::LocProtErr, Reason::LocalMemory)), None)
            }
            Refusal::Invalidate(fault) => {
                let why = format_args!("QP {qpn}: the peer may not invalidate: {fault}");
                host.refused(RefusalReason::from(&fault), why);
                let code = match fault {
                    MemoryFault::WrongPd { .. } | MemoryFault::WrongQp { .. } => {
                        TerminateCode::RDMAP_INVALIDATE
                    }
                    _ => TerminateCode::RDMAP_INVALIDATE_OPERATION,
                };
                (code, Some((WcStatus::LocProtErr, Reason::InvalidateRefused)), None)
            }
            _ => {
                let why = format_args!(
                    "QP {qpn}: a {} arrived and no receive is posted; iWARP does not retry",
                    piece.header.opcode.name()
                );
                host.refused(RefusalReason::InvalidRequest, why);
                (TerminateCode::UNTAGGED_NO_BUFFER, None, Some(EventKind::QpReqErr))
            }
        };
        if let Some((status, why)) = failed {
            self.inbound.fail_recv(status, why, &mut io!(self, now, host));
        }
        Stop { code, quoted: Some(quote(&piece.header, piece.segment_len, None)), event }
    }
}
