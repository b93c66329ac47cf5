//! The receiving end of a flow: acknowledgements, reports of gaps, and CNPs.

use super::World;
use super::config::{HostConfig, Recovery};
use super::sender::Sender;
use crate::packet::{Kind, NONE, Packet};
use crate::seq_set::SeqSet;
use crate::workload::Flow;
use ferroce_proto::cc::CongestionControl;

/// The receiving end of a flow.
#[derive(Debug)]
pub(super) struct Receiver {
    packets: u32,
    /// The next packet in order.
    expected: u32,
    /// Packets received behind a gap; only with selective repeat.
    early: Option<SeqSet>,
    ack_every: u32,
    /// Packets since the last acknowledgement.
    unacknowledged: u32,
    /// The gap that was reported last, and when.
    reported: Option<(u32, u64)>,
    cnp_interval_ps: Option<u64>,
    last_cnp: Option<u64>,
}

impl Receiver {
    pub(super) fn new(sender: &Sender, host: &HostConfig) -> Receiver {
        let needs = sender.controller().needs();
        Receiver {
            packets: sender.packets(),
            expected: 0,
            early: (host.recovery == Recovery::Selective).then(SeqSet::default),
            ack_every: if needs.ack_every_packet { 1 } else { host.ack_every },
            unacknowledged: 0,
            reported: None,
            cnp_interval_ps: needs.cnp_interval_ns.map(|ns| ns * 1000),
            last_cnp: None,
        }
    }

    /// Handles a data packet. Returns the kind of its acknowledgement, if one is due.
    fn receive(&mut self, seq: u32, now: u64, host: &HostConfig) -> Option<Kind> {
        if seq == self.expected {
            self.expected += 1;
            while self.early.as_ref().is_some_and(|early| early.contains(self.expected)) {
                self.expected += 1;
            }
            if let Some(early) = &mut self.early {
                early.forget_below(self.expected);
            }
            self.reported = None;
            self.unacknowledged += 1;
            let due = self.unacknowledged >= self.ack_every || self.expected == self.packets;
            if due {
                self.unacknowledged = 0;
            }
            return due.then_some(Kind::Ack);
        }
        if seq < self.expected {
            return Some(Kind::Ack); // a duplicate
        }
        match &mut self.early {
            Some(early) => {
                early.insert(seq);
                Some(Kind::Nack)
            }
            None => {
                let again = self
                    .reported
                    .is_some_and(|(gap, at)| gap == self.expected && now - at < host.nack_interval_ps);
                if again {
                    return None;
                }
                self.reported = Some((self.expected, now));
                Some(Kind::Nack)
            }
        }
    }

    /// Whether a marked packet causes a CNP now.
    fn notifies(&mut self, now: u64) -> bool {
        let Some(interval) = self.cnp_interval_ps else { return false };
        let due = self.last_cnp.is_none_or(|last| now - last >= interval);
        if due {
            self.last_cnp = Some(now);
        }
        due
    }
}

impl World {
    pub(super) fn receive_data(&mut self, host: u32, id: u32) {
        let packet = self.packets[id];
        let Some(receiver) = &mut self.receivers[packet.flow as usize] else {
            return self.free(id); // a late duplicate of a finished flow
        };
        let was_complete = receiver.expected == receiver.packets;
        let answer = receiver.receive(packet.seq, self.now, &self.config.host);
        let expected = receiver.expected;
        let completes = !was_complete && expected == receiver.packets;
        let notify = packet.ce && receiver.notifies(self.now);
        if notify {
            self.counters.cnps += 1;
            let cnp = Packet { kind: Kind::Cnp, telemetry: NONE, ..self.reply(&packet) };
            let cnp = self.packets.insert(cnp);
            self.send_control(host, cnp);
        }
        match answer {
            Some(kind) => {
                self.counters.nacks += u64::from(kind == Kind::Nack);
                self.packets[id] = Packet { kind, seq: expected, cause: packet.seq, ..self.reply(&packet) };
                self.send_control(host, id);
            }
            None => self.free(id),
        }
        let Flow { then, .. } = self.flows[packet.flow as usize];
        if completes && then != NONE {
            self.start_flow(then);
        }
    }

    /// A packet to the sender, with the time, the mark and the telemetry of the data packet.
    fn reply(&self, data: &Packet) -> Packet {
        let host = &self.config.host;
        Packet {
            to: self.flows[data.flow as usize].from,
            entropy: !data.entropy,
            bytes: host.ack,
            priority: host.ack_priority,
            ect: false,
            ..*data
        }
    }
}
