//! What comes next, for a link that puts payloads in place before it looks at them.
//!
//! While a long WRITE or READ response comes in, the next packets are nearly always its middle ones, and where their
//! payloads go is known. A link that lets the kernel copy them straight there saves the host a copy. It must check
//! afterwards that they were the expected ones; what it then passes on as placed ([`Packet::placed`]) goes through every
//! check of an ordinary packet and only the copying is left out.
//!
//! Only the middle is ever expected, never the last packet of a message, and never a SEND, whose length is not known
//! before its end. So a wrong guess can only touch bytes that the message in progress has yet to overwrite and whose
//! contents are undefined until it completes.
//!
//! [`Packet::placed`]: crate::wire::Packet::placed

use super::{Machine, Qp};
use crate::ids::{Gid, LKey, PdId, Psn, Qpn, RKey};
use crate::verbs::QpState;
use crate::wire::{Opcode, Operation};

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

    /// Whether the packet with this number is the first of this run and had the same place in an `earlier` one.
    pub fn continues(&self, earlier: &Expected, psn: Psn) -> bool {
        let passed = u32::try_from(psn.distance_from(earlier.psn));
        passed.is_ok_and(|n| {
            n < earlier.packets && self.psn == psn && {
                let then = earlier.after(n);
                Expected { packets: then.packets, ..*self } == then
            }
        })
    }
}

impl Qp {
    /// What most likely follows a packet with this opcode, if that can be put in place before it is looked at.
    ///
    /// A snapshot, and a guess: the peer may send something else. Ask again before a placed packet is handed to
    /// [`Qp::handle_packet`], and treat it as lost unless the answer [continues](Expected::continues) the first one.
    pub fn expected_after(&self, opcode: Opcode) -> Option<Expected> {
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
}
