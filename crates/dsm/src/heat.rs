//! Number of transfers of each page. Counted only on request, because it takes a lock and a look-up per page.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// How often one page of the heap was transferred to or from this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct PageTraffic {
    /// The page, counted from the start of the heap.
    pub page: u64,
    /// Number of fetches from its home.
    pub fetched: u64,
    /// Number of times that its changes were sent home.
    pub changed: u64,
}

/// The counts of all pages.
#[derive(Debug, Default)]
pub(crate) struct Heat {
    on: AtomicBool,
    pages: Mutex<BTreeMap<usize, PageTraffic>>,
}

impl Heat {
    pub(crate) fn switch(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    pub(crate) fn fetched(&self, first: usize, count: usize) {
        self.note(first..first + count, |traffic| traffic.fetched += 1);
    }

    pub(crate) fn changed(&self, page: usize) {
        self.note(page..page + 1, |traffic| traffic.changed += 1);
    }

    fn note(&self, pages: std::ops::Range<usize>, count: impl Fn(&mut PageTraffic)) {
        if self.on.load(Ordering::Relaxed) {
            let mut all = self.pages.lock();
            for page in pages {
                let traffic =
                    all.entry(page).or_insert(PageTraffic { page: page as u64, ..Default::default() });
                count(traffic);
            }
        }
    }

    /// The pages that were transferred, in order.
    pub(crate) fn pages(&self) -> Vec<PageTraffic> {
        self.pages.lock().values().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wanted_is_counted() {
        let heat = Heat::default();
        heat.fetched(0, 9);
        assert_eq!(heat.pages(), []);
        heat.switch(true);
        heat.fetched(3, 2);
        heat.fetched(4, 1);
        heat.changed(7);
        let of = |page, fetched, changed| PageTraffic { page, fetched, changed };
        assert_eq!(heat.pages(), [of(3, 1, 0), of(4, 2, 0), of(7, 0, 1)]);
    }
}
