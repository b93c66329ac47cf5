//! Regions larger than one step of moving memory into a memfd, and regions that begin and end inside a page, on the same-host fabric.

mod support;

use ferroce::{Rc, Region, RemoteRegion, wr};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use support::process::{Peer, parent};
use support::{Side, V4, pattern, success, watched};

const LARGE: usize = 200 << 20;
const CHUNK: usize = 64 << 10;
const PAGE: usize = 4096;
/// An unaligned region: bytes of its first page that belong to others, and its length. It ends inside a page too.
const BEFORE: usize = 1000;
const UNALIGNED: usize = 300_000;

/// Fresh private pages, which stay until the process ends.
struct Memory(NonNull<u8>);

// SAFETY: only an address.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(len: usize) -> Arc<Memory> {
        let (rights, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: fresh pages.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, how, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Arc::new(Memory(NonNull::new(at.cast()).unwrap()))
    }

    /// A byte that the program and the NIC may both use.
    fn byte(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: inside, as the tests ask.
        unsafe { AtomicU8::from_ptr(self.0.as_ptr().add(offset)) }
    }

    fn fill(&self, offset: usize, data: &[u8]) {
        data.iter().zip(offset..).for_each(|(value, at)| self.byte(at).store(*value, Ordering::Relaxed));
    }

    fn holds(&self, offset: usize, data: &[u8]) -> bool {
        data.iter().zip(offset..).all(|(value, at)| self.byte(at).load(Ordering::Relaxed) == *value)
    }

    /// Registers part of it, for everything.
    fn register(self: &Arc<Self>, side: &Side<Rc>, offset: usize, len: usize) -> Region {
        let start = NonNull::from(self.byte(offset)).cast();
        let builder = side.pd.region(len).remote_read().remote_write().remote_atomic();
        // SAFETY: mapped until the process ends; touched only through atomics.
        unsafe { builder.register_at(start, self.clone()) }.unwrap()
    }
}

fn has_fabric() -> bool {
    !std::env::var("FERROCE_LINK").is_ok_and(|link| link == "udp")
}

fn side() -> Side<Rc> {
    Side::new(|pd, cq| pd.rc(cq).address(V4).sges(4, 4), |qp| qp.timeout(14).retries(5))
}

/// The target's end: memory with a region whose description the parent receives.
fn target(socket: &mut TcpStream, memory: &Arc<Memory>, offset: usize, len: usize) -> (Side<Rc>, Region) {
    let side = side();
    side.qp.connect_over(socket).unwrap();
    let region = memory.register(&side, offset, len);
    socket.write_all(&region.remote().to_bytes()).unwrap();
    (side, region)
}

fn meet(test: &str) -> (Peer, Side<Rc>, RemoteRegion) {
    let mut peer = Peer::start(test, V4);
    let side = side();
    side.qp.connect_over(&mut peer.socket).unwrap();
    let mut bytes = [0; RemoteRegion::ENCODED_LEN];
    peer.socket.read_exact(&mut bytes).unwrap();
    (peer, side, RemoteRegion::from_bytes(&bytes).unwrap())
}

/// Operations through a mapping, and by the kernel.
fn direct(side: &Side<Rc>) -> [u64; 2] {
    let link = side.device.counters().link;
    [link.direct_mapped, link.direct_copied]
}

/// Writes to a range and reads it back, in some entries.
fn write_and_read(side: &Side<Rc>, near: &Region, remote: RemoteRegion, at: usize, data: &[u8]) {
    let len = data.len() as u64;
    let there = remote.slice(at as u64..at as u64 + len).unwrap();
    let cut = len / 3;
    for entries in
        [vec![near.sge(..len).unwrap()], vec![near.sge(..cut).unwrap(), near.sge(cut..len).unwrap()]]
    {
        near.write(0, data).unwrap();
        side.qp.write(1, &entries, there).unwrap();
        side.success();
        near.fill(0);
        side.qp.read(2, &entries, there).unwrap();
        side.success();
        let mut read = vec![0; data.len()];
        near.read(0, &mut read).unwrap();
        assert!(read == data, "{len} bytes at {at}");
    }
}

fn signal(peer: &Peer, signal: i32) {
    // SAFETY: our own child, which is not waited for yet.
    assert_eq!(unsafe { libc::kill(peer.id() as libc::pid_t, signal) }, 0);
}

#[test]
fn all_of_a_large_region_is_mapped() {
    let last = LARGE - CHUNK;
    if let Some(mut socket) = parent() {
        let memory = Memory::new(LARGE);
        memory.fill(last - 8, &[7; 8]);
        let (_side, region) = target(&mut socket, &memory, 0, LARGE);
        socket.read_exact(&mut [0]).unwrap();
        assert!(memory.holds(last, &pattern(3, CHUNK)) && memory.holds(0, &pattern(2, CHUNK)));
        assert!(memory.holds(last - 8, &[7; 8]) && memory.holds(CHUNK, &[0; CHUNK]));
        drop(region);
        assert!(memory.holds(last, &pattern(3, CHUNK)), "it stays when the registration goes");
        return;
    }
    watched(move || {
        let (mut peer, side, remote) = meet("all_of_a_large_region_is_mapped");
        let near = side.open_region(CHUNK);
        let before = direct(&side);
        if has_fabric() {
            signal(&peer, libc::SIGSTOP);
        }
        write_and_read(&side, &near, remote, 0, &pattern(2, CHUNK));
        write_and_read(&side, &near, remote, last, &pattern(3, CHUNK));
        if has_fabric() {
            let [mapped, copied] = direct(&side);
            assert_eq!([mapped - before[0], copied - before[1]], [8, 0]);
            signal(&peer, libc::SIGCONT);
        }
        peer.socket.write_all(b".").unwrap();
        peer.finish();
    });
}

