//! The calls for C programs: C arguments in, and -1 with `errno` on failure.
//!
//! Every pointer comes from the program. The manual pages of the socket calls define which pointers must be valid, and each
//! `SAFETY` comment relies on that. NULL is refused unless it has a meaning.

use std::ffi::{c_int, c_long, c_void};

use libc::{epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sockaddr, socklen_t, timeval};

use super::address::Address;
use super::connection::KeepAlive;
use super::errno::{Errno, Outcome, answer};
use super::keepalive;
use super::option::{Given, Taken};
use super::poll::{self, Sets};
use super::repoll;
use super::socket::{Socket, either};
use super::stream::Direction;
use super::vectors::Vectors;
use ferroce_bridge::export;

export! {
    raccept, rbind, rclose, rconnect, rfcntl, rgetpeername, rgetsockname, rgetsockopt, riomap, riounmap,
    riowrite, rlisten, rpoll, rread, rreadv, rrecv, rrecvfrom, rrecvmsg, rselect, rsend, rsendmsg, rsendto,
    rsetsockopt, rshutdown, rsocket, rwrite, rwritev, repoll_create, repoll_ctl, repoll_wait,
}

extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    answer(|| Socket::open(domain, kind, protocol))
}

unsafe extern "C" fn rbind(socket: c_int, addr: *const sockaddr, length: socklen_t) -> c_int {
    answer(|| {
        let socket = Socket::of(socket)?;
        // SAFETY: bind(2).
        let address = unsafe { Address::read(addr, length)? };
        either!(&*socket, socket => socket.bind(address)).map(|()| 0)
    })
}

extern "C" fn rlisten(socket: c_int, backlog: c_int) -> c_int {
    answer(|| Socket::of(socket)?.stream()?.listen(backlog).map(|()| 0))
}

unsafe extern "C" fn raccept(socket: c_int, addr: *mut sockaddr, length: *mut socklen_t) -> c_int {
    answer(|| {
        let connection = Socket::of(socket)?.stream()?.accept()?;
        if !addr.is_null() {
            // SAFETY: accept(2).
            unsafe { connection.peer_address()?.write(addr, length)? };
        }
        Ok(Socket::Stream(Box::new(connection)).publish())
    })
}

unsafe extern "C" fn rconnect(socket: c_int, addr: *const sockaddr, length: socklen_t) -> c_int {
    answer(|| {
        let socket = Socket::of(socket)?;
        // SAFETY: connect(2).
        let address = unsafe { Address::read(addr, length)? };
        either!(&*socket, socket => socket.connect(address)).map(|()| 0)
    })
}

extern "C" fn rshutdown(socket: c_int, how: c_int) -> c_int {
    answer(|| {
        let direction = match how {
            libc::SHUT_RD => Direction::Read,
            libc::SHUT_WR => Direction::Write,
            libc::SHUT_RDWR => Direction::Both,
            _ => return Err(Errno(libc::EINVAL)),
        };
        match &*Socket::of(socket)? {
            Socket::Stream(stream) => stream.shut_down(direction)?,
            Socket::Datagram(datagrams) => datagrams.shut_down()?,
        }
        Ok(0)
    })
}

extern "C" fn rclose(socket: c_int) -> c_int {
    answer(|| if repoll::close(socket) { Ok(0) } else { Socket::close(socket).map(|()| 0) })
}

/// One buffer as a list.
fn single(buffer: *const c_void, length: usize) -> [iovec; 1] {
    [iovec { iov_base: buffer.cast_mut(), iov_len: length }]
}

/// Receives into buffers, and writes the source if requested.
///
/// # Safety
/// `addr` is NULL, or `length` points to the number of bytes at `addr`.
unsafe fn receive(
    socket: c_int,
    into: Vectors<'_>,
    flags: c_int,
    addr: *mut sockaddr,
    length: *mut socklen_t,
) -> Outcome<isize> {
    let socket = Socket::of(socket)?;
    let needs_source = !addr.is_null();
    match &*socket {
        Socket::Stream(stream) => {
            let got = stream.receive(into, flags)?;
            if needs_source && got > 0 {
                // SAFETY: what the caller promises.
                unsafe { stream.peer_address()?.write(addr, length)? };
            }
            Ok(got as isize)
        }
        Socket::Datagram(datagrams) => {
            let received = datagrams.receive(into, flags)?;
            if needs_source {
                // SAFETY: what the caller promises.
                unsafe { received.source.write(addr, length)? };
            }
            let whole = flags & libc::MSG_TRUNC != 0;
            Ok(if whole { received.length } else { received.copied } as isize)
        }
    }
}

