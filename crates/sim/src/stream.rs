//! Two iWARP queue pairs and the byte streams between them.
//!
//! A stream keeps the order of its bytes and delivers them in pieces of any size, after any delay. Its
//! capacity is bounded. It can stall, break, and damage bytes. The machines have no timers, so there is no clock here: a seed
//! determines which stream delivers next, and how many bytes.

use crate::host::{Queues, SimHost};
use crate::node::{Cq, Mr, Node, Srq};
use crate::work::Wr;
use crate::world::World;
use ferroce_proto::cc::FixedWindow;
use ferroce_proto::iwarp::negotiation::{Initiator, Negotiated, Offer, Responder, Rtr};
use ferroce_proto::iwarp::reader::{Item, Reader};
use ferroce_proto::iwarp::{Close, InPlace, Lost, StreamQp};
use ferroce_proto::qp::state::ModifyError;
use ferroce_proto::qp::{Memory, Placement, PostError, QpConfig};
use ferroce_proto::verbs::{Access, AttrMask, EventKind, MemoryFault, Mtu, QpAttr, QpCap, RecvWr, Transport};
use ferroce_proto::{PdId, Qpn, Time};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::VecDeque;

/// A run with more steps than this does not terminate.
const MAX_STEPS: u64 = 2_000_000;
const CONNECTION_RESET: i32 = 104;

/// One direction of a stream.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    bytes: VecDeque<u8>,
    /// Bytes that may be in flight.
    room: usize,
    /// The sender closed it. The receiver is notified behind the last byte.
    is_closed: bool,
    /// The receiver was notified of the end.
    has_ended: bool,
    /// Everything that was ever sent.
    sent: Vec<u8>,
}

impl Wire {
    /// Takes bytes beyond the capacity.
    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        self.sent.extend(bytes);
    }

    /// Takes as many bytes as the capacity allows. With `whole` it takes all or none; an empty wire takes all.
    pub(crate) fn take(&mut self, bytes: &[u8], whole: bool) -> usize {
        let room = self.room.saturating_sub(self.bytes.len());
        let fits = bytes.len() <= room || self.bytes.is_empty();
        let taken = match (whole, fits) {
            (true, false) => 0,
            (true, true) => bytes.len(),
            (false, _) => bytes.len().min(room),
        };
        self.bytes.extend(&bytes[..taken]);
        self.sent.extend(&bytes[..taken]);
        taken
    }
}

/// How a pair is made.
#[derive(Clone, Copy, Debug)]
pub struct StreamSetup {
    /// The terms that both programs offer.
    pub offer: Offer,
    /// Whether the ends treat each other as ferroce, with RFC 7306.
    pub extended: bool,
    /// Longest ULPDU.
    pub mulpdu: u16,
    /// Bytes in flight per direction.
    pub room: usize,
    /// Sizes of the queues.
    pub cap: QpCap,
    /// Rights of the peer.
    pub access: Access,
    /// Whether the second end takes its receives from a shared queue.
    pub srq: bool,
}

impl Default for StreamSetup {
    fn default() -> Self {
        StreamSetup {
            offer: Offer { ird: 4, ord: 4, ..Offer::default() },
            extended: true,
            mulpdu: 1460,
            room: 64 * 1024,
            cap: QpCap {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 128,
            },
            access: Access::REMOTE,
            srq: false,
        }
    }
}

/// One end, with a completion queue per direction and a region for everything.
pub struct StreamEnd {
    /// Its node.
    pub node: Node,
    /// Its protection domain.
    pub pd: PdId,
    /// Its region of 256 KiB.
    pub mr: Mr,
    /// Completions of sends.
    pub send_cq: Cq,
    /// Completions of receives.
    pub recv_cq: Cq,
    /// Its shared receive queue.
    pub srq: Option<Srq>,
    /// The machine.
    pub qp: StreamQp,
    queues: Queues,
}

/// Size of an end's region.
const REGION: usize = 256 * 1024;

impl StreamEnd {
    fn new(world: &World, setup: &StreamSetup, has_srq: bool) -> StreamEnd {
        let node = world.node();
        let (pd, send_cq, recv_cq) = (node.pd(), node.cq(4096), node.cq(4096));
        let srq = has_srq.then(|| node.srq(setup.cap.max_recv_wr, setup.cap.max_recv_sge));
        let config = QpConfig {
            qpn: Qpn::new(7),
            transport: Transport::Rc,
            pd,
            cap: setup.cap,
            signal_all: false,
            shared_recv: srq.as_ref().map(|_| pd),
            port_mtu: Mtu::B1024,
            congestion: FixedWindow { bytes: 0 }.into(),
            reorder: node.nic(|nic| nic.resources.reorder.clone()),
            takes_large: false,
            takes_jumbo: false,
        };
        let queues = Queues {
            send_cq: send_cq.number,
            recv_cq: recv_cq.number,
            srq: srq.as_ref().map(|srq| srq.srqn().value() as usize),
        };
        let mr = node.mr(pd, REGION, Access::LOCAL_WRITE | Access::REMOTE);
        StreamEnd { node, pd, mr, send_cq, recv_cq, srq, qp: StreamQp::new(&config), queues }
    }

