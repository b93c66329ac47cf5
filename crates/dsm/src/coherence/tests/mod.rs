//! Litmus tests: which writes must be visible after which lock or barrier, and the steps for a page, one by one.

mod blocks;
mod colocated;

use super::Blocks;
use super::machine::Fault;
use super::{Access, Machine, Notice, Notices, Options, Run, Step, Update};

const ONE: Run = Run { first: 0, count: 1 };

fn machine(rank: u32, cache_pages: usize) -> Machine {
    placed(Options { cache_pages, ..options(rank) })
}

fn options(rank: u32) -> Options {
    Options {
        rank,
        cache_pages: 9,
        prefetch_pages: 0,
        max_checking_pages: 0,
        alone: false,
        hosts: Vec::new(),
        colocated: Vec::new(),
    }
}

fn placed(options: Options) -> Machine {
    let mut machine = Machine::new(options);
    // Page 0 is at home at process 0, pages 1 to 9 at process 1.
    machine.place(ONE, 0);
    machine.place(Run { first: 1, count: 9 }, 1);
    machine
}

fn steps(fault: Fault) -> Vec<Step> {
    match fault {
        Fault::Steps(steps) => steps,
        Fault::Unknown => panic!("the page is known"),
    }
}

fn notices_of(pages: &[usize]) -> Notices {
    let runs = Run::of(pages.iter().copied());
    Notices::Pages(runs.into_iter().map(|run| Notice { run, kept: true, blocks: Blocks::ALL }).collect())
}

/// A process reports that it fetches these pages.
fn fetches(run: Run) -> Notices {
    Notices::Pages(vec![Notice { run, kept: false, blocks: Blocks::NONE }])
}

fn nothing() -> Notices {
    Notices::Pages(Vec::new())
}

#[test]
fn a_page_is_fetched_once_and_twinned_at_the_first_write() {
    let mut machine = machine(1, 9);
    assert_eq!(steps(machine.fault(0, false)), [Step::Fetch(ONE, 0), Step::Protect(ONE, Access::Read)]);
    assert_eq!(steps(machine.fault(0, false)), [], "another thread was first");
    assert_eq!(steps(machine.fault(0, true)), [Step::Twin(0), Step::Protect(ONE, Access::Write)]);
    assert_eq!(steps(machine.fault(0, true)), []);
    assert_eq!(machine.fault(10, false), Fault::Unknown);
}

#[test]
fn a_home_reads_and_writes_without_copies() {
    let mut machine = machine(0, 9);
    assert_eq!(steps(machine.fault(0, true)), [Step::Protect(ONE, Access::Write)]);
    let steps = machine.arrive();
    let notices = machine.arrived();
    assert_eq!(
        steps,
        [Step::Protect(ONE, Access::Read)],
        "nothing to send, but the next write must be noticed"
    );
    assert_eq!(notices, [Notice { run: ONE, kept: true, blocks: Blocks::ALL }]);
}

#[test]
fn what_is_written_under_a_lock_goes_home_at_its_release() {
    let mut machine = machine(1, 9);
    assert_eq!(machine.acquire(5, &nothing()), []);
    steps(machine.fault(0, true));
    assert_eq!(machine.release(5), [Step::Protect(ONE, Access::Read), Step::Flush(0, 0)]);
    assert_eq!(machine.released(5), [Notice { run: ONE, kept: false, blocks: Blocks::ALL }]);
}

#[test]
fn writes_before_a_lock_are_not_in_its_notices() {
    let mut machine = machine(1, 9);
    steps(machine.fault(0, true));
    assert_eq!(machine.acquire(5, &nothing()), [Step::Protect(ONE, Access::Read)]);
    assert_eq!(machine.release(5), []);
    assert_eq!(machine.released(5), [], "scope consistency: another scope's writes may stay unseen");
    let steps = machine.arrive();
    let notices = machine.arrived();
    assert_eq!(steps, [Step::Flush(0, 0)], "but a barrier shows everything");
    assert_eq!(notices.len(), 1);
}

#[test]
fn writes_of_an_inner_lock_are_in_the_notices_of_the_outer_one() {
    let mut machine = machine(1, 9);
    machine.acquire(1, &nothing());
    machine.acquire(2, &nothing());
    steps(machine.fault(0, true));
    machine.release(2);
    assert_eq!(machine.released(2).len(), 1);
    assert_eq!(machine.release(1), [], "its words are at home already");
    assert_eq!(machine.released(1).len(), 1);
}

