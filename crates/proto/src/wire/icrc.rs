//! Invariant CRC: the checksum over everything that no switch or router may change (IBA 7.8.1, annex A17).
//!
//! It is a CRC-32 over three parts: eight bytes of ones (where InfiniBand has its local route header); the IP, UDP and base
//! transport headers with their variant fields set to ones; and the rest of the packet. Over IPv4 that covers the
//! identification, which a UDP socket does not show to its reader. [`verify_icrc`] therefore computes the
//! identification that would make the checksum right: CRC-32 is linear, so a wrong ICRC differs from the right one
//! by exactly what the wrong identification bits contribute.
//!
//! Between two ferroce ends on loopback, a packet may have a [partial ICRC](Bth::partial_icrc), which ends with the BTH. A foreign end may set
//! the two bits that announce it, so a packet with both may also have an ordinary ICRC.

use super::bth::has_partial_icrc;
use super::{Bth, IcrcPrefix, Ipv4Header, Ipv6Header, ROCE_UDP_PORT, UdpHeader};
use crate::ids::Gid;
use crc32fast::Hasher;

/// Bytes of the ICRC at the end of a packet.
pub const ICRC_LEN: usize = 4;

pub(super) const LRH_LEN: usize = 8;
const MASKED_LEN_V4: usize = LRH_LEN + Ipv4Header::LEN + UdpHeader::LEN + Bth::LEN;
const MASKED_LEN_V6: usize = LRH_LEN + Ipv6Header::LEN + UdpHeader::LEN + Bth::LEN;
/// Byte of the BTH that holds FECN, BECN and reserved bits.
const BTH_VARIANT: usize = 4;
/// Offset of identification, flags and fragment offset (four bytes) from the start of the masked LRH.
pub(super) const IDENT_AT: usize = LRH_LEN + 4;

/// The addresses of a packet. It travels over IPv4 when both GIDs are IPv4-mapped, else over IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowAddrs {
    /// Source address.
    pub sgid: Gid,
    /// Destination address.
    pub dgid: Gid,
    /// Source UDP port.
    pub sport: u16,
    /// Destination UDP port: [`ROCE_UDP_PORT`] except in tests.
    pub dport: u16,
}

impl FlowAddrs {
    /// Addresses with the usual destination port.
    pub const fn new(sgid: Gid, dgid: Gid, sport: u16) -> FlowAddrs {
        FlowAddrs { sgid, dgid, sport, dport: ROCE_UDP_PORT }
    }

    /// Whether packets of this flow have IPv4 headers.
    #[inline]
    pub const fn is_ipv4(&self) -> bool {
        self.sgid.to_ipv4().is_some() && self.dgid.to_ipv4().is_some()
    }
}

/// A running ICRC, for packets that are not contiguous.
#[derive(Clone, Debug)]
pub struct Icrc(pub(super) Hasher);

impl Icrc {
    /// Begins with the headers of a packet: `transport_len` is the length from the BTH to the pad, without the ICRC;
    /// `headers` are its first bytes, at least the whole BTH. Pass the bytes behind them to [`Icrc::update`].
    ///
    /// `ident` is the identification of the IPv4 header; it is ignored for IPv6.
    ///
    /// # Panics
    /// When `headers` are shorter than a BTH.
    #[inline]
    pub fn start_with_bth(flow: &FlowAddrs, ident: u16, transport_len: usize, headers: &[u8]) -> Icrc {
        let (bth, rest) = headers.split_first_chunk().expect("an ICRC begins with a whole BTH");
        let mut hasher = Hasher::new();
        if flow.is_ipv4() {
            hasher.update(&masked_v4(flow, ident, transport_len, bth));
        } else {
            hasher.update(&masked_v6(flow, transport_len, bth));
        }
        hasher.update(rest);
        Icrc(hasher)
    }

    /// Takes the next bytes of the packet.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The four bytes that end the packet.
    #[inline]
    pub fn finish(self) -> [u8; ICRC_LEN] {
        self.0.finalize().to_le_bytes()
    }
}

/// The bytes that the ICRC of a ferroce sender covers of those from the BTH to the pad.
///
/// # Panics
/// When `transport` is shorter than a BTH.
#[inline(always)] // for each packet
pub(super) fn covered(transport: &[u8]) -> &[u8] {
    if has_partial_icrc(transport) { &transport[..Bth::LEN] } else { transport }
}

/// The ICRC of a packet whose bytes from the BTH to the pad are `transport`. It is partial if they [announce that](has_partial_icrc).
///
/// # Panics
/// When `transport` is shorter than a BTH.
#[inline]
pub fn icrc(flow: &FlowAddrs, ident: u16, transport: &[u8]) -> [u8; ICRC_LEN] {
    Icrc::start_with_bth(flow, ident, transport.len(), covered(transport)).finish()
}

/// Checks a packet from its BTH to its ICRC. Over IPv4 it returns the identification with which the ICRC is right:
/// `ident_hint` if that one fits (with the "don't fragment" flag set), else the one computed from the difference,
/// with that flag or without. Over IPv6 it returns 0. `None` means that the packet is damaged.
///
/// Since any of 2^17 values would do, a damaged IPv4 packet with a wrong hint passes with probability 2^-15; over IPv6
/// it is 2^-32. Use the returned value as the next hint.
#[inline]
pub fn verify_icrc(flow: &FlowAddrs, ident_hint: u16, packet_with_icrc: &[u8]) -> Option<u16> {
    IcrcPrefix::default().verify(flow, ident_hint, packet_with_icrc).map(|verified| verified.ident)
}

