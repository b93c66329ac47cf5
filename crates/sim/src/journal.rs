//! A record of every event, in order: printed when a test fails, compared when a run is repeated.

use crate::filter::Seen;
use ferroce_proto::qp::{DropReason, Side};
use ferroce_proto::verbs::{Completion, EventKind};
use ferroce_proto::wire::{Opcode, Syndrome};
use ferroce_proto::{Psn, Qpn, Time};
use std::fmt;

/// Number of a node, in the order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node{}", self.0)
    }
}

/// What the network did with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives then.
    Arrives(Time),
    /// It and a copy of it arrive then.
    ArrivesTwice(Time, Time),
    /// It arrives damaged.
    ArrivesDamaged(Time),
    /// It is lost.
    Lost,
    /// It is held until another packet is sent.
    Held,
    /// There is no such address.
    Nowhere,
}

/// The summary of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Number among all packets of the run.
    pub index: u64,
    /// Sender.
    pub from: NodeId,
    /// Receiver, `None` for a group or an unknown address.
    pub to: Option<NodeId>,
    /// Opcode.
    pub opcode: Opcode,
    /// Receiving queue pair.
    pub qpn: Qpn,
    /// PSN.
    pub psn: Psn,
    /// Syndrome.
    pub syndrome: Option<Syndrome>,
    /// Whether it requests an ACK.
    pub ack_req: bool,
    /// Payload bytes.
    pub len: usize,
    /// A checksum over all its bytes: the ICRC, unless that is partial.
    pub checksum: [u8; 4],
}

impl Summary {
    pub(crate) fn of(seen: &Seen<'_>, checksum: [u8; 4]) -> Summary {
        let headers = &seen.packet.headers;
        Summary {
            index: seen.index,
            from: seen.from,
            to: seen.to,
            opcode: headers.bth.opcode,
            qpn: headers.bth.dest_qpn,
            psn: headers.bth.psn,
            syndrome: headers.aeth.map(|a| a.syndrome),
            ack_req: headers.bth.ack_req,
            len: seen.packet.payload.len(),
            checksum,
        }
    }
}

/// One event of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// A packet was sent.
    Packet(Summary, Fate),
    /// A packet was dropped by the NIC that received it.
    Dropped(NodeId, Qpn, DropReason, String),
    /// The explanation of a failed completion.
    Explained(NodeId, Qpn, String),
    /// An asynchronous event.
    Event(NodeId, Qpn, EventKind),
    /// A completion.
    Completed(NodeId, Side, Completion),
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Packet(p, fate) => {
                write!(f, "#{} {} -> ", p.index, p.from)?;
                match p.to {
                    Some(to) => write!(f, "{to} ")?,
                    None => write!(f, "group ")?,
                }
                write!(f, "qp {} {:?} {:?} psn {}", p.qpn, p.opcode.service, p.opcode.operation, p.psn)?;
                if p.len > 0 {
                    write!(f, ", {} bytes", p.len)?;
                }
                if let Some(syndrome) = p.syndrome {
                    write!(f, ", {syndrome:?}")?;
                }
                write!(f, "{}: {fate:?}", if p.ack_req { ", ack please" } else { "" })
            }
            Entry::Dropped(node, qpn, reason, why) => {
                write!(f, "{node} qp {qpn} drops ({}): {why}", reason.name())
            }
            Entry::Explained(node, qpn, why) => write!(f, "{node} qp {qpn}: {why}"),
            Entry::Event(node, qpn, kind) => write!(f, "{node} qp {qpn} event {kind:?}"),
            Entry::Completed(node, side, c) => write!(
                f,
                "{node} qp {} {side:?} completion {} {:?} {:?} {} bytes",
                c.qpn, c.wr_id, c.status, c.opcode, c.byte_len
            ),
        }
    }
}

/// The record of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Journal {
    entries: Vec<(Time, Entry)>,
}

impl Journal {
    pub(crate) fn add(&mut self, now: Time, entry: Entry) {
        self.entries.push((now, entry));
    }

    /// Everything, oldest first.
    pub fn entries(&self) -> &[(Time, Entry)] {
        &self.entries
    }

    /// The packets in it, with their fates.
    pub fn packets(&self) -> impl Iterator<Item = (&Summary, &Fate)> {
        self.entries.iter().filter_map(|(_, entry)| match entry {
            Entry::Packet(summary, fate) => Some((summary, fate)),
            _ => None,
        })
    }

    /// Sentences that explain failures.
    pub fn explanations(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter_map(|(_, entry)| match entry {
            Entry::Explained(_, _, why) => Some(why.as_str()),
            _ => None,
        })
    }

    /// How often a NIC dropped a packet for this reason.
    pub fn drops(&self, node: NodeId, reason: DropReason) -> usize {
        let count = |entry: &Entry| matches!(entry, Entry::Dropped(n, _, r, _) if *n == node && *r == reason);
        self.entries.iter().filter(|(_, entry)| count(entry)).count()
    }

    /// The last `count` entries, one per line.
    pub fn tail(&self, count: usize) -> String {
        let start = self.entries.len().saturating_sub(count);
        let mut text = String::new();
        for (time, entry) in &self.entries[start..] {
            text += &format!("{:>12} ns  {entry}\n", time.0);
        }
        text
    }

    /// The first difference between two runs, as text; `None` if they are equal.
    pub fn first_difference(&self, other: &Journal) -> Option<String> {
        let at = (0..self.entries.len().max(other.entries.len()))
            .find(|&i| self.entries.get(i) != other.entries.get(i))?;
        let show = |j: &Journal| match j.entries.get(at) {
            Some((time, entry)) => format!("{} ns  {entry}", time.0),
            None => "the end".into(),
        };
        Some(format!("entry {at}:\n  {}\n  {}", show(self), show(other)))
    }
}
