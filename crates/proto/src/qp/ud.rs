//! Unreliable datagrams: each message is one packet.

use super::io::{Fatal, Io};
use super::receive::Arrival;
use super::sq::{SendQueue, SendWqe};
use super::{DropReason, Host, Placement, Reason, RecvQueue, RecvWqe, Segment, Side, TxError};
use crate::ids::{Psn, Qkey};
use crate::verbs::{Completion, QpAttr, QpState, SendOp, WcFlags, WcOpcode, WcStatus};
use crate::wire::{Deth, Grh, Headers, Ipv4Header, Operation, Packet};
use alloc::boxed::Box;

/// Network type of a datagram as RoCE NICs report it in the service level of its completion; UCX relies on it.
const NETWORK_IPV6: u8 = 1;
const NETWORK_IPV4: u8 = 2;

/// Sender and receiver; a UD QP needs no connection state. In a box, as the machines of the other transports are: the enum of machines then has
/// a tag of its own, which one instruction compares. A tag in the niche of a field took six, and a message compares it ten times.
#[derive(Debug, Default)]
pub(crate) struct Datagrams(Box<State>);

#[derive(Debug, Default)]
struct State {
    psn: Psn,
    recv: RecvWqe,
    has_recv: bool,
}

impl Datagrams {
    /// Heap bytes of the machine.
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    pub(crate) fn start(&mut self, attr: &QpAttr) {
        self.0.psn = attr.sq_psn;
    }

    pub(crate) fn take_recv(&mut self) -> Option<u64> {
        core::mem::take(&mut self.0.has_recv).then_some(self.0.recv.wr_id)
    }

    pub(crate) fn poll_transmit<H: Host>(
        &mut self,
        sq: &mut SendQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        while let Some(wqe) = sq.get(sq.head()).copied() {
            if io.attr.state != QpState::Rts {
                break;
            }
            let failure = if wqe.len > io.mtu() {
                io.host.explain(format_args!(
                    "QP {}: datagram wr_id {:#x} has {} bytes, the active MTU of the port is {}",
                    io.id.qpn,
                    wqe.wr_id,
                    wqe.len,
                    io.mtu()
                ));
                Some((WcStatus::LocLenErr, Reason::ExceedsMtu))
            } else {
                match self.send(&wqe, sq, io) {
                    Ok(()) => None,
                    Err(TxError::Full) => break,
                    Err(TxError::Fault(fault)) => {
                        io.host.explain(format_args!(
                            "QP {}: datagram wr_id {:#x} cannot read its data: {fault}",
                            io.id.qpn, wqe.wr_id
                        ));
                        Some((WcStatus::LocProtErr, Reason::LocalMemory))
                    }
                }
            };
            sq.pop();
            if let Some((status, why)) = failure {
                io.complete_failed(Side::Send, wqe.wr_id, wqe.wc_opcode(), status, why);
                return Err(Fatal);
            }
            io.complete_send(&wqe);
        }
        Ok(())
    }

    fn send<H: Host>(&mut self, wqe: &SendWqe, sq: &SendQueue, io: &mut Io<'_, H>) -> Result<(), TxError> {
        let target = sq.target(sq.head());
        let (operation, imm) = match wqe.op {
            SendOp::SendImm(imm) => (Operation::SendOnlyImm, Some(imm)),
            _ => (Operation::SendOnly, None),
        };
        let mut headers = io.headers(operation, self.0.psn, wqe.len);
        headers.bth.dest_qpn = target.qpn;
        headers.bth.solicited = wqe.solicited;
        headers.imm = imm;
        // A controlled Q_Key in the work request selects the QP's own (IBA 10.2.5).
        let qkey = if target.qkey.is_controlled() { io.attr.qkey } else { target.qkey };
        headers.deth = Some(Deth { qkey, src_qpn: io.id.qpn });
        let payload = sq.payload(sq.head(), io.pd, 0, wqe.len);
        io.send_to(&target.route, &Segment::unacknowledged(&headers, payload))?;
        self.0.psn = self.0.psn.plus(1);
        Ok(())
    }

