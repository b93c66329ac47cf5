//! Holds back all stores to memory for a moment, so that its pages can be exchanged for others without losing a store.
//!
//! The pages are write-protected through a `userfaultfd`: a thread that writes waits, a thread that reads continues, and the memory stays at
//! its address. If anything fails, ending the write protection restores the previous state. (The alternative is to move the pages away with
//! `mremap` and to handle the page faults. It would stop readers too, and a failure would require moving the pages back.)
//!
//! The thread that holds the write protection must not write to the pages itself, or it deadlocks. So it must not allocate or take a lock of
//! the allocator, because the program may have registered memory of its allocator. And no signal handler may run on it.
//!
//! Some writes of the kernel are not held back: those to pages that it has pinned (direct I/O, `io_uring`, a `process_vm_writev` of a local
//! peer in progress). They go to the old pages. If only the unprivileged kind of userfaultfd is allowed, a system call of another thread that
//! stores into the pages fails with EFAULT instead of waiting.

use super::address_space::{Errno, last_errno, populate};
use std::fs::OpenOptions;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// How stores are held back, in order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Means {
    /// Stores of threads, and those of the kernel in system calls.
    Everyone,
    /// Stores of threads only: the most that an unprivileged process may request on most machines.
    Threads,
    /// None: old kernels, sandboxes. A store during the copy may be lost.
    Nothing,
}

/// The kind of the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Anonymous,
    Memfd,
}

/// Write protection of pages until it is dropped, as far as `means` allows.
pub(crate) struct WriteProtect {
    uffd: Option<Uffd>,
    pages: Range<usize>,
    protected: bool,
    // The last field, because fields are dropped in order: a handler that runs afterwards may write to the pages.
    _signals: SignalsHeld,
}

impl WriteProtect {
    /// Begins write protection with `most`, or with weaker means. The caller must not be inlined, see `STACK_ABOVE`. Fails with `EDEADLK` if the
    /// calling thread itself needs to write to the pages, and with `EBUSY` if the program has registered them with a userfaultfd of its own.
    pub(crate) fn begin(pages: &Range<usize>, kind: Kind, most: Means) -> Result<WriteProtect, Errno> {
        if is_needed_by_caller(pages) {
            return Err(libc::EDEADLK);
        }
        let uffd = Uffd::open(kind, most)?;
        let signals = SignalsHeld::new();
        let mut write_protect =
            WriteProtect { uffd, pages: pages.clone(), protected: false, _signals: signals };
        if let Some(uffd) = &write_protect.uffd {
            uffd.register(pages)?;
            write_protect.protected = true;
            uffd.protect(pages)?;
        }
        Ok(write_protect)
    }

    /// Ends write protection after other pages have replaced these. Waiting threads write to the new ones.
    pub(crate) fn end_exchanged(mut self) {
        self.protected = false;
    }

    /// The means that it uses.
    pub(crate) fn means(&self) -> Means {
        self.uffd.as_ref().map_or(Means::Nothing, |uffd| uffd.means)
    }
}

impl Drop for WriteProtect {
    fn drop(&mut self) {
        let Some(uffd) = &self.uffd else { return };
        // Only if it is ours: the kernel would also let us end a registration of the program for these pages.
        if self.protected {
            uffd.unregister(&self.pages);
        }
        uffd.wake(&self.pages);
    }
}

/// Bytes of its stack that the thread uses until the write protection ends: below, the following frames; above, the frame of the function
/// that begins it. They are not larger than necessary, because other memory of the program may be adjacent to a thread's stack.
const STACK_BELOW: usize = 16 << 10;
const STACK_ABOVE: usize = 4 << 10;

/// Whether the calling thread cannot avoid writing to the pages: they contain its stack, or its `errno`.
fn is_needed_by_caller(pages: &Range<usize>) -> bool {
    let here = std::ptr::from_ref(&pages).addr();
    // SAFETY: only the address is taken.
    let errno = unsafe { libc::__errno_location() }.addr();
    pages.start < here + STACK_ABOVE && pages.end > here - STACK_BELOW || pages.contains(&errno)
}

