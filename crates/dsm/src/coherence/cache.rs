//! Which copies are evicted: the oldest, in groups, so that the work per page stays small.

use std::collections::VecDeque;

/// Pages of other homes that take up memory here, oldest first. An invalid copy takes up memory until it is evicted.
#[derive(Debug)]
pub(super) struct Cache {
    resident: VecDeque<usize>,
    pub(super) most: usize,
}

impl Cache {
    pub(super) fn new(most: usize) -> Self {
        Self { resident: VecDeque::new(), most: most.max(1) }
    }

    pub(super) fn add(&mut self, page: usize) {
        self.resident.push_back(page);
    }

    /// Evicts the oldest copies so that `need` more fit, except `keep`.
    pub(super) fn victims(&mut self, need: usize, keep: usize) -> Vec<usize> {
        let excess = (self.resident.len() + need).saturating_sub(self.most);
        if excess == 0 {
            return Vec::new();
        }
        let group = excess.max((self.most / 16).min(64)).min(self.resident.len());
        let mut victims = Vec::with_capacity(group);
        for _ in 0..self.resident.len() {
            if victims.len() == group {
                break;
            }
            match self.resident.pop_front() {
                Some(page) if page == keep => self.resident.push_back(page),
                Some(page) => victims.push(page),
                None => break,
            }
        }
        victims.sort_unstable();
        victims
    }

    pub(super) fn retain(&mut self, keep: impl Fn(usize) -> bool) {
        self.resident.retain(|&page| keep(page));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_evicted_and_the_wanted_one_stays() {
        let mut cache = Cache::new(4);
        for page in [9, 5, 7, 3] {
            assert_eq!(cache.victims(1, page), [0usize; 0]);
            cache.add(page);
        }
        assert_eq!(cache.victims(1, 9), [5]);
        cache.add(1);
        assert_eq!(cache.victims(2, 1), [3, 7]);
        assert_eq!(cache.victims(0, 0), [0usize; 0]);
    }
}
