//! Flush extended transport header: placement type and selectivity level (IBA annex A19).

use super::Malformed;
use super::malformed::first_bytes;

const PLACEMENT_MASK: u32 = 0xf;
const LEVEL_SHIFT: u32 = 4;
const LEVEL_MASK: u32 = 3;

/// Flush extended transport header. Its RETH names the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Feth {
    /// Placement type: bit 0 global visibility, bit 1 persistence; 4 bits.
    pub placement: u8,
    /// Selectivity level: 0 for the bytes that the RETH names, 1 for their whole region; 2 bits.
    pub level: u8,
}

impl Feth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Feth, Malformed> {
        let word = u32::from_be_bytes(*first_bytes(bytes)?);
        let level = (word >> LEVEL_SHIFT & LEVEL_MASK) as u8;
        Ok(Feth { placement: (word & PLACEMENT_MASK) as u8, level })
    }

    /// Encodes the header. Only four and two bits fit.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Feth::LEN] {
        let level = (u32::from(self.level) & LEVEL_MASK) << LEVEL_SHIFT;
        (level | u32::from(self.placement) & PLACEMENT_MASK).to_be_bytes()
    }
}
