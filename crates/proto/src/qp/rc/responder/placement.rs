//! Flushes and atomic writes that are next in sequence (IBA annex A19).

use super::super::super::Host;
use super::super::super::io::{Fatal, Io};
use super::Responder;
use super::replay::Executed;
use super::reply::ReadReply;
use crate::verbs::{Access, MemoryFault};
use crate::wire::{Feth, Operation, Packet, Reth};

/// Selectivity of a flush: the bytes of the RETH, or their whole region.
const RANGE: u8 = 0;
const WHOLE_REGION: u8 = 1;
/// Placement of a flush: visible to all.
const GLOBAL: u8 = 1;

impl Responder {
    pub(super) fn on_placement<H: Host>(
        &mut self,
        pkt: &Packet<'_>,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        let Some(reth) = pkt.headers.reth else { return Ok(()) };
        if self.inbound.in_message() {
            return Err(
                self.refuse_invalid(format_args!("a flush or atomic write inside another message"), io)
            );
        }
        self.check_depth(io)?;
        match (pkt.headers.bth.opcode.operation, pkt.headers.feth) {
            (Operation::Flush, Some(feth)) => self.flush(feth, reth, pkt.payload.len(), io)?,
            _ => self.atomic_write(reth, pkt.payload, io)?,
        }
        let psn = pkt.headers.bth.psn;
        self.step(1, true);
        self.replay.remember(Executed::Placement { psn });
        self.replies.read(ReadReply::of_nothing(psn, self.msn, io.pd));
        Ok(())
    }

    fn atomic_write<H: Host>(&mut self, reth: Reth, payload: &[u8], io: &mut Io<'_, H>) -> Result<(), Fatal> {
        let Ok(value) = <[u8; 8]>::try_from(payload) else {
            let why = format_args!("an atomic write of {} bytes, it must be 8", payload.len());
            return Err(self.refuse_invalid(why, io));
        };
        if reth.len != 8 || !reth.addr.is_multiple_of(8) {
            let fault = MemoryFault::Misaligned { addr: reth.addr };
            let why = format_args!("{fault}, or the length {} is not 8", reth.len);
            return Err(self.refuse_request((&fault).into(), why, io));
        }
        let granted = io.check_remote(reth.rkey, reth.addr, 8, Access::REMOTE_WRITE);
        match granted.and_then(|()| io.host.store_remote(io.pd, reth.rkey, reth.addr, value)) {
            Ok(()) => Ok(()),
            Err(fault) => Err(self.refuse_access("atomic write", fault, io)),
        }
    }

    /// Executes a flush. Refuses any placement type but global visibility; no region grants persistence.
    fn flush<H: Host>(
        &mut self,
        feth: Feth,
        reth: Reth,
        payload: usize,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        let range = match feth.level {
            RANGE => Some((reth.addr, u64::from(reth.len))),
            WHOLE_REGION => None,
            level => return Err(self.refuse_invalid(format_args!("a flush of level {level}"), io)),
        };
        if payload != 0 {
            return Err(self.refuse_invalid(format_args!("a flush with {payload} bytes of data"), io));
        }
        let (need, have) = (Access::FLUSH_GLOBAL, io.attr.access);
        if feth.placement != GLOBAL || !have.contains(need) {
            return Err(self.refuse_access("flush", MemoryFault::QpDenies { need, have }, io));
        }
        match io.host.flush_remote(io.pd, reth.rkey, range) {
            Ok(()) => Ok(()),
            Err(fault) => Err(self.refuse_access("flush", fault, io)),
        }
    }
}
