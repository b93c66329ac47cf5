//! Pages that are shared with a home on the same host.

use super::*;

const NINE: Run = Run { first: 1, count: 9 };

/// Processes 0 and 1 are on one host, 2 and 3 on another.
fn four(rank: u32) -> Machine {
    placed(Options { hosts: vec![0, 0, 2, 2], colocated: vec![rank ^ 1], ..options(rank) })
}

#[test]
fn a_page_of_a_colocated_home_is_used_in_place() {
    let mut machine = Machine::new(Options { hosts: vec![0, 0], colocated: vec![1], ..options(0) });
    assert_eq!(machine.place(ONE, 0), []);
    assert_eq!(machine.place(NINE, 1), [Step::Show(NINE, 1)]);
    assert_eq!(steps(machine.fault(1, false)), [Step::Protect(NINE, Access::Read)], "nothing is fetched");
    let second = Run { first: 2, count: 1 };
    assert_eq!(steps(machine.fault(2, true)), [Step::Protect(second, Access::Write)], "nor is there a twin");
    assert_eq!(machine.arrive(), [Step::Protect(second, Access::Read)], "nothing is sent");
    assert_eq!(
        machine.arrived(),
        [Notice { run: second, kept: true, blocks: Blocks::ALL }],
        "but a notice lists it"
    );
    assert_eq!(
        machine.depart(&[nothing(), notices_of(&[1])], &[]),
        [],
        "what the co-located process wrote is here"
    );
    assert_eq!(machine.shared_pages().iter().collect::<Vec<_>>(), [(&1, &9)]);
}

#[test]
fn freed_pages_are_discarded_by_their_home_alone() {
    let mut machine = four(0);
    steps(machine.fault(3, true));
    let third = Run { first: 3, count: 1 };
    let done = machine.unplace(third);
    assert_eq!(done.last(), Some(&Step::Discard(third)), "of our own mapping");
    assert!(done.contains(&Step::Show(third, 0)), "{done:?}");
    assert_eq!(machine.place(third, 0), [], "our own is shown already");
    assert_eq!(machine.place(ONE, 1), [Step::Show(ONE, 1)]);
}

#[test]
fn no_home_moves_to_a_colocated_process() {
    let mut all = [0, 1, 2, 3].map(four);
    all.iter_mut().for_each(|machine| machine.migrate = true);
    for machine in &mut all {
        machine.depart(&[notices_of(&[1]), nothing(), nothing(), nothing()], &[]);
        assert!(!machine.must_wait_again());
        assert_eq!(machine.migrations, 0);
    }
    assert_eq!(steps(all[2].fault(1, false))[0], Step::Fetch(Run { first: 1, count: 1 }, 1));
}

#[test]
fn a_page_that_leaves_the_host_is_shown_no_longer() {
    let mut all = [0, 1, 2, 3].map(four);
    all.iter_mut().for_each(|machine| machine.migrate = true);
    steps(all[0].fault(1, false));
    steps(all[2].fault(1, true));
    steps(all[3].fault(1, false));
    let first = Run { first: 1, count: 1 };
    all[2].arrive();
    all[2].arrived();
    let received = [nothing(), nothing(), notices_of(&[1]), nothing()];
    let closed = Step::Protect(first, Access::None);
    assert_eq!(all[0].depart(&received, &[]), [closed, Step::Show(first, 0)], "co-located with the old home");
    assert_eq!(all[1].depart(&received, &[]), [], "the old home has a good copy");
    assert_eq!(all[2].depart(&received, &[]), [], "the new home has one as well");
    assert_eq!(
        all[3].depart(&received, &[]),
        [closed, Step::Discard(first), Step::Show(first, 2)],
        "co-located with the new home"
    );
    assert!(all.iter_mut().all(Machine::must_wait_again), "no process may read what the old home discards");
    assert_eq!(steps(all[0].fault(1, false))[0], Step::Fetch(first, 2));
    assert_eq!(steps(all[3].fault(1, true)), [Step::Protect(first, Access::Write)]);
}

#[test]
fn sharing_can_be_switched_off_for_what_comes() {
    let mut machine = four(0);
    machine.set_sharing(false);
    let more = Run { first: 10, count: 1 };
    assert_eq!(machine.place(more, 1), []);
    assert_eq!(steps(machine.fault(10, false))[0], Step::Fetch(more, 1));
    assert_eq!(steps(machine.fault(9, false)), [Step::Protect(Run { first: 9, count: 1 }, Access::Read)]);
}

#[test]
fn what_cannot_be_shown_is_fetched_and_all_else_with_it() {
    let mut machine = Machine::new(Options { hosts: vec![0, 0], colocated: vec![1], ..options(0) });
    machine.changed_blocks = true;
    machine.place(ONE, 1);
    machine.place(NINE, 1);
    machine.depart(&[nothing(), fetches(ONE)], &[]);
    assert_eq!(steps(machine.fault(0, true)), [Step::Twin(0), Step::Protect(ONE, Access::Write)]);
    let all = Run { first: 0, count: 10 };
    let closed = Step::Protect(ONE, Access::None);
    assert_eq!(machine.stop_sharing(), [closed, Step::Compare(0), Step::Show(all, 0)]);
    assert_eq!((machine.is_to_show(NINE, 1), machine.is_to_show(all, 0)), (Some(false), None));
    assert_eq!(steps(machine.fault(1, false))[0], Step::Fetch(Run { first: 1, count: 1 }, 1));
    assert_eq!(machine.place(Run { first: 10, count: 1 }, 1), [], "and nothing more is tried");
    assert!(machine.shared_pages().is_empty());
    machine.arrive();
    let notices = machine.arrived();
    assert_eq!((notices[0].run, notices[0].blocks), (ONE, Blocks::ALL), "a notice lists what was written");
    assert_eq!(notices[1].blocks, Blocks::NONE, "another one what was fetched");
    assert_eq!(machine.stop_sharing(), [], "there is nothing more to give up");
}

#[test]
fn a_view_of_too_many_pieces_is_not_cut_any_further() {
    let mut machine = Machine::new(Options { hosts: vec![0, 0], colocated: vec![1], ..options(0) });
    let one = |first| Run { first, count: 1 };
    let shown = (0..40000).filter(|&page| !machine.place(one(page), (page % 2) as u32).is_empty()).count();
    assert_eq!(shown, 16384);
    machine.unplace(Run { first: 0, count: 100 });
    let again = (0..200).filter(|&page| !machine.place(one(page), (page % 2) as u32).is_empty()).count();
    assert_eq!(again, 50, "what was given back counts no longer");
    let pages = Run { first: 50000, count: 3000 };
    machine.unplace(Run { first: 1000, count: 8 });
    assert_eq!(machine.place(pages, 1).len(), 1, "a long run is one piece");
}

#[test]
fn overwritten_words_of_others_are_listed() {
    let mut machine = machine(0, 9);
    machine.changed_blocks = true;
    machine.depart(&[nothing(), fetches(ONE)], &[]);
    steps(machine.fault(0, true));
    // Another process writes a word of block 3 at this home. We overwrite it with its old value, so the twin shows no change.
    let theirs = Notice { run: ONE, kept: true, blocks: Blocks(1 << 3) };
    machine.acquire(5, &Notices::Pages(vec![theirs]));
    steps(machine.fault(0, true));
    assert!(machine.release(5).contains(&Step::Compare(0)));
    machine.compared(0, Blocks(1));
    let blocks = machine.released(5)[0].blocks;
    assert_eq!(blocks, Blocks(1 | 1 << 3));
}
