//! Pages that a home sends with its arrival at a barrier, so that their readers need not fetch them.
//!
//! A process that fetches a page at a barrier because of a prediction requests the page from its home at the next one. From then on
//! the home sends the page as it is when it arrives, if it wrote the page. The reader uses it if no third process wrote the page: then
//! only its own last words may be missing, and those are still in its copy. Otherwise it fetches. A request ends after
//! [`TIMES`] updates. If the page is still read, it is fetched, and so requested again.

use super::blocks::Blocks;
use super::machine::Machine;
use super::notice::{Notice, Notices};
use super::{Run, Step};
use std::collections::BTreeMap;

/// Maximum number of pages that one process sends another at a barrier. Fetching more than that takes no longer.
pub(crate) const MAX_UPDATES: usize = 16;
/// How often a requested page is sent.
const TIMES: u8 = 32;

/// A page that a process has requested.
#[derive(Debug)]
struct Request {
    page: usize,
    by: u32,
    left: u8,
}

/// A page that came with the arrival of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Update {
    pub(crate) page: usize,
    pub(crate) from: u32,
    /// Where the caller has its bytes.
    pub(crate) at: usize,
}

#[derive(Debug, Default)]
pub(super) struct Updates {
    requests: Vec<Request>,
    /// Pages to request at the next barrier.
    wanted: Vec<usize>,
    /// Pages and their receivers of this barrier.
    sending: Vec<(u32, usize)>,
    /// Usable updates of this barrier, and where they are.
    received: BTreeMap<usize, usize>,
    /// Barriers that were passed.
    barriers: u32,
}

impl Updates {
    /// The number of the next barrier, which is never 0.
    pub(super) fn interval(&self) -> u32 {
        self.barriers.wrapping_add(1).max(1)
    }

    /// Our requests, as notices of no blocks that are marked as kept.
    pub(super) fn requests(&mut self, most: usize) -> Vec<Notice> {
        let notice = |run| Notice { run, kept: true, blocks: Blocks::NONE };
        Run::of(std::mem::take(&mut self.wanted)).into_iter().take(most).map(notice).collect()
    }
}

impl Machine {
    /// Chooses the pages to send with the arrival that announces these notices, and their receivers.
    pub(super) fn choose_updates(&mut self, notices: &[Notice]) {
        let Updates { requests, sending, .. } = &mut self.updates;
        sending.clear();
        for request in requests.iter_mut() {
            let is_announced =
                |notice: &Notice| !notice.blocks.is_empty() && notice.run.pages().contains(&request.page);
            if u32::from(self.table[request.page].home) == self.rank && notices.iter().any(is_announced) {
                request.left -= 1;
                sending.push((request.by, request.page));
            }
        }
        requests.retain(|request| request.left > 0);
    }

    /// After [`Machine::arrived`]: the receivers of pages, at most [`MAX_UPDATES`] for each.
    pub(crate) fn updates(&self) -> &[(u32, usize)] {
        &self.updates.sending
    }

    /// Records what other processes request.
    pub(super) fn note_requests(&mut self, received: &[Notices]) {
        for (by, received) in (0..).zip(received).filter(|(rank, _)| *rank != self.rank) {
            let Notices::Pages(notices) = received else { continue };
            let requests = notices.iter().filter(|notice| notice.kept && notice.blocks.is_empty());
            for page in requests.flat_map(|notice| notice.run.pages().take(MAX_UPDATES)) {
                let is_home = self.table.get(page).is_some_and(|state| u32::from(state.home) == self.rank);
                let requests = &mut self.updates.requests;
                requests.retain(|request| (request.by, request.page) != (by, page));
                if is_home && requests.iter().filter(|request| request.by == by).count() < MAX_UPDATES {
                    requests.push(Request { page, by, left: TIMES });
                }
            }
        }
    }

    /// Whether only the home of a page and this process wrote it, and our words went home at this barrier alone.
    fn is_updatable(&self, page: usize, received: &[Notices]) -> bool {
        let is_unwritten = |(rank, received): (u32, &Notices)| match received {
            Notices::Overflow => false,
            Notices::Pages(_) if rank == self.rank || rank == self.home(page) => true,
            Notices::Pages(notices) => {
                !notices.iter().any(|notice| !notice.blocks.is_empty() && notice.run.pages().contains(&page))
            }
        };
        self.table[page].sent_early_in != self.updates.interval() && (0..).zip(received).all(is_unwritten)
    }

    /// All processes have arrived: keeps the updates that can be used.
    pub(super) fn receive_updates(&mut self, received: &[Notices], updates: &[Update]) {
        for update in updates.iter().filter(|update| update.page < self.table.len()) {
            if self.home(update.page) == update.from
                && !self.sees_home(update.page)
                && self.is_updatable(update.page, received)
            {
                self.updates.received.insert(update.page, update.at);
            }
        }
    }

    /// The step that replaces the fetch of a page.
    pub(super) fn take_update(&mut self, page: usize) -> Option<Step> {
        self.updates.received.remove(&page).map(|at| Step::Update(page, at))
    }

    /// The copy of a page is discarded, and with it our own words that the update may lack.
    pub(super) fn drop_update(&mut self, page: usize) {
        self.updates.received.remove(&page);
    }

    /// These sorted pages are fetched at the barrier. Requests those of them that could have come with it.
    pub(super) fn request(&mut self, pages: &[usize], received: &[Notices]) {
        let missing = pages
            .iter()
            .copied()
            .filter(|&page| !self.updates.received.contains_key(&page) && self.is_updatable(page, received));
        self.updates.wanted = missing.take(MAX_UPDATES).collect();
    }

    /// The barrier is passed.
    pub(super) fn end_updates(&mut self) {
        self.updates.received.clear();
        self.updates.barriers = self.updates.interval();
    }
}
