//! Sends packets: combines packets of equal length into GSO runs, and several runs into one system call.

use super::address::SockAddr;
use super::control::{Control, effective_hop_limit, effective_traffic_class};
use super::sockets::TxSocket;
use super::sys::{self, OutMessage, TX_BURST};
use super::tx_sockets::TxSockets;
use crate::link::batch::{SocketChoice, SocketChooser};
use crate::link::capture::{Capture, Direction, Outer};
use crate::link::counters::{RunningCounters, add};
use crate::link::{Attempt, SinglePacket, TxBatch};
use ferroce_os::clock::wall_clock_ns;
use ferroce_os::interfaces::local_addresses;
use ferroce_os::lock::RwLock;
use ferroce_proto::Gid;
use ferroce_proto::verbs::Route;
use ferroce_proto::wire::FlowAddrs;
use ferroce_shm::SourcePorts;

use smallvec::SmallVec;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// How often, and how long each time, a full device is waited for before packets are dropped.
const FULL_TRIES: u32 = 3;
const FULL_WAIT_MS: i32 = 1;

/// Fewer packets with fewer bytes are sent one by one. Two packets of 1 KiB are enough for a GSO run: a message often ends with
/// such a pair, and each separate packet costs the receiver as much as a whole GRO batch.
const FEW: usize = 4;
const FEW_BYTES: usize = 2048;

/// The sending half of the link.
#[derive(Debug)]
pub(super) struct Sender {
    plan: Arc<Plan>,
    /// The same, as the [`SocketChooser`] of batches.
    chooser: Arc<dyn SocketChooser>,
    /// Interface of each local address: IPv6 does not find it from the source address alone.
    interfaces: RwLock<HashMap<Gid, u32>>,
    pub(super) counters: Arc<RunningCounters>,
    capture: Option<Arc<Capture>>,
}

/// Chooses the TX socket of a route, and whether it may send GSO runs.
#[derive(Debug)]
struct Plan {
    tx_sockets: TxSockets,
    gso: bool,
    /// Sources whose device cannot segment, and whether there are any.
    plain_only: RwLock<Vec<Gid>>,
    has_plain_only: AtomicBool,
}

impl SocketChooser for Plan {
    fn choose(&self, route: &Route) -> Option<SocketChoice> {
        let number = self.tx_sockets.choose(route)?;
        let refused = self.has_plain_only.load(Relaxed) && self.plain_only.read().contains(&route.sgid);
        let socket = self.tx_sockets.socket(number);
        let is_plain =
            socket.is_bound && Control::is_needless(route, socket.defaults) && !needs_interface(route);
        Some(SocketChoice { number, sport: socket.port, may_segment: self.gso && !refused, is_plain })
    }
    fn is_stable(&self) -> bool {
        !self.has_plain_only.load(Relaxed)
    }
}

/// Consecutive packets of one route that are sent as one message.
#[derive(Clone, Debug)]
struct Run {
    packets: Range<usize>,
    segmented: bool,
}

/// Messages of the next system call, with their packets.
#[derive(Default)]
struct Burst {
    messages: SmallVec<[OutMessage; TX_BURST]>,
    runs: SmallVec<[Run; TX_BURST]>,
}

impl Sender {
    pub(super) fn new(
        tx_sockets: TxSockets,
        gso: bool,
        counters: Arc<RunningCounters>,
        capture: Option<Arc<Capture>>,
    ) -> Sender {
        let (plain_only, has_plain_only) = (RwLock::default(), AtomicBool::new(false));
        let plan = Arc::new(Plan { tx_sockets, gso, plain_only, has_plain_only });
        let chooser: Arc<dyn SocketChooser> = Arc::clone(&plan) as _;
        Sender { plan, chooser, interfaces: RwLock::default(), counters, capture }
    }

    /// Publishes the source ports of its sockets.
    pub(super) fn publish_ports(&self, ports: SourcePorts) {
        self.plan.tx_sockets.publish(ports);
    }

    /// Sends everything, socket by socket: packets of one route share a socket and keep their order.
    pub(super) fn send(&self, batch: &mut TxBatch) {
        if self.send_single(batch) == Attempt::Declined {
            batch.finalise_all(&self.chooser);
            self.send_by_socket(batch);
        }
        batch.clear();
    }

    /// Sends a batch of one packet that needs no control message and has the route of the last packet, as every small message
    /// does. Declines any other batch, and if the kernel returns an error.
    #[inline]
    fn send_single(&self, batch: &mut TxBatch) -> Attempt {
        if self.capture.is_some() {
            return Attempt::Declined;
        }
        let Some((choice, route, bytes)) = batch.finalise_single(&self.chooser) else {
            return Attempt::Declined;
        };
        self.send_plain(choice, route, bytes)
    }

