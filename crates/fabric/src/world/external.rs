//! External hosts: the caller injects packets and receives them at the other end. The world generates no flows.
//!
//! The caller owns the clock. It calls [`World::advance`] with the time, [`World::inject`] for each packet that a host
//! sends, and [`World::poll_outcome`] for packets that have left the fabric. It calls `advance` again at
//! [`World::next_event_ps`] at the latest. A host may send while [`World::has_room`] returns `true`. Its NIC queues few
//! packets; the limit of a paused priority is higher, so that it does not block the other priorities. Links, switches,
//! marking, PFC, load balancing and loss work as with simulated hosts.

use super::{Samples, World, WorldConfig};
use crate::packet::{Kind, NONE, Packet};
use crate::switch::PRIORITIES;
use crate::topology::{Routes, Topology};
use std::collections::VecDeque;

/// A packet that a host sends.
#[derive(Clone, Copy, Debug)]
pub struct Injected {
    /// The sender.
    pub from: u32,
    /// The receiver.
    pub to: u32,
    /// Bytes on the wire.
    pub bytes: u32,
    /// Bytes of payload among them.
    pub payload: u32,
    /// Traffic class, 0 to 7.
    pub priority: u8,
    /// Switches may mark it.
    pub ect: bool,
    /// Input of the hash that chooses between equal paths.
    pub entropy: u32,
    /// The caller's number for it.
    pub tag: u32,
}

/// What happened to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It reached its host.
    Delivered {
        /// A switch marked it (congestion experienced).
        marked: bool,
    },
    /// A switch dropped it, or a link lost it.
    Dropped,
}

/// A packet that has left the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The caller's number.
    pub tag: u32,
    /// The receiver.
    pub to: u32,
    /// When it arrived or was dropped, in picoseconds.
    pub time_ps: u64,
    /// What happened.
    pub delivery: Delivery,
}

/// Totals of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostTotals {
    /// Packets that it sent.
    pub sent: u64,
    /// Packets that it received.
    pub received: u64,
    /// Packets from it that were dropped or lost.
    pub dropped: u64,
    /// Packets that it received with a mark.
    pub marked: u64,
    /// Payload bytes from it that other hosts received.
    pub payload_sent: u64,
    /// Payload bytes that it received.
    pub payload_received: u64,
    /// The longest queue of the switch port that leads to it, in bytes.
    pub longest_queue: u32,
}

/// The NIC of an external host: a queue per priority.
#[derive(Debug, Default)]
struct Nic {
    queues: [VecDeque<u32>; PRIORITIES],
    /// Bytes in each queue.
    bytes: [u64; PRIORITIES],
    /// Limit in bytes of all priorities that are not paused together. The last packet may exceed it.
    limit: u64,
    /// Priority that was served last.
    last: usize,
}

impl Nic {
    /// The next packet that may leave: priority 0 first, then round robin.
    fn pop(&mut self, paused: impl Fn(u8) -> bool) -> Option<u32> {
        let others = (1..PRIORITIES).map(|step| 1 + (self.last + step - 1) % (PRIORITIES - 1));
        let at =
            std::iter::once(0).chain(others).find(|at| !self.queues[*at].is_empty() && !paused(*at as u8))?;
        if at > 0 {
            self.last = at;
        }
        self.queues[at].pop_front()
    }
}

/// External hosts of a world.
#[derive(Debug)]
pub(super) struct External {
    nics: Vec<Nic>,
    totals: Vec<HostTotals>,
    outcomes: VecDeque<Outcome>,
}

impl External {
    /// Payload bytes from a host that other hosts received.
    pub(super) fn payload_sent(&self, host: u32) -> Option<u64> {
        self.totals.get(host as usize).map(|totals| totals.payload_sent)
    }
}

/// Queue of a NIC in nanoseconds of line rate: longer than the caller usually sleeps, so that the link stays busy.
const NIC_NS: u64 = 1_000_000;
/// A paused priority may queue this many times as much. The packets of a host arrive in one queue: those behind a packet
/// of a paused priority can leave only after the NIC has taken that packet.
const PAUSED_LIMITS: u64 = 8;

impl World {
    /// A fabric whose hosts the caller drives. The recorded rates are those of the payload that each host sent.
    pub fn with_external_hosts(config: WorldConfig, topology: &Topology, routes: Routes) -> World {
        let samples = Samples::new(&config, topology, &routes, topology.hosts as usize);
        let nics = routes.adjacent()[..topology.hosts as usize].iter().map(|ports| {
            let rate = ports.first().map_or(0, |port| port.rate);
            Nic { limit: rate / 8 * NIC_NS / 1_000_000_000, ..Nic::default() }
        });
        let external = External {
            nics: nics.collect(),
            totals: vec![HostTotals::default(); topology.hosts as usize],
            outcomes: VecDeque::new(),
        };
        let mut world = World::new(config, topology, routes, Vec::new());
        // External hosts replace those of the scenario's host model.
        world.pairs = None;
        world.samples = samples;
        world.external = Some(Box::new(external));
        world
    }

