//! The part of an ICRC that the packets of a flow share.
//!
//! Three quarters of the bytes that the ICRC of a small packet covers are masked outer headers. They are equal for all
//! packets of one flow and length, except for the identification. CRC-32 is linear, so the identification and the
//! masked byte of the BTH each add a term that depends on their own value alone. Only one pass over the packet remains.

use super::bth::has_partial_icrc;
use super::icrc::{IDENT_AT, Icrc, LRH_LEN, covered, gf2, masked_v4, masked_v6, solve_ident};
use super::{Bth, FlowAddrs, ICRC_LEN, Ipv4Header, Ipv6Header, UdpHeader};
use crc32fast::Hasher;
use ferroce_crc::Crc32;

const PREFIX_LEN_V4: usize = LRH_LEN + Ipv4Header::LEN + UdpHeader::LEN;
const PREFIX_LEN_V6: usize = LRH_LEN + Ipv6Header::LEN + UdpHeader::LEN;
/// Offset of the BTH byte that the ICRC masks with ones.
const VARIANT_AT: usize = 4;
/// Cached combinations of flow and length.
const SLOTS: usize = 8;
/// Bytes after the BTH from which on [`FlowIcrc::icrc_long`] is faster.
const LONG: usize = 1024;

/// What bit k of the identification adds to the register at the end of an IPv4 prefix.
const IDENT_BITS: [u32; 16] = {
    let mut bits = [0; 16];
    let mut k = 0;
    while k < 16 {
        let [high, low] = (1_u16 << k).to_be_bytes();
        let four = u32::from_le_bytes([high, low, 0, 0]);
        bits[k] = gf2::shift(four, PREFIX_LEN_V4 - IDENT_AT);
        k += 1;
    }
    bits
};

/// What to add to the register in front of a BTH whose masked byte is zero.
const ZERO_VARIANT: u32 = gf2::unshift(0xff, VARIANT_AT);

/// Packets of the longest GSO run. Only ferroce ends send partial ICRCs, and their identification is the index in the run.
const MAX_RUN: u16 = 64;

/// A right ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifiedIcrc {
    /// The identification with which it is right; 0 over IPv6.
    pub ident: u16,
    /// It is [partial](Bth::partial_icrc).
    pub is_partial: bool,
}

#[derive(Clone, Debug)]
struct Known {
    flow: FlowAddrs,
    transport_len: usize,
    flow_icrc: FlowIcrc,
}

/// A cache of prefixes. It accepts any packet; packets of cached flows and lengths are fast.
#[derive(Clone, Debug, Default)]
pub struct IcrcPrefix {
    known: [Option<Known>; SLOTS],
}

impl IcrcPrefix {
    /// Returns the prefix of this flow and length; computes it if it is not cached.
    #[inline]
    pub fn of_flow(&mut self, flow: &FlowAddrs, transport_len: usize) -> &FlowIcrc {
        let slot = &mut self.known[transport_len / 4 % SLOTS];
        match slot {
            Some(known) if known.transport_len == transport_len && known.flow == *flow => {}
            _ => *slot = Some(Known::of(flow, transport_len)),
        }
        &slot.as_ref().expect("just filled").flow_icrc
    }

    /// As [`icrc`](super::icrc()).
    ///
    /// # Panics
    /// When `transport` is shorter than a BTH.
    #[inline]
    pub fn icrc(&mut self, flow: &FlowAddrs, ident: u16, transport: &[u8]) -> [u8; ICRC_LEN] {
        self.of_flow(flow, transport.len()).icrc(ident, transport)
    }

    /// As [`verify_icrc`](super::verify_icrc), with what the ICRC covers.
    #[inline]
    pub fn verify(
        &mut self,
        flow: &FlowAddrs,
        ident_hint: u16,
        packet_with_icrc: &[u8],
    ) -> Option<VerifiedIcrc> {
        let (transport, found) = packet_with_icrc.split_last_chunk::<ICRC_LEN>()?;
        if transport.len() < Bth::LEN {
            return None;
        }
        let row = self.of_flow(flow, transport.len());
        if has_partial_icrc(transport)
            && let Some(ident @ 0..MAX_RUN) = row.compare(ident_hint, covered(transport), *found)
        {
            return Some(VerifiedIcrc { ident, is_partial: true });
        }
        let ident = row.compare(ident_hint, transport, *found)?;
        Some(VerifiedIcrc { ident, is_partial: false })
    }
}

