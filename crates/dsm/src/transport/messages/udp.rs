//! Messages over UDP sockets. A datagram has a key of the job, a kind, a number, an acknowledgement, and for data a message.
//!
//! A thread of the program that waits receives datagrams itself, so a message wakes one thread and not two. The kernel
//! wakes it before the service thread, which receives while no such thread waits.

use super::reliability::{Arrived, Incoming, MAX_UNANSWERED, Outgoing};
use super::{Carrier, LARGEST};
use crate::error::Error;
use crate::meet::Meeting;
use ferroce::FaultConfig;
use ferroce_os::eventfd::EventFd;
use ferroce_os::wait_set::WaitSet;
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recvfrom};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

const DATA: u8 = 1;
const ACK: u8 = 2;
/// Key, kind, number, acknowledgement.
const HEAD: usize = 8 + 1 + 8 + 8;
/// Interval of the checks for retransmissions and overdue acknowledgements. Less than the wait for an acknowledgement.
const TICK: Duration = Duration::from_millis(5);

pub(super) struct Udp {
    socket: UdpSocket,
    key: u64,
    addresses: Vec<SocketAddr>,
    outgoing: Vec<Mutex<Outgoing>>,
    incoming: Vec<Mutex<Incoming>>,
    arrived: Vec<Arrived>,
    caller_wait: CallerWait,
    /// Faults as the NIC injects them, so that all transports can be tested on the same lossy network.
    faults: FaultConfig,
    random_state: AtomicU64,
}

/// Lets a thread of the program wait for datagrams, one at a time.
struct CallerWait {
    set: WaitSet,
    /// Set when the service thread has handled a message that the waiting thread may need.
    wake_event: EventFd,
    waiting: AtomicBool,
    /// Not on the stack, which may be small: page faults use it, too.
    datagram: Mutex<Vec<u8>>,
}

impl CallerWait {
    fn new(socket: &UdpSocket) -> io::Result<Self> {
        let (set, wake_event) = (WaitSet::new()?, EventFd::new()?);
        let datagram = Mutex::new(vec![0; HEAD + LARGEST]);
        let caller_wait = Self { set, wake_event, waiting: AtomicBool::new(false), datagram };
        caller_wait.set.enter_exclusive(socket.as_raw_fd())?;
        caller_wait.set.enter_other(caller_wait.wake_event.as_fd().as_raw_fd())?;
        Ok(caller_wait)
    }

    /// Records whether a thread of the program waits.
    fn set_waiting(&self, waiting: bool) {
        self.waiting.store(waiting, Ordering::Relaxed);
        // Pairs with the fence in `wake`: either the event is set, or the waiting thread sees what the message changed.
        fence(Ordering::SeqCst);
    }

    /// Wakes the waiting thread, if any.
    fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) {
            self.wake_event.add();
        }
    }

    fn sleep(&self, most: Duration) {
        if !self.set.sleep(most) {
            while self.wake_event.try_take() {}
        }
    }
}

fn failed(call: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::System { call, source }
}

impl Udp {
    pub(super) fn open(rank: u32, size: u32, meeting: &Meeting) -> Result<Self, Error> {
        let own = meeting.local_address().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let socket = UdpSocket::bind(SocketAddr::new(own, 0)).map_err(failed("binding a UDP socket"))?;
        socket.set_read_timeout(Some(TICK)).map_err(failed("setting a timeout"))?;
        let address = socket.local_addr().map_err(failed("reading the address of the socket"))?;
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
        let caller_wait = CallerWait::new(&socket).map_err(failed("making a set of descriptors"))?;
        Ok(Self {
            caller_wait,
            faults,
            random_state: AtomicU64::new(faults.seed.wrapping_add(u64::from(rank) << 32)),
            socket,
            key,
            addresses,
            outgoing: (0..size).map(|_| Mutex::new(Outgoing::new(now))).collect(),
            incoming: (0..size).map(|_| Mutex::default()).collect(),
            arrived: (0..size).map(|_| Arrived::default()).collect(),
        })
    }