/// The identification under which the ICRC would differ by `difference` from the one computed with `hint`.
///
/// Both messages are equal except for the four bytes from [`IDENT_AT`] on. Their checksums' difference is the difference of
/// those four bytes, shifted through them and all bytes behind. That shift multiplies by a power of x, which has an
/// inverse. Multiplication by the inverse gives the difference of the four bytes. It is plausible only in the bits that a sender
/// may choose.
#[cold]
pub(super) fn solve_ident(hint: u16, difference: u32, covered_len: usize) -> Option<u16> {
    let shifted_by = MASKED_LEN_V4 - IDENT_AT + (covered_len - Bth::LEN);
    let [ident_hi, ident_lo, flags, fragment] = gf2::unshift(difference, shifted_by).to_le_bytes();
    const DONT_FRAGMENT: u8 = (Ipv4Header::DONT_FRAGMENT >> 8) as u8;
    let is_plausible = flags & !DONT_FRAGMENT == 0 && fragment == 0;
    is_plausible.then_some(hint ^ u16::from_be_bytes([ident_hi, ident_lo]))
}

#[inline]
pub(super) fn masked_v4(
    flow: &FlowAddrs,
    ident: u16,
    transport_len: usize,
    bth: &[u8; Bth::LEN],
) -> [u8; MASKED_LEN_V4] {
    let udp_len = UdpHeader::LEN + transport_len + ICRC_LEN;
    let mut b = [0xff; MASKED_LEN_V4];
    let (ip, rest) = b[LRH_LEN..].split_at_mut(Ipv4Header::LEN);
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&((Ipv4Header::LEN + udp_len) as u16).to_be_bytes());
    ip[4..6].copy_from_slice(&ident.to_be_bytes());
    ip[6..8].copy_from_slice(&Ipv4Header::DONT_FRAGMENT.to_be_bytes());
    ip[9] = Ipv4Header::PROTOCOL_UDP;
    ip[12..16].copy_from_slice(&flow.sgid.0[12..]);
    ip[16..20].copy_from_slice(&flow.dgid.0[12..]);
    mask_udp_and_bth(rest, flow, udp_len, bth);
    b
}

#[inline]
pub(super) fn masked_v6(flow: &FlowAddrs, transport_len: usize, bth: &[u8; Bth::LEN]) -> [u8; MASKED_LEN_V6] {
    let udp_len = UdpHeader::LEN + transport_len + ICRC_LEN;
    let mut b = [0xff; MASKED_LEN_V6];
    let (ip, rest) = b[LRH_LEN..].split_at_mut(Ipv6Header::LEN);
    // Traffic class and flow label are masked with ones; only the version remains.
    ip[0] = 0x6f;
    ip[4..6].copy_from_slice(&(udp_len as u16).to_be_bytes());
    ip[6] = Ipv4Header::PROTOCOL_UDP;
    ip[8..24].copy_from_slice(&flow.sgid.0);
    ip[24..40].copy_from_slice(&flow.dgid.0);
    mask_udp_and_bth(rest, flow, udp_len, bth);
    b
}

#[inline]
fn mask_udp_and_bth(out: &mut [u8], flow: &FlowAddrs, udp_len: usize, bth: &[u8; Bth::LEN]) {
    out[..2].copy_from_slice(&flow.sport.to_be_bytes());
    out[2..4].copy_from_slice(&flow.dport.to_be_bytes());
    out[4..6].copy_from_slice(&(udp_len as u16).to_be_bytes());
    out[8..20].copy_from_slice(bth);
    out[8 + BTH_VARIANT] = 0xff;
}

/// Polynomials over GF(2) modulo that of CRC-32, in its bit order: the highest bit is the coefficient of x^0.
pub(super) mod gf2 {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    const ONE: u32 = 0x8000_0000;

    const fn times(mut a: u32, mut b: u32) -> u32 {
        let mut product = 0;
        while a != 0 {
            if a & ONE != 0 {
                product ^= b;
            }
            a <<= 1;
            b = b >> 1 ^ if b & 1 != 0 { POLYNOMIAL } else { 0 };
        }
        product
    }

    const fn divided_by_x(a: u32) -> u32 {
        if a & ONE != 0 { (a ^ POLYNOMIAL) << 1 | 1 } else { a << 1 }
    }

    /// Entry k undoes a shift by 2^k bytes: x^(-8 * 2^k).
    const UNSHIFT: [u32; usize::BITS as usize] = {
        let mut power = ONE;
        let mut bit = 0;
        while bit < 8 {
            power = divided_by_x(power);
            bit += 1;
        }
        let mut table = [0; usize::BITS as usize];
        let mut k = 0;
        while k < table.len() {
            table[k] = power;
            power = times(power, power);
            k += 1;
        }
        table
    };

    /// The register that became `register` while `bytes` zero bytes went through.
    pub(in crate::wire) const fn unshift(mut register: u32, mut bytes: usize) -> u32 {
        while bytes != 0 {
            register = times(UNSHIFT[bytes.trailing_zeros() as usize], register);
            bytes &= bytes - 1;
        }
        register
    }

    /// The register that `register` becomes while `bytes` zero bytes go through.
    pub(in crate::wire) const fn shift(mut register: u32, bytes: usize) -> u32 {
        let mut bits = bytes * 8;
        while bits != 0 {
            register = register >> 1 ^ if register & 1 != 0 { POLYNOMIAL } else { 0 };
            bits -= 1;
        }
        register
    }
}
