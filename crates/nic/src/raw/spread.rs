//! Receive-side scaling: a hash of the headers chooses one queue of a table.

use super::frame::Frame;
use super::queue::RawQueue;
use crate::error::Error;
use bitflags::bitflags;
use std::sync::Arc;

/// Most queues of a table.
pub const MAX_SPREAD: usize = 1 << 10;
/// Bytes of a Toeplitz key: what the longest input needs.
const KEY_BYTES: usize = 40;

bitflags! {
    /// Fields that the hash is made of; the bit values are those of the verbs ABI.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HashFields: u64 {
        /// Source address, IPv4.
        const SRC_IPV4 = 1;
        /// Destination address, IPv4.
        const DST_IPV4 = 1 << 1;
        /// Source address, IPv6.
        const SRC_IPV6 = 1 << 2;
        /// Destination address, IPv6.
        const DST_IPV6 = 1 << 3;
        /// Source port, TCP.
        const SRC_PORT_TCP = 1 << 4;
        /// Destination port, TCP.
        const DST_PORT_TCP = 1 << 5;
        /// Source port, UDP.
        const SRC_PORT_UDP = 1 << 6;
        /// Destination port, UDP.
        const DST_PORT_UDP = 1 << 7;
    }
}

/// A Toeplitz hash.
pub struct RxHash {
    key: [u8; KEY_BYTES],
    fields: HashFields,
}

impl RxHash {
    /// With a key of 40 bytes. The two IP versions exclude each other, and so do TCP and UDP.
    pub fn new(key: &[u8], fields: HashFields) -> Result<RxHash, Error> {
        let wrong = |why| Error::Invalid { attribute: "rx_hash_conf", why };
        let key = key.try_into().map_err(|_| wrong("a Toeplitz key has 40 bytes"))?;
        let both = |a, b| fields.intersects(a) && fields.intersects(b);
        let v4 = HashFields::SRC_IPV4 | HashFields::DST_IPV4;
        let v6 = HashFields::SRC_IPV6 | HashFields::DST_IPV6;
        let tcp = HashFields::SRC_PORT_TCP | HashFields::DST_PORT_TCP;
        let udp = HashFields::SRC_PORT_UDP | HashFields::DST_PORT_UDP;
        if both(v4, v6) || both(tcp, udp) {
            return Err(wrong("IPv4 and IPv6, or TCP and UDP, at the same time"));
        }
        Ok(RxHash { key, fields })
    }

    /// Of a frame; 0 if it has none of the fields.
    fn of(&self, frame: &Frame) -> u32 {
        let mut input = [0u8; 36];
        let mut len = 0;
        let mut add = |field: HashFields, bytes: Option<&[u8]>| {
            if let Some(bytes) = bytes.filter(|_| self.fields.contains(field)) {
                input[len..len + bytes.len()].copy_from_slice(bytes);
                len += bytes.len();
            }
        };
        let (v4, v6) = (frame.ipv4.as_ref(), frame.ipv6.as_ref());
        add(HashFields::SRC_IPV4, v4.map(|f| &f[..4]));
        add(HashFields::DST_IPV4, v4.map(|f| &f[4..8]));
        add(HashFields::SRC_IPV6, v6.map(|f| &f[..16]));
        add(HashFields::DST_IPV6, v6.map(|f| &f[16..32]));
        add(HashFields::SRC_PORT_TCP, frame.tcp.as_ref().map(|f| &f[2..]));
        add(HashFields::DST_PORT_TCP, frame.tcp.as_ref().map(|f| &f[..2]));
        add(HashFields::SRC_PORT_UDP, frame.udp.as_ref().map(|f| &f[2..]));
        add(HashFields::DST_PORT_UDP, frame.udp.as_ref().map(|f| &f[..2]));
        toeplitz(&self.key, &input[..len])
    }
}

/// For every bit of the input that is set, the 32 bits of the key that begin there.
fn toeplitz(key: &[u8; KEY_BYTES], input: &[u8]) -> u32 {
    let mut window = u64::from_be_bytes([key[0], key[1], key[2], key[3], key[4], 0, 0, 0]);
    let mut hash = 0;
    for (at, byte) in input.iter().enumerate() {
        for bit in 0..8 {
            if byte & (0x80 >> bit) != 0 {
                hash ^= (window >> 32) as u32;
            }
            window <<= 1;
        }
        // Eight bits were used up; the next byte of the key moves in behind the 32 that count.
        window |= u64::from(key.get(at + 5).copied().unwrap_or(0)) << 24;
    }
    hash
}

/// Queues and how one of them is chosen.
pub(crate) struct Spread {
    queues: Vec<Arc<RawQueue>>,
    hash: RxHash,
}

impl Spread {
    pub(crate) fn new(queues: Vec<Arc<RawQueue>>, hash: RxHash) -> Result<Spread, Error> {
        if !queues.len().is_power_of_two() || queues.len() > MAX_SPREAD {
            return Err(Error::Invalid {
                attribute: "rwq_ind_tbl",
                why: "its size is no power of two, or too large",
            });
        }
        Ok(Spread { queues, hash })
    }

    pub(super) fn choose(&self, frame: &Frame) -> &RawQueue {
        &self.queues[self.hash.of(frame) as usize & (self.queues.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and two of the examples that everybody checks RSS with.
    #[test]
    fn toeplitz_equals_the_published_values() {
        let key = [
            0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
            0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
            0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
        ];
        // 66.9.149.187:2794 to 161.142.100.80:1766
        let addresses = [66, 9, 149, 187, 161, 142, 100, 80];
        assert_eq!(toeplitz(&key, &addresses), 0x323e_8fc2);
        let with_ports: Vec<u8> = addresses.into_iter().chain([0x0a, 0xea, 0x06, 0xe6]).collect();
        assert_eq!(toeplitz(&key, &with_ports), 0x51cc_c178);
    }
}
