//! The sockets of streams. None of them blocks.

use super::extras::{Io, IoFault, SocketExtras, StreamExtras};
use crate::memory::External;
use ferroce_os::descriptors::open_within_hard_limit;
use ferroce_os::interfaces::open_tcp;
use smallvec::SmallVec;
use socket2::{SockAddr, Socket};
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// A part of what a stream sends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StreamPiece<'a> {
    /// Bytes of the NIC.
    Bytes(&'a [u8]),
    /// Bytes in a region, which the kernel reads in place.
    External(External),
}

impl StreamPiece<'_> {
    fn iovec(&self) -> libc::iovec {
        let (start, len) = match self {
            StreamPiece::Bytes(bytes) => (bytes.as_ptr(), bytes.len()),
            StreamPiece::External(external) => (external.as_ptr(), external.len()),
        };
        libc::iovec { iov_base: start.cast_mut().cast(), iov_len: len }
    }

    /// Its bytes. Empty for a region: streams that are captured have no external pieces.
    fn captured(&self) -> &[u8] {
        match self {
            StreamPiece::Bytes(bytes) => bytes,
            StreamPiece::External(_) => &[],
        }
    }
}

/// How the bytes of one call share TCP segments with those of later calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segmenting {
    /// They share no segment.
    EndsRecord,
    /// More bytes follow immediately, so a segment that is not full waits for them.
    MoreFollows,
    /// They are sent immediately.
    Push,
}

impl Segmenting {
    const fn flag(self) -> libc::c_int {
        match self {
            Segmenting::EndsRecord => libc::MSG_EOR,
            Segmenting::MoreFollows => libc::MSG_MORE,
            Segmenting::Push => 0,
        }
    }
}

/// How a stream is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    /// The peer gets what was sent, then the end of the stream.
    AfterData,
    /// The peer gets a reset.
    Reset,
}

/// The socket of a connection, or of an attempt to make one.
#[derive(Debug)]
pub(crate) struct StreamSocket {
    socket: Socket,
    extras: Option<Box<SocketExtras>>,
}

