//! The control channel: one JSON value per line, over TCP between machines and over a socket pair between the two
//! processes of `ferroce perf`. The peer is not trusted: lines are bounded, and waits have a timeout.

use crate::failure::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use serde::{Serialize, de::DeserializeOwned};
use socket2::Socket;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Longest wait for a step that needs no measurement of the peer.
pub(crate) const STEP_TIMEOUT: Duration = Duration::from_secs(20);
/// Fits a list of 16,384 endpoints; longer messages are refused.
const MAX_LINE: usize = 8 << 20;

/// The channel.
pub(crate) struct Control {
    stream: Socket,
    /// Whether both sides are on this machine by construction.
    pub(crate) is_pair: bool,
    received: Vec<u8>,
    local: SocketAddr,
    peer: SocketAddr,
}

impl Control {
    /// Over TCP. A peer whose machine vanished is detected within half a minute.
    pub(crate) fn over_tcp(stream: TcpStream) -> io::Result<Control> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(STEP_TIMEOUT))?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, Duration::from_secs(10))?;
        sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(5))?;
        sockopt::set_tcp_keepcnt(&stream, 4)?;
        let (local, peer) = (canonical(stream.local_addr()?), canonical(stream.peer_addr()?));
        Ok(Control { stream: stream.into(), is_pair: false, received: Vec::new(), local, peer })
    }

    /// Over a socket pair: both sides are on this machine and use its loopback address.
    pub(crate) fn over_pair(stream: UnixStream) -> io::Result<Control> {
        stream.set_write_timeout(Some(STEP_TIMEOUT))?;
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let (stream, local, peer) = (stream.into(), loopback, loopback);
        Ok(Control { stream, is_pair: true, received: Vec::new(), local, peer })
    }

    /// Our address on the path to the peer, with another port.
    pub(crate) fn local_address(&self, port: u16) -> SocketAddr {
        with_port(self.local, port)
    }

    /// The peer's address, with another port.
    pub(crate) fn peer_address(&self, port: u16) -> SocketAddr {
        with_port(self.peer, port)
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, message: &impl Serialize) -> Result<(), Failure> {
        let mut line = serde_json::to_vec(message)
            .map_err(|error| Failure::io("cannot write a message as JSON", error))?;
        line.push(b'\n');
        self.stream.write_all(&line).map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => peer_left(),
            _ => Failure::io("cannot send to the other side", error),
        })
    }

    /// Receives a message. Without a limit, it waits while the peer runs.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self, longest: Option<Duration>) -> Result<T, Failure> {
        let line = self.receive_line(longest)?;
        serde_json::from_slice(&line).map_err(|error| {
            Failure::new(format!("the other side sent an invalid message ({error})"))
                .advise("Check that the host and port are those of a `ferroce perf` of the same version")
        })
    }

    /// Whether a message, or the end of the peer, is ready. Never blocks.
    pub(crate) fn is_readable(&self) -> bool {
        self.is_readable_within(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
    }

    /// Waits until the peer sends something or closes.
    pub(crate) fn wait_readable(&self) {
        // An interrupted sleep is just shorter.
        while !self.is_readable_within(None) {}
    }

    fn is_readable_within(&self, longest: Option<&Timespec>) -> bool {
        if !self.received.is_empty() {
            return true;
        }
        let mut fds = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN)];
        matches!(poll(&mut fds, longest), Ok(ready) if ready > 0)
    }

    fn receive_line(&mut self, longest: Option<Duration>) -> Result<Vec<u8>, Failure> {
        let end = longest.map(|longest| Instant::now() + longest);
        let mut searched = 0;
        loop {
            if let Some(at) = self.received[searched..].iter().position(|byte| *byte == b'\n') {
                let rest = self.received.split_off(searched + at + 1);
                return Ok(std::mem::replace(&mut self.received, rest));
            }
            searched = self.received.len();
            if searched > MAX_LINE {
                return Err(Failure::new(
                    "the other side sent a line that is too long to be a message of ferroce perf",
                ));
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            self.read_some(left)?;
        }
    }

    fn read_some(&mut self, left: Option<Duration>) -> Result<(), Failure> {
        let unresponsive =
            || Failure::new("the other side did not answer in time").advise("Check that it still runs");
        // The kernel takes a timeout of 0 microseconds for no timeout.
        if left.is_some_and(|left| left.as_micros() == 0) {
            return Err(unresponsive());
        }
        let mut bytes = [0; 16384];
        match self.stream.set_read_timeout(left).and_then(|()| self.stream.read(&mut bytes)) {
            Ok(0) => Err(peer_left()),
            Ok(n) => {
                self.received.extend_from_slice(&bytes[..n]);
                Ok(())
            }
            Err(error) => match error.kind() {
                ErrorKind::Interrupted => Ok(()),
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Err(unresponsive()),
                ErrorKind::ConnectionReset => Err(peer_left()),
                _ => Err(Failure::io("cannot receive from the other side", error)),
            },
        }
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Maps an IPv4-mapped IPv6 address to IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        // Keeps the scope, which a link-local address needs.
        IpAddr::V6(_) => address,
    }
}

fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

fn peer_left() -> Failure {
    Failure::new("the other side ended the test").advise("See its own message for the reason")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Control, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        (Control::over_pair(ours).expect("options"), theirs)
    }

    #[test]
    fn several_messages_in_one_read() {
        let (mut control, mut peer) = pair();
        assert!(!control.is_readable());
        peer.write_all(b"1\n\"two\"\n3").expect("it is sent");
        assert_eq!(control.receive::<u32>(None), Ok(1));
        assert!(control.is_readable());
        assert_eq!(control.receive::<String>(None), Ok("two".into()));
        peer.write_all(b"4\n").expect("it is sent");
        assert_eq!(control.receive::<u32>(None), Ok(34));
        assert!(!control.is_readable());
    }

    #[test]
    fn timeout_and_disconnect_are_distinguished() {
        let (mut control, peer) = pair();
        let timeout = control.receive::<u32>(Some(Duration::from_millis(1))).expect_err("no message");
        assert!(timeout.what().contains("in time"));
        drop(peer);
        assert!(control.is_readable());
        let disconnect = control.receive::<u32>(None).expect_err("the peer has closed");
        assert!(disconnect.what().contains("ended"));
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let (mut control, mut peer) = pair();
        let flood = std::thread::spawn(move || while peer.write_all(&[b'['; 65536]).is_ok() {});
        let refusal = control.receive::<u32>(None).expect_err("too long");
        assert!(refusal.what().contains("too long"), "{}", refusal.what());
        drop(control);
        flood.join().expect("no panic");
    }

    #[test]
    fn mapped_addresses_become_plain_ones() {
        let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
        assert_eq!(canonical(address("[::ffff:192.0.2.7]:5")), address("192.0.2.7:5"));
        assert_eq!(canonical(address("[fe80::1%3]:5")), address("[fe80::1%3]:5"));
        assert_eq!(with_port(address("[fe80::1%3]:5"), 6), address("[fe80::1%3]:6"));
    }

    #[test]
    fn invalid_json_is_refused() {
        for bytes in [&b"\n"[..], b"\0\0\n", b"{\n", b"\xff\xfe\n", b"GET / HTTP/1.1\r\n"] {
            let (mut control, mut peer) = pair();
            peer.write_all(bytes).expect("it is sent");
            assert!(control.receive::<std::collections::BTreeMap<String, u64>>(None).is_err());
        }
        let (mut control, mut peer) = pair();
        peer.write_all(&[&[b'['; 100_000][..], b"\n"].concat()).expect("it is sent");
        assert!(control.receive::<serde_json::Value>(None).is_err(), "nested without end");
    }
}
