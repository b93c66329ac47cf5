//! The receiving side: items of the reader, and the order of messages.

use super::super::negotiation::Confirmation;
use super::super::reader::{Body, Item};
use super::super::wire::{DdpBuffer, DdpHeader, Quoted, RdmapOpcode, ReadRequest, TerminateCode};
use super::{StreamHost, StreamQp};
use crate::Time;
use crate::qp::{HostServices, RefusalReason};
use crate::verbs::{EventKind, QpState};
use core::fmt;

/// The SEND being received.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SendProgress {
    /// Its opcode; `None` between messages.
    pub(super) opcode: Option<RdmapOpcode>,
    /// Bytes of finished segments.
    pub(super) len: u32,
}

/// Why the stream ends. The sentence, the refused receive and the counter are already reported.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stop {
    pub(super) code: TerminateCode,
    pub(super) quoted: Option<Quoted>,
    pub(super) event: Option<EventKind>,
}

impl StreamQp {
    /// Takes bytes of the stream, in any pieces. After an error the rest is ignored: the stream cannot be resumed.
    pub fn receive<H: StreamHost>(&mut self, bytes: &[u8], now: Time, host: &mut H) {
        let mut rest = bytes;
        while matches!(self.attr.state, QpState::Rts | QpState::Sqd) {
            let outcome = match self.reader.next(&mut rest) {
                Ok(None) => return,
                Ok(Some(item)) => self.on_item(&item, now, host),
                Err(error) => {
                    let code = error.code();
                    let event = if code.layer == 2 { EventKind::QpFatal } else { EventKind::QpReqErr };
                    Err(self.stop(code, None, event, format_args!("{error}"), host))
                }
            };
            self.end_if_refused(outcome, now, host);
        }
    }

    pub(super) fn end_if_refused<H: StreamHost>(
        &mut self,
        outcome: Result<(), Stop>,
        now: Time,
        host: &mut H,
    ) {
        if let Err(stop) = outcome {
            if let Some(kind) = stop.event {
                host.event(kind);
            }
            self.terminate_with(stop.code, stop.quoted, now, host);
        }
    }

    pub(super) fn on_item<H: HostServices>(
        &mut self,
        item: &Item<'_>,
        now: Time,
        host: &mut H,
    ) -> Result<(), Stop> {
        if let Some(expected) = self.confirmation.take() {
            self.check_confirmation(expected, item, host)?;
        }
        match item {
            Item::Payload(piece) => {
                self.counters.rx_bytes += piece.data.len() as u64;
                if piece.is_end {
                    self.on_fpdu();
                }
                match piece.header.opcode {
                    RdmapOpcode::Write => self.on_write(piece, now, host),
                    RdmapOpcode::ReadResponse => self.on_read_response(piece, now, host),
                    _ => self.on_send(piece, now, host),
                }
            }
            Item::Message(header, body) => {
                self.on_fpdu();
                self.on_message(header, body, now, host)
            }
        }
    }

    /// Checks that the first FPDU proves the key.
    #[cold]
    fn check_confirmation<H: HostServices>(
        &self,
        expected: Confirmation,
        item: &Item<'_>,
        host: &mut H,
    ) -> Result<(), Stop> {
        let Confirmation { stag, to } = expected;
        let rtr =
            DdpHeader { opcode: RdmapOpcode::Write, last: true, buffer: DdpBuffer::Tagged { stag, to } };
        let header = match item {
            Item::Payload(piece) if piece.header == rtr && piece.segment_len == 0 => return Ok(()),
            Item::Payload(piece) => &piece.header,
            Item::Message(header, _) => header,
        };
        let why =
            format_args!("the first FPDU of the peer does not prove the key: its request may be a replay");
        Err(self.invalid(TerminateCode::TAGGED_STAG, header, why, host))
    }

    fn on_message<H: HostServices>(
        &mut self,
        header: &DdpHeader,
        body: &Body,
        now: Time,
        host: &mut H,
    ) -> Result<(), Stop> {
        if header.opcode.is_extension() && !self.is_extended() {
            let why = format_args!("a {} without agreement on RFC 7306", header.opcode.name());
            return Err(self.invalid(TerminateCode::RDMAP_OPCODE, header, why, host));
        }
        self.check_msn(header, host)?;
        self.advance_msn(header.opcode);
        match body {
            Body::Read(request) => self.on_read_request(header, request, now, host),
            Body::AtomicRequest(request) => self.on_atomic_request(header, request, now, host),
            Body::AtomicResponse(response) => self.on_atomic_response(header, response, now, host),
            Body::Immediate(imm) => self.on_immediate(header, *imm, now, host),
            Body::Terminate(terminate) => {
                self.on_terminate(terminate, now, host);
                Ok(())
            }
        }
    }

    /// An FPDU is complete: the peer is ready.
    fn on_fpdu(&mut self) {
        self.counters.rx_packets += 1;
        self.may_send = true;
    }

    /// Checks the message sequence number.
    pub(super) fn check_msn<H: HostServices>(
        &mut self,
        header: &DdpHeader,
        host: &mut H,
    ) -> Result<(), Stop> {
        let DdpBuffer::Untagged { msn, .. } = header.buffer else { return Ok(()) };
        let expected = self.recv_msn[header.opcode.queue() as usize];
        if msn == expected {
            return Ok(());
        }
        let why = format_args!("a {} has sequence number {msn}, {expected} is next", header.opcode.name());
        Err(self.invalid(TerminateCode::UNTAGGED_MSN, header, why, host))
    }

    pub(super) fn advance_msn(&mut self, opcode: RdmapOpcode) {
        let msn = &mut self.recv_msn[opcode.queue() as usize];
        *msn = msn.wrapping_add(1);
    }

    /// Refuses an invalid message.
    #[cold]
    pub(super) fn invalid<H: HostServices>(
        &self,
        code: TerminateCode,
        header: &DdpHeader,
        why: fmt::Arguments<'_>,
        host: &mut H,
    ) -> Stop {
        self.stop(code, Some(quote(header, 0, None)), EventKind::QpReqErr, why, host)
    }

    #[cold]
    fn stop<H: HostServices>(
        &self,
        code: TerminateCode,
        quoted: Option<Quoted>,
        event: EventKind,
        why: fmt::Arguments<'_>,
        host: &mut H,
    ) -> Stop {
        host.refused(RefusalReason::InvalidRequest, format_args!("QP {}: {why}", self.id.qpn));
        Stop { code, quoted, event: Some(event) }
    }
}

/// The part of a segment that a Terminate quotes. The segment has `len` bytes behind its header.
pub(super) fn quote(header: &DdpHeader, len: u32, read: Option<ReadRequest>) -> Quoted {
    // The length came from a field of 16 bits.
    Quoted { segment_len: (header.encoded_len() as u32 + len) as u16, header: *header, read }
}
