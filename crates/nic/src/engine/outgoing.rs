//! Packets on their way to the link, with the regions that they point into.

use super::{Engine, QpCore};
use crate::link::TxBatch;
use crate::memory::{External, Peer, Pins, RemoteRead, answers_of};
use ferroce_proto::qp::{Segment, Transmission, TxPayload, WriteHeaders};
use ferroce_proto::verbs::{Access, MemoryFault, Route};
use ferroce_proto::wire::{Bth, pad_of};
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Packets point to payloads of at least this many bytes. A shorter payload is copied: that costs less than two more pieces of a message.
const EXTERNAL_FROM: usize = 1024;

/// Payload bytes that are copied after a retransmission.
const COPIED_AFTER_RESEND: u32 = 16 << 20;

thread_local! {
    /// Each thread's TX batch, allocated on first use and reused.
    static KEPT: Cell<Option<Box<TxBatch>>> = const { Cell::new(None) };
}

/// The batch that collects packets.
pub(super) enum Batch<'a> {
    /// A batch shared with other queue pairs.
    Shared(&'a mut TxBatch),
    /// The thread's own batch. `None` only while it is put back.
    Own(Option<Box<TxBatch>>),
}

impl Batch<'_> {
    /// The thread's own batch. In a shared library, access to a thread-local is a call, so only senders fetch it.
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
            Batch::Own(kept) => kept.as_ref().expect("taken only in drop"),
        }
    }
}

impl DerefMut for Batch<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut TxBatch {
        match self {
            Batch::Shared(tx) => tx,
            Batch::Own(kept) => kept.as_mut().expect("taken only in drop"),
        }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if let Batch::Own(kept) = self
            && !std::thread::panicking()
        {
            // At the end of a thread its thread-locals are gone. The batch is dropped then.
            let _ = KEPT.try_with(|slot| slot.set(kept.take()));
        }
    }
}

/// A batch and the pins of the regions that it points to. The pins are released after the batch is cleared.
pub(super) struct Outgoing<'a> {
    engine: &'a Engine,
    tx: Batch<'a>,
    pins: Pins<'a>,
}

impl<'a> Outgoing<'a> {
    pub(super) fn new(engine: &'a Engine, tx: Batch<'a>) -> Self {
        Outgoing { engine, tx, pins: Pins::new(&engine.device.regions) }
    }

    /// Whether packets that wait point to registered memory.
    pub(super) fn holds_memory(&self) -> bool {
        !self.pins.is_empty()
    }

