//! Positions in a ring of bytes.

/// A contiguous range of bytes in a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Span {
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

/// The `length` bytes from `start` on in a ring of `size` bytes, as two spans. The second one is empty unless the range wraps.
/// `start` and `length` are at most `size`.
pub(crate) fn spans(size: u32, start: u32, length: u32) -> [Span; 2] {
    let first = length.min(size - start);
    [Span { offset: start, length: first }, Span { offset: 0, length: length - first }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_wraps_at_the_end() {
        let span = |offset, length| Span { offset, length };
        assert_eq!(spans(10, 2, 5), [span(2, 5), span(0, 0)]);
        assert_eq!(spans(10, 7, 3), [span(7, 3), span(0, 0)]);
        assert_eq!(spans(10, 7, 10), [span(7, 3), span(0, 7)]);
    }
}
