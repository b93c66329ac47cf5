//! Processes of one host use each other's pages in place, in jobs over several hosts.

#[allow(dead_code)]
mod support;

use ferroce_dsm::{Job, PAGE, Placement, Shared, Statistics, TransportKind, Tuning};
use support::{Plan, TWO_ON_EACH_HOST, work};

const WORDS: usize = PAGE / 8;
const PAGES: usize = 40;

fn pages(job: &Job, home: u32) -> Shared<[u64]> {
    job.shared(PAGES * WORDS, &Placement::On(home)).expect("an allocation")
}

/// The counters of a process while `work` runs.
fn counted(job: &Job, work: impl FnOnce()) -> Statistics {
    let before = job.statistics();
    work();
    let mut counted = job.statistics();
    counted.read_faults -= before.read_faults;
    counted.fetches = counted.fetches + counted.prefetches - before.fetches - before.prefetches;
    counted.diffs -= before.diffs;
    counted
}

/// Every process writes a word of every page of every home, and reads those of all.
fn write_and_read(job: &Job, array: &Shared<[u64]>, round: u64) -> Statistics {
    let value = |page: usize, rank: u32| round * 1000 + page as u64 * 10 + u64::from(rank);
    job.barrier().expect("a barrier");
    counted(job, || {
        (0..PAGES).for_each(|page| array.set(page * WORDS + job.rank() as usize, value(page, job.rank())));
        job.barrier().expect("a barrier");
        for (page, rank) in (0..PAGES).flat_map(|page| (0..job.size()).map(move |rank| (page, rank))) {
            assert_eq!(
                array.get(page * WORDS + rank as usize),
                value(page, rank),
                "page {page} of round {round}"
            );
        }
    })
}

/// Whether pages of `home` are shared with this process.
fn shares(job: &Job, home: u32) -> bool {
    home / 2 == job.rank() / 2
}

fn local_peers_exchange_no_pages(job: &Job) {
    for blocks in [false, true] {
        job.barrier().expect("a barrier");
        job.configure(Tuning::ChangedBlocks, blocks);
        for home in 0..job.size() {
            let array = pages(job, home);
            for round in 1..=3 {
                let counted = write_and_read(job, &array, round);
                let transfers = (counted.fetches > 0, counted.diffs > 0);
                let apart = !shares(job, home);
                assert_eq!(transfers, (apart, apart), "home {home}, process {}: {counted:?}", job.rank());
            }
        }
    }
    assert_eq!(job.statistics().shared_pages, 2 * PAGES as u64);
}

#[test]
fn pages_are_transferred_between_hosts_only() {
    let test = "pages_are_transferred_between_hosts_only";
    work(local_peers_exchange_no_pages);
    let [transport, hosts] = TWO_ON_EACH_HOST;
    for faults in ["signal", "auto"] {
        let variables = &[transport, hosts, ("FERROCE_DSM_FAULTS", faults)];
        Plan { test, size: 4, transport: TransportKind::Rdma, variables }.run();
    }
}

#[test]
fn a_requested_transport_is_used_between_local_peers_too() {
    let test = "a_requested_transport_is_used_between_local_peers_too";
    work(|job| {
        let array = pages(job, 0);
        let counted = write_and_read(job, &array, 1);
        assert_eq!(counted.fetches > 0, job.rank() != 0, "{counted:?}");
        assert_eq!(counted.shared_pages, 0);
    });
    let [transport, hosts] = TWO_ON_EACH_HOST;
    let switched = &[transport, hosts, ("FERROCE_DSM_SWITCHES", "no-colocated")][..];
    Plan { test, size: 3, transport: TransportKind::Rdma, variables: switched }.run();
    for transport in [TransportKind::Rdma, TransportKind::RdmaMsg, TransportKind::Udp] {
        Plan { test, size: 3, transport, variables: &[hosts] }.run();
    }
}

#[test]
fn freed_memory_is_zeros_for_the_next_home() {
    let test = "freed_memory_is_zeros_for_the_next_home";
    work(|job| {
        for round in 0..12 {
            let at = job.alloc(PAGES * PAGE, &Placement::On(round % job.size())).expect("an allocation");
            let mut now = vec![1; PAGES * PAGE];
            job.get(&mut now, at).expect("a copy");
            assert!(now.iter().all(|byte| *byte == 0), "round {round}");
            job.barrier().expect("a barrier");
            if job.rank() == round * 7 % job.size() {
                job.put(at, &vec![round as u8 + 1; PAGES * PAGE]).expect("a copy");
            }
            job.barrier().expect("a barrier");
            job.get(&mut now, at).expect("a copy");
            assert!(now.iter().all(|byte| *byte == round as u8 + 1), "round {round}");
            job.free(at).expect("ours");
        }
    });
    Plan { test, size: 4, transport: TransportKind::Rdma, variables: &TWO_ON_EACH_HOST }.run();
}

