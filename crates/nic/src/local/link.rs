//! The link that uses rings where it can and UDP where it must.

use super::cast::Cast;
use crate::link::{
    Attempt, Capabilities, Effort, Link, LinkCounters, RxBatch, RxMeta, SinglePacket, Sleep, TxBatch,
    TxPiece, UdpLink, now,
};
use ferroce_os::lock::Mutex;
use ferroce_proto::Gid;
use ferroce_proto::verbs::Route;
use ferroce_proto::wire::{ICRC_LEN, RendezvousSend, dest_qpn};
use ferroce_shm::{LocalPeer, LocalPeers, Piece, Pushed, RxRings};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Polls of the rings between two polls of the sockets, while packets arrive through rings: polling a ring takes some nanoseconds,
/// polling a socket is a system call.
const POLLS_PER_CALL: u32 = 256;
/// Polls without a packet after which packets are no longer expected from rings.
const RINGS_QUIET_AFTER: u32 = 20_000;
/// Polls of the sockets without a packet after which they are polled less often, and the polls of the rings between two polls of such
/// sockets. These polls of the rings together take less time than the system call that they replace.
const SOCKETS_QUIET_AFTER: u32 = 1024;
const POLLS_PER_QUIET_CALL: u32 = 8;
/// Delay until packets that found a full ring are retried if nothing arrives.
const RETRY_NS: u64 = 50_000;
/// Interval of the liveness checks of the writers of quiet rings.
const LIVENESS_CHECK_NS: u64 = 1_000_000_000;

/// How long a link that closes waits until its peers have noticed their packets.
const LAST_PATIENCE_NS: u64 = 200_000_000;

/// UDP, and rings in shared memory to the processes of this host.
pub(crate) struct LocalLink {
    pub(super) udp: Arc<UdpLink>,
    local_peers: Arc<LocalPeers>,
    pub(super) cast: Cast,
    receiver: Mutex<RingReceiver>,
    /// Packets wait for space in a ring.
    any_waiting: AtomicBool,
    /// The driver sleeps, or is about to.
    sleeps: AtomicBool,
    tx_packets: AtomicU64,
    tx_bytes: AtomicU64,
    rx_packets: AtomicU64,
    rx_bytes: AtomicU64,
    waited: AtomicU64,
    lost: AtomicU64,
}

/// The receiving side of the rings.
struct RingReceiver {
    rings: RxRings,
    /// Polls since a ring had a packet.
    quiet: u32,
    /// Polls of the sockets since they had a packet.
    sockets_quiet: u32,
    /// Polls since the sockets were polled.
    polls: u32,
    next_liveness_check_ns: u64,
}

/// Finds the local peer of a packet. Most packets of a batch have the same destination.
struct Directory<'a> {
    local_peers: &'a LocalPeers,
    last: Option<(Gid, u8, Option<Arc<LocalPeer>>)>,
}

impl Directory<'_> {
    /// The local peer that packet `index` is for, if any.
    fn find(&mut self, batch: &TxBatch, index: usize) -> Option<&Arc<LocalPeer>> {
        let qpn = dest_qpn(batch.wire_bytes(index))?;
        let (dgid, slot) = (batch.entries()[index].route.dgid, (qpn.value() >> 16) as u8);
        let is_known = matches!(&self.last, Some((known, at, _)) if (*known, *at) == (dgid, slot));
        if !is_known {
            self.last = Some((dgid, slot, self.local_peers.find(dgid, qpn)));
        }
        self.last.as_ref().and_then(|(_, _, local_peer)| local_peer.as_ref())
    }
}

impl LocalLink {
    /// Opens the same-host fabric on top of an open UDP link. `first` is the fabric of the NIC's first context, if this is a further context.
    pub(crate) fn open(
        udp: Arc<UdpLink>,
        uses_memfd: bool,
        first: Option<&LocalPeers>,
    ) -> io::Result<LocalLink> {
        let registry = udp.port().registry().clone();
        let local_peers = Arc::new(LocalPeers::open(registry, uses_memfd, udp.bound_addresses(), first)?);
        udp.publish_ports(local_peers.source_ports());
        let cast = Cast::open(&local_peers)?;
        let next_liveness_check_ns = now().0 + LIVENESS_CHECK_NS;
        Ok(LocalLink {
            udp,
            local_peers,
            cast,
            receiver: Mutex::new(RingReceiver {
                rings: RxRings::new(TxBatch::MAX_PACKET_LEN),
                quiet: 0,
                sockets_quiet: 0,
                polls: 0,
                next_liveness_check_ns,
            }),
            any_waiting: AtomicBool::new(false),
            sleeps: AtomicBool::new(false),
            tx_packets: AtomicU64::new(0),
            tx_bytes: AtomicU64::new(0),
            rx_packets: AtomicU64::new(0),
            rx_bytes: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        })
    }

