//! Memory windows: part of a region with its own key.
//!
//! A window is an entry of the region table, so an access through it costs the same as any other. The low eight bits of its key belong to
//! the program. The other 24 bits are random and lead to the window; no region gets a key that begins with them.
//!
//! Binding, unbinding, deregistration and re-registration take one common lock, then the lock of one entry at a time. An access takes only the
//! lock of the entry whose key it uses. So the deregistration of a region unbinds its windows to wait for accesses through them.

use super::region::{Kind, Peer, Region, Span, WindowType};
use super::table::RegionTable;
use ferroce_os::sync::{Mutex, MutexGuard, RwLock};
use ferroce_proto::verbs::{Access, MemoryFault, MwBind};
use ferroce_proto::{LKey, PdId, RKey};
use ferroce_shm::Pages;
use rand::Rng;
use std::collections::HashMap;

const PROGRAM_BITS: u32 = 8;

/// The largest number of memory windows of a device.
pub const MAX_MW: usize = 1 << 16;

/// The slot numbers of all windows, by the 24 bits of their keys that never change.
#[derive(Default)]
pub(super) struct WindowKeys {
    numbers: RwLock<HashMap<u32, u32>>,
    pub(super) binding: Mutex<()>,
}

impl WindowKeys {
    /// Runs `choose` while no window can be allocated. Its argument returns whether a key could be that of a window. A key that `choose`
    /// stores in the table is no window's key later.
    pub(super) fn with_taken_keys<R>(&self, choose: impl FnOnce(&dyn Fn(RKey) -> bool) -> R) -> R {
        let numbers = self.numbers.read();
        choose(&|key| numbers.contains_key(&(key.0 >> PROGRAM_BITS)))
    }

    /// The number of the window with this key. The read lock is recursive: the caller may hold a region, and a thread that keeps the
    /// lock for reading may wait for that region. A waiting `add_window` must not come between the two.
    pub(super) fn find(&self, key: RKey) -> Option<u32> {
        self.numbers.read_recursive().get(&(key.0 >> PROGRAM_BITS)).copied()
    }
}

impl RegionTable {
    /// Allocates an unbound window. `None` if there are too many.
    pub(crate) fn add_window(&self, pd: PdId, kind: WindowType) -> Option<(u32, RKey)> {
        let mut numbers = self.windows.numbers.write();
        if numbers.len() >= MAX_MW {
            return None;
        }
        let number = self.free_number()?;
        let mut rng = ferroce_os::random::generator();
        let rkey = loop {
            let key = RKey(rng.random());
            let first = key.0 & !((1 << PROGRAM_BITS) - 1);
            let is_free = |low| !self.is_region_key(RKey(first | low));
            if !numbers.contains_key(&(key.0 >> PROGRAM_BITS)) && (0..1 << PROGRAM_BITS).all(is_free) {
                break key;
            }
        };
        numbers.insert(rkey.0 >> PROGRAM_BITS, number);
        let window = Region {
            remote_open: false,
            kind: Kind::Window { kind, region: None },
            ..Region::plain(0, 0, pd, Access::empty(), self.useless_lkey(number), rkey)
        };
        self.store(number, window);
        Some((number, rkey))
    }

    /// Deallocates a window, bound or not.
    pub(crate) fn remove_window(&self, number: u32) {
        let binding = self.windows.binding.lock();
        self.unbind(number, &binding);
        let key = self.slot(number).and_then(|slot| slot.read().as_ref().map(|w| w.rkey));
        if let Some(key) = key {
            self.windows.numbers.write().remove(&(key.0 >> PROGRAM_BITS));
        }
        drop(self.take_out(number));
    }

    /// The current key of a window.
    pub(crate) fn window_key(&self, number: u32) -> Option<RKey> {
        self.slot(number)?.read().as_ref().map(|window| window.rkey)
    }

