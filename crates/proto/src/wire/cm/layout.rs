//! Applies the description of a message: a reader fills the fields, a writer stores them.
//!
//! Offsets are bytes behind the MAD header. They are constants of the descriptions, all within the body. A field outside the body
//! would read as zero and would not be written, so no description can cause a panic.

use super::{CmPath, CommId, RejectReason, RejectedMessage, SidrStatus};
use crate::ids::{Gid, PKey, Psn, Qkey, Qpn};
use crate::wire::mad::MAD_BODY_LEN;

/// The bytes behind the MAD header.
pub(super) type Body = [u8; MAD_BODY_LEN];

/// Declares a message: its fields, each with the method of [`Cursor`] that reads and writes it, and behind them the private data,
/// which fills the body. A new message is all zeros.
macro_rules! message {
    ($(#[$doc:meta])* pub struct $name:ident, private data from $private:literal {
        $($(#[$field_doc:meta])* $field:ident: $type:ty = $kind:ident($($at:expr),+),)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            /// Private data of the program.
            pub private_data: [u8; $name::PRIVATE_LEN],
        }

        impl $name {
            /// Bytes of private data.
            pub const PRIVATE_LEN: usize = $crate::wire::mad::MAD_BODY_LEN - $private;
        }

        impl Default for $name {
            fn default() -> Self {
                use $crate::wire::cm::layout::Zero;
                $name { $($field: Zero::zero(),)* private_data: Zero::zero() }
            }
        }

        impl $crate::wire::cm::layout::Layout for $name {
            fn walk(&mut self, cursor: &mut impl $crate::wire::cm::layout::Cursor) {
                $(cursor.$kind($($at,)+ &mut self.$field);)*
                cursor.bytes($private, &mut self.private_data);
            }
        }
    };
}
pub(super) use message;

/// The initial value of a field. `Default` is not implemented for long arrays.
pub(super) trait Zero {
    /// The value.
    fn zero() -> Self;
}

macro_rules! zero {
    ($($type:ty),+) => {
        $(impl Zero for $type {
            fn zero() -> Self {
                <$type>::default()
            }
        })+
    };
}
zero!(
    bool,
    u8,
    u16,
    u32,
    u64,
    CommId,
    Gid,
    PKey,
    Psn,
    Qkey,
    Qpn,
    CmPath,
    RejectReason,
    RejectedMessage,
    SidrStatus
);

impl<const N: usize> Zero for [u8; N] {
    fn zero() -> Self {
        [0; N]
    }
}

/// A message with a description of its field layout.
pub(super) trait Layout: Sized {
    /// Passes every field to `cursor`, which reads or writes it.
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
    /// Three bytes of which each is the last of four.
    fn spread(&mut self, at: usize, field: &mut u32) {
        let [_, mut high, mut middle, mut low] = field.to_be_bytes();
        self.byte(at, &mut high);
        self.byte(at + 4, &mut middle);
        self.byte(at + 8, &mut low);
        *field = u32::from_be_bytes([0, high, middle, low]);
    }
    /// The reason of a refusal.
    fn reason(&mut self, at: usize, field: &mut RejectReason) {
        self.half(at, &mut field.0);
    }
    /// Which message a REJ or MRA is about: 2 bits.
    fn rejected(&mut self, at: usize, field: &mut RejectedMessage) {
        let mut code = *field as u8;
        self.bits(at, 0, 2, &mut code);
        *field = match code {
            0 => RejectedMessage::Req,
            1 => RejectedMessage::Rep,
            2 => RejectedMessage::Other,
            _ => RejectedMessage::Reserved,
        };
    }
    /// A path: 44 bytes.
    fn path(&mut self, at: usize, field: &mut CmPath) {
        self.half(at, &mut field.local_lid);
        self.half(at + 2, &mut field.remote_lid);
        self.gid(at + 4, &mut field.local_gid);
        self.gid(at + 20, &mut field.remote_gid);
        self.flow_label(at + 36, &mut field.flow_label);
        self.bits(at + 39, 2, 6, &mut field.packet_rate);
        self.byte(at + 40, &mut field.traffic_class);
        self.byte(at + 41, &mut field.hop_limit);
        self.bits(at + 42, 0, 4, &mut field.sl);
        self.flag(at + 42, 4, &mut field.subnet_local);
        self.bits(at + 43, 0, 5, &mut field.local_ack_timeout);
    }
    /// The outcome of a service resolution.
    fn status(&mut self, at: usize, field: &mut SidrStatus) {
        self.byte(at, &mut field.0);
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
        let (shift, mask) = shift_and_mask(first, width);
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
        let (shift, mask) = shift_and_mask(first, width);
        if let Some(byte) = self.0.get_mut(at) {
            *byte = *byte & !(mask << shift) | (*field & mask) << shift;
        }
    }
}

/// Shift and mask of `width` bits from bit `first` on, the highest bit being 0.
const fn shift_and_mask(first: u32, width: u32) -> (u32, u8) {
    (8 - first - width, (0xff_u16 >> (8 - width)) as u8)
}
