//! The context that a requester or responder works in during one call.

use super::{
    HistoryEvent, Host, HostServices, JUMBO_SEGMENT, LARGE_SEGMENT, QpConfig, QpCounters, Reason,
    ReorderBudget, Segment, Side, Transmission, TxError, TxPayload, WriteHeaders,
};
use crate::Time;
use crate::ids::{PdId, Psn, Qpn, RKey};
use crate::verbs::{
    Access, Completion, MemoryFault, Mtu, QpAttr, Route, Transport, WcFlags, WcOpcode, WcStatus,
};
use crate::wire::{Bth, Headers, Opcode, Operation, PiggybackedAck, Service};
use alloc::sync::Arc;

/// Immutable properties of a queue pair.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) qpn: Qpn,
    pub(crate) transport: Transport,
    /// The service of its packets.
    pub(crate) service: Service,
    pub(crate) pd: PdId,
    /// Protection domain of its shared receive queue.
    pub(crate) recv_pd: Option<PdId>,
    pub(crate) signal_all: bool,
    pub(crate) shared_recv: bool,
    /// Whether packets of [`LARGE_SEGMENT`](super::LARGE_SEGMENT) may arrive through shared memory.
    pub(crate) takes_large: bool,
    /// [`QpConfig::takes_jumbo`].
    pub(crate) takes_jumbo: bool,
    /// The path MTU that the port offers.
    pub(crate) port_mtu: Mtu,
    /// Memory for out-of-order packets.
    pub(crate) reorder: Arc<ReorderBudget>,
}

impl Identity {
    pub(crate) fn new(config: &QpConfig) -> Identity {
        Identity {
            qpn: config.qpn,
            transport: config.transport,
            service: service_of(config.transport),
            pd: config.pd,
            // An XRC request names its shared receive queue. The protection domain of that queue applies to the whole request.
            recv_pd: config.shared_recv.filter(|_| !config.transport.is_xrc()),
            signal_all: config.signal_all,
            shared_recv: config.shared_recv.is_some() || config.transport == Transport::XrcTgt,
            takes_large: config.takes_large && config.transport == Transport::Rc,
            takes_jumbo: config.takes_jumbo && config.transport == Transport::Rc,
            port_mtu: config.port_mtu,
            reorder: config.reorder.clone(),
        }
    }
}

impl Identity {
    /// Whether jumbo packets may be exchanged with a ferroce peer. A path MTU below the port's is a choice of the program, so packets stay
    /// within it.
    pub(crate) fn may_exchange_jumbo(&self, attr: &QpAttr) -> bool {
        self.takes_jumbo && attr.path_mtu >= self.port_mtu
    }
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

/// Whether a request with this PSN has the [hello bit](Bth::hello): the first one of an RC connection does.
#[inline(always)]
pub(crate) fn has_hello(transport: Transport, attr: &QpAttr, psn: Psn) -> bool {
    transport == Transport::Rc && psn == attr.sq_psn
}

/// An error that ends the queue pair. Its completion, NAK or event is already created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fatal;

/// The context of one call.
pub(crate) struct Io<'a, H> {
    pub(crate) host: &'a mut H,
    pub(crate) id: &'a Identity,
    /// Protection domain for memory checks: the queue pair's own, or that of the shared receive queue of an XRC request
    /// (IBA annex A14).
    pub(crate) pd: PdId,
    pub(crate) attr: &'a QpAttr,
    pub(crate) route: &'a Route,
    pub(crate) counters: &'a mut QpCounters,
    pub(crate) now: Time,
    /// An ACK that the next request may carry.
    pub(crate) piggybacked_ack: Option<PiggybackedAck>,
    /// This packet arrived through shared memory, so it may be longer than the path MTU.
    pub(crate) is_large: bool,
    /// This packet is a jumbo packet.
    pub(crate) is_jumbo: bool,
}

impl<H> Io<'_, H> {
    pub(crate) fn mtu(&self) -> u32 {
        self.attr.path_mtu.bytes()
    }

    /// The limit on the payload of this packet, which has `len` bytes: the path MTU, or up to [`JUMBO_SEGMENT`] for a jumbo packet.
    #[inline(always)]
    pub(crate) fn max_wire_payload(&self, len: usize) -> u32 {
        if self.is_jumbo { self.mtu().max(len.min(JUMBO_SEGMENT as usize) as u32) } else { self.mtu() }
    }

    /// The same for a packet that may have arrived through shared memory.
    #[inline(always)]
    pub(crate) fn max_payload(&self, len: usize) -> u32 {
        if self.is_large {
            self.mtu().max(len.min(LARGE_SEGMENT as usize) as u32)
        } else {
            self.max_wire_payload(len)
        }
    }
}

impl<H: Host> Io<'_, H> {
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
            partial_icrc: false,
            jumbo: false,
            hello: !operation.is_response() && has_hello(self.id.transport, self.attr, psn),
            extended: false,
            selective: false,
            psn,
        })
    }

    /// Sends a segment through the host and counts it. Returns the number of packets accepted.
    #[inline(always)]
    pub(crate) fn send<W: WriteHeaders>(&mut self, segment: &Segment<'_, W>) -> Result<u32, TxError> {
        self.send_to(self.route, segment)
    }

    /// Sends a segment to an explicit destination.
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
            self.host.record(HistoryEvent::Retransmitted, sent);
        }
        Ok(sent)
    }

    /// Sends one packet that needs no ACK.
    pub(crate) fn send_unacknowledged<W: WriteHeaders>(
        &mut self,
        headers: &W,
        payload: TxPayload<'_>,
    ) -> Result<(), TxError> {
        self.send(&Segment::unacknowledged(headers, payload)).map(drop)
    }
}

impl<H: HostServices> Io<'_, H> {
    /// Protection domain of the memory of receives.
    #[inline(always)]
    pub(crate) fn recv_pd(&self) -> PdId {
        self.id.recv_pd.unwrap_or(self.pd)
    }

    /// Checks the rights of the queue pair, then those of the region.
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
