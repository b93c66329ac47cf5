//! Memory that nobody writes for a moment, so that its pages can be exchanged for others without losing a store.
//!
//! The pages are write-protected through a `userfaultfd`: a thread that writes waits, a thread that reads notices nothing, and
//! the memory stays where it is. So whatever fails, ending the write protection is all that is needed to be as before. (Moving the
//! pages away with `mremap` and catching what then misses them would stop readers too, and failures would have to move back.)
//!
//! The thread that holds it must not write there itself, or it waits for itself: no allocation, no lock of the
//! allocator, for the program may have registered the very memory that its allocator hands out; and no signal handler.
//!
//! Not held back: the kernel's own writes to pages it took hold of before (direct I/O, `io_uring`, a local peer's
//! `process_vm_writev` that is on its way). They go to the old pages. Where only the unprivileged kind of userfaultfd is allowed,
//! a system call of another thread that stores into the pages fails with EFAULT at that moment instead of waiting.

use super::address_space::{Errno, last_errno, populate};
use std::fs::OpenOptions;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// How stores are held back, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Means {
    /// Those of threads, and those of the kernel in system calls.
    Everyone,
    /// Those of threads: all that an unprivileged process may ask for on most machines.
    Threads,
    /// Not at all: old kernels, sandboxes. A store that meets the copy may be lost.
    Nothing,
}

/// What the pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Anonymous,
    Memfd,
}

/// While it lives, nobody writes to the pages, unless `means` says otherwise.
pub(crate) struct WriteProtect {
    uffd: Option<Uffd>,
    pages: Range<usize>,
    protected: bool,
    // Last, since fields are dropped in order: a handler that runs may write to the pages.
    _signals: SignalsHeld,
}

impl WriteProtect {
    /// Begins one, with `most` or less. The caller must not be inlined, see `STACK_ABOVE`. `EDEADLK`: the calling thread itself needs to write there. `EBUSY`: the program
    /// watches this memory with a userfaultfd of its own.
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

    /// Ends it after other pages took the place of these. Whoever waited writes to the new ones.
    pub(crate) fn end_exchanged(mut self) {
        self.protected = false;
    }

    /// What it was begun with.
    pub(crate) fn means(&self) -> Means {
        self.uffd.as_ref().map_or(Means::Nothing, |uffd| uffd.means)
    }
}

impl Drop for WriteProtect {
    fn drop(&mut self) {
        let Some(uffd) = &self.uffd else { return };
        // Only what is ours: the kernel would as well let us end the program's own watch over these pages.
        if self.protected {
            uffd.unregister(&self.pages);
        }
        uffd.wake(&self.pages);
    }
}

/// What the thread uses of its stack until the write protection ends: the frames that follow, and above them the one of whoever
/// begins it. Not more, for a thread's stack has other memory of the program right beside it.
const STACK_BELOW: usize = 16 << 10;
const STACK_ABOVE: usize = 4 << 10;

/// Whether the calling thread writes there whatever it does: its stack, and where system calls leave their errors.
fn is_needed_by_caller(pages: &Range<usize>) -> bool {
    let here = std::ptr::from_ref(&pages).addr();
    // SAFETY: only the address is taken.
    let errno = unsafe { libc::__errno_location() }.addr();
    pages.start < here + STACK_ABOVE && pages.end > here - STACK_BELOW || pages.contains(&errno)
}

/// Whether part of it is the calling thread's stack, other than the first thread's, which the kernel knows by name. Shared
/// pages must not become one: after a fork two processes would run on it.
pub(crate) fn is_own_stack(pages: &Range<usize>) -> bool {
    let mut attributes = MaybeUninit::uninit();
    let (mut start, mut len) = (std::ptr::null_mut(), 0);
    // SAFETY: asks about the calling thread; the attributes are used and given back only if they were filled.
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

/// Signals of this thread wait.
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
        // SAFETY: the set that was there before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

const USER_MODE_ONLY: libc::c_int = 1;
const API: u64 = 0xaa;
const FEATURE_WRITE_PROTECT: u64 = 1 << 0;
/// Linux 5.19.
const FEATURE_SHARED_MEMORY: u64 = 1 << 12;
/// Linux 6.4: pages that are not there yet are protected too.
const FEATURE_UNPOPULATED: u64 = 1 << 13;
const MODE_WRITE_PROTECT: u64 = 1 << 1;
const PROTECT: u64 = 1 << 0;

const IOC_NEW: libc::c_ulong = 0xaa00;
const IOC_API: libc::c_ulong = 0xc018_aa3f;
const IOC_REGISTER: libc::c_ulong = 0xc020_aa00;
const IOC_UNREGISTER: libc::c_ulong = 0x8010_aa01;
const IOC_WAKE: libc::c_ulong = 0x8010_aa02;
const IOC_WRITE_PROTECT: libc::c_ulong = 0xc018_aa06;

/// A userfaultfd that can write-protect. Opened anew each time: a forked child's would still act on its parent.
struct Uffd {
    fd: OwnedFd,
    means: Means,
    features: u64,
}

impl Uffd {
    /// None where there is no such thing, or it is forbidden, or cannot protect this kind of memory.
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

    /// The kernel refuses all features if it lacks one.
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
            // Every page must be there, or it comes unprotected.
            populate(pages, libc::MADV_POPULATE_READ)?;
        }
        self.call(IOC_WRITE_PROTECT, &mut [pages.start as u64, pages.len() as u64, PROTECT])
    }

    fn unregister(&self, pages: &Range<usize>) {
        // Fails only if the program unmapped the pages meanwhile, and then there is nothing to end.
        let _ = self.call(IOC_UNREGISTER, &mut [pages.start as u64, pages.len() as u64]);
    }

    /// Closing would wake the waiting threads too, but for a child that was forked meanwhile and has the descriptor as well.
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

/// The best descriptor to be had, and what it holds back.
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

/// What an administrator may open to everybody (Linux 6.1).
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

    /// Returns once a thread waits.
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
