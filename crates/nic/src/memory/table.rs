//! The table of regions: which region a key belongs to.
//!
//! A copy holds the lock of its slot for reading; deregistration takes it for writing. So an access in flight finishes before
//! `dereg` returns, and accesses to different regions do not wait for each other.

use super::cached_region::{CacheUse, CachedRegions};
use super::gpu;
use super::keys::{KeyCipher, SLOT_BITS};
use super::region::{Backing, Region};
use super::windows::WindowKeys;
use ferroce_os::sync::{RwLock, RwLockReadGuard};
use ferroce_proto::verbs::MemoryFault;
use ferroce_proto::{LKey, RKey};
use ferroce_shm::{Pages, RegionDescriptors};
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

const CHUNK: usize = 256;
const CHUNKS: usize = (1 << SLOT_BITS) / CHUNK;

type Slot = RwLock<Option<Region>>;

/// All regions of a NIC.
pub(crate) struct RegionTable {
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
    free: Mutex<Free>,
    lkeys: KeyCipher,
    rkeys: KeyCipher,
    pub(super) windows: WindowKeys,
    pub(super) cached_regions: CachedRegions,
    /// The descriptors that local peers read.
    table: Option<RegionDescriptors>,
    /// Deregistered regions for messages, from whose pages no message was ever offered to a local peer.
    in_vain: AtomicU32,
}

/// After this many unused regions, pages are no longer moved into a memfd for messages. The move makes registration and deregistration
/// many times slower, without a benefit for programs that register memory for every message, or only receive.
const MAX_UNUSED: u32 = 16;
/// A region counts once more per this many bytes, because the cost of the move grows with the length.
const IN_VAIN_LEN: u64 = 64 << 20;

#[derive(Default)]
struct Free {
    returned: Vec<u32>,
    fresh: u32,
}

/// Whether pages are moved into a memfd only for messages. Memory of a GPU is not moved.
fn is_moved_for_messages(region: &Region) -> bool {
    region.is_for_messages() && !matches!(region.backing, Backing::Gpu(_))
}

/// A region under its read lock.
pub(super) type Held<'a> = RwLockReadGuard<'a, Option<Region>>;

impl RegionTable {
    pub(crate) fn new(table: Option<RegionDescriptors>) -> Self {
        RegionTable {
            chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
            free: Mutex::default(),
            lkeys: KeyCipher::random(),
            rkeys: KeyCipher::random(),
            windows: WindowKeys::default(),
            cached_regions: CachedRegions::default(),
            table,
            in_vain: AtomicU32::new(0),
        }
    }

    /// The pages of a registration, if local peers may access it and can map it. This may take half a second per GiB.
    fn pages_of(&self, region: &Region) -> Option<Pages> {
        let is_of_use = !is_moved_for_messages(region) || self.in_vain.load(Relaxed) < MAX_UNUSED;
        let table = self.table.as_ref().filter(|_| region.may_be_reached() && is_of_use)?;
        if let Backing::Gpu(gpu) = region.backing {
            return table.gpu_pages(|| gpu::export(gpu, region.base, region.len as usize));
        }
        if gpu::is_pinned(region.base, (region.len as usize).min(table.most_moved())) {
            return None;
        }
        table.pages(region.base, region.len as usize, region.capacity)
    }

    /// Publishes a region to local peers, if they may access it.
    pub(super) fn publish(&self, region: &mut Region) {
        let Some(table) = &self.table else { return };
        let gpu_allocation = region.pages.as_ref().and_then(Pages::gpu_allocation);
        region.descriptor =
            region.descriptor().and_then(|descriptor| table.publish(&descriptor, gpu_allocation));
        // Without a published descriptor no local peer can open the pages.
        if region.descriptor.is_none() && matches!(region.backing, Backing::Gpu(_)) {
            region.pages = None;
        }
    }

    /// Withdraws a region from local peers and waits until their accesses end. Called before its lock is taken for writing: an access
    /// from this very process may need it for reading.
    pub(super) fn withdraw(&self, number: u32) {
        // Remove it under the lock, so that it is withdrawn once: a second withdrawal could hit another region with the same descriptor.
        let take = |region: &mut Region| {
            let descriptor = region.descriptor.take()?;
            if is_moved_for_messages(region) && !*region.lent.get_mut() {
                self.in_vain.fetch_add((1 + region.len / IN_VAIN_LEN).min(MAX_UNUSED.into()) as u32, Relaxed);
            }
            Some(descriptor)
        };
        let descriptor = self.slot(number).and_then(|slot| slot.write().as_mut().and_then(take));
        if let Some((table, descriptor)) = self.table.as_ref().zip(descriptor) {
            table.withdraw(descriptor);
        }
    }

