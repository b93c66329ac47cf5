//! Messages over UDP sockets. A datagram has a key of the job, a kind, a number, and for data a message.

use super::Carrier;
use super::reliability::{Incoming, Outgoing};
use crate::error::Error;
use crate::meet::Meeting;
use ferroce::FaultConfig;
use parking_lot::Mutex;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const DATA: u8 = 1;
const ACK: u8 = 2;
/// Key, kind, number.
const HEAD: usize = 8 + 1 + 8;
/// Silence after which a process is lost.
const LOST: Duration = Duration::from_secs(10);
/// Interval of the retransmission checks.
const TICK: Duration = Duration::from_millis(5);

pub(super) struct Udp {
    socket: UdpSocket,
    key: u64,
    addresses: Vec<SocketAddr>,
    outgoing: Vec<Mutex<Outgoing>>,
    incoming: Mutex<Vec<Incoming>>,
    /// Faults as the NIC injects them, so that all transports can be tested on the same lossy network.
    faults: FaultConfig,
    dice: AtomicU64,
}

fn failed(call: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::System { call, source }
}

impl Udp {
    pub(super) fn open(rank: u32, size: u32, meeting: &Meeting) -> Result<Self, Error> {
        let own = meeting.local_address().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let socket = UdpSocket::bind(SocketAddr::new(own, 0)).map_err(failed("binding a UDP socket"))?;
        socket.set_read_timeout(Some(TICK)).map_err(failed("setting a timeout"))?;
        let address = socket.local_addr().map_err(failed("asking for the socket's address"))?;
        // The key keeps out datagrams of jobs that had this port before.
        let proposal: u64 = if rank == 0 { rand::random() } else { 0 };
        let lines = meeting.gather(&format!("{address} {proposal}"))?;
        let mut addresses = Vec::new();
        let mut key = 0;
        for line in &lines {
            let bad = || Error::Disagree(format!("{line:?} is not the address of a process"));
            let (address, word) = line.split_once(' ').ok_or_else(bad)?;
            addresses.push(address.parse().map_err(|_| bad())?);
            key |= word.parse::<u64>().map_err(|_| bad())?;
        }
        let faults = ferroce::Config::from_env().map_err(|error| Error::Transport(error.to_string()))?.faults;
        let faults = faults.unwrap_or_default();
        let now = Instant::now();
        Ok(Self {
            faults,
            dice: AtomicU64::new(faults.seed.wrapping_add(u64::from(rank) << 32)),
            socket,
            key,
            addresses,
            outgoing: (0..size).map(|_| Mutex::new(Outgoing::new(now))).collect(),
            incoming: Mutex::new((0..size).map(|_| Incoming::default()).collect()),
        })
    }

    /// Returns true with this probability.
    fn happens(&self, probability: f64) -> bool {
        if probability <= 0.0 {
            return false;
        }
        // The finalizer of SplitMix64: consecutive numbers give unrelated results.
        let mut roll = self.dice.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        roll = (roll ^ roll >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        roll = (roll ^ roll >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((roll ^ roll >> 31) >> 11) as f64 / (1u64 << 53) as f64 <= probability
    }

    fn transmit(&self, to: usize, kind: u8, number: u64, message: &[u8]) {
        let mut datagram = Vec::with_capacity(HEAD + message.len());
        datagram.extend(self.key.to_le_bytes());
        datagram.push(kind);
        datagram.extend(number.to_le_bytes());
        datagram.extend(message);
        if self.happens(self.faults.loss) {
            return;
        }
        let copies = 1 + usize::from(self.happens(self.faults.duplicate));
        for _ in 0..copies {
            // A datagram that the system refuses counts as lost and is retransmitted.
            let _ = self.socket.send_to(&datagram, self.addresses[to]);
        }
    }

    fn pump(&self, to: usize, outgoing: &mut Outgoing) {
        while let Some((number, message)) = outgoing.poll(Instant::now()) {
            self.transmit(to, DATA, number, message);
        }
    }

    fn handle(&self, from: SocketAddr, datagram: &[u8], each: &mut dyn FnMut(u32, &[u8])) -> Option<()> {
        let peer = self.addresses.iter().position(|address| *address == from)?;
        let (key, rest) = datagram.split_first_chunk::<8>()?;
        let (kind, rest) = rest.split_first()?;
        let (number, message) = rest.split_first_chunk::<8>()?;
        let number = u64::from_le_bytes(*number);
        if u64::from_le_bytes(*key) != self.key {
            return None;
        }
        match *kind {
            DATA => {
                let mut messages = Vec::new();
                let next = self.incoming.lock()[peer]
                    .take(number, message, |message| messages.push(message.to_vec()));
                self.transmit(peer, ACK, next, &[]);
                messages.iter().for_each(|message| each(peer as u32, message));
            }
            ACK => {
                let mut outgoing = self.outgoing[peer].lock();
                if let Some((number, message)) = outgoing.acknowledge(number, Instant::now()) {
                    self.transmit(peer, DATA, number, message);
                }
                self.pump(peer, &mut outgoing);
            }
            _ => {}
        }
        Some(())
    }

    /// Retransmits what was not acknowledged in time.
    fn expire(&self) -> Result<(), Error> {
        let now = Instant::now();
        for (to, outgoing) in self.outgoing.iter().enumerate() {
            let mut outgoing = outgoing.lock();
            if outgoing.silence(now) > LOST {
                return Err(Error::Transport(format!("process {to} has not answered for {LOST:?}")));
            }
            if let Some((number, message)) = outgoing.expire(now) {
                self.transmit(to, DATA, number, message);
            }
        }
        Ok(())
    }
}

impl Carrier for Udp {
    fn send(&self, to: u32, message: Vec<u8>) -> Result<(), Error> {
        let mut outgoing = self.outgoing[to as usize].lock();
        outgoing.push(message);
        self.pump(to as usize, &mut outgoing);
        Ok(())
    }

    fn receive(&self, patience: Duration, each: &mut dyn FnMut(u32, &[u8])) -> Result<(), Error> {
        let start = Instant::now();
        let mut ticked = start;
        let mut datagram = [0; 64 << 10];
        loop {
            match self.socket.recv_from(&mut datagram) {
                Ok((len, from)) => {
                    self.handle(from, &datagram[..len], each);
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                // An earlier datagram was refused. The rendezvous reports the reason.
                Err(error)
                    if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::Interrupted) => {}
                Err(error) => return Err(failed("receiving from a UDP socket")(error)),
            }
            let now = Instant::now();
            if now - ticked >= TICK {
                ticked = now;
                self.expire()?;
            }
            if now - start >= patience {
                return Ok(());
            }
        }
    }
}
