//! The rings of others that lead here.

use super::groups::echo_sockets;
use super::local_peers::LocalPeers;
use super::ring::{Found, Reader, RxMeta};
use super::segment::{RING_LEN, SLOTS, ShmSegment};
use ferroce_os::clock::coarse_now;
use ferroce_os::log;
use ferroce_proto::Gid;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// Packets taken from one ring before the next ring is read.
const PACKETS_PER_RING: usize = 64;
/// Most bytes taken from one ring before the space is released to its writer, so that the writer does not wait for long.
const BYTES_PER_RING: u64 = RING_LEN as u64 / 4;
/// Most bytes of rendezvous sends that are fetched, per ring, before they are acknowledged.
const RENDEZVOUS_BYTES_PER_RING: u64 = 512 * 1024;
/// Time until a ring that the system had no memory or descriptors for is opened again.
const REOPEN_AFTER_NS: u64 = 4_000_000;

/// All rings that are read here. One thread reads at a time.
pub struct RxRings {
    rings: Vec<RxRing>,
    /// Rings that are no longer read; what was last taken from them may still be in use.
    left: Vec<RxRing>,
    /// The longest packet that a ring may hold; a longer one ends the ring.
    max_packet_len: usize,
    new_senders_seen: u32,
    /// When rings that could not be opened are retried.
    reopen_at_ns: u64,
    /// The echo sockets of senders whose rings are closed, until all packets that they sent by UDP were read.
    departed: Vec<(Gid, u16)>,
    /// Whether `echo_sockets` may return others than at the last call.
    echoes_changed: bool,
}

struct RxRing {
    slot: u8,
    /// Which life of the slot writes.
    segment: ShmSegment,
    reader: Reader,
    /// The read position that was reported to the writer.
    reported: u64,
}

/// Packets and bytes that one call took from the rings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Taken {
    /// Packets.
    pub packets: usize,
    /// Bytes of all of them.
    pub bytes: u64,
}

impl RxRings {
    /// No ring yet. A packet longer than `max_packet_len` ends its ring.
    pub fn new(max_packet_len: usize) -> RxRings {
        RxRings {
            rings: Vec::new(),
            left: Vec::new(),
            max_packet_len,
            new_senders_seen: 0,
            reopen_at_ns: 0,
            departed: Vec::new(),
            echoes_changed: false,
        }
    }

