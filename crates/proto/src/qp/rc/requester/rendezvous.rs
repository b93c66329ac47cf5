//! Rendezvous sends: the peer copies the data of a SEND, or of a WRITE with immediate data, from local memory.
//!
//! After it is posted, a rendezvous send is in flight as if all its packets were sent. On any failure, its packets are
//! retransmitted as usual.

use super::super::super::io::Io;
use super::super::super::sq::{SendQueue, SendWqe};
use super::super::super::state::timeout_ns;
use super::super::super::{Host, LARGE_SEGMENT};
use super::Requester;
use super::plan::Plan;
use crate::ids::PKey;
use crate::verbs::{SendOp, Transport};
use crate::wire::{RendezvousSend, Reth};

/// Packets of rendezvous sends that may be in flight. They occupy no buffers in the network, so the congestion window
/// does not apply. All of them are retransmitted if the peer refuses one.
const WINDOW_PACKETS: u32 = (8 << 20) / LARGE_SEGMENT;

/// Lower bound of the copy rate in bytes per nanosecond. A message that takes longer than the transport timer would be
/// retransmitted.
const SLOWEST: u64 = 1;

impl Requester {
    /// Sends the request under the cursor as a rendezvous send, if it is a message that was never sent, no limit blocks
    /// it, and the host supports it.
    pub(super) fn send_rendezvous<H: Host>(
        &mut self,
        wqe: &SendWqe,
        sq: &SendQueue,
        io: &mut Io<'_, H>,
    ) -> bool {
        let (reth, imm) = match wqe.op {
            SendOp::Send => (None, None),
            SendOp::SendImm(imm) => (None, Some(imm)),
            SendOp::WriteImm { addr, rkey, imm } => (Some(Reth { addr, rkey, len: wqe.len }), Some(imm)),
            _ => return false,
        };
        let is_first = self.sent == 0 && self.psn == self.high;
        let may_be_referenced = wqe.len > io.mtu() && !wqe.inline && io.id.transport == Transport::Rc;
        if !is_first || !may_be_referenced || !self.is_undisturbed() || self.in_flight() >= WINDOW_PACKETS {
            return false;
        }
        if timeout_ns(io.attr.timeout).is_some_and(|ns| u64::from(wqe.len) > ns * SLOWEST) {
            return false;
        }
        let head = RendezvousSend {
            dest_qpn: io.attr.dest_qpn,
            pkey: PKey::DEFAULT,
            psn: self.psn,
            packets: wqe.packets,
            solicited: wqe.solicited,
            reth,
            imm,
            piggybacked_ack: io.piggybacked_ack,
        };
        let payload = sq.payload(self.cur, io.pd, 0, wqe.len);
        if !io.host.try_rendezvous(io.route, &head, payload).is_done() {
            return false;
        }
        io.piggybacked_ack = None;
        io.counters.tx_packets += u64::from(wqe.packets);
        io.counters.tx_bytes += u64::from(wqe.len);
        let plan = Plan { psn: self.psn, count: wqe.packets, ack_req: true };
        self.commit(&plan, wqe.packets, wqe.len, wqe.packets, io);
        true
    }
}
