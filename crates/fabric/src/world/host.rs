//! A host's NIC: one port that sends acknowledgements first, then the flows that may send, round robin.

use super::plan::entropy;
use super::sender::Phase;
use super::{Event, World};
use crate::packet::{Kind, NONE, Packet, Stamps};
use crate::workload::Flow;
use std::collections::VecDeque;

/// The NIC of a host.
#[derive(Debug)]
pub(super) struct Host {
    port: u32,
    /// Acknowledgements and CNPs to send.
    control: VecDeque<u32>,
    /// Flows that may send now.
    pub(super) ready: VecDeque<u32>,
    /// Priorities that the switch paused, as bits.
    paused: u8,
}

impl Host {
    pub(super) fn new(port: u32) -> Host {
        Host { port, control: VecDeque::new(), ready: VecDeque::new(), paused: 0 }
    }

    pub(super) fn is_paused(&self, priority: u8) -> bool {
        self.paused & (1 << priority) != 0
    }

    pub(super) fn set_paused(&mut self, priority: u8, stop: bool) {
        let bit = (1u8 << priority) & !1;
        self.paused = if stop { self.paused | bit } else { self.paused & !bit };
    }
}

impl World {
    /// Sends an acknowledgement or CNP from a host.
    pub(super) fn send_control(&mut self, host: u32, id: u32) {
        self.hosts[host as usize].control.push_back(id);
        self.kick_host(host);
    }

    pub(super) fn kick_host(&mut self, host: u32) {
        let port = self.hosts[host as usize].port;
        if self.is_free(port) {
            self.transmit_host(host);
        } else {
            self.wake(port);
        }
    }

    /// The wire of a host is free.
    pub(super) fn transmit_host(&mut self, host: u32) {
        let nic = &mut self.hosts[host as usize];
        let port = nic.port;
        let paused_control = nic.paused & (1 << self.config.host.ack_priority) != 0;
        let id = match nic.control.front().copied().filter(|_| !paused_control) {
            Some(id) => {
                nic.control.pop_front();
                Some(id)
            }
            None => self.next_external(host).or_else(|| self.next_data(host)),
        };
        let Some(id) = id else { return };
        let bytes = self.packets[id].bytes;
        self.counters.sent_bytes += u64::from(bytes);
        self.put_on_wire(port, id, bytes);
        let nic = &self.hosts[host as usize];
        if !nic.ready.is_empty() || !nic.control.is_empty() || self.has_external(host) {
            self.wake(port);
        }
        let Packet { flow, kind, .. } = self.packets[id];
        if kind == Kind::Data {
            self.activate(flow);
        }
    }

    /// A packet of the next flow that may send, round robin.
    fn next_data(&mut self, host: u32) -> Option<u32> {
        for _ in 0..self.hosts[host as usize].ready.len() {
            let nic = &mut self.hosts[host as usize];
            let flow = nic.ready.pop_front()?;
            let Flow { priority, .. } = self.flows[flow as usize];
            if self.pairs.is_some() {
                if nic.paused & (1 << priority) != 0 {
                    nic.ready.push_back(flow);
                } else if let Some(id) = self.next_of_pair(flow) {
                    return Some(id);
                }
                continue;
            }
            let Some(sender) = &mut self.senders[flow as usize] else { continue };
            if nic.paused & (1 << priority) != 0 {
                nic.ready.push_back(flow);
                continue;
            }
            sender.phase = Phase::Blocked;
            if let Some(id) = self.build_data(flow) {
                return Some(id);
            }
        }
        None
    }

    /// The next packet of a flow; `None` if its window has closed since the flow became ready.
    fn build_data(&mut self, flow: u32) -> Option<u32> {
        let Flow { from, to, priority, .. } = self.flows[flow as usize];
        let config = &self.config.host;
        let sender = self.senders[flow as usize].as_mut()?;
        let was_idle = sender.is_idle();
        let (seq, again) = sender.take(config)?;
        let payload = sender.payload(seq, config);
        let bytes = payload + config.header + if sender.telemetry { config.telemetry } else { 0 };
        sender.on_sent(self.now, payload, bytes, was_idle);
        let telemetry = if sender.telemetry { self.stamps.insert(Stamps::default()) } else { NONE };
        let arm = sender.arm_retransmit(self.now, config);
        let packet = Packet {
            sent_ps: self.now,
            flow,
            seq,
            cause: seq,
            to,
            entropy: entropy(flow, from),
            port: 0,
            telemetry,
            bytes,
            kind: Kind::Data,
            priority,
            ect: sender.ect,
            ce: false,
            again,
        };
        if let Some(at) = arm {
            self.events.push(at, Event::Retransmit(flow));
        }
        self.counters.data_packets += 1;
        self.counters.retransmissions += u64::from(again);
        Some(self.packets.insert(packet))
    }

    /// Lets a flow send, now or when its pacing gap has passed, if it has something to send.
    pub(super) fn activate(&mut self, flow: u32) {
        let Flow { from, .. } = self.flows[flow as usize];
        let port = self.hosts[from as usize].port;
        let free_at = self.ports[port as usize].free_at.max(self.now);
        let Some(sender) = &mut self.senders[flow as usize] else { return };
        if let Some(at) = sender.rearm_deadline() {
            self.events.push(at, Event::Deadline(flow));
        }
        if sender.phase == Phase::Waiting {
            if let Some(at) = sender.shorten_gap(self.now) {
                self.events.push(at, Event::Pace(flow));
            }
        } else if sender.phase == Phase::Blocked && sender.can_send(&self.config.host) {
            if sender.next_allowed > free_at {
                sender.phase = Phase::Waiting;
                sender.pace_at = sender.next_allowed;
                self.events.push(sender.next_allowed, Event::Pace(flow));
            } else {
                sender.phase = Phase::Ready;
                self.hosts[from as usize].ready.push_back(flow);
                self.kick_host(from);
            }
        }
    }

    pub(super) fn handle_pace(&mut self, flow: u32) {
        let Some(sender) = &mut self.senders[flow as usize] else { return };
        if sender.phase != Phase::Waiting || sender.pace_at != self.now {
            return; // stale: the gap ends at another time
        }
        if sender.next_allowed > self.now {
            sender.pace_at = sender.next_allowed; // the rate fell
            return self.events.push(sender.pace_at, Event::Pace(flow));
        }
        sender.phase = Phase::Blocked;
        self.activate(flow);
    }
}