    pub(super) fn slot(&self, number: u32) -> Option<&Slot> {
        let chunk = self.chunks.get(number as usize / CHUNK)?.get()?;
        chunk.get(number as usize % CHUNK)
    }

    /// Registers a region with fresh keys. `None` if a million regions exist.
    pub(crate) fn insert(&self, mut region: Region) -> Option<(u32, LKey, RKey)> {
        let number = self.free_number()?;
        // Before taking the lock that blocks the allocation of windows: this can take long.
        region.pages = self.pages_of(&region);
        self.windows.with_taken_keys(|taken| {
            let (lkey, rkey) = self.fresh_keys(number, taken);
            self.store(number, Region { lkey, rkey, ..region });
            Some((number, lkey, rkey))
        })
    }

    /// The number of regions and memory windows. `None` while one is being allocated: the caller may have interrupted that.
    pub(crate) fn count(&self) -> Option<usize> {
        let free = self.free.try_lock()?;
        Some(free.fresh as usize - free.returned.len())
    }

    /// Calls `visit` with the regions and windows of the first `most` slots. Skips those that are being changed; never waits.
    pub(crate) fn each(&self, most: usize, mut visit: impl FnMut(&Region)) {
        let fresh = self.free.try_lock().map_or(0, |free| free.fresh);
        for number in 0..fresh.min(most as u32) {
            if let Some(slot) = self.slot(number).and_then(|slot| slot.try_read())
                && let Some(region) = &*slot
            {
                visit(region);
            }
        }
    }

    /// An unused slot number.
    pub(super) fn free_number(&self) -> Option<u32> {
        let mut free = self.free.lock();
        if let Some(number) = free.returned.pop() {
            return Some(number);
        }
        if free.fresh as usize == CHUNK * CHUNKS {
            return None;
        }
        free.fresh += 1;
        Some(free.fresh - 1)
    }

    pub(super) fn store(&self, number: u32, mut region: Region) {
        self.publish(&mut region);
        let chunk = self.chunks[number as usize / CHUNK]
            .get_or_init(|| (0..CHUNK).map(|_| RwLock::new(None)).collect());
        *chunk[number as usize % CHUNK].write() = Some(region);
    }

    fn fresh_keys(&self, number: u32, taken: &dyn Fn(RKey) -> bool) -> (LKey, RKey) {
        loop {
            let rkey = RKey(self.rkeys.key_for(number));
            if !taken(rkey) {
                return (LKey(self.lkeys.key_for(number)), rkey);
            }
        }
    }

    /// An lkey that leads to another slot, so it cannot be used to access the entry at `number`.
    pub(super) fn useless_lkey(&self, number: u32) -> LKey {
        LKey(self.lkeys.key_for(number ^ 1))
    }

    /// Whether a region has this rkey. The read lock is recursive: the caller may keep out the readers of `windows.find`. One of them may
    /// hold this region, and a `dereg` may wait for it.
    pub(super) fn is_region_key(&self, key: RKey) -> bool {
        let slot = self.slot(self.rkeys.slot_of(key.0));
        slot.is_some_and(|slot| slot.read_recursive().as_ref().is_some_and(|r| r.rkey == key))
    }

    /// Removes, after waiting for accesses in flight. Cached copies of the region are invalid from then on. The caller drops the region without
    /// a lock: making its pages private again takes time.
    #[must_use]
    pub(super) fn take_out(&self, number: u32) -> Option<Region> {
        self.withdraw(number);
        let gone = self.slot(number)?.write().take();
        gone.iter().for_each(Region::settle);
        gone.iter().for_each(Region::end_watch);
        self.free.lock().returned.push(number);
        gone
    }

    /// Changes a region and gives it new keys: a peer may still have the old ones. Returns the keys, or the number of windows that are bound
    /// to the region: then it stays as it is.
    pub(crate) fn change(
        &self,
        number: u32,
        change: impl FnOnce(&mut Region),
    ) -> Result<Option<(LKey, RKey)>, usize> {
        self.change_unless_bound(number, change, || {
            self.windows.with_taken_keys(|taken| {
                let mut held = self.slot(number)?.write();
                let region = held.as_mut()?;
                // The list of watched buffers has the old key.
                region.end_watch();
                (region.lkey, region.rkey) = self.fresh_keys(number, taken);
                Some((region.lkey, region.rkey))
            })
        })
    }

    /// Changes a region. The keys stay. An error is the number of windows that are bound to the region: then it stays as it is.
    pub(crate) fn change_keeping_keys(
        &self,
        number: u32,
        change: impl FnOnce(&mut Region),
    ) -> Result<(), usize> {
        self.change_unless_bound(number, change, || ())
    }