#[test]
fn a_notice_invalidates_the_copy_after_our_own_words_went_home() {
    let mut machine = machine(1, 9);
    steps(machine.fault(0, true));
    let done = machine.acquire(5, &notices_of(&[0, 3, 77]));
    let closed = Step::Protect(ONE, Access::None);
    assert_eq!(done, [Step::Protect(ONE, Access::Read), closed, Step::Flush(0, 0)]);
    assert_eq!(steps(machine.fault(0, false))[0], Step::Fetch(ONE, 0));
}

#[test]
fn a_notice_to_the_home_does_nothing() {
    let mut machine = machine(0, 9);
    steps(machine.fault(0, false));
    assert_eq!(machine.depart(&[nothing(), notices_of(&[0])], &[]), []);
    assert_eq!(steps(machine.fault(0, false)), []);
}

#[test]
fn a_full_cache_sends_dirty_pages_home() {
    let mut machine = machine(0, 2);
    steps(machine.fault(1, true));
    steps(machine.fault(2, false));
    let run = |first| Run { first, count: 1 };
    assert_eq!(
        steps(machine.fault(3, false)),
        [
            Step::Protect(run(1), Access::None),
            Step::Flush(1, 1),
            Step::Discard(run(1)),
            Step::Fetch(run(3), 1),
            Step::Protect(run(3), Access::Read),
        ]
    );
    machine.arrive();
    let notices = machine.arrived();
    assert_eq!(
        notices,
        [Notice { run: run(1), kept: false, blocks: Blocks::ALL }],
        "an evicted page was written all the same"
    );
}

#[test]
fn adjacent_pages_are_fetched_where_faults_walk() {
    let mut machine =
        Machine::new(Options { cache_pages: 40, prefetch_pages: 4, max_checking_pages: 4, ..options(0) });
    machine.place(Run { first: 0, count: 20 }, 1);
    let fetched = |machine: &mut Machine, page| match steps(machine.fault(page, false))[0] {
        Step::Fetch(run, 1) => run.count,
        step => panic!("{step:?}"),
    };
    assert_eq!([0, 1, 3, 7].map(|page| fetched(&mut machine, page)), [1, 2, 4, 5]);
    machine.set_prefetching(false);
    assert_eq!([12, 13, 14].map(|page| fetched(&mut machine, page)), [1, 1, 1]);
}

#[test]
fn what_is_always_fetched_after_a_barrier_is_fetched_at_the_barrier() {
    let mut machine = machine(1, 9);
    machine.prefetch_pages = 4;
    machine.set_prefetching(true);
    let barrier = |machine: &mut Machine| {
        machine.arrive();
        machine.arrived();
        let steps = machine.depart(&[notices_of(&[0]), nothing()], &[]);
        steps.contains(&Step::Fetch(ONE, 0))
    };
    let mut faults = Vec::new();
    for interval in 0..80 {
        faults.extend(Some(interval).filter(|_| !steps(machine.fault(0, false)).is_empty()));
        barrier(&mut machine);
    }
    assert_eq!(faults, [0, 1, 2, 34, 66], "now and then it must show that it is still read");
    let fetches = (0..80).filter(|_| barrier(&mut machine)).count();
    assert!(fetches <= 31, "{fetches} fetches of a page that is no longer read");
    machine.set_prefetching(false);
    for _ in 0..5 {
        assert_ne!(steps(machine.fault(0, false)), []);
        assert!(!barrier(&mut machine));
    }
}

