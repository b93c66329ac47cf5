//! Socket options without a binding in any library.

use std::io;
use std::os::fd::AsRawFd;

/// Makes the kernel split each datagram into packets of this length.
pub(crate) fn set_udp_segment(socket: &impl AsRawFd, length: u16) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_SEGMENT, &libc::c_int::from(length).to_ne_bytes())
}

/// Makes the kernel merge consecutive packets into one datagram.
pub(crate) fn set_udp_gro(socket: &impl AsRawFd) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_GRO, &1_i32.to_ne_bytes())
}

/// Sets any option; `value` is what the kernel reads.
pub(crate) fn set(
    socket: &impl AsRawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &[u8],
) -> io::Result<()> {
    // SAFETY: the kernel reads `value.len()` bytes of a slice that lives through the call.
    let code = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The user at the other end of a connected Unix socket.
pub(crate) fn peer_uid(socket: &impl AsRawFd) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, which are one `ucred`.
    let code = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    if code == 0 { Ok(peer.uid) } else { Err(io::Error::last_os_error()) }
}
