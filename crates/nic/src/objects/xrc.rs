//! XRC domains: which shared receive queues a receiving end may put messages into (IBA annex A14).

use crate::error::Error;
use crate::lock::Mutex;
use crate::nic::{Nic, NicInner};
use crate::queues::{CqCore, EventQueue};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// An XRC domain. It lives until its last holder lets go: queue pairs and shared receive queues hold it too.
pub struct XrcDomain {
    id: u32,
    nic: Arc<NicInner>,
    /// What stands where a queue pair has completion queues; a receiving end never completes anything there.
    no_cq: Arc<CqCore>,
}

impl XrcDomain {
    fn new(nic: &Arc<NicInner>, events: &Arc<EventQueue>) -> Arc<Self> {
        let no_cq = CqCore::new(nic.next_id(), 0, 1, None, nic.engine.pulse.clone(), events.clone());
        Arc::new(XrcDomain { id: nic.next_id(), nic: nic.clone(), no_cq })
    }

    /// Its number within the device.
    pub fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn belongs_to(&self, nic: &Arc<NicInner>) -> bool {
        Arc::ptr_eq(&self.nic, nic)
    }

    pub(super) fn nic(&self) -> &Arc<NicInner> {
        &self.nic
    }

    pub(super) fn no_cq(&self) -> Arc<CqCore> {
        self.no_cq.clone()
    }

    /// How many hold it besides the asker: other openers, queue pairs, shared receive queues.
    pub fn other_holders(self: &Arc<Self>) -> usize {
        Arc::strong_count(self) - 1
    }
}

/// A file that stands for an XRC domain: device and inode number.
pub type XrcKey = (u64, u64);

/// Domains that were opened under a key.
#[derive(Default)]
pub(crate) struct XrcDomains {
    by_key: Mutex<HashMap<XrcKey, Weak<XrcDomain>>>,
}

impl Nic {
    /// Makes an XRC domain that nobody else can open.
    pub fn alloc_xrc_domain(&self) -> Result<Arc<XrcDomain>, Error> {
        self.inner.alive()?;
        Ok(XrcDomain::new(&self.inner, self.event_queue()))
    }

    /// The XRC domain of this key, if somebody holds one.
    pub fn find_xrc_domain(&self, key: XrcKey) -> Option<Arc<XrcDomain>> {
        self.inner.xrc_domains.by_key.lock().get(&key)?.upgrade()
    }

    /// The XRC domain of this key, made if nobody holds one; and whether it was made.
    pub fn open_xrc_domain(&self, key: XrcKey) -> Result<(Arc<XrcDomain>, bool), Error> {
        self.inner.alive()?;
        let mut by_key = self.inner.xrc_domains.by_key.lock();
        if let Some(domain) = by_key.get(&key).and_then(Weak::upgrade) {
            return Ok((domain, false));
        }
        by_key.retain(|_, domain| domain.strong_count() > 0);
        let domain = XrcDomain::new(&self.inner, self.event_queue());
        by_key.insert(key, Arc::downgrade(&domain));
        Ok((domain, true))
    }
}
