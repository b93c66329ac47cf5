//! The simulated network: delays every packet, and drops, duplicates, reorders or corrupts some, by rule or at random.

use crate::filter::{Action, Hits, Release, Rule, Seen};
use crate::frame::Frame;
use crate::journal::{Entry, Fate, Journal, NodeId, Summary};
use ferroce_proto::wire::{Bth, ECN_CE, ICRC_LEN};
use ferroce_proto::{Gid, Time};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;

/// Probabilities of faults, each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// A packet is lost.
    pub loss: f64,
    /// A packet arrives twice.
    pub duplication: f64,
    /// A packet is late by up to `jitter_ns`, so that others overtake it.
    pub reordering: f64,
    /// A bit of a packet flips.
    pub corruption: f64,
    /// Maximum extra delay in nanoseconds.
    pub jitter_ns: u64,
}

impl Faults {
    /// The same probability for all faults, except a quarter of it for corruption, which equals loss.
    pub fn all(probability: f64) -> Faults {
        Faults {
            loss: probability,
            duplication: probability,
            reordering: probability,
            corruption: probability / 4.0,
            jitter_ns: 20_000,
        }
    }
}

/// Time from any node to any other.
pub const LATENCY_NS: u64 = 1_000;
/// A held packet arrives this much after the packet that released it.
const STEP_NS: u64 = 1;

struct Held {
    frame: Frame,
    to: Option<NodeId>,
    release: Release,
}

/// Packets in flight.
pub(crate) struct Network {
    rng: StdRng,
    faults: Faults,
    rules: Vec<Rule>,
    in_flight: BTreeMap<(Time, u64), (Option<NodeId>, Frame)>,
    held: Vec<Held>,
    addresses: BTreeMap<Gid, NodeId>,
    sent: u64,
    order: u64,
}

impl Network {
    pub(crate) fn new(seed: u64) -> Network {
        Network {
            rng: StdRng::seed_from_u64(seed),
            faults: Faults::default(),
            rules: Vec::new(),
            in_flight: BTreeMap::new(),
            held: Vec::new(),
            addresses: BTreeMap::new(),
            sent: 0,
            order: 0,
        }
    }

    pub(crate) fn attach(&mut self, gid: Gid, node: NodeId) {
        self.addresses.insert(gid, node);
    }

    pub(crate) fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    pub(crate) fn add_rule(&mut self, rule: Rule) -> Hits {
        let hits = rule.counter();
        self.rules.push(rule);
        hits
    }

