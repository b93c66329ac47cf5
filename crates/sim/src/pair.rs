//! Two connected queue pairs with memory and queues: the start of most tests.

use crate::node::{Cq, Mr, Node, Srq};
use crate::queue_pair::{QpSetup, QueuePair};
use crate::world::World;
use ferroce_proto::cc::{Controller, FixedWindow};
use ferroce_proto::verbs::{Access, Mtu, QpCap, Sge, Transport, UdTarget};
use ferroce_proto::{PdId, Psn, Qkey};
use std::net::{IpAddr, Ipv6Addr};

/// Q_Key of datagram pairs.
pub const QKEY: Qkey = Qkey(0x1111_1111);

/// Parameters of a pair.
#[derive(Clone, Copy, Debug)]
pub struct PairSetup {
    /// Seed of the world.
    pub seed: u64,
    /// Transport service of both; for XRC that of `a`, the initiator.
    pub transport: Transport,
    /// Path MTU of both.
    pub mtu: Mtu,
    /// First PSN that `a` sends.
    pub psn_a: Psn,
    /// First PSN that `b` sends.
    pub psn_b: Psn,
    /// Transport timer exponent.
    pub timeout: u8,
    /// Retries without answer.
    pub retry_cnt: u8,
    /// Retries after RNR NAK.
    pub rnr_retry: u8,
    /// RNR timer code that each advertises.
    pub min_rnr_timer: u8,
    /// READs and atomics in flight, per direction.
    pub max_rd_atomic: u8,
    /// READs and atomics that each responder accepts concurrently; equal to `max_rd_atomic` unless a test needs a conflict.
    pub max_dest_rd_atomic: u8,
    /// Rights that each grants to its peer.
    pub access: Access,
    /// Queue sizes.
    pub cap: QpCap,
    /// Whether every send completes.
    pub signal_all: bool,
    /// Whether receives come from a shared receive queue.
    pub srq: bool,
    /// Congestion window in bytes.
    pub window: u32,
    /// Size of each side's memory region.
    pub memory: usize,
    /// Path MTU of the ports; `None`: `mtu`.
    pub port_mtu: Option<Mtu>,
    /// Whether `a`, and `b`, sends and accepts jumbo packets.
    pub jumbo: [bool; 2],
    /// IPv6 addresses instead of IPv4.
    pub ipv6: bool,
}

impl PairSetup {
    /// A pair of this transport.
    pub fn new(transport: Transport) -> PairSetup {
        let cap = QpCap {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 32,
            max_recv_sge: 32,
            max_inline_data: 512,
        };
        PairSetup {
            seed: 1,
            transport,
            mtu: Mtu::B1024,
            psn_a: Psn::new(0),
            psn_b: Psn::new(0x80_0000),
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 6,
            min_rnr_timer: 1,
            max_rd_atomic: 8,
            max_dest_rd_atomic: 8,
            access: Access::LOCAL_WRITE | Access::REMOTE,
            cap,
            signal_all: false,
            srq: false,
            window: 64 * 1024,
            memory: 256 * 1024,
            port_mtu: None,
            jumbo: [false; 2],
            ipv6: false,
        }
    }
    /// A reliable connection.
    pub fn rc() -> PairSetup {
        PairSetup::new(Transport::Rc)
    }

    /// Makes a world with the two in it, both in RTS.
    pub fn connect(&self) -> Pair {
        let world = World::new(self.seed);
        self.connect_in(&world)
    }

    /// The same, with this congestion control for each.
    pub fn connect_with(&self, congestion: impl Fn() -> Controller) -> Pair {
        self.join(&World::new(self.seed), &congestion)
    }

    /// The same in an existing world.
    pub fn connect_in(&self, world: &World) -> Pair {
        self.join(world, &|| FixedWindow { bytes: self.window }.into())
    }