    /// Changes a region under its write lock, after `prepare`. Nobody accesses it between the two if `prepare` changes its keys.
    fn change_unless_bound<R>(
        &self,
        number: u32,
        change: impl FnOnce(&mut Region),
        prepare: impl FnOnce() -> R,
    ) -> Result<R, usize> {
        // Before the lock, which owners of caches may wait for.
        self.invalidate_caches(number);
        let binding = self.windows.binding.lock();
        let bound = self.windows_of(number).len();
        if bound > 0 {
            self.allow_caching(number);
            return Err(bound);
        }
        self.withdraw(number);
        let prepared = prepare();
        let mut held = self.slot(number).map(|slot| slot.write());
        // No other window waits while pages are moved; one that is to be bound to this region waits for its lock.
        drop(binding);
        if let Some(region) = held.as_mut().and_then(|held| held.as_mut()) {
            region.settle();
            region.end_watch();
            change(region);
            (region.remote_open, region.cache_use) = (true, CacheUse::default());
            region.pages = self.pages_of(region);
            self.publish(region);
        }
        Ok(prepared)
    }

    /// Closes a region to peers. The caller has checked that it may.
    pub(super) fn close_remote(&self, key: RKey) {
        if self.is_region_key(key) {
            self.withdraw(self.rkeys.slot_of(key.0));
        }
        if let Some(slot) = self.slot(self.rkeys.slot_of(key.0))
            && let Some(region) = slot.write().as_mut()
            && region.rkey == key
        {
            region.remote_open = false;
            region.settle();
        }
    }

    /// The number of the slot that a local key names.
    pub(super) fn number_of(&self, key: LKey) -> u32 {
        self.lkeys.slot_of(key.0)
    }

    // Recursive read locks: source and destination of one operation may be in the same region. A `dereg` that waits for the lock
    // must not block the second read lock of an operation that holds the first.

    #[inline(always)] // each small message needs it
    pub(super) fn by_lkey(&self, key: LKey) -> Result<Held<'_>, MemoryFault> {
        let number = self.lkeys.slot_of(key.0);
        let held = self.slot(number).ok_or(MemoryFault::NoSuchKey { key: key.0 })?.read_recursive();
        if held.as_ref().is_some_and(|r| r.lkey == key) { Ok(held) } else { Err(self.unknown(key.0, number)) }
    }

    /// The same, with the slot's number.
    pub(super) fn numbered_by_lkey(&self, key: LKey) -> Result<(u32, Held<'_>), MemoryFault> {
        Ok((self.lkeys.slot_of(key.0), self.by_lkey(key)?))
    }

    /// As [`Self::by_lkey`], for a region that is held during a system call. A caller that holds no region yet waits behind a waiting
    /// `dereg`. Otherwise threads that send continuously could starve the `dereg`.
    pub(super) fn pin_by_lkey(&self, key: LKey, is_first: bool) -> Result<Held<'_>, MemoryFault> {
        if !is_first {
            return self.by_lkey(key);
        }
        let number = self.lkeys.slot_of(key.0);
        let held = self.slot(number).ok_or(MemoryFault::NoSuchKey { key: key.0 })?.read();
        if held.as_ref().is_some_and(|r| r.lkey == key) { Ok(held) } else { Err(self.unknown(key.0, number)) }
    }

    pub(super) fn by_rkey(&self, key: RKey) -> Result<Held<'_>, MemoryFault> {
        self.find_rkey(key, |slot| slot.read_recursive())
    }

    /// As [`Self::pin_by_lkey`].
    pub(super) fn pin_by_rkey(&self, key: RKey, is_first: bool) -> Result<Held<'_>, MemoryFault> {
        if is_first { self.find_rkey(key, |slot| slot.read()) } else { self.by_rkey(key) }
    }

    #[inline(always)] // each packet of a READ or WRITE needs it
    fn find_rkey<'a>(
        &'a self,
        key: RKey,
        hold: impl Fn(&'a Slot) -> Held<'a>,
    ) -> Result<Held<'a>, MemoryFault> {
        let matches = |held: &Held<'_>| held.as_ref().is_some_and(|r| r.rkey == key);
        let number = self.rkeys.slot_of(key.0);
        if let Some(held) = self.slot(number).map(&hold).filter(matches) {
            return Ok(held);
        }
        let Some(slot) = self.windows.find(key).and_then(|number| self.slot(number)) else {
            return Err(self.unknown(key.0, number));
        };
        // The key of a window may have changed after the lookup.
        Some(hold(slot)).filter(matches).ok_or(MemoryFault::StaleKey { key: key.0 })
    }

    /// The fault for a key that no region has. A key is an enciphered slot. If the slot was ever in use, the key most likely belonged to a
    /// region there, because a wrong key leads to any of the million slots.
    #[cold]
    fn unknown(&self, key: u32, number: u32) -> MemoryFault {
        let was_used = number < self.free.lock().fresh;
        if was_used { MemoryFault::StaleKey { key } } else { MemoryFault::NoSuchKey { key } }
    }
}
