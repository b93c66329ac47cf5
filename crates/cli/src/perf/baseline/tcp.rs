//! TCP as programs use it: blocking reads and writes. One ping-pong spins instead, as an RDMA program polls.
//!
//! Ping-pong and request/reply set `TCP_NODELAY`, as every program that cares about latency does. The stream leaves it
//! off, as iperf does: small writes may then share a segment, which helps TCP.

use super::super::affinity::SingleCore;
use super::super::control::{Control, STEP_TIMEOUT, canonical};
use super::super::handshake::{self, Offer, Reply, Report};
use super::super::measure::{Budget, Limit, MIN_MESSAGES, Measurement, time_round_trips};
use super::super::params::Params;
use super::super::stats::Bandwidth;
use super::super::test::Test;
use super::udp::SPINS_PER_CHECK;
use crate::failure::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Bytes of a request in request/reply: an address and a length, as a READ carries.
const REQUEST_SIZE: usize = 16;
/// A message of the largest size crosses a slow network within this time.
const DATA_TIMEOUT: Duration = Duration::from_secs(30);

/// Client of all TCP tests.
pub(crate) fn run(
    control: &mut Control,
    params: &Params,
    budget: Budget,
    offer: &Offer,
    single_core: SingleCore,
) -> Result<Measurement, Failure> {
    let mut stream = connect(control, params, offer)?;
    let mut message = vec![0x5a; params.size as usize];
    let measurement = match params.test {
        Test::TcpBw => stream_messages(&mut stream, &message, budget).map(Measurement::Bandwidth),
        Test::TcpRr => time_round_trips(budget, || {
            stream
                .write_all(&[0; REQUEST_SIZE])
                .and_then(|()| stream.read_exact(&mut message))
                .map_err(broken)
        })
        .map(Measurement::Latency),
        Test::TcpSpinLat => {
            let mut stream = Spinning { stream: &mut stream, single_core };
            time_round_trips(budget, || {
                stream.write_all(&message).and_then(|()| stream.read_exact(&mut message)).map_err(broken)
            })
            .map(Measurement::Latency)
        }
        _ => time_round_trips(budget, || {
            stream.write_all(&message).and_then(|()| stream.read_exact(&mut message)).map_err(broken)
        })
        .map(Measurement::Latency),
    }?;
    // The end of the stream stops the server, which is in a blocking read.
    drop(stream);
    handshake::stop(control)?;
    Ok(measurement)
}

/// Server of all TCP tests.
pub(crate) fn serve(
    control: &mut Control,
    params: &Params,
    single_core: SingleCore,
) -> Result<Report, Failure> {
    let listener =
        TcpListener::bind(control.local_address(0)).map_err(|e| Failure::io("cannot listen on TCP", e))?;
    let port = listener.local_addr().map_err(|e| Failure::io("cannot read the TCP port", e))?.port();
    let nonce = RandomState::new().hash_one(port);
    handshake::ready(control, Offer::Socket { port, nonce })?;
    let mut stream = accept(&listener, control, nonce)?;
    set_options(&stream, params)?;
    control.send(&Reply::Started)?;
    let mut message = vec![0; params.size as usize];
    let received = match params.test {
        Test::TcpBw => drain(&mut stream, &mut message),
        Test::TcpRr => answer(&mut stream, &mut [0; REQUEST_SIZE], Some(&message)),
        Test::TcpSpinLat => answer(&mut Spinning { stream: &mut stream, single_core }, &mut message, None),
        _ => answer(&mut stream, &mut message, None),
    }
    .map_err(broken)?;
    handshake::await_stop(control)?;
    Ok(Report { received, ..Report::default() })
}

fn connect(control: &mut Control, params: &Params, offer: &Offer) -> Result<TcpStream, Failure> {
    let &Offer::Socket { port, nonce } = offer else {
        return Err(Failure::new("the server offered queue pairs for a TCP test"));
    };
    let address = control.peer_address(port);
    let mut stream = TcpStream::connect_timeout(&address, STEP_TIMEOUT)
        .map_err(|e| Failure::io(format!("cannot connect to {address} over TCP"), e))?;
    set_options(&stream, params)?;
    stream.write_all(&nonce.to_be_bytes()).map_err(broken)?;
    handshake::go(control, Offer::Socket { port: 0, nonce })?;
    Ok(stream)
}

