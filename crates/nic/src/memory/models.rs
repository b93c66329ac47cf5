//! Loom models: accesses to a region concurrent with its deregistration. After `dereg` returns, the program uses the memory again, and loom
//! reports a race with any remaining access: through a [`RegionGuard`], which holds the region's lock, or through a [`CachedRegion`].
//!
//! The models use loom's locks, because the project's lock has its own models. In loom's locks a waiting writer does not block readers, so the
//! models do not cover how long a deregistration waits. They also do not cover the destruction of a queue pair: loom has no `Weak`.

use super::gpu::MessagePart;
use super::region::Kind;
use super::{CacheOwner, CachedRegion, Peer, Region, RegionGuard, RegionTable, WindowType};
use ferroce_os::sync::Mutex;
use ferroce_os::sync::loom::cell::UnsafeCell;
use ferroce_os::sync::loom::model::Builder;
use ferroce_os::sync::loom::thread;
use ferroce_proto::qp::TxPayload;
use ferroce_proto::verbs::{Access, MwBind, Sge};
use ferroce_proto::{LKey, PdId, Qpn, RKey};
use std::sync::{Arc, Weak};

const PD: PdId = PdId(1);
const PEER: Peer = Peer { pd: PD, qp: Qpn::GSI };
const LEN: usize = 16;

/// Registered bytes. Each access of the NIC reads the cell; the program writes it once the memory is deregistered.
struct Memory {
    bytes: Box<[u8; LEN]>,
    cell: UnsafeCell<()>,
}

impl Memory {
    #[expect(clippy::arc_with_non_send_sync, reason = "loom runs one thread at a time")]
    fn new() -> Arc<Memory> {
        Arc::new(Memory { bytes: Box::new([0; LEN]), cell: UnsafeCell::new(()) })
    }

    fn access(&self) {
        self.cell.with(|_| ());
    }

    fn reuse(&self) {
        self.cell.with_mut(|_| ());
    }
}

/// A queue pair, which uses its cached region under its lock.
#[derive(Default)]
struct Owner(Mutex<Option<CachedRegion>>);

impl CacheOwner for Owner {
    fn wait_for_holder(&self) {
        drop(self.0.lock());
    }
}

impl Owner {
    fn new(table: &RegionTable) -> Arc<Owner> {
        let owner = Arc::new(Owner::default());
        let weak: Weak<Owner> = Arc::downgrade(&owner);
        *owner.0.lock() = Some(table.cache(weak));
        owner
    }

    /// Uses an entry as a request does. Returns whether the access was granted.
    fn uses(&self, table: &RegionTable, sge: Sge, memory: &Memory) -> bool {
        let mut held = self.0.lock();
        let cache = held.as_mut().expect("made with one");
        let payload = TxPayload::Local { pd: PD, sges: &[sge], offset: 0, len: sge.len };
        let mut guard = RegionGuard::new(table);
        let Some(span) = guard.readable(cache, payload) else { return false };
        // The span lies in other memory once the region was changed.
        if span.start() == memory.bytes.as_ptr().addr() {
            memory.access();
        }
        true
    }
}

fn register(table: &RegionTable, memory: &Memory) -> (u32, Sge, RKey) {
    let base = memory.bytes.as_ptr().addr();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let region = Region::plain(base, LEN as u64, PD, access, LKey(0), RKey(0));
    let (number, lkey, rkey) = table.insert(region).expect("room");
    (number, Sge { addr: 0, len: LEN as u32, lkey }, rkey)
}

fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

#[test]
fn deregistration_waits_for_a_region_guard() {
    check(5, || {
        let (table, memory) = (Arc::new(RegionTable::new(None)), Memory::new());
        let (number, sge, rkey) = register(&table, &memory);
        let accesses = {
            let (table, memory) = (table.clone(), memory.clone());
            thread::spawn(move || {
                let mut guard = RegionGuard::new(&table);
                // The packets of a message, then those of another after a pause.
                for _ in 0..2 {
                    for _ in 0..2 {
                        if guard.scatter(PD, &[sge], 0, &[], MessagePart::WHOLE).is_ok() {
                            memory.access();
                        }
                    }
                    if guard.write_remote(PEER, rkey, 0, &[], MessagePart::WHOLE).is_ok() {
                        memory.access();
                    }
                    guard.release();
                }
            })
        };
        table.remove(number);
        memory.reuse();
        accesses.join().unwrap();
        assert!(RegionGuard::new(&table).scatter(PD, &[sge], 0, &[], MessagePart::WHOLE).is_err());
    });
}

