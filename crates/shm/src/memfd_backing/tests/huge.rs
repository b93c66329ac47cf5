//! Huge pages, private and of the kernel's own making.

use super::*;

/// One test takes all huge pages there are.
static POOL: ferroce_os::lock::Mutex<()> = ferroce_os::lock::Mutex::new(());

/// Private huge pages of the usual length, numbered words in them.
fn huge(pages: usize) -> Option<(Memory, usize)> {
    let how = PRIVATE | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB | libc::MAP_FIXED;
    let page = 2 << 20;
    let memory = apart(pages * page, page);
    match map(memory.0.start, memory.0.len(), RW, how, -1, 0) {
        Ok(_) => {
            memory.fill(3);
            Some((memory, page))
        }
        Err(errno) => {
            println!(
                "SKIPPED: no {pages} huge pages (errno {errno}); as root: echo 64 > /proc/sys/vm/nr_hugepages"
            );
            None
        }
    }
}

/// Room for pages of that length, with some that nothing can touch around it.
fn apart(len: usize, page: usize) -> Memory {
    let around = map(0, len + 2 * page, libc::PROT_NONE, PRIVATE, -1, 0).expect("memory");
    let start = (around + PAGE).next_multiple_of(page);
    Memory(start..start + len)
}

fn is_huge(memory: &Memory) -> bool {
    let found = vma::mappings(&memory.0).expect("maps");
    vma::covers(&found, &memory.0) && found.iter().all(Vma::is_huge)
}

#[test]
fn huge_pages_move_there_and_back() {
    let _pool = POOL.lock();
    for means in ALL_MEANS {
        let Some((memory, page)) = huge(3) else { return };
        assert!(is_huge(&memory));
        let backed = MemfdPages::move_in_with(memory.0.start, memory.0.len(), means).expect("in a memfd");
        assert_eq!((backed.start(), backed.len()), (memory.0.start, 3 * page));
        assert!(memory.holds(3) && !is_huge(&memory));
        assert!(huge_pages().iter().any(|known| *known == (backed.device(), page)), "a file of huge pages");
        memory.fill(5);
        drop(backed);
        assert!(memory.holds(5) && is_huge(&memory));
    }
}

#[test]
fn only_whole_huge_pages_move() {
    let _pool = POOL.lock();
    let Some((memory, page)) = huge(4) else { return };
    let (addr, len) = (memory.0.start + PAGE, memory.0.len() - 2 * PAGE);
    let backed = MemfdPages::move_in(addr, len).expect("in a memfd");
    assert_eq!((backed.start(), backed.len()), (memory.0.start + page, 2 * page));
    let inner = MemfdPages::move_in(memory.0.start + page, page).expect("inner");
    assert!(Arc::ptr_eq(&backed, &inner));
    assert_eq!(MemfdPages::move_in(memory.0.start, page - PAGE).err(), Some(WhyNot::NoWholePage));
    drop((backed, inner));
    assert!(memory.holds(3) && is_huge(&memory));
}

#[test]
fn no_store_to_huge_pages_is_lost() {
    let _pool = POOL.lock();
    for means in [Means::Everyone, Means::Threads].into_iter().filter(|means| is_allowed(*means)) {
        let Some((memory, _)) = huge(2) else { return };
        memory.words().for_each(|word| word.store(0, Ordering::Relaxed));
        hammer(&memory, || {
            for _ in 0..30 {
                let backed =
                    MemfdPages::move_in_with(memory.0.start, memory.0.len(), means).expect("in a memfd");
                assert!(backed.held_stores_back());
            }
        });
        assert!(is_huge(&memory));
    }
}

/// Without a spare page they stay where they are, and so do the program's.
#[test]
fn without_spare_huge_pages_nothing_moves() {
    let _pool = POOL.lock();
    let Some((memory, _)) = huge(1) else { return };
    let mut spare = Vec::new();
    while let Ok(start) =
        map(0, 2 << 20, RW, PRIVATE | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB | libc::MAP_POPULATE, -1, 0)
    {
        spare.push(start);
    }
    let backed = MemfdPages::move_in(memory.0.start, memory.0.len());
    for start in spare {
        // SAFETY: pages that this test just mapped.
        unsafe { libc::munmap(start as *mut _, 2 << 20) };
    }
    // Other tests may have given pages back meanwhile.
    assert!(matches!(backed, Ok(_) | Err(WhyNot::Refused(_))), "{backed:?}");
    drop(backed);
    assert!(memory.holds(3));
}

/// Huge pages that the kernel makes of ordinary memory by itself.
#[test]
fn transparent_huge_pages_move_there_and_back() {
    let (len, page) = (8 << 20, 2 << 20);
    let memory = apart(len, page);
    memory.map_anew(0..len / PAGE, PRIVATE);
    let start = memory.0.start;
    // SAFETY: asks for huge pages in memory of this test.
    if unsafe { libc::madvise(start as *mut _, len, libc::MADV_HUGEPAGE) } != 0 {
        println!("SKIPPED: this kernel makes no huge pages of ordinary memory");
        return;
    }
    for means in ALL_MEANS {
        memory.fill(3);
        let backed = MemfdPages::move_in_with(start + PAGE, len - 2 * PAGE, means).expect("in a memfd");
        assert!(memory.holds(3));
        let second = second_mapping(&backed);
        assert_eq!(word(second.0.start).load(Ordering::Relaxed), 3 * PAGE as u64 / 8);
        memory.fill(7);
        drop(backed);
        assert!(memory.holds(7) && memory.is_private());
    }
}
