//! Reads messages ahead, in large pieces: while the packets of one piece leave, the GPU copies the next.
//!
//! Data that was read ahead is used only for its own message, because the program may change the memory before the next one. A message
//! always starts at the first byte of an entry or of a READ, and this byte is always read again.

use super::staging::{BUFFER_LEN, BufferGuard};
use super::{Copying, Gpu, fault};
use crate::memory::region::Span;
use ferroce_proto::verbs::MemoryFault;
use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::Arc;

/// Most messages that are read ahead at a time.
const READERS: usize = 8;
/// Pieces of each message: one that is sent, one that is copied.
const PIECES: usize = 2;

/// The position of a read in its message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadAhead {
    /// The reader of the message; 0 disables reading ahead.
    pub(crate) reader: usize,
    /// Bytes of the entry or the READ that follow.
    pub(crate) behind: usize,
    /// They are the first ones of the entry or the READ.
    pub(crate) is_first: bool,
}

/// The reader of the READ responses of a queue pair. The reader of its requests is its own address.
pub(crate) fn answers_of(qp: usize) -> usize {
    qp + 1
}

impl ReadAhead {
    /// Bytes that belong to no message.
    pub(crate) const NONE: ReadAhead = ReadAhead { reader: 0, behind: 0, is_first: true };
}

/// A message that is read ahead.
pub(super) struct Reader {
    id: usize,
    /// The byte that is read next.
    next: usize,
    /// The byte behind the last piece.
    issued: usize,
    /// The byte behind the message.
    end: usize,
    pieces: VecDeque<Piece>,
    /// The byte behind those that were read out of order last. A retransmission that continues there is read ahead instead.
    retransmitted_to: usize,
}

/// Bytes of a message that are in a buffer, or on the way there.
struct Piece {
    start: usize,
    len: usize,
    buffer: Arc<BufferGuard>,
    /// The outcome of the copy, once it was waited for.
    outcome: Option<Result<(), c_int>>,
}

impl Reader {
    fn new(id: usize, next: usize, end: usize) -> Reader {
        Reader { id, next, issued: next, end, pieces: VecDeque::new(), retransmitted_to: 0 }
    }
}

/// Bytes in a buffer, which is not reused while this exists.
pub(crate) struct StagedBytes {
    _buffer: Arc<BufferGuard>,
    span: Span,
}

impl StagedBytes {
    /// Copies the bytes and returns their number.
    fn copy_to(&self, out: &mut [u8]) -> usize {
        // SAFETY: the span lies in the buffer, and the copy into it is done. `out` may be longer.
        let bytes = unsafe { std::slice::from_raw_parts(self.span.start as *const u8, self.span.len) };
        out[..bytes.len()].copy_from_slice(bytes);
        bytes.len()
    }
}

/// A copy of bytes in the memory of a GPU.
pub(crate) enum Fetched {
    /// In a buffer.
    StagedBytes(StagedBytes),
    /// In its own allocation.
    Copied(Vec<u8>),
}

impl Fetched {
    /// The bytes of the copy. Valid while `self` exists.
    pub(crate) fn span(&self) -> Span {
        match self {
            Fetched::StagedBytes(staged) => staged.span,
            Fetched::Copied(bytes) => Span::of(bytes),
        }
    }
}

/// Copies out of the memory of a GPU; `out` is as long as the span.
#[inline(never)]
pub(crate) fn read(gpu: u8, span: Span, out: &mut [u8], ahead: ReadAhead) -> Result<(), MemoryFault> {
    debug_assert_eq!(span.len, out.len());
    let mut copying = Gpu::at(gpu).lock();
    let reader = copying.reader(span, ahead);
    copying.fill(reader, span, out, 0).map_err(|status| fault(span.start, span.len, status))
}

/// Copies out of the memory of a GPU, into a buffer if it can.
#[inline(never)]
pub(crate) fn fetch(gpu: u8, span: Span, ahead: ReadAhead) -> Result<Fetched, MemoryFault> {
    let mut copying = Gpu::at(gpu).lock();
    let mut reader = copying.reader(span, ahead);
    let first = reader.as_mut().and_then(|reader| copying.next(reader, span.len));
    match first {
        Some(staged) if staged.span.len == span.len => {
            copying.keep(reader);
            Ok(Fetched::StagedBytes(staged))
        }
        first => {
            let mut bytes = vec![0; span.len];
            let done = first.map_or(0, |staged| staged.copy_to(&mut bytes));
            let filled = copying.fill(reader, span, &mut bytes, done);
            filled.map_err(|status| fault(span.start, span.len, status))?;
            Ok(Fetched::Copied(bytes))
        }
    }
}

