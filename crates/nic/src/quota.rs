//! How many objects of a kind a device has. The attributes of the device state the limit, so it must hold.

use crate::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Most objects of each of these kinds: protection domains, completion queues, shared receive queues, address handles, work queues,
/// attachments to multicast groups.
pub const MAX_OBJECTS: u32 = 1 << 20;

/// The objects of one kind.
pub(crate) struct Quota {
    what: &'static str,
    limit: u32,
    used: Arc<AtomicU32>,
}

/// One of them; it is free again when this is dropped.
pub(crate) struct Permit(Arc<AtomicU32>);

impl Quota {
    fn new(what: &'static str, limit: u32) -> Quota {
        Quota { what, limit, used: Arc::default() }
    }

    /// Takes one.
    pub(crate) fn take(&self) -> Result<Permit, Error> {
        let used = self.used.fetch_add(1, Ordering::Relaxed);
        let permit = Permit(self.used.clone());
        if used < self.limit {
            Ok(permit)
        } else {
            Err(Error::Exhausted { what: self.what, limit: self.limit.into() })
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All kinds.
pub(crate) struct Quotas {
    pub(crate) pds: Quota,
    pub(crate) cqs: Quota,
    pub(crate) srqs: Quota,
    pub(crate) address_handles: Quota,
    pub(crate) work_queues: Quota,
    pub(crate) multicast: Quota,
}

impl Default for Quotas {
    fn default() -> Self {
        let of = |what| Quota::new(what, MAX_OBJECTS);
        Quotas {
            pds: of("protection domains"),
            cqs: of("completion queues"),
            srqs: of("shared receive queues"),
            address_handles: of("address handles"),
            work_queues: of("work queues"),
            multicast: of("attachments to multicast groups"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_can_be_taken_again() {
        let quota = Quota::new("things", 2);
        let [_first, second] = [quota.take().unwrap(), quota.take().unwrap()];
        for _ in 0..2 {
            let refused = quota.take().map(drop).unwrap_err();
            assert_eq!(refused.to_string(), "all 2 things of the device are in use");
        }
        drop(second);
        assert!(quota.take().is_ok());
    }
}
