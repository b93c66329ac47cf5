//! Memory of a GPU between two processes of one host, with a fake CUDA driver that needs no GPU: one process opens the memory of the other, and a GPU
//! copies. With `FERROCE_LINK=udp` packets carry everything.

#[path = "support/fake_gpu.rs"]
mod fake_gpu;
mod support;

use fake_gpu::Driver;
use ferroce::{Access, GpuRegion, Rc, RemoteRegion, SendWr, Sge, WcStatus, wr};
use std::io::{Read, Write};
use std::net::TcpStream;
use support::process::{Peer, parent};
use support::{Side, V4, pattern, watched};

/// Long enough for a rendezvous send.
const LEN: usize = 100_000;

fn has_fabric() -> bool {
    !std::env::var("FERROCE_LINK").is_ok_and(|link| link == "udp")
}

fn side(socket: &mut TcpStream) -> Side<Rc> {
    let side = Side::new(|pd, cq| pd.rc(cq).address(V4), |qp| qp.timeout(12).retries(5));
    side.qp.connect_over(socket).unwrap();
    side
}

/// What the child does at the parent's request: a letter and a seed. It answers with a byte, or with a region.
fn serve(driver: &Driver, mut socket: TcpStream) {
    let side = side(&mut socket);
    let mut regions: Vec<(u64, GpuRegion)> = Vec::new();
    let direct = || side.device.counters().link.direct_gpu;
    let mut before = 0;
    let mut request = [0; 2];
    // The parent ends by closing the socket, or kills this process.
    while socket.read_exact(&mut request).is_ok() {
        let [what, seed] = request;
        let bytes = pattern(seed.into(), LEN);
        let newest = regions.last();
        let answer = match what {
            b'n' => {
                driver.fail_ipc(seed == Exported::No as u8, false);
                driver.allocate_vmm(seed == Exported::ByDescriptor as u8);
                let start = driver.allocate(LEN);
                let region = driver.register(&side.pd, start, LEN);
                socket.write_all(&region.remote().to_bytes()).unwrap();
                regions.push((start, region));
                continue;
            }
            // Other memory at the same address, and its region. The export has the same descriptor number.
            b'o' => {
                let (start, region) = regions.pop().unwrap();
                drop(region);
                driver.replace(start);
                let region = driver.register(&side.pd, start, LEN);
                socket.write_all(&region.remote().to_bytes()).unwrap();
                regions.push((start, region));
                continue;
            }
            b'f' => {
                driver.put(newest.unwrap().0, &bytes);
                true
            }
            b'c' => driver.get(newest.unwrap().0, LEN) == bytes,
            b'd' => {
                let (start, region) = regions.pop().unwrap();
                drop(region);
                driver.free(start);
                true
            }
            b's' => {
                let (start, region) = newest.unwrap();
                driver.put(*start, &bytes);
                side.qp.send_from(1, &[region.sge(..).unwrap()]).unwrap();
                side.success();
                true
            }
            // A message from memory of the host.
            b'h' => {
                let (region, sent) = (side.open_region(LEN), || side.device.counters().link.rendezvous_sends);
                let before = sent();
                region.write(0, &bytes).unwrap();
                side.qp.send_from(1, &[region.sge(..).unwrap()]).unwrap();
                side.success();
                sent() - before == u64::from(has_fabric())
            }
            b'r' => {
                before = direct();
                side.qp.post_recv(&[wr::recv(2, &[newest.unwrap().1.sge(..).unwrap()])]).unwrap();
                true
            }
            // The message is received, and was copied in one step.
            _ => {
                side.success();
                direct() - before == u64::from(has_fabric())
            }
        };
        socket.write_all(&[answer.into()]).unwrap();
    }
}

/// How others can open memory.
#[derive(Clone, Copy, PartialEq)]
enum Exported {
    ByHandle,
    /// As memory of `cuMemCreate`.
    ByDescriptor,
    No,
}

/// The parent's view of the child.
struct Owner(Peer);

impl Owner {
    /// Requests something that must succeed.
    #[track_caller]
    fn ask(&mut self, what: u8, seed: u8) {
        let mut answer = [0];
        self.0.socket.write_all(&[what, seed]).unwrap();
        self.0.socket.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [1], "{:?} {seed}", char::from(what));
    }

    /// A new region of the owner.
    fn region(&mut self, exported: Exported) -> RemoteRegion {
        self.region_by(b'n', exported as u8)
    }

    fn region_by(&mut self, what: u8, seed: u8) -> RemoteRegion {
        let mut bytes = [0; RemoteRegion::ENCODED_LEN];
        self.0.socket.write_all(&[what, seed]).unwrap();
        self.0.socket.read_exact(&mut bytes).unwrap();
        RemoteRegion::from_bytes(&bytes).unwrap()
    }
}

