//! MPA request and reply frames (RFC 5044, 7.1; RFC 6581, 9).

use alloc::vec::Vec;

/// Longest private data, the enhanced words included.
pub const MAX_PRIVATE_DATA: usize = 512;

const KEY_LEN: usize = 16;
const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECT: u8 = 0x20;
const ENHANCED: u8 = 0x10;
/// Reserved bits. Two ferroce ends recognise each other by them: siw repeats the bits of a request in its reply, so the reply has
/// another one.
const REQUEST_MARK: u8 = 0x04;
const REPLY_MARK: u8 = 0x02;

const PEER_TO_PEER: u16 = 0x8000;
const RTR_SEND: u16 = 0x4000;
const RTR_WRITE: u16 = 0x8000;
const RTR_READ: u16 = 0x4000;
const DEPTH: u16 = 0x3fff;

/// Which of the two frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// From the end that connects.
    Request,
    /// From the end that listens.
    Reply,
}

impl FrameKind {
    const fn key(self) -> &'static [u8; KEY_LEN] {
        match self {
            FrameKind::Request => b"MPA ID Req Frame",
            FrameKind::Reply => b"MPA ID Rep Frame",
        }
    }
    const fn mark(self) -> u8 {
        match self {
            FrameKind::Request => REQUEST_MARK,
            FrameKind::Reply => REPLY_MARK,
        }
    }
}

/// Which messages may be the initiator's first, after which the responder may send (ready to receive).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RtrKinds {
    /// An empty SEND.
    pub send: bool,
    /// An empty WRITE.
    pub write: bool,
    /// An empty READ.
    pub read: bool,
}

/// The enhanced words of revision 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enhanced {
    /// READs that the sender answers at a time, 14 bits.
    pub ird: u16,
    /// READs that the sender has outstanding at most, 14 bits.
    pub ord: u16,
    /// Whether an RTR message is requested (peer-to-peer mode).
    pub peer_to_peer: bool,
    /// Its kinds.
    pub rtr: RtrKinds,
}

impl Enhanced {
    /// Bytes in front of the private data.
    pub const LEN: usize = 4;
    /// IRD or ORD that is not negotiated.
    pub const NOT_NEGOTIATED: u16 = DEPTH;

    fn parse(bytes: [u8; Enhanced::LEN]) -> Enhanced {
        let [a, b, c, d] = bytes;
        let (first, second) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Enhanced {
            ird: first & DEPTH,
            ord: second & DEPTH,
            peer_to_peer: first & PEER_TO_PEER != 0,
            rtr: RtrKinds {
                send: first & RTR_SEND != 0,
                write: second & RTR_WRITE != 0,
                read: second & RTR_READ != 0,
            },
        }
    }

    fn to_bytes(self) -> [u8; Enhanced::LEN] {
        let bit = |is_set: bool, bit: u16| if is_set { bit } else { 0 };
        let first = self.ird & DEPTH | bit(self.peer_to_peer, PEER_TO_PEER) | bit(self.rtr.send, RTR_SEND);
        let second = self.ord & DEPTH | bit(self.rtr.write, RTR_WRITE) | bit(self.rtr.read, RTR_READ);
        let ([a, b], [c, d]) = (first.to_be_bytes(), second.to_be_bytes());
        [a, b, c, d]
    }
}

/// Why bytes are not an MPA frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadFrame {
    /// They do not begin with the key of the frame.
    #[error("the bytes do not begin with the key of an MPA frame")]
    Key,
    /// The revision does not exist.
    #[error("MPA revision {0}, only 1 and 2 exist")]
    Revision(u8),
    /// Too much private data.
    #[error("{0} bytes of private data, the limit is {MAX_PRIVATE_DATA}")]
    TooLong(usize),
    /// The enhanced words are announced but missing.
    #[error("the enhanced bit is set, but the private data has {0} bytes")]
    NoEnhancedWords(usize),
}

/// An MPA request or reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpaFrame {
    /// Which one.
    pub kind: FrameKind,
    /// Revision: 1 or 2.
    pub revision: u8,
    /// The sender requests markers in the FPDUs that it receives.
    pub markers: bool,
    /// The sender requests CRCs.
    pub crc: bool,
    /// The responder refuses.
    pub reject: bool,
    /// The sender is ferroce.
    pub is_ferroce: bool,
    /// The enhanced words; only in revision 2.
    pub enhanced: Option<Enhanced>,
    /// The program's bytes.
    pub private_data: Vec<u8>,
}

impl MpaFrame {
    /// Bytes in front of the private data.
    pub const HEADER_LEN: usize = 20;

    /// Reads a frame of this kind at the start of `bytes`. Returns the frame and its length, or `None` if more bytes are needed.
    pub fn parse(kind: FrameKind, bytes: &[u8]) -> Result<Option<(MpaFrame, usize)>, BadFrame> {
        let seen = bytes.len().min(KEY_LEN);
        if bytes[..seen] != kind.key()[..seen] {
            return Err(BadFrame::Key);
        }
        let Some((&[.., flags, revision, high, low], rest)) =
            bytes.split_first_chunk::<{ MpaFrame::HEADER_LEN }>()
        else {
            return Ok(None);
        };
        if !matches!(revision, 1 | 2) {
            return Err(BadFrame::Revision(revision));
        }
        let len = usize::from(u16::from_be_bytes([high, low]));
        if len > MAX_PRIVATE_DATA {
            return Err(BadFrame::TooLong(len));
        }
        let has_words = flags & ENHANCED != 0 && revision == 2;
        if has_words && len < Enhanced::LEN {
            return Err(BadFrame::NoEnhancedWords(len));
        }
        let Some(private) = rest.get(..len) else { return Ok(None) };
        let (words, private_data) =
            if has_words { private.split_at(Enhanced::LEN) } else { (&[][..], private) };
        let frame = MpaFrame {
            kind,
            revision,
            markers: flags & MARKERS != 0,
            crc: flags & CRC != 0,
            reject: flags & REJECT != 0 && kind == FrameKind::Reply,
            is_ferroce: flags & kind.mark() != 0,
            enhanced: words.first_chunk().map(|words| Enhanced::parse(*words)),
            private_data: private_data.to_vec(),
        };
        Ok(Some((frame, MpaFrame::HEADER_LEN + len)))
    }

    /// Encodes the frame. Private data beyond [`MAX_PRIVATE_DATA`] is cut off; the caller checks it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let words = self.enhanced.filter(|_| self.revision == 2).map(Enhanced::to_bytes);
        let words = words.as_ref().map_or(&[][..], |words| words);
        let private = &self.private_data[..self.private_data.len().min(MAX_PRIVATE_DATA - words.len())];
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let flags = bit(self.markers, MARKERS)
            | bit(self.crc, CRC)
            | bit(self.reject, REJECT)
            | bit(!words.is_empty(), ENHANCED)
            | bit(self.is_ferroce, self.kind.mark());
        let len = (words.len() + private.len()) as u16;
        let mut out = Vec::with_capacity(MpaFrame::HEADER_LEN + usize::from(len));
        out.extend_from_slice(self.kind.key());
        out.extend_from_slice(&[flags, self.revision]);
        out.extend_from_slice(&len.to_be_bytes());
        out.extend_from_slice(words);
        out.extend_from_slice(private);
        out
    }
}
