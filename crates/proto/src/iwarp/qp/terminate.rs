//! Terminate: refusals as codes, and the peer's codes as statuses, events and sentences.

use super::super::wire::{DdpBuffer, RdmapOpcode, Terminate, TerminateCode};
use super::StreamQp;
use super::requests::sink_stag;
use crate::Time;
use crate::qp::{HostServices, Reason};
use crate::verbs::{EventKind, MemoryFault, WcStatus};

/// The code for a WRITE that memory protection refuses. RDMAP has a code for missing rights, DDP has none.
pub(super) fn write_code(fault: &MemoryFault) -> TerminateCode {
    match fault {
        MemoryFault::OutOfRange { .. } => TerminateCode::TAGGED_BOUNDS,
        MemoryFault::WrongPd { .. } | MemoryFault::WrongQp { .. } => TerminateCode::TAGGED_STREAM,
        MemoryFault::Denied { .. } | MemoryFault::QpDenies { .. } => TerminateCode::RDMAP_RIGHTS,
        MemoryFault::NotPresent { .. } | MemoryFault::Gpu { .. } => TerminateCode::DDP_LOCAL,
        _ => TerminateCode::TAGGED_STAG,
    }
}

/// The code for a READ or atomic that memory protection refuses.
pub(super) fn read_code(fault: &MemoryFault) -> TerminateCode {
    match fault {
        MemoryFault::OutOfRange { .. } => TerminateCode::RDMAP_BOUNDS,
        MemoryFault::WrongPd { .. } | MemoryFault::WrongQp { .. } => TerminateCode::RDMAP_STREAM,
        MemoryFault::Denied { .. } | MemoryFault::QpDenies { .. } => TerminateCode::RDMAP_RIGHTS,
        MemoryFault::NoSuchKey { .. } | MemoryFault::StaleKey { .. } => TerminateCode::RDMAP_STAG,
        MemoryFault::NotPresent { .. } | MemoryFault::Gpu { .. } => TerminateCode::RDMAP_LOCAL,
        _ => TerminateCode::RDMAP_PROTECTION,
    }
}

/// The status of a request that the peer refused with this code.
fn status_of(code: TerminateCode) -> (WcStatus, Reason) {
    match (code.layer, code.kind) {
        (0 | 1, 1) => (WcStatus::RemAccessErr, Reason::PeerRefusesAccess),
        (0, 2) | (1, 2) => (WcStatus::RemInvReqErr, Reason::PeerSaysInvalid),
        _ => (WcStatus::RemOpErr, Reason::PeerFailed),
    }
}

/// The event if no outstanding request can complete with the status.
fn event_of(code: TerminateCode) -> EventKind {
    match (code.layer, code.kind) {
        (0 | 1, 1) => EventKind::QpAccessErr,
        (0, 2) | (1, 2) => EventKind::QpReqErr,
        _ => EventKind::QpFatal,
    }
}

impl StreamQp {
    /// The peer ends the stream. A READ or atomic that it names fails with a status; SENDs and WRITEs have completed when they
    /// were sent, so an event reports those.
    pub(super) fn on_terminate<H: HostServices>(&mut self, terminate: &Terminate, now: Time, host: &mut H) {
        let code = terminate.code;
        let (qpn, named) = (self.id.qpn, self.named_request(terminate));
        match named {
            Some((number, wr_id)) => {
                host.explain(format_args!("QP {qpn}: the peer refused wr_id {wr_id:#x}: {code}"));
                let (status, why) = status_of(code);
                self.complete_failed(number, status, why, now, host);
            }
            None => {
                host.explain(format_args!("QP {qpn}: the peer ended the connection: {code}"));
                host.event(event_of(code));
            }
        }
        self.enter_error(now, host);
    }

    /// The outstanding request that a Terminate quotes. A READ is found by its sink: siw quotes a wrong sequence number.
    fn named_request(&self, terminate: &Terminate) -> Option<(u64, u64)> {
        let quoted = terminate.quoted.as_ref()?;
        let DdpBuffer::Untagged { msn, .. } = quoted.header.buffer else { return None };
        let number = match (quoted.header.opcode, quoted.read) {
            (RdmapOpcode::ReadRequest, Some(read)) => {
                self.awaited.iter().find(|awaited| sink_stag(awaited.number) == read.sink_stag)
            }
            (RdmapOpcode::AtomicRequest, _) => self.awaited.iter().find(|awaited| awaited.msn == msn),
            _ => None,
        }?
        .number;
        self.sq.get(number).map(|wqe| (number, wqe.wr_id))
    }
}
