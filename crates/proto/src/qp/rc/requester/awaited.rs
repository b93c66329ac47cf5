//! Builds the packets of requests that return data.

use super::super::super::io::Io;
use super::super::super::sq::SendQueue;
use super::super::super::{Host, Segment, TxError, TxPayload};
use super::Requester;
use super::holes::SqPosition;
use crate::ids::Psn;
use crate::verbs::{AtomicOp, SendOp};
use crate::wire::{AtomicEth, Feth, Operation, Reth};

impl Requester {
    /// Sends the request at `position` whose `packets` responses start at `psn`. Returns the requested bytes.
    pub(super) fn send_request<H: Host>(
        &self,
        position: &SqPosition,
        psn: Psn,
        packets: u32,
        sq: &SendQueue,
        io: &mut Io<'_, H>,
    ) -> Result<u32, TxError> {
        let mut value = None;
        let (mut headers, bytes) = match position.wqe.op {
            SendOp::Read { addr, rkey } => {
                let segment = position.wqe.segment;
                let offset = position.index * segment;
                let len = (position.wqe.len - offset).min(packets.saturating_mul(segment));
                let mut headers = io.headers(Operation::ReadRequest, psn, 0);
                headers.reth = Some(Reth { addr: addr.wrapping_add(u64::from(offset)), rkey, len });
                headers.bth.extended = self.peer_extends;
                headers.bth.jumbo = position.wqe.jumbo;
                (headers, len)
            }
            SendOp::Atomic { addr, rkey, op } => {
                let (operation, swap_or_add, compare) = match op {
                    AtomicOp::CompareSwap { compare, swap } => (Operation::CompareSwap, swap, compare),
                    AtomicOp::FetchAdd { add } => (Operation::FetchAdd, add, 0),
                };
                let mut headers = io.headers(operation, psn, 0);
                headers.atomic = Some(AtomicEth { addr, rkey, swap_or_add, compare });
                (headers, 8)
            }
            SendOp::AtomicWrite { addr, rkey, value: written } => {
                value = Some(written);
                let mut headers = io.headers(Operation::AtomicWrite, psn, 8);
                headers.reth = Some(Reth { addr, rkey, len: 8 });
                (headers, 8)
            }
            SendOp::Flush { addr, rkey, len, what } => {
                let placement = u8::from(what.global) | u8::from(what.persistent) << 1;
                let mut headers = io.headers(Operation::Flush, psn, 0);
                headers.reth = Some(Reth { addr, rkey, len });
                headers.feth = Some(Feth { placement, level: u8::from(what.whole_region) });
                (headers, 8)
            }
            // Other operations return no data and are not sent here.
            _ => return Ok(0),
        };
        headers.xrceth = sq.srq(position.number);
        let payload = value.as_ref().map_or(TxPayload::None, |value| TxPayload::Bytes(value));
        let transmission = self.transmission(psn);
        io.send(&Segment { headers: &headers, payload, count: 1, transmission, is_acknowledged: true })?;
        Ok(bytes)
    }
}
