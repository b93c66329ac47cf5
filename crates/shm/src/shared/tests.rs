//! Real files, mapped and registered as programs do.

use super::*;
use crate::mapping::MappedBytes;
use crate::memfd_backing::MemfdPages;
use crate::region_mapping::map;
use crate::registry::Registry;
use crate::segment::ShmSegment;
use std::os::fd::FromRawFd;

const PAGE: usize = 4096;
const RW: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// A mapping of a test; unmapped when dropped.
struct Memory(Range<usize>);

impl Memory {
    fn new(at: usize, len: usize, how: libc::c_int, fd: RawFd, offset: usize) -> Memory {
        // SAFETY: anywhere, or over pages of this test.
        let start = unsafe { libc::mmap(at as *mut _, len, RW, how, fd, offset as i64) } as usize;
        assert_ne!(start, usize::MAX, "mmap");
        Memory(start..start + len)
    }

    fn of(fd: &OwnedFd, offset: usize, len: usize) -> Memory {
        Memory::new(0, len, libc::MAP_SHARED, fd.as_raw_fd(), offset)
    }

    fn find(&self) -> Result<Shared, WhyNot> {
        SharedFiles::default().find(self.0.start, self.0.len())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: pages of this test.
        unsafe { libc::munmap(self.0.start as *mut _, self.0.len()) };
    }
}

fn memfd(flags: libc::c_uint, len: usize) -> OwnedFd {
    // SAFETY: makes a descriptor, which nobody else owns, and gives the file its length.
    unsafe {
        let fd = libc::memfd_create(c"test".as_ptr(), flags);
        assert!(fd >= 0);
        assert_eq!(libc::ftruncate(fd, len as i64), 0);
        OwnedFd::from_raw_fd(fd)
    }
}

fn truncate(fd: &OwnedFd, len: usize) -> Result<(), Errno> {
    // SAFETY: the length of a file of this test.
    if unsafe { libc::ftruncate(fd.as_raw_fd(), len as i64) } == 0 { Ok(()) } else { Err(last_errno()) }
}

#[test]
fn a_memfd_that_can_be_sealed_is_found_and_sealed() {
    let fd = memfd(libc::MFD_ALLOW_SEALING, 8 * PAGE);
    let memory = Memory::of(&fd, 2 * PAGE, 4 * PAGE);
    let shared = SharedFiles::default().find(memory.0.start + PAGE + 100, PAGE).expect("found");
    let descriptor = shared.descriptor();
    assert_eq!((descriptor.start as usize, descriptor.len), (memory.0.start + PAGE, 2 * PAGE as u64));
    assert_eq!(descriptor.offset, 3 * PAGE as u64);
    assert_eq!(identity(fd.as_raw_fd()), Ok((descriptor.inode, descriptor.device)));
    assert_eq!(truncate(&fd, PAGE), Err(libc::EPERM), "nobody can make it shorter");
    assert_eq!(truncate(&fd, 9 * PAGE), Ok(()), "it may grow");
    drop(fd);
    let FileSource::Fd(number) = descriptor.source else { panic!("{descriptor:?}") };
    assert_eq!(
        identity(number as RawFd),
        Ok((descriptor.inode, descriptor.device)),
        "a descriptor of our own"
    );
}

#[test]
fn what_may_become_shorter_is_refused() {
    let plain = memfd(0, PAGE);
    assert_eq!(Memory::of(&plain, 0, PAGE).find().err(), Some(WhyNot::MayShrink));
    for directory in ["/dev/shm", "/tmp"] {
        let path = format!("{directory}/ferroce-shared-{}", std::process::id());
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        file.set_len(PAGE as u64).unwrap();
        fs::remove_file(path).unwrap();
        assert_eq!(Memory::of(&file.into(), 0, PAGE).find().err(), Some(WhyNot::MayShrink));
    }
}

