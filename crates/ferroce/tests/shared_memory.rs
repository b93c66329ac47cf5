//! Memory that a program shares itself, and huge pages, on the same-host fabric: what local peers map, what the kernel copies, and that
//! no action of the owner of the memory ends a peer.

mod support;

use ferroce::{Rc, Region, RemoteRegion, WcStatus};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ptr::NonNull;
use std::sync::Arc;
use support::process::{Peer, parent};
use support::{Side, V4, next, pattern, watched};

const LEN: usize = 40_000;
const HUGE_PAGE: usize = 2 << 20;
const RW: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// The kind of the target's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Private,
    SealedMemfd,
    SealableMemfd,
    PlainMemfd,
    PosixShm,
    OrdinaryFile,
    Segment,
    Huge,
    TransparentHuge,
}

const KINDS: [Kind; 9] = [
    Kind::Private,
    Kind::SealedMemfd,
    Kind::SealableMemfd,
    Kind::PlainMemfd,
    Kind::PosixShm,
    Kind::OrdinaryFile,
    Kind::Segment,
    Kind::Huge,
    Kind::TransparentHuge,
];

impl Kind {
    /// Whether its pages are there for local peers, whatever the owner does.
    fn is_mapped(self) -> bool {
        !matches!(self, Kind::PlainMemfd | Kind::PosixShm | Kind::OrdinaryFile)
    }

    /// Whether its file keeps its length. Without the fabric nobody seals it.
    fn stays(self) -> bool {
        self.is_mapped() && (has_fabric() || self != Kind::SealableMemfd)
    }
}

/// Memory of some kind, and its file if it has one.
struct Memory {
    start: NonNull<u8>,
    len: usize,
    fd: libc::c_int,
}

// SAFETY: plain memory and a number.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// `None` if this machine has no memory of that kind.
    fn new(kind: Kind) -> Option<Memory> {
        let len = match kind {
            Kind::Huge | Kind::TransparentHuge => 2 * HUGE_PAGE,
            _ => (LEN + 100).next_multiple_of(4096),
        };
        if kind == Kind::Segment {
            return Memory::segment(len);
        }
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let (fd, how) = match kind {
            Kind::Huge => (-1, private | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB),
            Kind::Private | Kind::TransparentHuge => (-1, private),
            _ => (file(kind, len), libc::MAP_SHARED),
        };
        // SAFETY: fresh pages, which stay until the process ends.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, RW, how, fd, 0) };
        if at == libc::MAP_FAILED {
            return None;
        }
        if kind == Kind::TransparentHuge {
            // SAFETY: asks for huge pages where there can be some.
            unsafe { libc::madvise(at, len, libc::MADV_HUGEPAGE) };
        }
        Some(Memory { start: NonNull::new(at.cast())?, len, fd })
    }

    fn segment(len: usize) -> Option<Memory> {
        // SAFETY: a fresh segment, which goes with the process.
        let at = unsafe {
            let id = libc::shmget(libc::IPC_PRIVATE, len, 0o600);
            let at = libc::shmat(id, std::ptr::null(), 0);
            libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
            at
        };
        (at as isize != -1).then_some(Memory { start: NonNull::new(at.cast())?, len, fd: -1 })
    }

    fn word(&self, offset: usize) -> u64 {
        assert!(offset + 8 <= self.len);
        // SAFETY: inside.
        unsafe { self.start.as_ptr().add(offset).cast::<u64>().read_volatile() }
    }
}

