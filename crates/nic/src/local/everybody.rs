//! Packets to the queue pair numbers that every process has: QP1, and that of multicast groups (`cast`).
//!
//! Their number does not tell whose they are. A message of connection management names its receiver in itself, as the steering
//! of the port reads it. Such messages are few and must arrive, so nothing here relies on a local peer: what does not find it
//! alive, with room in its ring, goes by UDP, and so does every repetition.

use super::link::{LocalLink, meta_of};
use crate::link::{Link, TxBatch, is_last_word, management_slot};
use ferroce_proto::Qpn;
use ferroce_proto::qp::Attempt;
use ferroce_proto::wire::{ICRC_LEN, dest_qpn};
use smallvec::SmallVec;

/// Packets of a batch.
const MANY: usize = 256;

/// How a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It has gone already.
    Gone,
    Wire,
    /// By the wire, and it has gone through rings besides.
    Echo,
}

impl LocalLink {
    /// Sends packets whose numbers name no local peer.
    pub(super) fn send_rest(&self, batch: &mut TxBatch) {
        let is_shared = |index| matches!(dest_qpn(batch.wire_bytes(index)), Some(Qpn::GSI | Qpn::MULTICAST));
        if !(0..batch.len()).any(is_shared) {
            return self.udp.send(batch);
        }
        let ways: SmallVec<[Way; MANY]> = (0..batch.len()).map(|index| self.try_ring(batch, index)).collect();
        send_along(batch, &ways, Way::Wire, |batch| self.udp.send(batch));
        send_along(batch, &ways, Way::Echo, |batch| self.udp.send_echoes(batch));
        batch.clear();
    }

    fn try_ring(&self, batch: &TxBatch, index: usize) -> Way {
        match dest_qpn(batch.wire_bytes(index)) {
            Some(Qpn::GSI) if self.push_management(batch, index).is_done() => Way::Gone,
            Some(Qpn::MULTICAST) if self.push_to_group(batch, index).is_done() => Way::Echo,
            _ => Way::Wire,
        }
    }

    /// Puts a message of connection management into the ring of the process that it is for, or declines.
    fn push_management(&self, batch: &TxBatch, index: usize) -> Attempt {
        let (bytes, route) = (batch.wire_bytes(index), &batch.entries()[index].route);
        let packet = &bytes[..bytes.len() - ICRC_LEN];
        let Some(local_peer) = self.local_peers().find_in_slot(management_slot(packet), route.dgid) else {
            return Attempt::Declined;
        };
        if !local_peer.lives_now() {
            return Attempt::Declined;
        }
        // Who says the last word may be gone a moment later, and its ring with it, unless its reader has it open by then.
        if is_last_word(packet) && !local_peer.is_settled() {
            return Attempt::Declined;
        }
        let attempt = local_peer.push_bytes_now(&meta_of(route), packet);
        if attempt.is_done() {
            self.count_pushed(packet.len());
            self.wake_if_asleep(&local_peer);
        }
        attempt
    }
}

/// Sends the packets that go this way. The batch may be empty afterwards.
fn send_along(batch: &mut TxBatch, ways: &[Way], way: Way, send: impl Fn(&mut TxBatch)) {
    let count = ways.iter().filter(|other| **other == way).count();
    if count == 0 {
        return;
    }
    if count == ways.len() {
        return send(batch);
    }
    let mut part = TxBatch::new();
    for index in (0..batch.len()).filter(|&index| ways[index] == way) {
        if !part.has_room(batch.entries()[index].wire_len() - ICRC_LEN) {
            send(&mut part);
        }
        batch.copy_packet(index, &mut part);
    }
    send(&mut part);
}
