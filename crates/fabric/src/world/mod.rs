//! A fabric under virtual time: hosts, links and switches, one event at a time.
//!
//! Time is in picoseconds, since a packet of 64 bytes takes 1.28 ns at 400 Gb/s. A packet that begins to leave a port
//! gets one event, its arrival at the next node; a port gets an event only while packets wait for it. The records of
//! packets are reused: a data packet becomes its own acknowledgement.

mod config;
mod external;
mod host;
mod pair;
mod pair_host;
mod plan;
mod receiver;
mod record;
mod sender;
mod wire;

pub use config::{HostConfig, HostModel, MAX_PACKETS, Recovery, WorldConfig};
pub use external::{Delivery, HostTotals, Injected, Outcome};
pub use plan::Plan;
pub use record::{Counters, Finish, Frame, LinkClass, Samples};

use crate::events::EventQueue;
use crate::packet::{Kind, NONE, Packet, Slab, Stamps};
use crate::rng::mix;
use crate::switch::{Admission, DropReason, Switch};
use crate::topology::{Routes, Topology};
use crate::workload::{Flow, NEVER};
use ferroce_proto::Time;
use host::Host;
use pair::Pairs;
use receiver::Receiver;
use sender::Sender;
use wire::Port;

/// Something that happens at a time.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A packet has arrived at the port that it names.
    Arrive(u32),
    /// The wire of a port is free, and packets may wait for it.
    PortFree(u32),
    /// The pacing gap of a flow has passed.
    Pace(u32),
    /// The deadline of a flow's controller.
    Deadline(u32),
    /// The retransmission timer of a flow.
    Retransmit(u32),
    /// A PFC frame has arrived at a port: port, priority, stop.
    Pause(u32, u8, bool),
    /// The next flow starts.
    Start,
    /// Queues and rates are recorded.
    Sample,
}

/// A fabric and its flows.
#[derive(Debug)]
pub struct World {
    config: WorldConfig,
    routes: Routes,
    now: u64,
    events: EventQueue<Event>,
    packets: Slab<Packet>,
    stamps: Slab<Stamps>,
    /// Ports of all nodes; those of a node are contiguous.
    ports: Vec<Port>,
    first_port: Vec<u32>,
    hosts: Vec<Host>,
    switches: Vec<Switch>,
    flows: Vec<Flow>,
    /// Flows with a start time, by that time.
    order: Vec<u32>,
    next_start: usize,
    senders: Vec<Option<Box<Sender>>>,
    receivers: Vec<Option<Box<Receiver>>>,
    /// Flows over queue pairs, in place of senders and receivers.
    pairs: Option<Pairs>,
    /// Base RTT of all controllers; by default the largest of all pairs, as in HPCC's simulator.
    base_rtt_ns: u64,
    finished: Vec<Finish>,
    counters: Counters,
    samples: Samples,
    hash: u64,
    /// Hosts that the caller drives, in place of flows.
    external: Option<Box<external::External>>,
}

impl World {
    /// A fabric at time 0. The flows refer to hosts of the topology.
    pub fn new(config: WorldConfig, topology: &Topology, routes: Routes, flows: Vec<Flow>) -> World {
        let (ports, first_port) = wire::ports(&routes, config.seed);
        let switches = wire::switches(&config, topology, &routes);
        let hosts = (0..topology.hosts).map(|host| Host::new(first_port[host as usize])).collect();
        let mut order: Vec<u32> = (0..flows.len() as u32).collect();
        order.retain(|flow| flows[*flow as usize].start_ps != NEVER);
        order.sort_by_key(|flow| flows[*flow as usize].start_ps);
        let samples = Samples::new(&config, topology, &routes, flows.len());
        let base_rtt_ns = config::largest_base_rtt_ns(&config.host, &routes, topology.hosts);
        let pairs =
            (config.host.model == HostModel::QueuePairs).then(|| Pairs::new(flows.len(), config.host.mtu));
        let mut world = World {
            pairs,
            base_rtt_ns: config.base_rtt_ns.unwrap_or(base_rtt_ns),
            config,
            routes,
            now: 0,
            events: EventQueue::default(),
            packets: Slab::default(),
            stamps: Slab::default(),
            ports,
            first_port,
            hosts,
            switches,
            senders: (0..flows.len()).map(|_| None).collect(),
            receivers: (0..flows.len()).map(|_| None).collect(),
            order,
            next_start: 0,
            flows,
            finished: Vec::new(),
            counters: Counters::default(),
            samples,
            hash: 0,
            external: None,
        };
        if let Some(first) = world.order.first() {
            world.events.push(world.flows[*first as usize].start_ps, Event::Start);
        }
        world.events.push(world.samples.interval_ps(), Event::Sample);
        world
    }

