//! Predicts which pages are used together with a page: those that were used with it the last time.
//!
//! A fault is the most expensive step that sends no page. Programs repeat themselves, so pages that were written or
//! fetched in the same interval the last time are opened or fetched together. Now and then a page is left out, to see
//! whether it is still used. A wrong guess costs a comparison with the twin, or, at home, one superfluous notice.

use super::blocks::BLOCKS;
use super::locality::Locality;
use super::machine::Machine;
use super::{Access, Run};

/// Maximum number of extra pages that one write fault opens: at home, and elsewhere, where each needs a twin.
pub(super) const MOST_HOME_GUESSES: usize = 512;
const MOST_TWIN_GUESSES: usize = 16;
/// Pages that one fault fetches by blocks, for each page that it may fetch whole. Each is a READ of its own.
const MOST_PAGES_OF_BLOCKS: usize = 8;
/// Guesses in a row before a page must fault again to stay predicted.
pub(super) const PATIENCE: u8 = 31;

impl Machine {
    /// Whether pages are opened for writing on a guess.
    pub(crate) fn set_guessing(&mut self, on: bool) {
        self.guess = on;
    }

    /// Whether pages are fetched on a guess.
    pub(crate) fn set_prefetching(&mut self, on: bool) {
        self.locality = Locality::new(if on { self.prefetch_pages } else { 0 });
    }

    /// The pages to open for writing together with `page`, which comes first.
    pub(super) fn written_together(&mut self, page: usize) -> Run {
        let state = self.table[page];
        let twins = self.changed_blocks || !self.sees_home(page);
        let most = if twins { MOST_TWIN_GUESSES } else { MOST_HOME_GUESSES };
        let most = match (self.guess, state.written_in) {
            (false, _) => 0,
            // First write: in a sequential walk, the next pages are written for the first time, too.
            (true, 0) => self.writing.ahead(page).min(most),
            (true, _) => most,
        };
        let fits = |other: &usize| {
            let other = &self.table[*other];
            let alike = other.home == state.home && other.written_in == state.written_in;
            alike && other.valid && other.access != Access::Write && other.write_guesses < PATIENCE
        };
        let end = (page + 1 + most).min(self.table.len());
        let count = 1 + (page + 1..end).take_while(fits).count();
        if state.written_in == 0 {
            self.writing.fetched(page, page + count);
        }
        Run { first: page, count }
    }

    /// The pages to fetch together with `page`, which comes first.
    pub(super) fn fetched_together(&mut self, page: usize) -> Vec<usize> {
        let before = self.table[page].fetched_in;
        let ahead = self.locality.ahead(page);
        let most = self.locality.most();
        // A page counts only its missing blocks, so that the number of bytes stays the same.
        let scale = if self.changed_blocks { BLOCKS } else { 1 };
        let far = if most == 0 { 0 } else { self.max_checking_pages * scale };
        let end = (page + 1 + far.max(ahead)).min(self.table.len());
        let mut pages = vec![page];
        let mut blocks = self.blocks_to_fetch(page);
        for other in page + 1..end {
            let state = &self.table[other];
            if blocks > most * BLOCKS || pages.len() > most * MOST_PAGES_OF_BLOCKS {
                break;
            }
            if state.valid || state.home == u16::MAX {
                continue;
            }
            let again = before != 0 && state.fetched_in == before && state.fetch_guesses < PATIENCE;
            if again || pages.len() <= ahead {
                pages.push(other);
                blocks += self.blocks_to_fetch(other);
            }
        }
        self.locality.fetched(page, pages.last().map_or(page, |last| last + 1));
        pages
    }
}