    /// Deregisters after waiting for accesses in flight. Unbinds the windows of the region.
    pub(crate) fn remove(&self, number: u32) {
        self.invalidate_caches(number);
        let binding = self.windows.binding.lock();
        let gone = self.remove_holding(number, &binding);
        drop((binding, gone));
    }

    /// Deregisters unless windows are bound; then returns their number.
    pub(crate) fn remove_unless_bound(&self, number: u32) -> Result<(), usize> {
        // Before the lock, which owners of caches may wait for.
        self.invalidate_caches(number);
        let binding = self.windows.binding.lock();
        match self.windows_of(number).len() {
            0 => {
                let gone = self.remove_holding(number, &binding);
                drop((binding, gone));
                Ok(())
            }
            bound => {
                self.allow_caching(number);
                Err(bound)
            }
        }
    }

    /// How many windows are bound to a region.
    pub(crate) fn bound_windows(&self, number: u32) -> usize {
        self.windows_of(number).len()
    }

    fn remove_holding(&self, number: u32, binding: &MutexGuard<'_, ()>) -> Option<Region> {
        for window in self.windows_of(number) {
            self.unbind(window, binding);
        }
        self.take_out(number)
    }

    pub(super) fn windows_of(&self, number: u32) -> Vec<u32> {
        let Some(slot) = self.slot(number) else { return Vec::new() };
        match slot.read().as_ref().map(|region| &region.kind) {
            Some(Kind::Memory { windows }) => windows.clone(),
            _ => Vec::new(),
        }
    }

    /// Unbinds the window with this key. The caller has checked that the peer may invalidate it.
    pub(super) fn unbind_key(&self, key: RKey) {
        let binding = self.windows.binding.lock();
        if let Some(number) = self.windows.find(key)
            && self.window_key(number) == Some(key)
        {
            self.unbind(number, &binding);
        }
    }

    /// Unbinds a window. When this returns, all accesses through it have finished.
    fn unbind(&self, number: u32, _binding: &MutexGuard<'_, ()>) {
        // Before the lock, as for a region: an access of a local peer that is this very process may need it.
        self.withdraw(number);
        let Some(slot) = self.slot(number) else { return };
        let bound_to = match slot.write().as_mut() {
            Some(window) => {
                window.remote_open = false;
                window.pages = None;
                window.settle();
                match &mut window.kind {
                    Kind::Window { region, .. } => region.take(),
                    Kind::Memory { .. } => None,
                }
            }
            None => None,
        };
        let region = bound_to.and_then(|region| self.slot(region));
        if let Some(Kind::Memory { windows }) =
            region.map(|slot| slot.write()).as_mut().and_then(|held| held.as_mut()).map(|r| &mut r.kind)
        {
            windows.retain(|window| *window != number);
        }
    }

    /// Binds a window for a work request of `by` (IBA 10.6.7.2).
    pub(crate) fn bind(&self, by: Peer, bind: &MwBind) -> Result<(), MemoryFault> {
        let binding = self.windows.binding.lock();
        let kind = self.check_window(by, bind)?;
        let found = if bind.len == 0 { None } else { Some(self.check_target(by.pd, bind)?) };
        let region = found.as_ref().map(|(region, ..)| *region);
        self.unbind(bind.window, &binding);
        if let Some(slot) = self.slot(bind.window)
            && let Some(window) = slot.write().as_mut()
        {
            let low = (1 << PROGRAM_BITS) - 1;
            window.rkey = RKey(window.rkey.0 & !low | bind.rkey.0 & low);
            if let Some((region, span, pages)) = found {
                let zero_based = bind.access.contains(Access::ZERO_BASED);
                (window.base, window.len, window.backing) = (span.start, bind.len, span.backing);
                window.iova = if zero_based { 0 } else { bind.addr };
                window.access = bind.access;
                window.only_qp = (kind == WindowType::Two).then_some(by.qp);
                window.remote_open = true;
                window.kind = Kind::Window { kind, region: Some(region) };
                window.pages = pages;
                self.publish(window);
            }
        }
        if let Some(region) = region
            && let Some(slot) = self.slot(region)
            && let Some(Kind::Memory { windows }) = slot.write().as_mut().map(|r| &mut r.kind)
        {
            windows.push(bind.window);
        }
        Ok(())
    }