    /// Sends one small packet of a queue pair without a batch.
    pub(super) fn try_send_one(&self, packet: &mut SinglePacket, route: &Route) -> Attempt {
        let choice =
            if self.capture.is_none() { packet.plain_choice(|| self.plan.choose(route)) } else { None };
        match choice {
            Some(choice) => self.send_plain(choice, route, packet.finalise(route, choice)),
            None => Attempt::Declined,
        }
    }

    /// Sends a packet that needs no control message. Declines if the kernel refuses it.
    #[inline(always)] // on the latency path of every short message
    fn send_plain(&self, choice: SocketChoice, route: &Route, bytes: &[u8]) -> Attempt {
        let socket = self.plan.tx_sockets.socket(choice.number);
        if sys::send_plain(socket.socket.as_raw_fd(), bytes, &SockAddr::roce(route.dgid)).is_err() {
            return Attempt::Declined;
        }
        add(&self.counters.tx_calls, 1);
        add(&self.counters.tx_packets, 1);
        add(&self.counters.tx_bytes, bytes.len() as u64);
        Attempt::Done
    }

    fn send_by_socket(&self, batch: &mut TxBatch) {
        let mut numbers = SmallVec::<[u16; 8]>::new();
        for packet in batch.entries() {
            match packet.icrc_inputs.and_then(|s| s.choice) {
                Some(choice) if !numbers.contains(&choice.number) => numbers.push(choice.number),
                Some(_) => {}
                None => add(&self.counters.send_errors, 1),
            }
        }
        for number in numbers {
            self.send_by(number, batch);
        }
    }

    /// The address, zero if unbound, and the port of the TX socket of this route.
    pub(super) fn socket_of(&self, route: &Route) -> Option<(Gid, u16)> {
        let socket = self.plan.tx_sockets.socket(self.plan.tx_sockets.choose(route)?);
        Some((if socket.is_bound { route.sgid } else { Gid::ZERO }, socket.port))
    }

    /// Sends raw bytes to one address, without ICRC and batch (probes).
    pub(super) fn send_raw(&self, to: Gid, bytes: &[u8]) {
        if let Some(from) = self.plan.tx_sockets.any(to.to_ipv4().is_some()) {
            let _ = sys::send_plain(from.socket.as_raw_fd(), bytes, &SockAddr::roce(to));
        }
    }

    fn send_by(&self, number: u16, batch: &mut TxBatch) {
        let socket = self.plan.tx_sockets.socket(number);
        let mut burst = Burst::default();
        let mut next = 0;
        while next < batch.len() {
            let packets = batch.run_from(next);
            let choice = batch.entries()[next].icrc_inputs.and_then(|s| s.choice);
            next = packets.end;
            if choice.is_none_or(|e| e.number != number) {
                continue;
            }
            if is_worth_segmenting(batch, &packets) {
                self.enqueue(socket, batch, Run { segmented: true, packets }, &mut burst);
                continue;
            }
            for index in packets {
                if batch.entries()[index].icrc_inputs.is_some_and(|s| s.run_index > 0) {
                    batch.finalise_alone(index);
                }
                self.enqueue(socket, batch, Run { segmented: false, packets: index..index + 1 }, &mut burst);
            }
        }
        self.flush(socket, batch, &mut burst);
    }

    fn enqueue(&self, socket: &TxSocket, batch: &mut TxBatch, run: Run, burst: &mut Burst) {
        burst.messages.push(self.message(socket, batch, &run));
        burst.runs.push(run);
        if burst.messages.len() == TX_BURST {
            self.flush(socket, batch, burst);
        }
    }

    fn message(&self, socket: &TxSocket, batch: &TxBatch, run: &Run) -> OutMessage {
        let first = &batch.entries()[run.packets.start];
        let segment_len = run.segmented.then_some(first.wire_len() as u16);
        let interface = self.interface_for(&first.route);
        let pktinfo = (interface != 0 || !socket.is_bound).then_some(interface);
        OutMessage {
            to: SockAddr::roce(first.route.dgid),
            control: Control::for_route(&first.route, socket.defaults, pktinfo, segment_len),
            packets: run.packets.clone(),
        }
    }

    /// The interface for multicast groups and link-local addresses of IPv6, which require one: that of the source address. 0 for
    /// all others, where the kernel chooses.
    fn interface_for(&self, route: &Route) -> u32 {
        if !needs_interface(route) {
            return 0;
        }
        if let Some(&index) = self.interfaces.read().get(&route.sgid) {
            return index;
        }
        let all = local_addresses().unwrap_or_default();
        let mut known = self.interfaces.write();
        known.extend(all.into_iter().map(|a| (Gid::from_ip(a.addr), a.index)));
        known.get(&route.sgid).copied().unwrap_or(0)
    }

