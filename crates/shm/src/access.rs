//! How deregistration and the end of a queue pair wait for local peers that access a region. They never wait for a dead peer.
//!
//! Each slot has some words in the segment of a local peer. To access a region of the local peer, a process writes the numbers of the region's
//! and the queue pair's descriptors into one of its words. It then checks that both descriptors are still valid, and clears the word when the
//! access is done. Deregistration first invalidates the descriptor of the region, then waits until no word of a living process holds its
//! number. The end of a queue pair does the same with the descriptor of the queue pair.

use super::segment::{ACCESSES_PER_SLOT, REGION_DESCRIPTORS, SLOTS, ShmSegment};
use crate::registry::Registry;
use ferroce_os::sync::{Ordering, spin_loop, yield_now};
use ferroce_proto::Qpn;
use std::io::ErrorKind;
use std::time::{Duration, Instant};

/// The low bits of an announcement: the number of the region's descriptor, plus one. The others are the low half of the QPN.
const REGION_BITS: u32 = 13;
const _: () = assert!(REGION_DESCRIPTORS < 1 << REGION_BITS);

/// How long the end of a queue pair waits for a process that is stopped in the middle of an access.
const STOPPED_FOR: Duration = Duration::from_secs(1);

/// The instance of a slot whose owner is gone. Its words have no meaning until the next owner of the slot has cleared them.
const NOBODY: u64 = 0;

/// The word that announces an access in progress.
#[derive(Clone, Copy, Debug)]
pub struct AccessToken(usize);

/// The region that is accessed, and the queue pair that it is accessed through. Never zero.
#[derive(Clone, Copy, Debug)]
pub struct Announcement(u32);

impl Announcement {
    pub(crate) fn new(region: usize, qpn: Qpn) -> Announcement {
        Announcement((qpn.value() & 0xffff) << REGION_BITS | (region as u32 + 1))
    }
}

/// The accesses to wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Awaited {
    /// Accesses to the region with this descriptor. If a process is stopped in the middle of one, the wait lasts until it continues or dies:
    /// the program may free the memory next.
    Region(usize),
    /// Accesses through this queue pair. The wait for a stopped process [is limited](STOPPED_FOR).
    Qp(Qpn),
}

impl Awaited {
    fn concerns(self, word: u32) -> bool {
        word != 0
            && match self {
                Awaited::Region(number) => word & ((1 << REGION_BITS) - 1) == number as u32 + 1,
                Awaited::Qp(qpn) => word >> REGION_BITS == qpn.value() & 0xffff,
            }
    }

    fn may_give_up(self) -> bool {
        matches!(self, Awaited::Qp(_))
    }
}

/// A process that is stopped in the middle of an access. The access ends when the process continues or dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoppedPeer {
    /// Its process ID, if it is in the PID namespace of this process.
    pub process: Option<libc::pid_t>,
}

/// Announces an access by `slot`, until it is [ended](end). Returns `None` if all words are in use. `free` is the index of the word that the
/// caller used last: so queue pairs of different threads do not contend for one word.
#[inline(always)]
pub(crate) fn begin(
    segment: &ShmSegment,
    slot: u8,
    access: Announcement,
    free: &mut usize,
) -> Option<AccessToken> {
    if !occupy(segment, slot, access, *free) {
        *free = another(segment, slot, access, *free)?;
    }
    Some(AccessToken(*free))
}

/// Announces the access in any word other than `taken`.
#[inline(never)]
fn another(segment: &ShmSegment, slot: u8, access: Announcement, taken: usize) -> Option<usize> {
    let mut others = taken + 1..taken + ACCESSES_PER_SLOT;
    others.find(|&index| occupy(segment, slot, access, index)).map(|index| index % ACCESSES_PER_SLOT)
}

