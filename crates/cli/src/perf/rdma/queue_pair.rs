//! Queue pairs of any type behind one type.

use super::super::params::Transport;
use super::refused;
use crate::failure::Failure;
use ferroce::{
    Cq, Endpoint, Mtu, Pd, QpBuilder, QpCounters, RcQp, RecvWr, SendWr, Service, UcQp, UdQp, UdTarget,
};

/// Code of the transport timer, 268 ms. The control channel reports a lost peer immediately. A peer that a busy
/// machine delays for half a second is not lost.
const TIMEOUT: u8 = 16;
/// Hop limit of the packets.
pub(super) const HOP_LIMIT: u8 = 64;

/// A queue pair.
pub(super) enum QueuePair {
    Rc(RcQp),
    Uc(UcQp),
    Ud(UdQp, u8),
}

/// The attributes with which queue pairs are made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) transport: Transport,
    pub(super) gid_index: u8,
    pub(super) mtu: Mtu,
    pub(super) sends: u32,
    pub(super) receives: u32,
    pub(super) inline: u32,
    pub(super) hop_limit: u8,
}

impl Shape {
    fn apply<T: Service>(&self, builder: QpBuilder<T>) -> QpBuilder<T> {
        let builder = builder.depth(self.sends, self.receives).sges(1, 1).inline(self.inline);
        builder.gid_index(self.gid_index).mtu(self.mtu).hop_limit(self.hop_limit).signal_all(false)
    }
}

/// The same call for a queue pair of any type.
macro_rules! on_any {
    ($any:expr, |$qp:ident| $call:expr) => {
        match $any {
            QueuePair::Rc($qp) => $call,
            QueuePair::Uc($qp) => $call,
            QueuePair::Ud($qp, _) => $call,
        }
    };
}

impl QueuePair {
    /// Makes one.
    pub(super) fn create(pd: &Pd, cq: &Cq, recv_cq: &Cq, shape: &Shape) -> Result<QueuePair, Failure> {
        Ok(match shape.transport {
            Transport::Rc => {
                let builder = shape.apply(pd.rc(cq).recv_cq(recv_cq)).timeout(TIMEOUT);
                QueuePair::Rc(builder.create().map_err(refused)?)
            }
            Transport::Uc => {
                QueuePair::Uc(shape.apply(pd.uc(cq).recv_cq(recv_cq)).create().map_err(refused)?)
            }
            Transport::Ud => QueuePair::Ud(
                shape.apply(pd.ud(cq).recv_cq(recv_cq)).create().map_err(refused)?,
                shape.gid_index,
            ),
        })
    }

    /// What the other side needs to reach it.
    pub(super) fn endpoint(&self) -> Result<Endpoint, Failure> {
        on_any!(self, |qp| qp.endpoint()).map_err(refused)
    }

    /// Connects to the other side; a UD queue pair gets the target for its work requests instead.
    pub(super) fn connect(&self, peer: &Endpoint) -> Result<Option<UdTarget>, Failure> {
        match self {
            QueuePair::Rc(qp) => qp.connect(peer).map(|()| None),
            QueuePair::Uc(qp) => qp.connect(peer).map(|()| None),
            QueuePair::Ud(qp, gid_index) => {
                if peer.transport != ferroce::Transport::Ud {
                    return Err(Failure::new("the other side offered no datagram queue pair"));
                }
                qp.pd().address_handle(peer, *gid_index).map(|handle| Some(handle.target()))
            }
        }
        .map_err(refused)
    }

    /// Posts sends.
    #[inline]
    pub(super) fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), Failure> {
        on_any!(self, |qp| qp.post_send(wrs)).map_err(refused)
    }

    /// Posts receives.
    #[inline]
    pub(super) fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), Failure> {
        on_any!(self, |qp| qp.post_recv(wrs)).map_err(refused)
    }

    /// Its counters.
    pub(super) fn counters(&self) -> QpCounters {
        on_any!(self, |qp| qp.counters())
    }

    /// Bytes that it owns.
    pub(super) fn memory_footprint(&self) -> usize {
        on_any!(self, |qp| qp.memory_footprint())
    }
}
