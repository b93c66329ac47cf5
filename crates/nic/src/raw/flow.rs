//! Rules: which frames go to which queue.

use super::frame::Frame;
use super::port::RawPort;
use super::queue::RawQueue;
use super::spread::Spread;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A header that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowLayer {
    /// Destination (6 bytes), source (6), type (2), VLAN tag (2).
    Eth,
    /// Source (4), destination (4), protocol, type of service, TTL, flags.
    Ipv4,
    /// Source (16), destination (16), flow label (4), next header, traffic class, hop limit.
    Ipv6,
    /// Destination port (2), source port (2).
    Tcp,
    /// As for TCP.
    Udp,
}

/// Fields of one header, in network order and one after the other as [`FlowLayer`] lists them; where the mask has a
/// bit, value and frame must agree. Fields at the end may be left out.
#[derive(Clone, Debug)]
pub struct FlowFilter {
    /// Which header.
    pub layer: FlowLayer,
    /// What its fields must hold.
    pub value: Vec<u8>,
    /// Which bits count; as long as the value.
    pub mask: Vec<u8>,
}

impl FlowFilter {
    pub(super) fn matches(&self, frame: &Frame) -> bool {
        let Some(fields) = frame.layer(self.layer) else { return false };
        let wanted = self.value.iter().zip(&self.mask);
        fields.iter().zip(wanted).all(|(field, (value, mask))| (field ^ value) & mask == 0)
    }
}

/// What a rule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowKind {
    /// Frames that its filters match.
    Normal,
    /// Frames that no rule took.
    AllDefault,
    /// Frames to groups that no rule took.
    MulticastDefault,
    /// A copy of every frame.
    Sniffer,
}

/// What a rule counted.
#[derive(Debug, Default)]
pub struct FlowCounts {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl FlowCounts {
    /// Frames that matched.
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }
    /// Their bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// A rule, as the caller makes it.
#[derive(Clone, Debug)]
pub struct FlowRule {
    /// What it is for.
    pub kind: FlowKind,
    /// Rules with smaller numbers are matched first.
    pub priority: u16,
    /// A frame that matches does not go on to rules of larger numbers.
    pub traps: bool,
    /// All of these must match.
    pub filters: Vec<FlowFilter>,
    /// What receives of its frames are labelled with.
    pub tag: u32,
    /// Its frames go nowhere.
    pub drops: bool,
    /// Who counts.
    pub counts: Vec<Arc<FlowCounts>>,
}

/// Where frames go.
#[derive(Clone)]
pub(crate) enum Destination {
    Queue(Arc<RawQueue>),
    Spread(Arc<Spread>),
}

/// A rule in force.
pub(super) struct Installed {
    pub(super) id: u64,
    pub(super) rule: FlowRule,
    pub(super) to: Destination,
}

impl Installed {
    fn matches(&self, frame: &Frame) -> bool {
        self.rule.filters.iter().all(|filter| filter.matches(frame))
    }

    fn take(&self, frame: &Frame, bytes: &[u8]) {
        for counts in &self.rule.counts {
            counts.packets.fetch_add(1, Ordering::Relaxed);
            counts.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        if self.rule.drops {
            return;
        }
        match &self.to {
            Destination::Queue(queue) => queue.deliver(bytes, self.rule.tag),
            Destination::Spread(spread) => spread.choose(frame).deliver(bytes, self.rule.tag),
        }
    }
}

/// Delivers a frame to the targets of the rules that match it; the rules are in the order of their priorities.
pub(super) fn steer(rules: &[Arc<Installed>], frame: &Frame, bytes: &[u8]) {
    let of = |kind: FlowKind| rules.iter().filter(move |r| r.rule.kind == kind && r.matches(frame));
    for sniffer in of(FlowKind::Sniffer) {
        sniffer.take(frame, bytes);
    }
    // Several rules of one priority may match: each gets the frame, as a switch would give it.
    let mut taken_at = None;
    for normal in of(FlowKind::Normal) {
        if taken_at.is_some_and(|priority| priority < normal.rule.priority) {
            return;
        }
        normal.take(frame, bytes);
        if normal.rule.traps {
            taken_at = Some(normal.rule.priority);
        }
    }
    if taken_at.is_some() {
        return;
    }
    let default = match frame.is_multicast() {
        true => of(FlowKind::MulticastDefault).chain(of(FlowKind::AllDefault)).next(),
        false => of(FlowKind::AllDefault).next(),
    };
    if let Some(default) = default {
        default.take(frame, bytes);
    }
}

/// A rule in force; dropping it takes it back.
pub struct Flow {
    pub(super) id: u64,
    pub(super) port: Arc<RawPort>,
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.port.remove_rule(self.id);
    }
}
