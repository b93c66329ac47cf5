//! Packets that are not for one queue pair of this NIC: to QP1, to a multicast group, or to a queue pair that does not exist.

use super::drive::touch;
use super::host::NicHost;
use super::{Engine, QpCore};
use crate::link::{RxPacket, TxBatch};
use ferroce_os::log;
use ferroce_proto::qp::DropReason;
use ferroce_proto::wire::{Packet, dest_qpn};
use ferroce_proto::{Gid, Qpn, Time};
use std::fmt::Arguments;
use std::sync::Arc;

impl Engine {
    /// Handles a packet to QP1, to a multicast group or to an unknown queue pair. Returns how many completions that made.
    pub(super) fn dispatch_elsewhere(
        &self,
        rx: &RxPacket<'_>,
        tx: &mut TxBatch,
        touched: &mut Vec<Arc<QpCore>>,
        now: Time,
    ) -> u32 {
        match (dest_qpn(rx.bytes), rx.arrival.ring) {
            // A ring also carries records that are not packets; either way the destination queue pair is gone.
            (Some(qpn), Some(_)) if qpn != Qpn::MULTICAST && qpn != Qpn::GSI => {
                self.drop_unknown_qp(qpn, rx.arrival.sgid)
            }
            _ => {
                let Some(packet) = self.parse(rx) else { return 0 };
                match packet.headers.bth.dest_qpn {
                    Qpn::MULTICAST => return self.deliver_to_group(rx, tx, touched, now),
                    Qpn::GSI => self.receive_management(rx, &packet, now),
                    qpn => self.drop_unknown_qp(qpn, rx.arrival.sgid),
                }
            }
        }
        0
    }

    fn drop_unknown_qp(&self, qpn: Qpn, from: Gid) {
        self.device.counters.dropped(DropReason::NoSuchQp);
        log::drop(format_args!(
            "no QP {qpn} here for a packet from {}: it was destroyed, or the sender has a wrong number",
            from.to_ip()
        ));
    }

    fn parse<'a>(&self, rx: &RxPacket<'a>) -> Option<Packet<'a>> {
        let from = rx.arrival.sgid.to_ip();
        match Packet::parse(rx.bytes) {
            Ok(packet) if packet.headers.bth.has_partial_icrc() => {
                self.drop_malformed(format_args!(
                    "the ICRC of a packet from {from} does not cover its payload"
                ));
                None
            }
            Ok(packet) => Some(packet),
            Err(malformed) => {
                self.drop_malformed(format_args!("malformed packet from {from}: {malformed}"));
                None
            }
        }
    }

    fn drop_malformed(&self, why: Arguments<'_>) {
        self.device.counters.dropped(DropReason::Malformed);
        log::drop(why);
    }

    fn deliver_to_group(
        &self,
        rx: &RxPacket<'_>,
        tx: &mut TxBatch,
        touched: &mut Vec<Arc<QpCore>>,
        now: Time,
    ) -> u32 {
        let members = self.groups.members(rx.arrival.dgid);
        if members.is_empty() {
            self.device.counters.dropped(DropReason::NoSuchQp);
            log::drop(format_args!("no QP is attached to multicast group {} here", rx.arrival.dgid.to_ip()));
        }
        let mut completions = 0;
        for qp in members {
            let mut machine = qp.machine.lock();
            let mut host = NicHost::new(self, &qp, tx);
            // `finish_touched` publishes its terms.
            let _ = machine.receive(rx.arrival, rx.bytes, || now, &mut host);
            completions += host.completions;
            drop(host);
            drop(machine);
            touch(touched, qp);
        }
        completions
    }
}
