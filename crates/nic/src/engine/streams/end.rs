//! The stream of one queue pair.

use crate::link::{Segmenting, StreamSocket};
use ferroce_os::epoll::Interest;
use ferroce_os::lock::Mutex;
use ferroce_proto::iwarp::StreamQp;
use std::io;
use std::net::IpAddr;

/// A queue pair over a stream: its machine and its socket.
pub(crate) struct StreamEnd {
    pub(crate) machine: Mutex<StreamQp>,
    pub(super) peer: Mutex<Option<IpAddr>>,
    /// Locked after the machine, which calls the host to send.
    pub(super) socket: Mutex<SocketEnd>,
}

impl StreamEnd {
    pub(crate) fn new(machine: StreamQp) -> Box<StreamEnd> {
        Box::new(StreamEnd { machine: Mutex::new(machine), peer: Mutex::default(), socket: Mutex::default() })
    }

    /// The address of its peer, once it was connected.
    pub(crate) fn peer(&self) -> Option<IpAddr> {
        *self.peer.lock()
    }
}

/// The socket of a queue pair. There is none before the queue pair is connected, nor after its stream is closed.
#[derive(Default)]
pub(super) struct SocketEnd {
    pub(super) connected: Option<Connected>,
}

/// A connected socket.
pub(super) struct Connected {
    pub(super) socket: StreamSocket,
    /// The connection manager's number of the connection.
    pub(super) connection: u64,
    pub(super) unsent: Unsent,
    /// What the socket is watched for.
    pub(super) interest: Interest,
    /// The socket is watched for EPOLLOUT, and payload waits until a large part of its buffer is free. Many small pieces would take more
    /// system calls, and each would compete with the kernel's own work on the socket.
    pub(super) awaits_writable: bool,
    /// FPDUs must not share TCP segments: the peer is not ferroce.
    pub(super) ends_records: bool,
    /// The connection manager waits for the peer's first FPDU.
    pub(super) awaits_first: bool,
    /// The error of an earlier send. The kernel reports it only once.
    pub(super) failed: Option<i32>,
    /// The peer sends no more.
    pub(super) has_ended: bool,
}

impl Connected {
    /// Calls `read`. Once nothing is left to read, returns the error of an earlier send.
    pub(super) fn receive(
        &self,
        read: impl FnOnce() -> io::Result<Option<usize>>,
    ) -> io::Result<Option<usize>> {
        let received = read()?;
        match self.failed {
            Some(errno) if received.is_none_or(|count| count == 0) && !self.socket.has_unread() => {
                Err(io::Error::from_raw_os_error(errno))
            }
            _ => Ok(received),
        }
    }

    /// How the end of an FPDU is sent.
    pub(super) fn segmenting(&self, ends_message: bool) -> Segmenting {
        match (self.ends_records, ends_message) {
            (true, _) => Segmenting::EndsRecord,
            (false, false) => Segmenting::MoreFollows,
            (false, true) => Segmenting::Push,
        }
    }

    /// Stores why sending failed. EPIPE is not stored: reading reports the end of the stream.
    pub(super) fn on_send_error(&mut self, error: &io::Error) {
        if error.raw_os_error() != Some(libc::EPIPE) {
            self.failed = error.raw_os_error();
        }
    }
}

/// Bytes that a queue pair has handed over and the kernel has not accepted: the end of an FPDU with a CRC, or a Terminate and the bytes that
/// must precede it.
#[derive(Default)]
pub(super) struct Unsent {
    bytes: Vec<u8>,
    sent: usize,
}

impl Unsent {
    pub(super) fn new(bytes: &[u8]) -> Unsent {
        Unsent { bytes: bytes.to_vec(), sent: 0 }
    }

    /// Adds bytes at the end.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Sends as many bytes as the kernel accepts. Returns whether all are sent.
    pub(super) fn flush(&mut self, socket: &StreamSocket, segmenting: Segmenting) -> io::Result<bool> {
        if !self.is_empty() {
            self.sent += socket.send(&self.bytes[self.sent..], segmenting)?;
            if self.is_empty() {
                *self = Unsent::default();
            }
        }
        Ok(self.is_empty())
    }
}