/// The ICRC state that packets of one flow and length share.
#[derive(Clone, Debug)]
pub struct FlowIcrc {
    register: u32,
    is_ipv4: bool,
    /// The state for identification 0 and a masked byte of zero. Stored, because creating one detects the CPU features.
    plain: Hasher,
    crc32: Crc32,
}

impl FlowIcrc {
    /// The ICRC of one packet of the flow.
    ///
    /// # Panics
    /// When `transport` is shorter than a BTH.
    #[inline(always)] // for each packet
    pub fn icrc(&self, ident: u16, transport: &[u8]) -> [u8; ICRC_LEN] {
        self.over(ident, covered(transport))
    }

    /// The CRC over the headers in front of the BTH and the bytes from it on.
    #[inline(always)] // for each packet
    fn over(&self, ident: u16, bytes: &[u8]) -> [u8; ICRC_LEN] {
        let (bth, body) = bytes.split_first_chunk().expect("an ICRC begins with a whole BTH");
        if body.len() >= LONG {
            return self.long(ident, bth, body);
        }
        let mut icrc = self.start(ident, bth);
        icrc.update(bytes);
        icrc.finish()
    }

    /// Compares an ICRC with one over these bytes. Returns the identification with which it is right.
    #[inline(always)] // for each packet
    fn compare(&self, ident_hint: u16, bytes: &[u8], found: [u8; ICRC_LEN]) -> Option<u16> {
        let computed = self.over(ident_hint, bytes);
        match (computed == found, self.is_ipv4) {
            (true, true) => Some(ident_hint),
            (true, false) => Some(0),
            (false, true) => {
                let difference = u32::from_le_bytes(computed) ^ u32::from_le_bytes(found);
                solve_ident(ident_hint, difference, bytes.len())
            }
            (false, false) => None,
        }
    }

    /// The ICRC of a packet whose BTH and rest need not be contiguous. Fastest for long packets.
    #[inline]
    pub fn icrc_long(&self, ident: u16, bth: &[u8; Bth::LEN], body: &[u8]) -> [u8; ICRC_LEN] {
        self.long(ident, bth, if has_partial_icrc(bth) { &[] } else { body })
    }

    #[inline(always)] // one line
    fn long(&self, ident: u16, bth: &[u8; Bth::LEN], body: &[u8]) -> [u8; ICRC_LEN] {
        self.crc32.update(self.register(ident, bth[VARIANT_AT]), bth, body).to_le_bytes()
    }

    /// The ICRC of a packet with identification 0, that is, one sent without GSO.
    ///
    /// # Panics
    /// When `transport` is shorter than a BTH.
    #[inline]
    pub fn icrc_alone(&self, transport: &[u8]) -> [u8; ICRC_LEN] {
        self.icrc(0, transport)
    }

    /// Whether these bytes, from the BTH to the ICRC, are a packet with identification 0 and a valid ICRC. The caller has
    /// compared the length.
    #[inline]
    pub fn is_alone(&self, packet_with_icrc: &[u8]) -> bool {
        match packet_with_icrc.split_last_chunk::<ICRC_LEN>() {
            Some((transport, found)) => transport.len() >= Bth::LEN && self.icrc_alone(transport) == *found,
            None => false,
        }
    }

    /// Starts the ICRC of a packet whose BTH begins `headers`. Pass all its bytes, from the BTH on, to [`Icrc::update`].
    ///
    /// `ident` is the identification of the IPv4 header; it is ignored for IPv6.
    ///
    /// # Panics
    /// If `headers` are shorter than a BTH.
    #[inline]
    pub fn start(&self, ident: u16, headers: &[u8]) -> Icrc {
        let variant = headers[..Bth::LEN][VARIANT_AT];
        if ident == 0 && variant == 0 { Icrc(self.plain.clone()) } else { self.start_other(ident, variant) }
    }

    fn start_other(&self, ident: u16, variant: u8) -> Icrc {
        Icrc(Hasher::new_with_initial(self.register(ident, variant)))
    }

