//! Predicts which pages are used together with a page: those that were used with it the last time.
//!
//! A fault is the most expensive step that sends no page. Programs repeat themselves, so pages that were written or
//! fetched in the same interval the last time are opened or fetched together. After some predictions in a row a page is
//! left out, so that a fault confirms that it is still used. A wrong prediction costs a comparison with the twin, or, at
//! home, one superfluous notice.
//!
//! Home pages that are written in every interval stay writable over a barrier, and the next barrier announces them. In
//! each run of adjacent pages only the first is write-protected. If it is not written, the next barrier announces the
//! others once more and write-protects them. Of the pages whose prediction must be confirmed, one in [`SAMPLE`] is
//! write-protected as a sample. Acquiring a lock write-protects all.
//!
//! Pages that were always fetched in the interval after a barrier invalidated them are fetched at the barrier. That saves
//! their faults, and the homes, which are at the barrier, too, answer without waking a thread.

use super::blocks::BLOCKS;
use super::locality::Locality;
use super::machine::{Machine, Page};
use super::notice::Notices;
use super::{Access, Run, Step};

/// Maximum number of extra pages that one write fault opens: in all, and of those that need a twin.
pub(super) const MAX_PAGES_PER_WRITE_FAULT: usize = 512;
const MAX_TWINS_PER_WRITE_FAULT: usize = 16;
/// Pages that one fault fetches by blocks, for each page that it may fetch whole. Each is a READ of its own.
const MAX_PAGES_OF_BLOCKS: usize = 8;
/// How often in a row a page must be fetched after the barrier that invalidated it to be fetched at the next one.
const REFETCHES: u8 = 2;
/// Maximum number of pages that a barrier fetches.
const MAX_AT_BARRIER: usize = 128;
/// Intervals in a row after which a home page that is written stays writable over a barrier.
const KEPT_AFTER: u8 = 8;
/// Of this many pages whose prediction must be confirmed, one is write-protected: its fault confirms all of them.
const SAMPLE: usize = 32;
/// Predictions in a row before a page must fault to stay predicted, and the maximum for pages whose writes faults have
/// confirmed often.
const PREDICTION_LIMIT: u8 = 31;
const MAX_PREDICTION_LIMIT: u8 = 8 * PREDICTION_LIMIT;
/// As the number of predictions: the only reason for the first one was a write of an adjacent page.
pub(super) const UNCONFIRMED: u8 = u8::MAX;

/// How many writes of a page are predicted in a row. The number doubles each time that a fault confirms the predictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PredictionLimit(u8);

impl Default for PredictionLimit {
    fn default() -> Self {
        Self(PREDICTION_LIMIT)
    }
}

impl PredictionLimit {
    fn allows(self, predictions: u8) -> bool {
        predictions < self.0
    }

    /// Handles a write fault of the page after this many predictions.
    pub(super) fn on_fault(&mut self, predictions: u8) {
        match predictions {
            // No write was predicted, because the page is the first of a run; or only an adjacent page suggested one.
            0 | UNCONFIRMED => {}
            _ if self.allows(predictions) => *self = Self::default(),
            _ => self.0 = self.0.saturating_mul(2).min(MAX_PREDICTION_LIMIT),
        }
    }
}

impl Machine {
    /// Sets whether pages are fetched because a prediction names them.
    pub(crate) fn set_prefetching(&mut self, on: bool) {
        self.locality = Locality::new(if on { self.prefetch_pages } else { 0 });
    }

    /// The pages to open for writing together with `page`, which comes first.
    pub(super) fn written_together(&mut self, page: usize) -> Vec<usize> {
        let state = self.table[page];
        let is_unconfirmed =
            |at: usize| self.table.get(at).is_some_and(|page| page.write_predictions == UNCONFIRMED);
        // First write: in a sequential walk, the next pages are written for the first time, too. A second walk confirms it.
        let is_walk = state.written_in == 0 || is_unconfirmed(page + 1);
        let ahead = if self.predict_writes && is_walk { self.writing.plan(page).run - 1 } else { 0 };
        let most = match (self.predict_writes, state.written_in) {
            (false, _) => 0,
            (true, 0) => ahead,
            (true, _) => MAX_PAGES_PER_WRITE_FAULT,
        };
        let mut twins = 0;
        let fits = |at: &usize| {
            let other = &self.table[*at];
            let alike = other.home == state.home && other.written_in == state.written_in;
            twins += usize::from(self.needs_twin(*at));
            alike
                && twins <= MAX_TWINS_PER_WRITE_FAULT
                && other.valid
                && (other.prediction_limit.allows(other.write_predictions)
                    || is_unconfirmed(*at) && *at <= page + ahead)
        };
        let end = (page + 1 + most).min(self.table.len());
        // Pages that stayed writable do not end the run.
        let protected = (page + 1..end).filter(|&other| self.table[other].access != Access::Write);
        let pages: Vec<usize> = std::iter::once(page).chain(protected.take_while(fits)).collect();
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
        self.confirm_by_samples();
        let stays = |page: &usize| {
            let state = &self.table[*page];
            self.predict_writes
                && state.access == Access::Write
                && state.written_in == self.interval
                && state.written_in_a_row >= KEPT_AFTER
                && (state.prediction_limit.allows(state.write_predictions) || self.has_sample(*page))
                && !self.needs_twin(*page)
        };
        let runs = Run::of(self.writable.iter().copied().filter(stays));
        self.kept = runs.into_iter().flat_map(|run| run.pages().skip(1)).collect();
        let mut kept = self.kept.iter().peekable();
        self.writable.retain(|page| kept.next_if_eq(&page).is_none());
    }

    /// Whether the sample of this page has had the same writes and predictions, so that its fault in the next interval confirms this page, too.
    fn has_sample(&self, page: usize) -> bool {
        let sample = &self.table[page - page % SAMPLE];
        let of = |state: &Page| {
            let Page { home, written_in, write_predictions, prediction_limit, .. } = *state;
            (home, written_in, write_predictions, prediction_limit)
        };
        !page.is_multiple_of(SAMPLE) && of(sample) == of(&self.table[page])
    }

    /// Confirms pages whose sample had a fault in this interval, so that they need none of their own.
    fn confirm_by_samples(&mut self) {
        for at in 0..self.writable.len() {
            let page = self.writable[at];
            let sample = self.table[page - page % SAMPLE];
            let state = &mut self.table[page];
            let is_confirmed = sample.home == state.home
                && (sample.written_in, sample.write_predictions) == (state.written_in, 0)
                && sample.prediction_limit >= state.prediction_limit;
            if is_confirmed
                && !state.prediction_limit.allows(state.write_predictions)
                && state.write_predictions != UNCONFIRMED
            {
                (state.write_predictions, state.prediction_limit) = (0, sample.prediction_limit);
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
            if blocks > most * BLOCKS || pages.len() > most * MAX_PAGES_OF_BLOCKS {
                break;
            }
            if state.valid || state.home == u16::MAX {
                continue;
            }
            let again =
                before != 0 && state.fetched_in == before && state.fetch_predictions < PREDICTION_LIMIT;
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
            !state.valid && state.refetches >= REFETCHES && state.fetch_predictions < PREDICTION_LIMIT
        };
        let most = if self.locality.most == 0 { 0 } else { MAX_AT_BARRIER.min(self.cache.most / 4) };
        let pages: Vec<usize> = stale.iter().copied().filter(again).take(most).collect();
        self.request(&pages, received);
        if !pages.is_empty() {
            self.fetch(&pages, usize::MAX, steps);
        }
    }
}
