//! A process whose system refuses it memory for a while. Alone in its binary: the limit holds for the whole process.

use ferroce_proto::Gid;
use ferroce_shm::registry::Registry;
use ferroce_shm::{LocalPeers, Piece, Pushed, RxMeta, RxRings};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PACKET: &[u8] = b"a packet";

/// Lets the address space of this process grow to `len` bytes at most. Returns the limit before.
fn limit_address_space(len: libc::rlim_t) -> libc::rlim_t {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads and lowers a limit of this process.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_AS, &raw mut limit), 0);
        let before = std::mem::replace(&mut limit.rlim_cur, len.min(limit.rlim_max));
        assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &raw const limit), 0);
        before
    }
}

#[test]
fn a_ring_that_could_not_be_opened_is_opened_later() {
    let base = std::env::temp_dir().join(format!("ferroce-no-memory-{}", std::process::id()));
    std::fs::create_dir_all(&base).unwrap();
    let open = || {
        let registry = Arc::new(Registry::open(&base).unwrap());
        LocalPeers::open(registry, false, std::iter::once(IpAddr::V4(Ipv4Addr::LOCALHOST)), None).unwrap()
    };
    let (sender, receiver) = (open(), open());
    let mut rings = RxRings::new(4096);
    let gid = Gid::from_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let meta = RxMeta { sgid: gid, dgid: gid, sport: 0xC000, tos: 0, ttl: 64 };
    let piece = Piece { start: PACKET.as_ptr(), len: PACKET.len() };
    let peer = sender.find_in_slot(receiver.slot(), gid).expect("on this host");
    // SAFETY: one piece, which is static and has that length.
    let pushed = unsafe { peer.push(&meta, PACKET.len(), std::iter::once(piece)) };
    assert_eq!(pushed, Pushed::Done);

    let before = limit_address_space(0);
    rings.open_new(&receiver);
    limit_address_space(before);
    assert!(rings.is_empty(), "the limit had no effect");

    let (start, mut taken) = (Instant::now(), 0);
    while taken == 0 && start.elapsed() < Duration::from_secs(10) {
        rings.open_new(&receiver);
        taken = rings.receive(false, |_, _, len, _| (assert_eq!(len, PACKET.len()), 0).1).packets;
    }
    assert_eq!(taken, 1);
    drop((sender, receiver));
    std::fs::remove_dir_all(&base).unwrap();
}