    /// The prefix state for a BTH with this masked byte.
    #[inline(always)] // for each packet
    fn register(&self, ident: u16, variant: u8) -> u32 {
        let mut register = self.register;
        if self.is_ipv4 {
            let mut bits = ident;
            while bits != 0 {
                register ^= IDENT_BITS[bits.trailing_zeros() as usize];
                bits &= bits - 1;
            }
        }
        register
            ^ match variant {
                0 => ZERO_VARIANT,
                byte => gf2::unshift(u32::from(!byte), VARIANT_AT),
            }
    }
}

impl Known {
    /// The register behind all headers in front of a BTH, with identification 0.
    #[cold]
    fn of(flow: &FlowAddrs, transport_len: usize) -> Known {
        let (mut hasher, is_ipv4) = (Hasher::new(), flow.is_ipv4());
        if is_ipv4 {
            hasher.update(&masked_v4(flow, 0, transport_len, &[0; Bth::LEN])[..PREFIX_LEN_V4]);
        } else {
            hasher.update(&masked_v6(flow, transport_len, &[0; Bth::LEN])[..PREFIX_LEN_V6]);
        }
        let register = hasher.finalize();
        let plain = Hasher::new_with_initial(register ^ ZERO_VARIANT);
        Known {
            flow: *flow,
            transport_len,
            flow_icrc: FlowIcrc { register, is_ipv4, plain, crc32: Crc32::new() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::icrc;
    use super::*;
    use crate::ids::Gid;
    use alloc::vec::Vec;

    fn flow(last: u8, is_ipv4: bool) -> FlowAddrs {
        let mut gid = Gid([0x20; 16]);
        if is_ipv4 {
            gid = Gid::from_ip([10, 1, 2, 3].into());
        }
        let mut other = gid;
        other.0[15] = last;
        FlowAddrs::new(gid, other, 0xC000 + u16::from(last))
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes an hour in Miri")]
    fn it_is_the_same_checksum() {
        let mut prefixes = IcrcPrefix::default();
        for round in 0..3000_u32 {
            let noise = |n: u32| (round.wrapping_mul(2_654_435_761) ^ n).wrapping_mul(0x9e37_79b9) >> 9;
            let flow = flow(noise(1) as u8 % 3, noise(2) % 2 == 0);
            let len = Bth::LEN + [0, 4, 8, 16, 1024, 1028, 4096][noise(3) as usize % 7];
            let ident = if noise(4) % 2 == 0 { noise(5) as u16 % 64 } else { noise(6) as u16 };
            let mut packet: Vec<u8> = (0..len as u32).map(|n| noise(100 + n) as u8).collect();
            if noise(7) % 4 > 0 {
                packet[VARIANT_AT] = 0;
            }
            if ident >= MAX_RUN {
                packet[8] &= !0x10;
            }
            let is_partial = has_partial_icrc(&packet);
            let right = icrc(&flow, ident, &packet);
            assert_eq!(prefixes.icrc(&flow, ident, &packet), right, "round {round}");
            packet.extend(right);
            let is_alone = prefixes.of_flow(&flow, len).is_alone(&packet);
            assert_eq!(is_alone, ident == 0 || !flow.is_ipv4(), "round {round}");
            let verified = VerifiedIcrc { ident: if flow.is_ipv4() { ident } else { 0 }, is_partial };
            for hint in [ident, 0, noise(8) as u16] {
                assert_eq!(prefixes.verify(&flow, hint, &packet), Some(verified), "round {round}");
            }
            let bit = noise(9) as usize % (len * 8);
            packet[bit / 8] ^= 1 << (bit % 8);
            // Every bit counts but those of the masked byte, and those behind the BTH if the ICRC is partial.
            let counts = bit / 8 != VARIANT_AT && (bit / 8 < Bth::LEN || !is_partial);
            assert_eq!(prefixes.of_flow(&flow, len).is_alone(&packet), is_alone && !counts, "round {round}");
            let found = prefixes.verify(&flow, ident, &packet);
            assert_eq!(found == Some(verified), !counts, "round {round}");
        }
    }

    #[test]
    fn what_is_too_short_is_refused() {
        let mut prefixes = IcrcPrefix::default();
        for len in 0..Bth::LEN + ICRC_LEN {
            assert_eq!(prefixes.verify(&flow(1, true), 0, &[0; 16][..len]), None);
            assert!(!prefixes.of_flow(&flow(1, true), 12).is_alone(&[0; 16][..len]));
        }
    }
}