fn file(kind: Kind, len: usize) -> libc::c_int {
    let seals = if kind == Kind::PlainMemfd { 0 } else { libc::MFD_ALLOW_SEALING };
    let path = match kind {
        Kind::PosixShm => Some("/dev/shm"),
        Kind::OrdinaryFile => Some("/tmp"),
        _ => None,
    };
    let fd = match path {
        // SAFETY: makes a descriptor.
        None => unsafe { libc::memfd_create(c"of a program".as_ptr(), seals) },
        Some(directory) => {
            let path = format!("{directory}/ferroce-test-{}", std::process::id());
            let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
            std::fs::remove_file(path).unwrap();
            std::os::fd::IntoRawFd::into_raw_fd(file)
        }
    };
    // SAFETY: gives a file of ours its length, and seals it.
    unsafe {
        assert_eq!(libc::ftruncate(fd, len as i64), 0);
        if kind == Kind::SealedMemfd {
            assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL), 0);
        }
    }
    fd
}

fn side() -> Side<Rc> {
    Side::new(|pd, cq| pd.rc(cq).address(V4), |qp| qp.timeout(14).retries(5))
}

/// The target: memory of the kind that the parent names, for everything. Nothing if there is none.
fn target(socket: &mut TcpStream) -> Option<(Side<Rc>, Region, Arc<Memory>)> {
    let mut kind = [0];
    socket.read_exact(&mut kind).unwrap();
    let memory = Memory::new(KINDS[usize::from(kind[0])]).map(Arc::new);
    socket.write_all(&[u8::from(memory.is_some())]).unwrap();
    let memory = memory?;
    let side = side();
    side.qp.connect_over(socket).unwrap();
    let builder = side.pd.region(memory.len).remote_read().remote_write().remote_atomic();
    // SAFETY: mapped until the process ends; touched only through pointers.
    let region = unsafe { builder.register_at(memory.start, memory.clone()) }.unwrap();
    socket.write_all(&region.remote().to_bytes()).unwrap();
    Some((side, region, memory))
}

/// The requester's end.
fn meet(peer: &mut Peer, kind: Kind) -> Option<(Side<Rc>, RemoteRegion)> {
    let number = KINDS.iter().position(|other| *other == kind).unwrap();
    peer.socket.write_all(&[number as u8]).unwrap();
    let mut is_there = [0];
    peer.socket.read_exact(&mut is_there).unwrap();
    if is_there == [0] {
        println!("SKIPPED: {kind:?}: this machine has no such memory to spare (/proc/sys/vm/nr_hugepages)");
        return None;
    }
    let side = side();
    side.qp.connect_over(&mut peer.socket).unwrap();
    let mut bytes = [0; RemoteRegion::ENCODED_LEN];
    peer.socket.read_exact(&mut bytes).unwrap();
    Some((side, RemoteRegion::from_bytes(&bytes).unwrap()))
}

fn has_fabric() -> bool {
    !std::env::var("FERROCE_LINK").is_ok_and(|link| link == "udp")
}

fn signal(peer: &Peer, signal: i32) {
    // SAFETY: our own child, which is not waited for yet.
    assert_eq!(unsafe { libc::kill(peer.id() as libc::pid_t, signal) }, 0);
}

/// Writes and reads all of it, adds to a word; how many operations.
fn one_sided(side: &Side<Rc>, remote: RemoteRegion, with_atomics: bool) -> u64 {
    let len = remote.len as usize;
    let (region, data) = (side.open_region(len), pattern(len as u64, len));
    let whole = region.sge(..).unwrap();
    region.write(0, &data).unwrap();
    side.qp.write(1, &[whole], remote).unwrap();
    side.success();
    region.fill(0);
    side.qp.read(2, &[whole], remote).unwrap();
    side.success();
    assert!(region.to_vec() == data, "what was written is what is read");
    if with_atomics {
        side.qp.fetch_add(3, region.sge(..8).unwrap(), remote, 5).unwrap();
        side.success();
        assert_eq!(region.load_u64(0).unwrap().to_ne_bytes(), data[..8]);
    }
    2 + u64::from(with_atomics)
}

