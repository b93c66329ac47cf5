//! A packet socket: whole frames of one interface.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Bytes that wait in the kernel while the receiving thread is not there.
const RECEIVE_BUFFER_BYTES: libc::c_int = 4 << 20;
/// A VLAN tag, which the kernel takes out of a frame and hands over beside it.
const TAG_BYTES: usize = 4;
/// Both addresses: the tag belongs behind them.
const ADDRESSES: usize = 12;

/// What arrived.
pub(super) struct Received {
    /// Where in the buffer the frame lies.
    pub(super) frame: std::ops::Range<usize>,
    /// It is leaving this host, and we only watch.
    pub(super) is_outgoing: bool,
}

pub(super) struct PacketSocket {
    fd: OwnedFd,
    if_index: u32,
}

impl PacketSocket {
    /// Opens it for sending; needs CAP_NET_RAW.
    pub(super) fn open(if_index: u32) -> io::Result<Self> {
        // SAFETY: a plain system call; the result is checked and owned from here on.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is a descriptor that nobody else owns.
        let socket = PacketSocket { fd: unsafe { OwnedFd::from_raw_fd(fd) }, if_index };
        socket.bind(0)?;
        Ok(socket)
    }

    /// Receives from now on whatever passes the interface.
    pub(super) fn listen(&self) -> io::Result<()> {
        let one: libc::c_int = 1;
        // Without these two it works less well, but it works.
        let _ = self.set(libc::SOL_SOCKET, libc::SO_RCVBUF, &RECEIVE_BUFFER_BYTES);
        let _ = self.set(libc::SOL_PACKET, libc::PACKET_AUXDATA, &one);
        let membership = libc::packet_mreq {
            mr_ifindex: self.if_index as libc::c_int,
            mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)?;
        self.bind(libc::ETH_P_ALL as u16)
    }

    fn bind(&self, protocol: u16) -> io::Result<()> {
        // SAFETY: all zero is a valid address of this family.
        let mut addr: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        addr.sll_family = libc::AF_PACKET as libc::c_ushort;
        addr.sll_protocol = protocol.to_be();
        addr.sll_ifindex = self.if_index as libc::c_int;
        let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the address is a sockaddr_ll, and `len` is its size.
        let failed = unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const addr).cast(), len) };
        if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Whether the kernel itself turns what is sent around.
    pub(super) fn is_loopback(&self) -> bool {
        // SAFETY: all zero is a valid address of this family.
        let mut addr: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: room for `len` bytes of address.
        let failed = unsafe { libc::getsockname(self.fd.as_raw_fd(), (&raw mut addr).cast(), &mut len) };
        failed == 0 && addr.sll_hatype == libc::ARPHRD_LOOPBACK
    }

    fn set<T>(&self, level: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
        let len = size_of::<T>() as libc::socklen_t;
        // SAFETY: `len` bytes can be read at the value.
        let failed =
            unsafe { libc::setsockopt(self.fd.as_raw_fd(), level, name, (&raw const *value).cast(), len) };
        if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    pub(super) fn send(&self, frame: &[u8]) -> io::Result<()> {
        // SAFETY: reads the frame and nothing else.
        let n = unsafe { libc::send(self.fd.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        if n >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Takes a frame that waits; `None` if there is none.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> Option<Received> {
        // Room for a tag in front.
        let body = &mut buffer[TAG_BYTES..];
        let mut piece = libc::iovec { iov_base: body.as_mut_ptr().cast(), iov_len: body.len() };
        // SAFETY: all zero is a valid address and a valid header.
        let (mut from, mut header): (libc::sockaddr_ll, libc::msghdr) = unsafe { std::mem::zeroed() };
        let mut control = [0u64; 8];
        header.msg_name = (&raw mut from).cast();
        header.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
        (header.msg_control, header.msg_controllen) =
            (control.as_mut_ptr().cast(), size_of_val(&control) as _);
        // SAFETY: every pointer of the header leads to as many bytes as it says.
        let n = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &mut header, libc::MSG_DONTWAIT) };
        let len = usize::try_from(n).ok()?;
        let is_outgoing = from.sll_pkttype == libc::PACKET_OUTGOING;
        // SAFETY: the kernel filled the header in.
        let tag = unsafe { vlan_tag(&header) };
        let Some((protocol, tag)) = tag.filter(|_| len >= ADDRESSES) else {
            return Some(Received { frame: TAG_BYTES..TAG_BYTES + len, is_outgoing });
        };
        buffer.copy_within(TAG_BYTES..TAG_BYTES + ADDRESSES, 0);
        buffer[ADDRESSES..ADDRESSES + 2].copy_from_slice(&protocol.to_be_bytes());
        buffer[ADDRESSES + 2..ADDRESSES + 4].copy_from_slice(&tag.to_be_bytes());
        Some(Received { frame: 0..TAG_BYTES + len, is_outgoing })
    }

    /// Sleeps until a frame or the bell is there.
    pub(super) fn wait(&self, bell: RawFd) {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds = [entry(self.fd.as_raw_fd()), entry(bell)];
        // SAFETY: two entries, and the count says two.
        unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) };
    }
}

/// Protocol and contents of the tag that was taken out.
///
/// # Safety
/// The kernel filled the header in, and its buffers are still there.
unsafe fn vlan_tag(header: &libc::msghdr) -> Option<(u16, u16)> {
    const TAGGED: u32 = libc::TP_STATUS_VLAN_VALID;
    // SAFETY: as the caller promises.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !next.is_null() {
        // SAFETY: a message inside the header's buffer; its type says what lies in it.
        unsafe {
            if (*next).cmsg_level == libc::SOL_PACKET && (*next).cmsg_type == libc::PACKET_AUXDATA {
                let data = libc::CMSG_DATA(next).cast::<libc::tpacket_auxdata>().read_unaligned();
                let protocol = if data.tp_vlan_tpid == 0 { 0x8100 } else { data.tp_vlan_tpid };
                return (data.tp_status & TAGGED != 0).then_some((protocol, data.tp_vlan_tci));
            }
            next = libc::CMSG_NXTHDR(header, next);
        }
    }
    None
}