    /// The fabric that the link belongs to.
    pub(crate) fn local_peers(&self) -> &Arc<LocalPeers> {
        &self.local_peers
    }

    /// Puts packet `index` into the local peer's ring.
    pub(super) fn push(&self, local_peer: &LocalPeer, batch: &TxBatch, index: usize) {
        let route = &batch.entries()[index].route;
        let meta = meta_of(route);
        let len = batch.entries()[index].wire_len() - ICRC_LEN;
        let (mut pieces, mut count, mut left) = ([Piece { start: std::ptr::null(), len: 0 }; 3], 0, len);
        batch.each_piece(index..index + 1, |piece| {
            let (start, piece_len) = match piece {
                TxPiece::Arena(bytes) => (bytes.as_ptr(), bytes.len()),
                TxPiece::External(external) => (external.as_ptr(), external.len()),
            };
            // Without the ICRC at the end: shared memory does not corrupt bytes.
            let piece_len = piece_len.min(left);
            pieces[count] = Piece { start, len: piece_len };
            (count, left) = (count + 1, left - piece_len);
        });
        debug_assert_eq!(left, 0);
        let pieces = &pieces[..count];
        // SAFETY: the pieces are the packet: parts of the batch, or of regions that the sender of the batch holds; and
        // they have `len` bytes, for what is missing at the end was cut off above.
        let pushed = unsafe { local_peer.push(&meta, len, pieces.iter().copied()) };
        match pushed {
            Pushed::Done => {}
            Pushed::Waits => {
                self.waited.fetch_add(1, Ordering::Relaxed);
                self.any_waiting.store(true, Ordering::Relaxed);
            }
            Pushed::Lost => {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.count_pushed(len);
    }

    pub(super) fn count_pushed(&self, len: usize) {
        self.tx_packets.fetch_add(1, Ordering::Relaxed);
        self.tx_bytes.fetch_add(len as u64, Ordering::Relaxed);
    }

    pub(super) fn wake_if_asleep(&self, local_peer: &LocalPeer) {
        if local_peer.must_be_woken() {
            self.udp.port().wake(local_peer.slot());
        }
    }

    /// Sends a batch whose packets all go to local peers, nearly always to one.
    fn send_local(&self, batch: &TxBatch, directory: &mut Directory<'_>) {
        let mut last: Option<Arc<LocalPeer>> = None;
        for index in 0..batch.len() {
            let Some(local_peer) = directory.find(batch, index) else {
                // It ended after `send` found it.
                self.lost.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            self.push(local_peer, batch, index);
            if !last.as_ref().is_some_and(|last| Arc::ptr_eq(last, local_peer)) {
                last.replace(local_peer.clone()).inspect(|done| self.wake_if_asleep(done));
            }
        }
        last.inspect(|done| self.wake_if_asleep(done));
    }

    /// Sends a batch whose packets take different links.
    fn send_mixed(&self, batch: &TxBatch, directory: &mut Directory<'_>) {
        let mut rest = TxBatch::new();
        for index in 0..batch.len() {
            if let Some(local_peer) = directory.find(batch, index) {
                self.push(local_peer, batch, index);
                self.wake_if_asleep(local_peer);
                continue;
            }
            if !rest.has_room(batch.entries()[index].wire_len() - ICRC_LEN) {
                self.send_rest(&mut rest);
            }
            batch.copy_packet(index, &mut rest);
        }
        self.send_rest(&mut rest);
    }

    /// Retries packets that found a full ring.
    fn retry(&self) {
        let mut any = false;
        for local_peer in self.local_peers.known().filter(|n| n.has_waiting()) {
            if !local_peer.lives_now() {
                local_peer.give_up();
            } else if local_peer.retry() {
                self.wake_if_asleep(&local_peer);
            }
            any |= local_peer.has_waiting();
        }
        self.any_waiting.store(any, Ordering::Relaxed);
    }

    /// Waits a limited time until the peers have opened their rings: a ring that is not open when its writer ends is never read.
    fn settle(&self) {
        let start = now();
        let unsettled = |n: &Arc<LocalPeer>| !n.is_self() && !n.is_settled();
        while now().since_ns(start) < LAST_PATIENCE_NS {
            self.retry();
            let waiting: Vec<_> = self.local_peers.known().filter(unsettled).collect();
            if waiting.is_empty() {
                return;
            }
            waiting.iter().for_each(|local_peer| self.wake_if_asleep(local_peer));
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Receives packets by UDP.
    fn receive_udp(&self, receiver: &mut RingReceiver, rx: &mut RxBatch, effort: Effort) -> usize {
        let found = self.udp.receive(rx, effort);
        receiver.polls = 0;
        receiver.sockets_quiet = if found > 0 { 0 } else { receiver.sockets_quiet.saturating_add(1) };
        let thorough = effort == Effort::Thorough;
        if self.sleeps.load(Ordering::SeqCst) {
            self.rearm_wake_up(receiver);
        }
        if found == 0 && thorough {
            receiver.rings.forget_departed();
        }
        let found = if found > 0 { self.drop_echoes(&mut receiver.rings, rx) } else { 0 };
        self.ignore_echoes(&mut receiver.rings);
        found
    }

    /// Requests a wake-up again. A wake-up is a datagram, and a thread that polls the socket may read it before the sleeping driver wakes.
    /// Without a new request the driver would continue to sleep, and no peer would send another wake-up.
    fn rearm_wake_up(&self, receiver: &mut RingReceiver) {
        if self.local_peers.set_asleep(true) {
            return;
        }
        receiver.rings.open_new(&self.local_peers);
        // A packet that came before that sent no wake-up, and this thread may never poll again.
        if receiver.rings.any_ready() {
            self.local_peers.set_asleep(false);
            self.udp.port().wake(self.local_peers.slot());
        }
    }

    /// Receives packets from the rings.
    fn receive_rings(&self, receiver: &mut RingReceiver, rx: &mut RxBatch) -> usize {
        receiver.rings.release(&self.local_peers);
        receiver.rings.open_new(&self.local_peers);
        // If the rings were empty a moment ago, a program waits for one message. Reading the ring behind it would wait for a cache line
        // that the writer holds.
        let taken = receiver.rings.receive(receiver.quiet > 0, |slot, start, len, meta| {
            // SAFETY: the space is released to the writer in the next `receive`, or when the driver sleeps; both come after the batch was
            // processed. The ring lives at least as long as the link.
            let packet = unsafe { rx.push_there(start, len, meta, slot) };
            RendezvousSend::last_len(packet)
        });
        if taken.packets > 0 {
            // One writer: the holder of the lock.
            self.rx_packets
                .store(self.rx_packets.load(Ordering::Relaxed) + taken.packets as u64, Ordering::Relaxed);
            self.rx_bytes.store(self.rx_bytes.load(Ordering::Relaxed) + taken.bytes, Ordering::Relaxed);
        }
        taken.packets
    }
}

impl Drop for LocalLink {
    fn drop(&mut self) {
        self.settle();
    }
}

/// The outer header fields that packets on this route would have.
#[inline]
pub(super) fn meta_of(route: &Route) -> RxMeta {
    RxMeta {
        sgid: route.sgid,
        dgid: route.dgid,
        sport: 0xC000 | route.entropy & 0x3fff,
        tos: route.traffic_class,
        ttl: route.hop_limit,
    }
}

impl Link for LocalLink {
    fn send(&self, batch: &mut TxBatch) {
        let mut directory = Directory { local_peers: &self.local_peers, last: None };
        let local = (0..batch.len()).filter(|&index| directory.find(batch, index).is_some()).count();
        if local == 0 {
            return self.send_rest(batch);
        }
        if local == batch.len() {
            self.send_local(batch, &mut directory);
        } else {
            self.send_mixed(batch, &mut directory);
        }
        batch.clear();
    }

    fn try_send_one(&self, packet: &mut SinglePacket, route: &Route) -> Attempt {
        // Packets to processes of this host go through a ring.
        if self.local_peers.is_local(route.dgid) {
            return Attempt::Declined;
        }
        self.udp.try_send_one(packet, route)
    }

    fn capabilities(&self) -> Capabilities {
        self.udp.capabilities()
    }

    fn receive(&self, rx: &mut RxBatch, effort: Effort) -> usize {
        // Only UDP leaves the rest of a GRO batch.
        if rx.has_more() {
            return self.udp.receive(rx, effort);
        }
        if self.any_waiting.load(Ordering::Relaxed) {
            self.retry();
        }
        let Some(mut receiver) = self.receiver.try_lock() else {
            rx.clear();
            return 0;
        };
        rx.clear();
        receiver.polls += 1;
        // Rings that are never empty must not starve the sockets.
        if receiver.polls >= POLLS_PER_CALL {
            let found = self.receive_udp(&mut receiver, rx, effort);
            if found > 0 {
                return found;
            }
        }
        let found = self.receive_rings(&mut receiver, rx);
        if found > 0 {
            receiver.quiet = 0;
            return found;
        }
        receiver.quiet = receiver.quiet.saturating_add(1);
        let thorough = effort == Effort::Thorough;
        if thorough && now().0 > receiver.next_liveness_check_ns {
            receiver.next_liveness_check_ns = now().0 + LIVENESS_CHECK_NS;
            receiver.rings.close_dead(&self.local_peers);
        }
        let rings_are_quiet = receiver.quiet > RINGS_QUIET_AFTER || receiver.rings.is_empty();
        let sockets_wait =
            receiver.sockets_quiet >= SOCKETS_QUIET_AFTER && receiver.polls < POLLS_PER_QUIET_CALL;
        if !thorough && (sockets_wait || !rings_are_quiet) {
            return 0;
        }
        self.receive_udp(&mut receiver, rx, effort)
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        self.udp.wait_fds()
    }

    fn prepare_sleep(&self) -> Sleep {
        self.sleeps.store(true, Ordering::SeqCst);
        self.local_peers.set_asleep(true);
        let Some(mut receiver) = self.receiver.try_lock() else { return Sleep::Pending };
        receiver.rings.open_new(&self.local_peers);
        if receiver.rings.any_ready() {
            self.local_peers.set_asleep(false);
            return Sleep::Pending;
        }
        let retry = self.any_waiting.load(Ordering::Relaxed).then(|| now() + RETRY_NS);
        self.udp.prepare_sleep().until(retry)
    }

    fn end_sleep(&self) {
        self.sleeps.store(false, Ordering::SeqCst);
        self.local_peers.set_asleep(false);
    }

    fn join_multicast(&self, group: Gid) -> io::Result<()> {
        let interfaces = self.udp.group_interfaces(group)?;
        self.cast.table.join(group, &interfaces, || self.udp.join_on(group, &interfaces))
    }

    fn leave_multicast(&self, group: Gid) -> io::Result<()> {
        self.cast.table.leave(group, || self.udp.leave_multicast(group))
    }

    fn counters(&self) -> LinkCounters {
        let mut counters = self.udp.counters();
        counters.local_tx_packets = self.tx_packets.load(Ordering::Relaxed);
        counters.local_tx_bytes = self.tx_bytes.load(Ordering::Relaxed);
        counters.local_rx_packets = self.rx_packets.load(Ordering::Relaxed);
        counters.local_rx_bytes = self.rx_bytes.load(Ordering::Relaxed);
        counters.local_waited = self.waited.load(Ordering::Relaxed);
        counters.local_lost = self.lost.load(Ordering::Relaxed);
        counters.local_echoes = self.cast.echoes.load(Ordering::Relaxed);
        counters
    }

    fn report_outer_fields(&self) {
        self.udp.report_outer_fields();
    }

    fn flush(&self) {
        self.settle();
        self.udp.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::UdpConfig;

    fn open(address: &str) -> LocalLink {
        let bind = Some(vec![address.parse().unwrap()]);
        let udp = UdpLink::open(&UdpConfig { bind, ..UdpConfig::default() }).unwrap();
        LocalLink::open(Arc::new(udp), true, None).unwrap()
    }

    fn is_readable(link: &LocalLink) -> bool {
        let mut fds: Vec<libc::pollfd> = link
            .wait_fds()
            .into_iter()
            .map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
            .collect();
        // SAFETY: the count is the length of the vector that the pointer refers to.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, 0) > 0 }
    }

    /// A process that cannot open a ring to a local peer sends to it by UDP.
    #[test]
    fn a_local_peer_knows_the_ports_that_a_link_sends_from_and_nobody_else_has_them() {
        let [from, to] = ["127.43.91.1", "127.43.91.2"].map(|address| Gid::from_ip(address.parse().unwrap()));
        let [sender, receiver] = [from, to].map(|gid| open(&gid.to_ip().to_string()));
        let peer = receiver.local_peers.find_in_slot(sender.local_peers.slot(), from).unwrap();
        let packet = [0x64, 0x40, 0xff, 0xff, 0, receiver.local_peers.slot(), 0, 9, 0, 0, 0, 0];
        for (entropy, hop_limit) in (0..8).flat_map(|entropy| [(entropy, 64), (entropy, 9)]) {
            let route = Route { sgid: from, dgid: to, entropy, hop_limit, ..Route::default() };
            let mut batch = TxBatch::new();
            batch.reserve(&route, packet.len()).copy_from_slice(&packet);
            sender.udp.send(&mut batch);
            let mut rx = RxBatch::new();
            let start = now();
            while receiver.receive(&mut rx, Effort::Thorough) == 0 {
                assert!(now().since_ns(start) < 30_000_000_000, "it never arrived");
            }
            let sport = rx.packet(0).sport;
            assert!(peer.sends_from(sport), "entropy {entropy}, hop limit {hop_limit}");
            // From another address, a socket could name the sender's as its source.
            for address in [from, to, Gid::from_ip([0; 4].into())] {
                let taken = std::net::UdpSocket::bind((address.to_ip(), sport)).unwrap_err();
                assert_eq!(taken.kind(), io::ErrorKind::AddrInUse, "{address}");
            }
        }
        let stranger = std::net::UdpSocket::bind((from.to_ip(), 0)).unwrap();
        assert!(!peer.sends_from(stranger.local_addr().unwrap().port()));
    }

    #[test]
    fn packets_to_a_local_peer_that_vanished_are_counted() {
        let link = open("127.43.92.1");
        let mut batch = TxBatch::new();
        let packet = [0x64, 0x40, 0xff, 0xff, 0, 0xff, 0, 9, 0, 0, 0, 0];
        let gid = Gid::from_ip("127.43.92.1".parse().unwrap());
        let route = Route { sgid: gid, dgid: gid, ..Route::default() };
        (0..2).for_each(|_| batch.reserve(&route, packet.len()).copy_from_slice(&packet));
        link.send_local(&batch, &mut Directory { local_peers: &link.local_peers, last: None });
        assert_eq!(link.counters().local_lost, 2);
    }

    /// A thread that stops a queue pair polls the link of that queue pair's context, while the background thread of the context sleeps.
    #[test]
    fn a_sleeping_driver_is_woken_although_another_thread_read_its_wake_up() {
        let gid = |address: &str| Gid::from_ip(address.parse().unwrap());
        let [sender, sleeper] = ["127.43.90.1", "127.43.90.2"].map(open);
        let slot = sleeper.local_peers.slot();
        let route = Route { sgid: gid("127.43.90.1"), dgid: gid("127.43.90.2"), ..Route::default() };
        let send = || {
            let mut batch = TxBatch::new();
            let packet = [0x64, 0x40, 0xff, 0xff, 0, slot, 0x12, 0x34, 0, 0, 0, 0, 0, 0, 0, 0];
            batch.reserve(&route, packet.len()).copy_from_slice(&packet);
            sender.send(&mut batch);
        };
        for effort in [Effort::Quick, Effort::Thorough] {
            let mut rx = RxBatch::new();
            assert_ne!(sleeper.prepare_sleep(), Sleep::Pending);
            send();
            assert!(is_readable(&sleeper), "the driver is woken");
            // Another thread reads the wake-up and the packet before the driver does.
            let mut found = 0;
            while found == 0 || is_readable(&sleeper) {
                found += sleeper.receive(&mut rx, effort);
            }
            assert_eq!(found, 1);
            send();
            assert!(is_readable(&sleeper), "{effort:?}: the driver still sleeps");
            while sleeper.receive(&mut rx, Effort::Thorough) > 0 || is_readable(&sleeper) {}
            sleeper.end_sleep();
        }
    }
}