    /// Events of the queue pair so far.
    pub fn events(&self) -> Vec<EventKind> {
        self.node.events().into_iter().map(|(_, kind)| kind).collect()
    }
}

/// Two connected queue pairs.
pub struct StreamPair {
    /// The world of their memory and queues.
    pub world: World,
    /// The ends: the first one connected.
    pub ends: [StreamEnd; 2],
    /// From each end to the other.
    wires: [Wire; 2],
    rng: StdRng,
    steps: u64,
    /// Probability that a step delivers nothing.
    pub stall: f64,
    /// Most bytes that arrive at a time.
    pub largest_piece: usize,
    /// Bytes that were received straight into a region.
    pub in_place: u64,
}

impl StreamPair {
    /// Connects two queue pairs. The negotiation itself goes through the streams in random pieces.
    pub fn new(seed: u64, setup: &StreamSetup) -> StreamPair {
        StreamPair::build(seed, setup, None)
    }

    /// The same with this RTR message, as a foreign responder may select it.
    pub fn new_with_rtr(seed: u64, setup: &StreamSetup, rtr: Rtr) -> StreamPair {
        StreamPair::build(seed, setup, Some(rtr))
    }

    fn build(seed: u64, setup: &StreamSetup, rtr: Option<Rtr>) -> StreamPair {
        let world = World::new(seed);
        let mut rng = StdRng::seed_from_u64(seed);
        let mut ends = [StreamEnd::new(&world, setup, false), StreamEnd::new(&world, setup, setup.srq)];
        for (end, mut terms) in ends.iter_mut().zip(negotiate(&mut rng, &setup.offer)) {
            terms.is_ferroce &= setup.extended;
            terms.rtr = rtr.or(terms.rtr);
            assert!(end.qp.start(terms, setup.access, setup.mulpdu), "a new queue pair is in INIT");
        }
        let wire = || Wire { room: setup.room, ..Wire::default() };
        StreamPair {
            world,
            ends,
            wires: [wire(), wire()],
            rng,
            steps: 0,
            stall: 0.2,
            largest_piece: 2000,
            in_place: 0,
        }
    }

    /// Calls a queue pair with its host.
    fn with<R>(&mut self, end: usize, call: impl FnOnce(&mut StreamQp, Time, &mut SimHost<'_>) -> R) -> R {
        let StreamEnd { node, qp, queues, .. } = &mut self.ends[end];
        let mut inner = self.world.0.borrow_mut();
        let inner = &mut *inner;
        let now = Time(self.steps);
        let mut host = SimHost {
            now,
            node: node.id,
            qpn: qp.qpn(),
            queues: *queues,
            nic: &mut inner.nics[node.id.0].resources,
            journal: &mut inner.journal,
            source_bytes: None,
            stream: Some(&mut self.wires[end]),
        };
        call(qp, now, &mut host)
    }

    /// Posts a send.
    pub fn try_post(&mut self, end: usize, wr: &Wr) -> Result<(), PostError> {
        self.with(end, |qp, now, host| qp.post_send(&wr.borrow(), now, host))
    }

    /// Posts a send that must be accepted.
    pub fn post(&mut self, end: usize, wr: &Wr) {
        self.try_post(end, wr).expect("a send that the queue pair accepts");
    }

    /// Posts a receive of `len` bytes at `offset` of the end's region.
    pub fn post_recv(&mut self, end: usize, wr_id: u64, offset: u64, len: u32) {
        let sges = [self.ends[end].mr.sge(offset, len)];
        if let Some(srq) = &self.ends[end].srq {
            return srq.post(wr_id, &sges);
        }
        let wr = RecvWr { wr_id, sges: &sges };
        self.with(end, |qp, now, host| qp.post_recv(&wr, now, host)).expect("a receive that fits");
    }

    /// Delivers bytes to an end that its peer did not send.
    pub fn inject(&mut self, end: usize, bytes: &[u8]) {
        self.with(end, |qp, now, host| qp.receive(bytes, now, host));
    }

    /// Changes attributes and state of an end.
    pub fn modify(&mut self, end: usize, attr: &QpAttr, mask: AttrMask) -> Result<(), ModifyError> {
        self.with(end, |qp, now, host| qp.modify(attr, mask, now, host))
    }

    /// Disconnects, as a program does.
    pub fn disconnect(&mut self, end: usize) {
        self.with(end, |qp, now, host| qp.disconnect(now, host));
    }

    /// Breaks the connection: bytes in flight are lost.
    pub fn reset(&mut self) {
        for end in 0..2 {
            self.wires[end].bytes.clear();
            self.end_stream(end, Lost::Failed(CONNECTION_RESET));
        }
    }

    /// Flips a bit of the bytes in flight from `end`. Returns whether there was a byte.
    pub fn damage(&mut self, end: usize) -> bool {
        let bytes = &mut self.wires[end].bytes;
        if bytes.is_empty() {
            return false;
        }
        let at = self.rng.random_range(0..bytes.len());
        bytes[at] ^= 1 << self.rng.random_range(0..8);
        true
    }

    /// Every item that an end has sent.
    pub fn sent(&self, end: usize) -> Vec<Item<'_>> {
        let has_crc = self.ends[end].qp.terms().is_some_and(|terms| terms.crc);
        let (mut reader, mut bytes) = (Reader::new(has_crc), &self.wires[end].sent[..]);
        std::iter::from_fn(|| reader.next(&mut bytes).expect("what a queue pair sends is right")).collect()
    }