fn stopped_target(kind: Kind) {
    let mut peer = Peer::start("memory_of_every_kind_of_a_stopped_target", V4);
    let Some((side, remote)) = meet(&mut peer, kind) else { return };
    let before = side.device.counters().link;
    if has_fabric() {
        signal(&peer, libc::SIGSTOP);
        let done = one_sided(&side, remote, kind.is_mapped());
        let after = side.device.counters().link;
        let (mapped, copied) =
            (after.direct_mapped - before.direct_mapped, after.direct_copied - before.direct_copied);
        let expected = if kind.is_mapped() { (done, 0) } else { (0, done) };
        assert_eq!((mapped, copied), expected, "{kind:?}");
        signal(&peer, libc::SIGCONT);
    }
    // By packets or not, the target's own view is the same.
    one_sided(&side, remote, true);
    peer.socket.write_all(b".").unwrap();
    let mut word = [0; 8];
    peer.socket.read_exact(&mut word).unwrap();
    let start = u64::from_ne_bytes(pattern(remote.len, 8)[..8].try_into().unwrap());
    assert_eq!(u64::from_ne_bytes(word), start.wrapping_add(5), "{kind:?}");
    peer.finish();
}

#[test]
fn memory_of_every_kind_of_a_stopped_target() {
    if let Some(mut socket) = parent() {
        let Some((_side, region, memory)) = target(&mut socket) else { return };
        socket.read_exact(&mut [0]).unwrap();
        let before = memory.word(0);
        drop(region);
        assert_eq!(memory.word(0), before, "it stays when the registration goes");
        return socket.write_all(&before.to_ne_bytes()).unwrap();
    }
    watched(|| KINDS.into_iter().for_each(stopped_target));
}

/// Writes until that fails; how it ended.
fn write_on(side: &Side<Rc>, remote: RemoteRegion, mut once: impl FnMut()) -> WcStatus {
    let region = side.open_region(remote.len as usize);
    loop {
        side.qp.write(1, &[region.sge(..).unwrap()], remote).unwrap();
        match next(&side.cq).status {
            WcStatus::Success => once(),
            end => return end,
        }
    }
}

fn takes_away(kind: Kind) {
    let mut peer = Peer::start("an_owner_that_truncates_its_file_harms_only_itself", V4);
    let Some((side, remote)) = meet(&mut peer, kind) else { return };
    let mut rounds = 0;
    let end = write_on(&side, remote, || {
        rounds += 1;
        match rounds {
            // The parent reports that writing has begun.
            20 => peer.socket.write_all(b".").unwrap(),
            // Those that cannot be made shorter stay; the end comes when the registration goes.
            40 if kind.stays() => peer.socket.write_all(b".").unwrap(),
            _ => {}
        }
    });
    if kind.stays() {
        assert_eq!(end, WcStatus::RemAccessErr, "{kind:?}");
        peer.socket.write_all(b".").unwrap();
        peer.finish();
    } else {
        // Its own NIC accessed the pages that it removed.
        assert_eq!(end, WcStatus::RetryExcErr, "{kind:?}");
        peer.kill();
    }
}

#[test]
fn an_owner_that_truncates_its_file_harms_only_itself() {
    if let Some(mut socket) = parent() {
        let Some((_side, region, memory)) = target(&mut socket) else { return };
        socket.read_exact(&mut [0]).unwrap();
        // SAFETY: the length of a file of ours.
        let answer = unsafe { libc::ftruncate(memory.fd, 0) };
        if answer == 0 {
            // It is ended by the signal that it brought upon itself, or by the parent.
            let _ = socket.read_exact(&mut [0]);
            return;
        }
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EPERM));
        socket.read_exact(&mut [0]).unwrap();
        drop(region);
        // Its NIC stays to say that the region is gone.
        return socket.read_exact(&mut [0]).unwrap();
    }
    watched(|| {
        for kind in
            [Kind::SealedMemfd, Kind::SealableMemfd, Kind::PlainMemfd, Kind::PosixShm, Kind::OrdinaryFile]
        {
            takes_away(kind);
        }
    });
}
