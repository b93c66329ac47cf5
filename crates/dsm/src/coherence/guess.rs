//! Predicts which pages are used together with a page: those that were used with it the last time.
//!
//! A fault is the most expensive step that sends no page. Programs repeat themselves, so pages that were written or
//! fetched in the same interval the last time are opened or fetched together. Now and then a page is left out, to see
//! whether it is still used. A wrong guess costs a comparison with the twin, or, at home, one superfluous notice.
//!
//! Home pages that are written in every interval stay writable over a barrier, and the next barrier announces them. Only
//! the first of several adjacent ones is closed. If it is not written in the next interval, the others are announced
//! once more, and then closed, too. Of those that must show by a fault that they are still written, one of
//! [`SAMPLE`] stands for the others.
//!
//! Pages that were always fetched in the interval after a barrier invalidated them are fetched at the barrier. That saves
//! their faults, and the homes, which are at the barrier, too, answer without waking a thread.

use super::blocks::BLOCKS;
use super::locality::Locality;
use super::machine::{Machine, Page};
use super::notice::Notices;
use super::{Access, Run, Step};

/// Maximum number of extra pages that one write fault opens: in all, and of those that need a twin.
pub(super) const MOST_WRITE_GUESSES: usize = 512;
const MOST_TWIN_GUESSES: usize = 16;
/// Pages that one fault fetches by blocks, for each page that it may fetch whole. Each is a READ of its own.
const MOST_PAGES_OF_BLOCKS: usize = 8;
/// How often in a row a page must be fetched after the barrier that invalidated it to be fetched at the next one.
const REFETCHES: u8 = 2;
/// Maximum number of pages that a barrier fetches.
const MOST_AT_BARRIER: usize = 128;
/// Intervals in a row after which a home page that is written stays writable over a barrier.
const KEPT_AFTER: u8 = 8;
/// Of so many pages that stay writable, one must show by a fault that they are still written.
const SAMPLE: usize = 32;
/// Guesses in a row before a page must fault again to stay predicted, and the same for writes that were confirmed so
/// often.
const PATIENCE: u8 = 31;
const MOST_PATIENCE: u8 = 8 * PATIENCE;
/// As the number of guesses: only an adjacent page was a reason for the first one.
pub(super) const UNCONFIRMED: u8 = u8::MAX;

/// How many writes of a page are guessed in a row. Each time that the program still writes the page afterwards, it doubles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WritePatience(u8);

impl Default for WritePatience {
    fn default() -> Self {
        Self(PATIENCE)
    }
}

impl WritePatience {
    fn allows(self, guesses: u8) -> bool {
        guesses < self.0
    }

    /// The page faults after so many guesses.
    pub(super) fn learn(&mut self, guesses: u8) {
        match guesses {
            // The first page of a run; no guess was made. Or only an adjacent page was a reason to make one.
            0 | UNCONFIRMED => {}
            _ if self.allows(guesses) => *self = Self::default(),
            _ => self.0 = self.0.saturating_mul(2).min(MOST_PATIENCE),
        }
    }
}

impl Machine {
    /// Whether pages are fetched on a guess.
    pub(crate) fn set_prefetching(&mut self, on: bool) {
        self.locality = Locality::new(if on { self.prefetch_pages } else { 0 });
    }

    /// The pages to open for writing together with `page`, which comes first.
    pub(super) fn written_together(&mut self, page: usize) -> Vec<usize> {
        let state = self.table[page];
        let is_unconfirmed =
            |at: usize| self.table.get(at).is_some_and(|page| page.write_guesses == UNCONFIRMED);
        // First write: in a sequential walk, the next pages are written for the first time, too. A second walk confirms it.
        let is_walk = state.written_in == 0 || is_unconfirmed(page + 1);
        let ahead = if self.guess && is_walk { self.writing.plan(page).run - 1 } else { 0 };
        let most = match (self.guess, state.written_in) {
            (false, _) => 0,
            (true, 0) => ahead,
            (true, _) => MOST_WRITE_GUESSES,
        };
        let mut twins = 0;
        let fits = |at: &usize| {
            let other = &self.table[*at];
            let alike = other.home == state.home && other.written_in == state.written_in;
            twins += usize::from(self.needs_twin(*at));
            alike
                && twins <= MOST_TWIN_GUESSES
                && other.valid
                && (other.write_patience.allows(other.write_guesses)
                    || is_unconfirmed(*at) && *at <= page + ahead)
        };
        let end = (page + 1 + most).min(self.table.len());
        // Pages that stayed writable do not end the run.
        let closed = (page + 1..end).filter(|&other| self.table[other].access != Access::Write);
        let pages: Vec<usize> = std::iter::once(page).chain(closed.take_while(fits)).collect();
        if is_walk {
            self.writing.fetched(page, pages.last().map_or(page, |last| last + 1));
        }
        pages
    }

