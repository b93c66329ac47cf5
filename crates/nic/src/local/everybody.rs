//! Packets to the queue pair numbers that every process has: QP1, and that of multicast groups (`cast`).
//!
//! Such a number does not identify the process. A message of connection management contains the slot of its receiver, which the steering
//! program of the port reads. These messages are few and must arrive, so they do not rely on a local peer: if it is not alive, or its ring is
//! full, they go by UDP, and so does every retry.

use super::link::{LocalLink, meta_of};
use crate::link::{Link, TxBatch, is_final_message, management_slot};
use ferroce_proto::Qpn;
use ferroce_proto::qp::Attempt;
use ferroce_proto::wire::{ICRC_LEN, dest_qpn};
use smallvec::SmallVec;

/// Packets of a batch whose paths need no allocation.
const MANY: usize = 256;

/// The path of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TxPath {
    /// It was pushed into a ring.
    Ring,
    Wire,
    /// It takes the wire, and was pushed into rings as well.
    Echo,
}

impl LocalLink {
    /// Sends packets whose destination number does not identify a local peer.
    pub(super) fn send_rest(&self, batch: &mut TxBatch) {
        let is_shared = |index| matches!(dest_qpn(batch.wire_bytes(index)), Some(Qpn::GSI | Qpn::MULTICAST));
        if !(0..batch.len()).any(is_shared) {
            return self.udp.send(batch);
        }
        let paths: SmallVec<[TxPath; MANY]> =
            (0..batch.len()).map(|index| self.try_ring(batch, index)).collect();
        send_along(batch, &paths, TxPath::Wire, |batch| self.udp.send(batch));
        send_along(batch, &paths, TxPath::Echo, |batch| self.udp.send_echoes(batch));
        batch.clear();
    }

    fn try_ring(&self, batch: &TxBatch, index: usize) -> TxPath {
        match dest_qpn(batch.wire_bytes(index)) {
            Some(Qpn::GSI) if self.push_management(batch, index).is_done() => TxPath::Ring,
            Some(Qpn::MULTICAST) if self.push_to_group(batch, index).is_done() => TxPath::Echo,
            _ => TxPath::Wire,
        }
    }

    /// Puts a message of connection management into the ring of its receiver, or declines.
    fn push_management(&self, batch: &TxBatch, index: usize) -> Attempt {
        let (bytes, route) = (batch.wire_bytes(index), &batch.entries()[index].route);
        let packet = &bytes[..bytes.len() - ICRC_LEN];
        let Some(local_peer) = self.local_peers().find_in_slot(management_slot(packet), route.dgid) else {
            return Attempt::Declined;
        };
        if !local_peer.lives_now() {
            return Attempt::Declined;
        }
        // The sender of the last message of a connection may exit immediately, and its ring with it, unless the reader has opened it.
        if is_final_message(packet) && !local_peer.is_settled() {
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

/// Sends the packets that take this path. The batch may be empty afterwards.
fn send_along(batch: &mut TxBatch, paths: &[TxPath], path: TxPath, send: impl Fn(&mut TxBatch)) {
    let count = paths.iter().filter(|other| **other == path).count();
    if count == 0 {
        return;
    }
    if count == paths.len() {
        return send(batch);
    }
    let mut part = TxBatch::new();
    for index in (0..batch.len()).filter(|&index| paths[index] == path) {
        if !part.has_room(batch.entries()[index].wire_len() - ICRC_LEN) {
            send(&mut part);
        }
        batch.copy_packet(index, &mut part);
    }
    send(&mut part);
}
