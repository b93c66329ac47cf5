//! Programs that stress the protocol: more dirty pages than the cache holds, threads, homes that move, loss.

#[allow(dead_code)]
mod support;

use ferroce_dsm::{Job, Placement, TransportKind, Tuning};
use support::{Plan, TWO_ON_EACH_HOST, work};

const PAGED: [TransportKind; 3] = [TransportKind::Rdma, TransportKind::RdmaMsg, TransportKind::Udp];

/// `count` words of shared memory.
fn words(job: &Job, count: usize, placement: &Placement) -> &'static mut [u64] {
    let at = job.alloc(count * 8, placement).unwrap();
    // SAFETY: fresh shared memory of that size, whose other users are excluded by locks and barriers.
    unsafe { std::slice::from_raw_parts_mut(at.cast(), count) }
}

#[test]
fn dirty_sets_far_larger_than_the_cache() {
    let test = "dirty_sets_far_larger_than_the_cache";
    work(|job| {
        let (rank, size) = (job.rank() as usize, job.size() as usize);
        let count = 200 * 512;
        let array = words(job, count, &Placement::Cyclic { block: 4096, first: 0 });
        for round in 1..=3u64 {
            for at in (rank..count).step_by(size) {
                array[at] += round * at as u64;
            }
            job.barrier().unwrap();
        }
        let wrong = (0..count).find(|&at| array[at] != 6 * at as u64);
        assert_eq!(wrong, None);
        let counted = job.statistics();
        assert!(counted.evictions > 100, "{counted:?}");
    });
    for transport in PAGED {
        let variables = &[("FERROCE_DSM_CACHE_PAGES", "8"), ("FERROCE_DSM_HEAP", "16M")];
        Plan { test, size: 3, transport, variables }.run();
    }
}

/// The number of processes that a job must support, on any number of cores.
#[test]
fn sixty_four_processes() {
    let test = "sixty_four_processes";
    work(|job| {
        let (rank, size) = (job.rank() as usize, job.size() as usize);
        let count = 8 * 512;
        let array = words(job, count, &Placement::Cyclic { block: 4096, first: 0 });
        let sum = words(job, 1, &Placement::On(job.size() - 1));
        for at in (rank..count).step_by(size) {
            array[at] = at as u64;
        }
        job.lock(9).unwrap();
        sum[0] += rank as u64;
        job.unlock(9).unwrap();
        job.barrier().unwrap();
        assert_eq!((0..count).find(|&at| array[at] != at as u64), None);
        assert_eq!(sum[0], (size * (size - 1) / 2) as u64);
    });
    for transport in [TransportKind::Local, TransportKind::Rdma] {
        let started = std::time::Instant::now();
        Plan { test, size: 64, transport, variables: &[("FERROCE_DSM_HEAP", "1M")] }.run();
        println!("{}: {:?}", transport.name(), started.elapsed());
    }
}

/// Threads of all processes draw tasks from a queue under a lock, and write results that share pages.
#[test]
fn threads_share_pages_and_locks() {
    let test = "threads_share_pages_and_locks";
    work(|job| {
        const TASKS: u64 = 400;
        let next = words(job, 1, &Placement::On(job.size() - 1)).as_mut_ptr() as usize;
        let results = words(job, TASKS as usize, &Placement::On(0)).as_mut_ptr() as usize;
        job.barrier().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    loop {
                        job.lock(1).unwrap();
                        // SAFETY: shared memory, under its lock.
                        let task = unsafe { *(next as *mut u64) };
                        // SAFETY: as above.
                        unsafe { *(next as *mut u64) = task + 1 };
                        job.unlock(1).unwrap();
                        if task >= TASKS {
                            return;
                        }
                        // SAFETY: this word belongs to the one who drew the task.
                        unsafe { *(results as *mut u64).add(task as usize) = task * task };
                    }
                });
            }
        });
        job.barrier().unwrap();
        for task in 0..TASKS {
            // SAFETY: nobody writes after the barrier.
            assert_eq!(unsafe { *(results as *const u64).add(task as usize) }, task * task);
        }
    });
    for transport in TransportKind::ALL {
        Plan { test, size: 3, transport, variables: &[] }.run();
    }
    Plan { test, size: 3, transport: TransportKind::Rdma, variables: &TWO_ON_EACH_HOST }.run();
}