    /// Returns true with this probability.
    fn happens(&self, probability: f64) -> bool {
        if probability <= 0.0 {
            return false;
        }
        // The finalizer of SplitMix64: consecutive numbers give unrelated results.
        let mut roll = self.random_state.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        roll = (roll ^ roll >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        roll = (roll ^ roll >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((roll ^ roll >> 31) >> 11) as f64 / (1u64 << 53) as f64 <= probability
    }

    fn transmit(&self, to: usize, kind: u8, number: u64, message: &[u8]) {
        let mut datagram = Vec::with_capacity(HEAD + message.len());
        datagram.extend(self.key.to_le_bytes());
        datagram.push(kind);
        datagram.extend(number.to_le_bytes());
        datagram.extend(self.arrived[to].acknowledge().to_le_bytes());
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
        let (number, rest) = rest.split_first_chunk::<8>()?;
        let (next, message) = rest.split_first_chunk::<8>()?;
        let (number, next) = (u64::from_le_bytes(*number), u64::from_le_bytes(*next));
        if u64::from_le_bytes(*key) != self.key {
            return None;
        }
        {
            let mut outgoing = self.outgoing[peer].lock();
            if let Some((number, message)) = outgoing.acknowledge(next, *kind == DATA, Instant::now()) {
                self.transmit(peer, DATA, number, message);
            }
            self.pump(peer, &mut outgoing);
        }
        if *kind == DATA {
            let mut incoming = self.incoming[peer].lock();
            let immediately =
                incoming.take(&self.arrived[peer], number, message, |message| each(peer as u32, message));
            if immediately {
                self.transmit(peer, ACK, 0, &[]);
            }
        }
        Some(())
    }

    /// Retransmits what was not acknowledged in time, and acknowledges what no datagram has acknowledged.
    fn expire(&self) -> Result<(), Error> {
        let now = Instant::now();
        for (to, outgoing) in self.outgoing.iter().enumerate() {
            let mut outgoing = outgoing.lock();
            if outgoing.is_lost() {
                return Err(Error::Transport(format!(
                    "process {to} has not answered {MAX_UNANSWERED} retransmissions"
                )));
            }
            if let Some((number, message)) = outgoing.expire(now) {
                self.transmit(to, DATA, number, message);
            }
            if self.arrived[to].is_overdue() {
                self.transmit(to, ACK, 0, &[]);
            }
        }
        Ok(())
    }

    /// Receives a datagram and handles it. Returns whether there was one.
    fn receive_one(
        &self,
        flags: RecvFlags,
        datagram: &mut [u8],
        each: &mut dyn FnMut(u32, &[u8]),
    ) -> Result<bool, Error> {
        match recvfrom(&self.socket, &mut *datagram, flags) {
            Ok((len, _, from)) => {
                if let Some(from) = from.and_then(|from| SocketAddr::try_from(from).ok()) {
                    self.handle(from, &datagram[..len], each);
                }
                Ok(true)
            }
            Err(Errno::AGAIN) => Ok(false),
            // An earlier datagram was refused. The rendezvous reports the reason.
            Err(Errno::CONNREFUSED | Errno::INTR) => Ok(true),
            Err(error) => Err(failed("receiving from a UDP socket")(error.into())),
        }
    }
}

impl Carrier for Udp {
    fn send(&self, to: u32, message: Vec<u8>) -> Result<(), Error> {
        let mut outgoing = self.outgoing[to as usize].lock();
        outgoing.push(message);
        self.pump(to as usize, &mut outgoing);
        Ok(())
    }

    fn receive(&self, timeout: Duration, each: &mut dyn FnMut(u32, &[u8])) -> Result<(), Error> {
        let start = Instant::now();
        let mut ticked = start;
        let mut datagram = [0; HEAD + LARGEST];
        loop {
            // It blocks for at most a tick.
            if self.receive_one(RecvFlags::empty(), &mut datagram, each)? {
                self.caller_wait.wake();
            }
            let now = Instant::now();
            if now - ticked >= TICK {
                ticked = now;
                self.expire()?;
            }
            if now - start >= timeout {
                return Ok(());
            }
        }
    }

    fn poll(&self, each: &mut dyn FnMut(u32, &[u8])) -> Result<(), Error> {
        let mut datagram = self.caller_wait.datagram.lock();
        self.receive_one(RecvFlags::DONTWAIT, &mut datagram[..], each).map(|_| ())
    }

    fn receive_in_caller(
        &self,
        most: Duration,
        ready: &mut dyn FnMut() -> bool,
        each: &mut dyn FnMut(u32, &[u8]),
    ) -> Result<bool, Error> {
        self.caller_wait.set_waiting(true);
        let sleeps = !ready();
        if sleeps {
            self.caller_wait.sleep(most);
        }
        self.caller_wait.set_waiting(false);
        // A datagram wakes one thread only, so this thread receives at least one.
        let mut datagram = self.caller_wait.datagram.lock();
        while sleeps && self.receive_one(RecvFlags::DONTWAIT, &mut datagram[..], each)? && !ready() {}
        Ok(true)
    }
}
