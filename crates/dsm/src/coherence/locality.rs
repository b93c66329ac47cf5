//! Predicts the next pages: adjacent ones, where the faults so far went from page to adjacent page.

/// Streams that are followed in parallel, such as the rows that a stencil reads.
const STREAMS: usize = 8;

/// A walk over pages.
#[derive(Debug, Clone, Copy)]
struct Stream {
    /// Where its next fault is expected.
    next: usize,
    /// Pages to fetch ahead then.
    ahead: usize,
}

/// Learns from faults.
#[derive(Debug)]
pub(super) struct Locality {
    streams: [Option<Stream>; STREAMS],
    oldest: usize,
    most: usize,
}

impl Locality {
    /// Never returns more than `most` pages ahead.
    pub(super) fn new(most: usize) -> Self {
        Self { streams: [None; STREAMS], oldest: 0, most }
    }

    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Returns how many pages behind `page` to fetch with it, at a fault that must fetch `page`.
    pub(super) fn ahead(&mut self, page: usize) -> usize {
        let known = self.streams.iter_mut().flatten().find(|stream| stream.next == page);
        if let Some(stream) = known {
            stream.ahead = (stream.ahead * 2 + 1).min(self.most);
            return stream.ahead;
        }
        self.streams[self.oldest] = Some(Stream { next: page + 1, ahead: 0 });
        self.oldest = (self.oldest + 1) % STREAMS;
        0
    }

    /// Records that the fetch for the fault at `page` ends before `end`.
    pub(super) fn fetched(&mut self, page: usize, end: usize) {
        let known = self.streams.iter_mut().flatten().find(|stream| stream.next == page);
        if let Some(stream) = known {
            stream.next = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_is_followed_with_growing_steps() {
        let mut locality = Locality::new(8);
        let mut page = 100;
        let mut steps = Vec::new();
        for _ in 0..6 {
            let ahead = locality.ahead(page);
            steps.push(ahead);
            locality.fetched(page, page + 1 + ahead);
            page += 1 + ahead;
        }
        assert_eq!(steps, [0, 1, 3, 7, 8, 8]);
        assert_eq!(locality.ahead(7), 0, "a jump is no walk");
    }
}