#[test]
fn deregistration_waits_for_the_owner_of_a_cached_region() {
    check(5, || {
        let (table, memory) = (Arc::new(RegionTable::new(None)), Memory::new());
        let (number, sge, _) = register(&table, &memory);
        let owner = Owner::new(&table);
        // Used once: the thread's first use caches it.
        assert!(owner.uses(&table, sge, &memory));
        let uses = {
            let (table, memory, owner) = (table.clone(), memory.clone(), owner.clone());
            thread::spawn(move || (0..3).filter(|_| owner.uses(&table, sge, &memory)).count())
        };
        table.remove(number);
        memory.reuse();
        uses.join().unwrap();
        assert!(!owner.uses(&table, sge, &memory));
    });
}

#[test]
fn deregistration_waits_for_all_owners_of_a_cached_region() {
    check(3, || {
        let (table, memory) = (Arc::new(RegionTable::new(None)), Memory::new());
        let (number, sge, _) = register(&table, &memory);
        let owners = [Owner::new(&table), Owner::new(&table)];
        assert!(owners.iter().all(|owner| (0..2).all(|_| owner.uses(&table, sge, &memory))), "they cache it");
        let uses = owners.clone().map(|owner| {
            let (table, memory) = (table.clone(), memory.clone());
            thread::spawn(move || (0..2).filter(|_| owner.uses(&table, sge, &memory)).count())
        });
        table.remove(number);
        memory.reuse();
        uses.into_iter().for_each(|thread| assert!(thread.join().unwrap() <= 2));
        assert!(owners.iter().all(|owner| !owner.uses(&table, sge, &memory)));
    });
}

#[test]
fn a_region_that_moves_is_not_used_where_it_was() {
    check(5, || {
        let (table, old, new) = (Arc::new(RegionTable::new(None)), Memory::new(), Memory::new());
        let (number, sge, _) = register(&table, &old);
        let owner = Owner::new(&table);
        assert!(owner.uses(&table, sge, &old) && owner.uses(&table, sge, &old));
        let uses = {
            let (table, old, owner) = (table.clone(), old.clone(), owner.clone());
            thread::spawn(move || (0..3).all(|_| owner.uses(&table, sge, &old)))
        };
        table
            .change_keeping_keys(number, |region| region.base = new.bytes.as_ptr().addr())
            .expect("no window");
        old.reuse();
        assert!(uses.join().unwrap(), "it is there all the time");
    });
}

#[test]
fn a_window_shows_the_bytes_that_its_region_has() {
    check(5, || {
        let (table, old, new) = (Arc::new(RegionTable::new(None)), Memory::new(), Memory::new());
        let (number, sge, _) = register(&table, &old);
        table.change_keeping_keys(number, |region| region.access |= Access::MW_BIND).expect("no window");
        // Not by `add_window`: it tries random keys, and loom wants the same steps each time.
        let window = table.free_number().expect("room");
        let kind = Kind::Window { kind: WindowType::One, region: None };
        table.store(window, Region { kind, ..Region::plain(0, 0, PD, Access::empty(), LKey(0), RKey(0)) });
        let access = Access::REMOTE_WRITE;
        let bind = MwBind { window, rkey: RKey(1), lkey: sge.lkey, addr: 0, len: LEN as u64, access };
        let binds = {
            let table = table.clone();
            thread::spawn(move || table.bind(PEER, &bind).is_ok())
        };
        let [old, new] = [old, new].map(|memory| memory.bytes.as_ptr().addr());
        let is_changed = table.change_keeping_keys(number, |region| region.base = new).is_ok();
        assert!(binds.join().unwrap(), "it is there all the time");
        let base = table.slot(window).and_then(|slot| slot.read().as_ref().map(|window| window.base));
        assert_eq!(base, Some(if is_changed { new } else { old }));
    });
}