/// Accepts the connection that begins with the nonce; closes others.
fn accept(listener: &TcpListener, control: &Control, nonce: u64) -> Result<TcpStream, Failure> {
    let end = Instant::now() + STEP_TIMEOUT;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        let mut fds = [PollFd::new(listener, PollFlags::IN)];
        if poll(&mut fds, Some(&left)).map_err(|e| Failure::io("cannot wait for a connection", e))? == 0 {
            return Err(Failure::new("the client's TCP connection did not arrive"));
        }
        let (mut stream, from) =
            listener.accept().map_err(|e| Failure::io("cannot accept a connection", e))?;
        let mut first = [0; 8];
        let genuine = canonical(from).ip() == control.peer_address(0).ip()
            && stream.set_read_timeout(Some(Duration::from_secs(2))).is_ok()
            && stream.read_exact(&mut first).is_ok()
            && u64::from_be_bytes(first) == nonce;
        if genuine {
            return Ok(stream);
        }
    }
}

fn set_options(stream: &TcpStream, params: &Params) -> Result<(), Failure> {
    stream
        .set_nodelay(params.test != Test::TcpBw)
        .and_then(|()| stream.set_read_timeout(Some(DATA_TIMEOUT)))
        .and_then(|()| stream.set_write_timeout(Some(DATA_TIMEOUT)))
        .and_then(|()| stream.set_nonblocking(params.test == Test::TcpSpinLat))
        .map_err(|e| Failure::io("cannot set TCP options", e))
}

/// Answers each message with `reply`, or with itself, until the client closes.
fn answer(stream: &mut (impl Read + Write), message: &mut [u8], reply: Option<&[u8]>) -> io::Result<u64> {
    let mut received = 0;
    while read_message(stream, message)? {
        received += 1;
        stream.write_all(reply.unwrap_or(message))?;
    }
    Ok(received)
}

/// Reads bursts: a count of messages, the messages; then sends one byte back to confirm them.
fn drain(stream: &mut TcpStream, message: &mut [u8]) -> io::Result<u64> {
    let mut received = 0;
    let mut count = [0; 8];
    while read_message(stream, &mut count)? {
        for _ in 0..u64::from_be_bytes(count) {
            stream.read_exact(message)?;
            received += 1;
        }
        stream.write_all(&[1])?;
    }
    Ok(received)
}

/// Reads a whole message. Returns `false` at the end of the stream.
fn read_message(stream: &mut impl Read, message: &mut [u8]) -> io::Result<bool> {
    match stream.read_exact(message) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(false),
        Err(error) => Err(error),
    }
}

/// A nonblocking stream whose reads and writes spin until the kernel has transferred at least one byte.
struct Spinning<'a> {
    stream: &'a mut TcpStream,
    single_core: SingleCore,
}

impl Spinning<'_> {
    fn spin(&mut self, mut call: impl FnMut(&mut TcpStream) -> io::Result<usize>) -> io::Result<usize> {
        let mut start = None;
        for spins in 1u32.. {
            match call(self.stream) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.single_core.yield_core(),
                result => return result,
            }
            if spins % SPINS_PER_CHECK == 0 && start.get_or_insert_with(Instant::now).elapsed() > DATA_TIMEOUT
            {
                break;
            }
        }
        Err(ErrorKind::TimedOut.into())
    }
}

impl Read for Spinning<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.spin(|stream| stream.read(bytes))
    }
}

impl Write for Spinning<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.spin(|stream| stream.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bursts of growing length warm up and estimate the speed; then one burst is measured.
fn stream_messages(stream: &mut TcpStream, message: &[u8], budget: Budget) -> Result<Bandwidth, Failure> {
    let mut count = 4;
    let mut elapsed = burst(stream, message, count)?;
    while elapsed < budget.warm_up {
        count *= 2;
        elapsed = burst(stream, message, count)?;
    }
    let count = match budget.limit {
        Limit::Messages(count) => count,
        Limit::Time(time) => {
            let per_message = elapsed.as_secs_f64() / count as f64;
            ((time.as_secs_f64() / per_message) as u64).max(MIN_MESSAGES)
        }
    };
    let elapsed = burst(stream, message, count)?;
    Ok(Bandwidth::new(count, count * message.len() as u64, elapsed.as_nanos() as u64))
}

fn burst(stream: &mut TcpStream, message: &[u8], count: u64) -> Result<Duration, Failure> {
    let start = Instant::now();
    stream.write_all(&count.to_be_bytes()).map_err(broken)?;
    for _ in 0..count {
        stream.write_all(message).map_err(broken)?;
    }
    // Setting TCP_NODELAY sends the last partial segment: the end of the burst must not wait for a delayed acknowledgement.
    stream.set_nodelay(true).and_then(|()| stream.set_nodelay(false)).map_err(broken)?;
    stream.read_exact(&mut [0]).map_err(broken)?;
    Ok(start.elapsed())
}

fn broken(error: io::Error) -> Failure {
    Failure::io("the TCP connection of the test broke", error)
}
