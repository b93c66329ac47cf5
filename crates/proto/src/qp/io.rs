//! What a half of a queue pair sees of the rest while it works on one packet or one turn.

use super::{Host, QpCounters, Reason, Segment, Side, Transmission, TxError, TxPayload, WriteHeaders};
use crate::Time;
use crate::ids::{PdId, Psn, Qpn, RKey};
use crate::verbs::{Access, Completion, MemoryFault, QpAttr, Route, Transport, WcFlags, WcOpcode, WcStatus};
use crate::wire::{Bth, Headers, Opcode, Operation, PiggybackedAck, Service};

/// What never changes about a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) qpn: Qpn,
    pub(crate) transport: Transport,
    /// The service of its packets.
    pub(crate) service: Service,
    pub(crate) pd: PdId,
    pub(crate) signal_all: bool,
    pub(crate) shared_recv: bool,
}

/// The service of a transport's packets.
pub(crate) const fn service_of(transport: Transport) -> Service {
    match transport {
        Transport::Rc => Service::Rc,
        Transport::Uc => Service::Uc,
        Transport::Ud => Service::Ud,
        Transport::XrcIni | Transport::XrcTgt => Service::Xrc,
    }
}

/// An error that ends the queue pair. The completion, NAK or event that tells of it has been made already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fatal;

/// The surroundings of one turn.
pub(crate) struct Io<'a, H: Host> {
    pub(crate) host: &'a mut H,
    pub(crate) id: &'a Identity,
    /// Domain that memory is checked against: the queue pair's own, or that of the shared receive queue which an XRC
    /// request names (IBA annex A14).
    pub(crate) pd: PdId,
    pub(crate) attr: &'a QpAttr,
    pub(crate) route: &'a Route,
    pub(crate) counters: &'a mut QpCounters,
    pub(crate) now: Time,
    /// An acknowledgement that may be piggybacked on the next request.
    pub(crate) piggybacked_ack: Option<PiggybackedAck>,
    /// Packets of [`LARGE_SEGMENT`](super::LARGE_SEGMENT) may arrive: this one came through shared memory.
    pub(crate) may_be_large: bool,
}

impl<H: Host> Io<'_, H> {
    pub(crate) fn mtu(&self) -> u32 {
        self.attr.path_mtu.bytes()
    }

    /// A header for this connection's peer.
    pub(crate) fn headers(&self, operation: Operation, psn: Psn, payload_len: u32) -> Headers {
        Headers::new(Bth {
            opcode: Opcode::new(self.id.service, operation),
            solicited: false,
            mig_req: true,
            pad: (payload_len.wrapping_neg() & 3) as u8,
            pkey: crate::PKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qpn: self.attr.dest_qpn,
            ack_req: false,
            extended: false,
            selective: false,
            psn,
        })
    }

    /// Hands a segment to the host and counts what it took. Returns the number of packets.
    #[inline(always)]
    pub(crate) fn send<W: WriteHeaders>(&mut self, segment: &Segment<'_, W>) -> Result<u32, TxError> {
        self.send_to(self.route, segment)
    }

    /// The same to somebody who is not the peer of a connection.
    #[inline(always)]
    pub(crate) fn send_to<W: WriteHeaders>(
        &mut self,
        route: &Route,
        segment: &Segment<'_, W>,
    ) -> Result<u32, TxError> {
        let sent = self.host.send(route, segment)?;
        self.counters.tx_packets += u64::from(sent);
        self.counters.tx_bytes += u64::from(sent) * segment.payload.len() as u64;
        if segment.transmission != Transmission::First {
            self.counters.retransmitted += u64::from(sent);
        }
        Ok(sent)
    }

    /// Sends one packet that no acknowledgement follows.
    pub(crate) fn send_unacknowledged(
        &mut self,
        headers: &Headers,
        payload: TxPayload<'_>,
    ) -> Result<(), TxError> {
        self.send(&Segment::unacknowledged(headers, payload)).map(drop)
    }

    /// The queue pair's own rights first, then the region's.
    pub(crate) fn check_remote(
        &mut self,
        rkey: RKey,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<(), MemoryFault> {
        if !self.attr.access.contains(need) {
            return Err(MemoryFault::QpDenies { need, have: self.attr.access });
        }
        self.host.check_remote(self.pd, rkey, addr, len, need)
    }

    #[inline(always)] // as `Inbound::finish_recv`
    pub(crate) fn complete_send(&mut self, wqe: &super::sq::SendWqe) {
        if !wqe.signaled {
            return;
        }
        let byte_len = if wqe.awaits_response() { wqe.len } else { 0 };
        self.host.complete(
            Side::Send,
            Completion {
                wr_id: wqe.wr_id,
                opcode: wqe.wc_opcode(),
                byte_len,
                qpn: self.id.qpn,
                flags: WcFlags::empty(),
                ..Completion::default()
            },
        );
    }

    pub(crate) fn complete_failed(
        &mut self,
        side: Side,
        wr_id: u64,
        opcode: WcOpcode,
        status: WcStatus,
        why: Reason,
    ) {
        self.host.complete(
            side,
            Completion {
                wr_id,
                opcode,
                status,
                vendor_err: why as u32,
                qpn: self.id.qpn,
                ..Completion::default()
            },
        );
    }
}
