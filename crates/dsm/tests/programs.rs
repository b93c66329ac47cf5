//! Small programs, each on every transport and with several numbers of processes.

#[allow(dead_code)]
mod support;

use ferroce_dsm::{Job, Placement, TransportKind};
use support::{Plan, TWO_ON_EACH_HOST, work};

const SIZES: [u32; 4] = [1, 2, 4, 8];
const TRANSPORTS: [TransportKind; 4] = TransportKind::ALL;

fn everywhere(test: &str, body: fn(&Job)) {
    work(body);
    for transport in TRANSPORTS {
        for size in SIZES {
            Plan { test, size, transport, variables: &[] }.run();
        }
    }
    for size in [3, 4] {
        Plan { test, size, transport: TransportKind::Rdma, variables: &TWO_ON_EACH_HOST }.run();
    }
}

/// `count` words of shared memory.
fn words(job: &Job, count: usize, placement: &Placement) -> &'static mut [u64] {
    let at = job.alloc(count * 8, placement).unwrap();
    // SAFETY: fresh shared memory of that size, whose other users are excluded by locks and barriers.
    unsafe { std::slice::from_raw_parts_mut(at.cast(), count) }
}

#[test]
fn a_counter_under_a_lock() {
    everywhere("a_counter_under_a_lock", |job| {
        let counter = words(job, 1, &Placement::Rotating);
        for _ in 0..100 {
            job.lock(7).unwrap();
            counter[0] += 1;
            job.unlock(7).unwrap();
        }
        job.barrier().unwrap();
        assert_eq!(counter[0], 100 * u64::from(job.size()));
    });
}

#[test]
fn barriers_make_writes_visible() {
    everywhere("barriers_make_writes_visible", |job| {
        let (rank, size) = (job.rank() as usize, job.size() as usize);
        let count = 4096;
        let array = words(job, count, &Placement::Cyclic { block: 4096, first: 0 });
        assert!(array.iter().all(|&word| word == 0));
        job.barrier().unwrap();
        for round in 1..=5u64 {
            // Interleaved words: every page has every process as a writer.
            for at in (rank..count).step_by(size) {
                array[at] = round * at as u64;
            }
            job.barrier().unwrap();
            let wrong = (0..count).find(|&at| array[at] != round * at as u64);
            assert_eq!(wrong, None, "round {round}");
            job.barrier().unwrap();
        }
    });
}

#[test]
fn messages_and_flags() {
    everywhere("messages_and_flags", |job| {
        let (rank, size) = (job.rank(), job.size());
        let next = (rank + 1) % size;
        let before = (rank + size - 1) % size;
        // More than any ring holds, from all processes at the same time.
        let long: Vec<u8> = (0..1 << 20).map(|at| (at as u8).wrapping_mul(rank as u8 + 1)).collect();
        job.send(next, 1, &long).unwrap();
        job.send(next, 2, b"short").unwrap();
        job.send(next, 3, b"").unwrap();
        let mut short = [0; 16];
        assert_eq!(job.recv(None, Some(2), &mut short).unwrap(), (5, before, 2));
        assert_eq!(&short[..5], b"short");
        let mut into = vec![0; 1 << 20];
        assert_eq!(job.recv(Some(before), None, &mut into).unwrap(), (1 << 20, before, 1));
        assert!(into.iter().enumerate().all(|(at, &b)| b == (at as u8).wrapping_mul(before as u8 + 1)));
        assert_eq!(job.recv(None, None, &mut into).unwrap(), (0, before, 3));
        if rank == 0 {
            job.set_flag(3).unwrap();
        }
        job.wait_flag(3).unwrap();
        job.wait_all().unwrap();
        if rank == size - 1 {
            job.reset_flag(3).unwrap();
            job.set_flag(4).unwrap();
        }
        job.wait_flag(4).unwrap();
    });
}

#[test]
fn freed_memory_is_zeroed() {
    everywhere("freed_memory_is_zeroed", |job| {
        let first = words(job, 5000, &Placement::Cyclic { block: 8192, first: 0 });
        if job.rank() == 0 {
            first.fill(7);
        }
        job.barrier().unwrap();
        assert!(first.iter().all(|&word| word == 7));
        job.free(first.as_mut_ptr().cast()).unwrap();
        let second = words(job, 2000, &Placement::On(job.size() - 1));
        assert_eq!(first.as_ptr(), second.as_ptr());
        assert!(second.iter().all(|&word| word == 0));
        job.barrier().unwrap();
        let mine = job.rank() as usize;
        job.put(second[mine..].as_mut_ptr().cast(), &42u64.to_ne_bytes()).unwrap();
        job.barrier().unwrap();
        let mut all = vec![0; 8 * job.size() as usize];
        job.get(&mut all, second.as_ptr().cast()).unwrap();
        assert!(all.chunks(8).all(|word| word == 42u64.to_ne_bytes()));
    });
}

