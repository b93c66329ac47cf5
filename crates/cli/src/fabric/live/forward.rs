//! The fabric against the real clock: reads the TUN devices, advances the simulated world to the present, and writes the packets that arrive.
//!
//! The world computes when each packet leaves each port. If this thread runs late, a packet is delivered late. Its position
//! in the queues, its mark and the departure of the next packet are the same as if it were in time. The lateness is
//! measured at the write of each packet and reported. The time that a packet waits in the queue of its sender's TUN device
//! is not part of it: a packet enters the fabric when it is read.

use super::ip;
use ferroce_fabric::scenario::Live;
use ferroce_fabric::world::{Delivery, Injected, World};
use ferroce_proto::wire::ECN_CE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::ClockId;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Most packets that are read from one host before the next host is read.
const READS: usize = 64;
/// The longest sleep. The flag that ends the run is polled at least this often.
const MAX_SLEEP: Duration = Duration::from_millis(5);
/// Most packets inside of the fabric; the rest waits in the TUN devices.
const MAX_PACKETS: usize = 65_536;
const PS_PER_NS: u64 = 1000;

/// The results of a run.
pub(super) struct Forwarded {
    pub(super) world: World,
    pub(super) lateness: Lateness,
    /// Packets to no host of the fabric, and malformed ones.
    pub(super) unroutable: u64,
    /// Packets that a TUN device did not take.
    pub(super) refused: u64,
    /// Share of a processor that the fabric used, from 0 to 1.
    pub(super) busy: f64,
}

/// How late packets were delivered: bucket n counts those of less than 2^n nanoseconds.
#[derive(Default)]
pub(super) struct Lateness {
    buckets: Vec<u64>,
    pub(super) longest_ns: u64,
}

impl Lateness {
    fn add(&mut self, ns: u64) {
        let bucket = (64 - ns.leading_zeros()) as usize;
        self.buckets.resize(self.buckets.len().max(bucket + 1), 0);
        self.buckets[bucket] += 1;
        self.longest_ns = self.longest_ns.max(ns);
    }

    /// An upper bound of what this share of the packets was late, in nanoseconds.
    pub(super) fn quantile_ns(&self, share: f64) -> u64 {
        let total: u64 = self.buckets.iter().sum();
        let mut left = (share * total as f64).ceil() as u64;
        let found = self.buckets.iter().position(|count| {
            let here = left <= *count;
            left = left.saturating_sub(*count);
            here
        });
        found.map_or(0, |bits| 1 << bits).min(self.longest_ns)
    }
}

/// The packets inside of the fabric.
#[derive(Default)]
struct Packets {
    slots: Vec<Vec<u8>>,
    free: Vec<u32>,
}

impl Packets {
    fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() >= MAX_PACKETS
    }

    /// Stores a copy of a packet.
    fn insert(&mut self, bytes: &[u8]) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Vec::new());
            (self.slots.len() - 1) as u32
        });
        self.slots[slot as usize] = bytes.to_vec();
        slot
    }

    fn remove(&mut self, slot: u32) -> Vec<u8> {
        self.free.push(slot);
        std::mem::take(&mut self.slots[slot as usize])
    }
}

/// The fabric and the devices of its hosts.
pub(super) struct Forwarder {
    world: World,
    tuns: Vec<OwnedFd>,
    /// One packet, as long as the largest.
    scratch: Vec<u8>,
    overhead: u32,
    data_priority: u8,
    ack_priority: u8,
    packets: Packets,
    start: Instant,
    lateness: Lateness,
    unroutable: u64,
    refused: u64,
}

impl Forwarder {
    pub(super) fn new(live: Live, tuns: Vec<OwnedFd>, mtu: u32) -> Forwarder {
        Forwarder {
            world: live.world,
            tuns,
            scratch: vec![0; mtu as usize],
            overhead: live.overhead,
            data_priority: live.data_priority,
            ack_priority: live.ack_priority,
            packets: Packets::default(),
            start: Instant::now(),
            lateness: Lateness::default(),
            unroutable: 0,
            refused: 0,
        }
    }