#[test]
fn homes_move_to_their_writers() {
    let test = "homes_move_to_their_writers";
    work(|job| {
        job.configure(Tuning::HomeMigration, true);
        let (rank, size) = (job.rank() as usize, job.size() as usize);
        let share = 20 * 512;
        let array = words(job, share * size, &Placement::On(0));
        let own = rank * share..(rank + 1) * share;
        for round in 1..=5u64 {
            for at in own.clone() {
                array[at] = round + at as u64;
            }
            job.barrier().unwrap();
            assert!((0..share * size).all(|at| array[at] == round + at as u64));
            job.barrier().unwrap();
        }
        let counted = job.statistics();
        if rank > 0 {
            assert_eq!(counted.migrations, 20);
            // A wrong guess of the first home may hold some of them back for an interval.
            assert!(counted.diffs <= 40, "soon every process writes at home: {counted:?}");
        }
    });
    for transport in PAGED {
        Plan { test, size: 3, transport, variables: &[] }.run();
    }
}

const ROWS: usize = 64;
const COLUMNS: usize = 256;

fn start_row(grid: &mut [u64], row: usize) {
    for column in 0..COLUMNS {
        grid[row * COLUMNS + column] = ((row * 31 + column * 17) % 1000) as u64;
    }
}

/// The words of one colour, each from its neighbours, which have the other colour.
fn relax_row(grid: &mut [u64], row: usize, step: usize) {
    if !(1..ROWS - 1).contains(&row) {
        return;
    }
    for column in (1..COLUMNS - 1).filter(|column| (row + column + step).is_multiple_of(2)) {
        let at = row * COLUMNS + column;
        grid[at] = (grid[at - 1] + grid[at + 1] + grid[at - COLUMNS] + grid[at + COLUMNS]) / 4;
    }
}

/// Red-black relaxation: neighbours' rows are read, our own written; against what one thread alone computes.
fn relax(job: &Job) {
    let (rank, size) = (job.rank() as usize, job.size() as usize);
    let share = (ROWS / size * COLUMNS * 8).next_multiple_of(4096);
    let grid = words(job, ROWS * COLUMNS, &Placement::Cyclic { block: share, first: 0 });
    let own = ROWS * rank / size..ROWS * (rank + 1) / size;
    let mut alone = vec![0; ROWS * COLUMNS];
    own.clone().for_each(|row| start_row(grid, row));
    (0..ROWS).for_each(|row| start_row(&mut alone, row));
    job.barrier().unwrap();
    for step in 0..10 {
        own.clone().for_each(|row| relax_row(grid, row, step));
        (0..ROWS).for_each(|row| relax_row(&mut alone, row, step));
        job.barrier().unwrap();
    }
    assert!(*grid == *alone);
}

#[test]
fn all_transports_compute_the_same() {
    let test = "all_transports_compute_the_same";
    work(relax);
    for transport in TransportKind::ALL {
        for size in [1, 2, 4, 8] {
            Plan { test, size, transport, variables: &[] }.run();
        }
    }
    Plan { test, size: 5, transport: TransportKind::Rdma, variables: &TWO_ON_EACH_HOST }.run();
}

#[test]
fn one_packet_in_a_hundred_is_lost() {
    let test = "one_packet_in_a_hundred_is_lost";
    work(relax);
    for transport in PAGED {
        let variables = &[("FERROCE_FAULTS", "loss=1%,dup=1%,seed=3")];
        Plan { test, size: 2, transport, variables }.run();
    }
}

/// The system has a limit on pieces of memory with different rights; beyond it all pages are closed and fault again.
#[test]
fn more_pieces_than_the_system_has() {
    let test = "more_pieces_than_the_system_has";
    work(|job| {
        let pages = 100_000;
        let array = words(job, pages * 512, &Placement::Rotating);
        for round in 1..=2 {
            for page in (0..pages).step_by(2) {
                array[page * 512] += round;
            }
            job.barrier().unwrap();
        }
        assert!((0..pages).step_by(2).all(|page| array[page * 512] == 3));
    });
    Plan { test, size: 1, transport: TransportKind::Rdma, variables: &[] }.run();
}
