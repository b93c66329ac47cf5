//! Posting and polling allocate no memory, whatever the peer does. Programs rely on it: a signal handler that
//! interrupts a verb may allocate, and would wait for itself if the verb were allocating. (perftest's alarm handler does.)

mod support;

use ferroce::{RemoteRegion, WcStatus, wr};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::time::Instant;
use support::process::{Peer, parent};
use support::{MAX_WAIT, Pair, Side, V4, watched};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn count_one() {
    // A thread that ends may still free and allocate, which is not counted.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: hands every call to the system allocator unchanged; the counter has no part in it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count_one();
        // SAFETY: as above.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count_one();
        // SAFETY: as above.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of allocations of this thread during `work`.
fn counted(work: impl Fn()) -> u64 {
    let before = COUNT.get();
    work();
    COUNT.get() - before
}

/// Number of runs of `work` in which this thread used the allocator. A run in which a device found new or ended processes does not count,
/// because the device then updates the steering of packets.
fn stretches(count: usize, devices: &[&ferroce::Device], work: impl Fn()) -> usize {
    let repairs = || -> u64 { devices.iter().map(|device| device.counters().link.repairs).sum() };
    let stretch = || {
        let before = repairs();
        let allocations = counted(&work);
        allocations > 0 && repairs() == before
    };
    (0..count).filter(|_| stretch()).count()
}

/// Long enough for a message to be copied once, and short enough for one to be copied twice.
const LEN: usize = 40_000;
const SHORT: u64 = 10_000;

/// The next completion, which must be a success. Polls, as programs do that cannot sleep.
fn done(cq: &ferroce::Cq) {
    let start = Instant::now();
    let completion = loop {
        match cq.try_next().unwrap() {
            Some(completion) => break completion,
            None => assert!(start.elapsed() < MAX_WAIT, "watchdog: no completion"),
        }
    };
    assert_eq!(completion.status, WcStatus::Success);
}

/// Every operation once, over a connected pair.
fn round(pair: &Pair<ferroce::Rc>, regions: &[ferroce::Region; 2], remote: RemoteRegion) {
    let [ours, theirs] = regions;
    let (whole, word) = (ours.sge(..).unwrap(), ours.sge(..8).unwrap());
    for message in [whole, ours.sge(..SHORT).unwrap()] {
        pair.b.qp.post_recv(&[wr::recv(1, &[theirs.sge(..).unwrap()])]).unwrap();
        pair.a.qp.send_from(1, &[message]).unwrap();
        done(&pair.a.cq);
        done(&pair.b.cq);
    }
    pair.a.qp.write(2, &[whole], remote).unwrap();
    done(&pair.a.cq);
    pair.a.qp.read(3, &[whole], remote).unwrap();
    done(&pair.a.cq);
    pair.a.qp.fetch_add(4, word, remote, 1).unwrap();
    done(&pair.a.cq);
    pair.a.qp.write_inline(5, b"the last word", remote).unwrap();
    done(&pair.a.cq);
}

#[test]
fn operations_allocate_nothing() {
    watched(|| {
        let pair = Pair::rc(V4);
        let regions = [pair.a.open_region(LEN), pair.b.open_region(LEN)];
        let remote = regions[1].remote();
        let rounds = |count| (0..count).for_each(|_| round(&pair, &regions, remote));
        // Until every queue has had its size.
        rounds(200);
        let asked = stretches(40, &[&pair.a.device, &pair.b.device], || rounds(50));
        assert_eq!(asked, 0, "of 40 stretches of 50 rounds");
    });
}

/// Datagrams to a process that reads none of them: first the ring is full, then what waits for it.
#[test]
fn a_flood_of_datagrams_allocates_nothing() {
    let make = || Side::new(|pd, cq| pd.ud(cq).address(V4), |qp| qp);
    if let Some(mut socket) = parent() {
        let side = make();
        socket.write_all(&side.endpoint().to_bytes()).unwrap();
        return socket.read_exact(&mut [0]).unwrap();
    }
    watched(move || {
        let mut peer = Peer::start("a_flood_of_datagrams_allocates_nothing", V4);
        let mut bytes = [0; ferroce::Endpoint::ENCODED_LEN];
        peer.socket.read_exact(&mut bytes).unwrap();
        let to = ferroce::Endpoint::from_bytes(&bytes).unwrap();
        let side = make();
        let way = side.pd.address_handle(&to, side.device.gid_index(V4).unwrap()).unwrap();
        let region = side.open_region(1024);
        let flood = |count| {
            for number in 0..count {
                side.qp.send_from(number, &[region.sge(..).unwrap()], &way).unwrap();
                done(&side.cq);
            }
        };
        flood(1_000);
        // SAFETY: our own child, which is not waited for yet.
        let signal = |signal| assert_eq!(unsafe { libc::kill(peer.id() as libc::pid_t, signal) }, 0);
        signal(libc::SIGSTOP);
        // Until it was woken once, in vain.
        flood(1_000);
        let asked = stretches(60, &[&side.device], || flood(500));
        assert_eq!(asked, 0, "of 60 stretches: {:?}", side.device.counters().link);
        let link = side.device.counters().link;
        let has_fabric = !std::env::var("FERROCE_LINK").is_ok_and(|link| link == "udp");
        assert_eq!(link.local_waited > 1_000 && link.local_lost > 1_000, has_fabric, "{link:?}");
        signal(libc::SIGCONT);
        peer.socket.write_all(b".").unwrap();
        peer.finish();
    });
}
