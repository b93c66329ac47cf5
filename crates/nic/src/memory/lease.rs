//! Regions on lease: how a queue pair uses one again and again without taking its lock each time.
//!
//! To take and give back the lock of a region is two locked instructions, which a short WRITE waits for longer than for
//! its copy. A lease is used under the lessee's own lock, which it holds anyway. Whoever changes or takes away a region
//! first ends its leases: none is granted from then on, those there are are taken back, and then the lock of every
//! lessee is waited for once. Whoever had it may have been using the region, and whoever has it later sees that the lease is gone.

use super::region::Region;
use super::table::RegionTable;
use ferroce_os::lock::Mutex;
use ferroce_proto::LKey;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// Who has leases: somebody with a lock, under which they are used.
pub(crate) trait Lessee: Send + Sync {
    /// Waits until nobody has the lock who had it when this was called.
    fn wait_for_holder(&self);
}

/// What the table of regions knows of a lease.
struct Grant {
    /// The number of the region, plus one; zero if there is none.
    region: AtomicU32,
    lessee: Weak<dyn Lessee>,
}

/// A lessee's lease on one region at a time: the one it uses again and again.
pub(crate) struct Lease {
    grant: Arc<Grant>,
    /// The region, as far as local checks need it. Only good while the grant is there.
    region: Region,
    /// What was used last without a lease: the second time in a row it gets one.
    last: LKey,
}

/// Whether a region may be leased.
#[derive(Debug)]
pub(crate) struct Leasing {
    is_open: bool,
    was_granted: AtomicBool,
}

impl Default for Leasing {
    fn default() -> Self {
        Leasing { is_open: true, was_granted: AtomicBool::new(false) }
    }
}

/// All leases of a table.
#[derive(Default)]
pub(super) struct Leases(Mutex<Vec<Weak<Grant>>>);

impl Leases {
    fn add(&self, grant: &Arc<Grant>) {
        let mut grants = self.0.lock();
        if grants.len() == grants.capacity() {
            grants.retain(|grant| grant.strong_count() > 0);
        }
        grants.push(Arc::downgrade(grant));
    }

    /// Takes back the leases on a region and waits for those who use one.
    fn end(&self, number: u32) {
        // Lessees take the list's lock under their own; so they are waited for without it.
        let mut ended = Vec::new();
        ended.extend(self.0.lock().iter().filter_map(Weak::upgrade).filter(|grant| grant.end(number)));
        for lessee in ended.iter().filter_map(|grant| grant.lessee.upgrade()) {
            lessee.wait_for_holder();
        }
    }
}

