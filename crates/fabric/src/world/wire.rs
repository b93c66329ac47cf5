//! Links: packets and PFC frames on the wire.

use super::{Event, World, WorldConfig};
use crate::packet::NONE;
use crate::rng::{Pcg32, Purpose};
use crate::switch::PFC_FRAME_BYTES;
use crate::switch::{PortConfig, Switch};
use crate::topology::{Routes, Topology};

/// Fractional bits of the time per byte.
const FRACTION: u32 = 16;

/// A port of a node, and the link that leads away from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port {
    pub(super) node: u32,
    pub(super) peer_node: u32,
    /// The port at the other end.
    pub(super) peer: u32,
    delay_ps: u64,
    /// Picoseconds per byte, with [`FRACTION`] fractional bits.
    byte_time: u64,
    /// Time at which the wire is free.
    pub(super) free_at: u64,
    /// Whether an event for that time exists.
    woken: bool,
    loss: Pcg32,
    /// Priorities that are paused, as bits.
    paused: u8,
    /// Time since which at least one is paused.
    paused_since: u64,
    paused_ps: u64,
}

impl Port {
    fn serial_ps(&self, bytes: u32) -> u64 {
        (u64::from(bytes) * self.byte_time) >> FRACTION
    }

    pub(super) fn loses(&mut self, probability: f64) -> bool {
        f64::from(self.loss.next_u32()) < probability * 4294967296.0
    }

    /// Time for which the peer has paused this port so far.
    pub(super) fn paused_ps(&self, now: u64) -> u64 {
        self.paused_ps + if self.paused != 0 { now - self.paused_since } else { 0 }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused != 0
    }

    fn set_paused(&mut self, now: u64, priority: u8, stop: bool) {
        let was = self.paused != 0;
        let bit = 1u8 << priority;
        self.paused = if stop { self.paused | bit } else { self.paused & !bit };
        match (was, self.paused != 0) {
            (false, true) => self.paused_since = now,
            (true, false) => self.paused_ps += now - self.paused_since,
            _ => {}
        }
    }
}

/// The ports of all nodes, and the first one of each node.
pub(super) fn ports(routes: &Routes, seed: u64) -> (Vec<Port>, Vec<u32>) {
    let adjacent = routes.adjacent();
    let mut first = Vec::with_capacity(adjacent.len());
    let mut count = 0;
    for ports in adjacent {
        first.push(count);
        count += ports.len() as u32;
    }
    let mut all = Vec::with_capacity(count as usize);
    for (node, ports) in adjacent.iter().enumerate() {
        for port in ports {
            all.push(Port {
                node: node as u32,
                peer_node: port.node,
                peer: first[port.node as usize] + port.port,
                delay_ps: port.delay_ns * 1000,
                byte_time: ((8_000_000_000_000u128 << FRACTION) / u128::from(port.rate)) as u64,
                free_at: 0,
                woken: false,
                loss: Pcg32::stream(seed, Purpose::Loss, all.len() as u64),
                paused: 0,
                paused_since: 0,
                paused_ps: 0,
            });
        }
    }
    (all, first)
}

/// The switches of a topology.
pub(super) fn switches(config: &WorldConfig, topology: &Topology, routes: &Routes) -> Vec<Switch> {
    let adjacent = &routes.adjacent()[topology.hosts as usize..];
    let switches = adjacent.iter().zip(0u32..).map(|(ports, number)| {
        let ports =
            ports.iter().map(|port| PortConfig { rate: port.rate, delay_ns: port.delay_ns }).collect();
        let mut switch = config.switch.clone();
        switch.ports = ports;
        Switch::new(switch, config.seed, number)
    });
    switches.collect()
}

impl World {
    /// Puts a packet on the wire of a port, which must be free.
    #[inline]
    pub(super) fn put_on_wire(&mut self, port: u32, id: u32, bytes: u32) {
        let link = &mut self.ports[port as usize];
        link.free_at = self.now + link.serial_ps(bytes);
        let arrival = link.free_at + link.delay_ps;
        self.packets[id].port = link.peer;
        self.counters.wire_bytes += u64::from(bytes);
        self.events.push(arrival, Event::Arrive(id));
    }

    /// Schedules an event for the time at which the wire of a port is free.
    #[inline]
    pub(super) fn wake(&mut self, port: u32) {
        let link = &mut self.ports[port as usize];
        if !link.woken {
            link.woken = true;
            self.events.push(link.free_at, Event::PortFree(port));
        }
    }

    #[inline]
    pub(super) fn is_free(&self, port: u32) -> bool {
        let link = &self.ports[port as usize];
        link.free_at <= self.now && !link.woken
    }

    pub(super) fn handle_port_free(&mut self, port: u32) {
        self.ports[port as usize].woken = false;
        if self.ports[port as usize].free_at > self.now {
            return self.wake(port); // a PFC frame was sent first
        }
        let node = self.ports[port as usize].node;
        if (node as usize) < self.hosts.len() {
            self.transmit_host(node);
        } else {
            self.transmit_switch(port);
        }
    }

    /// Transmits a packet of a switch port, or schedules that for the time at which the wire is free.
    #[inline]
    pub(super) fn kick_switch(&mut self, port: u32) {
        if self.is_free(port) {
            self.transmit_switch(port);
        } else {
            self.wake(port);
        }
    }

    fn transmit_switch(&mut self, port: u32) {
        let node = self.ports[port as usize].node;
        let (number, first) = (node - self.hosts.len() as u32, self.first_port[node as usize]);
        let switch = &mut self.switches[number as usize];
        let Some(departure) = switch.poll_transmit(port - first) else { return };
        let packet = &mut self.packets[departure.id];
        if departure.mark && packet.ect {
            packet.ce = true;
            self.counters.marks += 1;
        }
        if packet.telemetry != NONE && packet.kind == crate::packet::Kind::Data {
            let hop = switch.telemetry(port - first, departure.queue, self.now / 1000, port);
            self.stamps[packet.telemetry].push(hop);
        }
        let more = switch.can_transmit(port - first);
        self.put_on_wire(port, departure.id, departure.bytes);
        self.forward_pauses(number, first);
        if more {
            self.wake(port);
        }
    }

    /// Sends the PFC frames of a switch. A frame waits only for the packet that is on the wire.
    #[inline]
    pub(super) fn forward_pauses(&mut self, number: u32, first: u32) {
        while let Some(pause) = self.switches[number as usize].poll_pause() {
            let link = &mut self.ports[(first + pause.port) as usize];
            link.free_at = link.free_at.max(self.now) + link.serial_ps(PFC_FRAME_BYTES);
            let arrival = link.free_at + link.delay_ps;
            let peer = link.peer;
            self.events.push(arrival, Event::Pause(peer, pause.priority, pause.stop));
            self.counters.pauses += u64::from(pause.stop);
            self.fold(2 << 60 | u64::from(peer) << 1 | u64::from(pause.stop));
        }
    }

    pub(super) fn handle_pause(&mut self, port: u32, priority: u8, stop: bool) {
        let now = self.now;
        self.ports[port as usize].set_paused(now, priority, stop);
        let node = self.ports[port as usize].node;
        if let Some(host) = self.hosts.get_mut(node as usize) {
            host.set_paused(priority, stop);
            if !stop {
                self.kick_host(node);
            }
        } else {
            let (number, first) = (node - self.hosts.len() as u32, self.first_port[node as usize]);
            self.switches[number as usize].handle_pause(port - first, priority, stop);
            if !stop {
                self.kick_switch(port);
            }
        }
    }
}