    /// Lets time pass until `until` picoseconds.
    pub fn advance(&mut self, until: u64) {
        while self.step(until) {}
        self.now = self.now.max(until);
    }

    /// Time of the next event, unless a packet is injected before it.
    pub fn next_event_ps(&self) -> Option<u64> {
        self.events.next_time()
    }

    /// Whether the NIC of a host accepts another packet.
    pub fn has_room(&self, host: u32) -> bool {
        self.external.as_ref().is_some_and(|external| {
            let nic = &external.nics[host as usize];
            let is_paused = |priority: usize| self.hosts[host as usize].is_paused(priority as u8);
            let mut ready = 0;
            (0..PRIORITIES).all(|priority| match nic.bytes[priority] {
                bytes if is_paused(priority) => bytes <= nic.limit * PAUSED_LIMITS,
                bytes => {
                    ready += bytes;
                    ready <= nic.limit
                }
            })
        })
    }

    /// A host sends a packet now. Both hosts must exist and differ.
    pub fn inject(&mut self, injected: &Injected) {
        let Injected { from, to, bytes, payload, ect, entropy, tag, .. } = *injected;
        let priority = injected.priority.min(PRIORITIES as u8 - 1);
        let Some(external) = &mut self.external else { return };
        let id = self.packets.insert(Packet {
            sent_ps: self.now,
            flow: from,
            seq: tag,
            cause: payload,
            to,
            entropy,
            port: 0,
            telemetry: NONE,
            bytes,
            kind: Kind::External,
            priority,
            ect,
            ce: false,
            again: false,
        });
        let nic = &mut external.nics[from as usize];
        nic.queues[usize::from(priority)].push_back(id);
        nic.bytes[usize::from(priority)] += u64::from(bytes);
        external.totals[from as usize].sent += 1;
        self.counters.data_packets += 1;
        self.kick_host(from);
    }

    /// The next packet that has left the fabric.
    pub fn poll_outcome(&mut self) -> Option<Outcome> {
        self.external.as_mut()?.outcomes.pop_front()
    }

    /// The totals of an external host.
    pub fn host_totals(&self, host: u32) -> HostTotals {
        self.external.as_ref().map_or_else(HostTotals::default, |external| external.totals[host as usize])
    }

    /// Time for which a host was paused, in picoseconds.
    pub fn host_paused_ps(&self, host: u32) -> u64 {
        self.ports[self.first_port[host as usize] as usize].paused_ps(self.now)
    }

    /// The base RTT of all controllers, in nanoseconds.
    pub fn base_rtt_ns(&self) -> u64 {
        self.base_rtt_ns
    }

    /// The next packet of an external host.
    pub(super) fn next_external(&mut self, host: u32) -> Option<u32> {
        let nic = &mut self.external.as_mut()?.nics[host as usize];
        let id = nic.pop(|priority| self.hosts[host as usize].is_paused(priority))?;
        let Packet { bytes, priority, .. } = self.packets[id];
        nic.bytes[usize::from(priority)] -= u64::from(bytes);
        Some(id)
    }

    /// Whether the NIC of an external host holds packets, paused ones included.
    pub(super) fn has_external(&self, host: u32) -> bool {
        let holds = |nic: &Nic| nic.queues.iter().any(|queue| !queue.is_empty());
        self.external.as_ref().is_some_and(|external| holds(&external.nics[host as usize]))
    }

    /// A switch has queued a packet for a port.
    pub(super) fn note_queue(&mut self, port: u32, bytes: u32) {
        let node = self.ports[port as usize].peer_node as usize;
        if let Some(totals) = self.external.as_mut().and_then(|external| external.totals.get_mut(node)) {
            totals.longest_queue = totals.longest_queue.max(bytes);
        }
    }

    /// A packet of an external host has left the fabric.
    pub(super) fn end_external(&mut self, id: u32, delivered: bool) {
        let Packet { flow: from, to, cause: payload, seq: tag, ce: marked, .. } = self.packets[id];
        let Some(external) = &mut self.external else { return };
        let delivery = match delivered {
            true => {
                external.totals[from as usize].payload_sent += u64::from(payload);
                let receiver = &mut external.totals[to as usize];
                receiver.received += 1;
                receiver.marked += u64::from(marked);
                receiver.payload_received += u64::from(payload);
                Delivery::Delivered { marked }
            }
            false => {
                external.totals[from as usize].dropped += 1;
                Delivery::Dropped
            }
        };
        external.outcomes.push_back(Outcome { tag, to, time_ps: self.now, delivery });
    }

    /// An external packet has reached its host.
    pub(super) fn receive_external(&mut self, id: u32) {
        self.end_external(id, true);
        self.free(id);
    }
}