#[test]
fn a_page_that_is_fetched_at_barriers_comes_with_the_arrival_of_its_home() {
    let (mut home, mut reader) = (machine(0, 9), machine(1, 9));
    reader.prefetch_pages = 4;
    reader.set_prefetching(true);
    let mut barrier = |reads: bool| {
        home.fault(0, true);
        if reads {
            reader.fault(0, false);
        }
        let arrived = [&mut home, &mut reader].map(|machine| {
            machine.arrive();
            Notices::Pages(machine.arrived())
        });
        let sent = home.updates().iter().map(|&(to, page)| {
            assert_eq!(to, 1);
            Update { page, from: 0, at: 7 }
        });
        let sent: Vec<Update> = sent.collect();
        home.depart(&arrived, &[]);
        let steps = reader.depart(&arrived, &sent);
        (!sent.is_empty(), steps.contains(&Step::Update(0, 7)), steps.contains(&Step::Fetch(ONE, 0)))
    };
    let all: Vec<_> = (0..80).map(|_| barrier(true)).collect();
    let (updated, fetched) = (all.iter().filter(|at| at.1).count(), all.iter().filter(|at| at.2).count());
    // At the others, the page must show by a fault that it is still read.
    assert_eq!((updated, fetched), (70, 6));
    let wasted = (0..80).filter(|_| barrier(false).0).count();
    assert!(wasted <= 64, "{wasted} updates of a page that is no longer read");
    assert!(!barrier(false).0);
}

#[test]
fn the_only_writer_becomes_the_home() {
    let mut writer = machine(1, 9);
    let mut home = machine(0, 9);
    for machine in [&mut writer, &mut home] {
        machine.migrate = true;
    }
    steps(writer.fault(0, true));
    writer.arrive();
    let notices = writer.arrived();
    home.arrive();
    home.arrived();
    let received = [nothing(), Notices::Pages(notices)];
    assert_eq!(
        (writer.depart(&received, &[]), home.depart(&received, &[])),
        (vec![], vec![]),
        "no byte moves"
    );
    assert_eq!(steps(writer.fault(0, true)), [Step::Protect(ONE, Access::Write)], "at home: no twin");
    assert_eq!(writer.migrations, 1);
    assert_eq!(steps(home.fault(0, true))[0], Step::Twin(0), "its copy is still good, but a copy");
    // A process whose notices overflowed prevents the move.
    let before = home.migrations;
    home.depart(&[Notices::Overflow, notices_of(&[0])], &[]);
    assert_eq!(home.migrations, before);
}

/// Pages 1 to 4 are written in every interval.
fn write_all(machine: &mut Machine) -> usize {
    let mut faults = 0;
    let mut open = Vec::new();
    for page in 1..5 {
        if !open.contains(&page) {
            let steps = steps(machine.fault(page, true));
            faults += usize::from(!steps.is_empty());
            for step in steps {
                if let Step::Protect(run, Access::Write) = step {
                    open.extend(run.pages());
                }
            }
        }
    }
    faults
}

#[test]
fn what_was_written_together_is_opened_together() {
    let mut machine = machine(1, 9);
    let mut faults = Vec::new();
    for interval in 0..40 {
        faults.push(write_all(&mut machine));
        machine.arrive();
        let run = machine.arrived()[0].run;
        assert!(run == Run { first: 1, count: 4 } || interval == 0, "{run:?}");
    }
    assert_eq!(faults[2..5], [1, 1, 1]);
    assert!(
        faults[5..].iter().any(|&count| count > 1),
        "now and then each must show that it is still written: {faults:?}"
    );
    machine.predict_writes = false;
    machine.arrive();
    machine.arrived();
    assert_eq!(write_all(&mut machine), 4);
}

#[test]
fn written_runs_with_readable_pages_between_them_are_closed_together() {
    let mut machine = machine(1, 9);
    machine.predict_writes = false;
    steps(machine.fault(1, false));
    for page in [2, 3, 5, 8] {
        steps(machine.fault(page, true));
    }
    assert_eq!(machine.arrive(), [Step::Protect(Run { first: 2, count: 7 }, Access::Read)]);
    let notices: Vec<Run> = machine.arrived().into_iter().map(|notice| notice.run).collect();
    assert_eq!(notices, Run::of([2, 3, 5, 8]), "those between them were not written");
    let mut machine = self::machine(0, 9);
    machine.predict_writes = false;
    for page in [2, 4] {
        steps(machine.fault(page, true));
    }
    let closed = |first| Step::Protect(Run { first, count: 1 }, Access::Read);
    assert_eq!(machine.arrive()[..2], [closed(2), closed(4)], "page 3 is not here");
}

#[test]
fn a_second_walk_confirms_that_pages_are_written() {
    let mut machine = Machine::new(options(0));
    let all = Run { first: 0, count: 256 };
    machine.place(all, 0);
    let faults: Vec<usize> = (0..3).map(|_| write_pages(&mut machine, all).0).collect();
    assert!(faults[0] < 12 && faults[1] < 12 && faults[2] == 1, "{faults:?}");
    // Of 256 pages written once, only 16 are written again.
    let mut machine = Machine::new(options(0));
    machine.place(all, 0);
    write_pages(&mut machine, all);
    let (_, end) = write_pages(&mut machine, Run { first: 0, count: 16 });
    assert!((16..=32).contains(&end), "{end}");
}

