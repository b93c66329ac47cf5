//! A switch as a pure machine: packets, pauses and time in; packets, pauses and marks out.
//!
//! The caller gets the egress port from [`Switch::choose_port`], passes the packet to [`Switch::handle_packet`], and
//! dequeues with [`Switch::poll_transmit`] when the wire of that port is free. After both calls it sends the PFC frames
//! that [`Switch::poll_pause`] returns. The switch reads no clock and no payload: it stores only the number and the length
//! of each packet. The model is that of the simulator published with HPCC (SIGCOMM 2019): store and forward, shared
//! buffer with dynamic thresholds, PFC per ingress port and priority with headroom, and RED at dequeue.

mod buffer;
mod config;
mod port;

pub use config::{Balance, PFC_FRAME_BYTES, Pfc, PortConfig, Red, SwitchConfig};

use crate::rng::{Pcg32, Purpose, mix};
use buffer::Buffer;
use ferroce_proto::cc::Hop;
use port::Port;
use std::collections::VecDeque;

/// Priorities of a port. Priority 0 carries acknowledgements and CNPs: it is served first and never paused.
pub const PRIORITIES: usize = 8;

/// A packet in a queue.
#[derive(Clone, Copy, Debug)]
struct Entry {
    id: u32,
    bytes: u32,
    ingress: u32,
}

/// What happened to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Admission {
    /// It waits in the queue of its egress port.
    Queued,
    /// It was dropped.
    Dropped(DropReason),
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// The queue reached its dynamic threshold, or the buffer is full.
    Buffer,
    /// PFC paused too late: the headroom of the ingress port is used up.
    Headroom,
}

/// A packet that leaves.
#[derive(Clone, Copy, Debug)]
pub struct Departure {
    /// The number that the caller gave.
    pub id: u32,
    /// Its bytes on the wire.
    pub bytes: u32,
    /// RED chose it: mark it if it is ECN-capable.
    pub mark: bool,
    /// Bytes in the queue that it leaves behind.
    pub queue: u32,
}

/// A PFC frame to send on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    /// The port whose peer must stop or resume.
    pub port: u32,
    /// The priority.
    pub priority: u8,
    /// True to stop, false to resume.
    pub stop: bool,
}

/// A switch.
#[derive(Debug)]
pub struct Switch {
    config: SwitchConfig,
    ports: Vec<Port>,
    buffer: Buffer,
    pauses: VecDeque<Pause>,
    hash_seed: u64,
    spray: u32,
}

impl Switch {
    /// A switch with empty queues. `number` selects its random streams.
    pub fn new(config: SwitchConfig, seed: u64, number: u32) -> Switch {
        let ports = config.ports.iter().enumerate();
        let ports = ports
            .map(|(at, port)| {
                let instance = u64::from(number) << 16 | at as u64;
                Port::new(port.rate, config.red_of(port), Pcg32::stream(seed, Purpose::Marking, instance))
            })
            .collect();
        let hash_seed = mix(seed ^ mix((Purpose::Hashing as u64) << 40 | u64::from(number)));
        Switch {
            buffer: Buffer::new(&config),
            ports,
            pauses: VecDeque::new(),
            hash_seed,
            spray: number,
            config,
        }
    }

    /// Chooses one of several ports of equal distance.
    #[inline]
    pub fn choose_port(&mut self, ports: &[u16], entropy: u32) -> u16 {
        if ports.len() == 1 {
            return ports[0];
        }
        match self.config.balance {
            Balance::Ecmp => self.hash_port(ports, entropy),
            Balance::Spray => {
                self.spray = self.spray.wrapping_add(1);
                ports[self.spray as usize % ports.len()]
            }
            Balance::LeastQueue => {
                self.spray = self.spray.wrapping_add(1);
                let rotated = |at: usize| ports[(at + self.spray as usize) % ports.len()];
                (0..ports.len())
                    .map(rotated)
                    .min_by_key(|port| self.ports[usize::from(*port)].bytes())
                    .unwrap_or(ports[0])
            }
        }
    }

    /// The port that ECMP chooses for every packet with this entropy.
    #[inline]
    pub fn hash_port(&self, ports: &[u16], entropy: u32) -> u16 {
        let hash = mix(u64::from(entropy) ^ self.hash_seed);
        ports[(((hash >> 32) * ports.len() as u64) >> 32) as usize]
    }

    /// Handles a packet that has arrived completely.
    #[inline]
    pub fn handle_packet(
        &mut self,
        ingress: u32,
        egress: u32,
        priority: u8,
        id: u32,
        bytes: u32,
    ) -> Admission {
        let queued = self.ports[egress as usize].queue_bytes(priority);
        if let Err(reason) = self.buffer.admit(ingress, priority, bytes, queued) {
            return Admission::Dropped(reason);
        }
        self.ports[egress as usize].push(priority, Entry { id, bytes, ingress });
        if self.buffer.must_pause(ingress, priority) {
            self.pauses.push_back(Pause { port: ingress, priority, stop: true });
        }
        Admission::Queued
    }

    /// Dequeues the next packet of a port whose wire is free.
    #[inline]
    pub fn poll_transmit(&mut self, egress: u32) -> Option<Departure> {
        let port = &mut self.ports[egress as usize];
        let (priority, entry, mark) = port.pop()?;
        let queue = port.queue_bytes(priority);
        self.buffer.release(entry.ingress, priority, entry.bytes);
        if self.buffer.must_resume(entry.ingress, priority) {
            self.pauses.push_back(Pause { port: entry.ingress, priority, stop: false });
        }
        Some(Departure { id: entry.id, bytes: entry.bytes, mark, queue })
    }

    /// The next PFC frame to send.
    #[inline]
    pub fn poll_pause(&mut self) -> Option<Pause> {
        self.pauses.pop_front()
    }

    /// A PFC frame of the peer arrived at a port.
    pub fn handle_pause(&mut self, egress: u32, priority: u8, stop: bool) {
        self.ports[egress as usize].set_paused(priority, stop);
    }

    /// Whether a port has a packet that may leave.
    #[inline]
    pub fn can_transmit(&self, egress: u32) -> bool {
        self.ports[egress as usize].can_pop()
    }

    /// The telemetry of a port, as [`Switch::poll_transmit`] left it.
    pub fn telemetry(&self, egress: u32, queue: u32, now_ns: u64, number: u32) -> Hop {
        let port = &self.ports[egress as usize];
        Hop { port: number, queue, rate: port.rate / 8, tx_bytes: port.tx_bytes, time_ns: now_ns }
    }

    /// Bytes in all queues of a port.
    pub fn queue_bytes(&self, egress: u32) -> u32 {
        self.ports[egress as usize].bytes()
    }

    /// Bytes in all queues.
    pub fn buffered_bytes(&self) -> u64 {
        self.buffer.used()
    }

    /// The most bytes that were in all queues.
    pub fn most_buffered_bytes(&self) -> u64 {
        self.buffer.most_used()
    }
}

#[cfg(test)]
mod tests;
