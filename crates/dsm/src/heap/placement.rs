//! The homes of the pages of an allocation.

use crate::PAGE;
use crate::error::Error;

/// The homes of an allocation. All sizes are bytes, rounded up to whole pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placement {
    /// Blocks round-robin, the first to process `first`.
    Cyclic {
        /// Bytes of a block.
        block: usize,
        /// Process of the first block.
        first: u32,
    },
    /// All pages at one process.
    On(u32),
    /// Like `Cyclic`, but round `i` over the processes uses blocks of `blocks[i]`; the last size repeats.
    Trips {
        /// Bytes of a block, per round.
        blocks: Vec<usize>,
        /// Process of the first block.
        first: u32,
    },
    /// The first `shares[0]` bytes at process 0, and so on; the rest at the last process listed.
    Shares(Vec<usize>),
    /// All pages at one process; each allocation uses the next process.
    Rotating,
    /// All pages at one pseudo-random process, which is the same in all processes.
    Random,
}

/// State of the placements so far; the same in all processes.
#[derive(Debug)]
pub(crate) struct PlacementState {
    next: u32,
    seed: u64,
}

impl Default for PlacementState {
    fn default() -> Self {
        Self { next: 0, seed: 0x9e37_79b9_7f4a_7c15 }
    }
}

/// Runs of pages with one home each, in order: (pages, home).
pub(crate) type Homes = Vec<(usize, u32)>;

impl PlacementState {
    /// Homes of `pages` pages among `size` processes.
    pub(crate) fn homes(&mut self, placement: &Placement, pages: usize, size: u32) -> Result<Homes, Error> {
        let known = |rank: u32| {
            let far = || Error::NoSuch { what: "process", id: rank, count: size };
            (rank < size).then_some(rank).ok_or_else(far)
        };
        match placement {
            Placement::Cyclic { block, first } => {
                distribute(std::iter::repeat(*block), pages, known(*first)?, size)
            }
            Placement::Trips { blocks, first } => {
                let last = *blocks.last().ok_or_else(|| Error::Placement("no block size is given".into()))?;
                let trips = blocks.iter().copied().chain(std::iter::repeat(last));
                distribute(trips, pages, known(*first)?, size)
            }
            Placement::On(rank) => Ok(vec![(pages, known(*rank)?)]),
            Placement::Shares(shares) => distribute_shares(shares, pages, size),
            Placement::Rotating => {
                let home = self.next % size;
                self.next = self.next.wrapping_add(1) % size;
                Ok(vec![(pages, home)])
            }
            Placement::Random => {
                self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                Ok(vec![(pages, ((self.seed >> 33) % u64::from(size)) as u32)])
            }
        }
    }
}

fn distribute(
    trips: impl Iterator<Item = usize>,
    pages: usize,
    first: u32,
    size: u32,
) -> Result<Homes, Error> {
    let mut homes = Homes::new();
    let mut left = pages;
    for block in trips {
        let block = block.div_ceil(PAGE);
        if block == 0 {
            return Err(Error::Placement("the block size is 0 bytes; it must be at least 1".into()));
        }
        for offset in 0..size {
            let run = block.min(left);
            homes.push((run, (first + offset) % size));
            left -= run;
            if left == 0 {
                return Ok(homes);
            }
        }
    }
    Ok(homes)
}

fn distribute_shares(shares: &[usize], pages: usize, size: u32) -> Result<Homes, Error> {
    if shares.is_empty() || shares.len() > size as usize {
        let why = format!("there are {} shares for {size} processes", shares.len());
        return Err(Error::Placement(why));
    }
    let mut homes = Homes::new();
    let mut left = pages;
    for (home, share) in (0..).zip(shares) {
        let run = share.div_ceil(PAGE).min(left);
        if run > 0 {
            homes.push((run, home));
            left -= run;
        }
    }
    if left > 0 {
        homes.push((left, shares.len() as u32 - 1));
    }
    Ok(homes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn homes(placement: Placement, pages: usize, size: u32) -> Vec<u32> {
        let runs = PlacementState::default().homes(&placement, pages, size).unwrap();
        runs.into_iter().flat_map(|(pages, home)| std::iter::repeat_n(home, pages)).collect()
    }

    #[test]
    fn blocks_are_distributed_round_robin() {
        assert_eq!(homes(Placement::Cyclic { block: 1, first: 1 }, 5, 3), [1, 2, 0, 1, 2]);
        assert_eq!(homes(Placement::Cyclic { block: 2 * PAGE, first: 0 }, 5, 2), [0, 0, 1, 1, 0]);
        let trips = Placement::Trips { blocks: vec![PAGE, 2 * PAGE], first: 0 };
        assert_eq!(homes(trips, 8, 2), [0, 1, 0, 0, 1, 1, 0, 0]);
        assert_eq!(homes(Placement::Shares(vec![PAGE, 3 * PAGE]), 5, 2), [0, 1, 1, 1, 1]);
        assert_eq!(homes(Placement::On(2), 2, 3), [2, 2]);
    }

    #[test]
    fn rotating_placement_uses_the_next_process() {
        let mut state = PlacementState::default();
        let mut next = || state.homes(&Placement::Rotating, 2, 3).unwrap();
        assert_eq!([next(), next(), next(), next()], [[(2, 0)], [(2, 1)], [(2, 2)], [(2, 0)]]);
    }

    #[test]
    fn impossible_placements_are_refused() {
        let mut state = PlacementState::default();
        for wrong in [
            Placement::On(2),
            Placement::Cyclic { block: 0, first: 0 },
            Placement::Trips { blocks: vec![], first: 0 },
            Placement::Shares(vec![1, 1, 1]),
        ] {
            assert!(state.homes(&wrong, 4, 2).is_err(), "{wrong:?}");
        }
    }
}
