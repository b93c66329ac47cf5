//! A process that dies ends the job, and every other process reports why.

#[allow(dead_code)]
mod support;

use ferroce_dsm::{Departure, Job, Placement, TransportKind};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::time::Duration;
use support::{Plan, TWO_ON_EACH_HOST, work};

/// The variable with the file that a process creates once it has joined.
const JOINED: &str = "FERROCE_TEST_JOINED";

fn survivors_name_the_dead_process(test: &str, wait: fn(&Job)) {
    work(|job| {
        job.barrier().unwrap();
        if job.rank() == 1 {
            std::process::abort();
        }
        wait(job);
    });
    let kinds = TransportKind::ALL.map(|transport| (transport, &[][..]));
    // It is co-located with process 0, whose program was shown its pages.
    let colocated = (TransportKind::Rdma, &TWO_ON_EACH_HOST[..]);
    for (transport, variables) in kinds.into_iter().chain([colocated]) {
        let ended = Plan { test, size: 3, transport, variables }.run_with(|_| ());
        assert_eq!(ended.departure, Departure::Down { rank: 1, why: "its connection closed".into() });
        for rank in [0, 2] {
            let sentence =
                format!("process {rank} stops: process 1 of the job is down: its connection closed");
            assert!(ended.errors[rank].contains(&sentence), "process {rank}: {}", ended.errors[rank]);
            assert_eq!(ended.statuses[rank].code(), Some(70));
        }
    }
}

#[test]
fn in_a_barrier() {
    survivors_name_the_dead_process("in_a_barrier", |job| job.barrier().unwrap());
}

#[test]
fn in_a_receive() {
    survivors_name_the_dead_process("in_a_receive", |job| {
        job.recv(None, None, &mut [0; 8]).unwrap();
    });
}

#[test]
fn in_a_page_fault() {
    survivors_name_the_dead_process("in_a_page_fault", |job| {
        let pages = 1 << 20;
        let at = job.alloc(pages * 4096, &Placement::On(1)).unwrap();
        // The death of the home is detected long before the last page. The local transport has no faults, and waits here.
        for page in 0..pages {
            // SAFETY: shared memory that nobody writes.
            std::hint::black_box(unsafe { at.add(page * 4096).read_volatile() });
            if job.transport() == TransportKind::Local || job.statistics().shared_pages > 0 {
                job.barrier().unwrap();
            }
        }
    });
}

#[test]
fn a_foreign_fault_is_still_one() {
    let test = "a_foreign_fault_is_still_one";
    work(|job| {
        job.barrier().unwrap();
        // SAFETY: none; this must end the process, and not wait indefinitely in our handler.
        unsafe { std::ptr::null_mut::<u8>().wrapping_add(64).write_volatile(1) };
    });
    let ended = Plan { test, size: 1, transport: TransportKind::Rdma, variables: &[] }.run_with(|_| ());
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended.statuses[0]), Some(libc::SIGSEGV));
}

/// Kills per transport.
const MOMENTS: usize = 3;

/// From FERROCE_SEED, or another one each time; printed, so that a failure can be tried again.
fn seed() -> u64 {
    let given =
        std::env::var("FERROCE_SEED").ok().map(|text| text.parse().expect("FERROCE_SEED is a number"));
    let seed = given.unwrap_or_else(rand::random);
    println!("FERROCE_SEED={seed}");
    seed
}

/// The other processes may be in any call at that moment.
#[test]
fn killed_at_any_time() {
    let test = "killed_at_any_time";
    work(|job| {
        let at = job.alloc(64 * 4096, &Placement::Cyclic { block: 4096, first: 0 }).unwrap().cast::<u64>();
        if job.rank() == 2 {
            std::fs::write(std::env::var(JOINED).unwrap(), "").unwrap();
        }
        for round in 0.. {
            job.lock(round % 3).unwrap();
            // SAFETY: shared memory; each lock has pages of its own.
            unsafe { at.add((round as usize * 7 % 20 * 3 + round as usize % 3) * 512).write_volatile(1) };
            job.unlock(round % 3).unwrap();
            if round % 5 == 0 {
                job.barrier().unwrap();
            }
        }
    });
    let mut random = SmallRng::seed_from_u64(seed());
    let joined = std::env::temp_dir().join(format!("ferroce-dsm-joined-{}", std::process::id()));
    let file = (JOINED, joined.to_str().expect("a plain name"));
    let [by_itself, hosts] = TWO_ON_EACH_HOST;
    let alone = TransportKind::ALL.map(|transport| (transport, vec![file]));
    let colocated = (TransportKind::Rdma, vec![file, by_itself, hosts]);
    for (transport, variables) in alone.into_iter().chain([colocated]).flat_map(|kind| vec![kind; MOMENTS]) {
        let moment = Duration::from_micros(random.random_range(0..200_000));
        let ended = Plan { test, size: 4, transport, variables: &variables }.run_with(|children| {
            // Only the launcher detects the death of a process that has not joined.
            while !joined.exists() && children[2].try_wait().unwrap().is_none() {
                std::thread::yield_now();
            }
            std::thread::sleep(moment);
            children[2].kill().unwrap();
        });
        std::fs::remove_file(&joined).expect("it joined");
        let when = format!("over {}, {moment:?} after it joined", transport.name());
        let down = Departure::Down { rank: 2, why: "its connection closed".into() };
        assert_eq!(ended.departure, down, "{when}: {:?}", ended.errors);
        for rank in [0, 1, 3] {
            assert!(
                ended.errors[rank].contains("process 2"),
                "{when}, process {rank}: {}",
                ended.errors[rank]
            );
            assert!(!ended.statuses[rank].success(), "{when}");
        }
    }
}

/// A process that is cut off closes no connection; one that is stopped behaves the same.
#[test]
fn a_stopped_process_is_reported() {
    let test = "a_stopped_process_is_reported";
    work(|job| {
        job.barrier().unwrap();
        if job.rank() == 1 {
            // SAFETY: a signal to this process itself.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
        job.barrier().unwrap();
    });
    let transport = TransportKind::Udp;
    let ended = Plan { test, size: 3, transport, variables: &[] }.run_with(|children| {
        // The test ends it after the others have detected that it is silent.
        for rank in [0, 2] {
            children[rank].wait().unwrap();
        }
        children[1].kill().unwrap();
    });
    assert_eq!(ended.departure, Departure::Down { rank: 1, why: "it has been silent for 5 seconds".into() });
    for rank in [0, 2] {
        let sentence = "process 1 of the job is down: it has been silent for 5 seconds";
        assert!(ended.errors[rank].contains(sentence), "process {rank}: {}", ended.errors[rank]);
    }
}