    /// Whether no packet waits.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.tx.is_empty()
    }

    /// Sends everything by the link.
    pub(super) fn flush(&mut self) {
        if !self.tx.is_empty() {
            self.engine.link.send(&mut self.tx);
            self.tx.clear();
        }
        self.pins.release();
    }

    /// Adds at most `most` packets of a segment. Flushes the batch first if they do not fit. Returns how many were added.
    pub(super) fn push<W: WriteHeaders>(
        &mut self,
        route: &Route,
        segment: &Segment<'_, W>,
        most: u32,
        qp: &QpCore,
    ) -> Result<u32, MemoryFault> {
        if segment.count == 1 {
            self.push_one(route, segment, qp)
        } else {
            self.push_run(route, segment, most, qp)
        }
    }

    fn push_one<W: WriteHeaders>(
        &mut self,
        route: &Route,
        segment: &Segment<'_, W>,
        qp: &QpCore,
    ) -> Result<u32, MemoryFault> {
        let (headers, body) = (segment.headers, segment.payload.len());
        let (head_len, pad_len) = (headers.encoded_len(), pad_of(body));
        let len = head_len + body + pad_len;
        if !self.tx.has_room(len) || self.tx.would_cut(route, len) {
            self.flush();
        }
        match self.external(segment, qp)? {
            Some(external) => {
                // SAFETY: `pins` hold the region, and release it only after the batch was cleared: in `flush` and when
                // `self` is dropped.
                let head = unsafe { self.tx.reserve_external(route, head_len, external, pad_len) };
                headers.write_to(body, head);
            }
            None => {
                let packet = self.tx.reserve(route, len);
                headers.write_to(body, packet);
                let (out, pad) = packet[head_len..].split_at_mut(body);
                if !pad.is_empty() {
                    pad.fill(0);
                }
                if let Err(fault) = fill(out, segment.payload, self.engine, qp) {
                    self.tx.cancel_last();
                    return Err(fault);
                }
            }
        }
        Ok(1)
    }

    /// Adds several packets of a segment.
    #[inline(never)]
    fn push_run<W: WriteHeaders>(
        &mut self,
        route: &Route,
        segment: &Segment<'_, W>,
        most: u32,
        qp: &QpCore,
    ) -> Result<u32, MemoryFault> {
        let Segment { payload, transmission, is_acknowledged, .. } = *segment;
        let headers = segment.headers.to_headers(payload.len());
        let run = Segment { headers: &headers, payload, count: segment.count, transmission, is_acknowledged };
        let (count, mut done) = (run.count.min(most), 0);
        while done < count {
            let (headers, payload) = run.packet(done);
            let rest = Segment { headers: &headers, payload, count: count - done, ..run };
            let added = match payload {
                TxPayload::Remote { .. } => self.push_response_run(route, &rest, qp),
                _ => self.push_external_run(route, &rest, qp),
            };
            let outcome = if added == 0 { self.push_one(route, &rest, qp) } else { Ok(added) };
            match outcome {
                Ok(added) => done += added,
                Err(fault) if done == 0 => return Err(fault),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Adds as many packets as fit and may point to their payload; 0 if the first may not.
    fn push_external_run(&mut self, route: &Route, segment: &Segment<'_>, qp: &QpCore) -> u32 {
        let TxPayload::Local { pd, sges, offset, len } = segment.payload else { return 0 };
        let (len, Some(bth)) = (len as usize, segment.headers.only_bth()) else { return 0 };
        let is_copying = qp.resends.is_copying(segment.transmission, covers_payload(segment));
        if !self.may_point(segment) || pad_of(len) != 0 || is_copying {
            return 0;
        }
        let count = self.count_that_fits(route, Bth::LEN + len, segment.count);
        // A fault in a later packet is found when that packet is pushed.
        let Ok(Some(external)) = self.pins.local(pd, sges, offset, count * len, qp.address()) else {
            return 0;
        };
        if !covers_payload(segment) {
            // SAFETY: `pins` hold the region.
            unsafe { external.touch() };
        }
        // SAFETY: as in `push_one`.
        unsafe { self.tx.push_gso_run(route, bth, external, len) };
        count as u32
    }

    /// Adds as many packets of a READ response as fit and can be read; 0 if they need padding.
    fn push_response_run(&mut self, route: &Route, segment: &Segment<'_>, qp: &QpCore) -> u32 {
        let len = segment.payload.len();
        if pad_of(len) != 0 {
            return 0;
        }
        let count = self.count_that_fits(route, segment.headers.encoded_len() + len, segment.count);
        // A fault is found again when its packet is pushed alone.
        let Ok(bytes) = remote_read(segment.payload, count * len, self.engine, qp) else { return 0 };
        let fill = |n: usize, out: &mut [u8]| bytes.copy(n * len, out).is_ok();
        self.tx.push_copied_run(route, segment.headers, len, count, fill) as u32
    }

    /// How many of `count` packets with `len` transport bytes each the batch takes. Sends the batch first if it has no room for one.
    fn count_that_fits(&mut self, route: &Route, len: usize, count: u32) -> usize {
        if self.tx.would_cut(route, len) {
            self.flush();
        }
        (count as usize).min(self.tx.room_in_runs(route, len))
    }

    /// Whether requests may point to their payload. Only acknowledged ones may: others complete before the batch is sent, and then the
    /// application owns the bytes again.
    fn may_point<W: WriteHeaders>(&self, segment: &Segment<'_, W>) -> bool {
        segment.is_acknowledged && segment.payload.len() >= EXTERNAL_FROM && self.engine.may_point
    }

    /// The payload in registered memory, if the packet may point to it.
    fn external<W: WriteHeaders>(
        &mut self,
        segment: &Segment<'_, W>,
        qp: &QpCore,
    ) -> Result<Option<External>, MemoryFault> {
        let covers_payload = covers_payload(segment);
        let external = match segment.payload {
            TxPayload::Local { pd, sges, offset, len } if self.may_point(segment) => {
                if qp.resends.must_copy(segment.transmission, len as usize, covers_payload) {
                    return Ok(None);
                }
                self.pins.local(pd, sges, offset, len as usize, qp.address())?
            }
            // Programs change such memory all the time, which invalidates an ICRC that covers it. The kernel checks the memory of a repeated
            // response, which only a copy can report.
            TxPayload::Remote { pd, rkey, addr, len, is_repeated: false, .. }
                if !covers_payload && self.engine.may_point =>
            {
                let peer = Peer { pd, qp: qp.qpn };
                self.pins.remote(peer, rkey, addr, len as usize, Access::REMOTE_READ)?
            }
            _ => return Ok(None),
        };
        if let Some(external) = external.filter(|_| !covers_payload) {
            // SAFETY: `pins` hold the region.
            unsafe { external.touch() };
        }
        Ok(external)
    }
}

/// Whether the ICRC covers the payload, so that a change of it damages the packet.
fn covers_payload<W: WriteHeaders>(segment: &Segment<'_, W>) -> bool {
    !segment.headers.has_partial_icrc()
}

impl Engine {
    /// Copies the payload of a message of this queue pair.
    pub(super) fn fill_payload(
        &self,
        out: &mut [u8],
        payload: TxPayload<'_>,
        qp: &QpCore,
    ) -> Result<(), MemoryFault> {
        fill(out, payload, self, qp)
    }
}

/// Copies the payload of a packet.
fn fill(out: &mut [u8], payload: TxPayload<'_>, engine: &Engine, qp: &QpCore) -> Result<(), MemoryFault> {
    match payload {
        TxPayload::None => Ok(()),
        TxPayload::Bytes(bytes) => {
            out.copy_from_slice(bytes);
            Ok(())
        }
        TxPayload::Local { pd, sges, offset, .. } => {
            engine.device.regions.gather(pd, sges, offset, out, qp.address())
        }
        TxPayload::Remote { .. } => remote_read(payload, out.len(), engine, qp)?.copy(0, out),
    }
}

/// `len` bytes from the start of the payload of a READ response on.
fn remote_read<'a>(
    payload: TxPayload<'_>,
    len: usize,
    engine: &'a Engine,
    qp: &QpCore,
) -> Result<RemoteRead<'a>, MemoryFault> {
    let TxPayload::Remote { pd, rkey, addr, rest, is_first, is_repeated, .. } = payload else {
        unreachable!("only a READ response has such a payload")
    };
    // Read-ahead of responses is separate from that of requests.
    let ahead = (answers_of(qp.address()), rest, is_first);
    engine.device.regions.remote_read(Peer { pd, qp: qp.qpn }, rkey, (addr, len), ahead, is_repeated)
}

