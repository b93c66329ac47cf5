//! UDP stream: as many packets of the same length as a WRITE, with GSO and GRO, but without ICRC, retransmission or
//! target memory. It is the maximum that this machine's sockets carry, and so the reference for an RDMA bandwidth
//! over them.
//!
//! The receiver reports how much has arrived, and the sender limits the bytes in flight as a queue pair does, because
//! a flooded socket drops most of them.

use super::super::affinity::SingleCore;
use super::super::control::Control;
use super::super::handshake::{self, Offer, Reply, Report};
use super::super::measure::{Budget, Limit, Measurement};
use super::super::params::{Params, UDP_STREAM_UNIT};
use super::super::stats::Bandwidth;
use super::udp::{SPINS_PER_CHECK, bind, broken, connect, here, is_bounce};
use crate::failure::Failure;
use crate::sockopt;
use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, socket_recv_buffer_size,
};
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// Bytes of a message in one packet: the largest path MTU.
const PAYLOAD: usize = UDP_STREAM_UNIT as usize;
/// Overhead of a packet of a WRITE in addition to its payload: BTH and ICRC.
const OVERHEAD: usize = 16;
const PACKET: usize = PAYLOAD + OVERHEAD;
/// Packets that fit into one datagram before segmentation.
const PACKETS_PER_GSO_RUN: usize = 15;
/// The requested receive buffer, and the maximum number of bytes in flight, as for the NIC.
const BUFFER: usize = 16 << 20;
const WINDOWS: std::ops::RangeInclusive<u64> = (64 << 10)..=(1 << 20);
/// The receiver reports after this many bytes, or when its socket is empty.
const BYTES_PER_ANSWER: u64 = 128 << 10;
/// Bytes without a report after this time are lost.
const LOSS_TIMEOUT: Duration = Duration::from_millis(100);
/// The test ends after this many losses without an arrival in between.
const MAX_CONSECUTIVE_LOSSES: u32 = 20;

/// Client.
pub(crate) fn run(
    control: &mut Control,
    params: &Params,
    budget: Budget,
    offer: &Offer,
    single_core: SingleCore,
) -> Result<Measurement, Failure> {
    let socket = bind(control)?;
    let window = connect(&socket, control, offer)?.clamp(*WINDOWS.start(), *WINDOWS.end());
    let merges = sockopt::set_udp_segment(&socket, PACKET as u16).is_ok();
    handshake::go(control, here(&socket, 0)?)?;
    let packets = params.size as usize / PAYLOAD;
    let mut sender = Sender {
        socket,
        single_core,
        bytes: vec![0x5a; packets * PACKET],
        run_bytes: if merges { PACKETS_PER_GSO_RUN * PACKET } else { PACKET },
        window,
        sent: 0,
        arrived: 0,
        lost_bytes: 0,
        lost_in_a_row: 0,
    };
    sender.stream(Limit::Time(budget.warm_up))?;
    let (start, before) = (Instant::now(), sender.arrived);
    sender.stream(budget.limit)?;
    let (elapsed, bytes) = (start.elapsed(), sender.arrived - before);
    handshake::stop(control)?;
    let messages = bytes / sender.bytes.len() as u64;
    Ok(Measurement::Bandwidth(Bandwidth::new(messages, messages * params.size, elapsed.as_nanos() as u64)))
}

/// Server: receives until the client stops.
pub(crate) fn serve(control: &mut Control, _: &Params, single_core: SingleCore) -> Result<Report, Failure> {
    let socket = bind(control)?;
    // Without GRO, each packet arrives on its own.
    let _ = sockopt::set_udp_gro(&socket);
    if set_socket_recv_buffer_size_force(&socket, BUFFER).is_err() {
        let _ = set_socket_recv_buffer_size(&socket, BUFFER);
    }
    // The kernel reports twice the size that it grants, and charges its own structures to it; so use a quarter.
    let buffer_bytes = socket_recv_buffer_size(&socket).map_err(|error| broken(error.into()))? as u64 / 4;
    let offer = handshake::ready(control, here(&socket, buffer_bytes)?)?;
    connect(&socket, control, &offer)?;
    control.send(&Reply::Started)?;
    let mut datagram = vec![0; 64 << 10];
    let (mut received, mut reported, mut spins) = (0_u64, 0, 0_u32);
    loop {
        let must_answer = match socket.recv(&mut datagram) {
            Ok(length) => {
                received += length as u64;
                received - reported >= BYTES_PER_ANSWER
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                spins = spins.wrapping_add(1);
                single_core.yield_core();
                if spins.is_multiple_of(SPINS_PER_CHECK) && control.is_readable() {
                    break;
                }
                received > reported
            }
            Err(error) if is_bounce(&error) => false,
            Err(error) => return Err(broken(error)),
        };
        if must_answer {
            // If the send buffer is full, the next report replaces this one.
            let _ = socket.send(&received.to_be_bytes());
            reported = received;
        }
    }
    handshake::await_stop(control)?;
    Ok(Report { received: received / PACKET as u64, ..Report::default() })
}

