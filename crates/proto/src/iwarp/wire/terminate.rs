//! The Terminate message: why one end ends the stream (RFC 5040, 4.8; codes also RFC 5041, 5044, 6581).

use super::ddp::first;
use super::{DdpBuffer, DdpHeader, MAX_BODY, ReadRequest, StreamError};
use core::fmt;

/// Layer, error type and error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TerminateCode {
    /// 0 RDMAP, 1 DDP, 2 the layer below (MPA).
    pub layer: u8,
    /// Error type.
    pub kind: u8,
    /// Error code.
    pub code: u8,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $layer:literal / $kind:literal / $code:literal => $text:literal,)+) => {
        impl TerminateCode {
            $($(#[$doc])* pub const $name: TerminateCode =
                TerminateCode { layer: $layer, kind: $kind, code: $code };)+

            /// The codes with a text.
            pub const ALL: [TerminateCode; [$($layer),+].len()] = [$(TerminateCode::$name),+];

            /// What it means; `None` for a reserved code.
            pub const fn text(self) -> Option<&'static str> {
                match (self.layer, self.kind, self.code) {
                    $(($layer, $kind, $code) => Some($text),)+
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// The sender itself failed.
    RDMAP_LOCAL = 0 / 0 / 0 => "local catastrophic error",
    /// Unknown STag of a READ or atomic.
    RDMAP_STAG = 0 / 1 / 0 => "invalid STag",
    /// Outside the region.
    RDMAP_BOUNDS = 0 / 1 / 1 => "base or bounds violation",
    /// The region does not grant the right.
    RDMAP_RIGHTS = 0 / 1 / 2 => "access rights violation",
    /// The STag belongs to another protection domain or stream.
    RDMAP_STREAM = 0 / 1 / 3 => "STag not associated with this stream",
    /// Address and length exceed 2^64.
    RDMAP_WRAP = 0 / 1 / 4 => "tagged offset wraps",
    /// The STag of a SEND with invalidate cannot be invalidated.
    RDMAP_INVALIDATE = 0 / 1 / 9 => "STag cannot be invalidated",
    /// Some protection error.
    RDMAP_PROTECTION = 0 / 1 / 255 => "unspecified protection error",
    /// RDMAP version.
    RDMAP_VERSION = 0 / 2 / 5 => "invalid RDMAP version",
    /// An opcode that is unknown, or not allowed here.
    RDMAP_OPCODE = 0 / 2 / 6 => "unexpected opcode",
    /// An error that ends this stream.
    RDMAP_THIS_STREAM = 0 / 2 / 7 => "catastrophic error of this stream",
    /// An error that ends all streams.
    RDMAP_ALL_STREAMS = 0 / 2 / 8 => "catastrophic error of all streams",
    /// As siw reports a SEND with invalidate that it refuses.
    RDMAP_INVALIDATE_OPERATION = 0 / 2 / 9 => "STag cannot be invalidated",
    /// Some operation error.
    RDMAP_OPERATION = 0 / 2 / 255 => "unspecified operation error",
    /// The sender's DDP failed.
    DDP_LOCAL = 1 / 0 / 0 => "local catastrophic error",
    /// Unknown STag of a WRITE or READ response.
    TAGGED_STAG = 1 / 1 / 0 => "invalid STag",
    /// Outside the buffer.
    TAGGED_BOUNDS = 1 / 1 / 1 => "base or bounds violation",
    /// The STag belongs to another protection domain or stream.
    TAGGED_STREAM = 1 / 1 / 2 => "STag not associated with this stream",
    /// Address and length exceed 2^64.
    TAGGED_WRAP = 1 / 1 / 3 => "tagged offset wraps",
    /// DDP version of a tagged segment.
    TAGGED_VERSION = 1 / 1 / 4 => "invalid DDP version",
    /// Queue number.
    UNTAGGED_QUEUE = 1 / 2 / 1 => "invalid queue number",
    /// No receive is posted.
    UNTAGGED_NO_BUFFER = 1 / 2 / 2 => "no buffer available for the message",
    /// The message sequence number is not the next one.
    UNTAGGED_MSN = 1 / 2 / 3 => "message sequence number out of range",
    /// The message offset is not the next one of the message.
    UNTAGGED_OFFSET = 1 / 2 / 4 => "invalid message offset",
    /// Longer than the receive.
    UNTAGGED_TOO_LONG = 1 / 2 / 5 => "message too long for the buffer",
    /// DDP version of an untagged segment.
    UNTAGGED_VERSION = 1 / 2 / 6 => "invalid DDP version",
    /// TCP lost the connection.
    LLP_LOST = 2 / 0 / 1 => "TCP connection closed or lost",
    /// CRC.
    LLP_CRC = 2 / 0 / 2 => "wrong CRC",
    /// Marker and length contradict each other, or the length is impossible.
    LLP_LENGTH = 2 / 0 / 3 => "marker and length mismatch",
    /// A bad MPA request or reply.
    LLP_FRAME = 2 / 0 / 4 => "invalid MPA request or reply frame",
    /// MPA failed.
    LLP_LOCAL = 2 / 0 / 5 => "local catastrophic error",
    /// The responder's IRD does not suffice.
    LLP_IRD = 2 / 0 / 6 => "insufficient IRD resources",
    /// No RTR message that both ends support.
    LLP_RTR = 2 / 0 / 7 => "no matching RTR option",
}

impl fmt::Display for TerminateCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TerminateCode { layer, kind, code } = *self;
        let name = match layer {
            0 => "RDMAP",
            1 => "DDP",
            2 => "MPA",
            _ => "unknown layer",
        };
        let kind_name = match (layer, kind) {
            (0 | 1, 0) | (2, 0) => "",
            (0, 1) => "remote protection error: ",
            (0, 2) => "remote operation error: ",
            (1, 1) => "tagged buffer error: ",
            (1, 2) => "untagged buffer error: ",
            _ => "reserved error type: ",
        };
        write!(f, "{name}, {kind_name}{} ({layer}/{kind}/{code})", self.text().unwrap_or("reserved code"))
    }
}

/// The part of the refused segment that a Terminate quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// Its ULPDU length; from siw, its payload length.
    pub segment_len: u16,
    /// Its header.
    pub header: DdpHeader,
    /// Its body, if it is a READ request.
    pub read: Option<ReadRequest>,
}