/// This side of the tests.
struct Here<'a> {
    driver: &'a Driver,
    side: &'a Side<Rc>,
}

impl Here<'_> {
    /// What `work` adds to the copies of the driver, and to the operations that were copied in one step.
    fn copies(&self, work: impl FnOnce()) -> [u64; 2] {
        let direct = || self.side.device.counters().link.direct_gpu;
        let before = direct();
        let [copies, _] = self.driver.counts_of(work);
        [copies as u64, direct() - before]
    }

    /// The same must be so many copies for one operation in one step, if the processes have the same-host fabric.
    #[track_caller]
    fn copied_directly(&self, copies: u64, work: impl FnOnce()) {
        let counted = self.copies(work);
        if has_fabric() {
            assert_eq!(counted, [copies, 1]);
        } else {
            assert_eq!(counted[1], 0);
        }
    }

    fn write(&self, from: &[Sge], to: RemoteRegion) {
        self.side.qp.write(1, from, to).unwrap();
        self.side.success();
    }

    fn read(&self, to: &[Sge], from: RemoteRegion) {
        self.side.qp.read(1, to, from).unwrap();
        self.side.success();
    }
}

#[test]
fn two_processes_share_memory_of_a_gpu() {
    if let Some(socket) = parent() {
        return serve(&Driver::load().expect("the parent has built it too"), socket);
    }
    watched(|| {
        let Some(driver) = Driver::load() else { return };
        let mut owner = Owner(Peer::start("two_processes_share_memory_of_a_gpu", V4));
        let side = side(&mut owner.0.socket);
        let here = Here { driver: &driver, side: &side };
        a_process_without_a_context_on_the_gpu_opens_nothing(&here, &mut owner);
        for (number, exported) in [Exported::ByHandle, Exported::ByDescriptor].into_iter().enumerate() {
            operations_take_one_copy(&here, &mut owner, exported);
            assert_eq!(
                driver.opens()[0],
                if has_fabric() { number as i32 + 1 } else { 0 },
                "each is opened once"
            );
        }
        messages_take_one_copy(&here, &mut owner);
        freed_memory_is_closed(&here, &mut owner);
        new_memory_at_the_address_of_freed_memory_is_opened(&here, &mut owner);
        memory_that_cannot_be_opened_is_copied_through_host_memory(&here, &mut owner);
        regions_of_the_gpu_do_not_keep_host_memory_from_being_moved(&here);
        owner.0.kill();
        let near = driver.register(&side.pd, driver.allocate(LEN), LEN);
        let far = RemoteRegion { addr: 0, len: LEN as u64, rkey: ferroce::RKey(1) };
        side.qp.write(9, &[near.sge(..).unwrap()], far).unwrap();
        side.status(WcStatus::RetryExcErr);
        drop((near, side));
        assert_eq!(driver.opens()[1], 0, "allocations of a dead process that are open");
    });
}

/// Runs first: registration makes a context. Without one, opening would take hundreds of megabytes of the GPU.
fn a_process_without_a_context_on_the_gpu_opens_nothing(here: &Here<'_>, owner: &mut Owner) {
    let far = owner.region(Exported::ByHandle);
    let near = here.side.open_region(LEN);
    near.write(0, &pattern(1, LEN)).unwrap();
    assert_eq!(here.copies(|| here.write(&[near.sge(..).unwrap()], far)), [0, 0]);
    owner.ask(b'c', 1);
    assert_eq!(here.driver.opens(), [0, 0]);
}

/// After many registrations from which no peer fetched, pages of the host are not moved for messages. Memory of a GPU does not count.
fn regions_of_the_gpu_do_not_keep_host_memory_from_being_moved(here: &Here<'_>) {
    let Here { driver, side } = here;
    let start = driver.allocate(LEN);
    for _ in 0..20 {
        drop(driver.register_with(&side.pd, start, LEN, Access::LOCAL_WRITE));
    }
    let moved = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().filter(|line| line.ends_with("/memfd:ferroce (deleted)")).count()
    };
    let before = moved();
    let _region = side.pd.region(1 << 20).register().unwrap();
    assert_eq!(moved() - before, usize::from(has_fabric()));
}

