//! Segments: the unit that a queue pair passes to its host, and the segmentation of RC and UC messages.

use super::TxPayload;
use super::sq::SendWqe;
use crate::verbs::SendOp;
use crate::wire::{AckOnly, Bth, Headers, Operation, Reth, SendOnly};

/// Packets of equal length with consecutive PSNs that differ only in payload. The host chooses the path: a shared
/// memory ring, a single packet, a batch, or a GSO run.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a, W: WriteHeaders = Headers> {
    /// The headers of the first packet.
    pub headers: &'a W,
    /// The payload of the first packet. Those of the next ones follow it in the same SGEs, or in the same region.
    pub payload: TxPayload<'a>,
    /// Number of packets. More than one only if the payload is [`TxPayload::Local`] or [`TxPayload::Remote`] and the headers are [`Headers`].
    pub count: u32,
    /// Whether the packets are retransmissions.
    pub transmission: Transmission,
    /// The payload memory belongs to the request until the ACK arrives, so a packet may refer to it.
    pub is_acknowledged: bool,
}

/// Whether a packet is a retransmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transmission {
    /// First transmission.
    First,
    /// Go-back-N: this packet and all later ones are retransmitted.
    GoBack,
    /// Selective repeat: the peer reported this packet missing.
    Selective,
}

impl<'a, W: WriteHeaders> Segment<'a, W> {
    /// A segment of one packet that needs no ACK.
    pub(crate) fn unacknowledged(headers: &'a W, payload: TxPayload<'a>) -> Segment<'a, W> {
        Segment { headers, payload, count: 1, transmission: Transmission::First, is_acknowledged: false }
    }
}

impl Segment<'_> {
    /// The headers and the payload of packet `n`.
    pub fn packet(&self, n: u32) -> (Headers, TxPayload<'_>) {
        let mut headers = *self.headers;
        headers.bth.psn = headers.bth.psn.plus(n);
        let payload = match self.payload {
            TxPayload::Local { pd, sges, offset, len } => {
                TxPayload::Local { pd, sges, offset: offset + u64::from(n) * u64::from(len), len }
            }
            TxPayload::Remote { pd, rkey, addr, len, rest, is_first, is_repeated } => {
                let (addr, rest) = (addr.wrapping_add(u64::from(n) * u64::from(len)), rest - n * len);
                TxPayload::Remote { pd, rkey, addr, len, rest, is_first: is_first && n == 0, is_repeated }
            }
            other => other,
        };
        (headers, payload)
    }
}

/// The headers of an outgoing packet.
pub trait WriteHeaders: Copy {
    /// Bytes on the wire.
    fn encoded_len(&self) -> usize;
    /// Writes them to the start of `out`, for a payload of `payload_len` bytes.
    fn write_to(&self, payload_len: usize, out: &mut [u8]);
    /// Calls `work` with their bytes.
    fn with_bytes<R>(&self, payload_len: usize, work: impl FnOnce(&[u8]) -> R) -> R;
    /// The same headers in parsed form.
    fn to_headers(&self, payload_len: usize) -> Headers;
    /// Whether the ICRC [leaves out the payload](Bth::partial_icrc).
    fn has_partial_icrc(&self) -> bool {
        false
    }
    /// The BTH, if it is the only header.
    fn only_bth(&self) -> Option<&Bth> {
        None
    }
}

impl WriteHeaders for Headers {
    fn encoded_len(&self) -> usize {
        Headers::encoded_len(self)
    }
    fn write_to(&self, _payload_len: usize, out: &mut [u8]) {
        self.write(out);
    }
    fn with_bytes<R>(&self, _payload_len: usize, work: impl FnOnce(&[u8]) -> R) -> R {
        let mut bytes = [0; Headers::MAX_LEN];
        let len = self.write(&mut bytes);
        work(&bytes[..len])
    }
    fn to_headers(&self, _payload_len: usize) -> Headers {
        *self
    }
    fn has_partial_icrc(&self) -> bool {
        self.bth.has_partial_icrc()
    }
    fn only_bth(&self) -> Option<&Bth> {
        (Headers::encoded_len(self) == Bth::LEN).then_some(&self.bth)
    }
}

impl WriteHeaders for SendOnly {
    #[inline(always)]
    fn encoded_len(&self) -> usize {
        SendOnly::encoded_len(self)
    }
    #[inline(always)]
    fn write_to(&self, payload_len: usize, out: &mut [u8]) {
        let (bytes, len) = self.to_bytes(payload_len);
        out[..len].copy_from_slice(&bytes[..len]);
    }
    #[inline(always)]
    fn with_bytes<R>(&self, payload_len: usize, work: impl FnOnce(&[u8]) -> R) -> R {
        let (bytes, len) = self.to_bytes(payload_len);
        work(&bytes[..len])
    }
    #[cold]
    fn to_headers(&self, payload_len: usize) -> Headers {
        SendOnly::to_headers(self, payload_len)
    }
}

impl WriteHeaders for AckOnly {
    #[inline(always)]
    fn encoded_len(&self) -> usize {
        AckOnly::LEN
    }
    #[inline(always)]
    fn write_to(&self, _payload_len: usize, out: &mut [u8]) {
        out[..AckOnly::LEN].copy_from_slice(&self.to_bytes());
    }
    #[inline(always)]
    fn with_bytes<R>(&self, _payload_len: usize, work: impl FnOnce(&[u8]) -> R) -> R {
        work(&self.to_bytes())
    }
    #[cold]
    fn to_headers(&self, _payload_len: usize) -> Headers {
        AckOnly::to_headers(self)
    }
}

/// The opcode of a packet by its position in the message.
pub(super) fn operation_of(op: &SendOp, first: bool, last: bool) -> Operation {
    use Operation as O;
    let write = matches!(op, SendOp::Write { .. } | SendOp::WriteImm { .. });
    match (first, last, op) {
        (true, false, _) => {
            if write {
                O::WriteFirst
            } else {
                O::SendFirst
            }
        }
        (false, false, _) => {
            if write {
                O::WriteMiddle
            } else {
                O::SendMiddle
            }
        }
        (true, true, SendOp::SendImm(_)) => O::SendOnlyImm,
        (true, true, SendOp::SendInv(_)) => O::SendOnlyInv,
        (true, true, SendOp::WriteImm { .. }) => O::WriteOnlyImm,
        (true, true, _) => {
            if write {
                O::WriteOnly
            } else {
                O::SendOnly
            }
        }
        (false, true, SendOp::SendImm(_)) => O::SendLastImm,
        (false, true, SendOp::SendInv(_)) => O::SendLastInv,
        (false, true, SendOp::WriteImm { .. }) => O::WriteLastImm,
        (false, true, _) => {
            if write {
                O::WriteLast
            } else {
                O::SendLast
            }
        }
    }
}

/// The RETH of a WRITE.
pub(super) fn reth_of(wqe: &SendWqe) -> Option<Reth> {
    match wqe.op {
        SendOp::Write { addr, rkey } | SendOp::WriteImm { addr, rkey, .. } => {
            Some(Reth { addr, rkey, len: wqe.len })
        }
        _ => None,
    }
}

/// Adds the extension headers of a packet by its position in the message.
pub(super) fn add_extensions(headers: &mut Headers, wqe: &SendWqe, first: bool, last: bool) {
    if first {
        headers.reth = reth_of(wqe);
    }
    match wqe.op {
        SendOp::SendImm(imm) | SendOp::WriteImm { imm, .. } if last => headers.imm = Some(imm),
        SendOp::SendInv(rkey) if last => headers.ieth = Some(rkey),
        _ => {}
    }
}
