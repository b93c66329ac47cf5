//! The host of a queue pair: memory, completion queues and link of one simulated NIC.

use crate::frame::Frame;
use crate::journal::{Entry, Journal, NodeId};
use crate::nic::Resources;
use crate::stream::Wire;
use ferroce_crc::Crc32c;
use ferroce_proto::iwarp::StreamEgress;
use ferroce_proto::iwarp::wire::Fpdu;
use ferroce_proto::qp::{
    Attempt, DropReason, Egress, Events, LARGE_SEGMENT, Memory, Placement, RecvWqe, RefusalReason, Segment,
    Side, TxError, TxPayload, WriteHeaders,
};
use ferroce_proto::verbs::{
    Access, AtomicOp, Completion, EventKind, MemoryFault, MwBind, Route, Sge, WcStatus,
};
use ferroce_proto::wire::{RendezvousSend, SourcePiece, SourceRef};
use ferroce_proto::{PdId, Qpn, RKey, Srqn, Time};
use std::fmt;
use std::rc::Rc;

/// Which queues a queue pair uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queues {
    pub(crate) send_cq: usize,
    pub(crate) recv_cq: usize,
    pub(crate) srq: Option<usize>,
}

/// One queue pair's view of its NIC during one call.
pub(crate) struct SimHost<'a> {
    pub(crate) now: Time,
    pub(crate) node: NodeId,
    pub(crate) qpn: Qpn,
    pub(crate) queues: Queues,
    pub(crate) nic: &'a mut Resources,
    pub(crate) journal: &'a mut Journal,
    /// The bytes in the sender's memory that the current rendezvous send refers to.
    pub(crate) source_bytes: Option<Rc<[u8]>>,
    /// The stream of an iWARP queue pair.
    pub(crate) stream: Option<&'a mut Wire>,
}

impl SimHost<'_> {
    fn fetch_own(&self, payload: TxPayload<'_>) -> Result<Vec<u8>, MemoryFault> {
        match payload {
            TxPayload::None => Ok(Vec::new()),
            TxPayload::Bytes(bytes) => Ok(bytes.to_vec()),
            TxPayload::Local { pd, sges, offset, len } => self.nic.memory.gather(pd, sges, offset, len),
            TxPayload::Remote { pd, rkey, addr, len, .. } => self.nic.memory.read_remote(pd, rkey, addr, len),
        }
    }

    fn raise(&mut self, qpn: Qpn, kind: EventKind) {
        self.journal.add(self.now, Entry::Event(self.node, qpn, kind));
        self.nic.events.push_back((qpn, kind));
    }
}

impl Egress for SimHost<'_> {
    fn send<W: WriteHeaders>(&mut self, route: &Route, segment: &Segment<'_, W>) -> Result<u32, TxError> {
        let len = segment.payload.len();
        let Segment { payload, count, transmission, is_acknowledged, .. } = *segment;
        let headers = &segment.headers.to_headers(len);
        let packets = Segment { headers, payload, count, transmission, is_acknowledged };
        for n in 0..segment.count {
            let (headers, payload) = packets.packet(n);
            let data = match self.nic.link_is_full() {
                true => Err(TxError::Full),
                false => self.fetch_own(payload).map_err(TxError::Fault),
            };
            match data {
                Ok(data) => {
                    assert_eq!(data.len(), len, "the host read another length than requested");
                    self.nic.outbox.push_back(Frame::encode(route, &headers, &data));
                }
                Err(error) if n == 0 => return Err(error),
                Err(_) => return Ok(n),
            }
        }
        Ok(segment.count)
    }

    fn try_rendezvous(&mut self, route: &Route, head: &RendezvousSend, payload: TxPayload<'_>) -> Attempt {
        let TxPayload::Local { sges, .. } = payload else { panic!("{payload:?} is not local memory") };
        let pieces =
            sges.iter().filter(|sge| sge.len > 0).map(|sge| SourcePiece { addr: sge.addr, len: sge.len });
        let Some(source) = SourceRef::new(pieces) else { return Attempt::Declined };
        let Ok(data) = self.fetch_own(payload) else { return Attempt::Declined };
        if !self.nic.rendezvous.enabled || self.nic.link_is_full() {
            return Attempt::Declined;
        }
        self.nic.rendezvous.sent += 1;
        let (record, len) = head.to_bytes(&source);
        self.nic.outbox.push_back(Frame::rendezvous(route, &record[..len], data));
        Attempt::Done
    }

    fn large_segment(&mut self) -> Option<u32> {
        self.nic.rendezvous.large_packets.then_some(LARGE_SEGMENT)
    }

    fn carries_jumbo(&mut self, _route: &Route) -> bool {
        true
    }
}

impl StreamEgress for SimHost<'_> {
    fn send_fpdu(&mut self, fpdu: &Fpdu<'_>, from: usize) -> Result<usize, TxError> {
        let bytes = self.fpdu_bytes(fpdu)?;
        let wire = self.stream.as_mut().expect("a stream");
        let taken = wire.take(&bytes[from..], fpdu.has_crc);
        if taken == 0 { Err(TxError::Full) } else { Ok(from + taken) }
    }

    fn keep_fpdu(&mut self, fpdu: &Fpdu<'_>, from: usize) -> Result<(), TxError> {
        let bytes = self.fpdu_bytes(fpdu)?;
        self.stream.as_mut().expect("a stream").keep(&bytes[from..]);
        Ok(())
    }
}

