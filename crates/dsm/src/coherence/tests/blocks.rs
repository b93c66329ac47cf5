//! When a home determines the changed blocks of the pages that its program writes.

use super::super::{Blocks, Machine, Notice, Notices, Options, Run, Step};
use super::{Access, nothing, options, steps};

const PAGES: Run = Run { first: 0, count: 64 };
const FEW: Blocks = Blocks(1);

/// Write faults and comparisons.
#[derive(Debug, PartialEq, Eq, Default)]
struct Cost {
    faults: usize,
    comparisons: usize,
}

fn home(changed_blocks: bool) -> Machine {
    let mut machine = Machine::new(options(0));
    machine.changed_blocks = changed_blocks;
    machine.place(PAGES, 0);
    machine
}

/// Between two barriers the program writes all pages and changes these blocks of each; then `peer` arrives.
fn interval(machine: &mut Machine, changed: Blocks, peer: &Notices) -> (Cost, Vec<Notice>) {
    interval_of(machine, |_| changed, peer)
}

fn interval_of(
    machine: &mut Machine,
    changed: impl Fn(usize) -> Blocks,
    peer: &Notices,
) -> (Cost, Vec<Notice>) {
    let mut cost = Cost::default();
    let mut open = 0;
    while open < PAGES.count {
        let steps = steps(machine.fault(open, true));
        cost.faults += usize::from(!steps.is_empty());
        open += 1;
        for step in steps {
            if let Step::Protect(run, Access::Write) = step {
                open = run.first + run.count;
            }
        }
    }
    for step in machine.arrive() {
        if let Step::Compare(page) = step {
            cost.comparisons += 1;
            machine.compared(page, changed(page));
        }
    }
    let notices = machine.arrived();
    machine.depart(&[Notices::Pages(notices.clone()), peer.clone()], &[]);
    (cost, notices)
}

fn intervals(machine: &mut Machine, count: usize, changed: Blocks, peer: &Notices) -> Cost {
    (0..count).fold(Cost::default(), |all, _| {
        let (cost, _) = interval(machine, changed, peer);
        Cost { faults: all.faults + cost.faults, comparisons: all.comparisons + cost.comparisons }
    })
}

fn fetches() -> Notices {
    super::fetches(PAGES)
}

#[test]
fn a_page_that_nobody_fetches_costs_nothing_more() {
    let off = intervals(&mut home(false), 200, FEW, &nothing());
    assert_eq!(intervals(&mut home(true), 200, FEW, &nothing()), off);
    assert_eq!(off.comparisons, 0);
}

#[test]
fn a_page_that_changes_as_a_whole_is_seldom_compared() {
    let off = intervals(&mut home(false), 200, Blocks::ALL, &fetches());
    let mut machine = home(true);
    let on = intervals(&mut machine, 200, Blocks::ALL, &fetches());
    assert_eq!(off.comparisons, 0);
    // At intervals 1, 10, 27, 60 and 125.
    assert_eq!(on.comparisons, 5 * PAGES.count);
    assert!(on.faults < off.faults + 40, "{on:?} against {off:?}");
}

/// As heat spreads over a plate: all pages are written, but each changes only from some interval on.
#[test]
fn pages_that_change_at_different_times_are_opened_together() {
    let faults = |changed_blocks| {
        let mut machine = home(changed_blocks);
        let spread = |interval| move |page| if page < interval { Blocks::ALL } else { Blocks::NONE };
        (0..200).map(|at| interval_of(&mut machine, spread(at), &fetches()).0.faults).sum::<usize>()
    };
    let (on, off) = (faults(true), faults(false));
    // Of 12,800: 64 pages in 200 intervals.
    assert_eq!((on, off), (371, 217));
}

#[test]
fn blocks_of_pages_that_somebody_fetches_are_always_named() {
    let mut machine = home(true);
    interval(&mut machine, FEW, &fetches());
    for _ in 0..200 {
        let (cost, notices) = interval(&mut machine, FEW, &fetches());
        assert_eq!(cost.comparisons, PAGES.count);
        assert_eq!(notices[0].blocks, FEW);
    }
}

#[test]
fn blocks_are_named_until_no_process_reports_fetches() {
    let mut machine = home(true);
    interval(&mut machine, FEW, &fetches());
    let unread = intervals(&mut machine, 300, FEW, &nothing());
    assert_eq!(unread.comparisons, 25 * PAGES.count);
    // From the third interval on: most pages stayed writable over the first barrier.
    let read = intervals(&mut machine, 10, FEW, &fetches());
    assert!(read.comparisons >= 8 * PAGES.count, "{read:?}");
}

#[test]
fn a_reader_reports_the_pages_that_it_fetched() {
    let mut reader = Machine::new(Options { cache_pages: 99, ..options(1) });
    reader.changed_blocks = true;
    reader.place(PAGES, 0);
    let theirs = Notices::Pages(vec![Notice { run: PAGES, kept: true, blocks: FEW }]);
    let mut reports = Vec::new();
    for _ in 0..16 {
        PAGES.pages().take(3).for_each(|page| drop(steps(reader.fault(page, false))));
        reader.arrive();
        reports.push(reader.arrived());
        assert!(!reader.depart(&[theirs.clone(), nothing()], &[]).is_empty());
    }
    let report = Notice { run: Run { first: 0, count: 3 }, kept: false, blocks: Blocks::NONE };
    assert_eq!(reports.concat(), [report; 3]);
    assert_eq!(
        (&reports[0], &reports[7]),
        (&vec![report], &vec![report]),
        "the first fetch is reported immediately"
    );
    reader.changed_blocks = false;
    let off = (0..16).flat_map(|_| {
        steps(reader.fault(0, false));
        reader.arrive();
        let notices = reader.arrived();
        reader.depart(&[theirs.clone(), nothing()], &[]);
        notices
    });
    assert_eq!(off.count(), 0, "no process needs reports without the switch");
}

#[test]
fn a_report_is_no_write() {
    let mut reader = Machine::new(options(1));
    (reader.changed_blocks, reader.migrate) = (true, true);
    reader.place(PAGES, 0);
    steps(reader.fault(0, false));
    reader.arrive();
    reader.arrived();
    let received = [nothing(), nothing(), fetches()];
    assert_eq!(reader.depart(&received, &[]), [], "our copies stay");
    assert_eq!(steps(reader.fault(0, false)), []);
}