    pub(crate) fn handle_packet<H: Host>(
        &mut self,
        arrival: &Arrival,
        pkt: &Packet<'_>,
        rq: &mut RecvQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        let qpn = io.id.qpn;
        let Some(deth) = pkt.headers.deth else { return Ok(()) };
        if deth.qkey != io.attr.qkey {
            let (theirs, ours): (Qkey, Qkey) = (deth.qkey, io.attr.qkey);
            let from = deth.src_qpn;
            io.host.dropped(
                DropReason::BadQkey,
                format_args!("QP {qpn}: Q_Key {theirs} in a datagram from QP {from}, this QP has {ours}; the sender must use that"),
            );
            return Ok(());
        }
        if !self.0.has_recv {
            self.0.has_recv = if io.id.shared_recv {
                io.host.take_shared_recv(None, &mut self.0.recv)
            } else {
                rq.pop(&mut self.0.recv)
            };
        }
        if !self.0.has_recv {
            let from = deth.src_qpn;
            io.host.dropped(
                DropReason::NoReceive,
                format_args!(
                    "QP {qpn}: no receive posted for a datagram from QP {from}; post receives before it sends"
                ),
            );
            return Ok(());
        }
        let needed = (Grh::LEN + pkt.payload.len()) as u64;
        let capacity = self.0.recv.capacity();
        if needed > capacity {
            // Class D fault (IBA 9.9.3): drop silently; the receive stays for the next datagram.
            let advice = if pkt.payload.len() as u64 <= capacity {
                "add 40 bytes for the GRH"
            } else {
                "post a longer one"
            };
            io.host.dropped(
                DropReason::Unfit,
                format_args!(
                    "QP {qpn}: datagram and GRH need {needed} bytes, the receive has {capacity}; {advice}"
                ),
            );
            return Ok(());
        }
        self.0.has_recv = false;
        self.deliver(arrival, pkt, deth, io)
    }

    fn deliver<H: Host>(
        &mut self,
        arrival: &Arrival,
        pkt: &Packet<'_>,
        deth: Deth,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        let (grh, network) = grh_bytes(arrival, &pkt.headers, pkt.payload.len());
        let placed = io.host.scatter(io.recv_pd(), &self.0.recv.sges, 0, &grh, Placement::Last).and_then(
            |()| match pkt.payload {
                [] => Ok(()),
                data => {
                    io.host.scatter(io.recv_pd(), &self.0.recv.sges, Grh::LEN as u64, data, Placement::Last)
                }
            },
        );
        if let Err(fault) = placed {
            io.host.explain(format_args!(
                "QP {}: a datagram cannot be placed into receive wr_id {:#x}: {fault}",
                io.id.qpn, self.0.recv.wr_id
            ));
            io.complete_failed(
                Side::Recv,
                self.0.recv.wr_id,
                WcOpcode::Recv,
                WcStatus::LocProtErr,
                Reason::LocalMemory,
            );
            return Err(Fatal);
        }
        let mut flags = WcFlags::GRH;
        flags.set(WcFlags::WITH_IMM, pkt.headers.imm.is_some());
        io.host.complete(
            Side::Recv,
            Completion {
                wr_id: self.0.recv.wr_id,
                opcode: WcOpcode::Recv,
                byte_len: (Grh::LEN + pkt.payload.len()) as u32,
                imm: pkt.headers.imm.unwrap_or_default(),
                qpn: io.id.qpn,
                src_qpn: deth.src_qpn,
                flags,
                sl: network,
                solicited: pkt.headers.bth.solicited,
                ..Completion::default()
            },
        );
        Ok(())
    }
}

/// The 40 bytes in front of a datagram: the IPv6 header as a GRH, or twenty zeros and the IPv4 header (IBA A17.4.5).
fn grh_bytes(arrival: &Arrival, headers: &Headers, payload: usize) -> ([u8; Grh::LEN], u8) {
    let udp_len = (8 + headers.encoded_len() + payload + usize::from(headers.bth.pad) + 4) as u16;
    match (arrival.sgid.to_ipv4(), arrival.dgid.to_ipv4()) {
        (Some(src), Some(dst)) => {
            let mut bytes = [0; Grh::LEN];
            let header = Ipv4Header {
                tos: arrival.traffic_class,
                total_len: udp_len + 20,
                ident: 0,
                flags: Ipv4Header::DONT_FRAGMENT,
                ttl: arrival.hop_limit,
                protocol: Ipv4Header::PROTOCOL_UDP,
                src,
                dst,
            };
            bytes[20..].copy_from_slice(&header.to_bytes());
            (bytes, NETWORK_IPV4)
        }
        _ => {
            let grh = Grh {
                tclass: arrival.traffic_class,
                flow_label: 0,
                payload_len: udp_len,
                next_header: Ipv4Header::PROTOCOL_UDP,
                hop_limit: arrival.hop_limit,
                sgid: arrival.sgid,
                dgid: arrival.dgid,
            };
            (grh.to_bytes(), NETWORK_IPV6)
        }
    }
}
