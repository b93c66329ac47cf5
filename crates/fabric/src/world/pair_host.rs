//! What a queue pair of a simulated host calls: a link that takes packets without payload, and memory that does not exist.
//!
//! The bytes of a message are never made. A [`Frame`] has the true headers and the length of the payload; the receiver
//! gets zeros, and its memory only counts them.

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

/// Largest payload that a frame carries as bytes: the report of a sequence NAK.
const MAX_BYTES: usize = REPORT_LEN;
const _: () = assert!(Headers::MAX_LEN + MAX_BYTES <= u8::MAX as usize, "the length of a frame is a byte");

/// The headers of a packet, and how long its payload is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    bytes: [u8; Headers::MAX_LEN + MAX_BYTES],
    /// Headers and payload that is more than zeros.
    len: u8,
    /// Zeros behind them: the data of a message, and padding.
    zeros: u16,
    pub(super) kind: Kind,
    /// It was sent before.
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

    /// Bytes on the wire, where a BTH and what is around it take `header` bytes.
    pub(super) fn wire_bytes(&self, header: u32) -> u32 {
        header + u32::from(self.len) + u32::from(self.zeros) - Bth::LEN as u32
    }
}

/// What an answer is.
fn answer(headers: &Headers) -> Kind {
    match headers.aeth.map(|aeth| aeth.syndrome) {
        _ if headers.bth.opcode == Opcode::CNP => Kind::Cnp,
        Some(Syndrome::Nak(NakCode::PsnSequence)) => Kind::Nack,
        _ => Kind::Ack,
    }
}

/// Memory in which a packet is put together: headers right before zeros.
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
    /// Packets that the host still takes.
    pub(super) room: u32,
    /// The queue pair had one more.
    pub(super) is_full: bool,
    /// The packets it took.
    pub(super) frames: Vec<Frame>,
    /// End of the last write, in bytes from the start of the message.
    pub(super) written_to: u64,
    /// Status of the completion.
    pub(super) completed: Option<WcStatus>,
    /// Transport timers that expired, and probes.
    pub(super) timeouts: u32,
}

impl PairHost {
    /// Takes at most `room` packets.
    pub(super) fn with_room(mut self, room: u32) -> PairHost {
        self.frames.clear();
        PairHost { room, frames: self.frames, ..PairHost::default() }
    }
}

impl Egress for PairHost {
    fn send<W: WriteHeaders>(&mut self, _route: &Route, segment: &Segment<'_, W>) -> Result<u32, TxError> {
        // A run has one packet here: the flows of a host take turns.
        if self.room == 0 {
            self.is_full = true;
            return Err(TxError::Full);
        }
        self.room -= 1;
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
