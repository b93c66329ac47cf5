//! The resources of one side of a test: its queue pairs, its completion queues and its memory.

use super::super::affinity::SingleCore;
use super::super::control::Control;
use super::super::handshake::{self, Request};
use super::super::params::{Params, Transport};
use super::super::test::{Operation, Test};
use super::buffers::Buffers;
use super::like_perftest;
use super::local::Local;
use super::offer::{self, Offer};
use super::pattern;
use super::queue_pair::{HOP_LIMIT, QueuePair, Shape};
use super::refused;
use super::streams::{self, Streams};
use super::test_qp::{Layout, TestQp};
use crate::failure::Failure;
use crate::wire::WireChoice;
use ferroce::{Connection, Cq, Device, Endpoint, Mtu, Rc, UdTarget};

/// Depth of the send queue of a latency test: enough that few sends need a completion.
pub(super) const LATENCY_SENDS: u32 = 128;
/// Depth of the receive queue of a latency test.
pub(super) const LATENCY_RECEIVES: u32 = 64;

/// The resources of one side of a test.
pub(crate) struct TestContext {
    /// The connections of iWARP. Dropped before the queue pairs.
    connections: Vec<Connection<Rc>>,
    device: Device,
    pub(super) params: Params,
    pub(super) single_core: SingleCore,
    pub(super) cq: Cq,
    /// The completion queue of receives: the same one, except with `--like-perftest`.
    pub(super) recv_cq: Cq,
    pub(super) region: Buffers,
    pub(super) layout: Layout,
    pub(super) qps: Vec<TestQp>,
    mtu: Mtu,
}

impl TestContext {
    /// Creates everything except the connections.
    pub(super) fn make(control: &Control, params: &Params, local: &Local) -> Result<TestContext, Failure> {
        let device = local.device()?;
        let shape = shape(control, params, local)?;
        let pd = device.alloc_pd().map_err(refused)?;
        let depth = params.queue_pairs.saturating_mul(shape.sends + shape.receives).max(16);
        let cq = device.create_cq(depth).map_err(refused)?;
        let recv_cq =
            if params.like_perftest { device.create_cq(depth).map_err(refused)? } else { cq.clone() };
        let layout = Layout::of(params);
        let region = Buffers::register(&pd, layout.total(params.queue_pairs) as usize, params.gpu)?;
        let create = |n: usize| {
            let queue_pair = QueuePair::create(&pd, &cq, &recv_cq, &shape)?;
            let receive = region.sge(layout.receive(n, params.transport)).map_err(refused)?;
            let at = if params.test.operation() == Operation::Read {
                layout.incoming(n)
            } else {
                layout.outgoing(n)
            };
            let local = region.sge(at..at + params.size).map_err(refused)?;
            Ok(TestQp::new(queue_pair, receive, local))
        };
        let qps = (0..params.queue_pairs as usize).map(create).collect::<Result<_, Failure>>()?;
        let single_core = if params.like_perftest { SingleCore::ignored() } else { local.single_core };
        let (params, connections, device, mtu) = (params.clone(), Vec::new(), device.clone(), shape.mtu);
        let mut context =
            TestContext { connections, device, params, single_core, cq, recv_cq, region, layout, qps, mtu };
        context.fill(false)?;
        Ok(context)
    }

    /// Client: connects to the server, and waits until the server is connected too.
    pub(super) fn connect_to_server(
        &mut self,
        control: &mut Control,
        server: &handshake::Offer,
    ) -> Result<(), Failure> {
        let server = offer::of_peer(server)?;
        if self.is_iwarp() {
            let listener = server.listener()?;
            let offer = handshake::Offer::Rdma(Offer::over_streams(None, self.region.remote()));
            control.send(&Request::Go { offer })?;
            self.connections = streams::connect(&self.device, &self.qps, listener, control)?;
            self.set_targets(server, &[])?;
            return handshake::await_started(control);
        }
        self.connect(server)?;
        handshake::go(control, self.offer()?)
    }

    /// Server: waits for the client, and connects to it.
    pub(super) fn accept_client(&mut self, control: &mut Control, local: &Local) -> Result<(), Failure> {
        if self.is_iwarp() {
            let streams = Streams::listen(&self.device, local.address(control)?, control)?;
            let offer = Offer::over_streams(Some(streams.address()), self.region.remote());
            let client = handshake::ready(control, handshake::Offer::Rdma(offer))?;
            self.connections = streams.accept(&self.qps)?;
            return self.set_targets(offer::of_peer(&client)?, &[]);
        }
        let client = handshake::ready(control, self.offer()?)?;
        self.connect(offer::of_peer(&client)?)
    }

    /// What the other side needs to connect.
    fn offer(&self) -> Result<handshake::Offer, Failure> {
        let endpoints: Vec<Endpoint> =
            self.qps.iter().map(|qp| qp.queue_pair.endpoint()).collect::<Result<_, Failure>>()?;
        Ok(handshake::Offer::Rdma(Offer::new(endpoints.into_iter(), self.region.remote())))
    }

