//! Handles to a node and its objects.

use crate::host::Queues;
use crate::journal::NodeId;
use crate::memory::Region;
use crate::nic::{Nic, Slot};
use crate::queue_pair::{QpSetup, QueuePair};
use crate::queues::{CompletionQueue, SharedReceiveQueue, Xrc};
use crate::world::World;
use ferroce_proto::cc::{Controller, FixedWindow};
use ferroce_proto::qp::RefusalReason;
use ferroce_proto::verbs::{Access, Completion, EventKind, MwBind, RecvWr, Route, Sge, WcStatus};
use ferroce_proto::{Gid, LKey, PdId, Qpn, RKey, Srqn};
use rand::Rng;

/// A machine with one NIC.
#[derive(Clone)]
pub struct Node {
    pub(crate) world: World,
    /// Its id.
    pub id: NodeId,
}

impl Node {
    pub(crate) fn nic<R>(&self, call: impl FnOnce(&mut Nic) -> R) -> R {
        call(&mut self.world.0.borrow_mut().nics[self.id.0])
    }

    /// The world it is part of.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Its address.
    pub fn gid(&self) -> Gid {
        self.nic(|nic| nic.gid)
    }

    /// The route to an address.
    pub fn route_to(&self, dgid: Gid) -> Route {
        Route { sgid: self.gid(), dgid, hop_limit: 64, ..Route::default() }
    }

    /// Makes a protection domain.
    pub fn pd(&self) -> PdId {
        self.nic(|nic| {
            nic.resources.next_pd += 1;
            PdId(nic.resources.next_pd)
        })
    }

    /// Registers `len` zero bytes somewhere.
    pub fn mr(&self, pd: PdId, len: usize, access: Access) -> Mr {
        let start = self.nic(|nic| {
            let start = nic.resources.next_addr;
            // A gap, so that an overrun of one region does not reach the next.
            nic.resources.next_addr += (len as u64).next_multiple_of(4096) + 4096;
            start
        });
        self.mr_at(pd, start, len, access)
    }

    /// Registers `len` zero bytes at this address.
    pub fn mr_at(&self, pd: PdId, start: u64, len: usize, access: Access) -> Mr {
        let (lkey, rkey) = (self.unused_key(), self.unused_key());
        let region = Region { lkey: LKey(lkey), rkey: RKey(rkey), pd, start, access, bytes: vec![0; len] };
        self.nic(|nic| nic.resources.memory.insert(region));
        Mr { node: self.clone(), lkey: LKey(lkey), rkey: RKey(rkey), start, len }
    }

    fn unused_key(&self) -> u32 {
        loop {
            let key = self.world.0.borrow_mut().rng.random_range(1..u32::MAX);
            if self.nic(|nic| !nic.resources.memory.knows(key)) {
                return key;
            }
        }
    }

    /// Makes a completion queue.
    pub fn cq(&self, depth: usize) -> Cq {
        let number = self.nic(|nic| {
            nic.resources.cqs.push(CompletionQueue::new(depth));
            nic.resources.cqs.len() - 1
        });
        Cq { node: self.clone(), number }
    }

    /// Makes a shared receive queue.
    pub fn srq(&self, depth: u32, max_sge: u32) -> Srq {
        self.any_srq(depth, max_sge, None)
    }

    /// Makes an XRC shared receive queue in the XRC domain of this number.
    pub fn xrc_srq(&self, depth: u32, max_sge: u32, domain: u32, pd: PdId, cq: &Cq) -> Srq {
        self.any_srq(depth, max_sge, Some(Xrc { domain, pd, cq: cq.number }))
    }

    fn any_srq(&self, depth: u32, max_sge: u32, xrc: Option<Xrc>) -> Srq {
        let number = self.nic(|nic| {
            nic.resources.srqs.push(SharedReceiveQueue::new(depth, max_sge, xrc));
            nic.resources.srqs.len() - 1
        });
        Srq { node: self.clone(), number }
    }

