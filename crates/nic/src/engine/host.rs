//! How a queue pair reaches memory, links and completion queues.

use super::Engine;
use crate::link::TxBatch;
use crate::log;
use crate::objects::{EventSource, QpCore};
use ferroce_proto::qp::{DropReason, Host, RecvWqe, Side, TxError, TxPayload};
use ferroce_proto::verbs::{Access, AtomicOp, Completion, EventKind, MemoryFault, Route, Sge, WcStatus};
use ferroce_proto::wire::Headers;
use ferroce_proto::{PdId, RKey};
use std::fmt;
use std::sync::atomic::Ordering;

/// Packets one queue pair may send before others get their turn.
const BURST: u32 = 256;

/// The port of one queue pair for one turn.
pub(super) struct NicHost<'a> {
    engine: &'a Engine,
    qp: &'a QpCore,
    tx: &'a mut TxBatch,
    burst_left: u32,
    /// The queue pair stopped only because its burst was used up.
    pub(super) has_more: bool,
    pub(super) completions: u32,
}

impl<'a> NicHost<'a> {
    pub(super) fn new(engine: &'a Engine, qp: &'a QpCore, tx: &'a mut TxBatch) -> Self {
        NicHost { engine, qp, tx, burst_left: BURST, has_more: false, completions: 0 }
    }

    /// Hands everything to the link. Called with the queue pair's lock held, so that its packets keep their order.
    pub(super) fn flush(&mut self) {
        if !self.tx.is_empty() {
            self.engine.link.send(self.tx);
        }
    }
}

impl Host for NicHost<'_> {
    fn transmit(&mut self, route: &Route, headers: &Headers, payload: TxPayload<'_>) -> Result<(), TxError> {
        if self.burst_left == 0 {
            self.has_more = true;
            return Err(TxError::Full);
        }
        let head = headers.encoded_len();
        let body = payload.len();
        let len = head + body + usize::from(headers.bth.pad);
        if !self.tx.has_room(len) {
            self.flush();
        }
        let regions = &self.engine.regions;
        let packet = self.tx.reserve(route, len);
        headers.write(packet);
        packet[head + body..].fill(0);
        let filled = match payload {
            TxPayload::None => Ok(()),
            TxPayload::Bytes(bytes) => {
                packet[head..head + body].copy_from_slice(bytes);
                Ok(())
            }
            TxPayload::Local { pd, sges, offset, .. } => {
                regions.gather(pd, sges, offset, &mut packet[head..head + body])
            }
            TxPayload::Remote { pd, rkey, addr, .. } => {
                regions.read_remote(pd, rkey, addr, &mut packet[head..head + body])
            }
        };
        if let Err(fault) = filled {
            self.tx.cancel_last();
            return Err(TxError::Fault(fault));
        }
        self.burst_left -= 1;
        Ok(())
    }

    fn scatter(&mut self, pd: PdId, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryFault> {
        self.engine.regions.scatter(pd, sges, offset, data)
    }

    fn check_scatter(&mut self, pd: PdId, sges: &[Sge], offset: u64, len: u64) -> Result<(), MemoryFault> {
        self.engine.regions.check_scatter(pd, sges, offset, len)
    }

    fn check_remote(
        &mut self,
        pd: PdId,
        rkey: RKey,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<(), MemoryFault> {
        self.engine.regions.check_remote(pd, rkey, addr, len, need)
    }

    fn write_remote(&mut self, pd: PdId, rkey: RKey, addr: u64, data: &[u8]) -> Result<(), MemoryFault> {
        self.engine.regions.write_remote(pd, rkey, addr, data)
    }

    fn atomic(&mut self, pd: PdId, rkey: RKey, addr: u64, op: AtomicOp) -> Result<u64, MemoryFault> {
        self.engine.regions.atomic(pd, rkey, addr, op)
    }

    fn invalidate(&mut self, pd: PdId, rkey: RKey) -> Result<(), MemoryFault> {
        self.engine.regions.invalidate(pd, rkey)
    }

    fn take_shared_recv(&mut self, into: &mut RecvWqe) -> bool {
        self.qp.srq.as_ref().is_some_and(|srq| srq.take(into))
    }

    fn complete(&mut self, side: Side, completion: Completion) {
        let counters = &self.engine.counters;
        counters.completions.fetch_add(1, Ordering::Relaxed);
        if completion.status != WcStatus::Success {
            counters.failed_completions.fetch_add(1, Ordering::Relaxed);
            // The program may use the memory of a failed request as soon as it hears of it.
            self.engine.regions.wait_for_landing();
        }
        let cq = match side {
            Side::Send => &self.qp.send_cq,
            Side::Recv => &self.qp.recv_cq,
        };
        if !cq.push(completion) {
            log::completion(format_args!(
                "QP {}: completion of wr_id {:#x} found CQ {} full",
                self.qp.qpn, completion.wr_id, cq.id
            ));
            self.qp.overrun.store(true, Ordering::Relaxed);
        }
        self.completions += 1;
    }

    fn event(&mut self, kind: EventKind) {
        self.engine.events.raise(kind, EventSource::Qp(self.qp.qpn));
    }

    fn dropped(&mut self, reason: DropReason, why: fmt::Arguments<'_>) {
        self.engine.counters.dropped(reason);
        log::drop(why);
    }

    fn explain(&mut self, why: fmt::Arguments<'_>) {
        log::completion(why);
    }
}
