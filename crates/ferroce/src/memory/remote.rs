//! Descriptions of regions for peers.

use super::resolve;
use crate::error::Error;
use ferroce_proto::RKey;
use std::ops::RangeBounds;

/// Memory of a peer: address, size and key. It permits what the access rights of the region allow, through a queue pair of
/// the same protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteRegion {
    /// Address of the first byte on the peer.
    pub addr: u64,
    /// Size in bytes.
    pub len: u64,
    /// Remote key.
    pub rkey: RKey,
}

/// The decoded bytes are not a valid remote region.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid remote region: its range wraps around the address space")]
pub struct BadRemoteRegion;

impl RemoteRegion {
    /// Size of the encoding in bytes.
    pub const ENCODED_LEN: usize = 20;

    /// A part of the region.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<RemoteRegion, Error> {
        let (offset, len) = resolve(range, self.len)?;
        Ok(RemoteRegion { addr: self.addr.wrapping_add(offset), len, rkey: self.rkey })
    }

    /// Encodes the description, big-endian: address, size, key.
    pub fn to_bytes(&self) -> [u8; Self::ENCODED_LEN] {
        let mut bytes = [0; Self::ENCODED_LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes
    }

    /// Decodes a description. With wrong values, operations on the memory of that peer fail.
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
