//! Messages that have arrived and were not received yet.

use crate::backend::Envelope;
use std::collections::VecDeque;

/// Messages in the order of their arrival. Messages of one sender keep the order in which they were sent.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    messages: VecDeque<(Envelope, Vec<u8>)>,
}

impl Inbox {
    pub(crate) fn push(&mut self, envelope: Envelope, bytes: Vec<u8>) {
        self.messages.push_back((envelope, bytes));
    }

    /// The oldest matching message. Negative tags match only an explicit request.
    pub(crate) fn take(&mut self, from: Option<u32>, tag: Option<i32>) -> Option<(Envelope, Vec<u8>)> {
        let fits = |&((sender, label), _): &(Envelope, Vec<u8>)| {
            from.is_none_or(|from| from == sender) && tag.map_or(label >= 0, |tag| tag == label)
        };
        let at = self.messages.iter().position(fits)?;
        self.messages.remove(at)
    }
}

/// Bytes of the header of each message: sender, tag, length.
pub(crate) const HEADER: usize = 16;

/// The header of a message.
pub(crate) fn header((from, tag): Envelope, len: usize) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..4].copy_from_slice(&from.to_le_bytes());
    bytes[4..8].copy_from_slice(&tag.to_le_bytes());
    bytes[8..].copy_from_slice(&(len as u64).to_le_bytes());
    bytes
}

/// The beginning of a message that is not complete yet.
#[derive(Debug, Default)]
pub(crate) struct Partial(Vec<u8>);

impl Partial {
    fn header(&self) -> Option<(Envelope, usize)> {
        let (header, _) = self.0.split_first_chunk::<HEADER>()?;
        let word =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let len = u64::from(word(8)) | u64::from(word(12)) << 32;
        Some(((word(0), word(4) as i32), len as usize))
    }

    /// Bytes until the header, or else the message, is complete.
    pub(crate) fn missing(&self) -> usize {
        match self.header() {
            Some((_, len)) => HEADER + len - self.0.len(),
            None => HEADER - self.0.len(),
        }
    }

    /// The buffer for the next bytes.
    pub(crate) fn grow(&mut self, count: usize) -> &mut [u8] {
        let old = self.0.len();
        self.0.resize(old + count, 0);
        &mut self.0[old..]
    }

    /// Moves the message to the inbox if it is complete.
    pub(crate) fn finish(&mut self, inbox: &mut Inbox) {
        if let Some((envelope, len)) = self.header()
            && self.0.len() == HEADER + len
        {
            inbox.push(envelope, self.0.split_off(HEADER));
            self.0.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_that_fits_is_taken() {
        let mut inbox = Inbox::default();
        inbox.push((1, 7), vec![1]);
        inbox.push((2, 7), vec![2]);
        inbox.push((1, 8), vec![3]);
        assert_eq!(inbox.take(Some(3), None), None);
        assert_eq!(inbox.take(Some(1), Some(8)), Some(((1, 8), vec![3])));
        assert_eq!(inbox.take(None, Some(7)), Some(((1, 7), vec![1])));
        assert_eq!(inbox.take(Some(2), None), Some(((2, 7), vec![2])));
        assert_eq!(inbox.take(None, None), None);
        inbox.push((1, -2), vec![4]);
        assert_eq!(inbox.take(None, None), None, "not by accident");
        assert_eq!(inbox.take(None, Some(-2)), Some(((1, -2), vec![4])));
    }
}
