//! Switches change which data is transferred, never the results.

#[allow(dead_code)]
mod support;

use ferroce_dsm::{Job, PAGE, Placement, TransportKind, Tuning};
use support::{Plan, work};

const PAGED: [TransportKind; 3] = [TransportKind::Rdma, TransportKind::RdmaMsg, TransportKind::Udp];
const WORDS: usize = PAGE / 4;

/// Every process writes every n-th word of all pages, where n is the number of processes, and checks all words.
fn interleaved(job: &Job, pages: usize, rounds: u32) {
    let array = job
        .shared::<u32>(pages * WORDS, &Placement::Cyclic { block: PAGE, first: 0 })
        .expect("an allocation");
    let value = |round: u32, at: usize| round * 7919 + at as u32;
    for round in 1..=rounds {
        for at in (job.rank() as usize..pages * WORDS).step_by(job.size() as usize) {
            array.set(at, value(round, at));
        }
        job.barrier().expect("a barrier");
        let wrong = (0..pages * WORDS).find(|&at| array.get(at) != value(round, at));
        assert_eq!(wrong, None, "round {round}");
        job.barrier().expect("a barrier");
    }
}

#[test]
fn interleaved_words_go_home_in_parcels() {
    work(|job| {
        interleaved(job, 20, 3);
        let counted = job.statistics();
        assert!(counted.packed_diffs > 10 && counted.packed_diffs == counted.diffs, "{counted:?}");
    });
    let test = "interleaved_words_go_home_in_parcels";
    for transport in PAGED {
        Plan { test, size: 3, transport, variables: &[] }.run();
    }
}

/// More than one parcel holds: the rest goes word by word.
#[test]
fn more_than_a_parcel_holds() {
    work(|job| {
        interleaved(job, 1500, 1);
        let counted = job.statistics();
        assert!(counted.packed_diffs > 100 && counted.packed_diffs < counted.diffs, "{counted:?}");
    });
    let test = "more_than_a_parcel_holds";
    Plan { test, size: 2, transport: TransportKind::Rdma, variables: &[] }.run();
}

#[test]
fn barriers_over_a_tree() {
    work(|job| {
        job.barrier().expect("a barrier");
        job.configure(Tuning::BroadcastTree, true);
        // Interleaved words make parcels, a few words make short notices, many scattered pages make long ones.
        interleaved(job, 6, 3);
        let pages = 400;
        let array = job.shared::<u32>(pages * WORDS, &Placement::Rotating).expect("an allocation");
        for round in 1..=4 {
            for page in (job.rank() as usize * 2..pages).step_by(2 * job.size() as usize) {
                array.set(page * WORDS, round);
            }
            job.barrier().expect("a barrier");
            let wrong = (0..pages).step_by(2).find(|page| array.get(page * WORDS) != round);
            assert_eq!(wrong, None, "round {round}");
            job.barrier().expect("a barrier");
        }
        job.configure(Tuning::BroadcastTree, false);
        interleaved(job, 2, 1);
    });
    let test = "barriers_over_a_tree";
    for (transport, size) in PAGED.into_iter().zip([5, 3, 2]) {
        Plan { test, size, transport, variables: &[] }.run();
    }
}

/// One process changes a word of each page over and over, the other reads it.
fn bytes_of_small_changes(job: &Job, on: bool) -> u64 {
    const PAGES: usize = 40;
    job.barrier().expect("a barrier");
    job.configure(Tuning::ChangedBlocks, on);
    // Half of the pages are at home at their writer, half at a process co-located with their reader.
    let array = job
        .shared::<u32>(PAGES * WORDS, &Placement::Cyclic { block: PAGE, first: 0 })
        .expect("an allocation");
    let before = job.statistics();
    for round in 1..=6u32 {
        if job.rank() == 0 {
            (0..PAGES).for_each(|page| array.set(page * WORDS + 99 * round as usize, round));
        }
        job.barrier().expect("a barrier");
        for page in 0..PAGES {
            for old in 1..=round {
                assert_eq!(array.get(page * WORDS + 99 * old as usize), old);
            }
        }
        job.barrier().expect("a barrier");
    }
    job.statistics().fetched_bytes - before.fetched_bytes
}

#[test]
fn only_changed_blocks_are_fetched() {
    work(|job| {
        let whole = bytes_of_small_changes(job, false);
        let blocks = bytes_of_small_changes(job, true);
        // The first fetch of a page is whole, in both cases.
        assert!(job.rank() == 0 || blocks * 3 < whole, "{blocks} of {whole} bytes");
    });
    let test = "only_changed_blocks_are_fetched";
    for transport in PAGED {
        Plan { test, size: 3, transport, variables: &[] }.run();
    }
}

/// Every process writes all words of its own pages over and over, and reads a page of the next process.
fn faults_of_whole_pages(job: &Job, on: bool) -> u64 {
    const PAGES: usize = 256;
    job.barrier().expect("a barrier");
    job.configure(Tuning::ChangedBlocks, on);
    let part = Placement::Cyclic { block: PAGES * PAGE, first: 0 };
    let array = job.shared::<u32>(job.size() as usize * PAGES * WORDS, &part).expect("an allocation");
    let begin = |rank: u32| (rank % job.size()) as usize * PAGES * WORDS;
    let before = job.statistics();
    for round in 1..=60 {
        let own = begin(job.rank());
        (own..own + PAGES * WORDS).for_each(|at| array.set(at, round));
        job.barrier().expect("a barrier");
        let next = begin(job.rank() + 1);
        assert_eq!((next..next + WORDS).find(|&at| array.get(at) != round), None, "round {round}");
        job.barrier().expect("a barrier");
    }
    job.statistics().write_faults - before.write_faults
}

#[test]
fn whole_pages_at_home_cause_few_faults_for_changed_blocks() {
    work(|job| {
        let off = faults_of_whole_pages(job, false);
        let on = faults_of_whole_pages(job, true);
        // Only the page that the other process reads costs more.
        assert!(on <= off + 30, "{on} write faults with changed blocks, {off} without");
    });
    let test = "whole_pages_at_home_cause_few_faults_for_changed_blocks";
    for transport in PAGED {
        Plan { test, size: 2, transport, variables: &[] }.run();
    }
}