/// What else lies in the first and the last page is the program's alone, and it writes there all the time.
#[test]
fn an_unaligned_region_leaves_its_neighbours_alone() {
    let region_end = BEFORE + UNALIGNED;
    if let Some(mut socket) = parent() {
        let memory = Memory::new(UNALIGNED + 2 * PAGE);
        memory.fill(0, &pattern(8, UNALIGNED + 2 * PAGE));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let neighbour = scope.spawn(|| {
                let mut stored = 0_u8;
                while !stop.load(Ordering::Relaxed) {
                    for at in [BEFORE - 1, region_end] {
                        memory.byte(at).store(stored, Ordering::Relaxed);
                        assert_eq!(memory.byte(at).load(Ordering::Relaxed), stored);
                    }
                    stored = stored.wrapping_add(1);
                }
            });
            for _ in 0..2 {
                let (_side, region) = target(&mut socket, &memory, BEFORE, UNALIGNED);
                let mut expected = vec![0; UNALIGNED];
                socket.read_exact(&mut expected).unwrap();
                assert!(memory.holds(BEFORE, &expected));
                drop(region);
                assert!(memory.holds(BEFORE, &expected), "it stays when the registration goes");
            }
            stop.store(true, Ordering::Relaxed);
            neighbour.join().unwrap();
        });
        let around = pattern(8, UNALIGNED + 2 * PAGE);
        assert!(memory.holds(0, &around[..BEFORE - 1]));
        return assert!(memory.holds(region_end + 1, &around[region_end + 1..]));
    }
    watched(|| {
        let (mut peer, mut side, mut remote) = meet("an_unaligned_region_leaves_its_neighbours_alone");
        for round in 0..2 {
            if round > 0 {
                side = self::side();
                side.qp.connect_over(&mut peer.socket).unwrap();
                let mut bytes = [0; RemoteRegion::ENCODED_LEN];
                peer.socket.read_exact(&mut bytes).unwrap();
                remote = RemoteRegion::from_bytes(&bytes).unwrap();
            }
            let near = side.open_region(UNALIGNED);
            let (first, last) = (PAGE - BEFORE, (BEFORE + UNALIGNED) / PAGE * PAGE - BEFORE);
            let mut model = vec![0; UNALIGNED];
            // The whole; one edge and the inner pages; edges alone, or with little of the inner pages; inner pages alone.
            let ranges = [
                (0..UNALIGNED, false),
                (0..last, false),
                (first - 1..last, false),
                (first..UNALIGNED, false),
                (first..last + 1, false),
                (0..first, false),
                (last..UNALIGNED, false),
                (last - 100..UNALIGNED - 1, false),
                (0..first + 100, false),
                (first..last, true),
                (first + 8..first + 16, true),
            ];
            for (seed, (range, is_mapped)) in ranges.into_iter().enumerate() {
                let (data, before) = (pattern(seed as u64 + 100 * round, range.len()), direct(&side));
                write_and_read(&side, &near, remote, range.start, &data);
                let after = direct(&side);
                let count = [after[0] - before[0], after[1] - before[1]];
                if has_fabric() {
                    assert_eq!(count, if is_mapped { [4, 0] } else { [0, 4] }, "{range:?}");
                }
                model[range].copy_from_slice(&data);
            }
            peer.socket.write_all(&model).unwrap();
        }
        peer.finish();
    });
}

#[test]
fn messages_from_an_unaligned_buffer_arrive_whole() {
    const LENGTHS: [usize; 4] = [32_768, 40_000, 100_001, UNALIGNED];
    if let Some(mut socket) = parent() {
        let memory = Memory::new(UNALIGNED + 2 * PAGE);
        memory.fill(BEFORE, &pattern(4, UNALIGNED));
        let (side, region) = target(&mut socket, &memory, BEFORE, UNALIGNED);
        for len in LENGTHS {
            socket.read_exact(&mut [0]).unwrap();
            side.qp.send_from(1, &[region.sge((UNALIGNED - len) as u64..).unwrap()]).unwrap();
            side.success();
        }
        return;
    }
    watched(|| {
        let (mut peer, side, _) = meet("messages_from_an_unaligned_buffer_arrive_whole");
        let (to, data) = (side.open_region(UNALIGNED), pattern(4, UNALIGNED));
        for len in LENGTHS {
            to.fill(0);
            let entries =
                [to.sge(..5_000).unwrap(), to.sge(5_000..20_000).unwrap(), to.sge(20_000..).unwrap()];
            side.qp.post_recv(&[wr::recv(2, &entries)]).unwrap();
            peer.socket.write_all(b".").unwrap();
            assert_eq!(success(&side.cq).byte_len as usize, len);
            assert!(to.to_vec()[..len] == data[UNALIGNED - len..], "{len} bytes");
        }
        assert_eq!(side.device.counters().link.messages_fetched, 0, "the kernel copied the end");
        peer.finish();
    });
}