#[test]
fn private_and_moved_into_memfds_memory_is_not_shared() {
    let fd = memfd(libc::MFD_ALLOW_SEALING, 4 * PAGE);
    let copied = Memory::new(0, PAGE, libc::MAP_PRIVATE, fd.as_raw_fd(), 0);
    assert_eq!(copied.find().err(), Some(WhyNot::NotShared));
    let private = Memory::new(0, 4 * PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
    assert_eq!(private.find().err(), Some(WhyNot::NotShared));
    let backed = MemfdPages::move_in(private.0.start, private.0.len()).expect("in a memfd");
    assert_eq!(private.find().err(), Some(WhyNot::NotShared), "it goes when the registration does");
    drop(backed);
}

#[test]
fn several_mappings_must_be_one_piece() {
    let fd = memfd(libc::MFD_ALLOW_SEALING, 4 * PAGE);
    let room = Memory::new(0, 4 * PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
    let put = |page: usize, of_file: usize| {
        let how = libc::MAP_SHARED | libc::MAP_FIXED;
        std::mem::forget(Memory::new(room.0.start + page * PAGE, PAGE, how, fd.as_raw_fd(), of_file * PAGE));
    };
    (0..4).for_each(|page| put(page, page));
    // SAFETY: a page of this test; now there are three mappings.
    assert_eq!(unsafe { libc::mprotect((room.0.start + PAGE) as *mut _, PAGE, libc::PROT_READ) }, 0);
    assert_eq!(room.find().expect("one piece").descriptor().len, 4 * PAGE as u64);
    put(2, 0);
    assert_eq!(room.find().err(), Some(WhyNot::NotOnePiece));
}

#[test]
fn a_mapping_that_is_longer_than_its_file_is_refused() {
    let fd = memfd(libc::MFD_ALLOW_SEALING, PAGE + 100);
    let memory = Memory::of(&fd, 0, 4 * PAGE);
    assert_eq!(memory.find().err(), Some(WhyNot::TooShort));
    let files = SharedFiles::default();
    files.find(memory.0.start, 2 * PAGE).expect("the last page of a file is there as a whole");
}

#[test]
fn one_descriptor_serves_all_regions_of_a_file() {
    let fd = memfd(libc::MFD_ALLOW_SEALING, 8 * PAGE);
    let (memory, files) = (Memory::of(&fd, 0, 8 * PAGE), SharedFiles::default());
    let source = |at| files.find(memory.0.start + at * PAGE, PAGE).expect("found");
    let (first, second) = (source(1), source(7));
    assert_eq!(first.descriptor().source, second.descriptor().source);
    assert_ne!(first.descriptor().source, FileSource::Fd(fd.as_raw_fd() as u32));
}

/// The kernel lets only the privileged open what is mapped.
#[test]
fn a_file_without_a_descriptor() {
    let fd = memfd(libc::MFD_ALLOW_SEALING, PAGE);
    let of_file = Memory::of(&fd, 0, PAGE);
    drop(fd);
    let anonymous = Memory::new(0, PAGE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0);
    let Range { start, end } = anonymous.0;
    let is_allowed = File::open(format!("/proc/self/map_files/{start:x}-{end:x}")).is_ok();
    for memory in [of_file, anonymous] {
        match memory.find() {
            Ok(_) => assert!(is_allowed),
            Err(why) => assert!(!is_allowed && why == WhyNot::Closed, "{why}"),
        }
    }
}

#[test]
fn a_segment_is_attached_as_a_whole() {
    // SAFETY: a segment of this test, which goes with its last mapping.
    let (id, at) = unsafe {
        let id = libc::shmget(libc::IPC_PRIVATE, 3 * PAGE - 5, 0o600);
        let at = libc::shmat(id, std::ptr::null(), 0) as usize;
        libc::shmctl(id, libc::IPC_RMID, std::ptr::null_mut());
        (id, at)
    };
    assert!(id >= 0 && at != usize::MAX, "shared memory");
    let memory = Memory(at..at + 3 * PAGE);
    let descriptor = SharedFiles::default().find(at + PAGE, 100).expect("found").descriptor();
    assert_eq!((descriptor.start as usize, descriptor.len, descriptor.offset), (at, 3 * PAGE as u64, 0));
    assert_eq!((descriptor.source, descriptor.inode), (FileSource::SystemV, id as u64));
    let second =
        crate::mapping::Mapping::attach(descriptor.inode, descriptor.len as usize, true).expect("attached");
    second.long(PAGE).store(77, std::sync::atomic::Ordering::Relaxed);
    // SAFETY: an aligned word of the segment.
    assert_eq!(unsafe { (memory.0.start as *const u64).byte_add(PAGE).read_volatile() }, 77);
}

#[test]
fn a_local_peer_maps_only_a_file_that_keeps_its_length() {
    let base = std::env::temp_dir().join(format!("ferroce-lengths-{}", std::process::id()));
    fs::create_dir_all(&base).unwrap();
    let registry = Arc::new(Registry::open(&base).unwrap());
    let segment = ShmSegment::create(&registry, &[], None).unwrap();
    let maps = |fd: &OwnedFd| {
        let (inode, device) = identity(fd.as_raw_fd()).unwrap();
        let source = FileSource::Fd(fd.as_raw_fd() as u32);
        let file = BackingFile { start: 0, len: PAGE as u64, offset: 0, source, inode, device };
        map(&segment, &file, true).is_some()
    };
    let named = File::create_new(base.join("named")).unwrap();
    named.set_len(PAGE as u64).unwrap();
    assert!(!maps(&named.into()), "anybody may make it shorter");
    assert!(!maps(&memfd(0, PAGE)), "its owner may");
    let sealed = memfd(libc::MFD_ALLOW_SEALING, PAGE);
    assert!(!maps(&sealed), "not sealed yet");
    seal(sealed.as_raw_fd()).unwrap();
    assert!(maps(&sealed));
    drop((segment, registry));
    fs::remove_dir_all(base).unwrap();
}