    fn flush(&self, socket: &TxSocket, batch: &mut TxBatch, burst: &mut Burst) {
        let (mut done, mut tries_left) = (0, FULL_TRIES);
        while done < burst.messages.len() {
            add(&self.counters.tx_calls, 1);
            let fd = socket.socket.as_raw_fd();
            let began_ns = self.capture_time_ns();
            match sys::send_messages(fd, batch, &burst.messages[done..]) {
                Ok(sent) => {
                    for run in &burst.runs[done..done + sent] {
                        self.on_sent(socket, batch, run, began_ns);
                    }
                    done += sent;
                }
                Err(e) if is_passing(&e) && tries_left > 0 => {
                    tries_left -= 1;
                    sys::wait_writable(fd, FULL_WAIT_MS);
                }
                Err(e) => {
                    self.on_refused(socket, batch, &burst.runs[done], &e);
                    done += 1;
                }
            }
        }
        burst.messages.clear();
        burst.runs.clear();
    }

    /// The time of a packet that leaves now. It is read before the call: when the call returns, a receiver on this host may
    /// have recorded the packet already.
    fn capture_time_ns(&self) -> u64 {
        if self.capture.is_some() { wall_clock_ns() } else { 0 }
    }

    fn on_sent(&self, socket: &TxSocket, batch: &TxBatch, run: &Run, began_ns: u64) {
        add(&self.counters.tx_packets, run.packets.len() as u64);
        add(&self.counters.tx_bytes, batch.run_len(&run.packets) as u64);
        add(&self.counters.gso_batches, u64::from(run.segmented));
        if let Some(capture) = &self.capture {
            let route = batch.entries()[run.packets.start].route;
            let flow = FlowAddrs::new(route.sgid, route.dgid, socket.port);
            for (ident, index) in run.packets.clone().enumerate() {
                let tos = effective_traffic_class(&route, socket.defaults);
                let ttl = effective_hop_limit(&route);
                let outer = Outer { flow, ident: ident as u16, tos, ttl };
                capture.record(Direction::Sent, began_ns, &outer, batch.wire_bytes(index));
            }
        }
    }

    /// The kernel returned an error for a message. It may refuse a GSO run although it accepts the packets: the device cannot compute
    /// checksums, or the segments exceed the path MTU (which older kernels report as EINVAL). So each packet of the run is sent
    /// again on its own.
    fn on_refused(&self, socket: &TxSocket, batch: &mut TxBatch, run: &Run, error: &io::Error) {
        let errno = error.raw_os_error();
        if !run.segmented || !matches!(errno, Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE)) {
            return self.on_dropped(batch, &run.packets, error);
        }
        let mut any_sent = false;
        for index in run.packets.clone() {
            let alone = Run { packets: index..index + 1, segmented: false };
            batch.finalise_alone(index);
            let message = self.message(socket, batch, &alone);
            add(&self.counters.tx_calls, 1);
            let began_ns = self.capture_time_ns();
            match sys::send_messages(socket.socket.as_raw_fd(), batch, &[message]) {
                Ok(_) => {
                    any_sent = true;
                    self.on_sent(socket, batch, &alone, began_ns);
                }
                Err(e) => self.on_dropped(batch, &alone.packets, &e),
            }
        }
        if any_sent && errno != Some(libc::EMSGSIZE) {
            self.plan.plain_only.write().push(batch.entries()[run.packets.start].route.sgid);
            self.plan.has_plain_only.store(true, Relaxed);
        }
    }

    fn on_dropped(&self, batch: &TxBatch, packets: &Range<usize>, error: &io::Error) {
        add(&self.counters.send_errors, packets.len() as u64);
        let first = &batch.entries()[packets.start];
        let (count, len, dgid) = (packets.len(), first.wire_len(), first.route.dgid);
        if error.raw_os_error() == Some(libc::EMSGSIZE) {
            add(&self.counters.too_long, packets.len() as u64);
            let why = "too long for the interface; choose a smaller path MTU";
            ferroce_os::log::drop(format_args!("{count} packets of {len} bytes to {}: {why}", dgid.to_ip()));
        } else {
            ferroce_os::log::drop(format_args!(
                "{count} packets of {len} bytes to {dgid}: refused by the kernel: {error}"
            ));
        }
    }
}

/// Whether a GSO run costs less than sending its packets one by one: its setup costs as much as one or two small packets.
fn is_worth_segmenting(batch: &TxBatch, run: &Range<usize>) -> bool {
    run.len() >= FEW || (run.len() > 1 && batch.run_len(run) >= FEW_BYTES)
}

fn needs_interface(route: &Route) -> bool {
    let [first, second, ..] = route.dgid.0;
    first == 0xff || (first == 0xfe && second & 0xc0 == 0x80)
}

/// Whether the same call may succeed later. ECONNREFUSED reports the ICMP error of an earlier packet.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR | libc::ECONNREFUSED))
}
