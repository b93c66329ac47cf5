//! BTH and extension headers in packet order (IBA 5.2).

use super::one_field::{atomic_ack, ieth, imm, xrceth};
use super::{Aeth, AtomicEth, Bth, Deth, Feth, Malformed, Opcode, PiggybackedAck, Reth};
use crate::ids::{RKey, Srqn};

/// All transport headers of a packet. The opcode determines the extension headers, and the extended bit the ferroce
/// ones. The writer ignores fields of absent headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Base transport header.
    pub bth: Bth,
    /// Placement type and selectivity of a flush.
    pub feth: Option<Feth>,
    /// Remote memory of a WRITE or READ.
    pub reth: Option<Reth>,
    /// Acknowledgement.
    pub aeth: Option<Aeth>,
    /// Operands of an atomic.
    pub atomic: Option<AtomicEth>,
    /// Value before the atomic.
    pub atomic_ack: Option<u64>,
    /// Sender of a datagram.
    pub deth: Option<Deth>,
    /// Immediate data, in host order.
    pub imm: Option<u32>,
    /// Key to invalidate.
    pub ieth: Option<RKey>,
    /// Shared receive queue of an XRC request.
    pub xrceth: Option<Srqn>,
    /// Piggybacked ACK.
    pub piggybacked_ack: Option<PiggybackedAck>,
}

/// Length of the extension headers of an opcode.
#[inline]
fn extension_len(opcode: Opcode) -> usize {
    usize::from(EXTENSION_LENS[usize::from(opcode.to_byte())])
}

/// The lengths of all opcodes. A table, because every packet needs one.
static EXTENSION_LENS: [u8; 256] = {
    let mut lens = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        if let Some(opcode) = Opcode::of_bits(byte as u8) {
            lens[byte] = sum_of_extensions(opcode) as u8;
        }
        byte += 1;
    }
    lens
};

const fn sum_of_extensions(opcode: Opcode) -> usize {
    const fn if_has(has: bool, len: usize) -> usize {
        if has { len } else { 0 }
    }
    if_has(opcode.has_xrceth(), xrceth::LEN)
        + if_has(opcode.has_deth(), Deth::LEN)
        + if_has(opcode.has_feth(), Feth::LEN)
        + if_has(opcode.has_reth(), Reth::LEN)
        + if_has(opcode.has_atomic(), AtomicEth::LEN)
        + if_has(opcode.has_aeth(), Aeth::LEN)
        + if_has(opcode.has_atomic_ack(), atomic_ack::LEN)
        + if_has(opcode.has_imm(), imm::LEN)
        + if_has(opcode.has_ieth(), ieth::LEN)
}

/// Whether the packet carries a piggybacked ACK.
#[inline]
fn has_piggybacked_ack(bth: &Bth) -> bool {
    bth.extended && bth.opcode.may_carry_ack()
}

/// Whether the packet has an AETH that the opcode alone does not give it.
#[inline]
fn repeats_aeth(bth: &Bth) -> bool {
    bth.extended && bth.opcode.may_repeat_aeth()
}

/// Whether the packet has a RETH that the opcode alone does not give it.
#[inline]
fn repeats_reth(bth: &Bth) -> bool {
    bth.extended && bth.opcode.may_repeat_reth()
}

impl Headers {
    /// The most bytes that any packet has: those of an XRC atomic.
    pub const MAX_LEN: usize = Bth::LEN + xrceth::LEN + AtomicEth::LEN;

    /// A BTH without extension headers.
    pub const fn new(bth: Bth) -> Headers {
        Headers {
            bth,
            feth: None,
            reth: None,
            aeth: None,
            atomic: None,
            atomic_ack: None,
            deth: None,
            imm: None,
            ieth: None,
            xrceth: None,
            piggybacked_ack: None,
        }
    }

    /// Bytes on the wire, according to the BTH and its opcode.
    #[inline]
    pub fn encoded_len(&self) -> usize {
        let ours_len = match self.bth.extended {
            true if has_piggybacked_ack(&self.bth) => PiggybackedAck::LEN,
            true if repeats_reth(&self.bth) => Reth::LEN,
            true if repeats_aeth(&self.bth) => Aeth::LEN,
            _ => 0,
        };
        Bth::LEN + extension_len(self.bth.opcode) + ours_len
    }

    /// Writes the headers to the start of `out` and returns their length.
    ///
    /// The caller must set every extension header that the opcode has. If one is `None`, debug builds panic and others
    /// write zeros.
    ///
    /// # Panics
    /// When `out` is shorter than [`Headers::encoded_len`]; [`Headers::MAX_LEN`] is always enough.
    #[inline]
    pub fn write(&self, out: &mut [u8]) -> usize {
        let opcode = self.bth.opcode;
        let mut at = 0;
        put(out, &mut at, self.bth.to_bytes());
        if repeats_reth(&self.bth) {
            put_extension(out, &mut at, self.reth.map(|h| h.to_bytes()));
        }
        if extension_len(opcode) > 0 {
            self.write_extensions(out, &mut at);
        }
        if repeats_aeth(&self.bth) {
            put_extension(out, &mut at, self.aeth.map(|h| h.to_bytes()));
        }
        if has_piggybacked_ack(&self.bth) {
            put_extension(out, &mut at, self.piggybacked_ack.map(|h| h.to_bytes()));
        }
        at
    }

