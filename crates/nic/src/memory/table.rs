//! Which region a key names.
//!
//! A slot's lock is held for reading while bytes are copied; deregistration takes it for writing. So an access in
//! flight finishes before `dereg` returns, and regions do not wait for each other.

use super::keys::{KeyCipher, SLOT_BITS};
use super::region::Region;
use ferroce_proto::verbs::MemoryFault;
use ferroce_proto::{LKey, RKey};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::sync::OnceLock;

const CHUNK: usize = 256;
const CHUNKS: usize = (1 << SLOT_BITS) / CHUNK;

type Slot = RwLock<Option<Region>>;

/// All regions of a NIC.
pub(crate) struct RegionTable {
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
    free: Mutex<Free>,
    lkeys: KeyCipher,
    rkeys: KeyCipher,
    /// Held while payloads are put into some region (see `landing`).
    pub(super) landings: Mutex<()>,
}

#[derive(Default)]
struct Free {
    returned: Vec<u32>,
    fresh: u32,
}

/// A region under its read lock.
pub(super) type Held<'a> = RwLockReadGuard<'a, Option<Region>>;

impl RegionTable {
    pub(crate) fn new() -> Self {
        RegionTable {
            chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
            free: Mutex::default(),
            lkeys: KeyCipher::random(),
            rkeys: KeyCipher::random(),
            landings: Mutex::new(()),
        }
    }

    fn slot(&self, number: u32) -> Option<&Slot> {
        let chunk = self.chunks.get(number as usize / CHUNK)?.get()?;
        chunk.get(number as usize % CHUNK)
    }

    /// Registers; `make` gets the slot's fresh keys. `None` when a million regions exist.
    pub(crate) fn insert(&self, make: impl FnOnce(LKey, RKey) -> Region) -> Option<(u32, LKey, RKey)> {
        let number = {
            let mut free = self.free.lock();
            match free.returned.pop() {
                Some(number) => number,
                None if (free.fresh as usize) < CHUNK * CHUNKS => {
                    free.fresh += 1;
                    free.fresh - 1
                }
                None => return None,
            }
        };
        let (lkey, rkey) = self.fresh_keys(number);
        let chunk = self.chunks[number as usize / CHUNK]
            .get_or_init(|| (0..CHUNK).map(|_| RwLock::new(None)).collect());
        *chunk[number as usize % CHUNK].write() = Some(make(lkey, rkey));
        Some((number, lkey, rkey))
    }

    fn fresh_keys(&self, number: u32) -> (LKey, RKey) {
        (LKey(self.lkeys.key_for(number)), RKey(self.rkeys.key_for(number)))
    }

    /// Removes, after waiting for accesses in flight.
    pub(crate) fn remove(&self, number: u32) {
        if let Some(slot) = self.slot(number) {
            let gone = slot.write().take();
            self.wait_for_landing();
            drop(gone);
            self.free.lock().returned.push(number);
        }
    }

    /// Changes a region under its write lock, with new keys: the old ones may be in the hands of a peer.
    pub(crate) fn change(&self, number: u32, change: impl FnOnce(&mut Region)) -> Option<(LKey, RKey)> {
        let keys = self.fresh_keys(number);
        let mut held = self.slot(number)?.write();
        let region = held.as_mut()?;
        change(region);
        (region.lkey, region.rkey, region.remote_open) = (keys.0, keys.1, true);
        drop(held);
        self.wait_for_landing();
        Some(keys)
    }

    /// Waits for payloads that are just being put into some region. Whoever has made sure before that later ones are refused
    /// can tell the program so after this.
    pub(crate) fn wait_for_landing(&self) {
        drop(self.landings.lock());
    }

    /// Closes a region to peers. The caller has checked that it may.
    pub(super) fn close_remote(&self, key: RKey) {
        if let Some(slot) = self.slot(self.rkeys.slot_of(key.0))
            && let Some(region) = slot.write().as_mut()
            && region.rkey == key
        {
            region.remote_open = false;
        }
        self.wait_for_landing();
    }

    // Recursive read locks: source and destination of one operation may be the same region, and a waiting `dereg`
    // must not come between the two.

    pub(super) fn by_lkey(&self, key: LKey) -> Result<Held<'_>, MemoryFault> {
        let unknown = MemoryFault::NoSuchKey { key: key.0 };
        let held = self.slot(self.lkeys.slot_of(key.0)).ok_or(unknown)?.read_recursive();
        if held.as_ref().is_some_and(|r| r.lkey == key) { Ok(held) } else { Err(unknown) }
    }

    pub(super) fn by_rkey(&self, key: RKey) -> Result<Held<'_>, MemoryFault> {
        let unknown = MemoryFault::NoSuchKey { key: key.0 };
        let held = self.slot(self.rkeys.slot_of(key.0)).ok_or(unknown)?.read_recursive();
        if held.as_ref().is_some_and(|r| r.rkey == key) { Ok(held) } else { Err(unknown) }
    }
}
