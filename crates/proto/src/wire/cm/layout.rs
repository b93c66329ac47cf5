//! How the description of a message is followed: by a reader that fills the fields, by a writer that stores them.
//!
//! Offsets are bytes behind the MAD header. They are constants of the descriptions, all within the body; one that is not
//! reads as zero and is not written, so that no description can make bytes from the network panic.

use super::CommId;
use crate::ids::{Gid, PKey, Psn, Qkey, Qpn};
use crate::wire::mad::MAD_BODY_LEN;

/// The bytes behind the MAD header.
pub(super) type Body = [u8; MAD_BODY_LEN];

/// A message with a description of its field layout.
pub(super) trait Layout: Sized {
    /// Shows every field to `cursor`, which reads or writes it.
    fn walk(&mut self, cursor: &mut impl Cursor);

    /// Fills this message from a body.
    fn read(mut self, body: &Body) -> Self {
        self.walk(&mut Reader(body));
        self
    }

    /// The body of this message.
    fn body(mut self) -> Body {
        let mut body = [0; MAD_BODY_LEN];
        self.walk(&mut Writer(&mut body));
        body
    }
}

/// Reads or writes one field.
pub(super) trait Cursor {
    /// Whole bytes from `at` on.
    fn bytes(&mut self, at: usize, field: &mut [u8]);
    /// `width` bits of byte `at`; bit 0 is the highest.
    fn bits(&mut self, at: usize, first: u32, width: u32, field: &mut u8);

    /// One bit.
    fn flag(&mut self, at: usize, bit: u32, field: &mut bool) {
        let mut value = u8::from(*field);
        self.bits(at, bit, 1, &mut value);
        *field = value != 0;
    }
    /// One byte.
    fn byte(&mut self, at: usize, field: &mut u8) {
        self.bits(at, 0, 8, field);
    }
    /// Two bytes.
    fn half(&mut self, at: usize, field: &mut u16) {
        let mut b = field.to_be_bytes();
        self.bytes(at, &mut b);
        *field = u16::from_be_bytes(b);
    }
    /// Three bytes.
    fn three(&mut self, at: usize, field: &mut u32) {
        let mut b = field.to_be_bytes();
        b[0] = 0;
        self.bytes(at, &mut b[1..]);
        *field = u32::from_be_bytes(b);
    }
    /// Four bytes.
    fn word(&mut self, at: usize, field: &mut u32) {
        let mut b = field.to_be_bytes();
        self.bytes(at, &mut b);
        *field = u32::from_be_bytes(b);
    }
    /// Eight bytes.
    fn double(&mut self, at: usize, field: &mut u64) {
        let mut b = field.to_be_bytes();
        self.bytes(at, &mut b);
        *field = u64::from_be_bytes(b);
    }
    /// A flow label: 20 bits from the start of byte `at`; the four bits behind it belong to the next field.
    fn flow_label(&mut self, at: usize, field: &mut u32) {
        let [_, b0, b1, b2] = (*field << 4).to_be_bytes();
        let mut two = [b0, b1];
        self.bytes(at, &mut two);
        let mut last = b2 >> 4;
        self.bits(at + 2, 0, 4, &mut last);
        *field = u32::from(two[0]) << 12 | u32::from(two[1]) << 4 | u32::from(last);
    }
    /// A communication id.
    fn comm_id(&mut self, at: usize, field: &mut CommId) {
        self.word(at, &mut field.0);
    }
    /// A queue pair number.
    fn qpn(&mut self, at: usize, field: &mut Qpn) {
        let mut value = field.value();
        self.three(at, &mut value);
        *field = Qpn::new(value);
    }
    /// A sequence number.
    fn psn(&mut self, at: usize, field: &mut Psn) {
        let mut value = field.value();
        self.three(at, &mut value);
        *field = Psn::new(value);
    }
    /// A queue key.
    fn qkey(&mut self, at: usize, field: &mut Qkey) {
        self.word(at, &mut field.0);
    }
    /// A partition key.
    fn pkey(&mut self, at: usize, field: &mut PKey) {
        self.half(at, &mut field.0);
    }
    /// A GID.
    fn gid(&mut self, at: usize, field: &mut Gid) {
        self.bytes(at, &mut field.0);
    }
}

struct Reader<'a>(&'a Body);

impl Cursor for Reader<'_> {
    fn bytes(&mut self, at: usize, field: &mut [u8]) {
        if let Some(source) = self.0.get(at..at + field.len()) {
            field.copy_from_slice(source);
        }
    }
    fn bits(&mut self, at: usize, first: u32, width: u32, field: &mut u8) {
        let (shift, mask) = place(first, width);
        *field = self.0.get(at).map_or(0, |byte| byte >> shift & mask);
    }
}

struct Writer<'a>(&'a mut Body);

impl Cursor for Writer<'_> {
    fn bytes(&mut self, at: usize, field: &mut [u8]) {
        if let Some(target) = self.0.get_mut(at..at + field.len()) {
            target.copy_from_slice(field);
        }
    }
    fn bits(&mut self, at: usize, first: u32, width: u32, field: &mut u8) {
        let (shift, mask) = place(first, width);
        if let Some(byte) = self.0.get_mut(at) {
            *byte = *byte & !(mask << shift) | (*field & mask) << shift;
        }
    }
}

/// Shift and mask of `width` bits from bit `first` on, the highest bit being 0.
const fn place(first: u32, width: u32) -> (u32, u8) {
    (8 - first - width, (0xff_u16 >> (8 - width)) as u8)
}
