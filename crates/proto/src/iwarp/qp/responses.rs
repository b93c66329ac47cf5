//! FPDUs that answer the peer's READs and atomics, in the order of its requests.

use super::super::wire::{AtomicResponse, DdpBuffer, DdpHeader, RdmapOpcode, ReadRequest};
use super::transmit::{Current, Source};
use super::{StreamHost, StreamQp};
use crate::Time;
use crate::ids::RKey;
use crate::qp::{RefusalReason, TxPayload};
use crate::verbs::{EventKind, MemoryFault, QpState};

/// An answer that waits for the stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum Response {
    Read { request: ReadRequest, sent: u32 },
    Atomic(AtomicResponse),
}

impl StreamQp {
    /// Whether a response is partially sent.
    pub(super) fn in_response(&self) -> bool {
        matches!(self.responses.front(), Some(Response::Read { sent: 1.., .. }))
    }

    /// The next FPDU of the oldest response.
    pub(super) fn next_response(&mut self) -> Option<Current> {
        if self.attr.state != QpState::Rts && !self.in_response() {
            return None;
        }
        Some(match *self.responses.front()? {
            Response::Read { request, sent } => {
                let left = request.len - sent;
                let len = self.segment_len(DdpHeader::TAGGED_LEN, left);
                let to = request.sink_to.wrapping_add(sent.into());
                let buffer = DdpBuffer::Tagged { stag: request.sink_stag, to };
                let header = DdpHeader { opcode: RdmapOpcode::ReadResponse, last: len == left, buffer };
                Current::new(Source::Response, &header, &[], len)
            }
            Response::Atomic(response) => {
                let header = self.untagged(RdmapOpcode::AtomicResponse, RKey(0), 0, true);
                Current::new(Source::Response, &header, &response.to_bytes(), 0)
            }
        })
    }

    pub(super) fn response_payload(&self, len: u32) -> TxPayload<'_> {
        match self.responses.front() {
            Some(Response::Read { request, sent }) => TxPayload::Remote {
                pd: self.id.pd,
                rkey: request.source_stag,
                addr: request.source_to.wrapping_add((*sent).into()),
                len,
                rest: request.len - sent,
                is_first: *sent == 0,
                is_repeated: false,
            },
            _ => TxPayload::None,
        }
    }

    pub(super) fn on_response_sent(&mut self, current: &Current) {
        if current.ends_message {
            self.responses.pop_front();
        } else if let Some(Response::Read { sent, .. }) = self.responses.front_mut() {
            *sent += current.len;
        }
    }

    /// The region of a READ was deregistered, or its rights withdrawn, before the response left.
    pub(super) fn on_unreadable_response<H: StreamHost>(
        &mut self,
        fault: MemoryFault,
        now: Time,
        host: &mut H,
    ) {
        let why = format_args!("QP {}: the response to a READ cannot be read: {fault}", self.id.qpn);
        host.refused(RefusalReason::from(&fault), why);
        host.event(EventKind::QpAccessErr);
        self.terminate_with(super::terminate::read_code(&fault), None, now, host);
    }
}
