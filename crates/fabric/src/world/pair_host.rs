//! The host of a simulated queue pair: a link for packets without payload, and memory without bytes.
//!
//! The bytes of a message are never allocated. A [`Frame`] has the real headers and the length of the payload. The receiver
//! gets zeros, and its memory only records how far they reach.

use crate::packet::Kind;
use ferroce_proto::qp::{
    DropReason, Egress, Events, HistoryEvent, Memory, Placement, REPORT_LEN, RecvWqe, RefusalReason, Segment,
    Side, Transmission, TxError, TxPayload, WriteHeaders,
};
use ferroce_proto::verbs::{
    Access, AtomicOp, Completion, EventKind, MemoryFault, MwBind, Route, Sge, WcStatus,
};
use ferroce_proto::wire::{Bth, Headers, NakCode, Opcode, Syndrome, pad_of};
use ferroce_proto::{PdId, RKey, Srqn};
use std::fmt;

/// Largest payload that a frame stores: the report of a sequence NAK.
const MAX_BYTES: usize = REPORT_LEN;
const _: () = assert!(Headers::MAX_LEN + MAX_BYTES <= u8::MAX as usize, "the length of a frame is a byte");

/// The headers of a packet and the length of its payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    bytes: [u8; Headers::MAX_LEN + MAX_BYTES],
    /// Length of the headers and of the stored payload.
    len: u8,
    /// Number of zeros behind them: message data and padding.
    zeros: u16,
    pub(super) kind: Kind,
    /// It is a retransmission.
    pub(super) again: bool,
}

impl Frame {
    fn new<W: WriteHeaders>(segment: &Segment<'_, W>) -> Frame {
        let mut bytes = [0; Headers::MAX_LEN + MAX_BYTES];
        let payload = segment.payload.len();
        let mut len = segment.headers.encoded_len();
        segment.headers.write_to(payload, &mut bytes[..len]);
        let mut zeros = payload + pad_of(payload);
        if let TxPayload::Bytes(data) = segment.payload {
            let end = len + data.len();
            bytes[len..end].copy_from_slice(data);
            (len, zeros) = (end, zeros - (end - len));
        }
        let kind =
            if segment.is_acknowledged { Kind::Data } else { answer(&segment.headers.to_headers(payload)) };
        let again = segment.transmission != Transmission::First;
        Frame { bytes, len: len as u8, zeros: zeros as u16, kind, again }
    }

    /// Bytes on the wire; `header` is the size of the BTH and of everything outside of it.
    pub(super) fn wire_bytes(&self, header: u32) -> u32 {
        header + u32::from(self.len) + u32::from(self.zeros) - Bth::LEN as u32
    }
}

/// The kind of a packet from the responder.
fn answer(headers: &Headers) -> Kind {
    match headers.aeth.map(|aeth| aeth.syndrome) {
        _ if headers.bth.opcode == Opcode::CNP => Kind::Cnp,
        Some(Syndrome::Nak(NakCode::PsnSequence)) => Kind::Nack,
        _ => Kind::Ack,
    }
}

/// A buffer to assemble a packet: headers directly before zeros.
#[derive(Debug)]
pub(super) struct Scratch(Vec<u8>);

impl Scratch {
    pub(super) fn new(mtu: u32) -> Scratch {
        Scratch(vec![0; Headers::MAX_LEN + MAX_BYTES + mtu as usize])
    }

    /// The packet as its receiver gets it, from the BTH to the padding.
    pub(super) fn packet(&mut self, frame: &Frame) -> &[u8] {
        let (from, len) = (Headers::MAX_LEN + MAX_BYTES, usize::from(frame.len));
        self.0[from - len..from].copy_from_slice(&frame.bytes[..len]);
        &self.0[from - len..from + usize::from(frame.zeros)]
    }
}

/// A simulated host during one call of a queue pair.
#[derive(Debug, Default)]
pub(super) struct PairHost {
    /// Number of packets that the host still accepts.
    pub(super) space: u32,
    /// Whether it refused a packet.
    pub(super) is_full: bool,
    /// The packets that it accepted.
    pub(super) frames: Vec<Frame>,
    /// Highest end of a write, in bytes from the start of the flow.
    pub(super) written_to: u64,
    /// Status of the completion.
    pub(super) completed: Option<WcStatus>,
    /// Transport timers that expired, and probes.
    pub(super) timeouts: u32,
}

impl PairHost {
    /// The host for the next call of a queue pair. It accepts at most `space` packets.
    pub(super) fn with_space(mut self, space: u32) -> PairHost {
        self.frames.clear();
        PairHost { space, frames: self.frames, ..PairHost::default() }
    }
}

impl Egress for PairHost {
    fn send<W: WriteHeaders>(&mut self, _route: &Route, segment: &Segment<'_, W>) -> Result<u32, TxError> {
        // One packet of a segment per call, so that the flows of a host share its port round robin.
        if self.space == 0 {
            self.is_full = true;
            return Err(TxError::Full);
        }
        self.space -= 1;
        self.frames.push(Frame::new(segment));
        Ok(1)
    }
}

impl Memory for PairHost {
    fn scatter(&mut self, _: PdId, _: &[Sge], _: u64, _: &[u8], _: Placement) -> Result<(), MemoryFault> {
        Ok(())
    }

    fn check_remote(&mut self, _: PdId, _: RKey, _: u64, _: u64, _: Access) -> Result<(), MemoryFault> {
        Ok(())
    }

    fn write_remote(
        &mut self,
        _: PdId,
        _: RKey,
        addr: u64,
        data: &[u8],
        _: Placement,
    ) -> Result<(), MemoryFault> {
        self.written_to = self.written_to.max(addr + data.len() as u64);
        Ok(())
    }

    fn atomic(&mut self, _: PdId, _: RKey, _: u64, _: AtomicOp) -> Result<u64, MemoryFault> {
        Ok(0)
    }

    fn store_remote(&mut self, _: PdId, _: RKey, _: u64, _: [u8; 8]) -> Result<(), MemoryFault> {
        Ok(())
    }

    fn flush_remote(&mut self, _: PdId, _: RKey, _: Option<(u64, u64)>) -> Result<(), MemoryFault> {
        Ok(())
    }

    fn invalidate(&mut self, _: PdId, _: RKey) -> Result<(), MemoryFault> {
        Ok(())
    }

    fn bind_window(&mut self, _: PdId, _: &MwBind) -> Result<(), MemoryFault> {
        Ok(())
    }
}

impl Events for PairHost {
    fn xrc_pd(&mut self, _: Srqn) -> Option<PdId> {
        None
    }

    fn take_shared_recv(&mut self, _: Option<Srqn>, _: &mut RecvWqe) -> bool {
        false
    }

    fn complete(&mut self, _: Side, completion: Completion) {
        self.completed = Some(completion.status);
    }

    fn event(&mut self, _: EventKind) {}

    fn dropped(&mut self, _: DropReason, _: fmt::Arguments<'_>) {}

    fn refused(&mut self, _: RefusalReason, _: fmt::Arguments<'_>) {}

    fn explain(&mut self, _: fmt::Arguments<'_>) {}

    fn record(&mut self, event: HistoryEvent, count: u32) {
        if matches!(event, HistoryEvent::Timeout | HistoryEvent::Probe) {
            self.timeouts += count;
        }
    }
}