fn send(socket: c_int, from: Vectors<'_>, flags: c_int, to: Option<Address>) -> Outcome<isize> {
    let sent = match &*Socket::of(socket)? {
        Socket::Stream(_) if to.is_some() => return Err(Errno(libc::EISCONN)),
        Socket::Stream(stream) => stream.send(from, flags)?,
        Socket::Datagram(datagrams) => datagrams.send(from, to, flags)?,
    };
    Ok(sent as isize)
}

unsafe extern "C" fn rrecv(socket: c_int, buffer: *mut c_void, length: usize, flags: c_int) -> isize {
    // SAFETY: recv(2).
    unsafe { rrecvfrom(socket, buffer, length, flags, std::ptr::null_mut(), std::ptr::null_mut()) }
}

unsafe extern "C" fn rrecvfrom(
    socket: c_int,
    buffer: *mut c_void,
    length: usize,
    flags: c_int,
    addr: *mut sockaddr,
    addr_length: *mut socklen_t,
) -> isize {
    let list = single(buffer, length);
    // SAFETY: recvfrom(2).
    answer(|| unsafe { receive(socket, Vectors::new(&list)?, flags, addr, addr_length) })
}

unsafe extern "C" fn rrecvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> isize {
    answer(|| {
        // SAFETY: recvmsg(2).
        unsafe {
            let message = message.as_mut().ok_or(Errno(libc::EFAULT))?;
            let count = c_int::try_from(message.msg_iovlen).map_err(|_| Errno(libc::EMSGSIZE))?;
            let into = Vectors::of_list(message.msg_iov, count)?;
            let got = receive(socket, into, flags, message.msg_name.cast(), &mut message.msg_namelen)?;
            // Messages have no ancillary data.
            message.msg_controllen = 0;
            message.msg_flags = 0;
            Ok(got)
        }
    })
}

unsafe extern "C" fn rread(socket: c_int, buffer: *mut c_void, length: usize) -> isize {
    // SAFETY: read(2).
    unsafe { rrecv(socket, buffer, length, 0) }
}

unsafe extern "C" fn rreadv(socket: c_int, list: *const iovec, count: c_int) -> isize {
    let nowhere = std::ptr::null_mut();
    // SAFETY: readv(2).
    answer(|| unsafe { receive(socket, Vectors::of_list(list, count)?, 0, nowhere, std::ptr::null_mut()) })
}

unsafe extern "C" fn rsend(socket: c_int, buffer: *const c_void, length: usize, flags: c_int) -> isize {
    let list = single(buffer, length);
    answer(|| send(socket, Vectors::new(&list)?, flags, None))
}

unsafe extern "C" fn rsendto(
    socket: c_int,
    buffer: *const c_void,
    length: usize,
    flags: c_int,
    addr: *const sockaddr,
    addr_length: socklen_t,
) -> isize {
    let list = single(buffer, length);
    answer(|| {
        // SAFETY: sendto(2).
        let to = if addr.is_null() { None } else { Some(unsafe { Address::read(addr, addr_length)? }) };
        send(socket, Vectors::new(&list)?, flags, to)
    })
}

unsafe extern "C" fn rsendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> isize {
    answer(|| {
        // SAFETY: sendmsg(2).
        unsafe {
            let message = message.as_ref().ok_or(Errno(libc::EFAULT))?;
            if !message.msg_control.is_null() && message.msg_controllen > 0 {
                return Err(Errno(libc::ENOTSUP));
            }
            let count = c_int::try_from(message.msg_iovlen).map_err(|_| Errno(libc::EMSGSIZE))?;
            let from = Vectors::of_list(message.msg_iov, count)?;
            let named = !message.msg_name.is_null() && message.msg_namelen > 0;
            let to =
                if named { Some(Address::read(message.msg_name.cast(), message.msg_namelen)?) } else { None };
            send(socket, from, flags, to)
        }
    })
}

unsafe extern "C" fn rwrite(socket: c_int, buffer: *const c_void, length: usize) -> isize {
    // SAFETY: write(2).
    unsafe { rsend(socket, buffer, length, 0) }
}

unsafe extern "C" fn rwritev(socket: c_int, list: *const iovec, count: c_int) -> isize {
    // SAFETY: writev(2).
    answer(|| send(socket, unsafe { Vectors::of_list(list, count)? }, 0, None))
}