    /// Whether nobody sends here.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rings.is_empty()
    }

    /// Whether some ring holds something to take.
    pub fn any_ready(&mut self) -> bool {
        let most = self.max_packet_len;
        self.rings.iter_mut().any(|ring| ring.reader.look(most) != Found::Nothing)
    }

    /// Takes packets from all rings, of each only one if `only_one`. `take` gets the slot of the sender, the packet and its outer
    /// headers, and returns how many bytes in the memory of its sender the packet refers to. The bytes of a packet stay until the next
    /// call of [`Self::release`].
    #[inline]
    pub fn receive(
        &mut self,
        only_one: bool,
        mut take: impl FnMut(u8, NonNull<u8>, usize, &RxMeta) -> u32,
    ) -> Taken {
        let most = if only_one { 1 } else { PACKETS_PER_RING };
        let (mut taken, mut broken) = (Taken::default(), None);
        for (index, ring) in self.rings.iter_mut().enumerate() {
            let mut rendezvous_bytes = 0;
            for _ in 0..most {
                let (len, head_len) = match ring.reader.look(self.max_packet_len) {
                    Found::Nothing => break,
                    Found::Nonsense => {
                        broken = Some(index);
                        break;
                    }
                    Found::Packet { len, head_len } => (len, head_len),
                };
                let (start, meta) = ring.reader.take(len, head_len);
                rendezvous_bytes += u64::from(take(ring.slot, start, len, meta));
                (taken.packets, taken.bytes) = (taken.packets + 1, taken.bytes + len as u64);
                if ring.reader.position() - ring.reported >= BYTES_PER_RING
                    || rendezvous_bytes >= RENDEZVOUS_BYTES_PER_RING
                {
                    break;
                }
            }
        }
        if let Some(index) = broken {
            let broken = self.rings.swap_remove(index);
            self.depart(&broken.segment);
            // What was just taken from it may still be read.
            self.left.push(broken);
        }
        taken
    }

    /// Tells the writers of the rings how far they were read. What was taken is no longer used.
    #[inline]
    pub fn release(&mut self, local_peers: &LocalPeers) {
        self.left.clear();
        for ring in &mut self.rings {
            if ring.reported != ring.reader.position() {
                ring.reported = ring.reader.position();
                local_peers.segment.consumed(ring.slot).store(ring.reported, Ordering::Release);
            }
        }
    }

    /// Opens the rings of those who began to send here.
    #[inline]
    pub fn open_new(&mut self, local_peers: &LocalPeers) {
        let count = local_peers.segment.new_sender_count().load(Ordering::Acquire);
        if count != self.new_senders_seen {
            self.open_rings(local_peers, count);
        }
    }

    /// `count` stays unseen if a ring could not be opened, so that it is retried: nothing else reads what its sender writes.
    #[cold]
    fn open_rings(&mut self, local_peers: &LocalPeers, count: u32) {
        let now_ns = coarse_now().0;
        if now_ns < self.reopen_at_ns {
            return;
        }
        let mut all_open = true;
        for index in 0..SLOTS.div_ceil(64) {
            let new_senders = local_peers.segment.new_senders(index);
            if new_senders.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let bits = new_senders.swap(0, Ordering::SeqCst);
            for bit in (0..64).filter(|bit| bits >> bit & 1 != 0) {
                let slot = (index * 64 + bit) as u8;
                if let Err(why) = self.open_ring(local_peers, slot) {
                    log::choice(format_args!(
                        "the packets of local peer {slot} wait, because its ring cannot be mapped: {why} (limits: vm.max_map_count, ulimit -v, ulimit -n)"
                    ));
                    new_senders.fetch_or(1 << bit, Ordering::SeqCst);
                    all_open = false;
                }
            }
        }
        if all_open {
            self.new_senders_seen = count;
        } else {
            self.reopen_at_ns = now_ns + REOPEN_AFTER_NS;
        }
    }

    /// An error if the system refuses what its ring needs, such as memory, mappings or descriptors.
    fn open_ring(&mut self, local_peers: &LocalPeers, slot: u8) -> io::Result<()> {
        let gone: Vec<RxRing> = self.rings.extract_if(.., |ring| ring.slot == slot).collect();
        gone.iter().for_each(|ring| self.depart(&ring.segment));
        self.left.extend(gone);
        let (instance, start) = local_peers.segment.sender(slot);
        let instance = instance.load(Ordering::Acquire);
        let opened = ShmSegment::open(local_peers.registry.directory(), slot).and_then(|segment| {
            let memory = segment.ring_to(local_peers.slot())?;
            Ok((segment, memory))
        });
        let (segment, memory) = match opened {
            Ok(opened) => opened,
            Err(e) if e.raw_os_error().is_some_and(|code| code != libc::ENOENT) => return Err(e),
            Err(_) => return Ok(()),
        };
        if segment.instance() != instance {
            return Ok(());
        }
        let reader = Reader::new(memory, start.load(Ordering::Relaxed));
        let reported = reader.position();
        local_peers.segment.consumed(slot).store(reported, Ordering::Release);
        self.rings.push(RxRing { slot, segment, reader, reported });
        Ok(())
    }

    /// Closes the rings of processes that have ended and left nothing in them, and forgets these processes.
    pub fn close_dead(&mut self, local_peers: &LocalPeers) {
        local_peers.forget_dead();
        let most = self.max_packet_len;
        let is_over = |ring: &mut RxRing| {
            let is_gone = ring.segment.is_closed() || !local_peers.registry.is_alive(ring.slot);
            is_gone && !matches!(ring.reader.look(most), Found::Packet { .. })
        };
        let over: Vec<RxRing> = self.rings.extract_if(.., is_over).collect();
        over.iter().for_each(|ring| self.depart(&ring.segment));
    }

    /// The ring of a sender is not read any more.
    fn depart(&mut self, segment: &ShmSegment) {
        let before = self.departed.len();
        self.departed.extend(echo_sockets(segment));
        self.echoes_changed |= self.departed.len() > before;
    }

    /// Everything that closed rings' writers sent by UDP was read.
    pub fn forget_departed(&mut self) {
        self.departed.clear();
    }

    /// Whether a multicast packet that came from here by UDP comes through a ring too.
    pub fn is_echo(&self, sgid: Gid, sport: u16) -> bool {
        let is_it = |(gid, port): (Gid, u16)| port == sport && (gid == sgid || gid == Gid::ZERO);
        let mut published = self.rings.iter().flat_map(|ring| echo_sockets(&ring.segment));
        published.any(is_it) || self.departed.iter().any(|&socket| is_it(socket))
    }

    /// Marks that an echo arrived, so that the kernel should learn which ones need not be delivered.
    pub fn saw_echo(&mut self) {
        self.echoes_changed = true;
    }

    /// The sockets by which the writers of open rings send echoes, if they may have changed since the last call.
    pub fn changed_echo_sockets(&mut self) -> Option<Vec<(Gid, u16)>> {
        let changed = std::mem::take(&mut self.echoes_changed);
        changed.then(|| self.rings.iter().flat_map(|ring| echo_sockets(&ring.segment)).collect())
    }
}