/// The body of a Terminate message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// Why.
    pub code: TerminateCode,
    /// Which segment. Also `None` if the quoted header is invalid.
    pub quoted: Option<Quoted>,
}

const HAS_LENGTH: u8 = 0x80;
const HAS_DDP: u8 = 0x40;
const HAS_RDMAP: u8 = 0x20;

impl Terminate {
    /// Reads the body. An invalid quoted header is ignored: the code is useful without it.
    pub fn parse(bytes: &[u8]) -> Result<Terminate, StreamError> {
        let &[which, code, flags, _] = first(bytes)?;
        let code = TerminateCode { layer: which >> 4, kind: which & 0x0f, code };
        let rest = &bytes[4..];
        Ok(Terminate { code, quoted: Self::quoted(flags, rest) })
    }

    fn quoted(flags: u8, bytes: &[u8]) -> Option<Quoted> {
        if flags & (HAS_LENGTH | HAS_DDP) != HAS_LENGTH | HAS_DDP {
            return None;
        }
        let (len, rest) = bytes.split_first_chunk()?;
        let header = DdpHeader::parse(rest).ok()?;
        let body = rest.get(header.encoded_len()..)?;
        let read = if flags & HAS_RDMAP != 0 { ReadRequest::parse(body).ok() } else { None };
        Some(Quoted { segment_len: u16::from_be_bytes(*len), header, read })
    }

    /// Writes the body. Returns its length.
    pub fn write(&self, out: &mut [u8; MAX_BODY]) -> usize {
        let TerminateCode { layer, kind, code } = self.code;
        *out = [0; MAX_BODY];
        (out[0], out[1]) = (layer << 4 | kind & 0x0f, code);
        let Some(quoted) = &self.quoted else { return 4 };
        out[2] = HAS_LENGTH | HAS_DDP;
        out[4..6].copy_from_slice(&quoted.segment_len.to_be_bytes());
        let end = 6 + quoted.header.write(&mut out[6..]);
        // A tagged segment has no RDMAP header behind the control field.
        match (quoted.read, quoted.header.buffer) {
            (Some(read), DdpBuffer::Untagged { .. }) => {
                out[2] |= HAS_RDMAP;
                out[end..end + ReadRequest::LEN].copy_from_slice(&read.to_bytes());
                end + ReadRequest::LEN
            }
            _ => end,
        }
    }
}