impl Copying {
    /// The reader of these bytes, if they are read ahead.
    fn reader(&mut self, span: Span, ahead: ReadAhead) -> Option<Reader> {
        if ahead.reader == 0 {
            return None;
        }
        let readers = &mut self.queue.readers;
        let known = readers.iter().position(|reader| reader.id == ahead.reader);
        let mut known = known.map(|at| readers.remove(at));
        let end = span.start + span.len;
        let continues = |reader: &mut Reader| reader.next == span.start && end <= reader.end;
        if !ahead.is_first
            && let Some(reader) = known.take_if(continues)
        {
            // Further READs of the peer may continue it.
            return Some(Reader { retransmitted_to: 0, end: reader.end.max(end + ahead.behind), ..reader });
        }
        let continues_there = known.as_ref().is_some_and(|reader| reader.retransmitted_to == span.start);
        if ahead.is_first || continues_there {
            return (ahead.behind > 0).then(|| Reader::new(ahead.reader, span.start, end + ahead.behind));
        }
        let reader = known.unwrap_or_else(|| Reader::new(ahead.reader, 0, 0));
        self.keep(Some(Reader { retransmitted_to: end, ..reader }));
        None
    }

    /// Discards the messages that a queue pair was reading ahead. Returns whether there were any.
    pub(super) fn end_readers(&mut self, qp: usize) -> bool {
        let before = self.queue.readers.len();
        self.queue.readers.retain(|reader| reader.id != qp && reader.id != answers_of(qp));
        self.queue.readers.len() < before
    }

    /// Keeps a reader for the next bytes.
    fn keep(&mut self, reader: Option<Reader>) {
        let Some(reader) = reader.filter(|reader| reader.next < reader.end || reader.retransmitted_to > 0)
        else {
            return;
        };
        if self.queue.readers.len() == READERS {
            self.queue.readers.remove(0);
        }
        self.queue.readers.push(reader);
    }

    /// Copies the bytes of a span behind the first `done` ones.
    fn fill(
        &mut self,
        reader: Option<Reader>,
        span: Span,
        out: &mut [u8],
        mut done: usize,
    ) -> Result<(), c_int> {
        if let Some(mut reader) = reader {
            while done < out.len()
                && let Some(staged) = self.next(&mut reader, out.len() - done)
            {
                done += staged.copy_to(&mut out[done..]);
            }
            if done == out.len() {
                self.keep(Some(reader));
                return Ok(());
            }
        }
        // No buffer is free, or a piece reaches beyond valid memory. Read exactly these bytes, so that only their own error counts.
        self.read_now(span.start + done, &mut out[done..])
    }

    /// The next bytes of a message, at most `most`.
    fn next(&mut self, reader: &mut Reader, most: usize) -> Option<StagedBytes> {
        self.issue_ahead(reader);
        let piece = reader.pieces.front_mut()?;
        if piece.outcome.is_none() {
            // The buffer has no other owner before its copy is done.
            piece.outcome = Some(self.wait_for(Arc::get_mut(&mut piece.buffer)?));
        }
        piece.outcome?.ok()?;
        let offset = reader.next - piece.start;
        let len = most.min(piece.len - offset);
        let span = Span::at(piece.buffer.at(offset) as usize, len);
        let staged = StagedBytes { _buffer: piece.buffer.clone(), span };
        reader.next += len;
        if offset + len == piece.len {
            reader.pieces.pop_front();
            self.issue_ahead(reader);
        }
        Some(staged)
    }

    /// Issues the copies of the next pieces.
    fn issue_ahead(&mut self, reader: &mut Reader) {
        while reader.pieces.len() < PIECES && reader.issued < reader.end {
            let Some(mut buffer) = self.take_buffer() else { break };
            let (start, len) = (reader.issued, BUFFER_LEN.min(reader.end - reader.issued));
            // SAFETY: the buffer is not read before `wait_for`.
            let issued = unsafe { self.issue_to_host(buffer.at(0), start, len) };
            self.mark(&mut buffer);
            let outcome = issued.err().map(Err);
            reader.pieces.push_back(Piece { start, len, buffer: Arc::new(buffer), outcome });
            reader.issued += len;
        }
    }
}
