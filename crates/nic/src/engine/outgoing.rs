//! Packets of one turn on their way to the link, with the regions that they point into.

use super::{Engine, QpCore};
use crate::link::TxBatch;
use crate::memory::{External, Peer, Pins};
use ferroce_proto::Psn;
use ferroce_proto::qp::{TxPayload, in_row};
use ferroce_proto::verbs::{MemoryFault, Route};
use ferroce_proto::wire::{Bth, Headers, Service, pad_of};
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Payloads from this length on stay where they are. For shorter ones the copy costs less than two more pieces of a message.
const EXTERNAL_FROM: usize = 1024;

/// A packet this far behind the last one is sent again; one further behind belongs to another life of the queue pair.
const FURTHEST_BACK: u32 = 1 << 16;
/// Packets that are copied after one had to be sent again.
const COPIED_AFTER_RESEND: u32 = 4096;

thread_local! {
    /// Each thread's packets on their way out. Made on first use, reused ever after.
    static KEPT: Cell<Option<Box<TxBatch>>> = const { Cell::new(None) };
}

/// Where packets gather.
pub(super) enum Batch<'a> {
    /// With those of other queue pairs.
    Shared(&'a mut TxBatch),
    /// In the thread's own batch. Only empty while it is given back.
    Own(Option<Box<TxBatch>>),
}

impl Batch<'_> {
    /// The thread's own. In a shared library, to fetch it is a call: so only who sends does.
    pub(super) fn own() -> Self {
        let kept = KEPT.try_with(Cell::take).ok().flatten();
        Batch::Own(Some(kept.unwrap_or_else(|| Box::new(TxBatch::new()))))
    }
}

impl Deref for Batch<'_> {
    type Target = TxBatch;

    #[inline]
    fn deref(&self) -> &TxBatch {
        match self {
            Batch::Shared(tx) => tx,
            Batch::Own(kept) => kept.as_ref().expect("given back only at the end"),
        }
    }
}

impl DerefMut for Batch<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut TxBatch {
        match self {
            Batch::Shared(tx) => tx,
            Batch::Own(kept) => kept.as_mut().expect("given back only at the end"),
        }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if let Batch::Own(kept) = self
            && !std::thread::panicking()
        {
            // A thread that is being torn down has no place for it any more; then it is simply dropped.
            let _ = KEPT.try_with(|slot| slot.set(kept.take()));
        }
    }
}

/// A batch and the hold on what it points to. Neither outlives the other.
pub(super) struct Outgoing<'a> {
    engine: &'a Engine,
    tx: Batch<'a>,
    pins: Pins<'a>,
}

impl<'a> Outgoing<'a> {
    pub(super) fn new(engine: &'a Engine, tx: Batch<'a>) -> Self {
        Outgoing { engine, tx, pins: Pins::new(&engine.regions) }
    }

