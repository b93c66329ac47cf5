//! Cached regions: how a queue pair uses the same region repeatedly without taking its lock each time.
//!
//! Taking and releasing the lock of a region are two locked instructions. A short WRITE waits longer for them than for its copy. So a queue
//! pair keeps a copy of the `Region` entry that it used twice in a row, and uses this copy under its own lock, which it holds anyway.
//! Changing or removing a region first invalidates its cached copies: no new copy is granted, existing ones are revoked, and the lock of
//! every owner is taken once. A thread that held that lock may have been using the copy; one that takes it later sees the revocation.

use super::region::Region;
use super::table::RegionTable;
use ferroce_os::sync::{AtomicBool, AtomicU32, Mutex, Ordering, fence};
use ferroce_proto::LKey;
use std::sync::{Arc, Weak};

/// The owner of a cached region. Its lock protects each use of the copy.
pub(crate) trait CacheOwner: Send + Sync {
    /// Waits until the present holder of the lock has released it.
    fn wait_for_holder(&self);
}

/// The entry of a cache in the table of regions.
struct Grant {
    /// The number of the region, plus one; zero if there is none.
    region: AtomicU32,
    owner: Weak<dyn CacheOwner>,
}

/// The cached copy of the one region that its owner uses repeatedly.
pub(crate) struct CachedRegion {
    grant: Arc<Grant>,
    /// The fields of the region that local checks need. Valid only while the grant is not revoked.
    region: Region,
    /// The region used last without the cache. The second use in a row caches it.
    last: LKey,
}

/// Whether a region may be cached.
#[derive(Debug)]
pub(crate) struct CacheUse {
    is_open: bool,
    was_granted: AtomicBool,
}

impl Default for CacheUse {
    fn default() -> Self {
        CacheUse { is_open: true, was_granted: AtomicBool::new(false) }
    }
}

/// All caches of a table.
#[derive(Default)]
pub(super) struct CachedRegions(Mutex<Vec<Weak<Grant>>>);

impl CachedRegions {
    fn add(&self, grant: &Arc<Grant>) {
        let mut grants = self.0.lock();
        if grants.len() == grants.capacity() {
            grants.retain(|grant| grant.strong_count() > 0);
        }
        grants.push(Arc::downgrade(grant));
    }

    /// Invalidates the cached copies of a region and waits for threads that use one.
    fn end(&self, number: u32) {
        // Release the list before waiting: owners take the lock of the list under their own.
        let mut ended = Vec::new();
        ended.extend(self.0.lock().iter().filter_map(Weak::upgrade).filter(|grant| grant.end(number)));
        for owner in ended.iter().filter_map(|grant| grant.owner.upgrade()) {
            owner.wait_for_holder();
        }
        // A dropped owner released its last reference after its last access; the fence orders this thread behind it.
        fence(Ordering::Acquire);
    }
}

