//! Ids whose address is removed from the host, and ids whose device is removed.
//!
//! Linux reports `ADDR_CHANGE` when a bond changes its link, as a hint: the id stays usable. Here the same event also reports the removal of
//! an address. When the device is removed, its ids become unusable: their connections are released, and the program can only destroy
//! them.

use super::event::{CmEvent, CmEventKind};
use super::id::IdState;
use super::{CmId, CmService};
use crate::error::{CmRefusal, Error};
use crate::gids::GidEntry;
use ferroce_os::lock::Mutex;
use ferroce_proto::Gid;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// All ids of a NIC, by their addresses in memory. No other lock is taken while its lock is held.
#[derive(Default)]
pub(super) struct LiveIds(Mutex<HashMap<usize, Weak<CmId>>>);

impl LiveIds {
    pub(super) fn add(&self, id: &Arc<CmId>) {
        self.0.lock().insert(Arc::as_ptr(id).addr(), Arc::downgrade(id));
    }

    pub(super) fn remove(&self, id: &CmId) {
        self.0.lock().remove(&std::ptr::from_ref(id).addr());
    }

    fn all(&self) -> Vec<Arc<CmId>> {
        let listed: Vec<Weak<CmId>> = self.0.lock().values().cloned().collect();
        // Outside of the lock: dropping the last handle of an id removes it from this map.
        listed.iter().filter_map(Weak::upgrade).collect()
    }
}

impl CmService {
    /// The GID table changed: raises an event for the ids whose address moved or was removed.
    pub(crate) fn follow_addresses(&self, old: &[GidEntry], new: &[GidEntry]) {
        let stays = |e: &&GidEntry| new.iter().any(|n| (n.gid, n.if_index) == (e.gid, e.if_index));
        let left: Vec<Gid> = old.iter().filter(|e| !stays(e)).map(|e| e.gid).collect();
        if left.is_empty() {
            return;
        }
        for id in self.live_ids.all() {
            id.raise_device_event(CmEventKind::AddrChange, |gid| left.contains(&gid));
        }
    }

    /// The device was removed: raises an event for its ids and releases what they hold of it.
    pub(crate) fn remove_device(&self) {
        for id in self.live_ids.all() {
            if id.raise_device_event(CmEventKind::DeviceRemoval, |_| true) {
                id.release();
            }
        }
    }
}

impl CmId {
    /// Raises an event if the id has an address and `concerns` holds for it. After a removal no further event follows. Returns whether
    /// it raised the event.
    fn raise_device_event(self: &Arc<Self>, kind: CmEventKind, concerns: impl FnOnce(Gid) -> bool) -> bool {
        let state = self.state.lock();
        if !state.device_gid().is_some_and(concerns) || state.is_closed || self.is_removed() {
            return false;
        }
        if kind == CmEventKind::DeviceRemoval {
            self.is_removed.store(true, Ordering::Release);
        }
        // Under the lock of the state: an event pushed after `close` would never be read. `self` is not the last handle.
        drop(self.queue().push(CmEvent::new(kind, 0, self.clone())));
        true
    }

    /// Whether its device was removed.
    pub(super) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }

    /// An error if its device is closed or was removed.
    pub(super) fn usable(&self) -> Result<(), Error> {
        self.service.alive()?;
        if self.is_removed() { Err(CmRefusal::DeviceRemoved.into()) } else { Ok(()) }
    }
}

impl IdState {
    /// The address of the device to which it is bound; `None` if it is unbound or bound to the wildcard address.
    fn device_gid(&self) -> Option<Gid> {
        self.local.map(|local| local.ip()).filter(|ip| !ip.is_unspecified()).map(Gid::from_ip)
    }
}
