//! Predicts the next pages: adjacent ones after faults at adjacent pages, and those at the same distance after faults in equal
//! strides, as over the columns of a matrix.

/// Streams that are followed in parallel, such as the rows that a stencil reads.
const STREAMS: usize = 8;
/// Longest stride that is followed.
const MAX_STRIDE: usize = 512;

/// A walk over pages.
#[derive(Debug, Clone, Copy)]
struct Stream {
    start: usize,
    /// Where its next fault is expected.
    next: usize,
    /// Pages to fetch ahead then.
    ahead: usize,
}

/// Streams that begin at equal distances.
#[derive(Debug, Default)]
struct Strides {
    /// Where the last stream began.
    last: usize,
    /// The distance from the one before; 0 if it is unknown.
    stride: usize,
    /// Streams to fetch ahead.
    stops: usize,
    /// Pages of a stream.
    run: usize,
    /// The last strides that were followed. The next ones are probably the same, elsewhere.
    before: Option<(usize, usize)>,
}

/// The pages to fetch with a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    /// Pages one after another, including the first.
    pub(super) run: usize,
    /// Distance and number of further runs.
    stride: usize,
    stops: usize,
}

impl Plan {
    /// Whether it has the page at this distance from the first.
    pub(super) fn has(self, distance: usize) -> bool {
        let (stop, at) = match self.stops {
            0 => (0, distance),
            _ => (distance / self.stride, distance % self.stride),
        };
        stop <= self.stops && at < self.run
    }

    pub(super) fn has_strides(self) -> bool {
        self.stops > 0
    }

    /// Distance behind the last page.
    pub(super) fn end(self) -> usize {
        self.stops * self.stride + self.run
    }
}

impl Strides {
    /// A stream begins at `page`.
    fn plan(&mut self, page: usize, most: usize) -> Plan {
        let again = self.before.filter(|(stride, _)| page == self.last + stride);
        if self.stride > 0 && page == self.last + self.stride || again.is_some() {
            if let Some((stride, run)) = again {
                (self.stride, self.run, self.stops) = (stride, run, most);
            }
            self.run = self.run.min(most + 1);
            self.stops = (2 * self.stops + 1).min((most + 1) / self.run - 1);
        } else {
            if self.stops > 0 {
                self.before = Some((self.stride, self.run));
            }
            let stride = page.saturating_sub(self.last);
            self.stride = if (2..=MAX_STRIDE).contains(&stride) { stride } else { 0 };
            (self.stops, self.run) = (0, 1);
        }
        self.last = page + self.stops * self.stride;
        Plan { run: self.run, stride: self.stride, stops: self.stops }
    }
}

/// Learns from faults.
#[derive(Debug)]
pub(super) struct Locality {
    streams: [Option<Stream>; STREAMS],
    oldest: usize,
    strides: Strides,
    pub(super) most: usize,
}

impl Locality {
    /// Never plans more than `most` pages ahead.
    pub(super) fn new(most: usize) -> Self {
        Self { streams: [None; STREAMS], oldest: 0, strides: Strides::default(), most }
    }

    /// Returns which pages to fetch, at a fault that must fetch `page`.
    pub(super) fn plan(&mut self, page: usize) -> Plan {
        let known = self.streams.iter_mut().flatten().find(|stream| stream.next == page);
        if let Some(stream) = known {
            stream.ahead = (stream.ahead * 2 + 1).min(self.most);
            self.strides.run = page + 1 - stream.start;
            return Plan { run: 1 + stream.ahead, stride: 0, stops: 0 };
        }
        let begins_here = |stream: &Option<Stream>| stream.is_some_and(|stream| stream.start == page);
        let slot = self.streams.iter().position(begins_here).unwrap_or(self.oldest);
        if slot == self.oldest {
            self.oldest = (self.oldest + 1) % STREAMS;
        }
        self.streams[slot] = Some(Stream { start: page, next: page + 1, ahead: 0 });
        self.strides.plan(page, self.most)
    }

    /// Records that the fetch for the fault at `page` ends before `end`.
    pub(super) fn fetched(&mut self, page: usize, end: usize) {
        let known =
            self.streams.iter_mut().flatten().find(|stream| stream.next == page || stream.start == page);
        if let Some(stream) = known {
            stream.next = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes the pages of each plan, and returns the number of pages of each.
    fn walk(locality: &mut Locality, pages: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let mut fetched = Vec::new();
        let mut sizes = Vec::new();
        for page in pages {
            if fetched.contains(&page) {
                continue;
            }
            let plan = locality.plan(page);
            let planned: Vec<usize> =
                (0..plan.end()).filter(|&at| plan.has(at)).map(|at| page + at).collect();
            locality.fetched(page, page + plan.run);
            sizes.push(planned.len());
            fetched.extend(planned);
        }
        sizes
    }

    #[test]
    fn a_walk_is_followed_with_growing_steps() {
        let mut locality = Locality::new(8);
        assert_eq!(walk(&mut locality, 100..134), [1, 2, 4, 8, 9, 9, 9]);
        assert_eq!(locality.plan(7).end(), 1, "a jump is no walk");
    }

    #[test]
    fn equal_strides_are_followed() {
        let mut locality = Locality::new(8);
        assert_eq!(walk(&mut locality, (0..30).map(|stop| 1000 + 2 * stop)), [1, 1, 2, 4, 8, 9, 9]);
        let blocks_at =
            |first: usize| (0..20).flat_map(move |block| [first + 32 * block, first + 1 + 32 * block]);
        let sizes = walk(&mut locality, blocks_at(5000));
        assert_eq!(sizes[..6], [1, 2, 1, 2, 4, 8], "each block has two pages: {sizes:?}");
        assert!(sizes[6..].iter().all(|&size| size == 8), "{sizes:?}");
        assert_eq!(walk(&mut locality, [9000, 9007, 9013, 9020]), [1, 1, 1, 1], "unequal ones are not");
        assert_eq!(walk(&mut locality, blocks_at(20_000))[..3], [1, 2, 8], "the same strides elsewhere");
        assert_eq!(walk(&mut Locality::new(0), (0..30).map(|stop| 2 * stop)), [1; 30]);
    }
}
