//! Messages whose bytes the peer fetches.
//!
//! Afterwards such a request is under way as if all its packets had been sent. If anything goes wrong with it, its packets are sent,
//! as they would be sent again; so nobody else needs to know.

use super::super::super::io::Io;
use super::super::super::sq::{SendQueue, SendWqe};
use super::super::super::state::timeout_ns;
use super::super::super::{Host, LARGE_SEGMENT};
use super::Requester;
use super::plan::Plan;
use crate::ids::PKey;
use crate::verbs::{SendOp, Transport};
use crate::wire::RendezvousSend;

/// Packets of messages that may be under way by name: they take up no room on the way, so that it need not be the window. But all of them are sent
/// again if one is refused.
const WINDOW_PACKETS: u32 = (8 << 20) / LARGE_SEGMENT;

/// Bytes per nanosecond that are copied at the very least. A message that takes longer than the transport timer would be given up on.
const SLOWEST: u64 = 1;

impl Requester {
    /// Sends the request under the cursor by name, if it is a message that was never sent, nothing holds it back, and the host can.
    pub(super) fn send_rendezvous<H: Host>(
        &mut self,
        wqe: &SendWqe,
        sq: &SendQueue,
        io: &mut Io<'_, H>,
    ) -> bool {
        let imm = match wqe.op {
            SendOp::Send => None,
            SendOp::SendImm(imm) => Some(imm),
            _ => return false,
        };
        let is_first = self.sent == 0 && self.psn == self.high;
        let may_be_named = wqe.len > io.mtu() && !wqe.inline && io.id.transport == Transport::Rc;
        if !is_first || !may_be_named || !self.is_undisturbed() || self.in_flight() >= WINDOW_PACKETS {
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