impl SimHost<'_> {
    fn fpdu_bytes(&mut self, fpdu: &Fpdu<'_>) -> Result<Vec<u8>, TxError> {
        let data = self.fetch_own(fpdu.payload).map_err(TxError::Fault)?;
        let crc = Crc32c::new();
        let (trailer, len) = fpdu.trailer(crc, |sum| crc.update(sum, &data));
        let bytes = [fpdu.header, &data, &trailer[..len]].concat();
        assert_eq!(bytes.len(), fpdu.encoded_len());
        Ok(bytes)
    }
}

impl Memory for SimHost<'_> {
    fn is_peer(&mut self, _slot: u8) -> bool {
        true
    }

    fn fetch(&mut self, pd: PdId, sges: &[Sge], source: &SourceRef) -> Attempt {
        let bytes = self.source_bytes.take().expect("fetched once, and only for a rendezvous send");
        assert_eq!(bytes.len(), source.message_len() as usize);
        let rendezvous = &mut self.nic.rendezvous;
        rendezvous.fetches += 1;
        let declines =
            rendezvous.decline_every > 0 && rendezvous.fetches.is_multiple_of(rendezvous.decline_every);
        Attempt::of(
            !declines && self.nic.memory.scatter(pd, sges, 0, &bytes, (self.qpn, Placement::Last)).is_ok(),
        )
    }

    fn scatter(
        &mut self,
        pd: PdId,
        sges: &[Sge],
        offset: u64,
        data: &[u8],
        placement: Placement,
    ) -> Result<(), MemoryFault> {
        self.nic.memory.scatter(pd, sges, offset, data, (self.qpn, placement))
    }

    fn check_remote(
        &mut self,
        pd: PdId,
        rkey: RKey,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<(), MemoryFault> {
        self.nic.memory.check_remote(pd, rkey, addr, len, need)
    }

    fn write_remote(
        &mut self,
        pd: PdId,
        rkey: RKey,
        addr: u64,
        data: &[u8],
        placement: Placement,
    ) -> Result<(), MemoryFault> {
        self.nic.memory.write_remote(pd, rkey, addr, data, (self.qpn, placement))
    }

    fn atomic(&mut self, pd: PdId, rkey: RKey, addr: u64, op: AtomicOp) -> Result<u64, MemoryFault> {
        self.nic.atomics_run += 1;
        self.nic.memory.atomic(pd, rkey, addr, op)
    }

    fn store_remote(&mut self, pd: PdId, rkey: RKey, addr: u64, value: [u8; 8]) -> Result<(), MemoryFault> {
        self.nic.atomics_run += 1;
        self.nic.memory.write_remote(pd, rkey, addr, &value, (self.qpn, Placement::Last))
    }

    fn flush_remote(&mut self, pd: PdId, rkey: RKey, range: Option<(u64, u64)>) -> Result<(), MemoryFault> {
        self.nic.memory.flush_remote(pd, rkey, range)
    }

    fn invalidate(&mut self, pd: PdId, rkey: RKey) -> Result<(), MemoryFault> {
        self.nic.memory.invalidate(pd, rkey)
    }

    /// Memory windows belong to the NIC, not to the protocol: records the request, and refuses window 0.
    fn bind_window(&mut self, _pd: PdId, bind: &MwBind) -> Result<(), MemoryFault> {
        if bind.window == 0 {
            return Err(MemoryFault::StillBound { key: bind.rkey.0 });
        }
        self.nic.binds.push(*bind);
        Ok(())
    }
}

impl Events for SimHost<'_> {
    fn xrc_pd(&mut self, srq: Srqn) -> Option<PdId> {
        let own = self.nic.srqs[self.queues.srq?].xrc?;
        let other = self.nic.srqs.get(srq.value() as usize)?.xrc?;
        (other.domain == own.domain).then_some(other.pd)
    }

    fn take_shared_recv(&mut self, xrc: Option<Srqn>, into: &mut RecvWqe) -> bool {
        let xrc = xrc.map(|srq| srq.value() as usize);
        let Some(number) = xrc.or(self.queues.srq) else { return false };
        let srq = &mut self.nic.srqs[number];
        let (taken, limit_reached) = srq.take(into);
        if limit_reached {
            // The event belongs to the SRQ, not to the queue pair that happened to take the request.
            self.raise(Qpn::default(), EventKind::SrqLimitReached);
        }
        taken
    }

    fn complete(&mut self, side: Side, completion: Completion) {
        assert_eq!(completion.qpn, self.qpn, "a completion of another queue pair");
        self.journal.add(self.now, Entry::Completed(self.node, side, completion));
        if completion.status != WcStatus::Success {
            self.nic.memory.forget_deferred(self.qpn);
        }
        let number = match side {
            Side::Send => self.queues.send_cq,
            Side::Recv => self.queues.recv_cq,
            Side::Xrc(srq) => self.nic.srqs[srq.value() as usize].xrc.expect("an XRC queue").cq,
        };
        if !self.nic.cqs[number].push(completion) {
            self.raise(Qpn::default(), EventKind::CqErr);
        }
    }

    fn event(&mut self, kind: EventKind) {
        self.raise(self.qpn, kind);
    }

    fn dropped(&mut self, reason: DropReason, why: fmt::Arguments<'_>) {
        self.journal.add(self.now, Entry::Dropped(self.node, self.qpn, reason, why.to_string()));
    }

    fn refused(&mut self, reason: RefusalReason, why: fmt::Arguments<'_>) {
        *self.nic.refusals.entry(reason.name()).or_default() += 1;
        self.explain(why);
    }

    fn explain(&mut self, why: fmt::Arguments<'_>) {
        self.journal.add(self.now, Entry::Explained(self.node, self.qpn, why.to_string()));
    }
}
