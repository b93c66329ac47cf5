//! How an FPDU is sent.
//!
//! Without a CRC the kernel reads a long payload from its region; short ones, and those that are not in one mapped piece, are copied first.
//! With a CRC everything is copied: the program may change its bytes, and a wrong CRC would end the connection.

use super::Streams;
use super::end::{Connected, Unsent};
use crate::engine::{Engine, QpCore};
use crate::link::StreamPiece;
use crate::memory::{External, Peer, Pins};
use ferroce_proto::iwarp::wire::Fpdu;
use ferroce_proto::qp::{TxError, TxPayload};
use ferroce_proto::verbs::{Access, MemoryFault};
use smallvec::SmallVec;
use std::cell::Cell;

/// The kernel reads payloads of at least this many bytes from their region.
const EXTERNAL_FROM: usize = 1024;

thread_local! {
    /// Each thread's memory for copies, allocated on first use and reused.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// `work` gets `len` bytes of any values.
fn with_scratch<R>(len: usize, work: impl FnOnce(&mut [u8]) -> R) -> R {
    // At the end of a thread its thread-locals are gone.
    let mut scratch = SCRATCH.try_with(Cell::take).unwrap_or_default();
    if scratch.len() < len {
        scratch.resize(len, 0);
    }
    let result = work(&mut scratch[..len]);
    let _ = SCRATCH.try_with(|kept| kept.set(scratch));
    result
}

impl Engine {
    /// Sends an FPDU from its byte `from` on. The caller holds the queue pair's lock. Returns how many bytes of the FPDU are sent or stored.
    pub(in crate::engine) fn send_fpdu(
        &self,
        qp: &QpCore,
        fpdu: &Fpdu<'_>,
        from: usize,
    ) -> Result<usize, TxError> {
        let (Some(streams), Some(stream)) = (&self.streams, qp.stream()) else { return Err(TxError::Full) };
        let mut end = stream.socket.lock();
        let Some(connected) = &mut end.connected else { return Err(TxError::Full) };
        let waits = connected.awaits_writable && fpdu.payload.len() >= EXTERNAL_FROM;
        if waits || !flush(connected) {
            return Err(TxError::Full);
        }
        let taken = match fpdu.has_crc {
            true => self.send_copied(streams, connected, qp, fpdu)?,
            false => self.send_in_place(streams, connected, qp, fpdu, from)?,
        };
        if taken > from { Ok(taken) } else { Err(TxError::Full) }
    }

    /// Appends the rest of an FPDU, from its byte `from` on, to the unsent bytes. They are sent before the stream is closed.
    pub(in crate::engine) fn keep_fpdu(
        &self,
        qp: &QpCore,
        fpdu: &Fpdu<'_>,
        from: usize,
    ) -> Result<(), TxError> {
        let (Some(streams), Some(stream)) = (&self.streams, qp.stream()) else { return Err(TxError::Full) };
        let mut end = stream.socket.lock();
        let Some(connected) = &mut end.connected else { return Err(TxError::Full) };
        with_scratch(fpdu.encoded_len(), |copy| {
            self.encode(streams, copy, qp, fpdu)?;
            connected.unsent.push(&copy[from..]);
            Ok(())
        })
    }

    /// Writes a whole FPDU into memory of its length.
    fn encode(
        &self,
        streams: &Streams,
        copy: &mut [u8],
        qp: &QpCore,
        fpdu: &Fpdu<'_>,
    ) -> Result<(), TxError> {
        let (header, rest) = copy.split_at_mut(fpdu.header.len());
        let (payload, trailer) = rest.split_at_mut(fpdu.payload.len());
        header.copy_from_slice(fpdu.header);
        self.fill_payload(payload, fpdu.payload, qp).map_err(TxError::Fault)?;
        let (bytes, len) = fpdu.trailer(streams.crc, |sum| streams.crc.update(sum, payload));
        trailer.copy_from_slice(&bytes[..len]);
        Ok(())
    }

    /// Copies the whole FPDU, sends it, and stores the bytes that the kernel does not accept.
    fn send_copied(
        &self,
        streams: &Streams,
        connected: &mut Connected,
        qp: &QpCore,
        fpdu: &Fpdu<'_>,
    ) -> Result<usize, TxError> {
        with_scratch(fpdu.encoded_len(), |copy| {
            self.encode(streams, copy, qp, fpdu)?;
            let sent = connected.socket.send(copy, connected.segmenting(fpdu.ends_message));
            let sent = sent.inspect_err(|error| connected.on_send_error(error)).unwrap_or(0);
            // If the kernel accepted nothing, the FPDU stays with the queue pair.
            if sent > 0 && sent < copy.len() {
                connected.unsent = Unsent::new(&copy[sent..]);
            }
            Ok(if sent > 0 { copy.len() } else { 0 })
        })
    }

    fn send_in_place(
        &self,
        streams: &Streams,
        connected: &mut Connected,
        qp: &QpCore,
        fpdu: &Fpdu<'_>,
        from: usize,
    ) -> Result<usize, TxError> {
        let (trailer, trailer_len) = fpdu.trailer(streams.crc, |sum| sum);
        let (head_len, payload_len) = (fpdu.header.len(), fpdu.payload.len());
        let mut pins = Pins::new(&self.device.regions);
        let external = match streams.extras.captures() {
            // The capture reads the bytes too, and must record the same bytes that the kernel sends.
            true => None,
            false => self.external(&mut pins, fpdu.payload, qp).map_err(TxError::Fault)?,
        };
        let copied_len = if external.is_none() { payload_len } else { 0 };
        with_scratch(copied_len, |copy| {
            if external.is_none() {
                self.fill_payload(copy, fpdu.payload, qp).map_err(TxError::Fault)?;
            }
            let mut pieces = SmallVec::<[StreamPiece<'_>; 3]>::new();
            pieces.push(StreamPiece::Bytes(&fpdu.header[from.min(head_len)..]));
            let skipped = from.saturating_sub(head_len).min(payload_len);
            pieces.push(match external {
                Some(external) => StreamPiece::External(external.part(skipped, payload_len - skipped)),
                None => StreamPiece::Bytes(&copy[skipped..]),
            });
            let skipped = from.saturating_sub(head_len + payload_len);
            pieces.push(StreamPiece::Bytes(&trailer[skipped..trailer_len]));
            // SAFETY: `pins` hold the region until the call has returned.
            let sent =
                unsafe { connected.socket.send_pieces(&pieces, connected.segmenting(fpdu.ends_message)) };
            match (sent, external) {
                (Ok(sent), _) => Ok(from + sent),
                // Only that piece is memory of the program.
                (Err(error), Some(external)) if error.raw_os_error() == Some(libc::EFAULT) => {
                    let (addr, len) = (external.as_ptr() as u64, external.len() as u64);
                    Err(TxError::Fault(MemoryFault::NotPresent { addr, len }))
                }
                (Err(error), _) => {
                    connected.on_send_error(&error);
                    Ok(from)
                }
            }
        })
    }

    /// The payload in registered memory, if the kernel may read it there.
    fn external(
        &self,
        pins: &mut Pins<'_>,
        payload: TxPayload<'_>,
        qp: &QpCore,
    ) -> Result<Option<External>, MemoryFault> {
        match payload {
            TxPayload::Local { pd, sges, offset, len } if len as usize >= EXTERNAL_FROM => {
                pins.local(pd, sges, offset, len as usize, qp.address())
            }
            TxPayload::Remote { pd, rkey, addr, len, .. } if len as usize >= EXTERNAL_FROM => {
                pins.remote(Peer { pd, qp: qp.qpn }, rkey, addr, len as usize, Access::REMOTE_READ)
            }
            _ => Ok(None),
        }
    }
}

/// Sends the unsent bytes of earlier FPDUs. Returns whether all are sent.
pub(super) fn flush(connected: &mut Connected) -> bool {
    let flushed = connected.unsent.flush(&connected.socket, connected.segmenting(true));
    flushed.inspect_err(|error| connected.on_send_error(error)).unwrap_or(false)
}