    /// Lets time pass until `until` picoseconds, or until every flow is finished. Returns whether all are.
    pub fn run_until(&mut self, until: u64) -> bool {
        while self.finished.len() < self.flows.len() {
            if !self.step(until) {
                self.now = self.now.max(until);
                return false;
            }
        }
        true
    }

    /// Handles one event. Returns `false` if no event is due by `until`.
    pub fn step(&mut self, until: u64) -> bool {
        let Some((time, event)) = self.events.pop(until) else { return false };
        self.now = time;
        self.counters.events += 1;
        match event {
            Event::Arrive(packet) => self.handle_arrival(packet),
            Event::PortFree(port) => self.handle_port_free(port),
            Event::Pace(flow) => self.handle_pace(flow),
            Event::Deadline(flow) if self.pairs.is_some() => self.handle_pair_deadline(flow),
            Event::Deadline(flow) => self.handle_deadline(flow),
            Event::Retransmit(flow) => self.handle_retransmit(flow),
            Event::Pause(port, priority, stop) => self.handle_pause(port, priority, stop),
            Event::Start => self.start_flows(),
            Event::Sample => self.sample(),
        }
        true
    }

    /// The simulated time as controllers and queue pairs use it.
    fn time(&self) -> Time {
        Time(self.now / 1000)
    }

    /// The simulated time in picoseconds.
    pub fn now_ps(&self) -> u64 {
        self.now
    }

    /// The flows that are finished, in the order in which they finished.
    pub fn finished(&self) -> &[Finish] {
        &self.finished
    }

    /// All flows.
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// The configuration.
    pub fn config(&self) -> &WorldConfig {
        &self.config
    }

    /// The counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Samples of queues and rates over time.
    pub fn samples(&self) -> &Samples {
        &self.samples
    }

    /// A hash of every completion, drop and pause with its time. Equal runs have equal hashes on every machine.
    pub fn hash(&self) -> u64 {
        let Counters { packet_hops, marks, events, .. } = self.counters;
        [packet_hops, marks, events].iter().fold(self.hash, |hash, word| mix(hash ^ word))
    }

    fn fold(&mut self, word: u64) {
        self.hash = mix(self.hash ^ mix(word) ^ self.now);
    }

    /// Bytes that hosts have sent, and those that were delivered, were dropped, are in queues and are on wires. The first
    /// is always the sum of the others.
    pub fn balance(&self) -> (u64, [u64; 4]) {
        let Counters { sent_bytes, delivered_bytes, dropped_bytes, wire_bytes, .. } = self.counters;
        let queued = self.switches.iter().map(Switch::buffered_bytes).sum();
        (sent_bytes, [delivered_bytes, dropped_bytes, queued, wire_bytes])
    }

    /// Bytes in the queues of the switch port that leads to a host; 0 if the host is connected to another host.
    pub fn queue_to_host(&self, host: u32) -> u32 {
        let port = self.ports[self.first_port[host as usize] as usize];
        let Some(switch) = port.peer_node.checked_sub(self.hosts.len() as u32) else { return 0 };
        self.switches[switch as usize].queue_bytes(port.peer - self.first_port[port.peer_node as usize])
    }

    /// The most bytes that a switch held at one time.
    pub fn most_buffered_bytes(&self) -> u64 {
        self.switches.iter().map(Switch::most_buffered_bytes).max().unwrap_or(0)
    }

    /// Acknowledged bytes of an active flow. Over queue pairs: bytes that have arrived.
    pub fn acked_bytes(&self, flow: u32) -> u64 {
        self.progress(flow).unwrap_or(0)
    }