    /// Forwards packets until the flag is set.
    pub(super) fn run(mut self, stop: &AtomicBool) -> Forwarded {
        // With the default timer slack, a sleep ends 50 us late.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        // Otherwise spinning programs keep the processor for the rest of their time slice. An older kernel refuses or ignores the request.
        let _ = ferroce_os::thread::shorten_slices();
        self.start = Instant::now();
        let mut ready = vec![true; self.tuns.len()];
        while !stop.load(Ordering::Relaxed) {
            let now = self.now_ps();
            self.world.advance(now);
            for (host, _) in (0..).zip(&ready).filter(|(_, is_ready)| **is_ready) {
                self.read(host);
            }
            self.deliver();
            self.sleep(&mut ready);
        }
        // The clock of this thread begins with it.
        let busy = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
        let busy = busy.tv_sec as f64 + busy.tv_nsec as f64 / 1e9;
        let busy = busy / self.start.elapsed().as_secs_f64().max(1e-3);
        let Forwarder { world, lateness, unroutable, refused, .. } = self;
        Forwarded { world, lateness, unroutable, refused, busy }
    }

    fn now_ps(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64 * PS_PER_NS
    }

    /// Reads packets of a host while its NIC accepts more.
    fn read(&mut self, host: u32) {
        for _ in 0..READS {
            if !self.takes(host) {
                return;
            }
            let Ok(len) = rustix::io::read(&self.tuns[host as usize], &mut self.scratch[..]) else {
                return;
            };
            self.inject(host, len);
        }
    }

    /// Whether a packet of a host may be read.
    fn takes(&self, host: u32) -> bool {
        !self.packets.is_full() && self.world.has_room(host)
    }

    /// Sends the packet in `scratch`.
    fn inject(&mut self, from: u32, len: usize) {
        let bytes = &self.scratch[..len];
        let parsed =
            ip::parse(bytes).filter(|parsed| parsed.to != from && (parsed.to as usize) < self.tuns.len());
        let Some(parsed) = parsed else {
            self.unroutable += 1;
            return;
        };
        let priority = match (parsed.is_control, parsed.class) {
            (true, _) => self.ack_priority,
            (false, 0) => self.data_priority,
            (false, class) => class,
        };
        self.world.inject(&Injected {
            from,
            to: parsed.to,
            bytes: bytes.len() as u32 + self.overhead,
            payload: parsed.payload,
            priority,
            // A packet with CE stays so; marking it again changes nothing.
            ect: parsed.ecn != 0 && parsed.ecn != ECN_CE,
            entropy: parsed.entropy,
            tag: self.packets.insert(bytes),
        });
    }

    /// Writes what has arrived.
    fn deliver(&mut self) {
        let now = self.now_ps();
        self.world.advance(now);
        while let Some(outcome) = self.world.poll_outcome() {
            let mut bytes = self.packets.remove(outcome.tag);
            if let Delivery::Delivered { marked } = outcome.delivery {
                if marked {
                    ip::mark(&mut bytes);
                }
                self.lateness.add(self.now_ps().saturating_sub(outcome.time_ps) / PS_PER_NS);
                let written = rustix::io::write(&self.tuns[outcome.to as usize], &bytes);
                self.refused += u64::from(written.is_err());
            }
        }
    }

    /// Sleeps until a host has a packet that its NIC takes, or until something happens in the fabric.
    fn sleep(&mut self, ready: &mut [bool]) {
        let next = self.world.next_event_ps().unwrap_or(u64::MAX);
        let wait = Duration::from_nanos(next.saturating_sub(self.now_ps()) / PS_PER_NS).min(MAX_SLEEP);
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
        let wanted: Vec<usize> = (0..self.tuns.len()).filter(|host| self.takes(*host as u32)).collect();
        let mut fds: Vec<PollFd<'_>> =
            wanted.iter().map(|host| PollFd::new(&self.tuns[*host], PollFlags::IN)).collect();
        ready.fill(false);
        // An interrupted sleep is a short one.
        if poll(&mut fds, Some(&timeout)).is_ok() {
            for (host, fd) in wanted.iter().zip(&fds) {
                ready[*host] = !fd.revents().is_empty();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_stored_in_their_length_and_bounded() {
        let mut packets = Packets::default();
        let slots: Vec<u32> = (0..MAX_PACKETS).map(|_| packets.insert(&[7; 60])).collect();
        assert!(packets.is_full() && packets.slots.iter().all(|bytes| bytes.capacity() < 128));
        assert_eq!(packets.remove(slots[5]), [7; 60]);
        assert!(!packets.is_full() && packets.slots[5].capacity() == 0);
        assert_eq!(packets.insert(&[8; 9]), slots[5]);
    }

    #[test]
    fn lateness_has_quantiles() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.quantile_ns(0.99), 0);
        (0..99).for_each(|_| lateness.add(1000));
        lateness.add(900_000);
        assert_eq!((lateness.quantile_ns(0.5), lateness.quantile_ns(0.99)), (1024, 1024));
        assert_eq!((lateness.quantile_ns(1.0), lateness.longest_ns), (900_000, 900_000));
    }
}