struct Sender {
    socket: UdpSocket,
    single_core: SingleCore,
    /// A message, cut into packets.
    bytes: Vec<u8>,
    /// Bytes per system call.
    run_bytes: usize,
    window: u64,
    /// Bytes sent, bytes reported by the receiver, and bytes lost.
    sent: u64,
    arrived: u64,
    lost_bytes: u64,
    /// Windows that were lost since the last report of more bytes.
    lost_in_a_row: u32,
}

impl Sender {
    /// Sends messages until the limit is reached and all have arrived or are lost.
    fn stream(&mut self, limit: Limit) -> Result<(), Failure> {
        let start = Instant::now();
        let mut messages = 0;
        while !limit.is_reached(messages, start.elapsed()) {
            let mut at = 0;
            while at < self.bytes.len() {
                self.wait(self.window)?;
                let end = (at + self.run_bytes).min(self.bytes.len());
                match self.socket.send(&self.bytes[at..end]) {
                    Ok(length) => (at, self.sent) = (at + length, self.sent + length as u64),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => self.single_core.yield_core(),
                    Err(error) if is_bounce(&error) => {}
                    Err(error) => return Err(broken(error)),
                }
            }
            messages += 1;
        }
        self.wait(0)
    }

    /// Waits until at most `most` bytes are in flight.
    fn wait(&mut self, most: u64) -> Result<(), Failure> {
        let mut answer = [0; 8];
        let (mut since, mut spins) = (None, 0_u32);
        while self.sent - (self.arrived + self.lost_bytes).min(self.sent) > most {
            match self.socket.recv(&mut answer) {
                Ok(8) => {
                    let arrived = u64::from_be_bytes(answer);
                    if arrived > self.arrived {
                        (self.arrived, self.lost_in_a_row) = (arrived, 0);
                    }
                    since = None;
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.single_core.yield_core();
                    spins = spins.wrapping_add(1);
                    if spins.is_multiple_of(SPINS_PER_CHECK)
                        && since.get_or_insert_with(Instant::now).elapsed() > LOSS_TIMEOUT
                    {
                        self.count_as_lost()?;
                    }
                }
                Err(error) if is_bounce(&error) => {}
                Err(error) => return Err(broken(error)),
            }
        }
        Ok(())
    }

    /// Counts the bytes in flight as lost.
    fn count_as_lost(&mut self) -> Result<(), Failure> {
        self.lost_bytes = self.sent - self.arrived;
        self.lost_in_a_row += 1;
        if self.lost_in_a_row < MAX_CONSECUTIVE_LOSSES {
            return Ok(());
        }
        Err(Failure::new(format!("packets of the {} bytes in flight were lost {MAX_CONSECUTIVE_LOSSES} times in a row", self.window))
            .advise("A firewall between the machines may drop UDP, or the receive buffer (net.core.rmem_max) is small"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_count_only_in_a_row() {
        let [socket, receiver] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a socket"));
        socket.connect(receiver.local_addr().expect("bound")).expect("loopback");
        receiver.connect(socket.local_addr().expect("bound")).expect("loopback");
        let mut sender = Sender {
            socket,
            single_core: SingleCore::ignored(),
            bytes: Vec::new(),
            run_bytes: PACKET,
            window: 1,
            sent: 0,
            arrived: 0,
            lost_bytes: 0,
            lost_in_a_row: 0,
        };
        for round in 1..=3_u64 {
            sender.sent += 2;
            (1..MAX_CONSECUTIVE_LOSSES).for_each(|_| sender.count_as_lost().expect("too few in a row"));
            sender.sent += 1;
            receiver.send(&(3 * round).to_be_bytes()).expect("loopback");
            sender.wait(0).expect("all have arrived");
        }
        (1..MAX_CONSECUTIVE_LOSSES).for_each(|_| sender.count_as_lost().expect("too few in a row"));
        assert!(sender.count_as_lost().is_err_and(|failure| failure.what().contains("20 times in a row")));
    }
}