    /// Makes a queue pair in RESET, with a random number and a fixed window.
    pub fn qp(&self, setup: &QpSetup<'_>) -> QueuePair {
        self.qp_with(setup, FixedWindow { bytes: setup.window }.into())
    }

    /// Makes a queue pair with another congestion control.
    pub fn qp_with(&self, setup: &QpSetup<'_>, congestion: Controller) -> QueuePair {
        let qpn = loop {
            let number = Qpn::new(self.world.0.borrow_mut().rng.random_range(2..0xff_ffff));
            if self.nic(|nic| !nic.qps.contains_key(&number)) {
                break number;
            }
        };
        let queues = Queues {
            send_cq: setup.send_cq.number,
            recv_cq: setup.recv_cq.number,
            srq: setup.srq.map(|srq| srq.number),
        };
        let reorder = self.nic(|nic| nic.resources.reorder.clone());
        let qp = setup.build(qpn, congestion, reorder);
        self.nic(|nic| nic.qps.insert(qpn, Slot { qp, queues, acks_due: None }));
        QueuePair { node: self.clone(), qpn }
    }

    /// Attaches a queue pair to a multicast group.
    pub fn join(&self, group: Gid, qp: &QueuePair) {
        self.nic(|nic| nic.groups.entry(group).or_default().insert(qp.qpn));
    }

    /// Kills the node. A dead node neither sends nor receives.
    pub fn kill(&self) {
        self.nic(|nic| nic.alive = false);
    }

    /// Sets how many packets may wait for its link before it is full.
    pub fn set_link_depth(&self, packets: usize) {
        self.nic(|nic| nic.resources.link_depth = packets);
    }

    /// Delays ACKs by up to this time, so that a request to the same peer can carry them. The default is no delay.
    pub fn delay_acks(&self, ns: u64) {
        self.nic(|nic| nic.ack_delay_ns = ns);
    }

    /// Sets the age that is reported for every later packet.
    pub fn report_age(&self, ns: u32) {
        self.nic(|nic| nic.rx_age_ns = ns);
    }

    /// Handles each timer late by this time, as a process that waits for its processor. The default is no delay.
    pub fn delay_timers(&self, ns: u64) {
        self.nic(|nic| nic.timer_delay_ns = ns);
    }

    /// Sends long messages as rendezvous sends, and declines to fetch every `decline_every`-th of its peers; 0: none.
    pub fn enable_rendezvous(&self, decline_every: u64) {
        self.nic(|nic| {
            (nic.resources.rendezvous.enabled, nic.resources.rendezvous.decline_every) = (true, decline_every)
        });
    }

    /// Lets all of its packets take rings, which carry packets longer than the path MTU. Call it on both ends.
    pub fn enable_large_packets(&self) {
        self.nic(|nic| nic.resources.rendezvous.large_packets = true);
    }

    /// Number of rendezvous sends, and of fetches.
    pub fn rendezvous_counts(&self) -> (u64, u64) {
        self.nic(|nic| (nic.resources.rendezvous.sent, nic.resources.rendezvous.fetches))
    }

    /// Packets that its queue pairs received, and how often they read the clock.
    pub fn received(&self) -> (u64, u64) {
        self.nic(|nic| nic.resources.received)
    }

    /// Takes all events raised so far. Events of a CQ or SRQ have queue pair number 0.
    pub fn events(&self) -> Vec<(Qpn, EventKind)> {
        self.nic(|nic| nic.resources.events.drain(..).collect())
    }

    /// Requests refused here for this reason.
    pub fn refusals(&self, reason: RefusalReason) -> u64 {
        self.nic(|nic| nic.resources.refusals.get(reason.name()).copied().unwrap_or_default())
    }

    /// Memory window binds executed so far.
    pub fn binds(&self) -> Vec<MwBind> {
        self.nic(|nic| nic.resources.binds.clone())
    }