    /// Whether no packet waits.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.tx.is_empty()
    }

    /// Hands everything to the link.
    pub(super) fn flush(&mut self) {
        if !self.tx.is_empty() {
            self.engine.link.send(&mut self.tx);
            self.tx.clear();
        }
        self.pins.release();
    }

    /// Adds a packet, and makes room for it first if need be.
    pub(super) fn push(
        &mut self,
        route: &Route,
        headers: &Headers,
        payload: TxPayload<'_>,
        qp: &QpCore,
    ) -> Result<(), MemoryFault> {
        let head_len = headers.encoded_len();
        let pad_len = usize::from(headers.bth.pad);
        let len = head_len + payload.len() + pad_len;
        if !self.tx.has_room(len) || self.tx.would_cut(route, len) {
            self.flush();
        }
        match self.external(headers, payload, &qp.resends)? {
            Some(external) => {
                // SAFETY: `pins` hold the region, and let go of it only after the batch was cleared: in `flush` and when
                // `self` is dropped.
                let head = unsafe { self.tx.reserve_external(route, head_len, external, pad_len) };
                headers.write(head);
                Ok(())
            }
            None => self.push_filled(route, len, payload, qp, |packet| {
                headers.write(packet);
                head_len
            }),
        }
    }

    /// Adds a packet whose headers are written already. False: its payload is long, or cannot be read, and nothing was added.
    pub(super) fn push_short(
        &mut self,
        route: &Route,
        head: &[u8],
        payload: TxPayload<'_>,
        qp: &QpCore,
    ) -> bool {
        let (body, pad) = (payload.len(), pad_of(payload.len()));
        if body >= EXTERNAL_FROM {
            return false;
        }
        let len = head.len() + body + pad;
        if !self.tx.has_room(len) {
            self.flush();
        }
        self.push_filled(route, len, payload, qp, |packet| {
            packet[..head.len()].copy_from_slice(head);
            head.len()
        })
        .is_ok()
    }

    /// Adds a row of packets: see [`Host::transmit_row`](ferroce_proto::qp::Host::transmit_row).
    pub(super) fn push_row(
        &mut self,
        route: &Route,
        headers: &Headers,
        payload: TxPayload<'_>,
        count: u32,
        qp: &QpCore,
    ) -> Result<u32, MemoryFault> {
        let mut done = 0;
        while done < count {
            let (headers, payload) = in_row(headers, payload, done);
            let outcome = match self.push_loads(route, &headers, payload, count - done, &qp.resends) {
                0 => self.push(route, &headers, payload, qp).map(|()| 1),
                added => Ok(added),
            };
            match outcome {
                Ok(added) => done += added,
                Err(fault) if done == 0 => return Err(fault),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Adds as many packets of a row as fit and may point to their payload; 0 if the first may not.
    fn push_loads(
        &mut self,
        route: &Route,
        headers: &Headers,
        payload: TxPayload<'_>,
        count: u32,
        resends: &Resends,
    ) -> u32 {
        let TxPayload::Local { pd, sges, offset, len } = payload else { return 0 };
        let (bth, len) = (&headers.bth, len as usize);
        let is_plain = bth.opcode.service == Service::Rc && headers.encoded_len() == Bth::LEN && bth.pad == 0;
        if !is_plain || len < EXTERNAL_FROM || !self.engine.may_point || resends.is_copying(bth.psn) {
            return 0;
        }
        if self.tx.would_cut(route, Bth::LEN + len) {
            self.flush();
        }
        let count = (count as usize).min(self.tx.room_in_runs(route, Bth::LEN + len));
        // What is wrong with a later packet is found when it comes to it.
        let Ok(Some(external)) = self.pins.local(pd, sges, offset, count * len) else { return 0 };
        // SAFETY: as in `push`.
        unsafe { self.tx.push_row(route, bth, external, len) };
        resends.on_row(bth.psn, count as u32);
        count as u32
    }

    /// Where the payload lies, if the packet may point to it. Only data of reliable connections may: the others complete
    /// before the batch is sent, and then the bytes are the application's again. What a peer reads is copied too, for
    /// programs change such memory all the time.
    fn external(
        &mut self,
        headers: &Headers,
        payload: TxPayload<'_>,
        resends: &Resends,
    ) -> Result<Option<External>, MemoryFault> {
        let TxPayload::Local { pd, sges, offset, len } = payload else { return Ok(None) };
        let bth = &headers.bth;
        let is_long = len as usize >= EXTERNAL_FROM && self.engine.may_point;
        // What a peer that repeats selectively missed is copied, and nothing else is because of it.
        if !is_long || bth.opcode.service != Service::Rc || bth.selective || resends.must_copy(bth.psn) {
            return Ok(None);
        }
        self.pins.local(pd, sges, offset, len as usize)
    }

    /// Adds a packet of `len` bytes with a copy of the payload behind the headers, which `write_head` writes and measures.
    #[inline]
    fn push_filled(
        &mut self,
        route: &Route,
        len: usize,
        payload: TxPayload<'_>,
        qp: &QpCore,
        write_head: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<(), MemoryFault> {
        let packet = self.tx.reserve(route, len);
        let head_len = write_head(packet);
        let (out, pad) = packet[head_len..].split_at_mut(payload.len());
        if !pad.is_empty() {
            pad.fill(0);
        }
        let regions = &self.engine.regions;
        let filled = match payload {
            TxPayload::None => Ok(()),
            TxPayload::Bytes(bytes) => {
                out.copy_from_slice(bytes);
                Ok(())
            }
            TxPayload::Local { pd, sges, offset, .. } => regions.gather(pd, sges, offset, out),
            TxPayload::Remote { pd, rkey, addr, .. } => {
                regions.read_remote(Peer { pd, qp: qp.qpn }, rkey, addr, out)
            }
        };
        if filled.is_err() {
            self.tx.cancel_last();
        }
        filled
    }
}

impl Drop for Outgoing<'_> {
    fn drop(&mut self) {
        if !self.pins.is_empty() {
            // A panic may have come out of the link itself.
            if std::thread::panicking() {
                self.tx.clear();
            }
            self.flush();
        }
    }
}

/// Which packets of a queue pair are sent again.
///
/// A program that writes to a buffer while it is being sent can spoil the ICRC of a packet that points to it. That must
/// not happen to the same packet again and again, so what is sent again is copied, and so is what follows for a while.
/// Used under the queue pair's lock only.
#[derive(Debug)]
pub(crate) struct Resends {
    /// The packet number behind the last packet; [`NONE_YET`] before the first.
    next: AtomicU32,
    /// Packets that will yet be copied.
    copies_left: AtomicU32,
}

/// No packet number: those have 24 bits.
const NONE_YET: u32 = u32::MAX;

impl Default for Resends {
    fn default() -> Self {
        Resends { next: AtomicU32::new(NONE_YET), copies_left: AtomicU32::new(0) }
    }
}

impl Resends {
    /// Whether packets are being copied, or will be from this one on.
    fn is_copying(&self, psn: Psn) -> bool {
        let next = self.next.load(Relaxed);
        self.copies_left.load(Relaxed) > 0 || (next != NONE_YET && next != psn.value())
    }

    /// A row of packets from this one on was sent, as far as [`Self::is_copying`] had nothing against it.
    fn on_row(&self, psn: Psn, count: u32) {
        self.next.store(psn.plus(count).value(), Relaxed);
    }

    /// Whether the payload of this packet, which is the next to be sent, must be copied.
    fn must_copy(&self, psn: Psn) -> bool {
        let behind = match self.next.load(Relaxed) {
            NONE_YET => 0,
            next => Psn::new(next).minus(psn.value()).value(),
        };
        self.next.store(psn.plus(1).value(), Relaxed);
        let copies_left = match behind {
            1..=FURTHEST_BACK => COPIED_AFTER_RESEND,
            _ => self.copies_left.load(Relaxed),
        };
        self.copies_left.store(copies_left.saturating_sub(1), Relaxed);
        copies_left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_again_is_copied_and_so_is_what_follows() {
        let resends = Resends::default();
        let first = Psn::new(0xff_fff0);
        assert!((0..100).all(|n| !resends.must_copy(first.plus(n))));
        let again = (0..).take_while(|&n| resends.must_copy(first.plus(90 + n))).count();
        assert_eq!(again, COPIED_AFTER_RESEND as usize);
        assert!(!resends.must_copy(first.plus(1 << 20)), "a gap in front (a READ) is no resend");
        assert!(!resends.must_copy(first), "another life of the queue pair");
    }
}