impl Drop for Outgoing<'_> {
    fn drop(&mut self) {
        if !self.pins.is_empty() {
            // The panic may have started in the link itself.
            if std::thread::panicking() {
                self.tx.clear();
            }
            self.flush();
        }
    }
}

/// Whether payloads of a queue pair are copied because of retransmissions.
///
/// A program that writes to a buffer in flight can invalidate the ICRC of a packet that points to it. That must not happen to every
/// retry, so retransmissions are copied. After going back, later packets are copied too for a while, unless their ICRC leaves out the payload.
/// Used under the queue pair's lock only.
#[derive(Debug, Default)]
pub(crate) struct Resends {
    /// Payload bytes still to be copied.
    copies_left: AtomicU32,
}

impl Resends {
    /// Whether packets are being copied, or will be from this one on.
    fn is_copying(&self, transmission: Transmission, covers_payload: bool) -> bool {
        transmission != Transmission::First || covers_payload && self.copies_left.load(Relaxed) > 0
    }

    /// Whether the payload of the next packet, of `len` bytes, must be copied. `covers_payload`: the ICRC does.
    fn must_copy(&self, transmission: Transmission, len: usize, covers_payload: bool) -> bool {
        let copies_left = match transmission {
            Transmission::First if !covers_payload => return false,
            // The peer misses only this packet, so no other is copied because of it.
            Transmission::Selective => return true,
            Transmission::GoBack => COPIED_AFTER_RESEND,
            Transmission::First => self.copies_left.load(Relaxed),
        };
        self.copies_left.store(copies_left.saturating_sub(len as u32), Relaxed);
        copies_left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resent_packet_is_copied_and_so_are_the_next() {
        const LEN: usize = 4096;
        let resends = Resends::default();
        let must_copy = |transmission| resends.must_copy(transmission, LEN, true);
        assert!(!must_copy(Transmission::First) && !resends.is_copying(Transmission::First, true));
        assert!(must_copy(Transmission::Selective));
        assert!(!must_copy(Transmission::First), "a selective repeat is about one packet");
        assert!(resends.is_copying(Transmission::GoBack, true) && must_copy(Transmission::GoBack));
        let covered = [true, false].map(|covers| resends.is_copying(Transmission::First, covers));
        assert_eq!((covered, resends.must_copy(Transmission::First, LEN, false)), ([true, false], false));
        let copied = (0..).take_while(|_| must_copy(Transmission::First)).count();
        assert_eq!(copied, COPIED_AFTER_RESEND as usize / LEN - 1);
    }
}