    /// Atomics that reached memory so far, refused ones included.
    pub fn atomics_run(&self) -> u64 {
        self.nic(|nic| nic.resources.atomics_run)
    }
}

/// A memory region.
#[derive(Clone)]
pub struct Mr {
    node: Node,
    /// For local work requests.
    pub lkey: LKey,
    /// For the peer.
    pub rkey: RKey,
    /// First address.
    pub start: u64,
    /// Number of bytes.
    pub len: usize,
}

impl Mr {
    /// The address `offset` bytes into it.
    pub fn addr(&self, offset: u64) -> u64 {
        self.start.wrapping_add(offset)
    }

    /// A scatter/gather entry.
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { addr: self.addr(offset), len, lkey: self.lkey }
    }

    fn bytes<R>(&self, call: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        self.node.nic(|nic| call(&mut nic.resources.memory.region_mut(self.lkey).expect("region").bytes))
    }

    /// Stores bytes, as the application does.
    pub fn write(&self, offset: usize, data: &[u8]) {
        self.bytes(|bytes| bytes[offset..offset + data.len()].copy_from_slice(data));
    }

    /// Reads bytes.
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        self.bytes(|bytes| bytes[offset..offset + len].to_vec())
    }

    /// Reads a number.
    pub fn read_u64(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.read(offset, 8).try_into().expect("eight bytes"))
    }

    /// Fills it with a pattern that differs at every offset and for every `seed`.
    pub fn fill(&self, seed: u64) {
        self.bytes(|bytes| *bytes = pattern(seed, bytes.len()));
    }

    /// Deregisters it.
    pub fn deregister(&self) {
        self.node.nic(|nic| nic.resources.memory.remove(self.lkey));
    }
}

/// Pseudo-random bytes that depend on the seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    use rand::{RngCore, SeedableRng};
    let mut bytes = vec![0; len];
    rand::rngs::SmallRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}

/// A completion queue.
#[derive(Clone)]
pub struct Cq {
    node: Node,
    pub(crate) number: usize,
}

impl Cq {
    /// Takes the oldest completion.
    pub fn poll(&self) -> Option<Completion> {
        self.node.nic(|nic| nic.resources.cqs[self.number].poll())
    }

    /// Takes all of them.
    pub fn drain(&self) -> Vec<Completion> {
        std::iter::from_fn(|| self.poll()).collect()
    }

    /// Takes all of them, reduced to number and status.
    pub fn statuses(&self) -> Vec<(u64, WcStatus)> {
        self.drain().iter().map(|c| (c.wr_id, c.status)).collect()
    }

    /// Takes the only one.
    ///
    /// # Panics
    /// When there is none, or more.
    #[track_caller]
    pub fn only(&self) -> Completion {
        let all = self.drain();
        let [completion] = all[..] else { panic!("one completion expected: {all:?}") };
        completion
    }

    /// Completions so far that would have raised a solicited event.
    pub fn solicited(&self) -> u64 {
        self.node.nic(|nic| nic.resources.cqs[self.number].solicited)
    }
}

/// A shared receive queue.
#[derive(Clone)]
pub struct Srq {
    node: Node,
    number: usize,
}

impl Srq {
    /// Posts a receive.
    ///
    /// # Panics
    /// When the queue is full.
    pub fn post(&self, wr_id: u64, sges: &[Sge]) {
        let posted = self.node.nic(|nic| nic.resources.srqs[self.number].push(&RecvWr { wr_id, sges }));
        assert!(posted, "the shared receive queue is full");
    }

    /// Its number in XRC requests.
    pub fn srqn(&self) -> Srqn {
        Srqn::new(self.number as u32)
    }

    /// Raises an event when fewer than `limit` receives are left.
    pub fn arm(&self, limit: usize) {
        self.node.nic(|nic| nic.resources.srqs[self.number].arm(limit));
    }

    /// Receives waiting.
    pub fn waiting(&self) -> usize {
        self.node.nic(|nic| nic.resources.srqs[self.number].len())
    }
}