/// Whether the pages contain part of the calling thread's stack. Does not check the first thread, whose stack has a name in the list of
/// mappings. A stack must not consist of shared pages: after a fork two processes would use it.
pub(crate) fn is_own_stack(pages: &Range<usize>) -> bool {
    let mut attributes = MaybeUninit::uninit();
    let (mut start, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: reads attributes of the calling thread; they are used and destroyed only if they were filled.
    unsafe {
        if libc::gettid() == libc::getpid()
            || libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0
        {
            return false;
        }
        libc::pthread_attr_getstack(attributes.as_ptr(), &mut start, &mut len);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
    }
    pages.start < start.addr() + len && pages.end > start.addr()
}

/// Blocks all signals of this thread until it is dropped.
pub(crate) struct SignalsHeld(libc::sigset_t);

impl SignalsHeld {
    pub(crate) fn new() -> SignalsHeld {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::zeroed());
        // SAFETY: fills `all` and then `before`, which is valid as zeroes too: the empty set.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            SignalsHeld(before.assume_init())
        }
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        // SAFETY: the set that was active before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

const USER_MODE_ONLY: libc::c_int = 1;
const API: u64 = 0xaa;
const FEATURE_WRITE_PROTECT: u64 = 1 << 0;
/// Linux 5.19.
const FEATURE_SHARED_MEMORY: u64 = 1 << 12;
/// Linux 6.4: unpopulated pages are protected too.
const FEATURE_UNPOPULATED: u64 = 1 << 13;
const MODE_WRITE_PROTECT: u64 = 1 << 1;
const PROTECT: u64 = 1 << 0;

const IOC_NEW: libc::c_ulong = 0xaa00;
const IOC_API: libc::c_ulong = 0xc018_aa3f;
const IOC_REGISTER: libc::c_ulong = 0xc020_aa00;
const IOC_UNREGISTER: libc::c_ulong = 0x8010_aa01;
const IOC_WAKE: libc::c_ulong = 0x8010_aa02;
const IOC_WRITE_PROTECT: libc::c_ulong = 0xc018_aa06;

/// A userfaultfd that can write-protect. A new one is opened each time: the copy in a forked child would still act on the parent.
struct Uffd {
    fd: OwnedFd,
    means: Means,
    features: u64,
}

impl Uffd {
    /// `None` if userfaultfd is missing or forbidden, or cannot protect this kind of memory.
    fn open(kind: Kind, most: Means) -> Result<Option<Uffd>, Errno> {
        let Some((fd, means)) = open_descriptor(most)? else { return Ok(None) };
        let needed = match kind {
            Kind::Anonymous => FEATURE_WRITE_PROTECT,
            Kind::Memfd => FEATURE_WRITE_PROTECT | FEATURE_SHARED_MEMORY,
        };
        let uffd = Uffd { fd, means, features: needed };
        Ok(uffd
            .agree(needed | FEATURE_SHARED_MEMORY | FEATURE_UNPOPULATED)
            .or_else(|uffd| uffd.agree(needed))
            .ok())
    }

    /// Enables features. The kernel refuses all of them if it lacks one.
    fn agree(self, features: u64) -> Result<Uffd, Uffd> {
        match self.call(IOC_API, &mut [API, features, 0]) {
            Ok(()) => Ok(Uffd { features, ..self }),
            Err(_) => Err(self),
        }
    }

    fn register(&self, pages: &Range<usize>) -> Result<(), Errno> {
        self.call(IOC_REGISTER, &mut [pages.start as u64, pages.len() as u64, MODE_WRITE_PROTECT, 0])
    }

    fn protect(&self, pages: &Range<usize>) -> Result<(), Errno> {
        if self.features & FEATURE_UNPOPULATED == 0 {
            // Such a kernel protects populated pages only.
            populate(pages, libc::MADV_POPULATE_READ)?;
        }
        self.call(IOC_WRITE_PROTECT, &mut [pages.start as u64, pages.len() as u64, PROTECT])
    }

    fn unregister(&self, pages: &Range<usize>) {
        // Fails only if the program has unmapped the pages, which ends the registration anyway.
        let _ = self.call(IOC_UNREGISTER, &mut [pages.start as u64, pages.len() as u64]);
    }

    /// Wakes the waiting threads. Closing the descriptor would do so too, unless a child that was forked meanwhile has it as well.
    fn wake(&self, pages: &Range<usize>) {
        let _ = self.call(IOC_WAKE, &mut [pages.start as u64, pages.len() as u64]);
    }

    fn call<const WORDS: usize>(
        &self,
        request: libc::c_ulong,
        words: &mut [u64; WORDS],
    ) -> Result<(), Errno> {
        // SAFETY: every request here takes a structure of 64-bit words, as many as its number encodes and the caller gives.
        match unsafe { libc::ioctl(self.fd.as_raw_fd(), request, words.as_mut_ptr()) } {
            0 => Ok(()),
            _ => Err(last_errno()),
        }
    }
}

type Open = fn() -> Result<OwnedFd, Errno>;

/// Opens the userfaultfd with the best means that are allowed.
fn open_descriptor(most: Means) -> Result<Option<(OwnedFd, Means)>, Errno> {
    let tries: [(Means, Open); 3] = [
        (Means::Everyone, || own(userfaultfd(0))),
        (Means::Everyone, from_device),
        (Means::Threads, || own(userfaultfd(USER_MODE_ONLY))),
    ];
    let allowed = tries.into_iter().filter(|(means, _)| most == Means::Everyone || *means == most);
    for (means, open) in allowed {
        match open() {
            Ok(fd) => return Ok(Some((fd, means))),
            Err(errno @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM)) => return Err(errno),
            Err(_) => {}
        }
    }
    Ok(None)
}