    /// Takes the pages that stay writable over a barrier out of `writable`.
    pub(super) fn keep_writable(&mut self) {
        for run in Run::of(std::mem::take(&mut self.kept)) {
            if self.table[run.first - 1].written_in != self.interval {
                self.table[run.pages()].iter_mut().for_each(|state| state.written_in_a_row = 0);
            }
        }
        // A long sorted run and a few more, which a stable sort merges.
        self.writable.sort();
        self.writable.dedup();
        self.learn_from_samples();
        let stays = |page: &usize| {
            let state = &self.table[*page];
            self.guess
                && state.access == Access::Write
                && state.written_in == self.interval
                && state.written_in_a_row >= KEPT_AFTER
                && (state.write_patience.allows(state.write_guesses) || self.has_sample(*page))
                && !self.needs_twin(*page)
        };
        let runs = Run::of(self.writable.iter().copied().filter(stays));
        self.kept = runs.into_iter().flat_map(|run| run.pages().skip(1)).collect();
        let mut kept = self.kept.iter().peekable();
        self.writable.retain(|page| kept.next_if_eq(&page).is_none());
    }

    /// Whether another page, which was written like this one until now, stands for it by a fault in the next interval.
    fn has_sample(&self, page: usize) -> bool {
        let sample = &self.table[page - page % SAMPLE];
        let of = |state: &Page| {
            let Page { home, written_in, write_guesses, write_patience, .. } = *state;
            (home, written_in, write_guesses, write_patience)
        };
        !page.is_multiple_of(SAMPLE) && of(sample) == of(&self.table[page])
    }

    /// Pages that need no fault of their own because their sample had one in this interval.
    fn learn_from_samples(&mut self) {
        for at in 0..self.writable.len() {
            let page = self.writable[at];
            let sample = self.table[page - page % SAMPLE];
            let state = &mut self.table[page];
            let is_shown = sample.home == state.home
                && (sample.written_in, sample.write_guesses) == (state.written_in, 0)
                && sample.write_patience >= state.write_patience;
            if is_shown
                && !state.write_patience.allows(state.write_guesses)
                && state.write_guesses != UNCONFIRMED
            {
                (state.write_guesses, state.write_patience) = (0, sample.write_patience);
            }
        }
    }

    /// The pages to fetch together with `page`, which comes first.
    pub(super) fn fetched_together(&mut self, page: usize) -> Vec<usize> {
        let before = self.table[page].fetched_in;
        let plan = self.locality.plan(page);
        let most = self.locality.most;
        // A page counts only its missing blocks, so that the number of bytes stays the same.
        let scale = if self.changed_blocks { BLOCKS } else { 1 };
        let far = if most == 0 { 0 } else { self.max_checking_pages * scale };
        let end = (page + plan.end().max(1 + far)).min(self.table.len());
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
            if again || plan.has(other - page) {
                pages.push(other);
                blocks += self.blocks_to_fetch(other);
            }
        }
        let end = pages.last().filter(|_| !plan.has_strides()).map_or(page + plan.run, |last| last + 1);
        self.locality.fetched(page, end);
        pages
    }

    /// A barrier invalidated these sorted pages. Fetches those that will probably be used in the next interval.
    pub(super) fn fetch_again(&mut self, stale: &[usize], received: &[Notices], steps: &mut Vec<Step>) {
        for &page in stale {
            self.table[page].stale_in = self.interval;
        }
        let again = |page: &usize| {
            let state = &self.table[*page];
            !state.valid && state.refetches >= REFETCHES && state.fetch_guesses < PATIENCE
        };
        let most = if self.locality.most == 0 { 0 } else { MOST_AT_BARRIER.min(self.cache.most / 4) };
        let pages: Vec<usize> = stale.iter().copied().filter(again).take(most).collect();
        self.request(&pages, received);
        if !pages.is_empty() {
            self.fetch(&pages, usize::MAX, steps);
        }
    }
}
