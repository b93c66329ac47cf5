//! The blocks of pcapng: type, length, body, length again. A section begins with a block that shows the byte order.

use super::{ByteOrder, Damage, fill, fill_rest};
use std::io::Read;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// Type of a block that describes an interface.
pub(super) const INTERFACE: u32 = 1;
/// Type of the packet block of old files.
pub(super) const OLD_PACKET: u32 = 2;
/// Type of a packet block without time.
pub(super) const SIMPLE_PACKET: u32 = 3;
/// Type of the usual packet block.
pub(super) const ENHANCED_PACKET: u32 = 6;
/// No writer makes longer blocks. A longer length is damage, and must not be allocated.
const MAX_BLOCK: u32 = 16 << 20;
/// Type and two lengths.
const FRAME_LEN: u32 = 12;

/// Whether a block of this type contains a packet.
pub(crate) fn is_packet(kind: u32) -> bool {
    [ENHANCED_PACKET, SIMPLE_PACKET, OLD_PACKET].contains(&kind)
}

/// Reads the blocks of a pcapng file.
pub(crate) struct Blocks<R> {
    source: R,
    order: ByteOrder,
    body: Vec<u8>,
    is_in_section: bool,
    /// The first bytes of the file, which the caller has read to detect the format.
    first: Option<[u8; 4]>,
}

/// A block.
pub(crate) struct Block<'a> {
    pub(crate) kind: u32,
    pub(crate) order: ByteOrder,
    pub(crate) body: &'a [u8],
}

impl Block<'_> {
    /// Whether a section begins here. The numbers of interfaces start at 0 in each section.
    pub(super) fn begins_section(&self) -> bool {
        self.kind == SECTION_HEADER
    }
}

/// Whether a file that begins with these bytes is pcapng.
pub(super) fn is_pcapng(first: [u8; 4]) -> bool {
    u32::from_be_bytes(first) == SECTION_HEADER
}

impl<R: Read> Blocks<R> {
    /// Reads from the start of a file.
    pub(crate) fn new(source: R) -> Blocks<R> {
        Blocks { source, order: ByteOrder::Little, body: Vec::new(), is_in_section: false, first: None }
    }

    /// Reads a file whose first four bytes were taken already.
    pub(super) fn after(first: [u8; 4], source: R) -> Blocks<R> {
        Blocks { first: Some(first), ..Blocks::new(source) }
    }

    /// The body of the block that was returned last.
    pub(super) fn body(&self) -> &[u8] {
        &self.body
    }

    /// The next block; `None` at the end of the file.
    pub(crate) fn next(&mut self) -> Result<Option<Block<'_>>, Damage> {
        let mut head = [0; 8];
        if let Some(first) = self.first.take() {
            head[..4].copy_from_slice(&first);
            fill_rest(&mut self.source, &mut head[4..])?;
        } else if !fill(&mut self.source, &mut head)? {
            return Ok(None);
        }
        let mut kind = self.order.u32(&head).unwrap_or_default();
        self.body.clear();
        if !self.is_in_section && !is_pcapng([head[0], head[1], head[2], head[3]]) {
            return Err(Damage::Malformed("the file is no pcapng file"));
        }
        if is_pcapng([head[0], head[1], head[2], head[3]]) {
            kind = SECTION_HEADER;
            let mut magic = [0; 4];
            fill_rest(&mut self.source, &mut magic)?;
            self.order = match (u32::from_le_bytes(magic), u32::from_be_bytes(magic)) {
                (BYTE_ORDER_MAGIC, _) => ByteOrder::Little,
                (_, BYTE_ORDER_MAGIC) => ByteOrder::Big,
                _ => return Err(Damage::Malformed("a section has no valid byte order")),
            };
            self.is_in_section = true;
            self.body.extend_from_slice(&magic);
        }
        let len = self.order.u32(&head[4..]).unwrap_or_default();
        let fixed = FRAME_LEN + self.body.len() as u32;
        if len < fixed || len > MAX_BLOCK || !len.is_multiple_of(4) {
            return Err(Damage::Malformed("a block has an impossible length"));
        }
        let read = self.body.len();
        self.body.resize((len - FRAME_LEN) as usize, 0);
        fill_rest(&mut self.source, &mut self.body[read..])?;
        let mut again = [0; 4];
        fill_rest(&mut self.source, &mut again)?;
        if self.order.u32(&again) != Some(len) {
            return Err(Damage::Malformed("the two lengths of a block differ"));
        }
        Ok(Some(Block { kind, order: self.order, body: &self.body }))
    }
}
