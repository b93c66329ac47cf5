//! How bytes of a stream arrive.
//!
//! Payload of a long WRITE goes straight into its region if the kernel can write there; everything else goes into a buffer.

use super::end::Connected;
use crate::engine::{Engine, QpCore};
use crate::memory::{External, Peer, Pins};
use ferroce_proto::iwarp::StreamQp;
use ferroce_proto::verbs::Access;
use std::io;

/// Bytes that arrived. If there are none, the peer has closed the stream.
pub(super) struct Received {
    /// How many are in a region.
    pub(super) in_place: usize,
    /// How many follow in the buffer.
    pub(super) buffered: usize,
    /// Whether the buffers were filled completely, so that more bytes may wait.
    pub(super) is_full: bool,
}

impl Received {
    /// How many bytes there are.
    pub(super) fn len(&self) -> usize {
        self.in_place + self.buffered
    }
}

impl Engine {
    /// Reads the bytes that have arrived. Returns `None` if there are none.
    pub(super) fn receive_stream(
        &self,
        connected: &Connected,
        qp: &QpCore,
        machine: &StreamQp,
        buffer: &mut [u8],
    ) -> io::Result<Option<Received>> {
        let mut pins = Pins::new(&self.device.regions);
        if let Some((target, following_len)) = self.in_place(connected, qp, machine, &mut pins) {
            let following_len = following_len.min(buffer.len());
            // SAFETY: `pins` hold the region, and `in_place` found that the peer may write these bytes.
            let read = || unsafe { connected.socket.receive_in_place(target, &mut buffer[..following_len]) };
            match connected.receive(read) {
                // The program has unmapped its region: the copy reports it.
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {}
                received => {
                    return Ok(received?.map(|count| Received {
                        in_place: count.min(target.len()),
                        buffered: count.saturating_sub(target.len()),
                        is_full: count == target.len() + following_len,
                    }));
                }
            }
        }
        drop(pins);
        let received = connected.receive(|| connected.socket.receive(buffer))?;
        let capacity = buffer.len();
        Ok(received.map(|buffered| Received { in_place: 0, buffered, is_full: buffered == capacity }))
    }

    /// The location of the next bytes in a region, and how many bytes that follow are read with them.
    fn in_place(
        &self,
        connected: &Connected,
        qp: &QpCore,
        machine: &StreamQp,
        pins: &mut Pins<'_>,
    ) -> Option<(External, usize)> {
        let next = machine.in_place().filter(|_| connected.socket.can_receive_in_place())?;
        let peer = Peer { pd: next.pd, qp: qp.qpn };
        // A fault is reported when a copy of the bytes is placed.
        let target = pins.remote(peer, next.rkey, next.addr, next.len as usize, Access::REMOTE_WRITE);
        Some((target.ok()??.part(0, next.most as usize), next.following_len))
    }
}