    fn join(&self, world: &World, congestion: &dyn Fn() -> Controller) -> Pair {
        let node = |last| match self.ipv6 {
            true => world.node_at(IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last))),
            false => world.node(),
        };
        let a = self.endpoint_with(&node(1), self.psn_a, congestion());
        let b = match self.transport {
            Transport::XrcIni => PairSetup { transport: Transport::XrcTgt, ..*self },
            _ => PairSetup { jumbo: [self.jumbo[1]; 2], ..*self },
        };
        let b = b.endpoint_with(&node(2), self.psn_b, congestion());
        a.qp.connect(self, &b.qp, self.psn_a, self.psn_b);
        b.qp.connect(self, &a.qp, self.psn_b, self.psn_a);
        Pair { world: world.clone(), a, b }
    }

    /// A queue pair in RESET with everything it needs, on this node.
    pub fn endpoint(&self, node: &Node, seed: Psn) -> Endpoint {
        self.endpoint_with(node, seed, FixedWindow { bytes: self.window }.into())
    }

    fn endpoint_with(&self, node: &Node, seed: Psn, congestion: Controller) -> Endpoint {
        let pd = node.pd();
        let (send_cq, recv_cq) = (node.cq(4096), node.cq(4096));
        let (depth, max_sge) = (self.cap.max_recv_wr, self.cap.max_recv_sge);
        let srq = match self.transport {
            Transport::XrcTgt => Some(node.xrc_srq(depth, max_sge, 1, pd, &recv_cq)),
            _ => self.srq.then(|| node.srq(depth, max_sge)),
        };
        let mr = node.mr(pd, self.memory, Access::LOCAL_WRITE | Access::REMOTE);
        mr.fill(seed.value().into());
        let setup = QpSetup {
            transport: self.transport,
            pd,
            send_cq: &send_cq,
            recv_cq: &recv_cq,
            srq: srq.as_ref(),
            cap: self.cap,
            signal_all: self.signal_all,
            window: self.window,
            port_mtu: self.port_mtu.unwrap_or(self.mtu),
            takes_jumbo: self.jumbo[0],
        };
        let qp = node.qp_with(&setup, congestion);
        Endpoint { node: node.clone(), pd, mr, send_cq, recv_cq, srq, qp }
    }
}

/// One end of a pair.
#[derive(Clone)]
pub struct Endpoint {
    /// Its node.
    pub node: Node,
    /// Its protection domain.
    pub pd: PdId,
    /// Its memory, filled with a pattern, open to the peer.
    pub mr: Mr,
    /// Completions of sends.
    pub send_cq: Cq,
    /// Completions of receives.
    pub recv_cq: Cq,
    /// Shared receive queue, if the setup has one.
    pub srq: Option<Srq>,
    /// The queue pair.
    pub qp: QueuePair,
}

impl Endpoint {
    /// A piece of its memory.
    pub fn sge(&self, offset: u64, len: u32) -> Sge {
        self.mr.sge(offset, len)
    }

    /// Posts a receive of `len` bytes at `offset`, to the shared queue if there is one.
    pub fn post_recv(&self, wr_id: u64, offset: u64, len: u32) {
        match &self.srq {
            Some(srq) => srq.post(wr_id, &[self.sge(offset, len)]),
            None => self.qp.post_recv(wr_id, &[self.sge(offset, len)]).expect("post_recv"),
        }
    }

    /// How to address its datagram queue pair from `from`.
    pub fn target(&self, from: &Node) -> UdTarget {
        UdTarget { route: from.route_to(self.node.gid()), qpn: self.qp.qpn, qkey: QKEY }
    }
}

/// Two connected queue pairs, in RTS.
pub struct Pair {
    /// Their world.
    pub world: World,
    /// One end; by custom the requester.
    pub a: Endpoint,
    /// The other end.
    pub b: Endpoint,
}

impl Pair {
    /// Two ends of a reliable connection.
    pub fn rc(mtu: Mtu) -> Pair {
        PairSetup { mtu, ..PairSetup::rc() }.connect()
    }
    /// Two ends of an unreliable connection.
    pub fn uc(mtu: Mtu) -> Pair {
        PairSetup { mtu, ..PairSetup::new(Transport::Uc) }.connect()
    }
    /// An XRC initiator `a` and target `b`, which has a shared receive queue.
    pub fn xrc(mtu: Mtu) -> Pair {
        PairSetup { mtu, ..PairSetup::new(Transport::XrcIni) }.connect()
    }
    /// Two datagram queue pairs.
    pub fn ud(mtu: Mtu) -> Pair {
        PairSetup { mtu, ..PairSetup::new(Transport::Ud) }.connect()
    }
    /// Runs until nothing is in flight.
    pub fn run(&self) {
        self.world.run_until_idle();
    }
}