    #[inline]
    fn write_extensions(&self, out: &mut [u8], at: &mut usize) {
        let opcode = self.bth.opcode;
        if opcode.has_xrceth() {
            put_extension(out, at, self.xrceth.map(xrceth::to_bytes));
        }
        if opcode.has_deth() {
            put_extension(out, at, self.deth.map(|h| h.to_bytes()));
        }
        if opcode.has_feth() {
            put_extension(out, at, self.feth.map(|h| h.to_bytes()));
        }
        if opcode.has_reth() {
            put_extension(out, at, self.reth.map(|h| h.to_bytes()));
        }
        if opcode.has_atomic() {
            put_extension(out, at, self.atomic.map(|h| h.to_bytes()));
        }
        if opcode.has_aeth() {
            put_extension(out, at, self.aeth.map(|h| h.to_bytes()));
        }
        if opcode.has_atomic_ack() {
            put_extension(out, at, self.atomic_ack.map(atomic_ack::to_bytes));
        }
        if opcode.has_imm() {
            put_extension(out, at, self.imm.map(imm::to_bytes));
        }
        if opcode.has_ieth() {
            put_extension(out, at, self.ieth.map(ieth::to_bytes));
        }
    }

    /// Parses the headers at the start of `bytes`; [`Headers::encoded_len`] returns where they end. The
    /// [extended](Bth::extended) bit is ignored unless the sender `extends` packets with this opcode.
    #[inline]
    pub fn parse(bytes: &[u8], extends: impl FnOnce(Opcode) -> bool) -> Result<Headers, Malformed> {
        let mut headers = Headers::new(Bth::parse(bytes)?);
        let opcode = headers.bth.opcode;
        headers.bth.extended &= extends(opcode);
        let mut rest = Rest(&bytes[Bth::LEN..]);
        headers.reth = rest.take(repeats_reth(&headers.bth), Reth::LEN, Reth::parse)?;
        headers.aeth = rest.take(repeats_aeth(&headers.bth), Aeth::LEN, Aeth::parse)?;
        if extension_len(opcode) > 0 {
            headers.read_extensions(&mut rest)?;
        }
        headers.piggybacked_ack =
            rest.take(has_piggybacked_ack(&headers.bth), PiggybackedAck::LEN, PiggybackedAck::parse)?;
        Ok(headers)
    }

    #[inline]
    fn read_extensions(&mut self, rest: &mut Rest<'_>) -> Result<(), Malformed> {
        let opcode = self.bth.opcode;
        self.xrceth = rest.take(opcode.has_xrceth(), xrceth::LEN, xrceth::parse)?;
        self.deth = rest.take(opcode.has_deth(), Deth::LEN, Deth::parse)?;
        self.feth = rest.take(opcode.has_feth(), Feth::LEN, Feth::parse)?;
        if opcode.has_reth() {
            self.reth = rest.take(true, Reth::LEN, Reth::parse)?;
        }
        self.atomic = rest.take(opcode.has_atomic(), AtomicEth::LEN, AtomicEth::parse)?;
        if opcode.has_aeth() {
            self.aeth = rest.take(true, Aeth::LEN, Aeth::parse)?;
        }
        self.atomic_ack = rest.take(opcode.has_atomic_ack(), atomic_ack::LEN, atomic_ack::parse)?;
        self.imm = rest.take(opcode.has_imm(), imm::LEN, imm::parse)?;
        self.ieth = rest.take(opcode.has_ieth(), ieth::LEN, ieth::parse)?;
        Ok(())
    }
}

#[inline]
fn put<const N: usize>(out: &mut [u8], at: &mut usize, bytes: [u8; N]) {
    out[*at..*at + N].copy_from_slice(&bytes);
    *at += N;
}

#[inline]
fn put_extension<const N: usize>(out: &mut [u8], at: &mut usize, bytes: Option<[u8; N]>) {
    debug_assert!(bytes.is_some(), "the opcode has an extension header that is not given");
    put(out, at, bytes.unwrap_or([0; N]));
}

/// The bytes that the parser has not read.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    #[inline]
    fn take<T>(
        &mut self,
        has: bool,
        len: usize,
        parse: impl FnOnce(&[u8]) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        if !has {
            return Ok(None);
        }
        let value = parse(self.0)?;
        self.0 = &self.0[len..];
        Ok(Some(value))
    }
}