    /// The number of bytes that an end has sent.
    pub fn sent_bytes(&self, end: usize) -> usize {
        self.wires[end].sent.len()
    }

    /// Makes one step. Returns whether bytes, or the end of a stream, are still in flight.
    pub fn step(&mut self) -> bool {
        self.steps += 1;
        assert!(self.steps < MAX_STEPS, "the streams do not come to rest");
        let end = self.rng.random_range(0..2);
        if !self.rng.random_bool(self.stall) {
            self.deliver(end);
        }
        self.transmit(0);
        self.transmit(1);
        self.wires.iter().any(|wire| !wire.bytes.is_empty() || wire.is_closed && !wire.has_ended)
    }

    /// Runs until nothing is in flight.
    pub fn run(&mut self) {
        while self.step() {}
    }

    fn transmit(&mut self, end: usize) {
        self.with(end, |qp, now, host| qp.poll_transmit(now, host));
        match self.ends[end].qp.close() {
            Some(Close::Graceful) => self.wires[end].is_closed = true,
            Some(Close::Reset) if !self.wires[end].is_closed => self.reset(),
            _ => {}
        }
    }

    fn deliver(&mut self, from: usize) {
        let to = 1 - from;
        let wire = &mut self.wires[from];
        let most = wire.bytes.len().min(self.largest_piece);
        if most == 0 {
            if wire.is_closed {
                self.end_stream(to, Lost::Closed);
            }
            return;
        }
        let cut = self.rng.random_range(1..=most);
        let piece: Vec<u8> = self.wires[from].bytes.drain(..cut).collect();
        let placed = self.place(to, &piece);
        self.inject(to, &piece[placed..]);
    }

    /// Receives payload straight into its region, as hosts may do. Returns how many bytes.
    fn place(&mut self, to: usize, bytes: &[u8]) -> usize {
        let next = self.ends[to].qp.in_place();
        let Some(next) = next.filter(|_| self.rng.random_bool(0.8)) else { return 0 };
        let bytes = &bytes[..bytes.len().min(next.most as usize)];
        let is_placed = self.with(to, |qp, now, host| {
            let InPlace { pd, rkey, addr, len, .. } = next;
            host.check_remote(pd, rkey, addr, len.into(), Access::REMOTE_WRITE)?;
            host.write_remote(pd, rkey, addr, bytes, Placement::More)?;
            qp.received_in_place(bytes.len() as u32, now, host);
            Ok::<_, MemoryFault>(())
        });
        let placed = if is_placed.is_ok() { bytes.len() } else { 0 };
        self.in_place += placed as u64;
        placed
    }

    /// Notifies an end that its stream has ended.
    fn end_stream(&mut self, to: usize, how: Lost) {
        let wire = &mut self.wires[1 - to];
        wire.is_closed = true;
        if !std::mem::replace(&mut wire.has_ended, true) {
            self.with(to, |qp, now, host| qp.lost(how, now, host));
        }
    }
}

/// Both ends' terms, with the frames cut at random.
fn negotiate(rng: &mut StdRng, offer: &Offer) -> [Negotiated; 2] {
    let (mut initiator, request) = Initiator::new(*offer, b"request");
    let mut responder = Responder::new(Time(0));
    let (first, second) = request.split_at(rng.random_range(0..request.len()));
    assert_eq!(responder.receive(first), Ok((first.len(), None)));
    let (used, request) = responder.receive(second).expect("a valid request");
    assert_eq!(used, second.len());
    let (passive, reply) =
        request.expect("the whole request").accept(offer, b"reply").expect("an acceptable request");
    let (first, second) = reply.split_at(rng.random_range(0..reply.len()));
    assert_eq!(initiator.receive(first), Ok((first.len(), None)));
    let (_, reply) = initiator.receive(second).expect("a valid reply");
    let active = reply.expect("the whole reply").accepted.expect("no refusal");
    [active, passive]
}
