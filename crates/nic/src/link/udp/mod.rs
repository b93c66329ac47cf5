//! RoCEv2 over UDP port 4791, without privilege, shared by the processes of one user.
//!
//! The link sends from a few sockets with their own source ports and receives on port 4791. Three facts determine the design.
//! The ICRC covers the IPv4 identification, which the kernel chooses (`send`). A steering program assigns each packet to one of
//! the processes that share the port (`steer`, `repair`, `probe`). Steering can be wrong (`link/shared_port.rs`).
//!
//! | file | contents |
//! |---|---|
//! | `open` | opening and closing: sockets, slot, membership in the group of processes |
//! | `sockets` | options that make a socket speak RoCEv2 |
//! | `owner` | which process has the port if binding fails |
//! | `send`, `tx_sockets` | sending: GSO runs, errors of the kernel, and TX sockets |
//! | `receive`, `source` | receiving, and which sockets to poll |
//! | `gro_batch` | splits GRO batches and verifies their packets, long ones in chunks |
//! | `single_rx` | single-packet RX: one small packet at a time, without control messages |
//! | `ident` | which IPv4 identifications are plausible for a packet |
//! | `steer`, `repair`, `probe` | which process gets a packet |
//! | `multicast`, `ignore` | multicast groups, and packets to them that the kernel drops |
//! | `interfaces` | the addresses of the machine |
//! | `address`, `control`, `sys` | system calls and their structures; all `unsafe` of the hot path |

mod address;
mod control;
mod gro_batch;
mod ident;
mod ignore;
mod multicast;
mod open;
mod owner;
mod probe;
mod receive;
mod repair;
mod send;
mod single_rx;
mod sockets;
mod source;
mod steer;
mod sys;
mod tx_sockets;

use super::capture::Capture;
use super::counters::RunningCounters;
use super::shared_port::SharedPort;
use super::{Attempt, Capabilities, Effort, Link, LinkCounters, RxBatch, SinglePacket, Sleep, TxBatch};
use ferroce_os::lock::Mutex;
use ferroce_os::wait_set::WaitSet;
use ferroce_proto::Gid;
use ferroce_proto::verbs::Route;
use ferroce_shm::SourcePorts;
use receive::Receiver;
use send::Sender;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use tx_sockets::TxSockets;

pub(crate) use ignore::Origin;
pub(crate) use steer::{is_final_message, management_slot};

/// How to open a [`UdpLink`].
#[derive(Clone, Debug)]
pub struct UdpConfig {
    /// Addresses to receive on; `None` receives on all of them, IPv4 and IPv6.
    pub bind: Option<Vec<IpAddr>>,
    /// Send GSO runs where the path supports them.
    pub gso: bool,
    /// Let the kernel merge received packets (GRO).
    pub gro: bool,
    /// Source ports per source address, 1 to 16; the route's entropy picks one.
    pub send_sockets: usize,
    /// Records every packet that is sent or received.
    pub capture: Option<Arc<Capture>>,
    /// Let switches mark packets (ECN) instead of dropping them, and read the marks of arriving ones.
    pub ecn: bool,
    /// Measure how long received packets wait in the socket, for congestion controls that use the RTT.
    pub timestamps: bool,
    /// Where the registry of the host's processes lives, if not at [`ferroce_shm::registry::default_base`]. Processes that
    /// share an address must agree on it.
    pub registry_base: Option<PathBuf>,
}

impl Default for UdpConfig {
    fn default() -> Self {
        UdpConfig {
            bind: None,
            gso: true,
            gro: true,
            send_sockets: 4,
            capture: None,
            ecn: false,
            timestamps: false,
            registry_base: None,
        }
    }
}

/// RoCEv2 over UDP port 4791, shared with the other processes of this user.
#[derive(Debug)]
pub struct UdpLink {
    config: UdpConfig,
    slot: u8,
    addresses: Vec<BoundAddress>,
    sender: Sender,
    /// Sends copies of packets that some receivers also get through shared memory; opened with the first such packet.
    echoer: OnceLock<Option<Sender>>,
    receiver: Mutex<Receiver>,
    port: Arc<SharedPort>,
    /// Whether the kernel reports traffic class and hop limit.
    reports_outer_fields: AtomicBool,
    /// Readable while a multicast group has packets. Exists from the start, so that `wait_fds` never changes.
    group_poll: WaitSet,
    counters: Arc<RunningCounters>,
    capture: Option<Arc<Capture>>,
}

