//! Both mechanisms that catch page faults, with several threads that fault concurrently.

mod support;

use ferroce_dsm::{Job, PAGE, Placement, TransportKind};
use support::{Plan, work};

const PAGES: usize = 300;
const WORDS: usize = PAGE / 8;
const THREADS: usize = 3;
const ROUNDS: u64 = 4;

/// Every thread of every process writes its own words of all pages, and reads those of all.
fn body(job: &Job) {
    let array = job.shared::<u64>(PAGES * WORDS, &Placement::Rotating).expect("an allocation");
    let each = |thread: usize, rank: u32, page: usize| page * WORDS + thread * 16 + rank as usize;
    for round in 1..=ROUNDS {
        job.barrier().expect("a barrier");
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let array = &array;
                scope.spawn(move || {
                    (0..PAGES)
                        .for_each(|page| array.set(each(thread, job.rank(), page), round + page as u64));
                });
            }
        });
        job.barrier().expect("a barrier");
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                let array = &array;
                scope.spawn(move || {
                    for page in 0..PAGES {
                        for at in
                            (0..THREADS).flat_map(|t| (0..job.size()).map(move |rank| each(t, rank, page)))
                        {
                            assert_eq!(array.get(at), round + page as u64, "page {page}, word {at}");
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn threads_that_fault_concurrently() {
    work(|job| {
        let kind = std::env::var("FERROCE_DSM_FAULTS").expect("set below");
        assert_eq!(job.faults(), if kind == "signal" { "SIGSEGV" } else { "userfaultfd" });
        body(job);
    });
    for kind in ["signal", "userfaultfd"] {
        let variables = [("FERROCE_DSM_FAULTS", kind), ("FERROCE_DSM_CACHE_PAGES", "64")];
        let test = "threads_that_fault_concurrently";
        let plan = Plan { test, size: 2, transport: TransportKind::Rdma, variables: &variables };
        let ended = plan.run_with(|_| ());
        let errors = ended.errors.join("---\n");
        if kind == "userfaultfd" && errors.contains("call: \"userfaultfd\"") {
            println!("SKIPPED: this system refuses userfaultfd: {errors}");
            return;
        }
        assert!(ended.statuses.iter().all(|status| status.success()), "{kind}: {errors}");
    }
}

/// From now on the system call fails as it does where an administrator forbids it.
#[cfg(target_arch = "x86_64")]
fn forbid_userfaultfd() {
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut filter = [
        // The number of the call is the first word of the filter's input.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_userfaultfd as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, refuse),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter lives during both calls; it changes only the result of one system call.
    let rc = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

#[cfg(target_arch = "x86_64")]
#[test]
fn without_userfaultfd_signals_are_used() {
    if support::is_worker() {
        forbid_userfaultfd();
    }
    work(|job| {
        let story = job.faults();
        assert!(story.starts_with("SIGSEGV, since userfaultfd is refused"), "{story}");
        body(job);
    });
    let test = "without_userfaultfd_signals_are_used";
    Plan { test, size: 2, transport: TransportKind::Rdma, variables: &[] }.run();
}
