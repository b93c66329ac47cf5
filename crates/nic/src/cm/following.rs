//! Ids whose address leaves the host, and ids whose device does.
//!
//! Linux tells of the first when a bond changes its link, as a hint: nothing follows from it, and the id lives on. Here an
//! address can leave by itself, and that is told in the same way. When the device goes, the ids that had it are of no use
//! any more: their connections are given up, and what remains to be done with them is to end them.

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

/// All ids of a NIC, by where they lie. Its lock is the last: nothing is done while it is held.
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
        // Not under the lock: the end of an id removes it from the list.
        listed.iter().filter_map(Weak::upgrade).collect()
    }
}

impl CmService {
    /// The GID table changed: tells the ids whose address is not where it was.
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

    /// The device is gone: gives up everything that ids had of it, and tells them.
    pub(crate) fn remove_device(&self) {
        for id in self.live_ids.all() {
            if id.raise_device_event(CmEventKind::DeviceRemoval, |_| true) {
                id.release();
            }
        }
    }
}

impl CmId {
    /// Raises an event if the id has an address, and that is meant. Nothing is heard of the device after its end.
    fn raise_device_event(self: &Arc<Self>, kind: CmEventKind, concerns: impl FnOnce(Gid) -> bool) -> bool {
        let state = self.state.lock();
        if !state.device_gid().is_some_and(concerns) || state.is_closed || self.is_removed() {
            return false;
        }
        if kind == CmEventKind::DeviceRemoval {
            self.is_removed.store(true, Ordering::Release);
        }
        // Under the lock: what is pushed after the end of an id would never be read. Ours is not its last handle.
        drop(self.queue().push(CmEvent::new(kind, 0, self.clone())));
        true
    }

    /// Whether its device has gone.
    pub(super) fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }

    /// Whether calls can do anything with it.
    pub(super) fn usable(&self) -> Result<(), Error> {
        self.service.alive()?;
        if self.is_removed() { Err(CmRefusal::DeviceRemoved.into()) } else { Ok(()) }
    }
}

impl IdState {
    /// The address that ties it to the device; none while it is bound to all or to nothing.
    fn device_gid(&self) -> Option<Gid> {
        self.local.map(|local| local.ip()).filter(|ip| !ip.is_unspecified()).map(Gid::from_ip)
    }
}
