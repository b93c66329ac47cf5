//! Gathers the packets of arriving messages, and copies them to the GPU in large pieces.

use super::Copying;
use super::staging::{BUFFER_LEN, BufferGuard};
use std::ffi::c_int;

/// A message that arrives at a queue pair in several parts. It exists from the first part to the last. If a copy fails, it exists until the
/// queue pair stops, so that the failure is reported to this message even if another one caused the copy.
pub(super) struct Batch {
    pub(super) qp: usize,
    /// The address on the GPU of the gathered bytes.
    start: usize,
    /// Bytes gathered.
    len: usize,
    buffer: Option<BufferGuard>,
    /// The outcome of the copies issued so far.
    outcome: Result<(), c_int>,
}

impl Copying {
    fn find_batch(&self, qp: usize) -> Option<usize> {
        self.queue.batches.iter().position(|batch| batch.qp == qp)
    }

    /// Gathers data before the last part of a message.
    pub(super) fn gather(&mut self, qp: usize, start: usize, data: &[u8]) -> Result<(), c_int> {
        let at = self.find_batch(qp).unwrap_or_else(|| {
            self.queue.batches.push(Batch { qp, start, len: 0, buffer: None, outcome: Ok(()) });
            self.queue.batches.len() - 1
        });
        let (mut to, mut left) = (start, data);
        while !left.is_empty() {
            let batch = &self.queue.batches[at];
            if batch.start + batch.len != to || batch.len == BUFFER_LEN {
                self.issue(at);
            }
            if self.queue.batches[at].buffer.is_none() {
                let Some(buffer) = self.take_idle_buffer() else {
                    let written = self.write_now(to, left);
                    return self.note(at, written);
                };
                let batch = &mut self.queue.batches[at];
                (batch.start, batch.len, batch.buffer) = (to, 0, Some(buffer));
            }
            let batch = &mut self.queue.batches[at];
            let (now, later) = left.split_at(left.len().min(BUFFER_LEN - batch.len));
            if let Some(buffer) = &batch.buffer {
                // SAFETY: the batch owns the buffer, which has space for these bytes.
                unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), buffer.at(batch.len), now.len()) };
            }
            batch.len += now.len();
            (to, left) = (to + now.len(), later);
        }
        if self.queue.batches[at].len == BUFFER_LEN {
            self.issue(at);
        }
        self.queue.batches[at].outcome
    }

    /// Combines the result of a copy with the outcome of its message, and returns the new outcome.
    fn note(&mut self, at: usize, result: Result<(), c_int>) -> Result<(), c_int> {
        let outcome = &mut self.queue.batches[at].outcome;
        *outcome = outcome.and(result);
        *outcome
    }

    /// Copies the last part of a message, and waits for all of it.
    pub(super) fn finish(&mut self, qp: usize, start: usize, data: &[u8]) -> Result<(), c_int> {
        let Some(at) = self.find_batch(qp) else { return self.write_now(start, data) };
        // Its result is part of the batch's outcome.
        let _ = self.gather(qp, start, data);
        self.issue(at);
        let waited = self.wait();
        self.note(at, waited)?;
        self.queue.batches.remove(at);
        Ok(())
    }

    /// Issues the copy of the data that a stopping queue pair has gathered, and removes its batch. Returns whether there was one.
    pub(super) fn end_batch(&mut self, qp: usize) -> bool {
        let found = self.find_batch(qp);
        found.inspect(|&at| {
            self.issue(at);
            self.queue.batches.remove(at);
        });
        found.is_some()
    }

    /// Issues the copy of the gathered bytes of a message.
    fn issue(&mut self, at: usize) {
        let batch = &mut self.queue.batches[at];
        let (start, len) = (batch.start, std::mem::take(&mut batch.len));
        let Some(mut buffer) = batch.buffer.take() else { return };
        // SAFETY: the buffer is not written before `wait_for`.
        let issued = unsafe { self.issue_to_gpu(start, buffer.at(0), len) };
        self.mark(&mut buffer);
        // Reported with a later part of the message.
        let _ = self.note(at, issued);
    }

    /// Issues the copy of the oldest message with gathered bytes. Returns whether there is one.
    pub(super) fn issue_oldest(&mut self) -> bool {
        let oldest = self.queue.batches.iter().position(|batch| batch.buffer.is_some());
        oldest.inspect(|&at| self.issue(at)).is_some()
    }

    /// Issues the copies of all gathered bytes.
    pub(super) fn issue_all(&mut self) {
        while self.issue_oldest() {}
    }
}
