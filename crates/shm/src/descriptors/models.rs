//! Loom runs an access to a region of a local peer against the withdrawal of the region, or of the queue pair. An access goes on only before
//! the owner has waited for it; behind that the owner uses the memory again, and loom reports the race with whoever still accesses it.

use super::*;
use crate::segment::{ACCESSES_PER_SLOT, SLOTS};
use ferroce_os::sync::loom::cell::UnsafeCell;
use ferroce_os::sync::loom::model::Builder;
use ferroce_os::sync::loom::thread;

const KEY: RKey = RKey(5);
/// The owner's queue pair that the region is accessed through.
const QPN: Qpn = Qpn::new(7);
/// The local peer that accesses the region.
const PEER_SLOT: u8 = 1;

/// Bytes of the region: every access is a look at them, and the owner changes them when it has them back.
#[derive(Default)]
struct Memory(UnsafeCell<()>);

// SAFETY: loom reports accesses that are not ordered; nothing is accessed really.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

fn descriptor(base: u64) -> RegionDescriptor {
    let access = Access::REMOTE_READ;
    RegionDescriptor { rkey: KEY, access, pd: PdId(7), iova: 0, len: 64, base, only_qp: None, file: None }
}

fn qp_descriptor() -> QpDescriptor {
    QpDescriptor {
        access: Access::REMOTE_READ,
        domain: QpDomain::Pd(PdId(7)),
        partner: Partner::new(Service::Rc, QPN),
        takes_large: false,
        fetches: false,
        fetches_gpu: false,
    }
}

/// What is withdrawn.
#[derive(Clone, Copy)]
enum Withdrawn {
    Region,
    Qp,
}

/// As a queue pair accesses a region of a local peer that it has found: announced, and if it and the peer's queue pair are published still.
fn access(peers: &ShmSegment, found: &PublishedRegion, free: &mut usize, memory: &Memory) {
    let Some(qp) = find_qp(peers, QPN) else { return };
    let Some(token) = access::begin(peers, PEER_SLOT, found.announcement(QPN), free) else { return };
    if found.is_valid(peers) && qp.version.is_valid(peers, QPN) {
        assert_eq!(found.descriptor.base, 4096, "what was read of the descriptor is whole");
        memory.0.with(|_| ());
    }
    access::end(peers, PEER_SLOT, token);
}

/// So many threads of the peer access a region so many times each while its owner withdraws it or the queue pair.
fn check(withdrawn: Withdrawn, threads: usize, times: usize, preemptions: usize) {
    let base = std::env::temp_dir().join(format!("ferroce-model-{:x}", ferroce_os::random::number::<u64>()));
    std::fs::create_dir_all(&base).unwrap();
    let registry = Arc::new(Registry::open(&base).unwrap());
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let segment = Arc::new(ShmSegment::model(None));
        (0..SLOTS as u8).for_each(|slot| access::attach(&segment, slot, 1));
        let table = RegionDescriptors::new(segment.clone(), registry.clone(), false);
        let number = table.publish(&descriptor(4096), None).unwrap();
        publish_qp(&segment, QPN, Some(qp_descriptor()));
        let memory = Arc::new(Memory::default());
        let accesses = (0..threads).map(|thread| {
            let (peers, memory) = (ShmSegment::model(Some(&segment)), memory.clone());
            let found = find_region(&peers, KEY).unwrap();
            thread::spawn(move || {
                let mut free = thread;
                (0..times).for_each(|_| access(&peers, &found, &mut free, &memory));
            })
        });
        let accesses: Vec<_> = accesses.collect();
        match withdrawn {
            Withdrawn::Region => table.withdraw(number),
            Withdrawn::Qp => {
                publish_qp(&segment, QPN, None);
                access::wait_for(&segment, Awaited::Qp(QPN), &registry).unwrap();
            }
        }
        memory.0.with_mut(|_| ());
        accesses.into_iter().for_each(|thread| thread.join().unwrap());
        let words = (0..ACCESSES_PER_SLOT).map(|index| segment.access(PEER_SLOT, index));
        assert!(
            words.into_iter().all(|word| word.load(Ordering::Relaxed) == 0),
            "nobody accesses it any more"
        );
    });
    std::fs::remove_dir_all(base).unwrap();
}

#[test]
fn withdrawal_waits_for_an_access() {
    check(Withdrawn::Region, 1, 2, 4);
}

#[test]
fn withdrawal_waits_for_all_accesses_of_a_peer() {
    check(Withdrawn::Region, 2, 1, 3);
}

#[test]
fn withdrawal_of_a_queue_pair_waits_for_an_access() {
    check(Withdrawn::Qp, 1, 2, 3);
}