/// Requests that packets carry are all sent before the first ACK.
fn operations_do_not_wait_for_each_other<'s>(
    here: &Here<'_>,
    request: impl Fn(u64) -> SendWr<'s>,
    count: u64,
) {
    let sent = || here.side.device.counters().link.local_tx_packets;
    let (before, requests) = (sent(), (0..count).map(request).collect::<Vec<_>>());
    here.side.qp.post_send(&requests).unwrap();
    assert!(sent() - before >= count, "{} packets", sent() - before);
    for _ in 0..count {
        here.side.success();
    }
}

/// The fake driver copies only when a program waits for a copy. So each check of the bytes also shows that the copy precedes the completion.
fn operations_take_one_copy(here: &Here<'_>, owner: &mut Owner, exported: Exported) {
    let Here { driver, side } = here;
    let start = driver.allocate(LEN);
    let (near, far) = (driver.register(&side.pd, start, LEN), owner.region(exported));
    let on_host = side.open_region(LEN);
    for round in 10..13 {
        driver.put(start, &pattern(round, LEN));
        here.copied_directly(1, || here.write(&[near.sge(..).unwrap()], far));
        owner.ask(b'c', round as u8);
        owner.ask(b'f', 20 + round as u8);
        here.copied_directly(1, || here.read(&[near.sge(..).unwrap()], far));
        assert!(driver.get(start, LEN) == pattern(20 + round, LEN));
    }
    on_host.write(0, &pattern(40, LEN)).unwrap();
    here.copied_directly(1, || here.write(&[on_host.sge(..).unwrap()], far));
    owner.ask(b'c', 40);
    owner.ask(b'f', 41);
    here.copied_directly(1, || here.read(&[on_host.sge(..).unwrap()], far));
    assert!(on_host.to_vec() == pattern(41, LEN));
    // Part of the region, from two entries.
    let bytes = pattern(42, LEN);
    driver.put(start, &bytes);
    on_host.write(0, &bytes).unwrap();
    let (half, cut) = (LEN as u64 / 2, 777);
    here.copied_directly(2, || {
        let sges = [near.sge(cut..half).unwrap(), on_host.sge(half..).unwrap()];
        here.write(&sges, RemoteRegion { addr: far.addr + cut, ..far });
    });
    here.copied_directly(1, || here.write(&[near.sge(..cut).unwrap()], far));
    owner.ask(b'c', 42);
    // The owner executes atomics.
    owner.ask(b'f', 43);
    assert_eq!(
        here.copies(|| {
            side.qp.fetch_add(1, on_host.sge(..8).unwrap(), far, 0).unwrap();
            side.success();
        }),
        [0, 0]
    );
    assert!(on_host.to_vec()[..8] == pattern(43, LEN)[..8]);
    if has_fabric() {
        let old = [on_host.sge(..8).unwrap()];
        operations_do_not_wait_for_each_other(here, |n| wr::fetch_add(n, &old, far, 0), 2);
    }
}

fn messages_take_one_copy(here: &Here<'_>, owner: &mut Owner) {
    let Here { driver, side } = here;
    let start = driver.allocate(LEN);
    let (near, on_host) = (driver.register(&side.pd, start, LEN), side.open_region(LEN));
    for (seed, sge) in [(50, near.sge(..).unwrap()), (51, on_host.sge(..).unwrap())] {
        here.copied_directly(1, || {
            side.qp.post_recv(&[wr::recv(3, &[sge])]).unwrap();
            owner.ask(b's', seed);
            assert_eq!(side.success().byte_len as usize, LEN);
        });
    }
    assert!(driver.get(start, LEN) == pattern(50, LEN));
    assert!(on_host.to_vec() == pattern(51, LEN));
    // The receiver copies.
    let before = side.device.counters().link.rendezvous_sends;
    for (seed, sge) in [(52, near.sge(..).unwrap()), (53, on_host.sge(..).unwrap())] {
        driver.put(start, &pattern(seed, LEN));
        on_host.write(0, &pattern(seed, LEN)).unwrap();
        owner.ask(b'r', 0);
        side.qp.send_from(4, &[sge]).unwrap();
        owner.ask(b'w', 0);
        side.success();
        owner.ask(b'c', seed as u8);
    }
    // A WRITE with immediate data.
    let far = owner.region(Exported::ByHandle);
    driver.put(start, &pattern(54, LEN));
    owner.ask(b'r', 0);
    side.qp.write_imm(4, &[near.sge(..).unwrap()], far, 7).unwrap();
    owner.ask(b'w', 0);
    side.success();
    owner.ask(b'c', 54);
    let sent = side.device.counters().link.rendezvous_sends - before;
    assert_eq!(sent, if has_fabric() { 3 } else { 0 });
}

