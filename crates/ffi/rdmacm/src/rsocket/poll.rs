//! `rpoll` and `rselect`: our sockets and any other descriptor in one call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::{fd_set, pollfd, timeval};

use super::errno::{Errno, Outcome};
use super::settings::Defaults;
use super::socket::Socket;
use super::wait::{Bell, sleep_on, watch};
use super::waiting::PROBE_AFTER;

/// The descriptors of a call of `rpoll`, and the sockets of ours among them.
struct Watch<'a> {
    fds: &'a mut [pollfd],
    sockets: Vec<Option<Arc<Socket>>>,
}

impl Watch<'_> {
    /// Polls all descriptors once. Returns the number with events.
    fn poll_once(&mut self, own: Option<&Arc<Bell>>) -> Outcome<usize> {
        let mut others: Vec<pollfd> = Vec::new();
        for (fd, socket) in self.fds.iter_mut().zip(&self.sockets) {
            match socket {
                Some(socket) => fd.revents = socket.pollable().ready(fd.events, own),
                None => others.push(watch(fd.fd, fd.events)),
            }
        }
        if !others.is_empty() {
            sleep_on(&mut others, Some(Instant::now()))?;
            self.copy_others(&others);
        }
        Ok(self.count())
    }

    fn copy_others(&mut self, others: &[pollfd]) {
        let foreign = self.fds.iter_mut().zip(&self.sockets).filter(|(_, socket)| socket.is_none());
        for ((fd, _), other) in foreign.zip(others) {
            fd.revents = other.revents;
        }
    }

    fn count(&self) -> usize {
        self.fds.iter().filter(|fd| fd.revents != 0).count()
    }

    fn register(&self, bell: &Arc<Bell>, here: bool) {
        self.sockets.iter().flatten().for_each(|socket| socket.pollable().register(bell, here));
    }

    /// Sleeps until an event or the deadline. Returns the number of descriptors with events.
    fn sleep(&mut self, bell: &Arc<Bell>, deadline: Option<Instant>) -> Outcome<usize> {
        let mut slots = vec![watch(bell.fd(), libc::POLLIN)];
        // The index of each socket's first descriptor.
        let mut begins = Vec::with_capacity(self.fds.len());
        for (fd, socket) in self.fds.iter_mut().zip(&self.sockets) {
            begins.push(slots.len());
            match socket {
                Some(socket) => fd.revents = socket.pollable().prepare(bell, fd.events, &mut slots),
                None => {
                    fd.revents = 0;
                    slots.push(watch(fd.fd, fd.events));
                }
            }
        }
        if self.count() > 0 {
            return self.poll_once(Some(bell));
        }
        let quiet = Instant::now() + PROBE_AFTER;
        let woken = sleep_on(&mut slots, Some(deadline.map_or(quiet, |deadline| deadline.min(quiet))))?;
        bell.hush();
        begins.push(slots.len());
        for ((fd, socket), range) in self.fds.iter_mut().zip(&self.sockets).zip(begins.windows(2)) {
            let mine = &slots[range[0]..range[1]];
            match socket {
                None => fd.revents = mine.first().map_or(0, |slot| slot.revents),
                Some(socket) if woken == 0 => socket.pollable().fall_silent(),
                Some(socket) if mine.iter().any(|slot| slot.revents != 0) => socket.pollable().awaken(bell),
                Some(_) => {}
            }
        }
        for (fd, socket) in self.fds.iter_mut().zip(&self.sockets) {
            if let Some(socket) = socket {
                fd.revents = socket.pollable().ready(fd.events, Some(bell));
            }
        }
        Ok(self.count())
    }
}

/// `rpoll`. A negative `timeout_ms` means no timeout.
pub(crate) fn poll(fds: &mut [pollfd], timeout_ms: i32) -> Outcome<usize> {
    let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    poll_for(fds, timeout)
}

