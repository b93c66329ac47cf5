//! READs and atomics of the peer, and the responses to our atomics.

use super::super::wire::{AtomicRequest, AtomicResponse, DdpHeader, ReadRequest, TerminateCode};
use super::StreamQp;
use super::receive::{Stop, quote};
use super::responses::Response;
use super::terminate::read_code;
use crate::Time;
use crate::qp::{HostServices, Placement, RefusalReason, io};
use crate::verbs::{Access, EventKind, MemoryFault, SendOp};

impl StreamQp {
    pub(super) fn on_read_request<H: HostServices>(
        &mut self,
        header: &DdpHeader,
        request: &ReadRequest,
        now: Time,
        host: &mut H,
    ) -> Result<(), Stop> {
        let ReadRequest { len, source_stag, source_to, .. } = *request;
        self.check_depth(len == 0, header, host)?;
        if len > 0 {
            if source_to.checked_add(u64::from(len) - 1).is_none() {
                let why = format_args!("a READ of {len} bytes at {source_to:#x} exceeds the address space");
                return Err(self.invalid(TerminateCode::RDMAP_WRAP, header, why, host));
            }
            let need = Access::REMOTE_READ;
            let granted = io!(self, now, host).check_remote(source_stag, source_to, len.into(), need);
            granted.map_err(|fault| self.refuse_access("READ", header, Some(*request), fault, host))?;
        }
        self.responses.push_back(Response::Read { request: *request, sent: 0 });
        Ok(())
    }

    pub(super) fn on_atomic_request<H: HostServices>(
        &mut self,
        header: &DdpHeader,
        request: &AtomicRequest,
        now: Time,
        host: &mut H,
    ) -> Result<(), Stop> {
        self.check_depth(false, header, host)?;
        let Some(op) = request.op() else {
            let why =
                format_args!("an atomic with code {} or masks that ferroce does not have", request.code);
            return Err(self.invalid(TerminateCode::RDMAP_OPERATION, header, why, host));
        };
        let AtomicRequest { id, stag, to, .. } = *request;
        let done = if to % 8 == 0 {
            let granted = io!(self, now, host).check_remote(stag, to, 8, Access::REMOTE_ATOMIC);
            granted.and_then(|()| host.atomic(self.id.pd, stag, to, op))
        } else {
            Err(MemoryFault::Misaligned { addr: to })
        };
        let original = done.map_err(|fault| self.refuse_access("atomic", header, None, fault, host))?;
        self.responses.push_back(Response::Atomic(AtomicResponse { id, original }));
        Ok(())
    }

    /// Checks that the peer has at most IRD READs and atomics outstanding. One empty READ is always allowed: as RTR it needs no IRD.
    fn check_depth<H: HostServices>(
        &mut self,
        is_empty_read: bool,
        header: &DdpHeader,
        host: &mut H,
    ) -> Result<(), Stop> {
        let ird = self.attr.max_dest_rd_atomic;
        if self.responses.len() < usize::from(ird.max(u8::from(is_empty_read))) {
            return Ok(());
        }
        let why = format_args!("more READs and atomics outstanding than the IRD of {ird}");
        Err(self.invalid(TerminateCode::RDMAP_THIS_STREAM, header, why, host))
    }

    #[cold]
    fn refuse_access<H: HostServices>(
        &self,
        what: &str,
        header: &DdpHeader,
        read: Option<ReadRequest>,
        fault: MemoryFault,
        host: &mut H,
    ) -> Stop {
        let why = format_args!("QP {}: {what} refused: {fault}", self.id.qpn);
        host.refused(RefusalReason::from(&fault), why);
        let len = if read.is_some() { ReadRequest::LEN } else { AtomicRequest::LEN };
        let quoted = Some(quote(header, len as u32, read));
        Stop { code: read_code(&fault), quoted, event: Some(EventKind::QpAccessErr) }
    }

    /// The response to our oldest atomic.
    pub(super) fn on_atomic_response<H: HostServices>(
        &mut self,
        header: &DdpHeader,
        response: &AtomicResponse,
        now: Time,
        host: &mut H,
    ) -> Result<(), Stop> {
        let front = self.awaited.front().map(|awaited| awaited.number);
        let atomic = front.and_then(|number| self.sq.get(number).map(|wqe| (number, *wqe)));
        let is_it =
            |(number, op): (u64, SendOp)| number as u32 == response.id && matches!(op, SendOp::Atomic { .. });
        let Some((number, _)) = atomic.filter(|(number, wqe)| is_it((*number, wqe.op))) else {
            let why = format_args!("an atomic response {} without its request", response.id);
            return Err(self.invalid(TerminateCode::RDMAP_OPCODE, header, why, host));
        };
        let data = response.original.to_ne_bytes();
        if let Err(fault) = host.scatter(self.id.pd, self.sq.sges(number), 0, &data, Placement::Last) {
            return Err(self.unplaceable(number, &fault, now, host));
        }
        self.on_response_placed(now, host);
        Ok(())
    }
}
