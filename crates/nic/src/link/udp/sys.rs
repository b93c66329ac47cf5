//! The system calls of the UDP link, behind safe signatures.
//!
//! All `unsafe` of this link is here. Addresses and control messages are built and read as plain bytes, so only the calls
//! themselves are `unsafe`.

use super::address::SockAddr;
use super::control::Control;
use crate::link::TxBatch;
use crate::link::batch::{RX_BUFFERS, TxPiece};
use smallvec::SmallVec;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};

/// Most messages of one `sendmmsg`.
pub(super) const TX_BURST: usize = 16;

/// Pieces of the messages of one call: without allocation for two long GSO runs with external payloads.
type Pieces = SmallVec<[libc::iovec; 64]>;

/// A message to send: consecutive packets of a batch, and where they go.
#[derive(Clone, Debug)]
pub(super) struct OutMessage {
    pub(super) to: SockAddr,
    pub(super) control: Control,
    pub(super) packets: Range<usize>,
}

/// The source, control messages and length of a received message.
#[derive(Clone, Debug, Default)]
pub(super) struct InMessage {
    pub(super) from: SockAddr,
    pub(super) control: Control,
    pub(super) len: usize,
}

/// Sets a socket option.
pub(super) fn set_option<T: Copy>(
    socket: &impl AsRawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the descriptor is open while `socket` is borrowed; `value` is readable for the length given.
    let rc = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Kernel memory figures of a socket (`SK_MEMINFO_*`): receive buffer limit and datagrams dropped for lack of it.
pub(super) fn memory_figures(socket: &impl AsRawFd) -> (u64, u64) {
    const RCVBUF: usize = 1;
    const DROPS: usize = 8;
    let mut figures = [0_u32; 9];
    let mut len = size_of_val(&figures) as libc::socklen_t;
    // SAFETY: the descriptor is open while `socket` is borrowed; `figures` is writable for `len` bytes.
    unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            figures.as_mut_ptr().cast(),
            &mut len,
        )
    };
    (u64::from(figures[RCVBUF]), u64::from(figures[DROPS]))
}

/// Attaches the program that picks a socket of the group (`SO_ATTACH_REUSEPORT_CBPF`).
pub(super) fn attach_steering(socket: &impl AsRawFd, program: &[libc::sock_filter]) -> io::Result<()> {
    let fprog = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // The kernel copies the program and does not write to it.
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, fprog)
}

/// Sends at most [`TX_BURST`] messages of `batch` and returns how many the kernel took. An error concerns the first message; the
/// others were not tried.
///
/// A single message uses the cheapest system call. All calls here bypass the C library's wrappers, which spend time
/// on thread cancellation.
pub(super) fn send_messages(fd: RawFd, batch: &TxBatch, messages: &[OutMessage]) -> io::Result<usize> {
    if let [one] = messages
        && one.control.is_empty()
        && let Some(bytes) = batch.in_one_piece(one.packets.clone())
    {
        return send_plain(fd, bytes, &one.to);
    }
    send_many(fd, batch, messages)
}

/// Sends one packet that has no control messages.
pub(super) fn send_plain(fd: RawFd, bytes: &[u8], to: &SockAddr) -> io::Result<usize> {
    // SAFETY: data and address are readable for the lengths given.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_sendto,
            fd,
            bytes.as_ptr(),
            bytes.len(),
            libc::MSG_DONTWAIT,
            to.as_ptr(),
            to.len(),
        )
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(1) }
}

fn as_iovec(piece: TxPiece<'_>) -> libc::iovec {
    let (start, len) = match piece {
        TxPiece::Arena(bytes) => (bytes.as_ptr(), bytes.len()),
        TxPiece::External(external) => (external.as_ptr(), external.len()),
    };
    libc::iovec { iov_base: start.cast_mut().cast(), iov_len: len }
}

