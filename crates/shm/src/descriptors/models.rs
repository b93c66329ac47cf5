//! Loom models of an access to a region of a local peer, concurrent with the withdrawal of the region or of the queue pair. The owner uses the
//! memory again once it has waited for accesses. Loom reports a race with any access that is still in progress then.

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

/// Bytes of the region: every access reads them, and the owner writes them after the withdrawal.
#[derive(Default)]
struct Memory(UnsafeCell<()>);

// SAFETY: loom reports unordered accesses; the cell contains no bytes.
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

/// The object that the owner withdraws.
#[derive(Clone, Copy)]
enum Withdrawn {
    Region,
    Qp,
}

/// Accesses a region that was found before, as a queue pair does: announces the access, then checks that the region and the peer's queue pair
/// are still published.
fn access(peers: &ShmSegment, found: &PublishedRegion, free: &mut usize, memory: &Memory) {
    let Some(qp) = find_qp(peers, QPN) else { return };
    let Some(token) = access::begin(peers, PEER_SLOT, found.announcement(QPN), free) else { return };
    if found.is_valid(peers) && qp.version.is_valid(peers, QPN) {
        assert_eq!(found.descriptor.base, 4096, "what was read of the descriptor is whole");
        memory.0.with(|_| ());
    }
    access::end(peers, PEER_SLOT, token);
}

/// `threads` threads of the peer access a region `times` times each while its owner withdraws it or the queue pair.
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