#[test]
fn invalid_calls_are_refused() {
    everywhere("invalid_calls_are_refused", |job| {
        let refused = |result: Result<(), ferroce_dsm::Error>| result.unwrap_err().to_string();
        assert_eq!(refused(job.unlock(1)), "lock 1 cannot be released: this thread holds no lock");
        job.lock(1).unwrap();
        assert_eq!(refused(job.lock(1)), "this thread already holds lock 1");
        assert_eq!(
            refused(job.barrier()),
            "a barrier inside the critical section of lock 1 would deadlock; release the lock first"
        );
        assert_eq!(
            refused(job.clone().leave()),
            "this process leaves the job while it holds lock 1; release the lock first"
        );
        job.lock(2).unwrap();
        assert!(refused(job.unlock(1)).contains("acquired lock 2 after it"));
        job.unlock(2).unwrap();
        job.unlock(1).unwrap();
        assert_eq!(refused(job.lock(4096)), "lock 4096 does not exist: there are 4096, numbered from 0");
        assert!(job.send(job.size(), 0, b"").is_err());
        assert!(job.free(std::ptr::dangling_mut()).is_err());
        assert!(job.alloc(usize::MAX, &Placement::Rotating).is_err());
        assert!(job.get(&mut [0], std::ptr::dangling()).is_err());
        let page = job.alloc(4096, &Placement::On(0)).unwrap();
        let end = page.wrapping_add(4090);
        let sentence = format!("100 bytes at {end:p} exceed the allocations of the shared heap");
        assert_eq!(refused(job.get(&mut [0; 100], end)), sentence);
        assert_eq!(refused(job.put(end, &[0; 100])), sentence);
        job.put(end, &[0; 6]).unwrap();
    });
}

/// The largest that this process has ever been, in KiB.
fn most_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_refused_allocation_takes_no_memory() {
    let test = "a_refused_allocation_takes_no_memory";
    work(|job| {
        let cyclic = Placement::Cyclic { block: 4096, first: 0 };
        let before = most_memory();
        // The first would be a list of 256 MiB; it comes first, so that a mistake here ends before the others are tried.
        for len in [64 << 30, 16 << 40, usize::MAX - 4095, usize::MAX] {
            let why = job.alloc(len, &cyclic).unwrap_err().to_string();
            assert!(why.contains("free bytes of the shared heap"), "{why}");
            let more = most_memory() - before;
            assert!(more < 32 << 10, "{len} bytes that were refused took {more} KiB");
        }
        // A call that is refused for its placement has allocated nothing.
        assert!(job.alloc(16 << 20, &Placement::On(job.size())).is_err());
        job.alloc(16 << 20, &cyclic).unwrap();
    });
    let variables = &[("FERROCE_DSM_HEAP", "16M")];
    for transport in [TransportKind::Local, TransportKind::Rdma] {
        Plan { test, size: 2, transport, variables }.run();
    }
}

#[test]
fn typed_arrays_and_guards() {
    everywhere("typed_arrays_and_guards", |job| {
        let (rank, size) = (job.rank() as usize, job.size() as usize);
        let array = job.shared::<f64>(3000, &Placement::Cyclic { block: 4096, first: 0 }).unwrap();
        let sum = job.shared::<f64>(1, &Placement::Random).unwrap();
        let own = array.len() * rank / size..array.len() * (rank + 1) / size;
        let values: Vec<f64> = own.clone().map(|at| at as f64).collect();
        array.write(own.start, &values).unwrap();
        {
            let _outer = job.guard(10).unwrap();
            let _inner = job.guard(11).unwrap();
            sum.update(0, |sum| sum + values.iter().sum::<f64>());
        }
        job.barrier().unwrap();
        assert_eq!(sum.get(0), (0..3000).sum::<i32>() as f64);
        let mut all = vec![0.0; 3000];
        array.read(0, &mut all).unwrap();
        assert!(all.iter().enumerate().all(|(at, value)| *value == at as f64));
        job.free_shared(array).unwrap();
    });
}
