//! Messages that have come and that nobody has asked for yet.

use crate::backend::Envelope;
use std::collections::VecDeque;

/// In the order of their arrival; messages of one sender stay in the order they were sent.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    messages: VecDeque<(Envelope, Vec<u8>)>,
}

impl Inbox {
    pub(crate) fn push(&mut self, envelope: Envelope, bytes: Vec<u8>) {
        self.messages.push_back((envelope, bytes));
    }

    /// The oldest message that fits.
    pub(crate) fn take(&mut self, from: Option<u32>, tag: Option<i32>) -> Option<(Envelope, Vec<u8>)> {
        let fits = |&((sender, label), _): &(Envelope, Vec<u8>)| {
            from.is_none_or(|from| from == sender) && tag.is_none_or(|tag| tag == label)
        };
        let at = self.messages.iter().position(fits)?;
        self.messages.remove(at)
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
    }
}
