//! READ requests that are next in sequence.

use super::super::super::io::{Fatal, Io};
use super::super::super::{Host, JUMBO_SEGMENT, MAX_MESSAGE};
use super::Responder;
use super::replay::Executed;
use super::reply::ReadReply;
use crate::verbs::Access;
use crate::wire::{Bth, Packet};

/// Payload bytes of each packet of a READ response. A request with the jumbo bit has one packet as its response.
pub(super) fn response_segment<H: Host>(bth: &Bth, len: u32, io: &Io<'_, H>) -> u32 {
    if bth.jumbo && io.is_jumbo && len <= JUMBO_SEGMENT { len.max(io.mtu()) } else { io.mtu() }
}

impl Responder {
    pub(super) fn on_read<H: Host>(&mut self, pkt: &Packet<'_>, io: &mut Io<'_, H>) -> Result<(), Fatal> {
        let Some(reth) = pkt.headers.reth else { return Ok(()) };
        if self.inbound.in_message() {
            return Err(self.refuse_invalid(format_args!("a READ request inside another message"), io));
        }
        self.check_depth(io)?;
        if reth.len > MAX_MESSAGE {
            return Err(self.refuse_invalid(format_args!("READ of {} bytes, the most is 2^31", reth.len), io));
        }
        if reth.len > 0
            && let Err(fault) =
                io.check_remote(reth.rkey, reth.addr, u64::from(reth.len), Access::REMOTE_READ)
        {
            return Err(self.refuse_access("READ", fault, io));
        }
        let psn = pkt.headers.bth.psn;
        let segment = response_segment(&pkt.headers.bth, reth.len, io);
        let packets = reth.len.div_ceil(segment).max(1);
        self.step(packets, true);
        self.replay.remember(Executed::Read {
            psn,
            packets,
            addr: reth.addr,
            rkey: reth.rkey,
            len: reth.len,
        });
        self.replies.read(ReadReply {
            psn,
            addr: reth.addr,
            rkey: reth.rkey,
            pd: io.pd,
            len: reth.len,
            fresh: true,
            msn: self.msn,
            again: false,
            even: pkt.headers.bth.extended,
            continues: false,
            segment,
        });
        Ok(())
    }
}
