//! Which words of a page changed.

use std::ops::Range;

/// Smallest unit that two processes may write without a lock between them.
pub(crate) const WORD: usize = 4;

/// Byte ranges of `now` that differ from `twin`: whole words, in order, each as long as possible. A range never
/// includes unchanged words, since another process may have changed them at the home.
pub(crate) fn changed(twin: &[u8], now: &[u8]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    // Eight words at a time: most of a page is usually unchanged.
    const BLOCK: usize = 8 * WORD;
    for (block, (old, new)) in twin.chunks(BLOCK).zip(now.chunks(BLOCK)).enumerate() {
        if old == new {
            continue;
        }
        for (word, (old, new)) in old.chunks(WORD).zip(new.chunks(WORD)).enumerate() {
            if old == new {
                continue;
            }
            let start = block * BLOCK + word * WORD;
            match ranges.last_mut() {
                Some(range) if range.end == start => range.end = start + new.len(),
                _ => ranges.push(start..start + new.len()),
            }
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_whole_words_and_never_bridge_a_gap() {
        let twin = [0u8; 256];
        let mut now = twin;
        assert_eq!(changed(&twin, &now), []);
        now[5] = 1;
        now[8] = 1;
        now[16] = 1;
        now[31] = 1;
        now[32] = 1;
        now[255] = 1;
        assert_eq!(changed(&twin, &now), [4..12, 16..20, 28..36, 252..256]);
        let all = [1u8; 256];
        assert_eq!(changed(&twin, &all).first(), Some(&(0..256)));
    }
}