#[inline(always)]
fn occupy(segment: &ShmSegment, slot: u8, access: Announcement, index: usize) -> bool {
    // A full barrier: the versions of the descriptors must be read after it.
    let word = segment.access(slot, index);
    word.compare_exchange(0, access.0, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

/// Ends an access.
#[inline]
pub(crate) fn end(segment: &ShmSegment, slot: u8, AccessToken(index): AccessToken) {
    segment.access(slot, index).store(0, Ordering::Release);
}

/// Registers the current instance of `slot` in a segment. Clears the words of an earlier instance, which died. Only the owner of the slot clears
/// them, so that nobody clears an announcement of a living process. The caller excludes its other threads: the second thread would clear what
/// the first has announced.
pub(crate) fn attach(segment: &ShmSegment, slot: u8, instance: u64) {
    if segment.accessor(slot).load(Ordering::Acquire) != instance {
        (0..ACCESSES_PER_SLOT).for_each(|index| segment.access(slot, index).store(0, Ordering::Release));
        segment.accessor(slot).store(instance, Ordering::Release);
    }
}

/// Waits until no local peer accesses memory in this way any more. The caller has invalidated the descriptor that allowed it. Gives up only
/// on a process that is stopped, and only if `awaited` allows it.
pub(crate) fn wait_for(
    segment: &ShmSegment,
    awaited: Awaited,
    registry: &Registry,
) -> Result<(), StoppedPeer> {
    for slot in 0..SLOTS {
        let slot = slot as u8;
        let is_held = || {
            (0..ACCESSES_PER_SLOT).any(|i| awaited.concerns(segment.access(slot, i).load(Ordering::SeqCst)))
        };
        let (mut polls, mut stopped_since) = (0_u32, None);
        while is_held() {
            polls += 1;
            match polls {
                ..1000 => spin_loop(),
                _ if segment.accessor(slot).load(Ordering::Acquire) == NOBODY => break,
                1000..2000 => yield_now(),
                _ => {
                    let instance = segment.accessor(slot).load(Ordering::Acquire);
                    let Accessor::Lives(process) = find_accessor(instance, slot, registry) else {
                        // It stays if another process has just registered itself.
                        let word = segment.accessor(slot);
                        let _ = word.compare_exchange(instance, NOBODY, Ordering::SeqCst, Ordering::Relaxed);
                        continue;
                    };
                    if awaited.may_give_up() && process.is_none_or(is_stopped) {
                        let since = *stopped_since.get_or_insert_with(Instant::now);
                        if since.elapsed() > STOPPED_FOR {
                            return Err(StoppedPeer { process });
                        }
                    } else {
                        stopped_since = None;
                    }
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        }
    }
    Ok(())
}

/// The instance that registered itself for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accessor {
    /// It lives, or nothing shows that it is gone. With its process ID, if that is in the PID namespace of this process.
    Lives(Option<libc::pid_t>),
    /// It is dead, has closed its segment, or another process has the slot.
    Gone,
}

fn find_accessor(instance: u64, slot: u8, registry: &Registry) -> Accessor {
    if !registry.is_alive(slot) {
        return Accessor::Gone;
    }
    match ShmSegment::open(registry.directory(), slot) {
        Ok(now) if now.instance() == instance => Accessor::Lives(now.process()),
        Ok(_) => Accessor::Gone,
        // An error of the system, such as EMFILE or ENOMEM, shows nothing about the owner of the slot.
        Err(error) if error.kind() != ErrorKind::NotFound && error.raw_os_error().is_some() => {
            Accessor::Lives(None)
        }
        Err(_) => Accessor::Gone,
    }
}

/// Whether a process is stopped, by a signal or a debugger.
fn is_stopped(process: libc::pid_t) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|state| state.starts_with(['T', 't']))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use std::path::PathBuf;

    const QPN: Qpn = Qpn::new(0x01_1234);
    const WORD: usize = 3;

    /// A registry, its slot's segment as a local peer sees it, and an announced access of that slot in it.
    fn announced(name: &str, slot: impl Fn(&Registry) -> u8) -> (PathBuf, Registry, [ShmSegment; 2]) {
        let base = std::env::temp_dir().join(format!("ferroce-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        let registry = Registry::open(&base).unwrap();
        let own = ShmSegment::create(&registry, &[], None).unwrap();
        let theirs = ShmSegment::open(registry.directory(), registry.slot()).unwrap();
        attach(&theirs, slot(&registry), theirs.instance());
        begin(&theirs, slot(&registry), Announcement::new(1, QPN), &mut { WORD }).unwrap();
        (base, registry, [own, theirs])
    }

    #[test]
    fn an_error_of_the_system_does_not_make_a_local_peer_dead() {
        let (base, registry, [own, theirs]) = announced("unsure", Registry::slot);
        assert_eq!(find_accessor(4711, registry.slot(), &registry), Accessor::Gone);
        // Opening the segment now fails with ELOOP.
        let path = crate::segment::path_of(registry.directory(), registry.slot());
        std::fs::rename(&path, path.with_extension("away")).unwrap();
        std::os::unix::fs::symlink(&path, &path).unwrap();
        assert_eq!(find_accessor(theirs.instance(), registry.slot(), &registry), Accessor::Lives(None));
        let stopped = wait_for(&own, Awaited::Qp(QPN), &registry);
        assert_eq!(stopped, Err(StoppedPeer { process: None }));
        drop((own, theirs, registry));
        std::fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn only_the_next_owner_of_a_slot_clears_the_words_of_a_dead_one() {
        let (base, registry, [own, theirs]) = announced("cleared", |registry| registry.slot() + 1);
        let slot = registry.slot() + 1;
        wait_for(&own, Awaited::Qp(QPN), &registry).unwrap();
        assert_ne!(own.access(slot, WORD).load(Ordering::Relaxed), 0, "a new owner could have announced it");
        assert_eq!(own.accessor(slot).load(Ordering::Relaxed), NOBODY);
        wait_for(&own, Awaited::Qp(QPN), &registry).unwrap();
        attach(&theirs, slot, 4711);
        assert_eq!(own.access(slot, WORD).load(Ordering::Relaxed), 0);
        drop((own, theirs, registry));
        std::fs::remove_dir_all(base).unwrap();
    }
}
