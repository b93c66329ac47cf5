//! Updates the steering program to match the kernel's order of sockets.
//!
//! This is an optimisation: misrouted packets are forwarded (`SharedPort`), which is slower. A repair runs after a misrouted
//! packet, at a limited rate.

use super::UdpLink;
use super::probe::Probe;
use super::receive::Receiver;
use super::steer;
use super::sys::attach_steering;
use crate::link::counters::add_alone;
use ferroce_os::clock::now;
use ferroce_proto::{Gid, Time};
use ferroce_shm::registry::Roster;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// Time between repairs, doubled after each repair that changes nothing.
const MIN_PAUSE_NS: u64 = 5_000_000;
const MAX_PAUSE_NS: u64 = 1_000_000_000;
/// How long the receive path waits for the lock of the roster, which others hold for some tens of microseconds.
const MAX_WAIT: Duration = Duration::from_millis(2);

/// When an address may be repaired next, and the last answered round of probes.
#[derive(Clone, Debug)]
pub(super) struct RepairPace {
    not_before: Time,
    pause_ns: u64,
    round: Option<u64>,
    /// The roster was locked at the last attempt.
    is_owed: bool,
}

impl Default for RepairPace {
    fn default() -> Self {
        RepairPace { not_before: Time(0), pause_ns: MIN_PAUSE_NS, round: None, is_owed: false }
    }
}

impl RepairPace {
    fn is_due(&self, now: Time) -> bool {
        now >= self.not_before
    }
    fn on_repair(&mut self, now: Time, changed: bool) {
        self.pause_ns = if changed { MIN_PAUSE_NS } else { (self.pause_ns * 2).min(MAX_PAUSE_NS) };
        self.not_before = now + self.pause_ns;
    }
}

impl UdpLink {
    /// A packet for `slot` arrived at the socket of address number `address`.
    #[cold]
    pub(super) fn on_misdelivery(&self, receiver: &mut Receiver, address: usize, slot: u8) {
        let now = now();
        if receiver.pace[address].is_due(now) {
            let changed = self.repair(receiver, address, slot);
            receiver.pace[address].on_repair(now, changed);
        }
    }

    /// Removes dead processes from the roster and attaches a new steering program. Sends probes if the order of the sockets is
    /// uncertain. Returns whether the roster changed.
    fn repair(&self, receiver: &mut Receiver, address: usize, slot: u8) -> bool {
        if receiver.is_closing {
            return false;
        }
        let bound = &self.addresses[address];
        add_alone(&self.counters.repairs, 1);
        let outcome = self.port.registry().try_update(MAX_WAIT, |registry, roster| {
            let dead = roster.prune(bound.addr, |slot| registry.is_alive(slot));
            let _ = attach_steering(&bound.socket, &steer::program(roster.order(bound.addr)));
            (dead, roster.clone())
        });
        receiver.pace[address].is_owed = outcome.is_err() || matches!(outcome, Ok(None));
        receiver.owes_repair = receiver.pace.iter().any(|p| p.is_owed);
        let Ok(Some((dead, roster))) = outcome else { return false };
        receiver.token = roster.token;
        // After one death the new order is known. After several, or if the roster lists the right owner and steering is wrong all the
        // same, only probes can find the order.
        let order = roster.order(bound.addr);
        if dead > 1 || (dead == 0 && order.contains(&slot)) {
            self.send_probes(bound.addr, &roster);
        }
        dead > 0
    }

    fn send_probes(&self, addr: IpAddr, roster: &Roster) {
        let round = ferroce_os::random::number();
        let to = match addr {
            IpAddr::V4(v4) if v4.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(v6) if v6.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            specific => specific,
        };
        for index in 0..roster.order(addr).len() {
            let probe = Probe { index: index as u8, token: roster.token, round, addr: Gid::from_ip(addr) };
            self.sender.send_raw(Gid::from_ip(to), &probe.to_bytes());
        }
    }

    /// A probe arrived, so the socket has the index in the probe. Only the first probe of a round counts: the kernel delivers a
    /// probe with an index behind the last socket to any socket.
    #[cold]
    pub(super) fn on_probe(&self, receiver: &mut Receiver, address: usize, probe: &Probe) {
        if receiver.is_closing {
            return;
        }
        let bound = &self.addresses[address];
        // Checked before the roster is locked: a flood of forged probes must not cost more than other invalid packets.
        if probe.token != receiver.token {
            return add_alone(&self.counters.malformed, 1);
        }
        let pace = &mut receiver.pace[address];
        if probe.addr != Gid::from_ip(bound.addr) || pace.round == Some(probe.round) {
            return;
        }
        pace.round = Some(probe.round);
        // If the roster stays locked, this probe has no effect; the next misrouted packet triggers new probes.
        let _ = self.port.registry().try_update(MAX_WAIT, |_, roster| {
            if roster.confirm(bound.addr, probe.index.into(), self.slot) {
                let _ = attach_steering(&bound.socket, &steer::program(roster.order(bound.addr)));
            }
        });
    }

    /// Retries the repairs that a locked roster prevented.
    #[cold]
    pub(super) fn repair_owed(&self, receiver: &mut Receiver) {
        for address in 0..receiver.pace.len() {
            if receiver.pace[address].is_owed {
                self.repair(receiver, address, 0);
            }
        }
    }

    /// Another process has left this address regularly. It is no longer a member of the group, so it cannot attach a program.
    #[cold]
    pub(super) fn on_reattach(&self, receiver: &mut Receiver, addr: IpAddr) {
        if let Some(address) = self.addresses.iter().position(|a| a.addr == addr) {
            self.repair(receiver, address, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repairs_in_vain_become_rare() {
        let mut pace = RepairPace::default();
        let mut now = Time(1);
        let mut repairs = 0;
        while now < Time(10_000_000_000) {
            if pace.is_due(now) {
                repairs += 1;
                pace.on_repair(now, false);
            }
            now = now + 1_000_000;
        }
        assert!((10..=20).contains(&repairs), "{repairs} repairs in ten seconds");
    }
}