    fn progress(&self, flow: u32) -> Option<u64> {
        match (&self.external, &self.pairs) {
            (Some(external), _) => external.payload_sent(flow),
            (None, Some(pairs)) => pairs.delivered(flow),
            (None, None) => {
                self.senders[flow as usize].as_ref().map(|sender| sender.acked_bytes(&self.config.host))
            }
        }
    }

    fn handle_arrival(&mut self, id: u32) {
        let Packet { port, bytes, to, entropy, priority, .. } = self.packets[id];
        self.counters.wire_bytes -= u64::from(bytes);
        self.counters.packet_hops += 1;
        if self.config.loss > 0.0 && self.ports[port as usize].loses(self.config.loss) {
            self.counters.lost_packets += 1;
            return self.drop_packet(id);
        }
        let node = self.ports[port as usize].node;
        let Some(number) = node.checked_sub(self.hosts.len() as u32) else {
            self.counters.delivered_bytes += u64::from(bytes);
            return self.deliver(node, id);
        };
        let first = self.first_port[node as usize];
        let switch = &mut self.switches[number as usize];
        let egress = u32::from(switch.choose_port(self.routes.ports(number, to), entropy));
        match switch.handle_packet(port - first, egress, priority, id, bytes) {
            Admission::Queued => {
                let queued = switch.queue_bytes(egress);
                self.note_queue(first + egress, queued);
                self.forward_pauses(number, first);
                self.kick_switch(first + egress);
            }
            Admission::Dropped(reason) => {
                match reason {
                    DropReason::Buffer => self.counters.buffer_drops += 1,
                    DropReason::Headroom => self.counters.headroom_drops += 1,
                }
                self.drop_packet(id);
            }
        }
    }

    fn drop_packet(&mut self, id: u32) {
        self.counters.dropped_bytes += u64::from(self.packets[id].bytes);
        self.fold(1 << 60 | u64::from(self.packets[id].flow));
        if self.packets[id].kind == Kind::External {
            self.end_external(id, false);
        }
        self.free(id);
    }

    fn free(&mut self, id: u32) {
        let telemetry = self.packets[id].telemetry;
        if telemetry != NONE {
            self.stamps.remove(telemetry);
        }
        if let Some(pairs) = &mut self.pairs {
            pairs.free(&self.packets[id]);
        }
        self.packets.remove(id);
    }

    /// A packet has reached its host.
    fn deliver(&mut self, host: u32, id: u32) {
        match self.packets[id].kind {
            _ if self.pairs.is_some() => self.receive_frame(host, id),
            Kind::Data => self.receive_data(host, id),
            Kind::Ack | Kind::Nack => self.receive_ack(id),
            Kind::Cnp => self.receive_cnp(id),
            Kind::External => self.receive_external(id),
        }
    }

    fn start_flows(&mut self) {
        while let Some(&flow) = self.order.get(self.next_start) {
            let start = self.flows[flow as usize].start_ps;
            if start > self.now {
                self.events.push(start, Event::Start);
                return;
            }
            self.next_start += 1;
            self.start_flow(flow);
        }
    }

    fn start_flow(&mut self, flow: u32) {
        let spec = &mut self.flows[flow as usize];
        spec.start_ps = self.now;
        let Flow { from, to, bytes, .. } = *spec;
        let shortest = self.routes.shortest_path(from, to);
        let path = self.path(&shortest);
        let ideal_ps = self.config.host.ideal_ps(&shortest, bytes);
        self.counters.started += 1;
        if self.start_pair(flow, &path, ideal_ps) {
            return;
        }
        let spec = &self.flows[flow as usize];
        let controller = self.config.control.build(&path);
        let sender = Sender::new(spec, controller, &self.config.host, ideal_ps, self.now);
        self.receivers[flow as usize] = Some(Box::new(Receiver::new(&sender, &self.config.host)));
        self.senders[flow as usize] = Some(Box::new(sender));
        self.activate(flow);
    }

    fn sample(&mut self) {
        let next = self.now + self.samples.interval_ps();
        let (switches, ports) = (&self.switches, &self.ports);
        if !self.samples.take(self.now, switches, ports) {
            return;
        }
        let progress: Vec<Option<u64>> =
            (0..self.samples.rates.len() as u32).map(|flow| self.progress(flow)).collect();
        self.samples.take_rates(|flow| progress[flow as usize]);
        self.events.push(next, Event::Sample);
    }
}
