//! What comes next, for a link that puts payloads in place before it looks at them.
//!
//! While a long WRITE or READ response comes in, the next packets are nearly always its middle ones, and where their
//! payloads go is known. A link that lets the kernel copy them straight there saves the host a copy. It checks afterwards
//! that they were the expected ones and hands them over as [`Placed`], many at a time; they go through every check of
//! ordinary packets, and only the copying is left out.
//!
//! Only the middle is ever expected, never the last packet of a message, and never a SEND, whose length is not known
//! before its end. So a wrong guess can only touch bytes that the message in progress has yet to overwrite and whose
//! contents are undefined until it completes.

use super::flush::io;
use super::io::Io;
use super::{Arrival, DropReason, Host, Machine, Qp};
use crate::Time;
use crate::ids::{Gid, LKey, PdId, Psn, Qpn, RKey};
use crate::verbs::QpState;
use crate::wire::{Bth, Opcode, Operation, Service};

/// Where payloads go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Memory that the peer writes to.
    Remote {
        /// Key that the peer presented.
        rkey: RKey,
        /// First byte.
        addr: u64,
    },
    /// Memory that a work request of this side names.
    Local {
        /// Key of the region.
        lkey: LKey,
        /// First byte.
        addr: u64,
    },
}

impl Target {
    fn plus(self, bytes: u64) -> Target {
        match self {
            Target::Remote { rkey, addr } => Target::Remote { rkey, addr: addr.wrapping_add(bytes) },
            Target::Local { lkey, addr } => Target::Local { lkey, addr: addr.wrapping_add(bytes) },
        }
    }
}

/// A run of packets that a queue pair expects: without extension headers and padding, numbered in sequence, their
/// payloads side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Whom they are for.
    pub qpn: Qpn,
    /// Where they come from.
    pub from: Gid,
    /// What they are.
    pub opcode: Opcode,
    /// Number of the first.
    pub psn: Psn,
    /// How many there are.
    pub packets: u32,
    /// Payload bytes of each.
    pub payload_len: u32,
    /// Domain that the target must belong to.
    pub pd: PdId,
    /// Where the first payload goes.
    pub target: Target,
}

impl Expected {
    /// Payload bytes of all of them.
    pub fn bytes(&self) -> u64 {
        u64::from(self.packets) * u64::from(self.payload_len)
    }

    /// What is left of the run after some packets.
    #[must_use]
    pub fn after(&self, packets: u32) -> Expected {
        let packets = packets.min(self.packets);
        Expected {
            psn: self.psn.plus(packets),
            packets: self.packets - packets,
            target: self.target.plus(u64::from(packets) * u64::from(self.payload_len)),
            ..*self
        }
    }

    /// Whether a part of this run, from its start, is expected here.
    fn begins_with(&self, part: &Expected) -> bool {
        part.packets <= self.packets && *part == Expected { packets: part.packets, ..*self }
    }
}

/// Packets of an expected run that have arrived and whose payloads are in their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Header of the first. The others differ in nothing but number, congestion marks and acknowledge request.
    pub first: Bth,
    /// Which they are, and where their payloads lie.
    pub run: Expected,
    /// Whether one of them asks for an acknowledgement.
    pub ack_req: bool,
}

impl Qp {
    /// What most likely follows a packet with this opcode, if that can be put in place before it is looked at.
    ///
    /// A snapshot, and a guess: the peer may send something else.
    pub fn expected_after(&self, opcode: Opcode) -> Option<Expected> {
        // The packets of XRC say each for itself which receive queue, and so which domain, they belong to.
        if self.id.service() == Service::Xrc {
            return None;
        }
        let mtu = self.attr.path_mtu.bytes();
        let (operation, (psn, target, packets)) = match (&self.machine, opcode.operation) {
            (Machine::Rc(rc), Operation::WriteFirst | Operation::WriteMiddle) => {
                (Operation::WriteMiddle, rc.1.expected_write(mtu)?)
            }
            (Machine::Uc(uc), Operation::WriteFirst | Operation::WriteMiddle) => {
                (Operation::WriteMiddle, uc.1.expected_write(mtu)?)
            }
            (Machine::Rc(rc), Operation::ReadResponseFirst | Operation::ReadResponseMiddle) => {
                (Operation::ReadResponseMiddle, rc.0.expected_read(&self.sq, mtu)?)
            }
            _ => return None,
        };
        let receives = matches!(self.attr.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        receives.then(|| Expected {
            qpn: self.id.qpn,
            from: self.route.dgid,
            opcode: Opcode::new(self.id.service(), operation),
            psn,
            packets,
            payload_len: mtu,
            pd: self.id.pd,
            target,
        })
    }

    /// Several packets with this queue pair's number, as if [`Qp::handle_packet`] had got each of them and copied its
    /// payload. If they are not due any more, since the queue pair has changed after the guess, they are lost.
    pub fn handle_placed<H: Host>(&mut self, arrival: &Arrival, placed: &Placed, now: Time, host: &mut H) {
        if !self.admits(arrival, &placed.first, host) {
            return;
        }
        let due = self.expected_after(placed.first.opcode);
        if !due.is_some_and(|due| due.begins_with(&placed.run)) {
            host.dropped(
                DropReason::BadPsn,
                format_args!("QP {}: PSN {} is not due any more", self.id.qpn, placed.run.psn),
            );
            return;
        }
        self.counters.rx_packets += u64::from(placed.run.packets);
        self.counters.rx_bytes += placed.run.bytes();
        let mut io = io!(self, now, host);
        let turn = match (&mut self.machine, placed.run.target) {
            (Machine::Rc(rc), Target::Local { .. }) => rc.0.handle_placed(placed, &mut self.sq, &mut io),
            (Machine::Rc(rc), Target::Remote { .. }) => rc.1.handle_placed(placed, &mut io),
            (Machine::Uc(uc), _) => {
                uc.1.handle_placed(placed, &mut io);
                Ok(())
            }
            (Machine::Ud(_), _) => Ok(()),
        };
        if turn.is_err() {
            self.enter_error(now, host);
        }
        self.report_drained(host);
    }
}
