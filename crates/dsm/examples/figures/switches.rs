//! The effect of each switch: the same work with the switch off and on, alternately.

use crate::{Figures, ROUNDS, RUN, Result, WORDS};
use ferroce_dsm::{Job, Placement, Shared, Tuning};

const PAGES: usize = 100;
/// Pages of a long sequential read.
const WALK: usize = 400;
/// Intervals of one round.
const INTERVALS: u64 = 4;

/// A switch and the work that it should speed up.
struct Case {
    tuning: Tuning,
    pages: usize,
    /// The figure with the switch off, and on.
    names: [&'static str; 2],
    /// Number of pages that both processes read after the work.
    seen: usize,
    /// The work of one interval.
    work: fn(&Job, &Shared<[u64]>, u64),
}

const CASES: [Case; 5] = [
    Case {
        tuning: Tuning::ChangedBlocks,
        pages: PAGES,
        names: [
            "one word of 100 pages changed, whole pages",
            "one word of 100 pages changed, changed blocks",
        ],
        seen: PAGES,
        work: |job, array, round| {
            if job.rank() == 1 {
                (0..PAGES).for_each(|page| array.set(page * WORDS + round as usize % WORDS, round));
            }
        },
    },
    Case {
        tuning: Tuning::HomeMigration,
        pages: PAGES,
        names: [
            "100 pages of another home written, homes stay",
            "100 pages of another home written, homes move",
        ],
        // Like a grid whose home is the wrong process: other processes read only its edge.
        seen: 2,
        work: |job, array, round| {
            if job.rank() == 0 {
                (0..PAGES * WORDS).step_by(4).for_each(|at| array.set(at, round));
            }
        },
    },
    Case {
        tuning: Tuning::AdaptiveWriteDetection,
        pages: PAGES,
        names: ["100 own pages written, each with a fault", "100 own pages written, predicted"],
        seen: PAGES,
        work: |job, array, round| {
            if job.rank() == 1 {
                (0..PAGES).for_each(|page| array.set(page * WORDS, round));
            }
        },
    },
    Case {
        tuning: Tuning::Parcels,
        pages: PAGES,
        names: ["every second word of 100 pages, one by one", "every second word of 100 pages, in parcels"],
        seen: PAGES,
        work: |job, array, round| {
            if job.rank() == 0 {
                (0..PAGES * WORDS).for_each(|at| array.update(at, |old| old & !0xffff_ffff | round));
            }
        },
    },
    Case {
        tuning: Tuning::Prefetch,
        pages: WALK,
        names: ["400 pages read in order, one by one", "400 pages read in order, prefetched"],
        seen: WALK,
        work: |job, array, round| {
            if job.rank() == 1 {
                (0..WALK).for_each(|page| array.set(page * WORDS, round));
            }
        },
    },
];

/// Measures intervals: the work, a barrier, reads by both processes, and a barrier.
pub(crate) fn measure(job: &Job, figures: &mut Figures) -> Result<()> {
    for case in &CASES {
        let usual =
            matches!(case.tuning, Tuning::AdaptiveWriteDetection | Tuning::Parcels | Tuning::Prefetch);
        let mut round = 0;
        for on in [false, true].repeat(ROUNDS / 2) {
            // New pages each time: homes that have moved must not affect the next setting.
            let array = job.shared::<u64>(case.pages * WORDS, &Placement::On(1))?;
            job.barrier()?;
            job.configure(case.tuning, on);
            let mut interval = || {
                round += 1;
                (case.work)(job, &array, round);
                job.barrier()?;
                (0..case.seen).for_each(|page| assert!(array.get(page * WORDS) <= round));
                Ok(job.barrier()?)
            };
            interval()?;
            figures.time(case.names[usize::from(on)], INTERVALS as usize, interval)?;
            job.configure(case.tuning, usual);
        }
    }
    Ok(())
}

/// Two processes of one host write and read the same pages, at home at one of them, in a job with a third on another host.
pub(crate) fn colocated(job: &Job, figures: &mut Figures) -> Result<()> {
    let mut round = 0;
    for on in [false, true].repeat(ROUNDS / 2) {
        job.barrier()?;
        job.configure(Tuning::Colocated, on);
        let array = job.shared::<u64>(PAGES * WORDS, &Placement::On(1))?;
        let mut interval = || {
            round += 1;
            if job.rank() < 2 {
                let half = job.rank() as usize * WORDS / 2;
                (0..PAGES).for_each(|page| array.set(page * WORDS + half, round));
            }
            job.barrier()?;
            if job.rank() < 2 {
                let other = (1 - job.rank() as usize) * WORDS / 2;
                (0..PAGES).for_each(|page| assert_eq!(array.get(page * WORDS + other), round));
            }
            Ok(job.barrier()?)
        };
        interval()?;
        let name =
            if on { "100 pages of a local peer, in place" } else { "100 pages of a local peer, copied" };
        figures.time(name, INTERVALS as usize, interval)?;
    }
    Ok(())
}

/// Barriers of all processes, direct and over a tree.
pub(crate) fn tree(job: &Job, figures: &mut Figures) -> Result<()> {
    for on in [false, true].repeat(ROUNDS / 2) {
        job.barrier()?;
        job.configure(Tuning::BroadcastTree, on);
        job.barrier()?;
        let name = if on { "empty barrier, over a tree" } else { "empty barrier, direct" };
        figures.time(name, RUN, || Ok(job.barrier()?))?;
    }
    Ok(())
}
