//! Two communication managers, the network between them, and applications that accept or reject.
//!
//! Node 0 connects, node 1 listens. Faults are scripted by message ([`MessageFault`]) or random by seed ([`FaultRates`]).
//! A run depends on its script and seed alone; [`CmPair::journal`] records every event, to compare two runs.

use ferroce_proto::cm::{
    Accept, Answer, Cm, CmError, CommId, Config, Connect, Event, IpHeader, ListenerId, MadAddressing, Path,
    PortSpace, Query, RejectReason, Scope, ServiceId, SidrStatus, Transmit,
};
use ferroce_proto::verbs::Mtu;
use ferroce_proto::wire::cm::CmMad;
use ferroce_proto::{Gid, Qkey, Qpn, Time};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};

/// Time from one node to the other.
pub const CM_LATENCY_NS: u64 = 10_000;
/// The service that node 1 listens to.
pub const SERVICE: ServiceId = ServiceId::of_port(PortSpace::Tcp, 7471);
/// The datagram service of node 1.
pub const DATAGRAM_SERVICE: ServiceId = ServiceId::of_port(PortSpace::Udp, 7471);
/// A run with more steps than this does not terminate.
const MAX_STEPS: usize = 1_000_000;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It is lost.
    Lose,
    /// It arrives twice, the second time this much later.
    Double(u64),
    /// It is late.
    Delay(u64),
    /// Its receiver dies instead of receiving it.
    KillReceiver,
    /// Its sender dies once it is sent.
    KillSender,
}

/// A scripted fault of a message.
#[derive(Clone, Copy, Debug)]
pub struct MessageFault {
    /// Name of the message in the specification.
    pub message: &'static str,
    /// Which of them, counted from 0; `None` for all.
    pub nth: Option<usize>,
    /// The fault.
    pub act: Act,
}

/// Probabilities of faults for every message.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultRates {
    /// Lost.
    pub loss: f64,
    /// Doubled.
    pub duplication: f64,
    /// Late by up to 100 ms.
    pub delay: f64,
}

/// How the application at a node handles requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Accepts them.
    Accept,
    /// Rejects them.
    Reject,
    /// Ignores them.
    Sleep,
}

/// One node.
pub struct CmNode {
    /// `None` when it is dead.
    pub cm: Option<Cm>,
    /// Its address.
    pub gid: Gid,
    /// How its application handles requests.
    pub policy: Policy,
    /// Events of its application, with their times.
    pub events: Vec<(Time, Event)>,
}

impl CmNode {
    /// Names of the events, except those of TIMEWAIT.
    pub fn names(&self) -> Vec<&'static str> {
        self.events.iter().map(|(_, event)| name(event)).filter(|n| *n != "timewait exit").collect()
    }

    /// When the event with this name came.
    pub fn when(&self, wanted: &str) -> Time {
        let found = self.events.iter().find(|(_, event)| name(event) == wanted);
        found.unwrap_or_else(|| panic!("no event {wanted:?} among {:?}", self.names())).0
    }
}

/// Short name of an event.
pub fn name(event: &Event) -> &'static str {
    match event {
        Event::Request(_) => "request",
        Event::Response(_) => "response",
        Event::Established { .. } => "established",
        Event::Rejected { .. } => "rejected",
        Event::Unreachable { .. } => "unreachable",
        Event::Disconnected { timed_out: false, .. } => "disconnected",
        Event::Disconnected { timed_out: true, .. } => "disconnected by time-out",
        Event::TimewaitExit { .. } => "timewait exit",
        Event::Answered { .. } => "answered",
    }
}

/// Two managers and the network between them.
pub struct CmPair {
    /// The time.
    pub now: Time,
    /// Active and passive node.
    pub nodes: [CmNode; 2],
    /// Scripted faults.
    pub faults: Vec<MessageFault>,
    /// Probabilities of random faults.
    pub rates: FaultRates,
    /// Record of every event.
    pub journal: String,
    /// The listener at node 1.
    pub listener: ListenerId,
    counts: BTreeMap<&'static str, usize>,
    in_flight: BTreeMap<(Time, u64), (usize, Vec<u8>)>,
    order: u64,
    rng: StdRng,
}