/// The same with an optional timeout.
pub(crate) fn poll_for(fds: &mut [pollfd], timeout: Option<Duration>) -> Outcome<usize> {
    let started = Instant::now();
    // A timeout beyond the range of the clock means no deadline.
    let deadline = timeout.and_then(|timeout| started.checked_add(timeout));
    let sockets = fds.iter().map(|fd| Socket::find(fd.fd)).collect();
    let mut watch = Watch { fds, sockets };
    let spinning = Duration::from_micros(Defaults::of_machine().polling_us);
    loop {
        let ready = watch.poll_once(None)?;
        if ready > 0 || timeout == Some(Duration::ZERO) {
            return Ok(ready);
        }
        if started.elapsed() >= spinning {
            break;
        }
    }
    let bell = Bell::of_thread()?;
    bell.hush();
    watch.register(&bell, true);
    let outcome = loop {
        match watch.sleep(&bell, deadline) {
            Ok(0) if deadline.is_some_and(|deadline| deadline <= Instant::now()) => break Ok(0),
            Ok(0) => {}
            other => break other,
        }
    };
    watch.register(&bell, false);
    outcome
}

/// The sets of `rselect`; each may be NULL.
pub(crate) struct Sets {
    pub(crate) read: *mut fd_set,
    pub(crate) write: *mut fd_set,
    pub(crate) except: *mut fd_set,
}

impl Sets {
    /// # Safety
    /// The set is NULL or valid.
    unsafe fn has(set: *mut fd_set, fd: i32) -> bool {
        // SAFETY: what the caller promises; `fd` is below FD_SETSIZE.
        !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }
    }

    /// # Safety
    /// The sets are NULL or valid.
    unsafe fn to_poll(&self, count: i32) -> Vec<pollfd> {
        let mut fds = Vec::new();
        for fd in 0..count {
            // SAFETY: what the caller promises.
            let (read, write, except) =
                unsafe { (Self::has(self.read, fd), Self::has(self.write, fd), Self::has(self.except, fd)) };
            let mut events = if read { libc::POLLIN } else { 0 };
            events |= if write { libc::POLLOUT } else { 0 };
            if read || write || except {
                fds.push(watch(fd, events));
            }
        }
        fds
    }

    /// Writes the results back; returns the number of bits.
    ///
    /// # Safety
    /// The sets are NULL or valid.
    unsafe fn answer(&self, fds: &[pollfd]) -> usize {
        let mut bits = 0;
        let kinds = [
            (self.read, libc::POLLIN | libc::POLLHUP | libc::POLLERR),
            (self.write, libc::POLLOUT | libc::POLLERR),
            (self.except, libc::POLLPRI),
        ];
        let needed = [libc::POLLIN, libc::POLLOUT, 0];
        for ((set, mask), needed) in kinds.into_iter().zip(needed).filter(|((set, _), _)| !set.is_null()) {
            // SAFETY: what the caller promises.
            unsafe { libc::FD_ZERO(set) };
            for fd in fds.iter().filter(|fd| fd.revents & mask != 0 && fd.events & needed == needed) {
                // SAFETY: as above.
                unsafe { libc::FD_SET(fd.fd, set) };
                bits += 1;
            }
        }
        bits
    }
}

/// `rselect`.
///
/// # Safety
/// The sets and the time are NULL or valid.
pub(crate) unsafe fn select(count: i32, sets: &Sets, timeout: *const timeval) -> Outcome<usize> {
    if !(0..=libc::FD_SETSIZE as i32).contains(&count) {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: what the caller promises.
    let (mut fds, timeout) = unsafe {
        let timeout = timeout.as_ref().map(|time| {
            let seconds = Duration::from_secs(time.tv_sec.max(0) as u64);
            seconds + Duration::from_micros(time.tv_usec.max(0) as u64)
        });
        (sets.to_poll(count), timeout)
    };
    poll_for(&mut fds, timeout)?;
    if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: what the caller promises.
    Ok(unsafe { sets.answer(&fds) })
}