unsafe extern "C" fn rpoll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    answer(|| {
        let mut none = [];
        let fds = match count {
            0 => &mut none[..],
            _ if fds.is_null() => return Err(Errno(libc::EFAULT)),
            // SAFETY: poll(2).
            _ => unsafe { std::slice::from_raw_parts_mut(fds, count as usize) },
        };
        Ok(poll::poll(fds, timeout_ms)? as c_int)
    })
}

extern "C" fn repoll_create(flags: c_int) -> c_int {
    answer(|| repoll::create(flags))
}

/// Returns the error number itself on failure, as rdma-core does.
unsafe extern "C" fn repoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    answer(|| {
        // SAFETY: epoll_ctl(2).
        let event = unsafe { event.as_ref() }.copied();
        Ok(repoll::control(set, operation, fd, event).err().map_or(0, |Errno(number)| number))
    })
}

unsafe extern "C" fn repoll_wait(
    set: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout_ms: c_int,
) -> c_int {
    answer(|| {
        if events.is_null() || max <= 0 {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: epoll_wait(2).
        let events = unsafe { std::slice::from_raw_parts_mut(events, max as usize) };
        Ok(repoll::wait(set, events, timeout_ms)? as c_int)
    })
}

unsafe extern "C" fn rselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: select(2).
    answer(|| Ok(unsafe { poll::select(count, &Sets { read, write, except }, timeout)? } as c_int))
}

unsafe extern "C" fn rgetpeername(socket: c_int, addr: *mut sockaddr, length: *mut socklen_t) -> c_int {
    answer(|| {
        let address = either!(&*Socket::of(socket)?, socket => socket.peer_address()?);
        // SAFETY: getpeername(2).
        unsafe { address.write(addr, length).map(|()| 0) }
    })
}

unsafe extern "C" fn rgetsockname(socket: c_int, addr: *mut sockaddr, length: *mut socklen_t) -> c_int {
    answer(|| {
        let address = match &*Socket::of(socket)? {
            Socket::Stream(stream) => stream.local_address(),
            Socket::Datagram(datagrams) => datagrams.local_address()?,
        };
        // SAFETY: getsockname(2).
        unsafe { address.write(addr, length).map(|()| 0) }
    })
}

unsafe extern "C" fn rsetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    answer(|| {
        let socket = Socket::of(socket)?;
        // SAFETY: setsockopt(2).
        let value = unsafe { Given::new(value, length)? };
        let wish = match &*socket {
            Socket::Stream(stream) => stream.set_option(level, name, &value)?,
            Socket::Datagram(datagrams) => {
                datagrams.set_option(level, name, &value)?;
                KeepAlive::Unchanged
            }
        };
        match wish {
            KeepAlive::Unchanged => {}
            KeepAlive::Every(interval) => keepalive::start(&socket, interval),
            KeepAlive::Off => keepalive::stop(&socket),
        }
        Ok(0)
    })
}

unsafe extern "C" fn rgetsockopt(
    socket: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    answer(|| {
        let socket = Socket::of(socket)?;
        // SAFETY: getsockopt(2).
        let mut into = unsafe { Taken::new(value, length)? };
        either!(&*socket, socket => socket.option(level, name, &mut into)).map(|()| 0)
    })
}

/// `rfcntl` is variadic. On the supported machines, a single number is in the same register as for a fixed argument. Commands
/// without an argument ignore it.
extern "C" fn rfcntl(socket: c_int, command: c_int, argument: c_long) -> c_int {
    answer(|| either!(&*Socket::of(socket)?, socket => socket.flags.control(command, argument as c_int)))
}

extern "C" fn riomap(
    socket: c_int,
    buffer: *mut c_void,
    length: usize,
    protection: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    answer(|| Socket::of(socket)?.stream()?.map(buffer, length, protection, offset))
}

extern "C" fn riounmap(socket: c_int, buffer: *mut c_void, length: usize) -> c_int {
    answer(|| Socket::of(socket)?.stream()?.unmap(buffer, length).map(|()| 0))
}

/// Returns -1 as the largest number, since the header declares an unsigned result.
unsafe extern "C" fn riowrite(
    socket: c_int,
    buffer: *const c_void,
    length: usize,
    offset: off_t,
    flags: c_int,
) -> isize {
    let list = single(buffer, length);
    answer(|| {
        let socket = Socket::of(socket)?;
        let written = socket.stream()?.write_mapped(Vectors::new(&list)?, offset as u64, flags)?;
        Ok(written as isize)
    })
}
