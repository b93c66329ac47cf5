//! What each switch is good for: the same work with it off and on, alternating.

use crate::{Figures, ROUNDS, RUN, Result, WORDS};
use ferroce_dsm::{Job, Placement, Shared, Tuning};

const PAGES: usize = 100;
/// Pages of a long walk.
const WALK: usize = 400;
/// Intervals of one round.
const INTERVALS: u64 = 4;

/// A switch, the pages that are worked on, its figure with it off and on, an interval of the work that it should help, and how many pages both look at
/// after it.
struct Case {
    tuning: Tuning,
    pages: usize,
    names: [&'static str; 2],
    seen: usize,
    work: fn(&Job, &Shared<[u64]>, u64),
}

const CASES: [Case; 5] = [
    Case {
        tuning: Tuning::ChangedBlocks,
        pages: PAGES,
        names: ["one word of 100 pages told, whole pages", "one word of 100 pages told, changed blocks"],
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
        // As of a field that was placed wrong: the others want its edge.
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
        names: ["100 own pages written, each noticed", "100 own pages written, writing foreseen"],
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

/// An interval: the work, a barrier, and a look by the other process; all of it counts.
pub(crate) fn measure(job: &Job, figures: &mut Figures) -> Result<()> {
    for case in &CASES {
        let usual =
            matches!(case.tuning, Tuning::AdaptiveWriteDetection | Tuning::Parcels | Tuning::Prefetch);
        let mut round = 0;
        for on in [false, true].repeat(ROUNDS / 2) {
            // Where homes moved, they must not stay so for the other half.
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

/// Barriers of all processes, straight and over a tree.
pub(crate) fn tree(job: &Job, figures: &mut Figures) -> Result<()> {
    for on in [false, true].repeat(ROUNDS / 2) {
        job.barrier()?;
        job.configure(Tuning::BroadcastTree, on);
        job.barrier()?;
        let name = if on { "empty barrier, over a tree" } else { "empty barrier, straight" };
        figures.time(name, RUN, || Ok(job.barrier()?))?;
    }
    Ok(())
}