/// The owner deregisters and frees memory that this process has open.
fn freed_memory_is_closed(here: &Here<'_>, owner: &mut Owner) {
    let Here { driver, side } = here;
    let near = driver.register(&side.pd, driver.allocate(LEN), LEN);
    let sges = [near.sge(..).unwrap()];
    let [mut opened, open] = driver.opens();
    let fabric = i32::from(has_fabric());
    for exported in [Exported::ByHandle, Exported::ByDescriptor, Exported::ByHandle] {
        let gone = owner.region(exported);
        here.copied_directly(1, || here.write(&sges, gone));
        opened += fabric;
        assert_eq!(driver.opens(), [opened, open + fabric], "the one before is closed, this one is open");
        owner.ask(b'd', 0);
    }
}

/// The owner frees memory of `cuMemCreate` that this process has open, and maps other memory at its address.
fn new_memory_at_the_address_of_freed_memory_is_opened(here: &Here<'_>, owner: &mut Owner) {
    let Here { driver, side } = here;
    let start = driver.allocate(LEN);
    let near = driver.register(&side.pd, start, LEN);
    let sges = [near.sge(..).unwrap()];
    let receive = |owner: &mut Owner, seed: u8| {
        side.qp.post_recv(&[wr::recv(6, &sges)]).unwrap();
        owner.ask(b's', seed);
        side.success();
        assert!(driver.get(start, LEN) == pattern(seed.into(), LEN), "message {seed}");
    };
    let write = |owner: &mut Owner, far, seed: u8| {
        driver.put(start, &pattern(seed.into(), LEN));
        here.write(&sges, far);
        owner.ask(b'c', seed);
    };
    let far = owner.region(Exported::ByDescriptor);
    receive(owner, 90);
    write(owner, far, 91);
    let (opened, far) = (driver.opens()[1], owner.region_by(b'o', 0));
    write(owner, far, 92);
    receive(owner, 93);
    assert_eq!(driver.opens()[1], opened, "what was freed is closed");
    owner.region_by(b'o', 0);
    receive(owner, 94);
    owner.ask(b'd', 0);
}

fn memory_that_cannot_be_opened_is_copied_through_host_memory(here: &Here<'_>, owner: &mut Owner) {
    let Here { driver, side } = here;
    let start = driver.allocate(LEN);
    let near = driver.register(&side.pd, start, LEN);
    let sges = [near.sge(..).unwrap()];
    let staged = || side.device.counters().link.staged_gpu;
    for (round, exported) in [(60, Exported::No), (70, Exported::ByHandle), (80, Exported::ByDescriptor)] {
        driver.fail_ipc(false, exported != Exported::No);
        let (far, [opened, _], before) = (owner.region(exported), driver.opens(), staged());
        driver.put(start, &pattern(round, LEN));
        assert_eq!(here.copies(|| here.write(&sges, far))[1], 0);
        owner.ask(b'c', round as u8);
        owner.ask(b'f', 1 + round as u8);
        assert_eq!(here.copies(|| here.read(&sges, far))[1], 0);
        assert!(driver.get(start, LEN) == pattern(1 + round, LEN));
        side.qp.post_recv(&[wr::recv(5, &sges)]).unwrap();
        owner.ask(b's', 2 + round as u8);
        side.success();
        assert!(driver.get(start, LEN) == pattern(2 + round, LEN));
        let on_host = side.open_region(LEN);
        side.qp.post_recv(&[wr::recv(5, &[on_host.sge(..).unwrap()])]).unwrap();
        owner.ask(b'h', 3 + round as u8);
        side.success();
        assert!(on_host.to_vec() == pattern(3 + round, LEN));
        assert_eq!(driver.opens()[0], opened);
        assert!(staged() > before);
        if has_fabric() {
            let few = [near.sge(..64).unwrap()];
            operations_do_not_wait_for_each_other(here, |n| wr::write(n, &few, far), 8);
        }
    }
    driver.fail_ipc(false, false);
}