impl Grant {
    fn end(&self, number: u32) -> bool {
        self.region.compare_exchange(number + 1, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl Lease {
    /// The leased region, if this is its local key.
    #[inline(always)]
    pub(super) fn region(&mut self, lkey: LKey) -> Option<&Region> {
        if self.region.lkey != lkey || self.grant.region.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.last = LKey(0);
        Some(&self.region)
    }

    /// Takes the lease on a region whose lock is held for reading, if it is used for the second time and may be leased.
    pub(super) fn renew(&mut self, number: u32, region: &Region) {
        if self.last != region.lkey {
            self.last = region.lkey;
        } else if region.leasing.is_open {
            region.leasing.was_granted.store(true, Ordering::Relaxed);
            self.grant.region.store(number + 1, Ordering::Relaxed);
            self.region = region.for_local_use();
        }
    }
}

impl RegionTable {
    /// A lease for somebody, on nothing yet.
    pub(crate) fn lease(&self, lessee: Weak<dyn Lessee>) -> Lease {
        let grant = Arc::new(Grant { region: AtomicU32::new(0), lessee });
        self.leases.add(&grant);
        Lease { grant, region: Region::nowhere(), last: LKey(0) }
    }

    /// Ends all leases on a region until they are [allowed again](Self::allow_leases). The caller holds no lock that a
    /// lessee may wait for under its own.
    pub(super) fn end_leases(&self, number: u32) {
        let Some(slot) = self.slot(number) else { return };
        let was_granted = slot.write().as_mut().is_some_and(|region| {
            region.leasing.is_open = false;
            std::mem::take(region.leasing.was_granted.get_mut())
        });
        if was_granted {
            self.leases.end(number);
        }
    }

    /// A region may be leased again.
    pub(super) fn allow_leases(&self, number: u32) {
        if let Some(slot) = self.slot(number)
            && let Some(region) = slot.write().as_mut()
        {
            region.leasing.is_open = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Grip;
    use ferroce_proto::PdId;
    use ferroce_proto::qp::TxPayload;
    use ferroce_proto::verbs::{Access, Sge};
    use std::time::Duration;

    const PD: PdId = PdId(1);

    struct Holder(Mutex<()>);

    impl Lessee for Holder {
        fn wait_for_holder(&self) {
            drop(self.0.lock());
        }
    }

    fn lease_of(table: &RegionTable, holder: &Arc<Holder>) -> Lease {
        let lessee: Weak<Holder> = Arc::downgrade(holder);
        table.lease(lessee)
    }

    fn register(table: &RegionTable, bytes: &[u8]) -> (u32, Sge) {
        let (base, len) = (bytes.as_ptr().addr(), bytes.len() as u64);
        let make = |lkey, rkey| Region::plain(base, len, PD, Access::empty(), lkey, rkey);
        let (number, lkey, _) = table.insert(make).unwrap();
        (number, Sge { addr: 0, len: 8, lkey })
    }

    /// Uses an entry as any request does; false if it may not.
    fn uses(table: &RegionTable, lease: &mut Lease, sge: Sge) -> bool {
        let payload = TxPayload::Local { pd: PD, sges: &[sge], offset: 0, len: sge.len };
        Grip::new(table).readable(lease, payload).is_some()
    }

    #[test]
    fn the_region_that_is_used_again_and_again_is_leased() {
        let (table, holder) = (RegionTable::new(None), Arc::new(Holder(Mutex::new(()))));
        let bytes = [[0_u8; 64]; 2];
        let (first, second) = (register(&table, &bytes[0]), register(&table, &bytes[1]));
        let mut lease = lease_of(&table, &holder);
        for _ in 0..2 {
            assert!(lease.near(PD, &first.1).is_none() && uses(&table, &mut lease, first.1));
        }
        // Its lock is not needed, and all checks are made.
        let changing = table.slot(first.0).unwrap().write();
        assert!(lease.near(PD, &first.1).is_some() && uses(&table, &mut lease, first.1));
        assert!(lease.near(PdId(2), &first.1).is_none(), "another domain");
        assert!(lease.near(PD, &Sge { addr: 57, ..first.1 }).is_none(), "beyond the end");
        drop(changing);
        // By turns: the lease does not go back and forth.
        for _ in 0..3 {
            assert!(uses(&table, &mut lease, second.1) && uses(&table, &mut lease, first.1));
            assert!(lease.near(PD, &first.1).is_some() && lease.near(PD, &second.1).is_none());
        }
        assert!(uses(&table, &mut lease, second.1) && uses(&table, &mut lease, second.1));
        assert!(lease.near(PD, &first.1).is_none() && lease.near(PD, &second.1).is_some());
        table.remove(first.0);
        assert!(lease.near(PD, &second.1).is_some(), "not the one that is leased");
    }

    #[test]
    fn removal_waits_for_who_may_be_using_the_lease() {
        let (table, holder) = (RegionTable::new(None), Arc::new(Holder(Mutex::new(()))));
        let bytes = [0_u8; 64];
        let (number, sge) = register(&table, &bytes);
        let mut leases = [lease_of(&table, &holder), lease_of(&table, &holder)];
        assert!((0..2).all(|_| uses(&table, &mut leases[0], sge)));
        std::thread::scope(|scope| {
            let using = holder.0.lock();
            let removal = scope.spawn(|| table.remove(number));
            while leases[0].near(PD, &sge).is_some() {
                std::thread::yield_now();
            }
            assert!((0..3).all(|_| uses(&table, &mut leases[1], sge)), "it is still there");
            assert!(leases[1].near(PD, &sge).is_none(), "but is not leased any more");
            std::thread::sleep(Duration::from_millis(20));
            assert!(!removal.is_finished());
            drop(using);
            removal.join().unwrap();
        });
        assert!(!uses(&table, &mut leases[0], sge));
    }
}
