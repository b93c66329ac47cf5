//! `repoll_create`, `repoll_ctl` and `repoll_wait`: a persistent set of our sockets and other descriptors, like an epoll instance.
//!
//! A set is level-triggered: `repoll_wait` polls its members as `rpoll` does. Its descriptor is an eventfd that wakes a waiting thread
//! when the set changes.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{epoll_event, pollfd};
use parking_lot::Mutex;

use super::errno::{Errno, Outcome};
use super::poll;

/// Sets by descriptor.
static SETS: Mutex<BTreeMap<RawFd, Arc<Set>>> = Mutex::new(BTreeMap::new());

struct Set {
    changed: OwnedFd,
    /// Events and the program's data, by descriptor.
    members: Mutex<BTreeMap<RawFd, (i16, u64)>>,
}

/// Events that `poll` and `epoll` have in common, with equal numbers.
const COMMON: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// Makes a set. The only flag with an effect is `O_CLOEXEC`.
pub(crate) fn create(flags: i32) -> Outcome<RawFd> {
    let cloexec = if flags & libc::O_CLOEXEC != 0 { libc::EFD_CLOEXEC } else { 0 };
    // SAFETY: makes a descriptor.
    let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | cloexec) };
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: the new descriptor has no other owner.
    let changed = unsafe { OwnedFd::from_raw_fd(fd) };
    SETS.lock().insert(fd, Arc::new(Set { changed, members: Mutex::default() }));
    Ok(fd)
}

/// Closes a set. Returns whether the descriptor was one.
pub(crate) fn close(fd: RawFd) -> bool {
    SETS.lock().remove(&fd).is_some()
}

fn find(fd: RawFd) -> Outcome<Arc<Set>> {
    SETS.lock().get(&fd).cloned().ok_or(Errno(libc::EINVAL))
}

/// Adds, changes or removes a member.
pub(crate) fn control(set: RawFd, operation: i32, fd: RawFd, event: Option<epoll_event>) -> Outcome<()> {
    if fd < 0 {
        return Err(Errno(libc::EBADF));
    }
    if fd == set {
        return Err(Errno(libc::EINVAL));
    }
    let set = find(set)?;
    let mut members = set.members.lock();
    let member = event.map(|event| ((event.events & COMMON) as i16, event.u64)).ok_or(Errno(libc::EFAULT));
    match (operation, members.contains_key(&fd)) {
        (libc::EPOLL_CTL_ADD, true) => return Err(Errno(libc::EEXIST)),
        (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, false) => return Err(Errno(libc::ENOENT)),
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, _) => drop(members.insert(fd, member?)),
        (libc::EPOLL_CTL_DEL, true) => drop(members.remove(&fd)),
        _ => return Err(Errno(libc::EINVAL)),
    }
    drop(members);
    let one = 1_u64;
    // SAFETY: writes eight bytes of ours.
    unsafe { libc::write(set.changed.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
    Ok(())
}

/// Waits for events of the members. Returns the number of members with events.
pub(crate) fn wait(set: RawFd, events: &mut [epoll_event], timeout_ms: i32) -> Outcome<usize> {
    if events.is_empty() {
        return Err(Errno(libc::EINVAL));
    }
    let set = find(set)?;
    let watch = |fd, events| pollfd { fd, events, revents: 0 };
    let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let members = set.members.lock().clone();
        let mut fds = vec![watch(set.changed.as_raw_fd(), libc::POLLIN)];
        fds.extend(members.iter().map(|(fd, (events, _))| watch(*fd, *events)));
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        poll::poll_for(&mut fds, left)?;
        let ready = fds[1..].iter().zip(members.values()).filter(|(fd, _)| fd.revents != 0);
        let mut count = 0;
        for (event, (fd, (_, word))) in events.iter_mut().zip(ready) {
            *event = epoll_event { events: u32::from(fd.revents as u16) & COMMON, u64: *word };
            count += 1;
        }
        let mut changes = 0_u64;
        // SAFETY: reads eight bytes into a variable, or nothing.
        unsafe { libc::read(set.changed.as_raw_fd(), (&raw mut changes).cast(), size_of::<u64>()) };
        if count > 0 || until.is_some_and(|until| until <= Instant::now()) {
            return Ok(count);
        }
    }
}
