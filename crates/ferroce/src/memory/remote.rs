//! What a peer needs to know of a region.

use super::resolve;
use crate::error::Error;
use ferroce_proto::RKey;
use std::ops::RangeBounds;

/// Memory of a peer: where it is, how much, and the key that opens it. Whoever has this can do what the region's
/// rights allow, through a queue pair of its protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteRegion {
    /// First byte, as the peer's NIC names it.
    pub addr: u64,
    /// Number of bytes.
    pub len: u64,
    /// The key.
    pub rkey: RKey,
}

/// Twenty bytes that are no remote region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a remote region: its bytes wrap around the address space")]
pub struct BadRemoteRegion;

impl RemoteRegion {
    /// Bytes of its encoded form.
    pub const ENCODED_LEN: usize = 20;

    /// Part of it.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<RemoteRegion, Error> {
        let (offset, len) = resolve(range, self.len)?;
        Ok(RemoteRegion { addr: self.addr.wrapping_add(offset), len, rkey: self.rkey })
    }

    /// For the way to the peer, big-endian: address, length, key.
    pub fn to_bytes(&self) -> [u8; Self::ENCODED_LEN] {
        let mut bytes = [0; Self::ENCODED_LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes
    }

    /// Back from the way. A peer that lies here only makes the operations on its own memory fail.
    pub fn from_bytes(bytes: &[u8; Self::ENCODED_LEN]) -> Result<Self, BadRemoteRegion> {
        let (words, key) = bytes.split_at(16);
        let mut numbers = words.chunks_exact(8).map(|w| w.iter().fold(0, |n, b| n << 8 | u64::from(*b)));
        let (addr, len) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        let rkey = RKey(key.iter().fold(0, |n, b| n << 8 | u32::from(*b)));
        match addr.checked_add(len) {
            Some(_) => Ok(RemoteRegion { addr, len, rkey }),
            None => Err(BadRemoteRegion),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip_and_ranges_are_checked() {
        let all = RemoteRegion { addr: 0x1122_3344_5566_7788, len: 4096, rkey: RKey(0x99aa_bbcc) };
        assert_eq!(RemoteRegion::from_bytes(&all.to_bytes()), Ok(all));
        let part = all.slice(16..32).unwrap();
        assert_eq!((part.addr - all.addr, part.len), (16, 16));
        assert!(part.slice(..=16).is_err() && part.slice(17..).is_err());
        assert_eq!(part.slice(16..).unwrap().len, 0);
        assert_eq!(RemoteRegion::from_bytes(&[0xff; 20]), Err(BadRemoteRegion));
    }
}
