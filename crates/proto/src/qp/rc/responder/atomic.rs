//! Atomic requests that are next in sequence.

use super::super::super::Host;
use super::super::super::io::{Fatal, Io};
use super::Responder;
use super::replay::Executed;
use crate::verbs::{Access, AtomicOp, MemoryFault};
use crate::wire::{Operation, Packet};

impl Responder {
    pub(super) fn on_atomic<H: Host>(&mut self, pkt: &Packet<'_>, io: &mut Io<'_, H>) -> Result<(), Fatal> {
        let Some(eth) = pkt.headers.atomic else { return Ok(()) };
        if self.inbound.in_message() {
            return Err(self.refuse_invalid(format_args!("an atomic inside another message"), io));
        }
        self.check_depth(io)?;
        if eth.addr % 8 != 0 {
            let fault = MemoryFault::Misaligned { addr: eth.addr };
            return Err(self.refuse_request((&fault).into(), format_args!("{fault}"), io));
        }
        let op = match pkt.headers.bth.opcode.operation {
            Operation::CompareSwap => AtomicOp::CompareSwap { compare: eth.compare, swap: eth.swap_or_add },
            _ => AtomicOp::FetchAdd { add: eth.swap_or_add },
        };
        let granted = io.check_remote(eth.rkey, eth.addr, 8, Access::REMOTE_ATOMIC);
        let original = match granted.and_then(|()| io.host.atomic(io.pd, eth.rkey, eth.addr, op)) {
            Ok(original) => original,
            Err(fault) => return Err(self.refuse_access("atomic", fault, io)),
        };
        let psn = pkt.headers.bth.psn;
        self.step(1, true);
        self.replay.remember(Executed::Atomic { psn, original });
        self.replies.atomic(psn, self.msn, original);
        Ok(())
    }
}
