//! Places in a ring of bytes.

/// A run of bytes in a ring that does not wrap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Span {
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

/// The bytes from `start` on, `length` of them, in a ring of `size`: two spans, the second one empty unless the run
/// passes the end. `start` and `length` are at most `size`.
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