    pub(crate) fn clear_rules(&mut self) {
        self.rules.clear();
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// When the next packet arrives.
    pub(crate) fn next_arrival(&self) -> Option<Time> {
        self.in_flight.keys().next().map(|(time, _)| *time)
    }

    /// The next packet that arrives no later than `now`.
    pub(crate) fn arrive(&mut self, now: Time) -> Option<(Option<NodeId>, Frame)> {
        let first = self.in_flight.first_entry()?;
        if first.key().0 > now { None } else { Some(first.remove()) }
    }

    /// Takes a packet from a NIC.
    pub(crate) fn send(&mut self, now: Time, from: NodeId, mut frame: Frame, journal: &mut Journal) {
        let index = self.sent;
        self.sent += 1;
        let original = frame.clone();
        let packet = original.decode().expect("a queue pair sent a malformed packet");
        let to = self.addresses.get(&frame.route.dgid).copied();
        let seen = Seen { index, time: now, from, to, packet };
        let checksum = frame.checksum();
        let fate = if to.is_none() && !frame.route.dgid.is_multicast() {
            Fate::Nowhere
        } else if let Some(rule) = self.rules.iter_mut().position(|rule| rule.applies(&seen)) {
            self.obey(rule, now, to, &mut frame)
        } else {
            self.roll(now, to, &mut frame)
        };
        journal.add(now, Entry::Packet(Summary::of(&seen, checksum), fate));
        if let Fate::Arrives(time) | Fate::ArrivesTwice(time, _) | Fate::ArrivesDamaged(time) = fate {
            self.release_held(&seen, time);
        }
    }

    /// Takes a packet that no NIC sent.
    pub(crate) fn inject(&mut self, now: Time, frame: Frame) {
        if let Some(to) = self.addresses.get(&frame.route.dgid).copied() {
            self.schedule(now + LATENCY_NS, Some(to), &frame);
        }
    }

    fn obey(&mut self, rule: usize, now: Time, to: Option<NodeId>, frame: &mut Frame) -> Fate {
        let arrival = now + LATENCY_NS;
        match &mut self.rules[rule].action {
            Action::Pass => {}
            Action::Drop => return Fate::Lost,
            Action::Duplicate(ns) => {
                let second = arrival + *ns;
                return self.schedule_twice(arrival, second, to, frame);
            }
            Action::Delay(ns) => {
                let late = arrival + *ns;
                return self.schedule(late, to, frame);
            }
            Action::HoldUntil(release) => {
                let release = release.clone();
                self.held.push(Held { frame: frame.clone(), to, release });
                return Fate::Held;
            }
            Action::Damage => {
                frame.bytes[4] ^= 0x10;
                frame.bytes[7] ^= 1;
                self.schedule(arrival, to, frame);
                return Fate::ArrivesDamaged(arrival);
            }
            Action::ChangePayload => {
                // The first byte of its last word is no padding.
                let byte = frame.bytes.len() - ICRC_LEN - 4;
                frame.bytes[byte] ^= 1;
            }
            Action::Mark => frame.route.traffic_class |= ECN_CE,
            Action::Rewrite(change) => {
                frame.bytes.truncate(frame.bytes.len() - 4);
                change(&mut frame.bytes);
                frame.bytes.extend_from_slice(&[0; 4]);
                frame.update_icrc();
            }
        }
        self.schedule(arrival, to, frame)
    }

    fn roll(&mut self, now: Time, to: Option<NodeId>, frame: &mut Frame) -> Fate {
        let faults = self.faults;
        let mut arrival = now + LATENCY_NS;
        if faults == Faults::default() {
            return self.schedule(arrival, to, frame);
        }
        if self.rng.random_bool(faults.loss) {
            return Fate::Lost;
        }
        if faults.jitter_ns > 0 && self.rng.random_bool(faults.reordering) {
            arrival = arrival + self.rng.random_range(1..=faults.jitter_ns);
        }
        if self.rng.random_bool(faults.corruption) {
            // A path for jumbo packets does not damage what their ICRC leaves out.
            let covered = if frame.has_partial_icrc() { Bth::LEN } else { frame.bytes.len() };
            let bit = self.rng.random_range(0..covered * 8);
            // The ICRC does not cover the byte with FECN and BECN: a flipped bit there is no corruption.
            let byte = if bit / 8 == 4 { 5 } else { bit / 8 };
            frame.bytes[byte] ^= 1 << (bit % 8);
            self.schedule(arrival, to, frame);
            return Fate::ArrivesDamaged(arrival);
        }
        if self.rng.random_bool(faults.duplication) {
            let second = arrival + 1 + self.rng.random_range(0..=faults.jitter_ns);
            return self.schedule_twice(arrival, second, to, frame);
        }
        self.schedule(arrival, to, frame)
    }

    fn schedule(&mut self, arrival: Time, to: Option<NodeId>, frame: &Frame) -> Fate {
        self.order += 1;
        self.in_flight.insert((arrival, self.order), (to, frame.clone()));
        Fate::Arrives(arrival)
    }

    fn schedule_twice(&mut self, first: Time, second: Time, to: Option<NodeId>, frame: &Frame) -> Fate {
        self.schedule(first, to, frame);
        self.schedule(second, to, frame);
        Fate::ArrivesTwice(first, second)
    }

    fn release_held(&mut self, seen: &Seen<'_>, arrival: Time) {
        let mut i = 0;
        while i < self.held.len() {
            if (self.held[i].release)(seen) {
                let held = self.held.remove(i);
                self.schedule(arrival + STEP_NS, held.to, &held.frame);
            } else {
                i += 1;
            }
        }
    }
}
