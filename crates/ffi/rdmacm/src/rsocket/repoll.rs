//! `repoll_create`, `repoll_ctl` and `repoll_wait`: a persistent set of our sockets and other descriptors, like an epoll instance.
//!
//! A set is level-triggered: `repoll_wait` polls its members as `rpoll` does. A change of the set wakes all waiting threads, each through
//! a bell of its own. The descriptor of a set is only its name.

use std::collections::BTreeMap;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::epoll_event;
use parking_lot::Mutex;

use super::errno::{Errno, Outcome};
use super::poll;
use super::socket::Socket;
use super::wait::{Bell, Sleepers, watch};

/// Sets by descriptor.
static SETS: Mutex<BTreeMap<RawFd, Arc<Set>>> = Mutex::new(BTreeMap::new());

struct Set {
    _name: OwnedFd,
    state: Mutex<State>,
}

/// Events and the program's data, by descriptor.
type Members = BTreeMap<RawFd, (i16, u64)>;

#[derive(Default)]
struct State {
    members: Members,
    /// The bells of the waiting threads. Not those of [`Bell::of_thread`], which `rpoll` uses meanwhile.
    waiters: Sleepers,
    /// Bells that no thread uses.
    spare: Vec<Arc<Bell>>,
}

/// A thread that waits, until it is dropped.
struct Waiter<'a> {
    set: &'a Set,
    bell: Arc<Bell>,
}

impl Set {
    fn enter(&self) -> Outcome<Waiter<'_>> {
        let mut state = self.state.lock();
        let bell = state.spare.pop().map_or_else(Bell::new, Ok)?;
        state.waiters.add(&bell);
        Ok(Waiter { set: self, bell })
    }

    /// Removes a member whose descriptor was closed, as epoll does.
    fn forget_closed(&self, fd: RawFd) {
        let mut state = self.state.lock();
        // Another thread may have opened and added the same number again.
        if !is_open(fd) {
            state.members.remove(&fd);
        }
    }
}

impl Waiter<'_> {
    /// The members. Every later change rings the bell.
    fn members(&self) -> Members {
        self.bell.hush();
        self.set.state.lock().members.clone()
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut state = self.set.state.lock();
        state.waiters.remove(&self.bell);
        state.spare.push(self.bell.clone());
    }
}

fn is_open(fd: RawFd) -> bool {
    // SAFETY: reads the flags of a descriptor, if there is one.
    Socket::find(fd).is_some() || unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0
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
    let name = unsafe { OwnedFd::from_raw_fd(fd) };
    SETS.lock().insert(fd, Arc::new(Set { _name: name, state: Mutex::default() }));
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
    let mut state = set.state.lock();
    let members = &mut state.members;
    let member = event.map(|event| ((event.events & COMMON) as i16, event.u64)).ok_or(Errno(libc::EFAULT));
    match (operation, members.contains_key(&fd)) {
        (libc::EPOLL_CTL_ADD, true) => return Err(Errno(libc::EEXIST)),
        (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, false) => return Err(Errno(libc::ENOENT)),
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, _) => drop(members.insert(fd, member?)),
        (libc::EPOLL_CTL_DEL, true) => drop(members.remove(&fd)),
        _ => return Err(Errno(libc::EINVAL)),
    }
    state.waiters.wake(None);
    Ok(())
}

/// Waits for events of the members. Returns the number of members with events.
pub(crate) fn wait(set: RawFd, events: &mut [epoll_event], timeout_ms: i32) -> Outcome<usize> {
    if events.is_empty() {
        return Err(Errno(libc::EINVAL));
    }
    let set = find(set)?;
    let waiter = set.enter()?;
    let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let members = waiter.members();
        let mut fds = vec![watch(waiter.bell.fd(), libc::POLLIN)];
        fds.extend(members.iter().map(|(fd, (events, _))| watch(*fd, *events)));
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        poll::poll_for(&mut fds, left)?;
        let closed = fds[1..].iter().filter(|fd| fd.revents & libc::POLLNVAL != 0);
        closed.for_each(|fd| set.forget_closed(fd.fd));
        let ready = fds[1..].iter().zip(members.values()).filter_map(|(fd, (_, word))| {
            let present = u32::from(fd.revents as u16) & COMMON;
            (present != 0).then_some(epoll_event { events: present, u64: *word })
        });
        let mut count = 0;
        for (slot, event) in events.iter_mut().zip(ready) {
            *slot = event;
            count += 1;
        }
        if count > 0 || until.is_some_and(|until| until <= Instant::now()) {
            return Ok(count);
        }
    }
}