impl CmPair {
    /// Two managers; node 1 listens to [`SERVICE`] and [`DATAGRAM_SERVICE`] with this backlog.
    pub fn new(seed: u64, config: Config, backlog: u32) -> CmPair {
        let node = |number: u8| {
            let mut rng = StdRng::seed_from_u64(seed ^ u64::from(number) << 56);
            CmNode {
                cm: Some(Cm::new(Config { slot: number + 1, ..config }, Box::new(move || rng.random()))),
                gid: Gid::from_ip(IpAddr::V4(Ipv4Addr::new(10, 0, 0, number + 1))),
                policy: Policy::Accept,
                events: Vec::new(),
            }
        };
        let mut nodes = [node(0), node(1)];
        let passive = nodes[1].cm.as_mut().expect("just made");
        let listener = passive.listen(SERVICE, Scope::Any, backlog).expect("the first listener");
        passive.listen(DATAGRAM_SERVICE, Scope::Any, backlog).expect("another service");
        CmPair {
            now: Time(0),
            nodes,
            faults: Vec::new(),
            rates: FaultRates::default(),
            journal: String::new(),
            listener,
            counts: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            order: 0,
            rng: StdRng::seed_from_u64(seed),
        }
    }

    /// Adds to the script.
    #[must_use]
    pub fn with(mut self, message: &'static str, nth: Option<usize>, act: Act) -> CmPair {
        self.faults.push(MessageFault { message, nth, act });
        self
    }

    /// The manager of a node that is alive.
    pub fn cm(&mut self, node: usize) -> &mut Cm {
        self.nodes[node].cm.as_mut().expect("this node is alive")
    }

    /// The path from node 0 to node 1.
    pub fn path(&self) -> Path {
        Path {
            sgid: self.nodes[0].gid,
            dgid: self.nodes[1].gid,
            hop_limit: 64,
            mtu: Mtu::B1024,
            ack_timeout: 16,
            ..Path::default()
        }
    }

