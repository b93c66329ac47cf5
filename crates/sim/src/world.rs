//! The world: nodes, the network between them, and a clock that jumps to the next event.

use crate::filter::{Hits, Rule};
use crate::frame::Frame;
use crate::journal::{Journal, NodeId};
use crate::network::{Faults, Network};
use crate::nic::Nic;
use crate::node::Node;
use ferroce_proto::verbs::Route;
use ferroce_proto::wire::Headers;
use ferroce_proto::{Gid, Time};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;

/// Lines of the journal that a failing test prints.
const PRINTED: usize = 150;
/// A run with more steps than this does not terminate.
const MAX_STEPS: u64 = 5_000_000;

pub(crate) struct Inner {
    pub(crate) seed: u64,
    pub(crate) now: Time,
    pub(crate) rng: StdRng,
    pub(crate) nics: Vec<Nic>,
    pub(crate) network: Network,
    pub(crate) journal: Journal,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- seed {}, the last {PRINTED} entries of the journal", self.seed);
            eprintln!("{}---", self.journal.tail(PRINTED));
        }
    }
}

/// A simulated world. Clones are handles to the same one.
#[derive(Clone)]
pub struct World(pub(crate) Rc<RefCell<Inner>>);

impl World {
    /// An empty world. The seed determines keys, queue pair numbers and the random faults of the network.
    pub fn new(seed: u64) -> World {
        World(Rc::new(RefCell::new(Inner {
            seed,
            now: Time(0),
            rng: StdRng::seed_from_u64(seed ^ 0x6665_7272_6f63_6521),
            nics: Vec::new(),
            network: Network::new(seed),
            journal: Journal::default(),
        })))
    }

    /// Adds a node with an IPv4 address.
    pub fn node(&self) -> Node {
        let number = self.0.borrow().nics.len() + 1;
        let [high, low] = (number as u16).to_be_bytes();
        self.node_at(IpAddr::V4(Ipv4Addr::new(10, 0, high, low)))
    }

    /// Adds a node with this address.
    pub fn node_at(&self, address: IpAddr) -> Node {
        let mut inner = self.0.borrow_mut();
        let (id, gid) = (NodeId(inner.nics.len()), Gid::from_ip(address));
        inner.network.attach(gid, id);
        inner.nics.push(Nic::new(id, gid));
        Node { world: self.clone(), id }
    }

    /// Adds a rule to the network. Returns a counter of its hits.
    pub fn rule(&self, rule: Rule) -> Hits {
        self.0.borrow_mut().network.add_rule(rule)
    }

    /// Removes all rules.
    pub fn clear_rules(&self) {
        self.0.borrow_mut().network.clear_rules();
    }

    /// Sets the random faults of packets that no rule matches.
    pub fn set_faults(&self, faults: Faults) {
        self.0.borrow_mut().network.set_faults(faults);
    }

    /// Puts a packet onto the network that no node sent, with any addresses. It arrives after the usual latency.
    pub fn inject(&self, route: &Route, headers: &Headers, payload: &[u8]) {
        let mut inner = self.0.borrow_mut();
        let now = inner.now;
        inner.network.inject(now, Frame::encode(route, headers, payload));
    }

    /// The time.
    pub fn now(&self) -> Time {
        self.0.borrow().now
    }

    /// Packets sent so far.
    pub fn packets_sent(&self) -> u64 {
        self.0.borrow().network.sent()
    }

    /// The journal so far.
    pub fn journal(&self) -> Journal {
        self.0.borrow().journal.clone()
    }

    /// A random number from the world's seed, for tests.
    pub fn random(&self) -> u64 {
        self.0.borrow_mut().rng.random()
    }

    /// Runs until nothing is in flight and no timer runs.
    ///
    /// # Panics
    /// If the run does not terminate.
    pub fn run_until_idle(&self) {
        self.run(Time(u64::MAX));
    }

    /// Runs for this long, and advances the clock to the end.
    pub fn run_for(&self, ns: u64) {
        let end = self.now() + ns;
        self.run(end);
        self.0.borrow_mut().now = end;
    }

    fn run(&self, end: Time) {
        let mut inner = self.0.borrow_mut();
        inner.pump();
        for _ in 0..MAX_STEPS {
            match inner.next_event() {
                Some(time) if time <= end => inner.step(time),
                _ => return,
            }
        }
        panic!("the world does not come to rest: {MAX_STEPS} steps until {} ns", inner.now.0);
    }
}

impl Inner {
    fn next_event(&self) -> Option<Time> {
        let deadlines = self.nics.iter().filter_map(Nic::deadline);
        deadlines.chain(self.network.next_arrival()).min()
    }

    /// Jumps to `time` and handles everything that is due.
    fn step(&mut self, time: Time) {
        self.now = self.now.max(time);
        while let Some((to, frame)) = self.network.arrive(self.now) {
            let everybody = 0..self.nics.len();
            let receivers = to.map_or(everybody, |NodeId(n)| n..n + 1);
            for nic in &mut self.nics[receivers] {
                nic.receive(self.now, &frame, &mut self.journal);
            }
        }
        self.pump();
    }

    /// Lets every queue pair progress and every link send.
    pub(crate) fn pump(&mut self) {
        for nic in &mut self.nics {
            nic.progress(self.now, &mut self.journal);
            while let Some(frame) = nic.leave(self.now) {
                self.network.send(self.now, nic.id, frame, &mut self.journal);
                nic.progress(self.now, &mut self.journal);
            }
        }
    }
}