impl StreamSocket {
    /// A socket that is bound to this address. `only_v6`: the wildcard address of IPv6 excludes IPv4.
    pub(crate) fn bind(
        address: SocketAddr,
        only_v6: bool,
        extras: &Arc<StreamExtras>,
    ) -> io::Result<StreamSocket> {
        let socket = Socket::from(open_within_hard_limit(|| open_tcp(address.is_ipv4()))?);
        // As siw: the program may have used the port for its own socket just before.
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(only_v6)?;
        }
        socket.bind(&address.into())?;
        Ok(StreamSocket { socket, extras: extras.for_socket() })
    }

    /// Starts to connect. The socket becomes writable when that ends; then call [`Self::connected`].
    pub(crate) fn connect(&self, to: SocketAddr) -> io::Result<()> {
        match self.socket.connect(&to.into()) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(()),
            other => other,
        }
    }

    /// How the attempt to connect ended.
    pub(crate) fn connected(&self) -> io::Result<()> {
        match self.socket.take_error()? {
            Some(error) => Err(error),
            None => self.prepare(true),
        }
    }

    fn prepare(&self, is_initiator: bool) -> io::Result<()> {
        if let Some(extras) = &self.extras {
            extras.start(self.local_addr()?, plain(self.socket.peer_addr()?)?, is_initiator);
        }
        self.socket.set_tcp_nodelay(true)
    }

    /// Listens on the port it is bound to.
    pub(crate) fn listen(self, backlog: u32) -> Result<StreamListener, (StreamSocket, io::Error)> {
        match self.socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX)) {
            Ok(()) => {
                Ok(StreamListener { socket: self.socket, extras: self.extras.map(|extras| extras.all()) })
            }
            Err(error) => Err((self, error)),
        }
    }

    /// Sets the traffic class of its packets, where the system can.
    pub(crate) fn set_traffic_class(&self, class: u8) {
        let _ = match self.local_addr().map(|local| local.is_ipv4()) {
            Ok(true) => self.socket.set_tos_v4(class.into()),
            _ => self.socket.set_tclass_v6(class.into()),
        };
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        plain(self.socket.local_addr()?)
    }

    /// Bytes that fit a TCP segment.
    pub(crate) fn segment_len(&self) -> usize {
        self.socket.tcp_mss().map_or(0, |len| len as usize)
    }

    /// Reads the received bytes: `None` if there are none, `Some(0)` if the peer has closed the stream.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let Some(extras) = &self.extras else {
            return unless_it_would_block((&self.socket).read(buffer));
        };
        // Faults apply to bytes only, neither to a read that finds none nor to the end of the stream.
        let fault = match extras.has_faults().then(|| self.peek()).transpose()? {
            Some(None) => return Ok(None),
            None | Some(Some(0)) => IoFault::None,
            Some(Some(_)) => extras.next_fault(Io::Received, buffer.len()),
        };
        let Some(len) = self.allowed(&fault, buffer.len())? else { return Ok(None) };
        let received = unless_it_would_block((&self.socket).read(&mut buffer[..len]))?;
        if let Some(count) = received {
            extras.damage(&fault, &mut buffer[..count]);
            extras.record(Io::Received, &[&buffer[..count]], count, extras.time_ns());
        }
        Ok(received)
    }

    /// Whether [`Self::receive_in_place`] is possible: captures and faults need the bytes in a buffer.
    pub(crate) fn can_receive_in_place(&self) -> bool {
        self.extras.is_none()
    }

    /// As [`Self::receive`], but the first bytes go into a region.
    ///
    /// # Safety
    /// The region is held, and the peer may write these bytes of it.
    pub(crate) unsafe fn receive_in_place(
        &self,
        target: External,
        buffer: &mut [u8],
    ) -> io::Result<Option<usize>> {
        let parts = [
            libc::iovec { iov_base: target.as_ptr().cast_mut().cast(), iov_len: target.len() },
            libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() },
        ];
        // SAFETY: the kernel writes to bytes that are registered, as the caller promises, and to a buffer that is borrowed mutably.
        let count = unsafe { libc::readv(self.socket.as_raw_fd(), parts.as_ptr(), parts.len() as _) };
        unless_it_would_block(usize::try_from(count).map_err(|_| io::Error::last_os_error()))
    }

    fn peek(&self) -> io::Result<Option<usize>> {
        unless_it_would_block(self.socket.peek(&mut [MaybeUninit::uninit()]))
    }

    /// Whether unread bytes wait in the socket because of an injected fault.
    pub(crate) fn has_unread(&self) -> bool {
        self.extras.is_some() && matches!(self.peek(), Ok(Some(1..)))
    }

    /// How many of `len` bytes a read or write may move; `None` if it must be repeated later.
    fn allowed(&self, fault: &IoFault, len: usize) -> io::Result<Option<usize>> {
        match *fault {
            IoFault::Stalled => Ok(None),
            IoFault::Reset => {
                self.close(Closing::Reset);
                Err(io::Error::from_raw_os_error(libc::ECONNRESET))
            }
            IoFault::Short(most) => Ok(Some(most.min(len))),
            IoFault::None | IoFault::Damaged(_) => Ok(Some(len)),
        }
    }

    /// Sends a frame of some hundred bytes, which always fits into the buffer of a new socket.
    pub(crate) fn send_frame(&self, frame: &[u8]) -> io::Result<()> {
        let pieces = [StreamPiece::Bytes(frame)];
        // SAFETY: no piece lies in a region.
        let sent = unsafe { self.send_most(&pieces, Segmenting::EndsRecord, usize::MAX) }?;
        if sent == frame.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Sends bytes of the NIC. Returns how many the kernel took.
    pub(crate) fn send(&self, bytes: &[u8], segmenting: Segmenting) -> io::Result<usize> {
        let pieces = [StreamPiece::Bytes(bytes)];
        // SAFETY: no piece lies in a region.
        unsafe { self.send_pieces(&pieces, segmenting) }
    }

    /// Sends pieces, as many bytes of them as the kernel takes.
    ///
    /// # Safety
    /// The regions of external pieces are held.
    pub(crate) unsafe fn send_pieces(
        &self,
        pieces: &[StreamPiece<'_>],
        segmenting: Segmenting,
    ) -> io::Result<usize> {
        let most = match &self.extras {
            Some(extras) => self.allowed(&extras.next_fault(Io::Sent, IoFault::USUAL_WRITE), usize::MAX)?,
            None => Some(usize::MAX),
        };
        let Some(most) = most else { return Ok(0) };
        // SAFETY: as the caller promises.
        unsafe { self.send_most(pieces, segmenting, most) }
    }

    /// The same, and no more than `most` bytes.
    ///
    /// # Safety
    /// The regions of external pieces are held.
    unsafe fn send_most(
        &self,
        pieces: &[StreamPiece<'_>],
        segmenting: Segmenting,
        most: usize,
    ) -> io::Result<usize> {
        let mut left = most;
        let mut parts: SmallVec<[libc::iovec; 8]> = pieces.iter().map(StreamPiece::iovec).collect();
        for part in &mut parts {
            part.iov_len = part.iov_len.min(left);
            left -= part.iov_len;
        }
        // SAFETY: an all-zero `msghdr` is valid: it has no address, no pieces and no control message.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), parts.len() as _);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | segmenting.flag();
        let began_ns = self.extras.as_ref().map_or(0, |extras| extras.time_ns());
        // SAFETY: the kernel only reads the pieces. Those of the NIC are borrowed, and the regions of the others are held, as
        // the caller promises.
        let sent = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &raw const message, flags) };
        let sent = match unless_it_would_block(usize::try_from(sent).map_err(|_| io::Error::last_os_error()))
        {
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => 0,
            sent => sent?.unwrap_or(0),
        };
        if let Some(extras) = &self.extras {
            let bytes: SmallVec<[&[u8]; 8]> = pieces.iter().map(StreamPiece::captured).collect();
            extras.record(Io::Sent, &bytes, sent, began_ns);
        }
        Ok(sent)
    }

    /// Sent bytes that the peer has not acknowledged; the end of the stream counts as one.
    pub(crate) fn unacknowledged(&self) -> usize {
        let mut count: libc::c_int = 0;
        // SAFETY: the call writes one integer.
        let status = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
        if status == 0 { count as usize } else { 0 }
    }

    /// Ends the stream by `shutdown`: a forked child may hold the socket open, so closing the descriptor would not suffice.
    pub(crate) fn close(&self, how: Closing) {
        if let Some(extras) = &self.extras {
            extras.record_close(how);
        }
        if how == Closing::Reset {
            let _ = self.socket.set_linger(Some(Duration::ZERO));
        }
        let _ = self.socket.shutdown(match how {
            Closing::AfterData => Shutdown::Write,
            Closing::Reset => Shutdown::Both,
        });
    }
}

