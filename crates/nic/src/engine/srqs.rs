//! Which XRC shared receive queue has this number.

use crate::queues::SrqCore;
use ferroce_os::lock::RwLock;
use ferroce_proto::Srqn;
use ferroce_shm::SrqDescriptors;
use rand::Rng;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Most XRC shared receive queues of one NIC.
pub(crate) const MAX_XRC_SRQ: usize = 1 << 16;

/// The XRC shared receive queues. Only extended reliable connections use them, so one lock for all is enough.
pub(crate) struct XrcSrqs {
    by_number: RwLock<HashMap<Srqn, Arc<SrqCore>>>,
    /// Their descriptors for local peers, if there can be any. Changed with the lock above held.
    table: Option<SrqDescriptors>,
}

impl XrcSrqs {
    pub(super) fn new(table: Option<SrqDescriptors>) -> Self {
        XrcSrqs { by_number: RwLock::default(), table }
    }

    /// Adds a queue under a fresh random number, which a peer cannot guess.
    pub(crate) fn insert(&self, make: impl FnOnce(Srqn) -> Arc<SrqCore>) -> Option<Arc<SrqCore>> {
        let mut by_number = self.by_number.write();
        if by_number.len() >= MAX_XRC_SRQ {
            return None;
        }
        let mut rng = ferroce_os::random::generator();
        loop {
            let number = Srqn::new(rng.random_range(1..0xff_ffff));
            if let Entry::Vacant(entry) = by_number.entry(number) {
                let core = entry.insert(make(number)).clone();
                if let (Some(table), Some(xrc)) = (&self.table, &core.xrc) {
                    table.publish(number, xrc.domain, xrc.pd);
                }
                return Some(core);
            }
        }
    }

    pub(crate) fn remove(&self, number: Srqn) {
        let mut by_number = self.by_number.write();
        if let (Some(core), Some(table)) = (by_number.remove(&number), &self.table)
            && let Some(xrc) = &core.xrc
        {
            table.withdraw(number, xrc.domain);
        }
    }

    /// The queue with this number, if it is in that domain.
    pub(crate) fn get(&self, number: Srqn, domain: u32) -> Option<Arc<SrqCore>> {
        let by_number = self.by_number.read();
        let core = by_number.get(&number)?;
        core.xrc.as_ref().is_some_and(|xrc| xrc.domain == domain).then(|| core.clone())
    }
}
