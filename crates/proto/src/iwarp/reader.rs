//! The stream reader: FPDUs out of bytes that arrive in any pieces.
//!
//! The reader does not collect payload. It returns each piece as a slice of the caller's buffer, so the payload is copied once: to
//! its destination. If a CRC is in use, the reader continues it over the pieces, and reports the end of a segment only after
//! the CRC was right. A segment that arrives in several pieces may therefore be placed before its CRC is checked. Hardware does
//! the same: a message counts only when it completes, and a wrong CRC ends the connection before that. If the caller's buffer
//! holds the whole segment, the reader checks it first.

use super::wire::{
    AtomicRequest, AtomicResponse, CRC_LEN, DdpBuffer, DdpHeader, ImmediateData, LENGTH_LEN, MAX_HEAD,
    MAX_TRAILER, RdmapOpcode, ReadRequest, StreamError, Terminate, pad_len,
};
use ferroce_crc::Crc32c;

/// Length field and the two control fields: they decide how the header continues.
const CONTROLS_END: usize = LENGTH_LEN + 2;

/// Payload of a SEND, WRITE or READ response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The header of its segment.
    pub header: DdpHeader,
    /// Payload bytes of the whole segment.
    pub segment_len: u32,
    /// Payload bytes of the segment in front of this piece.
    pub offset: u32,
    /// The bytes; may be none.
    pub data: &'a [u8],
    /// Whether the segment ends here. Its CRC was right.
    pub is_end: bool,
}

impl Piece<'_> {
    /// Whether no payload of the segment follows. The end of the segment may follow alone.
    pub(super) fn has_last_byte(&self) -> bool {
        self.offset as usize + self.data.len() == self.segment_len as usize
    }
}

/// Payload that a stream continues with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The header of its segment.
    pub header: DdpHeader,
    /// Payload bytes of the segment that the caller has taken.
    pub offset: u32,
    /// Payload bytes that are missing, at least one.
    pub len: u32,
    /// Bytes between the payload and the next FPDU.
    pub trailer_len: usize,
}

/// The body of a message without payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// READ request.
    Read(ReadRequest),
    /// Immediate data.
    Immediate(ImmediateData),
    /// Atomic request.
    AtomicRequest(AtomicRequest),
    /// Atomic response.
    AtomicResponse(AtomicResponse),
    /// Terminate.
    Terminate(Terminate),
}

/// An item of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// A piece of payload.
    Payload(Piece<'a>),
    /// A whole message without payload.
    Message(DdpHeader, Body),
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Collects the header and the body of a message without payload.
    Head,
    /// Returns payload, of which `left` bytes are missing, at least one.
    Payload { header: DdpHeader, segment_len: usize, left: usize },
    /// Collects pad and CRC.
    Trailer { header: DdpHeader, segment_len: usize },
}

/// Reads one direction of a stream.
#[derive(Debug)]
pub struct Reader {
    has_crc: bool,
    crc: Crc32c,
    stage: Stage,
    head: [u8; MAX_HEAD],
    head_len: usize,
    tail: [u8; MAX_TRAILER],
    tail_len: usize,
    /// CRC of this FPDU so far.
    sum: u32,
}

impl Reader {
    /// A reader at the first FPDU.
    pub fn new(has_crc: bool) -> Reader {
        Reader {
            has_crc,
            crc: Crc32c::new(),
            stage: Stage::Head,
            head: [0; MAX_HEAD],
            head_len: 0,
            tail: [0; MAX_TRAILER],
            tail_len: 0,
            sum: 0,
        }
    }

    /// Whether the stream is between two FPDUs, where it may end.
    pub fn is_between(&self) -> bool {
        matches!(self.stage, Stage::Head) && self.head_len == 0
    }

