//! Memory of a GPU, with a fake CUDA driver that needs no GPU.

#[path = "support/fake_gpu.rs"]
mod fake_gpu;
mod support;

use fake_gpu::Driver;
use ferroce::{Access, Pd, Rc, Refusal, WcStatus, wr};
use std::ffi::c_int;
use std::sync::Arc;
use support::{Pair, V4, watched};

const LEN: usize = 100_000;

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + seed) % 251) as u8).collect()
}

/// One test, because the order matters: before the driver is loaded, between reads of its counters, and after.
#[test]
fn memory_of_a_gpu() {
    watched(|| {
        let pair = Pair::rc(V4);
        // SAFETY: the address is refused.
        let refused = unsafe { pair.b.pd.register_gpu(4096, LEN, Access::REMOTE_READ, Arc::new(())) };
        assert!(refused.unwrap_err().to_string().contains("has not loaded the CUDA driver"));
        let Some(driver) = Driver::load() else { return };
        a_gpu_that_cannot_be_opened_is_left_as_it_was(&driver, &pair.b.pd);
        peers_and_local_work_requests_reach_it(&driver, pair);
        a_message_takes_few_copies_and_is_there_when_it_completes(&driver);
        a_broken_message_is_not_copied_after_its_queue_pair_stopped(&driver);
    });
}

/// Runs first: later the GPU is open.
fn a_gpu_that_cannot_be_opened_is_left_as_it_was(driver: &Driver, pd: &Pd) {
    // SAFETY: the types that fake_cuda.c gives them.
    let fail: extern "C" fn(c_int) = unsafe { std::mem::transmute(driver.function(c"fake_fail_streams")) };
    // SAFETY: as above.
    let contexts: extern "C" fn() -> c_int =
        unsafe { std::mem::transmute(driver.function(c"fake_contexts")) };
    let start = driver.allocate(LEN);
    fail(1);
    // SAFETY: it stays allocated until the process ends.
    let refused = unsafe { pd.register_gpu(start, LEN, Access::REMOTE_READ, Arc::new(())) };
    fail(0);
    assert!(refused.is_err());
    assert_eq!(contexts(), 0, "primary contexts that are still retained");
}

fn peers_and_local_work_requests_reach_it(driver: &Driver, Pair { a, b }: Pair<Rc>) {
    // SAFETY: the address is refused, or it stays allocated until the process ends.
    let register =
        |start| unsafe { b.pd.register_gpu(start, LEN, Access::LOCAL_WRITE | Access::REMOTE, Arc::new(())) };
    let refused = |start| match register(start).unwrap_err().refusal() {
        Some(Refusal::Invalid { attribute: "addr", why }) => *why,
        other => panic!("{other:?}"),
    };
    let local = a.open_region(LEN);
    assert_eq!(refused(local.remote().addr), "is not a CUDA device pointer");
    let start = driver.allocate(LEN);
    let region = register(start).unwrap();
    assert_eq!((region.len(), region.remote().addr), (LEN, start));
    let bytes: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
    local.write(0, &bytes).unwrap();
    a.qp.write(1, &[local.sge(..).unwrap()], region.remote()).unwrap();
    a.success();
    assert!(driver.get(start, LEN) == bytes);
    driver.put(start, &[7; LEN]);
    a.qp.read(2, &[local.sge(..).unwrap()], region.remote()).unwrap();
    a.success();
    assert!(local.to_vec() == [7; LEN]);
    a.qp.fetch_add(3, local.sge(..8).unwrap(), region.remote(), 1).unwrap();
    a.success();
    assert_eq!(driver.get(start, 8), [8, 7, 7, 7, 7, 7, 7, 7]);
    // The region is the source of a message. After its deregistration, the peer's access is refused.
    let received = a.qp.recv(a.pd.buffer(LEN).unwrap()).unwrap();
    b.qp.send_from(4, &[region.sge(..).unwrap()]).unwrap();
    assert!(received.wait().unwrap().buffer[..] == driver.get(start, LEN));
    b.success();
    let remote = region.remote();
    drop(region);
    a.qp.read(5, &[local.sge(..8).unwrap()], remote).unwrap();
    a.status(WcStatus::RemAccessErr);
}

/// The fake driver copies only when a program waits for a copy. So each check of the bytes also shows that the copy precedes the completion.
fn a_message_takes_few_copies_and_is_there_when_it_completes(driver: &Driver) {
    const MIB: usize = 1 << 20;
    let Pair { a, b } = Pair::rc(V4);
    let [from, to] = [MIB, MIB].map(|len| driver.allocate(len));
    let (near, far) = (driver.register(&a.pd, from, MIB), driver.register(&b.pd, to, MIB));
    let (source, target) = ([near.sge(..).unwrap()], [far.sge(..).unwrap()]);
    let round = |seed: usize| {
        let [written, read, sent] = [0, 50, 100].map(|more| pattern(MIB, seed + more));
        driver.put(from, &written);
        let write = driver.counts_of(|| {
            a.qp.write(1, &source, far.remote()).unwrap();
            a.success();
            assert!(driver.get(to, MIB) == written);
        });
        driver.put(to, &read);
        let read = driver.counts_of(|| {
            a.qp.read(2, &source, far.remote()).unwrap();
            a.success();
            assert!(driver.get(from, MIB) == read);
        });
        driver.put(from, &sent);
        b.qp.post_recv(&[wr::recv(3, &target)]).unwrap();
        let send = driver.counts_of(|| {
            a.qp.send_from(4, &source).unwrap();
            assert_eq!(b.success().wr_id, 3);
            assert!(driver.get(to, MIB) == sent);
            a.success();
        });
        [write, read, send]
    };
    // Two pieces from the GPU, two to it, and a wait for each before the last; more for buffers that were just used. The requester divides a READ into
    // sixteen, which are copied together if they arrive together. A packet that the kernel drops is copied alone.
    let few = [6, 20, 6];
    let is_few = |(&[copies, waits], most): (&[i64; 2], i64)| copies <= most && waits <= most;
    let rounds: Vec<_> = (0..20).map(round).collect();
    assert!(rounds.iter().any(|counts| counts.iter().zip(few).all(is_few)), "[copies, waits]: {rounds:?}");
}

/// A queue pair that stops in the middle of a message leaves no pending copy: the memory belongs to the program again.
fn a_broken_message_is_not_copied_after_its_queue_pair_stopped(driver: &Driver) {
    let Pair { a, b } = Pair::rc(V4);
    let start = driver.allocate(LEN);
    let region = driver.register(&b.pd, start, LEN);
    let (whole, gone) = (a.open_region(LEN / 2), a.open_region(LEN / 2));
    let sges = [whole.sge(..).unwrap(), gone.sge(..).unwrap()];
    drop(gone);
    a.qp.write(1, &sges, region.remote()).unwrap();
    a.status(WcStatus::LocProtErr);
    drop(b.qp);
    driver.put(start, &[9; LEN]);
    drop(region);
    assert!(driver.get(start, LEN) == [9; LEN]);
}
