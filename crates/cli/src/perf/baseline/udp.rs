//! UDP ping-pong with both sides spinning on a nonblocking receive. It is the minimum cost of a message on this
//! machine's network stack, and so the reference for an RDMA latency over it. The sockets are connected, which is the
//! fastest mode of the kernel.

use super::super::affinity::SingleCore;
use super::super::control::Control;
use super::super::handshake::{self, Offer, Reply, Report};
use super::super::measure::{Budget, Measurement, time_round_trips};
use super::super::params::Params;
use crate::failure::Failure;
use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// Empty receives between two reads of the clock and the control channel.
pub(super) const SPINS_PER_CHECK: u32 = 1024;
/// A datagram without an answer after this time is lost.
const LOSS_TIMEOUT: Duration = Duration::from_secs(1);
/// The test ends after this many losses without an arrival in between.
const MAX_CONSECUTIVE_LOSSES: u32 = 5;

/// Client.
pub(crate) fn run(
    control: &mut Control,
    params: &Params,
    budget: Budget,
    offer: &Offer,
    single_core: SingleCore,
) -> Result<Measurement, Failure> {
    let socket = bind(control)?;
    connect(&socket, control, offer)?;
    handshake::go(control, here(&socket, 0)?)?;
    let message = vec![0x5a; params.size as usize];
    let mut answer = vec![0; params.size as usize + 1];
    let histogram = time_round_trips(budget, || exchange(&socket, &message, &mut answer, single_core))?;
    handshake::stop(control)?;
    Ok(Measurement::Latency(histogram))
}

/// Server: returns every datagram until the client stops.
pub(crate) fn serve(
    control: &mut Control,
    params: &Params,
    single_core: SingleCore,
) -> Result<Report, Failure> {
    let socket = bind(control)?;
    let offer = handshake::ready(control, here(&socket, 0)?)?;
    connect(&socket, control, &offer)?;
    control.send(&Reply::Started)?;
    let mut message = vec![0; params.size as usize + 1];
    let mut received = 0;
    let mut spins = 0_u32;
    loop {
        match socket.recv(&mut message) {
            Ok(length) => {
                received += 1;
                // A full socket buffer loses the reply, as the network would.
                let _ = socket.send(&message[..length]);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                spins = spins.wrapping_add(1);
                single_core.yield_core();
                if spins.is_multiple_of(SPINS_PER_CHECK) && control.is_readable() {
                    break;
                }
            }
            Err(error) if is_bounce(&error) => {}
            Err(error) => return Err(broken(error)),
        }
    }
    handshake::await_stop(control)?;
    Ok(Report { received, ..Report::default() })
}

fn exchange(
    socket: &UdpSocket,
    message: &[u8],
    answer: &mut [u8],
    single_core: SingleCore,
) -> Result<(), Failure> {
    for _ in 0..MAX_CONSECUTIVE_LOSSES {
        socket.send(message).map_err(broken)?;
        let start = Instant::now();
        for spins in 1u64.. {
            match socket.recv(answer) {
                Ok(length) if length == message.len() => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    single_core.yield_core();
                    if spins.is_multiple_of(u64::from(SPINS_PER_CHECK)) && start.elapsed() > LOSS_TIMEOUT {
                        break;
                    }
                }
                Err(error) if is_bounce(&error) => {}
                Err(error) => return Err(broken(error)),
            }
        }
    }
    Err(Failure::new(format!("{MAX_CONSECUTIVE_LOSSES} UDP datagrams in a row were not answered"))
        .advise("A firewall between the machines may drop UDP"))
}

pub(super) fn bind(control: &Control) -> Result<UdpSocket, Failure> {
    let socket =
        UdpSocket::bind(control.local_address(0)).map_err(|e| Failure::io("cannot bind a UDP socket", e))?;
    socket.set_nonblocking(true).map_err(broken)?;
    Ok(socket)
}

/// The offer of this side; `nonce` is a number for the other side.
pub(super) fn here(socket: &UdpSocket, nonce: u64) -> Result<Offer, Failure> {
    Ok(Offer::Socket { port: socket.local_addr().map_err(broken)?.port(), nonce })
}

/// Connects to the offered port; returns the number in the offer.
pub(super) fn connect(socket: &UdpSocket, control: &Control, offer: &Offer) -> Result<u64, Failure> {
    let &Offer::Socket { port, nonce } = offer else {
        return Err(Failure::new("the other side offered queue pairs for a UDP test"));
    };
    socket.connect(control.peer_address(port)).map_err(broken)?;
    Ok(nonce)
}

/// An ICMP error of an earlier datagram; the datagram just counts as lost.
pub(super) fn is_bounce(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::Interrupted)
}

pub(super) fn broken(error: io::Error) -> Failure {
    Failure::io("the UDP socket of the test broke", error)
}
