//! Packets from the middle of a long WRITE, which follow each other by the dozen, on a path of their own.
//!
//! They consist of a BTH and a payload, and nothing about them is new: where their bytes belong was said, and checked, with the first
//! packet. All that the usual path would check is checked here too; whatever is unusual in the least is left to it.

use super::flush::io;
use super::io::Io;
use super::{Arrival, Host, Machine, Qp};
use crate::Time;
use crate::ids::PKey;
use crate::verbs::{QpState, Transport};
use crate::wire::{Bth, Opcode, Operation, Service};

const WRITE_MIDDLE: u8 = Opcode::new(Service::Rc, Operation::WriteMiddle).to_byte();

impl Qp {
    /// Takes a packet, from the BTH to the pad, that is next in sequence and from the middle of a WRITE under way. False if it is anything
    /// else, or anything is wrong: then nothing has happened, and it is for [`Qp::handle_packet`].
    #[inline]
    pub fn handle_middle<H: Host>(
        &mut self,
        arrival: &Arrival,
        packet: &[u8],
        now: Time,
        host: &mut H,
    ) -> bool {
        if packet.first() != Some(&WRITE_MIDDLE) {
            return false;
        }
        let Ok(bth) = Bth::parse(packet) else { return false };
        let is_plain = bth.pad == 0 && !bth.extended && !bth.selective && PKey::DEFAULT.admits(bth.pkey);
        let is_open = self.attr.state == QpState::Rts && self.id.transport == Transport::Rc;
        let is_ours =
            bth.dest_qpn == self.id.qpn && arrival.sgid == self.route.dgid && arrival.dgid == self.route.sgid;
        if !(is_plain && is_open && is_ours) {
            return false;
        }
        let Machine::Rc(rc) = &mut self.machine else { return false };
        let payload = &packet[Bth::LEN..];
        if !rc.1.handle_middle(&bth, payload, &mut io!(self, now, host)) {
            return false;
        }
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += payload.len() as u64;
        true
    }
}
