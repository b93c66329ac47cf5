//! How bytes of a stream arrive.
//!
//! Payload of a long WRITE goes straight into its region if the kernel can write there; everything else goes into a buffer.

use super::end::Connected;
use crate::engine::{Engine, QpCore};
use crate::memory::{External, Peer, Pins};
use ferroce_proto::iwarp::StreamQp;
use ferroce_proto::iwarp::wire::Crc32c;
use ferroce_proto::verbs::Access;
use std::io;

/// Bytes that arrived. If there are none, the peer has closed the stream.
pub(super) struct Received<'a> {
    /// Those in a region, which the pins hold.
    in_place: Option<(External, Pins<'a>)>,
    /// How many follow in the buffer.
    pub(super) buffered: usize,
    /// Whether all room was used, so that more may wait.
    pub(super) is_full: bool,
}

impl Received<'_> {
    /// How many bytes there are.
    pub(super) fn len(&self) -> usize {
        self.placed() + self.buffered
    }

    /// How many of them are in a region.
    pub(super) fn placed(&self) -> usize {
        self.in_place.as_ref().map_or(0, |(bytes, _)| bytes.len())
    }

    /// Continues a CRC over those in a region.
    pub(super) fn sum(&self, crc: Crc32c, sum: u32) -> u32 {
        let Some((placed, _)) = &self.in_place else { return sum };
        // SAFETY: the pins hold the region.
        unsafe { placed.summed(|bytes| crc.update(sum, bytes)) }
    }
}

impl Engine {
    /// Reads what has arrived; `None` if that is nothing.
    pub(super) fn receive_stream(
        &self,
        connected: &Connected,
        qp: &QpCore,
        machine: &StreamQp,
        buffer: &mut [u8],
    ) -> io::Result<Option<Received<'_>>> {
        let mut pins = Pins::new(&self.device.regions);
        if let Some((target, behind)) = self.in_place(connected, qp, machine, &mut pins) {
            let behind = behind.min(buffer.len());
            // SAFETY: `pins` hold the region, and `in_place` found that the peer may write these bytes.
            let received = unsafe { connected.socket.receive_in_place(target, &mut buffer[..behind]) };
            if let Ok(Some(count @ 1..)) = received {
                let placed = count.min(target.len());
                return Ok(Some(Received {
                    in_place: Some((target.part(0, placed), pins)),
                    buffered: count - placed,
                    is_full: count == target.len() + behind,
                }));
            }
            // Nothing, the end or an error: an error of an earlier send comes first. If the program has unmapped its region, the copy
            // reports it.
        }
        drop(pins);
        let received = connected.receive(buffer)?;
        Ok(received.map(|buffered| Received { in_place: None, buffered, is_full: buffered == buffer.len() }))
    }

    /// Where the next bytes belong, and how many behind them are read with them.
    fn in_place(
        &self,
        connected: &Connected,
        qp: &QpCore,
        machine: &StreamQp,
        pins: &mut Pins<'_>,
    ) -> Option<(External, usize)> {
        let next = machine.in_place().filter(|_| connected.socket.can_receive_in_place())?;
        let peer = Peer { pd: next.pd, qp: qp.qpn };
        // What is wrong with it is reported when a copy of it is placed.
        let target = pins.remote(peer, next.rkey, next.addr, next.len as usize, Access::REMOTE_WRITE);
        Some((target.ok()??.part(0, next.most as usize), next.behind))
    }
}