#[test]
fn home_pages_that_are_always_written_stay_writable() {
    let mut machine = machine(1, 9);
    let barrier = |machine: &mut Machine| (machine.arrive(), machine.arrived());
    let closed = |first, count| vec![Step::Protect(Run { first, count }, Access::Read)];
    for interval in 0..8 {
        write_all(&mut machine);
        let steps = barrier(&mut machine).0;
        assert!(interval < 3 || interval == 7 || steps == closed(1, 4), "{interval}: {steps:?}");
    }
    for _ in 0..15 {
        write_all(&mut machine);
        let (steps, notices) = barrier(&mut machine);
        assert_eq!((steps, notices[0].run), (closed(1, 1), Run { first: 1, count: 4 }));
    }
    let (steps, notices) = barrier(&mut machine);
    assert_eq!(
        (steps, notices[0].run),
        (closed(2, 3), Run { first: 2, count: 3 }),
        "they may have been written"
    );
    assert_eq!(barrier(&mut machine), (vec![], vec![]));
}

#[test]
fn pages_that_are_always_written_must_show_it_less_and_less_often() {
    let mut machine = machine(0, 9);
    let mut shown = Vec::new();
    for interval in 0..800 {
        shown.extend(Some(interval).filter(|_| write_all(&mut machine) > 1));
        machine.arrive();
        machine.arrived();
    }
    assert_eq!(shown, [0, 32, 95, 220, 469, 718]);
}

/// Writes these pages between two barriers. Returns the number of faults and the end of the pages that were announced.
fn write_pages(machine: &mut Machine, pages: Run) -> (usize, usize) {
    let faults = pages.pages().filter(|&page| !steps(machine.fault(page, true)).is_empty()).count();
    machine.arrive();
    let end = machine.arrived().last().map_or(0, |notice| notice.run.first + notice.run.count);
    (faults, end)
}

#[test]
fn few_pages_show_that_all_are_still_written() {
    let mut machine = Machine::new(options(0));
    let all = Run { first: 0, count: 256 };
    machine.place(all, 0);
    let faults: usize = (0..200).map(|_| write_pages(&mut machine, all).0).sum();
    // One in each interval, one for each page at first, and later two for each of eight samples, twice.
    assert!(faults < 200 + 256 + 60, "{faults}");
    let half = Run { first: 0, count: 128 };
    let closed = (0..260).find(|_| write_pages(&mut machine, half).1 == 128);
    assert!(closed.is_some(), "pages that are no longer written are no longer announced");
}

#[test]
fn a_lock_closes_pages_that_stayed_writable() {
    let mut machine = machine(1, 9);
    for _ in 0..10 {
        write_all(&mut machine);
        machine.arrive();
        machine.arrived();
    }
    let kept = Run { first: 2, count: 3 };
    assert_eq!(machine.acquire(5, &nothing()), [Step::Protect(kept, Access::Read)]);
}

#[test]
fn a_wrong_prediction_makes_no_notice() {
    let mut machine = machine(0, 9);
    write_all(&mut machine);
    machine.arrive();
    machine.arrived();
    let opened = steps(machine.fault(1, true));
    assert!(opened.contains(&Step::Twin(2)), "{opened:?}");
    for step in machine.arrive() {
        if let Step::Flush(page, _) = step {
            machine.compared(page, if page == 1 { Blocks(4) } else { Blocks::NONE });
        }
    }
    assert_eq!(
        machine.arrived(),
        [Notice { run: Run { first: 1, count: 1 }, kept: true, blocks: Blocks::ALL }]
    );
}

#[test]
fn one_process_alone_makes_no_notices() {
    let mut machine = Machine::new(Options { alone: true, ..options(0) });
    let all = Run { first: 0, count: 9 };
    machine.place(all, 0);
    assert_eq!(steps(machine.fault(0, true)), [Step::Protect(all, Access::Write)]);
    assert_eq!((machine.arrive(), machine.arrived()), (vec![], vec![]));
}