    /// Connects to the other side.
    fn connect(&mut self, offer: &Offer) -> Result<(), Failure> {
        let endpoints = offer.endpoints(self.qps.len())?;
        let mut targets = Vec::with_capacity(endpoints.len());
        for (qp, peer) in self.qps.iter().zip(&endpoints) {
            let mtu = self.mtu.min(peer.mtu).bytes();
            if self.params.transport == Transport::Ud && self.params.size > mtu.into() {
                return Err(Failure::new(format!(
                    "a datagram message is one packet: at most {mtu} bytes on this path, not {}",
                    self.params.size
                ))
                .advise(format!("Choose -s {mtu} or less")));
            }
            targets.push(qp.queue_pair.connect(peer)?);
        }
        self.set_targets(offer, &targets)
    }

    /// Sets the target of each queue pair: its part of the other side's memory, and for UD the peer's queue pair.
    fn set_targets(&mut self, offer: &Offer, targets: &[Option<UdTarget>]) -> Result<(), Failure> {
        let remote = offer.region();
        for (n, qp) in self.qps.iter_mut().enumerate() {
            let part = |at: u64| {
                remote.slice(at..at + self.params.size).map_err(|error| {
                    Failure::new(format!("the other side offered too little memory: {error}"))
                })
            };
            let (outgoing, incoming) = (part(self.layout.outgoing(n))?, part(self.layout.incoming(n))?);
            let ud = targets.get(n).copied().flatten();
            qp.set_target(self.params.test.operation(), ud, outgoing, incoming);
        }
        Ok(())
    }

    /// Posts the receives for SENDs of the other side.
    pub(super) fn post_receives(&self) -> Result<(), Failure> {
        let count = receives(&self.params);
        if self.params.test.operation() != Operation::Send {
            return Ok(());
        }
        self.qps.iter().enumerate().try_for_each(|(n, qp)| qp.post_receives((n as u64) << 32, count))
    }

    /// Fills the source buffers with the pattern: one for all messages, another for the last.
    pub(super) fn fill(&mut self, last: bool) -> Result<(), Failure> {
        let inline = self.is_inline();
        for n in 0..self.qps.len() {
            if self.params.test == Test::Qps && n > 0 {
                break;
            }
            let message = self.message(n, last);
            self.region.write(self.layout.outgoing(n), &message)?;
            self.qps[n].inline = inline.then_some(message);
        }
        Ok(())
    }

    /// The pattern of a queue pair, of the other side or of ours.
    pub(super) fn message(&self, qp: usize, last: bool) -> Vec<u8> {
        pattern::bytes(2 * qp as u64 + 1 + u64::from(last), self.params.size as usize)
    }

    /// Whether messages are sent inline.
    pub(super) fn is_inline(&self) -> bool {
        matches!(self.params.test.operation(), Operation::Send | Operation::Write)
            && self.params.test != Test::Qps
            && self.params.size <= u64::from(self.params.inline)
    }

    /// Whether every message arrives. A RoCE completion means that the message has arrived; an iWARP completion means that
    /// TCP has accepted it.
    pub(super) fn is_reliable(&self) -> bool {
        self.params.transport == Transport::Rc
    }

    /// Whether the queue pairs are TCP streams.
    pub(super) fn is_iwarp(&self) -> bool {
        self.params.wire == WireChoice::Iwarp
    }

    /// Whether the sides grant each other receives: a SEND without one ends an iWARP connection.
    pub(super) fn has_credits(&self) -> bool {
        has_credits(&self.params)
    }
}

fn has_credits(params: &Params) -> bool {
    params.wire == WireChoice::Iwarp && params.test == Test::SendBw
}

/// Receives and sends that are reserved for credits. A side grants a quarter of its receives at a time, so fewer credits than this
/// are in flight.
pub(super) const CREDITS_IN_FLIGHT: u32 = 8;
/// Sends of a queue pair in addition to the messages of the test: credits, and the READ behind the last message.
const EXTRA_SENDS: u32 = CREDITS_IN_FLIGHT + 1;

/// Receives that are reposted to a queue pair at a time.
pub(super) fn repost_batch(params: &Params) -> u32 {
    (receives(params) / 4).max(1)
}

/// Depth of the receive queue.
pub(super) fn receives(params: &Params) -> u32 {
    match params.test {
        Test::SendLat if params.like_perftest => like_perftest::RECEIVES,
        Test::SendLat => LATENCY_RECEIVES,
        // As many as the other side may have in flight, and more while we repost them.
        Test::SendBw => (4 * params.tx_depth).max(64),
        Test::Qps => params.tx_depth,
        _ => 1,
    }
}

fn shape(control: &Control, params: &Params, local: &Local) -> Result<Shape, Failure> {
    let limit = local.path_mtu(control, params.transport)?;
    let mtu = params.mtu.and_then(Mtu::from_bytes).unwrap_or(limit);
    if mtu > limit {
        return Err(Failure::new(format!(
            "the path MTU (-m) of {} is more than the interface carries, which is {}",
            mtu.bytes(),
            limit.bytes()
        ))
        .advise("Leave -m out to take the largest that fits"));
    }
    let latency = !params.test.is_bandwidth() && params.test != Test::Qps;
    Ok(Shape {
        transport: params.transport,
        gid_index: local.gid_index(control)?,
        mtu,
        sends: match params.wire {
            _ if latency && !params.like_perftest => LATENCY_SENDS,
            WireChoice::Roce => params.tx_depth,
            WireChoice::Iwarp => params.tx_depth + EXTRA_SENDS,
        },
        receives: receives(params),
        inline: params.inline,
        hop_limit: if params.like_perftest { like_perftest::HOP_LIMIT } else { HOP_LIMIT },
    })
}