    fn check_window(&self, by: Peer, bind: &MwBind) -> Result<WindowType, MemoryFault> {
        let unknown = MemoryFault::NoSuchKey { key: bind.rkey.0 };
        let held = self.slot(bind.window).ok_or(unknown)?.read();
        let window = held.as_ref().ok_or(unknown)?;
        let Kind::Window { kind, region } = window.kind else { return Err(unknown) };
        let key = window.rkey.0;
        window.check_pd(key, by.pd)?;
        if kind == WindowType::Two && region.is_some() {
            return Err(MemoryFault::StillBound { key });
        }
        // A bind of length 0 is for type 1 only: a window of type 2 is closed by invalidation (IBA o10-37.2.40).
        if kind == WindowType::Two && bind.len == 0 {
            return Err(MemoryFault::NothingToBind { key });
        }
        Ok(kind)
    }

    /// The region's number, the bytes that the window opens, and their pages, with which local peers map them.
    fn check_target(&self, pd: PdId, bind: &MwBind) -> Result<(u32, Span, Option<Pages>), MemoryFault> {
        let LKey(key) = bind.lkey;
        let (number, held) = self.numbered_by_lkey(bind.lkey)?;
        let region = held.as_ref().ok_or(MemoryFault::NoSuchKey { key })?;
        let span = region.local(pd, bind.addr, bind.len, Access::MW_BIND)?;
        if bind.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) {
            region.check_access(key, Access::LOCAL_WRITE)?;
        }
        Ok((number, span, region.pages.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, mpsc};
    use std::thread::{spawn, yield_now};
    use std::time::Duration;

    /// Far longer than anything here takes; reached only by a deadlock.
    const MAX_WAIT: Duration = Duration::from_secs(30);

    /// Runs this in another thread, because it might wait for ever.
    fn returns<R: Send + 'static>(
        table: &Arc<RegionTable>,
        run: impl FnOnce(&RegionTable) -> R + Send + 'static,
    ) -> R {
        let (table, (tx, rx)) = (table.clone(), mpsc::channel());
        spawn(move || tx.send(run(&table)));
        rx.recv_timeout(MAX_WAIT).expect("no deadlock")
    }

    #[test]
    fn the_allocation_of_windows_does_not_wait_for_a_region_that_is_held() {
        let table = Arc::new(RegionTable::new(None));
        let region = Region::plain(0x1000, 16, PdId(1), Access::empty(), LKey(0), RKey(0));
        let (number, lkey, rkey) = table.insert(region).expect("room");
        let held = table.by_lkey(lkey).expect("registered");
        let dereg = spawn({
            let table = table.clone();
            move || table.remove(number)
        });
        // A plain read lock is not to be had once a writer waits.
        while table.slot(number).expect("in use").try_read().is_some() {
            yield_now();
        }
        assert!(returns(&table, move |table| table.is_region_key(rkey)));
        drop(held);
        dereg.join().expect("no panic");
        assert!(!table.is_region_key(rkey));
    }

    #[test]
    fn a_window_is_found_while_the_allocation_of_another_waits() {
        let table = Arc::new(RegionTable::new(None));
        let (number, rkey) = table.add_window(PdId(1), WindowType::One).expect("room");
        let choosing = table.windows.numbers.read();
        let allocation = spawn({
            let table = table.clone();
            move || table.add_window(PdId(1), WindowType::One).is_some()
        });
        while table.windows.numbers.try_read().is_some() {
            yield_now();
        }
        assert_eq!(returns(&table, move |table| table.windows.find(rkey)), Some(number));
        drop(choosing);
        assert!(allocation.join().expect("no panic"));
    }
}
