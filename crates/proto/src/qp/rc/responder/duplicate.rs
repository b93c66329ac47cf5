//! Requests that were executed before: their answer was lost, or they crossed it.

use super::super::super::io::{Fatal, Io};
use super::super::super::{DropReason, Host};
use super::Responder;
use super::reply::ReadReply;
use crate::verbs::{Access, Transport};
use crate::wire::{Operation, Packet};

impl Responder {
    pub(super) fn on_duplicate<H: Host>(
        &mut self,
        pkt: &Packet<'_>,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        io.counters.duplicates += 1;
        match pkt.headers.bth.opcode.operation {
            Operation::ReadRequest => self.on_duplicate_read(pkt, io),
            Operation::CompareSwap | Operation::FetchAdd => self.on_duplicate_atomic(pkt, io),
            Operation::Flush | Operation::AtomicWrite => self.on_duplicate_placement(pkt, io),
            _ => {
                // SEND and WRITE are not executed again; the requester needs to hear that they were (C9-105).
                self.replies.ack(self.expected.minus(1), self.msn);
                Ok(())
            }
        }
    }

    /// READ has no effect here, so it is simply read again; but only what was granted before.
    fn on_duplicate_read<H: Host>(&mut self, pkt: &Packet<'_>, io: &mut Io<'_, H>) -> Result<(), Fatal> {
        let Some(reth) = pkt.headers.reth else { return Ok(()) };
        let (psn, mtu) = (pkt.headers.bth.psn, io.mtu());
        if !self.replay.covers_read(psn, reth.addr, reth.rkey, reth.len, mtu) {
            self.forget(pkt, io);
            return Ok(());
        }
        // A copy may come when the memory is long gone. Nobody waits for it then; and if somebody does, the first
        // answer was lost and the silence will tell.
        if reth.len > 0
            && io.check_remote(reth.rkey, reth.addr, u64::from(reth.len), Access::REMOTE_READ).is_err()
        {
            self.forget(pkt, io);
            return Ok(());
        }
        let reply = ReadReply {
            psn,
            addr: reth.addr,
            rkey: reth.rkey,
            pd: io.pd,
            len: reth.len,
            fresh: true,
            msn: self.msn,
            again: true,
            even: pkt.headers.bth.extended && io.id.transport == Transport::Rc,
        };
        self.replies.read_again(reply, mtu);
        Ok(())
    }

    /// An atomic must not happen twice: the value it found the first time is sent again.
    fn on_duplicate_atomic<H: Host>(&mut self, pkt: &Packet<'_>, io: &mut Io<'_, H>) -> Result<(), Fatal> {
        let psn = pkt.headers.bth.psn;
        match self.replay.atomic(psn) {
            Some(original) => self.replies.atomic_again(psn, self.msn, original),
            None => self.forget(pkt, io),
        }
        Ok(())
    }

    /// Nor may an atomic write undo what was written since.
    fn on_duplicate_placement<H: Host>(&mut self, pkt: &Packet<'_>, io: &mut Io<'_, H>) -> Result<(), Fatal> {
        let psn = pkt.headers.bth.psn;
        if self.replay.placement(psn) {
            let reply = ReadReply::of_nothing(psn, self.msn, io.pd);
            self.replies.read_again(ReadReply { again: true, ..reply }, io.mtu());
        } else {
            self.forget(pkt, io);
        }
        Ok(())
    }

    fn forget<H: Host>(&mut self, pkt: &Packet<'_>, io: &mut Io<'_, H>) {
        let bth = &pkt.headers.bth;
        io.host.dropped(
            DropReason::StaleDuplicate,
            format_args!(
                "QP {}: {:?} with PSN {} repeats nothing that is remembered (expected PSN {})",
                io.id.qpn, bth.opcode.operation, bth.psn, self.expected
            ),
        );
    }
}