impl AsFd for StreamSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The result of a call on a socket; `None` if it must be repeated later.
fn unless_it_would_block<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => Ok(None),
        result => result.map(Some),
    }
}

/// A socket that accepts connections.
#[derive(Debug)]
pub(crate) struct StreamListener {
    socket: Socket,
    extras: Option<Arc<StreamExtras>>,
}

impl StreamListener {
    /// The next connection that waits, with its local address and that of its peer.
    pub(crate) fn accept(&self) -> io::Result<Option<(StreamSocket, SocketAddr, SocketAddr)>> {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let Some((socket, peer)) = unless_it_would_block(self.socket.accept4(flags))? else {
            return Ok(None);
        };
        let extras = self.extras.as_ref().and_then(|extras| extras.for_socket());
        let socket = StreamSocket { socket, extras };
        socket.prepare(false)?;
        let local = socket.local_addr()?;
        Ok(Some((socket, local, plain(peer)?)))
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        plain(self.socket.local_addr()?)
    }
}

impl AsFd for StreamListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// An address, with IPv4-mapped IPv6 addresses converted to IPv4.
fn plain(address: SockAddr) -> io::Result<SocketAddr> {
    let address = address.as_socket().ok_or(io::ErrorKind::InvalidInput)?;
    Ok(match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpListener};

    /// Stalls hit bytes, not the end of the stream.
    #[test]
    fn the_end_of_a_stream_has_no_faults() {
        let faults = "stall=100%".parse().unwrap();
        let extras = Arc::new(StreamExtras::new(None, Some(faults)));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let socket = StreamSocket::bind((Ipv4Addr::LOCALHOST, 0).into(), false, &extras).unwrap();
        socket.connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        peer.write_all(b"bytes").unwrap();
        while !socket.has_unread() {
            std::thread::yield_now();
        }
        let mut buffer = [0; 64];
        assert_eq!(socket.receive(&mut buffer).unwrap(), None);
        assert_eq!((&socket.socket).read(&mut buffer).unwrap(), 5);
        drop(peer);
        let mut received = None;
        while received.is_none() && extras.counters().injected_stalls == 1 {
            received = socket.receive(&mut buffer).unwrap();
        }
        assert_eq!((received, socket.has_unread()), (Some(0), false));
    }
}