#[test]
fn homes_move_between_hosts() {
    let test = "homes_move_between_hosts";
    work(|job| {
        job.configure(Tuning::HomeMigration, true);
        let array = pages(job, 1);
        let mut round = 0;
        for writer in [0, 2, 3, 0, 3] {
            for _ in 0..3 {
                round += 1;
                if job.rank() == writer {
                    (0..PAGES).for_each(|page| array.set(page * WORDS + round % 7, round as u64));
                }
                job.barrier().expect("a barrier");
                let wrong = (0..PAGES).find(|page| array.get(page * WORDS + round % 7) != round as u64);
                assert_eq!(wrong, None, "round {round}");
                job.barrier().expect("a barrier");
            }
        }
        // From 1 to 2, from there to 0, and from there to 3; a process co-located with the home needs no fetch.
        let all = job.statistics().migrations;
        assert_eq!(all, [1, 0, 1, 1][job.rank() as usize] * PAGES as u64, "process {}", job.rank());
    });
    for faults in ["signal", "auto"] {
        let [transport, hosts] = TWO_ON_EACH_HOST;
        let variables = &[transport, hosts, ("FERROCE_DSM_FAULTS", faults)];
        Plan { test, size: 4, transport: TransportKind::Rdma, variables }.run();
    }
}

/// Page by page, alternating, which cuts the view into more pieces than the system allows.
#[test]
fn more_pieces_than_can_be_shown() {
    let test = "more_pieces_than_can_be_shown";
    work(|job| {
        const MANY: usize = 60_000;
        let array = job
            .shared::<u64>(MANY * WORDS, &Placement::Cyclic { block: PAGE, first: 0 })
            .expect("an allocation");
        let looked_at = || (0..600).chain(MANY - 600..MANY);
        let own = |page: &usize| page / 3 % 3 == job.rank() as usize;
        looked_at().filter(own).for_each(|page| array.set(page * WORDS, page as u64 + 1));
        job.barrier().expect("a barrier");
        let counted = counted(job, || {
            looked_at().for_each(|page| assert_eq!(array.get(page * WORDS), page as u64 + 1));
        });
        let shared = if job.rank() < 2 { 16384 } else { 0 };
        assert_eq!(counted.shared_pages, shared, "of 20000");
        assert!(counted.fetches > 0);
    });
    for faults in ["signal", "auto"] {
        let [transport, hosts] = TWO_ON_EACH_HOST;
        let variables = &[transport, hosts, ("FERROCE_DSM_FAULTS", faults)];
        Plan { test, size: 3, transport: TransportKind::Rdma, variables }.run();
    }
}

/// Pages of our own that are cut into pieces, more than an ordinary system allows.
const CUT: usize = 1 << 18;

/// Cuts memory of our own into pieces until the system allows only about this many more.
fn leave_pieces(left: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: fresh memory of that size, or an error, which is checked.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), CUT * PAGE, libc::PROT_READ, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    let protect = |page: usize, rights: i32| {
        // SAFETY: a page of it, which nobody uses.
        unsafe { libc::mprotect(at.wrapping_add(page * PAGE), PAGE, rights) == 0 }
    };
    let last = (0..CUT).step_by(2).find(|page| !protect(*page, libc::PROT_NONE)).expect("there is a limit");
    for page in (0..last).rev().step_by(2).map(|page| page & !1).take(left / 2) {
        assert!(protect(page, libc::PROT_READ));
    }
}

/// The system's limit is reached sooner than ours, because the program needs pieces as well.
#[test]
fn what_cannot_be_shown_is_fetched() {
    let test = "what_cannot_be_shown_is_fetched";
    work(|job| {
        const MANY: usize = 6000;
        leave_pieces(1000);
        let array = job
            .shared::<u64>(MANY * WORDS, &Placement::Cyclic { block: PAGE, first: 0 })
            .expect("an allocation");
        let pages = || (0..MANY).step_by(7);
        let own = |page: &usize| page / 7 % 3 == job.rank() as usize;
        pages().filter(own).for_each(|page| array.set(page * WORDS, page as u64 + 1));
        job.barrier().expect("a barrier");
        pages().for_each(|page| assert_eq!(array.get(page * WORDS), page as u64 + 1));
        assert_eq!(job.statistics().shared_pages, 0, "all or nothing");
    });
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("Linux has a limit");
    if limit.trim().parse::<usize>().expect("a number") > CUT / 2 {
        println!("SKIPPED: this system allows {} pieces", limit.trim());
        return;
    }
    for faults in ["signal", "auto"] {
        let [transport, hosts] = TWO_ON_EACH_HOST;
        let variables = &[transport, hosts, ("FERROCE_DSM_FAULTS", faults)];
        Plan { test, size: 3, transport: TransportKind::Rdma, variables }.run();
    }
}
