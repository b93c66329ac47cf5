//! Socket options without a binding in any library.

use std::io;
use std::os::fd::AsRawFd;

/// Has the kernel split each datagram into packets of this length.
pub(crate) fn set_udp_segment(socket: &impl AsRawFd, length: u16) -> io::Result<()> {
    set(socket, libc::SOL_UDP, libc::UDP_SEGMENT, &libc::c_int::from(length).to_ne_bytes())
}

/// Has the kernel merge consecutive packets into one datagram.
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