    /// Takes bytes from the front of `bytes` up to the next item. Returns `None` if all are taken and more are needed. After an
    /// error the reader must not be used again.
    pub fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<Item<'a>>, StreamError> {
        if matches!(self.stage, Stage::Head) && !self.read_head(bytes)? {
            return Ok(None);
        }
        match self.stage {
            Stage::Payload { header, segment_len, left } if !bytes.is_empty() => {
                self.read_payload(bytes, header, segment_len, left).map(Some)
            }
            Stage::Trailer { header, segment_len } => {
                if !self.read_trailer(bytes) {
                    return Ok(None);
                }
                self.finish()?;
                self.ended(header, segment_len).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// The payload that the stream continues with; `None` anywhere else.
    pub fn pending(&self) -> Option<Pending> {
        let Stage::Payload { header, segment_len, left } = self.stage else { return None };
        let trailer_len = self.trailer_len();
        Some(Pending { header, offset: (segment_len - left) as u32, len: left as u32, trailer_len })
    }

    /// Skips payload that the caller has taken from the stream, less than is missing. Returns its position in the segment, or `None`
    /// if a CRC covers the payload, which must then be read.
    pub fn skip(&mut self, len: u32) -> Option<Piece<'static>> {
        let Stage::Payload { header, segment_len, left } = self.stage else { return None };
        let rest = left.checked_sub(len as usize).filter(|rest| *rest > 0 && !self.has_crc)?;
        self.stage = Stage::Payload { header, segment_len, left: rest };
        let offset = (segment_len - left) as u32;
        Some(Piece { header, segment_len: segment_len as u32, offset, data: &[], is_end: false })
    }

    /// Returns whether the head is complete.
    fn read_head(&mut self, bytes: &mut &[u8]) -> Result<bool, StreamError> {
        loop {
            let need = self.head_end()?;
            if self.head_len == need {
                self.start_segment()?;
                return Ok(true);
            }
            if !fill(&mut self.head[..need], &mut self.head_len, bytes) {
                return Ok(false);
            }
        }
    }

    fn ulpdu_len(&self) -> usize {
        usize::from(u16::from_be_bytes([self.head[0], self.head[1]]))
    }

    /// Length of the head, or of the part that decides how it continues.
    fn head_end(&self) -> Result<usize, StreamError> {
        if self.head_len < CONTROLS_END {
            return Ok(CONTROLS_END);
        }
        let (len, header_len) = (self.ulpdu_len(), DdpHeader::len_of(self.head[LENGTH_LEN]));
        if self.head_len == CONTROLS_END {
            // Report a wrong version rather than a wrong length: it explains more.
            match DdpHeader::parse(&self.head[LENGTH_LEN..CONTROLS_END]) {
                Err(StreamError::TooShort { .. }) | Ok(_) => {}
                Err(error) => return Err(error),
            }
            if len < header_len {
                return Err(StreamError::TooShort { need: header_len, have: len });
            }
        }
        if self.head_len < LENGTH_LEN + header_len {
            return Ok(LENGTH_LEN + header_len);
        }
        let header = DdpHeader::parse(&self.head[LENGTH_LEN..])?;
        if header.opcode.has_payload() {
            return Ok(LENGTH_LEN + header_len);
        }
        let body_len = len - header_len;
        if !header.opcode.takes_body(body_len) {
            return Err(StreamError::BodyLength { opcode: header.opcode, len: body_len });
        }
        if !header.last || !matches!(header.buffer, DdpBuffer::Untagged { offset: 0, .. }) {
            return Err(StreamError::NotWhole { opcode: header.opcode });
        }
        Ok(LENGTH_LEN + len)
    }

    fn start_segment(&mut self) -> Result<(), StreamError> {
        let header = DdpHeader::parse(&self.head[LENGTH_LEN..])?;
        if self.has_crc {
            self.sum = self.crc.update(0, &self.head[..self.head_len]);
        }
        let segment_len = LENGTH_LEN + self.ulpdu_len() - self.head_len;
        self.stage = match segment_len {
            0 => Stage::Trailer { header, segment_len },
            left => Stage::Payload { header, segment_len, left },
        };
        Ok(())
    }

    fn read_payload<'a>(
        &mut self,
        bytes: &mut &'a [u8],
        header: DdpHeader,
        segment_len: usize,
        left: usize,
    ) -> Result<Item<'a>, StreamError> {
        let data = take(bytes, left);
        if self.has_crc {
            self.sum = self.crc.update(self.sum, data);
        }
        let (offset, left) = ((segment_len - left) as u32, left - data.len());
        let is_end = left == 0 && bytes.len() >= self.trailer_len() && self.read_trailer(bytes);
        if is_end {
            self.finish()?;
        } else if left == 0 {
            self.stage = Stage::Trailer { header, segment_len };
        } else {
            self.stage = Stage::Payload { header, segment_len, left };
        }
        Ok(Item::Payload(Piece { header, segment_len: segment_len as u32, offset, data, is_end }))
    }

    fn trailer_len(&self) -> usize {
        pad_len(self.ulpdu_len()) + CRC_LEN
    }

    /// Returns whether the trailer is complete.
    fn read_trailer(&mut self, bytes: &mut &[u8]) -> bool {
        let len = self.trailer_len();
        fill(&mut self.tail[..len], &mut self.tail_len, bytes)
    }

    /// Checks the CRC and starts the next FPDU.
    fn finish(&mut self) -> Result<(), StreamError> {
        let (pad, field) = self.tail[..self.tail_len].split_at(self.tail_len - CRC_LEN);
        if self.has_crc {
            let computed = self.crc.update(self.sum, pad);
            let found = field.first_chunk().copied().map_or(0, u32::from_le_bytes);
            if found != computed {
                return Err(StreamError::BadCrc { found, computed });
            }
        }
        (self.stage, self.head_len, self.tail_len) = (Stage::Head, 0, 0);
        Ok(())
    }

    /// The item that ends a segment whose payload was returned before, or a message without payload.
    fn ended<'a>(&self, header: DdpHeader, segment_len: usize) -> Result<Item<'a>, StreamError> {
        let body = &self.head
            [LENGTH_LEN + header.encoded_len()..LENGTH_LEN + self.ulpdu_len().min(MAX_HEAD - LENGTH_LEN)];
        let body = match header.opcode {
            RdmapOpcode::ReadRequest => Body::Read(ReadRequest::parse(body)?),
            RdmapOpcode::AtomicRequest => Body::AtomicRequest(AtomicRequest::parse(body)?),
            RdmapOpcode::AtomicResponse => Body::AtomicResponse(AtomicResponse::parse(body)?),
            RdmapOpcode::Immediate | RdmapOpcode::ImmediateSe => Body::Immediate(ImmediateData::parse(body)?),
            RdmapOpcode::Terminate => Body::Terminate(Terminate::parse(body)?),
            _ => {
                let segment_len = segment_len as u32;
                let piece = Piece { header, segment_len, offset: segment_len, data: &[], is_end: true };
                return Ok(Item::Payload(piece));
            }
        };
        Ok(Item::Message(header, body))
    }
}

/// Takes up to `most` bytes from the front.
fn take<'a>(bytes: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (now, later) = bytes.split_at(most.min(bytes.len()));
    *bytes = later;
    now
}

/// Fills `buffer`, whose first `have` bytes are filled already. Returns whether it is full.
fn fill(buffer: &mut [u8], have: &mut usize, bytes: &mut &[u8]) -> bool {
    let now = take(bytes, buffer.len() - *have);
    buffer[*have..*have + now.len()].copy_from_slice(now);
    *have += now.len();
    *have == buffer.len()
}