impl Grant {
    fn end(&self, number: u32) -> bool {
        self.region.compare_exchange(number + 1, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl CachedRegion {
    /// The cached region, if this is its local key.
    #[inline(always)]
    pub(super) fn region(&mut self, lkey: LKey) -> Option<&Region> {
        if self.region.lkey != lkey || self.grant.region.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.last = LKey(0);
        Some(&self.region)
    }

    /// Caches a region whose lock is held for reading, if this is its second use in a row and it may be cached.
    pub(super) fn renew(&mut self, number: u32, region: &Region) {
        if self.last != region.lkey {
            self.last = region.lkey;
        } else if region.cache_use.is_open {
            region.cache_use.was_granted.store(true, Ordering::Relaxed);
            self.grant.region.store(number + 1, Ordering::Relaxed);
            self.region = region.for_local_use();
        }
    }
}

impl RegionTable {
    /// An empty cache of one region.
    pub(crate) fn cache(&self, owner: Weak<dyn CacheOwner>) -> CachedRegion {
        let grant = Arc::new(Grant { region: AtomicU32::new(0), owner });
        self.cached_regions.add(&grant);
        CachedRegion { grant, region: Region::nowhere(), last: LKey(0) }
    }

    /// Invalidates all cached copies of a region until they are [allowed again](Self::allow_caching). The caller holds no lock that a
    /// owner may wait for under its own.
    pub(super) fn invalidate_caches(&self, number: u32) {
        let Some(slot) = self.slot(number) else { return };
        let was_granted = slot.write().as_mut().is_some_and(|region| {
            region.cache_use.is_open = false;
            region.cache_use.was_granted.swap(false, Ordering::Relaxed)
        });
        if was_granted {
            self.cached_regions.end(number);
        }
    }

    /// A region may be cached again.
    pub(super) fn allow_caching(&self, number: u32) {
        if let Some(slot) = self.slot(number)
            && let Some(region) = slot.write().as_mut()
        {
            region.cache_use.is_open = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::RegionGuard;
    use ferroce_proto::qp::TxPayload;
    use ferroce_proto::verbs::{Access, Sge};
    use ferroce_proto::{PdId, RKey};
    use std::time::Duration;

    const PD: PdId = PdId(1);

    struct Holder(Mutex<()>);

    impl CacheOwner for Holder {
        fn wait_for_holder(&self) {
            drop(self.0.lock());
        }
    }

    fn cache_of(table: &RegionTable, holder: &Arc<Holder>) -> CachedRegion {
        let owner: Weak<Holder> = Arc::downgrade(holder);
        table.cache(owner)
    }

    fn register(table: &RegionTable, bytes: &[u8]) -> (u32, Sge) {
        let (base, len) = (bytes.as_ptr().addr(), bytes.len() as u64);
        let region = Region::plain(base, len, PD, Access::empty(), LKey(0), RKey(0));
        let (number, lkey, _) = table.insert(region).unwrap();
        (number, Sge { addr: 0, len: 8, lkey })
    }

    /// Uses an entry as a request does. Returns whether the access was granted.
    fn uses(table: &RegionTable, cache: &mut CachedRegion, sge: Sge) -> bool {
        let payload = TxPayload::Local { pd: PD, sges: &[sge], offset: 0, len: sge.len };
        RegionGuard::new(table).readable(cache, payload).is_some()
    }

    #[test]
    fn the_region_that_is_used_again_and_again_is_cached() {
        let (table, holder) = (RegionTable::new(None), Arc::new(Holder(Mutex::new(()))));
        let bytes = [[0_u8; 64]; 2];
        let (first, second) = (register(&table, &bytes[0]), register(&table, &bytes[1]));
        let mut cache = cache_of(&table, &holder);
        for _ in 0..2 {
            assert!(cache.near(PD, &first.1).is_none() && uses(&table, &mut cache, first.1));
        }
        // Its lock is not needed, and all checks are made.
        let changing = table.slot(first.0).unwrap().write();
        assert!(cache.near(PD, &first.1).is_some() && uses(&table, &mut cache, first.1));
        assert!(cache.near(PdId(2), &first.1).is_none(), "another domain");
        assert!(cache.near(PD, &Sge { addr: 57, ..first.1 }).is_none(), "beyond the end");
        drop(changing);
        // Alternating use: the cache keeps the first region.
        for _ in 0..3 {
            assert!(uses(&table, &mut cache, second.1) && uses(&table, &mut cache, first.1));
            assert!(cache.near(PD, &first.1).is_some() && cache.near(PD, &second.1).is_none());
        }
        assert!(uses(&table, &mut cache, second.1) && uses(&table, &mut cache, second.1));
        assert!(cache.near(PD, &first.1).is_none() && cache.near(PD, &second.1).is_some());
        table.remove(first.0);
        assert!(cache.near(PD, &second.1).is_some(), "not the one that is cached");
    }

    #[test]
    fn removal_waits_for_who_may_be_using_the_cached_region() {
        let (table, holder) = (RegionTable::new(None), Arc::new(Holder(Mutex::new(()))));
        let bytes = [0_u8; 64];
        let (number, sge) = register(&table, &bytes);
        let mut cached_regions = [cache_of(&table, &holder), cache_of(&table, &holder)];
        assert!((0..2).all(|_| uses(&table, &mut cached_regions[0], sge)));
        std::thread::scope(|scope| {
            let using = holder.0.lock();
            let removal = scope.spawn(|| table.remove(number));
            while cached_regions[0].near(PD, &sge).is_some() {
                std::thread::yield_now();
            }
            assert!((0..3).all(|_| uses(&table, &mut cached_regions[1], sge)), "it is still there");
            assert!(cached_regions[1].near(PD, &sge).is_none(), "but is not cached any more");
            std::thread::sleep(Duration::from_millis(20));
            assert!(!removal.is_finished());
            drop(using);
            removal.join().unwrap();
        });
        assert!(!uses(&table, &mut cached_regions[0], sge));
    }
}
