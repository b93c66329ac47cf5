//! Regions on lease: how a queue pair uses one again and again without taking its lock each time.
//!
//! To take and give back the lock of a region is two locked instructions, which a short WRITE waits for longer than for
//! its copy. A lease is used under the lessee's own lock, which it holds anyway. Whoever changes or takes away a region
//! first ends its leases: none is granted from then on, those there are are taken back, and then the lock of every
//! lessee is waited for once. Whoever had it may have been using the region, and whoever has it later sees that the lease is gone.

use super::region::Region;
use super::table::RegionTable;
use crate::lock::Mutex;
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
