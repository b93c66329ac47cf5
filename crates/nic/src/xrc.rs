//! XRC domains: which shared receive queues a receiving end may put messages into (IBA annex A14).

use crate::queues::CqCore;
use ferroce_os::lock::Mutex;
use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// An XRC domain. It lives until its last holder drops it. Queue pairs and shared receive queues hold it too.
pub struct XrcDomain {
    id: u32,
    /// Stays open as long as the domain lives.
    device: Arc<dyn Any + Send + Sync>,
    /// The completion queue of receiving ends, which never add completions to it.
    no_cq: Arc<CqCore>,
}

impl XrcDomain {
    pub(crate) fn new(id: u32, device: Arc<dyn Any + Send + Sync>, no_cq: Arc<CqCore>) -> Arc<Self> {
        Arc::new(XrcDomain { id, device, no_cq })
    }

    /// Its number within the device.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Whether it is one of this device.
    pub(crate) fn belongs_to<T>(&self, device: &Arc<T>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.device), Arc::as_ptr(device))
    }

    pub(crate) fn no_cq(&self) -> Arc<CqCore> {
        self.no_cq.clone()
    }

    /// How many hold it besides the caller: other openers, queue pairs, shared receive queues.
    pub fn other_holders(self: &Arc<Self>) -> usize {
        Arc::strong_count(self) - 1
    }
}

/// A file that identifies an XRC domain: device and inode number.
pub type XrcKey = (u64, u64);

/// Domains that were opened under a key.
#[derive(Default)]
pub(crate) struct XrcDomains {
    pub(crate) by_key: Mutex<HashMap<XrcKey, Weak<XrcDomain>>>,
}
