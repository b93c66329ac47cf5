//! Duplicate requests: the response was lost, or the retransmission crossed it.

use super::super::super::io::{Fatal, Io};
use super::super::super::{DropReason, Host};
use super::Responder;
use super::read::response_segment;
use super::reply::ReadReply;
use crate::verbs::Access;
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
                // Duplicate SENDs and WRITEs are acknowledged, not executed again (C9-105).
                self.replies.ack(self.expected.minus(1), self.msn);
                Ok(())
            }
        }
    }

    /// Reads the data of a duplicate READ again. Only ranges of an executed READ are allowed.
    fn on_duplicate_read<H: Host>(&mut self, pkt: &Packet<'_>, io: &mut Io<'_, H>) -> Result<(), Fatal> {
        let Some(reth) = pkt.headers.reth else { return Ok(()) };
        let psn = pkt.headers.bth.psn;
        let segment = response_segment(&pkt.headers.bth, reth.len, io);
        if !self.replay.covers_read(psn, reth.addr, reth.rkey, reth.len, segment) {
            self.drop_stale(pkt, io);
            return Ok(());
        }
        // A delayed duplicate may arrive after its memory was deregistered. Dropping it is safe: a requester that still
        // waits times out.
        if reth.len > 0
            && io.check_remote(reth.rkey, reth.addr, u64::from(reth.len), Access::REMOTE_READ).is_err()
        {
            self.drop_stale(pkt, io);
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
            even: pkt.headers.bth.extended,
            continues: false,
            segment,
        };
        self.replies.read_again(reply);
        Ok(())
    }

    /// Returns the original value of a duplicate atomic. Atomics execute only once.
    fn on_duplicate_atomic<H: Host>(&mut self, pkt: &Packet<'_>, io: &mut Io<'_, H>) -> Result<(), Fatal> {
        let psn = pkt.headers.bth.psn;
        match self.replay.atomic(psn) {
            Some(original) => self.replies.atomic_again(psn, self.msn, original),
            None => self.drop_stale(pkt, io),
        }
        Ok(())
    }

    /// Acknowledges a duplicate flush or atomic write. It does not execute again, because it could overwrite newer
    /// data.
    fn on_duplicate_placement<H: Host>(&mut self, pkt: &Packet<'_>, io: &mut Io<'_, H>) -> Result<(), Fatal> {
        let psn = pkt.headers.bth.psn;
        if self.replay.placement(psn) {
            let reply = ReadReply::of_nothing(psn, self.msn, io.pd);
            self.replies.read_again(ReadReply { again: true, ..reply });
        } else {
            self.drop_stale(pkt, io);
        }
        Ok(())
    }

    fn drop_stale<H: Host>(&mut self, pkt: &Packet<'_>, io: &mut Io<'_, H>) {
        let bth = &pkt.headers.bth;
        io.host.dropped(
            DropReason::StaleDuplicate,
            format_args!(
                "QP {}: {:?} with PSN {} repeats no request in the replay list (expected PSN {})",
                io.id.qpn, bth.opcode.operation, bth.psn, self.expected
            ),
        );
    }
}