fn userfaultfd(flags: libc::c_int) -> libc::c_int {
    // SAFETY: makes a descriptor.
    unsafe { libc::syscall(libc::SYS_userfaultfd, flags | libc::O_CLOEXEC) as libc::c_int }
}

/// Opens `/dev/userfaultfd`, which an administrator may make accessible to all users (Linux 6.1).
fn from_device() -> Result<OwnedFd, Errno> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/userfaultfd");
    let device = device.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
    // SAFETY: makes a descriptor.
    own(unsafe { libc::ioctl(device.as_raw_fd(), IOC_NEW, libc::O_CLOEXEC) })
}

pub(crate) fn own(fd: libc::c_int) -> Result<OwnedFd, Errno> {
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: a descriptor that the caller was just given, and that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    const LEN: usize = 16 << 12;

    fn fresh(how: libc::c_int) -> Range<usize> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: fresh pages, which stay until the process ends.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), LEN, rights, how | libc::MAP_ANONYMOUS, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at as usize..at as usize + LEN
    }

    fn word(addr: usize) -> &'static AtomicU64 {
        // SAFETY: an aligned word of pages that stay.
        unsafe { &*(addr as *const AtomicU64) }
    }

    /// Returns once a thread waits for the write protection to end.
    fn wait_for_fault(uffd: &Uffd) {
        let mut message = [0u64; 4];
        // SAFETY: reads one message, which has that length.
        let n = unsafe { libc::read(uffd.fd.as_raw_fd(), message.as_mut_ptr().cast(), 32) };
        assert_eq!(n, 32);
    }

    /// A writer of untouched and of touched pages waits, and goes on afterwards; a reader does not wait.
    fn holds_a_writer(kind: Kind, features: u64) {
        let how = if kind == Kind::Memfd { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        for touched in [false, true] {
            let pages = fresh(how);
            if touched {
                word(pages.start).store(7, Ordering::Relaxed);
            }
            let Some((fd, means)) = open_descriptor(Means::Everyone).expect("descriptors") else {
                println!("SKIPPED: userfaultfd is not allowed here");
                return;
            };
            let Ok(uffd) = (Uffd { fd, means, features: 0 }).agree(features) else {
                println!("SKIPPED: this kernel lacks some of the userfaultfd features {features:#x}");
                return;
            };
            uffd.register(&pages).expect("register");
            uffd.protect(&pages).expect("protect");
            let before = if touched { 7 } else { 0 };
            thread::scope(|scope| {
                let writer = scope.spawn(|| word(pages.start).fetch_add(1, Ordering::Relaxed));
                wait_for_fault(&uffd);
                assert_eq!(word(pages.start).load(Ordering::Relaxed), before);
                uffd.unregister(&pages);
                uffd.wake(&pages);
                assert_eq!(writer.join().expect("writer"), before);
            });
            assert_eq!(word(pages.start).load(Ordering::Relaxed), before + 1);
        }
    }

    #[test]
    fn writers_wait() {
        for kind in [Kind::Anonymous, Kind::Memfd] {
            holds_a_writer(kind, FEATURE_WRITE_PROTECT | FEATURE_SHARED_MEMORY | FEATURE_UNPOPULATED);
        }
    }

    #[test]
    fn writers_wait_on_older_kernels() {
        holds_a_writer(Kind::Anonymous, FEATURE_WRITE_PROTECT);
        holds_a_writer(Kind::Memfd, FEATURE_WRITE_PROTECT | FEATURE_SHARED_MEMORY);
    }

    #[test]
    fn the_callers_own_stack_is_refused() {
        let here = 0u8;
        let at = std::ptr::from_ref(&here).addr() & !0xfff;
        let begun = WriteProtect::begin(&(at..at + 0x1000), Kind::Anonymous, Means::Nothing);
        assert_eq!(begun.err(), Some(libc::EDEADLK));
    }
}
