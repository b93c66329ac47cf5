//! Loom model of a receiver that falls asleep while a packet arrives. It either finds the packet or is woken.

use super::*;
use crate::mapping::MappedBytes;
use crate::ring::{Found, Reader};
use crate::segment::RING_LEN;
use ferroce_os::sync::loom::thread;
use std::fs::File;

const RECEIVER: u8 = 0;
const SENDER: u8 = 1;
const META: RxMeta = RxMeta { sgid: Gid([1; 16]), dgid: Gid([2; 16]), sport: 3, tos: 4, ttl: 5 };

/// The receiver, the sender's handle of the receiver, and the ring between them.
fn pair(registry: &Arc<Registry>, file: &File) -> (LocalPeers, LocalPeer, Reader) {
    let segment = Arc::new(ShmSegment::model(None));
    segment.asleep().store(0, Ordering::Relaxed);
    segment.consumed(SENDER).store(0, Ordering::Relaxed);
    let map = |writable| crate::mapping::Mapping::new(file, 0, RING_LEN, writable).expect("memory");
    let ours = map(true);
    (0..RING_LEN).step_by(64).for_each(|at| {
        ours.word(at).store(0, Ordering::Relaxed);
        ours.write(at, &[0]);
    });
    let theirs = map(false).with_shadow_of(&ours);
    let mut ring = Writer::new(ours);
    let reader = Reader::new(theirs, ring.restart());
    let peer = LocalPeer {
        slot: RECEIVER,
        segment: ShmSegment::model(Some(&segment)),
        own_slot: SENDER,
        tables: ShmSegment::model(Some(&segment)),
        is_self: false,
        registry: registry.clone(),
        instance: 1,
        out: Arc::new(Mutex::new(Outgoing { ring, reader: 1, waiting: Backlog::new().expect("memory") })),
        waiting: AtomicUsize::new(0),
        seen_ns: AtomicU64::new(0),
        mappings: RegionMappings::default(),
        is_readable: OnceLock::new(),
        addresses: Vec::new(),
    };
    let receiver = LocalPeers {
        tables: segment.clone(),
        segment,
        registry: registry.clone(),
        uses_memfd: false,
        known: Box::default(),
        rings: Mutex::default(),
        attaching: Mutex::default(),
        addresses: HostAddresses::new(),
    };
    (receiver, peer, reader)
}

#[test]
fn a_receiver_that_falls_asleep_finds_the_packet_or_is_woken() {
    let base = std::env::temp_dir().join(format!("ferroce-model-{:x}", ferroce_os::random::number::<u64>()));
    std::fs::create_dir_all(&base).unwrap();
    let registry = Arc::new(Registry::open(&base).unwrap());
    let file = File::options().read(true).write(true).create_new(true).open(base.join("ring")).unwrap();
    file.set_len(RING_LEN as u64).unwrap();
    ferroce_os::sync::loom::model(move || {
        let (receiver, peer, mut reader) = pair(&registry, &file);
        let sender =
            thread::spawn(move || peer.push_bytes_now(&META, &[7; 12]).is_done() && peer.must_be_woken());
        receiver.set_asleep(true);
        let is_found = reader.look(RING_LEN) != Found::Nothing;
        assert!(sender.join().unwrap() || is_found);
    });
    std::fs::remove_dir_all(base).unwrap();
}
