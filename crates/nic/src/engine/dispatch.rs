//! What has arrived is given to its queue pairs.

use super::Engine;
use super::drive::Turn;
use super::host::NicHost;
use crate::link::{PlacedRun, RxPacket, TxBatch};
use crate::log;
use crate::objects::QpCore;
use ferroce_proto::qp::{self, Arrival, DropReason, Expected, Placed};
use ferroce_proto::wire::{Bth, Opcode, Packet};
use ferroce_proto::{Psn, Qpn, Time};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Engine {
    /// Gives every packet to its queue pair; returns how many completions that made. Queue pairs that are not finished
    /// yet are left among the touched.
    pub(super) fn dispatch(&self, turn: &mut Turn, now: Time, may_put_off: bool) -> u32 {
        let Turn { rx, tx, touched, put_off, forecaster, expected, .. } = turn;
        let mut completions = 0;
        let (mut guess, mut next_guess) = (*expected, None);
        let mut packets = rx.packets().peekable();
        while let Some(rx_packet) = packets.next() {
            let Some(first) = self.parse(&rx_packet, &mut guess) else { continue };
            let qpn = first.bth().dest_qpn;
            if let (Qpn::MULTICAST, Parsed::One(arrival, packet)) = (qpn, &first) {
                completions += self.deliver_to_group(arrival, packet, tx, touched, now);
                continue;
            }
            let Some(qp) = self.qps.get(qpn) else {
                if let (Qpn::GSI, Parsed::One(_, packet)) = (qpn, &first) {
                    self.receive_management(&rx_packet, packet, now);
                    continue;
                }
                self.counters.dropped(DropReason::NoSuchQp);
                log::drop(format_args!("no QP {qpn} here (from {})", first.arrival().sgid));
                continue;
            };
            if qp.is_shut.load(Ordering::Relaxed) {
                self.counters.dropped(DropReason::WrongState);
                let from = first.arrival().sgid;
                log::drop(format_args!("the peer of QP {qpn} has not proven its key (from {from})"));
                continue;
            }
            let mut machine = qp.machine.lock();
            let mut host = NicHost::new(self, &qp, tx);
            first.give_to(&mut machine, now, &mut host);
            let mut last = first.last();
            // Packets of one message come in a row: keep the lock for the row.
            while let Some(next) = packets.next_if(|p| ferroce_proto::wire::dest_qpn(p.bytes) == Some(qpn)) {
                if let Some(next) = self.parse(&next, &mut guess) {
                    next.give_to(&mut machine, now, &mut host);
                    last = next.last();
                }
            }
            let (opcode, psn) = last;
            next_guess = machine.expected_after(opcode).filter(|e| e.psn == psn.plus(1));
            completions += host.completions;
            if touched.is_empty() && packets.peek().is_none() {
                // The only one with packets: it need not be locked again.
                let may_put_off = may_put_off && completions > 0;
                self.finish(&qp, machine, host, now, may_put_off.then_some(put_off));
                break;
            }
            drop(machine);
            touch(touched, qp);
        }
        drop(packets);
        forecaster.learn(rx.placing(), next_guess, now);
        completions
    }

    /// Reads the headers. Placed packets are the next ones of `guess`, in their order.
    fn parse<'a>(&self, rx: &RxPacket<'a>, guess: &mut Option<Expected>) -> Option<Parsed<'a>> {
        let arrival = Arrival { sgid: rx.sgid, dgid: rx.dgid, traffic_class: rx.tos, hop_limit: rx.ttl };
        let parsed = match (rx.run, *guess) {
            (Some(PlacedRun { packets, ack_req }), Some(expected)) => {
                *guess = Some(expected.after(packets));
                let run = Expected { packets, ..expected };
                Bth::parse(rx.bytes).map(|first| Parsed::Run(arrival, Placed { first, run, ack_req }))
            }
            _ => Packet::parse(rx.bytes).map(|packet| Parsed::One(arrival, packet)),
        };
        parsed
            .inspect_err(|malformed| {
                self.counters.dropped(DropReason::Malformed);
                log::drop(format_args!("malformed packet from {}: {malformed}", rx.sgid));
            })
            .ok()
    }

    fn deliver_to_group(
        &self,
        arrival: &Arrival,
        packet: &Packet<'_>,
        tx: &mut TxBatch,
        touched: &mut Vec<Arc<QpCore>>,
        now: Time,
    ) -> u32 {
        let listeners = self.groups.listeners(arrival.dgid);
        if listeners.is_empty() {
            self.counters.dropped(DropReason::NoSuchQp);
            log::drop(format_args!("nobody listens to group {} here", arrival.dgid));
        }
        let mut completions = 0;
        for qp in listeners {
            let mut machine = qp.machine.lock();
            let mut host = NicHost::new(self, &qp, tx);
            machine.handle_packet(arrival, packet, now, &mut host);
            completions += host.completions;
            drop(machine);
            touch(touched, qp);
        }
        completions
    }
}

/// What lies in a batch: a packet, or several whose payloads are in place.
enum Parsed<'a> {
    One(Arrival, Packet<'a>),
    Run(Arrival, Placed),
}

impl Parsed<'_> {
    fn bth(&self) -> &Bth {
        match self {
            Parsed::One(_, packet) => &packet.headers.bth,
            Parsed::Run(_, placed) => &placed.first,
        }
    }

    /// Opcode and number of the last one.
    fn last(&self) -> (Opcode, Psn) {
        match self {
            Parsed::One(_, packet) => (packet.headers.bth.opcode, packet.headers.bth.psn),
            Parsed::Run(_, placed) => (placed.first.opcode, placed.run.after(placed.run.packets - 1).psn),
        }
    }

    fn arrival(&self) -> &Arrival {
        match self {
            Parsed::One(arrival, _) | Parsed::Run(arrival, _) => arrival,
        }
    }

    fn give_to(&self, machine: &mut qp::Qp, now: Time, host: &mut NicHost<'_, '_>) {
        match self {
            Parsed::One(arrival, packet) => machine.handle_packet(arrival, packet, now, host),
            Parsed::Run(arrival, placed) => machine.handle_placed(arrival, placed, now, host),
        }
    }
}

fn touch(touched: &mut Vec<Arc<QpCore>>, qp: Arc<QpCore>) {
    if !qp.touched.swap(true, Ordering::Relaxed) {
        touched.push(qp);
    }
}