    /// Parameters of a connection from queue pair `qpn` of node 0.
    pub fn connect_params(&self, qpn: u32) -> Connect<'static> {
        let (src, dst) = (self.nodes[0].gid.to_ip(), self.nodes[1].gid.to_ip());
        Connect {
            service: SERVICE,
            path: self.path(),
            ip: Some(IpHeader { sport: 40_000, src, dst }),
            qpn: Qpn::new(qpn),
            responder_resources: 4,
            initiator_depth: 3,
            retry_count: 7,
            rnr_retry: 6,
            private_data: b"hello",
            ..Connect::default()
        }
    }

    /// Node 0 connects.
    pub fn connect(&mut self, qpn: u32) -> CommId {
        let (params, now) = (self.connect_params(qpn), self.now);
        let id = self.cm(0).connect(&params, now).expect("below the limit");
        self.pump();
        id
    }

    /// Node 0 sends a SIDR request.
    pub fn query(&mut self, service: ServiceId) -> CommId {
        let ip = self.connect_params(0).ip;
        let query = Query { service, path: self.path(), ip, private_data: b"who?", ..Query::default() };
        let now = self.now;
        let id = self.cm(0).query(&query, now).expect("below the limit");
        self.pump();
        id
    }

    /// The id of node 1's first connection.
    pub fn passive_id(&self) -> CommId {
        let requests = self.nodes[1].events.iter().filter_map(|(_, event)| match event {
            Event::Request(request) => Some(request.id),
            _ => None,
        });
        requests.min_by_key(|id| id.0).expect("a REQ arrived")
    }

    /// Runs until nothing is in flight and no timer runs.
    pub fn run(&mut self) {
        self.run_until(Time(u64::MAX));
    }

    /// Runs until `end` at most.
    pub fn run_until(&mut self, end: Time) {
        self.pump();
        for _ in 0..MAX_STEPS {
            let deadlines = self.nodes.iter().filter_map(|n| n.cm.as_ref()?.deadline());
            let arrival = self.in_flight.keys().next().map(|(time, _)| *time);
            match deadlines.chain(arrival).min() {
                Some(next) if next <= end => self.step(next),
                _ => return,
            }
        }
        panic!("no end after {MAX_STEPS} steps\n{}", self.journal);
    }

    fn step(&mut self, next: Time) {
        self.now = self.now.max(next);
        while let Some(entry) = self.in_flight.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let (to, bytes) = entry.remove();
            self.deliver(to, &bytes);
        }
        let now = self.now;
        for node in &mut self.nodes {
            if let Some(cm) = &mut node.cm {
                cm.handle_timeout(now);
            }
        }
        self.pump();
    }

    /// Delivers a message to a node, without faults.
    pub fn deliver(&mut self, to: usize, bytes: &[u8]) {
        let (now, from) = (self.now, self.nodes[1 - to].gid);
        let node = &mut self.nodes[to];
        let inbound = MadAddressing { sgid: from, dgid: node.gid, sgid_index: 0, mtu: Mtu::B4096 };
        if let Some(cm) = &mut node.cm {
            // Counters record malformed messages.
            let _ = cm.handle_mad(&inbound, bytes, now);
        }
    }

    /// Handles events and sends messages.
    pub fn pump(&mut self) {
        for node in [0, 1] {
            while let Some(event) = self.nodes[node].cm.as_mut().and_then(Cm::poll_event) {
                writeln!(self.journal, "{} node {node}: {event:?}", self.now.0).expect("strings take it");
                self.nodes[node].events.push((self.now, event.clone()));
                self.react(node, &event);
            }
            while let Some(transmit) = self.nodes[node].cm.as_mut().and_then(Cm::poll_transmit) {
                self.send(node, &transmit);
            }
        }
    }

    fn react(&mut self, node: usize, event: &Event) {
        let (now, policy) = (self.now, self.nodes[node].policy);
        match (event, policy) {
            (Event::Request(request), Policy::Accept) if request.transport.is_some() => {
                let accept = Accept {
                    qpn: Qpn::new(0x20_0000 + request.remote_qpn.value()),
                    responder_resources: request.responder_resources,
                    initiator_depth: request.initiator_depth,
                    rnr_retry: 5,
                    private_data: b"welcome",
                    ..Accept::default()
                };
                // The peer may have cancelled its request meanwhile.
                let taken = self.cm(node).accept(request.id, &accept, now);
                assert!(matches!(taken, Ok(()) | Err(CmError::NoSuchConnection)), "{taken:?}");
            }
            (Event::Request(request), Policy::Accept) => {
                let answer = Answer { qpn: Qpn::new(77), qkey: Qkey(88), ..Answer::default() };
                self.cm(node).answer(request.id, &answer).expect("an undecided SIDR_REQ");
                self.cm(node).release(request.id, now);
            }
            (Event::Request(request), Policy::Reject) if request.transport.is_some() => {
                let cm = self.cm(node);
                cm.reject(request.id, RejectReason::CONSUMER, &[], b"go away", now)
                    .expect("an undecided REQ");
            }
            (Event::Request(request), Policy::Reject) => {
                let answer = Answer { status: SidrStatus::REJECT, ..Answer::default() };
                self.cm(node).answer(request.id, &answer).expect("an undecided SIDR_REQ");
                self.cm(node).release(request.id, now);
            }
            (Event::Response(response), Policy::Accept) => {
                self.cm(node).establish(response.id, &[]).expect("a REP");
            }
            _ => {}
        }
    }

    fn send(&mut self, from: usize, transmit: &Transmit) {
        let to = 1 - from;
        let message = CmMad::parse(&transmit.mad[..]).expect("managers send messages").message.name();
        let count = self.counts.entry(message).or_default();
        let nth = *count;
        *count += 1;
        let acts = self.faults.iter().filter(|t| t.message == message && t.nth.is_none_or(|n| n == nth));
        let act = acts.map(|t| t.act).next().or_else(|| self.roll());
        writeln!(self.journal, "{} {message} {nth} from {from}: {act:?}", self.now.0)
            .expect("strings take it");
        let arrival = self.now + CM_LATENCY_NS;
        match act {
            Some(Act::Lose) => {}
            Some(Act::Double(ns)) => {
                self.fly(arrival, to, transmit);
                self.fly(arrival + ns, to, transmit);
            }
            Some(Act::Delay(ns)) => self.fly(arrival + ns, to, transmit),
            Some(Act::KillReceiver) => self.nodes[to].cm = None,
            Some(Act::KillSender) => {
                self.fly(arrival, to, transmit);
                self.nodes[from].cm = None;
            }
            None => self.fly(arrival, to, transmit),
        }
    }

    fn fly(&mut self, arrival: Time, to: usize, transmit: &Transmit) {
        self.order += 1;
        self.in_flight.insert((arrival, self.order), (to, transmit.mad.to_vec()));
    }

    fn roll(&mut self) -> Option<Act> {
        let FaultRates { loss, duplication, delay } = self.rates;
        if loss > 0.0 && self.rng.random_bool(loss) {
            return Some(Act::Lose);
        }
        if duplication > 0.0 && self.rng.random_bool(duplication) {
            return Some(Act::Double(self.rng.random_range(1..200_000_000)));
        }
        if delay > 0.0 && self.rng.random_bool(delay) {
            return Some(Act::Delay(self.rng.random_range(1..100_000_000)));
        }
        None
    }
}
