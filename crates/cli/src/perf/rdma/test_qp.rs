//! One queue pair of a test with its two buffers and the work request that it posts repeatedly.

use super::super::params::{Params, Transport};
use super::super::test::{Operation, Test};
use super::like_perftest;
use super::queue_pair::QueuePair;
use crate::failure::Failure;
use ferroce::{AtomicOp, Payload, RecvWr, RemoteRegion, SendFlags, SendOp, SendWr, Sge, UdTarget};

/// Bytes of a global route header, which precedes a datagram in the receive buffer.
const GRH_LEN: u64 = 40;
/// Space for it, so that the message behind it starts a cache line.
const HEADROOM: u64 = 64;

/// The offsets of each queue pair's buffers in the region. They are the same on both sides.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    size: u64,
    pitch: u64,
    headroom: u64,
    stride: u64,
}

impl Layout {
    /// For these parameters.
    pub(super) fn of(params: &Params) -> Layout {
        let pitch = match like_perftest::offsets(params) {
            Some(offsets) => offsets.end,
            None => params.size.next_multiple_of(64),
        };
        // perftest has no such space. Without it, both buffers begin at the same offset in a page. That matters for
        // long copies: if the target begins a little behind the source, the processor takes each load for a load of
        // bytes that were just stored (4K aliasing).
        let headroom = if params.like_perftest && params.transport != Transport::Ud { 0 } else { HEADROOM };
        // The test of very many queue pairs counts messages only: all queue pairs use the same bytes.
        let stride = if params.test == Test::Qps { 0 } else { 2 * pitch + headroom };
        Layout { size: params.size, pitch, headroom, stride }
    }

    /// Bytes for that many queue pairs.
    pub(super) fn total(&self, qps: u32) -> u64 {
        2 * self.pitch + self.headroom + self.stride * u64::from(qps.saturating_sub(1))
    }

    /// The source of messages, and the target of the other side's READs.
    pub(super) fn outgoing(&self, qp: usize) -> u64 {
        self.stride * qp as u64
    }

    /// The target of messages of the other side.
    pub(super) fn incoming(&self, qp: usize) -> u64 {
        self.outgoing(qp) + self.pitch + self.headroom
    }

    /// The bytes of a receive.
    pub(super) fn receive(&self, qp: usize, transport: Transport) -> std::ops::Range<u64> {
        let at = self.incoming(qp);
        let head = if transport == Transport::Ud { GRH_LEN } else { 0 };
        at - head..at + self.size
    }
}

/// A connected queue pair and its buffers.
pub(super) struct TestQp {
    pub(super) queue_pair: QueuePair,
    pub(super) receive: [Sge; 1],
    op: SendOp,
    local: [Sge; 1],
    /// A READ of zero bytes from the other side's memory.
    probe: SendOp,
    ud: Option<UdTarget>,
    /// The message, if it is sent inline.
    pub(super) inline: Option<Vec<u8>>,
}

impl TestQp {
    /// An unconnected queue pair with its buffers.
    pub(super) fn new(queue_pair: QueuePair, receive: Sge, local: Sge) -> TestQp {
        let (op, probe) = (SendOp::Send, SendOp::Send);
        TestQp { queue_pair, receive: [receive], op, local: [local], probe, ud: None, inline: None }
    }

    /// Sets the target of its work requests: the other side's memory, and its queue pair for UD.
    pub(super) fn set_target(
        &mut self,
        operation: Operation,
        ud: Option<UdTarget>,
        outgoing: RemoteRegion,
        incoming: RemoteRegion,
    ) {
        let (addr, rkey) = (incoming.addr, incoming.rkey);
        self.ud = ud;
        self.probe = SendOp::Read { addr, rkey };
        self.op = match operation {
            Operation::Write => SendOp::Write { addr, rkey },
            Operation::Read => SendOp::Read { addr: outgoing.addr, rkey },
            Operation::Atomic => SendOp::Atomic { addr, rkey, op: AtomicOp::FetchAdd { add: 1 } },
            _ => SendOp::Send,
        };
    }

    /// The work request.
    #[inline]
    pub(super) fn request(&self, wr_id: u64, signalled: bool) -> SendWr<'_> {
        let mut flags = if signalled { SendFlags::SIGNALED } else { SendFlags::empty() };
        let payload = match &self.inline {
            Some(bytes) => {
                flags |= SendFlags::INLINE;
                Payload::Inline(bytes)
            }
            None => Payload::Sges(&self.local),
        };
        SendWr { wr_id, op: self.op, flags, payload, ud: self.ud, srq: None }
    }

    /// An empty READ: it completes when the other side has placed everything before it.
    pub(super) fn probe(&self, wr_id: u64) -> SendWr<'static> {
        SendWr { op: self.probe, ..credit(wr_id) }
    }

    /// The work request with both buffers moved by `offset`.
    #[inline]
    pub(super) fn request_at<'a>(&self, offset: u64, sges: &'a mut [Sge; 1], signalled: bool) -> SendWr<'a> {
        let op = match self.op {
            SendOp::Write { addr, rkey } => SendOp::Write { addr: addr + offset, rkey },
            SendOp::Read { addr, rkey } => SendOp::Read { addr: addr + offset, rkey },
            other => other,
        };
        *sges = self.local;
        sges[0].addr += offset;
        let flags = if signalled { SendFlags::SIGNALED } else { SendFlags::empty() };
        SendWr { wr_id: 0, op, flags, payload: Payload::Sges(sges), ud: self.ud, srq: None }
    }

    /// Posts one receive.
    #[inline]
    pub(super) fn post_receive(&self) -> Result<(), Failure> {
        self.queue_pair.post_recv(&[RecvWr { wr_id: 0, sges: &self.receive }])
    }

    /// Posts that many receives.
    pub(super) fn post_receives(&self, wr_id: u64, count: u32) -> Result<(), Failure> {
        let list = vec![RecvWr { wr_id, sges: &self.receive }; count as usize];
        self.queue_pair.post_recv(&list)
    }
}

/// An empty SEND, which grants receives to the other side.
pub(super) fn credit(wr_id: u64) -> SendWr<'static> {
    let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(&[]));
    SendWr { wr_id, op: SendOp::Send, flags, payload, ud: None, srq: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_do_not_overlap() {
        for size in [1, 64, 65, 4096] {
            let params = Params { size, queue_pairs: 3, ..Params::defaults(Test::SendBw) };
            let layout = Layout::of(&params);
            let mut last = 0;
            for qp in 0..3 {
                assert!(layout.outgoing(qp) >= last);
                let receive = layout.receive(qp, Transport::Ud);
                assert!(receive.start >= layout.outgoing(qp) + size);
                assert_eq!(receive.end, layout.incoming(qp) + size);
                last = receive.end;
            }
            assert!(last <= layout.total(3));
        }
    }
}