/// An address on which the link receives.
#[derive(Debug)]
struct BoundAddress {
    addr: IpAddr,
    socket: socket2::Socket,
}

impl BoundAddress {
    /// The destination of all packets that this socket receives; `None` for the wildcard address.
    fn only_gid(&self) -> Option<Gid> {
        (!self.addr.is_unspecified()).then(|| Gid::from_ip(self.addr))
    }
}

impl UdpLink {
    /// The slot of this process: the high eight bits of all queue pair numbers that it receives for.
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// Its part of the port that is shared with other processes.
    pub fn port(&self) -> &Arc<SharedPort> {
        &self.port
    }

    /// The addresses on which it receives.
    pub(crate) fn bound_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().map(|bound| bound.addr)
    }

    /// Publishes the source ports of its packets. No other user of this host can send from the same address and port.
    pub(crate) fn publish_ports(&self, ports: SourcePorts) {
        self.sender.publish_ports(ports);
    }

    /// The address (zero for none) and the port of the socket that [`Self::send_echoes`] uses for this route. This socket sends
    /// no other packets.
    pub(crate) fn echo_socket(&self, route: &Route) -> Option<Origin> {
        self.echoer()?.socket_of(route)
    }

    /// Sends copies of packets, which receivers recognise by their source address and port.
    pub(crate) fn send_echoes(&self, batch: &mut TxBatch) {
        if let Some(echoer) = self.echoer() {
            echoer.send(batch);
        }
    }

    fn echoer(&self) -> Option<&Sender> {
        let open = || {
            let tx_sockets = TxSockets::open(1, self.config.ecn).ok()?;
            Some(Sender::new(tx_sockets, self.config.gso, Arc::clone(&self.counters), self.capture.clone()))
        };
        self.echoer.get_or_init(open).as_ref()
    }
}

impl Link for UdpLink {
    fn send(&self, batch: &mut TxBatch) {
        self.sender.send(batch);
    }
    fn try_send_one(&self, packet: &mut SinglePacket, route: &Route) -> Attempt {
        self.sender.try_send_one(packet, route)
    }
    fn receive(&self, rx: &mut RxBatch, effort: Effort) -> usize {
        if rx.has_more { self.receive_rest(rx) } else { self.receive_new(rx, effort == Effort::Thorough) }
    }
    fn wait_fds(&self) -> Vec<RawFd> {
        let addresses = self.addresses.iter().map(|a| a.socket.as_raw_fd());
        addresses.chain([self.port.as_raw_fd(), self.group_poll.as_raw_fd()]).collect()
    }
    fn prepare_sleep(&self) -> Sleep {
        Sleep::Allowed { deadline: self.port.deadline() }
    }
    fn join_multicast(&self, group: Gid) -> io::Result<()> {
        self.join_on(group, &self.group_interfaces(group)?)
    }
    fn leave_multicast(&self, group: Gid) -> io::Result<()> {
        self.leave(group)
    }
    fn capabilities(&self) -> Capabilities {
        // A capture needs the whole packet in the batch.
        Capabilities { external_payloads: self.capture.is_none() }
    }
    fn counters(&self) -> LinkCounters {
        let mut counters = self.counters.snapshot();
        for address in &self.addresses {
            let (rcvbuf_bytes, drops) = sys::memory_figures(&address.socket);
            counters.rcvbuf_bytes = counters.rcvbuf_bytes.max(rcvbuf_bytes);
            counters.rx_overruns += drops;
        }
        counters.capture_errors = self.capture.as_ref().map_or(0, |c| c.errors());
        counters
    }
    fn report_outer_fields(&self) {
        self.reports_outer_fields.store(true, Relaxed);
        for BoundAddress { addr, socket } in &self.addresses {
            // The options exist on every kernel that can open the socket.
            let _ = sockets::report_outer_fields(socket, addr.is_ipv4());
        }
    }
}