fn send_many(fd: RawFd, batch: &TxBatch, messages: &[OutMessage]) -> io::Result<usize> {
    let count = messages.len().min(TX_BURST);
    let mut pieces = Pieces::new();
    let mut piece_counts = [0; TX_BURST];
    for (message, pieces_of_message) in messages[..count].iter().zip(&mut piece_counts) {
        let before = pieces.len();
        batch.each_piece(message.packets.clone(), |piece| pieces.push(as_iovec(piece)));
        *pieces_of_message = pieces.len() - before;
    }
    let mut rest = &mut pieces[..];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; TX_BURST];
    for (i, message) in messages[..count].iter().enumerate() {
        // SAFETY: all-zero is a valid `mmsghdr` (null pointers, zero lengths).
        let header = headers[i].write(unsafe { MaybeUninit::zeroed().assume_init() });
        header.msg_hdr.msg_name = message.to.as_ptr().cast_mut().cast();
        header.msg_hdr.msg_namelen = message.to.len();
        let (of_message, later) = rest.split_at_mut(piece_counts[i]);
        rest = later;
        header.msg_hdr.msg_iov = of_message.as_mut_ptr();
        header.msg_hdr.msg_iovlen = of_message.len() as _;
        if !message.control.is_empty() {
            header.msg_hdr.msg_control = message.control.as_ptr().cast_mut().cast();
            header.msg_hdr.msg_controllen = message.control.len() as _;
        }
    }
    let headers = headers.as_mut_ptr().cast::<libc::mmsghdr>();
    // SAFETY: the first `count` headers were written above and point to memory that lives until the end of this function;
    // a sending call does not write through them, so making them from shared borrows is sound. Payloads that lie in a
    // region are readable as long as the batch holds their packets (`TxBatch::reserve_external`); the kernel does not
    // mind that the application may write them meanwhile. `sendmsg` takes the `msghdr` that a `mmsghdr` begins with.
    let sent = unsafe {
        match count {
            1 => libc::syscall(libc::SYS_sendmsg, fd, headers, libc::MSG_DONTWAIT).min(1),
            _ => libc::syscall(libc::SYS_sendmmsg, fd, headers, count, libc::MSG_DONTWAIT),
        }
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}

/// Receives messages into pieces of `buffer_len` bytes of `memory`, at most `into.len()` messages.
pub(super) fn receive_messages(
    fd: RawFd,
    memory: &mut [u8],
    buffer_len: usize,
    into: &mut [InMessage],
) -> io::Result<usize> {
    let count = into.len().min(RX_BUFFERS).min(memory.len() / buffer_len);
    let mut pieces = [const { MaybeUninit::<libc::iovec>::uninit() }; RX_BUFFERS];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; RX_BUFFERS];
    for (i, message) in into[..count].iter_mut().enumerate() {
        let buffer = &mut memory[i * buffer_len..(i + 1) * buffer_len];
        pieces[i].write(libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer_len });
        // SAFETY: all-zero is a valid `mmsghdr` (null pointers, zero lengths).
        let header = headers[i].write(unsafe { MaybeUninit::zeroed().assume_init() });
        header.msg_hdr.msg_name = message.from.as_mut_ptr().cast();
        header.msg_hdr.msg_namelen = SockAddr::CAPACITY;
        header.msg_hdr.msg_iov = pieces[i].as_mut_ptr();
        header.msg_hdr.msg_iovlen = 1;
        header.msg_hdr.msg_control = message.control.as_mut_ptr().cast();
        header.msg_hdr.msg_controllen = Control::CAPACITY as _;
    }
    let first = headers.as_mut_ptr().cast::<libc::mmsghdr>();
    // SAFETY: the first `count` headers were written above; they point to disjoint memory that is borrowed mutably until
    // the end of this function, each with its true length. `recvmsg` takes the `msghdr` that a `mmsghdr` begins with; it
    // returns the length that `recvmmsg` would store, which is stored here in its stead.
    let received = unsafe {
        if count == 1 {
            let len = libc::syscall(libc::SYS_recvmsg, fd, first, libc::MSG_DONTWAIT);
            (*first).msg_len = len.max(0) as libc::c_uint;
            if len < 0 { len } else { 1 }
        } else {
            let no_timeout = std::ptr::null_mut::<libc::timespec>();
            libc::syscall(libc::SYS_recvmmsg, fd, first, count, libc::MSG_DONTWAIT, no_timeout)
        }
    };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    for (header, message) in headers.iter().zip(into).take(received as usize) {
        // SAFETY: the first `count >= received` headers were written above.
        let header = unsafe { header.assume_init_ref() };
        message.len = header.msg_len as usize;
        message.control.set_len(header.msg_hdr.msg_controllen as _);
    }
    Ok(received as usize)
}

/// Receives one message by the cheapest call, without control messages. Polls the socket at most `polls` times. Returns the
/// number of messages and of polls.
pub(super) fn receive_plain(fd: RawFd, buffer: &mut [u8], into: &mut InMessage, polls: u64) -> (usize, u64) {
    for poll in 1..=polls {
        let mut from_len = SockAddr::CAPACITY;
        // SAFETY: buffer and address are writable for the lengths given.
        let len = unsafe {
            libc::syscall(
                libc::SYS_recvfrom,
                fd,
                buffer.as_mut_ptr(),
                buffer.len(),
                libc::MSG_DONTWAIT,
                into.from.as_mut_ptr(),
                &raw mut from_len,
            )
        };
        if len >= 0 {
            into.len = len as usize;
            into.control.set_len(0);
            return (1, poll);
        }
    }
    (0, polls)
}

/// Waits until the socket is writable, at most `timeout_ms`.
pub(super) fn wait_writable(fd: RawFd, timeout_ms: i32) {
    let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one valid `pollfd`.
    unsafe { libc::poll(&mut poll, 1, timeout_ms) };
}
